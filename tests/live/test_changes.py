"""`torcheer.changes`: what each makes of a tensor, compared with torch."""

from __future__ import annotations

import pytest
import torch
from tap_models import Attention
from torch import nn

import torcheer
from torcheer import changes


@pytest.fixture
def value():
    return torch.randn(2, 3, 4, 5)


def edited(value, index, new):
    copied = value.clone()
    copied[index] = new
    return copied


AT = (slice(None), 1, slice(1, 3))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (changes.zero(), lambda t: torch.zeros(2, 3, 4, 5)),
        (changes.scale(2.5), lambda t: t * 2.5),
        (changes.add(torch.arange(5.0)), lambda t: t + torch.arange(5.0)),
        (changes.clamp(0, 1), lambda t: t.clamp(0, 1)),
        (changes.clamp(max=0), lambda t: t.clamp(max=0)),
        (changes.mean(torch.arange(5.0)), lambda t: torch.arange(5.0).expand(2, 3, 4, 5)),
        (changes.mean(3), lambda t: torch.full((2, 3, 4, 5), 3.0)),
        (changes.swap(0, -1), lambda t: t[..., [4, 1, 2, 3, 0]]),
        (changes.swap(1, 2, dim=1), lambda t: t[:, [0, 2, 1]]),
        (changes.swap(1, 3, heads=[2]), lambda t: edited(t, (slice(None), 2), t[:, 2][..., [0, 3, 2, 1, 4]])),
        (changes.call(torch.sin), torch.sin),
        (changes.zero(at=AT), lambda t: edited(t, AT, 0)),
        (changes.zero(at=0), lambda t: edited(t, 0, 0)),
        (changes.add(1, at=(..., -1)), lambda t: edited(t, (..., -1), t[..., -1] + 1)),
        (changes.scale(3, heads=[0, 2]), lambda t: edited(t, (slice(None), [0, 2]), t[:, [0, 2]] * 3)),
        (changes.zero(heads=[-1]), lambda t: edited(t, (slice(None), 2), 0)),
        (changes.call(torch.sin, at=AT), lambda t: edited(t, AT, t[AT].sin())),
        (changes.replace(torch.ones(2, 3, 4, 5), at=AT), lambda t: edited(t, AT, 1)),
        (changes.replace(torch.ones(2, 2, 5), at=AT), lambda t: edited(t, AT, 1)),
        (changes.replace(torch.ones(2, 3, 4, 5)), lambda t: torch.ones(2, 3, 4, 5)),
    ],
    ids=lambda value: str(value) if isinstance(value, changes.Change) else "",
)
def test_a_change_makes_what_torch_makes(value, change, expected):
    """The value itself is not written to."""
    before = value.clone()
    assert torch.equal(change(value), expected(value))
    assert torch.equal(value, before)


def test_a_mask_selects_what_is_changed(value):
    mask = value > 0
    assert torch.equal(changes.zero(at=mask)(value), value.clamp(max=0))


def test_noise_is_the_same_for_a_seed_and_leaves_the_random_state_alone(value):
    state = torch.get_rng_state()
    one, again, other = (changes.noise(0.5, seed=seed)(value) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    noise = changes.noise(0.5, seed=1)(torch.zeros(100_000))
    assert abs(float(noise.std()) - 0.5) < 0.01
    assert abs(float(noise.mean())) < 0.01


def test_values_are_moved_to_the_dtype_of_the_place(value):
    for change in (changes.replace(value.double()), changes.add(torch.ones(5).double()), changes.mean(value[0].double())):
        assert change(value.bfloat16()).dtype is torch.bfloat16


def test_gradients_flow_through_a_change(value):
    value.requires_grad_()
    changes.scale(3, at=AT)(value).sum().backward()
    assert torch.equal(value.grad, edited(torch.ones_like(value), AT, 3.0))


@pytest.mark.parametrize("axis", [(), changes.HeadAxis(1, (0, 0, 1), 4)], ids=["shape", "log"])
def test_no_heads_are_nothing_to_change(value, axis):
    assert torch.equal(changes.zero(heads=[])(value, "a place", axis), value)


def test_a_function_may_write_to_what_it_gets(value):
    """A value may be the input of the model, or a view of a weight."""
    before = value.clone()
    for at in (None, (slice(None), 1)):
        changes.call(lambda tensor: tensor.zero_(), at=at)(value)
        assert torch.equal(value, before)


def test_replace_takes_a_layer_an_operation_or_a_history():
    model, clean, corrupt = nn.Sequential(Attention(), nn.Tanh()), torch.rand(1, 3, 8), torch.rand(1, 3, 8)
    history = torcheer.log_forward_pass(model, clean)
    expected = model(clean)
    for source in (history["0"], history["0"].passes[0], history["0"].tensor_contents, history):
        with torcheer.intervene(model, {"0": changes.replace(source)}):
            assert torch.equal(model(corrupt), expected)
    with torcheer.intervene(model, {"softmax_1": changes.replace(history, heads=[1])}, like=history):
        logged = torcheer.log_forward_pass(model, corrupt)
    patched = logged["matmul_2"].parent_layers
    assert patched
    plain = torcheer.log_forward_pass(model, corrupt)
    with torcheer.tap(model, ["softmax_1"], like=history) as values:
        model(corrupt)
    assert torch.equal(values["softmax_1"], plain["softmax_1"].tensor_contents)


def test_replaced_heads_come_from_the_other_run():
    model, clean, corrupt = Attention(), torch.rand(1, 3, 8), torch.rand(1, 3, 8)
    history, other = torcheer.log_forward_pass(model, clean), torcheer.log_forward_pass(model, corrupt)
    replaced = {"softmax_1": changes.replace(history, heads=[1])}
    with torcheer.intervene(model, replaced, like=history), torcheer.tap(model, ["softmax_1"], like=history) as values:
        model(corrupt)
    assert torch.equal(values["softmax_1"][:, 1], history["softmax_1"].tensor_contents[:, 1])
    assert torch.equal(values["softmax_1"][:, 0], other["softmax_1"].tensor_contents[:, 0])


def test_heads_are_the_dimension_that_is_as_large_as_their_number():
    value = torch.randn(2, 5, 3, 4)
    assert torch.equal(changes.zero(heads=[1])(value, known=[3]), edited(value, (slice(None), slice(None), 1), 0))
    assert torch.equal(changes.zero(heads=[1])(value, known=[10, 5]), edited(value, (slice(None), 1), 0))
    with pytest.raises(torcheer.InvalidArgument, match=r"a place has 5 attention heads, 0 to 4; got \[5\]"):
        changes.zero(heads=[5])(value, "a place", [5])
    with pytest.raises(torcheer.InvalidArgument, match=r"a place .*is not .* with 7 heads"):
        changes.zero(heads=[0])(value, "a place", [7])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: changes.zero(at=0, heads=[1]), "give one of them"),
        (lambda: changes.zero(heads=3), r"list of numbers of attention heads, such as \[0, 5\]; got 3"),
        (lambda: changes.zero(heads="ab"), "list of numbers"),
        (lambda: changes.scale("a"), "scale takes a number or a tensor; got str"),
        (lambda: changes.add(None), "add takes a number or a tensor"),
        (lambda: changes.mean([1]), "mean takes a number or a tensor, or features; got list"),
        (lambda: changes.noise(seed=0.5), "seed of noise is a whole number"),
        (lambda: changes.noise(seed=2**64), "seed of noise is a whole number of 64 bits"),
        (lambda: changes.clamp(), "needs a limit"),
        (lambda: changes.clamp("a"), "clamp takes a number or a tensor; got str"),
        (lambda: changes.swap(0, 1.5), "swap takes the numbers of two units, and dim= of a dimension; got 1.5"),
        (lambda: changes.swap(0, 9)(torch.ones(2, 3)), "there are 3 units along dimension -1"),
        (lambda: changes.swap(0, 1, dim=2)(torch.ones(2, 3)), "it has no dimension 2"),
        (lambda: changes.replace(3), "replace takes a tensor, a history, or a layer"),
        (lambda: changes.call(3), "takes a function of a tensor; got int"),
        (lambda: changes.noise()(torch.arange(3)), "floating-point values, not to torch.int64"),
        (lambda: changes.scale(torch.tensor(0.5))(torch.arange(3)), "torch.float32 cannot be cast to torch.int64"),
        (lambda: changes.add(torch.ones(3))(torch.arange(3)), "torch.float32 cannot be cast to torch.int64"),
        (lambda: changes.add(torch.tensor(1j))(torch.ones(3)), "torch.complex64 cannot be cast to torch.float32"),
        (lambda: changes.mean(0.5)(torch.arange(3)), "torch.float32 cannot be cast to torch.int64"),
        (lambda: changes.noise(torch.tensor(1j))(torch.ones(3)), "torch.complex64 cannot be cast to torch.float32"),
        (lambda: changes.zero(at="a")(torch.ones(2)), r"at=\['a'\] selects nothing of the tensor"),
    ],
)
def test_bad_changes_are_refused(make, said):
    with pytest.raises(torcheer.InvalidArgument, match=said):
        make()


def test_changes_print_as_they_are_written():
    assert str(changes.zero()) == "zero()"
    assert str(changes.zero(heads=[5])) == "zero(heads=[5])"
    assert str(changes.add(torch.ones(3), at=(..., -1, slice(None)))) == "add(<tensor (3,)>, at=[..., -1, :])"
    assert str(changes.scale(2, at=slice(1, 5, 2))) == "scale(2, at=[1:5:2])"
    assert str(changes.call(torch.sin)) == "call(sin)"


def test_a_saved_history_says_where_values_are_and_gives_them(tmp_path):
    """It is as good as the one that was saved: for keys, for values to replace others by, and it tells what was changed."""
    model, clean, corrupt = nn.Sequential(Attention(), nn.Tanh()), torch.rand(1, 3, 8), torch.rand(1, 3, 8)
    history = torcheer.log_forward_pass(model, clean)
    loaded = torcheer.load(history.save(tmp_path / "clean.safetensors"))
    assert loaded.locate("softmax_1") == history.locate("softmax_1")
    assert loaded.locate("tanh_1") == history.locate("tanh_1")
    with torcheer.tap(model, ["softmax_1", "tanh_1"], like=loaded) as values:
        model(clean)
    assert torch.equal(values["softmax_1"], history["softmax_1"].tensor_contents)
    with torcheer.intervene(model, {"0": changes.replace(loaded), "softmax_1": changes.zero(heads=[0])}, like=loaded):
        changed = torcheer.log_forward_pass(model, corrupt)
    assert torch.equal(changed["output"].tensor_contents, history["output"].tensor_contents)
    again = torcheer.load(changed.save(tmp_path / "changed.safetensors"))
    assert [one.changed_by for one in again.operations] == [one.changed_by for one in changed.operations]
    assert "zero(heads=[0])" in [one.changed_by for one in again.operations]
