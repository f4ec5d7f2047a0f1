"""Draws a scene with Plotly: zoom, and hover over a node to read its shapes, time, memory and module."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from torcheer.pictures import LaidOutBox, LaidOutEdge

from .scene import BOX_BORDER, BOX_FILLS, FAINT, INK, LOOKS, PlacedNode, Scene, edge_color
from .structures import OperationType

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


Point = tuple[float, float]
_WIDTH, _HEIGHT = (700.0, 1600.0), (500.0, 2400.0)  # pixels, minimum and maximum
_MARGIN = {"l": 20, "r": 20, "t": 80, "b": 20}
_ROOM = 20.0  # number of pixels around the drawing
_LEGEND = 250.0
_LEAST_FONT = 6.0


def draw_with_plotly(scene: Scene) -> Figure:
    import plotly.graph_objects as go

    bounds = scene.bounds
    wide, tall = bounds.width + 2 * _ROOM, bounds.height + 2 * _ROOM
    width = min(max(wide + _LEGEND, _WIDTH[0]), _WIDTH[1])
    height = min(max(tall + 100, _HEIGHT[0]), _HEIGHT[1])
    scale = min(1.0, (width - _LEGEND) / wide, (height - 100) / tall)
    figure = go.Figure()
    for flow, edges in scene.edges.items():
        figure.add_traces(_edges(go, edges, flow))
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
        xaxis={"visible": False, "range": [bounds.left - _ROOM, bounds.right + _ROOM]},
        yaxis={"visible": False, "range": [bounds.low - _ROOM, bounds.high + _ROOM]},
        legend={"title": {"text": "operation type"}},
        shapes=[_shape(box) for box in scene.boxes],
        annotations=[_title(box, scale) for box in scene.boxes],
    )
    return figure


# Nodes ------------------------------------------------------------------------------------------------------------


def _nodes(go: Any, nodes: list[PlacedNode], kind: OperationType | None, scale: float) -> list[Any]:
    """Three traces: a square for the legend, the rectangles, and the texts on them, which react to the mouse."""
    name, fill, border = LOOKS[kind]
    line = {"color": border, "width": 1.2}
    square = {"symbol": "square", "size": 14, "color": fill, "line": line}
    places = [node.place for node in nodes]
    xs, ys = _joined(
        [[(at.left, at.low), (at.right, at.low), (at.right, at.high), (at.left, at.high), (at.left, at.low)] for at in places]
    )
    hidden = {"legendgroup": name, "showlegend": False}
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
        **hidden,
    )
    return [
        go.Scatter(x=[None], y=[None], mode="markers", marker=square, name=name, legendgroup=name),
        go.Scatter(x=xs, y=ys, mode="lines", fill="toself", fillcolor=fill, line=line, hoverinfo="skip", **hidden),
        words,
    ]


def _words(node: PlacedNode, scale: float) -> str:
    name, *facts = map(html.escape, node.lines)
    if node.is_small:
        return f"<i>{name}</i>"
    size = max(9.5 * scale, _LEAST_FONT)
    return "<br>".join([f'<b style="font-size:{size:.1f}px">{name}</b>', *(facts if scale > 0.85 else ())])


def _shape(box: LaidOutBox) -> dict[str, Any]:
    place = box.place
    return {
        "type": "rect",
        "x0": place.left,
        "y0": place.low,
        "x1": place.right,
        "y1": place.high,
        "fillcolor": BOX_FILLS[(box.depth - 1) % len(BOX_FILLS)],
        "line": {"color": BOX_BORDER, "width": 1},
        "layer": "below",
    }


def _title(box: LaidOutBox, scale: float) -> dict[str, Any]:
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


def _edges(go: Any, edges: list[LaidOutEdge], kind: str) -> list[Any]:
    """One trace for each line style; the last point of every arrow is its head."""
    traces = []
    color = edge_color(kind)
    for number, line in enumerate(dict.fromkeys(edge.line for edge in edges)):
        ways = [edge.sampled() for edge in edges if edge.line == line]
        xs, ys = _joined(ways)
        sizes = [size for way in ways for size in [*[0] * (len(way) - 1), 11, 0]]
        look = {"color": color, "width": 1.2, "dash": {"dashed": "dash", "dotted": "dot"}.get(line, "solid")}
        heads = {"symbol": "arrow", "angleref": "previous", "size": sizes, "color": color}
        shown = {"name": kind, "legendgroup": kind, "showlegend": number == 0, "hoverinfo": "skip"}
        traces.append(go.Scatter(x=xs, y=ys, mode="lines+markers", line=look, marker=heads, **shown))
    noted = [edge for edge in edges if edge.text]
    if noted:
        across, up = zip(*(edge.text_place for edge in noted), strict=True)
        text, font = [html.escape(edge.text) for edge in noted], {"size": 8, "color": FAINT}
        hidden = {"legendgroup": kind, "showlegend": False, "hoverinfo": "skip"}
        traces.append(go.Scatter(x=across, y=up, mode="text", text=text, textfont=font, **hidden))
    return traces


def _joined(ways: list[list[Point]]) -> tuple[list[float | None], list[float | None]]:
    """Join lines into one line, with a gap after each."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for way in ways:
        xs += [*(round(x, 2) for x, _ in way), None]
        ys += [*(round(y, 2) for _, y in way), None]
    return xs, ys
