"""`guard`: watches a training, and stops it before an optimizer writes NaN or infinity into the weights.

While all is well, a step costs little: the guard holds what the forward pass was given and the gradients that arrived at its
outputs, and before the optimizer writes it asks once whether all gradients are finite. If they are not, the weights are still
good. So the pass is run again, logged, and its history says at which operation NaN or infinity began, and why.

There are hooks on the model, on its outputs and on the optimizers; after `model.compile()` a wrapper of the compiled call.
A fault of the guard itself (memory, disk) never stops a training that is fine.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, get_args

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ._cleanup import held_signals, pass_interrupts_on
from ._files.files import make_folder
from ._text import few, plural
from ._torch.addresses import innermost
from ._torch.callbacks import callback_class
from ._torch.containers import find_tensors, replace_tensors
from ._torch.forward_backward import PassAgain, differentiable
from ._torch.functions.facts import Origin
from ._torch.inputs import check_names, is_whole
from ._torch.internals import (
    DisableTorchFunction,
    copy_all,
    cuda_is_used,
    is_transforming,
    norms_of,
    own_buffers,
    sparse_parts,
    watch_compiled_call,
)
from ._torch.memory import version_of
from ._torch.randomness import RandomState
from ._torch.restore_state import restore_count
from ._torch.thread_state import Autocast, autocast_as, autocast_state, thread_left_as_found
from .analysis.diagnosis import Checkup, Diagnosis, Finding, Reading, amount, read
from .api import log_forward_pass
from .errors import InvalidArgument, NotFinite, NotFiniteWarning
from .history import ModelHistory
from .log.run import run_of

Action = Literal["raise", "warn", "skip"]
_SMALL: Final = (
    1 << 20
)  # bytes; smaller buffers are copied before each pass, larger ones only if a pass was seen to change them
_OF_A_PASS: Final = 1 << 15  # bytes that a held pass takes besides its tensors, mostly the random state
_MOST_NAMES: Final = 3  # parameters that a message names
_OPERANDS: Final = 6  # arguments of the operation that a message describes


# What is held of a pass ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Output:
    """An output of a pass: the gradient that arrived there, or only its norm if the gradient is too large to hold."""

    value: Tensor | None  # of a single number, such as a loss that the model computes
    gradient: Tensor | None = None
    norm: Tensor | None = None

    @property
    def has_gradient(self) -> bool:
        return self.gradient is not None or self.norm is not None

    @property
    def is_spoilt(self) -> bool:
        """True if the gradient is not finite. Waits for the device."""
        seen = self.gradient if self.gradient is not None else self.norm
        return seen is not None and not bool(seen.isfinite().all())


@dataclass(slots=True)
class _Buffer:
    """A buffer before a pass. A large one that no pass was seen to change has no copy."""

    module: Module
    name: str
    tensor: Tensor
    version: int
    copy: Tensor | None = None


@dataclass(slots=True)
class _Pass:
    """A forward pass since the last step: everything that is needed to run it again."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: list[tuple[Tensor, int]]  # of the tensors among the arguments
    random: RandomState
    autocast: Autocast
    buffers: list[_Buffer]
    size: int  # bytes that it holds
    outputs: list[_Output] = field(default_factory=list)

    @property
    def ran_backward(self) -> bool:
        return any(one.has_gradient for one in self.outputs)

    @property
    def is_overwritten(self) -> bool:
        """True if an argument was written to in place."""
        return any(version_of(tensor) != version for tensor, version in self.versions)


class _Buffers:
    """The buffers of a model: copies of them before a pass, and their restoring."""

    def __init__(self, model: Module) -> None:
        self._modules = [module for module in model.modules() if own_buffers(module)]
        self._changing: set[tuple[int, str]] = set()  # large buffers that a pass changed

    def hold(self) -> list[_Buffer]:
        held: list[_Buffer] = []
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for module in self._modules:
            for name, tensor in own_buffers(module).items():
                if tensor is None or is_lazy(tensor) or tensor.device.type == "meta":
                    continue
                one = _Buffer(module, name, tensor, version_of(tensor))
                held.append(one)
                if tensor.layout is not torch.strided or tensor.is_nested:
                    one.copy = tensor.detach().clone()
                elif tensor.nbytes <= _SMALL or (id(module), name) in self._changing:
                    one.copy = torch.empty_like(tensor)
                    targets.append(one.copy)
                    sources.append(tensor.detach())
        if targets:
            copy_all(targets, sources)
        return held

    def notice_changes(self, held: Iterable[_Buffer]) -> None:
        """Copy a large buffer before each following pass, if this pass changed it."""
        for one in held:
            if one.copy is None and version_of(one.tensor) != one.version:
                self._changing.add((id(one.module), one.name))

    def restore(self, held: Iterable[_Buffer]) -> list[str]:
        """Write the copies back. Returns the names of the buffers that changed and have no copy."""
        lost = []
        for one in held:
            if own_buffers(one.module).get(one.name) is not one.tensor:
                setattr(one.module, one.name, one.tensor)
            count = version_of(one.tensor)
            if one.copy is not None:
                one.tensor.copy_(one.copy)
                restore_count(one.tensor, count)  # graphs that saved the buffer may still run backward
            elif count != one.version:
                lost.append(one.name)
        return lost


class _Hook:
    """A method of a guard as a hook. A copy of the model, also by pickle, is not watched."""

    def __init__(self, watching: guard | None, name: str) -> None:
        self._watching = watching
        self._name = name

    def __call__(self, *given: Any) -> Any:
        if self._watching is None or torch.compiler.is_dynamo_compiling():
            return None
        return getattr(self._watching, self._name)(*given)

    def __deepcopy__(self, memo: object) -> _Hook:
        return _Hook(None, self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None, self._name)


# The guard ----------------------------------------------------------------------------------------------------------


class guard:  # noqa: N801 - used as a function: `guard(model, optimizer)`
    """Watch a training, and stop it at the first NaN or infinity in a gradient, before the weights change.

    >>> import torch, torcheer
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with torcheer.guard(model, optimizer) as watched:
    ...     for _ in range(3):
    ...         model(torch.ones(4, 2)).square().mean().backward()
    ...         optimizer.step()
    >>> watched.steps, watched.struck
    (3, 0)

    It works from here on, until `close()` or the end of a `with` block. Otherwise the training stays as it is, bit for bit.

    Args:
        model: the module that the training calls, also compiled, or wrapped in `DistributedDataParallel` or by `fully_shard`.
        optimizers: those whose gradients are checked, each before it writes.
        action: `"raise"` a `NotFinite` that says where NaN or infinity began; `"warn"` once, count, and let the training go
            on; or `"skip"` the step, count, warn once, and raise after `patience` in a row.
        patience: this many skipped steps in a row, or overflows that a gradient scaler handles, are a fault.
        scaler: the `GradScaler`, if there is one. Without it, overflows that it handles go unnoticed, however many.
        parameters: check the parameters too, which an earlier step may have spoilt.
        folder: where the history of the step is saved, `step_000123.safetensors`.
        first_step: the number of the next step of the training, if it was resumed.
        max_bytes: how much memory inputs and gradients at the outputs may take. Of a larger gradient only its norm is held.

    Attributes: `steps` that the first optimizer was asked for, `struck` steps that were not finite, `skipped` steps, and the
    last `error`.

    Limits: work inside `torch.compile` is run again without compilation. An optimizer's step inside `torch.compile` is not
    checked, and a model that a larger compiled function calls is not seen. A gradient of `torch.autograd.grad` through the
    model (a gradient penalty) is taken for one of the loss.
    """

    def __init__(
        self,
        model: Module,
        *optimizers: Optimizer,
        action: Action = "raise",
        patience: int = 10,
        scaler: Any = None,
        parameters: bool = False,
        folder: str | os.PathLike[str] = "torcheer_guard",
        first_step: int = 0,
        max_bytes: int = 1 << 28,
    ) -> None:
        optimizers = tuple(map(_unwrapped, optimizers))
        _check_arguments(model, optimizers, action, patience, scaler, folder, first_step, max_bytes)
        self.struck = 0
        self.skipped = 0
        self.error: NotFinite | None = None
        self.folder = Path(folder)
        self._action = action
        self._patience = patience
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._scale: float | None = self._scaler.get_scale() if self._scaler is not None else None
        self._checks_parameters = parameters
        self._most = max_bytes
        self._optimizers = optimizers
        self._steps = {id(one): first_step for one in optimizers}
        self._in_a_row = {id(one): 0 for one in optimizers}  # steps that were not finite
        self._overflows = {id(one): 0 for one in optimizers}  # in a row, that a fused optimizer handles itself
        self._model = innermost(model)
        self._watched = _called_module(model)
        self._buffers = _Buffers(self._model)
        self._held: list[_Pass] = []
        self._running: _Pass | None = None
        self._losses: list[Tensor] = []
        self._dropped = 0  # passes since the last step that were too many to hold
        self._without_step = 0  # passes that ran backward since the last step
        self._has_stepped = False
        self._copies_inputs = False
        self._is_replaying = False
        self._is_open = True
        self._told = False  # that a step was skipped, or made with gradients that are not finite
        self._said_unchecked = False
        self._trouble = ""  # the last fault of the guard itself
        with held_signals(), ExitStack() as undo:
            before, after = _Hook(self, "_before_forward"), _Hook(self, "_after_forward")
            stop_watching_compiled = watch_compiled_call(self._watched, before, after)
            if stop_watching_compiled is not None:  # hooks would be compiled, too
                undo.callback(stop_watching_compiled)
            else:
                undo.callback(self._watched.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
                undo.callback(self._watched.register_forward_hook(after).remove)
            for one in optimizers:
                undo.callback(one.register_step_pre_hook(_Hook(self, "_before_step")).remove)
            self._undo = undo.pop_all()

    @property
    def steps(self) -> int:
        """The number of the first optimizer's next step."""
        return self._steps[id(self._optimizers[0])]

    def close(self) -> None:
        """Stop watching."""
        self._is_open = False
        with held_signals():
            self._undo.close()
        self._forget()

    def __enter__(self) -> guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "watching" if self._is_open else "closed"
        return f"<guard of {type(self._model).__name__}, {state}: {plural(self.steps, 'step')}, {self.struck} not finite>"

    def note_loss(self, loss: Tensor) -> None:
        """Check the loss, too, before the next step. A loss may be NaN while all gradients are finite.

        watched.note_loss(loss)
        """
        if not isinstance(loss, Tensor):
            raise InvalidArgument(f"note_loss takes the loss as a tensor; got {type(loss).__name__}.")
        if self._is_open:
            self._losses.append(loss.detach())

    # While all is well ------------------------------------------------------------------------------------------------

    def _before_forward(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hold what this pass is given."""
        if module is not self._watched or not self._is_wanted():
            return
        overflow = None
        try:
            with DisableTorchFunction(), torch.no_grad():
                if self._held and self._held[-1].ran_backward and not self._has_stepped:
                    self._without_step += 1
                    overflow = self._overflow_without_steps()
                if overflow is None:
                    if self._has_stepped or self._are_gradients_cleared():
                        self._forget()
                    self._running = one = self._hold(args, kwargs)
                    self._held.append(one)
                    self._drop_oldest()
        except Exception as error:
            pass_interrupts_on(error)
            self._note_trouble(error)
        if overflow is not None:
            self._tell(overflow, self._optimizers[0], raises=self._action != "warn")

    def _after_forward(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        """Follow the gradients at the outputs."""
        one, self._running = self._running, None
        if one is None or module is not self._watched or not self._is_wanted():
            return
        try:
            with DisableTorchFunction():
                for tensor in differentiable(output):
                    value = tensor.detach() if tensor.numel() == 1 else None
                    one.outputs.append(_Output(value))
                    if tensor.grad_fn is not None:  # hooks on parameters would stay
                        tensor.register_hook(partial(self._take_gradient, one, one.outputs[-1]))  # type: ignore[no-untyped-call]  # torch's own
                self._buffers.notice_changes(one.buffers)
                self._copies_inputs |= one.is_overwritten
        except Exception as error:
            pass_interrupts_on(error)
            self._note_trouble(error)

    def _take_gradient(self, one: _Pass, output: _Output, gradient: Tensor) -> None:
        """A hook of autograd on an output."""
        if not self._is_open or self._is_replaying or torch.compiler.is_dynamo_compiling():
            return
        try:
            with DisableTorchFunction(), torch.no_grad():
                gradient = gradient.detach()
                if output.gradient is not None:  # a second backward pass through the same output
                    output.gradient = output.gradient + gradient
                elif output.norm is None and self._size() + gradient.nbytes <= self._most:
                    output.gradient = gradient
                    one.size += gradient.nbytes
                elif gradient.numel():
                    norm = torch.linalg.vector_norm(gradient, math.inf)
                    output.norm = norm if output.norm is None else output.norm + norm
        except Exception as error:
            pass_interrupts_on(error)
            self._note_trouble(error)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A hook of the optimizer. With a closure, gradients are there only after it ran."""
        if not self._is_open:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._check(optimizer)
            return None

        @functools.wraps(closure)
        def watched() -> Any:
            loss = closure()
            if self._is_open:
                self._check(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _check(self, optimizer: Optimizer) -> None:
        """Stop here if a gradient is not finite."""
        key = id(optimizer)
        try:
            with DisableTorchFunction(), torch.no_grad():
                is_finite, is_handled = self._look(optimizer)
                if is_finite and self._scaler is not None:
                    self._scale = self._scaler.get_scale()
        except Exception as error:
            pass_interrupts_on(error)
            self._note_trouble(error)
            is_finite, is_handled = True, False
            if not self._said_unchecked:
                self._said_unchecked = True
                warnings.warn(f"guard could not check a step, which was made: {self._trouble}", NotFiniteWarning, stacklevel=4)
        self._steps[key] += 1
        self._has_stepped = True
        self._without_step = 0
        if is_finite:
            self._in_a_row[key] = self._overflows[key] = 0
            return
        if is_handled:
            self._overflows[key] += 1
            if self._overflows[key] < self._patience:
                return
            words = (
                f"{plural(self._overflows[key], 'step')} in a row overflowed, however small the gradient scaler's scale became"
            )
            self._overflows[key] = 0
            self._tell(words, optimizer, raises=self._action != "warn")
            return
        self._strike(optimizer)

    def _look(self, optimizer: Optimizer) -> tuple[bool, bool]:
        """Whether everything is finite, and whether a scaler handles it if not. Waits for the device once."""
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        tensors = [one.grad for one in given if one.grad is not None]
        for held in self._held[-1:]:  # an earlier one may be of a step that the program dropped
            tensors += [one.value for one in held.outputs if one.value is not None and one.has_gradient]
        tensors += self._losses
        if self._checks_parameters:
            tensors += given
        meshes = {id(mesh): mesh for one in given if (mesh := getattr(one, "device_mesh", None)) is not None}
        values = [value for one in tensors if (value := _values(one)) is not None]
        found_inf = getattr(optimizer, "found_inf", None)  # a gradient scaler sets it, for a fused optimizer to handle
        if isinstance(found_inf, Tensor):
            is_handled = bool(found_inf)
            return not is_handled, is_handled
        if _are_finite(values, 2.0, list(meshes.values())):
            return True, False
        return _are_finite(values, math.inf, list(meshes.values())), False  # the sum of the squares may have overflowed

    def _overflow_without_steps(self) -> str | None:
        """Words for a scale that only falls. The scaler is read only where no step came for long."""
        if self._scaler is None or self._scale is None or self._without_step % self._patience:
            return None
        scale = self._scaler.get_scale()
        backoff = self._scaler.get_backoff_factor()
        if scale >= self._scale or not 0 < backoff < 1:
            return None
        falls = round(math.log(scale / self._scale, backoff)) if scale > 0 else self._patience
        if falls < self._patience:
            return None
        words = (
            f"{plural(falls, 'step')} in a row overflowed, while the gradient scaler's scale fell from {amount(self._scale)} "
        )
        self._scale = scale
        return f"{words}to {amount(scale)}"

    def _is_wanted(self) -> bool:
        if not self._is_open or self._is_replaying or not torch.is_grad_enabled():
            return False
        if is_transforming() or torch.compiler.is_compiling():
            return False
        if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]  # torch's own
            return False
        return not (cuda_is_used() and torch.cuda.is_current_stream_capturing())

    def _hold(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Pass:
        tensors = [tensor for _, tensor in find_tensors((args, kwargs))]
        if self._copies_inputs or not all(isinstance(one, Tensor) and one.grad_fn is None for one in (*args, *kwargs.values())):
            args, kwargs = replace_tensors((args, kwargs), partial(_held_input, self._copies_inputs))
            tensors = [tensor for _, tensor in find_tensors((args, kwargs))]
        versions = [(tensor, version_of(tensor)) for tensor in tensors]
        size = _OF_A_PASS + sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested)
        return _Pass(args, kwargs, versions, RandomState.now(), autocast_state(), self._buffers.hold(), size)

    def _size(self) -> int:
        return sum(one.size for one in self._held)

    def _drop_oldest(self) -> None:
        size = self._size()
        while len(self._held) > 1 and size > self._most:
            size -= self._held.pop(0).size
            self._dropped += 1

    def _are_gradients_cleared(self) -> bool:
        """True if the backward pass of what is held ran, and its gradients are gone: the program dropped that step."""
        if not self._held or not self._held[-1].ran_backward:
            return False
        return all(one.grad is None for each in self._optimizers for group in each.param_groups for one in group["params"])

    def _forget(self) -> None:
        self._held.clear()
        self._losses.clear()
        self._running = None
        self._dropped = 0
        self._has_stepped = False

    def _note_trouble(self, error: Exception) -> None:
        self._running = None
        self._trouble = f"{type(error).__name__}: {error}"

    # When a gradient is not finite --------------------------------------------------------------------------------------

    def _strike(self, optimizer: Optimizer) -> None:
        key = id(optimizer)
        self._in_a_row[key] += 1
        if self._action == "skip":
            is_last = self._in_a_row[key] >= self._patience
            first = self._held[0].buffers if self._held else []
            try:
                self._tell("", optimizer, raises=is_last)
            finally:
                with held_signals(), torch.no_grad():
                    self._buffers.restore(first)
                if not is_last:
                    for group in optimizer.param_groups:
                        for one in group["params"]:
                            one.grad = None
                    self.skipped += 1
        else:
            self._tell("", optimizer, raises=self._action == "raise")

    def _tell(self, overflow: str, optimizer: Optimizer, *, raises: bool) -> None:
        """Raise, or warn once. `overflow` says that a gradient scaler does not find a scale."""
        self.struck += 1
        if self._told and not raises:
            return
        passes = [one for one in self._held if one.ran_backward]
        if overflow:
            passes = passes[-1:]
        step = self._steps[id(optimizer)] - (0 if overflow and self._without_step else 1)
        report = self._explained(overflow, optimizer, passes, step)
        if raises:
            if self._held:
                with held_signals(), torch.no_grad():
                    lost = self._buffers.restore(self._held[0].buffers)
                if lost:
                    report.add(f"The pass changed large buffers, which are not as before the step: {few(lost, _MOST_NAMES)}.")
            self._forget()
            self.error = report.error()
            raise self.error
        self.error = report.error()
        self.error.diagnosis = None  # it holds every activation of the step
        self._told = True
        what = "The step is skipped" if self._action == "skip" else "The training goes on"
        warnings.warn(f"{self.error}\n{what}; further steps are only counted.", NotFiniteWarning, stacklevel=4)

    @thread_left_as_found
    def _explained(self, overflow: str, optimizer: Optimizer, passes: list[_Pass], step: int) -> _Report:
        names = {id(one): name for name, one in self._model.named_parameters()}
        given = [one for group in optimizer.param_groups for one in group["params"]]
        try:
            wrong = [one for one in given if one.grad is not None and not _is_finite(one.grad)]
        except Exception as error:
            pass_interrupts_on(error)
            wrong = []
        report = _Report(
            step, tuple(names.get(id(one), "a parameter outside the model") for one in wrong), len(given), overflow
        )
        if not passes:
            report.add(self._why_unseen())
            return report
        self._is_replaying = True
        now = self._buffers.hold()
        try:
            self._find_place(report, passes, step)
        except Exception as trouble:
            pass_interrupts_on(trouble)
            report.add(f"The step could not be run again ({type(trouble).__name__}: {trouble}).")
        finally:
            self._is_replaying = False
            with held_signals(), torch.no_grad():
                self._buffers.restore(now)
        return report

    def _find_place(self, report: _Report, passes: list[_Pass], step: int) -> None:
        """Run the passes again until one says where NaN or infinity began."""
        not_held = False
        for number, one in enumerate(passes):
            if one.is_overwritten:
                report.add("An input was written to in place after the model got it, so the step ran again with other values.")
            ran = _run_again(self._model, one, self._buffers)
            found = _place(ran, one)
            not_held |= ran.is_part
            if found is None:
                continue
            among = f" (pass {number + 1} of {len(passes)} since the last step)" if len(passes) > 1 else ""
            report.place(found, ran, among)
            self._save(report, ran.history, step)
            return
        if self._trouble:
            report.add(f"The guard could not hold everything ({self._trouble}).")
        if self._dropped:
            report.add(
                f"{plural(self._dropped, 'pass')} of the step could not be held in {self._most:,} bytes: see max_bytes=."
            )
        if not_held:
            report.add(f"The gradient at an output is larger than {self._most:,} bytes and was not held: see max_bytes=.")
        if _world() > 1:
            report.add("Run again on this rank, everything is finite: the values came from another rank, which says where.")
        elif not (self._trouble or self._dropped or not_held):
            report.add("Run again, everything is finite: it began outside the forward and backward pass of this model.")

    def _save(self, report: _Report, history: ModelHistory, step: int) -> None:
        rank = f"_rank{torch.distributed.get_rank()}" if _world() > 1 else ""
        path = self.folder / f"step_{step:06d}{rank}.safetensors"
        try:
            make_folder(self.folder, "the history of the step")
            report.path = str(history.save(path))
        except Exception as trouble:
            pass_interrupts_on(trouble)
            report.add(f"Its history could not be saved ({type(trouble).__name__}: {trouble}).")

    def _why_unseen(self) -> str:
        if self._trouble:
            return f"The guard could not hold the step ({self._trouble})."
        if self._held:
            return "No gradient came to the outputs of the model."
        name = type(self._model).__name__
        return (
            f"The guard saw no forward pass of {name}, so it cannot say where. Give it the module that the training calls: "
            "of a compiled model, what torch.compile(model) returned, or the model after model.compile()."
        )


class _Report:
    """A `NotFinite` while it is written."""

    def __init__(self, step: int, parameters: tuple[str, ...], count: int, overflow: str) -> None:
        self.overflow = overflow
        self.path = ""
        self._facts: dict[str, Any] = {"step": step, "parameters": parameters}
        self._place = ""
        self._notes: list[str] = []
        if overflow:
            self._head = f"Step {step}: {overflow}."
        elif parameters:
            self._head = (
                f"Step {step}: the gradients of {len(parameters):,} of {plural(count, 'parameter')} are not finite "
                f"({few(parameters, _MOST_NAMES)})."
            )
        else:
            self._head = f"Step {step}: the gradients are finite, and the loss or a parameter is not."

    def add(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    def place(self, found: _Place, ran: _Ran, among: str) -> None:
        finding = found.finding
        self._facts |= {
            "phase": "overflow" if self.overflow else found.phase,
            "label": finding.label,
            "module": finding.module,
            "source": finding.source,
            "reason": finding.message,
            "operands": found.operands,
            "diagnosis": ran.diagnosis,
        }
        where = [
            finding.label,
            f"in {finding.module}" if finding.module else "",
            f"at {finding.source}" if finding.source else "",
        ]
        lines = [f"{_BEGINNINGS[found.phase]}{among}: {finding.message}."]
        if any(where):
            lines.append(f"  {', '.join(filter(None, where))}")
        lines += [f"  {words}" for words in found.operands]
        if finding.advice:
            lines.append(f"  {finding.advice}")
        self._place = "\n".join(lines)

    def error(self) -> NotFinite:
        kept = "Weights and optimizer are as before the step."
        saved = f"The step as a history: torcheer.load({self.path!r})." if self.path else ""
        error = NotFinite("\n".join(filter(None, (self._head, self._place, *self._notes, saved, kept))))
        for name, value in {**self._facts, "path": self.path}.items():
            setattr(error, name, value)
        return error


_BEGINNINGS: Final = {
    "forward": "It began in the forward pass",
    "backward": "It began in the backward pass",
    "loss": "It began in the loss, outside the model",
    "parameter": "An earlier step spoilt a parameter",
}


# Running the step again -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Ran:
    """A pass that was run again."""

    history: ModelHistory
    diagnosis: Diagnosis
    again: PassAgain
    is_part: bool  # a gradient is missing because it was too large to hold

    @property
    def last(self) -> list[int]:
        """The numbers of the outputs whose gradient came from outside the model."""
        return [number for number in self.again.gradients if number not in self.again.inner or number in self.again.added]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where NaN or infinity began."""

    phase: str
    finding: Finding
    operands: tuple[str, ...]


def _run_again(model: Module, one: _Pass, buffers: _Buffers) -> _Ran:
    """Run a pass again, logged. If the memory of the device does not hold all activations, they are kept on the CPU."""
    gradients = {number: output.gradient for number, output in enumerate(one.outputs) if output.has_gradient}
    history, again = _logged(model, one, buffers, gradients, {})
    added: dict[int, Tensor] = {}
    for number in again.inner:  # a gradient may come from outside the model, too
        held, came = gradients[number], again.arrived.get(number)
        if held is not None and came is not None and not _are_equal(held, came):
            added[number] = held - came
        elif held is not None and came is None:
            added[number] = held
    if added:
        history, again = _logged(model, one, buffers, gradients, added)
    is_part = any(gradients[number] is None for number in gradients if number not in again.inner)
    return _Ran(history, history.diagnose(), again, is_part)


def _are_equal(held: Tensor, came: Tensor) -> bool:
    """True if two gradients agree but for rounding."""
    largest = float(held.abs().nan_to_num(0.0, 0.0).max()) if held.numel() else 0.0
    return torch.allclose(held, came, rtol=1e-3, atol=1e-3 * largest, equal_nan=True)


def _logged(
    model: Module, one: _Pass, buffers: _Buffers, gradients: dict[int, Tensor | None], added: dict[int, Tensor]
) -> tuple[ModelHistory, PassAgain]:
    def run(**options: Any) -> tuple[ModelHistory, PassAgain]:
        with torch.no_grad():
            buffers.restore(one.buffers)
        again = PassAgain(model, gradients, added)
        with torch.enable_grad(), autocast_as(one.autocast), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the training said them already
            log = log_forward_pass(
                again, one.args, one.kwargs, random_state=one.random, save_gradients=True, unseen="ignore", **options
            )
        return log, again

    try:
        return run()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
    return run(output_device="cpu")


def _place(ran: _Ran, one: _Pass) -> _Place | None:
    """Where NaN or infinity began in a pass that was run again."""
    errors = ran.diagnosis.errors
    checkup = Checkup(run_of(ran.history).index)
    forward = next((error for error in errors if error.kind == "nonfinite"), None)
    if forward is not None and forward.numbers.get("began"):  # infinity began earlier than NaN
        began = ran.history[str(forward.numbers["began"])]
        forward = replace(forward, label=began.label, module=began.containing_module or "", source=began.source)
    if forward is not None:
        return _Place("forward" if forward.label else "parameter", forward, _operands(ran.history, checkup, forward))
    outside = next((number for number in ran.last if one.outputs[number].is_spoilt), None)
    if outside is not None:
        return _Place("loss", _loss_finding(ran, checkup, one, outside), ())
    backward = next((error for error in errors if error.kind == "nonfinite gradient"), None)
    if backward is not None:
        return _Place("backward", backward, _operands(ran.history, checkup, backward))
    return None


def _loss_finding(ran: _Ran, checkup: Checkup, one: _Pass, output: int) -> Finding:
    """What is known of a loss outside the model: the gradient that arrived, and the output there."""
    position = list(ran.again.gradients).index(output)
    number = run_of(ran.history).index.of_origin(Origin.OUTPUT)[position]
    gradient, value = one.outputs[output].gradient, checkup.value(number)
    words = f"the gradient that arrives at {checkup.label(number)} is not finite, while the model's own values are"
    if gradient is not None:
        wrong = ~gradient.isfinite()
        count = int(wrong.sum())
        words = (
            f"{count:,} of {gradient.numel():,} values of the gradient that arrives at {checkup.label(number)} are not "
            "finite, while the model's own values are"
        )
        if value is not None and value.shape == gradient.shape:
            there, everywhere = read(value[wrong]), read(value)
            if there is not None and everywhere is not None:
                words += f"; the output is {_range(everywhere)}"
                words += f", and {_range(there)} where its gradient is not finite" if count < gradient.numel() else ""
    advice = (
        "Look at the loss and its targets: log or division of 0, sqrt at 0, NaN in the targets, a mean of nothing, an overflow."
    )
    return checkup.find("nonfinite gradient", "error", words, number, advice=advice)


def _operands(history: ModelHistory, checkup: Checkup, finding: Finding) -> tuple[str, ...]:
    """What an operation was given, a line for each tensor."""
    if not finding.label:
        return ()
    number = history[finding.label].number
    found = []
    for slot, parent in enumerate(checkup.record(number).parents[:_OPERANDS]):
        value, reading = checkup.argument(number, slot), checkup.argument_reading(number, slot)
        shape = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" if value is not None else "values not kept"
        found.append(f"{checkup.label(parent)}: {shape}{f', {_range(reading)}' if reading is not None else ''}")
    return tuple(found)


def _range(reading: Reading) -> str:
    """The values of a tensor in words: `-0.2 to 3.1`, `0, 3 NaN`."""
    finite = reading.count - reading.nonfinite
    words = []
    if finite:
        same = reading.low == reading.high
        words.append(amount(reading.low) if same else f"{amount(reading.low)} to {amount(reading.high)}")
    if reading.nan:
        words.append(f"{reading.nan:,} NaN")
    if reading.infinite:
        words.append(f"{reading.infinite:,} infinite")
    return ", ".join(words) or "empty"


# Tensors --------------------------------------------------------------------------------------------------------------


def _values(tensor: Tensor) -> Tensor | None:
    """The values of a gradient that this process holds; None if there are none."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # a DTensor
        tensor = tensor.to_local()
    if tensor.layout is torch.sparse_coo:
        tensor = sparse_parts(tensor)[1]
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    usable = tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()) and tensor.device.type != "meta"
    return tensor if usable else None


def _are_finite(values: list[Tensor], order: float, meshes: list[Any]) -> bool:
    """Whether the norms of all values are finite, on all processes that share them. Waits for the device once."""
    groups: dict[Any, list[Tensor]] = {}
    for one in values:
        groups.setdefault((one.device, one.dtype), []).append(one)
    wrong = [(~torch.stack(norms_of(group, order)).isfinite()).any() for group in groups.values()]
    if not wrong and not meshes:
        return True
    device = values[0].device if values else torch.device(meshes[0].device_type)
    found = torch.zeros((), dtype=torch.int32, device=device)
    for one in wrong:
        found |= one.to(device)
    for mesh in meshes:
        for dim in range(mesh.ndim):
            torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX, group=mesh.get_group(dim))
    return not bool(found)


def _is_finite(tensor: Tensor) -> bool:
    values = _values(tensor)
    return values is None or bool(values.isfinite().all())


def _held_input(copies: bool, tensor: Tensor) -> Tensor:
    """An input without the graph before it, which would be held, too."""
    if copies:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return tensor.detach().requires_grad_() if tensor.grad_fn is not None else tensor


def _world() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def _called_module(model: Module) -> Module:
    """The module to watch: replicas of `DataParallel` do not count, and the inside of a compiled model has no hooks."""
    while isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer inside a wrapper, such as accelerate's."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer) and hasattr(optimizer, "param_groups"):
        optimizer = inner
    return optimizer


def _check_arguments(
    model: Any, optimizers: tuple[Any, ...], action: Any, patience: Any, scaler: Any, folder: Any, first_step: Any, most: Any
) -> None:
    if not isinstance(model, Module):
        raise InvalidArgument(f"guard(model, optimizer) takes the module that is trained; got {type(model).__name__}.")
    if not optimizers:
        raise InvalidArgument("guard(model, optimizer) needs the optimizer: it checks gradients before the optimizer writes.")
    for one in optimizers:
        if not isinstance(one, Optimizer):
            raise InvalidArgument(
                f"guard(model, optimizer) takes optimizers of torch.optim; got {type(one).__name__}. Options have "
                "names, such as action='skip'."
            )
        if isinstance(one, torch.optim.LBFGS):
            raise InvalidArgument(
                "guard() cannot watch LBFGS, which writes weights between its evaluations: the step cannot be stopped before. "
                "Check the loss in its closure."
            )
    if any(type(one).__name__ == "FullyShardedDataParallel" for one in model.modules()):
        raise InvalidArgument("guard() cannot watch FullyShardedDataParallel; use torch.distributed.fsdp.fully_shard.")
    if action not in get_args(Action):
        raise InvalidArgument(f"action is one of {', '.join(map(repr, get_args(Action)))}; got {action!r}.")
    for name, value, least in (("patience", patience, 1), ("first_step", first_step, 0), ("max_bytes", most, 0)):
        if not is_whole(value, least):
            raise InvalidArgument(f"{name} is a whole number of at least {least}; got {value!r}.")
    if scaler is not None and not all(hasattr(scaler, one) for one in ("get_scale", "get_backoff_factor", "is_enabled")):
        raise InvalidArgument(f"scaler is the torch.amp.GradScaler of the training; got {type(scaler).__name__}.")
    if not isinstance(folder, (str, os.PathLike)):
        raise InvalidArgument(f"folder says where the history of a step is saved; got {folder!r:.80}.")


# Callbacks ------------------------------------------------------------------------------------------------------------


class _Guarding:
    """The common part of the callbacks: a guard from the beginning of a training to its end."""

    def __init__(self, **options: Any) -> None:
        known = [name for name in inspect.signature(guard).parameters if name not in ("model", "optimizers")]
        check_names(options, known, f"{type(self).__name__} takes")
        self.options = options
        self.guard: guard | None = None  # from the beginning of a training on, also after its end

    def _begin(self, model: Module, optimizers: Iterable[Any], **facts: Any) -> None:
        self.close()
        self.guard = guard(model, *optimizers, **{**facts, **self.options})

    def close(self) -> None:
        """Stop watching. The end of a training does this."""
        if self.guard is not None:
            self.guard.close()


class _LightningHooks(_Guarding):
    """Guards `trainer.fit` of Lightning: `Trainer(callbacks=[LightningGuard()])`.

    Args:
        module: the network inside the LightningModule that the training calls, such as `"net"`; by default the LightningModule
            itself, by its `forward`.
        options: as those of `guard`. Optimizers and the gradient scaler are the trainer's.
    """

    def __init__(self, *, module: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.module = module

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        try:
            model = pl_module.get_submodule(self.module)
        except AttributeError as error:
            inside = [name for name, _ in pl_module.named_children()]
            raise InvalidArgument(
                f"module={self.module!r} is not in {type(pl_module).__name__}, which has {inside}."
            ) from error
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._begin(model, trainer.optimizers, scaler=scaler, first_step=trainer.global_step)

    def on_train_end(self, *given: Any, **named: Any) -> None:
        self.close()

    on_exception = teardown = on_train_end


class _TrainerHooks(_Guarding):
    """Guards `trainer.train()` of the Trainer of Hugging Face: `Trainer(…, callbacks=[TrainerGuard()])`.

    Args:
        options: as those of `guard`. The optimizer and the gradient scaler are the trainer's.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        wrapped = others.get("optimizer")
        optimizer = getattr(wrapped, "optimizer", wrapped)  # accelerate wraps it
        self._begin(others["model"], [optimizer], scaler=getattr(wrapped, "scaler", None), first_step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.close()


def __getattr__(name: str) -> Any:
    hooks = {"LightningGuard": _LightningHooks, "TrainerGuard": _TrainerHooks}.get(name)
    if hooks is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return callback_class(name, hooks, __name__)
