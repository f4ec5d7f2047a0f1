"""The arguments `transform=` (how a value is changed before it is stored) and `keep=` (which values and reducers are kept)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .._text import did_you_mean
from .._torch.inputs import described
from .._torch.memory import indexed
from ..errors import InvalidArgument
from ..reducers import KINDS, Reducer

OneTransform = (
    str | Callable[..., object] | None
)  # the name of a ready-made transform, or a function of the tensor, or of the tensor and the batch
GivenTransform = OneTransform | Mapping[str, OneTransform]  # the argument `transform=`
Transform = Callable[[Tensor, Any, Tensor | None], Any]  # (value, batch, attention mask or None) -> stored value


def _mean(tensor: Tensor, batch: Any, mask: Tensor | None) -> Tensor:
    """Average over positions: [samples, positions, units] over positions that are not padding, pictures over pixels."""
    if tensor.dim() < 3:
        return tensor
    is_float = tensor.is_floating_point()
    # In half precision a sum may overflow, and counts above 256 are not exact.
    values = tensor if tensor.is_complex() or (is_float and tensor.element_size() > 2) else tensor.float()
    if tensor.dim() > 3:
        found = values.flatten(2).mean(2)
    elif not _fits(tensor, mask):
        found = values.mean(1)
    else:
        kept = _kept(mask)
        found = values.masked_fill(~kept, 0).sum(1) / kept.sum(1).clamp(min=1)
    return found.to(tensor.dtype) if is_float else found


def _max(tensor: Tensor, batch: Any, mask: Tensor | None) -> Tensor:
    """Take the largest value over the same positions as `_mean`."""
    if tensor.is_complex():
        raise InvalidArgument(
            'transform="max" takes numbers that have an order; a layer is complex. Use a function of your own.'
        )
    if tensor.dim() < 3:
        return tensor
    is_small = tensor.is_floating_point() and tensor.element_size() == 1
    values = tensor.float() if is_small else tensor
    if tensor.dim() > 3:
        found = values.flatten(2).amax(2)
    elif not _fits(tensor, mask):
        found = values.amax(1)
    else:
        found = values.masked_fill(~_kept(mask), _lowest(values.dtype)).amax(1)
    return found.to(tensor.dtype)


def _lowest(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return -math.inf
    return 0 if dtype is torch.bool else torch.iinfo(dtype).min


def _first_token(tensor: Tensor, batch: Any, mask: Tensor | None) -> Tensor:
    """The value at the first position that is not padding."""
    if not _fits(tensor, mask):
        return tensor[:, 0] if tensor.dim() > 2 else tensor
    return indexed(tensor, (torch.arange(len(tensor), device=tensor.device), _kept(mask)[..., 0].int().argmax(1)))


def _last_token(tensor: Tensor, batch: Any, mask: Tensor | None) -> Tensor:
    """The value at the last position that is not padding."""
    if not _fits(tensor, mask):
        return tensor[:, -1] if tensor.dim() > 2 else tensor
    kept = _kept(mask)[..., 0].int()
    return indexed(tensor, (torch.arange(len(tensor), device=tensor.device), kept.shape[1] - 1 - kept.flip(1).argmax(1)))


def _fits(tensor: Tensor, mask: Tensor | None) -> bool:
    return mask is not None and tensor.shape[:2] == mask.shape


def _kept(mask: Tensor | None) -> Tensor:
    """Convert a mask to [samples, positions, 1]: True for positions that are not padding."""
    assert mask is not None
    return mask.bool().unsqueeze(-1)


READY_MADE: dict[str, Transform] = {"mean": _mean, "max": _max, "first_token": _first_token, "last_token": _last_token}


def transforms_by_name(transform: Any, names: list[str], keys: Mapping[str, str]) -> dict[str, Transform]:
    """Maps names of stored layers to their transforms. `keys` maps the names to their keys, as text."""
    if transform is None:
        return {}
    if not isinstance(transform, Mapping):
        one = _parsed(transform)
        return dict.fromkeys(names, one)
    found: dict[str, Transform] = {}
    for key, value in transform.items():
        meant = names_meant(key, names, keys, "transform")
        if value is not None:
            found.update(dict.fromkeys(meant, _parsed(value)))
    return found


def names_meant(key: Any, names: list[str], keys: Mapping[str, str], who: str) -> list[str]:
    """The stored layers that have this name, or whose key is this key."""
    meant = [name for name in names if name == str(key)] or [name for name in names if keys[name] == str(key)]
    if not meant:
        hint = did_you_mean(key, dict.fromkeys([*names, *keys.values()]))
        raise InvalidArgument(f"{who} names {key!r}, which is not among the layers: {', '.join(names)}.{hint}")
    return meant


def _parsed(value: Any) -> Transform:
    if isinstance(value, str):
        if value not in READY_MADE:
            raise InvalidArgument(f"transform is a function, a dictionary, or one of {', '.join(READY_MADE)}; got {value!r}.")
        return READY_MADE[value]
    if not callable(value):
        raise InvalidArgument(
            f"transform is a function of a tensor, or of a tensor and the batch; one of {', '.join(READY_MADE)}; or a "
            f"dictionary from layers to these; got {described(value)}."
        )
    if _takes_batch(value):
        return lambda tensor, batch, mask: value(tensor, batch)
    return lambda tensor, batch, mask: value(tensor)


def _takes_batch(function: Callable[..., Any]) -> bool:
    """True if a function takes the batch: its second argument is required, or is named `batch`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function written in C
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "batch")


# The argument `keep=`: which layers' values are stored, and which reducers run on them.

ACTIVATIONS = "activations"
OneKept = Reducer | type[Reducer] | Literal["activations"]
KeptOfLayer = OneKept | Sequence[OneKept] | None
GivenKeep = KeptOfLayer | Mapping[str, KeptOfLayer]  # the argument `keep=`


@dataclass(frozen=True)
class Keeping:
    """For each layer: whether its values are stored, and its reducers."""

    stored: list[str]
    reducers: dict[str, list[Reducer]]

    def describe(self) -> dict[str, Any]:
        """A JSON description of the argument `keep`."""
        return {
            "stored": self.stored,
            "reducers": {name: [one.describe() for one in some] for name, some in self.reducers.items()},
        }


def parse_keep(keep: Any, names: list[str], origins: Mapping[str, str]) -> Keeping:
    """Parse the argument `keep`. Values of layers that a mapping does not name are stored."""
    by_name: dict[str, list[Any]] = {name: [ACTIVATIONS] for name in names}
    if isinstance(keep, Mapping):
        for key, value in keep.items():
            by_name.update(dict.fromkeys(names_meant(key, names, origins, "keep"), _listed(value)))
    else:
        by_name = dict.fromkeys(names, _listed(keep))
    return Keeping(
        [name for name, some in by_name.items() if ACTIVATIONS in some],
        {name: found for name, some in by_name.items() if (found := [one for one in some if isinstance(one, Reducer)])},
    )


def _listed(value: Any) -> list[Any]:
    given = [ACTIVATIONS] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    if not given:
        raise InvalidArgument(f"keep is empty, so nothing would be kept: leave it out, or name reducers or {ACTIVATIONS!r}.")
    found = [one() if isinstance(one, type) and one in KINDS.values() else one for one in given]
    for one in found:
        if not isinstance(one, Reducer) and one != ACTIVATIONS:
            raise InvalidArgument(
                f"keep takes reducers ({', '.join(f'{name}()' for name in KINDS)}), {ACTIVATIONS!r}, a list of these, or a "
                f"mapping from layers to these; got {described(one)}."
            )
    return found
