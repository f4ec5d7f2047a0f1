"""Learning inside the forward pass: policies, losses, gradients of gradients, optimizers, function transforms."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from models import made_with

from .cases import BOTH, FLOAT32, TRAIN, Case
from .handwritten_generative import mlp


@made_with(body=lambda: mlp(4, 16, 8), policy=lambda: nn.Linear(8, 3), value=lambda: nn.Linear(8, 1))
def ActorCritic(self, state: Tensor) -> dict[str, Tensor]:
    """Samples actions from a categorical policy and scores them."""
    features = F.relu(self.body(state))
    choice = torch.distributions.Categorical(logits=self.policy(features))
    action = choice.sample()
    advantage = torch.rand(len(state)) - self.value(features).squeeze(-1)
    loss = -(choice.log_prob(action) * advantage.detach()).mean() + advantage.pow(2).mean() - 0.01 * choice.entropy().mean()
    return {"action": action, "loss": loss}


@made_with(policy=lambda: mlp(2, 8, 2))
def Episode(self, state: Tensor) -> Tensor:
    """A policy that plays a game until it ends: the length depends on what it does."""
    rewards, logs = [], []
    for _ in range(8):
        choice = torch.distributions.Categorical(logits=self.policy(state))
        action = choice.sample()
        state = state + torch.stack([action.to(state.dtype) - 0.5, torch.ones_like(state[1])])
        logs.append(choice.log_prob(action))
        rewards.append(-state.abs()[0])
        if state[0].abs().item() > 1.2:
            break
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    return -(torch.stack(logs) * returns).sum()


@made_with(policy=lambda: mlp(4, 16, 4), critics=lambda: nn.ModuleList(mlp(6, 8, 1) for _ in range(2)))
def Gaussian(self, state: Tensor) -> tuple[Tensor, Tensor]:
    """A squashed Gaussian policy, as in soft actor-critic, with two critics."""
    mean, log_scale = self.policy(state).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_scale.clamp(-5, 2).exp())
    raw = normal.rsample()
    action = raw.tanh()
    log = normal.log_prob(raw).sum(-1) - (1 - action.pow(2) + 1e-6).log().sum(-1)
    value = torch.min(*(critic(torch.cat([state, action], -1)) for critic in self.critics))
    return action, (0.2 * log - value.squeeze(-1)).mean()


class DeepQ(nn.Module):
    """A temporal-difference loss against a frozen copy that follows slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.online = mlp(4, 16, 3)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, state: Tensor, following: Tensor) -> Tensor:
        action = self.online(state).argmax(-1, keepdim=True)
        value = self.online(state).gather(-1, action)
        with torch.no_grad():
            best = self.target(following).max(-1, keepdim=True).values
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        return F.smooth_l1_loss(value, 0.5 + 0.9 * best)


@made_with(policy=lambda: mlp(4, 8, 3))
def ClippedPolicy(self, state: Tensor) -> Tensor:
    """Several epochs of a clipped policy loss over shuffled minibatches."""
    old = torch.distributions.Categorical(logits=self.policy(state).detach())
    action, losses = old.sample(), []
    for part in torch.randperm(len(state)).split(3):
        new = torch.distributions.Categorical(logits=self.policy(state[part]))
        ratio = (new.log_prob(action[part]) - old.log_prob(action)[part]).exp()
        advantage = state[part].sum(-1)
        losses.append(-torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean())
    return torch.stack(losses)


class TrainingStep(nn.Module):
    """A whole training step: forward, backward, an optimizer, forward again."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = optimizer(self.net.parameters(), lr=0.1, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(x), torch.arange(len(x)) % 2)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
        return loss, self.net(x)


@made_with(net=lambda: mlp(2, 8, 1))
def MetaLearning(self, support: Tensor, query: Tensor) -> Tensor:
    """Two inner steps with gradients through them, on functional parameters."""
    fast = dict(self.net.named_parameters())
    with torch.enable_grad():
        for _ in range(2):
            loss = torch.func.functional_call(self.net, fast, support).pow(2).mean()
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: p - 0.1 * slope for (name, p), slope in zip(fast.items(), slopes, strict=True)}
    return torch.func.functional_call(self.net, fast, query)


@made_with(encoder=lambda: mlp(6, 12, 5))
def Siamese(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """One encoder on two and on three inputs: contrastive and triplet losses."""
    a, b = F.normalize(self.encoder(one), dim=-1), F.normalize(self.encoder(other), dim=-1)
    contrast = F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))
    return contrast, F.triplet_margin_loss(a, b, b.roll(1, 0))


@made_with(net=lambda: nn.Linear(5, 6))
def Losses(self, x: Tensor) -> dict[str, Tensor]:
    """Many losses of one pair of predictions, the last a sum of all."""
    y = self.net(x)
    label = torch.arange(len(x)) % 6
    made = {
        "cross_entropy": F.cross_entropy(y, label, label_smoothing=0.1),
        "nll": nn.NLLLoss()(y.log_softmax(-1), label),
        "focal": ((1 - y.softmax(-1)) ** 2 * -y.log_softmax(-1)).mean(),
        "huber": F.huber_loss(y, torch.zeros_like(y)),
        "kl": F.kl_div(y.log_softmax(-1), torch.full_like(y, 1 / 6), reduction="batchmean"),
        "hinge": F.multi_margin_loss(y.float(), label),
        "cosine": F.cosine_embedding_loss(y, y.flip(0), torch.ones(len(y), dtype=y.dtype)),
    }
    return {**made, "all": sum(made.values())}


@made_with(net=lambda: nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 6, 1)))
def Speech(self, sound: Tensor) -> Tensor:
    """A connectionist temporal loss over an acoustic model."""
    logs = self.net(sound).permute(2, 0, 1).float().log_softmax(-1)
    words, lengths = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2])
    return F.ctc_loss(logs, words, torch.full((2,), logs.shape[0]), lengths)


@made_with(
    blocks=lambda: nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)),
    tail=lambda: nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(4))),
)
def Checkpointed(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks whose insides are computed again for the backward pass, which runs here too."""
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        x = start
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x = checkpoint_sequential(self.tail, 2, x, use_reentrant=False)
        (slope,) = torch.autograd.grad(x.sum(), start)
    return x, slope


@made_with(net=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
def FunctionTransforms(self, x: Tensor) -> dict[str, Any]:
    """Gradients per sample, a Jacobian, a directional derivative and a vectorised distance."""
    parameters = {name: p.detach() for name, p in self.net.named_parameters()}

    def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(self.net, values, row).pow(2).sum()

    distance = torch.vmap(torch.vmap(lambda a, b: (a - b).norm(), (None, 0)), (0, None))
    return {
        "slopes": torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x),
        "jacobian": torch.vmap(torch.func.jacrev(self.net))(x),
        "along": torch.func.jvp(self.net, (x,), (torch.ones_like(x),))[1],
        "distance": distance(x, x),
    }


@made_with(members=lambda: nn.ModuleList(mlp(4, 6, 2) for _ in range(3)))
def Ensemble(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Three networks as one, by stacked parameters and `vmap`."""
    parameters, buffers = torch.func.stack_module_state(list(self.members))
    run = lambda p, b, row: torch.func.functional_call(self.members[0], (p, b), (row,))
    made = torch.vmap(run, (0, 0, None), randomness="different")(parameters, buffers, x)
    return made.mean(0), made.var(0)


@made_with(low=lambda: nn.Conv2d(3, 4, 3), norm=lambda: nn.BatchNorm2d(4), high=lambda: nn.Linear(4, 2))
def MixedPrecision(self, x: Tensor) -> Tensor:
    """Part of the network under autocast, part of it outside."""
    with torch.autocast("cpu", torch.bfloat16):
        x = F.relu(self.norm(self.low(x)))
        pooled = x.mean((2, 3))
    return self.high(pooled.to(self.high.weight.dtype))


@made_with(net=lambda: mlp(3, 6, 1))
def Curvature(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """A Hessian, a vector-Jacobian product and a second derivative by autograd's functions."""
    hessian = torch.autograd.functional.hessian(lambda v: self.net(v).sum(), x)
    return hessian, torch.autograd.functional.vjp(self.net, x, torch.ones(len(x), 1, dtype=x.dtype))[1]


def cases() -> list[Case]:
    """Learning procedures, each as one forward pass."""

    def case(name: str, model: Any, *shapes: tuple[int, ...], **options: Any) -> Case:
        return Case(f"handwritten/{name}", lambda: (model(), tuple(torch.randn(shape) for shape in shapes), {}), **options)

    found = [
        case("actor_critic", ActorCritic, (5, 4)),
        case("episode_of_a_policy", Episode, (2,)),
        case("gaussian_policy", Gaussian, (5, 4)),
        case("deep_q", DeepQ, (5, 4), (5, 4)),
        case("clipped_policy", ClippedPolicy, (7, 4)),
        case("meta_learning", MetaLearning, (5, 2), (4, 2)),
        case("siamese", Siamese, (4, 6), (4, 6)),
        case("losses", Losses, (7, 5)),
        case("ctc_loss", Speech, (2, 4, 9)),
        case("checkpointed_blocks", Checkpointed, (3, 5)),
        case("function_transforms", FunctionTransforms, (4, 3)),
        case("ensemble_by_vmap", Ensemble, (5, 4)),
        case("autocast_inside", MixedPrecision, (2, 3, 8, 8), dtypes=FLOAT32),
        case("curvature", Curvature, (3, 3)),
    ]
    optimizers = {
        "sgd": (torch.optim.SGD, {"momentum": 0.9}),
        "adam": (torch.optim.Adam, {}),
        "adamw_foreach": (torch.optim.AdamW, {"foreach": True}),
        "rmsprop": (torch.optim.RMSprop, {}),
    }
    for name, (optimizer, options) in optimizers.items():
        build = lambda optimizer=optimizer, options=options: TrainingStep(optimizer, **options)
        found.append(case(f"training_step_{name}", build, (6, 4), modes=BOTH if name == "sgd" else TRAIN))
    return found
