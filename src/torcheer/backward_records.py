"""What capture writes down of backward passes: the nodes that ran, and the gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True, eq=False)
class NodeRecord:
    """One autograd node that ran.

    Its role: it made an operation's tensor (`result`), belongs to an operation's inside (`inside`), adds up the gradient
    of a parameter or an input (`accumulation`), or is none of the recording's (`other`).
    """

    name: str
    role: str
    operation: int  # negative for a parameter; -1 with the role `other` is none at all
    started: int
    elapsed: int
    given: tuple[tuple[int, ...] | None, ...]  # shapes of the gradients of what it made
    made: tuple[tuple[int, ...] | None, ...]  # shapes of the gradients of what it was made from


@dataclass(slots=True, eq=False)
class BackwardRecord:
    """One backward pass: the nodes that ran, and the gradients, by operation or (negative) by parameter."""

    task: int
    nodes: list[NodeRecord] = field(default_factory=list)
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    summed: dict[int, torch.Tensor] = field(default_factory=dict)  # of leaves, from the nodes that used them
    accumulated: set[int] = field(default_factory=set)  # leaves whose own node ran
    scale: torch.Tensor | None = None  # what the loss was multiplied by, by a gradient scaler

    def gradient(self, number: int) -> torch.Tensor | None:
        """The gradient of an operation's tensor, or of a parameter."""
        found = self.gradients.get(number)
        return found if found is not None else self.summed.get(number)


class BackwardLog:
    """The backward passes of a recording. Hooks hold it weakly."""

    def __init__(self) -> None:
        self.passes: list[BackwardRecord] = []
        self.scale: torch.Tensor | None = None  # of the pass that is about to begin
        self._wanted: set[int] | None = None  # None: all

    def wants(self, number: int) -> bool:
        """Whether to keep the gradient of an operation; those of parameters always are."""
        return self._wanted is None or number < 0 or number in self._wanted

    def only(self, numbers: set[int]) -> None:
        """Keep the gradients of these operations, and let go of others."""
        self._wanted = numbers
        for one in self.passes:
            for gradients in (one.gradients, one.summed):
                for number in [n for n in gradients if not self.wants(n)]:
                    del gradients[number]

    def clear(self) -> None:
        """Let go of every gradient."""
        for one in self.passes:
            one.gradients.clear()
            one.summed.clear()

    def copy(self) -> BackwardLog:
        """The same passes with gradients of their own; no hook tells it of further ones."""
        new = BackwardLog()
        new._wanted = self._wanted
        for one in self.passes:
            gradients, summed = ({n: g.clone() for n, g in found.items()} for found in (one.gradients, one.summed))
            new.passes.append(BackwardRecord(one.task, list(one.nodes), gradients, summed, set(one.accumulated), one.scale))
        return new

    def passed(self, task: int) -> BackwardRecord:
        """The pass with torch's number `task`; a new one, if it just began."""
        if not self.passes or self.passes[-1].task != task:
            known = next((one for one in self.passes if one.task == task), None)
            if known is not None:
                return known
            self.passes.append(BackwardRecord(task, scale=self.scale))
        return self.passes[-1]
