"""Random programs: the log agrees with the plain run, every call can be made again, and nothing else changes."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

import torcheer
from models import unchanged
from programs import COLUMNS, ROWS, Program, programs
from torcheer._torch.containers import find_tensors, get_path

common = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run_both(steps, training, **options):
    """The plain outputs of a copy, and the history of the model, from the same random state."""
    torch.manual_seed(3)
    model = Program(steps).train(training)
    x = torch.randn(ROWS, COLUMNS)
    twin = copy.deepcopy(model)
    state = torch.get_rng_state()
    expected = twin(x.clone())
    torch.set_rng_state(state)
    with unchanged(model):
        history = torcheer.log_forward_pass(model, x, **options)
    return expected, history


@common
@given(programs, st.booleans())
def test_a_logged_program_gives_the_outputs_of_the_plain_one(steps, training):
    expected, history = run_both(steps, training)
    for ours, theirs in zip(history.outputs, expected, strict=True):
        assert torch.equal(ours.tensor_contents, theirs)


def made_again(one):
    """The result of an operation's call, made again from the kept arguments."""
    args, kwargs = copy.deepcopy((one.creation_args, one.creation_kwargs))
    result = one.func_applied(*args, **kwargs)
    if result is None:
        return args[0]
    return get_path(result, one._record.details.output_path)


@common
@given(programs)
def test_every_kept_call_can_be_made_again(steps):
    _, history = run_both(steps, False)
    random = {"dropout", "bernoulli"}
    with torch.no_grad():
        for one in history.operations:
            if one.func_applied is not None and one.layer_type not in random:
                assert torch.equal(made_again(one), one.tensor_contents), one.label


@common
@given(programs)
def test_parents_come_before_children_and_edges_go_both_ways(steps):
    _, history = run_both(steps, True)
    seen = set()
    for one in history.operations:
        assert set(one.parent_layers) <= seen
        seen.add(one.label)
        for parent in one.parent_layers:
            assert one.label in history[parent].child_layers
        for child in one.child_layers:
            assert one.label in history[child].parent_layers
        for key in one.lookup_keys:
            assert history[key].label == one.label
    for layer in history:
        assert all(history[key] == layer for key in layer.lookup_keys)


@common
@given(programs, st.data())
def test_keeping_some_keeps_exactly_those_with_the_same_values(steps, data):
    _, everything = run_both(steps, True)
    count = len(everything)
    picked = data.draw(st.lists(st.integers(-count, count - 1), min_size=1, max_size=3))
    forms = [data.draw(st.sampled_from(everything[number].lookup_keys)) for number in picked]
    _, some = run_both(steps, True, layers_to_save=forms)
    kept = {one.label: one.tensor_contents for one in some.saved}
    found = [everything[form] for form in forms]
    wanted = {one.label for some in found for one in (some.passes if isinstance(some, torcheer.Layer) else [some])}
    assert wanted <= set(kept)
    assert len(kept) <= len(wanted) + 3  # an address may mean several outputs
    for label, value in kept.items():
        assert torch.equal(value, everything[label].tensor_contents)
    _, none = run_both(steps, True, layers_to_save="none")
    assert none.layer_labels == some.layer_labels == everything.layer_labels


class Copying(TorchFunctionMode):
    """The plainest observer: copies every tensor a torch function returns. Does not open composites."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if func is not F.normalize and name != "requires_grad":
            made = args[0] if name == "__setitem__" else result
            self.values += [t.detach().clone() for _, t in find_tensors(made)]
        return result


@common
@given(programs)
def test_kept_values_are_those_a_copying_observer_saw(steps):
    torch.manual_seed(3)
    model = Program(steps).eval()
    x = torch.randn(ROWS, COLUMNS)
    state = torch.get_rng_state()
    with Copying() as observer:
        model(x)
    torch.set_rng_state(state)
    history = torcheer.log_forward_pass(model, x, keep_orphans=True)
    kept = [one for one in history.operations if one.func_applied is not None and one.composite is None]
    assert len(kept) == len(observer.values)
    for ours, theirs in zip(kept, observer.values, strict=True):
        assert torch.equal(ours.tensor_contents, theirs), ours.label
