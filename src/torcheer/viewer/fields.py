"""The parts of a payload and what each key means when it is left out. Writer, reader and documentation agree on these."""

from __future__ import annotations

from typing import Any

Plain = dict[str, Any]

FORMAT = "torcheer-history"
VERSION = 1

# Keys without a default are always there.
REQUIRED: dict[str, tuple[str, ...]] = {
    "payload": ("format", "version", "made_by", "title", "facts", "files", "modules", "nodes", "edges"),
    "file": ("path", "lines"),
    "module": ("key", "address", "class"),
    "node": ("key", "label", "type", "function"),
    "edge": ("from", "to"),
    "param": ("name", "shape", "dtype", "numel"),
    "stats": ("count",),
    "histogram": ("low", "high", "counts"),
    "grad": ("shape",),
    "preview": ("kind", "width", "height", "data"),
}
DEFAULTS: dict[str, Plain] = {
    "facts": {
        "operations": 0,
        "layers": 0,
        "modules": 0,
        "parameters": 0,
        "seconds": 0,
        "bytes": 0,
        "unknown_flops": 0,
        "flops": None,
        "is_recurrent": False,
        "failure": None,
        "notes": [],
        "left_out": "",
    },
    "module": {
        "call": 1,
        "num_calls": 1,
        "step": "",
        "parent": -1,
        "depth": 1,
        "training": False,
        "seconds": 0.0,
        "flops": None,
        "bytes": 0,
        "num_params": 0,
        "input_shapes": [],
        "output_shapes": [],
        "first": -1,
        "end": -1,
        "structure": "",
        "params_id": "",
        "source": None,
    },
    "node": {
        "kind": "operation",
        "category": "arithmetic",
        "pass": 1,
        "num_passes": 1,
        "module": -1,
        "exits": [],
        "shape": None,
        "dtype": None,
        "device": None,
        "bytes": 0,
        "seconds": 0.0,
        "backward_seconds": None,
        "flops": None,
        "macs": None,
        "params": [],
        "buffers": [],
        "inplace": False,
        "role": "",
        "arguments": "",
        "composite": None,
        "error": "",
        "gradfunc": None,
        "stack": [],
        "source": -1,
        "departures": [],
        "saved": False,
        "stats": None,
        "grad": None,
        "preview": None,
    },
    "edge": {
        "positions": [],
        "shape": None,
        "dtype": None,
        "bytes": 0,
        "memory": False,
        "gradient": False,
    },
    "param": {
        "trainable": True,
    },
    "stats": {
        "min": None,
        "max": None,
        "mean": None,
        "std": None,
        "norm": None,
        "histogram": None,
        "zeros": 0,
        "nan": 0,
        "inf": 0,
    },
    "grad": {
        "stats": None,
    },
    "preview": {
        "channels": 1,
        "low": None,
        "high": None,
        "diverging": False,
        "note": "",
    },
}


def lean(part: str, found: Plain) -> Plain:
    """What differs from the default.

    >>> lean("param", {"name": "weight", "trainable": True})
    {'name': 'weight'}
    """
    defaults = DEFAULTS[part]
    return {name: value for name, value in found.items() if name not in defaults or value != defaults[name]}


def whole(part: str, given: Plain) -> Plain:
    """With every key that was left out."""
    return {**DEFAULTS.get(part, {}), **given}
