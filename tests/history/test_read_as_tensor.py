"""NumPy and torch read layers and operations: whatever kind of tensor the activation is, or an error that says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torcheer
from models import Mlp, log
from torcheer import InvalidArgument

x = torch.rand(3, 4) - 0.5


@pytest.fixture
def history():
    return log(Mlp(), x)


def test_numpy_and_torch_take_a_layer_and_an_operation():
    model = Mlp()
    plain, history = model.fc1(x), log(model, x)
    for one in (history["fc1"], history["fc1"][1]):
        assert np.array_equal(np.asarray(one), plain.detach().numpy())
        assert np.asarray(one, dtype=np.float64).dtype == np.float64
        assert np.allclose(np.mean(one), plain.mean().item())
        assert torch.equal(torch.as_tensor(one), plain)
        assert torch.equal(torch.from_dlpack(one), plain)
        assert torch.equal(torch.asarray(one), plain)


def complex_of(t):
    return torch.complex(t, t + 1)


KINDS = {
    "bfloat16": lambda t: t.bfloat16(),
    "half": lambda t: t.half(),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "another float8": lambda t: t.to(torch.float8_e5m2fnuz),
    "complex half": lambda t: complex_of(t).to(torch.complex32),
    "bool": lambda t: t > 0,
    "uint16": lambda t: t.abs().to(torch.uint16),
    "conjugate": lambda t: complex_of(t).conj(),
    "negated": lambda t: complex_of(t).conj().imag,
    "transposed": lambda t: t.t(),
    "expanded": lambda t: t[:1].expand(5, 4),
    "scalar": lambda t: t.sum(),
    "empty": lambda t: t[:0],
    "sparse": lambda t: t.to_sparse(),
    "sparse conjugate": lambda t: complex_of(t).to_sparse().conj(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "mkldnn": lambda t: t.to_mkldnn(),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8),
    "quantised by channel": lambda t: torch.quantize_per_channel(t, torch.ones(3), torch.zeros(3), 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor", "ignore:Sparse CS[RC]", "ignore:ComplexHalf support")
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_tensor_can_be_read(kind):
    made = KINDS[kind](x)
    dense = made.dequantize() if made.is_quantized else made
    dense = (dense if dense.layout is torch.strided else dense.to_dense()).resolve_conj().resolve_neg()
    layer = log(KINDS[kind], x)["output"]
    try:
        torch.from_dlpack(dense)
    except RuntimeError:  # float8, before torch 2.9
        with pytest.raises(InvalidArgument, match=r"cannot be read by DLPack \(float8.*Use \.activation"):
            torch.from_dlpack(layer)
        return
    for ask in (torch.as_tensor, torch.from_dlpack, torch.asarray):
        assert ask(layer).dtype == dense.dtype
        assert torch.equal(ask(layer).to(torch.complex64), dense.to(torch.complex64))
    wide = dense.to(torch.complex64 if dense.is_complex() else torch.float64)
    assert np.array_equal(np.asarray(layer).astype(wide.numpy().dtype), wide.numpy())


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda t: t.to("meta"), "is on the meta device: it has a shape and a dtype, but no values"),
        (lambda t: torch.nested.nested_tensor([t, t[:2]]), r"is a nested tensor.*\.activation\.unbind\(\)"),
        (
            lambda t: torch.nested.nested_tensor([t, t[:2]], layout=torch.jagged),
            r"is a nested tensor.*\.activation\.unbind\(\)",
        ),
        (lambda t: t.to(torch.uint8).view(torch.bits8), r"cannot be read .*bits8.*\.activation"),
    ],
)
@pytest.mark.parametrize("ask", [np.asarray, torch.as_tensor, torch.from_dlpack])
def test_what_cannot_be_read_says_what_to_do(make, advice, ask):
    history = log(make, x)
    layer = next(one for one in history if one.is_output_layer).parents[0]
    with pytest.raises(InvalidArgument, match=rf"the activation of {layer.label} {advice}"):
        ask(layer)


def test_what_a_postfunc_made_is_read_as_it_is():
    layer = log(Mlp(), x, activation_postfunc=lambda t: [1, 2])["fc1"]
    assert np.array_equal(np.asarray(layer), [1, 2])
    with pytest.raises(InvalidArgument, match=r"activation_postfunc.*list.*\.activation"):
        torch.from_dlpack(layer)


def test_copies_are_made_only_when_they_must_be(history):
    layer = history["fc1"]
    assert np.shares_memory(np.asarray(layer), layer.activation.numpy())
    assert torch.from_dlpack(layer).data_ptr() == layer.activation.data_ptr()
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        assert not np.shares_memory(np.array(layer, copy=True), layer.activation.numpy())
        assert np.shares_memory(np.array(layer, copy=False), layer.activation.numpy())
        for refused, dtype in ((layer, np.float64), (log(lambda t: t.to_sparse(), x)["output"], None)):
            with pytest.raises(ValueError, match="without a copy"):
                np.array(refused, copy=False, dtype=dtype)


def twice(t):
    for _ in range(2):
        t = torch.sin(t)
    return t


def test_several_passes_are_no_one_tensor():
    history = log(twice, x)
    with pytest.raises(torcheer.SeveralPasses):
        np.asarray(history["sin_1"])
