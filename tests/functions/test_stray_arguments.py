"""Arguments that lead torch out of memory are refused before a replay calls a function with them, and no others are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torcheer
from operator_database import operators, samples
from torcheer._torch.functions import facts
from torcheer._torch.functions.allowed_calls import refuse_stray, refuse_stray_indices
from torcheer.errors import InvalidArgument
from torcheer.replay.machine import call_again

FAR = 10**12
x = torch.rand(2, 3, 4, 4)
lu, pivots = torch.linalg.lu_factor(torch.rand(4, 4))

STRAY = {
    "an address": (torch.Tensor.new, (x,), {"cdata": FAR}),
    "statistics of fewer channels": (torch.native_batch_norm, (x, None, None, x[0, :0, 0, 0], None, True, 0.1, 1e-5), {}),
    "a weight of one channel": (torch.native_batch_norm, (x, torch.ones(1), None, None, None, True, 0.1, 1e-5), {}),
    "no statistics": (torch._native_batch_norm_legit, (x, None, None, False, 0.1, 1e-5), {}),
    "fewer pivots": (torch.lu_unpack, (lu, pivots[:0]), {}),
    "a far pivot": (torch.lu_unpack, (lu, pivots * 1000), {}),
    "a far pivot of a solver": (torch.linalg.lu_solve, (lu, pivots - 9, lu), {}),
    "long segments": (torch._segment_reduce, (torch.rand(5), "max"), {"lengths": torch.tensor([3, 9])}),
    "far segments": (torch._segment_reduce, (torch.rand(5), "max"), {"offsets": torch.tensor([0, 3, 6])}),
    "segments backwards": (torch._segment_reduce, (torch.rand(5), "max"), {"offsets": torch.tensor([4, 1, 5])}),
    "a target that is no class": (F.ctc_loss, (torch.rand(9, 1, 4), torch.full((1, 3), FAR), [9], [3]), {}),
    "a long target": (F.ctc_loss, (torch.rand(9, 1, 4), torch.ones(1, 3).long(), [9], [4]), {}),
    "fewer weights": (
        F.embedding_bag,
        (torch.tensor([1, 2, 3]), torch.rand(5, 5), torch.tensor([0])),
        {"mode": "sum", "per_sample_weights": torch.rand(2)},
    ),
    "a far offset": (torch.embedding_bag, (torch.rand(5, 5), torch.tensor([1, 2]), torch.tensor([0, FAR])), {}),
    "no such dimension": (torch._fft_r2c, (torch.rand(4), [1000], 0, True), {}),
    "a sample that is none": (F.fractional_max_pool2d, (x, 2, (2, 2)), {"_random_samples": torch.full((2, 3, 2), 99.0)}),
    "more lengths than sequences": (torch._pack_padded_sequence, (torch.rand(3, 2, 4), torch.tensor([3, 3, 3]), False), {}),
    "steps larger than the data": (torch._pad_packed_sequence, (torch.rand(4, 2), torch.tensor([3, 2]), False, 0.0, 2), {}),
    "a pixel that is none": (
        torch.ops.aten.max_pool2d_with_indices_backward,
        (x[..., :2, :2], x, [2, 2], [2, 2], [0, 0], [1, 1], False, torch.full((2, 3, 2, 2), FAR)),
        {},
    ),
    "a memory format as a number": (torch.ops.aten.clone.default, (x,), {"memory_format": 99}),
    "a gradient of one number": (torch._fused_sgd_, ([x], [torch.ones(1)], []), {}),
    "fewer lengths than directions": (torch._weight_norm, (torch.rand(99, 3), torch.ones(1, 1), 0), {}),
    "lists of two lengths": (torch._foreach_add, ([x, x], [x]), {}),
}


@pytest.mark.parametrize("name", STRAY)
def test_what_leads_out_of_memory_is_refused(name):
    func, args, kwargs = STRAY[name]
    with pytest.raises(InvalidArgument, match="torch does not check these"):
        refuse_stray(facts(func), args, kwargs)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning")
@pytest.mark.parametrize("form", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_a_sparse_tensor_with_indices_outside_it_is_refused(form):
    tensor = torch.eye(4).to_sparse(layout=form, blocksize=(2, 2) if form in (torch.sparse_bsr, torch.sparse_bsc) else None)
    refuse_stray_indices(tensor)
    columns = tensor.row_indices if form in (torch.sparse_csc, torch.sparse_bsc) else getattr(tensor, "col_indices", None)
    (tensor._indices() if form is torch.sparse_coo else columns()).fill_(FAR)
    with pytest.raises(InvalidArgument, match="indices of a sparse tensor"):
        refuse_stray_indices(tensor)


def test_a_loaded_history_is_not_run_on_such_a_tensor(tmp_path):
    path = tmp_path / "dense.safetensors"
    torcheer.log_forward_pass(lambda t: t.to_sparse().to_dense(), torch.eye(4)).save(path)
    record = torcheer.load(path)["todense_1"].passes[0]._record
    tensor = torch.eye(4).to_sparse()
    assert torch.equal(call_again(record, (tensor,), {}), torch.eye(4))
    tensor._indices().fill_(FAR)
    with pytest.raises(InvalidArgument, match="indices of a sparse tensor"):
        call_again(record, (tensor,), {})


def test_no_call_of_torchs_database_is_refused():
    count = 0
    for operator in (one for one in operators() if one.supported_dtypes("cpu")):
        for sample in samples(operator, 8):
            refuse_stray(facts(operator.op), (sample.input, *sample.args), sample.kwargs)
            count += 1
    assert count > 3000
