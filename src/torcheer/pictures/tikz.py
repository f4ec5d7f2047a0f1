r"""A picture as TikZ, for `\input` in a LaTeX document. Title, notes and legend are left to the document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .dot import Places, box_fill, box_name, ground, title_lines, title_width
from .drawing import Drawing, DrawnBox, DrawnEdge, DrawnNode
from .geometry import Point, Rect

_HEAD = r"% {title}, drawn by torcheer. The document needs \usepackage{{tikz}}, and \input of this file."
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # \textquotedbl is missing in the usual encoding
    "-": r"{-}",  # two would become a dash
    "×": r"$\times$",
    "→": r"$\to$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    "–": "--",
}
_SIZES = (5, 6, 7, 8, 9, 10, 12)  # sizes of plain LaTeX's fonts


def tikz_text(drawing: Drawing, places: Places, scale: float = 1.0) -> str:
    """The picture as a `tikzpicture`; its unit is a point (1/72 inch) times the scale."""
    return "\n".join(_Tikz(drawing, places, scale).lines()) + "\n"


def tex_text(text: str) -> str:
    r"""Text escaped for LaTeX; characters that its usual fonts lack become question marks.

    >>> print(tex_text("100% of a_b: 3×3 → 1"))
    100\% of a\_b: 3$\times$3 $\to$ 1
    """
    known = re.compile(r"[ -~À-ÖØ-öø-ÿ]")
    return "".join(_ESCAPES[one] if one in _ESCAPES else one if known.match(one) else "?" for one in text)


class _Tikz:
    def __init__(self, drawing: Drawing, places: Places, scale: float) -> None:
        self.drawing = drawing
        self.places = places
        self.scale = scale
        self.colors: dict[str, str] = {}  # colour -> its name

    def lines(self) -> Iterator[str]:
        drawn = [*self._boxes(), *self._edges(), *self._nodes(), *self._edge_texts()]
        yield _HEAD.format(title=re.sub(r"[^ -~]", "?", self.drawing.title))
        yield rf"\begin{{tikzpicture}}[x=1bp, y=1bp, scale={self.scale:.4f}, transform shape, line cap=round,"
        yield r"  every node/.style={inner sep=0pt, outer sep=0pt, align=center, font=\sffamily}]"
        for color, name in self.colors.items():
            yield rf"  \definecolor{{{name}}}{{HTML}}{{{color[1:].upper()}}}"
        yield from (f"  {line}" for line in drawn)
        yield r"\end{tikzpicture}"

    def _bp(self, points: float) -> str:
        """A length that TikZ does not scale."""
        return f"{points * self.scale:.2f}bp"

    def _color(self, color: str) -> str:
        """The name of a colour in the picture. Graphviz' colour names become black."""
        color = color if re.fullmatch(r"#[0-9A-Fa-f]{6}", color) else "#000000"
        return self.colors.setdefault(color, f"torcheer{len(self.colors)}")

    def _text(self, lines: Sequence[tuple[str, float, str, bool]]) -> str:
        """Lines of text, each (text, size, colour, bold)."""
        written = []
        for words, size, color, is_bold in lines:
            nearest = min(_SIZES, key=lambda one: abs(one - size))
            font = rf"\fontsize{{{nearest}}}{{{nearest * 1.1:g}}}\selectfont" + (r"\bfseries" if is_bold else "")
            written.append(rf"{{{font}\color{{{self._color(color)}}}{tex_text(words)}}}")
        return r" \\ ".join(written)

    # Modules ------------------------------------------------------------------------------------------------------

    def _boxes(self) -> Iterator[str]:
        for number, box in enumerate(self.drawing.boxes):
            if (name := box_name(number)) in self.places.boxes:
                yield from self._box(box, name)

    def _box(self, box: DrawnBox, name: str) -> Iterator[str]:
        style, theme = self.drawing.style, self.drawing.theme
        fill = self._color(box.attributes.get("fillcolor", box_fill(box, self.drawing)))
        width = max(0.5, (2.0 - 0.45 * (box.depth - 1)) * style.line)
        look = f"draw={self._color(theme.box_border)}, fill={fill}, line width={self._bp(width)}, rounded corners={self._bp(5)}"
        yield rf"\path[{look}] {_rectangle(self.places.boxes[name])};"
        lines = title_lines(box, self.places.cuts[name])
        x, y = self.places.titles[name]
        words = [(line, style.title_size if n == 0 else style.text_size, theme.ink, n == 0) for n, line in enumerate(lines)]
        left = x - title_width(lines, style) / 2
        yield rf"\node[anchor=west, align=left] at {_point((left, y))} {{{self._text(words)}}};"

    # Nodes --------------------------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[str]:
        for node in self.drawing.nodes:
            if node.id in self.places.nodes:
                yield from self._node(node, self.places.nodes[node.id])

    def _node(self, node: DrawnNode, rect: Rect) -> Iterator[str]:
        style, theme, look = self.drawing.style, self.drawing.theme, node.look
        fills = [self._color(fill) for fill in node.attributes.get("fillcolor", look.fill).split(":")]
        fill = f"fill={fills[0]}" if len(fills) == 1 else f"left color={fills[0]}, right color={fills[1]}"
        line = f"draw={self._color(node.attributes.get('color', look.border))}, line width={self._bp(look.width * style.line)}"
        line += "" if look.line == "solid" else f", {look.line}"
        round_ = f", rounded corners={self._bp(min(6.0, rect.height / 2))}" if node.shape == "pill" else ""
        if node.shape == "box3d":
            yield from _solid(rect, f"{line}, {fill}", line)
        else:
            yield rf"\path[{line}, {fill}{round_}] {_rectangle(rect)};"
        if node.is_double:
            yield rf"\path[{line}{round_}] {_rectangle(Rect(rect.left + 2, rect.low + 2, rect.right - 2, rect.high - 2))};"
        name, *facts = node.lines
        if node.is_reference:
            words = [(name, style.edge_size, look.text or theme.faint, False)]
        else:
            words = [(name, style.name_size, look.text or theme.ink, True)]
            words += [(fact, style.text_size, look.text or theme.ink, False) for fact in facts]
        yield rf"\node at {_point(rect.middle)} {{{self._text(words)}}};"

    # Arrows -------------------------------------------------------------------------------------------------------

    def _edges(self) -> Iterator[str]:
        style, theme = self.drawing.style, self.drawing.theme
        for number, edge in enumerate(self.drawing.edges):
            if number in self.places.edges:
                color = self._color(edge.attributes.get("color", theme.edge))
                look = f"-latex, draw={color}, line width={self._bp(0.9 * style.line)}"
                look += "" if edge.line == "solid" else f", {edge.line}"
                yield rf"\draw[{look}] {self._way(number, edge)};"

    def _way(self, number: int, edge: DrawnEdge) -> str:
        arrow = self.places.edges[number].reversed() if edge.is_backward else self.places.edges[number]
        points = [_point(point) for point in arrow.curve]
        parts = [points[0]]
        parts += [f".. controls {points[i]} and {points[i + 1]} .. {points[i + 2]}" for i in range(1, len(points) - 2, 3)]
        return " ".join([*parts, f"-- {_point(arrow.head)}"] if arrow.head is not None else parts)

    def _edge_texts(self) -> Iterator[str]:
        for number, edge in enumerate(self.drawing.edges):
            if edge.text and number in self.places.edge_texts:
                place = _point(self.places.edge_texts[number])
                words = self._text([(edge.text, self.drawing.style.edge_size, self.drawing.theme.faint, False)])
                behind = self.places.edge_grounds.get(number)
                how = f"[fill={self._color(ground(self.drawing, behind))}, inner sep=1bp]" if behind is not None else ""
                yield rf"\node{how} at {place} {{{words}}};"


def _point(point: Point) -> str:
    return f"({point[0]:.2f},{point[1]:.2f})"


def _rectangle(rect: Rect) -> str:
    return f"{_point((rect.left, rect.low))} rectangle {_point((rect.right, rect.high))}"


def _solid(rect: Rect, look: str, line: str) -> Iterator[str]:
    """A collapsed module: a box with depth, as drawn by Graphviz."""
    deep = 3.0
    front = Rect(rect.left, rect.low, rect.right - deep, rect.high - deep)
    outline = [
        (rect.left, rect.low),
        (front.right, rect.low),
        (rect.right, rect.low + deep),
        (rect.right, rect.high),
        (rect.left + deep, rect.high),
        (rect.left, front.high),
    ]
    yield rf"\path[{look}] {' -- '.join(map(_point, outline))} -- cycle;"
    corner = _point((front.right, front.high))
    ends = [(rect.left, front.high), (front.right, rect.low), (rect.right, rect.high)]
    yield rf"\path[{line}] {' '.join(f'{corner} -- {_point(end)}' for end in ends)};"
