"""Everything that is known about one torch function: `facts(func)`.

The facts that recording needs are worked out when a function is first met, the others when they are first read. Facts about
torch's own functions are worked out once per process, those about other functions at every call of `facts`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import groups, properties
from .categories import Category, category_of
from .collectives import is_collective, is_partly_filled
from .draws import Draws, draws_of
from .kinds import Kind, Origin, kind_of
from .names import function_name, is_reflected, label_type, plain_name
from .opening import opened_copy
from .structure import Structure
from .writes import Writes, out_or_inplace, writes_aside, writes_of

if TYPE_CHECKING:
    from .flops import Formula

_KNOWN: dict[Any, TorchFunction] = {}


@dataclass(eq=False)
class TorchFunction:
    """What is known about one torch function. All records of the function share it."""

    func: Callable[..., Any] | None
    name: str  # as torch spells it: max_pool2d
    type: str  # as labels spell it: maxpool2d
    kind: Kind
    written: Writes | None = None
    opened: Callable[..., Any] | None = None
    origin: Origin = Origin.OPERATION
    is_attribute: bool = False  # a property read, such as `.grad`
    is_collective: bool = False  # other processes take part in it
    writes_aside: bool = False  # it writes to tensors (running statistics) that it does not return
    touches_gradients: bool = False  # reads or sets `.grad`
    switches_gradients: bool = False  # tells a tensor to require gradients, or not to
    draws: Draws | None = None  # whether a call draws random numbers; None when none does
    argument_names: tuple[str, ...] | None = None  # of a function of a saved history that is not here; None: ask the function

    def writes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors that a call with these arguments writes to."""
        return self.written(args, kwargs) if self.written is not None else out_or_inplace(args, kwargs)

    @cached_property
    def plain_name(self) -> str:
        """One name for all spellings: `add` for `add_`, `__iadd__` and `aten.add_.Tensor`; `library::add` for another's."""
        return plain_name(self.func, self.name, is_attribute=self.is_attribute) if self.func is not None else self.name

    @cached_property
    def is_reflected(self) -> bool:
        """Whether it takes its operands the other way round: `__rsub__(x, 1)` is `1 - x`."""
        return is_reflected(self.name)

    @cached_property
    def category(self) -> Category:
        """What kind of step it is in a model."""
        return category_of(self.plain_name)

    @cached_property
    def structure(self) -> Structure:
        """Which integers among its arguments are indices, lengths, offsets, pivots or sizes."""
        return Structure(self.func, self.name, self.plain_name)

    @cached_property
    def formula(self) -> Formula | None:
        """What a call of it computes, in FLOPs; None where that is not known."""
        from .flops import FORMULAS

        return FORMULAS.get(self.plain_name)

    @cached_property
    def is_known(self) -> bool:
        """Whether a table or a tag of torch says something of it, or it makes no tensor."""
        if self.kind not in (Kind.OPERATION, Kind.COMPOSITE) or self.opened is not None:
            return True
        has_table = self.formula is not None or any(map(self.is_in, groups.groups().values()))
        return has_table or self.category != "arithmetic" or self.is_elementwise

    # What its result is -------------------------------------------------------------------------------------------

    @cached_property
    def is_view(self) -> bool:
        """Whether its result always is the memory of an argument."""
        return properties.is_view(self.plain_name)

    @cached_property
    def may_be_view(self) -> bool:
        """Whether its result is the memory of an argument at least sometimes: `reshape`, `contiguous`, `to`."""
        return properties.may_be_view(self.plain_name)

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether each value of its result follows from the values at the same place of its arguments."""
        return properties.is_elementwise(self.plain_name)

    @cached_property
    def is_random(self) -> bool:
        """Whether it may draw random numbers."""
        return properties.is_random(self.plain_name)

    @cached_property
    def allocates(self) -> bool:
        """Whether it is called to get memory: it makes, copies or converts a tensor."""
        return properties.allocates(self.plain_name)

    @property
    def is_uninitialised(self) -> bool:
        """Whether its result is uninitialised memory, as that of `torch.empty`."""
        return self.plain_name in groups.UNINITIALISED or is_partly_filled(self.func)

    @property
    def is_commutative(self) -> bool:
        """Whether its two arguments may be exchanged."""
        return self.plain_name in groups.COMMUTATIVE

    def is_in(self, group: frozenset[str]) -> bool:
        """Whether it is in one of the groups of `functions.groups`."""
        return self.plain_name in group

    # What recording has to know -----------------------------------------------------------------------------------

    @property
    def exports_memory(self) -> bool:
        """Whether it hands out the memory behind a tensor, to which anything may write from then on."""
        return self.name in groups.EXPORTS or self.name in groups.POINTERS

    @property
    def takes_memory(self) -> bool:
        """Whether its result may lie in memory of an argument that is no tensor."""
        return self.name in groups.TAKE_MEMORY

    @property
    def hooks_gradients(self) -> bool:
        """Whether it registers a hook on a tensor, which gets its gradient and may change it."""
        return self.name == "register_hook"

    @property
    def concerns_gradients(self) -> bool:
        """Whether it is a query that concerns gradients."""
        return self.touches_gradients or self.switches_gradients or self.hooks_gradients

    @property
    def is_gradient(self) -> bool:
        """Whether it reads `.grad`."""
        return self.is_attribute and self.touches_gradients


def facts(func: Any) -> TorchFunction:
    """What is known about a function. `F.softmax`, `torch.softmax` and `Tensor.softmax` have one plain name.

    >>> import torch
    >>> facts(torch.Tensor.__iadd__).plain_name, facts(torch.sort).writes((torch.ones(2),), {})
    ('add', [])
    """
    try:
        known = _KNOWN.get(func)
    except TypeError:  # an unhashable callable
        return _worked_out(func)
    if known is None:
        known = _worked_out(func)
        if _belongs_to_torch(func):
            _KNOWN[func] = known
    return known


def _worked_out(func: Any) -> TorchFunction:
    name = function_name(func)
    kind = kind_of(func, name)
    is_attribute = getattr(func, "__name__", None) == "__get__"
    plain = plain_name(func, name, is_attribute=is_attribute)
    opened = opened_copy(func) if kind is Kind.COMPOSITE else None
    written = writes_of(func, name, plain) if kind in (Kind.OPERATION, Kind.COMPOSITE) else None
    return TorchFunction(
        func,
        name,
        label_type(name),
        kind,
        written,
        opened,
        is_attribute=is_attribute,
        is_collective=is_collective(func),
        writes_aside=writes_aside(written),
        touches_gradients=name in groups.GRADIENT_ACCESS,
        switches_gradients=name in groups.GRADIENT_SWITCHES,
        draws=draws_of(plain) if kind is Kind.OPERATION else None,
    )


def _belongs_to_torch(func: Any) -> bool:
    if isinstance(func, types.FunctionType):
        return func.__module__ is not None and (func.__module__ == "torch" or func.__module__.startswith("torch."))
    return True
