"""What a value contains: children and rebuild, and the finding, templates and paths made of them."""

import collections
import dataclasses
import functools
import types
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree

import torcheer
from models import made_of
from torcheer._torch.containers import (
    Attribute,
    Nth,
    Other,
    children,
    find_tensors,
    format_path,
    get_path,
    rebuild,
    replace_tensors,
    shares_no_container,
)
from torcheer._torch.sentinels import TENSOR
from torcheer.log.templates import blank, fill, outline, slot_paths, template
from torcheer.replay.walk import tensors_of

Pair = namedtuple("Pair", "left right")


class NamedList(list):
    name = "none"


class Keyed(dict):
    """A dictionary whose constructor does not take one."""

    def __init__(self, one, two):
        super().__init__(one=one, two=two)


class Triple(tuple):
    pass


class Tags(frozenset):
    pass


class Window(deque):
    pass


@dataclasses.dataclass
class Record:
    x: object
    y: object = 1
    z: object = dataclasses.field(init=False, default=None)

    def __post_init__(self):
        self.z = "made by __post_init__"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object
    y: object = 1


@dataclasses.dataclass(slots=True)
class Slotted:
    x: object
    y: object = 1


class Registered:
    def __init__(self, one, two, name):
        self.parts, self.name = (one, two), name


_pytree.register_pytree_node(
    Registered,
    lambda value: (list(value.parts), value.name),
    lambda items, name: Registered(*items, name),
    serialized_type_name="tests.Registered",
)


class Borrowing(Mapping):
    """A mapping that keeps the very dictionary it is given."""

    def __init__(self, held):
        self.held = held

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class Copying(Borrowing):
    """A mapping whose items are in no attribute of their own."""

    def __init__(self, held):
        super().__init__([(key, item) for key, item in dict(held).items()])

    def __getitem__(self, key):
        return dict(self.held)[key]

    def __iter__(self):
        return iter(dict(self.held))


class Row(Sequence):
    def __init__(self, items):
        self.items = tuple(items)

    def __getitem__(self, index):
        return self.items[index]

    def __len__(self):
        return len(self.items)


class Cache:
    """A plain object with attributes and slots."""

    __slots__ = ("__dict__", "__private", "keys")

    def __init__(self, keys, values):
        self.keys, self.values, self.__private = keys, values, values

    @property
    def computed(self):
        raise AssertionError("a property was run")

    def __getattr__(self, name):
        raise AssertionError(f"__getattr__({name!r}) was run")


def named_list(items):
    made = NamedList(items)
    made.name = "mine"
    return made


def model_output(one, two):
    from transformers.modeling_outputs import BaseModelOutputWithPast

    return BaseModelOutputWithPast(last_hidden_state=one, hidden_states=(two,))


def batch_encoding(one, two):
    from transformers import BatchEncoding

    return BatchEncoding({"input_ids": one, "mask": [two]})


MAKERS = {
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "named tuple": Pair,
    "tuple subclass": lambda a, b: Triple((a, b, 3)),
    "list subclass": lambda a, b: named_list([a, b]),
    "dict": lambda a, b: {"a": a, 2: b},
    "dict subclass": Keyed,
    "ordered": lambda a, b: OrderedDict(x=a, y=b),
    "default": lambda a, b: defaultdict(list, x=a, y=b),
    "user dict": lambda a, b: UserDict(x=a, y=b),
    "user list": lambda a, b: UserList([a, b]),
    "batch encoding": batch_encoding,
    "model output": model_output,
    "proxy": lambda a, b: types.MappingProxyType({"a": a, "b": b}),
    "deque": lambda a, b: deque([a, b], maxlen=2),
    "deque subclass": lambda a, b: Window([a, b]),
    "dict values": lambda a, b: {1: a, 2: b}.values(),
    "slice": lambda a, b: slice(a, b),
    "dataclass": Record,
    "frozen dataclass": Frozen,
    "slotted dataclass": Slotted,
    "registered": lambda a, b: Registered(a, b, "name"),
    "user mapping": lambda a, b: Borrowing({"a": a, "b": b}),
    "constructed mapping": lambda a, b: Copying({"a": a, "b": b}),
    "user sequence": lambda a, b: Row([a, b]),
}
HASHABLE_MAKERS = {
    "set": lambda a, b: {a, b},
    "frozen set": lambda a, b: frozenset((a, b)),
    "frozen set subclass": lambda a, b: Tags((a, b)),
}


def same(one, other):
    """Whether two nested values are of the same classes and hold the same leaves. Knows each class by itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one is other
    if isinstance(one, (set, frozenset)):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    if isinstance(one, slice):
        return same((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one) and same_attributes(one, other)
    if isinstance(one, (list, tuple, deque)):
        is_same = len(one) == len(other) and all(map(same, one, other)) and same_attributes(one, other)
        return is_same and getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
    if isinstance(one, type({}.values())):
        return same(list(one), list(other))
    if isinstance(one, types.MappingProxyType):
        return same(dict(one), dict(other))
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if hasattr(one, "__dict__"):
        return same_attributes(one, other)
    return one == other


def same_attributes(one, other):
    stored, others = getattr(one, "__dict__", {}), getattr(other, "__dict__", {})
    return list(stored) == list(others) and all(same(stored[name], others[name]) for name in stored)


plain = st.one_of(
    st.none(), st.integers(), st.text(max_size=3), st.booleans(), st.just(...), st.just(torch.float32), st.just(TENSOR[1:])
)
tensors = st.builds(lambda n: torch.full((n,), float(n)), st.integers(0, 3))


def nested(inner):
    makers = [st.builds(make, inner, inner) for make in MAKERS.values()]
    return st.one_of(*makers, *(st.builds(make, tensors, st.text(max_size=2)) for make in HASHABLE_MAKERS.values()))


values = st.recursive(st.one_of(tensors, plain), nested, max_leaves=25)


@settings(max_examples=150, deadline=None)
@given(values)
def test_a_container_rebuilt_from_its_own_children_is_the_same(value):
    """Of every container in a nested value: rebuilt from its children it has the same class and holds the same."""
    waiting = [value]
    while waiting:
        here = waiting.pop()
        found = children(here)
        if found is not None:
            made = rebuild(here, found)
            assert same(made, here)
            assert made is not here
            waiting += [item for _, item in found]


@settings(max_examples=150, deadline=None)
@given(values)
def test_a_filled_template_is_the_value_again(value):
    """A template holds no tensor, has a slot for each, and filled with them it is the value again."""
    seen = []
    made = template(value, seen.append)
    assert not list(find_tensors(made))
    assert len(slot_paths((made,), None)) == len(seen)
    assert same(fill(made, iter(seen)), value)
    assert not list(find_tensors(blank(made, "·")))


@settings(max_examples=150, deadline=None)
@given(values)
def test_paths_lead_to_the_tensors(value):
    """Each path leads to its tensor, the slots of a template are at the same paths, and all tensors are found."""
    found = list(find_tensors(value))
    for path, tensor in found:
        assert get_path(value, path) is tensor
        assert isinstance(format_path(path, "args"), str)
    seen = []
    made = template([value], seen.append)
    assert list(map(id, seen)) == [id(tensor) for _, tensor in found]
    assert slot_paths(tuple(made), None) == [(0, *path) for path, _ in found]


@settings(max_examples=150, deadline=None)
@given(values)
def test_the_validator_finds_the_same_tensors_by_itself(value):
    """Two walks that share no code find the same tensors, in the same order but for members of sets."""
    ours = [id(tensor) for _, tensor in find_tensors(value, into_objects=False)]
    theirs = [id(tensor) for tensor in tensors_of(value)]
    assert Counter(ours) == Counter(theirs)
    assert len(ours) == len(theirs)


@settings(max_examples=100, deadline=None)
@given(values)
def test_a_copy_of_arguments_has_the_same_tensors_and_containers_of_its_own(value):
    """What a model does to the lists and dictionaries it is given does not reach the user's."""
    (copied,), _ = shares_no_container(((value,), {}))
    assert same(copied, value)
    mine = {id(here) for here in mutable_containers(value)}
    assert not mine & {id(here) for here in mutable_containers(copied)}


def mutable_containers(value):
    waiting, found = [value], []
    while waiting:
        here = waiting.pop()
        if isinstance(here, (list, dict, deque, set, UserDict, UserList, Record, Slotted)):
            found.append(here)
        waiting += [item for _, item in children(here) or ()]
    return found


@pytest.mark.parametrize("kind", [*MAKERS, *HASHABLE_MAKERS])
def test_every_kind_of_container_is_looked_into_and_rebuilt(kind):
    make = {**MAKERS, **HASHABLE_MAKERS}[kind]
    a, b = torch.ones(1), torch.ones(2)
    value = make(a, b)
    assert {id(tensor) for _, tensor in find_tensors(value, into_objects=False)} == {id(a), id(b)}
    seen = []
    made = fill(template(value, seen.append), iter(seen))
    assert len(seen) == 2
    assert same(made, value)
    assert made is not value


def test_what_torch_returns_keeps_its_class_and_names():
    value = torch.max(torch.rand(3, 3), dim=0)
    seen = []
    made = fill(template(value, seen.append), iter(seen))
    assert type(made) is type(value)
    assert made.indices is value.indices
    packed = nn.utils.rnn.pack_sequence([torch.rand(2), torch.rand(1)])
    seen = []
    made = fill(template(packed, seen.append), iter(seen))
    assert type(made) is type(packed)
    assert made.data is packed.data


def test_attributes_of_an_object_are_children_where_asked():
    keys, values = torch.ones(1), torch.ones(2)
    cache = Cache(keys, [values])
    assert children(cache) is None
    found = dict(children(cache, into_objects=True))
    assert found["keys"] is keys
    assert found["values"] is found["_Cache__private"]
    paths = {format_path(path, "cache"): tensor for path, tensor in find_tensors(cache)}
    assert paths == {"cache.keys": keys, "cache._Cache__private[0]": values, "cache.values[0]": values}
    assert all(get_path(cache, path) is tensor for path, tensor in find_tensors(cache))
    made = rebuild(cache, children(cache, into_objects=True))
    assert made.keys is keys
    assert made.values is cache.values


def test_a_cache_of_transformers_is_looked_into():
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), 0)
    assert [format_path(path) for path, _ in find_tensors(cache)] == [".layers[0].keys", ".layers[0].values"]
    assert not list(find_tensors(cache, into_objects=False))


def test_a_class_registered_after_it_was_met_is_looked_into():
    class Late:
        def __init__(self, item):
            self.item = item

    value = Late(torch.ones(1))
    assert children(value) is None
    _pytree.register_pytree_node(
        Late, lambda v: ([v.item], None), lambda items, _: Late(*items), serialized_type_name="tests.Late"
    )
    assert children(value) == [(Nth(0), value.item)]
    assert rebuild(value, children(value)).item is value.item


def test_the_attributes_of_a_model_output_follow_its_items():
    a, b = torch.ones(1), torch.ones(2)
    value = model_output(a, b)
    made = replace_tensors(value, lambda tensor: tensor + 1)
    assert made.last_hidden_state is made["last_hidden_state"]
    assert made.last_hidden_state.item() == 2
    assert made.past_key_values is None
    assert value.last_hidden_state is a


def test_constructors_are_not_run():
    """`__post_init__` would overwrite what the user changed since."""
    value = Record(torch.ones(1))
    value.z = value.x
    made = fill(template(value, lambda tensor: None), iter([value.x, value.x]))
    assert made.z is value.x


def test_fields_that_are_properties_or_not_set_are_not_read():
    @dataclasses.dataclass
    class Computing:
        x: torch.Tensor
        y: torch.Tensor = dataclasses.field(init=False, repr=False)

        @property
        def z(self):
            raise AssertionError("a property was run")

    value = Computing(torch.ones(1))
    assert [step for step, _ in children(value)] == ["x"]
    assert not hasattr(rebuild(value, children(value)), "y")


def test_a_dataclass_that_is_an_exception_is_outlined():
    @dataclasses.dataclass(eq=False)
    class Trouble(Exception):
        x: torch.Tensor

    seen = []
    template(Trouble(torch.ones(1)), seen.append)
    assert len(seen) == 1


def test_a_template_of_a_set_has_a_slot_for_each_tensor():
    a, b = torch.ones(2), torch.ones(2)
    value = {a, (b, "name")}
    seen = []
    made = template(value, seen.append)
    assert len(seen) == 2
    assert repr(made) == "{'<tensor>', ('<tensor>', 'name')}"
    assert fill(made, iter(seen)) == value
    assert repr(blank(made, 0)) == repr(fill(made, iter([0, 0])))


def test_members_of_a_set_are_found_in_the_same_order_every_time():
    """Not in the order of their hashes, which are addresses and differ from run to run."""
    for _ in range(20):
        members = [torch.ones(n) for n in (3, 1, 2)] + ["b", "a", 7, (torch.ones(4), "x")]
        junk = [object() for _ in range(17)]
        found = [tuple(tensor.shape) for _, tensor in find_tensors(set(members))]
        assert found == [(1,), (2,), (3,), (4,)]
        del junk


def test_a_stand_in_is_in_an_outline_where_an_object_was():
    class Config:
        pass

    seen = []
    made = outline([Config(), {"x": torch.ones(1), "f": len}, torch.float32, "text"], seen.append)
    assert type(made[0]) is Other
    assert repr(made) == "[<Config>, {'x': '<tensor>', 'f': <builtin_function_or_method>}, torch.float32, 'text']"
    assert len(seen) == 1


def test_a_mapping_that_keeps_what_it_is_given_is_not_overwritten():
    held = {"a": torch.ones(1)}
    value = Borrowing(held)
    seen = []
    made = template(value, seen.append)
    assert value.held is held
    assert held == {"a": seen[0]}
    assert made.held == {"a": TENSOR}
    assert fill(made, iter(seen)).held == held


def test_shared_inner_dictionaries_stay_as_they_are():
    inner = {"x": torch.ones(1)}
    outer = UserDict()
    outer.data = inner
    for value in ([inner, inner], outer, Record(inner), named_list([inner]), Borrowing(inner)):
        before = inner["x"]
        template(value, lambda tensor: None)
        replace_tensors(value, lambda tensor: tensor * 2)
        shares_no_container(((value,), {}))
        assert inner == {"x": before}


def test_iterators_are_not_consumed():
    t = torch.ones(1)
    makers = [
        lambda: iter([t]),
        lambda: (x for x in [t]),
        lambda: zip([t], strict=True),
        lambda: map(id, [t]),
        lambda: reversed([t]),
    ]
    for make in makers:
        value = make()
        assert not list(find_tensors([value]))
        assert template([value], lambda tensor: None) == [value]
        outline([value], lambda tensor: None)
        assert len(list(value)) == 1


class Odd:
    """An object whose every method raises."""

    def _raise(self, *args):
        raise RuntimeError("not to be called")

    __eq__ = __len__ = __bool__ = __iter__ = __getattr__ = __getitem__ = __contains__ = __str__ = __repr__ = _raise
    __hash__ = object.__hash__


class OddList(Odd, list):
    __hash__ = None


class OddDict(Odd, dict):
    __hash__ = None


class OddTuple(Odd, tuple):
    pass


class OddMapping(Odd, Mapping):
    pass


class OddSequence(Odd, Sequence):
    pass


def test_methods_that_raise_are_not_called_or_do_no_harm():
    a, b = torch.ones(1), torch.ones(2)
    odd = Odd()
    odd.__dict__["held"] = a
    value = [odd, OddList([a]), OddDict(x=b), OddTuple((a, b)), OddMapping(), OddSequence(), {odd}]
    assert [id(t) for _, t in find_tensors(value, into_objects=False)] == [id(a), id(b), id(a), id(b)]
    assert sum(t is a for _, t in find_tensors(value)) == 3
    seen = []
    made = fill(template(value, seen.append), iter(seen))
    assert list.__len__(made[1]) == 1
    assert dict.get(made[2], "x") is b
    assert len(outline(value, lambda tensor: None)) == 7
    shares_no_container(((value,), {}))
    assert len(tensors_of(value)) == 4


def test_a_class_that_is_not_what_it_says_is_what_its_type_says():
    class Lying:
        @property
        def __class__(self):
            raise RuntimeError("asked for its class")

    value = [Lying(), torch.ones(1)]
    assert len(list(find_tensors(value))) == 1
    assert len(template(value, lambda tensor: None)) == 2
    assert len(tensors_of(value)) == 1


def test_reading_a_container_is_not_recorded():
    class Lazy(Mapping):
        """Computes what it is asked for."""

        def __init__(self, base):
            self.base = base

        def __getitem__(self, key):
            return self.base * 2 + int(key)

        def __iter__(self):
            return iter(("1", "2"))

        def __len__(self):
            return 2

    history = torcheer.log_forward_pass(
        made_of(lambda self, t: self.inner(Lazy(t)), inner=made_of(lambda self, given: given.base + 1)),
        torch.ones(2),
        keep_orphans=True,
    )
    assert "mul" not in {layer.layer_type for layer in history}


def test_a_container_that_holds_itself_is_looked_into_once():
    t = torch.ones(1)
    one = [t]
    one.append(one)
    two = {"t": t}
    two["self"] = [two]
    three = Record(t)
    three.y = three
    four = deque([t])
    four.append(four)
    five = ([t],)
    five[0].append(five)
    for value in (one, two, three, four, five):
        assert [tensor for _, tensor in find_tensors(value)] == [t]
        assert tensors_of(value) == [t]
        seen = []
        made = template(value, seen.append)
        assert seen == [t]
        assert len(slot_paths((made,), None)) == 1
    filled = [fill(template(value, lambda tensor: None), iter([t])) for value in (one, two, three, four)]
    assert filled[0][1] is filled[0]
    assert filled[1]["self"][0] is filled[1]
    assert filled[2].y is filled[2]
    assert filled[3][1] is filled[3]


def test_what_is_shared_is_found_in_each_place():
    """Each place counts, as for torch's own pytrees."""
    t = torch.ones(1)
    shared = [t]
    assert [format_path(path) for path, _ in find_tensors([shared, shared])] == ["[0][0]", "[1][0]"]
    assert len(_pytree.tree_leaves([shared, shared])) == 2
    assert tensors_of([shared, shared]) == [t, t]


def test_sharing_many_times_over_does_not_take_for_ever():
    value = [torch.ones(1)]
    for _ in range(60):
        value = [value, value]
    found = len(list(find_tensors(value)))
    seen = []
    made = template(value, seen.append)
    assert len(slot_paths((made,), None)) == len(seen) == found
    fill(made, iter(seen))
    assert len(tensors_of(value)) == found
    shares_no_container(((value,), {}))
    outline(value, seen.append)


def test_objects_that_know_each_other_do_not_take_for_ever():
    nodes = [types.SimpleNamespace(others=None, tensor=torch.ones(1)) for _ in range(60)]
    for node in nodes:
        node.others = list(nodes)
    assert len(list(find_tensors(nodes))) == 60
    assert len(tensors_of(nodes, into_objects=True)) == 60


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, Record, lambda v: deque([v]), Frozen])
def test_nesting_may_be_deeper_than_python_recurses(wrap):
    t = torch.ones(1)
    value = t
    for _ in range(2_000):
        value = wrap(value)
    ((path, found),) = find_tensors(value)
    assert found is t
    assert len(path) == 2_000
    assert get_path(value, path) is t
    seen = []
    made = fill(template(value, seen.append), iter(seen))
    assert get_path(made, path) is t
    assert tensors_of(value) == [t]
    (copied,), _ = shares_no_container(((value,), {}))
    assert get_path(copied, path) is t
    assert copied is not value


def test_deep_arguments_are_given_to_a_model_as_copies():
    def forward(self, given):
        given.append("changed")
        while isinstance(given, list):
            given = given[0]
        return given + 1

    value = [torch.ones(1)]
    for _ in range(1_200):
        value = [value]
    history = torcheer.log_forward_pass(made_of(forward), (value,))
    assert len(value) == 1
    assert len(history.inputs) == 1


def test_what_cannot_be_copied_is_passed_as_it_is_and_the_rest_is_copied():
    class Stubborn:
        def __deepcopy__(self, memo):
            raise RuntimeError("no copies")

    stubborn, inner = Stubborn(), [torch.ones(1)]
    (copied,), _ = shares_no_container((([stubborn, inner],), {}))
    assert copied[0] is stubborn
    assert copied[1] is not inner
    assert copied[1][0] is inner[0]


def test_modules_and_functions_among_arguments_are_the_same_after_copying():
    model = nn.Linear(2, 2)
    bound = functools.partial(model.forward, torch.ones(2))
    held = types.SimpleNamespace(model=model, tensor=torch.ones(1))
    (copied,), _ = shares_no_container((([model, bound, held, functools.partial(model)],), {}))
    assert copied[0] is model
    assert copied[2].model is model
    assert copied[2] is not held
    assert copied[2].tensor is held.tensor
    assert copied[3].func is model


def test_steps_are_written_as_python_would():
    assert format_path((0, "mask", Attribute("values"), Nth(1)), "args") == "args[0]['mask'].values{1}"


def test_collections_are_found_by_their_own_order():
    ordered = OrderedDict(a=torch.ones(1), b=torch.ones(2))
    ordered.move_to_end("a")
    assert [step for step, _ in children(ordered)] == ["b", "a"]
    assert list(rebuild(ordered, children(ordered))) == ["b", "a"]
    assert rebuild(collections.Counter("aab"), children(collections.Counter("aab"))) == Counter("aab")


def test_a_slice_with_containers_as_bounds_is_filled() -> None:
    """Found by a random structure: the bounds of a slice may hold tensors themselves."""
    tensors = [torch.ones(1), torch.zeros(2)]
    seen: list[torch.Tensor] = []
    outline = template([tensors[0], slice(None, [tensors[1], None], None)], seen.append)
    filled = fill(outline, iter(seen))
    assert filled[0] is tensors[0]
    assert filled[1].stop[0] is tensors[1]
