"""The form of a block of a graph, without its place and the names of its parts: blocks of equal forms are equal."""

from __future__ import annotations

from functools import cached_property

from .model import Edge, Graph, ModuleBox, Node


class OwnForms:
    """What nodes are by themselves, without edges and places, as numbers that are equal where the nodes are."""

    def __init__(self) -> None:
        self._numbers: dict[object, object] = {}  # by form
        self._known: dict[str, object] = {}  # by key of the node

    def of(self, node: Node) -> object:
        found = self._known.get(node.key)
        if found is None:
            form = own_form(node)
            try:
                found = self._numbers.setdefault(form, len(self._numbers))
            except TypeError:  # a part of the form has no hash
                found = form
            self._known[node.key] = found
        return found


def own_form(node: Node) -> tuple[object, ...]:
    """What a node is by itself: its function, shapes, arguments and the values that left for Python."""
    return (
        (node.kind, node.type, node.function, node.shape, node.dtype, node.is_inplace, node.output_path, node.composite),
        (node.parts, node.input_shapes, node.output_shapes, len(node.passes), node.repeats, node.sharing),
        _words(node),
        tuple([read.function for read in node.python_reads]),
        node.structure() if node.structure is not None else None,
    )


def _words(node: Node) -> object:
    """The arguments of a node as text; arguments that cannot be shown equal no others."""
    try:
        return str(node.arguments) if node.arguments is not None else ""
    except Exception:  # a user-defined __repr__ may raise anything
        return object()


class Block:
    """The nodes of one module call, in order; or several nodes in a row, as a collapsed call or several steps are.

    `depth` is how many modules are around all of them. Blocks with the same `forms` compare faster.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: list[Node],
        box: ModuleBox | None,
        depth: int | None = None,
        forms: OwnForms | None = None,
    ) -> None:
        self.graph = graph
        self._own_form = forms.of if forms is not None else own_form
        self.nodes = nodes
        self.box = box
        self.depth = box.depth if box is not None else depth if depth is not None else len(nodes[0].modules)
        self.numbers = {node.key: number for number, node in enumerate(nodes)}

    @property
    def key(self) -> str:
        return self.box.key if self.box is not None else self.nodes[0].key

    @property
    def class_name(self) -> str:
        return self.box.class_name if self.box is not None else self.nodes[0].type

    @property
    def outermost(self) -> set[str]:
        """The key of the module call, or of the calls among the steps."""
        if self.box is not None:
            return {self.box.key}
        return {node.modules[self.depth] for node in self.nodes if len(node.modules) > self.depth}

    @cached_property
    def entries(self) -> list[tuple[int, Edge]]:
        """The edges that come from outside, each with the number of the node it enters."""
        edges = self.graph.edges_in
        return [
            (number, edge)
            for number, node in enumerate(self.nodes)
            for edge in edges.get(node.key, ())
            if edge.source not in self.numbers and not edge.is_feedback
        ]

    @cached_property
    def form(self) -> tuple[object, ...]:
        """Everything that must be the same in equal blocks: functions, shapes, edges inside, constants."""
        self._states: dict[str, int] = {}
        self._calls: dict[int | None, int] = {}
        self._boxes: dict[str, int] = {}
        nodes = tuple([self._node_form(node) for node in self.nodes])
        leaving = tuple([number for number, node in enumerate(self.nodes) if self._leaves(node)])
        return (self.class_name, nodes, leaving, tuple(self._box_form(key) for key in self._boxes))

    def _leaves(self, node: Node) -> bool:
        return any(e.target not in self.numbers and not e.is_feedback for e in self.graph.edges_out.get(node.key, ()))

    def _node_form(self, node: Node) -> tuple[object, ...]:
        states = [(use.buffer, (use.positions, use.is_written)) for use in node.buffers]
        return (
            self._own_form(node),
            self._calls.setdefault(node.call, len(self._calls)) if node.call is not None else -1,
            tuple([self._boxes.setdefault(key, len(self._boxes)) for key in node.modules[self.depth :]]),
            tuple(
                [
                    (self._states.setdefault(one.name, len(self._states)), one.shape, one.dtype, one.is_trainable, how)
                    for one, how in (*((param, None) for param in node.params), *states)
                ]
            ),
            tuple([self._edge_form(edge) for edge in self.graph.edges_in.get(node.key, ()) if not edge.is_feedback]),
        )

    def _edge_form(self, edge: Edge) -> tuple[object, ...]:
        return (self.numbers.get(edge.source, -1), edge.positions, edge.is_memory, edge.is_bridge, edge.shape)

    def _box_form(self, key: str) -> tuple[object, ...]:
        box = self.graph.boxes[key]
        around = self.box or self.graph.boxes[box.path[self.depth]]  # the addresses of a block's outermost calls may differ
        name = box.address.removeprefix(around.address) if box is not around else ""
        return (box.class_name, name, box.training)
