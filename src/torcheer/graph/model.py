"""`Graph`, `Node`, `Edge` and `ModuleBox`: an immutable graph with every fact that a picture needs.

A graph does not refer to its history. Facts that take time, such as source lines (`SourcePlace`) and the text of arguments
(`Arguments`), are computed when they are read. `add_gradient_edges` adds edges for a backward pass. `Graph.to_dict`,
`to_networkx` and `print` give the visible part in other forms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import import_module
from itertools import chain
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

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # addresses in default reprs, which differ in every run


@dataclass(frozen=True, slots=True, eq=False)
class SourcePlace:
    """A place in the program. Its source line is looked up when it is read."""

    site: Site | None
    module: ModuleCall | None

    @property
    def line(self) -> SourceLine | None:
        """The line of the program, outside torch."""
        return source_of(self.site, self.module)

    def __str__(self) -> str:
        line = self.line
        return str(line) if line is not None else ""


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """The arguments of a call, with `·` for tensors: `·, start_dim=2, end_dim=-1`. The text is made when it is read."""

    template: tuple[Any, ...]
    names: tuple[str, ...] = ()  # names of the keyword arguments, which come last in the template
    function: TorchFunction | None = None

    def pairs(self) -> list[tuple[str, Any]]:
        """Every argument as (name, value): `·` for tensors, an empty name if it is unknown.

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
        """An argument that was passed by position or by name; None if it was not passed."""
        count = len(self.template) - len(self.names)
        if position < count:
            return self.template[position]
        return self.template[count + self.names.index(name)] if name in self.names else None

    def __str__(self) -> str:
        words = [f"{name}={value!r}" if name and value is not BLANK else repr(value) for name, value in self.pairs()]
        return _ADDRESS.sub("", ", ".join(words))


@dataclass(frozen=True, slots=True)
class BufferUse:
    """A use of a buffer by an operation.

    `positions` are the arguments that were the buffer itself. They are empty if the operation only read a tensor that was
    written over the buffer earlier in the pass.
    """

    buffer: Param
    positions: tuple[str, ...] = ()
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class PythonRead:
    """A read of a tensor's value by Python code: `bool(t)`, `t.item()`."""

    function: str
    value: Any  # the number or truth value that Python got; None for other results
    place: SourcePlace | None = field(default=None, compare=False)

    @property
    def is_decision(self) -> bool:
        """True if Python got a truth value, which can decide what runs next."""
        return isinstance(self.value, bool)


# Edges for gradients, in the opposite direction to the data.


def add_gradient_edges(graph: Graph) -> Graph:
    """Add a reversed edge for each edge between two nodes that a backward pass reached.

    Apply it after all other views, which would treat gradients like data.

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
    """A graph as text: a line of counts, then one line per node. Leaves out the middle of a graph of more than 40 nodes."""
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


# The graph itself.
#
# Nodes are in execution order. Only folding and rolling make edges against this order, and mark them with `is_feedback`;
# without these edges the order is topological. A hidden node stays in the graph, so that it can be shown again.

_OfTensor = Literal["input", "output", "operation", "opaque", "alias", "source", "failed", "buffer"]
Kind = _OfTensor | Literal["identity", "chain", "module", "omitted", "stub", "plumbing"]
Sharing = Literal["", "shared", "own", "mixed"]
Shape = tuple[int, ...]


def _merged(how: Callable[[list[Any]], Any], default: Any) -> Any:
    """A field of `Node`. When several nodes become one, `how` merges their values of this field; `default` is its default."""
    return field(default=default, metadata={"merge": how})


def _agreed(values: list[Any]) -> Any:
    """Return the value if all items are equal; None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _in_order(values: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """All items of the tuples, each once, in order."""
    return tuple(dict.fromkeys(item for value in values for item in value))


def united(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The union of all parts, sorted."""
    return tuple(sorted({item for part in parts for item in part}))


def _united_buffers(parts: list[tuple[BufferUse, ...]]) -> tuple[BufferUse, ...]:
    """Merge the buffers that several nodes use: each buffer once, with all positions, and whether any node wrote to it."""
    uses: dict[str, BufferUse] = {}
    for use in (use for part in parts for use in part):
        known = uses.get(use.buffer.name)
        if known is not None and known != use:
            use = BufferUse(use.buffer, _in_order([known.positions, use.positions]), known.is_written or use.is_written)
        uses[use.buffer.name] = use
    return tuple(uses.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation, or several operations drawn as one node. `bytes` and `seconds` are sums over these operations."""

    key: str  # unique in its graph: `relu_1_2:1`; a collapsed module is `@features.6:1`
    label: str  # the same for every pass: `relu_1_2`, `features.6`
    kind: Kind = "operation"
    type: str = ""  # the layer type, as in labels; for a module, its class
    function: str = ""
    passes: tuple[int, ...] = (1,)  # the passes of the layer that this node stands for
    num_passes: int = 1  # how many times the layer ran, or the module was called
    repeats: int = 1  # how many equal blocks were folded into this node's block
    sharing: Sharing = ""  # says if the folded blocks have the same parameters
    operations: tuple[int, ...] = _merged(united, ())  # the numbers of the operations that this node stands for
    parts: tuple[str, ...] = ()  # for a chain of elementwise operations: their types, in order
    modules: tuple[str, ...] = ()  # the keys of the boxes around the node, outermost first
    exits: tuple[str, ...] = _merged(_in_order, ())  # the module calls that returned the node's tensor, innermost first
    bottom_level_module: str | None = _merged(_agreed, None)
    shape: tuple[int, ...] | None = _merged(_agreed, None)  # shape, dtype and device are None if the operations differ in them
    dtype: str | None = _merged(_agreed, None)
    device: str | None = _merged(_agreed, None)
    bytes: int = _merged(sum, 0)
    seconds: float | None = 0.0  # None for code that cannot be watched
    input_shapes: tuple[Shape, ...] = ()  # set only for modules and for the operation that raised
    output_shapes: tuple[Shape, ...] = ()
    params: tuple[Param, ...] = _merged(_in_order, ())
    buffers: tuple[BufferUse, ...] = _merged(_united_buffers, ())
    is_inplace: bool = _merged(any, False)
    from_input: bool = _merged(any, True)
    to_output: bool = _merged(any, True)  # True if the node leads to an output, or to the operation that raised
    has_gradient: bool = _merged(any, False)  # True if a recorded backward pass reached the node
    is_hidden: bool = _merged(all, False)
    python_reads: tuple[PythonRead, ...] = _merged(lambda reads: tuple(chain(*reads)), ())  # reads of its values by Python code
    error: str = ""  # the error of the operation that raised
    composite: str | None = _merged(_agreed, None)
    call: int | None = _merged(lambda calls: None, None)  # equal for all tensors of one call
    output_path: str = ""  # position of the tensor in the result of the call
    role: str = ""  # position of an input in the arguments, or of an output in the result; name of a source
    name: str = ""  # name of an input or output: `input_ids`, `logits`
    place: SourcePlace | None = field(default=None, compare=False)
    arguments: Arguments | None = field(default=None, compare=False)
    # the facts about the torch function
    facts: TorchFunction | None = field(default=None, compare=False, repr=False, metadata={"merge": _agreed})
    # for a collapsed module: a function that computes the form of its block (see `Block.form`)
    structure: Callable[[], object] | None = field(default=None, compare=False, repr=False)

    @property
    def is_internal(self) -> bool:
        """True if the tensor was made inside the model and has no input among its ancestors."""
        return not self.from_input and self.kind not in ("output", "failed", "buffer")

    @property
    def num_operations(self) -> int:
        return len(self.operations)

    @property
    def num_params(self) -> int:
        """The number of elements of its parameters, each parameter counted once."""
        return sum(param.numel for param in self.params)

    @property
    def trainable(self) -> Literal["", "trainable", "frozen", "mixed"]:
        """Says if the parameters of the node are trainable; empty if it has no parameters."""
        kinds = {param.is_trainable for param in self.params}
        if not kinds:
            return ""
        return "mixed" if len(kinds) == 2 else "trainable" if True in kinds else "frozen"

    @property
    def title(self) -> str:
        """The name that pictures show: `max_pool2d`, `add → relu → mul`, `BasicBlock`; for an input or output, `input_ids`."""
        if self.parts:
            return " → ".join(self.parts)
        if self.kind in ("input", "output"):
            return self.name or self.kind
        return self.function.strip("_") or self.type if self.kind == "operation" else self.type

    @property
    def source(self) -> str:
        """The line of the program that called the operation, looked up now; empty if unknown."""
        return str(self.place) if self.place is not None else ""


MERGES: dict[str, Callable[[list[Any]], Any]] = {f.name: f.metadata["merge"] for f in fields(Node) if "merge" in f.metadata}


@dataclass(frozen=True, slots=True)
class Edge:
    """All data that flows from one node to another."""

    source: str
    target: str
    positions: tuple[str, ...] = ()  # the target's arguments that receive it: `args[0]`, `kwargs['mask']`
    is_memory: bool = False  # True if data flows only through shared memory: the source wrote to it through another view
    is_bridge: bool = False  # True if the data flows through nodes that are not in this graph
    is_feedback: bool = False  # True for an edge from a later node to an earlier node, or from one repeat or pass to the next
    is_to_next_block: bool = False  # True for feedback that leads from one block to the next, if equal blocks are drawn as one
    passes: tuple[tuple[int, int], ...] = ((1, 1),)  # pairs: pass of the source, pass of the target
    pass_note: str = ""  # in a rolled graph: the passes in which data flows, if not in all
    tensors: tuple[int, ...] = ()  # the operations whose tensors flow
    shape: Shape | None = None  # None if the tensors have different shapes
    bytes: int = 0
    is_gradient: bool = False  # True for gradients of a backward pass, opposite to the data


@dataclass(frozen=True, slots=True)
class ModuleBox:
    """One call of a module, or several calls drawn as one box."""

    path: tuple[str, ...]  # the keys of the boxes around it, outermost first, then its own key
    address: str
    class_name: str
    calls: tuple[int, ...] = (1,)
    num_calls: int = 1
    step: str = ""  # equal for calls that are one step (see build.py): the address; `pool:2` if it has several steps
    turns: tuple[int, ...] = (1,)  # the repetitions of its step that this box stands for
    num_turns: int = 1
    repeats: int = 1
    sharing: Sharing = ""  # says if the repeats have the same parameters
    is_parallel: bool = False  # True if no repeat uses results of another repeat
    folded: tuple[str, ...] = ()  # the keys of the boxes that were folded into it
    training: bool = False
    seconds: float = 0.0  # seconds from entry to exit, on the clock
    inputs: tuple[int, ...] = ()  # numbers of the operations that are inputs
    outputs: tuple[int, ...] = ()
    input_shapes: tuple[Shape, ...] = ()
    output_shapes: tuple[Shape, ...] = ()
    span: tuple[int, int] = (0, 0)  # range `first <= n < end` of the operations that ran inside
    place: SourcePlace | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        """The address and the call number, `features.6:1`; in a rolled graph the address of the step."""
        return self.path[-1]

    @property
    def parent(self) -> str | None:
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def depth(self) -> int:
        """The number of boxes around it, plus 1: 1 for a module that the model itself calls."""
        return len(self.path)


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, the edges between them, and the boxes of the modules that they ran in.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(2)))
    >>> [node.key for node in graph.nodes]
    ['input_1_0:1', 'relu_1_1:1', 'output_1_2:1']
    >>> graph.node("relu_1_1").modules
    ('0:1',)
    """

    title: str
    all_nodes: tuple[Node, ...]  # including hidden nodes
    all_edges: tuple[Edge, ...] = ()  # including edges of hidden nodes
    all_boxes: tuple[ModuleBox, ...] = ()  # a box for every module call, even without a node
    unrolled: Graph | None = field(default=None, repr=False)  # for a rolled graph: the graph before rolling
    names: Names | None = field(default=None, repr=False, compare=False)  # matches keys; None for a graph made by hand

    def __post_init__(self) -> None:
        if len(self.by_key) != len(self.all_nodes):
            raise InvalidArgument("two nodes of a graph have the same key.")

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # a graph cannot be changed

    def __reduce_ex__(self, protocol: Any) -> Any:
        refuse_pickling("Graph", "to_dict() for plain values")

    # The visible part ---------------------------------------------------------------------------------------------

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
        """The boxes that contain a visible node, by key, outer boxes first."""
        seen = dict.fromkeys(key for path in dict.fromkeys(node.modules for node in self.nodes) for key in path)
        return MappingProxyType({key: self.boxes[key] for key in seen})

    @property
    def is_rolled(self) -> bool:
        """True if all passes of a layer are one node."""
        return self.unrolled is not None

    @property
    def roots(self) -> tuple[Node, ...]:
        """The visible nodes that no edge enters, except feedback."""
        entered = {edge.target for edge in self.edges if not edge.is_feedback}
        return tuple(node for node in self.nodes if node.key not in entered)

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The visible nodes that no edge leaves, except feedback."""
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
        """Every box, even without a node, by its key."""
        return MappingProxyType({box.key: box for box in self.all_boxes})

    @cached_property
    def edges_out(self) -> Mapping[str, list[Edge]]:
        """The edges that leave each node, including hidden nodes, in execution order."""
        return MappingProxyType(_gathered(self.all_edges, lambda edge: edge.source))

    @cached_property
    def edges_in(self) -> Mapping[str, list[Edge]]:
        """The edges that enter each node, including hidden nodes, in the order of arguments."""
        return MappingProxyType(_gathered(self.all_edges, lambda edge: edge.target))

    @cached_property
    def arguments_in(self) -> Mapping[str, frozenset[str]]:
        """Maps each node to the top-level arguments that contain tensors; `args[0][3]` counts as `args[0]`."""
        return MappingProxyType(
            {
                key: frozenset(place.partition("]")[0] + "]" for edge in edges for place in edge.positions)
                for key, edges in self.edges_in.items()
            }
        )

    def node(self, key: Any) -> Node:
        """The visible node that a key means: a node's own key, or any other key that means exactly one node."""
        found = [node for node in self.find(key) if not node.is_hidden]
        if len(found) > 1:
            raise AmbiguousKey(f"{key!r} fits {len(found)} nodes: {few((node.key for node in found), 12)}.")
        if not found:
            raise LayerNotFound(f"{key!r} is hidden in this view of the graph.")
        return found[0]

    def find(self, key: Any) -> tuple[Node, ...]:
        """Every node, hidden or not, that stands for an operation that a key means. A node's own key means that node."""
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
        """Nodes by key, with or without `@`. Nodes without operations, and all nodes of a graph made by hand, also by label."""
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
        """The visible part, as plain values that JSON can hold."""
        return as_dict(self)

    def to_networkx(self) -> Any:
        """The visible part as a networkx DiGraph, with the fields of `Node` and `Edge` as attributes. Needs networkx."""
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
