"""`intervene` on what a model writes in place: compared with models that are edited by hand in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from in_place_programs import InPlaceProgram, Step, programs_in_place
from torch import Tensor, nn

import torcheer
from models import made_of
from torcheer import changes
from torcheer.replay.comparison import same_bits


def _doubled_row(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor[0] = tensor[0] * 2
    return tensor


EDITS: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "scale": (changes.scale(3), lambda t: t * 3),
    "square": (lambda t: t * t, lambda t: t * t),
    "zero": (changes.zero(), torch.zeros_like),
    "row": (changes.scale(2, at=0), _doubled_row),
}


class Model(nn.Module):
    """Runs a function of itself and its input."""

    def __init__(self, function: Callable[[Model, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.p = nn.Parameter(torch.ones(2, 4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def run(model: nn.Module, x: Tensor, follows: bool) -> tuple[tuple[Tensor, ...], Tensor]:
    x = x.clone().requires_grad_(follows)
    with torch.set_grad_enabled(follows):
        outputs = model(x)
    return (outputs if isinstance(outputs, tuple) else (outputs,)), x


def gradients(model: nn.Module, x: Tensor, outputs: tuple[Tensor, ...]) -> list[Tensor | None]:
    losses = [(at + 1) * one.square().sum() for at, one in enumerate(outputs) if one.requires_grad]
    if not losses:
        return []
    return list(torch.autograd.grad(torch.stack(losses).sum(), [x, *model.parameters()], allow_unused=True))


def alike(ours: Any, theirs: Any) -> bool:
    return len(ours) == len(theirs) and all(map(same_bits, ours, theirs))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(programs_in_place, st.integers(0, 5), st.sampled_from(sorted(EDITS)), st.booleans())
@example((Step("flat", 1), Step("init", 1), Step("sigmoid_", 2, is_used=True)), 2, "square", True)
@example((Step("relu_", 0, is_used=True), Step("mul_", 0), Step("row", 0), Step("add_", 3)), 0, "scale", True)
def test_a_change_in_a_program_that_works_in_place_is_that_of_the_program_edited_by_hand(steps, at, edit, follows):
    """Outputs and gradients bit for bit; or an error of ours."""
    at %= len(steps)
    model, x = InPlaceProgram(steps), torch.randn(3, 3)
    edited = copy.deepcopy(model)
    change, edited.edit = EDITS[edit]
    edited.at = at
    try:
        run(model, x, follows)
        expected, their_x = run(edited, x, follows)
    except (RuntimeError, ValueError, IndexError):  # torch does not run this program
        assume(False)
    with torch.set_grad_enabled(follows):
        history = torcheer.log_forward_pass(model, x.clone().requires_grad_(follows))
    made = [one for one in history.operations if not (one.is_input_layer or one.is_output_layer)]
    made = [one for one in made if one.func_applied_name != "alias"]
    label = made[1 + sum(model.calls[: at + 1])].label
    with torcheer.intervene(model, {label: change}, like=history) as edits:
        outputs, our_x = run(model, x, follows)
    assert alike(outputs, expected)
    assert edits.edits[0].times == 1
    try:
        theirs = gradients(edited, their_x, expected)
    except RuntimeError:  # a value that the backward pass needs was overwritten, by the program itself
        return
    assert alike(gradients(model, our_x, outputs), theirs)


CASES: dict[str, tuple[Callable[..., Any], str, Callable[..., Any]]] = {}


def case(key: str, edited: Callable[[Model, Tensor], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        CASES[function.__name__] = function, key, edited
        return function

    return add


@case("relu_1", lambda m, x: (F.relu(m.fc(x)) * 3,) * 2)
def function_used_by_name(m, x):
    y = m.fc(x)
    z = F.relu(y, inplace=True)
    return y, z


@case("mul_1", lambda m, x: m.fc(x) * 2 * 3 + 1)
def chain(m, x):
    z = m.fc(x)
    z.mul_(2).add_(1)
    return z


@case("detach_1", lambda m, x: torch.tanh(m.fc(x)).detach() * 3 * m.p)
def detached(m, x):
    z = torch.tanh(m.fc(x))
    z.detach_()
    return z * m.p


def _detached_later(m, x):
    z = torch.tanh(m.fc(x))
    return z.sum(), z.detach() * 3 * m.p


@case("detach_1", _detached_later)
def detached_after_another_used_it(m, x):
    z = torch.tanh(m.fc(x))
    loss = z.sum()
    z.detach_()
    return loss, z * m.p


@case("constant_1", lambda m, x: m.fc(x) * torch.full((2, 4), 6.0))
def what_init_wrote(m, x):
    weight = torch.empty(2, 4)
    nn.init.constant_(weight, 2.0)
    return m.fc(x) * weight


def _init_of_parameter(m, x):
    with torch.no_grad():
        m.p.fill_(6.0)
    return m.fc(x) * m.p


@case("constant_1", _init_of_parameter)
def what_init_wrote_to_a_parameter(m, x):
    nn.init.constant_(m.p, 2.0)
    return m.fc(x) * m.p


@case("uniform_1", _init_of_parameter)
def what_init_drew_for_a_parameter(m, x):
    nn.init.uniform_(m.p, 2.0, 2.0)
    return m.fc(x) * m.p


@case("mul_1", lambda m, x: m.fc(x) * (x.detach() * 6))
def given_as_out(m, x):
    result = torch.empty(2, 4)
    torch.mul(x.detach(), 2, out=result)
    return m.fc(x) * result


@case("max_1", lambda m, x: m.fc(x) * (x.detach().max(0)[0] * 3))
def one_of_two_given_as_out(m, x):
    values, indices = torch.empty(4), torch.empty(4, dtype=torch.long)
    torch.max(x.detach(), 0, out=(values, indices))
    return m.fc(x) * values


def _row_set(m, x):
    y = m.fc(x)
    y[0] = 1.0
    return y * 3


@case("setitem_1", _row_set)
def row_set(m, x):
    y = m.fc(x)
    y[0] = 1.0
    return y


@case("act", lambda m, x: (F.relu(m.fc(x)) * 3,) * 2)
def module_used_by_name(m, x):
    y = m.fc(x)
    z = m.act(y)
    return y, z


@case("relu_1", lambda m, x: F.relu(m.fc(x)) * 3)
def module_as_a_statement(m, x):
    y = m.fc(x)
    m.act(y)
    return y


def _of_view(m, x):
    y = m.fc(x)
    return torch.cat([torch.sigmoid(y[:1]) * 3, y[1:]])


@case("sigmoid_1", _of_view)
def through_a_view(m, x):
    y = m.fc(x)
    y[0].sigmoid_()
    return y


@case("copy_1", lambda m, x: F.pad(m.fc(x) * 3, (0, 2)))
def cache_that_is_filled_through_a_view(m, x):
    cache = torch.zeros(2, 6)
    cache[:, :4].copy_(m.fc(x))
    return cache


@case("unsqueeze_1", lambda m, x: (m.fc(x) * 2).unsqueeze(0) * 3)
def another_shape(m, x):
    y = m.fc(x) * 2
    y.unsqueeze_(0)
    return y


def _data_set(m, x):
    m.p.data = x.detach() * 3
    return m.fc(x) * m.p


@case("setdata_1", _data_set)
def data_set(m, x):
    m.p.data = x.detach()
    return m.fc(x) * m.p


@case("linear_1", lambda m, x: (setattr(m.p, "data", x.detach() * 2), m.fc(x) * 3 * m.p)[1])
def another_where_data_is_set(m, x):
    m.p.data = x.detach() * 2
    return m.fc(x) * m.p


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_change_of_what_is_written_in_place_is_that_of_a_model_edited_by_hand(name, follows):
    function, key, by_hand = CASES[name]
    model, x = Model(function), torch.randn(2, 4)
    edited = copy.deepcopy(model)
    edited.function = by_hand
    with torch.set_grad_enabled(follows):
        history = torcheer.log_forward_pass(copy.deepcopy(model), x.clone().requires_grad_(follows))
    given = x.clone()
    with torcheer.intervene(model, {key: changes.scale(3)}, like=history) as edits:
        outputs, our_x = run(model, x, follows)
    expected, their_x = run(edited, x, follows)
    assert alike(outputs, expected)
    assert alike(gradients(model, our_x, outputs), gradients(edited, their_x, expected))
    assert edits.edits[0].times == edits.edits[0].changed == 1
    assert torch.equal(our_x, given)


class Passing(nn.Module):
    """Calls a module for what it does to its argument, and uses both the argument and the result."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.fc(x)
        return self.module(y) + 1, y + 2


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("has_log", [False, True])
@pytest.mark.parametrize(
    ("module", "writes"),
    [
        (nn.Dropout(inplace=True), True),
        (nn.AlphaDropout(inplace=True), True),
        (nn.ReLU(inplace=True), True),
        (nn.Dropout(), False),
        (nn.Identity(), False),
    ],
)
def test_a_module_that_works_in_place_is_changed_in_place_also_where_it_had_nothing_to_write(module, writes, has_log, follows):
    model, x = Passing(module).eval(), torch.randn(2, 4)
    history = torcheer.log_forward_pass(model, x)
    with torcheer.intervene(model, {"module": changes.scale(3)}, like=history if has_log else None) as edits:
        outputs, our_x = run(model, x, follows)
    their_x = x.clone().requires_grad_(follows)
    y = model.fc(their_x)
    z = (F.relu(y) if isinstance(module, nn.ReLU) else y) * 3
    expected = z + 1, (z if writes else y) + 2
    assert alike(outputs, [one.detach().requires_grad_(follows) for one in expected])
    assert edits.edits[0].times == edits.edits[0].changed == 1
    if follows:
        assert alike(gradients(model, our_x, outputs), gradients(model, their_x, expected))


def own_activation(self, x: Tensor) -> Tensor:
    """Writes to what it is given, and nothing tells beforehand."""
    return F.relu(x, inplace=True)


def test_a_module_of_which_nothing_tells_that_it_writes_in_place_is_refused_by_name_where_gradients_need_it():
    model, x = nn.Sequential(nn.Linear(3, 3), made_of(own_activation)), torch.randn(2, 3)
    history = torcheer.log_forward_pass(model, x)
    with (
        pytest.raises(torcheer.InvalidArgument, match=r"what '1' returned: the value is written in place, .* like=history"),
        torcheer.intervene(model, {"1": changes.scale(2)}),
    ):
        model(x)
    edited = copy.deepcopy(model)
    edited[1] = nn.ReLU()
    for like in (None, history):
        with torch.no_grad(), torcheer.intervene(model, {"1": changes.scale(2)}, like=like):
            assert torch.equal(model(x), edited(x) * 2)
    with torcheer.intervene(model, {"1": changes.scale(2)}, like=history):
        outputs, our_x = run(model, x, True)
    expected, their_x = run(edited, x, True)
    assert alike(gradients(model, our_x, outputs), gradients(edited, their_x, (expected[0] * 2,)))


@pytest.mark.parametrize(
    ("function", "key", "change", "said"),
    [
        (lambda m, x: x[:1].expand(2, 4).zero_(), "zero_1", changes.add(1), "several elements of the tensor are at one place"),
        (
            lambda m, x: nn.init.constant_(m.p, 2.0) * x,
            "constant_1",
            changes.add(nn.Parameter(torch.ones(4))),
            "a leaf of the autograd graph",
        ),
    ],
)
def test_a_change_that_cannot_be_written_in_place_is_refused_by_the_name_of_the_place(function, key, change, said):
    model, x = Model(function), torch.randn(2, 4)
    history = torcheer.log_forward_pass(copy.deepcopy(model), x)
    with (
        pytest.raises(torcheer.InvalidArgument, match=f"{key}.* in the model, call 1 at .* is written in place, .*{said}"),
        torcheer.intervene(model, {key: change}, like=history) as edits,
    ):
        model(x)
    assert edits.edits[0].times == 0
    assert "reached, but not made" in str(edits)


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("key", ["1", "relu_1"])
def test_what_a_checkpointed_block_writes_in_place_is_changed_again_in_the_backward_pass(is_reentrant, key):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)), torch.randn(2, 4)
    history = torcheer.log_forward_pass(model, x)
    edited, their_x = copy.deepcopy(model), x.clone().requires_grad_()
    expected = edited[2](F.relu(edited[0](their_x)) * 3)
    our_x = x.clone().requires_grad_()
    with torcheer.intervene(model, {key: changes.scale(3)}, like=history):
        outputs = torch.utils.checkpoint.checkpoint(model, our_x, use_reentrant=is_reentrant)
        outputs.square().sum().backward()
    expected.square().sum().backward()
    assert torch.equal(outputs, expected)
    theirs = [their_x.grad, *(one.grad for one in edited.parameters())]
    assert alike([our_x.grad, *(one.grad for one in model.parameters())], theirs)


def test_an_edit_says_where_no_value_became_another():
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    with torcheer.intervene(model, {"0": changes.zero(), "1": changes.scale(2)}) as edits:
        model(torch.ones(2))
    assert [edit.times for edit in edits] == [1, 1]
    assert [edit.changed for edit in edits] == [1, 0]
    assert str(edits).splitlines() == [
        "'0': zero(), once (what '0' returned)",
        "'1': scale(2), once, without a change of any value (what '1' returned)",
    ]
    with torcheer.intervene(model, {"0": changes.scale(2)}) as edits:
        model(torch.ones(2))
        model(torch.zeros(2))
    assert str(edits) == "'0': scale(2), 2 times, in 1 of them with a change of any value (what '0' returned)"


def test_a_log_of_what_is_changed_in_place_says_so():
    model, x = Model(lambda m, x: function_used_by_name(m, x)[0]), torch.randn(2, 4)
    history = torcheer.log_forward_pass(model, x)
    with torcheer.intervene(model, {"relu_1": changes.scale(3)}, like=history):
        changed = torcheer.log_forward_pass(model, x)
    assert torch.equal(changed["output"].activation, model(x) * 3)
    assert any("scale(3)" in note for note in changed.notes)
    assert [one.changed_by for one in changed.operations if one.changed_by] == ["scale(3)"]
    assert bool(changed.validate())
