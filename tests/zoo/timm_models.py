"""One small model or more of nearly every architecture in timm, which is skipped by name where it is not installed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .cases import EVAL, FLOAT32, Built, Case, Unavailable

# Of every architecture the smallest registered model; those that take another size than their own run on small pictures.
PLAIN = """
    lambda_resnet26t convmixer_768_32 convnext_atto convnextv2_atto cspresnet50 darknet53 densenet121 dla34 dla46_c
    dpn48b edgenext_xx_small efficientnet_lite0 tinynet_e mnasnet_small fbnetc_100 spnasnet_100 mixnet_s hardcorenas_a
    efficientnetv2_rw_t fasternet_t0 fastvit_t8 focalnet_tiny_srf ghostnet_050 ghostnetv2_100 hgnet_tiny hgnetv2_b0
    hrnet_w18_small inception_next_atto inception_resnet_v2 inception_v3 inception_v4 lcnet_050 mobilenetv1_100
    mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 nf_regnet_b0 dm_nfnet_f0 eca_nfnet_l0
    nfnet_f0 poolformer_s12 poolformerv2_s12 convformer_s18 caformer_s18 pvt_v2_b0 rdnet_tiny regnetx_002 regnety_002
    regnetz_005 repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_14w_8s resnest14d resnet10t resnetv2_18 rexnet_100
    selecsls42 seresnet18 skresnet18 starnet_s1 tresnet_m vgg11 vovnet39a xception41 xception71 legacy_xception
    legacy_seresnet18 mambaout_femto ese_vovnet19b_dw nasnetalarge pnasnet5large efficientvit_b0 gernet_s ecaresnet26t
    resnext50_32x4d resnetblur18 swiftformer_xs shvit_s1 mobilenetv4_hybrid_medium gcresnet33ts
""".split()
SIZED = """
    vit_tiny_patch16_224 vit_small_patch32_224 vit_relpos_small_patch16_224 deit_tiny_patch16_224
    deit3_small_patch16_224 deit_tiny_distilled_patch16_224 beit_base_patch16_224 beitv2_base_patch16_224 cait_xxs24_224
    eva02_tiny_patch14_224 mixer_s32_224 resmlp_12_224 gmlp_ti16_224 gmixer_12_224 pit_ti_224 pit_ti_distilled_224
    xcit_nano_12_p16_224 twins_pcpvt_small twins_svt_small volo_d1_224 tnt_s_legacy_patch16_224 convit_tiny
    visformer_tiny swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224 vit_tiny_r_s16_p8_224
    vit_medium_patch16_reg4_gap_256 flexivit_small sequencer2d_s
""".split()
OWN_SIZE = """
    bat_resnext26ts botnet26t_256 halonet26t efficientformerv2_s0 crossvit_tiny_240 tiny_vit_5m_224 coatnet_nano_rw_224
    coatnext_nano_rw_224 maxvit_pico_rw_256 maxxvit_rmlp_nano_rw_256 mobilevit_xxs mobilevitv2_050 levit_128s
    levit_conv_128s coat_tiny coat_lite_tiny davit_tiny efficientformer_l1 gcvit_xxtiny hiera_tiny_224 mvitv2_tiny
    nest_tiny nextvit_small efficientvit_m0 visformer_small vitamin_small_224
""".split()


def build(name: str, size: int | None = 64, **options: Any) -> Built:
    """A timm model with random weights; without a size, the one it was made for."""
    try:
        import timm
    except ImportError as error:
        raise Unavailable("timm is not installed: pip install --no-deps timm==1.0.30") from error
    model = timm.create_model(name, num_classes=10, **options)
    side = size or model.default_cfg["input_size"][-1]
    return model, (torch.rand(2, 3, side, side),), {}


def cases() -> list[Case]:
    """The families that the list above names; the large ones only once."""
    large = {"nasnetalarge", "pnasnet5large", "nfnet_f0", "dm_nfnet_f0", "inception_resnet_v2", "inception_v4", "inception_v3"}
    found = []
    for name in PLAIN:
        size = 128 if name in large or name.startswith(("lambda", "xception")) else 64
        modes: dict[str, Any] = {"modes": EVAL, "dtypes": FLOAT32, "slow": True} if name in large else {}
        found.append(Case(f"timm/{name}", partial(build, name, size), **modes))
    found += [Case(f"timm/{name}", partial(build, name, img_size=64)) for name in SIZED]
    found += [Case(f"timm/{name}", partial(build, name, None), EVAL, FLOAT32) for name in OWN_SIZE]
    return found
