"""Which tensors a call writes to, told from its arguments before it runs.

torch's schemas mark what is written. They say nothing of running statistics, of `max_norm` of an embedding, of Python's
operators, and of Python functions with `inplace=True`: those have rules here.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import Tensor

from . import groups
from .collectives import is_collective, written_by_collective, written_unmarked
from .names import is_inplace_operator
from .schemas import argument_names, schemas_of, writes

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Writes = Callable[[Args, Kwargs], list[Any]]


def writes_of(func: Any, name: str, plain: str) -> Writes | None:
    """A function from a call's arguments to the tensors it writes to; None when only `out=` and `inplace=True` can say so."""
    if is_collective(func):
        return written_by_collective(func)
    if (unmarked := written_unmarked(func)) is not None:
        return unmarked
    if name in ("set_data", "__setitem__") or is_inplace_operator(name):
        return _first_argument
    if name in groups.GRADIENT_SWITCHES:
        return None  # detach_ changes what autograd knows, and no values
    if plain in groups.LOOK_UPS and isinstance(func, types.FunctionType):
        return _renormalised_weight
    positions: dict[int, str] = {}
    names: set[str] = set()
    for schema in schemas_of(func, name):
        for position, argument in enumerate(schema.arguments):
            if not writes(argument):
                continue
            if argument.is_out or argument.kwarg_only:
                names.add(argument.name)
            elif "Tensor" in str(argument.type):
                positions[position] = argument.name
    if _updates_statistics(func, name, plain):
        return _RunningStatistics(func, name, frozenset(names))
    if positions or names - {"out"}:
        scales = "grad_scale" in argument_names(func, name)
        return (_FusedStep if scales else _Marked)(positions, frozenset(names))
    if name.endswith("_") and not name.endswith("__"):
        return _first_argument
    return None


def _updates_statistics(func: Any, name: str, plain: str) -> bool:
    """Batch norm, under all its names but those that are told not to."""
    if plain.endswith(("_backward", "_functional", "_no_update", "_no_training", "_elemt")):
        return False
    return {"running_mean", "running_var"} <= set(argument_names(func, name))


def _first_argument(args: Args, kwargs: Kwargs) -> list[Any]:
    if args:
        return [args[0]]
    given = kwargs.get("self", kwargs.get("input"))
    return [given if given is not None else next(iter(kwargs.values()))] if kwargs else []


def out_or_inplace(args: Args, kwargs: Kwargs) -> list[Any]:
    """What any call may ask to be written: `out=`, `inplace=True`."""
    out = kwargs.get("out")
    if out is not None:
        return [out] if isinstance(out, Tensor) else list(out)
    if kwargs.get("inplace"):
        return _first_argument(args, {name: value for name, value in kwargs.items() if name != "inplace"})
    return []


class _Marked:
    """The arguments torch's schemas mark as written, and `out=`.

    `positions` are those that may be given by position, with their names; `names` those that are given by name alone: the
    results of `torch.ops.aten.sort.values(x, values=v, indices=i)`.
    """

    def __init__(self, positions: dict[int, str], names: frozenset[str] = frozenset()) -> None:
        self.positions = tuple(sorted(positions))
        given = set(positions.values()) | names
        self.names = tuple(sorted(given | ({"input"} if "self" in given else set())))  # torch.relu_(input=x)

    def __call__(self, args: Args, kwargs: Kwargs) -> list[Any]:
        found = [args[p] for p in self.positions if p < len(args)]
        if kwargs:
            found += [kwargs[name] for name in self.names if name in kwargs and name != "out"]
        flat: list[Any] = []
        for value in found:
            flat.extend(value if isinstance(value, (list, tuple)) else [value])
        return [t for t in flat if isinstance(t, Tensor)] + (out_or_inplace(args, kwargs) if kwargs else [])


class _FusedStep(_Marked):
    """A fused optimizer: gradients are written to only where they are unscaled, by `grad_scale`."""

    def __init__(self, positions: dict[int, str], names: frozenset[str]) -> None:
        super().__init__(positions, names)
        self._without_scale = _Marked({at: one for at, one in positions.items() if one != "grads"}, names)

    def __call__(self, args: Args, kwargs: Kwargs) -> list[Any]:
        return super().__call__(args, kwargs) if kwargs.get("grad_scale") is not None else self._without_scale(args, kwargs)


class _RunningStatistics:
    """Batch norm: running mean and variance are written where statistics of the batch are taken."""

    def __init__(self, func: Any, name: str, outs: frozenset[str]) -> None:
        names = argument_names(func, name)
        self._positions = {"running_mean": names.index("running_mean"), "running_var": names.index("running_var")}
        self._switch = next((one for one in ("training", "use_input_stats") if one in names), None)
        self._at = names.index(self._switch) if self._switch is not None else -1
        # F.instance_norm takes statistics of the input unless told not to
        self._default = self._switch == "use_input_stats" and isinstance(func, types.FunctionType)
        self._outs = _Marked({}, outs)

    def __call__(self, args: Args, kwargs: Kwargs) -> list[Any]:
        found = self._outs(args, kwargs) if kwargs else []
        if self._switch is not None:
            given = args[self._at] if self._at < len(args) else self._default
            if not kwargs.get(self._switch, given):
                return found
        statistics = [kwargs.get(name, args[at] if at < len(args) else None) for name, at in self._positions.items()]
        return [t for t in statistics if isinstance(t, Tensor)] + found


def writes_aside(written: Writes | None) -> bool:
    """Whether a function writes to tensors (running statistics) that it does not return."""
    return isinstance(written, _RunningStatistics)


def _renormalised_weight(args: Args, kwargs: Kwargs) -> list[Any]:
    """`F.embedding` and `F.embedding_bag` renormalise the rows of the weight they look up, where `max_norm` is given."""
    weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
    max_norm = kwargs.get("max_norm", args[3] if len(args) > 3 else None)
    return [weight] if max_norm is not None and isinstance(weight, Tensor) else []
