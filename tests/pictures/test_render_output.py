"""What is written: forms, files, the screen, the SVG's geometry, hostile names, time limits and missing Graphviz."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import torchvision
import transformers
from torch import nn

import torcheer
from models import Mlp, log
from torcheer._text import screen
from torcheer.demo import AlexNet, SimpleRecurrent
from torcheer.errors import DrawingFailed, FolderNotFound, GraphvizNotFound, InvalidArgument, NotWritten
from torcheer.pictures import layout, make_picture, picture_options, worker
from torcheer.pictures.dot import dot_text
from torcheer.pictures.layout import TooSlow, run_graphviz

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def history() -> torcheer.ModelHistory:
    return torcheer.log_forward_pass(Mlp(), torch.ones(1, 4))


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("dot", b"digraph")])
def test_the_ending_of_a_path_says_the_form(history, tmp_path, ending, start):
    path = tmp_path / f"picture.{ending}"
    drawn = history.draw(path)
    assert path.read_bytes().startswith(start)
    assert drawn.to_bytes(ending).startswith(start)
    assert os.listdir(tmp_path) == [f"picture.{ending}"]


def test_a_format_may_be_named_instead(history, tmp_path):
    history.draw(tmp_path / "picture", format="svg")
    assert (tmp_path / "picture").read_text().startswith("<svg")


def test_file_objects_get_the_picture(history):
    binary, text = io.BytesIO(), io.StringIO()
    history.draw(binary, format="png")
    history.draw(text)
    assert binary.getvalue().startswith(b"\x89PNG")
    assert text.getvalue().startswith("<svg")
    with pytest.raises(InvalidArgument, match="binary mode"):
        history.draw(io.StringIO(), format="pdf")


@pytest.mark.parametrize("path", ["picture.bmp", "picture", "picture.svg.exe"])
def test_an_unknown_ending_lists_the_known_ones(history, here, path):
    with pytest.raises(InvalidArgument, match=r"\.svg, \.png, \.pdf, \.dot"):
        history.draw(path)
    assert os.listdir(here) == []


def test_where_a_picture_goes_is_checked_before_it_is_laid_out(history, tmp_path, monkeypatch):
    def laid_out(*args):
        raise AssertionError("laid out")

    monkeypatch.setattr(layout, "run_graphviz", laid_out)
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    for target in ("picture.bmp", tmp_path / "nowhere" / "picture.svg", folder, 7):
        with pytest.raises((InvalidArgument, NotWritten)):
            history.draw(target)
    for form in ("pdf", "gif"):
        with pytest.raises(InvalidArgument):
            history.draw(io.StringIO(), format=form)
    with pytest.raises(InvalidArgument):
        torcheer.show_model_graph(laid_out, torch.ones(1), path="picture.bmp")
    with pytest.raises(NotWritten):
        torcheer.show_model_graph(laid_out, torch.ones(1), path=tmp_path / "nowhere" / "picture.svg")


def test_what_is_neither_path_nor_file_is_refused(history):
    with pytest.raises(InvalidArgument, match="path or a file object"):
        history.draw(7)
    with pytest.raises(InvalidArgument, match="svg, png, pdf, dot"):
        make_picture(history.graph).to_bytes("gif")


def test_a_folder_that_is_not_there_is_told_with_its_path(history, tmp_path):
    message = r"the picture cannot be written to .*picture\.svg': there is no folder .*nowhere'\. Make it first"
    with pytest.raises(FolderNotFound, match=message) as caught:
        history.draw(tmp_path / "nowhere" / "picture.svg")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(FolderNotFound, match=r"the table cannot be written to .*there is no folder"):
        history.to_csv(tmp_path / "nowhere" / "table.csv")
    with pytest.raises(NotWritten, match=r"the table cannot be written to .*it is a folder"):
        history.to_csv(tmp_path)


def test_nothing_half_written_is_left_when_writing_fails(history, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        history.draw(tmp_path / "picture.svg")
    assert os.listdir(tmp_path) == []


def test_a_picture_that_was_there_is_replaced(history, tmp_path):
    path = tmp_path / "picture.svg"
    path.write_text("old")
    history.draw(path)
    assert path.read_text().startswith("<svg")


def test_the_same_history_is_drawn_the_same_every_time(history):
    assert make_picture(history.graph).svg == make_picture(history.graph).svg


def test_an_empty_graph_is_refused_in_words():
    with pytest.raises(InvalidArgument, match="nothing to draw"):
        make_picture(torcheer.graph.Graph("Nothing", ()))


def test_show_model_graph_runs_and_draws(tmp_path):
    drawn = torcheer.show_model_graph(Mlp(), torch.ones(1, 4), path=tmp_path / "p.svg", direction="right", vis_opt="rolled")
    assert "linear_1_1" in (tmp_path / "p.svg").read_text()
    assert drawn.graph.is_rolled


def test_show_model_graph_tells_what_is_wrong_before_the_model_runs():
    def never(x):
        raise AssertionError

    with pytest.raises(InvalidArgument, match="theme"):
        torcheer.show_model_graph(never, torch.ones(1), theme="pink")


def test_without_a_screen_a_picture_is_saved_and_its_path_printed(history, here, capsys, monkeypatch):
    monkeypatch.setattr(screen.webbrowser, "open", lambda url: pytest.fail("nothing may be opened"))
    history.draw()
    assert os.listdir(here) == ["torcheer_Mlp_unrolled.svg"]
    assert capsys.readouterr().out == "Picture: torcheer_Mlp_unrolled.svg\n"


def test_with_a_screen_it_is_opened(history, here, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(screen, "has_screen", lambda: True)
    monkeypatch.setattr(screen.webbrowser, "open", opened.append)
    history.draw(rolled=True)
    assert opened == [(here / "torcheer_Mlp_rolled.svg").resolve().as_uri()]


def test_a_screen_is_known_by_the_environment(monkeypatch):
    for name in ("CI", "PYTEST_CURRENT_TEST", "DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert not screen.has_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    assert screen.has_screen()
    monkeypatch.setenv("CI", "true")
    assert not screen.has_screen()


@pytest.fixture
def shown_in_notebook(monkeypatch) -> list:
    shown: list = []
    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    fake.display = types.SimpleNamespace(display=shown.append)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    return shown


def test_a_notebook_shows_what_is_returned(history, here, shown_in_notebook, capsys):
    drawn = history.draw()
    assert drawn._repr_svg_().startswith("<svg")
    assert (os.listdir(here), shown_in_notebook, capsys.readouterr().out) == ([], [], "")


def test_vis_opt_displays_in_a_notebook(here, shown_in_notebook):
    torcheer.log_forward_pass(SimpleRecurrent(), torch.ones(1, 5), vis_opt="rolled")
    assert [one.graph.is_rolled for one in shown_in_notebook] == [True]
    assert os.listdir(here) == []


@pytest.mark.parametrize("vis_opt", ["unrolled", "rolled"])
def test_vis_opt_saves_a_picture_elsewhere(here, vis_opt, capsys):
    logged = torcheer.log_forward_pass(SimpleRecurrent(), torch.ones(1, 5), vis_opt=vis_opt)
    assert os.listdir(here) == [f"torcheer_SimpleRecurrent_{vis_opt}.svg"]
    assert len(logged) == 5


def test_a_wrong_vis_opt_is_told_before_the_model_runs():
    with pytest.raises(InvalidArgument, match="'none', 'unrolled', 'rolled'"):
        torcheer.log_forward_pass(lambda x: pytest.fail("ran"), torch.ones(1), vis_opt="wobbly")


def test_a_picture_that_fails_does_not_lose_the_history(here, monkeypatch):
    monkeypatch.setattr(layout, "_commands", lambda engine, form: [])
    with pytest.raises(GraphvizNotFound) as caught:
        torcheer.log_forward_pass(Mlp(), torch.ones(1, 4), vis_opt="unrolled")
    assert len(caught.value.history) == 6


def points(element) -> list[tuple[float, float]]:
    found = []
    for shape in element:
        numbers = re.findall(r"-?[\d.]+", shape.get("points") or shape.get("d") or "")
        found += zip(map(float, numbers[::2]), map(float, numbers[1::2]), strict=False)
    return found


def bounds(element) -> tuple[float, float, float, float]:
    xs, ys = zip(*points(element), strict=True)
    return min(xs), min(ys), max(xs), max(ys)


MODELS = {
    "alexnet": (lambda: AlexNet(10), (torch.rand(1, 3, 224, 224),), {}, {}),
    "recurrent": (SimpleRecurrent, (torch.ones(1, 5),), {}, {"rolled": True}),
    "resnet18": (lambda: torchvision.models.resnet18(), (torch.rand(1, 3, 64, 64),), {}, {"nesting_depth": "all"}),
    "resnet18 across": (lambda: torchvision.models.resnet18(), (torch.rand(1, 3, 64, 64),), {}, {"direction": "right"}),
    "gpt2": (
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=4, n_embd=32, n_head=2, vocab_size=60, bos_token_id=0, eos_token_id=0)
        ).eval(),
        (),
        {"input_ids": torch.arange(12).reshape(2, 6)},
        {},
    ),
    "inception": (
        lambda: torchvision.models.inception_v3(init_weights=False, aux_logits=False).eval(),
        (torch.rand(1, 3, 80, 80),),
        {},
        {"nesting_depth": 2},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_drawn_svg_has_every_name_and_keeps_everything_in_its_place(name):
    build, args, kwargs, options = MODELS[name]
    logged = torcheer.log_forward_pass(build(), args, kwargs, layers_to_save="none")
    drawn = make_picture(logged.graph, picture_options(options))
    root = ElementTree.fromstring(drawn.svg)
    said = {text.text for text in root.iter(f"{SVG}text")}
    assert {node.lines[0] for node in drawn._drawing.nodes} <= said
    groups = {kind: [g for g in root.iter(f"{SVG}g") if g.get("class") == kind] for kind in ("node", "edge", "cluster")}
    assert len(groups["edge"]) == len(drawn._drawing.edges)
    assert all(one.find(f"{SVG}path") is not None for one in groups["edge"]), "an arrow was lost"
    boxes = {g.find(f"{SVG}title").text: bounds(g) for g in groups["cluster"]}
    assert set(boxes) == {box.key for box in drawn._drawing.boxes}
    sizes = {rule[0]: float(rule[1]) for rule in re.findall(r"\.(s\d+)\{[^}]*font-size:([\d.]+)px", drawn.svg)}
    for group in groups["node"]:
        key = group.find(f"{SVG}title").text
        left, top, right, bottom = bounds(group)
        for text in group.iter(f"{SVG}text"):
            middle, y, size = float(text.get("x")), float(text.get("y")), sizes[text.get("class")]
            half = max(float(text.get("textLength")), 0.42 * size * len(text.text)) / 2
            assert left - 0.2 <= middle - half, key
            assert middle + half <= right, (key, text.text)
            assert top <= y - 0.7 * size, key
            assert y <= bottom, key
        if key not in drawn.graph.by_key:
            continue
        for module in drawn.graph.by_key[key].modules:
            pieces = [box for name, box in boxes.items() if name == module or name.startswith(f"{module} (")]
            assert not pieces or any(
                box[0] <= left and right <= box[2] and box[1] <= top and bottom <= box[3] for box in pieces
            ), (key, module)


def test_nodes_do_not_overlap():
    logged = torcheer.log_forward_pass(torchvision.models.resnet18(), torch.rand(1, 3, 64, 64), layers_to_save="none")
    root = ElementTree.fromstring(make_picture(logged.graph, picture_options({"nesting_depth": "all"})).svg)
    found = [bounds(g) for g in root.iter(f"{SVG}g") if g.get("class") == "node"]
    for i, a in enumerate(found):
        for b in found[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_titles_of_modules_stand_where_no_arrow_runs():
    logged = torcheer.log_forward_pass(AlexNet(10), torch.rand(1, 3, 224, 224), layers_to_save="none")
    root = ElementTree.fromstring(make_picture(logged.graph).svg)
    titles = [t for g in root.iter(f"{SVG}g") if g.get("class") == "cluster" for t in g.iter(f"{SVG}text")]
    arrows = [points(g) for g in root.iter(f"{SVG}g") if g.get("class") == "edge"]
    assert len(titles) == 4
    for text in titles:
        x, y = float(text.get("x")), float(text.get("y"))
        for arrow in arrows:
            at = [px for px, py in arrow if y - 12 < py < y + 30]
            assert not any(x - 1 < px < x + 6 * len(text.text) for px in at), text.text


def test_an_svg_is_light_and_has_nothing_that_runs(history):
    logged = torcheer.log_forward_pass(AlexNet(10), torch.rand(1, 3, 224, 224), layers_to_save="none")
    text = make_picture(logged.graph).svg
    assert len(text) < 25_000
    assert not re.search(r"<script|<a |href|@font-face|<image|<foreignObject|<!--|font-family=| on\w+=", text)
    assert text.count("font-family") == 1
    assert "fill=" not in text
    assert len(set(re.findall(r"\.(s\d+)\{", text))) == len(re.findall(r"\.(s\d+)\{", text))


def test_two_pictures_in_one_page_do_not_style_one_another(history):
    one, other = (make_picture(history.graph, picture_options({"theme": theme})).svg for theme in ("light", "dark"))
    scopes = [re.search(r'class="(t\w+)"', text)[1] for text in (one, other)]
    assert scopes[0] != scopes[1]
    assert all(re.findall(r"\}([^{}]*)\{", text.split("</style>")[0]) for text in (one, other))
    for scope, text in zip(scopes, (one, other), strict=True):
        rules = text.split("<style>")[1].split("</style>")[0]
        assert all(rule.startswith(f".{scope} ") for rule in re.findall(r"([^{}]+)\{[^}]*\}", rules))


def test_links_that_overrides_make_lead_nowhere(history):
    text = make_picture(history.graph, picture_options({"overrides": {"node": {"URL": "javascript:alert(1)"}}})).svg
    assert "javascript" not in text
    assert "linear_1_1" in text


NAMES = [
    "<script>alert(1)</script>",
    "quote\"s'",
    "line\nbreak\r\ttab",
    "x" * 300,
    "emoji😀🎉",
    "back\\slash\\",
    "\\N\\G\\E\\T",
    "&lt;&amp;&#60;",
    "control\x00\x07\x1b\x7f\ud800",
    "%s{0}{}",
    "]]>",
    "--><b>",
    '"]; x [label="',
    ">> ; }",
]


class Named(nn.Module):
    def __init__(self, names) -> None:
        super().__init__()
        for name in names:
            self._modules[name] = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x):
        for module in self._modules.values():
            x = module(x) - x
        return {'<script>"\n': x}


@pytest.mark.parametrize("options", [{}, {"nesting_depth": 1}, {"label": lambda node: NAMES[0] + "\n" + NAMES[8]}])
def test_hostile_names_are_drawn_as_text(options, tmp_path):
    logged = torcheer.log_forward_pass(Named(NAMES), torch.ones(1, 3))
    drawn = logged.draw(tmp_path / "hostile.svg", **options)
    root = ElementTree.fromstring((tmp_path / "hostile.svg").read_bytes())
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "style", "g", "text", "polygon", "path", "polyline", "ellipse",
    }  # fmt: skip
    said = "\n".join(text.text or "" for text in root.iter(f"{SVG}text"))
    assert "<script>alert(1)</script>" in said
    if "label" not in options:
        assert "\\N\\G\\E\\T" in said
        assert "&lt;&amp;&#60;" in said
        assert "back\\slash\\" in said
        assert "emoji😀🎉" in said
        assert "x" * 300 not in said
    assert len([g for g in root.iter(f"{SVG}g") if g.get("class") == "node"]) == len(drawn.graph.nodes)
    for ending in ("png", "pdf", "dot"):
        drawn.save(tmp_path / f"hostile.{ending}")


def test_a_hostile_title_is_text_and_names_no_other_folder(here):
    def model(x):
        return x + 1

    model.__name__ = "../../<script>\\N\x00"
    torcheer.show_model_graph(model, torch.ones(1))
    (name,) = os.listdir(here)
    assert re.fullmatch(r"torcheer_[\w.-]+_unrolled\.svg", name)
    assert "<script" not in (here / name).read_text()


def test_a_worker_that_hangs_is_stopped(tmp_path, monkeypatch):
    slow = tmp_path / "worker.py"
    slow.write_text("import time; time.sleep(1000)")  # longer than a test may take
    monkeypatch.setattr(worker, "__file__", str(slow))
    with pytest.raises(TooSlow, match=r"stopped after 0\.5 s"):
        run_graphviz("digraph {}", "dot", "svg", 0.5)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
@pytest.mark.parametrize(
    "program",
    [
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
        "os.close(0); os.close(1); os.close(2); time.sleep(1000)",
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'])",
    ],
    ids=["stopped", "stubborn", "closed", "with a child that holds the pipes"],
)
def test_a_worker_that_does_not_end_is_stopped(tmp_path, monkeypatch, program):
    slow = tmp_path / "worker.py"
    slow.write_text(f"import os, signal, subprocess, sys, time\n{program}")
    monkeypatch.setattr(worker, "__file__", str(slow))
    processes, popen = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **options: processes.append(popen(*args, **options)) or processes[-1]
    )
    with pytest.raises(TooSlow, match=r"stopped after 0\.5 s"):
        run_graphviz("digraph {}", "dot", "svg", 0.5)
    assert processes[0].returncode is not None


def test_a_time_limit_may_be_longer_than_any_system_waits():
    assert b"</svg>" in run_graphviz("digraph { a -> b }", "dot", "svg", 1e300)


class Stack(nn.Module):
    def __init__(self, stages=3, blocks=4):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(4, 4 + i), nn.ReLU(), nn.Linear(4 + i, 4)) for i in range(blocks)))
            for _ in range(stages)
        )

    def forward(self, x, mask=None):
        for stage in self.stages:
            for block in stage:
                x = block(x)
                x = x if mask is None else x * mask
        return x


def test_what_is_too_slow_is_drawn_with_fewer_modules_open_and_says_so(monkeypatch):
    logged = torcheer.log_forward_pass(Stack(), torch.ones(1, 4))
    real = layout.run_graphviz

    def slow_with_many(source, engine, form, limit):
        if source.count(" -> ") > 20:
            raise TooSlow("slow")
        return real(source, engine, form, limit)

    monkeypatch.setattr(layout, "run_graphviz", slow_with_many)
    drawn = make_picture(logged.graph, picture_options({"nesting_depth": "all"}))
    assert len(drawn.graph.nodes) < 20
    assert any("took more than its time" in note for note in drawn.notes)
    assert any("collapsed to depth" in note for note in drawn.notes)
    assert "took more than its time" in drawn.svg


def test_what_cannot_be_laid_out_at_all_is_an_error_that_says_what_to_do(history, monkeypatch):
    def too_slow(*args):
        raise TooSlow("slow")

    monkeypatch.setattr(layout, "run_graphviz", too_slow)
    with pytest.raises(DrawingFailed, match=r"time_limit=120.*nesting_depth=1"):
        make_picture(history.graph)


def test_a_hub_that_feeds_1000_nodes_is_drawn():
    logged = torcheer.log_forward_pass(Stack(5, 50), (torch.ones(1, 4), torch.ones(4)), layers_to_save="none")
    drawn = make_picture(logged.graph, picture_options({"nesting_depth": "all", "time_limit": 100}))
    assert len(drawn.graph.nodes) == 1003  # nothing was collapsed because it took more than its time
    assert ElementTree.fromstring(drawn.svg) is not None


def test_a_chain_of_10000_is_drawn():
    source = "def chain(x):\n" + "    x = torch.sin(x)\n    x = torch.cos(x)\n" * 5000 + "    return x\n"
    names = {"torch": torch}
    exec(compile(source, "chain.py", "exec"), names)
    logged = log(names["chain"], torch.ones(2), layers_to_save="none")
    drawn = make_picture(logged.graph, picture_options({"nesting_depth": "all", "time_limit": 100}))
    assert any("left out" in note for note in drawn.notes)


def pixels(png: bytes) -> tuple[int, int]:
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


def test_a_png_is_as_sharp_as_its_size_allows(history, monkeypatch):
    """Two pixels for each point; fewer where it would have more pixels, or a longer side, than a program can open."""
    width, height = pixels(make_picture(history.graph).to_bytes("png"))
    monkeypatch.setattr("torcheer.pictures.picture._AREA", width * height / 4)
    assert pixels(make_picture(history.graph).to_bytes("png")) == pytest.approx((width / 2, height / 2), rel=0.03)
    monkeypatch.undo()
    monkeypatch.setattr("torcheer.pictures.picture._LONGEST", max(width, height) / 5)
    assert pixels(make_picture(history.graph).to_bytes("png")) == pytest.approx((width / 5, height / 5), rel=0.05)


def test_graphviz_is_told_where_everything_is_when_it_draws(history):
    """A picture is laid out once; every form of it has the same places. The DOT that a user gets is without them."""
    picture = make_picture(history.graph)
    assert " pos=" not in picture.dot
    lines = dot_text(picture._drawing, picture._places).splitlines()
    nodes = [line for line in lines if re.match(r"\s*n\d+ \[", line)]
    edges = [line for line in lines if re.match(r"\s*n\d+ -> n\d+ \[", line)]
    assert len(nodes) == len(history.graph.nodes)
    assert len(edges) == len(history.graph.edges)
    assert all(re.search(r' pos="[-\d.]+,[-\d.]+', line) for line in nodes)
    assert len({re.search(r' pos="([^"]+)', line)[1] for line in nodes}) == len(nodes)


def test_a_very_tall_picture_still_makes_a_png():
    logged = torcheer.log_forward_pass(Stack(6, 50), torch.ones(1, 4), layers_to_save="none")
    png = make_picture(logged.graph, picture_options({"nesting_depth": "all"})).to_bytes("png")
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    assert png.startswith(b"\x89PNG")
    assert max(width, height) <= 17_000


def test_without_graphviz_the_error_says_the_one_command(history, monkeypatch):
    monkeypatch.setattr(layout, "_pygraphviz_folder", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GraphvizNotFound, match=r"pip install 'pygraphviz>=2.0'") as caught:
        history.draw("picture.svg")
    assert isinstance(caught.value, ImportError)


FAKE_DOT = """#!{python}
import sys
sys.path.insert(0, {folder!r})
import pygraphviz
engine, form = (word[2:] for word in sys.argv[1:3])
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
sys.stdout.buffer.write(graph.draw(format=form, prog=engine))
"""


@pytest.mark.skipif(os.name == "nt", reason="a script with a shebang stands in for dot")
@pytest.mark.parametrize("broken", [False, True], ids=["not installed", "does not import"])
def test_the_dot_of_the_system_is_used_when_pygraphviz_cannot_be(history, tmp_path, monkeypatch, broken):
    folder = layout._pygraphviz_folder()
    dot = tmp_path / "bin" / "dot"
    dot.parent.mkdir()
    dot.write_text(FAKE_DOT.format(python=sys.executable, folder=folder))
    dot.chmod(0o755)
    (tmp_path / "pygraphviz").mkdir()
    (tmp_path / "pygraphviz" / "__init__.py").write_text("raise ImportError('libcgraph.so.6 is missing')")
    monkeypatch.setenv("PATH", str(dot.parent))
    monkeypatch.setattr(layout, "_pygraphviz_folder", lambda: str(tmp_path) if broken else None)
    monkeypatch.setattr(worker, "__file__", _worker_that_sees(tmp_path) if broken else worker.__file__)
    history.draw(tmp_path / "picture.svg")
    assert "linear_1_1" in (tmp_path / "picture.svg").read_text()


def _worker_that_sees(folder: Path) -> str:
    """The worker, finding what is in a folder first."""
    path = folder / "worker.py"
    source = Path(worker.__file__).read_text().replace("sys.path.append(folder)", "sys.path.insert(0, folder)")
    path.write_text(source)
    return str(path)


@pytest.mark.parametrize("has_python", [True, False])
@pytest.mark.parametrize("has_system", [True, False])
def test_pygraphviz_is_tried_first_and_then_the_program(monkeypatch, has_python, has_system):
    monkeypatch.setattr(layout, "_pygraphviz_folder", lambda: "/packages" if has_python else None)
    monkeypatch.setattr(layout.shutil, "which", lambda name: f"/bin/{name}" if has_system else None)
    python = [[sys.executable, "-I", worker.__file__, "/packages", "nop2", "svg"]]
    system = [["/bin/dot", "-Knop2", "-Tsvg"]]
    assert layout._commands("nop2", "svg") == [*(python if has_python else []), *(system if has_system else [])]


def test_what_graphviz_complains_about_is_passed_on():
    with pytest.raises(DrawingFailed, match="could not make the picture"):
        run_graphviz("this is not a graph {", "dot", "svg", 10)


def test_the_worker_runs_without_importing_torch():
    code = f"import runpy, sys; runpy.run_path({worker.__file__!r}); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False, timeout=900).returncode == 0


def test_layouts_and_svg_need_no_system_libraries():
    """Small systems lack GLib and others, so pygraphviz does not import there: some libraries in its wheel need none."""
    folder = layout._pygraphviz_folder()
    if not list(Path(folder, "pygraphviz.libs").glob("libgvc-*")):
        pytest.skip("this pygraphviz is not a wheel for Linux")
    program = "import sys; sys.modules['pygraphviz'] = None; sys.argv = sys.argv[1:]; exec(open(sys.argv[0]).read())"

    def run(form, engine="dot"):
        command = [sys.executable, "-I", "-c", program, worker.__file__, folder, engine, form]
        return subprocess.run(command, input=b"digraph { a -> b; a -> c }", capture_output=True, check=False)

    assert [one["name"] for one in json.loads(run("json0").stdout)["objects"]] == ["a", "b", "c"]
    assert run("svg").stdout.count(b'class="edge"') == 2
    refused = run("png")
    assert (refused.returncode, refused.stdout) == (worker.NOT_IMPORTABLE, b"")


def test_a_picture_that_needs_a_system_library_names_it(monkeypatch):
    said = subprocess.CompletedProcess([], worker.NOT_IMPORTABLE, b"", b"libgobject-2.0.so.0: cannot open shared object file")
    monkeypatch.setattr(layout, "_run", lambda command, source, limit: said)
    with pytest.raises(torcheer.GraphvizNotFound, match=r"PNG pictures need the system library libgobject-2.0.so.0.*Write SVG"):
        layout.run_graphviz("digraph {}", "nop2", "png", 5)
