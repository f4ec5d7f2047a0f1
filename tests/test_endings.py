"""The form that is asked for and the ending of a path agree, or the call is refused before anything is written."""

from __future__ import annotations

import io

import pytest
import torch

import torcheer
from torch_vis import export_computational_graph
from torcheer.errors import InvalidArgument
from torcheer.features.sample_pictures import Drawn


@pytest.fixture
def history(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return torcheer.log_forward_pass(torch.nn.Linear(2, 2), torch.rand(1, 2))


def drawings(history, *where, **options):
    """Every call that draws."""
    model, x = torch.nn.Linear(2, 2), torch.rand(1, 2)
    figure = pytest.importorskip("matplotlib.figure").Figure()
    yield lambda: history.draw(*where, **options)
    yield lambda: history.modules[""].draw(*where, **options)
    yield lambda: torcheer.compare(history, history).draw(*where, **options)
    yield lambda: torcheer.show_model_graph(model, x, **dict(zip(["path"], where, strict=False)), **options)
    if where:
        yield lambda: Drawn(figure, "a figure").save(*where, **options)


@pytest.mark.parametrize("form", ["nope", "", "jpg", 3, b"svg"])
@pytest.mark.parametrize("where", [(), ("picture",), ("picture.svg",), (io.BytesIO(),)], ids=["shown", "path", "svg", "file"])
def test_an_unknown_form_is_refused_by_name(history, where, form, tmp_path):
    for call in drawings(history, *where, format=form):
        with pytest.raises(InvalidArgument, match=f"the formats of a .* are .*; got {form!r}"):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "form"), [("b.svg", "png"), ("b.PNG", "svg"), ("b.jpg", "png"), ("b.html", "svg"), ("b.svg.gz", "svg")]
)
def test_a_form_and_an_ending_that_contradict_each_other_are_refused(history, path, form, tmp_path):
    for call in drawings(history, path, format=form):
        with pytest.raises(InvalidArgument, match="contradict each other"):
            call()
    assert not list(tmp_path.iterdir())
    with open(path, "wb") as file, pytest.raises(InvalidArgument, match="contradict each other"):
        history.draw(file, format=form)


def test_a_form_decides_where_the_ending_says_nothing_and_case_is_no_difference(history, tmp_path):
    for path, form, begin in [
        ("a", "png", b"\x89PNG"),
        ("a.v2", ".PNG", b"\x89PNG"),
        ("a.SVG", "svg", b"<"),
        ("a.gv", "dot", b"d"),
    ]:
        history.draw(path, format=form)
        assert (tmp_path / path).read_bytes().startswith(begin)


def test_a_picture_that_is_shown_has_the_form_that_was_asked_for(history, tmp_path, capsys):
    history.draw(format="png")
    assert capsys.readouterr().out == "Picture: torcheer_Linear_unrolled.png\n"
    assert (tmp_path / "torcheer_Linear_unrolled.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_written_in_one_form_goes_into_no_file_of_another_kind(history, tmp_path):
    model, x = torch.nn.Linear(2, 2), torch.rand(1, 2)
    wrong = [
        lambda: history.to_csv("table.json"),
        lambda: history.to_csv("table.csv.gz"),
        lambda: history.to_html("page.svg"),
        lambda: history.to_json("data.html"),
        lambda: history.to_model_explorer("net.html"),
        lambda: history.save("model.py"),
        lambda: torcheer.log_forward_pass(model, x, save_to="run.html"),
        lambda: export_computational_graph(model, x, "graph.svg"),
    ]
    for call in wrong:
        with pytest.raises(InvalidArgument, match="has the ending of another kind of file"):
            call()
    assert not list(tmp_path.iterdir())
    for path in ("table.csv", "table.txt", "table", "table.2"):
        history.to_csv(path)
    history.to_html("page.HTM")
    history.save("model.history")
