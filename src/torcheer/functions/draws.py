"""Which calls draw random numbers from the default generator: the same function may, or may not, for other arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import groups

Draws = Callable[[tuple[Any, ...], dict[str, Any]], bool]


def _in_training(position: int) -> Draws:
    def draws(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return bool(kwargs.get("training", kwargs.get("train", args[position] if len(args) > position else True)))

    return draws


def _with_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(type(value) is float and value > 0 for value in (*args, *kwargs.values()))


def _attention_with_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """For `scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, …)`, whose `scale` is a float, too."""
    dropout = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
    return not isinstance(dropout, (int, float)) or dropout > 0


def _from_the_default(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("generator") is None and not any(type(value) is torch.Generator for value in args)


# By plain name.
_DRAWS: dict[str, Draws] = {
    **dict.fromkeys(
        groups.SAMPLING
        | groups.RANDOM_BESIDES
        | frozenset(
            "normal_functional fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices kaiming_uniform "
            "kaiming_normal xavier_uniform xavier_normal trunc_normal orthogonal sparse".split()
        ),
        _from_the_default,
    ),
    **dict.fromkeys(groups.DROPOUTS, _in_training(2)),
    "rrelu": _in_training(3),
    **dict.fromkeys("rrelu_with_noise rrelu_with_noise_functional".split(), _in_training(4)),
    **dict.fromkeys(
        "lstm gru rnn_tanh rnn_relu scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu "
        "scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention flash_attention_forward "
        "efficient_attention_forward cudnn_rnn miopen_rnn".split(),
        _with_dropout,
    ),
    **dict.fromkeys("scaled_dot_product_attention scaled_dot_product_attention_math".split(), _attention_with_dropout),
}


def draws_of(plain: str) -> Draws | None:
    """Whether a call of the function of this plain name draws, given its arguments; None when no call does."""
    return _DRAWS.get(plain)
