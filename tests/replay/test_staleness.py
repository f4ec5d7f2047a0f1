"""Behind a change nothing is old: a replay gives what the model gives, or is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torcheer
from catalogue.constructs import CONSTRUCTS, FOLLOWED, UNSEEN, Construct, scripted
from models import log, made_of
from torcheer import changes

x, y = torch.linspace(0.1, 0.9, 12).reshape(4, 3), torch.linspace(0.8, 0.35, 12).reshape(4, 3)


class Around(nn.Module):
    """A construct between two operations; `factor` is multiplied to what the first returns."""

    def __init__(self, name, factor=None):
        super().__init__()
        self.construct = Construct(name)
        self.factor = factor

    def forward(self, t):
        given = t.exp()
        if self.factor is not None:
            given = given * self.factor
        return self.construct(given) * 2


# Of these logs something is missing, so they are not even run again as they were.
NOT_AS_LOGGED = UNSEEN | {"through a file", "pickle"}


def same(one, other):
    return torch.allclose(one.detach(), other.detach(), rtol=1e-5, atol=1e-6)


def built(name, factor=None):
    torch.manual_seed(0)
    return Around(name, factor)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONSTRUCTS)
@pytest.mark.parametrize("mode", ["gradients", "no gradients", "input requires gradients"])
def test_behind_a_change_a_replay_gives_what_the_model_gives_or_is_refused(name, mode):
    requires = mode == "input requires gradients"
    given, other = x.clone().requires_grad_(requires), y.clone().requires_grad_(requires)
    with torch.set_grad_enabled(mode != "no gradients"):
        history = log(built(name), given)
        for told, expected in (
            (lambda: history.replay(inputs=other), built(name)(other)),
            (lambda: history.replay(changes={"exp_1": changes.scale(1.5)}), built(name, 1.5)(given)),
        ):
            try:
                replayed = told()["output"].tensor_contents
            except torcheer.ReplayFailed:
                assert name not in FOLLOWED
            else:
                assert same(replayed, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_change_after_everything_else_is_answered_where_the_log_can_be_run_again(name):
    history = log(built(name), x)
    label = [one.label for one in history.operations][-2]
    assert label.startswith("mul")
    if name in NOT_AS_LOGGED:
        with pytest.raises(torcheer.ReplayFailed, match=r"another value than when it was logged|cannot be watched"):
            history.replay(changes={label: changes.scale(1.5)})
    else:
        replayed = history.replay(changes={label: changes.scale(1.5)})
        assert same(replayed["output"].tensor_contents, built(name)(x) * 1.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "script function",
            r"source_1_2 \(.*\) cannot be worked out again: it was made in the pass by code that cannot be watched",
        ),
        ("script module", r"sequential_1_2 \(.*\) cannot be worked out again: it is computed in code torcheer cannot trace"),
        ("vmap", r"tanh_1_2 \(.*\) cannot be worked out again: it is inside a torch.func transform, and depends on what is"),
        ("energy of a custom function", r"grad_1_\d+ \(.*\) cannot be worked out again: it is a gradient through a torch.auto"),
        ("filled gradient", r"grad_1_\d+ \(.*\) cannot be worked out again: it is a gradient, and depends"),
        ("wrapper", r"wrapper_1_2 \(.*\) cannot be worked out again: it is computed in code torcheer cannot trace"),
        (
            "item",
            r"'item' \(.*: .*t.detach\(\).sum\(\).item\(\).*\) hands a value to Python .*: 20\.4\d* was logged, now it is 38",
        ),
        ("array", r"'numpy' \(.*\) hands a value to Python that depends on what is changed and has changed"),
        (
            "mean of chosen",
            r"getitem_1_\d+ \(.*\) cannot be run again: it now has torch.float32 \(\d+,\), and torch.float32 \(",
        ),
        ("buffer read by NumPy", r"setitem_1_\d+ \(.*\) cannot be run again: it writes what is changed to memory that was"),
        (
            "buffer written by a thread",
            r"cannot be run again with a change: in the logged pass 'construct.inner.table' \(it was",
        ),
        ("filled by a thread", r"zeroslike_1_2 \(.*\) cannot be worked out again: it was written to by code that cannot be"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_is_named_and_what_to_do_is_said(name, message):
    with pytest.raises(torcheer.ReplayFailed, match=f"{message}(.|\n)*torcheer.intervene makes a change live"):
        log(built(name), x).replay(changes={"exp_1": changes.scale(1.9)})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["script function", "script module", "vmap", "item", "wrapper", "constants", "energy", "attribute read by NumPy"]
)
def test_a_loaded_history_is_as_careful(name, tmp_path):
    history = log(built(name), x)
    try:
        path = history.save(tmp_path / "run.safetensors", params=True)
    except torcheer.CannotBeSaved:
        return
    loaded = torcheer.load(path)
    if name in FOLLOWED:
        assert same(loaded.replay(inputs=y)["output"].tensor_contents, built(name)(y))
    else:
        with pytest.raises(torcheer.ReplayFailed):
            loaded.replay(inputs=y)


def test_a_branch_that_stays_is_answered_and_one_that_turns_is_refused():
    def model(t):
        t = t * 1
        return t + 1 if t.sum() > 3 else t - 1

    history = log(model, torch.ones(4))
    assert torch.equal(history.replay(inputs=torch.ones(4) * 2)["output"].activation, torch.full((4,), 3.0))
    for turned in ({"inputs": torch.zeros(4)}, {"changes": {"mul_1": changes.zero()}}):
        with pytest.raises(
            torcheer.ReplayFailed, match=r"'__bool__' \(.*\) hands a value .*: True was logged, now it is False"
        ):
            history.replay(**turned)


def test_a_read_inside_a_module_is_of_the_input_that_is_changed_for_it():
    class Inner(nn.Module):
        def forward(self, t):
            return t * t.sum().item()

    def reading(self, t):
        given = t + 1
        return self.inner(given) + given

    class Deciding(Inner):
        def forward(self, t):
            return t * 2 if t[0] > 0 else t

    model = made_of(reading, inner=Inner())
    with pytest.raises(torcheer.ReplayFailed, match="'item'"):
        log(model, torch.ones(3)).replay(changes={"input:inner": changes.scale(2)})
    model.inner = Deciding()
    replayed = log(model, torch.ones(3)).replay(changes={"input:inner": changes.scale(3)})
    assert replayed["output"].activation.tolist() == [14.0] * 3
    with pytest.raises(torcheer.ReplayFailed, match="'__bool__'"):
        log(model, torch.ones(3)).replay(changes={"input:inner": changes.scale(-3)})


def test_what_does_not_depend_on_a_change_is_no_obstacle():
    """Before the change, beside it or from Python alone."""

    def model(t):
        first = scripted(t)
        number = t.sum().item()
        rows = torch.from_numpy(t.numpy() * 2)
        beside = torch.func.vmap(lambda row: row.tanh())(t)
        changed = (first + rows).exp()
        return changed * number + beside

    history = log(model, x)
    expected = 0.5 * (scripted(x) + x * 2).exp() * x.sum().item() + x.tanh()
    assert same(history.replay(changes={"exp_1": changes.scale(0.5)})["output"].activation, expected)


def test_gradients_in_forward_flow_through_a_change():
    def model(t, factor=1.0):
        u = t.detach().requires_grad_()
        inner = u * 2 * factor
        return torch.autograd.grad((inner.sin() * u).sum(), u)[0]

    def written(t, factor=1.0):
        u = t.detach().requires_grad_()
        inner = (u * 2).mul_(3)
        inner = inner.mul_(factor) if factor != 1 else inner
        return torch.autograd.grad((inner.sin() * u).sum(), u)[0]

    for one, key in ((model, "mul_1"), (written, "mul_2")):
        replayed = log(one, x).replay(changes={key: changes.scale(1.5)})
        assert same(replayed["output"].activation, one(x, 1.5))


def test_a_history_with_a_change_is_not_replayed_as_if_it_had_none():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with torcheer.intervene(model, {"0": changes.scale(2)}):
        live = log(model, x)
        assert same(live.replay(inputs=y)["output"].activation, model(y))
    once = log(model, x).replay(changes={"0": changes.scale(2)})
    with pytest.raises(torcheer.ReplayFailed, match=r"an intervention changed it, by scale\(2\)"):
        once.replay(changes={"1": changes.scale(3)})


def test_an_input_of_another_shape_is_refused_since_sizes_are_not_in_the_log():
    history = log(lambda t: t.sum(0) / len(t), torch.ones(4, 2))
    assert history.replay(inputs=torch.zeros(4, 2))["output"].activation.tolist() == [0, 0]
    for other in (torch.ones(8, 2), torch.ones(4, 2, dtype=torch.float64)):
        with pytest.raises(
            torcheer.ReplayFailed, match=r"input_1_0 cannot be run again: it now has .*, and torch.float32 \(4, 2\)"
        ):
            history.replay(inputs=other)
