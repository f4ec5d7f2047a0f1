"""Pictures of tensors as plain arrays: where each channel lies, and which colour each value has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torcheer import InvalidArgument
from torcheer.xray.colors import GAP, NONFINITE, ColorScale, paint, reaches_beyond
from torcheer.xray.tiles import ASPECT, choose_columns, make_mosaic
from xray_runs import make_entry


def mosaic_of(kept: torch.Tensor, layout: str, kind: str = "layer", **facts):
    return make_mosaic(kept.numpy(), make_entry("conv1", kind, kept, layout, **facts))


def tile_values(mosaic, tile) -> np.ndarray:
    """The values of a tile, each once."""
    down, across = mosaic.enlarged
    part = mosaic.values[tile.top : tile.top + tile.height, tile.left : tile.left + tile.width]
    small = part[::down, ::across]
    assert (small.repeat(down, 0).repeat(across, 1) == part).all()
    return small


@pytest.mark.parametrize("aspect", [0.7, 1.0, 1.2, 2.0])
def test_no_tile_is_alone_in_the_last_row(aspect):
    """For any number of tiles from three on, unless they stand in one column."""
    for count in range(3, 600):
        columns = choose_columns(count, 10, 10, aspect)
        assert columns == 1 or count % columns != 1, (count, columns)


@pytest.mark.parametrize("aspect", [0.7, 1.0, 1.2, 2.0])
@pytest.mark.parametrize(("size", "most"), [((10, 10), 2.0), ((10, 31), 3.0), ((40, 12), 2.0)])
def test_the_picture_is_near_the_wanted_shape(aspect, size, most):
    """From 26 tiles on it is less than twice as wide or as tall as wanted; a little more for oblong tiles."""
    for count in range(26, 600):
        columns = choose_columns(count, *size, aspect)
        rows = -(-count // columns)
        assert 1 / most < columns * size[1] / (rows * size[0]) / aspect < most, (count, columns)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (4, 2), (8, 4), (16, 4), (32, 8), (64, 8), (7, 4)])
def test_common_numbers_of_square_tiles_fill_their_rows(count, columns):
    """Powers of two leave no hole."""
    assert choose_columns(count, 33, 33) == columns


@pytest.mark.parametrize("shape", [(8, 32, 32), (7, 5, 5), (64, 1, 1), (3, 2, 40), (12, 1, 30), (1, 9, 9), (512, 4, 4)])
def test_every_map_is_found_at_its_tile(shape):
    """Each tile has the values of its channel, and the numbers are those of the whole tensor."""
    kept = torch.randn(shape)
    numbers = tuple(range(3, 3 + 2 * shape[0], 2))
    mosaic = mosaic_of(kept, "maps", rows=numbers, shape=(1, 2000, *shape[1:]))
    assert [tile.row for tile in mosaic.tiles] == list(numbers)
    for channel, tile in zip(kept.numpy(), mosaic.tiles, strict=True):
        assert (tile_values(mosaic, tile) == channel).all()
    assert (~mosaic.gaps).sum() == sum(tile.height * tile.width for tile in mosaic.tiles)
    assert np.isnan(mosaic.values[mosaic.gaps]).all()


@pytest.mark.parametrize("shape", [(64, 2, 2), (64, 2, 40), (64, 40, 2), (100, 3, 9)])
def test_small_tiles_make_a_picture_near_the_wanted_shape_with_the_gaps_between_them(shape):
    mosaic = make_mosaic(np.zeros(shape, np.float32), make_entry("a", "layer", torch.zeros(shape), "maps"))
    assert 0.5 < mosaic.width / mosaic.height / ASPECT < 2


def test_tiles_are_one_pixel_apart():
    """Neither more nor less, and there is no border."""
    mosaic = mosaic_of(torch.randn(4, 20, 30), "maps")
    assert mosaic.values.shape == (41, 61)
    assert mosaic.gaps[20].all()
    assert mosaic.gaps[:, 30].all()
    assert mosaic.gaps.sum() == 41 + 61 - 1


def test_small_tiles_are_enlarged_by_a_whole_factor():
    """So that the gap stays thin beside a filter of 3×3."""
    mosaic = mosaic_of(torch.randn(4, 1, 3, 3), "filters", "weight")
    assert mosaic.enlarged == (4, 4)
    assert (mosaic.tiles[0].height, mosaic.tiles[0].width) == (12, 12)


def test_filters_of_three_inputs_are_in_color_for_weights_only():
    """The channels of the input become red, green and blue; a gradient shows them beside each other."""
    kept = torch.randn(8, 3, 5, 5)
    color = mosaic_of(kept, "filters", "weight")
    assert color.is_color
    for one, tile in zip(kept.numpy(), color.tiles, strict=True):
        assert (tile_values(color, tile) == one.transpose(1, 2, 0)).all()
    assert mosaic_of(kept, "filters", "grad").form == "grid"
    three_of_many = mosaic_of(kept, "filters", "weight", shape=(8, 64, 5, 5), columns=(1, 5, 9), is_color=False)
    assert (three_of_many.form, three_of_many.is_color) == ("grid", False)


def test_filters_of_one_input_are_tiles():
    """As feature maps are."""
    kept = torch.randn(9, 1, 5, 5)
    mosaic = mosaic_of(kept, "filters", "weight")
    assert (mosaic.form, mosaic.is_color) == ("tiles", False)
    assert (tile_values(mosaic, mosaic.tiles[4]) == kept[4, 0].numpy()).all()


@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (64, 3, 7, 7), (5, 20, 1, 9), (13, 2, 3, 3), (2, 2, 5, 5)])
def test_a_row_is_a_filter_and_a_column_an_input_channel(shape):
    """Also where many filters of few channels go on in further blocks."""
    kept = torch.randn(shape)
    mosaic = mosaic_of(kept, "filters", "grad")
    assert [(tile.row, tile.column) for tile in mosaic.tiles] == [(o, i) for o in range(shape[0]) for i in range(shape[1])]
    for tile in mosaic.tiles:
        assert (tile_values(mosaic, tile) == kept[tile.row, tile.column].numpy()).all()
        assert tile.top == mosaic.tiles[tile.row * shape[1]].top
    assert (~mosaic.gaps).sum() == sum(tile.height * tile.width for tile in mosaic.tiles)


def test_many_filters_of_few_channels_stay_near_the_wanted_shape():
    """64 filters of 3 channels are no tower of 64 rows."""
    mosaic = mosaic_of(torch.randn(64, 3, 7, 7), "filters", "grad")
    assert 0.6 < mosaic.width / mosaic.height < 2


def test_filters_of_one_pixel_are_a_matrix():
    """Row by row the filters, column by column the input channels."""
    kept = torch.randn(4, 6, 1, 1)
    mosaic = mosaic_of(kept, "filters", "weight", shape=(64, 32, 1, 1), rows=(1, 5, 9, 60), columns=(0, 2, 4, 6, 8, 31))
    assert mosaic.form == "matrix"
    assert (mosaic.values == kept[:, :, 0, 0].numpy()).all()
    assert (mosaic.rows, mosaic.columns) == ((1, 5, 9, 60), (0, 2, 4, 6, 8, 31))


def test_a_matrix_is_as_it_is():
    """One pixel for each value."""
    kept = torch.randn(8, 256)
    mosaic = mosaic_of(kept, "matrix")
    assert (mosaic.values == kept.numpy()).all()
    assert not mosaic.gaps.any()


def test_what_is_not_finite_is_told_apart_from_gaps():
    """NaN and both infinities, in maps and in colour."""
    kept = torch.zeros(4, 20, 20)
    kept[0, 1, 2], kept[1, 3, 4], kept[2, 5, 6] = float("nan"), float("inf"), float("-inf")
    mosaic = mosaic_of(kept, "maps")
    assert mosaic.nonfinite.sum() == 3
    assert mosaic.nonfinite[1, 2]
    assert not (mosaic.nonfinite & mosaic.gaps).any()
    assert not np.isinf(mosaic.values).any()
    weights = torch.zeros(1, 3, 15, 15)
    weights[0, 2, 4, 4] = float("nan")
    assert mosaic_of(weights, "filters", "weight").nonfinite.sum() == 1


@pytest.mark.parametrize(
    ("shape", "layout"), [((0, 4, 4), "maps"), ((4, 0, 3, 3), "filters"), ((0, 7), "matrix"), ((3, 0, 5), "maps")]
)
def test_an_empty_tensor_is_an_empty_picture(shape, layout):
    """Nothing fails, nothing is shown."""
    mosaic = mosaic_of(torch.zeros(shape), layout, "weight")
    assert mosaic.is_empty
    assert mosaic.tiles == ()


def test_a_tensor_that_does_not_fit_its_entry_is_refused():
    """The message has the shape that came."""
    with pytest.raises(InvalidArgument, match=r"3 dimensions.*\(4, 4\)"):
        make_mosaic(np.zeros((4, 4)), make_entry("conv1", "layer", torch.zeros(1, 4, 4), "maps"))
    with pytest.raises(InvalidArgument, match=r"\(2, 4, 4\).*1 rows"):
        make_mosaic(np.zeros((2, 4, 4)), make_entry("conv1", "layer", torch.zeros(1, 4, 4), "maps"))


# What colour-blind readers see of linear red, green and blue (Machado et al. 2009).
EYES = {
    "usual": np.eye(3),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}


def seen(colors, eye: str = "usual") -> np.ndarray:
    """Colours as lightness and two hues that are as far apart as they look (Oklab)."""
    share = np.asarray(colors, float) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4) @ EYES[eye].T
    cones = np.clip(linear, 0, 1) @ np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]).T
    mixed = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return np.cbrt(cones) @ mixed.T


@pytest.mark.parametrize("eye", EYES)
def test_the_scale_of_what_is_never_negative_grows_lighter_evenly(eye):
    """So that it is read in grey print, and by colour-blind readers."""
    lightness = seen(ColorScale(0.0, 1.0).colors(101), eye)[:, 0]
    assert (np.diff(lightness) > 0).all()
    assert lightness[-1] - lightness[0] > 0.7


@pytest.mark.parametrize("eye", EYES)
def test_the_scale_with_both_signs_grows_darker_to_both_ends_and_they_differ(eye):
    """Equal values of opposite sign are told apart, from a sixth of the scale on."""
    colors = seen(ColorScale(-1.0, 1.0).colors(101), eye)
    assert (np.diff(colors[:51, 0]) > 0).all()
    assert (np.diff(colors[50:, 0]) < 0).all()
    assert (np.linalg.norm(colors[:42] - colors[:-43:-1], axis=1) > 0.06).all()


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_what_is_not_finite_has_a_color_of_its_own(low, eye):
    """Far from every colour of both scales."""
    away = np.linalg.norm(seen(ColorScale(low, 1.0).colors(), eye) - seen(NONFINITE, eye), axis=1)
    assert away.min() > 0.08


def test_zero_has_the_color_in_the_middle():
    """Exactly, so that a weight of zero is grey."""
    scale = ColorScale(-0.3, 0.3)
    assert scale.levels(np.zeros(1))[0] == 127
    assert len(scale.colors()) == 255
    assert scale.levels(np.array([-5.0, -0.3, 0.3, 5.0, np.nan])).tolist() == [0, 0, 254, 254, 0]


def test_paint_gives_each_value_its_color():
    """Gaps are white, what is not finite is not."""
    kept = torch.linspace(-1, 1, 4 * 400).reshape(4, 20, 20).clone()
    kept[3, 0, 0] = float("nan")
    mosaic = mosaic_of(kept, "maps")
    scale = ColorScale(-1.0, 1.0)
    painted = paint(mosaic, scale)
    assert (painted[mosaic.gaps] == GAP).all()
    last = mosaic.tiles[3]
    assert tuple(painted[last.top, last.left]) == NONFINITE
    expected = scale.colors()[np.rint((kept[0].numpy() + 1) / 2 * 254).astype(int)]
    assert (painted[:20, :20] == expected).all()


def test_filters_in_color_lie_around_grey():
    """0.5 + value / (2 · reach), clipped."""
    kept = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 9.0]).repeat_interleave(3 * 16).reshape(6, 3, 4, 4)
    mosaic = mosaic_of(kept, "filters", "weight")
    painted = paint(mosaic, ColorScale(-1.0, 1.0))
    assert [painted[tile.top, tile.left].tolist() for tile in mosaic.tiles] == [[v] * 3 for v in (0, 0, 128, 191, 255, 255)]


def test_values_beyond_the_scale_are_noticed():
    """On either side."""
    mosaic = mosaic_of(torch.tensor([[-3.0, 0.5]]), "matrix")
    assert reaches_beyond(mosaic, ColorScale(-1.0, 1.0)) == (True, False)
    assert reaches_beyond(mosaic, ColorScale(-4.0, 0.2)) == (False, True)
    assert reaches_beyond(mosaic_of(torch.full((2, 2), float("nan")), "matrix"), ColorScale(-1.0, 1.0)) == (False, False)
