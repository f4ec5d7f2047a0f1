"""The format is declared in one place, and payloads are as it says: every key, every default, and the example of the docs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from test_viewer_payload import HISTORIES
from torch import nn

import torcheer
from models import log
from torcheer.page import payload_of
from torcheer.page.schema import GRAPH, lean, required, whole

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "viewer_format.md").read_text(encoding="utf-8")
spec = importlib.util.spec_from_file_location("generate", ROOT / "web" / "generate.py")
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)


@pytest.mark.parametrize("path", generate.generated(), ids=lambda path: path.name)
def test_what_is_written_from_python_is_up_to_date(path):
    """The types, defaults, checks and colours of the browser programs, and the tables of the documentation."""
    assert path.read_text(encoding="utf-8") == generate.generated()[path], "it is stale: run make web-types"


def parts(payload: dict[str, object]) -> list[tuple[str, dict[str, object]]]:
    """Every object of a payload, with the name of what it is."""
    found = [("payload", payload), ("facts", payload["facts"])]
    found += [("file", one) for one in payload["files"]]
    found += [("module", one) for one in payload["modules"]]
    found += [("edge", one) for one in payload["edges"]]
    found += [("run", one) for one in payload.get("runs", ())]
    found += [("port", one) for one in payload.get("ports", ())]
    found += [("chip", one) for one in payload.get("chips", ())]
    found += [("weight", one) for one in payload.get("weights", ())]
    for node in payload["nodes"]:
        found.append(("node", node))
        found += [("param", one) for one in node.get("params", ())]
        found += [("preview", node["preview"])] if "preview" in node else []
        found += [("attention", node["attention"])] if "attention" in node else []
        found += [("grad", node["grad"])] if "grad" in node else []
        stats = [holder["stats"] for holder in (node, node.get("grad", {})) if "stats" in holder]
        found += [("stats", one) for one in stats]
        found += [("histogram", one["histogram"]) for one in stats if "histogram" in one]
    return found


def many() -> list[dict[str, object]]:
    """Payloads in which together every key occurs."""
    model = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU(inplace=True))
    strange = [
        log(model, torch.rand(2, 3, 32, 32)),
        log(lambda x: x / 0, torch.tensor([1.0, 0.0])),
        log(torch.linalg.matrix_exp, torch.rand(3, 3)),
        written_through_a_view(),
        log(one_activation(), torch.rand(2, 4)),
        log(nn.Sequential(nn.Sequential(*(one_activation() for _ in range(3))), nn.Identity()), torch.rand(2, 4)),
        log(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x), torch.rand(2, 2, 4, 3)),
        log(lambda x: {"cache": [x + i for i in range(4)]}, torch.rand(2)),
        under_autocast(),
        log(nn.Sequential(Masked(), nn.Linear(4, 2)), torch.rand(2, 4)),
    ]
    with torcheer.recording(model) as recorded:
        model(torch.rand(1, 3, 8, 8))
    recorded._log.notes.append("a note")
    cut = payload_of(strange[0], max_bytes=5_000)
    comparison = torcheer.compare_models(nn.LayerNorm(4), nn.LayerNorm(4, eps=0.1), torch.rand(2, 4))
    compared = comparison._payloads(previews=False, max_bytes=10**6)
    measured = payload_of(strange[0], metrics={"largest": torch.max})
    return [
        *compared,
        cut,
        measured,
        *(payload_of(history) for history in (*(make() for make in HISTORIES.values()), *strange, recorded)),
    ]


class Masked(nn.Module):
    """Layers with a mask that two of them use, a split and a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))

    def forward(self, x):
        mask = torch.ones(4).cumsum(0) > 2
        for layer in self.layers:
            x = layer(x).masked_fill(mask, 0)
        left, right = x.reshape(-1, 4).split(2, 1)
        return torch.cat([right, left], 1)


def one_activation() -> nn.Module:
    """One module without parameters after two different layers: two steps."""
    act = nn.ReLU()
    return nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act)


def written_through_a_view() -> torcheer.ModelHistory:
    def program(x):
        rows = x * 1
        view = rows[0]
        rows.add_(1)
        return view * 2

    return log(program, torch.rand(2, 3))


def under_autocast() -> torcheer.ModelHistory:
    with torch.autocast("cpu", torch.bfloat16):
        return log(nn.Linear(2, 3), torch.rand(1, 2))


@pytest.fixture(scope="module")
def payloads():
    return many()


def test_payloads_have_no_key_that_is_not_documented(payloads):
    """And every one that has no default; and no default is written out."""
    for payload in payloads:
        for part, found in parts(payload):
            assert set(found) <= set(GRAPH[part]), part
            assert set(found) >= set(required(GRAPH[part])), part
            assert lean(part, found) == found, part


def test_every_documented_key_occurs(payloads):
    """Nothing is described that never happens."""
    seen: dict[str, set[str]] = {}
    for payload in payloads:
        for part, found in parts(payload):
            seen.setdefault(part, set()).update(found)
    for name, part in GRAPH.items():
        assert seen[name] == set(part), name


VOLATILE = {"seconds", "made_by", "params_id", "source", "stack", "files"}  # of the machine and the version of torch


def settled(value: object) -> object:
    """Without what differs between machines, of which only the kind is told."""
    if isinstance(value, dict):
        return {key: type(one).__name__ if key in VOLATILE else settled(one) for key, one in value.items()}
    return [settled(one) for one in value] if isinstance(value, list) else value


def test_the_example_is_what_its_code_gives():
    """But for times, digests and paths."""
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    example = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    assert example is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    payload = json.loads(names["history"].to_json(previews=False))
    for node in payload["nodes"]:
        node["stats"].pop("histogram")
    assert settled(json.loads(example[1])) == settled(payload)


def test_what_is_left_out_can_be_filled_in_again():
    node = {"key": "a:1", "label": "a", "type": "a", "function": "a", "pass": 1, "flops": 0, "exits": []}
    assert lean("node", node) == {"key": "a:1", "label": "a", "type": "a", "function": "a", "flops": 0}
    assert whole("node", lean("node", node)).items() >= node.items()
