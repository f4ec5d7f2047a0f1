"""Sparse, quantised and nested outputs and buffers are compared by value; outputs that cannot be read are not compared."""

import collections
import copy
import ctypes
import dataclasses
import enum
import itertools
import math

import numpy as np
import pytest
import torch

import torcheer as tl
from torcheer.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns that sparse and nested tensors are in beta
x = torch.rand(3, 4) + 0.1
MAKERS = {
    "sparse": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.01, 0, torch.quint8),
    "nested": lambda t: torch.nested.nested_tensor([t[0], t[1, :2]]),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_unusual_outputs_that_differ_are_different_and_equal_ones_are_not(kind):
    make = MAKERS[kind]
    with torch.no_grad():
        same = tl.compare_models(lambda t: make(t + 1), lambda t: make(t + 1), x)
        other = tl.compare_models(lambda t: make(t + 1), lambda t: make((t + 1).flip(1)), x)
    assert same, same
    assert not other
    assert "differs by" in other.headline
    assert "which operation makes it differ cannot be told" in str(other) or other.culprit is not None


def test_assert_close_raises_where_a_sparse_output_differs():
    with pytest.raises(AssertionError, match=r"output_1_4 differs by 5\.0e-01 of its scale"), torch.no_grad():
        tl.assert_close(
            tl.log_forward_pass(lambda t: (t + 1).to_sparse() * 2, x), tl.log_forward_pass(lambda t: (t + 1).to_sparse() * 3, x)
        )


def huge_sparse(t):
    return torch.sparse_coo_tensor(torch.arange(12).repeat(2, 1) * 1000, t.flatten(), (100_000, 100_000))


UNREADABLE = {
    "huge sparse": huge_sparse,
    "int4": lambda t: t.to(torch.uint8).view(torch.int4),
    "bits8": lambda t: t.to(torch.uint8).view(torch.bits8),
}
if hasattr(torch, "float4_e2m1fn_x2"):  # not in torch before 2.8
    UNREADABLE["float4"] = lambda t: t.to(torch.uint8).view(torch.float4_e2m1fn_x2)
NOT_COMPARED = {
    "meta": (lambda t: (t + 1).to("meta"), lambda t: (t + 1).to("meta")),
    "huge sparse": (lambda t: huge_sparse(t) * 2, lambda t: huge_sparse(t) * 3),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_outputs_whose_values_cannot_be_read_are_equal_where_their_bits_are(kind):
    assert tl.compare_models(lambda t: UNREADABLE[kind](t + 1), lambda t: UNREADABLE[kind](t + 1), x).verdict == "equal"


@pytest.mark.parametrize("kind", NOT_COMPARED)
def test_other_outputs_whose_values_cannot_be_read_are_not_compared(kind):
    a, b = (tl.log_forward_pass(model, x) for model in NOT_COMPARED[kind])
    comparison = tl.compare(a, b)
    assert comparison.verdict == "not compared"
    assert not comparison
    assert comparison.output_error is None
    assert "the values of output_1_" in comparison.headline
    assert "cannot be read" in comparison.headline
    assert "Output: not compared" in str(comparison)
    with pytest.raises(AssertionError, match="cannot be read"):
        tl.assert_close(a, b)


@pytest.mark.parametrize("kind", [kind for kind in (*MAKERS, *UNREADABLE) if kind != "nested"])  # made from a list: a source
def test_an_operation_that_differs_before_an_unusual_output_is_the_culprit(kind):
    make = {**MAKERS, **UNREADABLE}[kind]
    comparison = tl.compare_models(lambda t: make(t + 1), lambda t: make(t + 2), x)
    assert comparison.verdict == "different"
    assert comparison.culprit.label == "add_1_1"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32])
def test_dtypes_that_torch_converts_but_does_not_compare_are_compared(dtype):
    assert tl.compare_models(lambda t: (t * 9).to(dtype), lambda t: (t * 9).to(dtype), x).verdict == "equal"
    comparison = tl.compare_models(lambda t: (t * 9).to(dtype), lambda t: (t * 18).to(dtype), x)
    assert comparison.culprit.label == "mul_1_1"
    assert comparison.output_error > 0.3


def test_an_output_that_was_not_kept_is_not_compared(tmp_path):
    a, b = (tl.log_forward_pass(lambda t, by=by: (t + 1) * by, x, layers_to_save=["input", "add_1"]) for by in (2, 3))
    comparison = tl.compare(a, b)
    assert comparison.verdict == "not compared"
    assert "output_1_3 was not kept in a" in comparison.headline
    paths = [str(one.save(tmp_path / f"{name}.safetensors")) for name, one in (("a", a), ("b", b))]
    assert main(["compare", *paths]) == 2


def test_nested_outputs_with_parts_of_other_shapes_are_different():
    one, other = (lambda t, at=at: torch.nested.nested_tensor(list(t.flatten().split([at, 12 - at]))) for at in (4, 7))
    assert tl.compare_models(one, one, x)
    assert tl.compare_models(one, other, x).verdict == "different"


def test_a_sparse_output_is_compared_with_a_dense_one():
    assert tl.compare_models(lambda t: (t + 1).to_sparse(), lambda t: t + 1, x)
    assert not tl.compare_models(lambda t: (t + 1).to_sparse() * 2, lambda t: (t + 1) * 3, x)


@pytest.mark.parametrize("kind", ["sparse", "csr", "quantised"])
def test_unusual_buffers_are_compared_by_their_values(kind):
    class Product(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.register_buffer("weight", MAKERS[kind](weight))

        def forward(self, x):
            return (self.weight.dequantize() if kind == "quantised" else self.weight) @ x

    weight = torch.rand(4, 3)
    assert tl.compare_models(Product(weight), Product(weight), x).verdict == "equal"
    comparison = tl.compare_models(Product(weight), Product(weight.flip(0)), x)
    assert [one.name for one in comparison.parameters] == ["weight"]
    assert comparison.parameters[0].difference.largest > 0
    assert comparison.culprit.is_explained_by_parameters


KINDS = {
    **MAKERS,
    "float32": lambda t: t,
    "float64": lambda t: t.double(),
    "complex": lambda t: t.to(torch.complex64),
    "conjugated": lambda t: torch.complex(t, t).conj(),
    "integer": lambda t: (t * 100).long(),
    "boolean": lambda t: t > 1.5,
    "number": lambda t: t.sum(),
    "none": lambda t: None,
}
SAME = {frozenset(pair) for pair in (("float32", "float64"), ("float32", "complex"), ("float64", "complex"))}
SAME |= {frozenset((dense, one)) for dense in ("float32", "float64", "complex") for one in ("sparse", "csr")}
SAME |= {frozenset(("sparse", "csr"))}


@pytest.mark.parametrize("one", KINDS)
def test_outputs_of_every_two_kinds_are_compared_by_their_values(one):
    for other in KINDS:
        with torch.no_grad():
            comparison = tl.compare_models(lambda t: KINDS[one](t + 1), lambda t, other=other: KINDS[other](t + 1), x)
        assert bool(comparison) is (one == other or frozenset((one, other)) in SAME), (one, other, comparison.headline)
        assert str(comparison)


@pytest.mark.parametrize("kind", ["sparse", "csr", "float32", "complex"])
def test_an_output_that_only_one_returns_is_seen_beside_another_kind(kind):
    def one(t):
        return KINDS[kind](t * 2)

    def two(t):
        y = t * 2
        return y, y + 1

    with torch.no_grad():
        assert tl.compare_models(one, two, x).verdict == "different"
        assert tl.compare_models(two, one, x).verdict == "different"


def test_a_real_part_that_was_left_out_is_named():
    comparison = tl.compare_models(lambda t: torch.fft.fft(t).real, torch.fft.fft, x)
    assert comparison.headline == "different: real_1_2 runs in a and not in b"


# Values that are no tensors ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Answer:
    y: object
    n: object


class PlainObject:
    def __init__(self, y, n):
        self.y, self.n, self._calls = y, n, id(self)


class Mode(enum.Enum):
    FAST, SLOW = 1, 2


OTHER_VALUES = [
    *[(1, 2), ("a", "b"), (True, False), (None, 1), (1.0, 1.001), (1j, 2j), (float("nan"), 1.0), (b"a", b"b"), (1, "1")],
    *[
        ([1, 2], [1, 2, 3]),
        ({1, 2}, {1, 3}),
        (range(3), range(4)),
        (slice(1, 2), slice(1, 3)),
        (torch.Size([1]), torch.Size([2])),
    ],
    *[
        (np.float32(1), np.float32(2)),
        (np.arange(3), np.arange(3) + 1),
        (np.ones(3), np.ones(4)),
        (np.array(["a"]), np.array(["b"])),
    ],
    *[(Mode.FAST, Mode.SLOW), ({"k": [1, (2, None)]}, {"k": [1, (3, None)]}), (bytearray(b"a"), bytearray(b"b"))],
]
WRAPPERS = [lambda y, n: (y, n), lambda y, n: {"y": y, "n": [n]}, Answer, PlainObject, collections.namedtuple("Pair", "y n")]


@pytest.mark.parametrize(("one", "other"), OTHER_VALUES)
def test_returned_values_that_are_no_tensors_decide_too(one, other, tmp_path):
    for wrapped in WRAPPERS:
        a, again, b = (
            tl.log_forward_pass(lambda t, n=n, wrapped=wrapped: wrapped(t.sin(), n), x)
            for n in (one, copy.deepcopy(one), other)
        )
        assert tl.compare(a, again).verdict == "equal"
        comparison = tl.compare(a, b)
        assert comparison.verdict == "different"
        assert "in a and" in comparison.headline
        assert comparison.headline.removeprefix("different: ") in str(comparison.parts.outputs)
    loaded = [tl.load(each.save(tmp_path / f"{name}.safetensors")) for each, name in zip((a, again, b), "123", strict=True)]
    assert tl.compare(loaded[0], loaded[1]).verdict == tl.compare(a, loaded[1]).verdict == "equal"
    assert tl.compare(loaded[0], loaded[2]).verdict == tl.compare(a, loaded[2]).verdict == "different"


def test_a_result_without_tensors_is_compared():
    assert tl.compare_models(lambda t: t.argmax().item(), lambda t: t.argmin().item(), x).verdict == "different"
    assert tl.compare_models(lambda t: len(t), lambda t: len(t), x).verdict == "equal"
    assert tl.compare_models(lambda t: len(t), lambda t: len(t) + 1, x).verdict == "different"
    assert tl.compare_models(lambda t: None, lambda t: None, x).verdict == "not compared"


def test_numbers_that_python_read_from_tensors_may_differ_by_rounding():
    def total(by):
        return lambda t: (t.sin(), t.sum().item() * by)

    assert tl.compare_models(total(1), total(1 + 1e-7), x).verdict == "equal within tolerance"
    assert tl.compare_models(total(1), total(1 + 1e-4), x).verdict == "different"
    assert tl.compare_models(total(1), total(1 + 1e-4), x, tolerance=1e-3).verdict == "equal within tolerance"
    assert tl.compare_models(lambda t: (t.sin(), 1.0), lambda t: (t.sin(), 1.0 + 1e-7), x).verdict == "different"


def test_values_in_other_containers_are_compared_in_order():
    assert not tl.compare_models(lambda t: (t.sin(), 1), lambda t: Answer(t.sin(), 2), x)
    assert tl.compare_models(lambda t: (t.sin(), 1), lambda t: Answer(t.sin(), 1), x).verdict == "equal"
    alone = tl.compare_models(lambda t: (t.sin(), 1), lambda t: t.sin(), x)
    assert "only a returns result[1]" in str(alone)


# Dtypes of few bits --------------------------------------------------------------------------------------------------------

FEW_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FEW_BITS)
@pytest.mark.parametrize("scale", [0.1, 1, 30])
def test_rounding_to_few_bits_hides_no_other_difference(dtype, scale):
    y = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * scale
    for by in (1, scale / 3):
        for one, other in (
            (lambda t: t.to(dtype), lambda t, by=by: (t + by).to(dtype)),
            (lambda t: t.to(dtype).float(), lambda t, by=by: t.to(dtype).float() + by),
            (lambda t: t, lambda t, by=by: (t + by).to(dtype)),
            (lambda t: t.to(dtype), lambda t: (t * 1.4).to(dtype)),
        ):
            comparison = tl.compare_models(one, other, y)
            assert comparison.verdict == "different", (by, str(comparison))


@pytest.mark.parametrize("dtype", FEW_BITS)
@pytest.mark.parametrize("by", [0.1, 1, -2])
@pytest.mark.parametrize("is_even", [False, True])
def test_a_small_change_beside_rounding_to_few_bits_is_seen(dtype, by, is_even):
    """Also where all values are of one size, so that each is within a step of the other model's."""
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(1000, generator=generator) * 10 + 22 if is_even else torch.randn(1000, generator=generator) * 30
    weight = torch.randn(1000, 8, generator=generator) / 30
    for one, other in (
        (lambda t: t * 2, lambda t: (t * 2).to(dtype).float() + by),
        (lambda t: t.sin() * 30, lambda t: (t.sin() * 3).to(dtype).float() * 10 + by),
        (lambda t: t @ weight, lambda t: t.to(dtype).float() @ weight + by / 5),
    ):
        comparison = tl.compare_models(one, other, y)
        assert comparison.verdict == "different", str(comparison)
    assert tl.compare_models(lambda t: t * 2, lambda t: (t * 2).to(dtype).float(), y).verdict == "equal within tolerance"


@pytest.mark.parametrize("dtype", FEW_BITS)
def test_rounding_to_few_bits_itself_is_within_tolerance(dtype):
    generator = torch.Generator().manual_seed(0)
    y, weights = torch.randn(32, 64, generator=generator), torch.randn(4, 64, 64, generator=generator) / 8

    def layers(rounded):
        def model(t):
            for weight in weights:
                t = rounded(t) @ rounded(weight)
            return t

        return model

    exact, few = layers(lambda t: t), layers(lambda t: t.to(dtype).float())
    assert tl.compare_models(exact, few, y).verdict == "equal within tolerance"
    assert tl.compare_models(lambda t: t, lambda t: t.to(dtype), y).verdict == "equal within tolerance"
    assert tl.compare_models(lambda t: t.to(dtype), lambda t: (t * (1 + 1e-6)).to(dtype), y)
    assert not tl.compare_models(few, lambda t: few(t) * 1.5, y)


# Memory that was never written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        *(lambda e: e * 0, lambda e: e - e, lambda e: e.isnan(), lambda e: (e * 0).sum(), lambda e: torch.cat([e * 0, e])),
        *(lambda e: torch.nan_to_num(e * 0, nan=7.0), lambda e: torch.where(e.isnan(), 3.0, 4.0) + 1),
        lambda e: torch.ones(3).masked_fill(e.isnan(), 2.0).cumsum(0),
    ],
)
def test_nan_in_memory_that_was_never_written_is_no_difference(read):
    garbage = itertools.cycle([1.0, math.nan])

    def model(t):
        return t.sin(), read(memory_of(next(garbage)))

    comparison = tl.compare_models(model, model, x)
    assert comparison.verdict == "equal", str(comparison)
    assert "never written" in comparison.headline


def memory_of(number):
    """What `torch.empty` gives, with this number in it."""
    made = torch.empty(3)
    with torch._C.DisableTorchFunction():  # so that the log does not see the write
        place = made.data_ptr()
    (ctypes.c_float * 3).from_address(place)[:] = [number] * 3
    return made


def test_what_nan_in_memory_decides_hides_no_other_difference():
    def model(times):
        garbage = itertools.cycle([1.0, math.nan])
        return lambda t: (t.sin(), torch.where(memory_of(next(garbage)).isnan(), 3.0, 4.0) + t.sin().mean() * times)

    one, other = model(1), model(1)
    other(x)  # so that the two have other garbage
    assert tl.compare_models(one, other, x).verdict == "equal"
    for turns in range(2):
        one, other = model(1), model(2)
        for _ in range(turns):
            other(x)
        assert tl.compare_models(one, other, x).verdict == "different"
