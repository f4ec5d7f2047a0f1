"""Taps and changes while a model generates text, step by step; plain hooks are the oracle."""

from functools import partial

import pytest
import torch
from torch import nn

import torcheer
from models import made_of
from torcheer import changes

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 50, "eos_token_id": None, "pad_token_id": 0}
ids = torch.arange(5)[None] + 1


def gpt2():
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, bos_token_id=0, **SIZES)
    return transformers.GPT2LMHeadModel(config).eval()


def llama():
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=16, num_attention_heads=2, bos_token_id=0, **SIZES
    )
    return transformers.LlamaForCausalLM(config).eval()


def t5():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0, initializer_factor=10.0, **SIZES
    )
    return transformers.T5ForConditionalGeneration(config).eval()


KEYS = {
    gpt2: ["transformer.h.0", "transformer.h.1.attn", "lm_head"],
    llama: ["model.layers.0", "model.layers.1.self_attn", "lm_head"],
    t5: ["encoder.block.0.layer.0", "decoder.block.1.layer.2", "lm_head"],
}


def generate(model, tokens=4, **options):
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0, **options)


def first_of(made):
    return made[0] if isinstance(made, tuple) else made


def hooked(model, keys, change=None, **options):
    """By key, what the module returned at each of its calls, and the text. `change` works on a call's number and result."""
    seen = {key: [] for key in keys}

    def look(key, module, args, made):
        seen[key].append(first_of(made).detach().clone())
        return change(len(seen[key]), made) if change is not None else None

    handles = [model.get_submodule(key).register_forward_hook(partial(look, key)) for key in keys]
    text = generate(model, **options)
    for handle in handles:
        handle.remove()
    return seen, text


def log_of(model, kind):
    if kind == "log":
        options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
        return torcheer.log_forward_pass(model.generate, (ids,), options)
    with torcheer.recording(model) as history:
        generate(model)
    return history


@pytest.fixture(params=KEYS, ids=lambda make: make.__name__)
def case(request):
    torch.manual_seed(0)
    return request.param(), KEYS[request.param]


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_a_tap_holds_the_last_step(case, cache):
    model, keys = case
    seen, text = hooked(model, keys, **cache)
    with torcheer.tap(model, keys) as values:
        assert torch.equal(generate(model, **cache), text)
    for key in keys:
        assert torch.equal(values[key], seen[key][-1]), key


@pytest.mark.parametrize("kind", ["log", "recording"])
def test_with_a_history_of_a_generation_each_step_is_read(case, kind):
    model, keys = case
    seen, text = hooked(model, keys)
    history = log_of(model, kind)
    steps = [f"{key}:{number}" for key in keys for number in range(1, len(seen[key]) + 1)]
    with torcheer.tap(model, [*keys, *steps], like=history) as values:
        for _ in range(2):
            assert torch.equal(generate(model), text)
    for key in keys:
        found = values[key] if len(seen[key]) > 1 else [values[key]]
        assert len(found) == len(seen[key])
        assert all(map(torch.equal, found, seen[key])), key
    for key in steps:
        name, _, number = key.rpartition(":")
        assert torch.equal(values[key], seen[name][int(number) - 1]), key


def test_operations_inside_each_step_are_those_of_the_log(case):
    model, _ = case
    history = log_of(model, "log")
    inside = [one for one in history.operations if one.layer_type in ("scaleddotproductattention", "softmax")]
    keys = list(dict.fromkeys(one.label for one in inside))
    with torcheer.tap(model, keys, like=history) as values:
        generate(model)
    assert len(inside) >= 8
    for one in inside:
        assert torch.equal(values[one.label], one.activation), one.label


@pytest.mark.parametrize("kind", ["log", "recording"])
def test_one_step_of_a_generation_is_changed(kind):
    torch.manual_seed(0)
    model = gpt2()
    vector = torch.randn(50) * 10
    _, expected = hooked(model, ["lm_head"], lambda number, made: made + vector if number == 2 else None)
    with torcheer.intervene(model, {"lm_head:2": changes.add(vector)}, like=log_of(model, kind)) as edits:
        for _ in range(2):
            assert torch.equal(generate(model), expected)
    assert edits.edits[0].times == 2
    assert not torch.equal(generate(model), expected)


def test_another_number_of_steps_than_was_logged_is_named():
    torch.manual_seed(0)
    model = gpt2()
    history = log_of(model, "log")
    said = "the model was called 6 times, which is no multiple of the 4 that were logged"
    with pytest.raises(torcheer.PlaceNotReached, match=said), torcheer.tap(model, ["lm_head:1"], like=history):
        generate(model, tokens=6)
    said = "'lm_head:4' was not reached"
    with pytest.raises(torcheer.PlaceNotReached, match=said), torcheer.tap(model, ["lm_head:4"], like=history):
        generate(model, tokens=2)


def test_after_a_step_that_raised_calls_are_numbered_anew():
    def forward(self, t):
        if self.fails:
            raise ValueError("a step failed")
        return self.fc(t)

    model, t = made_of(forward, fc=nn.Linear(4, 4), fails=False), torch.rand(2, 4)
    with torcheer.recording(model) as history:
        expected = [made := model(t), model(made)]
    with torcheer.tap(model, ["fc:1", "fc:2"], like=history) as values:
        model(t * 5)
        model.fails = True
        with pytest.raises(ValueError, match="a step failed"):
            model(t)
        model.fails = False
        model(model(t))
    assert torch.equal(values["fc:1"], expected[0])
    assert torch.equal(values["fc:2"], expected[1])
