"""What each torch function is: an operation, a query, an escape to Python, or a composite to be opened.

Nearly everything is derived: from torch's own operator schemas (what is written, what is returned), from names
(`add_`, `__iadd__`, `out=`), and from how a Python function is written (whether it asks `has_torch_function`).
The tables below hold only what cannot be derived. Facts about torch's own functions are worked out once per process.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..records import Kind, TorchFunction

Writes = Callable[[tuple[Any, ...], dict[str, Any]], list[Any]]

# Properties that return a tensor; every other property read is a query.
TENSOR_PROPERTIES = frozenset({"T", "H", "mT", "mH", "real", "imag", "data", "grad", "_grad"})

# Where values leave torch for Python.
ESCAPES = frozenset(
    "__bool__ __float__ __int__ __index__ __complex__ __contains__ __array__ __dlpack__ "
    "item tolist numpy is_nonzero equal allclose".split()
)

# Functions that concern a tensor but neither compute nor hand out its values, and that no schema describes.
QUERIES = frozenset(
    "dim ndimension numel nelement size stride storage_offset element_size get_device storage untyped_storage "
    "data_ptr const_data_ptr is_contiguous is_pinned is_shared is_floating_point is_complex is_signed is_inference is_conj "
    "is_neg is_distributed is_same_size has_names names is_set_to _is_view _is_zerotensor _nnz sparse_dim dense_dim "
    "is_coalesced qscheme q_scale q_zero_point q_per_channel_axis is_sparse result_type can_cast promote_types iinfo finfo "
    "__len__ __repr__ __str__ __format__ __hash__ __dir__ __reduce_ex__ __reduce__ __setstate__ __dlpack_device__ "
    "__cuda_array_interface__ requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook share_memory_ "
    "_set_grad_enabled set_grad_enabled is_tensor is_storage _has_compatible_shallow_copy_type _typed_storage "
    "_reduce_ex_internal has_torch_function set_default_device get_default_device set_default_dtype get_default_dtype "
    "is_grad_enabled".split()
)

BACKWARD = frozenset({"backward"})

# Composites by the rule (Python around other calls) that a person means as one operation, and that make exactly
# one inner operation. `tests/test_functions.py` opens each of them and counts.
SINGLE: frozenset[Callable[..., Any]] = frozenset(
    getattr(owner, name)
    for owner, names in (
        (
            F,
            "relu relu6 leaky_relu elu selu celu silu mish hardtanh hardswish hardsigmoid glu rrelu threshold tanh sigmoid "
            "softmax log_softmax dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout batch_norm "
            "instance_norm layer_norm group_norm rms_norm max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
            "adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool2d adaptive_avg_pool3d interpolate pad grid_sample "
            "affine_grid unfold fold cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div "
            "ctc_loss hinge_embedding_loss cosine_embedding_loss margin_ranking_loss multi_margin_loss "
            "triplet_margin_loss poisson_nll_loss bilinear",
        ),
        (
            torch,
            "einsum tensordot cdist meshgrid norm split broadcast_tensors istft unique unique_consecutive lu_unpack",
        ),
        (Tensor, "split norm unflatten unique"),
    )
    for name in names.split()
    if hasattr(owner, name)
)

_GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_COMMUTATIVE = {"radd": "add", "rmul": "mul", "rand": "and", "ror": "or", "rxor": "xor"}
_FACTS: dict[Any, TorchFunction] = {}
_OPEN_GLOBALS: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}


def describe(func: Any) -> TorchFunction:
    """What `func` is. Facts about torch's own functions are remembered; those about other people's are not."""
    try:
        facts = _FACTS.get(func)
    except TypeError:  # an unhashable callable
        return _classify(func)
    if facts is None:
        facts = _classify(func)
        if _belongs_to_torch(func):
            _FACTS[func] = facts
    return facts


def label_type(name: str) -> str:
    """How labels spell a function: `max_pool2d` is `maxpool2d`; `__add__`, `add_` and `__iadd__` are `add`."""
    bare = name.strip("_")
    if name.startswith("__") and name.endswith("__"):
        if bare.startswith("i") and hasattr(Tensor, f"__{bare[1:]}__") and bare[1:]:
            bare = bare[1:]
        bare = {"truediv": "div", "rtruediv": "rdiv", "floordiv": "floordivide"}.get(bare, bare)
        bare = _COMMUTATIVE.get(bare, bare)
    return bare.replace("_", "").lower() or "function"


def opened_copy(func: types.FunctionType) -> Callable[..., Any]:
    """`func` again, except that it runs its own body instead of handing the call to the mode.

    Its globals answer False when asked whether anybody overrides torch functions. The copy shares code, defaults
    and closure with the original; nothing of torch is touched.
    """
    source = func.__globals__
    kept = _OPEN_GLOBALS.get(id(source))
    if kept is None:
        answers_no = dict.fromkeys(_GUARDS, _nobody_overrides)
        kept = _OPEN_GLOBALS[id(source)] = (source, {**source, **answers_no})
    copy = types.FunctionType(func.__code__, kept[1], func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _nobody_overrides(*_: Any) -> bool:
    return False


def _classify(func: Any) -> TorchFunction:
    name = _name(func)
    kind = _kind(func, name)
    opened = opened_copy(func) if kind is Kind.COMPOSITE else None
    written = _written(func, name) if kind in (Kind.OPERATION, Kind.COMPOSITE) else None
    is_attribute = getattr(func, "__name__", None) == "__get__"
    aside = written in (_running_statistics, _native_running_statistics)
    return TorchFunction(func, name, label_type(name), kind, written, opened, is_attribute=is_attribute, writes_aside=aside)


def _name(func: Any) -> str:
    name = getattr(func, "__name__", None) or type(func).__name__
    if name in ("__get__", "__set__", "__delete__"):
        owner = getattr(func, "__self__", None)
        attribute = str(getattr(owner, "__name__", None) or getattr(getattr(owner, "fget", None), "__name__", "property"))
        return attribute if name == "__get__" else f"set_{attribute}"
    if isinstance(func, torch._ops.OpOverload):
        return str(func.overloadpacket.__name__)
    return str(name)


def _kind(func: Any, name: str) -> Kind:
    if getattr(func, "__name__", None) == "__get__":
        return Kind.OPERATION if name in TENSOR_PROPERTIES else Kind.QUERY
    if getattr(func, "__name__", None) in ("__set__", "__delete__"):
        return Kind.OPERATION if name == "set_data" else Kind.QUERY
    if name in BACKWARD:
        return Kind.BACKWARD
    if name in ESCAPES:
        return Kind.ESCAPE
    if name in QUERIES:
        return Kind.QUERY
    if isinstance(func, types.FunctionType):
        if func in SINGLE or func is torch.autograd.grad or (name.startswith("__") and func.__module__ == "torch._tensor"):
            return Kind.OPERATION  # an operator, such as 1 / x, is one operation to whoever wrote it
        asks = set(func.__code__.co_names) & set(_GUARDS)
        return Kind.COMPOSITE if asks and asks & set(func.__globals__) else Kind.OPERATION
    schemas = _schemas(func, name)
    if schemas and all(_makes_no_tensor(schema) for schema in schemas):
        return Kind.QUERY
    return Kind.OPERATION


def _schemas(func: Any, name: str) -> list[Any]:
    if isinstance(func, torch._ops.OpOverload):
        return [func._schema]
    if isinstance(func, torch._ops.OpOverloadPacket):
        return [getattr(func, overload)._schema for overload in list(func.overloads())]  # type: ignore[no-untyped-call]  # torch's own
    if name.startswith("__"):  # TorchScript has operators of the same name for lists and strings
        return []
    if isinstance(func, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return list(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))
    return []


def _makes_no_tensor(schema: Any) -> bool:
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments):
        return False
    return bool(schema.returns) and all("Tensor" not in str(result.type) for result in schema.returns)


# What a call writes into besides what it returns -----------------------------------------------------------------


def _written(func: Any, name: str) -> Writes | None:
    """A function from a call's arguments to the tensors it overwrites, or None when it never does."""
    if name == "set_data" or (name.startswith("__i") and label_type(name) != name.strip("_")) or name == "__setitem__":
        return _first_argument
    if name in ("batch_norm", "instance_norm") and isinstance(func, types.FunctionType):
        return _running_statistics
    if name in ("batch_norm", "instance_norm", "native_batch_norm"):
        return _native_running_statistics
    positions, names = set(), set()
    for schema in _schemas(func, name):
        if schema.name.endswith("_out") or any(argument.is_out for argument in schema.arguments):
            continue
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                positions.add(position)
                names.add(argument.name)
    if positions:
        return _Marked(tuple(sorted(positions)), frozenset(names))
    if name.endswith("_") and not name.endswith("__"):
        return _first_argument
    return None


def _first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    if args:
        return [args[0]]
    return [next(iter(kwargs.values()))] if kwargs else []


def out_or_inplace(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What any call may ask to be written: `out=`, `inplace=True`."""
    out = kwargs.get("out")
    if out is not None:
        return [out] if isinstance(out, Tensor) else list(out)
    if kwargs.get("inplace"):
        return [args[0]] if args else [kwargs["input"]]
    return []


def written_by(function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors a call writes to."""
    return function.written(args, kwargs) if function.written is not None else out_or_inplace(args, kwargs)


def _running_statistics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    updates = kwargs.get("training", kwargs.get("use_input_stats", args[5] if len(args) > 5 else False))
    if not updates:
        return []
    named = (kwargs.get("running_mean"), kwargs.get("running_var"))
    return [t for t in (*args[1:3], *named) if t is not None]


def _native_running_statistics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    updates = kwargs.get("training", kwargs.get("use_input_stats", args[5] if len(args) > 5 else False))
    named = (kwargs.get("running_mean"), kwargs.get("running_var"))
    return [t for t in (*args[3:5], *named) if t is not None] if updates else []


class _Marked:
    """The arguments torch's schema marks as written, and `out=`."""

    def __init__(self, positions: tuple[int, ...], names: frozenset[str]) -> None:
        self.positions = positions
        self.names = names

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        found = [args[p] for p in self.positions if p < len(args)]
        found += [kwargs[n] for n in self.names if n in kwargs]
        flat: list[Any] = []
        for value in found:
            flat.extend(value if isinstance(value, (list, tuple)) else [value])
        return [t for t in flat if isinstance(t, Tensor)] + (out_or_inplace(args, kwargs) if kwargs else [])


def _belongs_to_torch(func: Any) -> bool:
    if isinstance(func, types.FunctionType):
        return func.__module__ is not None and (func.__module__ == "torch" or func.__module__.startswith("torch."))
    return True
