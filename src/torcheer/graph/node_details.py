"""What a node knows besides plain values: facts that are looked up or put into words only when somebody reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..containers import blank
from ..history.param import Param
from ..records import ModuleCall
from ..source_places import Site, SourceLine, source_of


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where in the program something ran. The line is looked up when it is read."""

    site: Site | None
    module: ModuleCall | None

    @property
    def line(self) -> SourceLine | None:
        """The line of the program (not of torch)."""
        return source_of(self.site, self.module)

    def __str__(self) -> str:
        line = self.line
        return str(line) if line is not None else ""


class _Blank:
    """Shown in place of a tensor."""

    def __repr__(self) -> str:
        return "·"


_BLANK = _Blank()


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """The arguments of a call without its tensors: `·, 2, dim=-1`. Put into words when they are read."""

    template: tuple[Any, ...]
    names: tuple[str, ...] = ()

    def value(self, position: int, name: str) -> Any:
        """An argument, which may have been given by position or by name; None where it was not given."""
        count = len(self.template) - len(self.names)
        if position < count:
            return self.template[position]
        return self.template[count + self.names.index(name)] if name in self.names else None

    def __str__(self) -> str:
        count = len(self.template) - len(self.names)
        values = blank(self.template, _BLANK)
        positional = map(repr, values[:count])
        named = [f"{name}={value!r}" for name, value in zip(self.names, values[count:], strict=True)]
        return ", ".join([*positional, *named])


@dataclass(frozen=True, slots=True)
class BufferUse:
    """A buffer that was used. Without positions, only what had been written over it earlier in the pass was read."""

    buffer: Param
    positions: tuple[str, ...] = ()
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class PythonRead:
    """A value of this tensor that left for Python: `bool(t)`, `t.item()`."""

    function: str
    value: Any  # when it is a plain number or truth value
    place: Place | None = field(default=None, compare=False)

    @property
    def is_decision(self) -> bool:
        """Whether a truth value left, which can decide what runs next."""
        return isinstance(self.value, bool)
