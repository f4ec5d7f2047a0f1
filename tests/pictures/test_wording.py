"""The words in pictures, and what is told of unusual models: interrupted modules, containers of strangers, notes of views."""

from __future__ import annotations

import collections
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree

import torcheer
import torcheer as tl
from models import made_of, made_with
from torch_vis import track_computational_graph_execution
from torch_vis.document import plain
from torch_vis.scene import Words
from torcheer._text import screen
from torcheer._torch.containers import find_tensors
from torcheer._torch.memory import copy_of, has_memory, needed_bytes
from torcheer.cli import find_model
from torcheer.graph import collapse, expand_identities, fold_repeats, omit_middle, roll
from torcheer.log.templates import fill, template
from torcheer.pictures.drawing import make_drawing
from torcheer.pictures.geometry import Rect
from torcheer.pictures.options import PictureOptions
from torcheer.pictures.views import views
from torcheer.pictures.wording import human_count, node_lines, window_words


@pytest.mark.parametrize(
    ("count", "said"),
    [
        *[(0, "0"), (999, "999"), (1000, "1.0K"), (999_940, "999.9K"), (999_960, "1.0M")],
        *[(2.5e9, "2.5B"), (1e12, "1.0T"), (3e15, "3000.0T")],
    ],
)
def test_a_count_is_said_in_five_characters_or_so(count: float, said: str) -> None:
    assert human_count(count) == said


def twice(self, x: Tensor) -> Tensor:
    """A module that hands back its input, called twice."""
    return self.same(self.layer(self.same(self.layer(x))))


def test_a_module_that_returns_its_input_is_written_as_one() -> None:
    graph = expand_identities(
        tl.log_forward_pass(made_of(twice, same=nn.Identity(), layer=nn.Linear(2, 2)), torch.ones(1, 2)).graph
    )
    said = [node_lines(node, graph) for node in graph.nodes if node.kind == "identity"]
    assert [lines[-1] for lines in said] == ["returns its input"] * 2
    assert len({lines[0] for lines in said}) == 2
    rolled = roll(graph)
    assert ["returns its input"] in [node_lines(node, rolled)[1:] for node in rolled.nodes]


def test_what_is_left_out_is_counted() -> None:
    graph = tl.log_forward_pass(nn.Sequential(*[nn.ReLU() for _ in range(30)]), torch.ones(2)).graph
    omitted = omit_middle(graph, 9)
    (node,) = [node for node in omitted.nodes if node.kind == "omitted"]
    assert node_lines(node, omitted) == [f"… {node.num_operations} operations left out …"]
    assert node.num_operations == 32 - (len(omitted.nodes) - 1)


def test_passes_of_different_shapes_are_said_to_differ() -> None:
    def program(x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.cat([x, x])
        return x

    graph = roll(tl.log_forward_pass(program, torch.ones(1)).graph)
    (lines,) = [node_lines(node, graph) for node in graph.nodes if node.type == "cat"]
    assert lines[0] == "cat_1_1 ×3"
    assert "float32, shapes differ · 56 B in all" in lines


@pytest.mark.parametrize(
    ("platform", "variables", "opens"),
    [
        ("darwin", {}, True),
        ("darwin", {"SSH_CONNECTION": "1"}, False),
        ("win32", {"CI": "1"}, False),
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "w"}, True),
        ("linux", {"DISPLAY": ":0", "PYTEST_CURRENT_TEST": "this"}, False),
    ],
)
def test_a_window_is_opened_only_where_there_is_a_screen(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], opens: bool
) -> None:
    monkeypatch.setattr(screen, "os", types.SimpleNamespace(environ=variables))
    monkeypatch.setattr("sys.platform", platform)
    assert screen.has_screen() is opens


def test_a_line_goes_through_a_rectangle_or_beside_it() -> None:
    rect = Rect(0.0, 0.0, 10.0, 4.0)
    through = [((-5, 2), (15, 2)), ((5, -5), (5, 9)), ((-1, -1), (11, 5)), ((2, 1), (3, 2)), ((5, 1), (5, 3))]
    beside = [((-5, 5), (15, 5)), ((11, -5), (11, 9)), ((-3, 0), (0, 8)), ((12, 2), (20, 2)), ((5, 5), (5, 9))]
    assert [rect.is_crossed(a, b) for a, b in through] == [True] * 5
    assert [rect.is_crossed(a, b) for a, b in beside] == [False] * 5
    assert rect.overlap(Rect(8.0, 3.0, 20.0, 20.0)) == 2.0
    assert rect.overlap(Rect(10.0, 0.0, 20.0, 4.0)) == 0.0


def test_gradients_are_drawn_only_when_asked_for() -> None:
    with tl.recording(save_gradients=True) as history:
        loss = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))(torch.ones(1, 2)).sum()
    loss.backward()
    for options, drawn in ((PictureOptions(), False), (PictureOptions(show_gradients=True), True)):
        drawing = make_drawing(next(iter(views(history.graph, options))), options)
        assert any(edge.line == "dashed" for edge in drawing.edges) is drawn


def test_a_picture_that_is_too_large_as_asked_for_is_shut_further_and_says_so() -> None:
    model: nn.Module = nn.Sequential(nn.ReLU(), nn.Tanh())
    for _ in range(3):
        model = nn.Sequential(model, nn.Sequential(nn.ReLU(), nn.Tanh()))
    graph = tl.log_forward_pass(model, torch.ones(2)).graph
    said = [note for view in views(graph, PictureOptions(nesting_depth=3)) for note in view.notes if "Too large" in note]
    assert said == [f"Too large as asked for: collapsed to depth {depth}, of 10 operations." for depth in (2, 1)]
    by_itself = [note for view in views(graph, PictureOptions()) for note in view.notes]
    assert "Modules are collapsed at depth 1, of 10 operations; nesting_depth=2 opens more, 'all' everything." in by_itself


def test_a_view_says_what_was_done_to_it() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(6)])
    tracker = track_computational_graph_execution(model, torch.ones(1, 2))
    assert tracker.nodes
    words = Words(tracker.translation, times=True, sizes=True)
    whole = tracker.history.graph
    assert words.notes(whole, whole)[0].startswith("14 operations, ")
    assert len(words.notes(whole, whole)) == 1
    assert "Equal blocks in a row are drawn once." in words.notes(fold_repeats(whole), whole)
    assert "Operations in the middle are left out." in words.notes(omit_middle(whole, 6), whole)
    assert "Passes are rolled up: ×N is how often a layer ran." in words.notes(roll(whole), whole)
    collapsed = collapse(whole, depth=1)
    assert f"Collapsed by module to {len(collapsed.nodes)} nodes." in words.notes(collapsed, whole)


def test_without_gradients_a_view_says_so() -> None:
    with torch.no_grad():
        tracker = track_computational_graph_execution(nn.ReLU(), torch.ones(2))
    assert tracker.nodes
    words = Words(tracker.translation, times=True, sizes=True)
    assert words.notes(tracker.history.graph, tracker.history.graph) == ("3 operations, no gradients.",)


@pytest.mark.parametrize(
    ("value", "written"),
    [(float("inf"), None), (1.5, 1.5), ({1: (2, {3})}, {"1": [2, [3]]}), (torch.float32, "torch.float32"), (None, None)],
)
def test_values_of_an_export_are_plain(value: Any, written: Any) -> None:
    assert plain(value) == written


class Stop(BaseException):
    """Not an Exception: torch calls no hook for it."""


def stopping(self, x: Tensor) -> Tensor:
    raise Stop


@made_with(outer=lambda: nn.Sequential(nn.Sequential(made_of(stopping))), last=nn.ReLU)
def Going(self, x: Tensor) -> Tensor:
    """Goes on after a module inside a module was interrupted."""
    try:
        self.outer(x)
    except Stop:
        x = x + 1
    return self.last(x)


def test_after_an_interrupt_inside_a_module_what_follows_is_where_it_ran() -> None:
    history = tl.log_forward_pass(nn.Sequential(Going(), nn.Tanh()), torch.ones(2))
    assert history["relu_1"].containing_module == "0.last"
    assert history["tanh_1"].containing_module == "1"
    assert history["tanh_1"].containing_modules == ["1:1"]
    tracker = track_computational_graph_execution(nn.Sequential(Going(), nn.Tanh()), torch.ones(2), track_tensor_ops=False)
    assert ("module:0.last:1", "module:1:1") in {(edge.source_id, edge.target_id) for edge in tracker.edges}


class Slotted:
    __slots__ = ("given", "missing")


class Lazy(collections.UserDict):
    """A UserDict whose data is no dictionary."""

    def __init__(self, **items: Any) -> None:
        self.data = types.MappingProxyType(items)


class Stubborn:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def refuse(items: list[Any], context: Any) -> Stubborn:
    raise ValueError("not again")


_pytree.register_pytree_node(Stubborn, lambda one: ([one.tensor], None), refuse, serialized_type_name="tests.Stubborn")


def test_a_slot_that_was_not_set_is_no_obstacle() -> None:
    holder = Slotted()
    holder.given = torch.ones(2)

    def program(x: Slotted) -> Tensor:
        return x.given + 1

    history = tl.log_forward_pass(program, (holder,))
    assert history.outputs[0].tensor_contents.tolist() == [2.0, 2.0]


def test_a_container_that_cannot_be_built_again_is_still_read() -> None:
    found = [tensor for _, tensor in find_tensors(Stubborn(torch.ones(3)))]
    assert [one.shape for one in found] == [(3,)]
    seen: list[Tensor] = []
    made = fill(template(Stubborn(torch.ones(3)), seen.append), iter([torch.zeros(3)]))
    assert len(seen) == 1
    assert made is not None


def test_a_user_dictionary_over_something_else_is_read() -> None:
    history = tl.log_forward_pass(lambda given: given["a"] * 2, (Lazy(a=torch.ones(2)),))
    assert history.outputs[0].tensor_contents.tolist() == [2.0, 2.0]


def test_how_large_a_storage_must_be() -> None:
    base = torch.zeros(3, 4)
    assert needed_bytes(base) == 48
    assert needed_bytes(base[1]) == 32
    assert needed_bytes(base[:, 1]) == (1 + 8 + 1) * 4
    assert needed_bytes(base[:0]) == 0


def test_copies_keep_strides_unless_that_would_take_much_more_memory() -> None:
    base = torch.arange(40.0).reshape(4, 10)
    for view in (base.T, base[:, ::2], base[:1].expand(3, 10), base[:, :1], base[:0]):
        copied = copy_of(view)
        assert torch.equal(copied, view)
        assert copied.untyped_storage().data_ptr() != base.untyped_storage().data_ptr() or not view.numel()
        assert has_memory(copied)
    assert copy_of(base[:1].expand(3, 10)).stride() == (0, 1)
    assert copy_of(base[:, ::2]).stride() == (10, 2)
    assert copy_of(base[:, :1]).stride() == (1, 1)  # four numbers would take the room of thirty-one


def test_a_model_is_found_in_the_folder_the_command_runs_in(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_models.py").write_text("import torch\n\nclass Net(torch.nn.ReLU):\n    pass\n\nfunction = max\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path not in ("", str(tmp_path))])
    found = find_model("my_own_models:Net")
    assert type(found).__name__ == "Net"
    assert not found.training
    assert find_model("my_own_models:function") is max  # which cannot be asked what it needs


def test_the_window_of_a_convolution_and_of_a_pool_is_written_on_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.ReLU())
    graph = tl.log_forward_pass(model, torch.ones(1, 3, 9, 9)).graph
    said = {node.function: node_lines(node, graph) for node in graph.nodes if node.kind == "operation"}
    assert "kernel 3×3, stride 2, padding 1" in said["conv2d"]
    assert "kernel 2×2, stride 2" in said["max_pool2d"]
    assert not any("kernel" in line for line in said["relu"])


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
