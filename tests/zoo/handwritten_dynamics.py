"""Dynamics, signals and space: differential equations, fixed points, spikes, spectra, rendering."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Buffer, made_with

from .cases import FLOAT32, Case
from .handwritten_generative import mlp


@made_with(field=lambda: mlp(3, 8, 3))
def NeuralOde(self, x: Tensor) -> Tensor:
    """Integrates a learnt field with the classical Runge-Kutta method."""
    path, h = [x], 0.25
    for _ in range(4):
        k1 = self.field(x)
        k2 = self.field(x + h / 2 * k1)
        k3 = self.field(x + h / 2 * k2)
        k4 = self.field(x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(x)
    return torch.stack(path)


class AdaptiveOde(nn.Module):
    """Chooses its steps by the error it estimates, and stops when the time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.field = mlp(4, 8, 3)

    def slope(self, x: Tensor, t: Tensor) -> Tensor:
        return 3 * self.field(torch.cat([x, t.to(x.dtype).expand(len(x), 1)], -1))

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        t, h, tries = torch.zeros(()), torch.tensor(0.5), 0
        while t < 1 and tries < 20:
            low = self.slope(x, t)
            high = self.slope(x + h * low, t + h)
            error = (h * (high - low) / 2).abs().max().float()
            if error < 0.2:
                x, t = x + h * (low + high) / 2, t + h
            h = torch.minimum(h * (0.2 / (error + 1e-6)).sqrt().clamp(0.3, 1.5), (1 - t).clamp(min=1e-3))
            tries += 1
        return x, tries


class Equilibrium(nn.Module):
    """Iterates to a fixed point without a graph, then once with one."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(5, 5), nn.Linear(3, 5)
        nn.init.orthogonal_(self.inside.weight, gain=0.4)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        z = x.new_zeros(len(x), 5)
        with torch.no_grad():
            for steps in range(30):  # noqa: B007
                new = torch.tanh(self.inside(z) + self.outside(x))
                if torch.allclose(new, z, atol=1e-2):
                    break
                z = new
        return torch.tanh(self.inside(z) + self.outside(x)), steps


@made_with(energy=lambda: mlp(4, 8, 1))
def Hamiltonian(self, state: Tensor) -> Tensor:
    """Moves along the derivatives of a learnt energy."""
    with torch.enable_grad():
        for _ in range(3):
            state = state if state.requires_grad else state.clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.energy(state).sum(), state, create_graph=True)
            dq, dp = slope.chunk(2, -1)
            state = state + 0.1 * torch.cat([dp, -dq], -1)
    return state


@made_with(net=lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
def PhysicsInformed(self, where: Tensor, when: Tensor) -> Tensor:
    """The residual of a heat equation: first and second derivatives of the network."""
    with torch.enable_grad():
        x, t = where.clone().requires_grad_(), when.clone().requires_grad_()
        u = self.net(torch.cat([x, t], -1))
        ux, ut = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (uxx,) = torch.autograd.grad(ux.sum(), x, create_graph=True)
    return (ut - 0.1 * uxx).pow(2).mean()


class Spike(torch.autograd.Function):
    """A step forwards, a smooth slope backwards."""

    @staticmethod
    def forward(ctx: Any, potential: Tensor) -> Tensor:
        ctx.save_for_backward(potential)
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (potential,) = ctx.saved_tensors
        return slope / (1 + 10 * potential.abs()) ** 2


@made_with(enter=lambda: nn.Linear(6, 8), leave=lambda: nn.Linear(8, 3))
def Spiking(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Leaky neurons that fire and reset, over six time steps."""
    potential, count = x.new_zeros(len(x), 8), x.new_zeros(len(x), 3)
    spikes = []
    for _ in range(6):
        potential = 0.8 * potential + self.enter(torch.bernoulli(x.sigmoid()))
        spike = Spike.apply(potential - 0.5)
        potential = potential * (1 - spike)
        count += self.leave(spike)
        spikes.append(spike)
    return count / 6, torch.stack(spikes).mean(0)


@made_with(
    weight=lambda: nn.Parameter(torch.randn(3, 3, 4, dtype=torch.cfloat) / 3),
    lift=lambda: nn.Conv1d(1, 3, 1),
    drop=lambda: nn.Conv1d(3, 1, 1),
)
def FourierOperator(self, x: Tensor) -> Tensor:
    """Convolution with complex weights on the lowest frequencies."""
    y = self.lift(x)
    spectrum = torch.fft.rfft(y)
    low = torch.zeros_like(spectrum)
    low[..., :4] = torch.einsum("bif,iof->bof", spectrum[..., :4], self.weight)
    return self.drop(F.gelu(torch.fft.irfft(low, n=x.shape[-1]) + y))


@made_with(norm=lambda: nn.LayerNorm(6), feed=lambda: mlp(6, 12, 6))
def FourierMixing(self, x: Tensor) -> Tensor:
    """Mixes tokens by a two-dimensional Fourier transform."""
    for _ in range(2):
        x = self.norm(x + torch.fft.fft2(x.float()).real.to(x.dtype))
        x = self.norm(x + self.feed(x))
    return x


@made_with(mask=lambda: nn.Conv1d(9, 9, 3, padding=1), window=lambda: Buffer(torch.hann_window(16)))
def Vocoder(self, sound: Tensor) -> Tensor:
    """Masks a spectrogram and turns it back into sound."""
    spectrum = torch.stft(sound, 16, 8, window=self.window, return_complex=True)
    loud, phase = spectrum.abs(), spectrum.angle()
    masked = torch.polar(loud * torch.sigmoid(self.mask(torch.log1p(loud))), phase)
    return torch.istft(masked, 16, 8, window=self.window, length=sound.shape[-1])


class StateSpace(nn.Module):
    """A diagonal complex state space, as a convolution and as a recurrence, which agree."""

    def __init__(self) -> None:
        super().__init__()
        self.log_decay, self.angle = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4) * 3)
        self.b, self.c = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(4, 2))

    def forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.exp(torch.complex(-self.log_decay.exp(), self.angle))
        b, c = torch.view_as_complex(self.b), torch.view_as_complex(self.c)
        kernel = ((c * b)[:, None] * a[:, None] ** torch.arange(u.shape[-1])).sum(0).real
        length = 2 * u.shape[-1]
        convolved = torch.fft.irfft(torch.fft.rfft(u, length) * torch.fft.rfft(kernel, length), length)[..., : u.shape[-1]]
        state, steps = torch.zeros(len(u), 4, dtype=torch.cfloat), []
        for step in u.unbind(-1):
            state = a * state + b * step[:, None]
            steps.append((state * c).sum(-1).real)
        return convolved, torch.stack(steps, -1)


class SelectiveScan(nn.Module):
    """A state space whose step sizes depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.log_a, self.delta, self.bc = nn.Parameter(torch.rand(4, 3)), nn.Linear(4, 4), nn.Linear(4, 6)
        self.conv = nn.Conv1d(4, 4, 3, padding=2, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv(x.mT)[..., : x.shape[1]].mT)
        delta, (b, c) = F.softplus(self.delta(x)), self.bc(x).chunk(2, -1)
        decay = torch.exp(-delta[..., None] * self.log_a.exp())
        drive = (delta * x)[..., None] * b[:, :, None]
        state, outputs = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            outputs.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
        return torch.stack(outputs, 1)


@made_with(
    gates=lambda: nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**i) for i in range(3)),
    mixes=lambda: nn.ModuleList(nn.Conv1d(4, 8, 1) for _ in range(3)),
)
def WaveNet(self, x: Tensor) -> Tensor:
    """Dilated causal convolutions with gates and skips."""
    skips: Tensor | int = 0
    for depth, (gate, mix) in enumerate(zip(self.gates, self.mixes, strict=True)):
        a, b = gate(F.pad(x, (2**depth, 0))).chunk(2, 1)
        residual, skip = mix(a.tanh() * b.sigmoid()).split(4, 1)
        x, skips = x + residual, skips + skip
    return F.relu(skips)


@made_with(
    locate=lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6)),
    bend=lambda: nn.Conv2d(1, 2, 3, padding=1),
)
def SpatialTransformer(self, x: Tensor) -> Tensor:
    """Predicts an affine map, and bends the grid a little more."""
    grid = F.affine_grid(self.locate(x).view(-1, 2, 3), list(x.shape), align_corners=False)
    grid = grid + 0.1 * self.bend(x).permute(0, 2, 3, 1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


@made_with(net=lambda: mlp(3 + 3 * 2 * 3, 16, 4))
def RadianceField(self, origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Positional encoding, densities along rays, and compositing."""
    depth = torch.linspace(0.5, 2, 6, dtype=origin.dtype) + torch.rand(len(origin), 6, dtype=origin.dtype) / 6
    points = origin[:, None] + depth[..., None] * direction[:, None]
    waves = [f(points * 2.0**octave * math.pi) for octave in range(3) for f in (torch.sin, torch.cos)]
    color, density = self.net(torch.cat([points, *waves], -1)).split([3, 1], -1)
    step = torch.diff(depth, append=depth[:, -1:] + 1)
    alpha = 1 - torch.exp(-F.relu(density.squeeze(-1)) * step)
    alive = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6], -1), -1)[:, :-1]
    return (alpha * alive)[..., None].mul(color.sigmoid()).sum(1), (alpha * alive * depth).sum(1)


class Automaton(nn.Module):
    """A neural cellular automaton with fixed filters and cells that wake at random."""

    def __init__(self) -> None:
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
        filters = torch.stack([sobel, sobel.T, F.pad(torch.ones(1, 1), (1, 1, 1, 1))])
        self.register_buffer("filters", filters.repeat(4, 1, 1)[:, None])
        self.update = nn.Sequential(nn.Conv2d(12, 16, 1), nn.ReLU(), nn.Conv2d(16, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            change = self.update(F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), self.filters, groups=4))
            awake = torch.rand_like(x[:, :1]) < 0.5
            x = x + change * awake
            x = x * (F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1)
        return x


def cases() -> list[Case]:
    """Dynamics on a few points and steps; complex numbers have no bfloat16."""

    def case(name: str, model: Any, *shapes: tuple[int, ...], **options: Any) -> Case:
        return Case(f"handwritten/{name}", lambda: (model(), tuple(torch.randn(shape) for shape in shapes), {}), **options)

    return [
        case("neural_ode", NeuralOde, (4, 3)),
        case("neural_ode_adaptive", AdaptiveOde, (4, 3)),
        case("deep_equilibrium", Equilibrium, (4, 3)),
        case("hamiltonian", Hamiltonian, (4, 4)),
        case("physics_informed", PhysicsInformed, (5, 1), (5, 1)),
        case("spiking", Spiking, (3, 6)),
        case("fourier_operator", FourierOperator, (2, 1, 16), dtypes=FLOAT32),
        case("fourier_mixing", FourierMixing, (2, 5, 6)),
        case("vocoder", Vocoder, (2, 64), dtypes=FLOAT32),
        case("state_space", StateSpace, (2, 8), dtypes=FLOAT32),
        case("selective_scan", SelectiveScan, (2, 6, 4)),
        case("wavenet", WaveNet, (2, 4, 12)),
        case("spatial_transformer", SpatialTransformer, (2, 1, 8, 8)),
        case("radiance_field", RadianceField, (5, 3), (5, 3)),
        case("cellular_automaton", Automaton, (2, 4, 6, 6)),
    ]
