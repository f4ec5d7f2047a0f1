"""Facts of a node that are looked up or put into words only when they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..functions import TorchFunction
from ..functions.signatures import positional_names
from ..history.param import Param
from ..records import ModuleCall
from ..source_places import Site, SourceLine, source_of
from ..templates import BLANK, blank

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object in memory, another one in every run


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


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """The arguments of a call without its tensors: `·, start_dim=2, end_dim=-1`. Put into words when they are read."""

    template: tuple[Any, ...]
    names: tuple[str, ...] = ()  # of the last of them, which were given by name
    function: TorchFunction | None = None

    def pairs(self) -> list[tuple[str, Any]]:
        """Every argument with its name, which is empty where it is not known; `·` in place of tensors.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Conv2d(1, 2, 3, stride=2), torch.ones(1, 1, 8, 8))
        >>> print(history.graph.node("conv2d_1_1:1").arguments)
        ·, ·, ·, stride=(2, 2), padding=(0, 0), dilation=(1, 1), groups=1
        """
        values = blank(self.template)
        given = values[: len(values) - len(self.names)]
        is_tensor = [value is BLANK for value in given]
        names = positional_names(self.function, given, is_tensor) if self.function is not None else [""] * len(given)
        return list(zip((*names, *self.names), values, strict=True))

    def value(self, position: int, name: str) -> Any:
        """An argument, which may have been given by position or by name; None where it was not given."""
        count = len(self.template) - len(self.names)
        if position < count:
            return self.template[position]
        return self.template[count + self.names.index(name)] if name in self.names else None

    def __str__(self) -> str:
        words = [f"{name}={value!r}" if name and value is not BLANK else repr(value) for name, value in self.pairs()]
        return _ADDRESS.sub("", ", ".join(words))


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
