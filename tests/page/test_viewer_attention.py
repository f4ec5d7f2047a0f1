"""Patterns of attention heads in the page: what the data says, and what a person sees of it."""

from __future__ import annotations

import base64
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from test_viewer_page import Reader
from torch import Tensor, nn

import torcheer
from torcheer.page import make_page, payload_of
from torcheer.page.payload import packed_size


def gpt2(attention: str, layers: int = 2, heads: int = 4) -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=8 * heads, n_head=heads, n_layer=layers, n_positions=1024, vocab_size=100, attn_implementation=attention
    )
    return transformers.GPT2Model(config).eval()


def attentions(payload: dict[str, Any]) -> list[dict[str, Any]]:
    return [node["attention"] for node in payload["nodes"] if "attention" in node]


def maps_of(found: dict[str, Any]) -> Tensor:
    """The values that the page's data stands for, as its documentation says."""
    codes = torch.tensor(list(base64.b64decode(found["data"])), dtype=torch.float64)
    return ((codes / 255) ** 2 * found["high"]).view(found["shown"], found["height"], found["width"])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_maps_are_the_patterns_that_the_model_returns(attention):
    """Of the first sample; queries are rows, keys columns, and what comes later is not looked at."""
    model, ids = gpt2(attention), torch.randint(0, 100, (3, 16))
    payload = payload_of(torcheer.log_forward_pass(model, ids))
    eager = gpt2("eager")
    eager.load_state_dict(model.state_dict())
    expected = eager(ids, output_attentions=True).attentions
    found = attentions(payload)
    assert len(found) == len(expected) == 2
    for one, pattern in zip(found, expected, strict=True):
        maps = maps_of(one)
        assert (one["heads"], one["queries"], one["keys"], one["samples"]) == (4, 16, 16, 3)
        torch.testing.assert_close(maps, pattern[0].double(), atol=0.005, rtol=0)
        assert not maps.triu(1).any()


def test_large_patterns_are_means_over_queries_and_sums_over_keys():
    """A row of pixels still adds up to 1, so that a value is the weight that these queries give to these keys."""
    q, k = torch.randn(1, 2, 100, 8) * 3, torch.randn(1, 2, 70, 8)
    history = torcheer.log_forward_pass(lambda q, k: F.scaled_dot_product_attention(q, k, k), (q, k))
    (found,) = attentions(payload_of(history))
    pattern = (q @ k.mT / math.sqrt(8)).softmax(-1)[0].double()
    assert (found["height"], found["width"]) == (48, 48)
    maps = maps_of(found)
    for row, column in ((0, 0), (17, 31), (47, 47)):
        rows = slice(row * 100 // 48, (row + 1) * 100 // 48)
        columns = slice(column * 70 // 48, (column + 1) * 70 // 48)
        expected = pattern[:, rows, columns].sum(-1).mean(-1)
        torch.testing.assert_close(maps[:, row, column], expected, atol=0.005, rtol=0.01)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 48, dtype=torch.float64), atol=0.02, rtol=0)


def test_of_long_sequences_not_every_query_is_worked_out():
    x = torch.randn(1, 1, 2000, 4)
    history = torcheer.log_forward_pass(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), x)
    maps = maps_of(attentions(payload_of(history))[0])
    torch.testing.assert_close(maps.sum(-1), torch.ones(1, 48, dtype=torch.float64), atol=0.02, rtol=0)
    assert not maps.triu(1).any()


def test_all_maps_together_take_a_bounded_part_of_the_page():
    """Of many heads they are smaller; of very many only the first are shown, of every attention."""
    ids = torch.randint(0, 100, (1, 64))
    for layers, heads in ((2, 4), (12, 12), (16, 40)):
        payload = payload_of(torcheer.log_forward_pass(gpt2("sdpa", layers, heads), ids))
        found = attentions(payload)
        assert len(found) == layers
        assert sum(one["shown"] * one["width"] * one["height"] for one in found) <= 160_000
    assert all(one["shown"] < one["heads"] == 40 for one in found)

    def many(x: Tensor) -> Tensor:
        for _ in range(700):
            x = F.scaled_dot_product_attention(x, x, x)
        return x

    payload = payload_of(torcheer.log_forward_pass(many, torch.randn(1, 2, 20, 4)))
    assert len(attentions(payload)) == 160_000 // 16**2
    assert "attention patterns of 75 operations" in payload["facts"]["left_out"]


def test_what_was_not_kept_and_what_there_is_no_room_for_is_left_out():
    model, ids = gpt2("sdpa"), torch.randint(0, 100, (1, 64))
    history = torcheer.log_forward_pass(model, ids)
    whole = payload_of(history)
    assert not attentions(payload_of(torcheer.log_forward_pass(model, ids, layers_to_save="none")))
    assert not attentions(payload_of(history, previews=False))
    bare = packed_size(payload_of(history, previews=False))
    small = payload_of(history, max_bytes=bare + 2_000)
    assert not attentions(small)
    assert "attention patterns of 2 operations" in small["facts"]["left_out"]
    assert attentions(whole)
    assert "left_out" not in whole["facts"]


def test_odd_attentions_have_maps_or_none():
    """One key, values that are not numbers, no queries: a page is made of all of them."""
    x = torch.randn(1, 2, 5, 4)
    for value in (x[:, :, :1], x * math.nan, x[:, :, :0], x.bfloat16()):
        history = torcheer.log_forward_pass(lambda q: F.scaled_dot_product_attention(q, q, q), value)
        assert len(attentions(payload_of(history))) == (value.shape[2] > 1)
    both = torcheer.log_forward_pass(lambda q, k: F.scaled_dot_product_attention(q, k, k), (x, x[:, :, :1]))
    assert maps_of(attentions(payload_of(both))[0]).shape == (2, 5, 1)


def test_the_pattern_itself_has_no_second_picture():
    payload = payload_of(torcheer.log_forward_pass(gpt2("eager"), torch.randint(0, 100, (1, 16))))
    shown = [node for node in payload["nodes"] if "attention" in node]
    assert [node["type"] for node in shown] == ["softmax", "softmax"]
    assert not any("preview" in node for node in shown)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    history = torcheer.log_forward_pass(gpt2("sdpa"), torch.randint(0, 100, (1, 12)))
    return make_page(history).save(tmp_path_factory.mktemp("pages") / "gpt2.html"), history


def pixels(page, selector: str) -> Tensor:
    """How far each pixel of a canvas is from the colour of nothing, which its last column of the first row has."""
    script = """selector => { const canvas = document.querySelector(selector);
        const { width, height } = canvas;
        return [width, height, [...canvas.getContext("2d").getImageData(0, 0, width, height).data]]; }"""
    width, height, data = page.evaluate(script, selector)
    colors = torch.tensor(data).view(height, width, 4)[..., :3]
    return (colors - colors[0, -1]).abs().sum(-1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_attention_shows_its_heads_and_a_click_makes_one_large(page, path, scheme):
    """Axes say what rows and columns are; pointing at a pixel says its value; the triangle is seen in both themes."""
    file, history = path
    page.emulate_media(color_scheme=scheme)
    reader = Reader(page, file)
    reader.search("scaleddotproductattention_2")
    reader.press("Enter")
    assert "ATTENTION HEADS" in reader.panel.upper()
    assert "keys: looked at" in reader.panel
    assert "queries: looking" in reader.panel
    heads = page.locator(".panel button.head")
    assert [heads.nth(at).inner_text() for at in range(heads.count())] == [f"head {at}" for at in range(4)]
    seen = pixels(page, ".large-head canvas")
    assert seen.shape == (12, 12)
    assert (seen.tril() > 0).sum() == 12 * 13 // 2, "every query looks at itself and at what was before"
    assert not seen.triu(1).any()
    heads.nth(2).click()
    assert heads.nth(2).get_attribute("aria-pressed") == "true"
    assert page.locator(".head-name").inner_text() == "head 2"
    box = page.locator(".large-head canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 3.5 / 12, box["y"] + box["height"] * 8.5 / 12)
    said = page.locator(".readout").inner_text()
    value = history.attention("scaleddotproductattention_2")[0, 2, 8, 3].item()
    assert said.startswith("head 2: query 8 looks at key 3 with ")
    assert float(said.rsplit(" ", 1)[1]) == pytest.approx(value, abs=0.005)
    page.mouse.move(box["x"] - 40, box["y"])
    assert "query" not in page.locator(".readout").inner_text()


def test_the_module_around_one_attention_shows_its_heads(page, path):
    """And the head that was chosen stays when another layer is looked at."""
    file, _ = path
    reader = Reader(page, file)
    reader.search("h.0.attn")
    reader.press("Enter")
    assert "GPT2Attention" in reader.panel
    page.locator(".panel button.head").nth(3).click()
    reader.search("scaleddotproductattention_2")
    reader.press("Enter")
    assert page.locator(".head-name").inner_text() == "head 3"


def test_heads_fit_the_width_of_a_phone(browser, path):
    file, _ = path
    context = browser.new_context(offline=True, viewport={"width": 360, "height": 780})
    reader = Reader(context.new_page(), file)
    reader.search("scaleddotproductattention_2")
    reader.press("Enter", "Escape")
    reader.page.evaluate("document.activeElement.blur()")
    reader.press("i")
    sizes = "(() => { const body = document.querySelector('.panel-body'); return [body.scrollWidth, body.clientWidth]; })()"
    wide, seen = reader.ask(sizes)
    assert wide <= seen
    assert reader.page.locator(".large-head canvas").bounding_box()["width"] > 200
    context.close()
