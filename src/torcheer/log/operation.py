"""Declares every fact about one operation that can be read from the log: labels, tensor, gradient, call, neighbours, modules.

Each fact is declared once, as a property of `OperationFacts`: its name, type, docstring, and how it is read from the log. The
decorator `shown` says where it is shown. These are generated from the declarations: the attributes of `Layer` (if all passes
agree), the columns of `to_pandas` and `to_csv`, the rows of `print(operation)`, the values in a graph's nodes, the keys of a
node in the page's data with their types and documentation, the rows of the page's panel, and docs/attributes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._torch.containers import format_path
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from .._torch.measure import computes
from .._torch.memory import is_freed
from .._torch.shapes import bytes_of, shape_of
from .._torch.source_code import SourceLine, source_of, stack_of
from ..errors import ActivationLost, ActivationNotSaved, GradientNotSaved
from .keys import Lookup
from .param import Param, describe_param
from .records import UNSAVED, Facts, ModuleCall, OperationRecord
from .run import Index, LayerEntry
from .templates import fill_call, slot_paths

_NO_PATH = (None, None)
_Read = TypeVar("_Read", bound=Callable[..., Any])


ALWAYS = object()  # the default of keys that are never left out


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A row in the page's panel of an operation. `format` is the name of a function in web/graph/panels/node_panel.ts."""

    section: str
    title: str
    format: str = "text"
    yes: str = ""  # for a bool: the text of the row if it is true; if it is false, there is no row


@dataclass(frozen=True, slots=True)
class PageKey:
    """A key in the page's data: its TypeScript type, its meaning, its default if it has one, and its row in the panel."""

    type: str
    about: str = ""  # what the key means; default for a fact: its first sentence
    default: Any = ALWAYS
    row: PanelRow | None = None
    name: str = ""  # the name of the key; default for a fact: the fact's name

    @property
    def is_required(self) -> bool:
        return self.default is ALWAYS


@dataclass(frozen=True, slots=True)
class Fact:
    """The declaration of one fact: its name, type and first sentence, and where it is shown."""

    name: str
    type: str
    sentence: str
    column: str | None = None  # name of its column in `to_pandas` and `to_csv`
    cell: Callable[[Any], Any] | None = None  # converts the fact to the value in that column
    row: str | None = None  # title of its row in the printed text and in the page's panel; no row if the fact is None
    node: str | None = None  # the field of a graph's `Node` that has it
    page: PageKey | None = None  # the fact's key in a node of the page's data

    @property
    def plain(self) -> Callable[[OperationFacts], Any]:
        """The function that reads the fact for graphs and pages, with dtypes and devices as text: `float32`, `cpu`."""
        read = attrgetter(self.name)
        return (lambda one: _name_of(read(one))) if self.type.startswith("torch.") else read


def shown(
    *,
    column: str | None = None,
    cell: Callable[[Any], Any] | None = None,
    row: str | None = None,
    node: str | None = None,
    page: PageKey | None = None,
) -> Callable[[_Read], _Read]:
    """Decorator, to be put below `@property`: declare where a fact is shown."""

    def declare(read: _Read) -> _Read:
        places = {"column": column, "cell": cell, "row": row, "node": node, "page": page}
        read.shown = places  # type: ignore[attr-defined]  # functions take attributes
        return read

    return declare


def facts_of(cls: type) -> list[Fact]:
    """The facts that a class and its bases declare, in the order of declaration. A fact with two names is listed twice."""
    found: dict[str, Fact] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, property) and not name.startswith("_"):
                read: Any = value.fget
                declared = getattr(read, "shown", {}) if name == read.__name__ else {}  # the second name of a fact is not shown
                sentence = (value.__doc__ or "").partition("\n")[0]
                found[name] = Fact(
                    name, read.__annotations__.get("return") or base.__annotations__.get(name, ""), sentence, **declared
                )
    return list(found.values())


@cache
def _name_of(what: torch.dtype | torch.device) -> str:
    return str(what).removeprefix("torch.")


def _names(params: list[Param]) -> list[str]:
    return [param.name for param in params]


def _text_or_none(value: object) -> str | None:
    return str(value) if value is not None else None


def _count_nonfinite(tensor: Tensor) -> int | None:
    """How many elements are NaN or infinite; None if the values cannot be read."""
    with DisableTorchFunction(), torch.no_grad():
        if tensor.is_quantized or not (tensor.is_floating_point() or tensor.is_complex()):
            return 0 if computes(tensor) else None
        if not computes(tensor):
            return None
        whole = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
        whole = whole.values() if whole.layout is not torch.strided and not whole.is_nested else whole
        parts = whole.unbind() if whole.is_nested else (whole,)
        wide = (part.float() if part.dtype.itemsize == 1 else part for part in parts)  # torch has no `isfinite` of float8
        return sum(int((~torch.isfinite(part)).sum()) for part in wide)


class OperationFacts:
    """One operation of a log, by its number. `torcheer.history.Operation` adds attributes that return other objects."""

    __slots__ = ("_index", "_number")

    def __init__(self, index: Index, number: int) -> None:
        self._index = index
        self._number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperationFacts) and other._index.log is self._index.log and other._number == self._number

    def __hash__(self) -> int:
        return hash((id(self._index.log), self._number))

    @property
    def _record(self) -> OperationRecord:
        return self._index.log.operations[self._number]

    @property
    def _layer(self) -> LayerEntry:
        return self._index.layer(self._number)

    @property
    def _tensor(self) -> Facts:
        return self._record.facts

    @property
    def number(self) -> int:
        """The operation's number in the recording. The nodes of a graph list such numbers as `operations`."""
        return self._number

    # Labels and numbers -----------------------------------------------------------------------------------------

    @property
    @shown(node="label", page=PageKey("string", name="label"))
    def layer_label(self) -> str:
        """The label of the layer: `conv2d_3_7`."""
        return self._index.table.label(self._layer)

    @property
    @shown(column="label")
    def label(self) -> str:
        """The label of this operation: the label of its layer, with the pass number if the layer has several passes."""
        return self._index.label(self._number)

    @property
    @shown(node="key", page=PageKey("string", name="key"))
    def layer_label_w_pass(self) -> str:
        """The label, always with the pass number: `conv2d_3_7:1`."""
        return f"{self.layer_label}:{self.pass_num}"

    @property
    def layer_label_short(self) -> str:
        """The label without the overall number: `conv2d_3`."""
        return self._layer.short_label

    @property
    @shown(column="type", node="type", page=PageKey("string", name="type"))
    def layer_type(self) -> str:
        """The function's name as labels spell it: `maxpool2d`."""
        return self._record.function.type

    @property
    def layer_number(self) -> int:
        """The position of the layer among all layers, from 0."""
        return self._layer.number

    @property
    def operation_num(self) -> int:
        """The position of this operation among all operations, from 1."""
        return self._index.positions[self._number] + 1

    @property
    @shown(column="pass", page=PageKey("number", default=1, row=PanelRow("Tensor", "pass", "pass"), name="pass"))
    def pass_num(self) -> int:
        """Which pass of its layer this is, from 1."""
        return self._index.table.pass_number(self._number)

    @property
    @shown(node="num_passes", page=PageKey("number", default=1, name="num_passes"))
    def num_passes(self) -> int:
        """How many times the layer ran."""
        return len(self._layer.passes)

    @property
    def lookup_keys(self) -> list[int | str]:
        """Every key that finds this operation."""
        return Lookup(self._index).keys_of(self._number)

    # The tensor -------------------------------------------------------------------------------------------------

    @property
    def tensor_contents(self) -> Any:
        """The tensor that this operation computed (or the result of `activation_postfunc`)."""
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
    @shown(
        column="shape",
        node="shape",
        page=PageKey(
            "number[] | null",
            "list of sizes, empty for a scalar, -1 for a ragged dimension",
            None,
            PanelRow("Tensor", "shape", "shape"),
            "shape",
        ),
    )
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self._tensor[0]

    @property
    @shown(
        column="dtype",
        cell=str,
        node="dtype",
        page=PageKey("string | null", '`"float32"`', None, PanelRow("Tensor", "dtype"), "dtype"),
    )
    def tensor_dtype(self) -> torch.dtype:
        """The dtype of the tensor."""
        return self._tensor[1]

    @property
    @shown(
        column="device",
        cell=str,
        node="device",
        page=PageKey("string | null", '`"cpu"`', None, PanelRow("Tensor", "device"), "device"),
    )
    def tensor_device(self) -> torch.device:
        """The device the tensor was computed on."""
        return self._tensor[2]

    @property
    @shown(
        column="bytes", node="bytes", page=PageKey("number", default=0, row=PanelRow("Tensor", "size", "bytes"), name="bytes")
    )
    def tensor_fsize(self) -> int:
        """The size of the tensor in bytes."""
        return bytes_of(self._tensor[0], self._tensor[1])

    @property
    @shown(column="saved")
    def has_saved_activations(self) -> bool:
        """True if the tensor was kept."""
        return self._record.is_saved

    @property
    def nonfinite(self) -> int | None:
        """How many elements of the tensor are NaN or infinite; None if the tensor was not kept or its values cannot be read."""
        record = self._record
        if record.value is UNSAVED or not self._index.log.holds_tensors:
            return None
        return _count_nonfinite(self.tensor_contents)

    # The call ---------------------------------------------------------------------------------------------------

    @property
    def func_applied(self) -> Callable[..., object] | None:
        """The function that ran; None for inputs, outputs and code that could not be watched."""
        return self._record.function.func

    @property
    @shown(column="function", node="function", page=PageKey("string", row=PanelRow("Call", "function"), name="function"))
    def func_applied_name(self) -> str:
        """The name of the function, as torch spells it: `max_pool2d`."""
        return self._record.function.name

    @property
    def started(self) -> float | None:
        """When the function was called, in seconds on `time.perf_counter`; None if no function was called."""
        return self._record.started / 1e9 if self._record.started else None

    @property
    @shown(column="seconds", node="seconds")
    def func_time_elapsed(self) -> float | None:
        """Seconds that the function took; None for code that cannot be watched."""
        return self._record.elapsed / 1e9 if self._record.is_timed else None

    @property
    @shown(column="gradfunc", page=PageKey("string | null", default=None, row=PanelRow("Call", "backward"), name="gradfunc"))
    def gradfunc(self) -> str | None:
        """The name of the tensor's autograd node (`grad_fn`); None if autograd recorded no node."""
        return self._record.gradfunc

    @property
    def creation_args(self) -> tuple[Any, ...]:
        """The positional arguments of the call, with the tensors as they were.

        Parameters belong to the model: if a parameter was changed since, this raises `ParameterChanged`. Writes that torch does
        not count, such as those of fused optimizers or through `.data`, are found by comparing elements: all elements of a
        tensor up to 4 KiB, a sample of a larger tensor. A write through `.data` to elements outside the sample is not found.
        """
        return self._arguments()[0]

    @property
    def creation_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the call, with the tensors as they were."""
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
    @shown(
        column="in_place",
        node="is_inplace",
        page=PageKey(
            "boolean", default=False, row=PanelRow("Tensor", "in place", "flag", "yes, it overwrites its input"), name="inplace"
        ),
    )
    def is_inplace(self) -> bool:
        """True if the function wrote its result into one of its arguments."""
        return self._record.overwritten is not None

    @property
    def changed_by(self) -> str | None:
        """A description of the change, if `intervene` or a replay with `changes` replaced the value; else None."""
        return self._record.details.changed or None

    @property
    @shown(row="Autocast")
    def autocast(self) -> str | None:
        """The dtype and device of autocast when the operation ran: `bfloat16 on cpu`; None if autocast was off."""
        types = self._record.details.autocast
        return ", ".join(f"{str(dtype).removeprefix('torch.')} on {device}" for device, dtype in types) or None

    @property
    def output_path(self) -> str:
        """The position of this tensor in the function's result: `[0]` for the first item of a tuple."""
        return format_path(self._record.details.output_path)

    @property
    @shown(node="composite", page=PageKey("string | null", default=None, row=PanelRow("Call", "part of"), name="composite"))
    def composite(self) -> str | None:
        """The torch function that called this operation, if its inside was recorded, such as `multi_head_attention_forward`."""
        composite = self._record.details.composite
        return composite.name if composite is not None else None

    @property
    def stack(self) -> list[SourceLine]:
        """The call stack, outermost first."""
        return stack_of(self._record.site, self._record.module)

    # Neighbours -------------------------------------------------------------------------------------------------

    def _labels(self, numbers: list[int]) -> list[str]:
        return list(dict.fromkeys(self._index.label(n) for n in numbers))

    @property
    @shown(column="parents")
    def parent_layers(self) -> list[str]:
        """The labels of the operations whose tensors this operation used."""
        return self._labels(self._index.parents(self._number))

    @property
    @shown(column="children")
    def child_layers(self) -> list[str]:
        """The labels of the operations that used this operation's tensor."""
        return self._labels(self._index.children.get(self._number, []))

    @property
    def sibling_layers(self) -> list[str]:
        """The labels of the other operations that share a parent with this operation."""
        found = [c for p in self._index.parents(self._number) for c in self._index.children[p] if c != self._number]
        return self._labels(sorted(set(found)))

    @property
    def same_call_layers(self) -> list[str]:
        """The labels of all tensors that the same call returned, including this tensor."""
        call, operations = self._record.call, self._index.log.operations
        made = takewhile(lambda number: operations[number].call == call, range(call, len(operations)))
        return self._labels([number for number in made if self._index.table.shows(number)])

    @property
    def parent_arg_positions(self) -> dict[str, str]:
        """Maps each argument position to the parent passed there: `{'args[0]': 'relu_1_2'}`; nested positions in full."""
        record = self._record
        found: dict[str, str] = {}
        for path, reference in zip(slot_paths(record.args, record.kwargs), record.parents, strict=False):
            if self._index.table.shows(reference):
                found[format_path(path, "kwargs" if isinstance(path[0], str) else "args")] = self._index.label(reference)
        return found

    # Parameters -------------------------------------------------------------------------------------------------

    @property
    @shown(column="params", cell=_names)
    def parent_params(self) -> list[Param]:
        """The parameters that this operation used, with names, shapes and sizes."""
        return [param for param in self._states() if not param.is_buffer]

    @property
    def parent_buffers(self) -> list[Param]:
        """The buffers that this operation used."""
        return [param for param in self._states() if param.is_buffer]

    def _states(self) -> list[Param]:
        behind = [self._index.state_behind(reference) for reference in self._record.parents]
        states = dict.fromkeys(state for state in behind if state is not None)
        return [describe_param(self._index, self._index.state_name(state), state.tensor) for state in states]

    @property
    @shown(column="num_params")
    def num_params(self) -> int:
        """How many parameter elements this operation used."""
        return sum(param.numel for param in self.parent_params)

    @property
    def parent_params_fsize(self) -> int:
        """The size in bytes of the parameters that this operation used."""
        return sum(param.fsize for param in self.parent_params)

    # Modules ----------------------------------------------------------------------------------------------------

    def _around(self) -> list[ModuleCall]:
        module = self._record.module
        return [call for call in module.stack() if call.address] if module is not None else []

    @property
    @shown(column="module")
    def containing_module(self) -> str | None:
        """The address of the innermost module that this operation ran in; None in the model's own forward."""
        around = self._around()
        return around[-1].address if around else None

    @property
    def containing_modules(self) -> list[str]:
        """The modules that this operation ran in, outermost first, each with its call number: `features:1`."""
        return [f"{call.address}:{call.call}" for call in self._around()]

    @property
    def modules_entered(self) -> list[str]:
        """The module calls that received this tensor as an input."""
        return [f"{c.address}:{c.call}" for c in self._index.entries.get(self._number, ()) if c.address]

    @property
    @shown(column="modules_exited")
    def modules_exited(self) -> list[str]:
        """The module calls that returned this tensor, innermost first."""
        return [f"{c.address}:{c.call}" for c in self._index.exits.get(self._number, ()) if c.address]

    @property
    @shown(node="bottom_level_module")
    def bottom_level_module(self) -> str | None:
        """The address of a module whose call ran only this operation and returned its tensor; None if there is none."""
        for call in self._index.exits.get(self._number, ()):
            if call.address and self._index.call_counts.is_alone(self._number, call):
                return call.address
        return None

    @property
    def is_bottom_level_module_output(self) -> bool:
        """True if a module call ran only this operation and returned its tensor."""
        return self.bottom_level_module is not None

    # Position in the graph --------------------------------------------------------------------------------------

    @property
    @shown(
        node="kind",
        page=PageKey(
            "string",
            "`input`, `output`, `operation`, `opaque` (from code that could not be watched), `alias` (another view of a "
            "tensor, from such code), `source` (of unknown origin) or `failed` (raised)",
            "operation",
            name="kind",
        ),
    )
    def origin(self) -> str:
        """How the tensor was created: `input`, `operation`, `opaque`, `alias`, `source` or `output`."""
        return self._record.origin.value

    @property
    def is_input_layer(self) -> bool:
        """True if the tensor was passed to the model."""
        return self._record.origin is Origin.INPUT

    @property
    def is_output_layer(self) -> bool:
        """True if the model returned the tensor."""
        return self._record.origin is Origin.OUTPUT

    @property
    @shown(node="from_input")
    def has_input_ancestor(self) -> bool:
        """True if the tensor was computed from an input."""
        return bool(self._index.from_input[self._number])

    @property
    def is_output_ancestor(self) -> bool:
        """True if an output was computed from the tensor."""
        return bool(self._index.to_output[self._number])

    @property
    def initialized_inside_model(self) -> bool:
        """True if the tensor is no input and was computed from no other operation's tensor, such as `torch.zeros(3)`."""
        return not self.is_input_layer and not self._record.dependencies

    @property
    def min_distance_from_input(self) -> int | None:
        """The length of the shortest path from an input; None if there is no path."""
        return self._index.distances_from_input.get(self._number, _NO_PATH)[0]

    @property
    def max_distance_from_input(self) -> int | None:
        """The length of the longest path from an input; None if there is no path."""
        return self._index.distances_from_input.get(self._number, _NO_PATH)[1]

    @property
    def min_distance_from_output(self) -> int | None:
        """The length of the shortest path to an output; None if there is no path."""
        return self._index.distances_to_output.get(self._number, _NO_PATH)[0]

    @property
    def max_distance_from_output(self) -> int | None:
        """The length of the longest path to an output; None if there is no path."""
        return self._index.distances_to_output.get(self._number, _NO_PATH)[1]

    @property
    @shown(node="role", page=PageKey("string", default="", name="role"))
    def io_role(self) -> str:
        """An input's position in the model's arguments, an output's position in the result, or a source's name."""
        log = self._index.log
        if self.is_input_layer:
            paths = log.input_paths.get(self._number, [])
            return ", ".join(format_path(path[1:], path[0]) for path in paths if path)
        if self.is_output_layer:
            return format_path(self._record.details.output_path, "output")
        return log.source_names.get(self._number, "")

    @property
    @shown(node="name")
    def io_name(self) -> str:
        """The name of an input in `forward`, or the path of an output in the result: `input_ids`, `logits`; else empty."""
        return ", ".join(self._index.log.port_names(self._number))

    @property
    @shown(column="source", cell=_text_or_none)
    def source(self) -> SourceLine | None:
        """The line of the program, outside torch, that called this operation."""
        return source_of(self._record.site, self._record.module)

    # The gradient -------------------------------------------------------------------------------------------------

    @property
    def _made_by(self) -> int:
        """The operation that computed the tensor: for an output, its parent."""
        return self._record.parents[0] if self.is_output_layer else self._number

    @property
    def grads(self) -> list[Tensor]:
        """The gradients at this operation's output, one for each backward pass that reached it."""
        backward = self._index.log.backward
        found = [one.gradient(self._made_by) for one in backward.passes] if backward is not None else []
        return [gradient for gradient in found if gradient is not None]

    @property
    def grad_contents(self) -> Tensor | None:
        """The gradient at this operation's output in the last backward pass that reached it; None if there is none."""
        grads = self.grads
        return grads[-1] if grads else None

    @property
    def grad_shape(self) -> tuple[int, ...] | None:
        """The shape of the gradient; None if there is no gradient."""
        gradient = self.grad_contents
        return shape_of(gradient) if gradient is not None else None

    @property
    def grad_dtype(self) -> torch.dtype | None:
        """The dtype of the gradient; None if there is no gradient."""
        gradient = self.grad_contents
        return gradient.dtype if gradient is not None else None

    @property
    def grad_fsize(self) -> int | None:
        """The size of the gradient in bytes; None if there is no gradient."""
        gradient = self.grad_contents
        return gradient.numel() * gradient.element_size() if gradient is not None else None

    @property
    def grad_nonfinite(self) -> int | None:
        """How many elements of the gradient are not finite; None if there is no gradient or its values cannot be read."""
        gradient = self.grad_contents
        return _count_nonfinite(gradient) if gradient is not None else None

    # Short names -------------------------------------------------------------------------------------------------

    name = label
    shape = tensor_shape
    dtype = tensor_dtype
    device = tensor_device
    activation = tensor_contents
    params = parent_params

    @property
    def grad(self) -> Tensor | None:
        """`grad_contents`; raises if the gradient was not requested, or no backward pass ran."""
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
    def inputs(self) -> list[Tensor]:
        """The tensors among the arguments of the call, including parameters, in order."""
        return [self._argument(slot) for slot in range(len(self._record.parents))]


def index_of(one: OperationFacts) -> Index:
    """The index that an operation is read from."""
    return one._index


def record_of(one: OperationFacts) -> OperationRecord:
    """The record that an operation is read from."""
    return one._record


def parents_of(one: OperationFacts) -> list[OperationFacts]:
    """The operations whose tensors an operation used."""
    return [OperationFacts(one._index, number) for number in one._index.parents(one.number)]


def children_of(one: OperationFacts) -> list[OperationFacts]:
    """The operations that used an operation's tensor."""
    return [OperationFacts(one._index, number) for number in one._index.children.get(one.number, ())]


DECLARED = tuple(facts_of(OperationFacts))
_ROWS = [fact for fact in DECLARED if fact.row is not None]


def rows_of(one: OperationFacts) -> list[tuple[Fact, Any]]:
    """The facts with a row of their own and their values, without facts that are None."""
    found = [(fact, getattr(one, fact.name)) for fact in _ROWS]
    return [(fact, value) for fact, value in found if value is not None]


def describe_freed(what: str) -> str:
    """The text of the error for a kept tensor whose memory was freed."""
    return (
        f"the memory of {what} was freed (its storage was resized) before it could be copied, so its value is gone. FSDP does "
        "this with parameters after each layer. Log the model without it to see the value."
    )
