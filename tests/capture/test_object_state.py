"""State deeper than a module's own attributes is as before after a pass, or is named."""

from __future__ import annotations

import collections
import logging
import threading

import numpy as np
import pytest
import torch
from torch import nn

import torcheer
from catalogue.state import HELD, SHARED, change_array
from models import log, made_of
from torcheer import StateNotRestored
from torcheer._torch import object_state

x = torch.rand(2, 3)


def holder(value, change):
    """Holds one thing, and does something with it when it runs."""
    return made_of(lambda self, t: t + float(self.change(self.value) or 0), value=value, change=change)


@pytest.mark.parametrize("name", [name for name in HELD if "generator" in name])
def test_each_log_of_a_model_with_its_own_generator_gives_what_the_plain_model_gives_next(name):
    make, change = HELD[name]
    model, twin = holder(make(), change), holder(make(), change)
    first = log(model, x)["output"].tensor_contents
    assert torch.equal(first, log(model, x)["output"].tensor_contents)
    if "torch" not in name:  # those are made with a random seed
        assert torch.equal(first, twin(x))
    assert torcheer.validate_forward_pass(model, x)


def test_a_generator_that_forward_knows_by_a_global_name_is_put_back():
    before = SHARED.get_state()
    log(nn.Sequential(nn.Linear(3, 3), made_of(lambda self, t: t + torch.rand(3, generator=SHARED))), x)
    assert torch.equal(SHARED.get_state(), before)


def test_other_variables_a_function_closes_over_are_left_alone():
    seen = []

    def model(t):
        seen.append(1)
        return t + 1

    log(model, x)
    assert seen == [1]


def test_a_cache_of_transformers_held_by_the_model_is_put_back():
    cache_utils = pytest.importorskip("transformers.cache_utils")

    class Model(nn.Module):
        def __init__(self, filled):
            super().__init__()
            self.cache = cache_utils.DynamicCache()
            if filled:
                self.cache.update(torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4), 0)

        def forward(self, t):
            self.cache.update(t, t, 0)
            keys, _ = self.cache.update(t, t, 1)
            return keys + self.cache.get_seq_length()

    t = torch.rand(1, 2, 3, 4)
    for filled, length in ((False, 0), (True, 3)):
        model = Model(filled)
        layers = len(model.cache.layers)
        keys = model.cache.layers[0].keys if filled else None
        log(model, t)
        assert torcheer.validate_forward_pass(model, t)
        assert (model.cache.get_seq_length(), len(model.cache.layers)) == (length, layers)
        assert not filled or model.cache.layers[0].keys is keys


def test_a_large_array_is_not_copied_but_its_change_is_named():
    model = nn.Sequential(holder(np.zeros(1 << 19), change_array))
    with pytest.warns(StateNotRestored, match=r"'0\.value'.*4,194,304 bytes, which is too large"):
        log(model, x)
    unchanged = nn.Sequential(holder(np.zeros(1 << 19), lambda a: float(a.sum())))
    log(unchanged, x)


class Node:
    """One of many."""

    def __init__(self, following):
        self.following, self.visited = following, 0


def test_an_object_that_leads_to_very_many_others_is_left_alone():
    chain = None
    for _ in range(object_state.LIMIT + 1):
        chain = Node(chain)

    def visit(node):
        node.visited += 1
        node.following.visited += 1

    model = holder(chain, visit)
    log(model, x)
    assert (chain.visited, chain.following.visited) == (1, 1)
    log(holder(chain.following, visit), x)  # as many as there may be
    assert (chain.following.visited, chain.following.following.visited) == (1, 0)
    short = Node(Node(None))
    log(holder(short, visit), x)  # another object of that class
    assert (short.visited, short.following.visited) == (0, 0)


@pytest.mark.parametrize("kind", [list, dict.fromkeys, set, collections.deque])
def test_a_container_that_leads_to_too_much_is_put_back_itself(kind):
    """What is in it is left alone, but for what another attribute leads to."""
    nodes = [Node(None) for _ in range(object_state.LIMIT + 1)]
    container = kind(nodes)
    kept = list(container)

    def change(value):
        value.clear()
        nodes[0].visited = nodes[1].visited = 7

    model = holder(container, change)
    model.other = nodes[1]
    log(model, x)
    assert container == kind(kept)
    assert kind is set or list(container) == kept
    assert [node.visited for node in nodes[:3]] == [7, 0, 0]


def test_arrays_are_copied_as_long_as_there_is_room_and_named_beyond(monkeypatch):
    """The room is for all arrays of a pass together."""
    monkeypatch.setattr(object_state, "ROOM", 1_000)
    arrays = [np.zeros(100), np.zeros(25)]  # 800 bytes and 200: they fit, to the last byte

    def change(value):
        for array in value:
            array[:] = 1

    log(holder(arrays, change), x)
    assert [array.sum() for array in arrays] == [0, 0]
    arrays.append(np.zeros(101))  # is met first, and leaves 192 bytes
    with pytest.warns(StateNotRestored, match="NumPy array of 200 bytes, which is too large.* NumPy array of 800 bytes"):
        log(holder(arrays, change), x)
    assert [array.sum() for array in arrays] == [100, 25, 0]


class Counting(logging.Handler):
    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += 1


def test_loggers_threads_and_our_own_objects_are_left_alone():
    def forward(self, t):
        self.handler.emit(None)
        self.thread.note = 1
        return t + 1

    model = made_of(
        forward, handler=Counting(), lock=threading.Lock(), thread=threading.Thread(target=print), history=log(nn.ReLU(), x)
    )
    log(model, x)
    assert model.handler.count == 1
    assert model.thread.note == 1
