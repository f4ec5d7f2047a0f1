"""Random programs with one value changed by hand, in plain PyTorch: the oracle of changes on a log and live.

There are two ways to change a value by hand. `Editing` is a function mode that counts the calls of a program and changes the
result of one of them. `OddProgram` changes one of its own values itself; its steps include constructs that a log cannot follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from catalogue.constructs import CONSTRUCTS, Construct
from programs import Program, Step, steps
from torcheer import changes

Edit = Callable[[Tensor], Tensor]


def _first_row_doubled(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor[..., :1] = tensor[..., :1] * 2
    return tensor


# By name: the change as torcheer takes it, and the same by hand.
EDITS: dict[str, tuple[Any, Edit]] = {
    "scale": (changes.scale(1.5), lambda t: t * 1.5),
    "add": (changes.add(0.25), lambda t: t + 0.25),
    "square": (lambda t: t * t, lambda t: t * t),
    "zero": (changes.zero(), torch.zeros_like),
    "part": (changes.scale(2, at=(..., slice(0, 1))), _first_row_doubled),
}

_NOT_COUNTED = {F.normalize}  # a composite: a log has the calls inside


class Editing(TorchFunctionMode):
    """Runs a program as it is, but for the result of its `at`-th call that makes or writes a tensor, which is edited."""

    def __init__(self, at: int, edit: Edit) -> None:
        super().__init__()
        self._at = at
        self._edit = edit
        self.made = 0
        self.is_handed_back = False  # whether the call returned its argument, which then has two names

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if func in _NOT_COUNTED or name == "requires_grad":
            return result
        if (
            name in ("__setitem__", "__iadd__")
            or (name.endswith("_") and not name.endswith("__"))
            or (kwargs or {}).get("inplace")
        ):
            if self._is_next():
                with torch.no_grad():
                    args[0].copy_(self._edit(args[0].detach().clone()))
            return result
        if isinstance(result, Tensor):
            if not self._is_next():
                return result
            self.is_handed_back = any(result is one for one in args)
            return self._edit(result)
        if isinstance(result, (tuple, list)) and all(isinstance(one, Tensor) for one in result):
            return type(result)(self._edit(one) if self._is_next() else one for one in result)
        return result

    def _is_next(self) -> bool:
        self.made += 1
        return self.made - 1 == self._at


odd_steps = st.one_of(steps(), steps(), st.builds(Step, kind=st.just("construct"), name=st.sampled_from(CONSTRUCTS)))
odd_programs = st.lists(odd_steps, min_size=1, max_size=6).map(tuple)


class OddProgram(Program):
    """A program with constructs that a log cannot follow. After each step it negates the newest value: a place to be changed.

    With `edit` it is edited by hand at the `at`-th of these places.
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__(steps)
        names = dict.fromkeys(step.name for step in steps if step.kind == "construct")
        self.constructs = nn.ModuleList(map(Construct, names))
        self.numbers = {name: number for number, name in enumerate(names)}
        self.at = -1
        self.edit: Edit | None = None
        self.places = 0

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.places = 0
        return super().forward(x)

    def run(self, step: Step, pool: list[Tensor]) -> None:
        if step.kind == "construct":
            pool.append(self.constructs[self.numbers[step.name]](pool[step.first % len(pool)]))
        else:
            super().run(step, pool)
        pool[-1] = torch.neg(pool[-1])
        if self.places == self.at and self.edit is not None:
            pool[-1] = self.edit(pool[-1])
        self.places += 1
