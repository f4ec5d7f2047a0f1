"""Inputs as people pass them: what they mean, and what the errors for other forms say."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_vis
import torcheer
from models import made_of, made_with
from torcheer import InvalidArgument, Xray
from torcheer._torch.inputs import LEFT_OUT, as_arguments

a, b = torch.rand(2, 4), torch.rand(2, 4)


@made_with(fc=lambda: nn.Linear(4, 3))
def One(self, x):
    """Has one positional parameter."""
    return self.fc(x)


class Two(nn.Module):
    def forward(self, x, mask=None):
        return x * 2 if mask is None else x * mask


class Both(nn.Module):
    """Needs two arguments."""

    def forward(self, left, right):
        return left + right


class Tuple(nn.Module):
    """Takes a tuple or list as its one argument, and an option by name."""

    def forward(self, pair, *, scale=1.0):
        return pair[0] * scale + pair[1]


class Batch(nn.Module):
    """Takes a dictionary as its one argument."""

    def forward(self, batch):
        return batch["x"] + batch["y"]


class Several(nn.Module):
    def forward(self, *tensors, **options):
        return sum(t[0] if isinstance(t, tuple) else t for t in tensors)


class Generating(nn.Module):
    """Takes no tensor."""

    def forward(self, size=(2, 3)):
        return torch.rand(size)


def roles(model, *given, **named):
    """Where the tensors of a log came in."""
    history = torcheer.log_forward_pass(model, *given, **named)
    assert torcheer.validate_forward_pass(model, *given, **named)
    return [role for one in history.inputs for role in one.io_role.split(", ")]


def batch_encoding(**tensors):
    from transformers import BatchEncoding

    return BatchEncoding(tensors)


@pytest.mark.parametrize("make", [dict, OrderedDict, UserDict, lambda **t: MappingProxyType(t), batch_encoding])
def test_any_mapping_is_named_arguments(make):
    """As `input_kwargs`, with `input_args` left out or not, and given alone when every key names a parameter."""
    assert roles(Two(), input_kwargs=make(x=a, mask=b)) == ["kwargs['x']", "kwargs['mask']"]
    assert roles(Two(), a, make(mask=b)) == ["args[0]", "kwargs['mask']"]
    assert roles(Two(), None, make(x=a, mask=b)) == ["kwargs['x']", "kwargs['mask']"]
    assert roles(Two(), make(x=a, mask=b)) == ["kwargs['x']", "kwargs['mask']"]
    assert roles(made_of(lambda self, **inputs: inputs["input_ids"] * 2), make(input_ids=a)) == ["kwargs['input_ids']"]
    assert roles(made_of(lambda self, input_ids, **others: input_ids + others.get("bias", 0)), make(input_ids=a, bias=b)) == [
        "kwargs['input_ids']",
        "kwargs['bias']",
    ]


def test_a_mapping_that_names_other_things_is_one_argument():
    assert roles(Batch(), {"x": a, "y": b}) == ["args[0]['x']", "args[0]['y']"]
    assert roles(Batch(), ({"x": a, "y": b},)) == ["args[0]['x']", "args[0]['y']"]
    assert roles(Batch(), {"batch": {"x": a, "y": b}}) == ["kwargs['batch']['x']", "kwargs['batch']['y']"]

    assert roles(made_of(lambda self, x: x["x"] + x["y"]), {"x": a, "y": b}) == ["args[0]['x']", "args[0]['y']"]


def test_a_tuple_is_the_one_argument_where_forward_has_one_positional_parameter():
    assert roles(Tuple(), (a, b)) == ["args[0][0]", "args[0][1]"]
    assert roles(Tuple(), (a, b), {"scale": 2.0}) == ["args[0][0]", "args[0][1]"]
    assert roles(Tuple(), ((a, b),)) == ["args[0][0]", "args[0][1]"]
    assert roles(Tuple(), [a, b]) == ["args[0][0]", "args[0][1]"]
    assert roles(nn.Sequential(Tuple()), (a, b)) == ["args[0][0]", "args[0][1]"]
    assert roles(One(), (a,)) == ["args[0]"]
    assert roles(Both(), (a, b)) == ["args[0]", "args[1]"]
    assert roles(Two(), (a, b)) == ["args[0]", "args[1]"]
    assert roles(Several(), (a, b)) == ["args[0]", "args[1]"]
    assert roles(Several(), ((a, b), a)) == ["args[0][0]", "args[1]", "args[0][1]"]
    assert roles(Several(), ((a, b),)) == ["args[0][0]", "args[0][1]"]


def test_other_things_are_one_argument():
    Pair = namedtuple("Pair", "x y")

    @dataclasses.dataclass
    class Sample:
        x: torch.Tensor
        y: torch.Tensor

    def add(sample):
        return sample.x + sample.y

    assert roles(add, Pair(a, b)) == ["args[0].x", "args[0].y"]
    assert roles(add, Sample(a, b)) == ["args[0].x", "args[0].y"]
    assert roles(lambda x, scale: x * scale, (a, np.float32(2))) == ["args[0]"]
    assert roles(lambda array: torch.as_tensor(array) + a, np.ones((2, 4), dtype=np.float32)) == []
    assert roles(lambda x, y=None: x if y is None else y, (a, None)) == ["args[0]"]


@pytest.mark.parametrize("given", [((),), (None,), ()])
def test_a_model_that_takes_nothing_is_given_nothing(given):
    assert torcheer.log_forward_pass(lambda: torch.ones(2) * 2, *given).outputs[0].tensor_shape == (2,)
    assert torcheer.log_forward_pass(Generating(), ()).outputs[0].tensor_shape == (2, 3)
    assert torcheer.log_forward_pass(Generating()).outputs[0].tensor_shape == (2, 3)


def test_none_may_be_an_argument():
    assert torcheer.log_forward_pass(lambda x: torch.ones(1) if x is None else x, None).outputs[0].tensor_shape == (1,)


def test_keyword_only_tensors_are_given_by_name():
    def scaled(x, *, scale):
        return x * scale

    assert roles(scaled, a, {"scale": b}) == ["args[0]", "kwargs['scale']"]
    assert roles(scaled, {"x": a, "scale": b}) == ["kwargs['x']", "kwargs['scale']"]


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_forward_is_found_behind_wrappers():
    """Compiled, parallel, bound, partial, decorated and scripted models mean what the plain one means."""
    pair = (a, b)
    assert as_arguments(nn.DataParallel(Tuple()), pair) == ((pair,), {})
    assert as_arguments(torch.compile(Tuple(), backend="eager"), pair) == ((pair,), {})
    assert as_arguments(Tuple().forward, pair) == ((pair,), {})
    assert as_arguments(functools.partial(Tuple(), scale=2.0), pair) == ((pair,), {})
    assert as_arguments(functools.partial(Both(), a), b) == ((b,), {})
    assert as_arguments(torch.jit.trace(Both(), pair), {"left": a, "right": b}) == ((), {"left": a, "right": b})
    assert as_arguments(torch.add, pair) == (pair, {})  # a function without a signature
    assert as_arguments(torch.fx.symbolic_trace(Both()), {"left": a, "right": b}) == ((), {"left": a, "right": b})

    def decorated(function):
        @functools.wraps(function)
        def inner(self, *args, **kwargs):
            return function(self, *args, **kwargs)

        return inner

    class Decorated(Tuple):
        forward = decorated(Tuple.forward)

    assert as_arguments(Decorated(), pair) == ((pair,), {})


def test_a_decorator_may_add_or_take_arguments():
    """What is called decides what can be called, not what it is around."""

    def with_bias(function):
        @functools.wraps(function)
        def inner(self, left):
            return function(self, left, b)

        return inner

    class Decorated(Both):
        forward = with_bias(Both.forward)

    assert roles(Decorated(), a) == ["args[0]"]


def test_hooks_may_change_the_arguments():
    model = Both()
    model.register_forward_pre_hook(lambda module, args: (args[0], args[0]))
    assert roles(model, a) == ["args[0]"]


def test_a_model_with_a_call_of_its_own_is_asked_for_that():
    class Calling(Both):
        def __call__(self, pair):
            return super().__call__(*pair)

    assert as_arguments(Calling(), (a, b)) == (((a, b),), {})


def test_arguments_are_the_same_when_they_are_read_again():
    for model, given in [
        (Tuple(), (a, b)),
        (Both(), (a, b)),
        (Two(), {"x": a}),
        (Batch(), {"x": a}),
        (One(), a),
        (Several(), ()),
    ]:
        arguments = as_arguments(model, given)
        assert as_arguments(model, *arguments) == arguments


ENTRIES = {
    "log_forward_pass": torcheer.log_forward_pass,
    "validate_forward_pass": torcheer.validate_forward_pass,
    "show_model_graph": torcheer.show_model_graph,
    "track_computational_graph_execution": torch_vis.track_computational_graph_execution,
    "analyze_computational_graph_execution": torch_vis.analyze_computational_graph_execution,
    "Xray": Xray,
}
loader = DataLoader(TensorDataset(a, b), batch_size=2)
WRONG = {
    "list for two": (Both, [a, b], r"takes \(left, right\).*a list of 2.*{call}\(model, \(items\[0\], items\[1\]\)\)"),
    "list for one": (
        One,
        [a, b],
        r"does not take a list of 2 as the input.*must be Tensor, not list.*{call}\(model, items\[0\]\)",
    ),
    "batch of a loader": (One, next(iter(loader)), r"{call}\(model, items\[0\]\)"),
    "tuple for one": (One, (a, b), r"a tuple of 2.*takes one argument, .* whole tuple.*{call}\(model, items\[0\]\)"),
    "several in a list for one": (One, [a, b], r"a list of 2.*takes one argument, .* whole list.*{call}\(model, items\[0\]\)"),
    "array": (One, np.ones((2, 4), dtype=np.float32), r"take a NumPy array.*{call}\(model, torch.as_tensor\(array\)\)"),
    "loader": (One, loader, r"one batch; got a DataLoader.*next\(iter\(loader\)\), then {call}\(model, batch\[0\]\)"),
    "data set": (One, loader.dataset, r"one batch; got a TensorDataset.*{call}\(model, dataset\[0\]\[0\]"),
    "too many": (Both, (a, b, a), r"too many positional arguments.*{call}\(model, \(left, right\)\)"),
    "too few": (Both, a, r"missing a required argument: 'right'.*{call}\(model, \(left, right\)\)"),
    "other names": (
        Both,
        {"left": a, "token_type_ids": b},
        r"Not a parameter: 'token_type_ids'.*{call}\(model, input_kwargs={{'left': …, 'right': …}}\)",
    ),
    "text": (One, "hello", r"{call}\(model, tokenizer\(text, return_tensors='pt'\)\)|an input is a tensor"),
    "iterator": (One, iter([a]), r"take a list_iterator.*{call}\(model, next\(iterator\)\)"),
    "list of one": (One, [a], r"{call}\(model, items\[0\]\)"),
    "nothing in it": (One, {}, r"does not take an empty dict"),
    "number": (One, 3.5, r"{call}\(model, torch.tensor\(3.5\)\)|an input is a tensor"),
}
SHAPES = {
    "shape": (One, (2, 4), r"the shape \(2, 4\).*{call}\(model, torch.rand\(2, 4\)\)"),
    "shape in a list": (One, [2, 4], r"the shape \(2, 4\).*{call}\(model, torch.rand\(2, 4\)\)"),
    "size": (One, torch.Size((2, 4)), r"the shape \(2, 4\).*{call}\(model, torch.rand\(2, 4\)\)"),
    "shape for two": (Both, (1, 3, 8, 8), r"{call}\(model, torch.rand\(1, 3, 8, 8\)\)"),
}


# An Xray makes its input of a shape.
CASES = [(wrong, entry) for wrong in (*WRONG, *SHAPES) for entry in ENTRIES if entry != "Xray" or wrong not in SHAPES]


@pytest.mark.parametrize(("wrong", "entry"), CASES)
def test_wrong_forms_get_an_error_that_shows_the_right_call(wrong, entry, tmp_path):
    """From every entry point; the model and everything else are as they were."""
    make, given, message = {**WRONG, **SHAPES}[wrong]
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"folder": tmp_path} if entry == "Xray" else {}
    with pytest.raises(InvalidArgument, match="(?s)" + message.format(call=entry)):
        ENTRIES[entry](model, given, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(loader)  # nothing was taken from it


def test_the_model_s_own_error_is_the_cause_and_the_history_is_kept():
    with pytest.raises(InvalidArgument, match="must be Tensor, not list") as caught:
        torcheer.log_forward_pass(nn.Sequential(One()), [a])
    assert type(caught.value.__cause__) is TypeError
    assert caught.value.history.model_name == "Sequential"


def test_errors_that_are_not_about_the_form_of_the_inputs_are_the_model_s_own():
    def forward(self, items):
        raise TypeError("something else")

    with pytest.raises(TypeError, match="something else"):
        torcheer.log_forward_pass(made_of(forward), [a, b])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torcheer.log_forward_pass(One(), torch.rand(2, 5))


def test_inputs_that_were_left_out_are_asked_for():
    for entry in (torcheer.log_forward_pass, torcheer.validate_forward_pass, torcheer.show_model_graph):
        with pytest.raises(InvalidArgument, match=rf"no inputs.*Give it inputs: {entry.__name__}\(model, \(left, right\)\)"):
            entry(Both())


@pytest.mark.parametrize(
    ("wrong", "message"), [([("x", a)], "got a list"), ({1: a}, "got 1"), ("x", "got 'x'"), (a, "got a Tensor")]
)
def test_named_arguments_are_a_mapping_of_names(wrong, message):
    with pytest.raises(InvalidArgument, match=message):
        torcheer.log_forward_pass(One(), a, wrong)


def test_a_history_takes_new_inputs_in_the_same_forms():
    history = torcheer.log_forward_pass(Two(), {"x": a, "mask": b})
    history.save_new_activations(Two(), input_kwargs=UserDict(x=b, mask=a + 1))
    assert torch.equal(history.outputs[0].tensor_contents, b * (a + 1))


def test_an_input_that_was_left_out_prints_as_dots():
    assert repr(LEFT_OUT) == "…"
