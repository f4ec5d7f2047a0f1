"""Pictures on machines with other fonts: drawn in a browser that has one font only, no text spills out of its box."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
from torch import nn

import torcheer
from browser import running_browser
from torcheer.demo import AlexNet, SimpleRecurrent
from torcheer.pictures.legend import text_width

if TYPE_CHECKING:
    from playwright.sync_api import Page

SVG = "{http://www.w3.org/2000/svg}"
OF_MATPLOTLIB = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SYSTEM = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), Path.home() / ".fonts", Path.home() / ".local/share/fonts"]
FONTS = {  # the last two are wider and narrower than any font that a browser would choose
    "DejaVu Sans": "DejaVuSans*.ttf",
    "Liberation Sans": "LiberationSans-*.ttf",
    "DejaVu Sans Mono": "DejaVuSansMono*.ttf",
    "STIX General": "STIXGeneral*.ttf",
}


def font_files(pattern: str) -> list[Path]:
    return [file for folder in (OF_MATPLOTLIB, *SYSTEM) if folder.is_dir() for file in sorted(folder.rglob(pattern))]


@pytest.fixture(scope="module", params=FONTS)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page in a browser that knows one family of fonts."""
    folder = tmp_path_factory.mktemp("fonts")
    files = [file for file in font_files(FONTS[request.param]) if request.param != "DejaVu Sans" or "Mono" not in file.name]
    if not files:
        pytest.skip(f"{request.param} is not installed")
    for file in files:
        shutil.copy(file, folder)
    settings = folder / "fonts.conf"
    settings.write_text(f"<fontconfig><dir>{folder}</dir><cachedir>{folder}/cache</cachedir></fontconfig>")
    with running_browser({"FONTCONFIG_FILE": str(settings)}) as running:
        page = running.new_page(viewport={"width": 1000, "height": 800})
        page.set_content(f"<p style='font:20px {request.param}'>{request.param}</p>")
        yield page


def cell_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    """Rolled, it has arrows from a node to itself, with words beside them."""
    cell, h = nn.LSTMCell(4, 3), (torch.zeros(2, 3), torch.zeros(2, 3))
    for t in range(x.shape[1]):
        h = cell(x[:, t], h)
    return h[0] @ h[1].T


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Pictures that contain every kind of text: names, titles of modules, notes on arrows, legends, scales."""
    alexnet = torcheer.log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224), layers_to_save="none")
    recurrent = torcheer.log_forward_pass(SimpleRecurrent(), torch.rand(1, 5))
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()) for _ in range(20)))
    folded = torcheer.log_forward_pass(blocks, torch.rand(1, 4))
    folder = tmp_path_factory.mktemp("pictures")
    return {
        "alexnet": alexnet.draw(folder / "a.svg", color_by="time").svg,
        "collapsed": alexnet.draw(folder / "b.svg", nesting_depth=1, show_buffers=True).svg,
        "rolled": recurrent.draw(folder / "c.svg", rolled=True, direction="right").svg,
        "folded": folded.draw(folder / "d.svg").svg,
        "loops": torcheer.log_forward_pass(cell_in_a_loop, torch.rand(2, 9, 4)).draw(folder / "e.svg", rolled=True).svg,
    }


MEASURE = """() => {
  const around = (one) => { const r = one.getBoundingClientRect(); return [r.left, r.right]; };
  const nodes = [...document.querySelectorAll('svg g.node')].map(node => ({
    name: node.querySelector('title') ? node.querySelector('title').textContent : '',
    box: around(node.querySelector('polygon, path, ellipse')),
    texts: [...node.querySelectorAll('text')].map(text => [text.textContent, ...around(text)]),
  }));
  const page = around(document.querySelector('svg'));
  const texts = [...document.querySelectorAll('svg text')].map(text => [text.textContent, ...around(text)]);
  return {nodes, page, texts};
}"""


@pytest.mark.parametrize("name", ["alexnet", "collapsed", "rolled", "folded", "loops"])
def test_with_any_font_text_stays_in_its_box_and_in_its_middle(page: Page, pictures: dict[str, str], name: str) -> None:
    """Text is within its node, as far from the left border as from the right one, and within the picture."""
    page.set_content(f"<body style='margin:0'>{pictures[name]}</body>")
    found = page.evaluate(MEASURE)
    assert len(found["nodes"]) > 2
    for node in found["nodes"]:
        left, right = node["box"]
        for words, start, end in node["texts"]:
            assert left - 0.5 <= start <= end <= right + 0.5, (node["name"], words)
            assert (start - left) == pytest.approx(right - end, abs=6.0), (node["name"], words)
    for words, start, end in found["texts"]:
        assert found["page"][0] <= start <= end <= found["page"][1] + 0.5, words


def test_every_text_states_its_width_and_that_of_nodes_is_anchored_in_the_middle(pictures: dict[str, str]) -> None:
    """Renderers that ignore the stated width still centre the text on its node."""
    for svg in pictures.values():
        root = ElementTree.fromstring(svg)
        texts = list(root.iter(f"{SVG}text"))
        assert texts
        assert all(float(text.get("textLength", "0")) > 0 for text in texts)
        assert {text.get("lengthAdjust") for text in texts} == {"spacingAndGlyphs"}
        styles = root.findtext(f"{SVG}style", "")
        sizes = {name: float(size) for name, size in re.findall(r"\.(s\d+)\{[^}]*font-size:([\d.]+)px", styles)}
        for text in texts:  # none is squeezed
            natural = text_width((text.text or "").strip(), sizes[text.get("class", "")])
            assert float(text.get("textLength", "0")) > 0.85 * natural, text.text
        middle = {rule.partition("{")[0].rpartition(".")[2] for rule in styles.split("}") if "text-anchor:middle" in rule}
        in_nodes = [text for group in root.iter(f"{SVG}g") if group.get("class") == "node" for text in group.iter(f"{SVG}text")]
        assert in_nodes
        assert all(text.get("class") in middle for text in in_nodes)


@pytest.mark.parametrize("name", ["LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"])
def test_stated_widths_are_those_of_helvetica(name: str) -> None:
    """Liberation Sans has the widths of Helvetica and Arial; its file is the oracle."""
    from fontTools.ttLib import TTFont

    files = font_files(name)
    if not files:
        pytest.skip("Liberation Sans is not installed")
    font = TTFont(files[0])
    characters, widths, em = font.getBestCmap(), font["hmtx"], font["head"].unitsPerEm
    for character in [*map(chr, range(32, 127)), *"×·…→–—"]:
        expected = widths[characters[ord(character)]][0] / em * 1000
        assert text_width(character, 1000, is_bold="Bold" in name) == pytest.approx(expected, abs=1), character
