"""docs/viewer_format.md describes payloads as they are: every key, every default, and an example."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import torcheer
from models import log
from test_viewer_payload import HISTORIES
from torcheer.viewer import payload_of
from torcheer.viewer.fields import DEFAULTS, REQUIRED, lean, whole

PAGE = (Path(__file__).parent.parent / "docs" / "viewer_format.md").read_text(encoding="utf-8")
SECTIONS = {"grad": "Gradient"}


def documented(part: str) -> dict[str, str]:
    """The keys of one part and their defaults, as the page writes them."""
    title = SECTIONS.get(part, part.capitalize())
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section is not None, title
    return dict(re.findall(r"^\| `(\w+)` \|.*\| *(.*?) *\|$", section[1], re.MULTILINE))


@pytest.mark.parametrize("part", sorted({*REQUIRED, *DEFAULTS}))
def test_every_key_is_documented_with_its_default(part):
    """And no other."""
    wanted = dict.fromkeys(REQUIRED.get(part, ()), "")
    wanted |= {name: f"`{json.dumps(value)}`" for name, value in DEFAULTS.get(part, {}).items()}
    assert documented(part) == wanted


def parts(payload: dict[str, object]) -> list[tuple[str, dict[str, object]]]:
    """Every object of a payload, with the name of what it is."""
    found = [("payload", payload), ("facts", payload["facts"])]
    found += [("file", one) for one in payload["files"]]
    found += [("module", one) for one in payload["modules"]]
    found += [("edge", one) for one in payload["edges"]]
    for node in payload["nodes"]:
        found.append(("node", node))
        found += [("param", one) for one in node.get("params", ())]
        found += [("preview", node["preview"])] if "preview" in node else []
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
    ]
    with torcheer.recording(model) as recorded:
        model(torch.rand(1, 3, 8, 8))
    recorded._log.notes.append("a note")
    cut = payload_of(strange[0], max_bytes=5_000)
    return [cut, *(payload_of(history) for history in (*(make() for make in HISTORIES.values()), *strange, recorded))]


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


@pytest.fixture(scope="module")
def payloads():
    return many()


def test_payloads_have_no_key_that_is_not_documented(payloads):
    """And every one that has no default; and no default is written out."""
    for payload in payloads:
        for part, found in parts(payload):
            known = {*REQUIRED.get(part, ()), *DEFAULTS.get(part, {})}
            assert set(found) <= known, part
            assert set(found) >= set(REQUIRED.get(part, ())), part
            if part in DEFAULTS:
                assert lean(part, found) == found, part


def test_every_documented_key_occurs(payloads):
    """Nothing is described that never happens."""
    seen: dict[str, set[str]] = {}
    for payload in payloads:
        for part, found in parts(payload):
            seen.setdefault(part, set()).update(found)
    for part in {*REQUIRED, *DEFAULTS}:
        assert seen[part] == {*REQUIRED.get(part, ()), *DEFAULTS.get(part, {})}, part


VOLATILE = {
    "seconds",
    "made_by",
    "structure",
    "params_id",
    "source",
    "stack",
    "files",
}  # of the machine and the version of torch


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
