"""Chooses the view of a graph to draw: as requested, or by default as much as is readable.

The views come in order, each smaller than the one before: if the layout of one takes too long, the next is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .._text import plural
from ..errors import InvalidArgument
from ..graph import (
    Graph,
    ModuleBox,
    add_buffer_nodes,
    collapse,
    first_view,
    focus,
    fold_plumbing,
    fold_repeats,
    merge_calls,
    merge_elementwise,
    merge_ends,
    merge_ports,
    omit_middle,
    prune_internal,
    regroup,
    restrict,
    roll,
    unroll,
)
from .options import PictureOptions
from .wording import clean

SMALL = 48  # a graph with at most this many nodes is not folded
READABLE = 64
SPARSE = 12  # a view with fewer nodes hides too much, unless the next larger view is far too large
LARGE = 200
WHOLE = 600  # a graph without modules is drawn whole if it has at most this many nodes
_WRAPS = 0.75  # the only module with several operations is a wrapper if it has at least this fraction of the operations
POSSIBLE = 3000  # a graph with more nodes is never laid out


@dataclass(frozen=True, slots=True)
class View:
    """A graph to draw, with notes for the reader."""

    graph: Graph
    notes: tuple[str, ...] = ()
    folded: int = 0  # operations of plumbing that are not drawn

    @property
    def size(self) -> int:
        return len(self.graph.nodes)


def views(graph: Graph, options: PictureOptions) -> Iterator[View]:
    """The views to try, the best first. Each is computed when requested."""
    asked = options.nesting_depth is not None or bool(options.picks)
    smallest: View | None = None
    began = False
    base = _base(graph, options)
    told, folded = _focus_note(options), 0
    if not options.plumbing:
        lean = merge_calls(fold_plumbing(base))
        folded = base.num_operations - lean.num_operations
        base = lean
    if folded:
        told = (*told, f"{plural(folded, 'operation')} of plumbing folded; plumbing=True draws all.")
    for view in _ladder(base, options):
        view = View(merge_ports(view.graph), (*told, *view.notes), folded)
        if smallest is not None and view.size >= smallest.size:
            continue
        if began or view.size <= (POSSIBLE if asked else READABLE):
            if not began and not asked and smallest is not None and view.size < SPARSE and smallest.size <= LARGE:
                yield smallest
            began = True
            yield view
        smallest = view
    assert smallest is not None
    if not began and smallest.size <= WHOLE:
        yield smallest
    for keep in (200, 60) if asked else (60,):
        if smallest.size > keep:
            cut = omit_middle(smallest.graph, keep)
            left_out = sum(node.num_operations for node in cut.nodes if node.kind == "omitted")
            note = f"Too large to draw: {left_out:,} operations in the middle are left out."
            yield View(cut, (*smallest.notes, note), smallest.folded)


def views_for_print(graph: Graph, options: PictureOptions) -> Iterator[View]:
    """The views to try until their text can be read on paper, the best first: fewer and fewer modules are open."""
    for view in _distinct(views(graph, options)):
        yield view
        data = restrict(view.graph, {node.key for node in view.graph.all_nodes if node.kind != "plumbing"})
        yield replace(view, graph=data, notes=(*view.notes, "Plumbing is left out."))
        note = "Plumbing is left out; inputs, and outputs, are one node."
        yield replace(view, graph=_merged_ends(data), notes=(*view.notes, note))
    base = merge_ports(merge_calls(fold_plumbing(_base(graph, options))))
    levels = _levels(unroll(base))
    for depth in range(max(levels.values(), default=0), 0, -1):
        shut = fold_repeats(_to_depth(base, depth))
        yield View(shut, (f"Modules are collapsed at depth {depth}.",))
        yield View(_merged_ends(shut), (f"Modules are collapsed at depth {depth}; inputs, and outputs, are one node.",))
    outermost = fold_repeats(collapse(base, depth=1)) if base.all_boxes else base
    yield View(_merged_ends(outermost), ("Only the outermost modules are drawn.",))
    yield View(omit_middle(_merged_ends(outermost), 8), ("The middle is left out.",))


def _distinct(found: Iterable[View]) -> Iterator[View]:
    known: set[int] = set()
    for view in found:
        if view.size not in known:
            known.add(view.size)
            yield view


def _merged_ends(graph: Graph) -> Graph:
    """Merge all inputs into one node, and all outputs into another node."""
    for kind in ("input", "output"):
        ends = [node for node in graph.nodes if node.kind == kind]
        if len(ends) > 1:
            groups = {node.key: f"{kind}s" for node in ends}
            graph = regroup(graph, groups, lambda key, nodes: merge_ends(key, nodes), at_last=kind == "output")
    return graph


def _focuses(options: PictureOptions) -> bool:
    """True if only a part is drawn; the empty address is the model itself."""
    return options.focus is not None and not (isinstance(options.focus, str) and options.focus == "")


def _focus_note(options: PictureOptions) -> tuple[str, ...]:
    if not _focuses(options):
        return ()
    named = options.focus if isinstance(options.focus, str) else getattr(options.focus, "__name__", "a part")
    return (f"Only {clean(named)} and what is next to it.",)


def _base(graph: Graph, options: PictureOptions) -> Graph:
    """The graph with the requested options, whatever its size."""
    if _focuses(options):
        graph = focus(graph, options.focus)
    if not options.show_constants:
        graph = prune_internal(graph)
    if options.show_buffers:
        graph = add_buffer_nodes(graph)
    for pick in options.picks:
        graph = _collapsed(graph, pick)
    return merge_elementwise(graph) if options.merge_elementwise else graph


def _collapsed(graph: Graph, pick: object) -> Graph:
    if isinstance(pick, int):
        return _to_depth(graph, pick)
    if callable(pick) and not isinstance(pick, type):
        return collapse(graph, where=pick)
    is_class_name = pick in {box.class_name for box in graph.all_boxes}
    return collapse(graph, class_name=str(pick)) if is_class_name else collapse(graph, address=[pick])


def _to_depth(graph: Graph, depth: int) -> Graph:
    """Draw each module at this depth as one node. A module with a single operation is drawn as this operation."""
    levels = _levels(unroll(graph))
    return collapse(graph, where=lambda box: levels.get(box.key) == depth)


def _levels(graph: Graph) -> dict[str, int]:
    """Return the depth of each module with several operations, from 1. A wrapper around nearly the whole model is skipped."""
    inside = Counter(key for node in graph.nodes for key in node.modules)
    larger: dict[str | None, list[ModuleBox]] = {}  # modules with several operations, by the module around them
    for box in graph.modules.values():
        if inside[box.key] > 1:
            larger.setdefault(box.parent, []).append(box)
    wrappers: set[str] = set()
    around, total = None, sum(node.kind not in ("input", "output", "stub") for node in graph.nodes)
    while len(largest := larger.get(around, [])) == 1:
        around = largest[0].key
        if around not in larger or inside[around] < _WRAPS * total:
            break
        total = inside[around]
        wrappers.add(around)
    boxes = [box for some in larger.values() for box in some if box.key not in wrappers]
    return {box.key: len(set(box.path) - wrappers) for box in boxes}


def _ladder(graph: Graph, options: PictureOptions) -> Iterator[View]:
    """Views of decreasing size: unchanged, folded, rolled, then with fewer and fewer levels of modules open."""
    start = options.nesting_depth
    is_default = start is None and options.columns is None and not options.picks and not _focuses(options)
    if is_default and len(graph.nodes) > SMALL:
        yield from _as_on_page(graph, options)
    deepest = max(_levels(unroll(graph)).values(), default=0) + 1
    if start is None or start == "all":
        yield from _opened(graph, options)
        below = deepest - 1
    else:
        yield from _opened(_to_depth(graph, start), options)
        below = min(start, deepest) - 1
    known = len(graph.nodes)
    for depth in range(below, 0, -1):
        shut = _to_depth(graph, depth)
        if len(shut.nodes) < known:
            known = len(shut.nodes)
            all_ = f"of {graph.num_operations:,} operations"
            note = f"Too large as asked for: collapsed to depth {depth}, {all_}."
            if start is None:
                hint = f"nesting_depth={depth + 1} opens more, 'all' everything."
                note = f"Modules are collapsed at depth {depth}, {all_}; {hint}"
            yield from list(_opened(shut, options, (note,)))[-1:]


def _as_on_page(graph: Graph, options: PictureOptions) -> Iterator[View]:
    """The view with which the page opens."""
    flat = unroll(graph)
    # An operation with a structure of its own, such as the culprit of a comparison, is never inside a closed module.
    apart = {key for node in flat.nodes if node.structure is not None and node.kind != "module" for key in node.modules}
    closed = set(first_view(flat).closed) - apart
    inside = Counter(key for node in flat.nodes for key in node.modules)
    folded = graph if options.fold_repeats is False else fold_repeats(graph)  # closed modules hide some equal blocks
    shut = collapse(folded, where=lambda box: box.key in closed and inside[box.key] > 1)
    if len(shut.nodes) < len(graph.nodes):
        notes = ["Modules are open as the page opens; nesting_depth='all' opens everything."]
        if len(folded.nodes) < len(graph.nodes):
            notes.append("Equal blocks in a row are drawn once.")
        yield from list(_opened(shut, options, tuple(notes)))[-1:]


def _opened(graph: Graph, options: PictureOptions, notes: tuple[str, ...] = ()) -> Iterator[View]:
    """A graph unchanged, folded and rolled, as far as the options allow."""
    if options.rolled:
        graph = roll(graph)
    is_small = len(graph.nodes) <= SMALL
    if options.fold_repeats is not True and (is_small or options.fold_repeats is False or options.nesting_depth == "all"):
        yield View(graph, notes)
    if options.fold_repeats is not False:
        folded = fold_repeats(graph)
        if len(folded.nodes) < len(graph.nodes):
            graph = folded
            notes = (*notes, "Equal blocks in a row are drawn once.")
        yield View(graph, notes)
    if options.rolled is None and any(node.num_passes > 1 for node in graph.nodes):
        rolled = roll(graph)
        if len(rolled.nodes) < len(graph.nodes):
            yield View(rolled, (*notes, "Passes are rolled up: ×N is how often a layer ran."))


def check_drawable(graph: Graph) -> None:
    """Raise if there is nothing to draw."""
    if not graph.nodes:
        raise InvalidArgument(f"the history of {graph.title} is empty: there is nothing to draw.")
