"""Writes and reads four parts of a log: fingerprints of parameters, random states, sites and backward passes.

With fingerprints, `load(path, model=…)` checks that the model is the logged one. A fingerprint covers up to a thousand elements
spread over a tensor, because reading all parameters would make saving slow; an optimizer's step changes nearly all elements.
A site is saved as file, function and line, with the text of the line and of the lines around it.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.internals import DisableTorchFunction
from .._torch.memory import is_freed
from .._torch.randomness import RandomState
from .._torch.source_code import CodeFacts, CodeTable, Site, Sources, Span, lines_near
from .._torch.tensor_table import inner_tensors, is_wrapper
from ..log.records import BackwardLog, BackwardRecord, Log, NodeRecord
from .checking import column, each, fields, flag, items, lists, number, numbers, real, refuse, sizes, split, text
from .tensors import SavedGradients, SavedTensors, Stored, TensorNames
from .values import parts_of

_ELEMENTS = 1024


def fingerprint(tensor: Tensor) -> str:
    """A hash that is equal for tensors of equal values; empty if the tensor cannot be read."""
    digest = blake2b(digest_size=12, person=str(tensor.dtype)[6:22].encode())
    try:
        with DisableTorchFunction(), torch.no_grad():
            for piece in _pieces(tensor):
                digest.update(piece)
    except Exception as error:  # a user-defined class may raise anything
        pass_interrupts_on(error)
        return ""
    return digest.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[bytes]:
    """Yields the bytes of a strided tensor; for other tensors, the bytes of the strided tensors they are made of."""
    if is_wrapper(tensor):
        for inner in inner_tensors(tensor).values():
            yield from _pieces(inner)
        return
    tensor = tensor.detach()
    form = parts_of(tensor, "a parameter")
    if form is not None:
        facts, parts = form
        yield json.dumps(facts, default=str).encode()
        for part in parts.values():
            yield from _pieces(part)
        return
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // _ELEMENTS)
    chosen = flat[::step][: _ELEMENTS + 1]
    sample = torch.empty(chosen.shape, dtype=chosen.dtype, device="cpu").copy_(chosen)
    yield sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b""


# The random states of a log: the state at the start of the pass, and states that code set during the pass.

Json = Any


def write_random_states(log: Log) -> Json:
    """Write the random states of a log. A state that several operations share is written once."""
    known: dict[int, int] = {}
    states: list[Json] = []

    def place(state: RandomState) -> int:
        if known.setdefault(id(state), len(states)) == len(states):
            states.append(_written(state))
        return known[id(state)]

    first = place(log.random_state) if log.random_state is not None else -1
    return {"first": first, "drawn": [[number, place(state)] for number, state in log.random_states.items()], "states": states}


def _written(state: RandomState) -> Json:
    numpy = None
    # other states come from a bit generator that the program put in place of NumPy's
    if isinstance(state.numpy, tuple) and len(state.numpy) == 5:
        kind, keys, place, has_gauss, cached = state.numpy
        numpy = [str(kind), [int(one) for one in keys], int(place), int(has_gauss), float(cached)]
    return {
        "python": [state.python[0], list(state.python[1]), state.python[2]],
        "numpy": numpy,
        "torch": _bytes_of(state.torch),
        "devices": [[kind, [_bytes_of(one) for one in states]] for kind, states in state.devices],
    }


def _bytes_of(tensor: Tensor) -> str:
    return base64.b64encode(tensor.cpu().numpy().tobytes()).decode()


def read_random_states(written: Any, log: Log) -> None:
    """Read the random states of a saved history into a log."""
    found = fields(written, "the random states")
    states = [_read(fields(one, "a random state")) for one in items(found.get("states"), "the random states")]
    first = number(found.get("first"), "the random state", -1, len(states))
    log.random_state = states[first] if first >= 0 else None
    for place, state in lists(found.get("drawn"), "the random states", "a random state"):
        place = number(place, "a draw", 0, len(log.rows))
        log.random_states[place] = states[number(state, "a random state", 0, len(states))]


def _read(written: dict[str, Any]) -> RandomState:
    """Read a random state, and check that the generators accept it."""
    version, state, gauss = items(written.get("python"), "Python's random state")
    python = (number(version, "a version"), tuple(numbers(state, "Python's random state", 0, 1 << 33)), gauss)
    if gauss is not None:
        real(gauss, "a random number")
    random.Random().setstate(python)
    numpy = written.get("numpy")
    if numpy is not None:
        kind, keys, place, has_gauss, cached = items(numpy, "NumPy's random state")
        keys = numbers(keys, "NumPy's random state", 0, 1 << 32)
        if kind != "MT19937" or len(keys) != 624:
            refuse("NumPy's random state is of an unknown kind")
        place, has_gauss = number(place, "a place", 0, 625), number(has_gauss, "a flag", 0, 2)
        numpy = (kind, keys, place, has_gauss, real(cached, "a random number"))
    ours = _tensor(written.get("torch"))
    torch.Generator().set_state(ours)
    devices = tuple(
        [
            (text(kind, "a device"), tuple(each(states, "a random state", lambda one, what: _tensor(one))))
            for kind, states in lists(written.get("devices"), "the devices", "a device")
        ]
    )
    if not {kind for kind, _ in devices} <= {"cuda", "xpu"}:
        refuse("a random state is of an unknown device")
    return RandomState(python, numpy, ours, devices)


def _tensor(written: Any) -> Tensor:
    data = base64.b64decode(text(written, "a random state"), validate=True)
    if not 0 < len(data) <= 1 << 16:
        refuse("a random state is too long")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# Writes and reads sites: files, functions and lines, with the text of each line and of the lines around it.

_OF_PROGRAM, _OF_TORCH, _OURS = range(3)  # the owners of a file


def write_sites(sites: list[Site], *, with_texts: bool) -> Json:
    """Convert the sites of a log to JSON. Without texts, a file is written as its name, without its folders."""
    if not sites:
        return {"files": [], "codes": [], "places": [[], [], []], "frames": [], "counts": []}
    table = sites[0].table
    pairs = dict.fromkeys((code, at) for site in sites for code, at in zip(site.codes, site.instructions, strict=True))
    codes = {code: place for place, code in enumerate(dict.fromkeys(code for code, _ in pairs))}
    numbers = {pair: place for place, pair in enumerate(pairs)}
    facts = {code: table.facts(code) for code in codes}
    lines = [table.line(code, at) for code, at in pairs]
    named: dict[str, set[int]] = {one.file: set() for one in facts.values()}  # file -> its lines that are in a site
    for (code, _), line in zip(pairs, lines, strict=True):
        named[facts[code].file].add(line)
    files = {file: place for place, file in enumerate(named)}
    return {
        "files": _written_files(named, table, with_texts),
        "codes": [[files[one.file], one.function, one.first_line] for one in facts.values()],
        "places": [[codes[code] for code, _ in pairs], lines, [table.offset(*pair) for pair in pairs]],
        "frames": [numbers[pair] for site in sites for pair in zip(site.codes, site.instructions, strict=True)],
        "counts": [len(site.codes) for site in sites],
    }


def _written_files(named: dict[str, set[int]], table: CodeTable, with_texts: bool) -> Json:
    found: list[Json] = []
    taken: set[str] = set()
    for file, lines in named.items():
        owner = _OF_TORCH if table.sources.is_torch(file) else _OURS if table.sources.is_ours(file) else _OF_PROGRAM
        texts = {line: table.sources.line(file, line) for line in lines_near(lines)} if with_texts else {}
        name = file if with_texts else _bare(file, taken)
        found.append([name, owner, [[line, said] for line, said in texts.items() if said is not None]])
    return found


def _bare(file: str, taken: set[str]) -> str:
    """The name of a file without its folders; a number is added if another file has the same name."""
    bare = name = os.path.basename(file.replace("\\", "/")) or file
    turn = 1
    while name in taken:
        turn += 1
        name = f"{bare} ({turn})"
    taken.add(name)
    return name


class SavedSources(Sources):
    """The source files of a saved history, of which only some lines are known."""

    def __init__(self) -> None:
        self.owners: dict[str, int] = {}
        self.texts: dict[str, dict[int, str]] = {}

    def line(self, file: str, number: int) -> str | None:
        return self.texts.get(file, {}).get(number)

    def is_torch(self, file: str) -> bool:
        return self.owners.get(file) == _OF_TORCH

    def is_ours(self, file: str) -> bool:
        return self.owners.get(file) == _OURS


class SavedCodes(CodeTable):
    """The codes of a saved history. Its sites have no instructions, but the numbers of a code and a line."""

    def __init__(self, sources: SavedSources, facts: list[CodeFacts], lines: list[int], offsets: list[int]) -> None:
        self.sources = sources
        self._facts = facts
        self._lines = lines
        self._offsets = offsets  # offsets of the instructions; empty in files of earlier versions

    def __len__(self) -> int:
        return len(self._facts)

    def code(self, number: int) -> CodeType | None:
        return None

    def facts(self, code: int) -> CodeFacts:
        return self._facts[code]

    def line(self, code: int, instruction: int) -> int:
        return self._lines[instruction]

    def span(self, code: int, instruction: int) -> Span:
        return instruction

    def offset(self, code: int, instruction: int) -> int:
        return self._offsets[instruction] if self._offsets else -1


def read_sites(written: Any) -> list[Site]:
    """Read the sites of a saved history."""
    found = fields(written, "the sites")
    sources, paths = SavedSources(), []
    for path, owner, texts in lists(found.get("files"), "the files", "a file"):
        paths.append(text(path, "a file"))
        sources.owners[path] = number(owner, "the owner of a file", 0, 3)
        pairs = lists(texts, "the lines of a file", "a line")
        sources.texts[path] = {number(line, "a line"): text(said, "a line") for line, said in pairs}
    facts = each(found.get("codes"), "the codes", lambda one, what: _code(one, paths))
    codes, lines, *offsets = items(found.get("places"), "the places")
    codes = numbers(codes, "the codes of places", 0, len(facts))
    lines = column(lines, "the lines of places", len(codes))
    frames = numbers(found.get("frames"), "the frames", 0, len(codes))
    at = column(offsets[0], "the instructions of places", len(codes)) if offsets else []
    table = SavedCodes(sources, facts, lines, at)
    chains = split(frames, numbers(found.get("counts"), "the lengths of sites"), "the frames of sites")
    return [Site(tuple([codes[frame] for frame in chain]), chain, place, table) for place, chain in enumerate(chains)]


def _code(one: Any, paths: list[str]) -> CodeFacts:
    file, function, line = items(one, "a code")
    if not paths:
        refuse("a code is in no file")
    return CodeFacts(
        paths[number(file, "the file of a code", 0, len(paths))], text(function, "a function"), number(line, "a line")
    )


# Writes and reads the backward passes of a log: the nodes that ran, and the gradients.

_ROLES = ("result", "inside", "derivative", "accumulation", "other")


def write_backward(log: Log, tensors: TensorNames, label_of: Callable[[int], str], gradients: bool) -> Json:
    """Write the backward passes that were followed; None if gradients were not followed."""
    if log.backward is None:
        return None
    wanted = log.backward.wanted
    passes = [_written_pass(one, turn, tensors, label_of, gradients) for turn, one in enumerate(log.backward.passes, 1)]
    return {"wanted": None if wanted is None else sorted(wanted), "passes": passes}


def _written_pass(
    one: BackwardRecord, turn: int, tensors: TensorNames, label_of: Callable[[int], str], gradients: bool
) -> Json:
    places = {id(node): place for place, node in enumerate(one.nodes)}
    found: dict[str, Any] = {"nodes": [_written_node(node, places) for node in one.nodes]}
    for key, group in (("gradients", one.gradients), ("summed", one.summed)):
        found[key] = []
        for reference, gradient in group.items() if gradients else ():
            if is_freed(gradient):
                continue
            label = label_of(reference) if reference >= 0 else f"params/{label_of(reference)}"
            name = f"grad/{label}" + (f"/{turn}" if turn > 1 else "") + ("/summed" if key == "summed" else "")
            tensors.add(name, gradient, f"the gradient of {label}")
            found[key].append([reference, name])
    scale = None if one.scale is None else float(one.scale)
    return {**found, "accumulated": sorted(one.accumulated), "scale": scale, "is_complete": one.is_complete}


def _written_node(node: NodeRecord, places: dict[int, int]) -> Json:
    inner = [places[id(one)] for one in node.inner if id(one) in places]
    return [
        *(node.name, node.role, node.operation, node.started, node.given, node.made),
        *(node.span, inner, node.node, node.onward, node.tensors, node.is_device_time),
    ]


def read_backward(written: Any, log: Log, tensors: SavedTensors) -> BackwardLog | None:
    """Read the backward passes of a saved history; None if gradients were not followed."""
    if written is None:
        return None
    found = fields(written, "the backward passes")
    wanted, reader = found.get("wanted"), _Reader(log, tensors)
    passes = [reader.read(fields(one, "a backward pass")) for one in items(found.get("passes"), "the backward passes")]
    return BackwardLog.of(passes, None if wanted is None else reader.references(wanted, "gradients"))


class _Reader:
    """Reads backward passes, in which a number means an operation or, if negative, a parameter."""

    def __init__(self, log: Log, tensors: SavedTensors) -> None:
        self._low, self._high = -len(log.states), len(log.rows)
        self._log, self._tensors = log, tensors

    def references(self, written: Any, what: str) -> set[int]:
        return set(numbers(written, what, self._low, self._high))

    def read(self, written: dict[str, Any]) -> BackwardRecord:
        rows = lists(written.get("nodes"), "the nodes", "a node")
        nodes = [self._node(row) for row in rows]
        for node, row in zip(nodes, rows, strict=True):
            node.inner = tuple([nodes[place] for place in numbers(row[7], "inner nodes", 0, len(nodes))])
        scale = written.get("scale")
        return BackwardRecord(
            -1,
            nodes,
            self._gradients(written.get("gradients")),
            self._gradients(written.get("summed")),
            self.references(written.get("accumulated"), "leaves"),
            None if scale is None else torch.tensor(real(scale, "a scale")),
            flag(written.get("is_complete"), "whether a pass is complete"),
        )

    def _gradients(self, written: Any) -> SavedGradients:
        found = SavedGradients(self._log)
        for place, name in lists(written, "the gradients", "a gradient"):
            found[number(place, "a gradient", self._low, self._high)] = Stored(text(name, "a gradient"), self._tensors)
        return found

    def _node(self, row: list[Any]) -> NodeRecord:
        name, role, operation, started, given, made, span, _, node, onward, tensors, is_device_time = row
        if role not in _ROLES:
            refuse("a node has an unknown role")
        operation = number(operation, "the operation of a node", min(-1, self._low), self._high)
        found = NodeRecord(text(name, "a node"), role, operation, number(started, "a time"), _shapes(given), _shapes(made))
        found._span = number(span, "a time")
        found.node = number(node, "a node", -1)
        found.onward = tuple(numbers(onward, "nodes", -1))
        found.tensors = tuple(numbers(tensors, "the operations of a node", self._low, self._high))
        found.is_device_time = flag(is_device_time, "whether a time is a device's")
        return found


def _shapes(written: Any) -> tuple[tuple[int, ...] | None, ...]:
    return tuple([None if one is None else sizes(one, "a shape", -1) for one in items(written, "the shapes of gradients")])
