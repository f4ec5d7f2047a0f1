"""Each torch function is what we say it is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torcheer
from models import log
from torcheer._torch.functions import facts, label_type, opened_copy
from torcheer._torch.functions.facts import PYTHON_READS, QUERIES, SINGLE, Kind, out_or_inplace
from torcheer._torch.functions.structure import Role

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


@pytest.mark.parametrize("name", sorted(PYTHON_READS & set(dir(Tensor))))
def test_an_escape_is_known_as_one(name):
    assert facts(getattr(Tensor, name)).kind is Kind.PYTHON_READ


def test_properties_that_return_tensors_are_operations_and_others_are_queries():
    assert facts(Tensor.T.__get__).kind is Kind.OPERATION
    assert facts(Tensor.shape.__get__).kind is Kind.QUERY
    assert facts(Tensor.data.__set__).kind is Kind.OPERATION
    assert facts(Tensor.requires_grad.__set__).kind is Kind.QUERY


statistics = (torch.zeros(4), torch.ones(4))
weight, bias = torch.ones(4), torch.zeros(4)
pair = (torch.empty(2, 4), torch.empty(2, 4, dtype=torch.int64))
table = torch.rand(5, 4)

WRITERS = {
    "add_": (Tensor.add_, (x, 1), {}, [x]),
    "setitem": (Tensor.__setitem__, (x, 0, 1), {}, [x]),
    "iadd": (Tensor.__iadd__, (x, 1), {}, [x]),
    "relu inplace": (F.relu, (x,), {"inplace": True}, [x]),
    "relu inplace, all by name": (F.relu, (), {"inplace": True, "input": x}, [x]),
    "relu_ by name": (torch.relu_, (), {"input": x}, [x]),
    "add_ as an operator by name": (torch.ops.aten.add_, (), {"other": x, "self": image}, [image]),
    "aten": (torch.ops.aten.add_.Tensor, (x, x), {}, [x]),
    "aten packet": (torch.ops.aten.add_, (x, x), {}, [x]),
    "lists": (torch._foreach_add_, ([x, image], 1), {}, [x, image]),
    "fake quantize": (torch.fused_moving_avg_obs_fake_quant, (image, x, x, *pair, *statistics), {}, [*pair, *statistics]),
    "out": (torch.add, (x, x), {"out": image}, [image]),
    "several out": (torch.sort, (x,), {"out": pair}, list(pair)),
    "out under other names": (torch.ops.aten.sort.values, (x,), {"values": pair[0], "indices": pair[1]}, [pair[1], pair[0]]),
    "embedding with max_norm": (F.embedding, (labels, table), {"max_norm": 1.0}, [table]),
    "embedding bag with max_norm": (F.embedding_bag, (labels, table), {"max_norm": 1.0}, [table]),
    "embedding_renorm_": (torch.embedding_renorm_, (table, labels, 1.0, 2.0), {}, [table]),
    "batch_norm": (F.batch_norm, (image, *statistics), {"training": True}, statistics),
    "batch_norm by name": (F.batch_norm, (image,), {"running_var": x, "running_mean": image, "training": True}, [image, x]),
    "instance_norm": (F.instance_norm, (image, *statistics), {}, statistics),
    "torch.batch_norm": (torch.batch_norm, (image, weight, bias, *statistics, True, 0.1, 1e-5, False), {}, statistics),
    "torch.instance_norm": (torch.instance_norm, (image, weight, bias, *statistics, True, 0.1, 1e-5, False), {}, statistics),
    "native_batch_norm": (torch.native_batch_norm, (image, weight, bias, *statistics, True, 0.1, 1e-5), {}, statistics),
    "legit": (torch._native_batch_norm_legit, (image, weight, bias, *statistics, True, 0.1, 1e-5), {}, statistics),
    "impl index": (torch._batch_norm_impl_index, (image, weight, bias, *statistics, True, 0.1, 1e-5, False), {}, statistics),
    "with update": (torch.ops.aten._batch_norm_with_update, (image, weight, bias, *statistics, 0.1, 1e-5), {}, statistics),
    "cudnn": (torch.cudnn_batch_norm, (image, weight, bias, *statistics, True, 0.1, 1e-5), {}, statistics),
    "miopen": (torch.miopen_batch_norm, (image, weight, bias, *statistics, True, 0.1, 1e-5), {}, statistics),
    "update stats": (torch.batch_norm_update_stats, (image, *statistics, 0.1), {}, statistics),
    "gather stats": (torch.batch_norm_gather_stats, (image, weight, bias, *statistics, 0.1, 1e-5, 2), {}, statistics),
    "aten.native_batch_norm": (
        torch.ops.aten.native_batch_norm.default,
        (image, weight, bias, *statistics, True, 0.1, 1e-5),
        {},
        statistics,
    ),
}
READERS = {
    "sort": (torch.sort, (x,), {}),
    "Tensor.sort": (Tensor.sort, (x,), {"stable": True}),
    "argsort": (torch.argsort, (x,), {}),
    "index": (torch.ops.aten.index, (x, [labels]), {}),
    "add": (torch.add, (x, x), {}),
    "relu": (F.relu, (x,), {"inplace": False}),
    "embedding": (F.embedding, (labels, table), {}),
    "batch_norm in evaluation": (F.batch_norm, (image, *statistics), {"training": False}),
    "instance_norm in evaluation": (F.instance_norm, (image, *statistics), {"use_input_stats": False}),
    "native_batch_norm in evaluation": (torch.native_batch_norm, (image, weight, bias, *statistics, False, 0.1, 1e-5), {}),
}


@pytest.mark.parametrize("case", WRITERS)
def test_what_a_call_overwrites_is_known_before_it_runs(case):
    func, args, kwargs, expected = WRITERS[case]
    assert [id(t) for t in facts(func).writes(args, kwargs)] == [id(t) for t in expected]


@pytest.mark.parametrize("case", READERS)
def test_functions_that_write_nothing_say_so(case):
    func, args, kwargs = READERS[case]
    assert facts(func).writes(args, kwargs) == []


def test_a_call_after_sort_depends_on_its_argument_alone():
    history = torcheer.log_forward_pass(lambda t: (t.sort().values, t.sin()), x)
    assert history["sin_1"].passes[0]._record.dependencies == (0,)


@pytest.mark.parametrize("norm", [torch.native_batch_norm, torch._native_batch_norm_legit])
def test_running_statistics_are_put_back_under_whatever_name_they_were_written(norm):
    model = torch.nn.BatchNorm1d(4)
    model.forward = lambda t: norm(t, model.weight, model.bias, model.running_mean, model.running_var, True, 0.1, 1e-5)[0]
    history = torcheer.log_forward_pass(model, torch.randn(3, 4))
    assert torch.equal(model.running_mean, torch.zeros(4))
    assert torch.equal(model.running_var, torch.ones(4))
    assert history.validate()


def test_an_embedding_that_renormalises_its_weight_is_put_back():
    model = torch.nn.Embedding(5, 4, max_norm=0.1)
    before = model.weight.detach().clone()
    assert torcheer.validate_forward_pass(model, (labels,))
    assert torch.equal(model.weight, before)


def test_out_is_overwritten():
    out = torch.empty(2)
    assert out_or_inplace((), {"out": out}) == [out]
    assert out_or_inplace((), {"out": (out, x)}) == [out, x]


CATEGORIES = {
    "layer": [F.conv2d, F.linear, F.embedding, torch.lstm, F.unfold],
    "attention": [F.scaled_dot_product_attention],
    "normalisation": [F.batch_norm, F.layer_norm, torch.native_group_norm, F.rms_norm],
    "activation": [F.relu, torch.softmax, F.gelu, F.glu, Tensor.tanh_, F.logsigmoid],
    "pooling": [F.max_pool2d, F.adaptive_avg_pool2d, F.interpolate, F.pixel_shuffle, F.pixel_unshuffle, F.grid_sample],
    "reduction": [torch.sum, torch.max, torch.linalg.norm, F.cross_entropy, torch.sort, torch.argsort],
    "constant": [torch.arange, torch.zeros, torch.ones_like, Tensor.new_zeros, torch.eye],
    "shape": [Tensor.view, torch.cat, Tensor.__getitem__, Tensor.to, torch.where, torch.gather, Tensor.T.__get__],
    "random": [F.dropout, torch.rand, torch.bernoulli, Tensor.normal_, torch.multinomial],
    "arithmetic": [torch.add, torch.matmul, torch.linalg.lu, torch.linalg.solve, torch.erf, torch.exp, Tensor.__rsub__],
}


@pytest.mark.parametrize("category", CATEGORIES)
def test_a_function_has_the_category_that_a_reader_expects(category):
    assert {facts(func).name: facts(func).category for func in CATEGORIES[category] if facts(func).category != category} == {}


packed = torch.nn.utils.rnn.pack_sequence([torch.rand(3, 4), torch.rand(2, 4)])
state = torch.rand(1, 2, 4)
integers = torch.tensor([3, 1, 2])

ROLES = {
    "index_select": (torch.index_select, (x, 0, labels), {}, [Role.VALUE, Role.INDEX]),
    "gather by name": (torch.gather, (x, 0), {"index": labels}, [Role.VALUE, Role.INDEX]),
    "getitem": (Tensor.__getitem__, (x, (slice(None), labels)), {}, [Role.VALUE, Role.INDEX]),
    "a bound of a slice": (Tensor.__getitem__, (x, slice(None, labels[0])), {}, [Role.VALUE, Role.SIZE]),
    "setitem": (Tensor.__setitem__, (x, labels, integers), {}, [Role.VALUE, Role.INDEX, Role.VALUE]),
    "embedding": (torch.embedding, (table, labels), {}, [Role.VALUE, Role.INDEX]),
    "F.embedding": (F.embedding, (labels, table), {}, [Role.INDEX, Role.VALUE]),
    "cross_entropy": (F.cross_entropy, (x, labels), {}, [Role.VALUE, Role.INDEX]),
    "one_hot": (F.one_hot, (labels,), {}, [Role.INDEX]),
    "packed lstm": (
        torch.lstm,
        (packed.data, packed.batch_sizes, (state, state), [x, x], True, 1, 0.0, False, False),
        {},
        [Role.VALUE, Role.LENGTH, Role.VALUE, Role.VALUE, Role.VALUE, Role.VALUE],
    ),
    "lstm": (torch.lstm, (x, (state, state), [x, x], True, 1, 0.0, False, False, False), {}, [Role.VALUE] * 5),
    "packed gru": (
        torch.gru,
        (packed.data, packed.batch_sizes, state, [x, x], True, 1, 0.0, False, False),
        {},
        [Role.VALUE, Role.LENGTH, Role.VALUE, Role.VALUE, Role.VALUE],
    ),
    "gru": (torch.gru, (x, state, [x, x], True, 1, 0.0, False, False, False), {}, [Role.VALUE] * 4),
    "repeat_interleave": (torch.repeat_interleave, (integers, integers), {}, [Role.VALUE, Role.LENGTH]),
    "repeats alone": (torch.repeat_interleave, (integers,), {}, [Role.LENGTH]),
    "lu_solve": (torch.linalg.lu_solve, (x, integers, x), {}, [Role.VALUE, Role.PIVOT, Role.VALUE]),
    "sparse": (torch.sparse_csr_tensor, (integers, integers, x), {}, [Role.OFFSET, Role.OFFSET, Role.VALUE]),
    "embedding_bag": (F.embedding_bag, (labels, table, integers), {}, [Role.INDEX, Role.VALUE, Role.OFFSET]),
    "arange": (torch.arange, (integers[0],), {}, [Role.SIZE]),
    "view": (Tensor.view, (x, integers[0], -1), {}, [Role.VALUE, Role.SIZE]),
    "add": (torch.add, (integers, integers), {}, [Role.VALUE, Role.VALUE]),
    "matmul": (Tensor.__matmul__, (integers, integers), {}, [Role.VALUE, Role.VALUE]),
    "div": (torch.div, (integers, integers), {"rounding_mode": "trunc"}, [Role.DIVIDEND, Role.DIVISOR]),
    "remainder by name": (torch.remainder, (integers,), {"other": integers}, [Role.DIVIDEND, Role.DIVISOR]),
    "floor division": (Tensor.__floordiv__, (integers, integers), {}, [Role.DIVIDEND, Role.DIVISOR]),
    "floor division of a number": (Tensor.__rfloordiv__, (integers, 7), {}, [Role.DIVISOR]),
    "another library's": (torch.ops.quantized.add, (integers, x), {}, [Role.UNKNOWN, Role.UNKNOWN]),
}
if hasattr(torch, "_grouped_mm"):  # not in torch before 2.8
    ROLES["grouped product"] = (torch._grouped_mm, (x, x), {"offs": integers}, [Role.VALUE, Role.VALUE, Role.OFFSET])


@pytest.mark.parametrize("case", ROLES)
def test_which_arguments_are_structure_is_known_by_their_role(case):
    func, args, kwargs, expected = ROLES[case]
    assert [role for _, role in facts(func).structure.roles(args, kwargs)] == expected


def test_facts_about_other_peoples_functions_are_not_kept():
    def stranger():
        pass

    assert facts(stranger) is not facts(stranger)
    assert facts(torch.add) is facts(torch.add)


def test_overloads_of_collectives_are_collectives():
    """As DTensor and tensor parallel models call them."""
    packet = torch.ops._c10d_functional
    assert facts(packet.all_reduce.default).is_collective
    assert facts(packet.all_reduce).is_collective
    assert not facts(packet.wait_tensor.default).is_collective
    assert not facts(torch.ops.aten.add.Tensor).is_collective


X = torch.rand(2, 4, 6)
IMAGE = torch.rand(1, 2, 8, 8)


@pytest.mark.parametrize(
    ("call", "x", "expected"),
    [
        (lambda x: x.transpose(1, 2), X, "·, dim0=1, dim1=2"),
        (lambda x: torch.transpose(x, 1, 2), X, "·, dim0=1, dim1=2"),
        (lambda x: x.sum(1, True), X, "·, dim=1, keepdim=True"),
        (lambda x: x.std(0, True), X, "·, dim=0, unbiased=True"),
        (lambda x: x.std(False), X, "·, unbiased=False"),
        (lambda x: torch.clamp(x, 0.1, 0.9), X, "·, min=0.1, max=0.9"),
        (lambda x: x.clamp(None, 0.9), X, "·, min=None, max=0.9"),
        (lambda x: x.to(torch.float64), X, "·, dtype=torch.float64"),
        (lambda x: x.to("cpu", torch.float64), X, "·, device='cpu', dtype=torch.float64"),
        (lambda x: torch.roll(x, 1, 0), X, "·, shifts=1, dims=0"),
        (lambda x: torch.cat([x, x], 1), X, "tensors=[·, ·], dim=1"),
        (lambda x: torch.flatten(x, 1), X, "·, start_dim=1"),
        (lambda x: x.softmax(-1), X, "·, dim=-1"),
        (lambda x: F.softmax(x, -1), X, "·, dim=-1"),
        (lambda x: x.chunk(2, 1)[0], X, "·, chunks=2, dim=1"),
        (lambda x: x.split(2, 1)[0], X, "·, split_size=2, dim=1"),
        (lambda x: F.pad(x, (1, 1)), X, "·, pad=(1, 1)"),
        (lambda x: F.max_pool2d(x, 3), IMAGE, "·, kernel_size=3"),
        (lambda x: F.avg_pool2d(x, 3, 2), IMAGE, "·, kernel_size=3, stride=2"),
        (lambda x: F.conv2d(x, torch.ones(2, 2, 3, 3), None, 2, 1), IMAGE, "·, ·, bias=None, stride=2, padding=1"),
        (lambda x: F.conv2d(x, torch.ones(2, 2, 3, 3), None, 1, "same"), IMAGE, "·, ·, bias=None, stride=1, padding='same'"),
        (lambda x: F.interpolate(x, None, 2.0), IMAGE, "·, size=None, scale_factor=2.0"),
        (lambda x: F.gelu(x, approximate="tanh"), X, "·, approximate='tanh'"),
        (lambda x: x.unfold(2, 2, 1), X, "·, dimension=2, size=2, step=1"),
        (lambda x: x.view(2, 24), X, "·, 2, 24"),
        (lambda x: x.permute(2, 0, 1), X, "·, 2, 0, 1"),
        (lambda x: x + 1, X, "·, other=1"),
        (lambda x: x[0], X, "·, 0"),
    ],
)
def test_arguments_have_their_names(call, x, expected):
    """Those of C functions too; what is given one by one (`view(2, 24)`) has none."""
    graph = log(call, x).graph
    said = [str(node.arguments) for node in graph.nodes if node.arguments is not None]
    assert any(text == expected or text.startswith(f"{expected}, ") for text in said), said


def test_names_are_those_python_knows():
    """For every function of torch.nn.functional that is written in Python, of which inspect can tell."""
    arguments = log(lambda x: F.dropout(x, 0.5, True, False), X).graph.node("dropout_1_1:1").arguments
    assert [name for name, _ in arguments.pairs()] == ["input", "p", "training", "inplace"]
