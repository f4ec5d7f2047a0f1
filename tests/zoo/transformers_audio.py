"""Audio models of transformers: waves in, spectrograms in, codecs, speech to text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .cases import EVAL, FLOAT32, Built, Case
from .transformers_tiny import Generation, ids, tiny

CONVOLUTIONS: dict[str, Any] = {
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.0,
}
WAVES = "wav2vec2 wav2vec2-conformer hubert unispeech unispeech-sat wavlm data2vec-audio sew sew-d".split()


def wave(name: str, **options: Any) -> Built:
    """A model of raw sound; masks in time would be drawn by NumPy for longer sounds than this."""
    sizes = dict(CONVOLUTIONS)
    if name.startswith("sew"):
        sizes |= {"squeeze_factor": 2, "conv_dim": [16, 16], "feature_layer_norm_eps": 1e-5}
    return tiny(name, **{**sizes, "apply_spec_augment": False, **options}), (), {"input_values": torch.randn(2, 400)}


def letters() -> Built:
    """A recogniser with its connectionist temporal loss."""
    model = tiny("wav2vec2", "AutoModelForCTC", **CONVOLUTIONS, apply_spec_augment=False)
    return model, (), {"input_values": torch.randn(2, 400), "labels": ids(length=3)}


def whisper() -> dict[str, Any]:
    """The sizes of a tiny Whisper."""
    return {"max_source_positions": 10, "max_target_positions": 16, "num_mel_bins": 8, "d_model": 32}


def transcription() -> Built:
    """Both sides of Whisper."""
    sound = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids(length=4)}
    return tiny("whisper", **whisper()), (), sound


def dictation(name: str) -> Built:
    """Speech to text, generating."""
    if name == "whisper":
        model = tiny(name, "WhisperForConditionalGeneration", **whisper(), begin_suppress_tokens=None, suppress_tokens=None)
        return Generation(model, begin_suppress_tokens=None), (), {"input_features": torch.randn(2, 8, 20)}
    model = tiny(name, "Speech2TextForConditionalGeneration", **spoken())
    return Generation(model), (), {"input_features": torch.randn(2, 24, 8)}


def spoken() -> dict[str, Any]:
    """The sizes of a tiny Speech2Text."""
    return {"input_feat_per_channel": 8, "max_source_positions": 32, "max_target_positions": 16, "conv_channels": 16}


def speech_to_text() -> Built:
    """Both sides of Speech2Text."""
    return tiny("speech_to_text", **spoken()), (), {"input_features": torch.randn(2, 24, 8), "decoder_input_ids": ids(length=4)}


def spectrogram() -> Built:
    """The audio spectrogram transformer."""
    model = tiny("audio-spectrogram-transformer", max_length=24, num_mel_bins=16, time_stride=8, frequency_stride=8)
    return model, (), {"input_values": torch.randn(2, 24, 16)}


def bert_of_sound() -> Built:
    """Conformer blocks over features."""
    return tiny("wav2vec2-bert", feature_projection_input_dim=12), (), {"input_features": torch.randn(2, 10, 12)}


def parakeet() -> Built:
    """A fast conformer encoder."""
    model = tiny("parakeet_encoder", num_mel_bins=16, subsampling_conv_channels=8)
    return model, (), {"input_features": torch.randn(2, 40, 16)}


def codec(name: str, **options: Any) -> Built:
    """A neural codec: encodes, quantises, decodes."""
    return tiny(name, attention=None, **options), (), {"input_values": torch.randn(1, 1, 640)}


def moonshine() -> Built:
    """A recogniser of raw sound, both sides."""
    return tiny("moonshine"), (), {"input_values": torch.randn(1, 4000), "decoder_input_ids": ids(1, 4)}


def vocoder() -> Built:
    """Noise and a spectrogram to sound."""
    return tiny("univnet", attention=None), (), {"input_features": torch.randn(1, 4, 100)}


def cases() -> list[Case]:
    """Audio models."""
    encodec = {"hidden_size": 16, "num_filters": 4, "codebook_size": 16, "codebook_dim": 16, "upsampling_ratios": [4, 2]}
    dac = {"encoder_hidden_size": 4, "decoder_hidden_size": 32, "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2]}
    found = [Case(f"transformers/{name}", partial(wave, name)) for name in WAVES]
    return [
        *found,
        Case("transformers/wav2vec2-sdpa", partial(wave, "wav2vec2", attention="sdpa")),
        Case("transformers/wav2vec2-CTC", letters, dtypes=FLOAT32),
        Case("transformers/whisper", transcription),
        Case("transformers/whisper-generate", partial(dictation, "whisper"), EVAL, FLOAT32),
        Case("transformers/speech_to_text", speech_to_text),
        Case("transformers/speech_to_text-generate", partial(dictation, "speech_to_text"), EVAL),
        Case("transformers/audio-spectrogram-transformer", spectrogram),
        Case("transformers/wav2vec2-bert", bert_of_sound),
        Case("transformers/parakeet_encoder", parakeet),
        Case("transformers/encodec", partial(codec, "encodec", **encodec)),
        Case("transformers/dac", partial(codec, "dac", **dac, codebook_dim=4, codebook_size=16, n_codebooks=3)),
        Case("transformers/moonshine", moonshine),
        Case("transformers/univnet", vocoder),
    ]
