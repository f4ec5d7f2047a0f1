"""Each torch function is what we say it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torcheer
from torcheer.functions import facts, label_type, opened_copy
from torcheer.functions.kinds import ESCAPES, QUERIES, SINGLE
from torcheer.functions.writes import out_or_inplace
from torcheer.records import Kind

x = torch.rand(2, 4)
image = torch.rand(2, 4, 8, 8)
volume = torch.rand(1, 2, 4, 4, 4)
labels = torch.tensor([1, 2])

SAMPLES = {
    F.relu: (x,), F.relu6: (x,), F.leaky_relu: (x,), F.elu: (x,), F.selu: (x,), F.celu: (x,), F.silu: (x,), F.mish: (x,),
    F.hardtanh: (x,), F.hardswish: (x,), F.hardsigmoid: (x,), F.glu: (x,), F.rrelu: (x,), F.threshold: (x, 0.1, 0.0),
    F.tanh: (x,), F.sigmoid: (x,), F.softmax: (x, -1), F.log_softmax: (x, -1), F.dropout: (x,), F.dropout1d: (image[0],),
    F.dropout2d: (image,), F.dropout3d: (volume,), F.alpha_dropout: (x, 0.5, True), F.feature_alpha_dropout: (image, 0.5, True),
    F.batch_norm: (image, torch.zeros(4), torch.ones(4)), F.instance_norm: (image,), F.layer_norm: (x, (4,)),
    F.group_norm: (image, 2), F.rms_norm: (x, (4,)), F.max_pool1d: (image[0], 2), F.max_pool2d: (image, 2),
    F.max_pool3d: (volume, 2), F.adaptive_max_pool1d: (image[0], 2), F.adaptive_max_pool2d: (image, 2),
    F.adaptive_max_pool3d: (volume, 2), F.adaptive_avg_pool2d: (image, 2), F.adaptive_avg_pool3d: (volume, 2),
    F.interpolate: (image, None, 2.0), F.pad: (x, (1, 1)),
    F.grid_sample: (image, torch.zeros(2, 3, 3, 2), "bilinear", "zeros", False),
    F.affine_grid: (torch.zeros(2, 2, 3), [2, 1, 4, 4], False), F.unfold: (image, 2), F.fold: (torch.rand(1, 8, 4), (3, 3), 2),
    F.cross_entropy: (x, labels), F.nll_loss: (x, labels), F.binary_cross_entropy: (x, x),
    F.binary_cross_entropy_with_logits: (x, x), F.kl_div: (x, x, None, None, "sum"),
    F.ctc_loss: (torch.randn(5, 1, 4).log_softmax(2), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
    F.hinge_embedding_loss: (x, torch.ones(2, 4)), F.cosine_embedding_loss: (x, x, torch.ones(2)),
    F.margin_ranking_loss: (x, x, torch.ones(2, 4)), F.multi_margin_loss: (x, labels), F.triplet_margin_loss: (x, x, x),
    F.poisson_nll_loss: (x, x), F.bilinear: (x, x, torch.rand(3, 4, 4)),
    torch.einsum: ("ij,kj->ik", x, x), torch.tensordot: (x, x.T, 1), torch.cdist: (x, x), torch.norm: (x,),
    torch.istft: (torch.randn(5, 4, dtype=torch.complex64), 8, None, None, torch.ones(8)),
    torch.lu_unpack: (*torch.linalg.lu_factor(torch.eye(3)),), torch.unique: (labels,), torch.unique_consecutive: (labels,),
    torch.meshgrid: ([labels, labels],), torch.split: (x, 2), torch.broadcast_tensors: (x, x),
    Tensor.split: (x, 2), Tensor.norm: (x,), Tensor.unflatten: (x, 1, (2, 2)), Tensor.unique: (labels,),
}  # fmt: skip


NAMED = {torch.meshgrid: {"indexing": "ij"}}


def count_calls(func: object, args: tuple[object, ...]) -> int:
    """How many torch calls the opened function makes."""
    history = torcheer.log_forward_pass(lambda: opened_copy(func)(*args, **NAMED.get(func, {})), (), keep_orphans=True)
    return len({one._record.call for one in history.operations if one.origin == "operation"})


@pytest.mark.parametrize("func", SAMPLES, ids=lambda f: f"{f.__module__}.{f.__qualname__}")
def test_a_function_taken_as_one_operation_makes_one_operation_inside(func):
    assert facts(func).kind is Kind.OPERATION
    if isinstance(func, type(F.relu)):  # some are Python in one torch version and C in another
        assert count_calls(func, SAMPLES[func]) == 1


def test_every_function_taken_as_one_operation_has_a_sample():
    assert [f for f in SINGLE if f not in SAMPLES and isinstance(f, type(F.relu))] == []


@pytest.mark.parametrize(
    "func", [F.normalize, F.gumbel_softmax, F.multi_head_attention_forward, torch.stft, F.embedding, F.mse_loss]
)
def test_python_around_several_calls_is_opened(func):
    assert facts(func).kind is Kind.COMPOSITE


def test_an_opened_copy_leaves_the_original_alone():
    before = (F.normalize.__code__, F.normalize.__globals__["has_torch_function_variadic"])
    copy = opened_copy(F.normalize)
    assert torch.equal(copy(x), F.normalize(x))
    assert copy.__globals__ is not F.normalize.__globals__
    assert before == (F.normalize.__code__, F.normalize.__globals__["has_torch_function_variadic"])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("max_pool2d", "maxpool2d"),
        ("__add__", "add"),
        ("add_", "add"),
        ("__iadd__", "add"),
        ("__radd__", "add"),
        ("__rsub__", "rsub"),
        ("__truediv__", "div"),
        ("__getitem__", "getitem"),
        ("__invert__", "invert"),
        ("__setitem__", "setitem"),
        ("_pack_padded_sequence", "packpaddedsequence"),
        ("T", "t"),
        ("__index__", "index"),
    ],
)
def test_labels_spell_functions_in_lower_case_without_underscores(name, label):
    assert label_type(name) == label


@pytest.mark.parametrize("name", sorted(n for n in QUERIES & set(dir(Tensor)) if callable(getattr(Tensor, n))))
def test_a_query_is_never_an_operation(name):
    assert facts(getattr(Tensor, name)).kind is Kind.QUERY


@pytest.mark.parametrize("name", sorted(ESCAPES & set(dir(Tensor))))
def test_an_escape_is_known_as_one(name):
    assert facts(getattr(Tensor, name)).kind is Kind.ESCAPE


def test_properties_that_return_tensors_are_operations_and_others_are_queries():
    assert facts(Tensor.T.__get__).kind is Kind.OPERATION
    assert facts(Tensor.shape.__get__).kind is Kind.QUERY
    assert facts(Tensor.data.__set__).kind is Kind.OPERATION
    assert facts(Tensor.requires_grad.__set__).kind is Kind.QUERY


WRITERS = {
    "add_": (Tensor.add_, (x, 1), {}, [0]),
    "setitem": (Tensor.__setitem__, (x, 0, 1), {}, [0]),
    "iadd": (Tensor.__iadd__, (x, 1), {}, [0]),
    "relu inplace": (F.relu, (x,), {"inplace": True}, [0]),
    "batch_norm": (F.batch_norm, (image, x[0], x[1]), {"training": True}, [1, 2]),
    "aten": (torch.ops.aten.add_.Tensor, (x, x), {}, [0]),
    "aten packet": (torch.ops.aten.add_, (x, x), {}, [0]),
    "fake quantize": (torch.fused_moving_avg_obs_fake_quant, (x,) * 7, {}, [3, 4, 5, 6]),
}


@pytest.mark.parametrize("case", WRITERS)
def test_what_a_call_overwrites_is_known_before_it_runs(case):
    func, args, kwargs, positions = WRITERS[case]
    known = facts(func)
    found = known.writes(args, kwargs)
    assert [id(t) for t in found] == [id(args[p]) for p in positions]


def test_out_is_overwritten():
    out = torch.empty(2)
    assert out_or_inplace((), {"out": out}) == [out]
    assert out_or_inplace((), {"out": (out, x)}) == [out, x]


def test_functions_that_write_nothing_say_so():
    assert facts(torch.add).written is None
    assert facts(F.batch_norm).written((image, x[0], x[1]), {"training": False}) == []


def test_facts_about_other_peoples_functions_are_not_kept():
    def stranger():
        pass

    assert facts(stranger) is not facts(stranger)
    assert facts(torch.add) is facts(torch.add)
