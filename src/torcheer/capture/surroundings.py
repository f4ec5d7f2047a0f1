"""Leaves the world as it was found: module attributes, parameters, buffers, gradients, inputs.

Nothing is copied in advance but dictionaries. A tensor that was there before the pass is copied when a watched operation is
about to write to it, and that copy is written back at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain, islice
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from .identity import storage_of

_OWN = len(vars(Module()))  # how many attributes every module has
_CONTAINERS = frozenset({dict, list, set, deque, type(Module()._forward_hooks)})


class Surroundings:
    """Remembers modules and tensors, and restores them."""

    def __init__(self, modules: list[Module], inputs: list[Tensor], arguments: Iterable[Any] = ()) -> None:
        # of each module: its attributes, a copy of them, how many are nn.Module's own, and the values of the others
        self._attributes: list[tuple[dict[str, Any], dict[str, Any], int, list[Any]]] = []
        self._filled: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []
        self._inputs = inputs
        self._backups: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._gradients: list[tuple[Tensor, Tensor | None, Tensor | None]] | None = None
        self._first_new_hook = RemovableHandle.next_id
        self._generators = [(value, value.get_state()) for value in arguments if type(value) is torch.Generator]
        harmless: set[type] = set()  # classes of attributes that hold nothing a pass could change
        for module in modules:
            attributes = module.__dict__
            saved = attributes.copy()
            values = iter(saved.values())
            own = _OWN if next(iter(saved), None) == "training" else 0  # they come first; few of them are in use
            for value in filter(None, islice(values, own)):
                if type(value) in _CONTAINERS:
                    self._filled.append((value, value.copy()))
            others = list(values)
            self._attributes.append((attributes, saved, own, others))
            for value in others:
                cls = type(value)
                if cls in harmless:
                    continue
                if cls in _CONTAINERS:
                    if value:
                        self._filled.append((value, value.copy()))
                    else:
                        self._empty.append(value)
                elif isinstance(value, torch.optim.Optimizer):
                    self._remember(value)
                elif cls is torch.Generator:
                    self._generators.append((value, value.get_state()))
                else:
                    harmless.add(cls)

    def _remember(self, optimizer: torch.optim.Optimizer) -> None:
        """The pass may step this optimizer: remember what it keeps for each parameter."""
        containers = [optimizer.state, *optimizer.state.values(), *optimizer.param_groups]
        self._filled += [(container, dict(container)) for container in containers]

    def hooks_start_here(self) -> None:
        """Hooks registered from now on belong to the pass."""
        self._first_new_hook = RemovableHandle.next_id

    def back_up(self, tensors: Iterable[Tensor]) -> None:
        """Something is about to write to these: copy what they hold, unless that was done before."""
        for tensor in tensors:
            if id(tensor) not in self._backups:
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    self._backups[id(tensor)] = (tensor, tensor.data, tensor.detach().clone())

    def back_up_everything(self) -> None:
        """Something is about to run unwatched: copy every tensor that is known, and its gradient."""
        self.back_up(tensor for tensor in self._tensors() if not is_lazy(tensor))
        self.before_backward()

    def before_backward(self) -> None:
        """Gradients are about to be accumulated: copy those that are there."""
        if self._gradients is not None:
            return
        self._gradients = []
        for tensor in self._tensors():
            if tensor.requires_grad and tensor.is_leaf:
                old = tensor.grad
                self._gradients.append((tensor, old, old.detach().clone() if old is not None else None))

    def written_storages(self) -> set[int]:
        """The storages that `restore` is going to write to."""
        return {s for _, view, _ in self._backups.values() if (s := storage_of(view)) is not None}

    def restore(self) -> None:
        """Put everything back."""
        for attributes, saved, own, others in self._attributes:
            if (
                len(attributes) != len(saved)
                or (own and attributes["training"] is not saved["training"])
                or not all(map(is_, islice(attributes.values(), own, None), others))
            ):
                attributes.clear()
                attributes.update(saved)
        if not self._nothing_moved():
            for container, saved in self._filled:
                if not _same_items(container, saved):
                    container.clear()
                    container.extend(saved) if isinstance(container, (list, deque)) else container.update(saved)
        for container in self._empty:
            container.clear()
        for generator, state in self._generators:
            generator.set_state(state)
        if RemovableHandle.next_id != self._first_new_hook:
            self._remove_new_hooks()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for tensor, view, old in self._backups.values():
                if storage_of(tensor) != storage_of(view) or tensor.shape != view.shape:
                    tensor.data = view
                with torch.inference_mode(tensor.is_inference()):
                    view.copy_(old)
            for tensor, gradient, old_gradient in self._gradients or ():
                tensor.grad = gradient
                if gradient is not None and old_gradient is not None:
                    gradient.detach().copy_(old_gradient)

    def _nothing_moved(self) -> bool:
        """Whether all containers hold, at a glance, the very objects they held; a closer look is taken if not."""
        now: list[Any] = []
        then: list[Any] = []
        for container, saved in self._filled:
            if isinstance(container, dict):
                now.append(container)
                then.append(saved)
            elif not _same_items(container, saved):
                return False
        if list(map(len, now)) != list(map(len, then)):
            return False
        flat = chain.from_iterable
        values = map(is_, flat(map(dict.values, now)), flat(map(dict.values, then)))
        return all(values) and all(map(is_, flat(now), flat(then)))

    def _remove_new_hooks(self) -> None:
        """Hooks are numbered as they are registered, so those of this pass are known by their numbers."""
        for _, saved, _, _ in self._attributes:
            for name, hooks in saved.items():
                if name.endswith("_hooks") and isinstance(hooks, dict):
                    for number in [n for n in hooks if isinstance(n, int) and n >= self._first_new_hook]:
                        del hooks[number]

    def _tensors(self) -> Iterable[Tensor]:
        """The tensors of the modules (parameters, buffers, plain attributes) and the inputs."""
        seen: set[int] = set()
        candidates: list[Any] = [*self._inputs]
        for _, saved, _, _ in self._attributes:
            candidates += saved.values()
        for _, saved in self._filled:
            candidates += saved.values() if isinstance(saved, dict) else saved
        for value in candidates:
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _same_items(container: Any, saved: Any) -> bool:
    """Whether a container holds the very objects it held, in the same order."""
    if len(container) != len(saved):
        return False
    if isinstance(container, dict):
        return all(map(is_, container.values(), saved.values())) and all(map(is_, container, saved))
    if isinstance(container, set):
        return bool(container == saved)
    return all(map(is_, container, saved))
