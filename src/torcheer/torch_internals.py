"""The parts of torch that are not public API and that torcheer uses. No other file may name them; a test looks.

Each was tried on torch 2.13, and says what would be lost, or what to do instead, where a later torch has it no more.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn.modules import module as _modules
from torch.utils import _python_dispatch, _pytree

from .cleaning import cleaning

# Modes -------------------------------------------------------------------------------------------------------------------

# Inside, torch functions are not handed to modes and subclasses (public: `torch.overrides`' own is only for subclasses).
# Without it every question asked of a tensor would be recorded: modes would have to be popped and pushed around it.
DisableTorchFunction = torch._C.DisableTorchFunction
# Inside, tensor subclasses behave as plain tensors. Without it: `tensor.as_subclass(Tensor)` first.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
# The stack of function modes. Entering and leaving a `TorchFunctionMode` does the same with more checks.
push_function_mode: Callable[[Any], None] = torch._C._push_on_torch_function_stack
pop_function_mode: Callable[[], Any] = torch._C._pop_torch_function_stack
count_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
function_modes: Callable[[], list[Any]] = torch.overrides._get_current_function_mode_stack
# What subclasses have that do not override torch functions. Without it they are treated as if they did.
disabled_torch_function: Any = torch._C._disabled_torch_function_impl
# Sees ATen operators. Without it fused attention is one operation of an opaque module.
TorchDispatchMode = _python_dispatch.TorchDispatchMode
current_dispatch_mode: Callable[[], Any] = _python_dispatch._get_current_dispatch_mode
# Inside, no mode is active. Without it a validation inside another recording is seen by that recording.
without_modes: Callable[[], Any] = _python_dispatch._disable_current_modes
_count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_NO_MODES: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def outside_dispatch_modes() -> Any:
    """Inside, the dispatch modes of the user's program are off: a mode that fakes or counts is not to see our copies."""
    return without_modes() if _count_dispatch_modes() else _NO_MODES


is_traceable_wrapper_subclass: Callable[[Any], bool] = _python_dispatch.is_traceable_wrapper_subclass
# Whether autocast is on for any device. Without it: `torch.is_autocast_enabled(device)` of each, slower.
is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled

# Memory ------------------------------------------------------------------------------------------------------------------

# The address of a tensor's storage, in a third of the time of `tensor.untyped_storage()._cdata`, which is the same number.
storage_address: Callable[[Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]  # not in torch's stubs
# How many tensors share a storage. Without it memory that is held by others could not be told from memory that is ours.
storage_use_count: Callable[[int], int] = torch._C._storage_Use_Count


def address_of(storage: torch.UntypedStorage) -> int:
    """What torch knows a storage by: `storage_address` of its tensors."""
    address: int = storage._cdata
    return address


# Where the first element of a tensor is, without making a lazy copy a real one; before torch 2.12 there is only `data_ptr`.
pointer_of: Callable[[Tensor], int] = getattr(Tensor, "const_data_ptr", Tensor.data_ptr)


def cuda_is_used() -> bool:
    """Whether this process has used CUDA. Public, but without types."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


# A view whose values are the negative ones, as `.imag` of a conjugated tensor is. Without it such a view comes back as a copy.
negated_view: Callable[[Tensor], Tensor] = torch._neg_view


def nested_parts(tensor: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """What a nested tensor is made of: facts and strided tensors; None for a kind that is not known.

    Without these a nested tensor could not be saved.
    """
    whole: Any = tensor
    if type(tensor) is Tensor and tensor.layout is torch.strided:
        parts = {"sizes": whole._nested_tensor_size(), "strides": whole._nested_tensor_strides()}
        return {"layout": "strided"}, parts | {"offsets": whole._nested_tensor_storage_offsets(), "values": tensor.values()}
    if tensor.layout is torch.jagged and type(tensor).__module__.startswith("torch.nested."):
        parts = {"values": whole._values.detach(), "offsets": whole._offsets}
        if whole._lengths is not None:
            parts["lengths"] = whole._lengths
        return {"layout": "jagged", "ragged": int(whole._ragged_idx)}, parts
    return None


def nested_from_parts(facts: dict[str, Any], parts: dict[str, Tensor]) -> Tensor:
    """The nested tensor that `nested_parts` took apart."""
    if facts.get("layout") == "jagged":
        lengths = parts.get("lengths")
        return torch.nested.nested_tensor_from_jagged(parts["values"], parts["offsets"], lengths, jagged_dim=facts["ragged"])
    view: Callable[..., Tensor] = torch._nested_view_from_buffer
    sizes, strides, offsets, values = (parts[key] for key in ("sizes", "strides", "offsets", "values"))
    reach = offsets + ((sizes - 1).clamp_min(0) * strides).sum(-1)
    is_inside = values.dim() == 1 and bool((reach < values.numel()).all()) and bool((offsets >= 0).all())
    if sizes.shape != strides.shape or not is_inside or bool((sizes < 0).any()) or bool((strides < 0).any()):
        raise ValueError("the parts of a nested tensor do not fit together")
    return view(values, sizes, strides, offsets)


def quantised_from_parts(values: Tensor, dtype: torch.dtype, scales: tuple[Any, ...]) -> Tensor:
    """A quantised tensor from its integers and, for the whole tensor or by channel, its scales and zero points."""
    make = torch._make_per_tensor_quantized_tensor if len(scales) == 2 else torch._make_per_channel_quantized_tensor
    if len(scales) == 3 and not (scales[0].dim() == 1 == scales[1].dim() and scales[2] < values.dim()):
        raise ValueError("the scales of a quantised tensor do not fit it")
    made: Tensor = make(values, *scales)
    if made.dtype != dtype:
        raise ValueError("the integers of a quantised tensor are not of its type")
    return made


# TorchScript ------------------------------------------------------------------------------------------------------------


def writes_in_place(module: Any) -> bool:
    """Whether a TorchScript module calls a function that writes in place. Without its graph, as of a frozen one: True."""
    try:
        return re.search(r"::\w+_\(", str(module.inlined_graph)) is not None
    except (AttributeError, RuntimeError):
        return True


# What autograd saved -----------------------------------------------------------------------------------------------------

_SAVED: dict[type, list[str]] = {}  # by class of nodes: the attributes that hold what was saved


def saved_by(node: Any) -> Iterator[tuple[Any, Tensor]]:
    """What a node of autograd saved for its backward: torch's `SavedTensor`s, and the tensors in them.

    Without those that hooks packed, which only hooks unpack. Seen in torch 2.13. Where a `SavedTensor` has no `data`, nothing
    is found, and memory that is restored before a backward pass gives wrong gradients.
    """
    cls = type(node)
    names = _SAVED.get(cls)
    if names is None:
        names = _SAVED[cls] = [name for name in dir(node) if name.startswith("_raw_saved_")]
    for name in names:
        try:
            found = getattr(node, name)
        except RuntimeError:  # a backward pass has freed them
            continue
        for one in found if isinstance(found, (tuple, list)) else (found,):
            try:
                tensor = one.data if getattr(one, "unpack_hook", None) is None else None
            except (RuntimeError, AttributeError):
                continue
            if isinstance(tensor, Tensor):
                yield one, tensor


# Transforms of torch.func ------------------------------------------------------------------------------------------------

# Tensors inside vmap, grad and jvp wrap others. Without these, what happens inside a transform cannot be followed.
is_functorch_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
functorch_unwrapped: Callable[[Tensor], Tensor] = torch._C._functorch.get_unwrapped
is_legacy_batched: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor  # is_grads_batched=True


def without_transforms() -> Any:
    """Inside, no transform of torch.func runs, so new tensors are not wrapped. Without it, what one made cannot be streamed."""
    if not is_transforming():
        return contextlib.nullcontext()
    return torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack()


def is_transforming() -> bool:
    """Whether a transform of torch.func is running."""
    return torch._C._functorch.maybe_current_level() is not None


def is_inside_vmap() -> bool:
    """Whether one of the transforms that are running is vmap."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return any(transform.key() == torch._C._functorch.TransformType.Vmap for transform in transforms)


# Autograd ----------------------------------------------------------------------------------------------------------------

# The number that the next node gets; nodes of one thread are numbered in the order they are made. Without it watch_modules
# could not tell which nodes a module made, other than by walking the graph.
next_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]  # not in torch's stubs
# The number of the backward pass that is running, -1 outside. Without it passes that nest could not be told apart.
current_graph_task: Callable[[], int] = torch._C._current_graph_task_id
# The class of the nodes that add up gradients of leaves. Without it: by the name of the class.
AccumulateGrad: type = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]  # not in torch's stubs


def count_writes_as(tensor: Tensor, count: int) -> None:
    """Make torch count that many writes to a tensor (`tensor._version`), after a write that was taken back.

    Without it earlier histories, and graphs of autograd that saved the tensor, take it for changed. Functional tensors are left
    as they are: they share the count with a tensor that torch writes to later.
    """
    if not torch._is_functional_tensor(tensor):
        torch._C._autograd._unsafe_set_version_counter((tensor,), (count,))


# Calls a function when the backward pass that is running is over. Without it that shows only when somebody asks.
after_this_backward: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback


def autograd_node_class(name: str) -> type | None:
    """The class of autograd's nodes of this name (`"MulBackward0"`); its attributes `_saved_…` say what it saves."""
    return getattr(torch._C._functions, name, None)


# Operators ---------------------------------------------------------------------------------------------------------------

OpOverload = torch._ops.OpOverload  # `torch.ops.aten.add.Tensor`
OpOverloadPacket = torch._ops.OpOverloadPacket  # `torch.ops.aten.add`
FunctionSchema = torch._C.FunctionSchema
# All operators, as "aten::add.Tensor", and the schemas of one. Without them what functions write, return as views and
# draw would have to be listed by hand.
operator_names: Callable[[], list[str]] = torch._C._dispatch_get_all_op_names
schemas_for: Callable[[str], list[Any]] = torch._C._jit_get_schemas_for_operator
C_MODULE = "torch._C"  # the `__module__` of objects of torch's C++ part
TENSOR_MODULE = "torch._tensor"  # the `__module__` of operators that torch.Tensor defines in Python


# Where torch keeps the functions that a saved history may call, by the name they are written down under. Without the private
# ones functions such as `F.gelu` could be shown, but not run again.
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
    **{
        f"torch._C.{name}": getattr(torch._C, name)
        for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested", "_VariableFunctions")
        if hasattr(torch._C, name)
    },
}
# The modules that these functions are defined in, where they are Python.
FUNCTION_MODULES = frozenset(
    "torch.nn.functional torch.functional torch.nn.init torch._tensor torch._lobpcg torch._lowrank torch.sparse torch.nested "
    "torch.linalg torch.special torch.fft".split()
)
OpNamespace = torch._ops._OpNamespace  # `torch.ops.aten`

# Containers that programs register to be walked. Without it only Python's own containers, and ours, are walked.
pytree = _pytree

# Other processes ---------------------------------------------------------------------------------------------------------


def count_collectives() -> int:
    """How many collectives this process took part in, over all process groups that count them.

    Without it collectives that no torch function announces are not noticed.
    """
    total = 0
    for group in list(torch.distributed.distributed_c10d._world.pg_map):
        try:
            total += group._get_sequence_number_for_group()  # type: ignore[attr-defined]  # not in torch's stubs
        except RuntimeError:  # a backend that does not count
            continue
    return total


# Modules and compiled code -----------------------------------------------------------------------------------------------


@cleaning
def global_module_hooks(enter: Callable[..., Any], leave: Callable[..., Any], *, always: bool = True) -> Iterator[None]:
    """Inside, `enter` is called before each module's forward and `leave` after it; with `always`, also where it raised.

    Removing such a hook leaves its number in one of torch's dictionaries (torch 2.13), which is removed here, too.
    """
    before = _modules.register_module_forward_pre_hook(enter)
    after = _modules.register_module_forward_hook(leave, with_kwargs=True, always_call=always)
    yield
    before.remove()
    after.remove()
    getattr(_modules, "_global_forward_hooks_with_kwargs", {}).pop(after.id, None)


def has_global_pre_hooks() -> bool:
    """Whether somebody watches every module's forward before it runs."""
    return bool(_modules._global_forward_pre_hooks)


def may_be_compiled() -> bool:
    """Whether torch.compile can be at work in this process, as in `flex_attention`; its compiler is imported only then."""
    return "torch._dynamo.eval_frame" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules


def is_of_compiler(error: BaseException) -> bool:
    """Whether the compiler of torch.compile raised an error."""
    return type(error).__module__.startswith("torch._dynamo")


def index_by_tensors() -> Any:
    """Inside, `table[i]` works in `vmap` where `i` is a tensor, as functions given to `flex_attention` may write it.

    Without it such a function would have to be called with each index.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # its import takes a second

    return TransformGetItemToIndex()


def is_inside_compiled_code() -> bool:
    """Whether code that torch.compile compiles made this call: torch would compile what runs now, too.

    Without it, torch says that a stance cannot be set there.
    """
    if torch.compiler.is_dynamo_compiling():  # it reads this function itself
        return True
    callback = torch._C._dynamo.eval_frame.get_eval_frame_callback() if may_be_compiled() else None
    return callback is not None and callback is not False


def compiled_and_disabled_functions() -> tuple[set[int], set[int]]:
    """The code, by `id`, of the functions that torch.compile puts around others, and that torch.compiler.disable does.

    Both are empty where nothing is compiled: nothing was yet, or `torch.compiler.set_stance("force_eager")` was called. Without
    it, a frame of a file of torch's compiler tells of either.
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None or compiler._stance.stance == "force_eager":
        return set(), set()
    compiled, disabled = (
        {id(code) for code in context.__call__.__code__.co_consts if isinstance(code, CodeType)}
        for context in (compiler._TorchDynamoContext, compiler.DisableContext)
    )
    return compiled, disabled


@cleaning
def run_uncompiled(*, has_wrappers: bool = False) -> Iterator[None]:
    """Inside, compiled code runs as it is written.

    With `has_wrappers` torch's warning is silenced that global hooks also fire for the wrapper around a compiled module.
    """
    if not may_be_compiled():
        yield
        return
    _eager.begin()
    if has_wrappers:
        with hooks_on_wrappers():
            yield
    else:
        yield
    _eager.end()


class _Eager:
    """Sets torch's stance, which is one for all threads, while anybody wants it; the last one to end puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._stance: Any = None

    def begin(self) -> None:
        with self._lock:
            if self._running == 0:
                self._stance = torch.compiler.set_stance("force_eager")
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._stance.__exit__(None, None, None)
                self._stance = None


_eager = _Eager()


@cleaning
def hooks_on_wrappers() -> Iterator[None]:
    """Inside, torch does not warn that global hooks also fire for the wrapper around a compiled module."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*there are global hooks on modules")
        yield
