"""The nearest samples are those of a sort by hand; sheets show the pictures of the samples they are asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from torcheer import InvalidArgument
from torcheer.features.sample_pictures import as_picture, picture_sheet
from torcheer.features.statistics import ChosenSamples, Rows, SampleNames, nearest_samples

rng = np.random.default_rng(0)
VALUES = rng.normal(size=(30, 2, 3)).round(1)
VALUES[11] = VALUES[4] * 2  # as near as can be, by the cosine
VALUES[20] = VALUES[11]
FLAT = VALUES.reshape(30, -1)
NAMES = SampleNames(torch.arange(30))


def by_hand(wanted: np.ndarray, measure: str) -> list[tuple[float, int]]:
    """Every sample by its similarity, or minus its distance, and then by its number."""
    scores = {
        "cosine": lambda row: row @ wanted / math.sqrt((row @ row) * (wanted @ wanted)),
        "correlation": lambda row: np.corrcoef(row, wanted)[0, 1],
        "dot": lambda row: row @ wanted,
        "euclidean": lambda row: -math.dist(row, wanted),
    }
    return sorted(((-round(float(scores[measure](row)), 9), number) for number, row in enumerate(FLAT)))


@pytest.mark.parametrize("measure", ["cosine", "correlation", "dot", "euclidean"])
def test_the_nearest_samples_are_found(measure):
    found = nearest_samples(Rows("layer", VALUES), 4, 6, measure, NAMES)
    wanted = [(score, number) for score, number in by_hand(FLAT[4], measure) if number != 4][:6]
    assert found.numbers.tolist() == [number for _, number in wanted]
    sign = 1 if measure == "euclidean" else -1
    assert found.values.tolist() == pytest.approx([sign * score for score, _ in wanted], abs=1e-8)


def test_samples_are_given_by_number_id_or_features():
    rows = Rows("layer", torch.from_numpy(VALUES))
    ids = SampleNames(torch.arange(30), {at: f"picture {at}" for at in range(30)})
    by_number = nearest_samples(rows, 4, 3, "cosine", ids)
    assert by_number.numbers.tolist()[:2] == [11, 20]
    assert by_number.ids[:2] == ["picture 11", "picture 20"]
    assert by_number[0] == (11, "picture 11", pytest.approx(1))
    assert nearest_samples(rows, "picture 4", 3, "cosine", ids).numbers.tolist() == by_number.numbers.tolist()
    later = SampleNames(torch.arange(100, 130), {100 + at: 7 * at for at in range(30)})  # the first blocks are missing
    assert nearest_samples(rows, 28, 3, "cosine", later).numbers.tolist() == [100 + at for at in by_number.numbers.tolist()]
    assert nearest_samples(rows, 28, 3, "cosine", later).ids == [7 * at for at in by_number.numbers.tolist()]
    with pytest.raises(InvalidArgument, match="no sample has the id 104"):
        nearest_samples(rows, 104, 3, "cosine", later)
    by_features = nearest_samples(rows, VALUES[4], 4, "cosine", NAMES)
    assert by_features.numbers.tolist() == [4, *by_number.numbers.tolist()]
    assert len(nearest_samples(rows, 4, 999, "cosine", NAMES)) == 29
    assert list(by_number.to_pandas().columns) == ["sample", "id", "cosine"]
    assert "picture 11" in str(by_number)
    assert "nearest to sample 4 in layer" in str(by_number)


def test_rows_are_compared_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr("torcheer.features.statistics._TOGETHER", 24)
    found = nearest_samples(Rows("layer", VALUES), 4, 6, "euclidean", NAMES)
    assert found.numbers.tolist() == [number for _, number in by_hand(FLAT[4], "euclidean") if number != 4][:6]


def test_samples_that_cannot_be_compared_are_left_out_and_counted():
    values = VALUES.copy()
    values[3, 0, 0], values[5] = math.nan, 0
    found = nearest_samples(Rows("layer", values), 4, 30, "cosine", NAMES)
    assert set(found.numbers.tolist()) == set(range(30)) - {3, 4, 5}
    assert "left out, as their value is not finite: 2 samples" in str(found)


@pytest.mark.parametrize(
    ("sample", "k", "measure", "message"),
    [
        (30, 3, "cosine", "no sample 30: 'layer' has 30 rows"),
        ("cat", 3, "cosine", "samples have no ids; got 'cat'"),
        (4, 0, "cosine", "1 or more"),
        (4, 3, "manhattan", "measure is one of 'cosine'"),
        ([1.0, 2.0], 3, "cosine", "6 numbers; got 2"),
        ({"a": 1}, 3, "cosine", "its number, its id or its features"),
        (np.full((2, 3), math.nan), 3, "cosine", "a NaN"),
    ],
)
def test_what_makes_no_sense_is_refused(sample, k, measure, message):
    with pytest.raises(InvalidArgument, match=message):
        nearest_samples(Rows("layer", VALUES), sample, k, measure, NAMES)


COLORS = np.array([[at * 8, 255 - at * 8, 100] for at in range(30)], dtype=np.uint8)
PICTURES = np.broadcast_to(COLORS[:, None, None], (30, 6, 6, 3))


def chosen(numbers: list[int], ids=None, **options) -> ChosenSamples:
    values = torch.linspace(3, 1, len(numbers))
    return ChosenSamples("layer3, unit 12", "activation", torch.tensor(numbers, dtype=torch.int64), values, ids, **options)


def shown_in(sheet, tmp_path) -> list[np.ndarray]:
    """The colour in the middle of each picture, as it is in the PNG, in the order they were drawn."""
    sheet.save(tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    found = []
    for axes in sheet.figure.axes:
        box = axes.get_window_extent()
        found.append(pixels[pixels.shape[0] - int((box.y0 + box.y1) / 2), int((box.x0 + box.x1) / 2)])
    return found


class Labelled(torch.utils.data.Dataset):
    """A dataset of pictures with labels, as torchvision's are."""

    def __len__(self):
        return 30

    def __getitem__(self, number):
        return torch.from_numpy(PICTURES[number].copy()).permute(2, 0, 1) / 255, number % 3


SOURCES = {
    "array": PICTURES,
    "tensor": torch.from_numpy(PICTURES.copy()).permute(0, 3, 1, 2),
    "dataset": Labelled(),
    "Pillow": [Image.fromarray(np.ascontiguousarray(one)) for one in PICTURES],
    "dictionaries": [{"label": 1, "image": np.ascontiguousarray(one)} for one in PICTURES],
    "function": lambda number: PICTURES[number],
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_sheet_shows_the_pictures_in_their_order(source, tmp_path):
    numbers = [7, 3, 29, 0, 12, 5, 21]
    sheet = chosen(numbers).pictures(SOURCES[source])
    np.testing.assert_allclose(shown_in(sheet, tmp_path), COLORS[numbers], atol=2)
    words = [text.get_text() for text in sheet.figure.texts]
    assert words[0] == "layer3, unit 12"
    assert words[1] == "#7 · 3"
    assert sheet.samples.numbers.tolist() == numbers


def test_pictures_may_be_files_and_are_found_by_id(tmp_path):
    ids = ["09.png", "04.png"]
    for at in (4, 9):
        Image.fromarray(np.ascontiguousarray(PICTURES[at])).save(tmp_path / f"{at:02d}.png")
    sheet = chosen([9, 4], ids).pictures({name: tmp_path / name for name in ids})
    np.testing.assert_allclose(shown_in(sheet, tmp_path), COLORS[[9, 4]], atol=2)
    assert "09.png · 3" in [text.get_text() for text in sheet.figure.texts]


def test_several_units_have_a_row_each(tmp_path):
    groups = [chosen([1, 2, 3], row_title="unit 4"), chosen([5, 6], row_title="unit 9")]
    sheet = picture_sheet(groups, PICTURES)
    np.testing.assert_allclose(shown_in(sheet, tmp_path), COLORS[[1, 2, 3, 5, 6]], atol=2)
    words = [text.get_text() for text in sheet.figure.texts]
    assert {"unit 4", "unit 9"} <= set(words)
    tops = [axes.get_window_extent().y1 for axes in sheet.figure.axes]
    assert tops[0] == tops[2] > tops[3] == tops[4]


def test_values_outside_of_the_range_of_pictures_are_stretched():
    np.testing.assert_allclose(as_picture(torch.tensor([[-1.0, 0.0], [1.0, 3.0]])), [[0, 0.25], [0.5, 1]])
    np.testing.assert_allclose(as_picture(np.array([[0.0, 0.5]])), [[0, 0.5]])
    np.testing.assert_allclose(as_picture(torch.tensor([[True, False]])), [[1, 0]])
    assert as_picture(torch.full((1, 4, 4), math.nan)).tolist() == np.zeros((4, 4)).tolist()
    assert as_picture(torch.zeros(4, 5, 5)).shape == (5, 5, 3)


def test_a_sheet_without_samples_says_so(tmp_path):
    sheet = chosen([]).pictures(PICTURES)
    assert "no samples" in [text.get_text() for text in sheet.figure.texts]
    sheet.save(tmp_path / "empty.png")


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        (3, "pictures are a dataset"),
        ("folder", "pictures are a dataset"),
        (PICTURES[:5], "no sample 7: give the dataset"),
        (["a text"] * 30, "not the name of a picture file"),
        (np.zeros((30, 7, 5, 5)), "not a picture"),
        ([{"label": 3}] * 30, r"no picture among \['label'\]"),
        (lambda number: None, "not a picture"),
    ],
)
def test_what_is_no_picture_is_refused(pictures, message):
    with pytest.raises(InvalidArgument, match=message):
        chosen([7]).pictures(pictures)
