"""Opens broken files, some dozen or some thousand: `python tests/store/fuzz_files.py 300`.

A program of its own, because it watches everything the interpreter does while a file is opened: what is imported, opened,
compiled or started. Whatever a file contains, there is either a history, which can be printed, drawn and read, or an error of
ours.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import tempfile
import zlib
from pathlib import Path
from time import process_time

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import torcheer
from torcheer.errors import TorcheerError

FOLDER = Path(tempfile.mkdtemp(prefix="torcheer_fuzz_"))
FILE = FOLDER / "broken.safetensors"
WHOLE = FOLDER / "whole.safetensors"
MOST_GROWTH = 600 << 10  # KiB of memory, over all files
LONGEST = 20.0  # seconds of this process for one file
DOCUMENT = "history/document"

watched: list[tuple[str, str]] = []
is_watching = False
# What a program could do to the world. Files are looked at apart.
FORBIDDEN = (
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "shutil.",
    "socket.",
)
FORBIDDEN += (
    "ctypes.dlopen",
    "pickle.",
    "marshal.",
    "code.__new__",
    "exec",
    "compile",
    "import",
    "urllib.",
    "os.putenv",
    "os.chmod",
)


def watch(event: str, args: tuple[object, ...]) -> None:
    if not is_watching:
        return
    if (
        event == "open"
        and not isinstance(args[0], int)
        and str(args[0]) != str(FILE)
        and not str(args[0]).endswith((".pyc", ".py"))
    ):
        watched.append((event, repr(args[:2])))
    elif event.startswith(FORBIDDEN):
        watched.append((event, repr(args)[:120]))


class Net(torch.nn.Module):
    """Something of everything: views, writes, several outputs, loops, reads, random numbers, composites."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.attention = torch.nn.MultiheadAttention(4, 2)

    def forward(self, x, scale=2):
        for _ in range(2):
            x = torch.relu(self.fc(x)) * scale
        left, right = torch.chunk(self.norm(x), 2, -1)
        left = left.clone()
        left[0] = 1
        if bool(left.sum() > -1e9):
            x = torch.cat([left, right.t().t()], -1) + torch.rand(4)
        attended, _ = self.attention(x[None], x[None], x[None])
        return {"out": attended, "values": x.max(-1)}


def good_files() -> list[bytes]:
    torch.manual_seed(0)
    model = Net()
    history = torcheer.log_forward_pass(model, torch.rand(3, 4), {"scale": 3}, save_gradients=True)
    history.log_backward(history.outputs[0].activation.sum())
    history.save(WHOLE)
    found = [history.save(FILE, params=True).read_bytes(), history.save(FILE, activations="modules").read_bytes()]
    given = (torch.rand(3, 3) + 0j, (torch.eye(3) + 0j).to_sparse())
    torcheer.log_forward_pass(lambda x, y: (x.t()[1:], torch.sparse.mm(y, x), x.conj().imag), given, save_to=FILE)
    return [*found, FILE.read_bytes()]


def parts_of(data: bytes) -> tuple[dict, dict, bytes]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    begin, end = header[DOCUMENT]["data_offsets"]
    body = data[8 + length :]
    return header, json.loads(zlib.decompress(body[begin:end])), body


def joined(header: dict, document: object | None, body: bytes) -> bytes:
    """A file of a header and a document, with offsets that fit, unless they are not there any more."""
    if document is not None:
        begin, end = header[DOCUMENT]["data_offsets"]
        packed = zlib.compress(json.dumps(document).encode())
        grown = len(packed) - (end - begin)
        body = body[:begin] + packed + body[end:]
        for entry in header.values():
            if isinstance(entry, dict) and "data_offsets" in entry:
                entry["data_offsets"] = [one + grown * (one >= end) for one in entry["data_offsets"]]
        header[DOCUMENT]["shape"] = [len(packed)]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


JSON = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-3, 40), st.floats(), st.text(max_size=8)),
        *(
            st.sampled_from(
                [2**31, 2**62, 2**70, -(2**63), 10**300, "../../etc/passwd", "torch.load", "os.system", "history/document"]
            ),
        ),
        *(st.sampled_from([{"tensor": True}, {"value": "x"}, {"object": "o", "prints": "p"}, {"slice": [1]}, {"list": []}]),),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def walk(value: object, path: tuple = ()) -> list[tuple]:
    """Every path in some JSON, of long lists only the first and the last."""
    found = [path]
    if len(path) > 60:
        return found
    if isinstance(value, dict):
        for key, item in value.items():
            found += walk(item, (*path, key))
    elif isinstance(value, list):
        for place in {*range(min(3, len(value))), len(value) - 1} - {-1}:
            found += walk(value[place], (*path, place))
    return found


@st.composite
def changed_json(draw: st.DrawFn, value: object) -> object:
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(walk(value)))
        if not path:
            value = draw(JSON)
            continue
        holder = value
        for step in path[:-1]:
            holder = holder[step]
        kind = draw(st.sampled_from(["replace", "remove", "double", "nudge", "deep"]))
        there = holder[path[-1]]
        if kind == "remove":
            del holder[path[-1]]
        elif kind == "double" and isinstance(there, list):
            holder[path[-1]] = there + there
        elif kind == "nudge" and type(there) is int:
            holder[path[-1]] = there + draw(st.sampled_from([-1, 1, 1000]))
        elif kind == "deep":
            for _ in range(draw(st.sampled_from([5, 70, 250]))):
                there = [there] if draw(st.booleans()) else {"list": [there]}
            holder[path[-1]] = there
        else:
            holder[path[-1]] = draw(JSON)
    return value


class Broken(bytes):
    """A broken file, which is not printed."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


@st.composite
def broken(draw: st.DrawFn) -> Broken:
    return Broken(draw(broken_bytes()))


@st.composite
def broken_bytes(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from(GOOD))
    header, document, body = parts_of(data)
    kind = draw(st.sampled_from(["bytes", "cut", "header", "layout", "document", "document", "document", "noise", "bomb"]))
    if kind == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if kind == "noise":
        return draw(st.binary(max_size=200))
    if kind == "bytes":
        changed = bytearray(data)
        for _ in range(draw(st.integers(1, 6))):
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)
    if kind == "header":
        new = draw(changed_json(header))
        text = json.dumps(new).encode()
        return len(text).to_bytes(8, "little") + text + body
    if kind == "layout":
        layout = draw(changed_json(json.loads(header["__metadata__"]["layout"])))
        header["__metadata__"]["layout"] = json.dumps(layout)
        return joined(header, None, body)
    if kind == "bomb":
        begin, end = header[DOCUMENT]["data_offsets"]
        packed = zlib.compress(
            draw(st.sampled_from([b"[", b'{"a":', b"0", b"[],", b" "])) * draw(st.sampled_from([10, 5_000_000, 50_000_000])), 9
        )
        packed = packed.ljust(end - begin, b"\0")[: max(end - begin, len(packed))]
        if len(packed) == end - begin:
            return joined(header, None, body[:begin] + packed + body[end:])
        header = {
            "__metadata__": header["__metadata__"],
            DOCUMENT: {"dtype": "U8", "shape": [len(packed)], "data_offsets": [0, len(packed)]},
        }
        return joined(header, None, packed)
    return joined(header, draw(changed_json(document)), body)


def use(history: torcheer.ModelHistory) -> None:
    """What anybody does first with a history."""
    str(history), history._repr_html_(), str(history.modules), history.keys(), history.notes
    for one in (*history.layers, *history.operations):
        str(one)
    history.to_json()
    history.draw(io.BytesIO(), format="dot")
    str(history.summary())
    history.to_csv(io.StringIO())
    with contextlib.suppress(TorcheerError):  # they may be of other inputs
        str(torcheer.compare(history, torcheer.load(WHOLE)))


def opened(data: bytes) -> torcheer.ModelHistory | None:
    """The history in a file; None where it is refused. Nothing else may happen."""
    global is_watching
    FILE.write_bytes(data)
    modules = set(sys.modules)
    watched.clear()
    is_watching = True
    try:
        return torcheer.load(FILE)
    except TorcheerError:
        return None
    finally:
        is_watching = False
        assert not watched, watched
        assert set(sys.modules) == modules, set(sys.modules) - modules


def check(data: bytes) -> str:
    started = process_time()
    history = opened(data)
    outcome = "refused"
    if history is not None:
        try:
            use(history)
            outcome = "opened"
        except TorcheerError:
            outcome = "refused when used"
    assert process_time() - started < LONGEST, f"{process_time() - started:.0f} s"
    return outcome


def main(count: int) -> None:
    outcomes: dict[str, int] = {}

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count <= 300,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(broken())
    def run(data: bytes) -> None:
        try:
            outcome = check(data)
        except BaseException:
            (FOLDER.parent / "torcheer_broken.safetensors").write_bytes(data)  # to look at
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    for data in GOOD:
        assert check(data) == "opened"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MOST_GROWTH, f"{grown >> 10} MiB more"
    assert sorted(path.name for path in FOLDER.iterdir()) == [FILE.name, WHOLE.name]
    print(f"{sum(outcomes.values())} files: {outcomes}; {grown >> 10} MiB more memory")


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOOD = good_files()
    sys.addaudithook(watch)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
