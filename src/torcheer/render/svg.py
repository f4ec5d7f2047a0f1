"""Makes an SVG light and inert: each style once, no fonts, no links, no script, names as titles."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from xml.etree import ElementTree

_SVG = "http://www.w3.org/2000/svg"
_STYLES = (
    "fill",
    "fill-opacity",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "stroke-opacity",
    "text-anchor",
    "font-family",
    "font-size",
    "font-weight",
    "font-style",
)
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


def light_svg(drawn: bytes, titles: Mapping[str, str], title: str) -> str:
    """The SVG that Graphviz drew, with styles as classes and node names as their titles."""
    root = ElementTree.fromstring(drawn)
    scope = "t" + hashlib.sha256(drawn).hexdigest()[:8]  # pictures in one page must not style one another
    for gradient in root.iter(f"{{{_SVG}}}linearGradient"):
        gradient.set("id", f"{scope}-{gradient.get('id')}")
    classes: dict[str, str] = {}
    _lighten(root, titles, classes)
    root.set("class", scope)
    root.set("role", "img")
    rules = "".join(f".{scope} .{name}{{{style}}}" for style, name in classes.items()).replace("url(#", f"url(#{scope}-")
    head = ElementTree.Element(f"{{{_SVG}}}title")
    head.text = title
    sheet = ElementTree.Element(f"{{{_SVG}}}style")
    sheet.text = f'.{scope} text{{font-family:Helvetica,Arial,"DejaVu Sans",sans-serif}}{rules}'
    root.insert(0, head)
    root.insert(1, sheet)
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _lighten(element: ElementTree.Element, titles: Mapping[str, str], classes: dict[str, str]) -> None:
    kind = element.get("class", "")
    for child in list(element):
        tag = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else ""
        if tag == "a" and isinstance(child.tag, str):  # a link keeps what it shows and leads nowhere
            child.tag = f"{{{_SVG}}}g"
            tag = "g"
        is_title = tag == "title" and (kind not in ("node", "cluster") or (child.text or "") not in titles)
        if tag not in _KEPT or is_title:
            element.remove(child)
            continue
        if tag == "title":
            child.text = titles[child.text or ""]
        _lighten(child, titles, classes)
    _restyle(element, classes)


def _restyle(element: ElementTree.Element, classes: dict[str, str]) -> None:
    tag = element.tag.rpartition("}")[2]
    style = ";".join(
        f"{name}:{_unit(name, value)}" for name in _STYLES if (value := element.get(name)) and _is_needed(name, value)
    )
    for name in list(element.attrib):
        local = name.rpartition("}")[2]
        if (tag, name) in (("linearGradient", "id"), ("g", "class")):  # node, edge or cluster
            continue
        if name in _STYLES or local in ("space", "id", "class", "href", "title", "target") or name.lower().startswith("on"):
            del element.attrib[name]
        else:
            element.set(name, _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), element.get(name, "")))
    if style and tag != "stop":
        element.set("class", classes.setdefault(style, f"s{len(classes)}"))
    element.tail = "\n"
    if tag in ("svg", "g", "defs"):
        element.text = ""


def _unit(name: str, value: str) -> str:
    if name != "font-size":
        return value
    return f"{float(value):g}px"


def _is_needed(name: str, value: str) -> bool:
    return name != "font-family" and (name, value) != ("fill-opacity", "1")
