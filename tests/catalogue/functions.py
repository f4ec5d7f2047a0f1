"""Functions of a tensor that do what is out of the ordinary: writes, views, transforms, types, what torch computes unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from catalogue.entry import Entry, square
from models import Buffer, autograd_function, made_of


def square_forward(ctx, t):
    ctx.save_for_backward(t)
    return t * t


# Its backward is not the derivative of its forward.
Square = autograd_function("Square", square_forward, lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0])


def gradient_inside_forward(ctx, t):
    with torch.enable_grad():
        inner = t.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((inner**3).sum(), inner)
    ctx.save_for_backward(gradient)
    return gradient


# Differentiates in its own forward.
GradientInside = autograd_function(
    "GradientInside", gradient_inside_forward, lambda ctx, gradient: gradient * ctx.saved_tensors[0]
)


# Calls a module in its forward.
ThroughModule = autograd_function("ThroughModule", lambda ctx, t, module: module(t), lambda ctx, gradient: (gradient * 5, None))


# Computes with NumPy.
ThroughNumpy = autograd_function(
    "ThroughNumpy", lambda ctx, t: torch.from_numpy(t.detach().numpy() ** 2), lambda ctx, gradient: gradient * 7
)


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


def in_place(t):
    y = t.clone()
    row = y[0]
    row.add_(1)
    y[1] = 0.5
    y.mul_(2)
    return y + row.sum()


def uninitialised(t):
    y = torch.empty(4, 3)
    y[:2] = t[:2]
    return y[:2] * 2


def out_argument(t):
    y = torch.empty(4, 3)
    torch.add(t, 1, out=y)
    return y * 2


def several(t):
    values, where = t.sort(-1)
    first, *rest = values.unbind(-1)
    return torch.stack([first, *rest]), where


def own_generator(t):
    draw = torch.Generator().manual_seed(3)
    return t + torch.rand(t.shape, generator=draw) + torch.rand(t.shape, generator=draw)


def autocast(t):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (t @ t.t()).float()


def other_defaults(t):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        nowhere = torch.ones(4, 3)
    finally:
        torch.set_default_device(None)
    try:
        return t + torch.ones(4, 3) + torch.arange(3) / 2, nowhere
    finally:
        torch.set_default_dtype(before)


def made_parameter(t):
    weight = nn.Parameter(t * 1)
    with torch.no_grad():
        weight.add_(1)
    return weight * 2


def attention(t):
    weights, eye = torch.rand(12, 4), torch.eye(4)
    return F.multi_head_attention_forward(t, t, t, 4, 2, weights, None, None, None, False, 0.1, eye, None)[0]


def found_by_index(t):
    total = t.sum()
    for index in (t < 0).nonzero():
        total = total + t[tuple(index)].sum()
    return total


def written_over_a_graph(t):
    made = torch.tanh(t * 2)
    with torch.no_grad():
        torch.add(made, 1, out=made)
    return made + 1


def resized(t):
    y = t.clone()
    y.resize_(2, 2)
    return y.reshape(-1) * 2


def idle_writes(t):
    t = t * 2
    t.data = t.data
    F.dropout(t, 0.5, training=False, inplace=True)
    return t.resize_(4, 3).add_(0)


def without_autocast(t):
    with torch.autocast("cpu", enabled=False):
        y = t @ t.t()
    return y @ y


def quantised(t, dtype=torch.quint8):
    return torch.quantize_per_tensor(t, 0.1, 3, dtype)


def per_channel(t, dtype=torch.quint8):
    return torch.quantize_per_channel(t, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.0, 1.0]), 1, dtype)


def traced_function(t):
    return t.sin() * 2


def tangent(t):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(torch.tanh(forward_ad.make_dual(t, torch.ones_like(t)))).tangent


def remembered_in_a_new_buffer(t):
    inner = nn.Module()
    inner.register_buffer("scale", torch.tensor(t.detach().numpy().mean()))
    inner.forward = lambda b: b * inner.scale
    return inner(t)


def detached_in_place(t):
    made = t * 2
    row = made[0]
    made.detach_()
    return made + 1, row * 3


def overwritten_through_views(t):
    y = t * 2
    half = y[:2]
    half.mul_(3)
    z = y + 1
    y.copy_(z)
    return torch.relu_(y) + half.sum()


def fakes_tensors(t):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        width = (mode.from_tensor(t) @ torch.empty(3, 2)).shape[1]
    return t * width


def in_inference_mode(t):
    with torch.inference_mode():
        y = torch.softmax(t, -1)
        y[0] = 0
    return y.clone() + t


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    one.__name__.replace("_", " "): one
    for one in (
        *(in_place, uninitialised, out_argument, several, own_generator, autocast, other_defaults),
        *(made_parameter, found_by_index, written_over_a_graph, resized, idle_writes, without_autocast, tangent),
        *(remembered_in_a_new_buffer, detached_in_place, overwritten_through_views, in_inference_mode),
    )
} | {
    "strange numbers": lambda t: ((t - t) / (t - t), torch.log(t - 1), -0.0 * t),
    "complex numbers": lambda t: torch.fft.ifft(torch.fft.fft(t) * 1j).real,
    "sparse product": lambda t: torch.sparse.mm(t.t().to_sparse(), t),
    "packed sequence": lambda t: nn.utils.rnn.pack_padded_sequence(t[None], [3], batch_first=True).data * 2,
    "quantised": lambda t: quantised(t).dequantize() + 1,
    "draws": lambda t: F.dropout(t, 0.5) + torch.rand_like(t) + torch.randn(3),
    "sum by NumPy": lambda t: t.detach().numpy().sum() + t,
    "memory of NumPy": lambda t: torch.from_numpy(t.detach().numpy()).reshape(-1) * 2,
    "part of data": lambda t: t.data.view(-1)[1:].relu(),
    "sparse and back": lambda t: t.to_sparse().to_dense(),
    "strided": lambda t: torch.as_strided(t, (2, 2), (4, 1), 1) * 2,
    "GRU made in forward": lambda t: nn.GRU(3, 4)(t)[0],
    "gumbel": lambda t: F.gumbel_softmax(t),
    "einsum": lambda t: torch.einsum("ij,kj->ik", t, t),
    "new zeros": lambda t: t.new_zeros(4) + t[:, 0],
    "where": lambda t: torch.where(t > 0, t, -t),
    "chosen by values": lambda t: t[t > 0.5] * 2,
    "fakes tensors": fakes_tensors,
    "no tensor returned": lambda t: 3,
    "returned as it is": lambda t: t,
    "uninitialised output": lambda t: (t + 1, torch.empty(0)),
    "cumsum of rows": lambda t: torch.vmap(torch.cumsum, in_dims=(0, None))(t, 0),
    "module inside a transform": lambda t: vmap(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))(t[None] + torch.zeros(2, 1, 1)),
    "hessian of a row": lambda t: hessian(lambda row: torch.sin(row).pow(3).sum())(t[0]),
    "numbers of stored values": lambda t: t * torch.relu(t.detach() - 0.5).to_sparse()._nnz(),
    "quantised, zero points of floating point": lambda t: per_channel(t).dequantize(),
    "quantised output, zero points of floating point": per_channel,
    "weight of few bits made": lambda t: F.linear(t, few_bits()),
    "weight of few bits returned": lambda t: few_bits(),
    "masked tensor": lambda t: torch.masked.masked_tensor(t, t > 0) * 2,
    "nested": lambda t: torch.nested.nested_tensor([t, t[:2]]) * 2,
    "function traced in forward": lambda t: torch.jit.trace(traced_function, t)(t),
}


def parts() -> dict[str, Any]:
    """What the modules hold whose forward is one of the functions that follow."""
    return {
        "fc": nn.Linear(3, 3),
        "weight": nn.Parameter(torch.rand(4, 3)),
        "table": Buffer(torch.ones(4, 3)),
        "net": nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
    }


def without_gradients(write):
    def forward(self, t):
        with torch.no_grad():
            write(self, t)
        return self.fc(t) * self.weight

    return forward


def row_taken_with_gradients(self, t):
    row = self.weight[0]
    with torch.no_grad():
        row.add_(1)
    return self.fc(t) * self.weight


def views_of_written(views, write):
    def forward(self, t):
        y = self.fc(t)
        with torch.no_grad():
            parts = views(y)
            write(y, parts)
            total = sum(part.sum() for part in parts)
        return y + total

    return forward


def differentiated(function, *, again=False):
    def forward(self, t):
        with torch.enable_grad():
            u = self.fc(t).detach().requires_grad_()
            (gradient,) = torch.autograd.grad(function(self, u).sum(), u, create_graph=again)
            if again and gradient.requires_grad:
                (gradient,) = torch.autograd.grad((gradient * gradient).sum(), u)
        return gradient + u

    return forward


def steps_down(self, t):
    """Langevin dynamics in an energy that has a custom function in it."""
    for _ in range(3):
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(Square.apply(self.fc(t)).sum(), t)
        t = t - 0.1 * gradient
    return t


def observed(self, t):
    one, none = torch.tensor([1]), torch.tensor([0], dtype=torch.int32)
    table = self.table
    return torch.fused_moving_avg_obs_fake_quant(t, one, one, table[0, :1], table[1, :1], table[2, :1], none, 0.1, 0, 255, 0)


def products(self, t):
    out, back = vjp(self.net, t)
    return back(torch.ones_like(out))[0], jvp(self.net, (t,), (torch.ones_like(t),))[1]


def by_functional_call(self, t):
    params = dict(self.net.named_parameters())
    return vmap(grad(lambda p, row: functional_call(self.net, p, (row,)).sum()), in_dims=(None, 0))(params, t)["0.weight"].sum(
        0
    )


def in_two_transforms(self, t):
    return torch.vmap(self.fc)(t).sum() + grad(lambda a: self.fc(a).sum())(t[0]).sum()


FORWARDS: dict[str, Callable[[Any, Tensor], Any]] = {
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
    "custom function of a layer": lambda m, t: Square.apply(m.fc(t)),
    "custom function, differentiated": differentiated(lambda m, u: Square.apply(u)),
    "custom function, differentiated twice": differentiated(lambda m, u: Square.apply(u), again=True),
    "gradient inside a custom function": differentiated(lambda m, u: GradientInside.apply(u)),
    "custom function around a module": differentiated(lambda m, u: ThroughModule.apply(u, m.fc)),
    "custom function of NumPy": differentiated(lambda m, u: ThroughNumpy.apply(u)),
    "steps in an energy": steps_down,
    "fused observer": observed,
    "traced in forward": lambda m, t: torch.jit.trace(m.fc, t, check_trace=False)(t),
    "traced and checked in forward": lambda m, t: torch.jit.trace(m.fc, t)(t),
    "scripted in forward": lambda m, t: torch.jit.script(m.fc)(t),
    "compiled in forward": lambda m, t: torch.compile(m.fc, backend="eager")(t),
    "exported in forward": lambda m, t: torch.export.export(m.fc, (t,), strict=False).module()(t),
    "products with derivatives": products,
    "parameters handed over": by_functional_call,
    "one layer in two transforms": in_two_transforms,
    "linearised": lambda m, t: linearize(m.net, t)[1](torch.ones_like(t)),
    **{
        f"{one.__name__} of a model": lambda m, t, one=one: one(lambda b: m.net(b).sum())(t[0])
        for one in (jacrev, jacfwd, hessian, grad)
    },
}


def attends_causally(q):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], q.shape[2], device="cpu")
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j), block_mask=mask)


def attends_with_bias(self, q):
    return flex_attention(self.project(q), q, q, score_mod=lambda score, b, h, i, j: score + self.bias[h])


def queries() -> Tensor:
    return torch.randn(1, 2, 8, 16)


ENTRIES = {
    **{name: Entry(lambda function=function: function) for name, function in FUNCTIONS.items()},
    **{name: Entry(lambda forward=forward: made_of(forward, **parts())) for name, forward in FORWARDS.items()},
    "attention written out": Entry(lambda: attention, square),
    "gradient of the input": Entry(
        lambda: lambda t: torch.autograd.grad((t**2).sum(), t)[0], lambda: torch.rand(3, requires_grad=True)
    ),
    "written over the graph of the input": Entry(lambda: written_over_a_graph, lambda: torch.rand(4, 3, requires_grad=True)),
    "flex attention": Entry(lambda: lambda q: flex_attention(q, q, q), queries),
    "causal flex attention": Entry(lambda: attends_causally, queries),
    "biased flex attention": Entry(
        lambda: made_of(
            attends_with_bias, project=nn.Linear(16, 16).requires_grad_(False), bias=Buffer(torch.tensor([0.5, 1.0]))
        ),
        queries,
    ),
}
