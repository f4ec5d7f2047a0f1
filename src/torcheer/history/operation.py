"""An operation's place in the graph: parents, children, modules, and its distance from inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._text import Fold, preformatted
from .._torch.containers import format_path
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from .._torch.measure import computes
from .._torch.memory import is_freed
from .._torch.shapes import shape_of
from .._torch.source_code import SourceLine, source_of, stack_of
from ..errors import ActivationLost, ActivationNotSaved, GradientNotSaved
from ..log.records import UNSAVED, ModuleCall, OperationRecord
from ..log.templates import fill_call, slot_paths
from .attention import Heads, heads_of
from .attributes import Helpful
from .index import Index
from .lookup import Lookup
from .param import Param, describe_param
from .printing import describe_freed, describe_operation, describe_values
from .read_as_tensor import ReadAsTensor

if TYPE_CHECKING:
    from .call import Call
    from .layer import Layer
    from .module import Module


_NO_PATH = (None, None)


class Standing:
    """An operation of a history, by its number, and its place among the others. `Operation` is built on it."""

    __slots__ = ("_index", "_number")

    def __init__(self, index: Index, number: int) -> None:
        self._index = index
        self._number = number

    @property
    def _record(self) -> OperationRecord:
        return self._index.log.operations[self._number]

    @property
    def number(self) -> int:
        """Its number in the recording, by which the nodes of a graph name the `operations` they stand for."""
        return self._number

    # Neighbours -------------------------------------------------------------------------------------------------

    def _labels(self, numbers: list[int]) -> list[str]:
        return list(dict.fromkeys(self._index.label(n) for n in numbers))

    @property
    def parent_layers(self) -> list[str]:
        """The labels of the operations this one used."""
        return self._labels(self._index.parents(self._number))

    @property
    def child_layers(self) -> list[str]:
        """The labels of the operations that used this one."""
        return self._labels(self._index.children.get(self._number, []))

    @property
    def sibling_layers(self) -> list[str]:
        """The labels of the other operations that share a parent with this one."""
        found = [c for p in self._index.parents(self._number) for c in self._index.children[p] if c != self._number]
        return self._labels(sorted(set(found)))

    @property
    def same_call_layers(self) -> list[str]:
        """The labels of all tensors the same call returned, this one included."""
        call, operations = self._record.call, self._index.log.operations
        made = takewhile(lambda number: operations[number].call == call, range(call, len(operations)))
        return self._labels([number for number in made if self._index.table.shows(number)])

    @property
    def parent_arg_positions(self) -> dict[str, str]:
        """Which argument each parent came through: `{'args[0]': 'relu_1_2'}`; nested positions are spelled out."""
        record = self._record
        found: dict[str, str] = {}
        for path, reference in zip(slot_paths(record.args, record.kwargs), record.parents, strict=False):
            if self._index.table.shows(reference):
                found[format_path(path, "kwargs" if isinstance(path[0], str) else "args")] = self._index.label(reference)
        return found

    # Modules ----------------------------------------------------------------------------------------------------

    def _around(self) -> list[ModuleCall]:
        module = self._record.module
        return [call for call in module.stack() if call.address] if module is not None else []

    @property
    def module(self) -> Module | None:
        """The innermost module this ran in, with `.address`; the model itself in its own forward; None in no module."""
        call = self._record.module
        return self._index.makers.module(self._index, self._index.log.registered[call.address]) if call is not None else None

    @property
    def module_call(self) -> Call | None:
        """The innermost module call this ran in; that of the model itself in its own forward; None in no module."""
        call, module = self._record.module, self.module
        return module[call.call] if call is not None and module is not None else None

    @property
    def containing_module(self) -> str | None:
        """The address of the innermost module this ran in; None in the model's own forward."""
        around = self._around()
        return around[-1].address if around else None

    @property
    def containing_modules(self) -> list[str]:
        """The modules this ran in, outermost first, each with its call: `features:1`."""
        return [f"{call.address}:{call.call}" for call in self._around()]

    @property
    def modules_entered(self) -> list[str]:
        """The module calls this tensor was an input of."""
        return [f"{c.address}:{c.call}" for c in self._index.entries.get(self._number, ()) if c.address]

    @property
    def modules_exited(self) -> list[str]:
        """The module calls this tensor was an output of, innermost first."""
        return [f"{c.address}:{c.call}" for c in self._index.exits.get(self._number, ()) if c.address]

    @property
    def bottom_level_module(self) -> str | None:
        """The module call that ran this operation and no other, and returned it."""
        for call in self._index.exits.get(self._number, ()):
            if call.address and self._index.call_counts.is_alone(self._number, call):
                return call.address
        return None

    @property
    def is_bottom_level_module_output(self) -> bool:
        return self.bottom_level_module is not None

    # Where it stands --------------------------------------------------------------------------------------------

    @property
    def origin(self) -> str:
        """How the tensor came to be: `input`, `operation`, `opaque`, `alias`, `source` or `output`."""
        return self._record.origin.value

    @property
    def is_input_layer(self) -> bool:
        return self._record.origin is Origin.INPUT

    @property
    def is_output_layer(self) -> bool:
        return self._record.origin is Origin.OUTPUT

    @property
    def has_input_ancestor(self) -> bool:
        return bool(self._index.from_input[self._number])

    @property
    def is_output_ancestor(self) -> bool:
        return bool(self._index.to_output[self._number])

    @property
    def initialized_inside_model(self) -> bool:
        """Whether the model made the tensor from no other tensor."""
        return not self.is_input_layer and not self._record.dependencies

    @property
    def min_distance_from_input(self) -> int | None:
        return self._index.distances_from_input.get(self._number, _NO_PATH)[0]

    @property
    def max_distance_from_input(self) -> int | None:
        return self._index.distances_from_input.get(self._number, _NO_PATH)[1]

    @property
    def min_distance_from_output(self) -> int | None:
        return self._index.distances_to_output.get(self._number, _NO_PATH)[0]

    @property
    def max_distance_from_output(self) -> int | None:
        return self._index.distances_to_output.get(self._number, _NO_PATH)[1]

    @property
    def io_role(self) -> str:
        """Where an input was given, what a source is called, or where an output was returned."""
        log = self._index.log
        if self.is_input_layer:
            paths = log.input_paths.get(self._number, [])
            return ", ".join(format_path(path[1:], path[0]) for path in paths if path)
        if self.is_output_layer:
            return format_path(self._record.details.output_path, "output")
        return log.source_names.get(self._number, "")


# Operation: one execution of a function that yielded a tensor.


class Operation(Standing, ReadAsTensor, Helpful):
    """One execution of a function that yielded a tensor.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.ReLU(), torch.zeros(2))
    >>> history["relu_1_1:1"].tensor_shape
    (2,)
    """

    __slots__ = ()

    @property
    def _key(self) -> str:
        return self.layer_label_w_pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and other._index.log is self._index.log and other._number == self._number

    def __hash__(self) -> int:
        return hash((id(self._index.log), self._number))

    # Labels and numbers -----------------------------------------------------------------------------------------

    @property
    def layer_label(self) -> str:
        """The label of the layer: `conv2d_3_7`."""
        return self._index.layer_label(self._number)

    @property
    def label(self) -> str:
        """The label of this operation: its layer's, and the pass when there are several."""
        return self._index.label(self._number)

    @property
    def layer_label_w_pass(self) -> str:
        """The label with its pass, always: `conv2d_3_7:1`."""
        return f"{self.layer_label}:{self.pass_num}"

    @property
    def layer_label_short(self) -> str:
        """The label without the overall number: `conv2d_3`."""
        return self._index.layer(self._number).short_label

    @property
    def layer_type(self) -> str:
        """The function's name as labels spell it: `maxpool2d`."""
        return self._record.function.type

    @property
    def layer_number(self) -> int:
        """The position of the layer among all layers, from 0."""
        return self._index.layer(self._number).number

    @property
    def operation_num(self) -> int:
        """The position of this operation among all operations, from 1."""
        return self._index.positions[self._number] + 1

    @property
    def pass_num(self) -> int:
        """Which pass of its layer this is, from 1."""
        return self._index.table.pass_number(self._number)

    @property
    def num_passes(self) -> int:
        """How often the layer ran."""
        return len(self._index.layer(self._number).passes)

    @property
    def layer(self) -> Layer:
        """The layer this operation is a pass of."""
        return self._index.makers.layer(self._index, self._index.layer(self._number))

    @property
    def lookup_keys(self) -> list[int | str]:
        """Every key that finds this operation."""
        return Lookup(self._index).keys_of(self._number)

    # The tensor -------------------------------------------------------------------------------------------------

    @property
    def has_saved_activations(self) -> bool:
        """Whether the tensor was kept."""
        return self._record.is_saved

    @property
    def tensor_contents(self) -> Any:
        """The tensor this operation yielded (or what `activation_postfunc` made of it)."""
        record = self._record
        if record.value is UNSAVED:
            raise ActivationNotSaved(
                self._cleared(f"the activation of {self.label}")
                or f"the activation of {self.label} was not saved. Log again with layers_to_save='all', or with "
                f"{self.layer_label!r} in the list."
            )
        log = self._index.log
        if is_freed(record.value) and not (log.is_complete and self._number in log.overwritten()):
            raise ActivationLost(describe_freed(f"the activation of {self.label}"))
        if log.is_lost(self._number):
            raise ActivationLost(
                f"the activation of {self.label} ({self.func_applied_name}, {self.source}) was overwritten by something that "
                "could not be seen, such as a compiled extension, so its value is gone."
            )
        return record.value

    def _cleared(self, what: str) -> str:
        """A sentence for errors if activations were cleared; otherwise empty."""
        if not self._index.log.is_cleared:
            return ""
        return f"{what} was cleared by history.clear_activations(). Log again, or call history.save_new_activations(model, x)."

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self._record.shape

    @property
    def tensor_dtype(self) -> torch.dtype:
        """The dtype of the tensor."""
        return self._record.dtype

    @property
    def tensor_device(self) -> torch.device:
        """The device the tensor was computed on."""
        return self._record.device

    @property
    def tensor_fsize(self) -> int:
        """The size of the tensor in bytes."""
        return self._index.tensor_bytes(self._number)

    # The gradient -------------------------------------------------------------------------------------------------

    @property
    def _made_by(self) -> int:
        """The operation that made the tensor, which an output only hands on."""
        return self._record.parents[0] if self.is_output_layer else self._number

    @property
    def grads(self) -> list[Tensor]:
        """The gradients at this operation's output, one for each backward pass that reached it."""
        backward = self._index.log.backward
        found = [one.gradient(self._made_by) for one in backward.passes] if backward is not None else []
        return [gradient for gradient in found if gradient is not None]

    @property
    def grad_contents(self) -> Tensor | None:
        """The gradient at this operation's output in the last backward pass that reached it; None where there is none."""
        grads = self.grads
        return grads[-1] if grads else None

    @property
    def grad_shape(self) -> tuple[int, ...] | None:
        gradient = self.grad_contents
        return shape_of(gradient) if gradient is not None else None

    @property
    def grad_dtype(self) -> torch.dtype | None:
        gradient = self.grad_contents
        return gradient.dtype if gradient is not None else None

    @property
    def grad_fsize(self) -> int | None:
        """The size of the gradient in bytes; None where there is none."""
        gradient = self.grad_contents
        return gradient.numel() * gradient.element_size() if gradient is not None else None

    @property
    def grad_nonfinite(self) -> int | None:
        """How many values of the gradient are not finite; None where there is no gradient, or one without values."""
        gradient = self.grad_contents
        if gradient is None or not computes(gradient):
            return None
        with DisableTorchFunction():
            whole = gradient.coalesce().values() if gradient.is_sparse else gradient
            parts = whole.unbind() if whole.is_nested else (whole,)
            return sum(int((~torch.isfinite(part)).sum()) for part in parts)

    # The call ---------------------------------------------------------------------------------------------------

    @property
    def func_applied(self) -> Callable[..., object] | None:
        """The function that ran; None for inputs, outputs and code that could not be watched."""
        return self._record.function.func

    @property
    def func_applied_name(self) -> str:
        return self._record.function.name

    @property
    def started(self) -> float | None:
        """When the function was called, in seconds on `time.perf_counter`; None where nothing was called."""
        return self._record.started / 1e9 if self._record.started else None

    @property
    def func_time_elapsed(self) -> float | None:
        """Seconds the function took; None where it ran in code that cannot be watched."""
        return self._record.elapsed / 1e9 if self._record.is_timed else None

    @property
    def creation_args(self) -> tuple[Any, ...]:
        """The positional arguments of the call, with the tensors as they were.

        Parameters belong to the model: if one was changed since, this raises `ParameterChanged`. Writes that torch does not
        count, such as those of fused optimizers or through `.data`, are found by comparing elements: all those of a tensor of
        up to 4 KiB, a sample of a larger one. A write through `.data` to other elements than those is not found.
        """
        return self._arguments()[0]

    @property
    def creation_kwargs(self) -> dict[str, Any]:
        """The named arguments of the call, with the tensors as they were."""
        return self._arguments()[1]

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return fill_call(self._record.template, self._record.names, iter(self.inputs))

    def _argument(self, slot: int) -> Any:
        record = self._record
        held, reference = record.details.held or {}, record.parents[slot]
        if slot in held:
            value = held[slot].value
        elif reference < 0:
            value = self._index.state_value(reference, self.label)
        else:
            value = self._index.record(reference).value
            if not self._index.log.holds_tensors or value is UNSAVED or not record.is_saved:
                raise ActivationNotSaved(
                    self._cleared(f"what {self.label} was given")
                    or f"the arguments of {self.label} were not saved. They are kept with its activation: log again with "
                    f"layers_to_save='all' (or with {self.label!r} in the list), and without activation_postfunc."
                )
        if is_freed(value):
            raise ActivationLost(describe_freed(f"argument {slot} of {self.label}"))
        return value

    @property
    def is_inplace(self) -> bool:
        """Whether the function wrote its result into one of its arguments."""
        return self._record.overwritten is not None

    @property
    def heads(self) -> Heads | None:
        """Queries, keys, values, outputs and the pattern of each head, where the operation is attention; else None."""
        return heads_of(self)

    @property
    def changed_by(self) -> str | None:
        """The change in words, where `intervene` or a replay with `changes` replaced the value; else None."""
        return self._record.details.changed or None

    @property
    def output_path(self) -> str:
        """Where in the result of the function this tensor was: `[0]` of a call that returned a tuple."""
        return format_path(self._record.details.output_path)

    @property
    def composite(self) -> str | None:
        """The function around this operation that was opened, such as `multi_head_attention_forward`."""
        composite = self._record.details.composite
        return composite.name if composite is not None else None

    @property
    def source(self) -> SourceLine | None:
        """The line of the program (not of torch) that this operation ran for."""
        return source_of(self._record.site, self._record.module)

    @property
    def stack(self) -> list[SourceLine]:
        """The call stack, outermost first."""
        return stack_of(self._record.site, self._record.module)

    @property
    def gradfunc(self) -> str | None:
        """The name of the autograd node, when gradients were being followed."""
        return self._record.gradfunc

    # Parameters -------------------------------------------------------------------------------------------------

    @property
    def parent_params(self) -> list[Param]:
        """The parameters this operation used, with names, shapes and sizes."""
        return [param for param in self._states() if not param.is_buffer]

    @property
    def parent_buffers(self) -> list[Param]:
        """The buffers this operation used."""
        return [param for param in self._states() if param.is_buffer]

    def _states(self) -> list[Param]:
        behind = [self._index.state_behind(reference) for reference in self._record.parents]
        states = dict.fromkeys(state for state in behind if state is not None)
        return [describe_param(self._index, self._index.state_name(state), state.tensor) for state in states]

    @property
    def num_params(self) -> int:
        """How many parameter values this operation used."""
        return sum(param.numel for param in self.parent_params)

    @property
    def parent_params_fsize(self) -> int:
        """The bytes of the parameters this operation used."""
        return sum(param.fsize for param in self.parent_params)

    # Short names -------------------------------------------------------------------------------------------------

    name = label
    shape = tensor_shape
    dtype = tensor_dtype
    device = tensor_device
    activation = tensor_contents
    params = parent_params

    @property
    def grad(self) -> Tensor | None:
        """`grad_contents`; raises where the gradient was not asked for, or no backward pass ran."""
        backward = self._index.log.backward
        if backward is None:
            raise GradientNotSaved(
                f"the gradient of {self.label} was not asked for. Log again with save_gradients=True, then run "
                "history.log_backward(loss) or loss.backward()."
            )
        if not backward.wants(self._number) and not backward.wants(self._made_by):
            raise GradientNotSaved(
                f"the gradient of {self.label} was not asked for. Log again with save_gradients=True, or with "
                f"{self.layer_label!r} in the list."
            )
        if self._index.log.is_cleared:
            raise GradientNotSaved(self._cleared(f"the gradient of {self.label}"))
        if not backward.passes:
            raise GradientNotSaved(
                f"there is no gradient of {self.label} yet, since no backward pass ran: compute a loss from "
                "history.outputs[0].activation, then run history.log_backward(loss) or loss.backward()."
            )
        return self.grad_contents

    @property
    def parents(self) -> list[Operation]:
        """The operations this one used."""
        return [Operation(self._index, number) for number in self._index.parents(self._number)]

    @property
    def children(self) -> list[Operation]:
        """The operations that used this one."""
        return [Operation(self._index, number) for number in self._index.children.get(self._number, ())]

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among the arguments of the call, in order, parameters included."""
        return [self._argument(slot) for slot in range(len(self._record.parents))]

    @property
    def flops(self) -> int | None:
        """The floating-point operations of the call, counted as docs/cost.md says; None where no formula is known."""
        return self._index.flops.get(self._number, 0)

    def __str__(self) -> str:
        return describe_operation(self)

    def _folds(self) -> list[Fold]:
        values = describe_values(self)
        stack = "\n".join(map(str, self.stack))
        return [Fold(title, preformatted(text)) for title, text in (("Values", values), ("Call stack", stack)) if text]

    def __repr__(self) -> str:
        dtype = str(self.tensor_dtype).removeprefix("torch.")
        return f"<Operation {self.label}: {dtype} {self.tensor_shape}>"
