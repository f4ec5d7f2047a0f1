"""Equal inputs and outputs: what is drawn as one, in pictures and on the page alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torcheer
from torcheer.graph import merge_ports
from torcheer.graph.equal_ports import equal_ports

NAMES = ("loss", "aux", "kl", "norm", "main", "low", "high", "left", "right")


def _detect(x: Tensor) -> list[dict[str, Tensor]]:
    return [{"boxes": x.reshape(5, 1), "labels": x > 0, "scores": x.exp()}]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        pytest.param(lambda x: {"y": x, "cache": [(x + i, x * i) for i in range(4)]}, [("cache", 8)], id="cache"),
        pytest.param(
            lambda x: {"cache": [(x + i, x.sum() * i) for i in range(4)]}, [("cache", 8)], id="keys and values of two shapes"
        ),
        pytest.param(
            lambda x: {"cache": {f"layer_{i}": {"k": x + i} for i in range(3)}}, [("cache", 3)], id="numbers in names"
        ),
        pytest.param(
            lambda x: {"a": {"s": [x] * 3, "t": [x] * 4}}, [("a['s']", 3), ("a['t']", 4)], id="two lists of one value"
        ),
        pytest.param(lambda x: (x, [x + i for i in range(3)]), [("output[1]", 3)], id="second of two"),
        pytest.param(lambda x: [x + i for i in range(9)], [("output", 9)], id="nine in a list"),
        pytest.param(lambda x: dict.fromkeys(NAMES, x + 1), [("output", 9)], id="nine names"),
        pytest.param(lambda x: [x + i for i in range(8)], [], id="eight in a list"),
        pytest.param(lambda x: dict.fromkeys(NAMES[:4], x + 1), [], id="four names"),
        pytest.param(lambda x: (x, [x + 1, x + 2]), [], id="two in a list"),
        pytest.param(lambda x: {"pyramid": [x[i:] for i in range(4)]}, [], id="shapes differ"),
        pytest.param(_detect, [], id="one detection"),
        pytest.param(lambda x: [{"a": x + 1, "b": x + 2, "c": x + 3}], [], id="three names of one shape in a list of one"),
    ],
)
def test_outputs_that_repeat_in_one_value_are_one(returned: Callable[[Tensor], Any], expected: list[tuple[str, int]]) -> None:
    graph = torcheer.log_forward_pass(returned, torch.rand(5)).graph
    assert [(group.name, len(group.nodes)) for group in equal_ports(graph.nodes)] == expected
    merged = [node.num_operations for node in merge_ports(graph).nodes if node.num_operations > 1]
    assert merged == [count for _, count in expected]


def test_inputs_that_repeat_in_one_value_are_one_and_arguments_are_not() -> None:
    cache = [torch.rand(2) for _ in range(4)]
    given = torcheer.log_forward_pass(lambda x, cache: x + sum(cache), (torch.ones(2), cache)).graph
    assert [(group.name, len(group.nodes)) for group in equal_ports(given.nodes)] == [("args[1]", 4)]
    four = torcheer.log_forward_pass(lambda a, b, c, d: torch.cat([a, b, c, d]), tuple(torch.rand(2) for _ in range(4))).graph
    assert equal_ports(four.nodes) == []


def test_pictures_and_the_page_draw_the_same_as_one() -> None:
    def step(x: Tensor, cache: list[list[Tensor]]) -> dict[str, Any]:
        return {"y": x, "cache": [(keys + x, values.sum()) for keys, values in cache], "few": [x + 1, x + 2]}

    history = torcheer.log_forward_pass(step, (torch.ones(2), [[torch.ones(2), torch.ones(2)] for _ in range(3)]))
    on_page = [
        [history.graph.all_nodes[number].key for number in port["nodes"]] for port in json.loads(history.to_json())["ports"]
    ]
    drawn = [f"{keys[0]}…{keys[-1]}" for keys in on_page]
    assert len(drawn) == 2
    assert drawn == [node.key for node in merge_ports(history.graph).nodes if node.num_operations > 1]
