"""Models whose backward pass reads state that the forward pass changed. Needs torch alone."""

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint


class Times(torch.autograd.Function):
    """Keeps what it is given on `ctx`, past autograd."""

    @staticmethod
    def forward(ctx, t, factor):
        ctx.factor = factor
        return t * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Layer(nn.Module):
    """A layer, a buffer, a number and a list, all of which the pass changes."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.by = 1
        self.seen = []

    def change(self):
        self.scale.mul_(2)
        self.by = 3
        self.seen.append(5.0)


class Checkpointed(Layer):
    def __init__(self, reentrant, **options):
        super().__init__()
        self.options = {"use_reentrant": reentrant, **options}

    def run(self, t):
        return checkpoint(self.block, t, **self.options)


class ReadsState(Checkpointed):
    def block(self, t):
        return torch.tanh(self.fc(t)) * self.scale * self.by * self.seen[0]

    def forward(self, t):
        self.change()
        return self.run(t).sum(1)


class ReplacesBuffer(Checkpointed):
    def block(self, t):
        return torch.tanh(self.fc(t)) * self.scale

    def forward(self, t):
        self.scale = self.scale + self.fc(t)
        return self.run(t)


class FillsCache(Checkpointed):
    def __init__(self, reentrant):
        super().__init__(reentrant)
        self.register_buffer("cache", torch.zeros(3, 4))

    def block(self, t):
        return torch.tanh(self.fc(t)) * self.cache

    def forward(self, t):
        self.cache[:2].copy_(self.fc(t)[:2])
        return self.run(t)


class Drops(Checkpointed):
    def block(self, t):
        return nn.functional.dropout(torch.tanh(self.fc(t)))

    def forward(self, t):
        return self.run(nn.functional.dropout(t))


class Normalises(Checkpointed):
    def __init__(self, reentrant):
        super().__init__(reentrant)
        self.norm = nn.BatchNorm1d(4)

    def block(self, t):
        return self.norm(self.fc(t)).tanh() * self.norm.running_var * self.norm.num_batches_tracked

    def forward(self, t):
        return self.run(t)


class GivesOtherMemory(Checkpointed):
    def block(self, t):
        return self.fc(t)

    def forward(self, t):
        self.fc.weight.data = self.fc.weight.data * 2
        self.fc.bias.data.mul_(3)
        return self.run(t) * self.fc.weight.sum()


class KeepsOnContext(Layer):
    def forward(self, t):
        self.change()
        return {"scaled": Times.apply(self.fc(t), self.scale), "plain": (self.fc(t), self.scale)}


class HooksResult(Layer):
    def __init__(self, is_last):
        super().__init__()
        self.is_last = is_last

    def forward(self, t):
        self.change()
        y = self.fc(t)
        y.register_hook(lambda gradient: gradient * self.scale * self.by * self.seen[0])
        return y if self.is_last else y.tanh()


class HooksParameters(Layer):
    def forward(self, t):
        self.fc.weight.register_hook(lambda gradient: gradient * 2)
        self.fc.bias.register_post_accumulate_grad_hook(self.triple)
        return self.fc(t)

    def triple(self, bias):
        bias.grad.mul_(3)


class HooksItself(Layer):
    """Reads attributes in a hook that was there before the pass."""

    def __init__(self):
        super().__init__()
        self.register_full_backward_hook(lambda module, made, given: (made[0] * module.by * module.scale,))

    def forward(self, t):
        self.change()
        return self.fc(t)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, t):
        self.scale.add_(1)
        return torch.tanh(t * self.scale) * self.scale


class ReversibleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, blocks):
        with torch.no_grad():
            for block in blocks:
                t = block(t)
        ctx.made, ctx.blocks = t.detach(), blocks
        return t

    @staticmethod
    def backward(ctx, gradient):
        made = ctx.made
        for block in reversed(ctx.blocks):
            made, gradient = block.undo(made, gradient)
        return gradient, None


class ReversibleBlock(nn.Module):
    """Keeps random states in the forward pass, and works out its input from its output in the backward pass."""

    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)), nn.Linear(2, 2)
        self.states = {}

    def forward(self, t):
        one, two = t.chunk(2, 1)
        self.states["f"] = torch.get_rng_state()
        one = one + self.f(two)
        return torch.cat([one, two + self.g(one)], 1)

    def undo(self, made, gradient):
        (one, two), (d_one, d_two) = made.chunk(2, 1), gradient.chunk(2, 1)
        with torch.enable_grad():
            one = one.detach().requires_grad_()
            g = self.g(one)
            g.backward(d_two)
            two = (two - g).detach().requires_grad_()
            now = torch.get_rng_state()
            torch.set_rng_state(self.states["f"])
            f = self.f(two)
            torch.set_rng_state(now)
            f.backward(d_one + one.grad)
        with torch.no_grad():
            return torch.cat([one - f, two], 1).detach(), torch.cat([d_one + one.grad, d_two + two.grad], 1)


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.blocks = nn.Linear(4, 4), nn.ModuleList([ReversibleBlock(), ReversibleBlock()])

    def forward(self, t):
        return ReversibleFunction.apply(self.fc(t), list(self.blocks))


MODELS = {
    f"{made.__name__}-{reentrant}": lambda made=made, reentrant=reentrant: made(reentrant)
    for made in (ReadsState, ReplacesBuffer, FillsCache, Drops, Normalises, GivesOtherMemory)
    for reentrant in (True, False)
} | {
    "random states not kept": lambda: Drops(True, preserve_rng_state=False),
    "random states not kept, not reentrant": lambda: Drops(False, preserve_rng_state=False),
    "kept on ctx": KeepsOnContext,
    "hook": lambda: HooksResult(is_last=False),
    "hook of the output": lambda: HooksResult(is_last=True),
    "hooks of parameters": HooksParameters,
    "hook of a module": HooksItself,
    "scripted": lambda: nn.Sequential(nn.Linear(4, 4), torch.jit.script(Scripted()), nn.Linear(4, 4)),
    "reversible": Reversible,
}


def loss_of(outputs):
    return sum(one.square().mean() for one in tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.requires_grad)
