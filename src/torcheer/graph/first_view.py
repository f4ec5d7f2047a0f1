"""Chooses which modules of a model are open at first: `first_view`. The page and the pictures use the same choice.

Modules open greedily, as long as the drawing stays readable in a window. Wrappers open first and cost nothing: a module with
one important child, such as `transformer` of GPT-2 around its stack of blocks. The largest module is next, together with its
siblings of the same class. A stack of equal blocks stays closed: it is one box, `h ×12`,
unless it is all there is to see.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from .blocks import runs_of
from .model import Graph, Node
from .plumbing import fold_plumbing
from .views import merge_calls, merge_ports

_ROWS = 12.5  # a drawing can be read in a window if it has at most this many rows, columns and boxes
_COLUMNS = 7
_BOXES = 40
_IMPORTANT = 0.7  # a child is important if it has at least this fraction of its module's operations
_SHARE = 0.1  # a module opens only if it has at least this fraction of the model's operations
_HEIGHTS = {"module": 1.0, "header": 0.35, "plumbing": 0.4}  # heights in rows; `_OPERATION` is that of an operation
_OPERATION = 0.75
_NUMBERED = re.compile(r"(.+)\.\d+")


@dataclass(slots=True)
class _Box:
    """A module call, a stack of equal calls, or the calls of a list's modules."""

    key: str  # the key of the module call; for a list, the list's address
    kind: str  # `module`, `stack` or `list`
    class_name: str = ""
    children: list[_Box | Node] = field(default_factory=list)
    size: int = 0  # number of operations inside


@dataclass(frozen=True, slots=True)
class FirstView:
    """The keys of open module calls, such as `transformer:1`, and the addresses of open lists of modules, `down_blocks`."""

    open: tuple[str, ...]
    closed: tuple[str, ...]  # the keys of the module calls that are drawn closed; for a stack, of all its calls


def first_view(graph: Graph) -> FirstView:
    """The modules to open at first, of an unrolled graph.

    >>> import torch, torcheer
    >>> from torch.nn import Linear, ReLU, Sequential, Tanh
    >>> body = Sequential(Sequential(*(Sequential(Linear(2, 2), ReLU()) for _ in range(12))), Linear(2, 2))
    >>> model = Sequential(body, ReLU(), Linear(2, 2), Tanh())
    >>> first_view(torcheer.log_forward_pass(model, torch.ones(1, 2)).graph).open
    ('0:1', '0.0:1')
    """
    return _Chooser(merge_ports(merge_calls(fold_plumbing(graph)))).chosen()  # views that were applied before change nothing


class _Chooser:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        runs = list(runs_of(graph))
        self._stacks = {run.blocks[0].key: [block.key for block in run.blocks] for run in runs if run.blocks[0].box is not None}
        self._repeated = {key: first for first, keys in self._stacks.items() for key in keys}
        self._inside: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for key in node.modules:
                self._inside.setdefault(key, []).append(node)
        self.root = _Box("", "module", children=self._children("", list(graph.nodes)))
        self.root.size = self._size(self.root.children)
        self.open: dict[str, None] = {}

    # The tree of modules, with stacks and lists -----------------------------------------------------------------------

    def _children(self, around: str, nodes: list[Node]) -> list[_Box | Node]:
        depth = self.graph.boxes[around].depth if around else 0
        found: dict[str, _Box | Node] = {}
        for node in nodes:
            inner = node.modules[depth] if len(node.modules) > depth else ""
            if not inner:
                found[node.key] = node
                continue
            first = self._repeated.get(inner, inner)
            if first not in found:
                found[first] = self._box(first)
        return self._with_lists(list(found.values()), self.graph.boxes[around].address if around else "")

    def _box(self, key: str) -> _Box | Node:
        inside = self._inside[key]
        blocks = self._stacks.get(key, [key])
        if len(inside) == 1 and len(blocks) == 1:
            return inside[0]
        box = _Box(key, "stack" if len(blocks) > 1 else "module", self.graph.boxes[key].class_name)
        box.children = self._children(key, inside)
        box.size = self._size(box.children) * len(blocks)
        return box

    def _with_lists(self, children: list[_Box | Node], outer: str) -> list[_Box | Node]:
        """Puts consecutive modules of a list, and the operations between them, into a box, as in the model's own code."""
        names = [self._list_of(child, outer) for child in children]
        made: list[_Box | Node] = []
        at = 0
        while at < len(children):
            name, end = names[at], at + 1
            last = at
            while name and end < len(children) and (names[end] == name or self._is_bare(children[end])):
                last = end if names[end] == name else last
                end += 1
            inside = children[at : last + 1]
            boxes = [child for child in inside if isinstance(child, _Box)]
            if len(boxes) > 1 and len(inside) < len(children):
                made.append(_Box(name, "list", boxes[0].class_name, inside, self._size(inside)))
            else:
                made += inside
            at = last + 1
        return made

    def _list_of(self, child: _Box | Node, outer: str) -> str:
        """Return the address of the list that contains a module, directly inside the module `outer`. Empty without a list."""
        key = child.key if isinstance(child, _Box) else child.modules[-1] if child.modules else ""
        address = self.graph.boxes[key].address if key else ""
        found = _NUMBERED.fullmatch(address)
        inner = address[len(outer) + 1 :] if outer else address
        return found[1] if found is not None and address != outer and inner.count(".") == 1 else ""

    def _is_bare(self, child: _Box | Node) -> bool:
        return isinstance(child, Node) and child.kind not in ("input", "output") and not child.exits

    def _size(self, children: list[_Box | Node]) -> int:
        return sum(child.size if isinstance(child, _Box) else _weight(child) for child in children)

    # Opening ----------------------------------------------------------------------------------------------------------

    def chosen(self) -> FirstView:
        self._open_wrappers()
        while group := self._largest():
            self.open |= dict.fromkeys(box.key for box in group)
            if not self._fits():
                for box in group:
                    del self.open[box.key]
                break
            self._open_wrappers()
        self._open_lone_stack()
        closed = [key for box in self._closed(stacks=True) for key in self._calls(box)]
        return FirstView(tuple(self.open), tuple(closed))

    def _open_lone_stack(self) -> None:
        """Open a stack if it is the only closed box and nearly the whole model: its first block stands for all blocks."""
        boxes = self._closed(stacks=True)
        if len(boxes) == 1 and boxes[0].kind == "stack" and boxes[0].size >= _IMPORTANT * self.root.size:
            others = self.root.size - boxes[0].size
            self.open[boxes[0].key] = None
            if others > 2 or not self._fits():
                del self.open[boxes[0].key]

    def _calls(self, box: _Box) -> list[str]:
        if box.kind == "list":
            return [key for child in box.children if isinstance(child, _Box) for key in self._calls(child)]
        return self._stacks.get(box.key, [box.key])

    def _closed(self, *, stacks: bool = False) -> list[_Box]:
        """Return the closed boxes that are drawn."""
        found: list[_Box] = []
        waiting: list[_Box | Node] = list(reversed(self.root.children))
        while waiting:
            box = waiting.pop()
            if not isinstance(box, _Box):
                continue
            if box.key in self.open:
                waiting += reversed(box.children)  # the children of a stack are those of its first block
            elif box.kind != "stack" or stacks:
                found.append(box)
        return found

    def _open_wrappers(self) -> None:
        while wrappers := [box for box in self._closed() if self._is_wrapper(box)]:
            self.open |= dict.fromkeys(box.key for box in wrappers)

    def _is_wrapper(self, box: _Box) -> bool:
        """True for a module with one important child, unless other modules of its class stand beside it."""
        if len(self._alike(box)) > 1:
            return False
        is_large = box.size >= _SHARE * self.root.size
        largest = max((child.size for child in box.children if isinstance(child, _Box)), default=0)
        return is_large and largest >= _IMPORTANT * box.size and len(box.children) <= _BOXES // 3

    def _largest(self) -> list[_Box]:
        """Return the largest closed module and its siblings of the same class. Empty if no module is large enough."""
        alike = [self._alike(box) for box in self._closed() if box.size >= _SHARE * self.root.size]
        open_ = [group for group in alike if all(box.kind != "stack" for box in group)]  # the others are blocks, too
        return max(open_, key=lambda group: max(box.size for box in group), default=[])

    def _alike(self, box: _Box) -> list[_Box]:
        """Return the closed boxes of the same class in the same module, including the box itself."""
        around = self._around(box)
        seen = self._closed(stacks=True)
        found = [one for one in seen if one.class_name == box.class_name and self._around(one) == around]
        return [one for one in found if (one.kind == "list") == (box.kind == "list")]

    def _around(self, box: _Box) -> str | None:
        return self.graph.boxes[box.key].parent if box.key in self.graph.boxes else ""

    # Room -------------------------------------------------------------------------------------------------------------

    def _fits(self) -> bool:
        """True if the drawing can be read in a window."""
        seen: dict[str, int] = {}  # key of a node -> number of the drawn item that contains it
        heights: list[float] = []
        starts = Counter[int]()

        def visit(child: _Box | Node) -> None:
            if isinstance(child, _Box) and child.key in self.open:
                first = len(heights)
                for inner in child.children:
                    visit(inner)
                starts[first] += 1
                return
            if isinstance(child, Node):
                seen[child.key] = len(heights)
                heights.append(_HEIGHTS.get(child.kind, _OPERATION))
                return
            for key in self._calls(child):
                seen.update((node.key, len(heights)) for node in self._inside[key])
            if child.kind == "list":
                seen.update((inner.key, len(heights)) for inner in child.children if isinstance(inner, Node))
            heights.append(_HEIGHTS["module"])

        for child in self.root.children:
            visit(child)
        if len(heights) > _BOXES:
            return False
        into: dict[int, set[int]] = {}
        for edge in self.graph.edges:
            source, target = seen.get(edge.source, -1), seen.get(edge.target, -1)  # -1: in a block that is not shown
            if 0 <= source < target:
                into.setdefault(target, set()).add(source)
        bottom, row = [0.0] * len(heights), [0] * len(heights)
        for item, height in enumerate(heights):
            above = into.get(item, ())
            bottom[item] = max((bottom[one] for one in above), default=0.0) + height + _HEIGHTS["header"] * starts[item]
            row[item] = max((row[one] + 1 for one in above), default=0)
        widest = max(
            Counter(one for one, height in zip(row, heights, strict=True) if height > _HEIGHTS["plumbing"]).values(), default=0
        )
        return max(bottom, default=0.0) <= _ROWS and widest <= _COLUMNS


def _weight(node: Node) -> int:
    """Return the weight with which an operation counts for the size of a module."""
    return 0 if node.kind in ("input", "output", "plumbing") else 1
