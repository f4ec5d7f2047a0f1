"""The results as tables of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .limits import Verdict
from .models import CASES
from .taps import WORKS
from .tools import TOOLS


def table(title: str, headers: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Columns as wide as what is in them: the first to the left, figures to the right."""
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    aligned = []
    for first, *figures in lines:
        padded = [figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True)]
        aligned.append("  ".join([first.ljust(widths[0]), *padded]))
    return "\n".join([title, *aligned, ""])


def report(results: dict[str, Any], verdicts: list[Verdict]) -> str:
    """Everything that was measured."""
    return "\n".join(
        [
            _machine(results["machine"]),
            _speed(results["speed"]),
            _peak(results["speed"]),
            _after_use(results["plain_after_use"]),
            _tiny(results["tiny_operations"]),
            _training("A training step, forward and backward, everything kept, gradients too", "torcheer", results["training"]),
            _training("A training step, only layers followed (track_tensor_ops=False)", "torch_vis", results["layers_only"]),
            _taps(results["taps"], results["taps_of_nnsight"]),
            _extraction(results["extraction"]),
            _xray(results["xray"]),
            _training("Training with a snapshot after every 10 steps", "with Xray", results["xray_training"]),
            _long_run(results["xray_long_run"]),
            _grouping(results["grouping"]),
            _saving(results["saving"], results["torchlens_saving"]),
            _saved_loop(results["saved_loop"]),
            _held(results["held_memory"]),
            _graph_only(results["graph_only_peak"]),
            table(
                "Limits",
                ["", "must", "measured", ""],
                [[v.what, v.must, v.measured, {True: "PASS", False: "MISS", None: "not measured"}[v.kept]] for v in verdicts],
            ),
        ]
    )


def _machine(machine: dict[str, Any]) -> str:
    return "\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in machine.items()) + "\n"


def _speed(speed: dict[str, Any]) -> str:
    headers = ["model", "operations", "raw ms", "torcheer", "× warm raw", "µs/op", "new pages", "drop ms"]
    headers += ["keeping alone", "hooks", "TorchLens"]
    rows = []
    for case, by_tool in speed.items():
        ours = by_tool["torcheer"]
        rows.append(
            [
                CASES[case].title,
                _figure(ours, "operations", "{:,}"),
                _figure(ours.get("raw", {}), "median", "{:.2f}"),
                _figure(ours, "ratio", "{:.2f}×"),
                _figure(ours, "warm_ratio", "{:.2f}×"),
                _figure(ours, "us_per_operation", "{:.1f}"),
                _figure(ours.get("tool", {}), "faults", "{:,.0f}"),
                _figure(ours.get("tool", {}), "drop", "{:.2f}"),
                _figure(by_tool["keeping"], "ratio", "{:.2f}×"),
                _figure(by_tool["hooks"], "ratio", "{:.2f}×"),
                _figure(by_tool["torchlens"], "ratio", "{:.1f}×"),
            ]
        )
    note = "Time, everything kept, one lookup by label (× raw: against the plain pass; warm: one that follows another)"
    return table(note, headers, rows)


def _peak(speed: dict[str, Any]) -> str:
    rows = []
    for case, by_tool in speed.items():
        row = [CASES[case].title, _figure(by_tool["torcheer"], "raw_peak_bytes", "{:.1f}", 1e-6)]
        rows.append(row + [_figure(by_tool[tool], "peak_bytes", "{:.1f}", 1e-6) for tool in TOOLS])
    return table("Peak memory of one pass, beyond what was there, MB", ["model", "raw", *TOOLS], rows)


def _after_use(by_tool: dict[str, Any]) -> str:
    rows = [
        [TOOLS[tool].title, _figure(found, "ratio", "{:.3f}×"), _figure(found, "noise", "{:.3f}×")]
        for tool, found in by_tool.items()
    ]
    return table("Plain pass after use, first model", ["tool", "after/before", "before/before"], rows)


def _tiny(tiny: dict[str, Any]) -> str:
    keys = ("plain_us", "few_us", "many_us", "few_without_gc_us", "many_without_gc_us")
    row = ["µs per operation", *(_figure(tiny, key, "{:.2f}") for key in keys), _figure(tiny, "ratio", "{:.2f}×")]
    headers = ["x + 1, 4×4", "plain", "1,000", "100,000", "1,000, no gc", "100,000, no gc", "100,000/1,000"]
    return table("A loop of tiny operations, everything kept", headers, [row])


def _training(title: str, tool: str, by_case: dict[str, Any]) -> str:
    rows = [
        [
            CASES[case].title,
            _figure(found.get("raw", {}), "median", "{:.1f}"),
            _figure(found.get("tool", {}), "median", "{:.1f}"),
            _figure(found, "ratio", "{:.2f}×"),
        ]
        for case, found in by_case.items()
    ]
    return table(title, ["model", "raw ms", "watched ms", tool], rows)


def _taps(found: dict[str, Any], peer: dict[str, Any]) -> str:
    rows = [
        [
            f"{CASES[case].title}, {WORKS[work]}",
            *(_figure(one, key, style) for key, style in (("plain_ms", "{:.2f}"), ("ms", "{:.2f}"), ("ratio", "{:.3f}×"))),
            _figure(one, "noise", "{:.3f}×"),
            _figure(peer[case].get(work, {}), "ratio", "{:.2f}×"),
        ]
        for case, works in found.items()
        for work, one in works.items()
    ]
    headers = ["", "plain ms", "ms", "torcheer", "plain against plain", "nnsight"]
    return table("Chosen values read and changed while the model runs", headers, rows)


def _extraction(by_case: dict[str, Any]) -> str:
    rows = []
    for case, found in by_case.items():
        forward, whole = found["forward"], found["whole"]
        row = [CASES[case].title.partition(",")[0], _figure(forward, "plain_ms", "{:.0f}")]
        row += [_figure(forward, key, "{:.3f}×") for key in ("noise", "hooks", "copies", "ratio")]
        row += [_figure(whole, key, "{:.3f}×") for key in ("hooks", "ratio", "disk_ratio", "bound_ratio")]
        row += [_figure(whole, "bytes", "{:.0f}", 1e-6), _figure(whole, "disk_rate", "{:.0f}", 1e-6)]
        row += [_figure(whole, "first_ms", "{:.0f}"), _figure(found["torchlens"], "ratio", "{:.2f}×")]
        rows.append(row)
    headers = ["model", "plain ms", "plain", "hooks", "copies", "model's part"]
    headers += ["hooks, loop", "to memory", "to disk", "disk alone", "MB", "disk MB/s", "first ms", "TorchLens"]
    return table("Activations of a dataset, in batches of 8 (ResNet-50) and 4×128, against the plain loop", headers, rows)


def _xray(by_case: dict[str, Any]) -> str:
    rows = [
        [
            CASES[case].title,
            _figure(found, "layers", "{:,}"),
            *(_figure(found, f"{part}_ms", "{:.1f}") for part in ("raw", "taking", "writing")),
            _figure(found, "ratio", "{:.2f}×"),
        ]
        for case, found in by_case.items()
    ]
    headers = ["model", "layers", "plain pass ms", "taking ms", "writing ms, behind", "taking"]
    return table("A snapshot of an Xray, layers by default", headers, rows)


def _long_run(found: dict[str, Any]) -> str:
    rows = [
        [title, *(_figure(found, f"{at}{name}_ms", "{:.2f}") for at in ("first", "last", "most"))]
        for title, name in (("training thread", ""), ("behind it", "_behind"))
    ]
    grown = _figure(found, "bytes_per_snapshot", "{:,.0f}")
    headers = ["processor time in ms", "a snapshot at first", "at last", "the longest"]
    return table(f"A training with 20,000 snapshots; memory grew by {grown} bytes for each", headers, rows)


def _grouping(found: dict[str, Any]) -> str:
    row = ["seconds", _figure(found, "few_seconds", "{:.2f}"), _figure(found, "many_seconds", "{:.2f}")]
    return table("Which operations are the same layer, and their labels", ["x + 1 in a loop", "100,000", "1,000,000"], [row])


def _saving(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    rows = [
        ["torcheer", *(_figure(ours.get("save", {}), "median", "{:.0f}"), _figure(ours, "open_ms", "{:.1f}"))],
        ["torch.save", _figure(ours.get("torch_save", {}), "median", "{:.0f}"), "–"],
        ["torch.save, flushed to the disk", _figure(ours.get("torch_save_flushed", {}), "median", "{:.0f}"), "–"],
        ["TorchLens", _figure(theirs, "save_ms", "{:.0f}"), _figure(theirs, "open_ms", "{:.1f}")],
    ]
    size = _figure(ours, "bytes", "{:.0f} MB", 1e-6)
    return table(f"Saving the history of GPT-2 small ({size}), and opening it", ["", "save ms", "open ms"], rows)


def _saved_loop(found: dict[str, Any]) -> str:
    row = ["seconds", _figure(found, "save_seconds", "{:.2f}"), _figure(found, "open_seconds", "{:.2f}")]
    return table("A saved log of 100,000 tiny operations, everything kept", ["", "save", "open"], [row])


def _held(by_case: dict[str, Any]) -> str:
    rows = []
    for case, held in by_case.items():
        row = [CASES[case].title if case in CASES else "tiny loop", _figure(held, "operations", "{:,}")]
        row.append(_figure(held, "activation_bytes", "{:.2f}", 1e-6))
        for key in ("logged_bytes", "looked_up_bytes"):
            row.append(_figure(held, key, "{:.2f}", 1e-6))
            besides = (held[key] - held["activation_bytes"]) / held["operations"] if key in held else None
            row.append("–" if besides is None else f"{besides:,.0f}")
        rows.append(row)
    headers = ["model", "operations", "activations MB", "held MB", "B/op besides", "after lookup MB", "B/op besides"]
    return table("Memory held by a history with everything kept", headers, rows)


def _graph_only(peak: dict[str, Any]) -> str:
    keys = ("operations", "peak_per_operation", "looked_up_peak_per_operation", "python_peak_per_operation")
    row = ["tiny loop", *(_figure(peak, key, "{:,.0f}") for key in keys)]
    headers = ["", "operations", "peak", "peak with a lookup", "Python's part of the first"]
    return table("Graph only, bytes per operation", headers, [row])


def _figure(found: dict[str, Any], key: str, style: str, scale: float = 1) -> str:
    if found.get("not_installed"):
        return "not installed"
    if "failed" in found:
        return "failed"
    value = found.get(key)
    return "–" if value is None else style.format(value * scale if scale != 1 else value)
