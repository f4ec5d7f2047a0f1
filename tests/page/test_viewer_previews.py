"""Previews show the values they say, on the scale they say."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from torch import Tensor

from torcheer.page.values import SIDE, plan_of, preview_of


def preview(tensor: Tensor, *, is_input: bool = False) -> dict[str, object]:
    plan = plan_of(tuple(tensor.shape), is_input=is_input)
    assert plan is not None
    found = preview_of(tensor, plan)
    assert found is not None
    return found


def pixels(found: dict[str, object]) -> np.ndarray:
    data = np.frombuffer(base64.b64decode(found["data"]), np.uint8)
    shape = (found["height"], found["width"], found["channels"])
    assert data.size == np.prod(shape)
    return data.reshape(shape).squeeze(-1) if found["channels"] == 1 else data.reshape(shape)


def shown(found: dict[str, object]) -> np.ndarray:
    """The values that the pixels stand for."""
    return found["low"] + pixels(found).astype(float) / 255 * (found["high"] - found["low"])


@pytest.mark.parametrize(
    ("shape", "is_input", "kind", "size", "note"),
    [
        ((1, 3, 224, 224), True, "image", (96, 96), "averaged from 224×224"),
        ((2, 1, 28, 28), True, "image", (28, 28), "the first of 2"),
        ((3, 64, 32), True, "image", (32, 64), ""),
        ((48, 60, 3), True, "image", (60, 48), ""),
        ((3, 10, 64), True, "matrix", (64, 10), "the first of 3"),
        ((1, 3, 224, 224), False, "maps", (97, 97), "averaged from 224×224"),
        ((2, 64, 8, 8), False, "maps", (35, 35), "16 of 64 channels, the first of 2"),
        ((1, 12, 200, 10), False, "maps", (27, 74), "averaged from 200×10"),
        ((1, 5, 4, 6, 6), False, "maps", (20, 13), "the middle slice"),
        ((1, 512, 1, 1), False, "vector", (512, 1), ""),
        ((2, 7, 9), False, "matrix", (9, 7), "the first of 2"),
        ((1, 32, 768), False, "matrix", (96, 32), "averaged from 32×768"),
        ((5, 300), False, "matrix", (96, 5), "averaged from 5×300"),
        ((1, 1000), False, "vector", (1000, 1), ""),
        ((50257,), False, "vector", (1024, 1), "averaged from 50257 values"),
        ((6, 1), True, "vector", (6, 1), ""),
    ],
)
def test_a_preview_is_planned_from_the_shape(shape, is_input, kind, size, note):
    """Its kind, its size in pixels, and what it says of what is not shown."""
    found = preview(torch.rand(shape), is_input=is_input)
    assert (found["kind"], (found["width"], found["height"]), found["note"]) == (kind, size, note)
    assert max(size) <= SIDE + 3 or size[1] == 1
    pixels(found)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0,), (3, 0), (2, 0, 5, 5)])
def test_one_value_or_none_is_no_picture(shape):
    assert plan_of(shape, is_input=True) is None


def test_an_image_has_its_own_pixels():
    """Bytes as they are, numbers from 0 to 1 on that scale, others from the smallest to the largest."""
    bytes_ = torch.randint(0, 256, (3, 9, 10), dtype=torch.uint8)
    bytes_[0, 0, 0] = 200
    assert np.array_equal(pixels(preview(bytes_, is_input=True)), bytes_.permute(1, 2, 0).numpy())
    unit = torch.rand(1, 3, 9, 10)
    assert np.array_equal(pixels(preview(unit, is_input=True)), (unit[0] * 255).round().byte().permute(1, 2, 0).numpy())
    last = torch.randint(2, 256, (1, 10, 9, 3), dtype=torch.uint8)
    assert np.array_equal(pixels(preview(last, is_input=True)), last[0].numpy())
    normal = torch.randn(1, 1, 9, 10)
    found = preview(normal, is_input=True)
    assert (found["low"], found["high"]) == pytest.approx((normal.min().item(), normal.max().item()), rel=1e-5)
    assert not found["diverging"]
    assert np.allclose(shown(found), normal[0, 0].numpy(), atol=(found["high"] - found["low"]) / 500)


def test_a_matrix_shows_its_values():
    """Within half a step of its scale."""
    values = torch.rand(1, 12, 9) * 7 + 2
    found = preview(values)
    assert not found["diverging"]
    assert np.allclose(shown(found), values[0].numpy(), atol=(found["high"] - found["low"]) / 500)


def test_around_zero_the_scale_is_symmetric():
    """Zero is in its middle."""
    found = preview(torch.tensor([[-1.0, 0.0, 0.25, 0.5]]))
    assert (found["low"], found["high"], found["diverging"]) == (-1.0, 1.0, True)
    assert pixels(found).tolist() == [[0, 128, 159, 191]]


def test_what_is_too_large_is_averaged():
    """Each pixel is the mean of the values under it."""
    values = torch.rand(1, 192, 288)
    found = preview(values)
    means = values[0].numpy().reshape(96, 2, 96, 3).mean((1, 3))
    inside = np.clip(means, found["low"], found["high"])
    assert np.allclose(shown(found), inside, atol=(found["high"] - found["low"]) / 500)


def test_maps_stand_in_rows_with_a_line_between():
    """The first at the top left."""
    values = torch.arange(1.0, 7).reshape(1, 6, 1, 1).expand(1, 6, 4, 5).contiguous()
    values[0, 0, 0, 0] = 0.0
    found = pixels(preview(values))
    assert found.shape == (9, 17)
    for number in range(6):
        top, left = number // 3 * 5, number % 3 * 6
        assert set(found[top + 1 : top + 4, left : left + 5].ravel()) == {round((number + 1) * 255 / 6)}
    assert not found[4].any()
    assert not found[:, 5].any()


def test_outliers_do_not_set_the_scale():
    """One in a thousand values is cut; the rest keeps its contrast."""
    values = torch.rand(1, 90, 90)
    values[0, 5, 5] = 1000.0
    found = preview(values)
    assert found["high"] <= 1.0
    assert pixels(found)[5, 5] == 255


def test_what_is_rare_is_seen_where_there_is_nothing_else():
    """One spike among zeros is no outlier."""
    values = torch.zeros(1, 90, 90)
    values[0, 5, 5] = 3.0
    found = preview(values)
    assert (found["low"], found["high"]) == (0.0, 3.0)
    assert pixels(found)[5, 5] == 255
    assert pixels(found).sum() == 255


def test_marks_and_infinities_leave_the_rest_its_contrast():
    """Scores masked by -inf or by a huge number look like scores."""
    for mark in (-torch.inf, -1e9, torch.finfo(torch.float32).min):
        scores = torch.randn(1, 1, 20, 20).masked_fill(torch.ones(20, 20).triu(1).bool(), mark)
        found = preview(scores)
        assert -10 < found["low"] < found["high"] < 10
        assert "cut" in found["note"]
        assert len(set(pixels(found).ravel().tolist())) > 50


def test_not_a_number_is_shown_as_zero_and_said():
    found = preview(torch.tensor([[1.0, float("nan"), -1.0, 0.5]]))
    assert pixels(found)[0, 1] == 128
    assert "NaN" in found["note"]
    assert preview(torch.full((2, 3), float("nan")))["low"] == 0


@pytest.mark.parametrize(
    ("shape", "note"),
    [((20, 20), ""), ((4, 20, 20), ""), ((2, 12, 20, 20), "9 of 12 heads, the first of 2"), ((1, 1, 3, 3), "")],
)
def test_square_distributions_are_attention(shape, note):
    """Rows that add up to one, as many as they are long; not just any square."""
    scores = torch.randn(shape)
    found = preview(scores.softmax(-1))
    assert (found["kind"], found["note"], found["diverging"]) == ("attention", note, False)
    assert preview(scores.half().softmax(-1))["kind"] == "attention"
    assert preview(scores)["kind"] != "attention"
    assert preview(scores.softmax(-1) * 2)["kind"] != "attention"
    assert preview(scores.softmax(-1)[..., :-1])["kind"] != "attention"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[True, False, True]]),
        torch.arange(12).reshape(3, 4),
        torch.randn(3, 4, dtype=torch.complex64),
        torch.randn(3, 4, dtype=torch.bfloat16),
        torch.randn(3, 4).to_sparse(),
        torch.zeros(4, 4),
        torch.randn(6, 1, 8, 8).expand(6, 5, 8, 8),
    ],
    ids=["truth values", "integers", "complex", "bfloat16", "sparse", "zeros", "expanded"],
)
def test_every_kind_of_tensor_has_a_preview(tensor):
    """On a scale of finite numbers."""
    found = preview(tensor)
    assert np.isfinite([found["low"], found["high"]]).all()
    pixels(found)


def test_values_that_cannot_be_read_have_none():
    plan = plan_of((3, 4), is_input=False)
    assert plan is not None
    assert preview_of(torch.empty(3, 4, device="meta"), plan) is None


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (-1e9, "values far beyond the others cut"),
        (float("nan"), "NaN as 0"),
        (float("inf"), "values far beyond the others cut"),
    ],
)
def test_what_a_preview_cannot_show_is_said(odd, said):
    """Only what is there: a mask of large numbers is no NaN."""
    values = torch.rand(12, 12)
    values[0, 1] = odd
    note = preview(values)["note"]
    assert said in note
    assert ("NaN" in note) == (odd != odd)


def test_the_preview_of_complex_numbers_says_that_it_shows_magnitudes():
    assert "magnitudes of complex numbers" in preview(torch.randn(3, 4, dtype=torch.complex64))["note"]
    assert "magnitudes" not in preview(torch.randn(3, 4))["note"]
