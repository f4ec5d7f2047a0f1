"""Texts of nodes, edges and modules in pictures, including the window of a convolution or pool."""

from __future__ import annotations

import math
import re
import textwrap
from typing import Any

import torch

from .._text import human_size, plural
from .._torch.shapes import bytes_of
from ..errors import InvalidArgument
from ..graph import Edge, Graph, ModuleBox, Node, format_passes
from ..graph.equal_ports import name_of_place

_CONVOLUTION = re.compile(r"conv(_transpose)?([123])d")
_POOL = re.compile(r"(max|avg|lp)_pool([123])d(_with_indices)?")
# Positions of arguments in a call; after the input, and for convolutions after weight and bias.
_ARGUMENTS = {
    "conv": {"stride": 3, "padding": 4, "dilation": 5, "groups": 6},
    "conv_transpose": {"stride": 3, "padding": 4, "output padding": 5, "groups": 6, "dilation": 7},
    "max": {"stride": 2, "padding": 3, "dilation": 4},
    "avg": {"stride": 2, "padding": 3},
    "lp": {"stride": 3},
}
_PLAIN = {"padding": 0, "output padding": 0, "dilation": 1, "groups": 1}


def window_words(node: Node, graph: Graph) -> list[str]:
    """Kernel, stride and other non-default settings; empty for other operations.

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
    return words + [f"{name} {_size(value)}" for name, value in found.items() if _is_shown(name, value)]


def _is_shown(name: str, value: Any) -> bool:
    if value is None:
        return False
    return name not in _PLAIN or any(one != _PLAIN[name] for one in (value if isinstance(value, (tuple, list)) else [value]))


def _weight(node: Node, graph: Graph, dims: int) -> tuple[int, ...] | None:
    """The shape of the weight: of a parameter, or of a tensor argument."""
    found = [param.shape for param in node.params if len(param.shape) == dims + 2]
    places = ("args[1]", "kwargs['weight']")
    edges = graph.edges_in.get(node.key, ())
    found += [edge.shape for edge in edges if edge.shape is not None and any(place in edge.positions for place in places)]
    return found[0] if found and len(found[0]) == dims + 2 else None


def _size(value: Any) -> str:
    """Write the sizes of all dimensions; a single number if the sizes are equal."""
    if not isinstance(value, (tuple, list)):
        return str(value)
    return str(value[0]) if len(set(value)) == 1 else "×".join(map(str, value))


def _sizes(value: Any, dims: int) -> str:
    """Write the size of each dimension. A single number counts for all dimensions."""
    each = list(value) if isinstance(value, (tuple, list)) else [value]
    return "×".join(map(str, each * dims if len(each) == 1 else each))


# Texts of nodes, edges and modules.

_WIDEST = 46  # largest number of characters in a line
_SHAPES_SHOWN = 4
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")


def clean(text: object, limit: int = _WIDEST) -> str:
    """Text for one line of a picture: no control characters, cut in the middle if it is very long.

    >>> clean("a\\nb"), clean("x" * 60, limit=9)
    ('a b', 'xxxx…xxxx')
    """
    plain = _CONTROL.sub(" ", str(text)).strip()
    if len(plain) <= limit:
        return plain
    half = (limit - 1) // 2
    return f"{plain[: limit - 1 - half]}…{plain[-half:]}"


def human_count(count: float) -> str:
    """A large number in few characters.

    >>> human_count(512), human_count(75_008), human_count(61_100_840)
    ('512', '75.0K', '61.1M')
    """
    if count < 1000:
        return f"{count:g}"
    for unit in ("K", "M", "B"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f}{unit}"
    return f"{count / 1000:.1f}T"


def dimensions(shape: tuple[int, ...]) -> str:
    """A shape as text: `1×64×55×55`."""
    return "×".join("?" if size < 0 else str(size) for size in shape) or "scalar"


# Nodes ------------------------------------------------------------------------------------------------------------


def node_lines(node: Node, graph: Graph) -> list[str]:
    """The lines of text on a node, its name first."""
    if node.kind == "omitted":
        return [f"… {plural(node.num_operations, 'operation')} left out …"]
    if node.kind == "stub":
        return [f"… {clean(node.label)}", *([dimensions(node.shape)] if node.shape is not None else [])]
    if node.kind == "plumbing":
        return [f"{node.type} · {plural(node.num_operations, 'operation')}"]
    if node.kind == "module":
        return _module_lines(node, graph)
    lines = [_name(node, graph)]
    if node.kind in ("input", "output", "source") and node.role and node.role not in ("args[0]", "output"):
        lines.append(clean(_role(node)))
    if node.kind == "identity":
        return [*lines, "returns its input"]
    if node.kind == "failed":
        lines += _raised(node.error)
        if node.input_shapes:
            lines.append("given " + ", ".join(map(dimensions, node.input_shapes[:_SHAPES_SHOWN])))
    if (address := _address(node, graph)) is not None:
        lines.append("@" + clean(address))
    if words := window_words(node, graph):
        lines.append(clean(", ".join(words), 60))
    if node.dtype is not None or node.shape is not None:
        lines.append(_tensor(node) + (" each" if _is_several(node) and node.shape is not None else ""))
    lines += _marks(node)
    if node.params:
        lines.append(_params(node))
    return lines


def _name(node: Node, graph: Graph) -> str:
    if node.kind == "buffer":
        return clean(node.role)
    if node.kind == "failed":
        return node.type
    if _is_several(node):
        return f"{node.num_operations} {node.kind}s"
    if node.kind == "identity":
        return clean(node.label if graph.is_rolled or node.num_passes == 1 else node.key)
    return clean(node.title if node.parts else node.label, 60) + _passes_text(node, graph)


def _is_several(node: Node) -> bool:
    """True if the node stands for several inputs or outputs."""
    return node.kind in ("input", "output") and node.num_operations > 1 and len(node.passes) == 1


def _role(node: Node) -> str:
    """The position of an input or output in the arguments or the result; of several, the value that contains them all:
    `past_key_values.layers`.
    """
    return name_of_place(node.role) if _is_several(node) and "…" not in node.role else node.role


def reference_text(node: Node) -> str:
    """The text of a small reference to a node."""
    if _is_several(node):
        return clean(_role(node) or f"{node.num_operations} {node.kind}s")
    return clean(node.role if node.kind == "buffer" else node.label)


def _passes_text(node: Node, graph: Graph) -> str:
    """The passes that a node stands for."""
    if graph.is_rolled:
        return f" ×{len(node.passes)}" if len(node.passes) > 1 else ""
    if node.num_passes == 1:
        return ""
    one, several = ("call", "calls") if node.kind == "module" else ("pass", "passes")
    return f" ({one if len(node.passes) == 1 else several} {format_passes(node.passes)}/{node.num_passes})"


def _address(node: Node, graph: Graph) -> str | None:
    """The module that returned the node's tensor, with the number of the call if the module was called several times."""
    if not node.exits:
        return None
    address, _, call = node.exits[0].rpartition(":")
    box = graph.boxes.get(node.exits[0]) or graph.boxes.get(address)
    if box is None or box.num_calls == 1:
        return address
    return box.step if graph.is_rolled else f"{address}:{call}"


def _tensor(node: Node) -> str:
    if node.shape is None:
        return f"{node.dtype or 'dtypes differ'}, shapes differ · {human_size(node.bytes)} in all"
    dtype = getattr(torch, node.dtype or "", None)
    size = f" · {human_size(bytes_of(node.shape, dtype))}" if isinstance(dtype, torch.dtype) else ""
    return f"{node.dtype or 'dtypes differ'} {dimensions(node.shape)}{size}"


def _marks(node: Node) -> list[str]:
    """Short remarks on unusual facts about a node."""
    words = [*(["in place"] if node.is_inplace else []), *(["opaque"] if node.kind == "opaque" else [])]
    lines = [" · ".join(words)] if words else []
    if node.python_reads:
        values = list(dict.fromkeys(str(read.value) for read in node.python_reads if read.value is not None))
        got = clean(f"= {' and '.join(values[:2])}{' …' if len(values) > 2 else ''}", 30) if values else ""
        lines.append(f"left for Python: {node.python_reads[0].function.strip('_')} {got}".rstrip())
    return lines


def _params(node: Node) -> str:
    own = len(node.params) // node.repeats if node.sharing == "own" else len(node.params)
    # shapes of the parameters of the first of several equal blocks
    shapes = [dimensions(param.shape) for param in node.params[:own]]
    more = f", … {len(shapes) - _SHAPES_SHOWN} more" if len(shapes) > _SHAPES_SHOWN else ""
    return f"params {', '.join(shapes[:_SHAPES_SHOWN])}{more}{_frozen(node)}"


def _frozen(node: Node) -> str:
    return {"frozen": " · frozen", "mixed": " · partly frozen"}.get(node.trainable, "")


def _module_lines(node: Node, graph: Graph) -> list[str]:
    times = max(node.repeats, 1)
    passes = len(node.passes) if graph.is_rolled else 1
    each = "each " if times * passes > 1 else ""
    facts = [each + plural(node.num_operations // (times * passes) or node.num_operations, "operation")]
    if node.params:
        share = times if node.sharing == "own" else 1
        facts.append(f"{human_count(node.num_params / share)} params{_frozen(node)}")
    box = graph.boxes.get(node.key[1:])
    if box is not None and box.step != box.address:
        name = clean(box.address) + _calls(box, graph)
    else:
        name = clean(node.label) + _passes_text(node, graph)
    lines = [name, clean(node.type)]
    if (own := own_repeats(node, graph)) > 1:
        lines.append(_repeated(own, node.sharing))
    lines.append(" · ".join(facts))
    if node.input_shapes or node.output_shapes:
        lines.append(f"{_shapes(node.input_shapes)} → {_shapes(node.output_shapes)}")
    return [*lines, *_raised(node.error)] if node.error else lines


def own_repeats(node: Node, graph: Graph) -> int:
    """The number of consecutive equal nodes that a node stands for, within each of its blocks."""
    return max(node.repeats, 1) // math.prod(graph.boxes[key].repeats for key in node.modules)


def _raised(error: str) -> list[str]:
    said = clean(error, 160) or "an error"
    return textwrap.wrap(f"raised {said}", _WIDEST, max_lines=4, placeholder=" …")


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    shown = list(dict.fromkeys(dimensions(shape) for shape in shapes))
    more = f", … {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more if shown else "–"


def _repeated(times: int, sharing: str) -> str:
    how = {"shared": ", same params", "own": ", own params", "mixed": ", some shared"}
    return f"{times} in a row{how.get(sharing, '')}"


def own_lines(text: object) -> list[str]:
    """The lines of a user's text for a node; "·" if empty."""
    return [clean(line, 120) for line in str(text).splitlines() if clean(line)] or ["·"]


def formatted(template: str, node: Node) -> str:
    """A user's format string, filled with the fields of a node."""
    names = {name: getattr(node, name) for name in dir(type(node)) if not name.startswith("_")}
    readable = {
        "shape": dimensions(node.shape) if node.shape is not None else "",
        "bytes": human_size(node.bytes),
        "time": f"{node.seconds:.2e} s" if node.seconds is not None else "unknown",
        "module": node.exits[0].rpartition(":")[0] if node.exits else "",
        "params": ", ".join(dimensions(param.shape) for param in node.params),
    }
    try:
        return template.format(**{**names, **readable})
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        fields = ", ".join(sorted({*names, *readable}))
        raise InvalidArgument(f"label={template!r} cannot be filled in ({error!r}). A node has: {fields}.") from error


# Modules and edges ------------------------------------------------------------------------------------------------


def box_lines(box: ModuleBox, graph: Graph) -> list[str]:
    """The title of a module: its address, and below it the class and how often it ran."""
    lines = [clean(box.address, 34) + _calls(box, graph), clean(box.class_name, 34)]
    if box.repeats > 1:
        lines.append(_repeated(box.repeats, box.sharing))
    return lines


def _calls(box: ModuleBox, graph: Graph) -> str:
    """The calls of a module that a box stands for."""
    if box.num_calls == 1:
        return ""
    if graph.is_rolled and box.num_turns == box.num_calls:
        return f" ×{box.num_calls}"
    noun = "call" if len(box.calls) == 1 else "calls"
    return f" ({noun} {format_passes(box.calls)}/{box.num_calls})"


def edge_text(edge: Edge, graph: Graph, *, is_short: bool = False) -> str:
    """The text of an edge: the argument it enters, if order matters, and the passes it belongs to.

    A short text has only the passes.
    """
    notes = []
    if edge.positions and not is_short and _order_matters(edge, graph):
        notes.append(_position(edge, graph))
    if edge.pass_note and not _is_obvious(edge, graph):
        notes.append(f"pass {edge.pass_note}" if edge.pass_note.isdigit() else f"passes {edge.pass_note}")
    return " · ".join(notes)


def _is_obvious(edge: Edge, graph: Graph) -> bool:
    """True if an edge leads from or to a node that ran once, and belongs to all passes of the node at its other end."""
    source, target = graph.by_key[edge.source].passes, graph.by_key[edge.target].passes
    every = max(source, target, key=lambda passes: len(passes))
    may_be_all = not edge.is_feedback and 1 in (len(source), len(target)) and len(edge.passes) >= len(every)
    return may_be_all and edge.pass_note == format_passes(every)


def _order_matters(edge: Edge, graph: Graph) -> bool:
    target = graph.by_key[edge.target]
    if target.kind in ("input", "output", "module", "chain", "identity", "omitted"):
        return False
    first = edge.positions[0]
    if all(place == first for one in graph.edges_in[edge.target] for place in one.positions):
        return False
    is_commutative = target.facts is not None and target.facts.is_commutative
    return not is_commutative or "alpha=" in str(target.arguments or "")


def _position(edge: Edge, graph: Graph) -> str:
    """The argument positions, short: `0`, `mask`, `[2]`."""
    arguments = graph.arguments_in[edge.target]
    short = []
    for place in sorted(edge.positions, key=_in_order):
        if len(arguments) == 1:  # all tensors are in one list: torch.cat([a, b])
            place = place[len(next(iter(arguments))) :] or place
        found = re.fullmatch(r"kwargs\[['\"](.*)['\"]\](.*)", place) or re.fullmatch(r"args\[(\d+)\](.*)", place)
        short.append(f"{found[1]}{found[2]}" if found else place)
    return clean(", ".join(short) if len(short) < 4 else f"{short[0]} … {short[-1]}", 24)


def _in_order(place: str) -> list[tuple[int, str]]:
    """A sort key that puts `args[2]` before `args[10]`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", place)]


# Texts in pictures for papers: the operation, its window, the shape of its tensor.


def short_node_lines(node: Node, graph: Graph) -> list[str]:
    """The lines of text on a node, its name first."""
    if node.kind in ("failed", "identity", "omitted", "stub"):
        return node_lines(node, graph)
    if node.kind == "plumbing":
        return node_lines(node, graph)
    lines = [_short_name(node, graph)]
    if node.kind == "module":
        lines.append(clean(node.type, 30))
        if (times := own_repeats(node, graph)) > 1:
            lines.append(f"{times} in a row")
    if words := window_words(node, graph):
        lines.append(", ".join(word.removeprefix("kernel ") for word in words))
    if node.shape is not None:
        lines.append(dimensions(node.shape))
    return lines


def _short_name(node: Node, graph: Graph) -> str:
    if node.kind in ("input", "output"):
        return f"{node.num_operations} {node.kind}s" if node.num_operations > 1 else clean(node.title, 24)
    if node.kind == "buffer":
        return clean(node.role, 30)
    around = f"{graph.boxes[node.modules[-1]].address}." if node.modules else ""
    name = clean(node.label.removeprefix(around), 30) if node.kind == "module" else clean(node.title, 30)
    passes = len(node.passes)
    if graph.is_rolled:
        return f"{name} ×{passes}" if passes > 1 else name
    return f"{name} ({node.passes[0]}/{node.num_passes})" if node.num_passes > 1 and passes == 1 else name


def short_box_lines(box: ModuleBox, graph: Graph) -> list[str]:
    """The title of a module: its address within the outer module, and how many consecutive equal modules it stands for."""
    around = graph.boxes[box.parent].address + "." if box.parent is not None else ""
    times = f" ×{box.num_turns}" if graph.is_rolled and box.num_turns > 1 else ""
    lines = [clean(box.address.removeprefix(around), 34) + times]
    return [*lines, f"{box.repeats} in a row"] if box.repeats > 1 else lines
