"""Lays graphs out with Graphviz, in another process with a time limit: pygraphviz, or else the `dot` command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from .._cleanup import end_process
from ..errors import DrawingFailed, GraphvizNotFound
from ..graph import Graph, Node
from . import worker
from .columns import in_columns
from .dot import Placement, box_name, dot_text, title_lines, title_width
from .drawing import Drawing, DrawnEdge, DrawnNode, make_drawing
from .geometry import GraphvizLayout, Point, Rect, along_curve, bounds_of, read_layout
from .options import Look, PictureOptions
from .placing import place_words
from .views import View, check_drawable, views

_LONGEST = 86_400.0  # number of seconds; no system supports an infinite wait
HOW_TO_GET_IT = f"{sys.executable or 'python'} -m pip install 'pygraphviz>=2.0'"


class TooSlow(DrawingFailed):
    """Raised if Graphviz was stopped at its time limit."""


def run_graphviz(source: str, engine: str, form: str, limit: float) -> bytes:
    """Run Graphviz on a DOT text and return its output."""
    tried: list[str] = []
    for command in _commands(engine, form):
        done = _run(command, source, limit)
        if done.returncode == 0 and done.stdout:
            return done.stdout
        said = done.stderr.decode(errors="replace").strip()
        tried.append(said or f"stopped with code {done.returncode}")
        if done.returncode != worker.NOT_IMPORTABLE:
            raise DrawingFailed(f"Graphviz could not make the picture: {tried[-1][-600:]}")
    library = re.search(r"(lib\S+\.so\S*): cannot open shared object", tried[0]) if tried else None
    if library is not None and form not in worker.FORMS_OF_ITS_OWN:
        raise GraphvizNotFound(
            f"{form.upper()} pictures need the system library {library[1]}, which this machine lacks. Write SVG instead, or "
            "install it; on Debian and Ubuntu: apt-get install libglib2.0-0 libxrender1 libxext6."
        )
    why = f" (pygraphviz does not import: {tried[0][-300:]})" if tried else ""
    raise GraphvizNotFound(f"drawing needs Graphviz{why}. Run: {HOW_TO_GET_IT}")


def _commands(engine: str, form: str) -> list[list[str]]:
    """The commands that run Graphviz on this machine, the best first."""
    folder, system = _pygraphviz_folder(), shutil.which("dot")
    own = [[sys.executable, "-I", str(Path(worker.__file__)), folder, engine, form]] if folder and sys.executable else []
    return [*own, [system, f"-K{engine}", f"-T{form}"]] if system is not None else own


def _pygraphviz_folder() -> str | None:
    try:
        spec = find_spec("pygraphviz")
    except (ImportError, ValueError):
        return None
    return str(Path(spec.origin).parent.parent) if spec is not None and spec.origin is not None else None


def _run(command: list[str], source: str, limit: float) -> subprocess.CompletedProcess[bytes]:
    no_window = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # Windows only
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, creationflags=no_window)
    except OSError as error:
        raise DrawingFailed(f"Graphviz could not be started ({command[0]}: {error}).") from error
    try:  # `subprocess.run` also has a limit, but waits without end for a process that it has killed
        made, said = process.communicate(source.encode(), min(limit, _LONGEST))
    except subprocess.TimeoutExpired as error:
        raise TooSlow(f"the layout was stopped after {limit:.1f} s.") from error
    finally:
        end_process(process)
    return subprocess.CompletedProcess(command, process.returncode, made, said)


# A layout for another library to draw: positions of rectangles, curves and texts.

LEAST = 5.0  # even the last and smallest view gets at least this many seconds
_LOOK = Look("#FFFFFF", "#000000")


@dataclass(frozen=True, slots=True)
class Companions:
    """Extra nodes for gradients, each beside a node of the graph, with arrows against the arrows of the graph."""

    lines: Mapping[str, tuple[str, ...]]  # key of a node -> the text of the companion beside it
    edges: Iterable[tuple[str, str]] = ()  # (source, target) of arrows, by the same keys


@dataclass(frozen=True, slots=True)
class LaidOutNode:
    """A node with its text and its position."""

    node: Node  # the node of the graph that this node is, stands beside, or refers to
    lines: tuple[str, ...]
    place: Rect
    is_reference: bool = False
    is_beside: bool = False


@dataclass(frozen=True, slots=True)
class LaidOutEdge:
    """An arrow: a Bézier curve of 3n + 1 points, and the tip after its last point."""

    curve: tuple[Point, ...]
    tip: Point
    line: str = "solid"  # or dashed, dotted
    text: str = ""
    text_place: Point = (0.0, 0.0)
    is_beside: bool = False  # leads to a companion

    def sampled(self, steps: int = 6) -> list[Point]:
        """Points along the curve, `steps` for each segment, and the tip."""
        parts = [self.curve[start : start + 4] for start in range(0, len(self.curve) - 3, 3)]
        return [self.curve[0], *(point for part in parts for point in along_curve(part, steps)), self.tip]


@dataclass(frozen=True, slots=True)
class LaidOutBox:
    """A box around the nodes of a module."""

    lines: tuple[str, ...]
    depth: int
    place: Rect
    corner: Point  # where the title begins, at half its height


@dataclass(frozen=True, slots=True)
class Layout:
    """All positions of a picture. y grows upwards; the unit is a point (1/72 inch)."""

    title: str
    graph: Graph  # the view that was laid out
    nodes: tuple[LaidOutNode, ...]
    edges: tuple[LaidOutEdge, ...]
    boxes: tuple[LaidOutBox, ...]

    @property
    def bounds(self) -> Rect:
        """The rectangle around everything."""
        places = [*(node.place for node in self.nodes), *(box.place for box in self.boxes)]
        return bounds_of(places, [point for edge in self.edges for point in edge.curve])


def lay_out(
    graph: Graph,
    options: PictureOptions | None = None,
    *,
    most: int | None = None,
    beside: Callable[[Graph], Companions] | None = None,
) -> Layout:
    """Compute the positions for the picture of a graph.

    >>> import torch, torcheer
    >>> from torcheer.pictures import lay_out
    >>> layout = lay_out(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)).graph)
    >>> [node.lines[0] for node in sorted(layout.nodes, key=lambda node: -node.place.y)]
    ['input_1_0', 'relu_1_1', 'output_1_2']

    Args:
        graph: the graph. As in pictures, if it is too large or too slow, fewer modules are open.
        options: as for a picture; columns only if `columns` is given.
        most: a graph of up to this many nodes is laid out as it is; a larger one as a view with at most this many nodes and
            no omitted operations. `DrawingFailed` is raised if there is no such view.
        beside: returns companions for the view that is laid out.
    """
    options = options or PictureOptions()
    check_drawable(graph)

    def draw(view: View) -> Drawing:
        drawing = make_drawing(view, options)
        return _with_companions(drawing, view.graph, beside(view.graph)) if beside is not None else drawing

    view, drawing, laid_out = first_laid_out(_views(graph, options, most), draw, graph.title, options.time_limit)
    found, drawing = in_columns(read_layout(laid_out), drawing, replace(options, columns=options.columns or 1))
    return _read(drawing, view.graph, found)


def _views(graph: Graph, options: PictureOptions, most: int | None) -> Iterator[View]:
    if most is None:
        yield from views(graph, options)
        return
    if len(graph.nodes) <= most:
        yield View(graph)
    for view in views(graph, options):
        if view.size <= most and not any(node.kind == "omitted" for node in view.graph.nodes):
            yield view


def first_laid_out(
    tries: Iterable[View], draw: Callable[[View], Drawing], title: str, time_limit: float
) -> tuple[View, Drawing, bytes]:
    """The first view that Graphviz lays out within the time, with Graphviz's output."""
    end = time.monotonic() + time_limit
    slow = 0
    for view in tries:
        if slow:
            note = f"Laying out {slow:,} nodes took more than its time; this view has fewer."
            view = View(view.graph, (*view.notes, note))
        drawing = draw(view)
        left = max(end - time.monotonic(), 0.0)
        limit = max(left if view.size <= 60 else left * 0.6, min(LEAST, time_limit))
        try:
            return view, drawing, run_graphviz(dot_text(drawing, for_layout=True), "dot", "json0", limit)
        except TooSlow:
            slow = view.size
    raise DrawingFailed(
        f"no view of {title} could be laid out within {time_limit:g} s. Increase the limit (time_limit=120), or "
        "draw less of it (nesting_depth=1)."
    )


# Companions -------------------------------------------------------------------------------------------------------


def _with_companions(drawing: Drawing, graph: Graph, companions: Companions) -> Drawing:
    """The drawing with companions, whose names begin with `g`, and the arrows between them.

    For the layout, arrows against the order of the graph are reversed, so that both stand side by side.
    """
    ids = {node.key: node.id for node in drawing.nodes if not node.is_reference}
    back = {node.key: f"g{ids[node.key]}" for node in graph.nodes if node.key in companions.lines}
    nodes = [DrawnNode(name, key, companions.lines[key], _LOOK, "box") for key, name in back.items()]
    order = {node.key: place for place, node in enumerate(graph.nodes)}
    between = [(source, target) for source, target in companions.edges if source in back and target in back]
    edges = [
        DrawnEdge(back[source], back[target], weight=6, is_backward=order[source] > order[target]) for source, target in between
    ]
    led = {target for _, target in between}
    edges += [DrawnEdge(ids[key], back[key], line="dashed") for key in back if key not in led]
    return replace(drawing, nodes=(*drawing.nodes, *nodes), edges=(*drawing.edges, *edges), seen=(), scale=None)


# Places -----------------------------------------------------------------------------------------------------------


def _read(drawing: Drawing, graph: Graph, found: GraphvizLayout) -> Layout:
    places = place_words(found, drawing)
    nodes = [
        LaidOutNode(graph.by_key[one.key], one.lines, found.nodes[one.id], one.is_reference, one.id[0] == "g")
        for one in drawing.nodes
        if one.id in found.nodes
    ]
    edges = [_edge(number, edge, places) for number, edge in enumerate(drawing.edges) if number in places.edges]
    boxes = []
    for number, box in enumerate(drawing.boxes):
        if (name := box_name(number)) in places.boxes:
            place, (x, y) = places.boxes[name], places.titles[name]
            lines = title_lines(box, places.cuts[name])
            left = max(x - title_width(lines, drawing.style) / 2, place.left + 5)
            boxes.append(LaidOutBox(lines, box.depth, place, (left, y)))
    return Layout(drawing.title, graph, tuple(nodes), tuple(edges), tuple(boxes))


def _edge(number: int, edge: DrawnEdge, places: Placement) -> LaidOutEdge:
    arrow = places.edges[number].reversed() if edge.is_backward else places.edges[number]  # laid out in reverse
    text = edge.text if number in places.edge_texts else ""
    text_place = places.edge_texts.get(number, (0.0, 0.0))
    return LaidOutEdge(arrow.curve, arrow.head or arrow.curve[-1], edge.line, text, text_place, edge.target[0] == "g")
