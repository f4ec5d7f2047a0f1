"""Makes torchvision's pure-Python models importable where its compiled operators are not installed.

The compiled part of torchvision fits the CUDA build of torch only, but its models need only torch. `make models` puts them, and
`make zoo` puts timm, into a folder of the build, so that nothing in `.venv` finds a torchvision it cannot import. The import
asks for the schemas of a few compiled operators; here they are declared, without implementations. Where the compiled part can
be loaded, it declares them itself, and a second declaration would end the process.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent.parent / "build" / "models"
_BOX = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_GRAD = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_BOX}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward({_BOX}, {_GRAD}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_BOX}) -> (Tensor, Tensor)",
    f"_roi_pool_backward({_BOX}, Tensor argmax, {_GRAD}) -> Tensor",
    f"ps_roi_align({_BOX}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward({_BOX}, Tensor channel_mapping, int sampling_ratio, {_GRAD}) -> Tensor",
    f"ps_roi_pool({_BOX}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward({_BOX}, Tensor channel_mapping, {_GRAD}) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt[] geometry, "
    "bool use_mask) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt[] geometry, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_libraries: list[torch.library.Library] = []


def declare() -> None:
    """Put the folder of `make models` on the path, last, and declare what `import torchvision` needs, once."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    if _libraries or _has_compiled_operators():
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _libraries.append(library)


def _has_compiled_operators() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    libraries = list(Path(found.origin).parent.glob("_C*.so"))
    try:
        for library in libraries:
            torch.ops.load_library(str(library))
    except OSError:  # made for another build of torch
        return False
    return bool(libraries)
