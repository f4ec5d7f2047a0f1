"""Recurrent models written as people write them: library modules, cells by hand, memories, recursion, halting."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models import made_with

from .cases import Case

Tree = Any


@made_with(
    embed=lambda: nn.Embedding(20, 6, padding_idx=0),
    rnn=lambda: nn.GRU(6, 5, batch_first=True, bidirectional=True),
    head=lambda: nn.Linear(10, 3),
)
def Packed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
    """A recurrent network over sequences of different lengths."""
    packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
    outputs, hidden = self.rnn(packed)
    padded, _ = pad_packed_sequence(outputs, batch_first=True)
    return self.head(padded).sum(1) + self.head(torch.cat([hidden[0], hidden[1]], -1))


class HandLstm(nn.Module):
    """An LSTM written with four gates, one step at a time."""

    def __init__(self, size: int = 4, hidden: int = 6) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(size + hidden, 4 * hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h = c = x.new_zeros(len(x), self.hidden)
        outputs = []
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([step, h], -1)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(h)
        return torch.stack(outputs, 1), (h, c)


@made_with(low=lambda: nn.LSTMCell(4, 5), high=lambda: nn.GRUCell(5, 3))
def Cells(self, x: Tensor) -> Tensor:
    """Two library cells, one above the other, in one loop."""
    state, top = None, None
    for step in x.unbind(1):
        state = self.low(step, state)
        top = self.high(state[0], top)
    return top


@made_with(word=lambda: nn.RNNCell(4, 5), sentence=lambda: nn.RNNCell(5, 5))
def NestedLoops(self, x: Tensor) -> Tensor:
    """A loop in a loop over two shared cells, the inner one interleaved with the outer."""
    sentence = x.new_zeros(x.shape[0], 5)
    for part in x.unbind(1):
        word = sentence
        for step in part.unbind(1):
            word = self.word(step, word)
        sentence = self.sentence(word, sentence)
    return sentence


class Seq2Seq(nn.Module):
    """An encoder and a decoder with additive attention, greedy decoding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 6)
        self.encoder = nn.GRU(6, 6, batch_first=True)
        self.decoder = nn.GRUCell(12, 6)
        self.query, self.key, self.score = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.out = nn.Linear(6, 12)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        memory, hidden = self.encoder(self.embed(source))
        state, token = hidden[0], source[:, 0]
        keys, logits = self.key(memory), []
        for _ in range(4):
            weights = self.score(torch.tanh(keys + self.query(state)[:, None])).softmax(1)
            context = (weights * memory).sum(1)
            state = self.decoder(torch.cat([self.embed(token), context], -1), state)
            logits.append(self.out(state))
            token = logits[-1].argmax(-1)
        return torch.stack(logits, 1), token


class TuringMachine(nn.Module):
    """A controller that reads and writes a memory by content."""

    def __init__(self) -> None:
        super().__init__()
        self.controller = nn.LSTMCell(4 + 3, 8)
        self.key, self.erase, self.add, self.sharpness = nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 1)
        self.out = nn.Linear(8 + 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        memory = x.new_full((len(x), 5, 3), 0.1)
        read, state, outputs = x.new_zeros(len(x), 3), None, []
        for step in x.unbind(1):
            state = self.controller(torch.cat([step, read], -1), state)
            h = state[0]
            similarity = F.cosine_similarity(memory, self.key(h)[:, None], dim=-1)
            weight = (similarity * F.softplus(self.sharpness(h))).softmax(-1)[..., None]
            memory = memory * (1 - weight * self.erase(h).sigmoid()[:, None]) + weight * self.add(h)[:, None]
            read = (weight * memory).sum(1)
            outputs.append(self.out(torch.cat([h, read], -1)))
        return torch.stack(outputs, 1)


class MemoryNetwork(nn.Module):
    """Three hops over stored sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.EmbeddingBag(30, 6, mode="sum"), nn.EmbeddingBag(30, 6, mode="sum")
        self.hop, self.answer = nn.Linear(6, 6), nn.Linear(6, 30, bias=False)

    def forward(self, story: Tensor, question: Tensor) -> Tensor:
        u = self.inputs(question)
        for _ in range(3):
            keys = self.inputs(story.flatten(0, 1)).unflatten(0, story.shape[:2])
            values = self.outputs(story.flatten(0, 1)).unflatten(0, story.shape[:2])
            p = torch.einsum("bmd,bd->bm", keys, u).softmax(-1)
            u = self.hop(u) + torch.einsum("bm,bmd->bd", p, values)
        return self.answer(u)


class EchoState(nn.Module):
    """A fixed random reservoir and a trained readout."""

    def __init__(self) -> None:
        super().__init__()
        reservoir = torch.randn(10, 10)
        self.register_buffer("reservoir", reservoir * 0.9 / torch.linalg.eigvals(reservoir).abs().max())
        self.register_buffer("entrance", torch.randn(10, 3))
        self.readout = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 10)
        for step in x.unbind(1):
            state = 0.7 * state + 0.3 * torch.tanh(step @ self.entrance.T + state @ self.reservoir.T)
        return self.readout(state)


class Feedback(nn.Module):
    """A recurrent CNN: lateral and top-down connections over four time steps."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.top = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.lateral, self.down = nn.Conv2d(4, 4, 3, padding=1), nn.ConvTranspose2d(6, 4, 4, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> list[Tensor]:
        low, high, answers = None, None, []
        for norm in self.norms:
            drive = self.bottom(x)
            if low is not None:
                drive = drive + self.lateral(low) + self.down(high)
            low = F.relu(norm(drive))
            high = F.relu(self.top(low))
            answers.append(self.head(high.mean((2, 3))))
        return answers


@made_with(leaf=lambda: nn.Linear(3, 4), merge=lambda: nn.Linear(8, 4))
def TreeNet(self, tree: Tree) -> Tensor:
    """Recursion over a tree of tensors; the module calls itself."""
    if isinstance(tree, Tensor):
        return torch.tanh(self.leaf(tree))
    left, right = tree
    return torch.tanh(self.merge(torch.cat([self(left), self(right)], -1)))


@made_with(block=lambda: nn.Linear(4, 4))
def CallsItself(self, x: Tensor, depth: int = 3) -> Tensor:
    """A block that runs itself again with one step less."""
    x = torch.tanh(self.block(x)) + x
    return x if depth == 0 else self(x, depth - 1)


@made_with(cell=lambda: nn.GRUCell(4, 4), halt=lambda: nn.Linear(4, 1), out=lambda: nn.Linear(4, 2))
def AdaptiveTime(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Ponders until a learnt halting probability is spent: how often depends on the data."""
    state, spent = torch.zeros_like(x), x.new_zeros(len(x), 1)
    answer, steps = torch.zeros_like(x), torch.zeros(len(x), 1, dtype=torch.long)
    while bool((spent < 0.99).any()) and int(steps.max()) < 6:
        state = self.cell(x, state)
        p = torch.minimum(torch.sigmoid(self.halt(state)), 1 - spent)
        steps = steps + (spent < 0.99).long()
        answer = answer + p * state
        spent = spent + p
    return self.out(answer), steps


@made_with(
    blocks=lambda: nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU()) for _ in range(4)),
    heads=lambda: nn.ModuleList(nn.Linear(6, 3) for _ in range(4)),
)
def EarlyExit(self, x: Tensor) -> tuple[Tensor, int]:
    """Leaves at the first head that is sure enough."""
    depth = 0
    for block, head in zip(self.blocks, self.heads, strict=True):
        x, depth = block(x), depth + 1
        answer = head(x).softmax(-1)
        if answer.max(-1).values.mean() > 0.45:
            break
    return answer, depth


@made_with(gates=lambda: nn.Conv2d(2 + 3, 12, 3, padding=1))
def ConvLstm(self, frames: Tensor) -> Tensor:
    """A convolutional LSTM over frames."""
    h = c = frames.new_zeros(len(frames), 3, *frames.shape[-2:])
    for frame in frames.unbind(1):
        i, f, o, g = self.gates(torch.cat([frame, h], 1)).split(3, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h


@made_with(
    embed=lambda: nn.Embedding(9, 5), rnn=lambda: nn.LSTM(5, 7, num_layers=2, batch_first=True), out=lambda: nn.Linear(7, 9)
)
def CharacterModel(self, token: Tensor) -> Tensor:
    """Samples text from an LSTM, one character at a time."""
    state, text = None, [token]
    for _ in range(5):
        features, state = self.rnn(self.embed(text[-1]), state)
        p = (self.out(features[:, -1]) / 0.8).softmax(-1)
        text.append(torch.multinomial(p, 1))
    return torch.cat(text, 1)


def cases() -> list[Case]:
    """Recurrent models on short sequences."""

    def case(name: str, model: Any, *args: Any, **options: Any) -> Case:
        return Case(f"handwritten/{name}", lambda: (model(), tuple(arg() for arg in args), {}), **options)

    def sequence() -> Tensor:
        return torch.randn(3, 5, 4)

    return [
        case("rnn", lambda: nn.RNN(4, 5, nonlinearity="relu", batch_first=True), sequence),
        case("lstm", lambda: nn.LSTM(4, 5, num_layers=2, dropout=0.3, batch_first=True), sequence),
        case("lstm_projected", lambda: nn.LSTM(4, 6, proj_size=3), sequence),
        case("gru_bidirectional", lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True, dropout=0.1), sequence),
        case("packed_sequence", Packed, lambda: torch.randint(1, 20, (3, 6)), lambda: torch.tensor([4, 6, 2])),
        case("lstm_by_hand", HandLstm, sequence),
        case("cells", Cells, sequence),
        case("nested_loops", NestedLoops, lambda: torch.randn(2, 3, 4, 4)),
        case("seq2seq_attention", Seq2Seq, lambda: torch.randint(0, 12, (2, 5))),
        case("turing_machine", TuringMachine, sequence),
        case("memory_network", MemoryNetwork, lambda: torch.randint(0, 30, (2, 4, 5)), lambda: torch.randint(0, 30, (2, 5))),
        case("echo_state", EchoState, lambda: torch.randn(2, 6, 3)),
        case("recurrent_cnn_feedback", Feedback, lambda: torch.rand(2, 3, 8, 8)),
        case(
            "tree_recursion", TreeNet, lambda: ((torch.randn(2, 3), (torch.randn(2, 3), torch.randn(2, 3))), torch.randn(2, 3))
        ),
        case("module_calls_itself", CallsItself, lambda: torch.randn(2, 4)),
        case("adaptive_computation_time", AdaptiveTime, lambda: torch.randn(3, 4)),
        case("early_exit", EarlyExit, lambda: torch.randn(4, 6)),
        case("conv_lstm", ConvLstm, lambda: torch.randn(2, 3, 2, 6, 6)),
        case("character_sampling", CharacterModel, lambda: torch.randint(0, 9, (2, 1))),
    ]
