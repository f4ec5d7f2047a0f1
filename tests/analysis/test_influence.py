"""Receptive and projective fields: the gradients of plain torch, with random weights, are the oracle."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer
import torchvision_operators
from torcheer.errors import ActivationNotSaved, InvalidArgument, SeveralPasses
from torcheer.history import ModelHistory


def oracle(function, inputs, unit):
    """By input: where the gradient of the result's elements at `unit` is not 0, by plain autograd in float64."""
    leaves = [one.double().requires_grad_() if one.is_floating_point() else one for one in inputs]
    torch.manual_seed(1)  # programs draw their weights
    result = function(*leaves)
    weights = torch.zeros_like(result)
    weights[unit] = 1 + torch.rand(result[unit].shape, dtype=torch.float64)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = torch.autograd.grad(result, wanted, weights, allow_unused=True)
    return [torch.zeros_like(leaf) != 0 if one is None else one != 0 for leaf, one in zip(wanted, found, strict=True)]


def field_of(function, inputs, unit):
    torch.manual_seed(1)
    history = torcheer.log_forward_pass(function, tuple(inputs))
    output = history.operations[-1]
    return output.receptive_field[unit], history


def middle(shape):
    return tuple(size // 2 for size in shape)


IMAGE = torch.rand(2, 4, 12, 12)
LINE = torch.rand(2, 4, 15)
SMOOTH = {  # equal to the gradient, element for element
    "strides and dilation": (lambda x: F.conv2d(x, torch.rand(6, 4, 3, 3).to(x), stride=2, padding=2, dilation=2), IMAGE),
    "groups": (lambda x: F.conv2d(x, torch.rand(4, 1, 3, 3).to(x), groups=4), IMAGE),
    "transposed": (lambda x: F.conv_transpose2d(x, torch.rand(4, 2, 3, 3).to(x), stride=2), IMAGE),
    "conv1d": (lambda x: F.conv1d(x, torch.rand(3, 4, 5).to(x), padding="same"), LINE),
    "skip": (lambda x: x + F.conv2d(x, torch.rand(4, 4, 3, 3).to(x), padding=3, dilation=3), IMAGE),
    "average": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 5), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), IMAGE),
    "bicubic": (lambda x: F.interpolate(x, size=(9, 7), mode="bicubic", align_corners=True), IMAGE),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), IMAGE),
    "shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGE),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=3.0), IMAGE),
    "reflect": (lambda x: F.pad(x, (2, 2), mode="reflect"), LINE),
    "roll": (lambda x: x.roll(3, -1).flip(1)[:, ::2], IMAGE),
    "permuted": (lambda x: x.permute(0, 2, 3, 1).reshape(2, 36, 16).transpose(1, 2), IMAGE),
    "index": (lambda x: x[:, [3, 0, 0]] * x[..., 1:2][:, :3], IMAGE),
    "gather": (lambda x: x.gather(-1, torch.zeros(2, 4, 3, dtype=torch.long)), LINE),
    "cat": (lambda x: torch.cat([x[..., 4:], x.sin()], dim=-1), LINE),
    "split": (lambda x: x.split(2, 1)[1] * x.unbind(1)[0].unsqueeze(1), LINE),
    "softmax": (lambda x: x.softmax(-1), LINE),
    "mean": (lambda x: x.mean((1, 3)), IMAGE),
    "variance": (lambda x: x.var(1, keepdim=True) * x.std(-1, keepdim=True), LINE),
    "logsumexp": (lambda x: x.logsumexp(dim=1), LINE),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), LINE),
    "cumsum": (lambda x: x.cumsum(-1), LINE),
    "layer norm": (lambda x: F.layer_norm(x, (15,)), LINE),
    "group norm": (lambda x: F.group_norm(x, 2), IMAGE),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), IMAGE),
    "instance norm": (lambda x: F.instance_norm(x), IMAGE),
    "products": (lambda x: (x @ x.transpose(1, 2)) @ torch.rand(4, 3).to(x), LINE),
    "einsum": (lambda x: torch.einsum("bct,bdt->bcd", x, x.sin()), LINE),
    "linear": (lambda x: F.linear(x, torch.rand(7, 15).to(x), torch.rand(7).to(x)), LINE),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x.sin(), x.cos()), LINE),
    "causal": (lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True), LINE),
    "masked": (lambda x: F.scaled_dot_product_attention(x, x, x, (torch.eye(4) + torch.eye(4).roll(1, 0)) > 0), LINE),
    "in place": (lambda x: x.clone().mul_(2).add_(x.sum(1, keepdim=True)), LINE),
    "unfold": (lambda x: F.unfold(x, 3, stride=3), IMAGE),
    "broadcast": (lambda x: x[:, :1] * x[:, :, :1], LINE),
    "a row": (lambda x: torch.stack([x[:, 0], x[:, 1].exp()]), LINE),
}
ROUGH = {  # the gradient is inside the field
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max pool, ceil": (lambda x: F.max_pool2d(x, 2, 3, ceil_mode=True, dilation=2), IMAGE),
    "max pool 1d": (lambda x: F.max_pool1d(x, 4), LINE),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, 5), IMAGE),
    "relu": (lambda x: (x - 0.5).relu(), LINE),
    "amax": (lambda x: x.amax(1), LINE),
    "max": (lambda x: x.max(dim=-1)[0], LINE),
    "maximum": (lambda x: torch.max(x, x.sin()), LINE),
    "sort": (lambda x: x.sort(-1)[0], LINE),
    "topk": (lambda x: x.topk(2, dim=-1)[0], LINE),
    "dropout": (lambda x: F.dropout(x, 0.5), LINE),
    "where": (lambda x: torch.where(x > 0.5, x, x.roll(1, -1)), LINE),
    "embedded": (lambda x: x + F.embedding(torch.zeros(2, 4, dtype=torch.long), torch.rand(3, 15).to(x)), LINE),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_the_field_of_a_smooth_function_is_where_the_gradient_is(name):
    function, value = SMOOTH[name]
    unit = middle(function(value).shape)
    field, _ = field_of(function, [value], unit)
    assert field.is_exact, field.unknown
    (wanted,) = oracle(function, [value], unit)
    assert torch.equal(field.mask, wanted), (field.mask ^ wanted).nonzero()
    assert field.check().is_equal


@pytest.mark.parametrize("name", ROUGH)
def test_no_gradient_is_outside_the_field(name):
    function, value = ROUGH[name]
    unit = middle(function(value).shape)
    field, _ = field_of(function, [value], unit)
    assert field.is_exact, field.unknown
    (wanted,) = oracle(function, [value], unit)
    assert not (wanted & ~field.mask).any()
    assert field.elements < value.numel() / 2
    assert field.check()


@pytest.mark.parametrize("name", [*SMOOTH, *ROUGH])
def test_the_projective_field_is_the_receptive_field_seen_from_the_other_side(name):
    function, value = {**SMOOTH, **ROUGH}[name]
    history = torcheer.log_forward_pass(function, (value,))
    first, last = history.operations[0], history.operations[-1]
    start = tuple(size // 3 for size in value.shape)
    found = {tuple(place) for one in first.projective_field.fields(start) for place in one.mask.nonzero().tolist()}
    places = random.Random(0).sample(list(torch.ones(last.shape).nonzero().tolist()), 8)
    for place in map(tuple, [*places, *[list(one) for one in sorted(found)[:4]]]):
        assert (place in found) == bool(last.receptive_field[place].mask[start]), place


def random_program(seed):
    """A program of some ten smooth functions of images, with skips; its parts are drawn once."""
    draw = random.Random(seed)
    steps = []
    for _ in range(draw.randint(3, 8)):
        kind = draw.choice(["conv", "depth", "pool", "skip", "norm", "roll", "shuffle", "scale", "flip"])
        size, dilation, stride = draw.choice([1, 3]), draw.choice([1, 2]), draw.choice([1, 1, 2])
        weight = torch.rand(4, 1 if kind == "depth" else 4, size, size) + 0.1
        steps.append((kind, weight, dilation, stride, draw.randrange(4)))

    def program(x):
        kept = [x]
        for kind, weight, dilation, stride, which in steps:
            if kind in ("conv", "depth"):
                groups = 4 if kind == "depth" else 1
                x = F.conv2d(x, weight.to(x), None, stride, dilation * (weight.shape[-1] // 2), dilation, groups)
            elif kind == "pool":
                x = F.avg_pool2d(x, 2, stride, padding=1)
            elif kind == "skip":
                other = kept[which % len(kept)]
                x = x + F.interpolate(other, size=x.shape[-2:], mode="nearest")
            elif kind == "norm":
                x = F.group_norm(x, 2) if which == 0 else x.tanh()
            elif kind == "roll":
                x = x.roll(which, -1)
            elif kind == "shuffle":
                x = torch.cat([x[:, which:], x[:, :which]], 1)
            elif kind == "scale":
                x = x * x.mean((2, 3), keepdim=True) if which == 0 else x * 2
            else:
                x = x.flip(-1).transpose(2, 3)
            kept.append(x)
        return x

    return program


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    value = torch.rand(1, 4, 10, 10, generator=torch.Generator().manual_seed(seed))
    function = random_program(seed)
    unit = middle(function(value).shape)
    field, _ = field_of(function, [value], unit)
    (wanted,) = oracle(function, [value], unit)
    assert field.is_exact, field.unknown
    assert not (wanted & ~field.mask).any()
    assert int(wanted.sum()) >= 0.98 * field.elements  # a gradient may be 0 by chance, or too small for a number
    assert field.check()


def test_the_boxes_of_resnet18_are_those_of_the_literature():
    torchvision_operators.declare()
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.resnet18().eval()
    value = torch.rand(1, 3, 128, 128)
    history = torcheer.log_forward_pass(model, value)
    sizes = {
        name: history.modules[name].calls[0].outputs[0].receptive_field[0, 0, -5, -5].size for name in ("conv1", "maxpool")
    }
    assert sizes == {"conv1": (1, 3, 7, 7), "maxpool": (1, 3, 11, 11)}
    layer = history.modules["layer1"].calls[0].outputs[0]
    field = layer.receptive_field[0, 5, 16, 16]
    assert field.size == (1, 3, 43, 43)
    assert field.is_exact

    def until(x):
        return model.layer1(model.maxpool(model.relu(model.bn1(model.conv1(x)))))

    check = field.check()
    model.double()
    (wanted,) = oracle(until, [value], (0, 5, 16, 16))
    assert not (wanted & ~field.mask).any()
    assert check
    assert check.gradients == int(wanted.sum()) > 1000


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.low = nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.up, self.last = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(5, 1, 3, 1, 1)

    def forward(self, x):
        low = torch.tanh(self.low(torch.tanh(self.down(x))))
        return self.last(torch.cat([x, self.up(low)], 1))


def test_a_u_net():
    model, value = UNet().eval(), torch.rand(1, 1, 24, 24)
    history = torcheer.log_forward_pass(model, value)
    field = history["output_1"].receptive_field[0, 0, 11, 11]
    (wanted,) = oracle(model.double(), [value], (0, 0, 11, 11))
    assert torch.equal(field.mask, wanted)
    assert field.box == (slice(0, 1), slice(0, 1), slice(7, 16), slice(7, 16))
    assert 1 < field.elements < 24 * 24


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_transformer(is_causal):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(6) if is_causal else None
    value = torch.rand(2, 6, 8)
    history = torcheer.log_forward_pass(lambda x: layer(x, mask, is_causal=is_causal), value.requires_grad_())
    field = history["output_1"].receptive_field[1, 2, 3]
    assert field.is_exact, field.unknown
    (wanted,) = oracle(lambda x: layer.double()(x, mask.double() if is_causal else None), [value.detach()], (1, 2, 3))
    assert torch.equal(field.mask, wanted)
    assert field.size == (1, 3 if is_causal else 6, 8)


@pytest.mark.parametrize("is_both", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_see_the_past_and_in_both_directions_everything(kind, is_both):
    layer = kind(3, 4, num_layers=2, batch_first=True, bidirectional=is_both).eval()
    value = torch.rand(2, 7, 3)
    history = torcheer.log_forward_pass(lambda x: layer(x)[0], value)
    field = history["output_1"].receptive_field[0, 3, 1]
    (wanted,) = oracle(lambda x: layer.double()(x)[0], [value], (0, 3, 1))
    assert torch.equal(field.mask, wanted)
    assert field.is_exact, field.unknown
    assert field.size == (1, 7 if is_both else 4, 3)


def test_a_function_without_a_rule_reaches_everything_and_says_so():
    history = torcheer.log_forward_pass(lambda x: torch.fft.fft(x).real[:, :2], torch.rand(4, 8))
    field = history["output_1"].receptive_field[0, 0]
    assert field.elements == 32
    assert not field.is_exact
    assert field.unknown[0].startswith("fft")
    assert "taken to reach everything" in str(field)


def test_several_inputs_several_units_and_no_field():
    history = torcheer.log_forward_pass(lambda x, y: x[:2] + y.sum(), (torch.rand(4), torch.rand(3)))
    second, first = sorted(history["output_1"].receptive_field.fields(0), key=lambda one: -one.elements)
    assert (first.elements, second.elements) == (1, 3)
    assert {one.at for one in (first, second)} == {"input_1_0", "input_2_1"}
    assert history["output_1"].receptive_field.fields()[0].mask.tolist() == [True, True, False, False]
    history = torcheer.log_forward_pass(lambda x: (x, torch.zeros(2) + 1), torch.rand(2))
    with pytest.raises(InvalidArgument, match="no input reaches it"):
        history["add_1"].receptive_field[0]


def test_a_unit_that_is_none_is_refused_in_words():
    history = torcheer.log_forward_pass(nn.Linear(3, 2), torch.rand(1, 3))
    with pytest.raises(InvalidArgument, match=r"an index into its shape \(1, 2\)"):
        history["linear_1"].receptive_field[0, 5]
    with pytest.raises(InvalidArgument, match="an index into"):
        history["linear_1"].receptive_field["middle"]


def test_a_layer_with_several_passes_asks_for_one():
    part = nn.Linear(3, 3)
    history = torcheer.log_forward_pass(lambda x: part(part(x).tanh()), torch.rand(1, 3))
    assert history["linear_1:2"].receptive_field.middle.elements == 3
    with pytest.raises(SeveralPasses):
        history["linear_1"].receptive_field.middle()


def test_a_check_finds_a_field_that_is_too_small_and_needs_the_values():
    history = torcheer.log_forward_pass(nn.Conv1d(1, 1, 3), torch.rand(1, 1, 9))
    field = history["conv1d_1"].receptive_field[0, 0, 4]
    assert field.check().is_equal
    field.mask[0, 0, 5] = False
    check = field.check()
    assert (bool(check), check.outside) == (False, 1)
    assert "is wrong" in str(check)
    history = torcheer.log_forward_pass(nn.Conv1d(1, 1, 3), torch.rand(1, 1, 9), layers_to_save=None)
    field = history["conv1d_1"].receptive_field[0, 0, 4]
    assert field.elements == 3
    with pytest.raises(ActivationNotSaved):
        field.check()


def test_nothing_is_changed_and_no_random_number_is_drawn():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Dropout())
    history = torcheer.log_forward_pass(model, torch.rand(2, 1, 9))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert isinstance(history, ModelHistory)
    assert history["output_1"].receptive_field.middle.check()
    assert history["input_1"].projective_field.middle.check()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.inference_mode():
        assert history["output_1"].receptive_field.middle.elements


def test_a_field_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    history = torcheer.log_forward_pass(nn.Conv2d(3, 2, 5), torch.rand(1, 3, 16, 16))
    figure = history["conv2d_1"].receptive_field.middle.draw(tmp_path / "field.png")
    assert (tmp_path / "field.png").stat().st_size > 1000
    assert "box 1 × 3 × 5 × 5" in figure.axes[0].get_title()


def test_a_field_in_integers_exists_and_cannot_be_checked():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Conv1d(5, 5, 3)).eval()
    field = torcheer.log_forward_pass(model, torch.arange(5)[None])["output_1"].receptive_field[0, 0, 0]
    assert (field.elements, field.is_exact) == (5, True)
    check = field.check()
    assert (bool(check), check.unchecked) == (False, ("input_1_0",))
    assert "could not be checked whole" in str(check)
