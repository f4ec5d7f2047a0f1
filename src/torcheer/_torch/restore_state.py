"""Restores a model after a pass, and brings back the state of the pass for a later backward pass.

`StateRestorer` remembers modules, tensors and arguments before a pass and restores them after it. `LeftBehind` holds what
the pass had changed; a backward pass after the log swaps it in. Writes that were undone do not count in torch's version
counters: earlier histories, and autograd graphs that saved the tensor, compare these counts.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from .._cleanup import cleaning, held_signals, is_interrupt, pass_interrupts_on
from .._text import few
from ..errors import BackwardFailed, MissingInTorch, StateNotRestored
from .addresses import roots_of
from .containers import PLAIN, Arguments, find_leaves, find_tensors, slots_of, tensors_in
from .internals import (
    BUFFERS,
    MODULES,
    NON_PERSISTENT,
    PARAMETERS,
    DisableTorchFunction,
    address_of,
    after_this_backward,
    base_of,
    count_writes_as,
    forward_hooks_of,
    hooks_of,
    is_functorch_wrapped,
    like_class_of,
    outside_dispatch_modes,
    own_buffers,
    own_parameters,
    script_parts,
    sparse_parts,
    write_count,
)
from .memory import has_memory, needed_bytes, storage_part, version_of
from .object_state import ObjectState, Random, Snapshot, Where, items_of, kind_of, refill, same_items
from .randomness import RandomState
from .samples import Marks
from .tensor_table import extent, storage_of


def restore_count(tensor: Tensor, count: int) -> None:
    """Set torch's count of writes back, if it changed. Skips a tensor whose memory is gone."""
    if count >= 0 and version_of(tensor) != count and has_memory(tensor):
        count_writes_as(tensor, count)


@cleaning
def counts_as_found(model: Callable[..., Any], arguments: Arguments) -> Iterator[None]:
    """Inside this block, a pass writes to parameters, buffers and inputs and restores their values. Its writes do not count
    in torch's counters afterwards.
    """
    with DisableTorchFunction():
        modules = [module for root, _ in roots_of(model) for module in root.modules()]
        tensors = [tensor for _, tensor in find_tensors(arguments)]
        for module in modules:
            tensors += [
                one for group in (own_parameters(module), own_buffers(module)) for one in group.values() if one is not None
            ]
        counts = [(tensor, version_of(tensor)) for tensor in tensors]
    yield
    with DisableTorchFunction():
        for tensor, count in counts:
            restore_count(tensor, count)


# Copies tensors before a pass, and writes the copies back after it.


class AutogradState:
    """A tensor's autograd state: `requires_grad`, and its node."""

    __slots__ = ("_is_required", "_node", "_root", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._is_required = tensor.requires_grad
        base = base_of(tensor)
        self._root = base if base is not None else tensor  # torch gives a view a new node after a write to its memory
        self._node = self._root.grad_fn

    @property
    def is_changed(self) -> bool:
        return self._root.grad_fn is not self._node or self.tensor.requires_grad is not self._is_required

    @property
    def can_be_restored(self) -> bool:
        """False if torch cannot restore the state: the node changed and the tensor had one, or is a view of another tensor."""
        return self._root.grad_fn is self._node or (self._node is None and self._root is self.tensor)

    def restore(self) -> None:
        """Restore the state. Raises if torch offers no way back."""
        tensor = self.tensor
        if self._root.grad_fn is not self._node:
            if not self.can_be_restored:
                raise RuntimeError("the pass wrote to it in place, and its autograd state cannot be restored")
            tensor.detach_()
        if tensor.requires_grad is not self._is_required:
            tensor.requires_grad_(self._is_required)


class TensorBackup:
    """A tensor's storage, shape, strides, values, and count of writes.

    If torch would refuse a write through the tensor (its elements overlap, as in an expanded tensor), the bytes of the
    storage are copied instead. With `is_suspected`, no write is known: the values are compared first, and written back only
    if they differ, because the memory may be read-only.
    """

    __slots__ = ("_copy", "_in_bytes", "_writes", "is_suspected", "tensor", "view")

    def __init__(self, tensor: Tensor, *, is_suspected: bool) -> None:
        self.tensor = tensor
        self.view = view = tensor.data
        self.is_suspected = is_suspected
        self._writes = version_of(tensor)
        self._in_bytes = False
        self._copy: Tensor | None = None
        if has_memory(view):
            # copy_ can write to every contiguous tensor, and to every tensor that is not strided
            self._in_bytes = (is_suspected or not (view.layout is torch.strided and view.is_contiguous())) and _is_strided(view)
            self._copy = _bytes_of(view).clone() if self._in_bytes else tensor.detach().clone()

    def restore(self) -> None:
        """Let the tensor refer to its former memory again, and write the old values into it."""
        tensor, view = self.tensor, self.view
        if not _is_same(tensor, view):
            tensor.data = view
        if self._copy is None:
            return
        if not has_memory(view):
            view.untyped_storage().resize_(needed_bytes(view))
        if self._in_bytes:
            memory = _bytes_of(view)
            if not self.is_suspected or not torch.equal(memory, self._copy):
                memory.copy_(self._copy)
        elif view.layout is torch.sparse_coo:  # its `copy_` makes new parts, but others may hold the old parts
            for part, old in zip(sparse_parts(view), sparse_parts(self._copy), strict=True):
                part.copy_(old)
        elif tensor.is_inference():
            with torch.inference_mode():
                view.copy_(self._copy)
        else:
            view.copy_(self._copy)

    def again(self) -> TensorBackup:
        return TensorBackup(self.tensor, is_suspected=False)

    @property
    def subject(self) -> Tensor:
        return self.tensor

    @property
    def is_changed(self) -> bool:
        """True if the tensor was written to or refers to other memory. With `is_suspected`, the values are compared."""
        if not self.is_suspected or version_of(self.tensor) != self._writes or not _is_same(self.tensor, self.view):
            return True
        if self._copy is None or not has_memory(self.view):
            return self._copy is not None
        now = _bytes_of(self.view) if self._in_bytes else self.view
        try:
            return not torch.equal(now, self._copy)
        except RuntimeError:  # torch cannot compare some layouts
            return True

    def restore_count(self) -> None:
        """Undo torch's count of the writes since the copy."""
        restore_count(self.tensor, self._writes)


class UncopiedTensors:
    """Remembers the memory and a sample of the values of tensors that are not copied. If a tensor has other memory, its
    memory is restored; changed values are only detected.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._views = [tensor.data for tensor in tensors]
        self._marks = Marks(self._views, range(len(tensors)))

    def restore(self) -> list[Tensor]:
        """Let the tensors refer to their former memory again. Returns the tensors whose values changed."""
        for tensor, view in zip(self._tensors, self._views, strict=True):
            if not _is_same(tensor, view):
                tensor.data = view
        now = Marks(self._views, range(len(self._views)))
        return [tensor for at, tensor in enumerate(self._tensors) if not self._marks.is_same_sample(at, now, at)]


def _is_same(tensor: Tensor, view: Tensor) -> bool:
    """True if two tensors are the same elements of the same memory."""
    try:
        return tensor.is_set_to(view) and tensor.dtype is view.dtype
    except RuntimeError:  # the layout is not strided; nested tensors have no shape
        if tensor.layout is torch.sparse_coo and view.layout is torch.sparse_coo:
            pairs = zip(sparse_parts(tensor), sparse_parts(view), strict=True)
            return tensor.shape == view.shape and all(one.is_set_to(other) for one, other in pairs)
        return storage_of(tensor) == storage_of(view) and (tensor.is_nested or tensor.shape == view.shape)


def _is_strided(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and type(tensor) in (Tensor, Parameter)
        and not (tensor.is_nested or is_functorch_wrapped(tensor) or storage_of(tensor) is None)
    )


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of the storage from the first to the last element of a strided tensor, as a tensor on the same memory."""
    start, stop, _ = extent(tensor)
    return storage_part(tensor, start, stop)


def lazy_twin(tensor: Tensor) -> Tensor:
    """A new uninitialised parameter or buffer with the class and settings of `tensor`."""
    twin = like_class_of(tensor, tensor.data.clone())
    twin.__dict__.update(tensor.__dict__)
    return twin


class StorageSizes:
    """The storage sizes and write counts of parameters, buffers and inputs before a pass.

    After the pass they reveal freed memory and writes that no torch function made.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        try:
            self._storages: list[Any] = [tensor.untyped_storage() for tensor in tensors]
            self._versions: list[int] = list(map(write_count, tensors))
        # sparse tensors have no storage, inference tensors no version, subclasses may raise anything
        except Exception as error:
            pass_interrupts_on(error)
            self._tensors = [tensor for tensor in tensors if _has_storage_and_version(tensor)]
            self._storages = [tensor.untyped_storage() for tensor in self._tensors]
            self._versions = list(map(write_count, self._tensors))
        self._sizes: list[int] = [storage.nbytes() for storage in self._storages]

    def without_memory(self) -> Iterable[Tensor]:
        """The tensors whose memory was freed before the pass, as FSDP does with parameters."""
        pairs = zip(self._tensors, self._sizes, strict=True)
        return [tensor for tensor, size in pairs if size < tensor.nbytes and size < needed_bytes(tensor)]

    def freed(self) -> list[tuple[Tensor, str]]:
        """The tensors whose memory was freed in the pass, each with a description of what happened."""
        sizes = [storage.nbytes() for storage in self._storages]
        if sizes == self._sizes:
            return []
        found = []
        for tensor, storage, size, now in zip(self._tensors, self._storages, self._sizes, sizes, strict=True):
            if now < size and storage_of(tensor) == address_of(storage) and not has_memory(tensor):
                found.append((tensor, f"its storage was resized from {size:,} to {now:,} bytes, so its values are gone"))
        return found

    def written(self) -> list[Tensor]:
        """The tensors whose write count changed."""
        versions = list(map(write_count, self._tensors))
        if versions == self._versions:
            return []
        rows = zip(self._tensors, self._versions, versions, strict=True)
        return [tensor for tensor, before, now in rows if now != before]


def _has_storage_and_version(tensor: Tensor) -> bool:
    try:
        tensor.untyped_storage()
        return write_count(tensor) >= 0
    except Exception as error:
        pass_interrupts_on(error)
        return False


class ScriptAttributes(Snapshot):
    """The attributes of a TorchScript module, which are stored in C++: numbers, lists, dictionaries, tensors."""

    def _read(self) -> dict[str, Any]:
        self._script, kind = script_parts(vars(self.subject))  # a hand-written torch.jit.ScriptModule may have none
        names = kind.get_attributes() if kind is not None and self._script is not None else {}
        values = {name: self._script.getattr(name) for name in names if self._script.hasattr(name)}
        return {name: value for name, value in values.items() if not find_leaves(value, _is_object)}

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in self.saved.values() if isinstance(value, Tensor)]

    @property
    def is_changed(self) -> bool:
        """True if an attribute differs. Lists and dictionaries of tensors are new objects at each read, so they always
        differ.
        """
        return any(not self._is_now(name, value) for name, value in self.saved.items())

    def _is_now(self, name: str, value: Any) -> bool:
        now = self._script.getattr(name)
        return now is value or (not tensors_in(value) and type(now) is type(value) and bool(now == value))

    def _write(self) -> None:
        for name, value in self.saved.items():
            if not self._is_now(name, value):
                self._script.setattr(name, value)


def _is_object(value: Any) -> bool:
    """True for the objects of TorchScript's own classes."""
    return not isinstance(value, (list, tuple, dict, bool, int, float, complex, str, Tensor, type(None)))


# Swaps in the state at the end of a pass while a backward pass runs.
#
# An example: a forward pass doubles a buffer, a checkpointed block reads the buffer, and the log restores the old values.
# The backward pass runs the block again, which must read the doubled values. So when the backward pass begins, the buffer
# gets the doubled values and the write count that autograd compares; when it ends, the buffer gets its own values back.


class Items(Snapshot):
    """The items of a container, or the attributes of an object."""

    def _read(self) -> Any:
        return items_of(self.subject)

    @property
    def is_changed(self) -> bool:
        return not same_items(self.subject, self.saved)

    def _write(self) -> None:
        refill(self.subject, self.saved)


class ClassOf(Snapshot):
    """The class of a module."""

    def _read(self) -> Any:
        return type(self.subject)

    def _write(self) -> None:
        object.__setattr__(self.subject, "__class__", self.saved)


class GraphOf(Snapshot):
    """The autograd state of a tensor: whether it requires gradients, and its graph with the values in it."""

    def _read(self) -> tuple[bool, Tensor | None]:
        tensor = self.subject
        with torch.enable_grad():
            return tensor.requires_grad, tensor.clone() if tensor.grad_fn is not None else None

    def restore(self) -> None:
        tensor, (is_required, source) = self.subject, self.saved
        if source is None:
            if tensor.grad_fn is not None:
                tensor.detach_()
            if tensor.requires_grad is not is_required:
                tensor.requires_grad_(is_required)
        elif tensor.grad_fn is None:
            tensor.requires_grad_(False)
            with torch.enable_grad():
                tensor.copy_(source)


class AddedHooks(Snapshot):
    """Hooks that the pass registered on a module or a tensor. Hooks registered later by others stay."""

    def __init__(self, hooks: dict[Any, Any], added: dict[int, Any]) -> None:
        self._added = added
        super().__init__(hooks)

    def again(self) -> AddedHooks:
        return AddedHooks(self.subject, self._added)

    def _read(self) -> bool:
        return not self._added.keys().isdisjoint(self.subject)

    def restore(self) -> None:
        if self.saved:
            self.subject.update(self._added)
        else:
            for number in self._added:
                self.subject.pop(number, None)


class Generators(Snapshot):
    """The state of every global random generator; `subject` is None."""

    def _read(self) -> RandomState:
        return RandomState.now()

    def restore(self) -> None:
        self.saved.restore()


def _has_no_graph(one: Any) -> bool:
    return isinstance(one, (Generators, Random)) or (isinstance(one, TensorBackup) and one.tensor.is_leaf)


class LeftBehind:
    """The state that a pass left. It is swapped with the present state when a backward pass begins, and back when it ends.

    The next backward pass sees the changes that a backward pass made. If a backward pass runs through several histories of
    one model, the nodes of each see the state that their own pass left. Random generators get the state of the history that
    is swapped in first.
    """

    def __init__(self, snapshots: list[Any]) -> None:
        self.has_no_graph = all(map(_has_no_graph, snapshots))  # True if an autograd graph may hold this object without a cycle
        self._others: list[Any] = snapshots  # snapshots of the state that is swapped out
        self._left_alone: list[Any] = []  # snapshots that are not swapped this time
        self._touched = frozenset(id(one.subject) for one in snapshots if one.subject is not None)
        self._tasks: set[int] = set()  # torch's ids of the backward passes that need this state
        self._is_there = False
        self._is_ended = False  # True if `until_over` ends the running backward pass

    def put_back(self, task: int) -> None:
        """Called when a backward pass reaches a node of this pass: swap the state in until the backward pass is over."""
        if self._is_there and task in self._tasks:
            return
        if task not in self._tasks:
            self._end_with(task)
        with held_signals(), _lock:
            if not self._is_there:
                for other in [one for one in _there if not one._touched.isdisjoint(self._touched)]:
                    other._take_away()
                self._put_back()

    def _end_with(self, task: int) -> None:
        end = _End(self, task)
        is_held = weakref.ref(end)
        after_this_backward(end)
        del end
        if is_held() is None and not self._is_ended:  # this version of torch calls nothing at the end of a backward pass
            raise MissingInTorch(
                "the backward pass may read what the logged pass changed, and this torch does not say when a backward pass is "
                "over. Run it by history.log_backward(loss)."
            )
        self._tasks.add(task)

    @cleaning
    def until_over(self) -> Iterator[None]:
        """A block around a backward pass; at its end the state is swapped out, whatever torch reports or raises."""
        self._is_ended = True
        yield
        self._is_ended = False
        self._tasks.clear()
        with _lock:
            if self._is_there:
                self._take_away()

    def is_over(self, task: int) -> None:
        """Called when a backward pass ended or raised."""
        self._tasks.discard(task)
        if not self._is_there:
            return
        with held_signals(), _lock:
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
        """Swap the two states. Returns the errors and an interrupt; raises only before anything is changed."""
        problems: list[str] = []
        interrupt: BaseException | None = None
        with DisableTorchFunction(), outside_dispatch_modes(), torch.no_grad():
            now = [one.again() for one in self._others]
            counts = [one.restore_count for one in self._others if isinstance(one, TensorBackup)]
            for step in [*(one.restore for one in self._others), *counts]:
                try:
                    step()
                except BaseException as error:
                    # an interrupt comes once: this step is taken again, and the interrupt goes on afterwards
                    if is_interrupt(error):
                        interrupt = error
                        step()
                    else:
                        problems.append(f"{type(error).__name__}: {error}")
        self._others = now
        return problems, interrupt


_there: list[LeftBehind] = []  # the states that are swapped in now; no two of them have an object in common
_lock = threading.RLock()


class _End:
    """A callback for the end of a backward pass. If the pass raises, torch drops the callback, and `__del__` runs instead."""

    def __init__(self, left: LeftBehind, task: int) -> None:
        self._left, self._task = left, task

    def __call__(self) -> None:
        self._left.is_over(self._task)

    def __del__(self) -> None:
        self._left.is_over(self._task)


# Restores a model after a pass: module attributes and what they lead to, parameters, buffers, gradients, inputs.
#
# Before a pass only dictionaries and small objects are copied. A tensor is copied when a watched operation is about to write
# to it, and the copy is written back at the end. If restoring one part raises, the others are still restored; the parts that
# failed are named afterwards.

WRITTEN_UNSEEN = "it was written to by code that cannot be watched"  # this text is a part of notes that name a tensor
_OWN = len(vars(Module()))  # the number of attributes that every module has
_CONTAINERS = frozenset({dict, list, set, deque, type(forward_hooks_of(Module()))})
_SIMPLE = PLAIN | {Tensor, Parameter}
_USUAL = frozenset({Tensor, Parameter, type(None), torch.nn.Buffer})
_PLAIN_TENSORS = frozenset({Tensor, Parameter})


class StateRestorer:
    """Remembers modules and tensors, and restores them.

    `arguments` are the arguments of the pass; `function` is the callable, if it is not a module.
    """

    def __init__(
        self, modules: list[Module], inputs: list[Tensor], arguments: Iterable[Any] = (), function: Any = None
    ) -> None:
        self.problems: list[str] = []
        self.written_unseen: list[str] = []  # names of tensors that unwatched code wrote to
        self.moved: list[Any] = []  # module attributes and containers that had changed and that `restore` put back
        self.interrupt: BaseException | None = None
        self.lazy: list[tuple[Tensor, Tensor]] = []  # (uninitialised tensor, its twin for the pass)
        self._modules = modules
        self._classes = list(map(type, modules))
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []  # (attributes of a module, a copy of them)
        self._filled: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []
        self._inputs = inputs
        self._backups: dict[int, TensorBackup] = {}
        self._released: list[weakref.ref[Tensor]] = []  # the tensors that were written to, after `let_go`
        self._uncopied = UncopiedTensors([])
        # (tensor, its gradient, a copy of the gradient)
        self._gradients: list[tuple[Tensor, Tensor | None, TensorBackup | None]] | None = None
        self._autograd: dict[int, AutogradState] = {}  # id of a tensor -> its autograd state before the first change
        self._has_switched = False
        self._first_new_hook = RemovableHandle.next_id
        self._objects = ObjectState(self._filled)
        self._scripts: dict[int, ScriptAttributes] = {}
        registered = self._remember(modules)
        self._remember_tensor_attributes(chain(registered, inputs))
        self._sizes = StorageSizes(registered + inputs)
        self._without_values: set[int] | None = None  # ids of tensors without values to copy; computed when first needed
        for cls in dict.fromkeys(self._classes):
            if not cls.__module__.startswith("torch.nn."):
                self._objects.add_generators(getattr(cls, "forward", None), (None, f"{cls.__name__}.forward"))
        slotted = {cls for cls in set(self._classes) if slots_of(cls)}
        for module in modules if slotted else ():
            if type(module) in slotted:
                self._objects.add_slots(module)
        if function is not None and not isinstance(function, Module):
            self._objects.add(function, (None, getattr(function, "__name__", type(function).__name__)))
        self._of_model = len(self._filled)
        added = [self._objects.add_argument(value) for value in arguments if type(value) not in _SIMPLE]
        self.puts_arguments_back = all(added)  # True if no argument needs a copy
        self._objects.add_unregistered(modules)
        self._remember_tensor_attributes(self._objects.tensors)
        if self.lazy:
            self._replace_lazy()

    # Remembering --------------------------------------------------------------------------------------------------------

    def _remember(self, modules: list[Module]) -> list[Tensor]:
        """Remember the attributes of modules. Returns their parameters and buffers."""
        registered: list[Any] = []
        harmless = set(_SIMPLE)  # classes of attributes that a pass cannot change
        filled, empty, rows, objects = self._filled, self._empty, self._attributes, self._objects
        for module in modules:
            attributes = module.__dict__
            saved = attributes.copy()
            values = iter(saved.values())
            own = _OWN if next(iter(saved), None) == "training" else 0  # torch's own attributes come first, and most are empty
            for value in filter(None, islice(values, own)):
                if type(value) in _CONTAINERS:
                    filled.append((value, value.copy()))
            others = list(values)
            rows.append((attributes, saved))
            if parameters := saved.get(PARAMETERS):
                registered += parameters.values()
            elif parameters is not None:
                empty.append(parameters)
            if buffers := saved.get(BUFFERS):
                registered += buffers.values()
            elif buffers is not None:
                empty.append(buffers)
            if not (inner := saved.get(MODULES)) and inner is not None:
                empty.append(inner)
            if not (names := saved.get(NON_PERSISTENT)) and names is not None:
                empty.append(names)
            kinds = set(map(type, others))
            if not kinds.isdisjoint(_PLAIN_TENSORS):
                self._remember_tensor_attributes(others)
            if harmless >= kinds:
                continue
            for value in others:
                cls = type(value)
                if cls in harmless or (cls is tuple and PLAIN.issuperset(map(type, value))):
                    continue
                if cls in _CONTAINERS:
                    self._remember_container(value, module)
                elif issubclass(cls, torch.optim.Optimizer):  # the pass may step it
                    containers = [value.state, *value.state.values(), *value.param_groups]
                    filled += [(container, dict(container)) for container in containers]
                elif kind_of(cls) or issubclass(cls, Iterator):
                    if id(value) not in objects.seen:  # many modules may share one configuration object
                        objects.add(value, (module, value))
                else:
                    harmless.add(cls)
        if _USUAL.issuperset(map(type, registered)):
            return [tensor for tensor in registered if tensor is not None]
        lazy = {id(tensor): tensor for tensor in registered if tensor is not None and is_lazy(tensor)}
        self.lazy = [(tensor, lazy_twin(tensor)) for tensor in lazy.values()]
        return [tensor for tensor in registered if isinstance(tensor, Tensor) and not is_lazy(tensor)]

    def not_copied(self) -> dict[int, Any]:
        """Map ids to the objects that the model gets themselves, not as copies, because they are restored or the model holds
        them.
        """
        containers = [container for container, _ in self._filled[: self._of_model]]
        held = [
            one for _, saved in self._filled[: self._of_model] for one in (saved.values() if isinstance(saved, dict) else saved)
        ]
        attributes = [value for _, saved in self._attributes for value in saved.values()]
        known = chain(containers, self._empty, held, attributes)
        return {id(one): one for one in known if type(one) not in _SIMPLE} | self._objects.put_back()

    def _replace_lazy(self) -> None:
        """Put twins of uninitialised (lazy) tensors into the modules for the pass: a materialised tensor cannot be restored."""
        twins = {id(tensor): twin for tensor, twin in self.lazy}
        for _, saved in self._attributes:
            registered = [saved.get(PARAMETERS), saved.get(BUFFERS)]
            for tensors in (one for one in registered if isinstance(one, dict)):
                tensors.update({name: twins[id(tensor)] for name, tensor in tensors.items() if id(tensor) in twins})

    def _remember_tensor_attributes(self, values: Iterable[Any]) -> None:
        """Remember attributes that the program set on plain tensors. Tensor subclasses manage their own attributes."""
        found = [vars(value) for value in values if type(value) in _PLAIN_TENSORS]
        self._empty += found if not any(found) else [attributes for attributes in found if not attributes]
        for attributes in filter(None, found):
            self._filled.append((attributes, attributes.copy()))
            for value in attributes.values():
                self._objects.add(value, (None, "an attribute of a tensor"))

    def _remember_container(self, value: Any, module: Module) -> None:
        if not value:
            self._empty.append(value)
        elif PLAIN.issuperset(map(type, value.values() if isinstance(value, dict) else value)):
            self._filled.append((value, value.copy()))
        else:
            self._objects.add(value, (module, value))

    def hooks_start_here(self) -> None:
        """From now on, every new hook counts as registered by the pass."""
        self._first_new_hook = RemovableHandle.next_id

    def back_up(self, tensors: Iterable[Tensor], *, is_suspected: bool = False) -> None:
        """Copy the values of these tensors, which are about to be overwritten, unless they were copied before."""
        if self._without_values is None:
            self._without_values = set(map(id, self._sizes.without_memory())) | {id(twin) for _, twin in self.lazy}
        for tensor in tensors:
            if id(tensor) in self._backups or id(tensor) in self._without_values:
                continue
            try:
                with DisableTorchFunction(), torch.no_grad():
                    self._remember_autograd(tensor)
                    self._backups[id(tensor)] = TensorBackup(tensor, is_suspected=is_suspected)
            except Exception as error:  # a class that cannot be copied, such as torch's own inside AOTAutograd
                pass_interrupts_on(error)
                if not is_suspected:
                    raise

    def back_up_everything(self, others: Iterable[Tensor] = ()) -> None:
        """Called before unwatched code runs: copy every known tensor, and its gradient."""
        with DisableTorchFunction():
            self.back_up_script(self._modules)
            tensors = chain(self._tensors(), others)
            self.back_up([tensor for tensor in tensors if not is_lazy(tensor)], is_suspected=True)
            self.before_backward()

    def back_up_all_but_parameters(self) -> None:
        """Called before unwatched code that trains nothing: copy buffers and tensors in attributes.

        For parameters and gradients only the memory is remembered, not the values: writes to them are detected and reported.
        """
        with DisableTorchFunction():
            self.back_up_script(self._modules)
            self.before_switch()
            inputs = set(map(id, self._inputs))
            tensors = [one for one in self._tensors() if id(one) not in inputs and not is_lazy(one)]
            self.back_up([one for one in tensors if not isinstance(one, Parameter)], is_suspected=True)
            leaves = [one for one in tensors if one.is_leaf]
            if self._gradients is None:
                self._gradients = [(one, one.grad, None) for one in leaves]
            if not self._is_sharded_by_exchange():
                gradients = [one.grad for one in leaves if one.grad is not None]
                self._uncopied = UncopiedTensors([*(one for one in tensors if isinstance(one, Parameter)), *gradients])

    def back_up_script(self, modules: Iterable[Module]) -> None:
        """Copy everything that TorchScript may write to, because writes inside it are not seen."""
        for module in modules:
            if isinstance(module, torch.jit.ScriptModule) and id(module) not in self._scripts:
                script = self._scripts[id(module)] = ScriptAttributes(module)
                tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False), *script.tensors]
                self.back_up(tensors, is_suspected=True)

    def before_backward(self) -> None:
        """Called before gradients are accumulated: copy the existing gradients."""
        if self._gradients is not None:
            return
        self._gradients = []
        for tensor in self._tensors():
            if tensor.is_leaf:  # the pass may make any leaf require gradients
                old = tensor.grad
                self._gradients.append((tensor, old, TensorBackup(old, is_suspected=True) if old is not None else None))
                self._remember_tensor_attributes(() if old is None else (old,))

    def before_switch(self) -> None:
        """Called before a tensor's `requires_grad` changes: remember the autograd state of all tensors."""
        if not self._has_switched:
            self._has_switched = True
            with DisableTorchFunction():
                for tensor in self._tensors():
                    self._remember_autograd(tensor)

    def _remember_autograd(self, tensor: Tensor) -> None:
        if id(tensor) not in self._autograd:
            self._autograd[id(tensor)] = AutogradState(tensor)

    @property
    def written(self) -> list[Tensor]:
        """The tensors that watched operations wrote to, if they still exist."""
        released = [tensor for one in self._released if (tensor := one()) is not None]
        return released + [backup.tensor for backup in self._backups.values() if not backup.is_suspected]

    @property
    def backed_up(self) -> list[Tensor]:
        """The tensors that `restore` may write to."""
        return [backup.tensor for backup in (*self._backups.values(), *self._gradient_backups())]

    def written_storages(self) -> set[int]:
        """The storages that `restore` is going to write to."""
        backups = (*self._backups.values(), *self._gradient_backups())
        # the tensor itself too: a write to a sparse tensor may give it other memory
        tensors = [one for backup in backups for one in (backup.view, backup.tensor)]
        return {storage for tensor in tensors if (storage := storage_of(tensor)) is not None}

    def _gradient_backups(self) -> list[TensorBackup]:
        return [backup for *_, backup in self._gradients or () if backup is not None]

    def left_behind(self, before: RandomState) -> LeftBehind | None:
        """Take snapshots of everything the pass changed; returns None if it changed nothing. Call this before `restore`.

        `before` is the random state at the start of the pass.
        """
        with DisableTorchFunction(), torch.no_grad():
            held = [container for container, saved in (*self._attributes, *self._filled) if not same_items(container, saved)]
            pairs = zip(self._modules, self._classes, strict=True)
            tensors = [one.tensor for one in self._backups.values() if one.is_changed]
            snapshots = [
                *map(Items, (*held, *filter(None, self._empty))),
                *(ClassOf(module) for module, cls in pairs if type(module) is not cls),
                *(AddedHooks(hooks, added) for hooks, added in self._new_hooks()),
                *(script.again() for script in self._scripts.values() if script.is_changed),
                *(TensorBackup(tensor, is_suspected=False) for tensor in tensors),
                *(piece.again() for piece, _ in self._objects.pieces if piece.is_changed),
                *(GraphOf(one.tensor) for one in self._autograd.values() if one.is_changed and one.can_be_restored),
                *((Generators(None),) if before.moved() else ()),
            ]
        return LeftBehind(snapshots) if snapshots else None

    # Restoring ----------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Restore modules, tensors and arguments. Raises nothing; `finish` reports what failed."""
        with DisableTorchFunction(), torch.no_grad():
            for step in (
                self._reshard,
                self._restore_attributes,
                self._restore_containers,
                self._restore_tensors,
                self._restore_uncopied,
                self._restore_pieces,
                self._restore_gradients,
                self._restore_autograd,
                self._report_unwatched_changes,
            ):
                self._try(step, (), str, "the model")

    def finish(self, notes: list[str], is_failing: bool = False) -> None:
        """Name what could not be restored, in `notes` and by a warning. Raises an interrupt that came while restoring."""
        if self.problems:
            message = f"not everything is as it was before the pass. Not restored: {few(self.problems, 5, '; ')}."
            notes.append(message)
            if not is_failing:  # the user must see the error of the pass instead
                warnings.warn(message, StateNotRestored, stacklevel=2)
        objects = self._objects
        for remembered in (self._attributes, self._filled, self._modules, objects.pieces, objects.seen, objects.tensors):
            remembered.clear()  # frees thousands of objects before the collector scans them again
        if self.interrupt is not None:
            raise self.interrupt

    def _try(self, action: Callable[..., Any], args: tuple[Any, ...], name: Callable[[Any], str], about: Any) -> Any:
        """Run one step of restoring. An error is noted with the name of what was restored, and does not stop other steps."""
        try:
            return action(*args)
        except BaseException as error:
            if not is_interrupt(error):
                self._note(name(about), f"{type(error).__name__}: {error}")
                return None
            self.interrupt = error  # an interrupt comes once: this step is done again, and the interrupt goes on afterwards
            try:
                return action(*args)
            except BaseException as again:
                self._note(name(about), f"{type(again).__name__}: {again}")
        return None

    def _note(self, what: str, why: str) -> None:
        self.problems.append(f"{what} ({why})")

    def sharded_modules(self) -> list[Any]:
        """The modules to which FSDP2 gives unsharded parameters during a pass."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is None or not any(issubclass(cls, fsdp.FSDPModule) for cls in set(self._classes)):
            return []
        return [module for module in self._modules if isinstance(module, fsdp.FSDPModule)]

    def _is_sharded_by_exchange(self) -> bool:
        """True if FSDP1 is used, which replaces the memory of parameters and tracks it."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        return fsdp is not None and any(issubclass(cls, fsdp.FullyShardedDataParallel) for cls in set(self._classes))

    def _reshard(self) -> None:
        """Remove unsharded parameters that FSDP2 may leave in modules, by its own `reshard`."""
        sharded = self.sharded_modules()
        if sharded and any(
            not all(map(is_, container.values(), before.values()))
            for container, before in self._filled
            if any(container is attributes.get(PARAMETERS) for attributes, _ in self._attributes)
        ):
            for module in sharded:
                module.reshard()

    def _restore_attributes(self) -> None:
        now, then = [now for now, _ in self._attributes], [saved for _, saved in self._attributes]
        # dictionaries with a renamed attribute differ in their last name
        last_names = map(is_, map(_last_name, now), map(_last_name, then))
        if not (_have_same_values(now, then) and all(last_names)):
            for attributes, saved in self._attributes:
                if not same_items(attributes, saved):
                    self.moved.append(attributes)
                    self._try(refill, (attributes, saved), self._name_of_attributes, attributes)
        if list(map(type, self._modules)) != self._classes:
            for module, cls in zip(self._modules, self._classes, strict=True):
                if type(module) is not cls:
                    self._try(object.__setattr__, (module, "__class__", cls), self._name_of_module, module)

    def _restore_containers(self) -> None:
        if not self._are_containers_unchanged():
            for container, saved in self._filled:
                if not same_items(container, saved):
                    self.moved.append(container)
                    self._try(refill, (container, saved), self._name_of, container)
        for container in filter(None, self._empty):
            self.moved.append(container)
            container.clear()
        for script in self._scripts.values():
            self._try(script.restore, (), str, "attributes of a TorchScript module")
        for hooks, added in self._new_hooks():
            for number in added:
                del hooks[number]

    def _restore_tensors(self) -> None:
        for backup in reversed(self._backups.values()):  # if backups share memory, the earliest copy is written last
            self._try(backup.restore, (), self._name_of, backup.tensor)

    def _restore_uncopied(self) -> None:
        backed_up = self.written_storages()
        for tensor in self._uncopied.restore():
            if storage_of(tensor) not in backed_up:
                self._note_unseen(tensor)

    def _note_unseen(self, tensor: Tensor) -> None:
        name = self._name_of(tensor)
        if name not in self.written_unseen:
            self.written_unseen.append(name)
            self._note(name, WRITTEN_UNSEEN)

    def _restore_pieces(self) -> None:
        """Runs after tensors are restored: an array was copied before the pass, but a tensor in the array's memory was copied
        later, before a write.
        """
        for piece, where in self._objects.pieces:
            self._try(piece.restore, (), self._name_of_place, where)

    def restore_counts(self) -> None:
        """Reset torch's counts of writes, so that restoring does not count as a write."""
        for backup in (*reversed(self._backups.values()), *self._gradient_backups()):
            backup.restore_count()

    def let_go(self) -> None:
        """Release the tensors that were written to, after everything was restored."""
        self._released = list(map(weakref.ref, self.written))
        self._backups.clear()
        self._autograd.clear()

    def _restore_gradients(self) -> None:
        for tensor, old, backup in self._gradients or ():
            if tensor.is_leaf and tensor.grad is not old:
                self._try(setattr, (tensor, "grad", old), self._name_of_gradient, tensor)
            if backup is not None:
                self._try(backup.restore, (), self._name_of_gradient, tensor)

    def _restore_autograd(self) -> None:
        """Runs after values and gradients are restored, so that restoring them leaves no trace in the autograd state."""
        for state in [one for one in self._autograd.values() if one.is_changed]:
            self._try(state.restore, (), self._name_of, state.tensor)

    def _report_unwatched_changes(self) -> None:
        """Report freed memory and unwatched writes, which cannot be undone."""
        for tensor, what in self._sizes.freed():
            self._note(self._name_of(tensor), what)
        written = self._sizes.written()
        if written:
            known = self.written_storages()
            for tensor in written:
                if storage_of(tensor) not in known and has_memory(tensor):
                    self._note_unseen(tensor)

    def _are_containers_unchanged(self) -> bool:
        """A quick check that all containers hold the same objects as before; if it fails, a slower one follows."""
        now: list[Any] = []
        then: list[Any] = []
        for container, saved in self._filled:
            if isinstance(container, dict) and not isinstance(container, OrderedDict):  # OrderedDict keeps an order of its own
                now.append(container)
                then.append(saved)
            elif not same_items(container, saved):
                return False
        flat = chain.from_iterable
        return _have_same_values(now, then) and all(map(is_, flat(map(dict.keys, now)), flat(then)))

    def _new_hooks(self) -> Iterable[tuple[dict[Any, Any], dict[int, Any]]]:
        """Yield dictionaries of hooks, each with the hooks in it that this pass registered: their ids are larger."""
        if RemovableHandle.next_id == self._first_new_hook:
            return
        named = chain.from_iterable(saved.items() for _, saved in self._attributes)
        # a module's dictionaries of hook options are included
        of_modules = [hooks for name, hooks in named if "_hooks" in name and isinstance(hooks, dict)]
        for hooks in chain(of_modules, *map(hooks_of, self._tensors())):
            added = {n: hook for n, hook in hooks.items() if isinstance(n, int) and n >= self._first_new_hook}
            if added:
                yield hooks, added

    # Tensors and their names ------------------------------------------------------------------------------------------

    def _tensors(self) -> Iterable[Tensor]:
        """The tensors of the modules (parameters, buffers, and all that attributes lead to) and the inputs."""
        seen: set[int] = set()
        candidates: list[Any] = [*self._inputs, *self._objects.tensors]
        for _, saved in self._attributes:
            candidates += saved.values()
        for _, saved in self._filled:
            candidates += saved.values() if isinstance(saved, dict) else saved
        for value in candidates:
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield value

    def _name_of(self, value: Any) -> str:
        """The name of a tensor, a container or an object's attributes, if a module leads to it."""
        for module, (_, saved) in zip(self._modules, self._attributes, strict=True):
            registered = [one for one in (saved.get(PARAMETERS), saved.get(BUFFERS)) if isinstance(one, dict)]
            for name, held in chain(saved.items(), *(one.items() for one in registered)):
                if held is value:
                    address = self._addresses().get(id(module), "")
                    return repr(f"{address}.{name}" if address else name)
        for tensor, gradient, _ in self._gradients or ():
            if gradient is value:
                return self._name_of_gradient(tensor)
        if any(value is given for given in self._inputs):
            return f"an input of shape {tuple(value.shape)}"
        return f"a {type(value).__name__} that the model holds"

    def _name_of_gradient(self, tensor: Tensor) -> str:
        return f"the gradient of {self._name_of(tensor)}"

    def _name_of_place(self, where: Where) -> str:
        return where[1] if where[0] is None else self._name_of(where[1])

    def _name_of_attributes(self, attributes: dict[str, Any]) -> str:
        module = next(m for m, row in zip(self._modules, self._attributes, strict=True) if row[0] is attributes)
        return f"the attributes of {self._name_of_module(module)}"

    def _name_of_module(self, module: Module) -> str:
        address = self._addresses().get(id(module), "")
        return f"module {address!r}" if address else f"the {type(module).__name__}"

    def _addresses(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for root in self._modules:
            if id(root) not in found:
                for name, module in root.named_modules():
                    found.setdefault(id(module), name)
        return found


def _have_same_values(now: list[dict[Any, Any]], then: list[dict[Any, Any]]) -> bool:
    """True if dictionaries hold the same values as their copies, in the same order."""
    if list(map(dict.__len__, now)) != list(map(len, then)):
        return False
    flat = chain.from_iterable
    return all(map(is_, flat(map(dict.values, now)), flat(map(dict.values, then))))


def _last_name(attributes: dict[str, Any]) -> str | None:
    return next(reversed(attributes), None)
