"""Every type torch can store is logged, compared and proved; so are values that are not finite."""

import pytest
import torch

import torcheer
from models import Buffer, made_of
from promises import assert_logged_as_it_runs
from torcheer.replay.comparison import difference, is_close, same_bits

CONVERTED = [
    getattr(torch, name)
    for name in (
        "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64 uint8 int8 int16 "
        "int32 bool float16 bfloat16 float64 complex32 complex64 complex128"
    ).split()
    if hasattr(torch, name)
]
STORED = [
    getattr(torch, name) for name in "float4_e2m1fn_x2 bits8 bits16 bits1x8 int4 uint4 uint2".split() if hasattr(torch, name)
]
x = torch.tensor([0.5, 1.0, 2.0, 3.0])
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # said once, to whichever test is first


@pytest.mark.parametrize("dtype", CONVERTED, ids=str)
def test_a_model_that_converts_is_valid(dtype):
    def model(x):
        y = x.to(dtype)
        z = y.clone()
        return (z.real if dtype.is_complex else z).to(torch.float32) + 1

    history = assert_logged_as_it_runs(lambda: (model, (x.clone(),), {}))
    assert history["clone_1"].tensor_contents.dtype is dtype
    assert same_bits(history["clone_1"].tensor_contents, x.to(dtype))


@pytest.mark.parametrize("dtype", CONVERTED, ids=str)
def test_an_input_and_a_buffer_may_have_any_type(dtype):
    report = torcheer.validate_forward_pass(
        made_of(lambda self, x: (x.view(2, 2), self.table.view(2, 2).clone()), table=Buffer(x.to(dtype))), x.to(dtype)
    )
    assert report.is_valid, report


@pytest.mark.parametrize("dtype", CONVERTED + STORED, ids=str)
def test_a_log_with_any_type_prints_and_becomes_a_page(dtype, tmp_path):
    history = torcheer.log_forward_pass(lambda x: x.view(dtype), torch.arange(8))
    assert torcheer.validate_forward_pass(lambda x: x.view(dtype), torch.arange(8)).is_valid
    assert "view_1_1" in str(history)
    assert str(dtype).removeprefix("torch.") in str(history["view_1"])
    assert "total" in str(history.summary())
    assert "view_1_1" in history.to_json()
    assert history.to_html(tmp_path / "page.html").exists()
    assert "view_1_1" in history.draw(tmp_path / "graph.dot").dot


def tampered(model, label, change):
    """The report on a log in which one kept value was changed."""
    history = torcheer.log_forward_pass(model, x)
    log = history._log
    number = int(label.rsplit("_", 1)[1])
    log.values[number] = change(log.values[number].clone())
    log.versions[number] = log.values[number]._version
    return history.validate()


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_a_disagreeing_value_that_is_not_finite_is_reported(special):
    def change(value):
        value[1] = special
        return value

    report = tampered(lambda x: (x * 2).cumsum(0) + 1, "mul_1_1", change)
    assert not report.is_valid
    assert report.first_disagreement.where == "mul_1_1"
    assert "1 of 4 values differ" in report.first_disagreement.what
    report = tampered(lambda x: (x * 2).cumsum(0) + 1, "cumsum_1_2", change)  # one torch does not promise to be deterministic
    assert not report.is_valid
    assert report.first_disagreement.where == "cumsum_1_2"


def test_values_that_are_not_finite_do_not_loosen_the_tolerance():
    one, other = torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 2.0])
    assert not is_close(one, other)
    assert is_close(one, torch.tensor([float("inf"), 1.00001]))
    nan = torch.tensor([float("nan"), 1.0])
    assert not is_close(nan, other)
    assert is_close(nan, torch.tensor([float("nan"), 1.00001]))
    assert not is_close(torch.tensor([float("nan")]), torch.tensor([1.0]))
    assert is_close(torch.empty(0), torch.empty(0))


@pytest.mark.parametrize("dtype", CONVERTED + STORED, ids=str)
def test_a_difference_in_any_type_is_told(dtype):
    one, other = torch.zeros(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)
    other[-1] = 1 if dtype is torch.bool else 0x40
    one, other = one.view(dtype), other.view(dtype)
    assert not same_bits(one, other)
    assert f"1 of {one.numel()} values differ; at [{one.numel() - 1}]" in difference(one, other)
    assert same_bits(one, one.view(torch.uint8).clone().view(dtype))
