"""Makes Graphviz' SVG small and inert: styles as classes, no fonts, no links, no script, node names as titles.

Each text states its width in Helvetica, and texts on nodes are anchored in the middle. So a picture looks right with other
fonts: wider fonts are condensed, and no text leaves its box.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

from .legend import text_width
from .options import Length

_SVG = "http://www.w3.org/2000/svg"
_STYLES = (
    "fill",
    "fill-opacity",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "stroke-opacity",
    "text-anchor",
    "font-size",
    "font-weight",
    "font-style",
)
_OPAQUE = ("fill-opacity", "1")  # the default in SVG, so it is left out
_DROPPED = (
    "space",
    "id",
    "class",
    "href",
    "title",
    "target",
    "font-family",
)  # attributes to remove; the style sheet names the fonts once
_KEPT = {
    "svg",
    "g",
    "title",
    "text",
    "path",
    "polygon",
    "polyline",
    "ellipse",
    "circle",
    "rect",
    "defs",
    "linearGradient",
    "stop",
}
_NUMBER = re.compile(r"-?\d+\.\d+")
_FONTS = 'Helvetica,Arial,"Liberation Sans","DejaVu Sans",sans-serif'
_MARGIN = 3.0  # between a text and the border of its node stay at least this many points
Sides = tuple[float, float]


def light_svg(
    drawn: bytes, titles: Mapping[str, str], title: str, own_labels: Collection[str] = (), width: Length | None = None
) -> str:
    """Graphviz' SVG with styles as classes, text widths, and node names as titles.

    Texts of the nodes in `own_labels` stay where Graphviz put them.
    """
    root = ElementTree.fromstring(drawn)
    scope = "t" + hashlib.sha256(drawn).hexdigest()[:8]  # prevents pictures in one page from styling each other
    for gradient in root.iter(f"{{{_SVG}}}linearGradient"):
        gradient.set("id", f"{scope}-{gradient.get('id')}")
    classes: dict[str, str] = {}
    _SvgRewriter(titles, own_labels, classes).rewrite(root)
    root.set("class", scope)
    root.set("role", "img")
    if width is not None:
        across, down = map(float, root.get("viewBox", "0 0 1 1").split()[2:])
        root.set("width", str(width))
        root.set("height", str(width.times(down / across)))
    rules = "".join(f".{scope} .{name}{{{style}}}" for style, name in classes.items()).replace("url(#", f"url(#{scope}-")
    head = ElementTree.Element(f"{{{_SVG}}}title")
    head.text = title
    sheet = ElementTree.Element(f"{{{_SVG}}}style")
    sheet.text = f".{scope} text{{font-family:{_FONTS}}}{rules}"
    root.insert(0, head)
    root.insert(1, sheet)
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


@dataclass(frozen=True, slots=True)
class _SvgRewriter:
    titles: Mapping[str, str]  # name of a node or box -> its title
    own_labels: Collection[str]
    classes: dict[str, str]  # style -> its class

    def rewrite(self, element: ElementTree.Element, sides: Sides | None = None, *, is_centered: bool = False) -> None:
        """Rewrite an element; `sides` are the left and right side of its node."""
        kind = element.get("class", "")
        if kind == "node legend":
            kind = "legend"
            element.set("class", kind)
        name = element.findtext(f"{{{_SVG}}}title", "")
        if kind == "node":
            sides, is_centered = _sides(element), name not in self.own_labels
        ground: Sides | None = None
        for child in list(element):
            tag = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
            if tag == "a":  # a link keeps its contents but leads nowhere
                child.tag = f"{{{_SVG}}}g"
                tag = "g"
            if tag not in _KEPT or (tag == "title" and (kind not in ("node", "cluster") or name not in self.titles)):
                element.remove(child)
                continue
            if tag == "title":
                child.text = self.titles[name]
            elif tag == "polygon" and kind == "edge":
                ground = _sides(child)
            elif tag == "text" and kind == "edge":
                on_ground = child.get("text-anchor") == "start"  # a text on its arrow; other texts are beside it
                _measure(child, ground if on_ground else None, on_ground)
            elif tag == "text":
                _measure(child, sides, is_centered)
            self.rewrite(child, sides, is_centered=is_centered)
        _restyle(element, self.classes)


def _sides(node: ElementTree.Element) -> Sides | None:
    """The left and right side of a node's shape."""
    for shape in node.iter():
        if shape.tag == f"{{{_SVG}}}ellipse":
            middle, half = float(shape.get("cx", "0")), float(shape.get("rx", "0"))
            return middle - half, middle + half
        pairs = re.findall(r"(-?[\d.]+),-?[\d.]+", shape.get("points") or shape.get("d") or "")
        if pairs:
            return min(map(float, pairs)), max(map(float, pairs))
    return None


def _measure(text: ElementTree.Element, sides: Sides | None, is_centered: bool) -> None:
    """State the width of a text, and anchor it in the middle of its node."""
    words = " ".join(word for word in re.split("[ \t\n]+", text.text or "") if word)  # whitespace as a browser joins it
    width = text_width(words, float(text.get("font-size", "14")), is_bold=text.get("font-weight") == "bold")
    if sides is not None:
        left, right = sides
        width = min(width, right - left - 2 * _MARGIN)
        if is_centered and text.get("text-anchor") == "start":
            text.set("text-anchor", "middle")
            text.set("x", f"{(left + right) / 2:.2f}")
    if width > 0:
        text.set("textLength", f"{width:.1f}")
        text.set("lengthAdjust", "spacingAndGlyphs")


def _restyle(element: ElementTree.Element, classes: dict[str, str]) -> None:
    tag = element.tag.rpartition("}")[2]
    style = ";".join(_rule(name, value) for name in _STYLES if (value := element.get(name)) and (name, value) != _OPAQUE)
    for name in list(element.attrib):
        local = name.rpartition("}")[2]
        if (tag, name) in (("linearGradient", "id"), ("g", "class")):  # keeps node, edge or cluster
            continue
        if name in _STYLES or local in _DROPPED or name.lower().startswith("on"):
            del element.attrib[name]
        else:
            element.set(name, _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), element.get(name, "")))
    if style and tag != "stop":
        element.set("class", classes.setdefault(style, f"s{len(classes)}"))
    element.tail = "\n"
    if tag in ("svg", "g", "defs"):
        element.text = ""


def _rule(name: str, value: str) -> str:
    return f"{name}:{float(value):g}px" if name == "font-size" else f"{name}:{value}"
