"""The architecture of a model, to check that a run is resumed with the model it was made with; and a tracer of it.

It is the classes of all modules, the shapes of all parameters, and the settings of modules: numbers, texts and functions (such
as an activation) that `__init__` assigns and no other method does. An attribute that another method assigns is a counter or is
learned; one that `__init__` does not assign was set by the training.
"""

from __future__ import annotations

import dis
import math
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from .._text import plural
from .._torch.containers import find_tensors
from ..errors import LayerNotFound
from ..history import Operation
from ..log.run import run_of
from .layers import ASKED, activation_after, default_watches
from .probe import Probe


def architecture_of(model: Module) -> dict[str, Any]:
    """The architecture as JSON values: classes and settings of modules, and shapes of parameters, by name."""
    modules = dict(model.named_modules())
    settings = {address: _settings(module) for address, module in modules.items()}
    return {
        "modules": {address: _class_of(module).__qualname__ for address, module in modules.items()},
        "settings": {address: found for address, found in settings.items() if found},
        "parameters": {name: None if is_lazy(one) else list(one.shape) for name, one in model.named_parameters()},
    }


def _class_of(module: Module) -> type:
    """The class of a module; for a lazy module, the class that it becomes when its shapes are known."""
    return getattr(module, "cls_to_become", None) or type(module)


def _settings(module: Module) -> dict[str, Any]:
    if _class_of(module) is not type(module):
        return {}
    names = _setting_names(cast(Any, type(module)))
    return {name: _plain(value) for name, value in vars(module).items() if name in names and _is_plain(value)}


@cache
def _setting_names(cls: Any) -> frozenset[str]:
    """The attributes that only `__init__` assigns; `__setstate__`, which makes old pickles complete, does not count."""
    initial, others = set[str](), {"training"}
    for base in cls.__mro__[: cls.__mro__.index(Module)]:
        for name, member in vars(base).items():
            if isinstance(member, FunctionType) and name != "__setstate__":
                (initial if name == "__init__" else others).update(
                    one.argval for one in dis.get_instructions(member) if one.opname == "STORE_ATTR"
                )
    return frozenset(name for name in initial - others if not name.startswith("_"))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, FunctionType, BuiltinFunctionType))


def _plain(value: Any) -> Any:
    """Convert a setting to a value that JSON can hold."""
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return {"function": value.__name__}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# Comparing ----------------------------------------------------------------------------------------------------------


def differences(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Sentences about how a model differs from the recorded model; empty if it does not differ.

    Runs of older versions recorded no settings, and only the modules that have parameters.
    """
    found = _of_parameters(recorded.get("parameters", {}), now["parameters"])
    found += _of_modules(recorded.get("modules", {}), now["modules"], is_complete="settings" in recorded)
    if "settings" in recorded:
        found += _of_settings(recorded["settings"], now["settings"])
    return found


def _of_parameters(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    found = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            found.append(f"the run has a parameter {name!r} {_shape(before[name])}, the model has none")
        elif name not in before:
            found.append(f"the model has a parameter {name!r} {_shape(after[name])}, the run has none")
        elif None not in (before[name], after[name]) and before[name] != after[name]:
            found.append(f"parameter {name!r} is {_shape(after[name])} in the model and {_shape(before[name])} in the run")
    return found


def _of_modules(before: dict[str, str], after: dict[str, str], *, is_complete: bool) -> list[str]:
    found = [
        f"{_module(address)} is a {after[address]} in the model and a {before[address]} in the run"
        for address in before
        if address in after and before[address] != after[address]
    ]
    if is_complete:
        missing, more = (sorted(one.keys() - other.keys()) for one, other in ((before, after), (after, before)))
        found += [f"the run has a {_module(address)}, a {before[address]}, the model has none" for address in missing]
        found += [f"the model has a {_module(address)}, a {after[address]}, the run has none" for address in more]
    return found


def _of_settings(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{name} of {_module(address)} is {_value(settings[name])} in the model and {_value(before[address][name])} in the run"
        for address, settings in after.items()
        for name in settings
        if name in before.get(address, ()) and before[address][name] != settings[name]
    ]


def _module(address: str) -> str:
    return f"module {address!r}" if address else "the model"


def _value(value: Any) -> str:
    """The text for a setting, as Python writes it."""
    if isinstance(value, dict):
        return str(value.get("function"))
    if isinstance(value, list):
        return f"({', '.join(map(_value, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _shape(shape: list[int] | None) -> str:
    return "of unknown shape" if shape is None else "×".join(map(str, shape)) or "of one value"


# ArchitectureTracer: which layers a model has, what each is connected to, and from autograd's nodes to layers and
# back.

Node = Any  # an autograd node


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
            """Note the nodes in the order they run. The history notes nodes in the same order."""
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
            both = min(len(nodes), len(theirs.get(name, ())))  # the nodes of the loss, which the history lacks, ran first
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
        """The activation function that uses a layer's output; None if there is none."""
        after = activation_after(self._layer(layer))
        return after.label if after is not None else None

    def module(self, layer: str) -> str | None:
        """The module a layer ran in; None in the model's own forward."""
        return self._layer(layer).containing_module

    def grad_fn(self, layer: str) -> str | None:
        """The name of the autograd node that receives the gradient of a layer's output; None if there is no node."""
        return self._layer(layer).gradfunc

    def nodes_of(self, layer: str) -> list[Node]:
        """The autograd nodes that belong to a layer."""
        label = self._layer(layer).label
        return [
            node
            for node, owner in self._nodes.items()
            if owner is not None and owner.partition(":")[0] == label.partition(":")[0]
        ]

    def layer_of(self, grad_fn: Node) -> str | None:
        """The layer of a node in `output`'s backward graph; for a node that accumulates a gradient, its parameter."""
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
        """The layers and kinds that an Xray watches by default, as a dictionary to change and pass to an Xray."""
        return {
            watch.name: {kind: watch.wants(kind) for kind in ASKED if kind != "attention" or watch.wants(kind)}
            for watch in default_watches(self.history)
        }

    def _layer(self, key: str) -> Operation:
        found = run_of(self.history).lookup.find(key)
        return Operation(run_of(self.history).index, found.number if found.number is not None else found.layer.passes[0])

    def __str__(self) -> str:
        lines = [f"{self.history.model_name}: {plural(len(self.layers), 'layer')}"]
        for layer in self.history:
            first = layer.passes[0]
            after = f" → {', '.join(first.child_layers)}" if first.child_layers else ""
            where = f"  [{first.containing_module}]" if first.containing_module else ""
            lines.append(f"    {layer.label}{where}  {first.gradfunc or '–'}{after}")
        return "\n".join(lines)


def _any_loss(output: Any) -> Tensor:
    """A scalar that depends on every returned tensor that has a gradient."""
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
