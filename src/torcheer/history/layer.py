"""What a user holds of one step: `Operation` is one execution, `Layer` the same step across repeated execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..capture.callsite import SourceLine, source_of, stack_of
from ..containers import fill_call, format_path, slot_paths
from ..errors import ActivationLost, ActivationNotSaved, SeveralPasses
from ..records import UNSAVED, ModuleCall, OperationRecord, Origin
from ..tensor_memory import is_freed
from .index import Index
from .labels import LayerEntry
from .lookup import Lookup
from .param import Param, describe_param
from .text import describe_layer, describe_operation


def freed_text(what: str) -> str:
    """Says that a kept tensor is gone with its memory."""
    return (
        f"the memory of {what} was freed (its storage was resized) before it could be copied, so its value is gone. FSDP does "
        "this with parameters after each layer. Log the model without it to see the value."
    )


class Operation:
    """One execution of a function that yielded a tensor.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.ReLU(), torch.zeros(2))
    >>> history["relu_1_1:1"].tensor_shape
    (2,)
    """

    __slots__ = ("_index", "_number")

    def __init__(self, index: Index, number: int) -> None:
        self._index = index
        self._number = number

    @property
    def _record(self) -> OperationRecord:
        return self._index.log.operations[self._number]

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
        return Layer(self._index, self._index.layer(self._number))

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
                f"the activation of {self.label} was not saved. Log again with layers_to_save='all', or with "
                f"{self.layer_label!r} in the list."
            )
        if is_freed(record.value):
            raise ActivationLost(freed_text(f"the activation of {self.label}"))
        if self._index.log.is_lost(self._number):
            raise ActivationLost(
                f"the activation of {self.label} ({self.func_applied_name}, {self.source}) was overwritten by something that "
                "could not be seen, such as a compiled extension, so its value is gone."
            )
        return record.value

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        return self._record.shape

    @property
    def tensor_dtype(self) -> torch.dtype:
        return self._record.dtype

    @property
    def tensor_device(self) -> torch.device:
        return self._record.device

    @property
    def tensor_fsize(self) -> int:
        """The size of the tensor in bytes."""
        return self._index.tensor_bytes(self._number)

    # The gradient -------------------------------------------------------------------------------------------------

    @property
    def grads(self) -> list[Tensor]:
        """The gradients at this operation's output, one for each backward pass that reached it."""
        backward = self._index.log.backward
        number = self._record.parents[0] if self.is_output_layer else self._number  # the tensor some operation made
        found = [one.gradient(number) for one in backward.passes] if backward is not None else []
        return [gradient for gradient in found if gradient is not None]

    @property
    def grad_contents(self) -> Tensor | None:
        """The gradient at this operation's output in the last backward pass that reached it; None where there is none."""
        grads = self.grads
        return grads[-1] if grads else None

    @property
    def grad_shape(self) -> tuple[int, ...] | None:
        gradient = self.grad_contents
        return tuple(gradient.shape) if gradient is not None else None

    @property
    def grad_dtype(self) -> torch.dtype | None:
        gradient = self.grad_contents
        return gradient.dtype if gradient is not None else None

    @property
    def grad_fsize(self) -> int:
        """The size of the gradient in bytes; 0 where there is none."""
        gradient = self.grad_contents
        return gradient.numel() * gradient.element_size() if gradient is not None else 0

    @property
    def grad_nonfinite(self) -> int:
        """How many values of the gradient are not finite."""
        gradient = self.grad_contents
        if gradient is None:
            return 0
        with torch._C.DisableTorchFunction():
            whole = gradient.coalesce().values() if gradient.is_sparse else gradient
            parts = whole.unbind() if whole.is_nested else (whole,)
            return sum(int((~torch.isfinite(part)).sum()) for part in parts)

    # The call ---------------------------------------------------------------------------------------------------

    @property
    def func_applied(self) -> Callable[..., Any] | None:
        """The function that ran; None for inputs, outputs and what could not be watched."""
        return self._record.function.func

    @property
    def func_applied_name(self) -> str:
        return self._record.function.name

    @property
    def func_time_elapsed(self) -> float:
        """Seconds the function took."""
        return self._record.elapsed / 1e9

    @property
    def creation_args(self) -> tuple[Any, ...]:
        """The positional arguments of the call, with the tensors as they were."""
        return self._arguments()[0]

    @property
    def creation_kwargs(self) -> dict[str, Any]:
        """The named arguments of the call, with the tensors as they were."""
        return self._arguments()[1]

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        record = self._record
        tensors = iter([self._argument(slot) for slot in range(len(record.parents))])
        return fill_call(record.template, record.names, tensors)

    def _argument(self, slot: int) -> Any:
        value = self._kept_argument(slot)
        if is_freed(value):
            raise ActivationLost(freed_text(f"argument {slot} of {self.label}"))
        return value

    def _kept_argument(self, slot: int) -> Any:
        record = self._record
        held = record.details.held or {}
        if slot in held:
            return held[slot].value
        reference = record.parents[slot]
        if reference < 0:
            return self._index.state(reference).value
        source = self._index.record(reference)
        if not self._index.log.holds_tensors or source.value is UNSAVED or not record.is_saved:
            raise ActivationNotSaved(
                f"the arguments of {self.label} were not saved: they are kept with every kept activation, as they are "
                "(without activation_postfunc)."
            )
        return source.value

    @property
    def is_inplace(self) -> bool:
        """Whether the function wrote its result into one of its arguments."""
        return self._record.overwritten is not None

    @property
    def output_path(self) -> str:
        """Where this tensor was in what the function returned: `[0]` of a call that returned a tuple."""
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
        call = self._record.call
        operations = self._index.log.operations
        found = []
        for number in range(call, len(operations)):
            if operations[number].call != call:
                break
            found.append(number)
        return self._labels([n for n in found if self._index.table.shows(n)])

    @property
    def parent_arg_positions(self) -> dict[str, str]:
        """Which argument each parent came through: `{'args[0]': 'relu_1_2'}`; nested positions are spelled out."""
        record = self._record
        found: dict[str, str] = {}
        for path, reference in zip(slot_paths(record.args, record.kwargs), record.parents, strict=False):
            if self._index.table.shows(reference):
                found[format_path(path, "kwargs" if isinstance(path[0], str) else "args")] = self._index.label(reference)
        return found

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

    # Modules ----------------------------------------------------------------------------------------------------

    def _around(self) -> list[ModuleCall]:
        module = self._record.module
        return [call for call in module.stack() if call.address] if module is not None else []

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
        """Whether the tensor was born inside the model, from no other tensor."""
        return not self.is_input_layer and not self._record.dependencies

    @property
    def min_distance_from_input(self) -> int | None:
        return self._distance(0, to_output=False)

    @property
    def max_distance_from_input(self) -> int | None:
        return self._distance(1, to_output=False)

    @property
    def min_distance_from_output(self) -> int | None:
        return self._distance(0, to_output=True)

    @property
    def max_distance_from_output(self) -> int | None:
        return self._distance(1, to_output=True)

    def _distance(self, which: int, *, to_output: bool) -> int | None:
        both = self._index.distances(to_output=to_output).get(self._number)
        return both[which] if both is not None else None

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

    def __str__(self) -> str:
        return describe_operation(self)

    def __repr__(self) -> str:
        dtype = str(self.tensor_dtype).removeprefix("torch.")
        return f"<Operation {self.label}: {dtype} {self.tensor_shape}>"


class Layer:
    """The same computational step across repeated execution: one or more passes, each an `Operation`.

    A layer answers whatever is common to its passes; for what is not, it says which labels to use.
    """

    __slots__ = ("_entry", "_index")

    def __init__(self, index: Index, entry: LayerEntry) -> None:
        self._index = index
        self._entry = entry

    @property
    def passes(self) -> list[Operation]:
        """The operations of this layer, in order."""
        return [Operation(self._index, number) for number in self._entry.passes]

    @property
    def num_passes(self) -> int:
        return len(self._entry.passes)

    @property
    def label(self) -> str:
        """The layer's label: `conv2d_3_7`."""
        return self._index.table.label(self._entry)

    @property
    def lookup_keys(self) -> list[int | str]:
        """Every key that finds this layer."""
        return Lookup(self._index).keys_of_layer(self._entry)

    def __getitem__(self, number: int) -> Operation:
        """Pass `number`, from 1 as in labels."""
        if not 1 <= number <= self.num_passes:
            raise IndexError(f"{self.label} has passes 1 to {self.num_passes}; there is no pass {number}.")
        return Operation(self._index, self._entry.passes[number - 1])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Operation, name):
            raise AttributeError(f"a Layer has no attribute {name!r}")
        values = [getattr(one, name) for one in self.passes]
        if len(values) == 1 or all(_same(value, values[0]) for value in values[1:]):
            return values[0]
        labels = ", ".join(one.label for one in self.passes[:4]) + (", …" if len(values) > 4 else "")
        raise SeveralPasses(f"{name} differs between the {len(values)} passes of {self.label}: ask one of them ({labels}).")

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *(n for n in dir(Operation) if not n.startswith("_"))})

    @property
    def _key(self) -> str:
        return self.label

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layer) and other._index.log is self._index.log and other._entry.passes == self._entry.passes

    def __hash__(self) -> int:
        return hash((id(self._index.log), self._entry.passes[0]))

    def __str__(self) -> str:
        return describe_layer(self)

    def __repr__(self) -> str:
        return f"<Layer {self.label}: {self.num_passes} pass{'es' if self.num_passes > 1 else ''}>"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    try:
        return bool(one == other)
    except Exception:  # whatever a stranger's __eq__ may raise
        return False
