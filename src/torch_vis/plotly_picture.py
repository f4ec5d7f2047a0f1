"""The picture in Plotly: zoom, and point at a node to read its shapes, time, memory and module."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .colours import BOX_BORDER, BOX_FILLS, COLOURS, FAINT, INK, NAMES, edge_colour
from .scene import PlacedBox, PlacedEdge, PlacedNode, Rectangle, Scene
from .structures import OperationType, Point

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_WIDTH, _HEIGHT = (700.0, 1600.0), (500.0, 2400.0)  # pixels, least and most
_MARGIN = {"l": 20, "r": 20, "t": 80, "b": 20}
_ROOM = 20.0  # around the drawing
_LEGEND = 250.0
_LEAST_FONT = 6.0


def draw_with_plotly(scene: Scene) -> Figure:
    """The scene as an interactive figure."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise ImportError("Plotly not available: renderer='plotly' needs it. Run: pip install plotly") from error
    left, low, right, high = scene.bounds
    wide, tall = right - left + 2 * _ROOM, high - low + 2 * _ROOM
    width = min(max(wide + _LEGEND, _WIDTH[0]), _WIDTH[1])
    height = min(max(tall + 100, _HEIGHT[0]), _HEIGHT[1])
    scale = min(1.0, (width - _LEGEND) / wide, (height - 100) / tall)
    figure = go.Figure()
    for kind in dict.fromkeys(edge.kind for edge in scene.edges):
        figure.add_traces(_edges(go, [edge for edge in scene.edges if edge.kind == kind], kind))
    for operation_type in (*scene.kinds, None):
        nodes = [node for node in scene.nodes if node.kind is operation_type]
        if nodes:
            figure.add_traces(_nodes(go, nodes, operation_type, scale))
    notes = html.escape(" ".join(scene.notes))
    figure.update_layout(
        title={"text": f"Computational graph of {html.escape(scene.title)}<br><sup>{notes}</sup>"},
        width=round(width),
        height=round(height),
        margin=_MARGIN,
        plot_bgcolor="#FFFFFF",
        paper_bgcolor="#FFFFFF",
        hovermode="closest",
        dragmode="pan",
        font={"color": INK},
        xaxis={"visible": False, "range": [left - _ROOM, right + _ROOM]},
        yaxis={"visible": False, "range": [low - _ROOM, high + _ROOM]},
        legend={"title": {"text": "operation type"}},
        shapes=[_shape(box) for box in scene.boxes],
        annotations=[_title(box, scale) for box in scene.boxes],
    )
    return figure


# Nodes ------------------------------------------------------------------------------------------------------------


def _nodes(go: Any, nodes: list[PlacedNode], kind: OperationType | None, scale: float) -> list[Any]:
    """Three traces: a square for the legend, the rectangles, and the words on them, which answer to the mouse."""
    fill, border = COLOURS[kind]
    name = NAMES[kind] if kind is not None else "output, reference"
    xs, ys = _joined([list(_corners(node.place)) for node in nodes])
    named = go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        marker={"symbol": "square", "size": 14, "color": fill, "line": {"color": border, "width": 1.2}},
        name=name,
        legendgroup=name,
    )
    rectangles = go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        fill="toself",
        fillcolor=fill,
        line={"color": border, "width": 1.2},
        legendgroup=name,
        showlegend=False,
        hoverinfo="skip",
    )
    words = go.Scatter(
        x=[node.place.x for node in nodes],
        y=[node.place.y for node in nodes],
        mode="markers+text",
        marker={"size": 24, "opacity": 0},
        text=[_words(node, scale) for node in nodes],
        textfont={"size": max(8.2 * scale, _LEAST_FONT), "color": INK},
        hovertext=["<br>".join([f"<b>{html.escape(node.hover[0])}</b>", *map(html.escape, node.hover[1:])]) for node in nodes],
        hoverinfo="text",
        hoverlabel={"bgcolor": fill, "bordercolor": border, "font": {"color": INK}, "align": "left"},
        customdata=[node.key for node in nodes],
        legendgroup=name,
        showlegend=False,
    )
    return [named, rectangles, words]


def _words(node: PlacedNode, scale: float) -> str:
    name, *facts = map(html.escape, node.lines)
    if node.is_small:
        return f"<i>{name}</i>"
    size = max(9.5 * scale, _LEAST_FONT)
    return "<br>".join([f'<b style="font-size:{size:.1f}px">{name}</b>', *(facts if scale > 0.85 else ())])


def _corners(place: Rectangle) -> Iterator[Point]:
    for across, up in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)):
        yield place.x + across * place.width / 2, place.y + up * place.height / 2


def _shape(box: PlacedBox) -> dict[str, Any]:
    (left, low), _, (right, high), *_ = _corners(box.place)
    fill = BOX_FILLS[(box.depth - 1) % len(BOX_FILLS)]
    line = {"color": BOX_BORDER, "width": 1}
    return {"type": "rect", "x0": left, "y0": low, "x1": right, "y1": high, "fillcolor": fill, "line": line, "layer": "below"}


def _title(box: PlacedBox, scale: float) -> dict[str, Any]:
    x, y = box.corner
    return {
        "x": x,
        "y": y,
        "text": f"<b>{html.escape(box.lines[0])}</b>" + (f" {html.escape(box.lines[1])}" if len(box.lines) > 1 else ""),
        "showarrow": False,
        "xanchor": "left",
        "align": "left",
        "font": {"size": max(8.5 * scale, _LEAST_FONT), "color": FAINT},
    }


# Edges ------------------------------------------------------------------------------------------------------------


def _edges(go: Any, edges: list[PlacedEdge], kind: str) -> list[Any]:
    """One trace for each way of drawing a line; the last point of every arrow is its head."""
    traces = []
    for number, line in enumerate(dict.fromkeys(edge.line for edge in edges)):
        ways = [[*_sampled(edge.curve), edge.tip] for edge in edges if edge.line == line]
        xs, ys = _joined(ways)
        sizes = [size for way in ways for size in [*[0] * (len(way) - 1), 11, 0]]
        traces.append(
            go.Scatter(
                x=xs,
                y=ys,
                mode="lines+markers",
                line={"color": edge_colour(kind), "width": 1.2, "dash": {"dashed": "dash", "dotted": "dot"}.get(line, "solid")},
                marker={"symbol": "arrow", "angleref": "previous", "size": sizes, "color": edge_colour(kind)},
                name=kind,
                legendgroup=kind,
                showlegend=number == 0,
                hoverinfo="skip",
            )
        )
    noted = [edge for edge in edges if edge.text]
    if noted:
        traces.append(
            go.Scatter(
                x=[edge.text_place[0] for edge in noted],
                y=[edge.text_place[1] for edge in noted],
                mode="text",
                text=[html.escape(edge.text) for edge in noted],
                textfont={"size": 8, "color": FAINT},
                legendgroup=kind,
                showlegend=False,
                hoverinfo="skip",
            )
        )
    return traces


def _joined(ways: list[list[Point]]) -> tuple[list[float | None], list[float | None]]:
    """Lines as one, with a gap after each."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for way in ways:
        xs += [*(round(x, 2) for x, _ in way), None]
        ys += [*(round(y, 2) for _, y in way), None]
    return xs, ys


def _sampled(curve: tuple[Point, ...], steps: int = 6) -> Iterator[Point]:
    """Points along a Bézier curve."""
    yield curve[0]
    for start in range(0, len(curve) - 3, 3):
        a, b, c, d = curve[start : start + 4]
        for step in range(1, steps + 1):
            t = step / steps
            weights = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t * t, t**3
            x, y = (sum(w * p[i] for w, p in zip(weights, (a, b, c, d), strict=True)) for i in (0, 1))
            yield x, y
