"""A proof never ends the process, and never runs the model on integers nobody gave it.

Each program here ended the process, or was run on other integers, while it was validated. They run in a process of their own,
so that a death is a failure and not the end of the tests.
"""

from __future__ import annotations

import contextlib
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torcheer
from forked import run_in_a_copy
from models import made_of
from torch_version import TORCH
from torcheer.replay.edges import STRUCTURE

x = torch.rand(3, 4)
many = torch.tensor([7, 5, 3, 2])
few = torch.tensor([2, 3, 1, 2])
images = torch.rand(2, 3, 8, 8)


class Packed(nn.Module):
    """A recurrent network over sequences of different lengths."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.net = kind(4, 5, batch_first=True, **options)

    def forward(self, sequences, lengths):
        packed = pack_padded_sequence(sequences, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.net(packed)[0], batch_first=True)[0]


def grouped(a, b, offsets):
    return torch._grouped_mm(a, b, offs=offsets)


def rows(values):
    return torch.sparse_csr_tensor(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), values).to_dense()


def given_rows(starts, columns, values):
    return torch.sparse_csr_tensor(starts, columns, values, (2, 2)).to_dense()


def given_columns(starts, columns, values):
    return torch.sparse_csc_tensor(starts, columns, values, (2, 2)).to_dense()


def given_blocks(starts, columns, values):
    return torch.sparse_bsr_tensor(starts, columns, values, (4, 4)).to_dense()


def as_float_index(table, places):
    return table[places.long()]


def solved(a, b):
    factors, pivots = torch.linalg.lu_factor(a)
    return torch.linalg.lu_solve(factors, pivots, b)


lengths = torch.tensor([3, 1, 2])
sequences = torch.rand(3, 3, 4)
starts, columns = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1])
integers = torch.iinfo(torch.int64)

PROGRAMS = {
    "packed lstm": (Packed(nn.LSTM), (sequences, lengths)),
    "packed gru": (Packed(nn.GRU, num_layers=2, bidirectional=True), (sequences, lengths)),
    "packed rnn": (Packed(nn.RNN, nonlinearity="relu"), (sequences, lengths)),
    "sparse rows": (rows, (torch.rand(4),)),
    "sparse rows given": (given_rows, (starts, columns, torch.rand(4))),
    "sparse columns given": (given_columns, (starts, columns, torch.rand(4))),
    "sparse blocks given": (given_blocks, (starts, columns, torch.rand(4, 2, 2))),
    "sparse indices given": (
        lambda i, v: torch.sparse_coo_tensor(i, v, (3, 3), check_invariants=False).to_dense(),
        (torch.tensor([[0, 2], [1, 0]]), torch.rand(2)),
    ),
    "division": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (many, few)),
    "division of all by one": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (many, torch.ones_like(many))),
    "floor division": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (many, few)),
    "floor_divide": (torch.floor_divide, (many, torch.ones_like(many))),
    "remainder": (torch.remainder, (many, torch.ones_like(many))),
    "fmod": (torch.fmod, (many, torch.ones_like(many))),
    "//": (lambda a, b: a // b, (many, torch.ones_like(many))),
    "%": (lambda a, b: a % b, (many, torch.ones_like(many))),
    "number //": (lambda b: 7 // b, (torch.ones_like(many),)),
    "number %": (lambda b: 7 % b, (torch.ones_like(many),)),
    "// in place": (lambda a, b: a.clone().__ifloordiv__(b), (many, torch.ones_like(many))),
    "least integer": (
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        (torch.tensor([integers.min, 5]), torch.tensor([1, -1])),
    ),
    "indices": (lambda t, i: t[i], (x, torch.tensor([2, 0]))),
    "an index alone": (lambda t, i: t[i], (x, torch.tensor([2]))),
    "whole numbers that come as floats": (as_float_index, (x, torch.tensor([2.0, 0.0]))),
    "fractions that become indices": (lambda t, p: t[(p * 3).long()], (x, torch.tensor([0.99, 0.2]))),
    "counts": (lambda t, n: t.repeat_interleave(n, 0), (x, torch.tensor([1, 2, 3]))),
    "bags": (lambda i, w, o: nn.functional.embedding_bag(i, w, o), (torch.tensor([1, 2, 0, 1]), x, torch.tensor([0, 2]))),
    "pivots": (solved, (torch.rand(3, 3) + torch.eye(3), torch.rand(3, 2))),
    "targets with an ignored one": (nn.functional.cross_entropy, (x, torch.tensor([1, -100, 3]))),
    "unpooling": (lambda t: nn.functional.max_unpool2d(*nn.functional.max_pool2d(t, 2, return_indices=True), 2), (images,)),
    "probabilities": (lambda p: torch.bernoulli(p) + torch.multinomial(p, 2).sum(), (torch.rand(3, 4),)),
    "cross entropy of probabilities": (nn.functional.binary_cross_entropy, (torch.rand(3), torch.rand(3))),
    "sizes": (lambda t, n: t[:2].expand(n, 4), (x[:1], torch.tensor(3))),
    "ctc": (
        lambda p, t, n, m: nn.functional.ctc_loss(p, t, n, m),
        (torch.randn(5, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 1]]), torch.tensor([5, 4]), torch.tensor([2, 1])),
    ),
    "segments": (lambda t, n: torch.segment_reduce(t, "sum", lengths=n), (x, torch.tensor([1, 2]))),
    "jagged": (lambda v, o: torch.nested.nested_tensor_from_jagged(v, o).to_padded_tensor(0.0), (x, torch.tensor([0, 1, 3]))),
    "search": (lambda s, v, o: torch.searchsorted(s, v, sorter=o), (torch.rand(4), x, torch.tensor([3, 1, 2, 0]))),
    "unravelled": (lambda i: torch.unravel_index(i, (3, 4))[0], (torch.tensor([11, 0, 5]),)),
    "one-hot": (nn.functional.one_hot, (torch.tensor([0, 3, 1]),)),
    "histogram": (torch.bincount, (torch.tensor([0, 3, 1]),)),
}


with contextlib.suppress(AttributeError, RuntimeError):  # torch before 2.10 has it for CUDA alone, or not at all
    _given = (torch.rand(8, 16).bfloat16(), torch.rand(2, 16, 16).bfloat16(), torch.tensor([3, 8]).int())
    grouped(*_given)
    PROGRAMS["grouped product"] = (grouped, _given)


def validate(names: list[str]) -> None:
    """Validate programs by name, and say after each what came of it. What a process of its own runs."""
    torch.manual_seed(0)
    warnings.simplefilter("ignore")  # torch calls sparse tensors a beta
    for name in names:
        model, args = PROGRAMS[name]
        report = torcheer.validate_forward_pass(model, args)
        print(f"{name}: {'valid' if report else report.first_disagreement}", flush=True)


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What came of every program; of one that ended the process, nothing."""
    found: dict[str, str] = {}
    waiting = list(PROGRAMS)
    while waiting:
        code, printed = run_in_a_copy(partial(validate, waiting))
        found.update(line.split(": ", 1) for line in printed.splitlines() if ": " in line)
        here = next((name for name in waiting if name not in found), None)
        if here is not None:
            found[here] = f"ended the process ({code}): {printed[-300:]}"
        waiting = [name for name in waiting if name not in found]
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_proof_does_not_end_the_process(said, name):
    assert said[name] == "valid"


def test_structure_is_left_alone_and_counted():
    report = torcheer.validate_forward_pass(*PROGRAMS["packed lstm"])
    edges = next(check for check in report.checks if "changing" in check.name)
    assert edges.exempt[STRUCTURE] >= 2  # batch_sizes of the network and of the padding
    assert edges.count > 5
    assert f"{STRUCTURE}" in str(report)


def test_indices_are_tried_with_indices_that_occur():
    report = torcheer.validate_forward_pass(lambda t, i: t[i], (x, torch.tensor([2, 0])))
    edges = next(check for check in report.checks if "changing" in check.name)
    assert (edges.count, dict(edges.exempt)) == (2, {})


@pytest.mark.parametrize(
    ("given", "scale"),
    [(torch.tensor([1, 2, 0]), 1), (torch.tensor([1.0, 2.0, 0.0]), 1), (torch.tensor([0.4, 0.9, 0.1]), 3)],
    ids=["integers", "whole numbers as floats", "fractions that become integers"],
)
def test_the_model_is_never_run_on_integers_that_nobody_gave_it(given, scale):
    seen: list[torch.Tensor] = []

    def model(places, table):
        index = (places * scale).long()
        with torch._C.DisableTorchFunction():
            seen.append(index.clone())
        return table[index]

    report = torcheer.validate_forward_pass(model, (given, torch.rand(3, 4)))
    another = next(check for check in report.checks if "another input" in check.name)
    assert (another.skipped, another.count) == (None, 1)  # the table was changed
    assert len(seen) >= 3
    assert all(torch.equal(index, seen[0]) for index in seen)


def test_whole_numbers_are_moved_where_nothing_makes_indices_of_them():
    report = torcheer.validate_forward_pass(nn.Linear(4, 2), torch.ones(3, 4))
    another = next(check for check in report.checks if "another input" in check.name)
    assert another.skipped is None
    assert another.count == 1


def test_probabilities_stay_probabilities_in_another_input():
    seen: list[torch.Tensor] = []

    def model(p):
        with torch._C.DisableTorchFunction():
            seen.append(p.detach().clone())
        return torch.bernoulli(p)

    assert torcheer.validate_forward_pass(lambda p: model(p), torch.tensor([0.0, 0.99, 1.0, 0.5]))
    assert len({tuple(p.tolist()) for p in seen}) == 2
    assert all(float(p.min()) >= 0 and float(p.max()) <= 1 for p in seen)


# Memory ----------------------------------------------------------------------------------------------------------------


def overwritten(t):
    base = t * 2
    view = base[0]
    view.add_(1)
    other = t.sort().values
    return base + other, t.sin()


def test_a_write_that_did_not_happen_is_disproved(monkeypatch):
    from torcheer._torch.functions import facts

    monkeypatch.setattr(facts(torch.Tensor.sort), "written", lambda args, kwargs: [args[0]])
    history = torcheer.log_forward_pass(overwritten, x)
    report = history.validate()
    assert not report
    assert "does not write to its argument 0, which the log says" in str(report)


def test_a_dependency_through_memory_that_is_none_is_disproved():
    history = torcheer.log_forward_pass(overwritten, x)
    assert history.validate()
    log = history._log
    write = history["add_1"].passes[0]._number
    sine = history["sin_1"].passes[0]._number
    log.detail(sine).also = (write,)
    report = history.validate()
    assert not report
    assert "it depends on add_1" in str(report)


def test_a_dependency_on_a_write_before_the_argument_was_made_is_disproved():
    def model(t):
        base = t * 2
        base.add_(1)
        return base.mul(3)

    history = torcheer.log_forward_pass(model, x)
    assert history.validate()
    last = history["mul_2"].passes[0]._number
    history._log.detail(last).also = (history["mul_1"].passes[0]._number,)
    assert not history.validate()


def compiled(self, x):
    from functorch.compile import aot_function, nop

    return aot_function(lambda t: t.sin() * 2, fw_compiler=nop)(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # AOTAutograd reads it
def test_tensors_that_cannot_be_copied_do_not_stop_a_proof():
    """AOTAutograd leaves tensors of a class of its own behind, which nothing may be done with."""
    model, given = nn.Sequential(nn.Linear(3, 3), made_of(compiled)), torch.rand(2, 3)
    if TORCH < (2, 13):
        with pytest.raises(torcheer.InvalidArgument, match="could not be kept: its class of tensors"):
            torcheer.validate_forward_pass(model, given)
        return
    report = torcheer.validate_forward_pass(model, given)
    assert report.checks[0].passed, report
    assert "FunctionalTensor" in str(report)
