"""One random value of a random program is changed: on the log, live, and in the program edited by hand.

A replay gives what the edited program gives, or raises `ReplayFailed`; so with another input. A live change gives the same
bits, or is refused by name. `make changes` runs a thousand programs.
"""

from __future__ import annotations

import contextlib
import copy
import os

import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import torcheer
from models import made_of
from programs import COLUMNS, ROWS, Program, programs
from replay.changed_programs import EDITS, Editing, OddProgram, odd_programs
from torcheer import InvalidArgument, PlaceNotReached, ReplayFailed, changes
from torcheer.replay.comparison import same_bits

pytestmark = pytest.mark.filterwarnings("ignore")
common = settings(
    max_examples=int(os.environ.get("PROGRAMS", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def plain(model, x, around=None):
    """The outputs of a copy of a model, from a fixed random state; None where torch does not run it."""
    model, x = copy.deepcopy(model), x.clone()
    torch.manual_seed(3)
    try:
        with around or contextlib.nullcontext():
            return model(x)
    except (RuntimeError, ValueError, IndexError):
        return None


def logged(model, x, **options):
    model, x = copy.deepcopy(model), x.clone()
    torch.manual_seed(3)
    return torcheer.log_forward_pass(model, x, **options)


def alike(ours, theirs):
    """Equal as far as rounding goes, which differs with the place of a tensor in memory."""
    assert theirs is not None
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)


def check_replay(expected, replay):
    """A replay gives what is expected, or is refused by name."""
    try:
        replayed = replay()
    except (ReplayFailed, InvalidArgument):
        event("a replay was refused")
        return
    event("a replay answered")
    alike([one.tensor_contents for one in replayed.outputs], expected)


def check_live(model, x, history, label, change, expected):
    """A live change gives the same bits as a change by hand, or is refused by name."""
    model, x = copy.deepcopy(model), x.clone()
    torch.manual_seed(3)
    try:
        with torcheer.intervene(model, {label: change}, like=history) as edits:
            outputs = model(x)
    except (InvalidArgument, PlaceNotReached):
        event("a live change was refused")
        return
    event("a live change was made")
    assert edits.edits[0].times == 1
    assert all(map(same_bits, outputs, expected))


@common
@given(programs, st.booleans(), st.integers(0, 1 << 16), st.sampled_from(sorted(EDITS)))
def test_a_change_of_any_operation_is_that_of_the_program_edited_by_hand(steps, training, place, edit):
    torch.manual_seed(3)
    model, x = Program(steps).train(training), torch.randn(ROWS, COLUMNS)
    history = logged(model, x, keep_orphans=True)
    made = [one for one in history.operations if one.func_applied is not None and one.composite is None]
    chosen = place % len(made)
    change, by_hand = EDITS[edit]
    editing = Editing(chosen, by_hand)
    expected = plain(model, x, editing)
    assume(expected is not None and editing.made >= chosen)
    if not editing.is_handed_back:
        check_replay(expected, lambda: history.replay(changes={made[chosen].label: change}))
    check_live(model, x, history, made[chosen].label, change, expected)


@pytest.mark.parametrize("names", ["sum", "outputs"])
def test_where_a_tensor_has_two_names_a_change_of_one_is_refused_in_a_replay_and_made_live(names):
    def forward(self, t):
        before = t + 1
        after = before.contiguous()
        return (before, after) if names == "outputs" else before + after

    model, x = made_of(forward), torch.zeros(2)
    history = torcheer.log_forward_pass(model, x)
    with pytest.raises(ReplayFailed, match=r"contiguous_1_2.* handed back the tensor it was given"):
        history.replay(changes={"contiguous_1": changes.add(5)})
    with torcheer.intervene(model, {"contiguous_1": changes.add(5)}, like=history):
        found = model(x)
    assert torch.equal(found[1] if names == "outputs" else found, torch.full((2,), 6.0 if names == "outputs" else 7.0))


@common
@given(programs, st.booleans())
def test_a_replay_with_another_input_is_a_run_with_another_input(steps, training):
    torch.manual_seed(3)
    model, x, other = Program(steps).train(training), torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    history, expected = logged(model, x), plain(model, other)
    check_replay(expected, lambda: history.replay(inputs=other))


@common
@given(odd_programs, st.booleans(), st.integers(0, 1 << 16), st.sampled_from(sorted(EDITS)), st.booleans())
def test_a_change_in_a_program_that_a_log_cannot_follow_is_made_or_refused(steps, training, place, edit, follows):
    torch.manual_seed(3)
    model, x, other = OddProgram(steps).train(training), torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    with torch.set_grad_enabled(follows):
        assume(plain(model, x) is not None)
        history = logged(model, x, keep_orphans=True)
        check_replay(plain(model, other), lambda: history.replay(inputs=other))
        places = [one.label for one in history.operations if one.func_applied_name == "neg"]
        assume(places)
        edited = copy.deepcopy(model)
        change, edited.edit = EDITS[edit]
        ran = copy.deepcopy(model)
        assume(plain(ran, x) is not None)
        edited.at = place % len(places)
        expected = plain(edited, x)
        assume(expected is not None)
        check_replay(expected, lambda: history.replay(changes={places[edited.at]: change}))
        check_live(model, x, history, places[edited.at], change, expected)
