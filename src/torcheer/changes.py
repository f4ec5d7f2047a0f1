"""Changes of values, applied while a model runs or while a log is replayed.

    from torcheer import changes
    with tl.intervene(model, {"blocks.6": changes.add(vector, at=(..., -1, slice(None)))}):
        model(x)

A change takes the present value and returns the new value; gradients flow through it. `at` is any index of the tensor: only
the selected part is changed. `heads` selects attention heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from ._torch.memory import cloned
from ._torch.shapes import shape_of
from .errors import InvalidArgument

IndexPart = int | slice | EllipsisType | Tensor | Sequence[int] | Sequence[bool] | None
Index = IndexPart | tuple[IndexPart, ...]  # an index of a tensor; None: the whole tensor


@dataclass(frozen=True, slots=True)
class HeadAxis:
    """The dimension of a value along which its attention heads lie."""

    dim: int
    heads: tuple[int, ...]  # for each position of the dimension: its head, or -1
    dims: int  # how many dimensions the value has

    @property
    def count(self) -> int:
        """The number of attention heads."""
        return max(self.heads, default=-1) + 1

    def at(self, size: int) -> tuple[int, ...] | None:
        """The head at each of `size` positions, even if the batch size differs; None if unknown."""
        if size == len(self.heads):
            return self.heads
        count = self.count
        is_counted_fastest = count > 0 and self.heads == tuple(n % count for n in range(len(self.heads)))
        return tuple(n % count for n in range(size)) if is_counted_fastest and size % count == 0 else None


class Change(ABC):
    """A change of a tensor, or of the part that `at` (an index) or `heads` (numbers of attention heads) selects."""

    _is_held = False  # True if the change keeps the tensor that `new` returns: the model then gets a copy

    def __init__(self, at: Index = None, heads: Sequence[int] | None = None) -> None:
        if at is not None and heads is not None:
            raise InvalidArgument("at= and heads= both select a part of the tensor: give one of them.")
        if heads is not None and not (isinstance(heads, (list, tuple, range)) and all(isinstance(head, int) for head in heads)):
            raise InvalidArgument(f"heads is a list of numbers of attention heads, such as [0, 5]; got {heads!r}.")
        self.at = at
        self.heads = None if heads is None else list(heads)

    @abstractmethod
    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        """The new value of `part`, which is `whole[index]`; if the index is None, `part` is the whole tensor."""

    def __call__(self, tensor: Tensor, where: str = "the tensor", known: HeadAxis | Sequence[int] = ()) -> Tensor:
        """Change the tensor. Errors name it as `where`. `known` is the tensor's head axis, or its possible numbers of heads."""
        index = self.at if self.heads is None else head_index(tensor, self.heads, where, known)
        if index is None:
            new = fitting(self._made(tensor, tensor, None, where), tensor, where)
            return cloned(new) if self._is_held else new
        try:
            part = tensor[index]
        except (IndexError, RuntimeError, TypeError) as error:
            raise InvalidArgument(
                f"at={_index_text(index)} selects nothing of {where}, shape {shape_of(tensor)}: {error}"
            ) from None
        changed = tensor.clone()
        changed[index] = fitting(self._made(part, tensor, index, where), part, where)
        return changed

    def _made(self, part: Tensor, whole: Tensor, index: Index, where: str) -> Any:
        try:
            return self.new(part, whole, index)
        except (IndexError, RuntimeError, TypeError) as error:
            raise InvalidArgument(f"{self} cannot be applied to {where}, which has shape {shape_of(part)}: {error}") from error

    def __repr__(self) -> str:
        options = [value for name, value in vars(self).items() if name not in ("at", "heads") and not name.startswith("_")]
        given = [_short(value) for value in options if value is not None]
        if self.heads is not None:
            given.append(f"heads={self.heads}")
        elif self.at is not None:
            given.append(f"at={_index_text(self.at)}")
        return f"{type(self).__name__}({', '.join(given)})"


def _index_text(index: Index) -> str:
    """An index as text, in Python's syntax: `[..., -1, :]`."""

    def text(one: Any) -> str:
        if isinstance(one, slice):
            ends = ["" if end is None else str(end) for end in (one.start, one.stop, one.step)]
            return ":".join(ends if one.step is not None else ends[:2])
        return "..." if one is Ellipsis else _short(one)

    return f"[{', '.join(map(text, index if isinstance(index, tuple) else (index,)))}]"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<tensor {shape_of(value)}>"
    return getattr(value, "__name__", "") or repr(value)


def fitting(new: Any, old: Tensor, where: str) -> Tensor:
    """Convert `new` to the device and dtype of `old`. Raises if `new` is not a tensor, or if the shapes differ."""
    if not isinstance(new, Tensor) or shape_of(new) != shape_of(old):
        nothing = "None: it must return the new tensor" if new is None else type(new).__name__
        came = shape_of(new) if isinstance(new, Tensor) else nothing
        raise InvalidArgument(f"the change of {where} must be a tensor of shape {shape_of(old)}; got {came}.")
    if not torch.can_cast(new.dtype, old.dtype):
        raise InvalidArgument(f"the change of {where} must be {old.dtype}, or a dtype that can be cast to it; got {new.dtype}.")
    return new if new.dtype is old.dtype and new.device == old.device else new.to(old.device, old.dtype)


def head_index(tensor: Tensor, heads: Sequence[int], where: str, known: HeadAxis | Sequence[int] = ()) -> tuple[IndexPart, ...]:
    """Make the index of attention heads: along an axis known from a history, else in the dimension that the shape shows.

    The shape must be (batch, heads, length, size), or with heads and length swapped. `known` are possible numbers of heads,
    several if queries share the heads of keys and values; without it, heads are dimension 1.
    """
    if isinstance(known, HeadAxis):
        return _index_along(known, tensor, heads, where)
    shape = shape_of(tensor)
    dims = [dim for dim in (1, 2) if len(shape) == 4 and (shape[dim] in known or (not known and dim == 1))]
    if not dims:
        form = "(batch, heads, length, size)" + (f" with {' or '.join(map(str, known))} heads" if known else "")
        raise InvalidArgument(
            f"the dimension of the attention heads in {where} is unknown: its shape {shape} is not {form}. A history shows "
            "where its elements go to attention, or come from it: like=history. at= takes any index."
        )
    _check_heads(heads, shape[dims[0]], where)
    return (*[slice(None)] * dims[0], list(heads))


def _index_along(axis: HeadAxis, tensor: Tensor, heads: Sequence[int], where: str) -> tuple[IndexPart, ...]:
    shape = shape_of(tensor)
    along = axis.at(shape[axis.dim]) if len(shape) == axis.dims else None
    if along is None:
        raise InvalidArgument(
            f"{where} has shape {shape}; when it was logged it had {axis.dims} dimensions, and dimension {axis.dim} with the "
            f"attention heads had size {len(axis.heads)}. Log the model with inputs of this shape, or use at=."
        )
    _check_heads(heads, axis.count, where)
    before = [slice(None)] * axis.dim
    if along == tuple(range(axis.count)):
        return (*before, list(heads))
    places = [[at for at, head in enumerate(along) if head == wanted % axis.count] for wanted in heads]
    return (*before, torch.tensor(places, dtype=torch.long, device=tensor.device))


def _check_heads(heads: Sequence[int], count: int, where: str) -> None:
    wrong = [head for head in heads if not -count <= head < count]
    if wrong:
        raise InvalidArgument(f"{where} has {count} attention heads, 0 to {count - 1}; got {wrong}.")


def _number_or_tensor(value: Any, what: str, more: str = "") -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, complex, Tensor)):
        raise InvalidArgument(f"{what} takes a number or a tensor{more}; got {type(value).__name__}: {value!r:.60}.")
    return value


def _operand(value: Any, part: Tensor) -> Any:
    """`value`; a tensor is moved to the device of `part` and converted to its dtype."""
    if not isinstance(value, Tensor):
        return value
    if not torch.can_cast(value.dtype, part.dtype):
        raise TypeError(f"{value.dtype} cannot be cast to {part.dtype}")
    return value.to(part.device, part.dtype)


class zero(Change):  # noqa: N801 - used as a function: `changes.zero(heads=[5])`
    """Replaces the value by zeros."""

    def __init__(self, *, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        return torch.zeros_like(part)


class scale(Change):  # noqa: N801
    """Multiplies the value by a number or a tensor that broadcasts to it."""

    def __init__(self, factor: float | Tensor, *, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)
        self.factor = _number_or_tensor(factor, "scale")

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        return part * _operand(self.factor, part)


class add(Change):  # noqa: N801
    """Adds a number or a tensor that broadcasts to the value, such as a steering vector."""

    def __init__(self, value: float | Tensor, *, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)
        self.value = _number_or_tensor(value, "add")

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        return part + _operand(self.value, part)


class noise(Change):  # noqa: N801
    """Adds normal noise to the value. A seed gives the same noise at every call; torch's random state is unchanged."""

    def __init__(self, std: float = 1.0, *, seed: int = 0, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)
        self.std = _number_or_tensor(std, "noise")
        if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
            raise InvalidArgument(f"the seed of noise is a whole number of 64 bits; got {type(seed).__name__}: {seed!r:.60}.")
        self.seed = seed

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        if not (part.is_floating_point() or part.is_complex()):
            raise TypeError(f"noise is added to floating-point values, not to {part.dtype}")
        generator = torch.Generator().manual_seed(self.seed)  # on the CPU, so that all devices get the same noise
        drawn = torch.randn(part.shape, generator=generator, dtype=torch.float32)
        return part + drawn.to(part.device, part.dtype) * _operand(self.std, part)


class clamp(Change):  # noqa: N801
    """Clamps the value between two limits."""

    def __init__(
        self, min: float | None = None, max: float | None = None, *, at: Index = None, heads: Sequence[int] | None = None
    ) -> None:
        super().__init__(at, heads)
        if min is None and max is None:
            raise InvalidArgument("clamp needs a limit: min=, max= or both.")
        self.min = None if min is None else _number_or_tensor(min, "clamp")
        self.max = None if max is None else _number_or_tensor(max, "clamp")

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        return part.clamp(self.min, self.max)


class replace(Change):  # noqa: N801
    """Replaces the value by another value (activation patching): a tensor, or a layer, operation or history that has the
    tensor.

    A history provides the value with the same key. With `at` or `heads`, the value has either the shape of the whole tensor
    (the same part is taken) or the shape of the part.
    """

    _is_held = True

    def __init__(self, value: Any, *, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)
        self.value = value if _is_history(value) else _contents(value)

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        if not isinstance(self.value, Tensor):
            raise InvalidArgument("replace(history) needs a key: use it as the change of a key.")
        return self.value[index] if index is not None and self.value.shape == whole.shape else self.value

    def at_key(self, key: object) -> Change:
        """This change; if it has a history, the change with that history's value for the key."""
        if isinstance(self.value, Tensor):
            return self
        return replace(self.value[key], at=self.at, heads=self.heads)


def _is_history(value: Any) -> bool:
    return hasattr(type(value), "locate") and hasattr(type(value), "__getitem__")


def _contents(value: Any) -> Tensor:
    contents = value if isinstance(value, Tensor) else getattr(value, "tensor_contents", None)
    if not isinstance(contents, Tensor):
        raise InvalidArgument(
            "replace takes a tensor, a history, or a layer or operation of one whose tensor was saved; "
            f"got {type(value).__name__}: {value!r:.60}."
        )
    return contents


class mean(Change):  # noqa: N801
    """Replaces the value by a precomputed mean (mean ablation): a number, or a tensor that broadcasts to the value.

    `value` may also be features: of a layer (`features["layer3"]`), of all layers (the layer with the same key is used), or the
    result of the reducer `Mean`. These are means of the whole value, one per unit; with `at` or `heads` the same part is taken.
    """

    _is_held = True

    def __init__(self, value: Any, *, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)
        self._is_of_whole = hasattr(type(value), "as_mean")
        if self._is_of_whole:
            self.value = value.as_mean()
        else:
            self.value = value if _is_features(value) else _number_or_tensor(value, "mean", ", or features")

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        if _is_features(self.value):
            raise InvalidArgument("mean(features) needs a key: use it as the change of a key.")
        given = _operand(torch.as_tensor(self.value), part)
        if self._is_of_whole and index is not None:
            return given.expand(whole.shape)[index]
        return given.expand(part.shape)

    def at_key(self, key: Any) -> Change:
        """This change; if it has features, the change with the mean of the layer with this key."""
        if not _is_features(self.value):
            return self
        return mean(self.value.mean(key), at=self.at, heads=self.heads)


def _is_features(value: Any) -> bool:
    return isinstance(value, Mapping) and hasattr(type(value), "mean")


class swap(Change):  # noqa: N801
    """Swaps two units along a dimension (by default the last)."""

    def __init__(self, one: int, other: int, *, dim: int = -1, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)
        wrong = [number for number in (one, other, dim) if isinstance(number, bool) or not isinstance(number, int)]
        if wrong:
            raise InvalidArgument(f"swap takes the numbers of two units, and dim= of a dimension; got {wrong[0]!r:.60}.")
        self.one = one
        self.other = other
        self.dim = dim

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        if not -part.ndim <= self.dim < part.ndim:
            raise IndexError(f"it has no dimension {self.dim}")
        size = part.shape[self.dim]
        if not all(-size <= unit < size for unit in (self.one, self.other)):
            raise IndexError(f"there are {size} units along dimension {self.dim}")
        order = list(range(size))
        order[self.one], order[self.other] = order[self.other], order[self.one]
        return part.index_select(self.dim, torch.tensor(order, device=part.device))


class call(Change):  # noqa: N801
    """Replaces the value by the result of a function of the value. A plain function given as a change becomes a `call`.

    The function gets a copy and may write to it: inputs and weights, whose memory the value may share, stay unchanged.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], *, at: Index = None, heads: Sequence[int] | None = None) -> None:
        super().__init__(at, heads)
        if not callable(function):
            raise InvalidArgument(f"call takes a function of a tensor; got {type(function).__name__}: {function!r:.60}.")
        self.function = function

    def new(self, part: Tensor, whole: Tensor, index: Index) -> Any:
        return self.function(cloned(part))

    def _made(self, part: Tensor, whole: Tensor, index: Index, where: str) -> Any:
        return self.new(part, whole, index)  # errors of the function are not wrapped


Given = Change | Tensor | Callable[[Tensor], Tensor]  # the values accepted as a change


def as_change(value: Any, key: object) -> Change:
    """A `Change` from a value given for a key: a `Change`, a tensor, or a function of a tensor."""
    if isinstance(value, (replace, mean)):
        return value.at_key(key)
    if isinstance(value, Change):
        return value
    if isinstance(value, type) and issubclass(value, Change):
        raise InvalidArgument(f"the change of {key!r} is the class {value.__name__}; call it: changes.{value.__name__}().")
    if isinstance(value, Tensor):
        return replace(value)
    if callable(value):
        return call(value)
    raise InvalidArgument(
        f"a change is a tensor or a function of a tensor, or one of torcheer.changes; {key!r} has {type(value).__name__}."
    )
