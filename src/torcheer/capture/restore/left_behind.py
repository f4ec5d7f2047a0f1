"""The state that a pass left behind, put back for the time of a backward pass.

An example: a forward pass doubles a buffer, a checkpointed block reads the buffer, and the log puts its old values back. The
backward pass runs the block again, which has to read the doubled values. So when the backward pass begins, the buffer gets the
doubled values, and the count of writes that autograd compares; when the backward pass is over, the buffer gets its own again.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...cleaning import cleaning
from ...display import few
from ...errors import BackwardFailed, MissingInTorch, StateNotRestored
from ...torch_internals import DisableTorchFunction, after_this_backward, outside_dispatch_modes
from .object_state import Random, items_of, refill, same_items
from .randomness import RandomState
from .tensor_backup import TensorBackup

# Snapshots say what something (`subject`) was at one moment: `again()` is what it is now, `restore()` makes it what it was.


class Items:
    """The items of a container, or the attributes of an object."""

    __slots__ = ("_saved", "subject")

    def __init__(self, container: Any) -> None:
        self.subject, self._saved = container, items_of(container)

    def again(self) -> Items:
        return Items(self.subject)

    def restore(self) -> None:
        if not same_items(self.subject, self._saved):
            refill(self.subject, self._saved)


class ClassOf:
    """The class of a module."""

    __slots__ = ("_class", "subject")

    def __init__(self, module: Module) -> None:
        self.subject, self._class = module, type(module)

    def again(self) -> ClassOf:
        return ClassOf(self.subject)

    def restore(self) -> None:
        if type(self.subject) is not self._class:
            object.__setattr__(self.subject, "__class__", self._class)


class GraphOf:
    """Whether a tensor requires gradients, and the values with the autograd graph that the tensor is a result of."""

    __slots__ = ("_is_required", "_source", "subject")

    def __init__(self, tensor: Tensor) -> None:
        self.subject, self._is_required = tensor, tensor.requires_grad
        self._source: Tensor | None = None
        if tensor.grad_fn is not None:
            with torch.enable_grad():
                self._source = tensor.clone()

    def again(self) -> GraphOf:
        return GraphOf(self.subject)

    def restore(self) -> None:
        tensor = self.subject
        if self._source is None:
            if tensor.grad_fn is not None:
                tensor.detach_()
            if tensor.requires_grad is not self._is_required:
                tensor.requires_grad_(self._is_required)
        elif tensor.grad_fn is None:
            tensor.requires_grad_(False)
            with torch.enable_grad():
                tensor.copy_(self._source)


class AddedHooks:
    """Hooks that the pass put on a module or a tensor, by number. Hooks that others add later stay."""

    __slots__ = ("_added", "_are_there", "subject")

    def __init__(self, hooks: dict[Any, Any], added: dict[int, Any]) -> None:
        self.subject, self._added = hooks, added
        self._are_there = not added.keys().isdisjoint(hooks)

    def again(self) -> AddedHooks:
        return AddedHooks(self.subject, self._added)

    def restore(self) -> None:
        if self._are_there:
            self.subject.update(self._added)
        else:
            for number in self._added:
                self.subject.pop(number, None)


class Generators:
    """The state of every global random generator."""

    __slots__ = ("_state", "subject")

    def __init__(self, state: RandomState | None = None) -> None:
        self.subject = None
        self._state = RandomState.now() if state is None else state

    def again(self) -> Generators:
        return Generators()

    def restore(self) -> None:
        self._state.restore()


def _has_no_graph(one: Any) -> bool:
    return isinstance(one, (Generators, Random)) or (isinstance(one, TensorBackup) and one.tensor.is_leaf)


class LeftBehind:
    """What a pass changed, as the pass left it: it changes places with what is there when a backward pass begins and ends.

    What a backward pass changes in turn is there again in the next one. A backward pass through several histories of one model
    finds, in the nodes of each, what its own pass left. Random generators belong to the one that was put back first.
    """

    def __init__(self, snapshots: list[Any]) -> None:
        self.has_no_graph = all(map(_has_no_graph, snapshots))  # so that a graph may hold it, and no cycle arises
        self._others: list[Any] = snapshots  # of what is not there now
        self._left_alone: list[Any] = []  # snapshots that do not change places this time
        self._touched = frozenset(id(one.subject) for one in snapshots if one.subject is not None)
        self._tasks: set[int] = set()  # torch's numbers of the backward passes that need it
        self._is_there = False
        self._is_ended = False  # whether `until_over` ends the backward pass that runs

    def put_back(self, task: int) -> None:
        """A node of the pass is about to run in a backward pass: until that is over, everything is as the pass left it."""
        if self._is_there and task in self._tasks:
            return
        if task not in self._tasks:
            self._end_with(task)
        with _lock:
            if not self._is_there:
                for other in [one for one in _there if not one._touched.isdisjoint(self._touched)]:
                    other._take_away()
                self._put_back()

    def _end_with(self, task: int) -> None:
        end = _End(self, task)
        is_held = weakref.ref(end)
        after_this_backward(end)
        del end
        if is_held() is None and not self._is_ended:  # this torch does not call back
            raise MissingInTorch(
                "the backward pass may read what the logged pass changed, and this torch does not say when a backward pass is "
                "over. Run it by history.log_backward(loss)."
            )
        self._tasks.add(task)

    @cleaning
    def until_over(self) -> Iterator[None]:
        """Around a backward pass: when the block ends, everything is what it was, whatever torch says or raises."""
        self._is_ended = True
        yield
        self._is_ended = False
        self._tasks.clear()
        with _lock:
            if self._is_there:
                self._take_away()

    def is_over(self, task: int) -> None:
        """A backward pass ended, or raised."""
        self._tasks.discard(task)
        with _lock:
            if self._is_there and not self._tasks:
                self._take_away()

    def _put_back(self) -> None:
        self._left_alone = [one for one in self._others if _there and isinstance(one, Generators)]
        self._others = [one for one in self._others if one not in self._left_alone]
        problems, interrupt = self._exchange()
        _there.append(self)
        self._is_there = True
        if problems or interrupt is not None:
            self._take_away()
            raise interrupt or BackwardFailed(
                "the backward pass may read what the logged pass changed, and that cannot be put back for the time of the "
                f"backward pass: {few(problems, 5, '; ')}. Run the plain model backward instead."
            )

    def _take_away(self) -> None:
        problems, interrupt = self._exchange()
        _there.remove(self)
        self._is_there = False
        self._others += self._left_alone
        if problems:
            message = f"not everything is as it was before the backward pass. Not restored: {few(problems, 5, '; ')}."
            warnings.warn(message, StateNotRestored, stacklevel=2)
        if interrupt is not None:
            raise interrupt

    def _exchange(self) -> tuple[list[str], BaseException | None]:
        """Make everything what it was at the other moment. Returns what raised meanwhile; raises before anything is changed."""
        problems: list[str] = []
        interrupt: BaseException | None = None
        with DisableTorchFunction(), outside_dispatch_modes(), torch.no_grad():
            now = [one.again() for one in self._others]
            counts = [one.restore_count for one in self._others if isinstance(one, TensorBackup)]
            for step in [*(one.restore for one in self._others), *counts]:
                try:
                    step()
                except Exception as error:
                    problems.append(f"{type(error).__name__}: {error}")
                except BaseException as error:  # comes once: this step is taken again, and the interrupt goes on afterwards
                    interrupt = error
                    step()
        self._others = now
        return problems, interrupt


_there: list[LeftBehind] = []  # what is put back now; no two of them share anything
_lock = threading.RLock()


class _End:
    """Called by torch when a backward pass is over; where that raised, torch lets go of it."""

    def __init__(self, left: LeftBehind, task: int) -> None:
        self._left, self._task = left, task

    def __call__(self) -> None:
        self._left.is_over(self._task)

    def __del__(self) -> None:
        self._left.is_over(self._task)
