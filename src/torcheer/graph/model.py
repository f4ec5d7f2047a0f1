"""Facts of a node that are looked up or put into words only when they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

from .._text import few, human_size, listed, plural
from .._torch.functions import TorchFunction
from .._torch.functions.signatures import positional_names
from .._torch.source_code import Site, SourceLine, source_of
from ..errors import AmbiguousKey, InvalidArgument, LayerNotFound
from ..log.copying import refuse_pickling
from ..log.keys import Names, parse_key
from ..log.param import Param
from ..log.records import ModuleCall
from ..log.templates import BLANK, blank

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object in memory, another one in every run


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where in the program something ran. The line is looked up when it is read."""

    site: Site | None
    module: ModuleCall | None

    @property
    def line(self) -> SourceLine | None:
        """The line of the program (not of torch)."""
        return source_of(self.site, self.module)

    def __str__(self) -> str:
        line = self.line
        return str(line) if line is not None else ""


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """The arguments of a call without its tensors: `·, start_dim=2, end_dim=-1`. Put into words when they are read."""

    template: tuple[Any, ...]
    names: tuple[str, ...] = ()  # of the last of them, which were given by name
    function: TorchFunction | None = None

    def pairs(self) -> list[tuple[str, Any]]:
        """Every argument with its name, which is empty where it is not known; `·` in place of tensors.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Conv2d(1, 2, 3, stride=2), torch.ones(1, 1, 8, 8))
        >>> print(history.graph.node("conv2d_1_1:1").arguments)
        ·, ·, ·, stride=(2, 2), padding=(0, 0), dilation=(1, 1), groups=1
        """
        values = blank(self.template)
        given = values[: len(values) - len(self.names)]
        is_tensor = [value is BLANK for value in given]
        names = positional_names(self.function, given, is_tensor) if self.function is not None else [""] * len(given)
        return list(zip((*names, *self.names), values, strict=True))

    def value(self, position: int, name: str) -> Any:
        """An argument, which may have been given by position or by name; None where it was not given."""
        count = len(self.template) - len(self.names)
        if position < count:
            return self.template[position]
        return self.template[count + self.names.index(name)] if name in self.names else None

    def __str__(self) -> str:
        words = [f"{name}={value!r}" if name and value is not BLANK else repr(value) for name, value in self.pairs()]
        return _ADDRESS.sub("", ", ".join(words))


@dataclass(frozen=True, slots=True)
class BufferUse:
    """A buffer that was used. Without positions, only what had been written over it earlier in the pass was read."""

    buffer: Param
    positions: tuple[str, ...] = ()
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class PythonRead:
    """A value of this tensor that left for Python: `bool(t)`, `t.item()`."""

    function: str
    value: Any  # when it is a plain number or truth value
    place: Place | None = field(default=None, compare=False)

    @property
    def is_decision(self) -> bool:
        """Whether a truth value left, which can decide what runs next."""
        return isinstance(self.value, bool)


# Gradients as edges: where a backward pass went, against the data.


def add_gradient_edges(graph: Graph) -> Graph:
    """Add a reversed edge for each edge between two nodes that a backward pass reached.

    Apply it after all other views: they would treat gradients like data.

    >>> import torch, torcheer
    >>> x = torch.ones(2, requires_grad=True)
    >>> history = torcheer.log_forward_pass(torch.nn.ReLU(), x, save_gradients=True)
    >>> passed = history.log_backward(history["output"].tensor_contents.sum())
    >>> [(edge.source, edge.target) for edge in add_gradient_edges(history.graph).edges if edge.is_gradient]
    [('relu_1_1:1', 'input_1_0:1')]
    """
    nodes = graph.by_key
    gradients = [
        replace(edge, source=edge.target, target=edge.source, positions=(), pass_note="", is_feedback=True, is_gradient=True)
        for edge in graph.all_edges
        if not (edge.is_gradient or edge.is_feedback) and nodes[edge.source].has_gradient and nodes[edge.target].has_gradient
    ]
    return replace(graph, all_edges=(*graph.all_edges, *gradients))


# A graph in other forms: plain values, networkx, text.

_LINES_SHOWN = 40
_LEFT_OUT = {"is_hidden", "structure", "facts"}


def as_dict(graph: Graph) -> dict[str, Any]:
    """The visible part of a graph as values that JSON can hold."""
    return {
        "title": graph.title,
        "is_rolled": graph.is_rolled,
        "nodes": [node_dict(node) for node in graph.nodes],
        "edges": [_plain_fields(edge) for edge in graph.edges],
        "modules": [box_dict(box) for box in graph.modules.values()],
    }


def node_dict(node: Node) -> dict[str, Any]:
    """A node's fields and some of its properties, as plain values."""
    derived = {"title": node.title, "trainable": node.trainable, "num_params": node.num_params}
    return {**_plain_fields(node), **derived, "num_operations": node.num_operations}


def box_dict(box: ModuleBox) -> dict[str, Any]:
    """A box's fields and some of its properties, as plain values."""
    return {"key": box.key, "parent": box.parent, "depth": box.depth, **_plain_fields(box)}


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls) if f.name not in _LEFT_OUT)


def _plain_fields(record: Any) -> dict[str, Any]:
    cls: Any = type(record)
    return {name: _plain(getattr(record, name)) for name in _names(cls)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Param):
        return {**_plain_fields(value), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, (BufferUse, PythonRead)):
        return _plain_fields(value)
    return str(value)


def as_networkx(graph: Graph) -> Any:
    """The visible part of a graph for networkx."""
    try:
        networkx = import_module("networkx")
    except ImportError as error:
        raise ImportError("to_networkx() needs networkx: pip install networkx") from error
    made = networkx.DiGraph(title=graph.title)
    made.add_nodes_from((node.key, _fields(node)) for node in graph.nodes)
    made.add_edges_from((edge.source, edge.target, _fields(edge)) for edge in graph.edges)
    return made


def _fields(record: Node | Edge) -> dict[str, Any]:
    ends = ("key", "source", "target") if hasattr(record, "target") else ("key",)
    cls: Any = type(record)
    return {name: getattr(record, name) for name in _names(cls) if name not in ends}


def listing(graph: Graph) -> str:
    """A graph as text: a line with the counts, then a line for each node; the middle is left out if there are many."""
    rolled = "rolled graph" if graph.is_rolled else "graph"
    counts = ", ".join(
        plural(count, noun)
        for count, noun in ((len(graph.nodes), "node"), (len(graph.edges), "edge"), (len(graph.modules), "module"))
    )
    keys: dict[str, list[str]] = {}
    for edge in graph.edges:
        note = f" [{edge.pass_note}]" if edge.pass_note else ""
        keys.setdefault(edge.target, []).append(edge.source + note)
    nodes, head = graph.nodes, _LINES_SHOWN * 3 // 4
    left_out = max(0, len(nodes) - _LINES_SHOWN)
    lines = [_line(node, keys) for node in (*nodes[:head], *nodes[head + left_out :])]
    if left_out:
        lines.insert(head, f"… {plural(left_out, 'node')} more …")
    return "\n".join([f"{rolled} of {graph.title}: {counts}:", *(f"    {line}" for line in lines)])


def _line(node: Node, sources: dict[str, list[str]]) -> str:
    times = f" ×{node.num_passes}" if len(node.passes) > 1 else ""
    times += f" ×{node.repeats}" + (f" ({node.sharing} parameters)" if node.sharing else "") if node.repeats > 1 else ""
    what = f" {node.title}" if node.kind in ("module", "chain") else ""
    shape = f" {'×'.join(map(str, node.shape)) or 'scalar'}" if node.shape is not None else ""
    size = f" {human_size(node.bytes)}" if node.bytes else ""
    used = sources.get(node.key, [])
    parents = f" ← {listed(used, 6)}" if used else ""
    return f"{node.key}{times}{what}{shape}{size}{parents}"


# Graph: nodes, edges and module boxes, immutable, with every fact a picture needs and no way back to the history.
#
# Nodes stand in execution order. An edge that goes against that order, which only folding and rolling make, says so
# (`is_feedback`); without those edges the order is topological. A hidden node stays in the graph, so that it can be
# shown again.

_OfTensor = Literal["input", "output", "operation", "opaque", "alias", "source", "failed", "buffer"]
Kind = _OfTensor | Literal["identity", "chain", "module", "omitted", "stub"]
Sharing = Literal["", "shared", "own", "mixed"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation, or several that are drawn as one. Sums (`bytes`, `seconds`) are over all it stands for."""

    key: str  # unique in its graph: `relu_1_2:1`; a collapsed module is `@features.6:1`
    label: str  # the same for every pass: `relu_1_2`, `features.6`
    kind: Kind = "operation"
    type: str = ""  # as labels spell it; the class of a module
    function: str = ""
    passes: tuple[int, ...] = (1,)  # those it stands for
    num_passes: int = 1  # how often the layer ran, or the module was called
    repeats: int = 1  # how many equal blocks were folded into this one
    sharing: Sharing = ""  # whether those have the same parameters
    operations: tuple[int, ...] = ()  # the numbers of the operations it stands for
    parts: tuple[str, ...] = ()  # of a chain: its types, in order
    modules: tuple[str, ...] = ()  # the keys of the boxes it is in, outermost first
    exits: tuple[str, ...] = ()  # the module calls that returned it, innermost first
    bottom_level_module: str | None = None
    shape: Shape | None = None  # None where there is no one answer
    dtype: str | None = None
    device: str | None = None
    bytes: int = 0
    seconds: float | None = 0.0  # None where it ran in code that cannot be watched
    input_shapes: tuple[Shape, ...] = ()  # of a module
    output_shapes: tuple[Shape, ...] = ()
    params: tuple[Param, ...] = ()
    buffers: tuple[BufferUse, ...] = ()
    is_inplace: bool = False
    from_input: bool = True
    to_output: bool = True  # leads to an output, or to the operation that raised
    has_gradient: bool = False  # a backward pass that was followed reached it
    is_hidden: bool = False
    python_reads: tuple[PythonRead, ...] = ()  # values that left for Python
    error: str = ""  # of the operation that raised
    composite: str | None = None
    call: int | None = None  # the same for all tensors of one call
    output_path: str = ""  # which of them this is
    role: str = ""  # where an input was given or an output returned; what a source is called
    place: Place | None = field(default=None, compare=False)
    arguments: Arguments | None = field(default=None, compare=False)
    facts: TorchFunction | None = field(default=None, compare=False, repr=False)  # what is known of its function
    structure: Callable[[], object] | None = field(default=None, compare=False, repr=False)  # the form of a module's nodes

    @property
    def is_internal(self) -> bool:
        """Whether it was made inside the model and has no input among its ancestors."""
        return not self.from_input and self.kind not in ("output", "failed", "buffer")

    @property
    def num_operations(self) -> int:
        return len(self.operations)

    @property
    def num_params(self) -> int:
        """How many parameter values it used, each parameter counted once."""
        return sum(param.numel for param in self.params)

    @property
    def trainable(self) -> Literal["", "trainable", "frozen", "mixed"]:
        """Whether its parameters are trainable; empty when it has none."""
        kinds = {param.is_trainable for param in self.params}
        if not kinds:
            return ""
        return "mixed" if len(kinds) == 2 else "trainable" if True in kinds else "frozen"

    @property
    def title(self) -> str:
        """What it is, in a word: `relu`, `add → relu → mul`, `BasicBlock`."""
        return " → ".join(self.parts) if self.parts else self.type

    @property
    def source(self) -> str:
        """The line of the program it ran for, looked up now; empty when unknown."""
        return str(self.place) if self.place is not None else ""


@dataclass(frozen=True, slots=True)
class Edge:
    """Everything that flows from one node to another."""

    source: str
    target: str
    positions: tuple[str, ...] = ()  # the arguments it came through: `args[0]`, `kwargs['mask']`
    is_memory: bool = False  # through shared memory only: a write that reached the target by another view
    is_bridge: bool = False  # through nodes that are not in this graph
    is_feedback: bool = False  # from a later node to an earlier one, or from one repeat or pass to the next
    is_to_next_block: bool = False  # feedback from one of several equal blocks, drawn as one, to the next
    passes: tuple[tuple[int, int], ...] = ((1, 1),)  # pass of the source, pass of the target
    pass_note: str = ""  # in a rolled graph, the passes that travel it, where that needs saying
    tensors: tuple[int, ...] = ()  # the operations whose tensors it carries
    shape: Shape | None = None  # None where they differ
    bytes: int = 0
    is_gradient: bool = False  # gradients of a backward pass, against the data


@dataclass(frozen=True, slots=True)
class ModuleBox:
    """One call of a module, or several that are drawn as one."""

    path: tuple[str, ...]  # the keys of the boxes around it, outermost first, and its own
    address: str
    class_name: str
    calls: tuple[int, ...] = (1,)
    num_calls: int = 1
    step: str = ""  # the same for calls that are one step of the model: the address; `pool:2` where there are several steps
    turns: tuple[int, ...] = (1,)  # which times of its step it stands for
    num_turns: int = 1
    repeats: int = 1
    sharing: Sharing = ""  # whether the repeats have the same parameters
    is_parallel: bool = False  # the repeats do not feed one another
    folded: tuple[str, ...] = ()  # the keys of the boxes that were folded into it
    training: bool = False
    seconds: float = 0.0  # from entry to exit, on the clock
    inputs: tuple[int, ...] = ()  # operations
    outputs: tuple[int, ...] = ()
    input_shapes: tuple[Shape, ...] = ()
    output_shapes: tuple[Shape, ...] = ()
    span: tuple[int, int] = (0, 0)  # operations `first <= n < end` ran inside
    place: Place | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """`features.6:1`; without the call in a rolled graph."""
        return self.path[-1]

    @property
    def parent(self) -> str | None:
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def depth(self) -> int:
        """1 for a module that the model itself calls."""
        return len(self.path)


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, edges between them, and the boxes of the modules they ran in.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(2)))
    >>> [node.key for node in graph.nodes]
    ['input_1_0:1', 'relu_1_1:1', 'output_1_2:1']
    >>> graph.node("relu_1_1").modules
    ('0:1',)
    """

    title: str
    all_nodes: tuple[Node, ...]  # hidden ones included, as in `all_edges`
    all_edges: tuple[Edge, ...] = ()
    all_boxes: tuple[ModuleBox, ...] = ()  # of every module call, also those without a node
    unrolled: Graph | None = field(default=None, repr=False)  # of a rolled graph: the graph that was rolled
    names: Names | None = field(default=None, repr=False, compare=False)  # what keys are matched with; None in one made by hand

    def __post_init__(self) -> None:
        if len(self.by_key) != len(self.all_nodes):
            raise InvalidArgument("two nodes of a graph have the same key.")

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # nothing in it changes

    def __reduce_ex__(self, protocol: Any) -> Any:
        refuse_pickling("Graph", "to_dict() for plain values")

    # What is seen -------------------------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The visible nodes, in execution order."""
        return tuple([node for node in self.all_nodes if not node.is_hidden])

    @property
    def num_operations(self) -> int:
        """How many operations the visible nodes stand for, inputs and outputs included, as in `history.num_operations`."""
        return len({number for node in self.nodes for number in node.operations})

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The edges between visible nodes, by target, in the order of arguments."""
        hidden = {node.key for node in self.all_nodes if node.is_hidden}
        if not hidden:
            return self.all_edges
        return tuple([edge for edge in self.all_edges if edge.source not in hidden and edge.target not in hidden])

    @cached_property
    def modules(self) -> Mapping[str, ModuleBox]:
        """The boxes that hold a visible node, by key, outer ones first."""
        seen = dict.fromkeys(key for path in dict.fromkeys(node.modules for node in self.nodes) for key in path)
        return MappingProxyType({key: self.boxes[key] for key in seen})

    @property
    def is_rolled(self) -> bool:
        """Whether the passes of a layer are one node."""
        return self.unrolled is not None

    @property
    def roots(self) -> tuple[Node, ...]:
        """The nodes that nothing leads to."""
        entered = {edge.target for edge in self.edges if not edge.is_feedback}
        return tuple(node for node in self.nodes if node.key not in entered)

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The nodes that lead nowhere."""
        left = {edge.source for edge in self.edges if not edge.is_feedback}
        return tuple(node for node in self.nodes if node.key not in left)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __contains__(self, key: object) -> bool:
        try:
            return any(not node.is_hidden for node in self.find(key))
        except (LayerNotFound, InvalidArgument):
            return False

    # Neighbours and lookup ----------------------------------------------------------------------------------------

    @cached_property
    def by_key(self) -> Mapping[str, Node]:
        """Every node, hidden or not, by its key."""
        return MappingProxyType({node.key: node for node in self.all_nodes})

    @cached_property
    def boxes(self) -> Mapping[str, ModuleBox]:
        """Every box, whether it holds a node or not, by its key."""
        return MappingProxyType({box.key: box for box in self.all_boxes})

    @cached_property
    def edges_out(self) -> Mapping[str, list[Edge]]:
        """The edges that leave each node, hidden ones included, in execution order."""
        return MappingProxyType(_gathered(self.all_edges, lambda edge: edge.source))

    @cached_property
    def edges_in(self) -> Mapping[str, list[Edge]]:
        """The edges that enter each node, hidden ones included, in the order of arguments."""
        return MappingProxyType(_gathered(self.all_edges, lambda edge: edge.target))

    @cached_property
    def arguments_in(self) -> Mapping[str, frozenset[str]]:
        """The arguments through which tensors enter each node: `args[0]` also for `args[0][3]`."""
        return MappingProxyType(
            {
                key: frozenset(place.partition("]")[0] + "]" for edge in edges for place in edge.positions)
                for key, edges in self.edges_in.items()
            }
        )

    def node(self, key: Any) -> Node:
        """The visible node a key means: a node's key, or any other key that means just one node."""
        found = [node for node in self.find(key) if not node.is_hidden]
        if len(found) > 1:
            raise AmbiguousKey(f"{key!r} fits {len(found)} nodes: {few((node.key for node in found), 12)}.")
        if not found:
            raise LayerNotFound(f"{key!r} is hidden in this view of the graph.")
        return found[0]

    def find(self, key: Any) -> tuple[Node, ...]:
        """Every node, hidden or not, that stands for an operation a key means. A node's own key means that node."""
        own = self._by_name.get(key, ()) if isinstance(key, str) else ()
        if own:
            return tuple(own)
        if self.names is None:
            raise LayerNotFound(f"no node fits {key!r}: this graph was made by hand and has {few(self.by_key, 12)}.")
        numbers = parse_key(key).meaning(self.names).numbers
        found = {node.key: node for number in numbers for node in self._by_operation.get(number, ())}
        if not found:
            raise LayerNotFound(f"no node stands for what {key!r:.80} means: this graph has {len(self)} nodes.")
        return tuple(found.values())

    @cached_property
    def _by_name(self) -> dict[str, list[Node]]:
        """Nodes by key, with or without `@`; by label too, for nodes of no operation, and for all in a graph made by hand."""
        labelled = tuple([node for node in self.all_nodes if not node.operations or self.names is None])
        found = _gathered(labelled, lambda node: node.label)
        for node in self.all_nodes:
            found[node.key] = [node]
            found.setdefault(node.key.removeprefix("@"), [node])
        return found

    @cached_property
    def _by_operation(self) -> dict[int, list[Node]]:
        """The nodes that stand for each operation."""
        found: dict[int, list[Node]] = {}
        for node in self.all_nodes:
            for number in node.operations:
                found.setdefault(number, []).append(node)
        return found

    def boxes_of(self, key: Any) -> list[ModuleBox]:
        """The boxes of the module calls that a key means."""
        if self.names is None:
            found = [box for box in self.all_boxes if key in (box.key, box.address)]
            if not found:
                raise LayerNotFound(f"no module fits {key!r}: this graph was made by hand.")
            return found
        calls = {(call.address, call.call) for call in parse_key(key).modules(self.names)}
        found = [box for box in self.all_boxes if any((box.address, call) in calls for call in box.calls)]
        if not found:
            raise LayerNotFound(f"{key!r} means the model itself, which is the whole graph and has no box.")
        return found

    def parents(self, key: Any) -> tuple[Node, ...]:
        """The visible nodes that lead to a node, in the order of its arguments."""
        edges = self.edges_in.get(self.node(key).key, ())
        return tuple(node for edge in edges if not (node := self.by_key[edge.source]).is_hidden)

    def children(self, key: Any) -> tuple[Node, ...]:
        """The visible nodes that a node leads to, in execution order."""
        edges = self.edges_out.get(self.node(key).key, ())
        return tuple(node for edge in edges if not (node := self.by_key[edge.target]).is_hidden)

    # Other forms --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What is seen, as plain values that JSON can hold."""
        return as_dict(self)

    def to_networkx(self) -> Any:
        """What is seen, as a networkx DiGraph whose nodes and edges have the fields of these. Needs networkx."""
        return as_networkx(self)

    def __str__(self) -> str:
        return listing(self)

    def __repr__(self) -> str:
        return listing(self).partition("\n")[0].removesuffix(":")


def _gathered(items: tuple[Any, ...], name: Callable[[Any], str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        found.setdefault(name(item), []).append(item)
    return found
