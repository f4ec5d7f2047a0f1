"""Draws a scene with Matplotlib, as the current figure, so that `plt.title`, `tight_layout` and `savefig` work on it.

Texts are drawn as outlines in the units of the drawing, so that they fit their boxes whatever the size of the figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torcheer.pictures import LaidOutBox, LaidOutEdge, Rect

from .scene import BOX_BORDER, BOX_FILLS, FAINT, INK, LOOKS, PlacedNode, Scene, edge_color

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Point = tuple[float, float]
_LONGEST = 60.0  # a side of the figure has at most this many inches
_ROOM = (0.6, 1.35)  # inches left and right of the drawing; inches above and below it, for title and legend


def draw_with_matplotlib(scene: Scene) -> Figure:
    import matplotlib.pyplot as plt

    bounds = scene.bounds
    inches = bounds.width / 72, bounds.height / 72
    scale = min(1.0, _LONGEST / max(inches))
    figure: Figure = plt.figure(figsize=(max(inches[0] * scale + _ROOM[0], 5.5), inches[1] * scale + _ROOM[1]))
    axes = figure.add_subplot()
    axes.set_aspect("equal")
    axes.set_xlim(bounds.left - 8, bounds.right + 8)
    axes.set_ylim(bounds.low - 8, bounds.high + 8)
    axes.axis("off")
    _Drawer(axes).draw(scene)
    axes.set_title(f"Computational graph of {scene.title}\n{' '.join(scene.notes)}", fontsize=10, color=INK)
    if plt.get_backend().endswith("inline"):  # a notebook shows the returned figure, and would show an open figure again
        plt.close(figure)
    return figure


class _Drawer:
    def __init__(self, axes: Any) -> None:
        from matplotlib import collections, font_manager, lines, patches, path, textpath

        self.axes = axes
        self.collections = collections
        self.written: list[tuple[Any, str]] = []  # outlines of texts, and their colours
        self.lines, self.patches, self.paths, self.text = lines, patches, path.Path, textpath.TextPath
        self.plain = font_manager.FontProperties(size=10)
        self.bold = font_manager.FontProperties(weight="bold", size=10)

    def draw(self, scene: Scene) -> None:
        for box in scene.boxes:
            self._box(box)
        for flow, edges in scene.edges.items():
            for edge in edges:
                self._edge(edge, edge_color(flow))
        for node in scene.nodes:
            self._node(node)
        outlines, colors = zip(*self.written, strict=True) if self.written else ((), ())
        words = self.collections.PathCollection(outlines, facecolors=colors, linewidths=0, zorder=6)
        self.axes.add_collection(words, autolim=False)
        self._legend(scene)

    def _box(self, box: LaidOutBox) -> None:
        fill = BOX_FILLS[(box.depth - 1) % len(BOX_FILLS)]
        self._rectangle(box.place, fill, BOX_BORDER, 0.8, rounding=4, order=1 + box.depth * 0.01)
        x, y = box.corner
        room = box.place.right - x - 4
        for number, line in enumerate(box.lines):
            at = (x, y + 10 * ((len(box.lines) - 1) / 2 - number))
            self._write(line, at, 8.5 if number == 0 else 7.5, self.plain if number else self.bold, FAINT, room, share=0)

    def _node(self, node: PlacedNode) -> None:
        _, fill, border = LOOKS[node.kind]
        place = node.place
        self._rectangle(place, fill, border, 1.2 if node.is_module else 0.9, rounding=0 if node.is_module else 3, order=5)
        sizes = [8.0 if node.is_small else 9.5] + [7.8] * (len(node.lines) - 1)
        step = min(11.5, (place.height - 4) / len(node.lines))
        top = place.y + step * (len(node.lines) - 1) / 2
        for number, (line, size) in enumerate(zip(node.lines, sizes, strict=True)):
            font = self.bold if number == 0 and not node.is_small else self.plain
            middle = (place.x, top - number * step)
            self._write(line, middle, size, font, INK if number == 0 else FAINT, place.width - 6)

    def _rectangle(self, place: Rect, fill: str, border: str, width: float, *, rounding: float, order: float) -> None:
        style = f"round,pad=0,rounding_size={rounding}" if rounding else "square,pad=0"
        corner = place.left, place.low
        look: dict[str, Any] = {"facecolor": fill, "edgecolor": border, "linewidth": width}
        patch = self.patches.FancyBboxPatch(corner, place.width, place.height, boxstyle=style, zorder=order, **look)
        self.axes.add_patch(patch)

    def _edge(self, edge: LaidOutEdge, color: str) -> None:
        dashes = {"dashed": (0, (4, 2)), "dotted": (0, (1, 2))}.get(edge.line, "solid")
        codes = [self.paths.MOVETO] + [self.paths.CURVE4] * (len(edge.curve) - 1)
        curve = self.paths(edge.curve, codes)
        self.axes.add_patch(
            self.patches.PathPatch(curve, fill=False, edgecolor=color, linewidth=0.9, linestyle=dashes, zorder=3)
        )
        base, tip = edge.curve[-1], edge.tip
        self.axes.add_patch(self.patches.Polygon(_arrowhead(base, tip), closed=True, color=color, linewidth=0, zorder=3.5))
        if edge.text:
            self._write(edge.text, edge.text_place, 7.0, self.plain, FAINT, 200)

    def _write(self, text: str, middle: Point, size: float, font: Any, color: str, room: float, *, share: float = 0.5) -> None:
        outline = self.text((0, 0), text, size=size, prop=font)
        vertices = outline.vertices.copy()
        if not len(vertices):
            return
        left = vertices[:, 0].min()
        width = max(float(vertices[:, 0].max() - left), 1e-3)
        shrink = min(1.0, room / width)
        vertices[:, 0] = (vertices[:, 0] - left - width * share) * shrink + middle[0]
        vertices[:, 1] = (vertices[:, 1] - size * 0.36) * shrink + middle[1]
        self.written.append((self.paths(vertices, outline.codes), color))

    def _legend(self, scene: Scene) -> None:
        handles: list[Any] = []
        for kind in scene.kinds:
            name, fill, border = LOOKS[kind]
            handles.append(self.patches.Patch(facecolor=fill, edgecolor=border, label=name))
        handles += [self.lines.Line2D([], [], color=edge_color(flow), linewidth=1.2, label=flow) for flow in scene.edges]
        columns = 2 if len(handles) > 3 else max(len(handles), 1)
        self.axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=columns, fontsize=8, frameon=False
        )


def _arrowhead(base: Point, tip: Point, width: float = 2.6) -> list[Point]:
    dx, dy = tip[0] - base[0], tip[1] - base[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    across = (-dy / length * width, dx / length * width)
    return [(base[0] + across[0], base[1] + across[1]), (base[0] - across[0], base[1] - across[1]), tip]
