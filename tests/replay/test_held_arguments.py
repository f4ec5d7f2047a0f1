"""Arguments that the model holds as well, or that share memory with what it holds: the log is right, and proved."""

from __future__ import annotations

import itertools
import types
from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import Tensor, nn

import torcheer
from promises import assert_logged_as_it_runs

x = torch.rand(3)


@dataclass
class Fields:
    k: object = None


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k=None):
        self.k = k


Pair = namedtuple("Pair", "n k")


class Named(OrderedDict):
    """A dictionary whose items are attributes, too, as results of transformers are."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        super().__setitem__(name, value)


def with_k(made):
    made.k = torch.zeros(3)
    return made


# How to make something that holds a tensor, how to put another one in, and how to get it.
OBJECT = (lambda held, t: setattr(held, "k", t)), (lambda held: held.k)
ITEM = (lambda held, t: held.__setitem__("k", t)), (lambda held: held.get("k", torch.zeros(3)))
FIRST = (lambda held, t: held.__setitem__(0, t)), (lambda held: held[0])
HELD = {
    "dict": (lambda: {"k": torch.zeros(3)}, *ITEM),
    "empty dict": (dict, *ITEM),
    "UserDict": (lambda: UserDict(k=torch.zeros(3)), *ITEM),
    "list": (lambda: [torch.zeros(3)], *FIRST),
    "deque": (lambda: deque([torch.zeros(3)]), *FIRST),
    "object": (lambda: with_k(types.SimpleNamespace()), *OBJECT),
    "dataclass": (lambda: Fields(torch.zeros(3)), *OBJECT),
    "slots": (lambda: with_k(Slotted()), *OBJECT),
    "dict with attributes": (lambda: with_k(Named()), *OBJECT),
    "nested": (
        lambda: {"layers": [with_k(Slotted())]},
        lambda held, t: setattr(held["layers"][0], "k", t),
        lambda held: held["layers"][0].k,
    ),
    "named tuple": (lambda: Pair(1, torch.zeros(3)), lambda held, t: held.k.copy_(t), lambda held: held.k.clone()),
    "slots with a tuple": (
        lambda: Slotted((torch.zeros(3),)),
        lambda held, t: held.k[0].copy_(t),
        lambda held: held.k[0].clone(),
    ),
    "many": (
        lambda: [[torch.zeros(3)] for _ in range(300)],
        lambda held, t: held[7].__setitem__(0, t),
        lambda held: held[7][0],
    ),
    "array": (
        lambda: numpy.zeros(3, numpy.float32),
        lambda held, t: held.__setitem__(slice(None), t.detach().numpy()),
        torch.as_tensor,
    ),
}


class Model(nn.Module):
    """Writes through what it holds, reads what it was given, and the other way round."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        make, self.put, self.get = HELD[kind]
        self.held = make()

    def forward(self, t: Tensor, given: object, *rest: object, name: object = None) -> tuple[Tensor, ...]:
        given = name if given is None else given[0] if type(given) is tuple else given
        self.put(self.held, t * 2)
        first = self.get(given) + 1
        self.put(given, t * 3)
        return first, self.get(self.held) * t


@pytest.mark.parametrize("how", ["alone", "in a tuple", "by name", "beside an iterator"])
@pytest.mark.parametrize("kind", sorted(HELD))
def test_an_argument_that_is_an_attribute_of_the_model_is_the_same_object_in_the_log(kind, how):
    def make():
        model = Model(kind)
        if how == "by name":
            return model, (x, None), {"name": model.held}
        given = (model.held,) if how == "in a tuple" else model.held
        return model, (x, given, *([iter([1])] if how == "beside an iterator" else [])), {}

    assert_logged_as_it_runs(make)


SHARED = {"k": torch.zeros(3)}
NOTHING = type("Nothing", (), {})()


def test_a_tensor_that_is_a_variable_of_the_program_is_put_back():
    closed = torch.zeros(3)

    def model(t, given):
        closed.copy_(t * 2)
        return given + t

    assert torcheer.validate_forward_pass(model, (x, closed))
    assert torch.equal(closed, torch.zeros(3))


def test_an_argument_that_is_a_variable_of_the_program_is_the_same_object_in_the_log():
    closed = [torch.zeros(3)]

    def model(t, given, others, marker):
        SHARED["k"], closed[0] = t * 2, t * 3
        return given["k"] + others[0], t * (marker is NOTHING)

    history = torcheer.log_forward_pass(model, (x, SHARED, closed, NOTHING))
    assert torch.equal(history.outputs[0].activation, x * 2 + x * 3)
    assert torch.equal(history.outputs[1].activation, x)
    assert torcheer.validate_forward_pass(model, (x, SHARED, closed, NOTHING))
    assert torch.equal(SHARED["k"], torch.zeros(3))
    assert torch.equal(closed[0], torch.zeros(3))


@pytest.mark.parametrize("fails", [True, False])
def test_arguments_are_put_back_as_they_were(fails):
    class Given:
        def __init__(self):
            self.deep = {"list": [1, {2}], "named": Named(a=1)}
            self.same = self.deep["list"]

    def model(t, given, *more):
        given.deep["list"].append(t)
        given.same[1].add(3)
        given.deep["named"].k = t
        del given.deep["named"]
        given.new = t
        more[0].clear()
        if fails:
            raise ValueError("on the way")
        return t * 2

    given, listed = Given(), [1, 2]
    deep, same, named = given.deep, given.same, given.deep["named"]
    if fails:
        with pytest.raises(ValueError, match="on the way"):
            torcheer.log_forward_pass(model, (x, given, listed))
    else:
        assert torcheer.validate_forward_pass(model, (x, given, listed))
    assert given.deep is deep
    assert given.same is same is deep["list"]
    assert same == [1, {2}]
    assert deep["named"] is named
    assert dict(named) == {"a": 1}
    assert not hasattr(named, "k")
    assert not hasattr(given, "new")
    assert listed == [1, 2]


def test_an_iterator_among_the_arguments_is_not_consumed():
    def model(t, numbers):
        return t * sum(numbers)

    numbers = iter([1, 2, 3])
    assert torcheer.validate_forward_pass(model, (x, numbers))
    assert list(numbers) == [1, 2, 3]


# Iterators ------------------------------------------------------------------------------------------------------------


class Reading(nn.Module):
    """Reads on in an iterator that it holds, or is given, and puts what it reads into a list."""

    def __init__(self, values=()):
        super().__init__()
        self.values, self.list = values, [torch.zeros(3)]

    def forward(self, t, given=None):
        if isinstance(given, dict):
            given["list"].append(next(given["values"]))
            return t + self.list[-1]
        return t * next(self.values) + (0 if given is None else next(given))


MADE = {"list": lambda: iter([2.0, 3.0, 4.0]), "tuple": lambda: iter((2.0, 3.0, 4.0)), "range": lambda: iter(range(2, 5))}


@pytest.mark.parametrize("kind", MADE)
def test_an_iterator_that_the_model_holds_is_where_it_was(kind):
    model = Reading(MADE[kind]())
    history = torcheer.log_forward_pass(model, x)
    assert torch.equal(history["output"].activation, x * 2)
    assert torcheer.validate_forward_pass(model, x)
    assert list(model.values) == [2, 3, 4]


def test_an_iterator_that_the_model_holds_and_is_given_is_one_iterator():
    model = Reading(iter([2.0, 3.0, 4.0, 5.0]))
    assert torch.equal(torcheer.log_forward_pass(model, (x, model.values))["output"].activation, x * 2 + 3)
    assert torcheer.validate_forward_pass(model, (x, model.values))
    assert list(model.values) == [2, 3, 4, 5]


def test_an_iterator_that_cannot_be_taken_back_is_named():
    for values in (itertools.count(2), iter([2.0])):
        model = Reading(values)
        model.register_forward_hook(lambda module, args, out: next(module.values, None) and None)
        with pytest.warns(torcheer.StateNotRestored, match="'values'.*advanced an iterator"):
            torcheer.log_forward_pass(model, x)


@pytest.mark.parametrize("is_closure", [True, False])
def test_what_is_given_beside_an_iterator_is_what_the_model_holds(is_closure):
    model = Reading()
    held, model.list = [torch.zeros(3)], [torch.zeros(3)]

    def function(t, given):
        given["list"].append(next(given["values"]))
        return t + held[-1]

    called, given = (function, held) if is_closure else (model, model.list)
    values = iter([x * 3, x * 4])
    history = torcheer.log_forward_pass(called, (x, {"list": given, "values": values}))
    assert torch.equal(history["output"].activation, x + x * 3)
    assert torcheer.validate_forward_pass(called, (x, {"list": given, "values": values}))
    assert len(given) == 1
    assert torch.equal(next(values), x * 3)


@pytest.mark.parametrize(
    "call", [torcheer.validate_forward_pass, lambda model, args: torcheer.compare_models(model, model, args)]
)
@pytest.mark.parametrize("nest", [lambda one: one, lambda one: {"values": [one]}, lambda one: map(float, one)])
def test_what_can_be_read_only_once_is_refused_where_a_model_runs_several_times(call, nest):
    with pytest.raises(torcheer.InvalidArgument, match="can be read only once"):
        call(lambda t, given: t, (x, nest(value for value in range(9))))


# Parts of what the model holds ----------------------------------------------------------------------------------------


class Parts(nn.Module):
    """A buffer, a parameter or an attribute, and an attribute that is a part of its memory."""

    def __init__(self, kind, part):
        super().__init__()
        whole = torch.arange(6.0).view(2, 3)
        if kind == "buffer":
            self.register_buffer("whole", whole)
        else:
            self.whole = whole if kind == "attribute" else nn.Parameter(whole, requires_grad=False)
        self.part = PARTS[part](self.whole.detach())
        self.fc = nn.Linear(3, 3)


PARTS = {"row": lambda t: t[0], "rows": lambda t: t[1:], "transposed": lambda t: t.t(), "the same": lambda t: t.view(2, 3)}


def write_part(model, t, part):
    with torch.no_grad():
        part.mul_(2)
    return model.fc(t) + model.whole.sum() * t


def write_whole(model, t, part):
    with torch.no_grad():
        model.whole.add_(1)
    return model.fc(t) * part.sum()


def write_both(model, t, part):
    with torch.no_grad():
        model.whole[1:].copy_(t)
        part.mul_(3)
        model.whole.mul_(2)
    return (model.whole @ t) * part.sum()


@pytest.mark.parametrize("kind", ["buffer", "frozen", "attribute"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("writes", [write_part, write_whole, write_both], ids=lambda f: f.__name__)
@pytest.mark.parametrize("is_given", [True, False])
def test_a_part_of_what_the_model_holds_shares_its_memory_in_the_proof(kind, part, writes, is_given, tmp_path):
    def make():
        model = Parts(kind, part)
        model.forward = lambda t, given=None: writes(model, t, model.part if given is None else given)
        return model, (x, model.part) if is_given else (x,), {}

    history = assert_logged_as_it_runs(make)
    history.save(tmp_path / "run.safetensors", params=True)
    assert torcheer.load(tmp_path / "run.safetensors").validate()


def test_an_attribute_that_is_a_row_of_a_buffer_comes_from_the_buffer():
    model = Parts("buffer", "row")
    model.forward = lambda t: t * model.part
    history = torcheer.log_forward_pass(model, x)
    assert [layer.layer_type for layer in history] == ["input", "alias", "mul", "output"]
