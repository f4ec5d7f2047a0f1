"""The promises, each held against every model of the catalogue; an exception is named, and is what it is said to be."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pytest
import torch
from torch import nn

import torcheer
from catalogue import CATALOGUE, Entry
from catalogue.state import ALIKE
from models import unchanged
from promises import assert_logged_as_it_runs, assert_same_values, made, uninitialised
from saved_equality import differences, graph_of
from torcheer import TorcheerError, changes
from torcheer.replay.comparison import same_bits

pytestmark = pytest.mark.filterwarnings("ignore")
MODES = {"gradients": torch.enable_grad, "no gradients": torch.no_grad, "inference": torch.inference_mode}

# What is refused by an error of torcheer's that says why, and what does not hold.
OWN_CLASSES = {
    *("construct wrapper", "construct wrapper that is opened", "construct subclass", "masked tensor"),
    *("weight of few bits made", "weight of few bits returned", "given a wrapper", "given a masked tensor"),
}  # of tensors, which no file can give back
MADE_RUNNING = {"exported in forward", "linearised", "registers in its first pass"}  # modules that a plain model does not have
NO_VALUES = {
    *("given a wrapper", "given a masked tensor", "given a nested tensor", "given a jagged tensor"),
    *("attention on meta", "fused attention on meta"),
}
NOT_SAVED = OWN_CLASSES | {"parameter of few bits"}
NOT_STREAMED = OWN_CLASSES | {
    *("exported in forward", "linearised", "fakes tensors"),
}
OTHER_WHEN_LOADED = {
    *("flex attention", "causal flex attention", "biased flex attention"),  # a page does not show it as attention
    "attention on meta",  # there is no memory to share
}
NOT_PROVED_FROM_A_FILE = {
    *("custom operator that counts", "linearised"),  # their functions are not torch's own: `torcheer.load` is given them
}
NOT_RUN_FROM_A_FILE = {
    *("exported in forward", "fakes tensors"),
}
NOT_EQUAL = {"other defaults"}  # nothing could be compared
OTHER_WITHOUT_VALUES = {
    *("construct wrapper", "construct wrapper that is opened", "construct subclass", "exported in forward", "linearised"),
    *("quantised output, zero points of floating point", "made parameter", "views from before"),
}
SAID_NOT_TO_BE_RESTORED = {"given a masked tensor", "parameter of few bits"}  # classes without what would tell or do it
ENDS_THE_PROCESS = {"empty the storage"}  # where a tensor is read whose memory the model freed


@contextmanager
def refused(name: str, names: set[str], kind: type[Exception] = TorcheerError) -> Iterator[None]:
    """What is done with these models, and no others, raises an error of torcheer's."""
    raised = None
    try:
        yield
    except kind as error:
        raised = error
    assert (raised is not None) == (name in names), raised


@dataclass
class Logged:
    name: str
    entry: Entry
    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    history: torcheer.ModelHistory

    def again(self, **options: Any) -> torcheer.ModelHistory:
        model, args, kwargs = made(self.entry)
        return torcheer.log_forward_pass(model, args, kwargs, **options)


@pytest.fixture(params=[name for name in CATALOGUE if name not in ALIKE], scope="module")
def logged(request: pytest.FixtureRequest) -> Logged:
    """One log of a model, for the promises that do not need another."""
    entry = CATALOGUE[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, args, kwargs = made(entry)
        return Logged(request.param, entry, model, args, kwargs, torcheer.log_forward_pass(model, args, kwargs))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_model_is_logged_as_it_runs_proved_and_left_as_it_was(name, mode):
    with MODES[mode](), refused(name, SAID_NOT_TO_BE_RESTORED, torcheer.StateNotRestored):
        assert_logged_as_it_runs(CATALOGUE[name])


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_model_is_left_as_it_was_by_a_pass_that_raises(name):
    model, args, kwargs = made(CATALOGUE[name])
    if not isinstance(model, nn.Module):  # of what a function closes over, modules are put back
        return

    def failing(*args, **kwargs):
        model(*args, **kwargs)
        raise ValueError("no")

    with unchanged(model, args, kwargs), pytest.raises(ValueError, match="no"):
        torcheer.log_forward_pass(failing, args, kwargs)


OPTIONS: dict[str, dict[str, Any]] = {
    "modules kept": {"layers_to_save": "modules"},
    "ends kept": {"layers_to_save": [0, -1]},
    "some kept": {"layers_to_save": lambda operation: operation.operation_num % 2 == 0},
    "gradients": {"save_gradients": True},
    "gradients alone": {"save_gradients": True, "layers_to_save": "none"},
    "device": {"output_device": "cpu"},
    "postfunc": {"activation_postfunc": lambda tensor: tensor.clone()},
}


def test_options_change_what_is_kept_and_not_the_graph(logged):
    """Nothing kept, and one of the others, which its name chooses."""
    turn = crc32(logged.name.encode())
    for options in ({"layers_to_save": "none"}, list(OPTIONS.values())[turn % len(OPTIONS)]):
        if logged.name not in OTHER_WITHOUT_VALUES | NO_VALUES:
            other = logged.again(**options)
            assert graph_of(other) == graph_of(logged.history), options
            assert_same_values(logged.history, other)


def test_everything_is_printed_and_paged(logged, tmp_path):
    history = logged.history
    for one in (*history.operations, *history, *history.modules.values()):
        assert str(one)
        assert repr(one)
        one._repr_html_()
    for one in (history.summary(), history.memory, history.cost):
        assert str(one)
    text = str(history)
    for layer in history:
        assert history[layer.label] == layer
    left_out = sum(int(count.replace(",", "")) for count in re.findall(r"([\d,]+) layers?(?: more)? …", text))
    assert sum(layer.label not in text for layer in history) <= left_out
    assert history.graph.num_operations == len(history.operations)
    assert history.to_html(tmp_path / "page.html").stat().st_size > 10_000
    assert history.to_csv(tmp_path / "table.csv").read_text().count("\n") > len(history.operations)


def test_a_saved_history_is_the_same_when_it_is_loaded(logged, tmp_path):
    """What is printed, drawn and on its page, and every tensor."""
    with refused(logged.name, NOT_SAVED):
        loaded = torcheer.load(logged.history.save(tmp_path / "log.safetensors", params=True))
        found = differences(logged.history, loaded)
        assert bool(found) == (logged.name in OTHER_WHEN_LOADED), found
        with refused(logged.name, NOT_RUN_FROM_A_FILE):
            assert bool(loaded.validate()) == (logged.name not in NOT_PROVED_FROM_A_FILE), str(loaded.validate())


def test_what_is_written_as_it_is_made_is_what_is_kept(logged, tmp_path):
    with refused(logged.name, NOT_STREAMED):
        streamed = logged.again(save_to=tmp_path / "log.safetensors")
        assert streamed.layer_labels == logged.history.layer_labels
        assert_same_values(logged.history, streamed)


def test_every_operation_is_read_live_as_the_log_kept_it(logged):
    model, args, kwargs = made(logged.entry)
    if logged.name in ENDS_THE_PROCESS:
        return
    if not isinstance(model, nn.Module):
        with pytest.raises(torcheer.InvalidArgument, match=r"must be an nn\.Module"):
            torcheer.tap(model, ["output"]).__enter__()
        return
    untold = uninitialised(logged.history)
    labels = [one.label for one in logged.history.operations if one.origin == "operation" and one.label not in untold]
    with refused(logged.name, MADE_RUNNING):
        with torcheer.tap(model, labels or ["output"], like=logged.history) as values:
            model(*args, **kwargs)
        for label in labels:
            assert same_bits(values[label], logged.history[label].tensor_contents), label
        assert str(values)


def test_a_replay_gives_what_the_log_has(logged):
    assert_same_values(logged.history, logged.history.replay())


def test_a_model_compares_equal_with_itself(logged):
    with refused(logged.name, NO_VALUES):
        compared = torcheer.compare(logged.history, logged.again())
        assert bool(compared) == (logged.name not in NOT_EQUAL), str(compared)


def test_every_other_call_answers_or_raises_an_error_of_its_own(logged):
    history = logged.history
    model, args, kwargs = made(logged.entry)
    calls: list[Callable[[], Any]] = [
        lambda: history.attention(""),
        lambda: str(torcheer.compare_models(model, made(logged.entry)[0], args, kwargs)),
        *(lambda one=one: history.replay(changes={one.label: changes.scale(2)}) for one in history.operations[:6]),
    ]
    for call in calls:
        with suppress(TorcheerError):
            call()
    if isinstance(model, nn.Module):
        with torcheer.watch_modules(model) as watched:
            model(*args, **kwargs)
        assert str(watched)
