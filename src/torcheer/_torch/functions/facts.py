"""The table of facts about torch's functions: `facts(func)` returns the facts of one function.

Its kind (operation, query, Python read, composite), whether it returns a view, draws random numbers or writes to its
arguments, its category, and more. Nearly all is derived from torch's schemas and tags.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..internals import TENSOR_MODULE
from . import groups
from .collectives import LOCAL, is_collective, is_partly_filled, only_sends, written_by_collective, written_unmarked
from .names import function_name, is_inplace_operator, is_reflected, label_type, plain_name
from .schemas import argument_names, aten_schemas, has_out, has_tag, schemas_of, writes
from .structure import Structure

if TYPE_CHECKING:
    from .flops import Formula


class Kind(enum.IntEnum):
    """How a call of a torch function is recorded."""

    QUERY = 0  # returns facts about a tensor, and makes no tensor
    PYTHON_READ = 1  # returns values of a tensor to Python
    OPERATION = 2
    COMPOSITE = 3  # a Python function around several operations; these operations are recorded
    BACKWARD = 4  # runs autograd, and makes no tensor


class Origin(enum.Enum):
    """Says where a tensor came from."""

    INPUT = "input"  # given to the model
    OPERATION = "operation"  # made by a watched torch function
    OPAQUE = "opaque"  # made by code that cannot be watched, from known inputs
    ALIAS = "alias"  # another view of a recorded tensor, made where it could not be watched
    SOURCE = "source"  # unknown: from a closure, NumPy or another thread
    OUTPUT = "output"  # returned by the model


# Properties that return a tensor; every other property read is a query.
TENSOR_PROPERTIES = frozenset({"T", "H", "mT", "mH", "real", "imag", "data", "grad", "_grad"})

# Functions by which values leave torch for Python.
PYTHON_READS = frozenset(
    "__bool__ __float__ __int__ __index__ __complex__ __contains__ __array__ __dlpack__ "
    "item tolist numpy is_nonzero equal allclose _local_scalar_dense _nested_tensor_from_mask_left_aligned".split()
)

# Functions of a tensor that neither compute nor return its values, and that no schema describes.
QUERIES = frozenset(
    "dim ndimension numel nelement size stride storage_offset element_size get_device storage untyped_storage "
    "data_ptr const_data_ptr is_contiguous is_pinned is_shared is_floating_point is_complex is_signed is_inference is_conj "
    "is_neg is_distributed is_same_size has_names names is_set_to _is_view _is_zerotensor _nnz sparse_dim dense_dim "
    "is_coalesced qscheme q_scale q_zero_point q_per_channel_axis is_sparse result_type can_cast promote_types iinfo finfo "
    "__len__ __repr__ __str__ __format__ __hash__ __dir__ __reduce_ex__ __reduce__ __setstate__ __dlpack_device__ "
    "__cuda_array_interface__ requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook share_memory_ "
    "record_stream _set_grad_enabled set_grad_enabled is_tensor is_storage _has_compatible_shallow_copy_type _typed_storage "
    "_reduce_ex_internal has_torch_function set_default_device get_default_device set_default_dtype get_default_dtype "
    "is_grad_enabled sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum _sym_sqrt autocast".split()
)

# Python functions around other calls that people regard as one operation, and that make exactly one inner operation.
# `tests/functions/test_functions.py` opens each of them and counts.
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

GUARDS = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


def kind_of(func: Any, name: str) -> Kind:
    """The `Kind` of a torch function: how a call of it is recorded."""
    access = getattr(func, "__name__", None)
    if access == "__get__":
        return Kind.OPERATION if name in TENSOR_PROPERTIES else Kind.QUERY
    if access in ("__set__", "__delete__"):
        return Kind.OPERATION if name == "set_data" else Kind.QUERY
    if is_collective(func):
        return Kind.PYTHON_READ if only_sends(func) else Kind.OPERATION
    if name == "backward":
        return Kind.BACKWARD
    if name in PYTHON_READS:
        return Kind.PYTHON_READ
    if name in QUERIES:
        return Kind.QUERY
    if isinstance(func, types.FunctionType):
        if func in SINGLE or func is torch.autograd.grad or (name.startswith("__") and func.__module__ == TENSOR_MODULE):
            return Kind.OPERATION  # an operator, such as 1 / x, is one operation to its author
        asks = GUARDS & set(func.__code__.co_names)
        return Kind.COMPOSITE if asks and asks & set(func.__globals__) else Kind.OPERATION
    schemas = schemas_of(func, name)
    if schemas and all(map(_makes_no_tensor, schemas)):
        return Kind.QUERY
    return Kind.OPERATION


def _makes_no_tensor(schema: Any) -> bool:
    makes_none = bool(schema.returns) and all("Tensor" not in str(result.type) for result in schema.returns)
    return makes_none and not any(map(writes, schema.arguments))


# Copies of torch's Python functions that run their own body, so that the mode sees the calls inside.

_OPEN_GLOBALS: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}


def opened_copy(func: types.FunctionType) -> Callable[..., Any]:
    """Copy a Python function of torch. The copy runs its own body instead of handing the call to the mode.

    In its globals, `has_torch_function` and its variants return False. The copy shares code, defaults and closure with the
    original; nothing of torch is changed.
    """
    source = func.__globals__
    kept = _OPEN_GLOBALS.get(id(source))
    if kept is None:
        kept = _OPEN_GLOBALS[id(source)] = (source, {**source, **dict.fromkeys(GUARDS, lambda *_: False)})
    copy = types.FunctionType(func.__code__, kept[1], func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


# Says, by plain name, whether the result of a function is a view of an argument.

# Functions that return an argument's memory if there is nothing to compute.
_SOMETIMES = groups.CONVERSIONS | groups.RESHAPES | groups.ONE_FOR_EACH | groups.DROPOUTS | groups.HAND_BACK
_RANDOM = groups.SAMPLING | groups.DROPOUTS | groups.RANDOM_BESIDES  # functions that draw random numbers, beyond torch's tags
_MAKERS = groups.CONSTRUCTORS | groups.CONVERSIONS | {"clone", "contiguous", "copy", "complex", "pin_memory"}


@cache
def is_view(name: str) -> bool:
    """True if every overload of a function returns the memory of an argument."""
    if name in groups.UNSCHEMED_VIEWS:
        return True
    if name in _SOMETIMES:
        return False
    schemas = [schema for schema in aten_schemas(name) if not has_out(schema)]
    aliases = [
        any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
        for schema in schemas
        if schema.arguments and "Tensor" in str(schema.arguments[0].type)
    ]
    return bool(aliases) and all(aliases)


# The category of a function: the kind of step it is in a model. Pictures have a colour for each category.

Category = Literal[
    "layer", "attention", "normalisation", "activation", "pooling", "arithmetic", "reduction", "shape", "random", "constant"
]

# The first group that contains a function decides.
_GROUPS: tuple[tuple[Category, frozenset[str]], ...] = (
    ("attention", groups.ATTENTION),
    ("normalisation", groups.NORMALISATIONS),
    ("activation", groups.ACTIVATIONS),
    ("layer", groups.CONVOLUTIONS | groups.QUANTIZED_LINEAR | groups.LOOK_UPS | groups.RECURRENT),
    ("layer", frozenset({"linear", "bilinear", "addmm", "baddbmm", "im2col", "col2im"})),
    ("pooling", groups.POOLING | groups.RESAMPLING),
    ("random", groups.DROPOUTS | groups.SAMPLING),
    ("reduction", groups.LOSSES | groups.REDUCTIONS),
    ("constant", groups.CONSTRUCTORS),
    ("shape", groups.CONVERSIONS | groups.RESHAPES | groups.UNSCHEMED_VIEWS | groups.COPIES | groups.ARRANGEMENTS),
    ("shape", groups.SELECTIONS | groups.OVERWRITES | groups.ONE_FOR_EACH),
)


# Decides from the arguments of a call whether it draws random numbers from the default generator.

Draws = Callable[[tuple[Any, ...], dict[str, Any]], bool]


def _in_training(position: int) -> Draws:
    def draws(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return bool(kwargs.get("training", kwargs.get("train", args[position] if len(args) > position else True)))

    return draws


def _with_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(type(value) is float and value > 0 for value in (*args, *kwargs.values()))


def _attention_with_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Rule for `scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, …)`, where other floats such as
    `scale` must not count.
    """
    dropout = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
    return not isinstance(dropout, (int, float)) or dropout > 0


def _from_the_default(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("generator") is None and not any(type(value) is torch.Generator for value in args)


# plain name -> rule that says from the arguments whether a call draws
_DRAWS: dict[str, Draws] = {
    **dict.fromkeys(
        groups.SAMPLING
        | groups.RANDOM_BESIDES
        | frozenset(
            "normal_functional fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices kaiming_uniform "
            "kaiming_normal xavier_uniform xavier_normal trunc_normal orthogonal sparse".split()
        ),
        _from_the_default,
    ),
    **dict.fromkeys(groups.DROPOUTS, _in_training(2)),
    "rrelu": _in_training(3),
    **dict.fromkeys("rrelu_with_noise rrelu_with_noise_functional".split(), _in_training(4)),
    **dict.fromkeys(
        "lstm gru rnn_tanh rnn_relu scaled_dot_product_flash_attention scaled_dot_product_flash_attention_for_cpu "
        "scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention flash_attention_forward "
        "efficient_attention_forward cudnn_rnn miopen_rnn".split(),
        _with_dropout,
    ),
    **dict.fromkeys("scaled_dot_product_attention scaled_dot_product_attention_math".split(), _attention_with_dropout),
}


def draws_of(plain: str) -> Draws | None:
    """Return a rule that says, from a call's arguments, whether the call draws random numbers; None if no call draws."""
    return _DRAWS.get(plain)


# Decides from the arguments of a call, before it runs, which tensors it writes to.
# torch's schemas mark written arguments. They do not mark running statistics, the weight of an embedding with `max_norm`,
# Python's operators, or Python functions with `inplace=True`: these have rules here.

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Writes = Callable[[Args, Kwargs], list[Any]]


def writes_of(func: Any, name: str, plain: str) -> Writes | None:
    """Make a function from a call's arguments to the tensors it writes to; None if only `out=` and `inplace=True` matter."""
    if is_collective(func):
        return written_by_collective(func)
    if (unmarked := written_unmarked(func)) is not None:
        return unmarked
    if name in ("set_data", "__setitem__") or is_inplace_operator(name):
        return _first_argument
    if name in groups.GRADIENT_SWITCHES:
        return None  # detach_ changes autograd state but no values
    if plain in groups.LOOK_UPS and isinstance(func, types.FunctionType):
        return _renormalised_weight
    positions: dict[int, str] = {}
    names: set[str] = set()
    for schema in schemas_of(func, name):
        for position, argument in enumerate(schema.arguments):
            if not writes(argument):
                continue
            if argument.is_out or argument.kwarg_only:
                names.add(argument.name)
            elif "Tensor" in str(argument.type):
                positions[position] = argument.name
    if _updates_statistics(func, name, plain):
        return _RunningStatistics(func, name, frozenset(names))
    if positions or names - {"out"}:
        scales = "grad_scale" in argument_names(func, name)
        return (_FusedStep if scales else _Marked)(positions, frozenset(names))
    if name.endswith("_") and not name.endswith("__"):
        return _first_argument
    return None


def _updates_statistics(func: Any, name: str, plain: str) -> bool:
    """True for batch norm under all its names, except variants that never update statistics."""
    if plain.endswith(("_backward", "_functional", "_no_update", "_no_training", "_elemt")):
        return False
    return {"running_mean", "running_var"} <= set(argument_names(func, name))


def _first_argument(args: Args, kwargs: Kwargs) -> list[Any]:
    if args:
        return [args[0]]
    given = kwargs.get("self", kwargs.get("input"))
    return [given if given is not None else next(iter(kwargs.values()))] if kwargs else []


def out_or_inplace(args: Args, kwargs: Kwargs) -> list[Any]:
    """The tensors that a function writes to because a caller asked for it: `out=`, `inplace=True`."""
    out = kwargs.get("out")
    if out is not None:
        return [out] if isinstance(out, Tensor) else list(out)
    if kwargs.get("inplace"):
        return _first_argument(args, {name: value for name, value in kwargs.items() if name != "inplace"})
    return []


class _Marked:
    """The arguments that torch's schemas mark as written, and `out=`.

    `positions` maps positions to names. `names` are the keyword-only arguments, such as `values` and `indices` in
    `torch.ops.aten.sort.values(x, values=v, indices=i)`.
    """

    def __init__(self, positions: dict[int, str], names: frozenset[str] = frozenset()) -> None:
        self.positions = tuple(sorted(positions))
        given = set(positions.values()) | names
        self.names = tuple(sorted(given | ({"input"} if "self" in given else set())))  # torch.relu_(input=x)

    def __call__(self, args: Args, kwargs: Kwargs) -> list[Any]:
        found = [args[p] for p in self.positions if p < len(args)]
        if kwargs:
            found += [kwargs[name] for name in self.names if name in kwargs and name != "out"]
        flat: list[Any] = []
        for value in found:
            flat.extend(value if isinstance(value, (list, tuple)) else [value])
        return [t for t in flat if isinstance(t, Tensor)] + (out_or_inplace(args, kwargs) if kwargs else [])


class _FusedStep(_Marked):
    """A fused optimizer. It writes to gradients only to unscale them, if `grad_scale` is given."""

    def __init__(self, positions: dict[int, str], names: frozenset[str]) -> None:
        super().__init__(positions, names)
        self._without_scale = _Marked({at: one for at, one in positions.items() if one != "grads"}, names)

    def __call__(self, args: Args, kwargs: Kwargs) -> list[Any]:
        return super().__call__(args, kwargs) if kwargs.get("grad_scale") is not None else self._without_scale(args, kwargs)


class _RunningStatistics:
    """Batch norm. It writes to the running mean and variance if it uses statistics of the batch."""

    def __init__(self, func: Any, name: str, outs: frozenset[str]) -> None:
        names = argument_names(func, name)
        self._positions = {"running_mean": names.index("running_mean"), "running_var": names.index("running_var")}
        self._switch = next((one for one in ("training", "use_input_stats") if one in names), None)
        self._at = names.index(self._switch) if self._switch is not None else -1
        # F.instance_norm uses statistics of the input by default, others running statistics
        self._default = self._switch == "use_input_stats" and isinstance(func, types.FunctionType)
        self._outs = _Marked({}, outs)

    def __call__(self, args: Args, kwargs: Kwargs) -> list[Any]:
        found = self._outs(args, kwargs) if kwargs else []
        if self._switch is not None:
            given = args[self._at] if self._at < len(args) else self._default
            if not kwargs.get(self._switch, given):
                return found
        statistics = [kwargs.get(name, args[at] if at < len(args) else None) for name, at in self._positions.items()]
        return [t for t in statistics if isinstance(t, Tensor)] + found


def _renormalised_weight(args: Args, kwargs: Kwargs) -> list[Any]:
    """`F.embedding` and `F.embedding_bag` with `max_norm` renormalise the rows of the weight that they look up."""
    weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
    max_norm = kwargs.get("max_norm", args[3] if len(args) > 3 else None)
    return [weight] if max_norm is not None and isinstance(weight, Tensor) else []


# All facts about one torch function.
#
# Facts that recording needs are computed when a function is first met, the others when they are first read. They are cached
# for the process if the function belongs to torch, and computed anew at every call of `facts` otherwise.

_KNOWN: dict[Any, TorchFunction] = {}


@dataclass(eq=False)
class TorchFunction:
    """All facts about one torch function, shared by all its records."""

    func: Callable[..., Any] | None
    name: str  # torch's spelling: max_pool2d
    type: str  # the spelling of labels: maxpool2d
    kind: Kind
    written: Writes | None = None
    opened: Callable[..., Any] | None = None
    origin: Origin = Origin.OPERATION
    is_attribute: bool = False  # a property read, such as `.grad`
    is_collective: bool = False  # other processes take part
    writes_aside: bool = False  # writes to tensors that it does not return (running statistics)
    touches_gradients: bool = False  # reads or sets `.grad`
    switches_gradients: bool = False  # changes `requires_grad` of a tensor
    draws: Draws | None = None  # says whether a call draws random numbers; None if no call does
    # the names, for a function of a saved history that does not exist here; None: they are read from the function
    argument_names: tuple[str, ...] | None = None

    def writes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors that a call with these arguments writes to."""
        return self.written(args, kwargs) if self.written is not None else out_or_inplace(args, kwargs)

    @cached_property
    def plain_name(self) -> str:
        """One name for all spellings: `add` for `add_`, `__iadd__` and `aten.add_.Tensor`; `library::add` for other
        libraries.
        """
        return plain_name(self.func, self.name, is_attribute=self.is_attribute) if self.func is not None else self.name

    @cached_property
    def is_reflected(self) -> bool:
        """True if the operands are swapped: `__rsub__(x, 1)` is `1 - x`."""
        return is_reflected(self.name)

    @cached_property
    def category(self) -> Category:
        """The kind of step that the function is in a model. Backward and `_copy` forms have the category of their function."""
        base = self.plain_name.removesuffix("_copy").removesuffix("_backward")
        for category, members in _GROUPS:
            if base in members:
                return category
        if has_tag(base, torch.Tag.nondeterministic_seeded):
            return "random"
        if is_view(base):
            return "shape"
        schemas = [schema for schema in aten_schemas(base) if not has_out(schema)]
        takes_tensors = any("Tensor" in str(argument.type) for schema in schemas for argument in schema.arguments)
        return "constant" if schemas and not takes_tensors else "arithmetic"

    @cached_property
    def structure(self) -> Structure:
        """Which integer arguments are indices, lengths, offsets, pivots or sizes."""
        return Structure(self.func, self.name, self.plain_name)

    @cached_property
    def formula(self) -> Formula | None:
        """The formula for the FLOPs of a call; None if unknown."""
        from .flops import FORMULAS

        return FORMULAS.get(self.plain_name)

    @cached_property
    def is_known(self) -> bool:
        """True if the function makes no tensor, or if a table or torch's tags describe it."""
        if self.kind not in (Kind.OPERATION, Kind.COMPOSITE) or self.opened is not None:
            return True
        has_table = self.formula is not None or any(map(self.is_in, (*groups.groups().values(), LOCAL)))
        return has_table or self.category != "arithmetic" or self.is_elementwise

    # Properties of the result -------------------------------------------------------------------------------------------

    @cached_property
    def is_view(self) -> bool:
        """True if the function's result always is the memory of an argument."""
        return is_view(self.plain_name)

    @cached_property
    def may_be_view(self) -> bool:
        """True if the function's result is always or sometimes the memory of an argument: `reshape`, `contiguous`, `to`."""
        return self.is_view or self.is_in(_SOMETIMES)

    @cached_property
    def is_elementwise(self) -> bool:
        """True if each value of its result depends only on the values at the same place of its arguments, after
        broadcasting.
        """
        name = self.plain_name
        if name in groups.NOT_ELEMENTWISE or name.endswith("_backward"):
            return False
        if name in groups.ELEMENTWISE or name in groups.CONVERSIONS:
            return True
        return any(has_tag(spelled, torch.Tag.pointwise) for spelled in (name, f"special_{name}"))

    @property
    def rearranges(self) -> bool:
        """True if its result has the values of its argument in another shape, order, dtype or memory: `view`, `to`."""
        return self.plain_name in groups.REARRANGEMENTS

    @property
    def joins(self) -> bool:
        """True if its result is all of its arguments side by side: `cat`."""
        return self.plain_name in groups.JOINS

    @property
    def is_dropout(self) -> bool:
        """True if it drops values at random in training, and returns its argument otherwise."""
        return self.plain_name in groups.DROPOUTS

    @cached_property
    def is_random(self) -> bool:
        """True if the function draws random numbers, always or for some arguments."""
        name = self.plain_name
        spellings = (name, f"_{name}", f"{name}_")
        return name in _RANDOM or any(has_tag(one, torch.Tag.nondeterministic_seeded) for one in spellings)

    @cached_property
    def allocates(self) -> bool:
        """True if the function's purpose is new memory: it makes, copies or converts a tensor."""
        return self.is_in(_MAKERS) or (self.is_in(groups.SAMPLING) and self.plain_name.startswith("rand"))

    @property
    def is_uninitialised(self) -> bool:
        """True if the function's result is uninitialised memory, as for `torch.empty`."""
        return self.plain_name in groups.UNINITIALISED or is_partly_filled(self.func)

    @property
    def is_commutative(self) -> bool:
        """True if the function's two arguments may be swapped."""
        return self.plain_name in groups.COMMUTATIVE

    def is_in(self, group: frozenset[str]) -> bool:
        """True if the function is in this group of `functions.groups`."""
        return self.plain_name in group

    # Facts that recording needs ---------------------------------------------------------------------------------------

    @property
    def exports_memory(self) -> bool:
        """True if the function hands out the memory of a tensor, to which any code may write from then on."""
        return self.name in groups.EXPORTS or self.name in groups.POINTERS

    @property
    def takes_memory(self) -> bool:
        """True if the function's result may lie in the memory of an argument that is not a tensor."""
        return self.name in groups.TAKE_MEMORY

    @property
    def hooks_gradients(self) -> bool:
        """True if the function registers a hook on a tensor's gradient."""
        return self.name == "register_hook"

    @property
    def concerns_gradients(self) -> bool:
        """True for a query about gradients."""
        return self.touches_gradients or self.switches_gradients or self.hooks_gradients

    @property
    def is_gradient(self) -> bool:
        """True if the function reads `.grad`."""
        return self.is_attribute and self.touches_gradients


def facts(func: Any) -> TorchFunction:
    """All facts about a function. `F.softmax`, `torch.softmax` and `Tensor.softmax` have the same plain name.

    >>> import torch
    >>> facts(torch.Tensor.__iadd__).plain_name, facts(torch.sort).writes((torch.ones(2),), {})
    ('add', [])
    """
    try:
        known = _KNOWN.get(func)
    except TypeError:  # an unhashable callable
        return _worked_out(func)
    if known is None:
        known = _worked_out(func)
        if _belongs_to_torch(func):
            _KNOWN[func] = known
    return known


def _worked_out(func: Any) -> TorchFunction:
    name = function_name(func)
    kind = kind_of(func, name)
    is_attribute = getattr(func, "__name__", None) == "__get__"
    plain = plain_name(func, name, is_attribute=is_attribute)
    opened = opened_copy(func) if kind is Kind.COMPOSITE else None
    written = writes_of(func, name, plain) if kind in (Kind.OPERATION, Kind.COMPOSITE) else None
    return TorchFunction(
        func,
        name,
        label_type(name),
        kind,
        written,
        opened,
        is_attribute=is_attribute,
        is_collective=is_collective(func),
        writes_aside=isinstance(written, _RunningStatistics),
        touches_gradients=name in groups.GRADIENT_ACCESS,
        switches_gradients=name in groups.GRADIENT_SWITCHES,
        draws=draws_of(plain) if kind is Kind.OPERATION else None,
    )


def _belongs_to_torch(func: Any) -> bool:
    if isinstance(func, types.FunctionType):
        return func.__module__ is not None and (func.__module__ == "torch" or func.__module__.startswith("torch."))
    return True
