"""Writes a drawing as DOT text. The user's texts are always escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .drawing import Drawing, DrawnBox, DrawnEdge, DrawnNode
from .geometry import Arrow, Point, Rect, write_arrow, write_point, write_rect
from .legend import SAMPLE, LegendEntry, escape, head, legend_entries, legend_sample, line_sample
from .options import Style, contrast

FONT = "Helvetica,Arial,sans-serif"
_DIRECTIONS = {"down": "TB", "up": "BT", "right": "LR", "left": "RL"}
_BOX = "cluster_"  # Graphviz draws subgraphs with this prefix as boxes
ROOM_AROUND = 9  # number of points between a box and the arrow around it


@dataclass(frozen=True, slots=True)
class Placement:
    """The positions of everything in a layout, by names in the DOT text; edges by number."""

    bounds: Rect
    head: Point | None  # the middle of the head
    legend: Point  # the upper left corner of the legend
    nodes: Mapping[str, Rect]
    edges: Mapping[int, Arrow]
    edge_texts: Mapping[int, Point]
    edge_grounds: Mapping[int, str]  # for texts on their arrows: the name of the box behind them, or ""
    boxes: Mapping[str, Rect]
    titles: Mapping[str, Point]  # middles of the titles of boxes
    cuts: Mapping[str, int]  # box -> number of steps by which its title is shortened


def quote(text: object) -> str:
    """Text in quotes, escaped for DOT.

    >>> print(quote('say "hi"'))
    "say \\"hi\\""
    """
    escaped = str(text).replace("\x00", "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def box_name(number: int) -> str:
    """The name of the n-th box."""
    return f"{_BOX}{number}"


def dot_text(drawing: Drawing, places: Placement | None = None, *, for_layout: bool = False) -> str:
    """The drawing as DOT: with positions, to be drawn unchanged; or without, for layout.

    For our own layout (`for_layout`), everything that is placed later is left out: texts of edges, arrows around boxes, the
    legend.
    """
    theme, style = drawing.theme, drawing.style
    names = {box.key: box_name(number) for number, box in enumerate(drawing.boxes)}
    lines = ["digraph {"]
    whole: dict[str, object] = {
        "rankdir": _DIRECTIONS[drawing.direction],
        "bgcolor": theme.page,
        "fontname": FONT,
        "fontcolor": theme.ink,
        "fontsize": 10,
        "labelloc": "t",
        "labeljust": "l",
        "nodesep": style.room,
        "ranksep": _room(drawing),
        "ordering": "out",
        "newrank": "true",  # ranks are computed for the whole graph; box by box, some arrows would point backwards
        "pad": 0.12,
        "outputorder": "edgesfirst",
    }
    if places is not None:
        whole |= {"bb": write_rect(places.bounds), "lp": write_point(places.head) if places.head is not None else ""}
    whole |= drawing.attributes
    title = head(drawing)
    lines.append(f"  graph [{_listed(whole)}{f' label=<{title}>' if title else ''}];")
    node = {
        "shape": "box",
        "fontname": FONT,
        "fontsize": style.text_size,
        "margin": style.node_margin,
        "height": 0.2,
        "width": 0.4,
    }
    lines.append(f"  node [{_listed(node)}];")
    edge = {"color": theme.edge, "fontcolor": theme.faint, "fontname": FONT, "fontsize": style.edge_size}
    lines.append(f"  edge [{_listed({**edge, 'arrowsize': style.arrow, 'penwidth': 0.9 * style.line})}];")
    lines += _nested(drawing, names, places)
    edges = [(number, edge) for number, edge in enumerate(drawing.edges) if not (for_layout and edge.around)]
    lines += [_edge(number, edge, drawing, places, for_layout) for number, edge in edges]
    if places is None:
        lines += [f"  {first} -> {last} [style=invis weight=0];" for first, last in drawing.below]
    if not for_layout:
        lines += _legend(drawing, places)
    return "\n".join([*lines, "}", ""])


def _nested(drawing: Drawing, names: Mapping[str, str], places: Placement | None) -> list[str]:
    """Boxes and nodes, nested, in execution order."""
    inside: dict[str | None, list[DrawnNode | DrawnBox]] = {}
    parents = {box.key: box for box in drawing.boxes}
    entered: set[str] = set()

    def enter(key: str | None) -> None:
        if key is not None and key not in entered:
            entered.add(key)
            enter(parents[key].parent)
            inside.setdefault(parents[key].parent, []).append(parents[key])

    for node in drawing.nodes:
        enter(node.box)
        inside.setdefault(node.box, []).append(node)

    def written(key: str | None, indent: str) -> Iterable[str]:
        for item in inside.get(key, ()):
            if isinstance(item, DrawnNode):
                yield indent + _node(item, drawing, places)
                continue
            name = names[item.key]
            yield f"{indent}subgraph {name} {{"
            yield f"{indent}  graph [{_box(item, name, drawing, places)}];"
            yield from written(item.key, indent + "  ")
            yield f"{indent}}}"

    return list(written(None, "  "))


def _legend(drawing: Drawing, places: Placement | None) -> Iterable[str]:
    """Write the legend's samples: nodes as in the picture, with their meaning beside them (without positions: inside them)."""
    for number, entry in enumerate(legend_entries(drawing)):
        yield f"  {_sample(f'legend{number}', entry, drawing, places)}"
        if places is not None:
            x, y, width = entry.words_place(places.legend)
            words = f'<font point-size="9" color="{drawing.theme.ink}">{escape(entry.words)}</font>'
            room = f'border="0" cellpadding="0" cellspacing="0" fixedsize="true" width="{width:.0f}" height="12"'
            label = f'<table {room}><tr><td align="left">{words}</td></tr></table>'
            yield f"  words{number} [{_listed(_fixed((width, 12.0), (x, y)))} label=<{label}>];"


def _sample(name: str, entry: LegendEntry, drawing: Drawing, places: Placement | None) -> str:
    line = line_sample(entry.name, drawing.theme)
    look, shape, is_double = legend_sample(entry.name, drawing.theme, drawing.scale is not None)
    if places is None:  # for other tools: a plain node with its meaning
        return f"{name} [{_listed({'shape': 'box' if shape == 'pill' else shape, 'label': entry.words})}];"
    place = entry.sample_place(places.legend)
    if line:
        return f"{name} [{_listed(_fixed(SAMPLE, place))} label=<{line}>];"
    size = (SAMPLE[0] - 8, SAMPLE[1] - 8) if is_double else SAMPLE  # the second line of a double border is outside the first
    attributes = {key: str(value) for key, value in _fixed(size, place).items() if key != "shape"} | {"label": ""}
    return _node(DrawnNode(name, "", ("",), look, shape, is_double=is_double, attributes=attributes), drawing, None)


def _fixed(size: tuple[float, float], middle: Point) -> dict[str, object]:
    """Attributes of a node of the legend: its position and size in points."""
    width, height = size
    place = {"pos": write_point(middle), "width": width / 72, "height": height / 72}
    return {"class": "legend", "shape": "none", "margin": 0, "fixedsize": "true", **place}


def _node(node: DrawnNode, drawing: Drawing, places: Placement | None) -> str:
    look, theme = node.look, drawing.theme
    styles = ["filled", *([look.line] if look.line != "solid" else []), *(["rounded"] if node.shape == "pill" else [])]
    attributes: dict[str, object] = {
        "shape": "box" if node.shape == "pill" else node.shape,
        "style": ",".join(styles),
        "fillcolor": look.fill,
        "color": look.border,
        "penwidth": look.width * drawing.style.line,
        "fontcolor": look.text or theme.ink,
    }
    if node.shape == "box3d":
        attributes["margin"] = drawing.style.solid_margin
    if ":" in look.fill:
        attributes["gradientangle"] = 0
    if node.is_double:
        attributes["peripheries"] = 2
    if node.is_reference:
        attributes |= {"fontsize": drawing.style.edge_size, "margin": "0.05,0.02", "height": 0.1, "width": 0.1}
    if places is not None and node.id in places.nodes:
        attributes["pos"] = write_point(places.nodes[node.id].middle)
    fills = look.fill.split(":")
    faint = look.text or (theme.faint if min(contrast(theme.faint, fill) for fill in fills) >= 4.5 else theme.ink)
    attributes |= node.attributes
    if "label" in node.attributes:
        return f"{node.id} [{_listed(attributes)}];"
    return f"{node.id} [{_listed(attributes)} label=<{_words(node, faint, drawing.style)}>];"


def _words(node: DrawnNode, faint: str, style: Style) -> str:
    name, *facts = node.lines
    if node.is_reference:
        return f"<i>{escape(name)}</i>"
    lines = [f'<font point-size="{style.name_size:g}"><b>{escape(name)}</b></font>']
    lines += [f'<font color="{faint}">{escape(fact)}</font>' if fact[:1] != "@" else escape(fact) for fact in facts]
    rows = "".join(f"<tr><td>{line}</td></tr>" for line in lines)
    return f'<table border="0" cellborder="0" cellspacing="0" cellpadding="0.6">{rows}</table>' if facts else lines[0]


def _box(box: DrawnBox, name: str, drawing: Drawing, places: Placement | None) -> str:
    attributes: dict[str, object] = {
        "style": "filled,rounded",
        "fillcolor": box_fill(box, drawing),
        "color": drawing.theme.box_border,
        "penwidth": max(0.5, (2.0 - 0.45 * (box.depth - 1)) * drawing.style.line),
        "margin": drawing.style.box_margin + (ROOM_AROUND if box.has_arrow_inside else 0),
        "labelloc": "t",
        "labeljust": "l",
        "fontsize": drawing.style.text_size,
    }
    if places is not None and name in places.boxes:
        attributes |= {"bb": write_rect(places.boxes[name]), "lp": write_point(places.titles[name])}
    attributes |= box.attributes
    title, *facts = title_lines(box, places.cuts.get(name, 0) if places is not None else 0)
    rows = [f'<font point-size="{drawing.style.title_size:g}"><b>{escape(title)}</b></font>', *(escape(fact) for fact in facts)]
    cells = "".join(f'<tr><td align="left">{row}</td></tr>' for row in rows)
    wide = title_width((title, *facts), drawing.style)
    width = f' width="{wide if places is not None else 2 * wide + 12:.0f}"'
    return f'{_listed(attributes)} label=<<table border="0" cellspacing="0" cellpadding="0"{width}>{cells}</table>>'


def title_lines(box: DrawnBox, cut: int = 0) -> tuple[str, ...]:
    """The title of a box, shortened in steps: first without remarks, then with only the end of the address."""
    if cut == 0:
        return box.lines
    address, *facts = box.lines
    parts = address.split(".")
    last = "…." + ".".join(parts[-2:]) if cut > 1 and len(parts) > 2 else address
    return (last, *(fact.partition(",")[0] for fact in facts))


def title_width(lines: tuple[str, ...], style: Style) -> float:
    """The approximate width of a title in points. Twice as much is reserved, so that an arrow can pass beside it."""
    title, *facts = lines
    return max(0.68 * style.title_size * len(title) + 1, *(0.59 * style.text_size * len(fact) for fact in facts), 20.0)


def _room(drawing: Drawing) -> float:
    """Return the inches between ranks: more if many arrows have notes, most if notes lie along the arrows."""
    if drawing.direction in ("right", "left") and any(edge.is_text_on_arrow for edge in drawing.edges):
        return 0.95
    notes = sum(len(edge.text) > 3 for edge in drawing.edges if edge.source != edge.target)
    style = drawing.style
    return style.rank_room if notes * 4 < len(drawing.edges) else style.noted_rank_room


def _edge(number: int, edge: DrawnEdge, drawing: Drawing, places: Placement | None, for_layout: bool) -> str:
    attributes: dict[str, object] = {"weight": edge.weight}
    label = ""
    if edge.line != "solid":
        attributes["style"] = edge.line
    if edge.is_free and not edge.is_backward:
        attributes["constraint"] = "false"
    if places is None:
        attributes["id"] = f"e{number}"
        if edge.text and edge.source == edge.target:  # room for it is reserved in the layout
            attributes["label"] = f" {edge.text}"
        elif edge.text and not for_layout:
            attributes["xlabel"] = edge.text
    else:
        attributes["pos"] = write_arrow(places.edges[number]) if number in places.edges else ""
        if edge.text and number in places.edge_texts:
            attributes["lp"] = write_point(places.edge_texts[number])
            if number in places.edge_grounds:
                label = f" label=<{_on_ground(edge.text, ground(drawing, places.edge_grounds[number]))}>"
            else:
                attributes["label"] = edge.text
    first, last = edge.source, edge.target
    if edge.is_backward:  # laid out forwards, and drawn backwards
        first, last = last, first
        attributes["dir"] = "back"
    attributes |= edge.attributes
    return f"  {first} -> {last} [{_listed(attributes)}{label}];"


def ground(drawing: Drawing, box_named: str) -> str:
    """The colour behind a text: of the box around it, or of the page."""
    if not box_named:
        return drawing.theme.page
    box = drawing.boxes[int(box_named.removeprefix(_BOX))]
    return box.attributes.get("fillcolor", box_fill(box, drawing))


def _on_ground(text: str, color: str) -> str:
    """Write a text that lies on its own arrow, with a background that covers the arrow."""
    frame = f'border="0" cellborder="0" cellspacing="0" cellpadding="1" bgcolor="{escape(color)}"'
    return f"<table {frame}><tr><td>{escape(text)}</td></tr></table>"


def box_fill(box: DrawnBox, drawing: Drawing) -> str:
    """The colour of a box, by its depth."""
    return drawing.theme.box_fills[(box.depth - 1) % len(drawing.theme.box_fills)]


def _listed(attributes: Mapping[str, object]) -> str:
    return " ".join(f"{name}={quote(value)}" for name, value in attributes.items())
