"""Memory that is freed while somebody still refers to it is never read: no native crash, no wrong value served."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import torcheer
from forked import in_a_copy_of_the_process
from models import Buffer, made_of, made_with
from torcheer._torch import internals, restore_state
from torcheer._torch.restore_state import restore_count
from torcheer.errors import StateNotRestored

x = torch.rand(2, 1000)


@made_with(b=lambda: Buffer(torch.rand(1000, 1000)), fc=lambda: nn.Linear(1000, 3))
def Frees(self, t):
    row = self.b[0]
    y = self.fc(t + row)
    with torch._C.DisableTorchFunction():  # unseen, as a compiled extension would
        self.b.untyped_storage().resize_(0)
    return y


class Sharded(nn.Module):
    """Fills its weight before the pass and frees it after, as FSDP does."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(300, 1000))
        self.whole = self.weight.detach().clone()
        self.weight.untyped_storage().resize_(0)

    def forward(self, t):
        with torch._C.DisableTorchFunction():
            memory = self.weight.untyped_storage()
        memory.resize_(300 * 1000 * 4)
        with torch.no_grad():
            self.weight.copy_(self.whole)
        y = t @ self.weight.t()
        memory.resize_(0)
        return y


def lost(action):
    try:
        action()
    except torcheer.ActivationLost as error:
        return "freed" in str(error)
    return False


def expect_warning(name, action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = action()
    found = [str(w.message) for w in caught if issubclass(w.category, StateNotRestored)]
    assert len(found) == 1, found
    assert name in found[0]
    return result


@in_a_copy_of_the_process
def test_a_buffer_freed_in_the_pass_is_named_and_views_of_it_are_refused():
    model = Frees()
    history = expect_warning("'b'", lambda: torcheer.log_forward_pass(model, x))
    assert any("'b'" in note for note in history.notes), history.notes
    print(history), print(history.summary()), history.to_pandas()
    view = history["getitem_1"]
    assert lost(lambda: view.tensor_contents)
    assert lost(lambda: history["add_1"].creation_args)
    assert history["linear_1"].tensor_contents.shape == (2, 3)
    assert view.tensor_shape == (1000,)
    report = history.validate()
    assert not report, str(report)
    assert "b" in str(report)
    assert "freed" in str(report)
    copied = copy.deepcopy(history)
    assert lost(lambda: copied["getitem_1"].tensor_contents)
    model.b.untyped_storage().resize_(4_000_000)  # filled again, with something else
    assert lost(lambda: view.tensor_contents)


@in_a_copy_of_the_process
def test_the_page_of_a_history_with_freed_memory_is_made(tmp_path):
    model = Frees()
    history = expect_warning("'b'", lambda: torcheer.log_forward_pass(model, x))
    history.to_html(tmp_path / "page.html")


@in_a_copy_of_the_process
def test_validation_puts_freed_memory_back():
    model = Frees()
    before = model.b.clone()
    assert torcheer.validate_forward_pass(model, x)
    assert torch.equal(model.b, before)


@in_a_copy_of_the_process
def test_a_model_that_fills_its_weight_and_frees_it_is_logged_and_validated():
    model = Sharded()
    history = torcheer.log_forward_pass(model, x)  # any warning is an error
    assert torch.allclose(history["output"].tensor_contents, x @ model.whole.t())
    assert model.weight.untyped_storage().nbytes() == 0
    assert lost(lambda: history["t_1"].tensor_contents)
    torcheer.validate_forward_pass(model, x)
    assert model.weight.untyped_storage().nbytes() == 0
    assert torch.allclose(model(x), x @ model.whole.t())


@in_a_copy_of_the_process
def test_a_tensor_closed_over_and_freed_does_not_crash_the_proof():
    b = torch.rand(1000, 1000)

    def model(t):
        y = t + b[0]
        b.untyped_storage().resize_(0)
        return y

    history = torcheer.log_forward_pass(model, x)
    history.validate()
    for layer in history:
        try:
            layer.tensor_contents.sum()
        except torcheer.ActivationLost:
            pass


WRITES = {
    "resize": lambda model: model.b.resize_(0),
    "set": lambda model: model.b.set_(),
    "data": lambda model: setattr(model.b, "data", torch.empty(0)),
    "copy": lambda model: model.b.untyped_storage().copy_(torch.zeros(1000, 1000).untyped_storage()),
    "empty": lambda model: model.to_empty(device="cpu"),
    "grow": lambda model: model.b.untyped_storage().resize_(8_000_000),
    "share": lambda model: model.b.untyped_storage().share_memory_(),
}


class Relative(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.register_buffer("b", torch.rand(1000, 1000))
        self.write = write

    def forward(self, t):
        row = self.b[0]
        y = t + row
        self.write(self)
        return y * 2


@pytest.mark.parametrize("write", WRITES)
@in_a_copy_of_the_process
def test_relatives_of_freeing_do_not_crash_and_validation_leaves_no_trace(write):
    model = Relative(WRITES[write])
    before = model.b.clone()
    warnings.simplefilter("ignore", StateNotRestored)
    warnings.simplefilter("ignore", torcheer.UnseenWorkWarning)  # torch counts set_ as a write
    torcheer.validate_forward_pass(model, x)
    assert torch.equal(model.b, before), "after validation"
    history = torcheer.log_forward_pass(model, x)
    for layer in history:
        try:
            layer.tensor_contents.sum()
        except torcheer.ActivationLost:
            pass
    history.validate()


@in_a_copy_of_the_process
def test_an_output_whose_memory_is_freed_does_not_crash():
    def model(t):
        y = t * 2
        z = y + 1
        with torch._C.DisableTorchFunction():
            y.untyped_storage().resize_(0)
        return y, z

    history = torcheer.log_forward_pass(model, x)
    assert lost(lambda: history["mul_1"].tensor_contents)
    assert torch.equal(history["add_1"].tensor_contents, x * 2 + 1)
    torcheer.validate_forward_pass(model, x)


@in_a_copy_of_the_process
def test_memory_freed_after_the_pass_is_refused():
    kept = []

    def model(t):
        y = t * 2
        with torch._C.DisableTorchFunction():
            kept.append(y.untyped_storage())
        return y + 1

    history = torcheer.log_forward_pass(model, x)
    kept[0].resize_(0)
    assert lost(lambda: history["mul_1"].tensor_contents)
    history.validate()
    copy.deepcopy(history)


@in_a_copy_of_the_process
def test_a_recording_with_freed_memory_does_not_crash():
    model = Frees()
    with torcheer.recording(model) as history:
        model(x)
    assert lost(lambda: history["getitem_1"].tensor_contents)
    history.validate()


@in_a_copy_of_the_process
def test_an_input_without_memory_is_logged_and_validated_by_its_shape():
    empty = torch.rand(4, 4)
    empty.untyped_storage().resize_(0)
    model = lambda t: t.reshape(16).view(2, 8).shape[0] + torch.ones(3)
    torcheer.log_forward_pass(model, empty)
    torcheer.validate_forward_pass(model, empty)


def test_the_count_of_writes_is_not_set_of_a_tensor_whose_memory_was_freed(monkeypatch):
    """torch would print the tensor where it refuses to, and so read memory that is gone."""
    asked = []

    def forward(self, t):
        self.memory.add_(1)
        y = t + self.memory
        self.memory.data = torch.ones(2, 1000)
        self.memory.untyped_storage().resize_(0)
        return y

    model = made_of(forward, memory=Buffer(torch.zeros(2, 1000)))
    freed = model.memory
    set_counts = restore_state.count_writes_as
    monkeypatch.setattr(restore_state, "count_writes_as", lambda one, count: (asked.append(one.nbytes), set_counts(one, count)))
    torcheer.log_forward_pass(model, x)
    assert torch.equal(freed, torch.zeros(2, 1000))
    restore_count(torch.rand(3), 7)
    freed.add_(1)
    freed.untyped_storage().resize_(0)
    restore_count(freed, 0)
    assert asked == [8000, 12]


def test_how_torch_takes_counts_of_writes_is_asked_with_a_tensor_of_ours(monkeypatch):
    seen = []

    def of_one(tensor, count):
        seen.append((tensor, count))
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"one tensor is expected, not {tensor!r}")

    monkeypatch.setattr(internals, "_set_write_counts", of_one)
    internals._takes_one_write_count.cache_clear()
    try:
        internals.count_writes_as(x, 0)
    finally:
        internals._takes_one_write_count.cache_clear()
    assert seen[0][0][0].numel() == 0
    assert [one[0] is x for one in seen] == [False, True]
