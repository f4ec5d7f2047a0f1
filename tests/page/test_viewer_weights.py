"""A payload says what parameters and buffers are like, and what a reader's own functions make of activations."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import torcheer
from models import log
from torcheer.errors import InvalidArgument
from torcheer.page import payload_of
from torcheer.page.values import digest_of

X = torch.rand(2, 4)


def weights(history: torcheer.ModelHistory) -> dict[str, dict[str, object]]:
    return {one["name"]: one for one in payload_of(history).get("weights", [])}


def test_parameters_and_buffers_have_statistics_and_a_picture():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).eval()
    found = weights(log(model, X))
    assert set(found) == set(model.state_dict()) - {"1.num_batches_tracked"}
    stats = found["0.weight"]["stats"]
    assert stats["count"] == 32
    assert stats["mean"] == pytest.approx(model[0].weight.mean().item(), rel=1e-4)
    assert sum(stats["histogram"]["counts"]) == 32
    assert (found["0.weight"]["preview"]["width"], found["0.weight"]["preview"]["height"]) == (4, 8)


def test_equal_values_have_equal_ids_and_others_do_not():
    """Also between models; one element is enough."""
    torch.manual_seed(0)
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.load_state_dict(one.state_dict())
    same = weights(log(one, X)), weights(log(other, X))
    assert same[0]["weight"]["values_id"] == same[1]["weight"]["values_id"] != ""
    with torch.no_grad():
        other.weight[3, 3] += 1e-6
    changed = weights(log(other, X))
    assert changed["weight"]["values_id"] != same[0]["weight"]["values_id"]
    assert changed["bias"]["values_id"] == same[0]["bias"]["values_id"]


def test_parameters_that_changed_since_the_pass_are_not_shown():
    model = nn.Linear(4, 4)
    history = log(model, X)
    with torch.no_grad():
        model.weight.add_(1)
    payload = payload_of(history)
    assert [one["name"] for one in payload["weights"]] == ["bias"]
    assert any("1 parameter changed since the pass" in note for note in payload["facts"]["notes"])


def test_parameters_without_values_are_left_out():
    with torch.device("meta"):
        history = log(nn.Linear(4, 4), torch.ones(2, 4))
    assert "weights" not in payload_of(history)


def test_metrics_are_what_their_functions_return():
    history = log(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), X)
    payload = payload_of(history, metrics={"largest": torch.max, "rows": lambda tensor: tensor.shape[0]})
    assert payload["metrics"] == ["largest", "rows"]
    for node in payload["nodes"]:
        largest, rows = node["metrics"]
        assert largest == pytest.approx(history[node["key"]].tensor_contents.max().item(), rel=1e-4)
        assert rows == 2
    assert json.loads(history.to_json(metrics={"rows": len}))["metrics"] == ["rows"]


def test_a_metric_gets_copies():
    history = log(nn.ReLU(), X)
    before = history["relu_1_1"].tensor_contents.clone()
    payload_of(history, metrics={"zeroed": lambda tensor: tensor.zero_().sum()})
    assert torch.equal(history["relu_1_1"].tensor_contents, before)


def test_where_a_metric_raises_the_page_says_so():
    def picky(tensor):
        if tensor.shape[-1] == 3:
            raise ValueError("not three")
        return float("inf")

    payload = payload_of(log(nn.Linear(4, 3), X), metrics={"picky": picky})
    assert [node["metrics"] for node in payload["nodes"]] == [[None]] * 3
    assert any("'picky' could not be computed for 2 tensors" in note for note in payload["facts"]["notes"])


@pytest.mark.parametrize("metrics", [torch.max, {"a": 1}, {1: torch.max}, ["a"]])
def test_what_is_no_metric_is_refused(metrics, tmp_path):
    history = log(nn.ReLU(), X)
    with pytest.raises(InvalidArgument, match="metrics is a dictionary from names to functions"):
        history.to_html(tmp_path / "page.html", metrics=metrics)


def test_a_metric_that_is_no_number_is_refused():
    with pytest.raises(InvalidArgument, match=r"metrics\['shape'\] is a function from a tensor to one number; it returned"):
        payload_of(log(nn.ReLU(), X), metrics={"shape": lambda tensor: tensor.shape})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(3, 4).t(),
        torch.tensor(1.5),
        torch.rand(0, 3),
        torch.rand(2, 2, dtype=torch.complex64).conj(),
        torch.rand(3).to(torch.float8_e4m3fn),
        torch.tensor([True, False]),
    ],
    ids=["transposed", "scalar", "empty", "conjugate", "float8", "truth values"],
)
def test_a_digest_is_of_the_values_and_not_of_their_memory(tensor):
    same = tensor.clone().contiguous() if not tensor.is_conj() else tensor.resolve_conj().clone()
    assert digest_of(tensor) == digest_of(same) != ""
    assert digest_of(tensor) != digest_of(torch.zeros(7))
