"""Generative models: diffusion, variational, adversarial, flows, energies, autoregression."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Buffer, made_with

from .cases import Case


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with activations between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class Unet(nn.Module):
    """A small U-Net with skips, group normalisation and a sinusoidal embedding of time."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.time = mlp(8, 16, channels)
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.norm, self.middle = nn.GroupNorm(2, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.leave = nn.Conv2d(2 * channels, 3, 3, padding=1)

    def embed(self, t: Tensor) -> Tensor:
        frequency = torch.exp(-torch.arange(4) * 2.0).to(self.enter.weight.dtype)
        angle = t[:, None].to(frequency.dtype) * frequency
        return self.time(torch.cat([angle.sin(), angle.cos()], -1))[:, :, None, None]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        top = F.silu(self.enter(x) + self.embed(t))
        low = F.silu(self.down(top))
        low = low + self.middle(F.silu(self.norm(low)))
        return self.leave(torch.cat([F.interpolate(low, scale_factor=2, mode="nearest"), top], 1))


class DiffusionSampling(nn.Module):
    """Ancestral sampling: noise to image in four steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Unet()
        betas = torch.linspace(0.01, 0.3, 4)
        self.register_buffer("betas", betas)
        self.register_buffer("kept", torch.cumprod(1 - betas, 0))

    def forward(self, x: Tensor) -> Tensor:
        for step in reversed(range(4)):
            t = torch.full((len(x),), step)
            noise = self.net(x, t)
            x = (x - self.betas[step] / (1 - self.kept[step]).sqrt() * noise) / (1 - self.betas[step]).sqrt()
            if step > 0:
                x = x + self.betas[step].sqrt() * torch.randn_like(x)
        return x.clamp(-1, 1)


class DiffusionLoss(DiffusionSampling):
    """The training objective, with a random time per image and guidance dropped at random."""

    def forward(self, x: Tensor) -> Tensor:
        t = torch.randint(0, 4, (len(x),))
        noise, kept = torch.randn_like(x), self.kept[t].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        dropped = torch.rand(len(x)) < 0.5
        noisy[dropped] = 0
        return F.mse_loss(self.net(noisy, t), noise)


@made_with(encoder=lambda: mlp(12, 16, 8), decoder=lambda: mlp(4, 16, 12))
def Vae(self, x: Tensor) -> dict[str, Tensor]:
    """A variational autoencoder: reparametrised sample, reconstruction, divergence."""
    mean, log_variance = self.encoder(x).chunk(2, -1)
    z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    made = torch.sigmoid(self.decoder(z))
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1).mean()
    return {"made": made, "z": z, "loss": F.binary_cross_entropy(made, x.sigmoid()) + divergence}


@made_with(encoder=lambda: mlp(12, 16, 8), decoder=lambda: mlp(4, 16, 12))
def DistributionVae(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same with `torch.distributions`."""
    mean, scale = self.encoder(x).chunk(2, -1)
    posterior = torch.distributions.Normal(mean, F.softplus(scale) + 1e-3)
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    z = posterior.rsample()
    likelihood = torch.distributions.Independent(torch.distributions.Bernoulli(logits=self.decoder(z)), 1)
    divergence = torch.distributions.kl_divergence(posterior, prior).sum(-1)
    return z, (divergence - likelihood.log_prob((x > 0).to(x.dtype))).mean()


@made_with(
    encoder=lambda: nn.Conv2d(3, 4, 4, stride=4),
    decoder=lambda: nn.ConvTranspose2d(4, 3, 4, stride=4),
    codes=lambda: Buffer(torch.randn(7, 4)),
)
def VectorQuantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """A codebook with a straight-through gradient, updated by a moving average while training."""
    z = self.encoder(x).permute(0, 2, 3, 1)
    flat = z.reshape(-1, 4)
    index = torch.cdist(flat.float(), self.codes.float()).argmin(-1)
    quantised = F.embedding(index, self.codes).view_as(z)
    if self.training:
        with torch.no_grad():
            one_hot = F.one_hot(index, 7).to(flat.dtype)
            self.codes.lerp_(one_hot.T @ flat / (one_hot.sum(0)[:, None] + 1e-2), 0.1)
    return self.decoder((z + (quantised - z).detach()).permute(0, 3, 1, 2)), F.mse_loss(z, quantised.detach())


@made_with(
    generator=lambda: nn.Sequential(nn.ConvTranspose2d(6, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1), nn.Tanh()),
    critic=lambda: nn.Sequential(nn.Conv2d(3, 8, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8, 1)),
)
def Adversarial(self, real: Tensor) -> tuple[Tensor, Tensor]:
    """One step of both players of a GAN, with their losses."""
    fake = self.generator(torch.randn(len(real), 6, 1, 1, dtype=real.dtype))
    on_real, on_fake = self.critic(real), self.critic(fake.detach())
    judged = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
    return judged, F.softplus(-self.critic(fake)).mean()


class GradientPenalty(Adversarial):
    """A Wasserstein critic whose penalty needs a gradient inside the forward pass."""

    def forward(self, real: Tensor) -> Tensor:
        fake = self.generator(torch.randn(len(real), 6, 1, 1, dtype=real.dtype)).detach()
        with torch.enable_grad():
            between = torch.lerp(real, fake, torch.rand(len(real), 1, 1, 1, dtype=real.dtype)).requires_grad_()
            score = self.critic(between)
            (slope,) = torch.autograd.grad(score.sum(), between, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).pow(2).mean()
        return self.critic(fake).mean() - self.critic(real).mean() + 10 * penalty


@made_with(nets=lambda: nn.ModuleList(mlp(3, 10, 6) for _ in range(3)))
def RealNvp(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Coupling layers, forwards with the determinant, and back."""
    z, log_det = x, x.new_zeros(len(x))
    for net in self.nets:
        a, b = z.chunk(2, -1)
        scale, shift = net(a).chunk(2, -1)
        scale = scale.tanh()
        z, log_det = torch.cat([b * scale.exp() + shift, a], -1), log_det + scale.sum(-1)
    back = z
    for net in reversed(self.nets):
        b, a = back.chunk(2, -1)
        scale, shift = net(a).chunk(2, -1)
        back = torch.cat([a, (b - shift) * (-scale.tanh()).exp()], -1)
    return z, log_det - 0.5 * z.pow(2).sum(-1), back


@made_with(
    weight=lambda: nn.Parameter(torch.linalg.qr(torch.randn(3, 3)).Q),
    shift=lambda: nn.Parameter(torch.zeros(3)),
    log_scale=lambda: nn.Parameter(torch.zeros(3)),
    ready=lambda: Buffer(torch.tensor(False)),
)
def Glow(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """An invertible 1×1 convolution with its determinant, after a data-dependent normalisation of the first batch."""
    if not self.ready:
        self.shift.data.copy_(-x.mean((0, 2, 3)))
        self.log_scale.data.copy_(-x.std((0, 2, 3)).log())
        self.ready.fill_(True)
    x = (x + self.shift.view(1, -1, 1, 1)) * self.log_scale.exp().view(1, -1, 1, 1)
    log_det = torch.linalg.slogdet(self.weight.float()).logabsdet.to(x.dtype) + self.log_scale.sum()
    return F.conv2d(x, self.weight[..., None, None]), log_det * x.shape[-1] * x.shape[-2]


@made_with(energy=lambda: mlp(4, 16, 1))
def Energy(self, x: Tensor) -> Tensor:
    """Samples by Langevin dynamics: the gradient of an energy, in a loop."""
    for _ in range(3):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.energy(x).sum(), x)
        x = x - 0.1 * slope + 0.05 * torch.randn_like(x)
    return self.energy(x.detach())


class MaskedConv(nn.Conv2d):
    """A convolution that sees only what came before."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        mask = torch.ones_like(self.weight)
        mask[:, :, 1, 1:] = 0
        mask[:, :, 2:] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=1)


@made_with(net=lambda: nn.Sequential(MaskedConv(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 1, 1)))
def PixelCnn(self, x: Tensor) -> Tensor:
    """Draws an image pixel by pixel, in place."""
    picture = x.clone()
    for row in range(3):
        for column in range(3):
            p = torch.sigmoid(self.net(picture)[:, :, row, column])
            picture[:, :, row, column] = torch.bernoulli(p)
    return picture


@made_with(embed=lambda: nn.Embedding(8, 6), cell=lambda: nn.GRUCell(6, 6), out=lambda: nn.Linear(6, 8))
def BeamSearch(self, state: Tensor) -> tuple[Tensor, Tensor]:
    """Keeps the three best sentences, reordering its state at every step."""
    scores, tokens = state.new_full((3,), float("-inf")), torch.zeros(3, 1, dtype=torch.long)
    scores[0] = 0
    state = state.expand(3, -1)
    for _ in range(4):
        state = self.cell(self.embed(tokens[:, -1]), state)
        total = (scores[:, None] + self.out(state).log_softmax(-1)).flatten()
        scores, best = total.topk(3)
        parent = best // 8
        tokens = torch.cat([tokens[parent], (best % 8)[:, None]], 1)
        state = state.index_select(0, parent)
    return tokens, scores


def cases() -> list[Case]:
    """Generative models and their sampling procedures."""

    def case(name: str, model: Any, *shape: int, **options: Any) -> Case:
        return Case(f"handwritten/{name}", lambda: (model(), (torch.randn(shape),), {}), **options)

    return [
        Case("handwritten/unet", lambda: (Unet(), (torch.randn(2, 3, 8, 8), torch.tensor([1, 3])), {})),
        case("diffusion_sampling", DiffusionSampling, 2, 3, 8, 8),
        case("diffusion_loss", DiffusionLoss, 2, 3, 8, 8),
        case("vae", Vae, 5, 12),
        case("vae_distributions", DistributionVae, 5, 12),
        case("vector_quantised", VectorQuantised, 2, 3, 8, 8),
        case("gan_step", Adversarial, 4, 3, 4, 4),
        case("gradient_penalty", GradientPenalty, 4, 3, 4, 4),
        case("real_nvp", RealNvp, 5, 6),
        case("glow", Glow, 4, 3, 4, 4),
        case("energy_langevin", Energy, 5, 4),
        case("pixel_cnn", PixelCnn, 2, 1, 5, 5),
        case("beam_search", BeamSearch, 1, 6),
    ]
