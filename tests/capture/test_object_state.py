"""State deeper than a module's own attributes is as before after a pass, or is named."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import logging
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

import torcheer
from models import log
from torcheer import StateNotRestored
from torcheer._torch import object_state

x = torch.rand(2, 3)


class Memory:
    """A plain object, as caches are."""

    def __init__(self):
        self.layers, self.steps, self.last = [], 0, None


class Slotted:
    __slots__ = ("__dict__", "count", "items", "unset")

    def __init__(self):
        self.count, self.items, self.free = 0, [], 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    items: list


class Holder(nn.Module):
    """Holds one thing, and does something with it when it runs."""

    def __init__(self, value, change):
        super().__init__()
        self.value, self.change = value, change

    def forward(self, t):
        return t + float(self.change(self.value) or 0)


def change_memory(memory):
    memory.layers.append(1)
    memory.steps += 1
    memory.last = memory.added = [1]


def change_slotted(slotted):
    slotted.count += 1
    slotted.items.append(1)
    slotted.free, slotted.unset = 1, 2


def change_array(array):
    array[...] += 1
    return float(array.sum())


def show_array(array):
    return array.dtype, array.shape, array.tolist()


def nested():
    return {"a": [1, {"b": [2, (3, [4])]}], "set": {1}, "queue": collections.deque([1], maxlen=3)}


def change_nested(value):
    value["a"][1]["b"][1][1].append(5)
    value["a"][1]["c"] = 1
    value["set"].add(2)
    value["queue"].append(2)


def change_ordered(value):
    value.move_to_end("a")
    value["a"] = 3


class Tally(nn.Module):
    """A module that counts in every way."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.inner = 0, [], nn.Sequential(nn.BatchNorm1d(3))

    def forward(self, t):
        self.calls += 1
        self.seen.append(t)
        self.seen_last = t
        self.inner.register_forward_hook(lambda *_: None)
        return self.inner(t).sum().detach()


def counted(module):
    state = {name: value.tolist() for name, value in module.state_dict().items()}
    return state, module.calls, len(module.seen), len(vars(module)), len(module.inner._forward_hooks), module.training


CASES = {
    "module in a list": (lambda: [Tally()], lambda m: m[0](x), lambda m: counted(m[0])),
    "module in a method": (lambda: Tally().forward, lambda f: f(x), lambda f: counted(f.__self__)),
    "module in a module in an object": (
        lambda: [nn.ModuleDict({"a": Tally()})],
        lambda m: m[0].eval()["a"](x),
        lambda m: (counted(m[0]["a"]), m[0].training),
    ),
    "numpy generator": (lambda: np.random.default_rng(0), lambda g: g.random(), lambda g: str(g.bit_generator.state)),
    "numpy state": (lambda: np.random.RandomState(0), lambda g: g.rand(), lambda g: str(g.get_state())),
    "bit generator": (lambda: np.random.PCG64(0), lambda g: np.random.Generator(g).random(), lambda g: str(g.state)),
    "python generator": (lambda: random.Random(0), lambda g: g.random(), lambda g: g.getstate()),
    "torch generator": (torch.Generator, lambda g: torch.rand(1, generator=g).item(), lambda g: g.get_state().tolist()),
    "generators in a list": (lambda: [random.Random(0)], lambda g: g[0].random(), lambda g: g[0].getstate()),
    "torch generators in a dict": (
        lambda: {"a": [torch.Generator()]},
        lambda g: torch.rand(1, generator=g["a"][0]).item(),
        lambda g: g["a"][0].get_state().tolist(),
    ),
    "array": (lambda: np.zeros((2, 3)), change_array, show_array),
    "array of a strided view": (lambda: np.zeros((4, 6))[::2, ::2], change_array, show_array),
    "array of one number": (lambda: np.zeros(()), change_array, show_array),
    "empty array": (lambda: np.zeros((0, 3)), change_array, show_array),
    "array with a hole": (lambda: np.array([np.nan, 1]), lambda a: a.__setitem__(1, 3), lambda a: str(a)),
    "array of objects": (lambda: np.array([[1], "a"], dtype=object), lambda a: a.__setitem__(1, 3), lambda a: a.tolist()),
    "arrays in a dict": (lambda: {"a": np.zeros(3)}, lambda a: change_array(a["a"]), lambda a: a["a"].tolist()),
    "nested containers": (nested, change_nested, copy.deepcopy),
    "counter": (lambda: collections.Counter("aab"), lambda c: c.update("bc"), dict),
    "ordered": (lambda: collections.OrderedDict(a=1, b=2), change_ordered, lambda o: list(o.items())),
    "default": (lambda: collections.defaultdict(list), lambda d: d["a"].append(1), dict),
    "object": (Memory, change_memory, lambda m: (copy.deepcopy(vars(m)), m.layers)),
    "object in a list": (lambda: [Memory()], lambda m: change_memory(m[0]), lambda m: copy.deepcopy(vars(m[0]))),
    "slots": (Slotted, change_slotted, lambda s: (s.count, list(s.items), s.free, hasattr(s, "unset"))),
    "frozen": (lambda: Frozen([1]), lambda f: f.items.append(2), lambda f: list(f.items)),
    "method": (lambda: Memory().layers.append, lambda f: f(1), lambda f: list(f.__self__)),
    "partial": (
        lambda: functools.partial(torch.rand, 1, generator=torch.Generator()),
        lambda f: f().item(),
        lambda f: f.keywords["generator"].get_state().tolist(),
    ),
    "bytes": (lambda: bytearray(b"ab"), lambda b: b.extend(b"c"), bytes),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("action", ["log", "validate", "raise"])
def test_deep_state_is_as_before(name, action):
    make, change, show = CASES[name]
    value = make()
    model = Holder(value, change)
    show_before = show(value)
    if action == "log":
        log(model, x)
    elif action == "validate":
        torcheer.validate_forward_pass(model, x)
    else:

        def fail(value):
            change(value)
            raise ValueError("no")

        model.change = fail
        with pytest.raises(ValueError, match="no"):
            log(model, x)
    assert model.value is value
    assert show(value) == show_before


@pytest.mark.parametrize("name", [name for name in CASES if "generator" in name])
def test_each_log_of_a_model_with_its_own_generator_gives_what_the_plain_model_gives_next(name):
    make, change, _ = CASES[name]
    model, twin = Holder(make(), change), Holder(make(), change)
    first = log(model, x)["output"].tensor_contents
    assert torch.equal(first, log(model, x)["output"].tensor_contents)
    if "torch" not in name:  # those are made with a random seed
        assert torch.equal(first, twin(x))
    assert torcheer.validate_forward_pass(model, x)


SHARED, DEFAULT = torch.Generator(), np.random.default_rng(0)


def test_generators_a_function_closes_over_or_knows_by_a_global_name_are_put_back():
    own, listed = random.Random(0), [torch.Generator()]

    def model(t, other=DEFAULT):
        drawn = own.random() + other.random()
        return t + drawn + torch.rand(3, generator=SHARED) + torch.rand(3, generator=listed[0])

    def states():
        other = model.__defaults__[0].bit_generator.state
        return own.getstate(), str(other), SHARED.get_state().tolist(), listed[0].get_state().tolist()

    before = states()
    history = log(model, x)
    assert states() == before
    assert torcheer.validate_forward_pass(model, x)
    assert states() == before
    assert torch.equal(history["output"].tensor_contents, log(model, x)["output"].tensor_contents)


def test_a_generator_that_forward_knows_by_a_global_name_is_put_back():
    class Model(nn.Module):
        def forward(self, t):
            return t + torch.rand(3, generator=SHARED)

    before = SHARED.get_state()
    log(nn.Sequential(nn.Linear(3, 3), Model()), x)
    assert torch.equal(SHARED.get_state(), before)


def test_other_variables_a_function_closes_over_are_left_alone():
    seen = []

    def model(t):
        seen.append(1)
        return t + 1

    log(model, x)
    assert seen == [1]


def test_a_callable_object_is_put_back():
    class Model:
        def __init__(self):
            self.net, self.calls, self.seen = nn.Linear(3, 3), 0, []

        def __call__(self, t):
            self.calls += 1
            self.seen.append(t)
            return self.net(t)

        def run(self, t):
            return self(t) * 2

    model = Model()
    log(model, x)
    log(model.run, x)
    torcheer.validate_forward_pass(model, x)
    assert (model.calls, model.seen) == (0, [])


def test_an_argument_that_cannot_be_copied_is_put_back():
    class Uncopyable(Memory):
        def __deepcopy__(self, memo):
            raise RuntimeError("not to be copied")

    memory = Uncopyable()

    def model(t, memory):
        change_memory(memory)
        return t + 1

    log(model, x, memory)
    log(lambda t, nested: model(t, nested["a"][0]), x, {"a": [memory]})
    torcheer.validate_forward_pass(model, (x, memory))
    assert vars(memory) == {"layers": [], "steps": 0, "last": None}


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
    model = nn.Sequential(Holder(np.zeros(1 << 19), change_array))
    with pytest.warns(StateNotRestored, match=r"'0\.value'.*4,194,304 bytes, which is too large"):
        log(model, x)
    unchanged = nn.Sequential(Holder(np.zeros(1 << 19), lambda a: float(a.sum())))
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

    model = Holder(chain, visit)
    log(model, x)
    assert (chain.visited, chain.following.visited) == (1, 1)
    log(Holder(chain.following, visit), x)  # as many as there may be
    assert (chain.following.visited, chain.following.following.visited) == (1, 0)
    short = Node(Node(None))
    log(Holder(short, visit), x)  # another object of that class
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

    model = Holder(container, change)
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

    log(Holder(arrays, change), x)
    assert [array.sum() for array in arrays] == [0, 0]
    arrays.append(np.zeros(101))  # is met first, and leaves 192 bytes
    with pytest.warns(StateNotRestored, match="NumPy array of 200 bytes, which is too large.* NumPy array of 800 bytes"):
        log(Holder(arrays, change), x)
    assert [array.sum() for array in arrays] == [100, 25, 0]


class Counting(logging.Handler):
    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += 1


def test_loggers_threads_and_our_own_objects_are_left_alone():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.handler, self.lock = Counting(), threading.Lock()
            self.thread = threading.Thread(target=print)
            self.history = log(nn.ReLU(), x)

        def forward(self, t):
            self.handler.emit(None)
            self.thread.note = 1
            return t + 1

    model = Model()
    log(model, x)
    assert model.handler.count == 1
    assert model.thread.note == 1


def test_a_class_whose_attributes_cannot_be_read_is_no_obstacle():
    class Odd:
        @property
        def __dict__(self):
            raise RuntimeError("not to be read")

    log(Holder([Odd(), [1]], lambda value: value[1].append(2)), x)


def test_objects_in_a_circle_are_put_back():
    one, other = Memory(), Memory()
    one.last, other.last = other, one
    log(Holder(one, lambda value: value.last.layers.append(1)), x)
    assert other.layers == []
    assert one.last is other


class SlottedModule(nn.Module):
    """A module with state in slots, which its `__dict__` does not show."""

    __slots__ = ("count", "seen", "unset")

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.count, self.seen = 0, [1.0]

    def forward(self, t):
        self.count += 1
        self.seen.append(2.0)
        self.unset = self.count
        return self.fc(t) * sum(self.seen)


def test_slots_of_a_module_are_put_back():
    model = nn.Sequential(SlottedModule(), SlottedModule())
    seen = model[0].seen
    assert torcheer.validate_forward_pass(model, torch.rand(3, 4))
    assert model[0].count == 0
    assert model[0].seen is seen
    assert seen == model[1].seen == [1.0]
    assert not hasattr(model[0], "unset")


class Reordered(nn.Module):
    def __init__(self):
        super().__init__()
        self.order = collections.OrderedDict(a=1, b=2)

    def forward(self, x):
        self.order.move_to_end("a")
        return x + 1


def test_the_order_of_an_ordered_dict_is_put_back():
    model = Reordered()
    torcheer.log_forward_pass(model, torch.ones(2))
    assert list(model.order) == ["a", "b"]


class ArrayAndTensor(nn.Module):
    """An array and a tensor on the same memory, both written to."""

    def __init__(self):
        super().__init__()
        self.array = np.arange(4, dtype=np.float32)
        self.tensor = torch.from_numpy(self.array)

    def forward(self, x):
        self.array[:] = 5
        y = x + self.tensor
        self.tensor.mul_(2)
        return y + self.tensor


def test_an_array_whose_memory_a_tensor_has_too_is_put_back():
    model = ArrayAndTensor()
    history = torcheer.log_forward_pass(model, torch.ones(4))
    assert model.array.tolist() == model.tensor.tolist() == [0, 1, 2, 3]
    assert history["output"].activation.tolist() == [16] * 4
