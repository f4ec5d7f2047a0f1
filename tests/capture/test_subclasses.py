"""Tensors of other classes: what is kept has the class it had, and memory is that of the tensors inside."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.masked import masked_tensor
from torch.nn.utils import parametrize
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import torcheer
from models import is_upstream, log, made_of

x = torch.arange(12.0).reshape(3, 4) + 1
numbers = torch.arange(16, dtype=torch.int8).reshape(4, 4)
half = torch.tensor(0.5)


class Silent(torch.Tensor):
    """Whole numbers and a scale, known by `__torch_dispatch__` only. It does not say what is inside."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def dequantise(self):
        return self.numbers.to(self.scale.dtype) * self.scale

    @classmethod
    def each(cls, function, one):
        return cls(function(one.numbers), function(one.scale))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale)  # the very tensors, so that a write reaches both
        if func is torch.ops.aten.clone.default:
            return cls.each(torch.clone, args[0])
        if func is torch.ops.aten.mul_.Scalar or func is torch.ops.aten.mul_.Tensor:
            args[0].scale.mul_(args[1])
            return args[0]
        plain = tree_map(lambda one: one.dequantise() if isinstance(one, Silent) else one, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Quantised(Silent):
    """Says what is inside, as the weights of torchao do."""

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["numbers"], inner["scale"])


class Unhelpful(Quantised):
    """Allows neither a view nor a copy by torch's functions, and says what is inside."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            raise NotImplementedError(func)
        return super().__torch_dispatch__(func, types, args, kwargs)


class Overriding(Quantised):
    """Has `__torch_function__` as well."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            return torch.nn.functional.linear(args[0], args[1].dequantise(), *args[2:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A subclass that wraps nothing and carries an attribute."""


def named(tensor, name):
    one = tensor.as_subclass(Named)
    one.title = name
    return one


def with_weight(weight):
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(weight, requires_grad=False)
    return model


def use(history):
    """Print, summarise, draw, make a page, prove."""
    assert str(history)
    assert str(history.summary())
    assert history.draw(io.BytesIO(), format="svg").svg
    assert len(history.to_json()) > 100
    assert history.validate()


@pytest.mark.parametrize("kind", [Quantised, Silent, Overriding])
def test_quantised_weights_are_parameters_like_others(kind):
    weight = kind(numbers.clone(), half.clone())
    model = with_weight(weight)
    expected = torch.nn.functional.linear(x, weight.dequantise(), model.bias)
    history = log(model, x)
    assert torch.equal(history["linear_1"].tensor_contents, expected)
    assert type(history["linear_1"].creation_args[1]) is kind
    assert [layer.layer_type for layer in history] == ["input", "linear", "output"]
    assert torcheer.validate_forward_pass(model, x).is_valid
    use(history)


def test_what_is_inside_a_weight_comes_from_that_weight():
    model = with_weight(Quantised(numbers.clone(), half.clone()))

    def forward(t):
        return t @ model.weight.dequantise()

    history = log(forward, x)
    assert torch.equal(history["output"].tensor_contents, x @ (numbers * 0.5))
    assert not any(layer.layer_type == "source" for layer in history)
    use(history)


def test_a_wrapper_made_of_known_tensors_depends_on_them():
    def forward(t):
        return Quantised((t * 2).to(torch.int8), t[0, 0] / 2) + 1

    history = log(forward, x)
    assert torch.equal(history["output"].tensor_contents, x * 2 * 0.5 + 1)
    wrapper = history["quantised_1"]
    assert type(wrapper.tensor_contents) is Quantised
    assert set(wrapper.parent_layers) == {history["to_1"].label, history["div_1"].label}
    assert is_upstream(history, "input", "output")
    use(history)


@pytest.mark.parametrize("kind", [Quantised, Silent, Overriding, Unhelpful])
@pytest.mark.parametrize("write", ["wrapper", "numbers", "scale", "view"])
def test_a_write_to_what_is_inside_reaches_the_wrapper_and_not_what_was_kept(write, kind):
    def forward(t):
        one = kind((t * 2).to(torch.int8), t[0, 0] / 2)
        before = one + 0
        if write == "wrapper":
            one.mul_(2)
        elif write == "numbers":
            one.numbers.mul_(2)
        elif write == "scale":
            one.scale.mul_(2)
        else:
            one.numbers.view(-1).mul_(2)
        return before, one + 1, one

    history = log(forward, x)
    assert torch.equal(history["output_1"].tensor_contents, x)
    assert torch.equal(history["output_2"].tensor_contents, x * 2 + 1)
    made = next(one for one in history.operations if one.func_applied_name == kind.__name__)
    assert torch.equal(made.tensor_contents.dequantise(), x)
    assert torch.equal(history["output_3"].tensor_contents.dequantise(), x * 2)
    (added,) = [one for one in history.operations if one.func_applied_name == "add" and one.creation_args[1] == 1]
    assert torch.equal(added.creation_args[0].dequantise(), x * 2)
    writer = next(one for one in history.operations if one.func_applied_name == "mul_")
    assert is_upstream(history, writer.label, "output_2")


def test_a_class_that_cannot_be_copied_is_refused_where_it_is_overwritten():
    class Stubborn(Silent):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.clone.default:
                raise NotImplementedError
            return super().__torch_dispatch__(func, types, args, kwargs)

    def forward(t):
        one = Stubborn((t * 2).to(torch.int8), t[0, 0] / 2)
        before = one + 0
        one.numbers.zero_()
        return before, one + 1

    history = log(forward, x)
    assert torch.equal(history["output_1"].tensor_contents, x)
    assert torch.equal(history["output_2"].tensor_contents, torch.ones(3, 4))
    with pytest.raises(torcheer.ActivationLost):
        history["stubborn_1"].tensor_contents


def test_wrappers_in_wrappers():
    def forward(t):
        inner = TwoTensor(t * 1, t + 1)
        outer = TwoTensor(inner, TwoTensor(t * 3, t + 3))
        product = outer * 2
        inner.a.zero_()
        return product, outer + 0

    history = log(forward, x)
    assert torch.equal(history["output_1"].tensor_contents.a.a, x * 2)
    assert torch.equal(history["output_2"].tensor_contents.a.a, torch.zeros(3, 4))
    outer = next(one for one in history.operations if one.func_applied_name == "TwoTensor")
    assert torch.equal(outer.tensor_contents.a.a, x)
    assert is_upstream(history, "zero_1" if "zero_1" in history else "zero", "output_2")


def test_views_of_wrappers_and_writes_in_place():
    def forward(t):
        two = TwoTensor(t * 1, t + 1)
        flat = two.view(-1)
        two.add_(1)
        return flat * 2

    history = log(forward, x)
    assert torch.equal(history["view_1"].tensor_contents.a, x.view(-1))
    assert torch.equal(history["output"].tensor_contents.a, (x + 1).view(-1) * 2)
    assert torch.equal(history["output"].tensor_contents.b, (x + 2).view(-1) * 2)
    use(history)


def test_a_parameter_of_a_wrapper_class_and_one_that_a_parametrisation_makes():
    history = log(with_weight(TwoTensor(torch.eye(4), torch.eye(4) * 2)), x)
    assert type(history["output"].tensor_contents) is TwoTensor

    model = nn.Linear(4, 4)
    parametrize.register_parametrization(
        model, "weight", made_of(lambda self, weight: Quantised((weight * 8).to(torch.int8), torch.tensor(0.125))), unsafe=True
    )
    history = log(model, x)
    assert torch.equal(history["output"].tensor_contents, model(x))
    assert type(history["quantised_1"].tensor_contents) is Quantised
    assert history.validate().is_valid


def test_a_plain_subclass_keeps_its_class_and_attributes():
    def forward(t):
        return (t * 2).view(-1)[1:]

    given = named(x.clone(), "image")
    history = log(forward, given)
    for one in history.operations:
        assert type(one.tensor_contents) is Named
    assert history["input"].tensor_contents.title == "image"
    use(history)

    def inside(t):
        t = named(t, "made")
        t.mul_(2)
        return t + 1

    history = log(inside, x.clone())
    assert type(history["add_1"].tensor_contents) is Named
    assert torch.equal(history["output"].tensor_contents, x * 2 + 1)
    assert history.validate().is_valid, history.validate()


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(layout):
    def forward(t):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.as_nested_tensor([t * 1, t[:2] * 2], layout=layout)
        return nested.sin().to_padded_tensor(0.0)

    history = log(forward, x)
    assert torch.equal(history["output"].tensor_contents, forward(x))
    assert history["sin_1"].tensor_contents.is_nested
    assert history["sin_1"].tensor_contents.layout is layout
    use(history)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_masked_tensors():
    def forward(t):
        return masked_tensor(t, t > 5) * 2

    history = log(forward, x)
    kept = history["output"].tensor_contents
    assert type(kept).__name__ == "MaskedTensor"
    assert torch.equal(kept.get_data(), x * 2)
    assert is_upstream(history, "input", "output")
    use(history)


def test_logging_tensors():
    history = log(lambda t: LoggingTensor(t * 2) + 1, x)
    assert torch.equal(history["output"].tensor_contents.elem, x * 2 + 1)
    assert is_upstream(history, "mul_1", "output")
    use(history)


def test_fake_tensors_have_shapes_and_no_values():
    with FakeTensorMode() as mode:
        given = mode.from_tensor(x)
    history = log(lambda t: (t * 2).view(-1)[1:] + 1, given)
    assert history["output"].tensor_shape == (11,)
    assert type(history["mul_1"].tensor_contents).__name__ == "FakeTensor"
    use(history)


def test_functional_tensors():
    def forward(t):
        functional = torch._to_functional_tensor(t.clone())
        functional.add_(1)
        torch._sync(functional)
        return torch._from_functional_tensor(functional) * 2

    with pytest.warns(torcheer.UnseenWorkWarning, match="clone_1_1 was written to"):
        history = log(forward, x.clone())
    assert torch.equal(history["output"].tensor_contents, (x + 1) * 2)


@pytest.mark.parametrize("keeping", ["none", ["add_1"], "modules"])
def test_wrappers_with_every_way_of_keeping(keeping):
    model = with_weight(Quantised(numbers.clone(), half.clone()))

    def forward(t):
        return Quantised(model(t).to(torch.int8), half) + 1

    history = log(forward, x, layers_to_save=keeping)
    expected = forward(x)
    with torcheer.recording() as recorded:
        forward(x)
    assert recorded.num_operations > 2
    if "add_1" in keeping:
        assert torch.equal(history["add_1"].tensor_contents, expected)
        assert type(history["add_1"].creation_args[0]) is Quantised


@pytest.mark.parametrize("kind", [Silent, Quantised, Overriding])
def test_a_saved_history_knows_the_model_by_what_is_inside_its_weights(kind, tmp_path):
    model = with_weight(kind(numbers.clone(), half.clone()))
    path = torcheer.log_forward_pass(model, x).save(tmp_path / "run.safetensors")
    assert torcheer.load(path, model=model).validate()
    model.weight.numbers.add_(1)
    with pytest.raises(torcheer.ModelMismatch, match=r"'weight' has other values"):
        torcheer.load(path, model=model)
