"""The data format of the browser pages: every part and key, with its meaning and its default.

Facts about an operation are declared in log/operation.py, everything else here. From both, `make web-types` generates the
TypeScript types, defaults and checks and the rows of a panel in web/shared/generated/, and the tables of docs/viewer_format.md
and docs/report_format.md; a test fails if they are stale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..log.operation import DECLARED, PageKey, PanelRow

Plain = dict[str, Any]

FORMAT = "torcheer-history"
VERSION = 1

Part = dict[str, PageKey]

# TypeScript names of parts that differ from their own name (browsers already have a Node and a File).
TYPES = {"file": "SourceFile", "module": "ModuleCall", "node": "OpNode", "grad": "Gradient", "series": "SeriesFacts"}

# The sections of an operation's panel that have rows of `[title, value]`, with the order of their rows. Rows that are not
# named here come last.
PANEL = {
    "Tensor": ["shape", "dtype", "device", "size", "pass", "activation", "in place"],
    "Cost": ["time", "backward", "FLOPs", "MACs"],
    "Call": ["function", "arguments", "part of", "backward", "read by Python"],
}
_FACTS = [(fact.page, fact.sentence) for fact in DECLARED if fact.page is not None]

# Data of the graph page.
GRAPH: dict[str, Part] = {
    "payload": {
        "format": PageKey("string", 'always `"torcheer-history"`'),
        "version": PageKey("number", "always `1`"),
        "made_by": PageKey("string", 'the writer: `"torcheer 0.1.0"`'),
        "title": PageKey("string", "the name of the model"),
        "facts": PageKey("Facts", "Facts of the whole pass"),
        "files": PageKey("SourceFile[]", "list of File: the program's files in call stacks"),
        "modules": PageKey("ModuleCall[]", "list of Module: every call of a module"),
        "nodes": PageKey("OpNode[]", "list of Node: every operation, input and output, one for each pass"),
        "edges": PageKey("Edge[]", "list of Edge: every tensor that flows between two nodes"),
        "runs": PageKey("Run[]", "list of Run: consecutive equal blocks, outer runs first", []),
        "ports": PageKey("Port[]", "list of Port: groups of equal inputs, or outputs, such as a cache", []),
        "chips": PageKey("Chip[]", "list of Chip: plumbing that leads to several operations, such as a mask", []),
        "first_view": PageKey(
            "string[]", "what is open at first: keys of modules, and addresses of lists of modules, `down_blocks`", []
        ),
        "weights": PageKey("Weight[]", "list of Weight: parameters and buffers with readable values", []),
        "metrics": PageKey("string[]", "list of names: the user's own figures", []),
        "verdict": PageKey(
            "string", "the verdict of a comparison with another history, in one line; empty without a comparison", ""
        ),
        "culprits": PageKey(
            "number[]", "list of nodes with an own error in that comparison, the culprit in its verdict first", []
        ),
        "partners": PageKey(
            "number[]", "in the first of two histories on a page, for every node: the matching node of the second, or -1", []
        ),
    },
    "facts": {
        "operations": PageKey("number", "number of operations, including inputs and outputs", 0),
        "layers": PageKey("number", "number of layers", 0),
        "modules": PageKey("number", "number of modules below the root, called or not", 0),
        "parameters": PageKey("number", "number of values in all parameters, each parameter counted once", 0),
        "seconds": PageKey("number", "seconds of setup, forward pass and cleanup together", 0),
        "bytes": PageKey("number", "bytes of all tensors together", 0),
        "flops": PageKey("number | null", "FLOPs of the whole pass, without calls of unknown cost", None),
        "unknown_flops": PageKey("number", "number of calls without a formula; no sum includes them", 0),
        "is_recurrent": PageKey("boolean", "true if any layer ran more than once", False),
        "failure": PageKey("string | null", "the error, if the pass failed", None),
        "notes": PageKey("string[]", "list of notes for the reader", []),
        "left_out": PageKey("string", "a text about the parts that a size limit left out", ""),
    },
    "file": {
        "path": PageKey("string", "path of the file, as Python knows it"),
        "lines": PageKey(
            "Record<string, string>",
            "line number, as text -> line of code: the lines in call stacks, and three lines around each",
        ),
    },
    "module": {
        "key": PageKey("string", 'address and call: `"features.6:1"`'),
        "address": PageKey("string", "the address of the module in the model"),
        "class": PageKey("string", "the name of the module's class"),
        "call": PageKey("number", "the number of the call, from 1", 1),
        "num_calls": PageKey("number", "number of calls of the module", 1),
        "step": PageKey(
            "string",
            'equal for calls that are drawn as one box when rolled, if not all calls of the module are: `"pool:2"`, '
            "named after the first of them",
            "",
        ),
        "parent": PageKey("number", "the module call around it", -1),
        "depth": PageKey("number", "1 for modules that the model itself calls", 1),
        "training": PageKey("boolean", "true in training mode", False),
        "seconds": PageKey("number", "seconds from entry to exit, on the clock", 0.0),
        "flops": PageKey("number | null", "the known FLOPs of the nodes inside; null if none is known", None),
        "bytes": PageKey("number", "bytes of the tensors of the nodes inside", 0),
        "num_params": PageKey("number", "number of values in the parameters at or below it, each parameter counted once", 0),
        "input_shapes": PageKey("number[][]", "list of shapes of the tensor arguments", []),
        "output_shapes": PageKey("number[][]", "list of shapes of the returned tensors", []),
        "first": PageKey("number", "the first node inside; -1 if there is none", -1),
        "end": PageKey("number", "the node after the last inside; -1 if there is none", -1),
        "params_id": PageKey("string", "equal for modules with the same parameters", ""),
        "source": PageKey("[number, number] | null", "file and line of the call: `[0, 12]`", None),
    },
    "node": {
        **{key.name: key if key.about else replace(key, about=sentence) for key, sentence in _FACTS},
        "title": PageKey("string", 'what people call it: `"max_pool2d"`, of an input or output its name, `"input_ids"`', ""),
        "folded": PageKey("boolean", "true for plumbing that folds into the edge it stands on, such as a `view`", False),
        "call": PageKey("number", "the first node of the same call, if the call made several tensors", -1),
        "category": PageKey(
            "string",
            "the category, for its colour: `input`, `output`, `layer`, `attention`, `normalisation`, "
            "`activation`, `pooling`, `arithmetic`, `reduction`, `shape`, `random`, `constant`, `opaque` or `failed`",
            "arithmetic",
        ),
        "module": PageKey("number", "the innermost module call it ran in", -1),
        "exits": PageKey("number[]", "the module calls that returned it, innermost first", []),
        "seconds": PageKey(
            "number",
            "seconds in the function itself; of several results, the first has the time of the call",
            0.0,
            PanelRow("Cost", "time", "time"),
        ),
        "backward_seconds": PageKey(
            "number | null",
            "seconds in its autograd nodes, in all followed backward passes",
            None,
            PanelRow("Cost", "backward", "seconds"),
        ),
        "flops": PageKey(
            "number | null", "FLOPs of the call; null if its function has no formula", None, PanelRow("Cost", "FLOPs", "flops")
        ),
        "macs": PageKey("number | null", "multiply-accumulates among the FLOPs", None, PanelRow("Cost", "MACs", "count")),
        "params": PageKey("Param[]", "list of Param: the parameters it used", []),
        "buffers": PageKey("string[]", "list of names: the buffers it used", []),
        "arguments": PageKey(
            "string",
            "the arguments of the call, with `·` for tensors, cut after 400 characters",
            "",
            PanelRow("Call", "arguments", "code"),
        ),
        "error": PageKey("string", "the error, if the operation raised", ""),
        "rows": PageKey("[string, string][]", "list of `[title, text]`: further facts, as `print(operation)` shows them", []),
        "stack": PageKey("[number, number, string][]", "list of `[file, line, function]`, outermost first", []),
        "source": PageKey("number", "the index of the program's own innermost line", -1),
        "python_reads": PageKey(
            "string[]", 'list of Python reads: `"__bool__ → True"`', [], PanelRow("Call", "read by Python", "list")
        ),
        "saved": PageKey(
            "boolean", "true if its activation was kept", False, PanelRow("Tensor", "activation", "flag", "saved")
        ),
        "stats": PageKey("Stats | null", "Stats of the activation, if it was kept", None),
        "grad": PageKey("Gradient | null", "Gradient, of the last followed backward pass that reached it", None),
        "preview": PageKey("Preview | null", "Preview of the activation, if it was kept and fits", None),
        "attention": PageKey("Attention | null", "Attention: the patterns of its heads, if they fit", None),
        "metrics": PageKey("(number | null)[]", "list of figures, one for each of the payload's `metrics`", []),
        "cause": PageKey("string", 'what a comparison found to be different about it: `"eps is 1e-05 in a and 0.01 in b"`', ""),
    },
    "param": {
        "name": PageKey("string", '`"features.6.weight"`'),
        "shape": PageKey("number[]", "list of sizes"),
        "dtype": PageKey("string", '`"float32"`'),
        "trainable": PageKey("boolean", "true if it requires gradients", True),
        "numel": PageKey("number", "number of values"),
    },
    "stats": {
        "count": PageKey("number", "number of values, finite or not"),
        "min": PageKey("number | null", "the smallest finite value", None),
        "max": PageKey("number | null", "the largest finite value", None),
        "mean": PageKey("number | null", "the mean of the finite values", None),
        "std": PageKey("number | null", "the standard deviation of the finite values (divided by their number)", None),
        "norm": PageKey("number | null", "the root of the sum of squares of the finite values", None),
        "zeros": PageKey("number", "number of zeros", 0),
        "nan": PageKey("number", "number of NaN", 0),
        "inf": PageKey("number", "number of infinities", 0),
        "histogram": PageKey("Histogram | null", "Histogram; null if all values are equal", None),
    },
    "histogram": {
        "low": PageKey("number", "the lower edge of the first bin: the smallest value"),
        "high": PageKey("number", "the upper edge of the last bin: the largest value, which is in the bin"),
        "counts": PageKey("number[]", "32 numbers: the count of each of 32 bins of equal width"),
    },
    "grad": {
        "shape": PageKey("number[]", "list of sizes"),
        "stats": PageKey("Stats | null", "Stats", None),
    },
    "preview": {
        "kind": PageKey(
            "string",
            "`image` (an input with the shape of an image), `maps` (channels side by side), `matrix`, `attention` (heads side"
            " by side) or `vector`",
        ),
        "width": PageKey("number", "width in pixels"),
        "height": PageKey("number", "height in pixels"),
        "channels": PageKey("number", "1, or 3 for red, green and blue", 1),
        "data": PageKey("string", "base64 of 8-bit pixels, row by row"),
        "low": PageKey("number | null", "the value of pixel 0", None),
        "high": PageKey("number | null", "the value of pixel 255", None),
        "diverging": PageKey("boolean", "true if the scale is symmetric about zero", False),
        "note": PageKey("string", 'the shown part, if it is not everything: `"16 of 64 channels"`', ""),
    },
    "attention": {
        "heads": PageKey("number", "number of heads"),
        "shown": PageKey("number", "number of heads with a map, from the first"),
        "queries": PageKey("number", "number of queries: the rows of a pattern"),
        "keys": PageKey("number", "number of keys: the columns of a pattern"),
        "width": PageKey(
            "number", "pixels of a map; column `i` is the sum over keys from `floor(i · keys / width)` to the next"
        ),
        "height": PageKey("number", "the same for rows, each the mean over its queries"),
        "data": PageKey("string", "base64 of 8-bit pixels, row by row, one map after the other: `p` is `(p / 255)² · high`"),
        "high": PageKey("number", "the largest value of all maps"),
        "samples": PageKey("number", "number of samples in the batch; the first is shown", 1),
    },
    "edge": {
        "from": PageKey("number", "the node whose tensor flows"),
        "to": PageKey("number", "the node that receives the tensor"),
        "positions": PageKey("string[]", 'list of the arguments it enters: `"args[0]"`', []),
        "shape": PageKey("number[] | null", "shape of the tensor", None),
        "dtype": PageKey("string | null", "dtype of the tensor", None),
        "bytes": PageKey("number", "size of the tensor in bytes", 0),
        "memory": PageKey("boolean", "true if it came only through shared memory, written through another view", False),
        "gradient": PageKey("boolean", "true for a gradient, which flows against the data", False),
    },
    "run": {
        "module": PageKey("number", "the innermost module call around the blocks", -1),
        "starts": PageKey("number[]", "list of nodes: the first of every block"),
        "end": PageKey("number", "the node after the last block"),
    },
    "chip": {
        "name": PageKey("string", "what it computes: `mask`, `positions`, `rotary`, `indices` or `constants`"),
        "nodes": PageKey("number[]", "list of nodes"),
    },
    "weight": {
        "name": PageKey("string", '`"features.6.weight"`'),
        "values_id": PageKey("string", "equal for equal values, also between payloads", ""),
        "stats": PageKey("Stats | null", "Stats of its values", None),
        "preview": PageKey("Preview | null", "Preview of its values, if it fits", None),
    },
    "port": {
        "name": PageKey("string", 'their common place: `"past_key_values.layers"`'),
        "nodes": PageKey("number[]", "list of nodes"),
    },
}

# Data of an Xray's report. Statistics, histograms and pictures are packed separately.
REPORT: dict[str, Part] = {
    "report": {
        "title": PageKey("string", "the heading"),
        "model": PageKey("string", "the class of the model"),
        "bytes": PageKey("number", "size of the run on disk, in bytes"),
        "max_bytes": PageKey("number", "the limit for the size of the file, in bytes"),
        "snapshots": PageKey("number", "number of snapshots in the run"),
        "steps": PageKey("number[]", "the training step of every shown snapshot"),
        "times": PageKey("number[]", "seconds from the first shown snapshot to each snapshot"),
        "notes": PageKey("[number, string[]][]", "pairs of a snapshot and its notes"),
        "metrics": PageKey(
            "Record<string, (number | null)[]>",
            "name -> its value at every snapshot, null if the value is not finite or was not given",
        ),
        "layers": PageKey("string[]", "every layer with parameters or pictures, in the model's order"),
        "watched": PageKey("number", "number of layers with pictures"),
        "kinds": PageKey("Record<string, string>", "every kind of series, with its title"),
        "fields": PageKey("string[]", "the columns of `statistics`, for every series and snapshot"),
        "edges": PageKey("number[]", "the edges between the bins of the histograms, ascending"),
        "least_fraction": PageKey("number", "the smallest fraction of a non-empty histogram bin"),
        "levels": PageKey("number", "the largest code of a finite value in a picture"),
        "pictures": PageKey("number[]", "the snapshots that have pictures"),
        "stride": PageKey("number", "the step between the kept pixels, filters, or rows and columns of a matrix"),
        "unreadable": PageKey("number[]", "the snapshots with unreadable pictures"),
        "dead": PageKey("number", "the fraction of a layer's units from which dead units are a finding"),
        "findings": PageKey("Finding[]", "list of Finding: everything that stood out in the run"),
        "series": PageKey("SeriesFacts[]", "list of Series: series with pictures first"),
    },
    "finding": {
        "tone": PageKey("string", "`bad`, `odd` or `fine`"),
        "text": PageKey("string", "a sentence"),
        "about": PageKey("string", "a further explanation", ""),
        "series": PageKey("number | null", "the series that the finding is about", None),
        "at": PageKey("number | null", "the snapshot from which it holds", None),
        "until": PageKey("number | null", "the last snapshot at which it holds", None),
    },
    "series": {
        "layer": PageKey("number", "one of `layers`"),
        "kind": PageKey("string", "one of `kinds`"),
        "limits": PageKey("[number, number]", "the ends of the colour scale over the whole run"),
        "forms": PageKey("Form[]", "list of Form: the field `form` of its statistics is the index of a snapshot's form"),
        "chunks": PageKey("Chunk[]", "list of Chunk: its pictures"),
    },
    "form": {
        "source": PageKey("string", "the tensor: the name of a parameter, or the label of an operation"),
        "shape": PageKey("number[]", "shape of the whole tensor"),
        "dtype": PageKey("string", '`"float32"`'),
        "layout": PageKey("string", "`maps`, `filters` or `matrix`; `none` for a summary"),
        "rows": PageKey("number[]", "the kept rows, filters or channels"),
        "columns": PageKey("number[] | null", "the kept columns or input channels; null if all", None),
        "note": PageKey("string", "a note for the reader"),
        "axes": PageKey("string[]", "the names of a row and a column", []),
        "totals": PageKey("(number | null)[]", "number of rows and columns in the tensor", []),
        "color": PageKey("boolean", "true if three input channels are shown as red, green and blue"),
    },
    "chunk": {
        "block": PageKey("number", "the number of the block: its codes are in the element `pictures-<number>`"),
        "kept": PageKey("number[]", "the sizes of the kept tensor"),
        "frames": PageKey(
            "[number, number, number][]",
            "snapshot, highest value, and flags: 1 if the lowest value is its negative instead of 0, 2 if values are clipped",
        ),
    },
}


def panel_rows() -> dict[str, list[tuple[str, PanelRow]]]:
    """Maps each section of the panel to its rows in order, each with the key of the node that the row shows."""
    found: dict[str, list[tuple[str, PanelRow]]] = {section: [] for section in PANEL}
    for name, key in GRAPH["node"].items():
        if key.row is not None:
            found[key.row.section].append((name, key.row))
    for section, titles in PANEL.items():
        found[section].sort(key=lambda row: titles.index(row[1].title) if row[1].title in titles else len(titles))
    return found


def required(part: Part) -> list[str]:
    """The keys that a part must have."""
    return [name for name, key in part.items() if key.is_required]


def lean(part: str, found: Plain) -> Plain:
    """The part without the keys whose values are the defaults.

    >>> lean("param", {"name": "weight", "trainable": True})
    {'name': 'weight'}
    """
    usual = _DEFAULTS[part]
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def whole(part: str, given: Plain) -> Plain:
    """The part with omitted keys at their defaults."""
    return {**_DEFAULTS[part], **given}


_DEFAULTS = {part: {name: key.default for name, key in keys.items() if not key.is_required} for part, keys in GRAPH.items()}
