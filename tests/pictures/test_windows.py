"""Kernel, stride and padding in labels: read from the calls, compared with what the modules say."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torcheer
from torcheer.graph import roll
from torcheer.pictures.wording import window_words

X = torch.ones(1, 4, 16, 16)


def words(model, *args: torch.Tensor) -> list[str]:
    graph = torcheer.log_forward_pass(model, args).graph
    return [", ".join(found) for node in graph.nodes if (found := window_words(node, graph))]


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (nn.Conv2d(4, 8, 3), (1, 4, 16, 16), "kernel 3×3, stride 1"),
        (nn.Conv2d(4, 8, 3, 2, 1), (1, 4, 16, 16), "kernel 3×3, stride 2, padding 1"),
        (nn.Conv2d(4, 8, (1, 3), (2, 1), (0, 1)), (1, 4, 16, 16), "kernel 1×3, stride 2×1, padding 0×1"),
        (
            nn.Conv2d(4, 8, 3, padding="same", dilation=2, groups=4),
            (1, 4, 16, 16),
            "kernel 3×3, stride 1, padding same, dilation 2, groups 4",
        ),
        (nn.Conv1d(4, 8, 5, 2), (1, 4, 16), "kernel 5, stride 2"),
        (nn.Conv3d(4, 8, 3, padding=1), (1, 4, 6, 6, 6), "kernel 3×3×3, stride 1, padding 1"),
        (nn.ConvTranspose2d(4, 8, 4, 2, 1, 1), (1, 4, 8, 8), "kernel 4×4, stride 2, padding 1, output padding 1"),
        (nn.MaxPool2d(3, 2, 1), (1, 4, 16, 16), "kernel 3×3, stride 2, padding 1"),
        (nn.MaxPool2d(2), (1, 4, 16, 16), "kernel 2×2, stride 2"),
        (nn.MaxPool2d(2, return_indices=True), (1, 4, 16, 16), "kernel 2×2, stride 2"),
        (nn.AvgPool2d((2, 4)), (1, 4, 16, 16), "kernel 2×4, stride 2×4"),
        (nn.AvgPool1d(2, 1), (1, 4, 16), "kernel 2, stride 1"),
    ],
)
def test_labels_say_how_a_window_moves(module: nn.Module, shape: tuple[int, ...], expected: str) -> None:
    assert words(module, torch.ones(shape))[0] == expected


def test_arguments_may_be_given_by_position_by_name_or_not_at_all() -> None:
    weight = torch.ones(8, 4, 3, 3)
    assert words(lambda x: F.conv2d(x, weight, stride=2), X) == ["kernel 3×3, stride 2"]
    assert words(lambda x: F.conv2d(x, weight), X) == ["kernel 3×3, stride 1"]
    assert words(lambda x, w: F.conv2d(x, w * 2, padding=(1, 1)), X, weight) == ["kernel 3×3, stride 1, padding 1"]
    assert words(lambda x: F.max_pool2d(x, kernel_size=2, padding=1), X) == ["kernel 2×2, stride 2, padding 1"]
    assert words(lambda x: F.avg_pool2d(x, 2), X) == ["kernel 2×2, stride 2"]


def test_other_operations_say_nothing_and_rolled_ones_say_it_once() -> None:
    assert words(nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)), X) == []
    conv = nn.Conv2d(4, 4, 3, padding=1)
    graph = roll(torcheer.log_forward_pass(lambda x: conv(conv(x)), X).graph)
    assert [window_words(node, graph) for node in graph.nodes if node.type == "conv2d"] == [
        ["kernel 3×3", "stride 1", "padding 1"]
    ]
