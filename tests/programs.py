"""Random small programs over tensors: loops, branches, views, in-place writes, shared modules.

A program is a list of steps over a pool of tensors. Running one plainly is the oracle; the same run tells what every step
returned, so a log can be compared with it step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

ROWS, COLUMNS = 4, 3

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "scale": lambda t: t * 0.5,
    "shift": lambda t: t + 1,
    "clone": torch.clone,
    "contiguous": lambda t: t.contiguous(),
    "normalize": lambda t: F.normalize(t, dim=-1),
    "dropout": lambda t: F.dropout(t, 0.3, training=True),
    "flip": lambda t: t.flip(0),
    "detach": lambda t: t.detach(),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda t: t[1],
    "rows": lambda t: t[1:3],
    "column": lambda t: t[:, 0],
    "transpose": lambda t: t.t(),
    "flat": lambda t: t.reshape(-1),
    "data": lambda t: t.data,
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda t: t.add_(1),
    "mul_": lambda t: t.mul_(-0.5),
    "relu_": lambda t: F.relu(t, inplace=True),
    "zero_": lambda t: t.zero_(),
    "fill": lambda t: t.__setitem__(..., 2.0),
    "iadd": lambda t: t.__iadd__(0.25),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "matmul": lambda a, b: a @ b.t() @ b,
    "cat": lambda a, b: torch.cat([a, b])[: a.shape[0]],
    "where": lambda a, b: torch.where(a > 0, a, b),
}


@dataclass(frozen=True)
class Step:
    """One step: what to do, with which tensors of the pool."""

    kind: str
    name: str = ""
    first: int = 0
    second: int = 0
    body: tuple[Step, ...] = ()
    times: int = 1


def simple_steps() -> st.SearchStrategy[Step]:
    index = st.integers(0, 7)
    return st.one_of(
        st.builds(Step, kind=st.just("unary"), name=st.sampled_from(sorted(UNARY)), first=index),
        st.builds(Step, kind=st.just("binary"), name=st.sampled_from(sorted(BINARY)), first=index, second=index),
        st.builds(Step, kind=st.just("write"), name=st.sampled_from(sorted(WRITES)), first=index),
        st.builds(
            Step,
            kind=st.just("view write"),
            name=st.sampled_from(sorted(VIEWS)),
            first=index,
            second=st.integers(0, len(WRITES) - 1),
        ),
        st.builds(Step, kind=st.just("module"), name=st.sampled_from(["fc", "norm", "act", "twice"]), first=index),
        st.builds(Step, kind=st.just("split"), first=index),
        st.builds(Step, kind=st.just("stale view"), name=st.sampled_from(sorted(VIEWS)), first=index),
    )


def steps() -> st.SearchStrategy[Step]:
    some = st.lists(simple_steps(), min_size=1, max_size=4).map(tuple)
    return st.one_of(
        simple_steps(),
        st.builds(Step, kind=st.just("loop"), body=some, times=st.integers(1, 3)),
        st.builds(Step, kind=st.just("branch"), body=some, first=st.integers(0, 7)),
    )


programs = st.lists(steps(), min_size=1, max_size=8).map(tuple)


class Twice(nn.Module):
    """Calls one shared module twice, through two names."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.one = shared
        self.two = shared

    def forward(self, t: Tensor) -> Tensor:
        return self.two(F.relu(self.one(t)))


class Program(nn.Module):
    """A module whose forward runs a program."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__()
        self.steps = steps
        self.fc = nn.Linear(COLUMNS, COLUMNS)
        self.norm = nn.BatchNorm1d(COLUMNS)
        self.act = nn.ReLU()
        self.twice = Twice(self.fc)
        self.register_buffer("table", torch.ones(ROWS, COLUMNS))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pool = [x * 1, x + self.table]
        for step in self.steps:
            self.run(step, pool)
        return tuple(pool[-2:])

    def run(self, step: Step, pool: list[Tensor]) -> None:
        def pick(index: int) -> Tensor:
            return pool[index % len(pool)]

        if step.kind == "unary":
            pool.append(UNARY[step.name](pick(step.first)))
        elif step.kind == "binary":
            pool.append(BINARY[step.name](pick(step.first), pick(step.second)))
        elif step.kind == "write":
            with torch.no_grad():
                WRITES[step.name](pick(step.first))
        elif step.kind == "view write":
            with torch.no_grad():
                list(WRITES.values())[step.second](VIEWS[step.name](pick(step.first)))
        elif step.kind == "stale view":
            base = pick(step.first)
            view = VIEWS[step.name](base)
            with torch.no_grad():
                base.mul_(0.5)
            pool.append(base + view.sum())
        elif step.kind == "module":
            pool.append(getattr(self, step.name)(pick(step.first)))
        elif step.kind == "split":
            top, bottom = pick(step.first).split(ROWS // 2)
            pool.append(torch.cat([bottom, top]))
        elif step.kind == "loop":
            for _ in range(step.times):
                for inner in step.body:
                    self.run(inner, pool)
        elif step.kind == "branch" and pick(step.first).sum() > 0:
            for inner in step.body:
                self.run(inner, pool)
