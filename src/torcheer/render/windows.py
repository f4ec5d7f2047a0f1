"""How a convolution or a pool moves over its input, in words: `kernel 3×3, stride 2, padding 1`."""

from __future__ import annotations

import re
from typing import Any

from ..graph import Graph, Node

_CONVOLUTION = re.compile(r"conv(_transpose)?([123])d")
_POOL = re.compile(r"(max|avg|lp)_pool([123])d(_with_indices)?")
# Where arguments stand in a call; after the input, and in convolutions after weight and bias.
_ARGUMENTS = {
    "conv": {"stride": 3, "padding": 4, "dilation": 5, "groups": 6},
    "conv_transpose": {"stride": 3, "padding": 4, "output padding": 5, "groups": 6, "dilation": 7},
    "max": {"stride": 2, "padding": 3, "dilation": 4},
    "avg": {"stride": 2, "padding": 3},
    "lp": {"stride": 3},
}
_PLAIN = {"padding": 0, "output padding": 0, "dilation": 1, "groups": 1}


def window_words(node: Node, graph: Graph) -> list[str]:
    """Kernel and stride, and what else is not as usual; nothing for other operations.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.ones(1, 3, 9, 9))
    >>> window_words(history.graph.node("conv2d_1_1"), history.graph)
    ['kernel 3×3', 'stride 2', 'padding 1']
    """
    convolution, pool = _CONVOLUTION.fullmatch(node.function), _POOL.fullmatch(node.function)
    if node.kind != "operation" or node.arguments is None or (convolution is None and pool is None):
        return []
    if convolution is not None:
        dims, places = int(convolution[2]), _ARGUMENTS["conv_transpose" if convolution[1] else "conv"]
        weight = _weight(node, graph, dims)
        kernel: Any = weight[2:] if weight is not None else None
        usual: Any = 1
    else:
        assert pool is not None
        dims, places = int(pool[2]), _ARGUMENTS[pool[1]]
        kernel = node.arguments.value(2 if pool[1] == "lp" else 1, "kernel_size")
        usual = kernel
    found = {name: node.arguments.value(place, name.replace(" ", "_")) for name, place in places.items()}
    if found["stride"] in (None, (), []):
        found["stride"] = usual
    words = [f"kernel {_sizes(kernel, dims)}"] if kernel is not None else []
    return words + [f"{name} {_size(value)}" for name, value in found.items() if _is_told(name, value)]


def _is_told(name: str, value: Any) -> bool:
    if value is None:
        return False
    return name not in _PLAIN or any(one != _PLAIN[name] for one in (value if isinstance(value, (tuple, list)) else [value]))


def _weight(node: Node, graph: Graph, dims: int) -> tuple[int, ...] | None:
    """The shape of the weight: a parameter's, or that of the tensor given as one."""
    found = [param.shape for param in node.params if len(param.shape) == dims + 2]
    places = ("args[1]", "kwargs['weight']")
    edges = graph.edges_in.get(node.key, ())
    found += [edge.shape for edge in edges if edge.shape is not None and any(place in edge.positions for place in places)]
    return found[0] if found and len(found[0]) == dims + 2 else None


def _size(value: Any) -> str:
    """A size that may be given for each dimension: once where it is the same."""
    if not isinstance(value, (tuple, list)):
        return str(value)
    return str(value[0]) if len(set(value)) == 1 else "×".join(map(str, value))


def _sizes(value: Any, dims: int) -> str:
    """A size, written for each dimension."""
    each = list(value) if isinstance(value, (tuple, list)) else [value]
    return "×".join(map(str, each * dims if len(each) == 1 else each))
