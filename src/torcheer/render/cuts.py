"""Where a layout can be cut into columns: between nodes, where few arrows cross and few boxes are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from .dot import box_name
from .drawing import Drawing
from .found import Found
from .geometry import Rect

_ARROW, _BOX = 0.06, 0.05  # what a crossing costs, in shares of a column by which another place may be better
_CONSIDERED = 160  # places that are compared


@dataclass(frozen=True, slots=True)
class Cut:
    """A place along the model."""

    along: float
    sources: frozenset[str]  # nodes whose arrows cross it
    boxes: int  # boxes that are open there

    @property
    def cost(self) -> float:
        return _ARROW * max(len(self.sources) - 1, 0) + _BOX * self.boxes


def possible_cuts(turned: Found, drawing: Drawing) -> list[Cut]:
    """The places between nodes, in order, each where fewest boxes are open. Boxes that an arrow goes around stay whole."""
    whole = {edge.around for edge in drawing.edges if edge.around}
    boxes = [
        (turned.boxes[box_name(n)], box.key in whole) for n, box in enumerate(drawing.boxes) if box_name(n) in turned.boxes
    ]
    places = [place for gap in _gaps(turned) if (place := _place(gap, boxes)) is not None]
    crossing = _crossing(turned, drawing, [along for _, along in places])
    found = [Cut(along, sources, count) for (count, along), sources in zip(places, crossing, strict=True)]
    if len(found) > _CONSIDERED:
        found = sorted(sorted(found, key=lambda cut: cut.cost)[:_CONSIDERED], key=lambda cut: cut.along)
    return found


def _place(gap: tuple[float, float], boxes: list[tuple[Rect, bool]]) -> tuple[int, float] | None:
    """The place in a gap between nodes where fewest boxes are open, with their number; none where one has to stay whole."""
    start, end = gap
    near = [(rect, is_whole) for rect, is_whole in boxes if rect.low < end and rect.high > start]
    borders = sorted({start, end, *(side for rect, _ in near for side in (rect.low, rect.high) if start < side < end)})
    found = []
    for low, high in pairwise(borders):
        middle = (low + high) / 2
        opened = [is_whole for rect, is_whole in near if rect.low < middle < rect.high]
        if not any(opened):
            found.append((len(opened), low - high, middle))
    if not found:
        return None
    count, _, middle = min(found)
    return count, middle


def _gaps(turned: Found) -> list[tuple[float, float]]:
    """The stretches along the model in which there is no node."""
    found = []
    reached = float("-inf")
    for rect in sorted(turned.nodes.values(), key=lambda rect: rect.low):
        if reached < rect.low and reached != float("-inf"):
            found.append((reached, rect.low))
        reached = max(reached, rect.high)
    return found


def _crossing(turned: Found, drawing: Drawing, places: list[float]) -> list[frozenset[str]]:
    """The nodes whose arrows cross each place; places in order."""
    begin, finish = [], []
    for number in turned.arrows:
        edge = drawing.edges[number]
        ends = sorted((turned.nodes[edge.source].y, turned.nodes[edge.target].y))
        begin.append((ends[0], edge.source))
        finish.append((ends[1], edge.source))
    begin.sort(reverse=True)
    finish.sort(reverse=True)
    under_way: Counter[str] = Counter()
    found = []
    for place in places:
        while begin and begin[-1][0] < place:
            under_way[begin.pop()[1]] += 1
        while finish and finish[-1][0] < place:
            under_way[finish.pop()[1]] -= 1
        found.append(frozenset(name for name, count in under_way.items() if count > 0))
    return found


def best_cuts(cuts: list[Cut], columns: int, turned: Found) -> list[Cut]:
    """The cuts that make so many columns about equally long, with little that crosses them; fewer where there are too few."""
    columns = min(columns, len(cuts) + 1)
    start, end = turned.bounds.low, turned.bounds.high
    wanted = (end - start) / columns

    def unlike(length: float) -> float:
        return (length / wanted - 1) ** 2

    def lengthened(best: list[float], p: int, place: int) -> float:
        return best[p] + unlike(cuts[place].along - cuts[p].along)

    if columns < 2:
        return []
    costs = [cut.cost for cut in cuts]
    best = [unlike(cut.along - start) + cost for cut, cost in zip(cuts, costs, strict=True)]  # by place of the last cut
    befores: list[list[int]] = []  # by number of cuts, from two: the place of the cut before each
    for _ in range(columns - 2):
        before = _cheapest_before(len(cuts), partial(lengthened, best))
        best = [
            lengthened(best, p, place) + cost if p >= 0 else float("inf")
            for place, (p, cost) in enumerate(zip(before, costs, strict=True))
        ]
        befores.append(before)
    place = min(range(len(cuts)), key=lambda last: best[last] + unlike(end - cuts[last].along))
    chosen = [cuts[place]]
    for before in reversed(befores):
        place = before[place]
        chosen.append(cuts[place])
    return chosen[::-1]


def _cheapest_before(count: int, cost: Callable[[int, int], float]) -> list[int]:
    """For each of `count` places, the earlier one of least cost; -1 for the first place.

    The cost is convex in the distance, so the answers ascend with the places: the answer in the middle bounds both halves.
    """
    found = [-1] * count
    waiting = [(1, count, 0, count)]  # places from and to, between which their answers lie
    while waiting:
        first, end, least, most = waiting.pop()
        if first < end:
            middle = (first + end) // 2
            found[middle] = answer = min(range(least, min(most, middle)), key=lambda p: cost(p, middle))
            waiting += [(first, middle, least, answer + 1), (middle + 1, end, answer, most)]
    return found
