"""Roles of integer arguments: indices, lengths, offsets, pivots and sizes, as opposed to values.

An index out of range or a wrong length raises on the CPU, in some kernels ends the process, and on an accelerator destroys
the CUDA context. So code that calls a function with changed values checks the roles first. The name of an argument in
torch's schema gives its role (`batch_sizes`, `LU_pivots`).
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .names import is_reflected
from .schemas import argument_names, has_out, schemas_of


class Role(enum.Enum):
    """The meaning of the integers in an argument."""

    VALUE = "a value"  # any integer is valid
    INDEX = "an index"  # zero and every index that occurs in the original tensor are valid
    DIVIDEND = "a dividend"  # any except the smallest integer
    DIVISOR = "a divisor"  # any except zero
    # any number between the smallest and the largest value that occur is valid
    PROBABILITY = "probabilities, rates or deviations"
    LENGTH = "lengths or counts"
    OFFSET = "offsets"
    PIVOT = "pivots"
    SIZE = "a size"  # torch takes a Python number here, but the tensor is used in its place
    UNKNOWN = "unknown to torcheer"  # the function does not belong to torch


# Roles by argument name in torch's schemas and Python functions.
_BY_NAME: dict[str, Role] = {
    **dict.fromkeys("index indices target targets max_indices maximum_indices".split(), Role.INDEX),
    **dict.fromkeys(
        "lengths batch_sizes repeats input_lengths target_lengths bag_size counts seqused_k seqlen_k min_seqlen max_seqlen "
        "nested_size nested_strides".split(),
        Role.LENGTH,
    ),
    **dict.fromkeys(
        "offsets offset2bag offs cu_seqlens_q cu_seqlens_k cum_seq_q cum_seq_k crow_indices ccol_indices col_indices "
        "row_indices compressed_indices plain_indices compressed_idx plain_idx block_table tensor_indices_or_sections "
        "sorter".split(),
        Role.OFFSET,
    ),
    **dict.fromkeys("pivots LU_pivots".split(), Role.PIVOT),
    **dict.fromkeys("random_samples _random_samples".split(), Role.PROBABILITY),  # the samples of fractional pooling
    **dict.fromkeys(
        "shape zero_point zero_points packed packed_weight packed_weights packed_ih packed_hh col_offsets "
        "col_offsets_ih col_offsets_hh meta mat1_meta thread_masks philox_seed philox_offset rng_state sobolstate ltm "
        "quasi workspace reserve reserveSpace reservedSpace info".split(),
        Role.UNKNOWN,
    ),
}

# maps the plain name of a function to the roles of the arguments whose names do not give their role
_BY_FUNCTION: dict[str, dict[str, Role]] = {
    "embedding": {"input": Role.INDEX},  # F.embedding(input, weight)
    "embedding_bag": {"input": Role.INDEX},
    "one_hot": {"self": Role.INDEX, "tensor": Role.INDEX, "input": Role.INDEX},
    "bincount": {"self": Role.INDEX, "input": Role.INDEX},
    "ctc_loss": {"targets": Role.LENGTH},
    "sparse_coo_tensor": {"indices": Role.OFFSET},
    "sparse_coo_tensor_unsafe": {"indices": Role.OFFSET},
    "sparse_coo_tensor_with_dims_and_tensors": {"indices": Role.OFFSET},
    "poisson": {"self": Role.PROBABILITY},
    "binomial": {"count": Role.PROBABILITY, "prob": Role.PROBABILITY},
    "bernoulli": {"self": Role.PROBABILITY, "p": Role.PROBABILITY},
    "multinomial": {"self": Role.PROBABILITY},
    "normal": {"std": Role.PROBABILITY},
    "standard_gamma": {"self": Role.PROBABILITY},
    "sample_dirichlet": {"self": Role.PROBABILITY},
    "binary_cross_entropy": {"self": Role.PROBABILITY, "input": Role.PROBABILITY, "target": Role.PROBABILITY},
    "assert_async": {"self": Role.LENGTH, "input": Role.LENGTH},
    "functional_assert_async": {"self": Role.LENGTH, "input": Role.LENGTH},
    "convert_indices_from_coo_to_csr": {"self": Role.OFFSET},
    "validate_sparse_coo_tensor_args": {"indices": Role.OFFSET},
    "nested_from_padded": {"cpu_nested_shape_example": Role.LENGTH},
    "cov": {"fweights": Role.LENGTH},
}
_DIVIDES = frozenset({"div", "floor_divide", "remainder", "fmod"})
# Arguments of torch's Python functions that take a number.
_SIZES = frozenset(
    "size sizes output_size kernel_size scale_factor shape dim dims k n num_classes split_size_or_sections steps shifts "
    "num_groups high low stride padding dilation output_padding pad blank start end step".split()
)


class Structure:
    """The roles (index, size, value, …) of one function's arguments."""

    def __init__(self, func: Any, name: str, plain: str) -> None:
        self._func, self._name, self._plain = func, name, plain
        self.is_foreign = "::" in plain or "." in plain.lstrip(".")

    def roles(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaf: type = Tensor) -> list[tuple[Any, Role]]:
        """Every tensor among the arguments (or every object of class `leaf`, a stand-in for a tensor), with its role."""
        schemas = self._fitting(args, kwargs, leaf)
        found: list[tuple[Any, Role]] = []
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for key, value in given:
            leaves = list(_leaves(value, leaf))
            if leaves:
                role = self._positional_role(key, schemas) if isinstance(key, int) else self._named_role(key, schemas)
                found += [(one, Role.SIZE if in_slice else role) for one, in_slice in leaves]
        return found

    def _fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaf: type) -> list[Any]:
        """The schemas that fit these arguments; all schemas if none fits."""
        schemas = [schema for schema in schemas_of(self._func, self._name) if not has_out(schema) or "out" in kwargs]
        return [schema for schema in schemas if _fits(schema, args, kwargs, leaf)] or schemas

    def _positional_role(self, position: int, schemas: list[Any]) -> Role:
        if self._plain in _DIVIDES:
            return Role.DIVISOR if position == (0 if is_reflected(self._name) else 1) else Role.DIVIDEND
        if self._plain in ("getitem", "setitem"):
            return Role.INDEX if position == 1 else Role.VALUE
        if isinstance(self._func, types.FunctionType):
            names = argument_names(self._func, self._name)
            return self._role(names[position]) if position < len(names) else self._role("")
        there = [schema.arguments[position] for schema in schemas if position < len(schema.arguments)]
        return self._among(there, has_schemas=bool(schemas))

    def _named_role(self, name: str, schemas: list[Any]) -> Role:
        if self._plain in _DIVIDES:
            return Role.DIVISOR if name == "other" else Role.DIVIDEND
        if isinstance(self._func, types.FunctionType) or not schemas:
            return self._role(name)
        spelled = {"input": "self"}.get(name, name)
        there = [argument for schema in schemas for argument in schema.arguments if argument.name in (name, spelled)]
        return self._among(there, has_schemas=bool(there))

    def _among(self, arguments: list[Any], *, has_schemas: bool) -> Role:
        """Find the role of an argument. `arguments` are the argument's entries in the schemas of the function's overloads."""
        roles = [self._role(argument.name) for argument in arguments if "Tensor" in str(argument.type)]
        if roles:
            return next((role for role in roles if role is not Role.VALUE), Role.VALUE)
        return Role.SIZE if has_schemas else self._role("")  # a size: torch takes a number here

    def _role(self, name: str) -> Role:
        if self.is_foreign:
            return Role.UNKNOWN
        known = _BY_FUNCTION.get(self._plain, {})
        is_size = isinstance(self._func, types.FunctionType) and name in _SIZES
        return known.get(name) or _BY_NAME.get(name) or (Role.SIZE if is_size else Role.VALUE)


def takes_probabilities(plain: str) -> bool:
    """True if a function has arguments that must lie in a range, such as probabilities."""
    return Role.PROBABILITY in _BY_FUNCTION.get(plain, {}).values()


def _fits(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaf: type) -> bool:
    """True if a call with these arguments may be a call of this overload."""
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(args) > len(positional):
        return False
    given = set(kwargs) | ({"self"} if "input" in kwargs else set())
    for position, argument in enumerate(schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            is_list = str(argument.type).startswith(("List[Tensor", "List[Optional[Tensor", "Optional[List[Tensor"))
            value = args[position]
            if isinstance(value, leaf) and is_list:
                return False
            if isinstance(value, (list, tuple)) and any(True for _ in _leaves(value, leaf)) and not is_list:
                return False
        elif not argument.has_default_value() and argument.name not in given:
            return False
    return True


def _leaves(value: Any, leaf: type, *, in_slice: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield every object of class `leaf` in nested arguments, and whether it is a bound of a slice."""
    if isinstance(value, leaf):
        yield value, in_slice
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one, leaf, in_slice=in_slice)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one, leaf, in_slice=in_slice)
    elif isinstance(value, slice):
        for one in (value.start, value.stop, value.step):
            yield from _leaves(one, leaf, in_slice=True)
