"""The data format of the browser pages: every part and key, with its meaning and its default.

This is the only declaration. `make web-types` generates from it the TypeScript types, defaults and checks in
web/shared/generated/, and the tables of docs/viewer_format.md and docs/report_format.md; a test fails if they are stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Plain = dict[str, Any]

FORMAT = "torcheer-history"
VERSION = 1

_ALWAYS = object()  # the default of required keys


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its TypeScript type, its meaning, and its default, if it has one."""

    type: str
    about: str
    default: Any = _ALWAYS

    @property
    def is_required(self) -> bool:
        return self.default is _ALWAYS


Part = dict[str, Key]

# TypeScript names of parts that differ from their own name (browsers already have a Node and a File).
TYPES = {"file": "SourceFile", "module": "ModuleCall", "node": "OpNode", "grad": "Gradient", "series": "SeriesFacts"}

# Data of the graph page.
GRAPH: dict[str, Part] = {
    "payload": {
        "format": Key("string", 'always `"torcheer-history"`'),
        "version": Key("number", "always `1`"),
        "made_by": Key("string", 'the writer: `"torcheer 0.1.0"`'),
        "title": Key("string", "the name of the model"),
        "facts": Key("Facts", "Facts of the whole pass"),
        "files": Key("SourceFile[]", "list of File: the program's files in call stacks"),
        "modules": Key("ModuleCall[]", "list of Module: every call of a module"),
        "nodes": Key("OpNode[]", "list of Node: every operation, input and output, one for each pass"),
        "edges": Key("Edge[]", "list of Edge: every tensor that flows between two nodes"),
        "runs": Key("Run[]", "list of Run: consecutive equal blocks, outer runs first", []),
        "ports": Key("Port[]", "list of Port: groups of equal inputs, or outputs, such as a cache", []),
        "chips": Key("Chip[]", "list of Chip: plumbing that leads to several operations, such as a mask", []),
        "first_view": Key(
            "string[]", "what is open at first: keys of modules, and addresses of lists of modules, `down_blocks`", []
        ),
        "weights": Key("Weight[]", "list of Weight: parameters and buffers with readable values", []),
        "metrics": Key("string[]", "list of names: the user's own figures", []),
        "verdict": Key(
            "string", "the verdict of a comparison with another history, in one line; empty without a comparison", ""
        ),
        "culprits": Key("number[]", "list of nodes with an own error in that comparison, the culprit in its verdict first", []),
        "partners": Key("number[]", "for every node: the matching node of the other history, or -1", []),
    },
    "facts": {
        "operations": Key("number", "number of operations, including inputs and outputs", 0),
        "layers": Key("number", "how many layers these are", 0),
        "modules": Key("number", "number of modules below the root, called or not", 0),
        "parameters": Key("number", "number of values in all parameters, each parameter counted once", 0),
        "seconds": Key("number", "the whole time: setup, forward pass, cleanup", 0),
        "bytes": Key("number", "all tensors together", 0),
        "flops": Key("number | null", "the whole pass, where known", None),
        "unknown_flops": Key("number", "number of calls without a formula; no sum includes them", 0),
        "is_recurrent": Key("boolean", "true if any layer ran more than once", False),
        "failure": Key("string | null", "the error, if the pass failed", None),
        "notes": Key("string[]", "list of notes for the reader", []),
        "left_out": Key("string", "the parts that a size limit left out, in words", ""),
    },
    "file": {
        "path": Key("string", "as Python knows it"),
        "lines": Key(
            "Record<string, string>",
            "an object from line numbers, as text, to lines of code: those in call stacks with three lines around each",
        ),
    },
    "module": {
        "key": Key("string", 'address and call: `"features.6:1"`'),
        "address": Key("string", "the address of the module in the model"),
        "class": Key("string", "its class"),
        "call": Key("number", "the number of the call, from 1", 1),
        "num_calls": Key("number", "number of calls of the module", 1),
        "step": Key(
            "string",
            'equal for calls that are drawn as one box when rolled, if not all calls of the module are: `"pool:2"`, '
            "named after the first of them",
            "",
        ),
        "parent": Key("number", "the module call around it", -1),
        "depth": Key("number", "1 for modules that the model itself calls", 1),
        "training": Key("boolean", "true in training mode", False),
        "seconds": Key("number", "from entry to exit, on the clock", 0.0),
        "flops": Key("number | null", "the known FLOPs of the nodes inside; null if none is known", None),
        "bytes": Key("number", "of the nodes inside", 0),
        "num_params": Key("number", "number of values in the parameters at or below it, each parameter counted once", 0),
        "input_shapes": Key("number[][]", "list of shapes", []),
        "output_shapes": Key("number[][]", "list of shapes", []),
        "first": Key("number", "the first node inside; -1 if there is none", -1),
        "end": Key("number", "the node after the last inside; -1 if there is none", -1),
        "params_id": Key("string", "equal for modules with the same parameters", ""),
        "source": Key("[number, number] | null", "file and line of the call: `[0, 12]`", None),
    },
    "node": {
        "key": Key("string", 'layer and pass: `"relu_1_2:1"`'),
        "label": Key("string", 'the layer: `"relu_1_2"`'),
        "kind": Key(
            "string",
            "`input`, `output`, `operation`, `opaque` (from code that could not be watched), `alias` (another view of a "
            "tensor, from such code), `source` (of unknown origin) or `failed` (raised)",
            "operation",
        ),
        "type": Key("string", 'the function, in the spelling of labels: `"maxpool2d"`'),
        "function": Key("string", 'the function, as torch spells it: `"max_pool2d"`'),
        "title": Key("string", 'what people call it: `"max_pool2d"`, of an input or output its name, `"input_ids"`', ""),
        "folded": Key("boolean", "true for plumbing that folds into the edge it stands on, such as a `view`", False),
        "call": Key("number", "the first node of the same call, if the call made several tensors", -1),
        "category": Key(
            "string",
            "the category, for its colour: `input`, `output`, `layer`, `attention`, `normalisation`, "
            "`activation`, `pooling`, `arithmetic`, `reduction`, `shape`, `random`, `constant`, `opaque` or `failed`",
            "arithmetic",
        ),
        "pass": Key("number", "the pass of its layer, from 1", 1),
        "num_passes": Key("number", "how often the layer ran", 1),
        "module": Key("number", "the innermost module call it ran in", -1),
        "exits": Key("number[]", "the module calls that returned it, innermost first", []),
        "shape": Key("number[] | null", "list of sizes, empty for a scalar, -1 for a ragged dimension", None),
        "dtype": Key("string | null", '`"float32"`', None),
        "device": Key("string | null", '`"cpu"`', None),
        "bytes": Key("number", "of its tensor", 0),
        "seconds": Key("number", "in the function itself; the first of several results has the time of the call", 0.0),
        "backward_seconds": Key("number | null", "in its autograd nodes, in all followed backward passes", None),
        "flops": Key("number | null", "null without a formula", None),
        "macs": Key("number | null", "multiply-accumulates among them", None),
        "params": Key("Param[]", "list of Param: the parameters it used", []),
        "buffers": Key("string[]", "list of names: the buffers it used", []),
        "inplace": Key("boolean", "true if it wrote its result into an argument", False),
        "role": Key("string", "the place of an input or output in the arguments or the result; the name of a source", ""),
        "arguments": Key("string", "of the call, with `·` for tensors, cut after 400 characters", ""),
        "composite": Key("string | null", 'the composite around it: `"multi_head_attention_forward"`', None),
        "error": Key("string", "of the operation that raised", ""),
        "gradfunc": Key("string | null", "its autograd node", None),
        "rows": Key("[string, string][]", "list of `[title, text]`: further facts, as `print(operation)` shows them", []),
        "stack": Key("[number, number, string][]", "list of `[file, line, function]`, outermost first", []),
        "source": Key("number", "the index of the program's own innermost line", -1),
        "python_reads": Key("string[]", 'list of Python reads: `"__bool__ → True"`', []),
        "saved": Key("boolean", "true if its activation was kept", False),
        "stats": Key("Stats | null", "Stats of the activation, if it was kept", None),
        "grad": Key("Gradient | null", "Gradient, of the last followed backward pass that reached it", None),
        "preview": Key("Preview | null", "Preview of the activation, if it was kept and fits", None),
        "attention": Key("Attention | null", "Attention: the patterns of its heads, if they fit", None),
        "metrics": Key("(number | null)[]", "list of figures, one for each of the payload's `metrics`", []),
    },
    "param": {
        "name": Key("string", '`"features.6.weight"`'),
        "shape": Key("number[]", "list of sizes"),
        "dtype": Key("string", '`"float32"`'),
        "trainable": Key("boolean", "true if it requires gradients", True),
        "numel": Key("number", "number of values"),
    },
    "stats": {
        "count": Key("number", "number of values, finite or not"),
        "min": Key("number | null", "the smallest", None),
        "max": Key("number | null", "the largest", None),
        "mean": Key("number | null", "their mean", None),
        "std": Key("number | null", "their standard deviation (divided by their number)", None),
        "norm": Key("number | null", "the root of the sum of their squares", None),
        "zeros": Key("number", "number of zeros", 0),
        "nan": Key("number", "number of NaN", 0),
        "inf": Key("number", "number of infinities", 0),
        "histogram": Key("Histogram | null", "Histogram; null if all values are equal", None),
    },
    "histogram": {
        "low": Key("number", "the lower edge of the first bin: the smallest value"),
        "high": Key("number", "the upper edge of the last bin: the largest value, which is in the bin"),
        "counts": Key("number[]", "32 numbers: the count of each of 32 bins of equal width"),
    },
    "grad": {
        "shape": Key("number[]", "list of sizes"),
        "stats": Key("Stats | null", "Stats", None),
    },
    "preview": {
        "kind": Key(
            "string",
            "`image` (an input with the shape of an image), `maps` (channels side by side), `matrix`, `attention` (heads side"
            " by side) or `vector`",
        ),
        "width": Key("number", "pixels"),
        "height": Key("number", "pixels"),
        "channels": Key("number", "1, or 3 for red, green and blue", 1),
        "data": Key("string", "base64 of 8-bit pixels, row by row"),
        "low": Key("number | null", "the value of pixel 0", None),
        "high": Key("number | null", "the value of pixel 255", None),
        "diverging": Key("boolean", "true if the scale is symmetric about zero", False),
        "note": Key("string", 'the shown part, if it is not everything: `"16 of 64 channels"`', ""),
    },
    "attention": {
        "heads": Key("number", "number of heads"),
        "shown": Key("number", "number of heads with a map, from the first"),
        "queries": Key("number", "number of queries: the rows of a pattern"),
        "keys": Key("number", "number of keys: the columns of a pattern"),
        "width": Key("number", "pixels of a map; column `i` is the sum over keys from `floor(i · keys / width)` to the next"),
        "height": Key("number", "the same for rows, each the mean over its queries"),
        "data": Key("string", "base64 of 8-bit pixels, row by row, one map after the other: `p` is `(p / 255)² · high`"),
        "high": Key("number", "the largest value of all maps"),
        "samples": Key("number", "number of samples in the batch; the first is shown", 1),
    },
    "edge": {
        "from": Key("number", "a node"),
        "to": Key("number", "a node"),
        "positions": Key("string[]", 'list of the arguments it enters: `"args[0]"`', []),
        "shape": Key("number[] | null", "of the tensor", None),
        "dtype": Key("string | null", "of the tensor", None),
        "bytes": Key("number", "of the tensor", 0),
        "memory": Key("boolean", "true if it came only through shared memory, written through another view", False),
        "gradient": Key("boolean", "true for a gradient, which flows against the data", False),
    },
    "run": {
        "module": Key("number", "the innermost module call around the blocks", -1),
        "starts": Key("number[]", "list of nodes: the first of every block"),
        "end": Key("number", "the node after the last block"),
    },
    "chip": {
        "name": Key("string", "what it computes: `mask`, `positions`, `rotary`, `indices` or `constants`"),
        "nodes": Key("number[]", "list of nodes"),
    },
    "weight": {
        "name": Key("string", '`"features.6.weight"`'),
        "values_id": Key("string", "equal for equal values, also between payloads", ""),
        "stats": Key("Stats | null", "Stats of its values", None),
        "preview": Key("Preview | null", "Preview of its values, if it fits", None),
    },
    "port": {
        "name": Key("string", 'their common place: `"past_key_values.layers"`'),
        "nodes": Key("number[]", "list of nodes"),
    },
}

# Data of an Xray's report. Statistics, histograms and pictures are packed separately.
REPORT: dict[str, Part] = {
    "report": {
        "title": Key("string", "the heading"),
        "model": Key("string", "the class of the model"),
        "bytes": Key("number", "of the run on disk"),
        "max_bytes": Key("number", "the limit for the file"),
        "snapshots": Key("number", "number of snapshots in the run"),
        "steps": Key("number[]", "the training step of every shown snapshot"),
        "times": Key("number[]", "seconds from the first shown snapshot to each"),
        "notes": Key("[number, string[]][]", "a snapshot, and its notes"),
        "metrics": Key(
            "Record<string, (number | null)[]>",
            "by name: the value at every snapshot, null if it is not finite or not given",
        ),
        "layers": Key("string[]", "every layer with parameters or pictures, in the model's order"),
        "watched": Key("number", "number of layers with pictures"),
        "kinds": Key("Record<string, string>", "every kind of series, with its title"),
        "fields": Key("string[]", "the columns of `statistics`, for every series and snapshot"),
        "edges": Key("number[]", "the edges between the bins of the histograms, ascending"),
        "least_fraction": Key("number", "the smallest fraction of a non-empty histogram bin"),
        "levels": Key("number", "the largest code of a finite value in a picture"),
        "pictures": Key("number[]", "the snapshots that have pictures"),
        "stride": Key("number", "the step between the kept pixels, filters, or rows and columns of a matrix"),
        "unreadable": Key("number[]", "the snapshots with unreadable pictures"),
        "findings": Key("Finding[]", "list of Finding: what stands out in the run"),
        "series": Key("SeriesFacts[]", "list of Series: those with pictures first"),
    },
    "finding": {
        "tone": Key("string", "`bad`, `odd` or `fine`"),
        "text": Key("string", "a sentence"),
        "about": Key("string", "what more there is to say", ""),
        "series": Key("number | null", "which one of `series` it is about", None),
        "at": Key("number | null", "the snapshot it is about", None),
    },
    "series": {
        "layer": Key("number", "one of `layers`"),
        "kind": Key("string", "one of `kinds`"),
        "limits": Key("[number, number]", "the ends of the colour scale over the whole run"),
        "forms": Key("Form[]", "list of Form: the field `form` of its statistics is the index of a snapshot's form"),
        "chunks": Key("Chunk[]", "list of Chunk: its pictures"),
    },
    "form": {
        "source": Key("string", "the tensor: the name of a parameter, or the label of an operation"),
        "shape": Key("number[]", "of the whole tensor"),
        "dtype": Key("string", '`"float32"`'),
        "layout": Key("string", "`maps`, `filters` or `matrix`; `none` for a summary"),
        "rows": Key("number[]", "the kept rows, filters or channels"),
        "columns": Key("number[] | null", "the kept columns or input channels; null if all", None),
        "note": Key("string", "a note for the reader"),
        "axes": Key("string[]", "the names of a row and a column", []),
        "totals": Key("(number | null)[]", "number of rows and columns in the tensor", []),
        "color": Key("boolean", "true if three input channels are shown as red, green and blue"),
    },
    "chunk": {
        "block": Key("number", "the number of the block: its codes are in the element `pictures-<number>`"),
        "kept": Key("number[]", "the sizes of the kept tensor"),
        "frames": Key(
            "[number, number, number][]",
            "snapshot, highest value, and flags: 1 if the lowest value is its negative instead of 0, 2 if values are clipped",
        ),
    },
}


def required(part: Part) -> list[str]:
    """The required keys."""
    return [name for name, key in part.items() if key.is_required]


def lean(part: str, found: Plain) -> Plain:
    """Only the keys whose values differ from the defaults.

    >>> lean("param", {"name": "weight", "trainable": True})
    {'name': 'weight'}
    """
    usual = _DEFAULTS[part]
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def whole(part: str, given: Plain) -> Plain:
    """A part with omitted keys at their defaults."""
    return {**_DEFAULTS[part], **given}


_DEFAULTS = {part: {name: key.default for name, key in keys.items() if not key.is_required} for part, keys in GRAPH.items()}
