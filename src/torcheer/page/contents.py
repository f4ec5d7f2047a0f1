"""Makes the parts of a payload: call stacks and files, runs of equal blocks, nodes, edges and modules."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from torch.nn.parameter import is_lazy

from .._cleanup import pass_interrupts_on
from .._torch.source_code import Site, Sources, lines_near, stack_of
from ..analysis import Cost
from ..graph import Edge, Graph, ModuleBox, Node, Plumbing, PythonRead, SourcePlace
from ..graph.blocks import BlockRun, runs_of
from ..graph.equal_ports import equal_ports
from ..log.operation import DECLARED, OperationFacts, rows_of
from ..log.param import Param
from ..log.records import ModuleCall
from ..log.run import Index
from .schema import Plain, lean

Frame = list[Any]  # [file, line, function]

_LONGEST_LINE = 400  # largest number of characters of a source line


class CallStacks:
    """The files and call stacks of one payload. Each site and each module call is resolved once."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._sources: list[Sources] = []
        self._lines: list[set[int]] = []
        self._is_torch: list[bool] = []
        self._handing_on: set[tuple[int, int]] = set()  # (file, line) of lines that only pass a torch call to a mode
        self._sites: dict[int, list[Frame]] = {}
        self._calls: dict[int, list[Frame]] = {}
        self._stacks: dict[SourcePlace, tuple[list[Frame], int]] = {}

    def stack(self, place: SourcePlace) -> tuple[list[Frame], int]:
        """The call stack, outermost first, and the index of the innermost line of the user's program (-1 if none)."""
        found = self._stacks.get(place)
        if found is None:
            frames = self._around(place.module) + self._at(place.site)
            found = self._stacks[place] = (frames, self._own(frames))
        return found

    def line(self, place: SourcePlace) -> list[int] | None:
        """The file number and line number of the innermost line of the user's program."""
        frames, own = self.stack(place)
        return frames[own][:2] if own >= 0 else None

    def _own(self, frames: list[Frame]) -> int:
        last = len(frames) - 1
        own = (at for at in range(last, -1, -1) if not self._is_torch[frames[at][0]])
        calling = (at for at in range(last, -1, -1) if (frames[at][0], frames[at][1]) not in self._handing_on)
        return next(own, next(calling, last))

    def _around(self, call: ModuleCall | None) -> list[Frame]:
        """The call stack from the program's start to a module call."""
        waiting: list[ModuleCall] = []
        while call is not None and call.number not in self._calls:
            waiting.append(call)
            call = call.outer
        frames = self._calls[call.number] if call is not None else []
        for inner in reversed(waiting):
            frames = self._calls[inner.number] = frames + self._at(inner.site)
        return frames

    def _at(self, site: Site | None) -> list[Frame]:
        if site is None:
            return []
        frames = self._sites.get(site.number)
        if frames is None:
            frames = self._sites[site.number] = []
            for line in stack_of(site, None):
                number = self._files.setdefault(line.file, len(self._files))
                if number == len(self._lines):
                    self._lines.append(set())
                    self._is_torch.append(line.is_torch)
                    self._sources.append(line.sources)
                self._lines[number].add(line.line)
                if line.hands_on:
                    self._handing_on.add((number, line.line))
                frames.append([number, line.line, line.function])
        return frames

    def files(self) -> list[dict[str, Any]]:
        """Every file in the stacks, with its lines that are in the stacks and the lines around them."""
        return [{"path": path, "lines": self._code(path, number)} for path, number in self._files.items()]

    def _code(self, path: str, number: int) -> dict[str, str]:
        read = self._sources[number].line
        found = {line: read(path, line) for line in lines_near(self._lines[number])}
        return {str(line): text[:_LONGEST_LINE] for line, text in found.items() if text is not None}


# Groups that the page draws as one: consecutive equal blocks, and equal inputs or outputs.

_LONGEST_BLOCK = 8  # largest number of module calls and operations in a block


def runs_in(graph: Graph) -> list[Plain]:
    """Every run of equal blocks, outer runs first, as the numbers of the first nodes of its blocks."""
    numbers = {node.key: number for number, node in enumerate(graph.all_nodes)}
    boxes = {box.key: number for number, box in enumerate(graph.all_boxes)}
    found: list[tuple[int, list[int]]] = []  # for each run: the size of its blocks, and their first nodes
    made: list[Plain] = []
    for run in runs_of(graph, _LONGEST_BLOCK):
        if not _is_in_one_piece(run, numbers):
            continue
        first = run.blocks[0]
        depth = first.depth - (1 if first.box is not None else 0)
        starts = [numbers[block.nodes[0].key] for block in run.blocks]
        for offset in _offsets(starts[0], found):
            around = graph.all_nodes[starts[0] + offset].modules[:depth]
            made.append(
                {
                    "module": boxes[around[-1]] if around else -1,
                    "starts": [start + offset for start in starts],
                    "end": starts[-1] + len(first.nodes) + offset,
                }
            )
        found.append((len(first.nodes), starts))
    return made


def _is_in_one_piece(run: BlockRun, numbers: dict[str, int]) -> bool:
    return all(numbers[block.nodes[-1].key] - numbers[block.nodes[0].key] == len(block.nodes) - 1 for block in run.blocks)


def _offsets(start: int, found: list[tuple[int, list[int]]]) -> list[int]:
    """If a run lies inside the first of several equal blocks, return the distances to its copies in the other blocks."""
    offsets = [0]
    for size, starts in found:
        if starts[0] <= start < starts[0] + size:
            offsets = [offset + other - starts[0] for other in starts for offset in offsets]
    return offsets


def chips_in(graph: Graph, found: Plumbing) -> list[Plain]:
    """Every chip of plumbing, as the numbers of its nodes."""
    numbers = {node.key: number for number, node in enumerate(graph.all_nodes)}
    return [{"name": chip.name, "nodes": [numbers[key] for key in chip.nodes]} for chip in found.chips]


def ports_in(graph: Graph) -> list[Plain]:
    """Every group of equal inputs or equal outputs, as the numbers of their nodes."""
    numbers = {node.key: number for number, node in enumerate(graph.all_nodes)}
    return [
        {"name": group.name, "nodes": [numbers[node.key] for node in group.nodes]} for group in equal_ports(graph.all_nodes)
    ]


# Nodes, edges and modules of a payload: plain values by number, without empty and default values.

_LONGEST = 400  # largest number of characters of a call's arguments
# Categories of nodes that are not torch functions.
_BY_KIND = {
    "input": "input",
    "output": "output",
    "failed": "failed",
    "opaque": "opaque",
    "source": "constant",
    "buffer": "constant",
    "alias": "shape",
}
_LONGEST_ERROR = 4000
_FACTS = [(fact.page.name, fact.plain) for fact in DECLARED if fact.page is not None]
_FIELDS = [(fact.page.name, fact.node) for fact in DECLARED if fact.page is not None and fact.node is not None]


class Contents:
    """Makes the parts of one payload. Facts that nodes, edges and modules share are computed once."""

    def __init__(self, index: Index, graph: Graph, cost: Cost, plumbing: Plumbing) -> None:
        self.index = index
        self.graph = graph
        self.stacks = CallStacks()
        self._boxes = {box.key: number for number, box in enumerate(graph.all_boxes)}
        self._nodes = {node.key: number for number, node in enumerate(graph.all_nodes)}
        self._words = [words_of(node) for node in graph.all_nodes]
        self._expenses = [cost.of_operation(n.operations[0]) if n.operations else None for n in graph.all_nodes]
        self._params: dict[Param, Plain] = {}
        self._folded = plumbing.folded
        self._calls: dict[int, int] = {}  # number of a call -> its first node
        self._made = Counter(node.call for node in graph.all_nodes if node.call is not None)  # call -> number of its tensors

    # Nodes ----------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Plain]:
        return [self._node(number, node) for number, node in enumerate(self.graph.all_nodes)]

    def _node(self, number: int, node: Node) -> Plain:
        expense = self._expenses[number]
        known = expense if expense is not None and not expense.unknown else None
        stack, source = self.stacks.stack(node.place) if node.place is not None else ([], -1)
        one = OperationFacts(self.index, node.operations[0]) if node.operations else None
        return lean(
            "node",
            {
                **(_facts(one) if one is not None else _facts_of_failed(node)),
                "title": node.title if node.title != node.function else "",
                "folded": node.key in self._folded,
                "call": self._first_of_call(number, node),
                "category": category_of(node),
                "module": self._boxes[node.modules[-1]] if node.modules else -1,
                "exits": [self._boxes[key] for key in node.exits],
                "seconds": _rounded(expense.seconds) if expense is not None else 0.0,
                "backward_seconds": _rounded(expense.backward_seconds or 0.0) or None if expense is not None else None,
                "flops": known.flops if known is not None else None,
                "macs": known.macs if known is not None else None,
                "params": [self._param(param) for param in node.params],
                "buffers": [use.buffer.name for use in node.buffers],
                "arguments": cut(self._words[number]),
                "error": cut(node.error, _LONGEST_ERROR),
                "rows": [(str(fact.row), cut(str(value))) for fact, value in rows_of(one)] if one is not None else [],
                "stack": stack,
                "source": source,
                "python_reads": [_python_read(read) for read in node.python_reads],
            },
        )

    def _first_of_call(self, number: int, node: Node) -> int:
        if node.call is None or node.kind != "operation" or self._made[node.call] == 1:
            return -1
        return self._calls.setdefault(node.call, number)

    def _param(self, param: Param) -> Plain:
        found = self._params.get(param)
        if found is None:
            dtype = str(param.dtype).removeprefix("torch.")
            facts = {"name": param.name, "shape": param.shape, "dtype": dtype, "numel": param.numel}
            found = self._params[param] = lean("param", {**facts, "trainable": param.is_trainable})
        return found

    # Edges ----------------------------------------------------------------------------------------------------------

    def edges(self) -> list[Plain]:
        return [self._edge(edge) for edge in self.graph.all_edges]

    def _edge(self, edge: Edge) -> Plain:
        source, target = self._nodes[edge.source], self._nodes[edge.target]
        carried = self.graph.all_nodes[target if edge.is_gradient else source]
        return lean(
            "edge",
            {
                "from": source,
                "to": target,
                "positions": list(edge.positions),
                "shape": edge.shape,
                "dtype": carried.dtype,
                "bytes": edge.bytes,
                "memory": edge.is_memory,
                "gradient": edge.is_gradient,
            },
        )

    # Modules --------------------------------------------------------------------------------------------------------

    def modules(self) -> list[Plain]:
        spans = self._spans()
        held = _held_params(self.index)
        flops = _SpanSums([one.flops if one is not None else 0 for one in self._expenses])
        unknown = _SpanSums([one.unknown if one is not None else 0 for one in self._expenses])
        sizes = _SpanSums([node.bytes for node in self.graph.all_nodes])
        made = []
        for box, span in zip(self.graph.all_boxes, spans, strict=True):
            names, numel = held.get(box.address, ((), 0))
            totals = {
                "flops": flops.over(span) or (None if unknown.over(span) else 0),
                "bytes": sizes.over(span),
                "num_params": numel,
                "first": span[0],
                "end": span[1],
                "params_id": _digest(names) if names else "",
            }
            made.append(lean("module", {**self._box(box), **totals}))
        return made

    def _box(self, box: ModuleBox) -> Plain:
        return {
            "key": box.key,
            "address": box.address,
            "class": box.class_name,
            "call": box.calls[0],
            "num_calls": box.num_calls,
            "step": box.step if box.step != box.address else "",
            "parent": self._boxes[box.parent] if box.parent is not None else -1,
            "depth": box.depth,
            "training": box.training,
            "seconds": _rounded(box.seconds),
            "input_shapes": list(box.input_shapes),
            "output_shapes": list(box.output_shapes),
            "source": self.stacks.line(box.place) if box.place is not None else None,
        }

    def _spans(self) -> list[tuple[int, int]]:
        """Return (first node, last node + 1) for each box; (-1, -1) for a box without nodes."""
        found: dict[str, tuple[int, int]] = {}
        for number, node in enumerate(self.graph.all_nodes):
            for key in node.modules:
                found[key] = (found[key][0] if key in found else number, number + 1)
        return [found.get(box.key, (-1, -1)) for box in self.graph.all_boxes]


class _SpanSums:
    """Quick sums over ranges of a list of numbers."""

    def __init__(self, numbers: list[int]) -> None:
        self._before = [0, *accumulate(numbers)]

    def over(self, span: tuple[int, int]) -> int:
        first, end = span
        return self._before[end] - self._before[first] if first >= 0 else 0


def _facts(one: OperationFacts) -> Plain:
    return {name: read(one) for name, read in _FACTS}


def _facts_of_failed(node: Node) -> Plain:
    """The facts of the operation that raised, which has no number."""
    return {name: getattr(node, field) for name, field in _FIELDS}


def _python_read(read: PythonRead) -> str:
    value = f" → {read.value!r}" if read.value is not None else ""
    return f"{read.function}{value}"


def category_of(node: Node) -> str:
    """The category of a node, for its colour. Arithmetic with parameters counts as a layer."""
    if node.kind in _BY_KIND:
        return _BY_KIND[node.kind]
    found = node.facts.category if node.facts is not None else "arithmetic"
    return "layer" if node.params and found in ("arithmetic", "shape") else found


def words_of(node: Node) -> str:
    """The arguments of a node's call, as text."""
    if node.arguments is None:
        return ""
    try:
        return str(node.arguments)
    except Exception as error:  # a user-defined __repr__ may raise anything
        pass_interrupts_on(error)
        return f"(cannot be shown: {type(error).__name__})"


def cut(text: str, longest: int = _LONGEST) -> str:
    """The text, cut to `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _digest(names: tuple[str, ...]) -> str:
    """A twelve-character digest of some names, the same in every process."""
    return blake2b(repr(names).encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def _held_params(index: Index) -> dict[str, tuple[tuple[str, ...], int]]:
    """Maps each address to the names of the parameters at or below it, and their number of values."""
    sizes: dict[str, int] = {}
    held: dict[str, set[str]] = {}
    for address, module in index.log.registered.items():
        own = held[address] = set()
        for tensor in module.parameters.values():
            if tensor is not None:
                name = index.state_names[id(tensor)][0]
                own.add(name)
                sizes[name] = 0 if is_lazy(tensor) else tensor.numel()
    for address in reversed(held):  # reversed: a module is registered before the modules inside it
        for child in index.module_children[address]:
            held[address] |= held[child]
    return {address: (tuple(sorted(names)), sum(sizes[name] for name in names)) for address, names in held.items()}
