"""How modules are printed: a table with the tree, shapes in and out, and parameters that add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...display import Column, Table
from ..param import describe_param, not_counted
from .text import human_size, listed, plural

if TYPE_CHECKING:
    from ..call import Call
    from ..module import Module, Modules

_ROWS_SHOWN = 400
_SHAPES_SHOWN = 2
_COLUMNS = (Column("module"), Column("class"), Column("calls", True), Column("in"), Column("out"), Column("params", True))


def table_of_modules(modules: Modules) -> Table:
    """The table of all modules, with the totals below."""
    rows: list[tuple[str, ...]] = []
    counted: set[str] = set()
    for root in modules.roots:
        rows += _rows(root, "", "", counted)
    names = modules._index.state_names
    strangers = [tensor for tensor in modules._index.all_parameters().values() if id(tensor) not in names]
    if strangers:
        count = sum(tensor.numel() for tensor in strangers)
        rows.append(("(in no module)", plural(len(strangers), "parameter"), "", "", "", f"{count:,}"))
    return _table(rows, _totals(modules))


def _totals(modules: Modules) -> list[str]:
    params = [describe_param(modules._index, name, tensor) for name, tensor in modules._index.all_parameters().items()]
    total = sum(param.numel for param in params)
    trainable = sum(param.numel for param in params if param.is_trainable)
    size = human_size(sum(param.fsize for param in params))
    return [f"params: {total:,} ({size}); trainable {trainable:,}, frozen {total - trainable:,}"]


def _rows(module: Module, branch: str, indent: str, counted: set[str]) -> list[tuple[str, ...]]:
    """The rows of a module and those inside it. A parameter is counted where it is met first."""
    own = module.own_params
    new = not_counted(own, counted)
    is_unknown = bool(new) and all(param.is_uninitialized for param in new)
    params = "unknown" if is_unknown else f"{sum(param.numel for param in new):,}" if new else "–"
    if len(new) < len(own):
        params += " (shared)"
    called = module.calls
    shapes = [describe_shapes(found) for found in ([c.input_shapes for c in called], [c.output_shapes for c in called])]
    title = branch + (module.name or "(model)")
    rows = [(title, module.class_name, str(len(called)) if called else "not called", *shapes, params)]
    children: list[Module | tuple[str, str]] = [*module.children, *module.shared_children.items()]
    for number, child in enumerate(children, 1):
        last = number == len(children)
        twig = indent + ("└─ " if last else "├─ ")
        if isinstance(child, tuple):
            rows.append((twig + child[0], f"the same as {child[1]}", "", "", "", ""))
        else:
            rows += _rows(child, twig, indent + ("   " if last else "│  "), counted)
    return rows


def describe_shapes(shapes: list[list[tuple[int, ...]]]) -> str:
    """The shapes of the first call; `…` where there are more shapes, or where other calls have other shapes."""
    if not shapes:
        return ""
    text = ", ".join(str(shape) for shape in shapes[0][:_SHAPES_SHOWN])
    if len(shapes[0]) > _SHAPES_SHOWN:
        text += f", … ({len(shapes[0])})"
    return text if all(other == shapes[0] for other in shapes[1:]) else f"{text} …"


def _table(rows: list[tuple[str, ...]], notes: list[str]) -> Table:
    cut = len(rows) - _ROWS_SHOWN
    more = f"… {plural(cut, 'module')} more …" if cut > 0 else ""
    return Table(_COLUMNS, rows[:_ROWS_SHOWN], None, more, notes)


def describe_module(module: Module) -> str:
    """The facts of a module, and the table of what is inside."""
    name = repr(module.address) if module.address else "(the model)"
    lines = [f"Module {name}: {module.class_name}, {_times(module.num_calls)}"]
    if module.other_addresses:
        lines.append(f"\tAlso known as: {', '.join(module.other_addresses)}")
    lines.append(
        f"\tParams: {module.num_params:,} ({human_size(module.params_fsize)}); trainable {module.num_params_trainable:,}, "
        f"frozen {module.num_params_frozen:,}, shared {module.num_params_shared:,}"
    )
    for call in module.calls[:4]:
        operations = plural(call.num_operations, "operation")
        lines.append(f"\tCall {call.call_num}: {_flow(call)}, {operations}, {call.time_elapsed:.3E}s")
    if module.num_calls > 4:
        lines.append(f"\t… {plural(module.num_calls - 4, 'call')} more …")
    if module.children:
        inside = _table(_rows(module, "", "", set()), [])
        lines += ["\tInside:", *(f"\t\t{row}" for row in inside.text().split("\n"))]
    return "\n".join(lines)


def _times(count: int) -> str:
    return "not called" if count == 0 else "called once" if count == 1 else f"called {count} times"


def _flow(call: Call) -> str:
    inputs, outputs = (", ".join(map(str, shapes)) or "no tensor" for shapes in (call.input_shapes, call.output_shapes))
    return f"{inputs} → {outputs}"


def describe_call(call: Call) -> str:
    """The facts of one call of a module."""
    inside, own = [one.label for one in call.operations], len(call.own_operations)
    lines = [
        f"Call {call.label if call.address else call.call_num} of {call.class_name}: {_flow(call)}",
        f"\tInputs: {', '.join(one.label for one in call.inputs) or 'none'}",
        f"\tOutputs: {', '.join(one.label for one in call.outputs) or 'none'}",
        f"\tOperations inside: {len(inside)} ({own} of its own){': ' + listed(inside) if inside else ''}",
        f"\tMode: {'training' if call.training else 'evaluation'}",
        *([f"\tInside: {', '.join(call.containing_modules)}"] if call.containing_modules else []),
        *([f"\tSource: {call.source}"] if call.source is not None else []),
        f"\tTime elapsed: {call.time_elapsed: .3E}s",
    ]
    return "\n".join(lines)
