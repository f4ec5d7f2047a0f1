"""One call of a module: what came in, what left, when, from where, and the same for its backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import torch

from ..errors import InvalidArgument
from ..history import Param

Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class ModuleInput:
    """A tensor that code outside all modules gave to a module."""

    label: str  # as a history has it, with the pass: `input_1_0:1`; where there is none, a number
    shape: Shape
    dtype: torch.dtype
    bytes: int


@dataclass(slots=True, eq=False)
class ModuleBackward:
    """One time the gradients went back through a module call. Times are in nanoseconds, on `time.perf_counter_ns`."""

    started: int
    ended: int
    grad_output_shapes: list[Shape] = field(default_factory=list)  # gradients of what the module returned
    grad_input_shapes: list[Shape] = field(default_factory=list)  # gradients of what it was given
    bytes: int = 0  # of those
    device_seconds: float | None = None  # where a GPU timed the work

    @property
    def time_elapsed(self) -> float:
        """Seconds, by the clock of the GPU where the work was timed there."""
        return self.device_seconds if self.device_seconds is not None else (self.ended - self.started) / 1e9


@dataclass(slots=True, eq=False)
class ModulePass:
    """One call of a module. Times are in nanoseconds, on `time.perf_counter_ns`."""

    address: str  # empty for the model itself
    class_name: str
    call_num: int  # which call of the module this is, from 1
    outer: ModulePass | None  # the call around it
    training: bool = False
    input_shapes: list[Shape] = field(default_factory=list)
    output_shapes: list[Shape] = field(default_factory=list)
    bytes: int = 0  # of what it returned
    started: int = 0
    ended: int = 0  # not after `started` where it did not return
    device_seconds: float | None = None  # where a GPU timed the work
    has_inner: bool = False  # whether it called other modules
    # The calls and inputs whose tensors it was given, directly or through operations between modules, with the shapes it read.
    # For a call around others: those from which its own code made the result.
    sources: dict[ModulePass | ModuleInput, Shape | None] = field(default_factory=dict)
    params: list[Param] = field(default_factory=list)  # the module's own
    backward: dict[int, ModuleBackward] = field(default_factory=dict)  # by the number of the backward pass in this run, from 1

    @property
    def label(self) -> str:
        """The address with the number of the call: `features.6:1`."""
        return f"{self.address}:{self.call_num}"

    @property
    def time_elapsed(self) -> float:
        """Seconds from entry to exit, by the clock of the GPU where the work was timed there; 0 where it did not return."""
        return self.device_seconds if self.device_seconds is not None else max(0, self.ended - self.started) / 1e9

    def __repr__(self) -> str:
        shapes = ", ".join(map(str, self.input_shapes)), ", ".join(map(str, self.output_shapes))
        return f"<ModulePass {self.label} of {self.class_name}: {shapes[0]} → {shapes[1]}, {self.time_elapsed:.3E}s>"


class ModuleCalls(Sequence[ModulePass]):
    """The module calls of a run, in the order they began.

    `inputs` are the tensors that came from outside; `started` and `ended` are when the run did, in nanoseconds.
    """

    def __init__(self, calls: list[ModulePass], inputs: list[ModuleInput], settle: Callable[[], object] | None = None) -> None:
        self.inputs = inputs
        self.started = self.ended = 0
        self.is_running = False
        self._calls = calls
        self._settle = settle  # computes what is known only at the end, when first asked

    @cached_property
    def _settled(self) -> list[ModulePass]:
        if self.is_running:
            raise InvalidArgument("the modules are still being watched: leave the `with` block before you look at their calls.")
        if self._settle is not None:
            self._settle()
        return self._calls

    @overload
    def __getitem__(self, place: int) -> ModulePass: ...
    @overload
    def __getitem__(self, place: slice) -> list[ModulePass]: ...
    def __getitem__(self, place: int | slice) -> ModulePass | list[ModulePass]:
        return self._settled[place]

    def __len__(self) -> int:
        return len(self._settled)

    def __repr__(self) -> str:
        return "<ModuleCalls, running>" if self.is_running else "\n".join(map(repr, self._settled))
