"""All private parts of torch that torcheer uses. No other file names one; tests check this.

A private name may be missing from the next torch. So each is looked up by `private`, which never fails: if torch lacks a
name, another function replaces it, or a stand-in raises `MissingInTorch` when it is used. `missing_notes` says what a log
lacks without the name. The environment variable `TORCHEER_WITHOUT` (names, separated by commas) makes torcheer ignore names
that torch has: the tests remove each in turn, and users can, if a private function of a new torch misbehaves.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final, NoReturn

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as _modules
from torch.overrides import TorchFunctionMode

from .._cleanup import cleaning, shared
from ..errors import MissingInTorch

# Looking names up --------------------------------------------------------------------------------------------------------

USES: dict[str, str] = {}  # private name -> what torcheer needs it for
_LESS: dict[str, str] = {}  # the names that this torch lacks -> what a log lacks without them
_HIDDEN: Final = frozenset(filter(None, os.environ.get("TORCHEER_WITHOUT", "").split(",")))
_ABSENT: Final = object()


def _look_up(path: str) -> Any:
    """Find the object at a dotted path; returns `_ABSENT` if torch has no object there."""
    if path in _HIDDEN:
        return _ABSENT
    found: Any = torch
    parts = path.split(".")
    for count, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except Exception:  # a name that torch is about to remove may raise anything
            try:
                found = importlib.import_module(".".join(parts[:count]))
            except Exception:
                return _ABSENT
    return found


def private(path: str, use: str, otherwise: Any = None, less: str = "") -> Any:
    """Look up a private object of torch. Returns a replacement if torch lacks it.

    Args:
        path: the dotted name, such as `"torch._C._storage_address"`.
        use: what torcheer does with it; completes "torcheer needs it to …".
        otherwise: the replacement. By default a stand-in that raises `MissingInTorch` when it is used.
        less: what a log lacks without the object, for `history.notes`; empty if `otherwise` does the same.
    """
    USES[path] = use
    found = _look_up(path)
    if found is not _ABSENT:
        return found
    if less:
        _LESS[path] = less
    return otherwise if otherwise is not None else _Missing(path)


def _attribute(owner: Any, path: str, use: str, otherwise: Callable[[Any], Any], less: str = "") -> Callable[[Any], Any]:
    """Make a function that reads a private attribute (`"torch.Tensor._version"`). Returns `otherwise` if `owner` has no
    such attribute.
    """
    USES[path] = use
    name = path.rpartition(".")[2]
    if path not in _HIDDEN and hasattr(owner, name):
        return operator.attrgetter(name)
    if less:
        _LESS[path] = less
    return otherwise


def _later(path: str, use: str, otherwise: Any = None) -> Callable[[], Any]:
    """Like `private`, but returns a function that looks the object up when it is first called: the import takes a second."""
    USES[path] = use
    return functools.cache(lambda: private(path, use, otherwise))


def missing_notes() -> list[str]:
    """Sentences about what a log lacks because this torch lacks private names; empty for all tested versions."""
    return [f"torch {torch.__version__} has no {path}: {less}." for path, less in _LESS.items()]


class _Missing:
    """Stands for a private name that torch lacks. Using it raises `MissingInTorch`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingInTorch(
            f"torch {torch.__version__} has no {self._path}, which torcheer needs to {USES[self._path]}. Install a newer "
            "torcheer, or a torch from 2.6 to 2.15."
        )


# Modes -------------------------------------------------------------------------------------------------------------------


def _push_by_entering(mode: Any) -> None:
    TorchFunctionMode.__enter__(mode)  # type: ignore[no-untyped-call]  # torch's own


def _pop_by_leaving() -> Any:
    modes = function_modes()
    TorchFunctionMode.__exit__(modes[-1] if modes else TorchFunctionMode(), None, None, None)  # type: ignore[no-untyped-call]
    return modes[-1] if modes else None


def _modes_by_popping() -> list[Any]:
    """List the active function modes: take each off the stack, until torch raises for an empty stack, and put all back."""
    if pop_function_mode is _pop_by_leaving:  # `_pop_by_leaving` needs the list of active modes
        _Missing("torch.overrides._get_current_function_mode_stack")()
    popped = []
    with contextlib.suppress(RuntimeError):
        while True:
            popped.append(pop_function_mode())
    popped.reverse()
    for mode in popped:
        push_function_mode(mode)
    return popped


# The stack of function modes. These functions do the same as entering and leaving a `TorchFunctionMode`, with fewer checks.
push_function_mode: Callable[[Any], None] = private(
    "torch._C._push_on_torch_function_stack", "put its function mode back", _push_by_entering
)
pop_function_mode: Callable[[], Any] = private(
    "torch._C._pop_torch_function_stack", "take its function mode off for a moment", _pop_by_leaving
)
function_modes: Callable[[], list[Any]] = private(
    "torch.overrides._get_current_function_mode_stack", "know which function modes are active", _modes_by_popping
)
count_function_modes: Callable[[], int] = private(
    "torch._C._len_torch_function_stack", "count active function modes", lambda: len(function_modes())
)


class _ModesPopped:
    """Replaces `DisableTorchFunction`, more slowly: takes all function modes off the stack and puts them back."""

    def __enter__(self) -> None:
        self._modes = [pop_function_mode() for _ in range(count_function_modes())]

    def __exit__(self, *error: object) -> None:
        while self._modes:
            push_function_mode(self._modes.pop())


def take_off_function_mode(mode: Any) -> bool:
    """Remove a mode from the stack of function modes; if it is there several times, only its topmost entry. Returns False if
    it is not there.
    """
    above, is_found = [], False
    while not is_found and count_function_modes():
        above.append(pop_function_mode())
        is_found = above[-1] is mode
    for one in reversed(above[:-1] if is_found else above):
        push_function_mode(one)
    return is_found


# Inside this block, neither modes nor subclasses see torch functions. The public class hides them only from subclasses.
DisableTorchFunction: Any = private("torch._C.DisableTorchFunction", "call torch unseen by its own function mode", _ModesPopped)
# Inside this block, function modes see torch functions again, even within `DisableTorchFunction`.
_EnableTorchFunction: Any = private("torch._C._EnableTorchFunction", "evaluate the functions that were given to flex_attention")


@cleaning
def seen_by(mode: TorchFunctionMode) -> Iterator[None]:
    """Inside this block, only this mode sees torch functions, even within `DisableTorchFunction`."""
    with _ModesPopped(), _EnableTorchFunction(), mode:
        yield


# Inside this block, tensor subclasses behave as plain tensors.
DisableTorchFunctionSubclass: Any = private(
    "torch._C.DisableTorchFunctionSubclass", "read tensors of subclasses as plain tensors", DisableTorchFunction
)
# The `__torch_function__` of subclasses that override nothing. Without it they are treated as overriding functions.
disabled_torch_function: Any = private(
    "torch._C._disabled_torch_function_impl",
    "know subclasses of Tensor that override nothing",
    object(),
    "attention on tensors of such subclasses does not take torch's fused path",
)


class _NoDispatchMode:
    """A base class if torch has no `TorchDispatchMode`. Then `can_watch_aten` is False, and it is never instantiated."""


def _no_dispatch_mode() -> None:
    """Replaces the function that returns the active dispatch mode, if torch lacks it."""


_UNFUSED: Final = (
    "attention that torch computes on its fused path is logged as single operations; at padded positions their values differ"
)
# A mode that sees ATen operators.
TorchDispatchMode: Any = private(
    "torch.utils._python_dispatch.TorchDispatchMode",
    "watch torch's fused attention",
    _NoDispatchMode,
    _UNFUSED,
)
current_dispatch_mode: Callable[[], Any] = private(
    "torch.utils._python_dispatch._get_current_dispatch_mode", "watch torch's fused attention", _no_dispatch_mode, _UNFUSED
)
can_watch_aten: bool = TorchDispatchMode is not _NoDispatchMode and current_dispatch_mode is not _no_dispatch_mode
# Inside this block, no mode is active.
without_modes: Callable[[], Any] = private(
    "torch.utils._python_dispatch._disable_current_modes",
    "compare values unseen by other modes",
    DisableTorchFunction,
    "a dispatch mode of the program sees torcheer's own copies and comparisons",
)
_count_dispatch_modes: Callable[[], int] = private(
    "torch._C._len_torch_dispatch_stack",
    "know whether a dispatch mode is active",
    lambda: 0,
    "a dispatch mode of the program sees torcheer's own copies",
)
_NO_MODES: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def outside_dispatch_modes() -> Any:
    """Inside this block, the user's dispatch modes are off, so that a mode that fakes or counts tensors does not see ours."""
    return without_modes() if _count_dispatch_modes() else _NO_MODES


_TRACED = "torch.jit.trace inside a model traces torcheer's own calls"
_tracing_state: Callable[[], Any] = private(
    "torch._C._get_tracing_state", "know whether torch.jit.trace runs", lambda: None, _TRACED
)
_set_tracing_state: Callable[[Any], None] = private(
    "torch._C._set_tracing_state", "suspend torch.jit.trace", lambda _: None, _TRACED
)


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Inside this block, `torch.jit.trace` does not trace, and tensor sizes are integers."""
    state = _tracing_state()
    if state is None:
        yield
        return
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


is_traceable_wrapper_subclass: Callable[[Any], bool] = private(
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "know tensors that wrap others",
    lambda value: isinstance(value, Tensor) and hasattr(value, "__tensor_flatten__") and hasattr(value, "__tensor_unflatten__"),
)
is_any_autocast_enabled: Callable[[], bool] = private(
    "torch._C._is_any_autocast_enabled",
    "know whether autocast is on",
    lambda: any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda", "mps", "xpu")),
)

# Memory ------------------------------------------------------------------------------------------------------------------


def address_of(storage: torch.UntypedStorage) -> int:
    """A number that identifies a storage. For a tensor in the storage, `storage_address` returns the same number."""
    address: int = _address_of(storage)
    return address


_address_of = _attribute(
    torch.UntypedStorage, "torch.UntypedStorage._cdata", "tell storages apart", torch.UntypedStorage.data_ptr
)
# The address of a tensor's storage, in a third of the time that `address_of(tensor.untyped_storage())` takes.
storage_address: Callable[[Tensor], int] = private(
    "torch._C._storage_address", "tell storages apart", lambda tensor: _address_of(tensor.untyped_storage())
)
# The number of tensors that share a storage. Without it all memory counts as shared, and is copied.
storage_use_count: Callable[[int], int] = private(
    "torch._C._storage_Use_Count", "know whether others hold the memory of a value", lambda address: sys.maxsize
)
# The address of a tensor's first element, without materialising a lazy copy; before torch 2.13 there is only `data_ptr`.
pointer_of: Callable[[Tensor], int] = getattr(Tensor, "const_data_ptr", Tensor.data_ptr)
# torch's count of the writes to a tensor. Raises RuntimeError for inference tensors, which have no count.
write_count: Callable[[Tensor], int] = _attribute(
    Tensor,
    "torch.Tensor._version",
    "notice that a value was overwritten",
    lambda tensor: 0,
    "a value that code outside of torch's functions overwrites is not noticed",
)
# The base of a view, as autograd records it; None if the tensor is not a view.
base_of: Callable[[Tensor], Tensor | None] = _attribute(
    Tensor,
    "torch.Tensor._base",
    "find the tensor behind a view",
    lambda tensor: None,
    "gradients of a tensor that was written to through a view may not be found",
)


def cuda_is_used() -> bool:
    """True if this process has used CUDA."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


# A view of a tensor with negated values, such as `.imag` of a conjugated tensor. Without it such a view is loaded as a copy.
negated_view: Callable[[Tensor], Tensor] = private("torch._neg_view", "load negated views", torch.neg)


def sparse_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The stored indices and values of a sparse COO tensor; the public methods require a coalesced tensor."""
    return _indices(tensor)(), _sparse_values(tensor)()


_indices = _attribute(Tensor, "torch.Tensor._indices", "read sparse tensors", lambda tensor: tensor.coalesce().indices)
_sparse_values = _attribute(Tensor, "torch.Tensor._values", "read sparse tensors", lambda tensor: tensor.coalesce().values)
_make_subclass: Callable[..., Tensor] = private(
    "torch.Tensor._make_subclass", "log a model with uninitialised (lazy) parameters"
)


def _copy_one_by_one(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


# Copies a list of tensors into another list of tensors, with few launches on a GPU.
copy_all: Callable[[list[Tensor], list[Tensor]], None] = private(
    "torch._foreach_copy_", "copy buffers in one call", _copy_one_by_one
)


def _norms_one_by_one(tensors: list[Tensor], order: float) -> list[Tensor]:
    return [torch.linalg.vector_norm(tensor, order) for tensor in tensors]


# The norms of tensors of one device and dtype, with few launches on a GPU.
norms_of: Callable[[list[Tensor], float], list[Tensor]] = private(
    "torch._foreach_norm", "compute norms in one call", _norms_one_by_one
)


def like_class_of(tensor: Tensor, data: Tensor) -> Tensor:
    """Make a tensor with the memory of `data`, and the class and the `requires_grad` of `tensor`."""
    return _make_subclass(type(tensor), data, tensor.requires_grad)


_nested_facts: dict[str, Callable[[Tensor], Tensor]] = {
    "sizes": private("torch.Tensor._nested_tensor_size", "save nested tensors"),
    "strides": private("torch.Tensor._nested_tensor_strides", "save nested tensors"),
    "offsets": private("torch.Tensor._nested_tensor_storage_offsets", "save nested tensors"),
}


def nested_parts(tensor: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Take a nested tensor apart into facts and strided tensors; returns None for an unknown layout."""
    whole: Any = tensor
    if type(tensor) is Tensor and tensor.layout is torch.strided:
        parts = {name: read(tensor) for name, read in _nested_facts.items()}
        return {"layout": "strided"}, {**parts, "values": tensor.values()}
    if tensor.layout is torch.jagged and type(tensor).__module__.startswith("torch.nested."):
        parts = {"values": whole._values.detach(), "offsets": whole._offsets}
        if whole._lengths is not None:
            parts["lengths"] = whole._lengths
        return {"layout": "jagged", "ragged": int(whole._ragged_idx)}, parts
    return None


_nested_view: Callable[..., Tensor] = private("torch._nested_view_from_buffer", "load nested tensors")


def nested_from_parts(facts: dict[str, Any], parts: dict[str, Tensor]) -> Tensor:
    """Make a nested tensor from its `nested_parts`."""
    if facts.get("layout") == "jagged":
        lengths = parts.get("lengths")
        return torch.nested.nested_tensor_from_jagged(parts["values"], parts["offsets"], lengths, jagged_dim=facts["ragged"])
    sizes, strides, offsets, values = (parts[key] for key in ("sizes", "strides", "offsets", "values"))
    reach = offsets + ((sizes - 1).clamp_min(0) * strides).sum(-1)
    is_inside = values.dim() == 1 and bool((reach < values.numel()).all()) and bool((offsets >= 0).all())
    if sizes.shape != strides.shape or not is_inside or bool((sizes < 0).any()) or bool((strides < 0).any()):
        raise ValueError("the parts of a nested tensor do not fit together")
    return _nested_view(values, sizes, strides, offsets)


_quantised: Callable[..., Tensor] = private("torch._make_per_tensor_quantized_tensor", "load quantised tensors")
_quantised_by_channel: Callable[..., Tensor] = private("torch._make_per_channel_quantized_tensor", "load quantised tensors")


def quantised_from_parts(values: Tensor, dtype: torch.dtype, scales: tuple[Any, ...]) -> Tensor:
    """Make a quantised tensor from its integers, scales and zero points (per tensor or per channel)."""
    if len(scales) == 3 and not (scales[0].dim() == 1 == scales[1].dim() and scales[2] < values.dim()):
        raise ValueError("the scales of a quantised tensor do not fit it")
    made = (_quantised if len(scales) == 2 else _quantised_by_channel)(values, *scales)
    if made.dtype != dtype:
        raise ValueError("the integers of a quantised tensor are not of its type")
    return made


# TorchScript ------------------------------------------------------------------------------------------------------------


def writes_in_place(module: Any) -> bool:
    """True if a TorchScript module calls an in-place function, or has no graph because it was frozen."""
    try:
        return re.search(r"::\w+_\(", str(module.inlined_graph)) is not None
    except (AttributeError, RuntimeError):
        return True


def script_parts(script: dict[str, Any]) -> tuple[Any, Any]:
    """The C++ object of a TorchScript module and its class, from the module's `__dict__`; None if missing."""
    return script.get("_c"), script.get("_concrete_type")


# The class of schemas. If torch lacks the name, the argument names of TorchScript methods are unknown.
FunctionSchema: Any = private("torch._C.FunctionSchema", "read the arguments of TorchScript methods", _Missing)

# Transforms of torch.func ------------------------------------------------------------------------------------------------

_NO_TRANSFORMS: Final = "values inside transforms of torch.func (vmap, grad, jvp) are not followed"
_FOLLOW: Final = "follow values inside transforms of torch.func"
# True for a wrapper around a tensor inside vmap, grad or jvp.
is_functorch_wrapped: Callable[[Tensor], bool] = private(
    "torch._C._functorch.is_functorch_wrapped_tensor", _FOLLOW, lambda tensor: False, _NO_TRANSFORMS
)
functorch_unwrapped: Callable[[Tensor], Tensor] = private("torch._C._functorch.get_unwrapped", _FOLLOW)
is_legacy_batched: Callable[[Tensor], bool] = private(
    "torch._C._functorch.is_legacy_batchedtensor", "know gradients of is_grads_batched=True", lambda tensor: False
)
_without_transforms: Callable[[], Any] = private(
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
    "write values to a file inside a transform of torch.func",
)
_transform_level: Callable[[], Any] = private("torch._C._functorch.maybe_current_level", _FOLLOW, lambda: None, _NO_TRANSFORMS)
_transforms: Callable[[], Any] = private("torch._C._functorch.get_interpreter_stack", _FOLLOW, lambda: (), _NO_TRANSFORMS)
_transform_types: Any = private("torch._C._functorch.TransformType", _FOLLOW, contextlib.nullcontext, _NO_TRANSFORMS)


def without_transforms() -> Any:
    """Inside this block, no transform of torch.func runs, so new tensors are not wrapped."""
    return _without_transforms() if is_transforming() else contextlib.nullcontext()


def is_transforming() -> bool:
    """True while a transform of torch.func is running."""
    return _transform_level() is not None


def is_inside_vmap() -> bool:
    """True while vmap is one of the running transforms."""
    vmap = getattr(_transform_types, "Vmap", None)
    return vmap is not None and any(transform.key() == vmap for transform in _transforms() or ())


# Autograd ----------------------------------------------------------------------------------------------------------------

# The sequence number of the next autograd node; nodes of one thread are numbered in the order they are made.
next_sequence_number: Callable[[], int] = private(
    "torch.autograd._get_sequence_nr", "tell which autograd nodes a module made, or a backward pass with create_graph=True"
)
# The number of the running backward pass; -1 outside of any.
current_graph_task: Callable[[], int] = private(
    "torch._C._current_graph_task_id",
    "tell backward passes apart",
    lambda: -1,
    "all backward passes of a history count as one, and what checkpointing runs again counts as part of the forward pass",
)


def _accumulating_class() -> type:
    """The class of the node that accumulates the gradient of a leaf."""
    with torch.enable_grad():
        grad_fn: Any = torch.zeros(1, device="cpu", requires_grad=True).neg().grad_fn
    return type(grad_fn.next_functions[0][0])


# The class of the nodes that accumulate gradients of leaves.
AccumulateGrad: type = private("torch._C._functions.AccumulateGrad", "find parameters in autograd's graph", _ABSENT)
if AccumulateGrad is _ABSENT:
    AccumulateGrad = _accumulating_class()


# The class of the nodes of `torch.autograd.Function`s, which may run a backward pass inside. Without it: any node.
CustomNode: type = private("torch.autograd.function.BackwardCFunction", "time custom functions", object)


def sequence_number(node: Any) -> int:
    """The sequence number of an autograd node; nodes of one thread are numbered in the order they are made."""
    number: int = _sequence_nr(node)()
    return number


_sequence_nr = _attribute(
    AccumulateGrad,
    "torch.autograd.graph.Node._sequence_nr",
    "tell which autograd nodes a module made, or a backward pass with create_graph=True",
    lambda node: _Missing("torch.autograd.graph.Node._sequence_nr"),
)


_is_functional_tensor: Callable[[Tensor], bool] = private(
    "torch._is_functional_tensor", "leave functional tensors alone", lambda tensor: False
)
_set_write_counts: Callable[..., None] | None = private(
    "torch._C._autograd._unsafe_set_version_counter",
    "make torch forget a write that was taken back",
    _ABSENT,
    "writes of the pass that were taken back still count as writes, so earlier histories may call a tensor changed, and a "
    "backward pass that saved the tensor before may raise",
)


def count_writes_as(tensor: Tensor, count: int) -> None:
    """Set torch's count of the writes to a tensor (`write_count`), after a write that was undone.

    Skips functional tensors: they share the count with a tensor that torch writes to later.
    """
    if _set_write_counts is _ABSENT or _is_functional_tensor(tensor):
        return
    assert _set_write_counts is not None
    if _takes_one_write_count():
        _set_write_counts(tensor, count)
    else:
        _set_write_counts((tensor,), (count,))


@functools.cache
def _takes_one_write_count() -> bool:
    """True if torch's function takes one tensor (torch 2.6), not several.

    Tried with a tensor of ours: an error message prints the tensor, and reading a tensor without memory ends the process.
    """
    assert _set_write_counts is not None
    try:
        _set_write_counts((torch.empty(0, device="cpu"),), (0,))
    except TypeError:
        return True
    return False


# Calls a function at the end of the running backward pass.
after_this_backward: Callable[[Callable[[], None]], None] = private(
    "torch.autograd.Variable._execution_engine.queue_callback",
    "know when a backward pass is over",
    lambda call: None,
    "backward passes are not marked as complete",
)


def autograd_node_class(name: str) -> type | None:
    """The class of autograd's nodes with this name (`"MulBackward0"`); its attributes `_saved_…` list what it saves."""
    return getattr(_node_classes, name, None)


_node_classes: Any = private(
    "torch._C._functions",
    "know what autograd saves",
    object(),
    "the memory that autograd keeps for the backward pass is not known",
)


def hooks_of(tensor: Tensor) -> list[dict[int, Any]]:
    """The dictionaries of a tensor's gradient hooks, by hook id."""
    found = (getattr(tensor, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    return [hooks for hooks in found if hooks]


# Operators ---------------------------------------------------------------------------------------------------------------

OpOverload: Any = type(torch.ops.aten.add.Tensor)
OpOverloadPacket: Any = type(torch.ops.aten.add)
OpNamespace: Any = type(torch.ops.aten)


def _schema_by_name(overload: Any) -> Any:
    name = overload_name(overload)
    wanted = "" if name == "default" else name
    return next(schema for schema in schemas_for(qualified_name_of(overload)) if schema.overload_name == wanted)


_schema_of = _attribute(
    torch.ops.aten.add.Tensor,
    "torch.ops.aten.add.Tensor._schema",
    "know what operators write to and return",
    _schema_by_name,
)


def schema_of(overload: Any) -> Any:
    """The schema of an operator's overload: names, types and aliases of arguments and results."""
    return _schema_of(overload)


def qualified_name_of(operator: Any) -> str:
    """`"aten::add"` for `torch.ops.aten.add` and for each of its overloads."""
    packet = getattr(operator, "overloadpacket", operator)
    return str(getattr(packet, "_qualified_op_name", None) or f"{packet.__module__.rpartition('.')[2]}::{packet.__name__}")


def overload_name(overload: Any) -> str:
    """`"Tensor"` for `torch.ops.aten.add.Tensor`, `"default"` for `torch.ops.aten.relu.default`."""
    return str(overload.__name__).rpartition(".")[2]


def _packets() -> Iterator[Any]:
    """Yields the ATen operators with the names of torch's functions; used if torch does not list its operators."""
    for space in (torch, Tensor, torch.nn.functional, torch.special, torch.linalg, torch.fft):
        for name in dir(space):
            packet = getattr(torch.ops.aten, name, None) if not name.startswith("__") else None
            if isinstance(packet, OpOverloadPacket):
                yield packet


def _names_of_operators() -> list[str]:
    names = ((qualified_name_of(packet), overload) for packet in _packets() for overload in packet.overloads())
    return [name if overload == "default" else f"{name}.{overload}" for name, overload in names]


def _schemas_of_operator(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    return [schema_of(getattr(packet, overload)) for overload in packet.overloads()] if packet is not None else []


# All operator names, such as "aten::add.Tensor", and the schemas of an operator: what it writes, returns as views and draws.
operator_names: Callable[[], list[str]] = private(
    "torch._C._dispatch_get_all_op_names", "list torch's operators", _names_of_operators
)
schemas_for: Callable[[str], list[Any]] = private(
    "torch._C._jit_get_schemas_for_operator", "know what torch's functions write to and return", _schemas_of_operator
)
C_MODULE: Final = "torch._C"  # the `__module__` of objects of torch's C++ part
TENSOR_MODULE: Final = "torch._tensor"  # the `__module__` of operators that torch.Tensor defines in Python


# Namespaces of the functions that a saved history may call, by their name in the file. Without the private namespaces,
# functions such as `F.gelu` can be shown but not run again.
FUNCTION_NAMESPACES: dict[str, Any] = {
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": Tensor,
    "torch": torch,
    "torch.functional": torch.functional,
    "torch.nn.init": torch.nn.init,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.sparse": torch.sparse,
    "torch.nested": torch.nested,
    "torch.autograd": torch.autograd,
}
for _name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested", "_VariableFunctions"):
    _space = private(f"torch._C.{_name}", "run functions of loaded histories again", _ABSENT)
    if _space is not _ABSENT:
        FUNCTION_NAMESPACES[f"torch._C.{_name}"] = _space
# The modules that define the Python functions in `FUNCTION_NAMESPACES`.
FUNCTION_MODULES = frozenset(
    "torch.nn.functional torch.functional torch.nn.init torch._tensor torch._lobpcg torch._lowrank torch.sparse torch.nested "
    "torch.linalg torch.special torch.fft".split()
)

# The containers registered with torch's pytree, by class. If torch lacks the name, only Python's containers and ours count.
registered_containers: dict[type, Any] = private(
    "torch.utils._pytree.SUPPORTED_NODES",
    "find tensors in containers that were registered with torch's pytree",
    {},
    "tensors in containers that were registered with torch's pytree are not found",
)

# Other processes ---------------------------------------------------------------------------------------------------------

_UNCOUNTED: Final = "collectives that no torch function announces (inside DTensor, FSDP) are not noticed"
_world: Any = (
    private("torch.distributed.distributed_c10d._world", "count collectives", _ABSENT, _UNCOUNTED)
    if torch.distributed.is_available()
    else _ABSENT
)


def count_collectives() -> int:
    """Count the collectives that this process took part in, over all process groups that count them."""
    total = 0
    for group in list(getattr(_world, "pg_map", ())):
        try:
            total += group._get_sequence_number_for_group()
        except (RuntimeError, AttributeError):  # a backend without a count
            continue
    return total


# Modules -----------------------------------------------------------------------------------------------------------------


_a_module: Final = Module()
# Names in a module's `__dict__`.
PARAMETERS: Final = "_parameters"
BUFFERS: Final = "_buffers"
MODULES: Final = "_modules"
NON_PERSISTENT: Final = "_non_persistent_buffers_set"  # the attribute with the names of the buffers that `state_dict` omits
# The attribute in which a wrapper, by class, holds the model. It appears in the names of `named_modules`.
WRAPPED_AS: Final = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}


def _own(path: str, use: str, read: Callable[[Module], Iterator[tuple[str, Any]]]) -> Callable[[Module], dict[str, Any]]:
    return _attribute(_a_module, path, use, lambda module: dict(read(module)))


# What a module registers itself (not its submodules), by name.
own_parameters: Callable[[Module], dict[str, Any]] = _own(
    "torch.nn.Module._parameters", "read parameters", lambda m: m.named_parameters(recurse=False, remove_duplicate=False)
)
own_buffers: Callable[[Module], dict[str, Any]] = _own(
    "torch.nn.Module._buffers", "read buffers", lambda m: m.named_buffers(recurse=False, remove_duplicate=False)
)
own_modules: Callable[[Module], dict[str, Any]] = _own("torch.nn.Module._modules", "find submodules", Module.named_children)
# The forward hooks of a module, by id. Without them the hooks of taps run after the model's own hooks.
forward_hooks_of: Callable[[Module], dict[int, Any]] = _attribute(
    _a_module, "torch.nn.Module._forward_hooks", "run its hooks before the model's own", lambda module: {}
)
forward_pre_hooks_of: Callable[[Module], dict[int, Any]] = _attribute(
    _a_module, "torch.nn.Module._forward_pre_hooks", "run its hooks before the model's own", lambda module: {}
)
_backward_hooks_of: Callable[[Module], dict[int, Any]] = _attribute(
    _a_module, "torch.nn.Module._backward_hooks", "know whether hooks change gradients", lambda module: {}
)
_backward_pre_hooks_of: Callable[[Module], dict[int, Any]] = _attribute(
    _a_module, "torch.nn.Module._backward_pre_hooks", "know whether hooks change gradients", lambda module: {}
)


def backward_hooks_of(module: Module) -> list[Any]:
    """The backward hooks and backward pre-hooks of a module."""
    return [*_backward_hooks_of(module).values(), *_backward_pre_hooks_of(module).values()]


def is_replica(module: Module) -> bool:
    """True for a copy of a module that `DataParallel` runs on another thread."""
    return bool(getattr(module, "_is_replica", False))


def module_call_codes() -> Iterator[CodeType]:
    """The code objects of `nn.Module`'s call machinery, whose frames lie between a module's `forward` and its caller."""
    methods = (_called_first, _called_next, _called_when_tracing)
    named = [code for method in methods if (code := getattr(method, "__code__", None)) is not None]
    for code in named if len(named) == len(methods) else (*named, *_codes_around_a_call()):
        yield code
        yield from (inner for inner in code.co_consts if isinstance(inner, CodeType))


_PARTS: Final = "tell the frames of a module call from those of the model"
_called_first: Any = private("torch.nn.Module._wrapped_call_impl", _PARTS, _ABSENT)
_called_next: Any = private("torch.nn.Module._call_impl", _PARTS, _ABSENT)
_called_when_tracing: Any = private("torch.nn.Module._slow_forward", _PARTS, _ABSENT)


def _codes_around_a_call() -> list[CodeType]:
    """Call a module to find the code objects of the frames between a module's `forward` and its caller."""
    codes: list[CodeType] = []
    here = sys._getframe().f_code

    class Probe(Module):
        def forward(self) -> None:
            frame = sys._getframe(1)
            while frame.f_code is not here and frame.f_back is not None:
                codes.append(frame.f_code)
                frame = frame.f_back

    Probe()()
    return codes


@cleaning
def global_module_hooks(enter: Callable[..., Any], leave: Callable[..., Any], *, always: bool = True) -> Iterator[None]:
    """Inside this block, `enter` is called before each module's forward and `leave` after it; with `always`, also if it
    raised.

    torch (2.6 to 2.15) leaves the id of a removed hook in one of its dictionaries; it is removed here, too.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(_modules.register_module_forward_pre_hook(enter).remove)
        after = _modules.register_module_forward_hook(leave, with_kwargs=True, always_call=always)
        undo.callback(getattr(_modules, "_global_forward_hooks_with_kwargs", {}).pop, after.id, None)
        undo.callback(after.remove)
        yield


def has_global_pre_hooks() -> bool:
    """True if a global forward pre-hook is registered, or if torch does not say."""
    return bool(getattr(_modules, "_global_forward_pre_hooks", True))


# Compiled code -----------------------------------------------------------------------------------------------------------


def may_be_compiled() -> bool:
    """True if torch.compile may be in use in this process, also through `flex_attention`. Only then its compiler is
    imported.
    """
    return "torch._dynamo.eval_frame" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules


def is_of_compiler(error: BaseException) -> bool:
    """True for an error that the compiler of torch.compile raised."""
    return type(error).__module__.startswith("torch._dynamo")


def is_compiled(module: Module) -> bool:
    """True for the result of `torch.compile(module)`, after `module.compile()`, and if `forward` was compiled."""
    if getattr(module, COMPILED_CALL, None) is not None or hasattr(module, WRAPPED_AS["OptimizedModule"]):
        return True
    return hasattr(module.forward, "_torchdynamo_orig_callable")


def watch_compiled_call(module: Module, before: Callable[..., Any], after: Callable[..., Any]) -> Callable[[], None] | None:
    """Call `before(module, args, kwargs)` and `after(module, args, output)` around a module that `module.compile()` compiled.

    Returns a function that removes the two; None if the module is not compiled in this way.
    """
    compiled = getattr(module, COMPILED_CALL, None)
    if compiled is None:
        return None

    def watched(*args: Any, **kwargs: Any) -> Any:
        before(module, args, kwargs)
        output = compiled(*args, **kwargs)
        after(module, args, output)
        return output

    def end() -> None:
        if getattr(module, COMPILED_CALL, None) is watched:  # otherwise it was compiled again
            setattr(module, COMPILED_CALL, compiled)

    setattr(module, COMPILED_CALL, watched)
    return end


COMPILED_CALL: Final = "_compiled_call_impl"  # the attribute that `module.compile()` sets


def is_inside_compiled_code() -> bool:
    """True if code that torch.compile is compiling made this call: torch would compile the caller, too.

    If torch lacks the private name, this returns False, and torch raises an error when a stance is set there.
    """
    if torch.compiler.is_dynamo_compiling():  # torch.compile reads this function itself
        return True
    if not may_be_compiled():
        return False
    callback = _compiling_callback()()
    return callback is not None and callback is not False


def compiled_and_disabled_functions() -> tuple[set[int], set[int]]:
    """Return the ids of the code objects of wrappers by torch.compile, and those of wrappers by torch.compiler.disable.

    Both are empty if nothing is compiled, or after `torch.compiler.set_stance("force_eager")`.
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None or getattr(getattr(compiler, "_stance", None), "stance", None) == "force_eager":
        return set(), set()
    compiled, disabled = (
        {id(code) for code in context().__call__.__code__.co_consts if isinstance(code, CodeType)}
        for context in (_compiling_context, _disabling_context)
    )
    return compiled, disabled


class _NoContext:
    def __call__(self) -> None:
        """Replaces torch's dictionary of wrappers: contains no function, so nothing counts as compiled."""


_compiling_callback = _later(
    "torch._C._dynamo.eval_frame.get_eval_frame_callback", "refuse to log inside compiled code", lambda: None
)
_NOTICE: Final = "notice that compiled code calls xray.step()"
_compiling_context = _later("torch._dynamo.eval_frame._TorchDynamoContext", _NOTICE, _NoContext)
_disabling_context = _later("torch._dynamo.eval_frame.DisableContext", _NOTICE, _NoContext)


@cleaning
def run_uncompiled(*, has_wrappers: bool = False) -> Iterator[None]:
    """Inside this block, compiled code runs uncompiled.

    With `has_wrappers`, torch's warning that global hooks also fire for the wrapper of a compiled module is silenced.
    """
    if not may_be_compiled():
        yield
        return
    with contextlib.ExitStack() as undo:
        undo.enter_context(_eagerly())
        if has_wrappers:
            undo.enter_context(hooks_on_wrappers())
        yield


# A warning of torch 2.12, once in a process, when code compiled with `fullgraph=True` runs uncompiled.
_NOT_COMPILED: Final = (
    "torch.compile with fullgraph=True found no compiled frames. The frame was likely skipped (e.g., a non-infra torch "
    "dispatch mode was active, dynamo was disabled, or the frame was skipped. This may become an error in the future."
)
_said_once = _later("torch._dynamo.utils.warn_once_cache", "keep a warning of torch 2.12 away that is for others", set())


@shared
def _eagerly() -> Iterator[None]:
    """Inside this block, torch's stance, which all threads share, is "force_eager"."""
    stance, said = torch.compiler.set_stance("force_eager"), _said_once()
    keeps_quiet = _NOT_COMPILED not in said
    said.add(_NOT_COMPILED)
    yield
    stance.__exit__(None, None, None)
    if keeps_quiet:
        said.discard(_NOT_COMPILED)


@cleaning
def hooks_on_wrappers() -> Iterator[None]:
    """Inside this block, torch does not warn that global hooks also fire for the wrapper of a compiled module."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*there are global hooks on modules")
        yield


# Functions of the user ---------------------------------------------------------------------------------------------------

# maps (id of a code object, method name) to the code object, to keep it alive, and the answer of `is_of_custom_function`
_CUSTOM: dict[tuple[int, str], tuple[CodeType, bool]] = {}


def forget_custom_functions() -> None:
    """Clear the cache when a recording begins: a class defined since may use code that was cached."""
    _CUSTOM.clear()


def is_of_custom_function(code: CodeType, method: str) -> bool:
    """True for the code of a `torch.autograd.Function`'s method (`forward`, `backward`), or of a function that its
    decorators wrap.

    A frame of `Function.apply` would be simpler to detect, but from torch 2.14 on `apply` is a builtin without a frame.
    """
    known = _CUSTOM.get((id(code), method))
    if known is None:
        known = _CUSTOM[id(code), method] = (code, any(code is one for one in _codes_of_custom_functions(method)))
    return known[1]


def _codes_of_custom_functions(name: str) -> Iterator[CodeType]:
    classes: list[type] = [torch.autograd.Function]
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        method: Any = vars(cls).get(name)
        while method is not None:
            method = getattr(method, "__func__", method)  # the function of a static method
            code = getattr(method, "__code__", None) or getattr(type(method).__call__, "__code__", None)
            if code is not None:
                yield code
            # the function inside a decorator or partial
            method = getattr(method, "__wrapped__", None) or getattr(method, "func", None)
