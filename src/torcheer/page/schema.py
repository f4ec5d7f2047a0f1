"""The data of the browser pages: every part, every key, what it means, and what it is where it is left out.

This is the only declaration. From it `make web-types` writes the TypeScript types, defaults and checks in
web/shared/generated/, and the tables of docs/viewer_format.md and docs/report_format.md; a test fails when they are stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Plain = dict[str, Any]

FORMAT = "torcheer-history"
VERSION = 1

_ALWAYS = object()  # the default of keys that are never left out


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its type as TypeScript spells it, what it means, and its default, if it has one."""

    type: str
    about: str
    default: Any = _ALWAYS

    @property
    def is_required(self) -> bool:
        return self.default is _ALWAYS


Part = dict[str, Key]

# What TypeScript calls a part, where that is not its own name (browsers have a Node and a File already).
TYPES = {"file": "SourceFile", "module": "ModuleCall", "node": "OpNode", "grad": "Gradient", "series": "SeriesFacts"}

# What the graph page shows of a history.
GRAPH: dict[str, Part] = {
    "payload": {
        "format": Key("string", 'always `"torcheer-history"`'),
        "version": Key("number", "always `1`"),
        "made_by": Key("string", 'what wrote it: `"torcheer 0.1.0"`'),
        "title": Key("string", "the name of the model"),
        "facts": Key("Facts", "Facts: of the pass as a whole"),
        "files": Key("SourceFile[]", "list of File: the program's files that are referred to"),
        "modules": Key("ModuleCall[]", "list of Module: every call of a module"),
        "nodes": Key("OpNode[]", "list of Node: every operation, input and output, each pass on its own"),
        "edges": Key("Edge[]", "list of Edge: every tensor that one node had from another"),
        "runs": Key("Run[]", "list of Run: equal blocks that follow one another, outer ones first", []),
        "ports": Key("Port[]", "list of Port: groups of equal inputs, or outputs, such as a cache", []),
        "weights": Key("Weight[]", "list of Weight: the values of parameters and buffers, where they could be read", []),
        "metrics": Key("string[]", "list of names: figures of the reader's own", []),
        "verdict": Key("string", "what a comparison with another history says, in a line; empty without one", ""),
        "culprits": Key("number[]", "list of nodes with an error of their own in that comparison, the one it names first", []),
        "partners": Key("number[]", "for every node: what it corresponds to in the other history, -1 for nothing", []),
    },
    "facts": {
        "operations": Key("number", "how many operations ran, inputs and outputs included", 0),
        "layers": Key("number", "how many layers these are", 0),
        "modules": Key("number", "how many modules the model has below its root, called or not", 0),
        "parameters": Key("number", "how many values its parameters have, each parameter counted once", 0),
        "seconds": Key("number", "everything: setup, forward pass, cleanup", 0),
        "bytes": Key("number", "all tensors together", 0),
        "flops": Key("number | null", "the whole pass, where known", None),
        "unknown_flops": Key("number", "how many calls have no formula; their FLOPs are in no sum", 0),
        "is_recurrent": Key("boolean", "whether any layer ran more than once", False),
        "failure": Key("string | null", "the error, if the pass failed", None),
        "notes": Key("string[]", "list of sentences a reader should know", []),
        "left_out": Key("string", "what a size limit left out, in words", ""),
    },
    "file": {
        "path": Key("string", "as Python knows it"),
        "lines": Key(
            "Record<string, string>",
            "an object from line numbers, as text, to lines of code: those referred to and three around each",
        ),
    },
    "module": {
        "key": Key("string", 'address and call: `"features.6:1"`'),
        "address": Key("string", "where the module is in the model"),
        "class": Key("string", "its class"),
        "call": Key("number", "which call of this module, from 1", 1),
        "num_calls": Key("number", "how often the module was called", 1),
        "step": Key(
            "string",
            'equal for calls that are drawn as one box when rolled, where not all calls of the module are: `"pool:2"`, '
            "after the first of them",
            "",
        ),
        "parent": Key("number", "the module call around it", -1),
        "depth": Key("number", "1 for what the model itself calls", 1),
        "training": Key("boolean", "whether it was in training mode", False),
        "seconds": Key("number", "from entry to exit, on the clock", 0.0),
        "flops": Key("number | null", "of the nodes inside, where known; null if none is", None),
        "bytes": Key("number", "of the nodes inside", 0),
        "num_params": Key("number", "values of the parameters registered in it and below, each parameter counted once", 0),
        "input_shapes": Key("number[][]", "list of shapes", []),
        "output_shapes": Key("number[][]", "list of shapes", []),
        "first": Key("number", "the first node inside; -1 if there is none", -1),
        "end": Key("number", "the node after the last inside; -1 if there is none", -1),
        "params_id": Key("string", "equal for modules that hold the same parameters", ""),
        "source": Key("[number, number] | null", "file and line that called it: `[0, 12]`", None),
    },
    "node": {
        "key": Key("string", 'layer and pass: `"relu_1_2:1"`'),
        "label": Key("string", 'the layer: `"relu_1_2"`'),
        "kind": Key(
            "string",
            "`input`, `output`, `operation`, `opaque` (ran where it could not be watched), `alias` (another view of a "
            "tensor, made there), `source` (turned up unexplained) or `failed` (raised)",
            "operation",
        ),
        "type": Key("string", 'the function as labels spell it: `"maxpool2d"`'),
        "function": Key("string", 'the function as torch spells it: `"max_pool2d"`'),
        "category": Key(
            "string",
            "what kind of step it is, for its colour: `input`, `output`, `layer`, `attention`, `normalisation`, "
            "`activation`, `pooling`, `arithmetic`, `reduction`, `shape`, `random`, `constant`, `opaque` or `failed`",
            "arithmetic",
        ),
        "pass": Key("number", "which pass of its layer, from 1", 1),
        "num_passes": Key("number", "how often the layer ran", 1),
        "module": Key("number", "the innermost module call it ran in", -1),
        "exits": Key("number[]", "the module calls that returned it, innermost first", []),
        "shape": Key("number[] | null", "list of sizes, empty for a scalar, -1 for a ragged dimension", None),
        "dtype": Key("string | null", '`"float32"`', None),
        "device": Key("string | null", '`"cpu"`', None),
        "bytes": Key("number", "of its tensor", 0),
        "seconds": Key("number", "in the function itself; of a call that made several tensors, with the first", 0.0),
        "backward_seconds": Key("number | null", "in its autograd nodes, in all backward passes that were followed", None),
        "flops": Key("number | null", "null where there is no formula", None),
        "macs": Key("number | null", "multiply-accumulates among them", None),
        "params": Key("Param[]", "list of Param: the parameters it used", []),
        "buffers": Key("string[]", "list of names: the buffers it used", []),
        "inplace": Key("boolean", "whether it wrote its result into an argument", False),
        "role": Key("string", "where an input was given or an output returned; what a source is called", ""),
        "arguments": Key("string", "of the call, with `·` for tensors, cut after 400 characters", ""),
        "composite": Key("string | null", 'the function around it that was opened: `"multi_head_attention_forward"`', None),
        "error": Key("string", "of the operation that raised", ""),
        "gradfunc": Key("string | null", "its autograd node", None),
        "stack": Key("[number, number, string][]", "list of `[file, line, function]`, outermost first", []),
        "source": Key("number", "which of these is the program's own innermost line", -1),
        "python_reads": Key("string[]", 'list of values that Python read: `"__bool__ → True"`', []),
        "saved": Key("boolean", "whether its activation was kept", False),
        "stats": Key("Stats | null", "Stats of the activation, if it was kept", None),
        "grad": Key("Gradient | null", "Gradient, of the last backward pass that was followed to here", None),
        "preview": Key("Preview | null", "Preview of the activation, if it was kept and there was room", None),
        "attention": Key("Attention | null", "Attention: the patterns of its heads, where there was room", None),
        "metrics": Key("(number | null)[]", "list of figures, one for each of the payload's `metrics`", []),
    },
    "param": {
        "name": Key("string", '`"features.6.weight"`'),
        "shape": Key("number[]", "list of sizes"),
        "dtype": Key("string", '`"float32"`'),
        "trainable": Key("boolean", "whether it requires gradients", True),
        "numel": Key("number", "how many values it has"),
    },
    "stats": {
        "count": Key("number", "how many values there are, finite or not"),
        "min": Key("number | null", "the smallest", None),
        "max": Key("number | null", "the largest", None),
        "mean": Key("number | null", "their mean", None),
        "std": Key("number | null", "their standard deviation (divided by their number)", None),
        "norm": Key("number | null", "the root of the sum of their squares", None),
        "zeros": Key("number", "how many are 0", 0),
        "nan": Key("number", "how many are not a number", 0),
        "inf": Key("number", "how many are infinite", 0),
        "histogram": Key("Histogram | null", "Histogram; null where all values are equal", None),
    },
    "histogram": {
        "low": Key("number", "where the first bin begins: the smallest value"),
        "high": Key("number", "where the last bin ends: the largest value, which is in it"),
        "counts": Key("number[]", "32 numbers: how many values are in each of 32 bins of equal width"),
    },
    "grad": {
        "shape": Key("number[]", "list of sizes"),
        "stats": Key("Stats | null", "Stats", None),
    },
    "preview": {
        "kind": Key(
            "string",
            "`image` (an input that looks like one), `maps` (channels side by side), `matrix`, `attention` (heads side by"
            " side) or `vector`",
        ),
        "width": Key("number", "pixels"),
        "height": Key("number", "pixels"),
        "channels": Key("number", "1, or 3 for red, green and blue", 1),
        "data": Key("string", "base64 of 8-bit pixels, row by row"),
        "low": Key("number | null", "the value that 0 stands for", None),
        "high": Key("number | null", "the value that 255 stands for", None),
        "diverging": Key("boolean", "whether the scale goes as far below zero as above", False),
        "note": Key("string", 'what is shown, where it is not everything: `"16 of 64 channels"`', ""),
    },
    "attention": {
        "heads": Key("number", "how many heads it has"),
        "shown": Key("number", "of how many of them, from the first, there is a map"),
        "queries": Key("number", "how many queries there are: the rows of a pattern"),
        "keys": Key("number", "how many keys: the columns"),
        "width": Key("number", "pixels of a map; column `i` is the sum over keys from `floor(i · keys / width)` to the next"),
        "height": Key("number", "the same of rows, each the mean over its queries"),
        "data": Key("string", "base64 of 8-bit pixels, row by row, one map after the other: `p` is `(p / 255)² · high`"),
        "high": Key("number", "the largest value of all maps"),
        "samples": Key("number", "how many samples the batch has; shown is the first", 1),
    },
    "edge": {
        "from": Key("number", "a node"),
        "to": Key("number", "a node"),
        "positions": Key("string[]", 'list of the arguments it came through: `"args[0]"`', []),
        "shape": Key("number[] | null", "of the tensor", None),
        "dtype": Key("string | null", "of the tensor", None),
        "bytes": Key("number", "of the tensor", 0),
        "memory": Key("boolean", "whether it came through shared memory only: written through another view", False),
        "gradient": Key("boolean", "whether it is a gradient, which goes against the data", False),
    },
    "run": {
        "module": Key("number", "the module call that the blocks are directly inside", -1),
        "starts": Key("number[]", "list of nodes: the first of every block"),
        "end": Key("number", "the node after the last block"),
    },
    "weight": {
        "name": Key("string", '`"features.6.weight"`'),
        "values_id": Key("string", "equal for equal values, also between payloads", ""),
        "stats": Key("Stats | null", "Stats of its values", None),
        "preview": Key("Preview | null", "Preview of its values, if there was room", None),
    },
    "port": {
        "name": Key("string", 'what they are in: `"past_key_values.layers"`'),
        "nodes": Key("number[]", "list of nodes"),
    },
}

# What the report of an Xray shows of a run. Statistics, histograms and pictures lie beside it, packed.
REPORT: dict[str, Part] = {
    "report": {
        "title": Key("string", "the heading"),
        "model": Key("string", "the class of the model"),
        "bytes": Key("number", "of the run on disk"),
        "max_bytes": Key("number", "what the file may take"),
        "snapshots": Key("number", "how many the run has"),
        "steps": Key("number[]", "the training step of every snapshot that is shown"),
        "times": Key("number[]", "seconds from the first of them to each"),
        "notes": Key("[number, string[]][]", "a snapshot, and what it says"),
        "metrics": Key(
            "Record<string, (number | null)[]>",
            "by name: the value at every snapshot, null where it is not finite or not given",
        ),
        "layers": Key("string[]", "every layer with parameters or pictures, in the model's order"),
        "watched": Key("number", "how many layers have pictures"),
        "kinds": Key("Record<string, string>", "every kind of series, and the words for it"),
        "fields": Key("string[]", "the numbers that `statistics` has of every series and snapshot"),
        "edges": Key("number[]", "between the bins of the histograms, from the lowest to the highest"),
        "least_fraction": Key("number", "of a histogram's bin that is not empty"),
        "levels": Key("number", "the largest code of a finite value in a picture"),
        "pictures": Key("number[]", "the snapshots that have pictures"),
        "stride": Key("number", "how many pixels, filters, or rows and columns of a matrix a picture goes on by"),
        "unreadable": Key("number[]", "the snapshots whose pictures could not be read"),
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
        "forms": Key("Form[]", "list of Form: the field `form` of its statistics says which one a snapshot has"),
        "chunks": Key("Chunk[]", "list of Chunk: its pictures"),
    },
    "form": {
        "source": Key("string", "the tensor: the name of a parameter, or the label of an operation"),
        "shape": Key("number[]", "of the whole tensor"),
        "dtype": Key("string", '`"float32"`'),
        "layout": Key("string", "`maps`, `filters` or `matrix`; `none` of a summary"),
        "rows": Key("number[]", "which rows, filters or channels are kept"),
        "columns": Key("number[] | null", "which columns or input channels; null if all", None),
        "note": Key("string", "what a reader should know"),
        "axes": Key("string[]", "the words for a row and a column", []),
        "totals": Key("(number | null)[]", "how many rows and columns the tensor has", []),
        "color": Key("boolean", "whether three input channels are shown as red, green and blue"),
    },
    "chunk": {
        "block": Key("number", "the number of the block: its codes are in the element `pictures-<number>`"),
        "kept": Key("number[]", "the sizes of the kept tensor"),
        "frames": Key(
            "[number, number, number][]",
            "snapshot, highest value, and flags: 1 where the lowest is its negative and not 0, 2 where values are clipped",
        ),
    },
}


def required(part: Part) -> list[str]:
    """The keys that are never left out."""
    return [name for name, key in part.items() if key.is_required]


def lean(part: str, found: Plain) -> Plain:
    """Only the keys whose values differ from the defaults.

    >>> lean("param", {"name": "weight", "trainable": True})
    {'name': 'weight'}
    """
    usual = _DEFAULTS[part]
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def whole(part: str, given: Plain) -> Plain:
    """A part with the keys that were left out, at their defaults."""
    return {**_DEFAULTS[part], **given}


_DEFAULTS = {part: {name: key.default for name, key in keys.items() if not key.is_required} for part, keys in GRAPH.items()}
