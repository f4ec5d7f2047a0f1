"""Every public call answers, or raises an error of torcheer's, also for programs that are out of the ordinary."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer
from torcheer import TorcheerError, changes
from torcheer._torch.memory import has_memory

pytestmark = pytest.mark.filterwarnings("ignore")
x = torch.linspace(-1, 1, 12).reshape(4, 3)


class Model(nn.Module):
    """Runs a function of the module and its input."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.rand(4, 3))
        self.register_buffer("table", torch.ones(4, 3))
        self.body = body

    def forward(self, t):
        return self.body(self, t)


class Square(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * t

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 * ctx.saved_tensors[0]


class GradientInside(torch.autograd.Function):
    """Differentiates in its own forward."""

    @staticmethod
    def forward(ctx, t):
        with torch.enable_grad():
            inner = t.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((inner**3).sum(), inner)
        ctx.save_for_backward(gradient)
        return gradient

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class ThroughModule(torch.autograd.Function):
    """Calls a module in its forward."""

    @staticmethod
    def forward(ctx, t, module):
        return module(t)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5, None


class ThroughNumpy(torch.autograd.Function):
    """Computes with NumPy."""

    @staticmethod
    def forward(ctx, t):
        return torch.from_numpy(t.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7


class Holder(Tensor):
    """A tensor that holds its values in another one."""

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        result = func(*[one.inner if isinstance(one, Holder) else one for one in args], **(kwargs or {}))
        return Holder(result) if isinstance(result, Tensor) else result


class FewBits(Tensor):
    """A weight of few bits that knows `linear` and copies, and raises at everything else."""

    @staticmethod
    def __new__(cls, whole, scale):
        return Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32)

    def __init__(self, whole, scale):
        self.whole, self.scale = whole, scale

    def __tensor_flatten__(self):
        return ["whole", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["whole"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            return F.linear(args[0], args[1].whole.float() * args[1].scale, *args[2:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].whole, args[0].scale)
        if func is torch.ops.aten.clone.default:
            return cls(args[0].whole.clone(), args[0].scale.clone())
        raise NotImplementedError(f"FewBits does not implement {func}")


def few_bits():
    return FewBits(torch.ones(3, 3, dtype=torch.int8), torch.tensor(0.5))


def without_gradients(write):
    def body(model, t):
        with torch.no_grad():
            write(model, t)
        return model.fc(t) * model.weight

    return body


def row_taken_with_gradients(model, t):
    row = model.weight[0]
    with torch.no_grad():
        row.add_(1)
    return model.fc(t) * model.weight


def views_of_written(views, write):
    def body(model, t):
        y = model.fc(t)
        with torch.no_grad():
            parts = views(y)
            write(y, parts)
            total = sum(part.sum() for part in parts)
        return y + total

    return body


def differentiated(function, *, again=False):
    def body(model, t):
        with torch.enable_grad():
            u = model.fc(t).detach().requires_grad_()
            (gradient,) = torch.autograd.grad(function(model, u).sum(), u, create_graph=again)
            if again and gradient.requires_grad:
                (gradient,) = torch.autograd.grad((gradient * gradient).sum(), u)
        return gradient + u

    return body


def steps_down(model, t):
    """Langevin dynamics in an energy that has a custom function in it."""
    for _ in range(3):
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(Square.apply(model.fc(t)).sum(), t)
        t = t - 0.1 * gradient
    return t


def per_channel(t, dtype=torch.quint8):
    return torch.quantize_per_channel(t, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.0, 1.0]), 1, dtype)


def observed(model, t):
    one, none = torch.tensor([1]), torch.tensor([0], dtype=torch.int32)
    table = model.table
    return torch.fused_moving_avg_obs_fake_quant(t, one, one, table[0, :1], table[1, :1], table[2, :1], none, 0.1, 0, 255, 0)


def traced_function(t):
    return t.sin() * 2


PROGRAMS = {
    "row of a parameter": without_gradients(lambda m, t: m.weight[0].add_(1)),
    "row of a parameter, taken with gradients": row_taken_with_gradients,
    "column of a parameter": without_gradients(lambda m, t: m.weight[:, 1].copy_(t[:, 1])),
    "chunk of a parameter": without_gradients(lambda m, t: m.weight.chunk(2)[1].add_(t[:2])),
    "rows of a parameter by foreach": without_gradients(lambda m, t: torch._foreach_add_([m.weight[0], m.weight[1]], 1.0)),
    "row of a parameter by init": without_gradients(lambda m, t: nn.init.constant_(m.weight[0], 2.0)),
    "out= a row of a parameter": without_gradients(lambda m, t: torch.mul(t[0], 2, out=m.weight[0])),
    "split of a base written later": views_of_written(lambda y: y.split(2), lambda y, parts: y.add_(1)),
    "unbind of a base written later": views_of_written(lambda y: y.unbind(0), lambda y, parts: y[0].fill_(2.0)),
    "chunks written": views_of_written(lambda y: y.chunk(2), lambda y, parts: parts[0].mul_(3)),
    "hsplit, written by foreach": views_of_written(
        lambda y: y.hsplit(3), lambda y, parts: torch._foreach_add_(list(parts), 1.0)
    ),
    "custom function": lambda m, t: Square.apply(m.fc(t)),
    "custom function, differentiated": differentiated(lambda m, u: Square.apply(u)),
    "custom function, differentiated twice": differentiated(lambda m, u: Square.apply(u), again=True),
    "gradient inside a custom function": differentiated(lambda m, u: GradientInside.apply(u)),
    "custom function around a module": differentiated(lambda m, u: ThroughModule.apply(u, m.fc)),
    "custom function of NumPy": differentiated(lambda m, u: ThroughNumpy.apply(u)),
    "steps in an energy": steps_down,
    "quantised, zero points of floating point": lambda m, t: per_channel(t).dequantize(),
    "quantised output, zero points of floating point": lambda m, t: per_channel(t),
    "fused observer": observed,
    "traced in forward": lambda m, t: torch.jit.trace(m.fc, t, check_trace=False)(t),
    "traced and checked in forward": lambda m, t: torch.jit.trace(m.fc, t)(t),
    "function traced in forward": lambda m, t: torch.jit.trace(traced_function, t)(t),
    "scripted in forward": lambda m, t: torch.jit.script(m.fc)(t),
    "compiled in forward": lambda m, t: torch.compile(m.fc, backend="eager")(t),
    "exported in forward": lambda m, t: torch.export.export(m.fc, (t,), strict=False).module()(t),
    "wrapper made": lambda m, t: Holder(t) * 2,
    "wrapper opened": lambda m, t: (Holder(t) * 2).inner + 1,
    "weight of few bits made": lambda m, t: F.linear(t, few_bits()),
    "weight of few bits returned": lambda m, t: few_bits(),
    "masked tensor": lambda m, t: torch.masked.masked_tensor(t, t > 0) * 2,
    "nested": lambda m, t: torch.nested.nested_tensor([t, t[:2]]) * 2,
}


def qat():
    torch.manual_seed(0)
    model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(3, 3), nn.ReLU(), torch.ao.quantization.DeQuantStub())
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(model.train())


def convolution_for_qat():
    torch.manual_seed(0)
    model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model = torch.ao.quantization.fuse_modules_qat(model.train(), [["1", "2", "3"]])
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(model)


def with_few_bits():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model[0].weight = nn.Parameter(few_bits(), requires_grad=False)
    return model


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, t):
        return self.attention(t, t, t)[0]


# By name: what makes a model, and what makes its input.
MODELS = {
    **{name: (lambda body=body: Model(body), lambda: x) for name, body in PROGRAMS.items()},
    "prepared for quantisation": (qat, lambda: x),
    "convolution prepared for quantisation": (convolution_for_qat, lambda: torch.rand(2, 3, 6, 6)),
    "embedding of quantised weights": (
        lambda: nn.Sequential(torch.ao.nn.quantized.Embedding(5, 3)),
        lambda: torch.tensor([0, 1, 2, 3]),
    ),
    "parameter of few bits": (with_few_bits, lambda: x),
    "given a wrapper": (lambda: Model(lambda m, t: t * 2), lambda: Holder(x)),
    "given a masked tensor": (lambda: Model(lambda m, t: t * 2), lambda: torch.masked.masked_tensor(x, x > 0)),
    "given a nested tensor": (lambda: Model(lambda m, t: m.fc(t)), lambda: torch.nested.nested_tensor([x, x[:2]])),
    "given a jagged tensor": (
        lambda: Model(lambda m, t: m.fc(t)),
        lambda: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
    ),
    "attention on meta": (lambda: Attending().to("meta"), lambda: torch.rand(2, 4, 8, device="meta")),
    "fused attention on meta": (
        lambda: Model(lambda m, t: F.scaled_dot_product_attention(t, t, t)),
        lambda: torch.rand(1, 2, 4, 3, device="meta"),
    ),
}


def made(name):
    """A model and its input."""
    make, give = MODELS[name]
    return make(), give()


@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "no gradients"])
@pytest.mark.parametrize("name", MODELS)
def test_a_log_of_an_unusual_program_is_proved(name, grad):
    with torch.set_grad_enabled(grad):
        report = torcheer.validate_forward_pass(*made(name), random_seed=0)
    assert report, str(report)


def answers(call):
    try:
        call()
    except TorcheerError:
        pass


@pytest.mark.parametrize("name", MODELS)
def test_every_call_answers_or_raises_an_error_of_its_own(name, tmp_path):
    model, given = made(name)
    history = torcheer.log_forward_pass(model, given, random_seed=0)
    labels = [one.label for one in history.operations]
    for one in (history, *history.operations, *history, *history.modules.values()):
        assert str(one)
        assert repr(one)
        one._repr_html_()
    str(history.summary()), str(history.memory), str(history.cost), str(history.module_calls)
    history.to_html(tmp_path / "page.html")
    history.to_csv(tmp_path / "table.csv")
    for call in (
        history.validate,
        history.replay,
        lambda: torcheer.load(history.save(tmp_path / "log.safetensors")).to_html(tmp_path / "loaded.html"),
        lambda: str(torcheer.compare(history, torcheer.log_forward_pass(*made(name)))),
        lambda: str(torcheer.compare_models(model, made(name)[0], given)),
        lambda: history.attention(""),
        *(lambda label=label: history.replay(changes={label: changes.scale(2)}) for label in labels[:6]),
    ):
        answers(call)
    with torcheer.watch_modules(model) as calls:
        model(given)
    assert str(calls)
    for label in labels[:4]:
        answers(lambda label=label: _tapped(name, label, history))


def _tapped(name, label, history):
    model, given = made(name)
    with torcheer.tap(model, [label], like=history) as values:
        model(given)
    assert str(values)


@pytest.mark.parametrize("name", ["attention on meta", "given a jagged tensor", "traced in forward"])
def test_a_history_with_gradients_is_shown(name, tmp_path):
    history = torcheer.log_forward_pass(*made(name), save_gradients=True)
    out = history.outputs[0].tensor_contents
    history.log_backward((out.values() if out.is_nested else out).sum())
    assert all(str(one) for one in history.operations)
    history.to_html(tmp_path / "page.html")


def test_a_gradient_through_a_custom_function_is_not_replayed_with_changes():
    history = torcheer.log_forward_pass(Model(differentiated(lambda m, u: Square.apply(u))), x)
    with pytest.raises(torcheer.ReplayFailed, match=r"grad_1_\d+.* gradient through a torch\.autograd\.Function"):
        history.replay(changes={"linear_1": changes.scale(2)})


def test_a_loaded_history_knows_gradients_through_custom_functions(tmp_path):
    history = torcheer.log_forward_pass(Model(differentiated(lambda m, u: Square.apply(u))), x)
    loaded = torcheer.load(history.save(tmp_path / "log.safetensors", params=True))
    assert loaded.validate()
    with pytest.raises(torcheer.ReplayFailed, match="gradient through"):
        loaded.replay(changes={"linear_1": changes.scale(2)})


def test_a_quantised_tensor_with_other_scales_has_other_values():
    def halved(model, t):
        return torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)

    history = torcheer.log_forward_pass(Model(halved), x)
    number = history.operations[1]._number
    history._log.values[number] = torch._make_per_tensor_quantized_tensor(history._log.values[number].int_repr(), 0.2, 0)
    history._log.versions[number] = history._log.values[number]._version
    assert not history.validate()


def test_a_tensor_of_four_bits_has_its_memory():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.quantize_per_channel(torch.ones(4, 4), torch.rand(4) + 0.1, torch.rand(4), 0, torch.quint4x2)
    assert has_memory(packed)


_COMPILES = """
import sys, torch, torcheer
from torch import nn

class Compiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, t):
        return torch.compile(self.fc, backend="eager")(t) * torch.rand(3)

model, x = Compiles(), torch.rand(2, 3)
assert "torch._dynamo" not in sys.modules
torch.manual_seed(0)
history = torcheer.log_forward_pass(model, x)
torch.manual_seed(0)
assert torch.equal(history.outputs[0].tensor_contents, model(x))
print([one.layer_type for one in history.operations], bool(history.validate()))
"""


def test_a_model_that_loads_the_compiler_in_forward_is_logged():
    done = subprocess.run([sys.executable, "-c", _COMPILES], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("['input', 'linear', 'rand', 'mul', 'output'] True")
