"""Modules of all kinds: plain, lazy, recurrent, fused, quantised, held by something else; and what they can be given."""

from __future__ import annotations

import functools
import threading
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from catalogue.constructs import Wrapper
from catalogue.entry import Entry, mixed
from catalogue.functions import few_bits, quantised
from models import Attending, Branching, Buffer, Convolutional, Mlp, Stateful, made_of


class LazyLinear(nn.Module):
    """Lazy as the linear layer of PyTorch Geometric is: no LazyModuleMixin, but a hook that makes the weight."""

    def __init__(self, out_channels):
        super().__init__()
        self.in_channels, self.out_channels = -1, out_channels
        self.weight = UninitializedParameter()
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self._hook = self.register_forward_pre_hook(self.initialize_parameters)

    @torch.no_grad()
    def initialize_parameters(self, module, given):
        if is_lazy(self.weight):
            self.in_channels = given[0].size(-1)
            self.weight.materialize((self.out_channels, self.in_channels))
            nn.init.uniform_(self.weight)
        self._hook.remove()
        delattr(self, "_hook")

    def forward(self, t):
        return F.linear(t, self.weight, self.bias)


def several_lazy():
    """Lazy layers in a dictionary, one of them used twice, as in HeteroConv."""
    return made_of(
        lambda self, t: self.partly(self.parts["a"](t) + self.parts["b"](t) + self.parts["b"](t)),
        parts=nn.ModuleDict({"a": LazyLinear(4), "b": LazyLinear(4), "unused": LazyLinear(4)}),
        partly=nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3), nn.LazyBatchNorm1d()),
    )


def frozen_by_itself(self, t):
    made = self.fc(t)
    self.fc.requires_grad_(False)
    return made


def vector() -> Tensor:
    return torch.rand(3, 5)


def signal() -> Tensor:
    return torch.rand(3, 5, 9)


def image() -> Tensor:
    return torch.rand(3, 5, 9, 9)


def volume() -> Tensor:
    return torch.rand(2, 5, 6, 6, 6)


def of_lazy_layers():
    fc = nn.LazyLinear(3)
    fc.weight.scale = 2.0
    return made_of(lambda self, t: self.fc(t) * self.fc.weight.scale, fc=fc)


def closing_over_lazy_layers():
    model = nn.Sequential(nn.LazyLinear(4), LazyLinear(2))
    return lambda t: model(t) + 1


LAZY = {
    "linear": Entry(lambda: nn.LazyLinear(4), vector),
    "BatchNorm1d": Entry(nn.LazyBatchNorm1d, vector),
    "BatchNorm2d": Entry(nn.LazyBatchNorm2d, image),
    "BatchNorm3d": Entry(nn.LazyBatchNorm3d, volume),
    "InstanceNorm1d": Entry(lambda: nn.LazyInstanceNorm1d(affine=True, track_running_stats=True), signal),
    "InstanceNorm2d": Entry(lambda: nn.LazyInstanceNorm2d(affine=True, track_running_stats=True), image),
    "Conv1d": Entry(lambda: nn.LazyConv1d(2, 3), signal),
    "Conv2d": Entry(lambda: nn.LazyConv2d(2, 3), image),
    "Conv3d": Entry(lambda: nn.LazyConv3d(2, 3), volume),
    "ConvTranspose2d": Entry(lambda: nn.LazyConvTranspose2d(2, 3), image),
    "nested": Entry(
        lambda: nn.Sequential(nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d()), nn.Flatten(), nn.LazyLinear(2)), image
    ),
    "foreign": Entry(lambda: LazyLinear(4), vector),
    "several": Entry(several_lazy, vector),
    "with attributes": Entry(of_lazy_layers, vector),
    "frozen by itself": Entry(lambda: made_of(frozen_by_itself, fc=nn.LazyLinear(3)), vector),
    "in a closure": Entry(closing_over_lazy_layers, vector),
}


PAD = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]).bool()


def words() -> Tensor:
    return torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1))


def layer(**options):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options).eval()


def encoder(norm=None):
    return nn.TransformerEncoder(layer(), 2, norm=norm).eval()


class Scaled(nn.TransformerEncoderLayer):
    """Its forward calls the one it replaces."""

    def forward(self, src, *args, **kwargs):
        return super().forward(src * 2, *args, **kwargs) + 1


def attending(**named):
    return made_of(
        lambda self, t: self.attention(query=t, key=t, value=t, **named),
        attention=nn.MultiheadAttention(16, 2, batch_first=True),
    ).eval()


FUSED = {
    "a padded encoder": Entry(encoder, words, {"src_key_padding_mask": PAD}),
    "a padded encoder with a norm": Entry(lambda: encoder(nn.LayerNorm(16)), words, {"src_key_padding_mask": PAD}),
    "an encoder": Entry(encoder, words),
    "a layer": Entry(layer, words, {"src_key_padding_mask": PAD}),
    "a layer with gelu and norm first": Entry(lambda: layer(activation="gelu", norm_first=True), words),
    "a subclass": Entry(lambda: Scaled(16, 2, 32, batch_first=True).eval(), words),
    "attention": Entry(attending, words),
    "padded attention": Entry(lambda: attending(key_padding_mask=PAD), words),
    "attention without weights": Entry(lambda: attending(need_weights=False), words),
    "a whole transformer": Entry(
        lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval(),
        words,
        {"tgt": torch.ones(3, 4, 16), "src_key_padding_mask": PAD},
    ),
}


def through(first, second, t):
    return second(first(t))


class Pipeline:
    """No module, but it holds some."""

    def __init__(self) -> None:
        self.encoder, self.decoder, self.steps = nn.Linear(3, 4), nn.Linear(4, 2), 2

    def __call__(self, t):
        return self.decoder(self.encoder(t))


def closing():
    encoder, decoder = nn.Linear(3, 4), nn.Linear(4, 2)
    return lambda t: decoder(encoder(t))


# By name: what makes the callable, and the addresses of the modules in it.
HOLDERS = {
    "a closure": (closing, ["decoder", "encoder"]),
    "an object": (Pipeline, ["encoder", "decoder"]),
    "a partial with modules as arguments": (
        lambda: functools.partial(through, nn.Linear(3, 4), nn.Linear(4, 2)),
        ["args_0", "args_1"],
    ),
    "a partial of a closure": (lambda: functools.partial(closing()), ["decoder", "encoder"]),
    "a partial of a partial": (
        lambda: functools.partial(functools.partial(through, nn.Linear(3, 4)), nn.Linear(4, 2)),
        ["args_0", "args_1"],
    ),
    "a partial of a module": (lambda: functools.partial(nn.Sequential(nn.Linear(3, 4))), ["Sequential", "Sequential.0"]),
    "a method of a module": (lambda: nn.Sequential(nn.Linear(3, 4)).forward, ["", "0"]),
    "a module": (lambda: nn.Sequential(nn.Linear(3, 4)), ["", "0"]),
}


def prepared_for_quantisation():
    model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(3, 3), nn.ReLU(), torch.ao.quantization.DeQuantStub())
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(model.train())


def convolution_prepared_for_quantisation():
    model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model = torch.ao.quantization.fuse_modules_qat(model.train(), [["1", "2", "3"]])
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(model)


def quantised_embedding():
    embedding = torch.ao.nn.quantized.Embedding(5, 3)
    embedding.set_weight(torch.quantize_per_channel(torch.rand(5, 3), torch.full((5,), 0.1), torch.zeros(5), 0, torch.quint8))
    return nn.Sequential(embedding)


def with_few_bits():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model[0].weight = nn.Parameter(few_bits(), requires_grad=False)
    return model


def looping(self, x):
    """A loop over one cell, and a view that is written to."""
    state = torch.zeros_like(x)
    for _ in range(3):
        state = self.cell(x, state)
        state[:, 0] += 1
    return state


@torch.no_grad()
def pipeline(self, words: str, steps: int = 3) -> list[list[float]]:
    """Words in, rows of numbers out."""
    text = self.embedding(torch.tensor([ord(letter) % 10 for letter in words]))
    picture = torch.randn(len(words), 4)
    for _ in range(steps):
        picture = self.denoiser(picture + text) * self.scale
    return picture.tolist()


def returning_nothing(self, count: int) -> None:
    self.last = self.fc(torch.ones(count, 3))


def hooked():
    net = nn.Sequential(nn.Linear(3, 2))
    net[0].register_forward_hook(lambda module, args, output: output + 1)
    return net


def nested(layout=torch.strided) -> Tensor:
    return torch.nested.nested_tensor([mixed(), mixed()[:2]], layout=layout)


def masked() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(mixed(), mixed() > 0)


def of_a_layer(forward):
    return made_of(forward, fc=nn.Linear(3, 3))


ENTRIES = {
    **{f"lazy {name}": entry for name, entry in LAZY.items()},
    **{f"fused {name}": entry for name, entry in FUSED.items()},
    **{f"held by {name}": Entry(make) for name, (make, _) in HOLDERS.items()},
    "mlp": Entry(Mlp, lambda: torch.rand(3, 4)),
    "branching": Entry(Branching, lambda: torch.rand(3, 4)),
    "convolutional": Entry(Convolutional, lambda: torch.rand(2, 3, 8, 8)),
    "convolutional, partly frozen": Entry(
        lambda: (lambda model: (model.features[1].eval(), model)[1])(Convolutional()), lambda: torch.rand(2, 3, 8, 8)
    ),
    "convolutional in eval": Entry(lambda: Convolutional().eval(), lambda: torch.rand(2, 3, 8, 8)),
    "stateful": Entry(Stateful, lambda: torch.rand(3, 3)),
    "attending": Entry(Attending, lambda: torch.rand(3, 2, 4)),
    "looping": Entry(lambda: made_of(looping, cell=nn.GRUCell(3, 3))),
    "hooked": Entry(hooked),
    "prepared for quantisation": Entry(prepared_for_quantisation),
    "convolution prepared for quantisation": Entry(convolution_prepared_for_quantisation, lambda: torch.rand(2, 3, 6, 6)),
    "embedding of quantised weights": Entry(quantised_embedding, lambda: torch.tensor([0, 1, 2, 3])),
    "parameter of few bits": Entry(with_few_bits),
    "given a wrapper": Entry(lambda: lambda t: t * 2, lambda: Wrapper(mixed())),
    "given a masked tensor": Entry(lambda: lambda t: t * 2, masked),
    "given a quantised tensor": Entry(lambda: lambda t: t.dequantize() * 2, lambda: quantised(mixed())),
    "given a nested tensor": Entry(lambda: of_a_layer(lambda self, t: self.fc(t)), nested),
    "given a jagged tensor": Entry(lambda: of_a_layer(lambda self, t: self.fc(t)), lambda: nested(torch.jagged)),
    "attention on meta": Entry(
        lambda: made_of(lambda self, t: self.attention(t, t, t)[0], attention=nn.MultiheadAttention(8, 2)).to("meta"),
        lambda: torch.rand(2, 4, 8, device="meta"),
    ),
    "fused attention on meta": Entry(
        lambda: lambda t: F.scaled_dot_product_attention(t, t, t), lambda: torch.rand(1, 2, 4, 3, device="meta")
    ),
    "given a lock": Entry(lambda: lambda t, lock: t * 2, lambda: (mixed(), threading.Lock())),
    "norm without momentum": Entry(lambda: nn.BatchNorm1d(3, momentum=0.0)),
    "a pipeline": Entry(
        lambda: made_of(
            pipeline,
            embedding=nn.Embedding(10, 4),
            denoiser=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)),
            scale=Buffer(torch.ones(4)),
        ),
        lambda: "hello",
    ),
    "returning nothing": Entry(lambda: of_a_layer(returning_nothing), lambda: 2),
    "without tensors at its ends": Entry(lambda: lambda: torch.arange(3).mul(2).numpy(), tuple),
}
