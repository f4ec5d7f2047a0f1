"""What the project promises, and whether a run kept it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .models import CASES
from .taps import WORKS

SPEED = {"gpt2_tiny": 3.5, "gpt2_small": 1.25, "resnet50": 1.4, "alexnet": 1.15}  # times the plain pass
TRAINING = {"gpt2_small": 1.5, "resnet50": 1.5}  # times the plain step, gradients kept
LAYERS_ONLY = {"gpt2_small": 1.1, "resnet50": 1.1}  # times the plain step, torch_vis without operations
TAPS = {
    case: {"read": 1.03, "changed": 1.03, "functions": 1.12, "stopped": 0.5} for case in ("gpt2_tiny", "gpt2_small")
}  # times the plain pass
EXTRACTION = dict.fromkeys(("resnet50", "gpt2_small"), (1.03, 1.1))  # times the plain loop: the model's part, and the whole
XRAY = {"gpt2_small": 1.3, "resnet50": 1.3, "alexnet": 1.3}  # a snapshot, times the plain pass of its input
LONG_RUN = 1.25  # a snapshot at the end of a long training, times one at its beginning
STALL = 50.0  # milliseconds of the training thread that no snapshot of a long training takes
BYTES_PER_SNAPSHOT = 1000  # that a long training's memory grows by
PLAIN_AFTER_USE = 1.0
NOISE = 0.02  # what remains in a ratio that should be exactly 1
GROWTH = 1.3  # time per operation, long loop against short
ACTIVATIONS = 1.05  # times their bytes
BYTES_PER_OPERATION = 1500
GROUPING = 1.5  # seconds for 100,000 operations
SAVING = 1.2  # times torch.save of the same tensors
READING = 30.0  # milliseconds to open a saved history and read one layer
SAVED_LOOP = (2.0, 1.0)  # seconds to save and to open 100,000 operations


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise and what was measured; `kept` is None where it could not be measured."""

    what: str
    must: str
    measured: str
    kept: bool | None


def judge(results: dict[str, Any]) -> list[Verdict]:
    """A verdict for every promise."""
    return [
        *_ratios({case: tools["torcheer"] for case, tools in results["speed"].items()}, SPEED, "against plain"),
        *_ratios(results["training"], TRAINING, "training step, against plain"),
        *_ratios(results["layers_only"], LAYERS_ONLY, "training step, layers only"),
        *_taps(results["taps"]),
        *_extraction(results["extraction"]),
        *_ratios(results["xray"], XRAY, "a snapshot, against plain"),
        *_long_run(results["xray_long_run"]),
        _after_use(results),
        _growth(results),
        _grouping(results),
        *_saving(results["saving"], results["saved_loop"]),
        *_held(results),
        *_graph_only(results),
    ]


def _ratios(found: dict[str, Any], musts: dict[str, float], what: str) -> list[Verdict]:
    return [_at_most(f"{CASES[c].title}, {what}", found[c].get("ratio"), must, "{:.3f}×") for c, must in musts.items()]


def _taps(found: dict[str, Any]) -> list[Verdict]:
    return [
        _at_most(f"{CASES[case].title}, {WORKS[work]}", found[case][work].get("ratio"), must, "{:.3f}×")
        for case, musts in TAPS.items()
        for work, must in musts.items()
    ]


def _extraction(found: dict[str, Any]) -> list[Verdict]:
    """Onto a disk that does not keep up, the limit is that of the disk itself."""
    verdicts = []
    for case, (forward, whole) in EXTRACTION.items():
        title, parts = CASES[case].title.partition(",")[0], found[case]
        bound = parts["whole"].get("bound_ratio")
        on_disk = whole if bound is None else max(whole, whole * bound)
        verdicts += [
            _at_most(f"{title}, extraction, the model's part", parts["forward"].get("ratio"), forward, "{:.3f}×"),
            _at_most(f"{title}, extraction, written to memory", parts["whole"].get("ratio"), whole, "{:.3f}×"),
            _at_most(f"{title}, extraction, written to the disk", parts["whole"].get("disk_ratio"), on_disk, "{:.3f}×"),
        ]
    return verdicts


def _after_use(results: dict[str, Any]) -> Verdict:
    ratio = results["plain_after_use"]["torcheer"].get("ratio")
    kept = None if ratio is None else ratio <= PLAIN_AFTER_USE + NOISE
    measured = "–" if ratio is None else f"{ratio:.3f}×"
    return Verdict("plain pass after use, against before", f"{PLAIN_AFTER_USE:.2f}× (± {NOISE})", measured, kept)


def _growth(results: dict[str, Any]) -> Verdict:
    return _at_most("time per operation, 100,000 against 1,000", results["tiny_operations"].get("ratio"), GROWTH, "{:.3f}×")


def _long_run(found: dict[str, Any]) -> list[Verdict]:
    ratios = {}
    for name in ("", "_behind"):
        first, last = found.get(f"first{name}_ms"), found.get(f"last{name}_ms")
        ratios[name] = last / first if first and last else None
    return [
        _at_most("20,000 snapshots, the last against the first, training thread", ratios[""], LONG_RUN, "{:.2f}×"),
        _at_most("20,000 snapshots, the last against the first, behind it", ratios["_behind"], LONG_RUN, "{:.2f}×"),
        _at_most("20,000 snapshots, the longest, training thread", found.get("most_ms"), STALL, "{:.1f} ms"),
        _at_most("20,000 snapshots, memory for each", found.get("bytes_per_snapshot"), BYTES_PER_SNAPSHOT, "{:,.0f} B"),
    ]


def _grouping(results: dict[str, Any]) -> Verdict:
    return _at_most("grouping and labelling 100,000 operations", results["grouping"].get("few_seconds"), GROUPING, "{:.2f} s")


def _saving(found: dict[str, Any], loop: dict[str, Any]) -> list[Verdict]:
    title, (save, load) = CASES["gpt2_small"].title, SAVED_LOOP
    return [
        _at_most(f"{title}, saving, against torch.save", found.get("ratio"), SAVING, "{:.2f}×"),
        _at_most(f"{title}, opening and reading one layer", found.get("open_and_read_ms"), READING, "{:.1f} ms"),
        _at_most("saving 100,000 operations", loop.get("save_seconds"), save, "{:.2f} s"),
        _at_most("opening 100,000 operations", loop.get("open_seconds"), load, "{:.2f} s"),
    ]


def _held(results: dict[str, Any]) -> list[Verdict]:
    """The two limits are one allowance: so much for the activations, and so much per operation besides."""
    found = []
    for case, held in results["held_memory"].items():
        title = CASES[case].title if case in CASES else "tiny loop"
        for key, when in (("logged_bytes", "as logged"), ("looked_up_bytes", "after a lookup")):
            if key not in held:
                found.append(Verdict(f"held, {title}, {when}", "–", "–", None))
                continue
            allowed = ACTIVATIONS * held["activation_bytes"] + BYTES_PER_OPERATION * held["operations"]
            found.append(_at_most(f"held, {title}, {when}", held[key] / 1e6, allowed / 1e6, "{:.2f} MB"))
    return found


def _graph_only(results: dict[str, Any]) -> list[Verdict]:
    peak = results["graph_only_peak"]
    return [
        _at_most("peak, graph only", peak.get("peak_per_operation"), BYTES_PER_OPERATION, "{:,.0f} B/op"),
        _at_most(
            "peak, graph only, with a lookup", peak.get("looked_up_peak_per_operation"), BYTES_PER_OPERATION, "{:,.0f} B/op"
        ),
    ]


def _at_most(what: str, value: float | None, must: float, style: str) -> Verdict:
    if value is None:
        return Verdict(what, "≤ " + style.format(must), "–", None)
    return Verdict(what, "≤ " + style.format(must), style.format(value), value <= must)
