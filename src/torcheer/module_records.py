"""What capture writes down of modules: those that the model registers, and their calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .source_places import Site


@dataclass(slots=True, eq=False)
class ModuleCall:
    """One call of a module. Operations `first <= n < end` ran inside it."""

    number: int
    address: str
    class_name: str
    call: int  # 1 for the first call of this module
    outer: ModuleCall | None
    site: Site | None
    training: bool
    first: int
    args: tuple[Any, ...] = ()  # an outline of all arguments, the named ones last
    names: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    end: int = -1
    exit: int = 0  # which exit of the recording this call's was, from 1; 0 while it runs
    started: int = 0
    elapsed: int = 0

    def stack(self) -> tuple[ModuleCall, ...]:
        """This call and those around it, outermost first."""
        chain: list[ModuleCall] = []
        call: ModuleCall | None = self
        while call is not None:
            chain.append(call)
            call = call.outer
        return tuple(reversed(chain))

    @property
    def is_nested(self) -> bool:
        """Whether it runs inside another call of the same module."""
        return any(outer.address == self.address for outer in self.stack()[:-1])


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The class of a module of a saved history: its qualified name, and those of the classes it is derived from."""

    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return self.names[0].rpartition(".")[2]

    @classmethod
    def of(cls, known: type | ClassNames) -> ClassNames:
        if isinstance(known, ClassNames):
            return known
        return cls(tuple([f"{one.__module__}.{one.__qualname__}" for one in known.__mro__[:-1]]))


def is_kind_of(known: type | ClassNames, wanted: type) -> bool:
    """Whether modules of a class are of another one; those of a saved history are compared by name."""
    if isinstance(known, ClassNames):
        return f"{wanted.__module__}.{wanted.__qualname__}" in known.names
    return issubclass(known, wanted)


@dataclass(slots=True, eq=False)
class RegisteredModule:
    """A module as the model registers it, called or not."""

    address: str
    class_name: str
    parameters: dict[str, torch.nn.Parameter | None]
    buffers: dict[str, torch.Tensor | None]
    is_root: bool
    cls: type | ClassNames
    other_addresses: tuple[str, ...] = ()
    calls: int = 0
    is_made_running: bool = False  # a root that was met when it was called, as in `nn.ReLU()(x)`; its address is made up

    def full_name(self, name: str) -> str:
        """The name that a parameter or buffer of this module has in the model: `features.0.weight`."""
        return f"{self.address}.{name}" if self.address else name
