"""`intervene`: values are changed while a model runs, compared with plain hooks and models edited by hand."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
import transformers
from tap_models import UNUSUAL, Attention, Function, Net, Normed, Ragged, Several, Statement, hooks_of
from torch import nn

import torcheer
from models import made_of, unchanged
from torcheer import changes
from torcheer._torch.internals import function_modes
from torcheer.replay.comparison import same_bits


class EditedAttention(Attention):
    """The attention, with its pattern changed by hand."""

    edit = staticmethod(lambda pattern: pattern)

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        pattern = self.edit(F.softmax(q @ k.transpose(-1, -2) / 2, -1))
        return self.out((pattern @ v).transpose(1, 2).reshape(batch, length, size))


def zero_head(pattern, head):
    pattern = pattern.clone()
    pattern[:, head] = 0
    return pattern


def test_a_module_output_is_changed_as_by_a_plain_hook(net, x):
    vector = torch.rand(8)
    handle = net.blocks[1].register_forward_hook(lambda module, args, result: result + vector)
    expected = net(x)
    handle.remove()
    with unchanged(net), torcheer.intervene(net, {"blocks.1": changes.add(vector)}) as edits:
        output = net(x)
    assert torch.equal(output, expected)
    assert not torch.equal(output, net(x))
    assert str(edits) == "'blocks.1': add(<tensor (8,)>), once (what 'blocks.1' returned)"
    assert hooks_of(net) == 0


def test_what_a_module_is_given_is_changed_as_by_a_plain_hook(net, x):
    handle = net.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    expected = net(x)
    handle.remove()
    with torcheer.intervene(net, {"input:blocks.1": changes.scale(2)}):
        assert torch.equal(net(x), expected)


def test_a_function_call_is_changed_as_in_a_model_edited_by_hand(net, x):
    history = torcheer.log_forward_pass(net, x)
    edited = copy.deepcopy(net)
    edited.blocks[1].__class__ = EditedAttention
    edited.blocks[1].edit = lambda pattern: zero_head(pattern, 1)
    with torcheer.intervene(net, {"softmax_2": changes.zero(heads=[1])}, like=history) as edits:
        assert torch.equal(net(x), edited(x))
        assert torch.equal(net(2 * x), edited(2 * x))
    assert "2 times (softmax_2_25: softmax in 'blocks.1', call 1 at" in str(edits)
    assert edits.edits[0].times == 2


def test_one_pass_of_a_loop_is_changed(net, x):
    class Edited(Net):
        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            for at in range(3):
                x = torch.tanh(self.cell(x))
                x = x * 3 if at == 1 else x
            return F.relu(x - 0.1, inplace=True)

    edited = copy.deepcopy(net)
    edited.__class__ = Edited
    history = torcheer.log_forward_pass(net, x)
    with torcheer.intervene(net, {"tanh_1:2": changes.scale(3)}, like=history):
        assert torch.equal(net(x), edited(x))


@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass"])
@pytest.mark.parametrize("is_logged", [False, True])
def test_one_tensor_of_several_is_changed(kind, is_logged):
    """The others, and the container, stay; named arguments can be changed, too."""

    def hook(module, args, result):
        if kind == "tuple":
            return (result[0], result[1] * 5)
        if kind == "dict":
            return {**result, "second": result["second"] * 5}
        result.second = result.second * 5
        return result

    model, x = Several(), torch.rand(3)
    history = torcheer.log_forward_pass(model, x) if is_logged else None
    handle = model.kinds[kind].register_forward_hook(hook)
    expected = model(x)
    handle.remove()
    with torcheer.intervene(model, {f"kinds.{kind}[1]": changes.scale(5)}, like=history):
        assert torch.equal(model(x), expected)
    handle = model.kinds[kind].register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"scale": kwargs["scale"] + 1}), with_kwargs=True
    )
    expected = model(x)
    handle.remove()
    with torcheer.intervene(model, {f"input:kinds.{kind}[1]": changes.add(1)}, like=history):
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("part", range(3))
def test_what_was_changed_is_an_output_of_the_module_in_a_log(part):
    model, x = made_of(lambda self, x: sum(self.split(x)), split=made_of(lambda self, x: (x + 1, x * 2, x - 3))), torch.rand(3)
    with torcheer.intervene(model, {f"split[{part}]": torch.sin}):
        history = torcheer.log_forward_pass(model, x)
    types = ["add", "mul", "sub"]
    types[part] = "sin"
    assert [one.layer_type for one in history.modules["split"].outputs] == types


def test_a_reused_module_is_changed_at_every_call_or_at_one(net, x):
    def changed(which):
        count = iter(range(1, 4))
        handle = net.cell.register_forward_hook(lambda module, args, result: result + 1 if next(count) in which else None)
        expected = net(x)
        handle.remove()
        return expected

    every, second = changed({1, 2, 3}), changed({2})
    with torcheer.intervene(net, {"cell": changes.add(1)}) as edits:
        assert torch.equal(net(x), every)
    assert edits.edits[0].times == 3
    with torcheer.intervene(net, {"cell:2": changes.add(1)}):
        assert torch.equal(net(x), second)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_is_written_in_place_as_a_statement_is_changed(requires_grad):
    """Nobody takes the result of `y.sigmoid_()` or `self.act(z)`, so what they wrote to is changed."""

    class Edited(Statement):
        def forward(self, x):
            y = self.fc(x).sigmoid() + 1
            return y + self.fc(y).relu() * 2

    model, x = Statement(), torch.rand(2, 4)
    edited = copy.deepcopy(model)
    edited.__class__ = Edited
    history = torcheer.log_forward_pass(model, x)
    with torch.set_grad_enabled(requires_grad):
        with torcheer.intervene(model, {"sigmoid_1": changes.add(1), "act": changes.scale(2)}, like=history):
            torch.testing.assert_close(model(x), edited(x))
        with torcheer.intervene(model, {"act": changes.scale(2)}):
            torch.testing.assert_close(model(x), Statement.forward(edited, x) + edited.fc(edited.fc(x).sigmoid()).relu())


def test_gradients_flow_through_changes_of_what_was_written_in_place():
    model, x = Normed().train(), torch.randn(6, 4)
    edited = copy.deepcopy(model)
    edited.fc(edited.bn1(x).relu() * 2).sum().backward()
    with torcheer.intervene(model, {"relu": changes.scale(2)}):
        model(x).sum().backward()
    for one, other in zip(model.parameters(), edited.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("kind", ["tensor", "history", "mean", "number"])
def test_a_model_that_writes_in_place_does_not_write_to_what_was_given(kind):
    """A ReLU in place, after a value was replaced: what was given is the same afterwards, so the next call is too."""
    model, x, given = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)).eval(), torch.rand(2, 3), torch.randn(2, 4)
    with torcheer.intervene(model, {"0": given.clone()}):
        history = torcheer.log_forward_pass(model, x)
    change, expected = {
        "tensor": (given.clone(), given),
        "history": (changes.replace(history), given),
        "mean": (changes.mean(given), given),
        "number": (changes.mean(-2.0), torch.tensor(-2.0)),
    }[kind]
    before = given.clone()
    with torch.no_grad(), torcheer.intervene(model, {"0": change}), torcheer.tap(model, "0") as values:
        for _ in range(2):
            assert torch.equal(model(x), expected.relu().expand(2, 4))
    assert torch.equal(values["0"], expected.expand(2, 4))
    assert torch.equal(given, before)
    assert torch.equal(history["0"].activation, before)
    assert isinstance(change, changes.Change) or torch.equal(change, before)


def test_a_vector_is_trained_by_gradients_through_a_change(net, x):
    """As in a loop with a plain hook; the weights of the model stay."""
    vector, other = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
    net.requires_grad_(False)

    def train(parameter, run):
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            run().pow(2).sum().backward()
            optimizer.step()

    with unchanged(net), torcheer.intervene(net, {"blocks.2": changes.add(vector)}) as edits:
        train(vector, lambda: net(x))
    handle = net.blocks[2].register_forward_hook(lambda module, args, result: result + other)
    train(other, lambda: net(x))
    handle.remove()
    assert torch.equal(vector, other)
    assert vector.abs().sum() > 0
    assert edits.edits[0].times == 5


def test_changes_work_under_autocast(net, x):
    history = torcheer.log_forward_pass(net, x)
    handle = net.blocks[1].register_forward_hook(lambda module, args, result: result * 2)
    edited = copy.deepcopy(net)
    handle.remove()
    edited.blocks[0].__class__ = EditedAttention
    edited.blocks[0].edit = lambda pattern: zero_head(pattern, 0)
    with torch.autocast("cpu", torch.bfloat16):
        expected = edited(x)
        with torcheer.intervene(net, {"softmax_1": changes.zero(heads=[0]), "blocks.1": changes.scale(2)}, like=history):
            assert torch.equal(net(x), expected)


def test_changes_work_in_inference_mode(net, x):
    history = torcheer.log_forward_pass(net, x)
    with torch.no_grad(), torcheer.intervene(net, {"softmax_1": changes.scale(2), "cell": changes.add(1)}, like=history):
        expected = net(x)
    with torch.inference_mode(), torcheer.intervene(net, {"softmax_1": changes.scale(2), "cell": changes.add(1)}, like=history):
        assert torch.equal(net(x), expected)


def test_generation_is_steered():
    """Every step of `generate` is changed, as by a plain hook; call numbers start anew at each."""
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids, vector = torch.arange(4)[None] + 1, torch.randn(16) * 3
    history = torcheer.log_forward_pass(model, input_kwargs={"input_ids": ids})

    def generate():
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0)

    def steer(module, args, result):
        return (result[0] + vector, *result[1:]) if isinstance(result, tuple) else result + vector  # a tuple in transformers 4

    plain = generate()
    handle = model.transformer.h[0].register_forward_hook(steer)
    expected = generate()
    handle.remove()
    for like in (None, history):
        with torcheer.intervene(model, {"transformer.h.0": changes.add(vector)}, like=like) as edits:
            assert torch.equal(generate(), expected)
        assert edits.edits[0].times == 6
    assert not torch.equal(plain, expected)
    assert torch.equal(generate(), plain)
    with torcheer.tap(model, ["scaleddotproductattention_2"], like=history) as values:
        generate()
    assert values["scaleddotproductattention_2"].shape == (1, 2, 1, 8)


def test_a_compiled_model_is_changed_uncompiled(net, x):
    compiled = torch.compile(net, backend="eager")
    plain = compiled(x)
    with torcheer.intervene(net, {"blocks.1": changes.zero()}):
        expected = net(x)
    with torcheer.intervene(compiled, {"blocks.1": changes.zero()}):
        assert torch.equal(compiled(x), expected)
    assert torch.equal(compiled(x), plain)
    net.compile(backend="eager")
    assert torch.equal(net(x), plain)
    with torcheer.intervene(net, {"blocks.1": changes.zero()}):
        assert torch.equal(net(x), expected)
    assert torch.equal(net(x), plain)
    torch._dynamo.reset()


def test_blocks_in_one_another_change_a_value_one_after_the_other(net, x):
    handle = net.blocks[0].register_forward_hook(lambda module, args, result: (result + 1) * 2)
    expected = net(x)
    handle.remove()
    with torcheer.intervene(net, {"blocks.0": changes.add(1)}), torcheer.intervene(net, {"blocks.0": changes.scale(2)}):
        assert torch.equal(net(x), expected)
    history = torcheer.log_forward_pass(net, x)
    edited = copy.deepcopy(net)
    edited.blocks[0].__class__ = EditedAttention
    edited.blocks[0].edit = lambda pattern: (pattern + 1) * 2
    with (
        torcheer.intervene(net, {"softmax_1": changes.add(1)}, like=history),
        torcheer.intervene(net, {"softmax_1": changes.scale(2)}, like=history),
    ):
        assert torch.equal(net(x), edited(x))
    assert function_modes() == []


@pytest.mark.parametrize("is_logged", [False, True])
def test_of_two_keys_for_one_value_the_one_that_means_fewer_counts(net, x, is_logged):
    """As in a replay."""
    history = torcheer.log_forward_pass(net, x)
    both = {"blocks.1:1": changes.add(1), "blocks.*": changes.zero(), "cell": changes.scale(2), "cell:2": changes.scale(3)}
    replayed = history.replay(changes=both)
    with torcheer.intervene(net, both, like=history if is_logged else None):
        assert torch.equal(net(x), replayed["output"].tensor_contents)


def test_tap_inside_sees_changed_values_and_outside_the_old_ones(net, x):
    history = torcheer.log_forward_pass(net, x)
    keys = ["blocks.0", "softmax_1"]
    both = {"blocks.0": changes.scale(2), "softmax_1": changes.zero()}
    with (
        torcheer.tap(net, keys, like=history) as before,
        torcheer.intervene(net, both, like=history),
        torcheer.tap(net, keys, like=history) as after,
    ):
        net(x)
    assert torch.equal(before["softmax_1"], history["softmax_1"].tensor_contents)
    assert torch.equal(after["softmax_1"], torch.zeros(2, 2, 5, 5))
    assert torch.equal(after["blocks.0"], before["blocks.0"] * 2)


def test_a_log_inside_shows_changed_values_and_says_so(net, x):
    history = torcheer.log_forward_pass(net, x)
    both = {"blocks.0": changes.scale(2), "softmax_2": changes.zero(heads=[0]), "input:cell": changes.add(1)}
    with torcheer.intervene(net, both, like=history):
        output = net(x)
        changed = torcheer.log_forward_pass(net, x)
    assert torch.equal(changed["output"].tensor_contents, output)
    assert changed["blocks.0"].func_applied_name == "mul"
    assert torch.equal(changed["blocks.0"].tensor_contents, 2 * history["blocks.0"].tensor_contents)
    assert "changed by scale(2)" in str(changed["blocks.0"])
    assert torch.equal(changed["input:cell"].passes[0].tensor_contents, changed["input:cell:1"].tensor_contents)
    assert "changed by" not in str(history["blocks.0"])
    assert any("scale(2)" in note and "'blocks.0'" in note for note in changed.notes)
    assert bool(changed.validate())


def test_another_thread_is_left_alone(net, x):
    results = []
    expected = net(x)
    with torcheer.intervene(net, {"blocks.0": changes.zero()}):
        net(x)
        thread = threading.Thread(target=lambda: results.append(net(x)))
        thread.start()
        thread.join()
    assert torch.allclose(results[0], expected)  # another thread may use another number of cores


def test_errors_and_interrupts_leave_the_model_as_it_was(net, x):
    history = torcheer.log_forward_pass(net, x)
    both = {"softmax_2": changes.zero(), "blocks.1": changes.zero()}
    for raised in (ZeroDivisionError, KeyboardInterrupt):
        handle = net.blocks[2].register_forward_pre_hook(lambda *given, raised=raised: (_ for _ in ()).throw(raised))
        before = hooks_of(net)
        with pytest.raises(raised), torcheer.intervene(net, both, like=history):
            net(x)
        assert hooks_of(net) == before
        assert function_modes() == []
        handle.remove()
    assert torch.equal(net(x), history["output"].tensor_contents)


def test_what_a_change_raises_is_the_users_own(net, x):
    def fails(tensor):
        raise ZeroDivisionError("mine")

    for change in (fails, changes.call(fails, at=0)):
        with pytest.raises(ZeroDivisionError, match="mine"), torcheer.intervene(net, {"blocks.0": change}):
            net(x)
    assert function_modes() == []


def test_what_was_not_reached_is_named_at_the_end():
    model, x = Ragged(), torch.rand(1, 4)
    with (
        pytest.raises(torcheer.PlaceNotReached, match=r"'other' was not reached"),
        torcheer.intervene(model, {"other": torch.zeros(1, 4)}),
    ):
        model(x)
    with torcheer.intervene(model, {"other": changes.zero(), "cell": changes.zero()}, strict=False) as edits:
        model(x)
    assert str(edits).splitlines() == [
        "'other': zero(), not reached",
        "'cell': zero(), 2 times (what 'cell' returned)",
        "note: 'other' was not reached (what 'other' returned)",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "dictionary from keys to changes"),
        ([1], "dictionary from keys to changes"),
        ({"blocks.0": 3}, "a change is a tensor or a function of a tensor, or one of torcheer.changes; 'blocks.0' has int"),
        ({"blocks.0": changes.zero}, r"call it: changes.zero\(\)"),
    ],
)
def test_what_is_no_change_is_refused_before_the_model_runs(net, given, said):
    with pytest.raises(torcheer.InvalidArgument, match=said):
        torcheer.intervene(net, given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensor: None, "'blocks.0' .* got None: it must return the new tensor"),
        (lambda tensor: 3, "must be a tensor of shape .*; got int"),
        (torch.zeros(3), r"'blocks.0' \(what 'blocks.0' returned\) must be a tensor of shape \(2, 5, 8\); got \(3,\)"),
        (lambda tensor: tensor * 1j, "must be torch.float32, or a dtype that can be cast to it; got torch.complex64"),
        (changes.zero(at=7), "selects nothing of 'blocks.0'"),
        (changes.add(torch.zeros(3)), r"add\(<tensor \(3,\)>\) cannot be applied to 'blocks.0'"),
        (changes.mean(torch.zeros(3)), "mean.* cannot be applied to 'blocks.0'"),
        (changes.swap(0, 9), "swap.* cannot be applied to 'blocks.0'"),
        (changes.zero(heads=[0]), "the dimension of the attention heads in 'blocks.0' .* is unknown"),
    ],
)
def test_what_a_change_gives_is_checked_with_an_error_that_names_the_place(net, x, change, said):
    with pytest.raises(torcheer.InvalidArgument, match=said), torcheer.intervene(net, {"blocks.0": change}):
        net(x)
    assert hooks_of(net) == 0


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("key", ["body.0", "sin_1"])
def test_what_is_checkpointed_is_changed_again_in_the_backward_pass(is_reentrant, key):
    """Gradients are those of the changed model; what ran again is neither read nor counted."""

    class Model(nn.Module):
        is_checkpointed = True

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), made_of(lambda self, x: torch.sin(x) * 2), nn.Linear(4, 4))

        def forward(self, x):
            if not self.is_checkpointed:
                return self.body(x)
            return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=is_reentrant)

    model, x = Model(), torch.rand(2, 4, requires_grad=True)
    model.is_checkpointed = False
    history = torcheer.log_forward_pass(model, x)

    def gradients(is_checkpointed):
        model.is_checkpointed = is_checkpointed
        model.zero_grad()
        with (
            torcheer.intervene(model, {key: changes.scale(3)}, like=history) as edits,
            torcheer.tap(model, ["body.2"], like=history) as values,
        ):
            output = model(x)
            output.square().sum().backward()
        assert edits.edits[0].times == 1
        assert torch.equal(values["body.2"], output)
        return [parameter.grad.clone() for parameter in model.parameters()]

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other)


def test_one_call_of_several_that_are_checkpointed_is_told():
    def forward(self, x):
        for _ in range(2):
            x = torch.utils.checkpoint.checkpoint(self.cell, x, use_reentrant=False)
        return x

    model, x = made_of(forward, cell=nn.Sequential(nn.Linear(4, 4), nn.Tanh())), torch.rand(2, 4)
    with (
        pytest.raises(torcheer.PlaceNotReached, match=r"'cell.0' ran again in a backward pass, where"),
        torcheer.intervene(model, {"cell.0:2": changes.scale(3)}),
    ):
        model(x).sum().backward()


def test_a_scripted_module_is_read_and_changed():
    model, x = nn.Sequential(torch.jit.script(nn.Linear(2, 3)), nn.ReLU()), torch.rand(1, 2)
    expected = model[0](x)
    with torcheer.tap(model, ["0"]) as values, torcheer.intervene(model, {"0": changes.add(1)}):
        output = model(x)
    assert torch.equal(values["0"], expected)
    assert torch.equal(output, (expected + 1).relu())
    expected = model(2 * x)
    with torcheer.intervene(model, {"input:0": changes.scale(2)}):
        assert torch.equal(model(x), expected)


def test_named_arguments_of_fused_attention_are_changed():
    model, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.rand(2, 5, 8)
    with torch.no_grad():
        expected = model(query=2 * x, key=x, value=x)[0]
        with torcheer.intervene(model, {"input:": changes.scale(2)}):
            assert torch.equal(model(query=x, key=x, value=x)[0], expected)


@pytest.mark.filterwarnings("ignore")  # torch warns that sparse tensors are in beta
@pytest.mark.parametrize("kind", UNUSUAL)
def test_values_of_unusual_layouts_and_dtypes_can_be_changed_by_a_function(kind):
    model, x = nn.Sequential(nn.ReLU(), Function(UNUSUAL[kind])), torch.rand(3, 4)
    with torcheer.intervene(model, {"1": lambda tensor: UNUSUAL[kind](x * 2)}):
        changed = model(x)
    assert same_bits(changed, UNUSUAL[kind](x * 2))
    if kind == "nested":
        with (
            pytest.raises(torcheer.InvalidArgument, match="must be a tensor"),
            torcheer.intervene(model, {"1": torch.zeros(3)}),
        ):
            model(x)
