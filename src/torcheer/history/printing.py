"""The text of `print(history)`, of layers and of operations."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from .._cleanup import pass_interrupts_on
from .._text import Column, Table, describe_shapes, human_size, listed, plural, sparkline
from .._torch.internals import DisableTorchFunction
from .._torch.measure import statistics_of
from ..analysis.nonfinite import nonfinite_of
from ..graph.blocks import runs_of
from ..log.operation import rows_of
from ..log.param import describe_param, not_counted
from ..log.records import Log

if TYPE_CHECKING:
    from ..log.run import Index
    from .call import Call
    from .history import ModelHistory
    from .layer import Layer
    from .module import Module, Modules
    from .operation import Operation
    from .python_reads import PythonRead


_WIDTH = 100
_LAYERS_SHOWN = 200
_LAYERS_UNFOLDED = 60  # for a model with more layers, only the first of consecutive equal blocks is listed
_FEWEST_FOLDED = 3  # equal blocks with fewer layers are listed
_Line = TypeVar("_Line")
_MODULE_LINES_SHOWN = 60
_DECISIONS_SHOWN = 5
_NOT_CALLED = {  # origin of a tensor that no function made -> the text in place of the function
    "input": "none, given to the model",
    "output": "none, returned by the model",
    "source": "none, not made by any operation that was watched",
}


def describe_history(history: ModelHistory) -> str:
    """The text of `print(history)`."""
    log = history._log
    seed = log.random_seed if log.random_seed is not None else "none given; random_state=history.random_state repeats it"
    elapsed = f"{history.time_elapsed:.3f}s" if history.time_elapsed is not None else "unknown, it has not ended"
    lines = [
        f"Log of {log.title} forward pass{_state(log)}:",
        f"\tModel structure: {_structure(history)}; {plural(history.num_modules, 'total module')}.",
        f"\t{plural(history.num_tensors_total, 'tensor')} ({human_size(history.tensor_fsize_total)}) computed in forward pass; "
        f"{plural(history.num_tensors_saved, 'tensor')} ({human_size(history.tensor_fsize_saved)}) saved.",
        f"\t{plural(history.num_param_operations, 'parameter operation')} "
        f"({history.num_params_total} params total; {human_size(history.params_fsize_total)}).",
        f"\tRandom seed: {seed}",
        f"\tTime elapsed: {elapsed}",
    ]
    placeholders = sum(not history._index.table.shows(number) for number in log.hollow if number < history._index.length)
    hidden = history._index.length - len(history._index.operations) - placeholders
    if hidden:
        words = f"{plural(hidden, 'operation')} connected to no input or output"
        lines.append(f"\t{words}, not shown (keep_orphans=True shows them).")
    lines += _decisions(history)
    lines += [f"\t{passed!r}" for passed in history.backward_passes]
    lines += [f"\tWarning: {one}" for one in nonfinite_of(history._index)]
    lines += [f"\tNote: {note}" for note in log.notes]
    if log.failure is not None:
        lines.append(f"\tFailed: {log.failure.in_words()}")
    hierarchy = module_hierarchy(history._index)
    if hierarchy:
        lines.append("\tModule Hierarchy:")
        shown = _cut(hierarchy, _MODULE_LINES_SHOWN)
        more = f"… {plural(len(hierarchy) - len(shown) + 1, 'line')} more …"
        lines += [f"\t\t{more if line is None else line}" for line in shown]
    lines.append("\tLayers:")
    lines += [f"\t\t{line}" for line in _layer_lines(history)]
    return "\n".join(lines)


def _layer_lines(history: ModelHistory) -> list[str]:
    """List the layers, each with its shape and module. In a long model, lists only the first of consecutive equal blocks."""
    index = history._index
    entries = index.table.layers
    folded = _folded_layers(history) if len(entries) > _LAYERS_UNFOLDED else {}
    rows: list[tuple[str, str, str]] = []
    for entry in entries:
        if (said := folded.get(entry.number)) is not None:
            if said:
                rows.append((said, "", ""))
            continue
        record = index.record(entry.passes[0])
        around = [call.address for call in record.module.stack() if call.address] if record.module is not None else []
        name = f"{entry.number}: {index.table.label(entry)}{_times(len(entry.passes))}"
        rows.append((name, "×".join(map(str, record.shape)) or "scalar", around[-1] if around else ""))
    shown = _cut(list(range(len(rows))), _LAYERS_SHOWN)
    widths = [max((len(rows[at][one]) for at in shown if at is not None and rows[at][1]), default=0) for one in (0, 1)]
    lines = []
    for at in shown:
        if at is None:
            lines.append(f"… {plural(len(rows) - len(shown) + 1, 'layer')} more …")
        else:
            name, shape, module = rows[at]
            lines.append(f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {module}".rstrip() if shape else name)
    if folded or None in shown:
        lines.append("(history.layers has all layers, history.summary() the modules.)")
    return lines


def _folded_layers(history: ModelHistory) -> dict[int, str]:
    """Map the numbers of layers that are not listed to a line that replaces them. For all but the first layer, it is empty."""
    index, graph = history._index, history.graph
    found: dict[int, str] = {}
    for run in runs_of(graph):
        numbers = sorted({index.layer(n).number for block in run.blocks[1:] for node in block.nodes for n in node.operations})
        numbers = [number for number in numbers if number not in found]
        inside = {index.layer(n).number for node in run.blocks[0].nodes for n in node.operations}
        box, last = run.blocks[1].box, run.blocks[-1].box
        if len(numbers) < _FEWEST_FOLDED or box is None or last is None or not inside.isdisjoint(numbers):
            continue
        names = box.address if len(run.blocks) == 2 else f"{box.address} … {last.address}"
        found |= dict.fromkeys(numbers, "")
        found[numbers[0]] = f"… {names} ({len(run.blocks) - 1} equal): {plural(len(numbers), 'layer')} …"
    return found


def _decisions(history: ModelHistory) -> list[str]:
    """List the source lines that read truth values of tensors, and how often: these values may have decided what ran."""
    found: dict[str, list[PythonRead]] = {}
    for read in history.python_reads:
        if read.is_truth_value:
            found.setdefault(str(read.source), []).append(read)
    if not found:
        return []
    lines = [f"\tData-dependent control flow: {plural(sum(map(len, found.values())), 'truth value')} left for Python:"]
    for source, reads in list(found.items())[:_DECISIONS_SHOWN]:
        what = reads[0].parent_layers[0].partition(":")[0] if reads[0].parent_layers else reads[0]._what
        values = {read.value for read in reads}
        often = f", {len(reads)} times" if len(reads) > 1 else ""
        lines.append(f"\t\t{what} ({' and '.join(map(str, sorted(values, reverse=True)))}{often}) at {source}")
    if len(found) > _DECISIONS_SHOWN:
        lines.append(f"\t\t… {plural(len(found) - _DECISIONS_SHOWN, 'line')} more …")
    return lines


def _times(passes: int) -> str:
    return f" ({passes} passes)" if passes > 1 else ""


def _state(log: Log) -> str:
    if log.is_complete:
        return ""
    return " (incomplete: the pass failed)" if log.seconds else " (still running)"


def _structure(history: ModelHistory) -> str:
    kind = f"recurrent (at most {history.max_passes} passes)" if history.is_recurrent else "purely feedforward"
    return f"{kind}, {'with' if history.is_branching else 'without'} branching"


def _cut(lines: list[_Line], limit: int) -> list[_Line | None]:
    """Return the lines; if there are more than `limit`, the first and the last lines, with None between them."""
    if len(lines) <= limit:
        return list(lines)
    return [*lines[: limit * 3 // 4], None, *lines[-(limit // 4) :]]


def module_hierarchy(index: Index) -> list[str]:
    """Write the modules as an indented tree. Neighbouring modules without children share a line."""
    children = index.module_children
    named_roots = [address for address, module in index.log.registered.items() if module.is_root and address]
    return _tree([*children.get("", []), *named_roots], children, "")


def _tree(addresses: list[str], children: dict[str, list[str]], indent: str) -> list[str]:
    lines: list[str] = []
    for has_children, group in groupby(addresses, lambda address: bool(children.get(address))):
        if has_children:
            for address in group:
                lines += [f"{indent}{address}:", *_tree(children[address], children, indent + "    ")]
        else:
            lines += textwrap.wrap(", ".join(group), _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines


def describe_operation(operation: Operation) -> str:
    """The text of `print(operation)`."""
    passes = f", pass {operation.pass_num}/{operation.num_passes}" if operation.num_passes > 1 else ""
    count = len(operation._index.operations)
    head = f"Layer {operation.layer_label}{passes}, operation {operation.operation_num}/{count}:"
    return "\n".join([head, *_facts(operation)])


def _facts(operation: Operation) -> list[str]:
    calls, alone = operation._index.calls, operation.bottom_level_module
    exited = [(name.rpartition(":")[0], name) for name in operation.modules_exited]
    size = human_size(operation.tensor_fsize)
    return [
        f"\tOutput tensor: shape={operation.tensor_shape}, dtype={operation.tensor_dtype}, size={size}",
        "\t\t" + _preview(operation),
        *_gradient(operation),
        f"\tParams: {_params(operation)}",
        f"\tParent Layers: {listed(operation.parent_layers)}",
        f"\tChild Layers: {listed(operation.child_layers)}",
        f"\tFunction: {_function(operation)}",
        f"\tComputed inside module: {operation.containing_module or 'not computed inside a module'}",
        *([f"\tSource: {operation.source}"] if operation.source is not None else []),
        f"\tTime elapsed: {_seconds([operation])}",
        f"\tOutput of modules: {listed(address if len(calls[address]) == 1 else name for address, name in exited)}",
        *([f"\tOutput of bottom-level module: {alone}"] if alone is not None else []),
        *_rows_of([operation]),
        f"\tLookup keys: {_keys(operation.lookup_keys)}",
    ]


def _gradient(operation: Operation) -> list[str]:
    grads = operation.grads
    if not grads:
        return []
    bad = f", {operation.grad_nonfinite} not finite" if operation.grad_nonfinite else ""
    times = f" (of {len(grads)} backward passes, the last)" if len(grads) > 1 else ""
    return [f"\tGradient: shape={operation.grad_shape}, size={human_size(operation.grad_fsize or 0)}{bad}{times}"]


def _seconds(passes: list[Operation]) -> str:
    known = [one.func_time_elapsed for one in passes if one.func_time_elapsed is not None]
    return f"{sum(known): .3E}s" if len(known) == len(passes) else "unknown, it ran in code that cannot be watched"


def _rows_of(passes: list[Operation]) -> list[str]:
    """Write the facts whose declaration has a row, each with the values that the passes have."""
    found: dict[str | None, dict[str, None]] = {}
    for one in passes:
        for fact, value in rows_of(one):
            found.setdefault(fact.row, {})[str(value)] = None
    return [f"\t{title}: {listed(values, 4)}" for title, values in found.items()]


def _keys(keys: list[int | str]) -> str:
    """Write keys: positions first, then names. A name that begins with a digit is quoted, to tell it from a position."""
    names = sorted(key for key in keys if isinstance(key, str))
    shown = [*sorted(key for key in keys if isinstance(key, int)), *(repr(n) if n[0].isdigit() else n for n in names)]
    return listed(shown, limit=40)


def _function(operation: Operation) -> str:
    if operation.origin in _NOT_CALLED:
        return _NOT_CALLED[operation.origin] + (f" ({operation.io_role})" if operation.io_role else "")
    inside = f", inside {operation.composite}" if operation.composite else ""
    place = ", in place" if operation.is_inplace else ""
    changed = f"; changed by {operation.changed_by}" if operation.changed_by else ""
    return f"{operation.func_applied_name} (gradfunc={operation.gradfunc}){place}{inside}{changed}"


def _params(operation: Operation) -> str:
    params = operation.parent_params
    if not params:
        return "no params used"
    shapes = ", ".join(str(param.shape) for param in sorted(params, key=lambda p: len(p.shape)))
    return (
        f"Computed from params with shape {shapes}; {operation.num_params} params total "
        f"({human_size(operation.parent_params_fsize)})"
    )


def _preview(operation: Operation) -> str:
    if not operation.has_saved_activations:
        return "(not saved)"
    if operation._index.log.is_lost(operation._number):
        return "(lost: its memory was freed or overwritten unseen)"
    value = operation.tensor_contents
    if not isinstance(value, Tensor):
        return textwrap.shorten(repr(value), _WIDTH)
    with DisableTorchFunction(), torch.no_grad():
        if value.layout is not torch.strided or value.is_nested or value.device.type == "meta":
            return f"{type(value).__name__} ({value.layout}, {value.device})"
        try:
            return _corner(value)
        except Exception as error:  # a class of the user's may raise anything
            pass_interrupts_on(error)
            if type(value) in (Tensor, Parameter) and not isinstance(error, RuntimeError):
                raise
            kind = value.dtype if type(value) in (Tensor, Parameter) else f"{type(value).__name__} of {value.dtype}"
            return f"({kind}, which torch stores but does not print)"


def _corner(value: Tensor) -> str:
    """Write the first values of a tensor."""
    corner = value.detach()  # an output may carry its autograd graph
    if corner.is_quantized:
        corner = corner.dequantize()
    while corner.dim() > 2:
        corner = corner[0] if corner.shape[0] else corner.flatten(0, 1)
    for dimension in range(corner.dim()):
        corner = corner.narrow(dimension, 0, min(5, corner.shape[dimension]))
    return repr(corner) + ("..." if corner.numel() < value.numel() else "")


def describe_layer(layer: Layer) -> str:
    """Write the text of `print(layer)`. For a layer with several passes, it has the facts that the passes share."""
    passes = layer.passes
    if len(passes) == 1:
        return describe_operation(passes[0])
    first = passes[0]
    shapes = listed(dict.fromkeys(one.tensor_shape for one in passes), 4)
    size = human_size(sum(one.tensor_fsize for one in passes))
    lines = [
        f"Layer {layer.label}, {len(passes)} passes ({listed([one.label for one in passes], 6)}):",
        f"\tOutput tensors: shape={shapes}, dtype={first.tensor_dtype}, size={size} in all",
        f"\tParams: {_params(first)}",
        f"\tParent Layers: {listed(parent.label for parent in layer.parents)}",
        f"\tChild Layers: {listed(child.label for child in layer.children)}",
        f"\tFunction: {_function(first)}",
        f"\tComputed inside module: {first.containing_module or 'not computed inside a module'}",
        f"\tTime elapsed: {_seconds(passes)} in all",
        *_rows_of(passes),
        f"\tLookup keys: {_keys(layer.lookup_keys)}",
    ]
    return "\n".join(lines)


def describe_values(operation: Operation) -> str:
    """Write the statistics and the histogram of a kept tensor. Empty if the tensor has no statistics."""
    if not operation.has_saved_activations or operation._index.log.is_lost(operation._number):
        return ""
    value = operation.tensor_contents
    if not isinstance(value, Tensor):
        return ""
    with DisableTorchFunction(), torch.no_grad():
        found = statistics_of(value, "linear")
    if found is None or found.mean is None or found.min is None or found.max is None:
        return ""
    line = f"mean {found.mean:.4g}, deviation {found.std or 0.0:.4g}, from {found.min:.4g} to {found.max:.4g}"
    return f"{line}\n{sparkline(found.histogram)}" if found.histogram else line


def layers_table(history: ModelHistory) -> Table:
    """The layers, one row each."""
    rows: list[tuple[str, ...]] = []
    for layer in history.layers[:_LAYERS_SHOWN]:
        one = layer.passes[0]
        dtype = str(one.tensor_dtype).removeprefix("torch.")
        shown = (str(one.tensor_shape), dtype, human_size(one.tensor_fsize), one.func_applied_name, one.containing_module or "")
        rows.append((layer.label + _times(layer.num_passes), *shown))
    left = len(history.layers) - len(rows)
    heads = (Column("layer"), Column("shape"), Column("dtype"), Column("size", True), Column("function"), Column("module"))
    return Table(heads, rows, more=f"… {left} more" if left > 0 else "")


# How modules are printed: a table with the tree, shapes in and out, and parameters that add up.

_ROWS_SHOWN = 400
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
    """The rows of a module and of the modules inside it. A parameter counts for the first module that has it."""
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


def _table(rows: list[tuple[str, ...]], notes: list[str]) -> Table:
    cut = len(rows) - _ROWS_SHOWN
    more = f"… {plural(cut, 'module')} more …" if cut > 0 else ""
    return Table(_COLUMNS, rows[:_ROWS_SHOWN], None, more, notes)


def describe_module(module: Module) -> str:
    """The facts of a module, and the table of what is inside."""
    name = repr(module.address) if module.address else "(the model)"
    lines = [f"Module {name}: {module.class_name}, {_called(module.num_calls)}"]
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


def _called(count: int) -> str:
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
