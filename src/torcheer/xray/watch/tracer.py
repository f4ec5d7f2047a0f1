"""ArchitectureTracer: which layers a model has, what each is connected to, and from autograd's nodes to layers and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ...containers import find_tensors
from ...errors import LayerNotFound
from ...history import Operation
from ...history.printing.text import plural
from .layer_finder import ASKED, activation_after, default_watches
from .probe import Probe

Node = Any  # of autograd


class ArchitectureTracer:
    """The layers of a model and the connections between them, functions as well as modules.

    >>> import torch
    >>> tracer = ArchitectureTracer(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), (1, 2))
    >>> tracer.layers
    ['input_1_0', 'linear_1_1', 'relu_1_2', 'output_1_3']
    >>> tracer.grad_fn("0"), tracer.layer_of(tracer.output.grad_fn)
    ('AddmmBackward0', 'relu_1_2')

    Args:
        model, input: as in `Xray`.

    Every node of the backward graph belongs to the layer whose tensor it made, or is a part of one; from there to the module it
    ran in. The graph is walked once, by a backward pass that touches no `.grad`.
    """

    def __init__(self, model: Module, input: object, *, seed: int = 0) -> None:
        probe = Probe(model, input, loss_fn=_any_loss, seed=seed)
        self._nodes: dict[Node, str | None] = {}
        self._model = probe.model
        self.output: Any = None
        ran: list[Node] = []

        def look(output: Any) -> Tensor:
            """Note the nodes in the order they run: the history notes them in the same order."""
            self.output = output
            loss = _any_loss(output)
            for node in _nodes_behind(loss):
                node.register_hook(lambda *_, node=node: ran.append(node))
            return loss

        probe.loss_fn = look
        self.history, _, _ = probe.run_backward()
        self._leaves = {id(param): name for name, param in self._model.named_parameters()}
        operations = self.history.backward_passes[-1].operations if self.history.backward_passes else []
        theirs = {name: [op for op in operations if op.name == name] for name in {op.name for op in operations}}
        ours: dict[str, list[Node]] = {}
        for node in ran:
            ours.setdefault(type(node).__name__, []).append(node)
        for name, nodes in ours.items():
            both = min(len(nodes), len(theirs.get(name, ())))  # the loss has nodes of its own, which ran first
            for node, operation in zip(nodes[-both:], theirs[name][-both:], strict=True) if both else ():
                self._nodes[node] = operation.layer_label
        self._nodes = {**dict.fromkeys(ran), **self._nodes}

    @property
    def layers(self) -> list[str]:
        """The labels of all layers, in execution order."""
        return self.history.layer_labels

    @property
    def modules(self) -> list[str]:
        """The addresses of all modules that ran."""
        return [address for address, module in self.history.modules.items() if address and module.num_calls]

    def parents(self, layer: str) -> list[str]:
        """The layers a layer takes its input from."""
        return self._layer(layer).parent_layers

    def children(self, layer: str) -> list[str]:
        """The layers that take a layer's output."""
        return self._layer(layer).child_layers

    def activation(self, layer: str) -> str | None:
        """The activation function that consumes a layer's output; None where there is none."""
        after = activation_after(self._layer(layer))
        return after.label if after is not None else None

    def module(self, layer: str) -> str | None:
        """The module a layer ran in; None in the model's own forward."""
        return self._layer(layer).containing_module

    def grad_fn(self, layer: str) -> str | None:
        """The name of the node that takes the gradient of a layer's output; None where there is none."""
        return self._layer(layer).gradfunc

    def nodes_of(self, layer: str) -> list[Node]:
        """The nodes of autograd that belong to a layer."""
        label = self._layer(layer).label
        return [
            node
            for node, owner in self._nodes.items()
            if owner is not None and owner.partition(":")[0] == label.partition(":")[0]
        ]

    def layer_of(self, grad_fn: Node) -> str | None:
        """The layer a node of `output`'s backward graph belongs to; the parameter, for one that adds up its gradient."""
        leaf = getattr(grad_fn, "variable", None)
        if leaf is not None:
            return self._leaves.get(id(leaf))
        if grad_fn not in self._nodes:
            raise LayerNotFound(
                f"{type(grad_fn).__name__} is not of the graph behind tracer.output. Start from tracer.output.grad_fn "
                "and follow next_functions."
            )
        return self._nodes[grad_fn]

    def layers_to_inspect(self) -> dict[str, dict[str, bool]]:
        """What an Xray watches by default, as a dictionary to change and give to it."""
        return {
            watch.name: {kind: watch.wants(kind) for kind in ASKED if kind != "attention" or watch.wants(kind)}
            for watch in default_watches(self.history)
        }

    def _layer(self, key: str) -> Operation:
        found = self.history._lookup.find(key)
        return Operation(self.history._index, found.number if found.number is not None else found.layer.passes[0])

    def __str__(self) -> str:
        lines = [f"{self.history.model_name}: {plural(len(self.layers), 'layer')}"]
        for layer in self.history:
            first = layer.passes[0]
            after = f" → {', '.join(first.child_layers)}" if first.child_layers else ""
            where = f"  [{first.containing_module}]" if first.containing_module else ""
            lines.append(f"    {layer.label}{where}  {first.gradfunc or '–'}{after}")
        return "\n".join(lines)


def _any_loss(output: Any) -> Tensor:
    """A number that depends on everything a model returned that has a gradient."""
    parts = [tensor.abs().sum() for _, tensor in find_tensors(output) if tensor.requires_grad]
    if not parts:
        return torch.zeros((), requires_grad=True, device="cpu").clone()
    return torch.stack([part.float().to(parts[0].device) for part in parts]).sum()


def _nodes_behind(loss: Tensor) -> list[Node]:
    waiting, seen = [loss.grad_fn], dict[Node, None]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [following for following, _ in node.next_functions]
    return [node for node in seen if not hasattr(node, "variable")]
