"""A page holds a history and the viewer, and nothing of the history can run in it."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import json
import linecache
import os
import re
import sys
import types
import zlib
from pathlib import Path

import pytest
import torch
from torch import nn

import torcheer
from models import Mlp, log
from torcheer import InvalidArgument
from torcheer.errors import ViewerNotBuilt
from torcheer.page import make_page, payload_of, read_payload, show, to_html
from torcheer.page.document import Bundle, read_bundle

SCRIPT = 'console.log("</script><!-- <script>", /<\\/SCRIPT/i);\r\nconst text = `</Script>`;\n'
STYLE = 'body::after { content: "</style>"; }\n'


@pytest.fixture
def bundle(tmp_path) -> Bundle:
    """A viewer that says things which are hard to put into a page."""
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "graph.js").write_bytes(SCRIPT.encode())
    (folder / "graph.css").write_text(STYLE, encoding="utf-8")
    (folder / "graph.html").write_text("<noscript>No script.</noscript>\n", encoding="utf-8")
    return read_bundle("graph", folder)


class Reader(html.parser.HTMLParser):
    """The elements of a page, each with its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.comments: list[str] = []
        self.outside: list[str] = []
        self._open: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag != "meta":
            self._open.append(self.elements[-1][2])

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        (self._open[-1] if self._open else self.outside).append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    def only(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, "".join(text)) for name, attributes, text in self.elements if name == tag]


def payloads(text: str) -> dict[str, dict[str, object]]:
    """The payloads in a page, by their id."""
    blocks = [one for one in Reader(text).only("script") if one[0].get("type")]
    return {a["id"]: json.loads(zlib.decompress(base64.b64decode(data))) for a, data in blocks}


ELEMENTS = ["html", "head", *["meta"] * 5, "title", "style", "script", "body", "noscript", "script"]


def test_a_page_holds_the_payload_and_the_viewer(bundle):
    """And no other element."""
    history = log(Mlp(), torch.randn(2, 4))
    text = make_page(history, bundle=bundle).html
    found = Reader(text)
    assert [name for name, _, _ in found.elements] == ELEMENTS
    assert found.comments == []
    assert not "".join(found.outside).strip()
    assert payloads(text) == {"payload": json.loads(json.dumps(payload_of(history)))}
    assert text.startswith("<!doctype html>\n")
    assert found.only("meta")[0][0] == {"charset": "utf-8"}


def test_the_script_and_style_say_what_they_said(bundle):
    """Though nothing in them ends their element or begins a comment."""
    found = Reader(make_page(log(Mlp(), torch.randn(2, 4)), bundle=bundle).html)
    script, style = found.only("script")[0][1], found.only("style")[0][1]
    assert "</" not in script.lower().replace("<\\/", "")
    assert "<!--" not in script
    assert script.replace("<\\/script>", "</script>").replace("<\\/Script>", "</Script>").replace("\\x3c!--", "<!--") == (
        SCRIPT.replace("\r\n", "\n")
    )
    assert style.replace("<\\/", "</") == STYLE


def test_the_policy_allows_this_script_and_style_and_nothing_else(bundle):
    """By their hashes, which are those of the text between the tags."""
    found = Reader(make_page(log(Mlp(), torch.randn(2, 4)), bundle=bundle).html)
    policy = next(a["content"] for a, _ in found.only("meta") if a.get("http-equiv") == "Content-Security-Policy")
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}

    def hashed(text: str) -> list[str]:
        return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"]

    assert rules["default-src"] == rules["connect-src"] == rules["base-uri"] == rules["form-action"] == ["'none'"]
    assert rules["script-src"] == hashed(found.only("script")[0][1])
    assert rules["style-src"] == hashed(found.only("style")[0][1])
    assert rules["img-src"] == ["data:", "blob:"]
    assert rules["worker-src"] == ["blob:"]


def test_two_histories_stand_side_by_side(bundle):
    """The second may also be a payload."""
    one, other = log(Mlp(), torch.randn(2, 4)), log(nn.ReLU(), torch.randn(2))
    page = make_page(one, compare=payload_of(other), bundle=bundle)
    found = payloads(page.html)
    assert [found["payload"]["title"], found["payload-2"]["title"]] == ["Mlp", "ReLU"]
    assert page.title == "Mlp and ReLU"


def test_a_page_can_have_a_name_of_its_own(bundle):
    page = make_page(log(Mlp(), torch.randn(2, 4)), title="Before & after", bundle=bundle)
    assert Reader(page.html).only("title") == [({}, "Before & after")]
    assert payloads(page.html)["payload"]["title"] == "Before & after"


HOSTILE = [
    "</script><script>alert('MARK')</script>",
    "<!-- MARK <script>",
    "\" onload=\"alert('MARK')",
    "<img src=x onerror=alert('MARK')>",
    "MARK\u2028\u2029alert(1)",
    "MARK\udfff\ud800 \ud834",
    "javascript:alert('MARK')",
    "{MARK} %s {0.__class__} ${MARK}",
    "MARK\0\x1b[31m\r\n]]>",
    "MARK" + "x" * 100_000,
]


def hostile_model(words: str, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A model with these words wherever a name, a key or a line of code can be."""
    plain = words.replace(".", "·")
    line = f"_ = {json.dumps(words)}; return self._modules[NAME](x) + more[KEY]  # {words!r}"
    source = f"def forward(self, x, more):\n    {line}\n"
    names: dict[str, object] = {"NAME": plain, "KEY": words}
    writable = words.replace("\0", "").encode("utf-8", "replace").decode()  # Python itself takes no other names
    filename = f"<{writable[:200]}>"
    exec(compile(source, filename, "exec"), names)
    names["forward"].__doc__ = words
    monkeypatch.setitem(linecache.cache, filename, (len(source), None, source.splitlines(keepends=True), filename))
    cls = type("Model", (nn.Module,), {"forward": names["forward"], "__doc__": writable})
    cls.__name__ = writable
    model = cls()
    model.add_module(plain, nn.Linear(2, 2))
    model.register_buffer(plain + "buffer", torch.ones(2))
    return model


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_of_a_history_reaches_the_page_as_text(words, bundle, monkeypatch):
    """Names, keys, docstrings and lines of code are in the compressed payload; the title is escaped."""
    history = torcheer.log_forward_pass(hostile_model(words, monkeypatch), (torch.ones(1, 2), {words: torch.ones(2)}))
    page = make_page(history, bundle=bundle)
    text = page.html
    found = Reader(text)
    assert [name for name, _, _ in found.elements] == ELEMENTS
    assert found.comments == []
    (_, title), *more = found.only("title")
    assert not more
    assert len(title) <= 200
    assert not re.search("[\x00-\x1f\u2028\u2029\ud800-\udfff]", title)
    title_in_page = re.search("<title>(.*?)</title>", text, re.DOTALL)
    assert title_in_page is not None
    assert not re.search("[<>\"']", title_in_page[1])
    assert "MARK" not in text.replace(title_in_page[0], "")
    text.encode()  # a lone surrogate could not be written
    payload = payloads(text)["payload"]
    plain = words.replace(".", "·")
    assert payload["modules"][0]["address"] == plain
    assert any("MARK" in line for file in payload["files"] for line in file["lines"].values())
    assert repr(words) in payload["nodes"][1]["role"]


@pytest.mark.parametrize("words", HOSTILE[:6], ids=range(6))
def test_nothing_of_a_history_reaches_a_notebook_as_text(words, bundle):
    """The page is in a frame of its own, which may run its script and reach nothing around it."""
    page = make_page(log(Mlp(), torch.randn(2, 4)), title=words, bundle=bundle)
    found = Reader(page._repr_html_())
    assert [name for name, _, _ in found.elements] == ["iframe"]
    attributes = found.elements[0][1]
    assert attributes["srcdoc"] == page.html
    assert attributes["sandbox"].split() == ["allow-scripts", "allow-downloads"]


def test_the_real_viewer_makes_a_page(tmp_path):
    """`make` builds it."""
    path = to_html(log(Mlp(), torch.randn(2, 4)), tmp_path / "mlp.html")
    text = path.read_text(encoding="utf-8")
    found = Reader(text)
    assert [name for name, _, _ in found.elements] == ELEMENTS
    assert len(found.only("script")[0][1]) > 10_000
    assert payloads(text)["payload"]["title"] == "Mlp"


def test_the_size_of_a_page_is_kept(tmp_path):
    """With everything in it, for one history or two."""
    history = log(nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)), torch.rand(1, 3, 64, 64))
    base = read_bundle("graph").size
    for other in (None, history):
        limit = base + 40_000
        path = history.to_html(tmp_path / "page.html", compare=other, max_bytes=limit)
        assert path.stat().st_size <= limit
        left_out = [one["facts"].get("left_out", "") for one in payloads(path.read_text(encoding="utf-8")).values()]
        assert any("previews" in words for words in left_out)
    with pytest.raises(InvalidArgument, match="the viewer alone takes"):
        history.to_html(tmp_path / "page.html", max_bytes=1_000)


@pytest.mark.parametrize("program", ["graph", "report"])
def test_without_a_program_the_error_says_how_to_build_it(program, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ViewerNotBuilt, match=f"the {program} page is not built: .*make web"):
            read_bundle(program, folder)


@pytest.mark.parametrize("name", ["", "nowhere/page.html", "file/page.html"])
def test_a_path_that_cannot_be_written_is_refused(name, tmp_path, bundle):
    """In words, and without leaving anything behind."""
    (tmp_path / "file").write_text("here")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidArgument, match="the page"):
        make_page(log(Mlp(), torch.randn(2, 4)), bundle=bundle).save(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_page_replaces_the_old_one_whole_or_not_at_all(tmp_path, monkeypatch, bundle):
    path = tmp_path / "page.html"
    path.write_text("old")
    page = make_page(log(Mlp(), torch.randn(2, 4)), bundle=bundle)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InvalidArgument, match="No space left"):
            page.save(path)
    assert path.read_text() == "old"
    assert page.save(path) == path
    assert path.read_text(encoding="utf-8") == page.html
    assert [one.name for one in tmp_path.glob("*.html")] == ["page.html"]
    assert not list(tmp_path.glob(".page*"))


@pytest.mark.parametrize("thing", [3, None, "history", [1], {"format": "other"}, nn.ReLU()])
def test_only_histories_and_payloads_are_shown(thing, bundle):
    with pytest.raises(InvalidArgument, match="history"):
        make_page(thing, bundle=bundle)


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr("webbrowser.open", found.append)
    return found


def test_without_a_screen_the_path_is_printed(tmp_path, monkeypatch, capsys, opened):
    monkeypatch.chdir(tmp_path)
    page = log(Mlp(), torch.randn(2, 4)).show()
    path = Path("torcheer_Mlp.html")
    assert capsys.readouterr().out == f"Page: {path}\n"
    assert path.read_text(encoding="utf-8") == page.html
    assert opened == []
    assert repr(page).startswith("<Page of Mlp: ")


def test_with_a_screen_the_page_is_opened(tmp_path, monkeypatch, opened):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torcheer._text.screen.has_screen", lambda: True)
    show(log(Mlp(), torch.randn(2, 4)), title="../../a model: 1")
    assert opened == [(tmp_path / "torcheer_a_model_1.html").resolve().as_uri()]
    assert (tmp_path / "torcheer_a_model_1.html").exists()


def test_a_notebook_shows_the_page_and_nothing_is_written(tmp_path, monkeypatch, opened):
    """A smaller one: a notebook is saved with what it shows."""
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.chdir(tmp_path)
    history = log(lambda x: [torch.rand_like(x) for _ in range(400)][-1], torch.rand(1, 1, 96, 96), keep_orphans=True)
    page = history.show()
    assert "<iframe" in page._repr_html_()
    assert len(page.html) <= 4_000_000 < len(make_page(history).html)
    assert opened == []
    assert list(tmp_path.iterdir()) == []


def test_a_payload_comes_back_from_its_file(tmp_path, bundle):
    history = log(Mlp(), torch.randn(2, 4))
    text = history.to_json(tmp_path / "mlp.json")
    assert (tmp_path / "mlp.json").read_text(encoding="utf-8") == text
    assert text.isascii()
    payload = read_payload(tmp_path / "mlp.json")
    assert payload == json.loads(text)
    assert payloads(make_page(payload, bundle=bundle).html) == {"payload": payload}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not text"),
        (b"<html>", "not JSON"),
        (b"[]", "not a history"),
        (b"{}", "not a history"),
        (b'{"format": "other"}', "its format is 'other'"),
        (b'{"format": "torcheer-history"}', "has version None"),
        (b'{"format": "torcheer-history", "version": 2}', "reads version 1"),
        (b'{"format": "torcheer-history", "version": 1, "made_by": "", "title": "", "facts": []}', "'facts' is missing"),
        (b'{"format": "torcheer-history", "version": NaN}', "contains NaN"),
        (b"[" * 100_000, "not JSON"),
        (None, "cannot be read"),
    ],
    ids=range(12),
)
def test_what_is_no_payload_is_refused(content, message, tmp_path):
    path = tmp_path / "some.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        read_payload(path)


def test_a_folder_is_no_payload(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_payload(tmp_path)
    with pytest.raises(InvalidArgument, match="is a folder"):
        log(Mlp(), torch.randn(2, 4)).to_json(tmp_path)
