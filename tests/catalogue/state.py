"""Models that change themselves, what they hold, or what they are given, in every way that a pass can."""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.library import custom_op

from catalogue.entry import Entry, mixed
from models import Buffer, made_of, made_with


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


class Node:
    """Of a circle."""

    def __init__(self, following=None):
        self.following, self.layers = following or self, []


class Odd:
    @property
    def __dict__(self):
        raise RuntimeError("not to be read")


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


@made_with(calls=lambda: 0, seen=list, inner=lambda: nn.Sequential(nn.BatchNorm1d(3)))
def Tally(self, t):
    """A module that counts in every way."""
    self.calls += 1
    self.seen.append(t)
    self.seen_last = t
    self.inner.register_forward_hook(lambda *_: None)
    return self.inner(t).sum().detach()


# What a model holds, and what it does with it when it runs.
HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "module in a list": (lambda: [Tally()], lambda m: m[0](mixed())),
    "module in a method": (lambda: Tally().forward, lambda f: f(mixed())),
    "module in a module in a list": (lambda: [nn.ModuleDict({"a": Tally()})], lambda m: m[0].eval()["a"](mixed())),
    "numpy generator": (lambda: np.random.default_rng(0), lambda g: g.random()),
    "numpy state": (lambda: np.random.RandomState(0), lambda g: g.rand()),
    "bit generator": (lambda: np.random.PCG64(0), lambda g: np.random.Generator(g).random()),
    "python generator": (lambda: random.Random(0), lambda g: g.random()),
    "torch generator": (torch.Generator, lambda g: torch.rand(1, generator=g).item()),
    "generators in a list": (lambda: [random.Random(0)], lambda g: g[0].random()),
    "torch generators in a dict": (lambda: {"a": [torch.Generator()]}, lambda g: torch.rand(1, generator=g["a"][0]).item()),
    "array": (lambda: np.zeros((2, 3)), change_array),
    "array of a strided view": (lambda: np.zeros((4, 6))[::2, ::2], change_array),
    "array of one number": (lambda: np.zeros(()), change_array),
    "empty array": (lambda: np.zeros((0, 3)), change_array),
    "array with a hole": (lambda: np.array([np.nan, 1]), lambda a: a.__setitem__(1, 3)),
    "array of objects": (lambda: np.array([[1], "a"], dtype=object), lambda a: a.__setitem__(1, 3)),
    "arrays in a dict": (lambda: {"a": np.zeros(3)}, lambda a: change_array(a["a"])),
    "nested containers": (nested, change_nested),
    "counter": (lambda: collections.Counter("aab"), lambda c: c.update("bc")),
    "ordered": (lambda: collections.OrderedDict(a=1, b=2), change_ordered),
    "default": (lambda: collections.defaultdict(list), lambda d: d["a"].append(1)),
    "object": (Memory, change_memory),
    "object in a list": (lambda: [Memory()], lambda m: change_memory(m[0])),
    "objects in a circle": (lambda: Node(Node()), lambda node: node.following.layers.append(1)),
    "object that cannot be read": (lambda: [Odd(), [1]], lambda value: value[1].append(2)),
    "slots": (Slotted, change_slotted),
    "frozen": (lambda: Frozen([1]), lambda f: f.items.append(2)),
    "method": (lambda: Memory().layers.append, lambda f: f(1)),
    "partial": (lambda: functools.partial(torch.rand, 1, generator=torch.Generator()), lambda f: f().item()),
    "bytes": (lambda: bytearray(b"ab"), lambda b: b.extend(b"c")),
    "iterator of a list": (lambda: iter([2.0, 3.0, 4.0]), next),
    "iterator of a tuple": (lambda: iter((2.0, 3.0)), next),
    "iterator of a range": (lambda: iter(range(2, 5)), next),
    "attribute": (lambda: 1, lambda value: None),
}


def does_with_what_it_holds(self, t):
    self.calls += 1
    self.calls_last, self.before = self.calls, self.after
    del self.after
    return t + float(self.change(self.value) or 0)


# What holds a tensor, and how to get it from there.
TENSOR_HELD: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda t: (t,), lambda held: held[0]),
    "tuples": (lambda t: ((1, (t,)),), lambda held: held[0][1][0]),
    "named tuple": (collections.namedtuple("One", "t"), lambda held: held.t),
    "tuple in a list": (lambda t: [(t,)], lambda held: held[0][0]),
    "frozenset": (lambda t: frozenset([t]), lambda held: next(iter(held))),
    "slots": (lambda t: OneSlot(t), lambda held: held.tensor),
    "partial": (lambda t: functools.partial(print, t), lambda held: held.args[0]),
    "list": (lambda t: [t], lambda held: held[0]),
    "object": (lambda t: types.SimpleNamespace(t=t), lambda held: held.t),
}


class OneSlot:
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


def run_backward_to(held, t):
    if not torch.is_inference_mode_enabled():
        held.requires_grad_()
        with torch.enable_grad():
            (held * t.detach()).sum().backward()
    held.seen = True


def give_another_buffer(held, t):
    held.data = t.detach() * 2
    held.seen = True


def does_with_a_tensor(does, get):
    def forward(self, t):
        does(get(self.held), t)
        return get(self.held) * t

    return forward


def switch_input(self, t):
    return self.fc(t.requires_grad_())


def assign_flag(self, t):
    t.requires_grad = True
    self.fc.weight.requires_grad = False
    return self.fc(t)


def freeze(self, t):
    self.requires_grad_(False)
    self.plain.requires_grad_()
    return self.fc(t) + self.plain


def write_input(self, t):
    return self.fc(t.mul_(self.fc.weight[0]))


def write_buffer(self, t):
    self.memory += self.fc(t)
    return self.memory * 2


def write_plain(self, t):
    self.plain.copy_(self.fc(t))
    return self.plain


def write_and_switch(self, t):
    t.mul_(self.fc.weight[0])
    self.plain.requires_grad_()
    self.memory.requires_grad_()
    self.memory.data.add_(1)
    return self.fc(t) + self.plain + self.memory


def detach_parameter(self, t):
    self.fc.weight.detach_()
    return self.fc(t)


def hook_tensors(self, t):
    self.fc.weight.register_hook(lambda gradient: gradient * 2)
    self.fc.bias.register_post_accumulate_grad_hook(lambda tensor: None)
    return self.fc(t)


def hook_modules(self, t):
    self.fc.register_forward_hook(lambda *a: None)
    return self.fc(t)


def swap_parameter(self, t):
    self.fc.weight.data = torch.zeros(3, 3)
    return self.fc(t)


def run_backward(self, t):
    if not torch.is_inference_mode_enabled():
        with torch.enable_grad():
            self.fc(t).sum().backward()
    return self.fc(t)


def give_memory_and_write(self, t):
    self.memory.data = self.memory.data * 2
    self.memory.add_(1)
    self.plain.add_(1)
    return self.fc(t) * self.memory


def write_part(self, t):
    self.memory[:2].zero_()
    self.plain[0] = 3.0
    return self.fc(t) * self.memory


def empty_the_storage(self, t):
    row = self.memory[0]
    y = t + row
    self.memory.untyped_storage().resize_(0)
    return y


def register_unlike_before(self, t):
    self.register_buffer("memory", self.memory * 2, persistent="memory" in self._non_persistent_buffers_set)
    return self.fc(t) * self.memory


def delete_and_register(self, t):
    memory = self.memory
    del self.memory
    self.register_buffer("memory", memory, persistent=True)
    return self.fc(t) * self.memory


def replace_the_registries(self, t):
    self._buffers = dict(self._buffers)
    self.fc._parameters = {name: nn.Parameter(torch.full(one.shape, 0.5)) for name, one in self.fc._parameters.items()}
    return self.fc(t) * self.memory


def hook_backward(self, t):
    self.fc.register_full_backward_hook(lambda module, given, made: None)
    self.fc.register_forward_hook(lambda module, args, kwargs, made: None, with_kwargs=True, always_call=True)
    self.fc.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)
    return self.fc(t) * self.memory


def put_attributes_on_tensors(self, t):
    self.fc.weight.tags.append("the pass's")
    for tensor in (self.fc.weight, self.fc.bias, self.memory, self.plain, t):
        tensor.seen = True
    return self.fc(t) * self.memory


def with_parts(forward, persistent=True):
    made = made_of(
        forward, fc=nn.Linear(3, 3), memory=Buffer(torch.zeros(4, 3), persistent=persistent), plain=torch.zeros(4, 3)
    )
    made.fc.weight.tags = ["mine"]
    made.fc.weight.grad = torch.ones(3, 3)
    return made


WRITES = (
    *(switch_input, assign_flag, freeze, write_input, write_buffer, write_plain, write_and_switch, detach_parameter),
    *(hook_tensors, hook_modules, swap_parameter, run_backward, give_memory_and_write, write_part, empty_the_storage),
)
CHANGES = (register_unlike_before, delete_and_register, replace_the_registries, hook_backward, put_attributes_on_tensors)


class Stubborn(nn.Module):
    """Refuses attributes, and holds containers that refuse to be emptied or filled."""

    class Items(dict):
        def clear(self):
            raise RuntimeError("not to be cleared")

        def update(self, *args, **kwargs):
            raise RuntimeError("not to be updated")

        def __setitem__(self, key, value):
            raise RuntimeError("not to be set")

    class Sequence(list):
        def clear(self):
            raise RuntimeError("not to be cleared")

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.items, self.sequence = Stubborn.Items(a=1), Stubborn.Sequence([1])
        self.counter, self.ordered = collections.Counter("aab"), collections.OrderedDict(a=1, b=2)
        self.closed = True

    def __setattr__(self, name, value):
        if getattr(self, "closed", False):
            raise AttributeError("closed")
        super().__setattr__(name, value)

    def forward(self, t):
        dict.__setitem__(self.items, "b", 2)
        self.sequence.append(2)
        self.counter.update("bc")
        self.ordered.move_to_end("a")
        self.__dict__["more"] = 1
        torch.rand(3), random.random()
        return self.norm(t)


class Early(nn.Module):
    def __init__(self):
        self.early = 1  # allowed, and moves nn.Module's own attributes from their usual place
        super().__init__()
        self.late = []

    def forward(self, t):
        self.early, self.late = 2, [t]
        self.eval()
        return t + 1


class SlottedModule(nn.Module):
    """A module with state in slots, which its `__dict__` does not show."""

    __slots__ = ("count", "seen", "unset")

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.count, self.seen = 0, [1.0]

    def forward(self, t):
        self.count += 1
        self.seen.append(2.0)
        self.unset = self.count
        return self.fc(t) * sum(self.seen)


class CallableObject:
    def __init__(self):
        self.net, self.calls, self.seen = nn.Linear(3, 3), 0, []

    def __call__(self, t):
        self.calls += 1
        self.seen.append(t)
        return self.net(t)

    def run(self, t):
        return self(t) * 2


class Counting(nn.Module):
    """What TorchScript can compile and counts in."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("total", torch.zeros(3))
        self.count, self.seen, self.last = 0, [1], torch.zeros(1)

    def forward(self, t):
        self.count += 1
        self.seen.append(2)
        self.last = self.last + 1
        self.total.add_(1)
        return self.norm(t)


class Learner(nn.Module):
    """Takes a step of its own optimizer."""

    def __init__(self, **options):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.optimizer = torch.optim.Adam(self.fc.parameters(), 0.1, **options)

    def forward(self, t):
        self.optimizer.zero_grad()
        loss = self.fc(t).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


def trained(**options):
    with torch.inference_mode(False), torch.enable_grad():
        model = Learner(**options)
        model(mixed())
    return model


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.jit.save(model, file)
    file.seek(0)
    return torch.jit.load(file)


def traced():
    return torch.jit.trace(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).train(), mixed(), check_trace=False)


@custom_op("torcheer_tests::count_up", mutates_args={"counter"})
def count_up(t: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    counter.add_(1)
    return t * 2


class Counted(torch.autograd.Function):
    calls = torch.zeros(1)

    @staticmethod
    def forward(ctx, t, counter):
        counter.add_(1)
        Counted.calls.add_(1)
        return t * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def counted_by(call):
    return made_of(
        lambda self, t: call(call(t, self.counter), self.plain),
        counter=Buffer(torch.zeros(1)),
        plain=torch.zeros(1),
        calls=Counted.calls,
    )


def write_behind_an_expanded_buffer(self, t):
    y = t + self.many
    self.one.add_(1)
    return y + self.many


def expanded_buffer():
    one = torch.rand(1, 3)
    return made_of(write_behind_an_expanded_buffer, one=Buffer(one), many=Buffer(one.expand(4, 3)))


def write_overlapping_parts(self, t):
    self.first.mul_(2)
    self.second.add_(1)
    return t + self.first.sum() + self.second.sum()


def overlapping_buffers():
    whole = torch.rand(8)
    return made_of(write_overlapping_parts, first=Buffer(whole[:5]), second=Buffer(whole[2:]), whole=whole)


def write_what_is_viewed(self, t):
    self.count.add_(1)
    with torch.no_grad():
        self.weight.mul_(2)
    return (t @ self.weight.t()).sum() + (t * self.views[0]).sum() + self.views[1].sum()


def viewed_before():
    weight, count = nn.Parameter(torch.rand(4, 3)), torch.rand(4)
    return made_of(write_what_is_viewed, weight=weight, count=Buffer(count), views=[weight.data[0], count[1:]])


def write_array_and_tensor(self, t):
    self.array[:] = 5
    y = t + self.tensor
    self.tensor.mul_(2)
    return y + self.tensor


def array_and_tensor():
    array = np.arange(3, dtype=np.float32)
    return made_of(write_array_and_tensor, array=array, tensor=torch.from_numpy(array))


def register_in_the_first_pass(self, t):
    """The dictionaries of parameters, buffers and modules were empty."""
    self.register_buffer("mask", torch.ones(3))
    self.register_parameter("weight", nn.Parameter(torch.ones(3)))
    self.inner = nn.Linear(3, 3)
    return self.inner(t * self.mask * self.weight)


def write_into_the_given(value):
    value["list"][0].mul_(2)
    value["list"][1][0] = 7
    value["list"].append(torch.zeros(1))
    value["nested"]["b"] = 2
    return value["list"][0] + 1


def fill_the_given(t, memory):
    change_memory(memory["a"][0])
    return t + 1


class Uncopyable(Memory):
    def __deepcopy__(self, memo):
        raise RuntimeError("not to be copied")


SHARED = torch.Generator()


def draw_from_many():
    SHARED.manual_seed(5)
    own, listed, other = random.Random(0), [torch.Generator()], np.random.default_rng(0)

    def model(t, other=other):
        drawn = own.random() + other.random()
        return t + drawn + torch.rand(3, generator=SHARED) + torch.rand(3, generator=listed[0])

    return model


def closing_over_a_tensor():
    memory = torch.zeros(3)

    def model(t):
        memory.add_(t.sum(0))
        return t + memory

    return model


def normed():
    return made_of(lambda self, t: self.norm(t) + torch.rand(3), norm=nn.BatchNorm1d(3))


def read_only() -> Tensor:
    array = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    array.flags.writeable = False
    return torch.from_numpy(array)


def two_of_one_memory() -> tuple[Tensor, Tensor]:
    base = torch.rand(1, 3)
    return base, base.expand(4, 3)


def multiply_one(one, other):
    one.mul_(2)
    return one + other


ALIKE = {
    **{
        f"holds {name}": Entry(
            lambda make=make, change=change: made_of(
                does_with_what_it_holds, value=make(), change=change, calls=0, after=Memory()
            )
        )
        for name, (make, change) in HELD.items()
    },
    **{
        f"tensor in a {name}, {does.__name__}": Entry(
            lambda make=make, get=get, does=does: made_of(does_with_a_tensor(does, get), held=make(torch.zeros(4, 3)))
        )
        for (name, (make, get)), does in itertools.product(TENSOR_HELD.items(), (run_backward_to, give_another_buffer))
    },
}  # but for what they hold: what is logged of one is logged of all

ENTRIES = {
    **ALIKE,
    **{one.__name__.replace("_", " "): Entry(lambda one=one: with_parts(one)) for one in WRITES + CHANGES},
    **{
        f"{one.__name__.replace('_', ' ')}, not persistent": Entry(lambda one=one: with_parts(one, persistent=False))
        for one in CHANGES
    },
    "stubborn": Entry(Stubborn),
    "attributes from before its init": Entry(Early),
    "modules with slots": Entry(lambda: nn.Sequential(SlottedModule(), SlottedModule())),
    "callable object": Entry(CallableObject),
    "method of a callable object": Entry(lambda: CallableObject().run),
    "scripted": Entry(lambda: torch.jit.script(Counting())),
    "scripted, saved and loaded": Entry(lambda: saved_and_loaded(torch.jit.script(Counting()))),
    "traced": Entry(traced),
    "scripted and traced inside": Entry(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Sequential(torch.jit.script(Counting())), traced())
    ),
    "learner": Entry(Learner),
    "learner that has learned": Entry(lambda: trained()),
    "learner by foreach": Entry(lambda: trained(foreach=True)),
    "custom operator that counts": Entry(lambda: counted_by(count_up)),
    "custom function that counts": Entry(lambda: counted_by(Counted.apply)),
    "expanded buffer": Entry(expanded_buffer),
    "overlapping buffers": Entry(overlapping_buffers),
    "views from before": Entry(viewed_before),
    "array and tensor on one memory": Entry(array_and_tensor),
    "registers in its first pass": Entry(lambda: made_of(register_in_the_first_pass)),
    "writes into what it is given": Entry(
        lambda: write_into_the_given, lambda: {"list": [torch.rand(3), torch.rand(3)], "nested": {"a": 1}}
    ),
    "fills what it is given": Entry(lambda: fill_the_given, lambda: (mixed(), {"a": [Memory()]})),
    "fills what cannot be copied": Entry(lambda: fill_the_given, lambda: (mixed(), {"a": [Uncopyable()]})),
    "generators of a closure": Entry(draw_from_many),
    "tensor of a closure": Entry(closing_over_a_tensor),
    "model as an argument": Entry(lambda: lambda model, t: model(t), lambda: (normed(), mixed())),
    "given an expanded tensor": Entry(normed, lambda: torch.rand(1, 3).expand(4, 3)),
    "given overlapping memory": Entry(normed, lambda: torch.rand(8).as_strided((4, 3), (1, 1))),
    "given every other element": Entry(normed, lambda: torch.rand(8, 6)[::2, ::2]),
    "given what is read-only": Entry(normed, read_only),
    "given two of one memory": Entry(lambda: multiply_one, two_of_one_memory),
    "given a part and all of an expanded tensor": Entry(
        lambda: multiply_one, lambda: (lambda view: (view[:1], view))(torch.rand(1, 3).expand(4, 3))
    ),
    "given an iterator": Entry(lambda: lambda t, numbers: t * sum(numbers), lambda: (mixed(), iter([1, 2, 3]))),
}
