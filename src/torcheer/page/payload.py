"""Converts a history to one payload of plain values, which the viewer reads; docs/viewer_format.md describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import torch

from .._files.files import output_path, write_whole
from .._text import human_size, plural
from .._torch.gc_pause import fewer_collections
from .._torch.inputs import is_whole
from .._torch.internals import DisableTorchFunction
from .._torch.measure import one_thread
from ..analysis import Cost
from ..errors import InvalidArgument
from ..graph import Graph, add_gradient_edges, first_view, plumbing_of
from ..log.records import Failure
from ..log.run import HoldsRun, run_of
from .attention import add_patterns
from .contents import Contents, chips_in, ports_in, runs_in
from .document import packed
from .schema import FORMAT, VERSION, Plain, lean
from .values import Metrics, Values, Weights

MAX_BYTES = 12_000_000  # the default limit of a page's size: browsers open such a page without delay
_WORDS = 1_000  # number of bytes reserved for the text about omitted parts


class Recorded(HoldsRun, Protocol):
    """The part of a history that the viewer reads."""

    @property
    def graph(self) -> Graph: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def num_operations(self) -> int: ...
    @property
    def num_modules(self) -> int: ...
    @property
    def num_params_total(self) -> int: ...
    @property
    def tensor_fsize_total(self) -> int: ...
    @property
    def time_elapsed(self) -> float | None: ...
    @property
    def is_recurrent(self) -> bool: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def failure(self) -> Failure | None: ...
    def __len__(self) -> int: ...


def payload_of(
    history: Recorded, *, previews: bool = True, max_bytes: int = MAX_BYTES, metrics: Metrics | None = None
) -> Plain:
    """A history as JSON values: the data that the viewer shows.

    >>> import torch, torcheer
    >>> from torcheer.page import payload_of
    >>> payload = payload_of(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)))
    >>> [node["key"] for node in payload["nodes"]], payload["nodes"][1]["stats"]["mean"]
    (['input_1_0:1', 'relu_1_1:1', 'output_1_2:1'], 1.0)

    Args:
        history: the result of `log_forward_pass` or `recording`. Activations need not be kept; without them there are no
            statistics and no previews.
        previews: whether to add small pictures of the kept activations, of attention heads and of parameters.
        max_bytes: the limit for the payload in a page, compressed. Previews are left out first, then histograms, statistics,
            lines of code and call stacks, and `payload["facts"]["left_out"]` lists them.
        metrics: your own figures, `{"my norm": lambda tensor: tensor.norm()}`: each function gets a copy of every kept
            activation and returns a number.

    Every kept activation is read once. Empty keys are left out; docs/viewer_format.md lists all keys.
    """
    check_limit(max_bytes)
    check_metrics(metrics)
    with (
        DisableTorchFunction(),
        torch.no_grad(),
        fewer_collections(),
        one_thread(),
    ):  # a running recording does not record the reads
        return _payload(history, previews, max_bytes, metrics or {})


def check_metrics(metrics: Metrics | None) -> None:
    """Raise unless `metrics` maps names to functions."""
    if metrics is None:
        return
    if not isinstance(metrics, Mapping):
        raise InvalidArgument(f"metrics is a dictionary from names to functions of a tensor; got {type(metrics).__name__}.")
    for name, function in metrics.items():
        if not isinstance(name, str) or not name or not callable(function):
            raise InvalidArgument(
                "metrics is a dictionary from names to functions of a tensor, such as {'my norm': lambda t: t.norm()}; "
                f"got {name!r}: {type(function).__name__}."
            )


def check_limit(max_bytes: int) -> None:
    """Raise unless `max_bytes` is a size."""
    if not is_whole(max_bytes, 1):
        raise InvalidArgument(f"max_bytes is a number of bytes, such as 12_000_000; got {max_bytes!r}.")


def _payload(history: Recorded, previews: bool, max_bytes: int, metrics: Metrics) -> Plain:
    graph, run = history.graph, run_of(history)
    if any(node.has_gradient for node in graph.all_nodes):
        graph = add_gradient_edges(graph)
    plumbing = plumbing_of(history.graph)
    contents = Contents(run.index, graph, history.cost, plumbing)
    values = Values(run.index, graph.all_nodes)
    nodes, modules, edges = contents.nodes(), contents.modules(), contents.edges()
    values.add_statistics(nodes)
    values.add_metrics(nodes, metrics)
    weights = Weights(run.index)
    shown = weights.plain()
    facts = _facts(history)
    whole: Plain = {
        "format": FORMAT,
        "version": VERSION,
        "made_by": f"torcheer {_version()}",
        "title": graph.title,
        "facts": facts,
        "files": contents.stacks.files(),
        "modules": modules,
        "nodes": nodes,
        "edges": edges,
        "runs": [lean("run", one) for one in runs_in(history.graph)],
        "ports": ports_in(graph),
        "chips": chips_in(graph, plumbing),
        "first_view": list(first_view(history.graph).open),
        "weights": shown,
        "metrics": list(metrics),
    }
    payload = lean("payload", whole)
    left_out, size = _reduced_to_fit(payload, max_bytes)
    pairs = list(zip(shown, weights.tensors.values(), strict=True))
    if previews:
        room = max_bytes - size - _WORDS
        taken, unseen = add_patterns(run.index, graph.all_nodes, nodes, room)
        missing = values.add_previews(nodes, pairs, room - taken)
        left_out[:0] = [f"previews of {plural(missing, 'tensor')}"] if missing else []
        left_out[:0] = [f"attention patterns of {plural(unseen, 'operation')}"] if unseen else []
    facts |= {"left_out": _left_out(left_out, size, max_bytes), "notes": [*history.notes, *weights.notes, *values.notes]}
    payload["facts"] = lean("facts", facts)
    return payload


def _version() -> str:
    try:
        return version("torcheer")
    except PackageNotFoundError:  # torcheer is run from a source tree that was never installed
        return "0+unknown"


def _facts(history: Recorded) -> Plain:
    total = history.cost.total
    failure = history.failure
    return {
        "operations": history.num_operations,
        "layers": len(history),
        "modules": history.num_modules,
        "parameters": history.num_params_total,
        "seconds": float(f"{history.time_elapsed or 0.0:.6g}"),  # the page shows no time of 0
        "bytes": history.tensor_fsize_total,
        "flops": total.flops,
        "unknown_flops": total.unknown,
        "is_recurrent": history.is_recurrent,
        "failure": failure.error if failure is not None else None,
    }


# Size ---------------------------------------------------------------------------------------------------------------


def _without(*names: str) -> Callable[[Plain], None]:
    def leave_out(payload: Plain) -> None:
        for node in (*payload["nodes"], *payload.get("weights", ())):
            for name in names:
                node.pop(name, None)

    return leave_out


def _without_histograms(payload: Plain) -> None:
    for node in (*payload["nodes"], *payload.get("weights", ())):
        for holder in (node, node.get("grad", {})):
            if "stats" in holder:
                holder["stats"] = {name: value for name, value in holder["stats"].items() if name != "histogram"}


def _without_code(payload: Plain) -> None:
    for file in payload["files"]:
        file["lines"] = {}


# Parts that are left out, one after another, until the rest fits.
_REMOVABLE_PARTS: tuple[tuple[str, Callable[[Plain], None]], ...] = (
    ("histograms", _without_histograms),
    ("statistics", _without("stats", "grad")),
    ("lines of code", _without_code),
    ("call stacks and arguments", _without("stack", "source", "arguments")),
)


def _reduced_to_fit(payload: Plain, max_bytes: int) -> tuple[list[str], int]:
    """Remove parts of a payload until it fits. Returns the names of these parts, and the size of the rest."""
    gone: list[str] = []
    size = packed_size(payload)
    for words, leave_out in _REMOVABLE_PARTS:
        if size <= max_bytes:
            break
        leave_out(payload)
        gone.append(words)
        size = packed_size(payload)
    return gone, size


def _left_out(what: list[str], size: int, max_bytes: int) -> str:
    still = f" The rest takes {human_size(size)} all the same." if size > max_bytes else ""
    return f"Left out to stay below {human_size(max_bytes)}: {', '.join(what)}.{still}" if what else ""


# Text ---------------------------------------------------------------------------------------------------------------


def text_of(payload: Plain) -> str:
    """A payload as JSON, in ASCII."""
    return json.dumps(payload, separators=(",", ":"), allow_nan=False)


def packed_size(payload: Plain) -> int:
    """The number of bytes that a payload takes in a page."""
    return len(packed(text_of(payload).encode()))


def to_json(
    history: Recorded,
    path: str | os.PathLike[str] | None = None,
    *,
    previews: bool = True,
    max_bytes: int = MAX_BYTES,
    metrics: Metrics | None = None,
) -> str:
    """A history's payload as JSON text; with a path it is also written to a file, which `torcheer view` opens.

    >>> import json, torch, torcheer
    >>> from torcheer.page import to_json
    >>> json.loads(to_json(torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2))))["title"]
    'ReLU'

    Arguments as for `payload_of`.
    """
    text = text_of(payload_of(history, previews=previews, max_bytes=max_bytes, metrics=metrics))
    if path is not None:
        write_whole(output_path(path, "payload", "model.json", "json"), text.encode(), "payload")
    return text
