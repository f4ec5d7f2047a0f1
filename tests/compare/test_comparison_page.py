"""The page and the picture of a comparison, as a reader sees them."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.compare.porting_models import Decoder, Refactored

import torcheer as tl
from browser import until


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Decoder(depth=6).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def opened(page, tmp_path):
    def open_page(comparison):
        comparison.to_html(tmp_path / "page.html", previews=False)
        page.goto((tmp_path / "page.html").as_uri())
        until(page)
        return page

    return open_page


def other_eps(model):
    other = copy.deepcopy(model)
    other.blocks[4].norm2.eps = 1e-2
    return other


def test_the_page_opens_with_the_verdict_coloured_by_own_error_at_the_culprit_on_both_sides(model, ids, opened):
    comparison = tl.compare_models(model, other_eps(model), ids)
    found = opened(comparison)
    assert found.locator(".verdict").inner_text() == comparison.headline
    assert found.locator("select").first.evaluate("box => box.selectedOptions[0].text") == "own error"
    options = found.locator("select").first.evaluate("box => [...box.options].map((one) => one.text)")
    assert {"own error", "inherited error", "error"} <= set(options)
    for side in (0, 1):
        assert found.evaluate("([key, side]) => __torcheer.find(key, side)", [f"{comparison.culprit.label}:1", side])
    rows = found.locator(".differences .result")
    assert rows.count() == 1
    assert comparison.culprit.label in rows.first.inner_text()


def test_the_page_says_how_many_parameters_differ_instead_of_listing_activations(model, ids, opened):
    other = copy.deepcopy(model)
    for parameter in other.blocks[2].parameters():
        parameter += 0.1
    found = opened(tl.compare_models(model, other, ids))
    assert "16 parameters differ" in found.locator(".verdict").inner_text()
    assert found.locator(".difference-bar strong").inner_text() == "8 differences"  # the operations that use them


def test_the_page_matches_operations_as_the_comparison_does(model, ids, opened):
    other = Refactored(model).eval()
    other.eps = 1e-2
    comparison = tl.compare_models(model, other, ids)
    found = opened(comparison)
    label = comparison.culprit.b.label
    assert found.evaluate("([key, side]) => __torcheer.find(key, side)", [f"{label}:1", 1])


def test_the_page_of_equal_models_says_so(model, ids, opened):
    found = opened(tl.compare_models(model, copy.deepcopy(model), ids))
    assert found.locator(".verdict.agrees").inner_text().startswith("equal: ")
    assert found.locator(".difference-bar strong").inner_text() == "No differences"


def test_every_row_of_a_difference_has_the_cause_that_the_banner_has(model, ids, opened):
    rows = opened(tl.compare_models(model, other_eps(model), ids)).locator(".differences .result")
    assert "eps is 1e-05 in a and 0.01 in b · own error" in rows.first.inner_text()
    other = copy.deepcopy(model)
    other.skipped = 3
    comparison = tl.compare_models(model, other, ids)
    rows = opened(comparison).locator(".differences .result")
    assert str(comparison.culprit) in rows.first.inner_text()
    assert "only in a, part of 'blocks.3'" in rows.nth(1).inner_text()


def test_the_panel_says_whose_values_it_shows_and_leads_to_those_of_the_other(model, ids, opened):
    comparison = tl.compare_models(model, other_eps(model), ids)
    found = opened(comparison)
    assert found.locator(".panel .cause").inner_text() == "eps is 1e-05 in a and 0.01 in b"
    sides = found.locator(".panel .sides button")
    assert sides.all_inner_texts() == ["a: Decoder", "b: Decoder"]
    for side in (1, 0):
        sides.nth(side).click()
        assert [one.get_attribute("aria-pressed") for one in sides.all()] == [str(at == side).lower() for at in (0, 1)]
        assert found.evaluate("__torcheer.state().selection.side") == side
        assert found.locator(".panel h2").inner_text() == "layer_norm"


def test_what_only_one_model_has_leads_to_no_counterpart(model, ids, opened):
    other = copy.deepcopy(model)
    other.skipped = 3
    found = opened(tl.compare_models(model, other, ids))
    sides = found.locator(".panel .sides button")
    assert [one.is_disabled() for one in sides.all()] == [False, True]


def test_the_counterpart_of_a_block_after_a_missing_block_is_the_matched_block(model, ids, opened):
    """Its stack shows that block, and not the one with the same number."""
    other = copy.deepcopy(model)
    del other.blocks[1]
    found = opened(tl.compare_models(model, other, ids))
    found.evaluate("location.hash = 'module=blocks.3:1'")
    for _ in range(200):  # the page's policy allows no `wait_for_function`
        if found.evaluate("__torcheer.state().selection.key === 'blocks.3:1' && !__torcheer.isBusy()"):
            break
        found.wait_for_timeout(50)
    shown = found.evaluate("[0, 1].map((side) => __torcheer.selectedOn(side))")
    assert [one["key"] for one in shown] == ["blocks.3:1", "blocks.2:1"]
    assert found.evaluate("[0, 1].map((side) => __torcheer.blocks(side))") == [[3], [2]]


def test_both_pictures_frame_the_culprit_and_do_not_fold_its_block(model, ids, tmp_path):
    comparison = tl.compare_models(model, other_eps(model), ids)
    for side in ("a", "b"):
        picture = comparison.draw(tmp_path / f"{side}.svg", side=side).svg
        assert comparison.culprit.label in picture
        assert "#D81B60" in picture.upper()
        assert "own error (framed: the culprit)" in picture
        assert f"{side}: Decoder" in picture


def test_a_picture_frames_every_operation_of_a_block_that_only_one_side_runs(model, ids, tmp_path):
    other = copy.deepcopy(model)
    other.skipped = 3
    comparison = tl.compare_models(model, other, ids)
    picture = comparison.draw(tmp_path / "a.svg", side="a", nesting_depth=1).svg
    assert "blocks.3" in picture
    assert "#D81B60" in picture.upper()
    assert "#D81B60" not in comparison.draw(tmp_path / "b.svg", side="b").svg.upper()
