"""`LayerReader`: layers of one batch after the other, compared with plain hooks."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from models import Buffer, made_of, made_with, unchanged
from tiny_transformers import tiny
from torcheer.errors import InvalidArgument, LayerNotFound, PlaceNotReached
from torcheer.features.layer_reader import LayerReader


@made_with(
    first=lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True)),
    cell=lambda: nn.Linear(6, 6),
    last=lambda: nn.Linear(6, 3),
)
def Net(self, x: Tensor) -> Tensor:
    """Modules, a function, a repeated module and an in-place function."""
    x = self.first(x)
    for _ in range(2):
        x = torch.tanh(self.cell(x))
    return F.softmax(self.last(x), -1)


def hooked(model: nn.Module, address: str, *args, **kwargs) -> list[Tensor]:
    """What a plain hook sees of a module: copies, in order."""
    seen: list[Tensor] = []
    module = model.get_submodule(address)
    handle = module.register_forward_hook(
        lambda module, args, out: seen.append((out if isinstance(out, Tensor) else out[0]).clone())
    )
    with torch.no_grad():
        model(*args, **kwargs)
    handle.remove()
    return seen


def test_values_are_those_that_plain_hooks_see():
    """Also of layers that are overwritten in place later, in every batch."""
    model = Net().eval()
    batches = [torch.rand(5, 4) - 0.5 for _ in range(4)]
    with LayerReader(model, ["first.0", "first", "cell", "softmax_1", "input"], batches[0]) as reader:
        assert reader.names == ["first.0", "first", "cell:1", "cell:2", "softmax_1", "input"]
        for number, batch in enumerate(batches):
            read = reader.read(batch, number)
            assert torch.equal(read["first.0"], hooked(model, "first.0", batch)[0])
            assert torch.equal(read["first"], hooked(model, "first", batch)[0])
            assert [
                torch.equal(a, b) for a, b in zip((read["cell:1"], read["cell:2"]), hooked(model, "cell", batch), strict=True)
            ]
            assert torch.equal(read["softmax_1"], model(batch))
            assert torch.equal(read["input"], batch)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_globs_classes_and_functions_are_named_by_place():
    model = Net().eval()
    reader = LayerReader(model, ["first.*", nn.Linear, torch.tanh, -1], torch.rand(2, 4))
    assert reader.names == ["first.0", "first.1", "cell:1", "cell:2", "last", "tanh_1:1", "tanh_1:2", "output_1"]
    assert LayerReader(model, {"early": "first", "probabilities": F.softmax}, torch.rand(2, 4)).names == [
        "early",
        "probabilities",
    ]


def test_what_was_read_stays_as_it_was():
    """Values that the model still holds, and writes to in the next batch, are copies; others are not."""

    def forward(self, x: Tensor) -> Tensor:
        if self.state is not None:
            self.state.zero_()
        self.state = self.inner(x)
        return self.state + 1

    model, batches = made_of(forward, inner=nn.Linear(2, 2), state=None), [torch.rand(3, 2) for _ in range(4)]
    expected = [model.inner(batch) for batch in batches]
    with LayerReader(model, "inner", batches[0]) as reader:
        read = [reader.read(batch)["inner"] for batch in batches]
    assert all(torch.equal(one, other) for one, other in zip(read, expected, strict=True))


@pytest.mark.parametrize("kind", ["transform", "numpy"])
def test_what_was_read_stays_as_it_was_where_one_memory_serves_every_batch(kind):
    """That of a transform which writes into a tensor of its own, and that of a NumPy array."""
    memory = np.zeros((3, 2), np.float32)
    own = torch.zeros(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        np.copyto(memory, x.numpy())
        return self.inner(torch.from_numpy(memory))

    model = made_of(forward, inner=nn.Identity()) if kind == "numpy" else nn.Sequential(OrderedDict(inner=nn.Identity()))
    transform = None if kind == "numpy" else lambda tensor: own.copy_(tensor)
    batches = [torch.rand(3, 2) for _ in range(4)]
    with LayerReader(model, "inner", batches[0], transform=transform) as reader:
        read = [reader.read(batch)["inner"] for batch in batches]
    assert all(torch.equal(one, other) for one, other in zip(read, batches, strict=True))


def test_nothing_is_copied_that_a_transform_lets_go_of():
    made: list[int] = []

    def doubled(tensor: Tensor) -> Tensor:
        result = tensor * 2
        made.append(result.data_ptr())
        return result

    with LayerReader(nn.Sequential(nn.Linear(4, 4)), "0", torch.rand(5, 4), transform=doubled) as reader:
        pointers = [reader.read(torch.rand(5, 4))["0"].data_ptr() for _ in range(3)]
    assert pointers == made


def test_nothing_is_copied_that_the_model_lets_go_of():
    model, batch = Net().eval(), torch.rand(5, 4)
    seen: list[int] = []
    model.cell.register_forward_hook(lambda module, args, out: seen.append(out.data_ptr()))
    with LayerReader(model, "cell", batch, stop=False) as reader:
        for _ in range(3):
            seen.clear()
            pointers = [one.data_ptr() for one in reader.read(batch).values()]
    assert pointers == seen


def test_each_batch_finds_the_model_as_the_first_one_did():
    """Running statistics are put back; a dropout in training mode draws the same numbers for a batch whoever reads it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)).train()
    batches = [torch.rand(8, 4) for _ in range(3)]
    state = torch.get_rng_state()
    with unchanged(model, counts=False), LayerReader(model, ["1", "2", "3"], batches[0]) as reader:
        forward = [reader.read(batch, number) for number, batch in enumerate(batches)]
        with LayerReader(model, ["1", "2", "3"], batches[0]) as other:
            backward = [other.read(batches[number], number) for number in (2, 1, 0)][::-1]
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(forward, backward, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(forward[0]["2"] == 0, forward[1]["2"] == 0)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (None, lambda t, m: t),
        (lambda tensor: tensor[:, 0], lambda t, m: t[:, 0]),
        (lambda tensor, batch: tensor * batch["attention_mask"][..., None], lambda t, m: t * m[..., None]),
        (nn.Flatten(), lambda t, m: t.flatten(1)),
        (torch.flatten, None),
        ({"h.0": "mean"}, lambda t, m: torch.stack([row[mask.bool()].mean(0) for row, mask in zip(t, m, strict=True)])),
        ("max", lambda t, m: torch.stack([row[mask.bool()].amax(0) for row, mask in zip(t, m, strict=True)])),
        ("last_token", lambda t, m: torch.stack([row[mask.bool()][-1] for row, mask in zip(t, m, strict=True)])),
        ("first_token", lambda t, m: torch.stack([row[mask.bool()][0] for row, mask in zip(t, m, strict=True)])),
    ],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_transforms_see_the_batch_and_its_mask(transform, expected, side):
    model = tiny("gpt2", n_layer=2, n_embd=32, n_head=2).eval()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]) if side == "right" else torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1]])
    batch = {"input_ids": torch.randint(0, 50, (2, 4)), "attention_mask": mask, "topic": torch.tensor([1, 2])}
    if expected is None:
        with pytest.raises(
            InvalidArgument, match=r"'h.0': the first dimension of a stored tensor must be samples, and batch 0 has 2"
        ):
            LayerReader(model, ["h.0"], batch, transform=transform).read(batch)
        return
    plain = hooked(model, "h.0", input_ids=batch["input_ids"], attention_mask=mask)[0]
    with LayerReader(model, ["h.0"], batch, transform=transform) as reader:
        torch.testing.assert_close(reader.read(batch)["h.0"], expected(plain, mask))
        assert list(reader.calling.labels(batch)) == ["topic"]


class Given(nn.Module):
    """Has a layer whose value is given."""

    def __init__(self, value):
        super().__init__()
        self.layer, self.value = nn.Identity(), value

    def forward(self, input_ids, attention_mask=None):
        return self.layer(self.value)


def pooled(transform, value, mask):
    batch = {"input_ids": torch.zeros(len(value), 1), "attention_mask": mask}
    with LayerReader(Given(value), "layer", batch, transform=transform) as reader:
        return reader.read(batch)["layer"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 1500, 3), (2, 3, 50, 30)])
def test_the_mean_over_many_positions_is_exact_in_every_precision(dtype, shape):
    """A sum of 1500 times 100 is too large for float16, and bfloat16 cannot count to 1001."""
    mask = torch.ones(2, 1500, dtype=torch.int64)
    mask[1, 1001:] = 0
    found = pooled("mean", torch.full(shape, 100.0, dtype=dtype), mask)
    assert found.dtype is dtype
    assert torch.equal(found, torch.full((2, 3), 100.0, dtype=dtype))


@pytest.mark.parametrize("transform", ["mean", "max", "first_token", "last_token"])
def test_padding_does_not_matter_whatever_is_in_it(transform):
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    value = torch.where(mask[..., None] == 1, 5.0, torch.nan).expand(2, 3, 4)
    assert torch.equal(pooled(transform, value, mask), torch.full((2, 4), 5.0))
    value = torch.where(mask[..., None] == 1, 5.0, torch.inf).expand(2, 3, 4)
    assert torch.equal(pooled(transform, value, mask), torch.full((2, 4), 5.0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float8_e4m3fn, torch.complex64])
@pytest.mark.parametrize("transform", ["mean", "max", "first_token", "last_token"])
@pytest.mark.parametrize("is_masked", [True, False])
def test_layers_of_every_type_are_pooled(dtype, transform, is_masked):
    value = torch.tensor([[[1.0], [0.0], [4.0]], [[2.0], [3.0], [1.0]]]).to(dtype)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]) if is_masked else None
    if dtype is torch.complex64 and transform == "max":
        with pytest.raises(InvalidArgument, match="numbers that have an order"):
            pooled(transform, value, mask)
        return
    chosen = [row[: int(kept)] for row, kept in zip(value, mask.sum(1) if is_masked else (3, 3), strict=True)]
    wide = [row.to(torch.complex64 if dtype.is_complex else torch.float32) for row in chosen]
    expected = {
        "mean": lambda row: row.mean(0),
        "max": lambda row: row.amax(0),
        "first_token": lambda row: row[0],
        "last_token": lambda row: row[-1],
    }[transform]
    found = pooled(transform, value, mask)
    is_kept = dtype.is_floating_point or dtype.is_complex or transform != "mean"
    assert found.dtype is (dtype if is_kept else torch.float32)
    assert torch.equal(found.to(wide[0].dtype), torch.stack([expected(row) for row in wide]).to(found.dtype).to(wide[0].dtype))


@pytest.mark.parametrize("transform", ["mean", "max", "first_token", "last_token"])
def test_a_layer_without_positions_is_stored_as_it_is(transform):
    for value in (torch.rand(2), torch.rand(2, 5)):
        assert torch.equal(pooled(transform, value, torch.ones(2, 3)), value)


def test_tokens_are_rows_with_sample_and_position():
    model = tiny("gpt2", n_layer=2, n_embd=32, n_head=2).eval()
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 0, 0]])
    batch = {"input_ids": torch.randint(0, 50, (3, 4)), "attention_mask": mask}
    plain = hooked(model, "h.0", **batch)[0]
    with LayerReader(model, ["h.0"], batch, flatten="tokens") as reader:
        rows = reader.read(batch)["h.0"]
        samples, positions = reader.tokens(batch, {"h.0": rows})
    assert torch.equal(rows, plain[mask.bool()])
    assert samples.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert positions.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_types_are_converted_but_not_those_of_whole_numbers():
    batch = torch.rand(3, 4)
    read = LayerReader(made_of(lambda self, x: (x * 2).argmax(1)), ["mul_1", "output"], batch, dtype="float16").read(batch)
    assert read["mul_1"].dtype is torch.float16
    assert read["output"].dtype is torch.int64


@pytest.mark.parametrize("stop", [True, False])
def test_a_pass_ends_where_the_last_layer_is_unless_it_is_not_to(stop):
    model = Net().eval()
    ran: list[int] = []
    model.last.register_forward_hook(lambda *given: ran.append(1))
    batch = torch.rand(2, 4)
    with LayerReader(model, "first", batch, **({} if stop else {"stop": False})) as reader:
        ran.clear()
        read = [reader.read(batch) for _ in range(3)]
    assert len(ran) == (0 if stop else 3)
    assert all(torch.equal(one["first"], model.first(batch)) for one in read)


def test_call_may_run_a_part_of_the_model_or_the_model_several_times():
    model, batch = Net().eval(), {"x": torch.rand(3, 4), "other": torch.rand(3, 4)}
    with torch.no_grad():
        first, twice = model.first(batch["x"]), [model.first(batch["x"]), model.first(batch["other"])]
    assert torch.equal(LayerReader(model, "first", batch, call=lambda m, b: m.first(b["x"])).read(batch)["first"], first)
    reader = LayerReader(model, ["first", "cell:3"], batch, call=lambda m, b: (m(b["x"]), m(b["other"])))
    assert reader.names == ["first:1", "first:2", "cell:3"]
    for _ in range(3):
        read = reader.read(batch)
        assert torch.equal(read["first:1"], twice[0])
        assert torch.equal(read["first:2"], twice[1])
        assert torch.equal(read["cell:3"], model.cell(twice[1]))
    reader.close()


def branches(self, x: Tensor) -> Tensor:
    x = self.always(x)
    for _ in range(int(x.shape[0] > 2) + int(x.shape[0] > 4)):
        x = self.some(x)
    return x


def test_a_layer_that_a_later_batch_does_not_reach_is_named():
    with LayerReader(
        made_of(branches, always=nn.Linear(2, 2), some=nn.Linear(2, 2)), ["always", "some"], torch.rand(3, 2), stop=False
    ) as reader:
        assert list(reader.read(torch.rand(3, 2), 0)) == ["always", "some"]
        with pytest.raises(PlaceNotReached, match=r"'some' \(.*\) was not reached in batch 7"):
            reader.read(torch.rand(2, 2), 7)
        with pytest.raises(PlaceNotReached, match=r"batch 8 did not run like .*'some' was called more often"):
            reader.read(torch.rand(5, 2), 8)
        assert reader.read(torch.rand(4, 2), 9)["some"].shape == (4, 2)


def test_a_value_that_only_some_batches_overwrite_is_right_in_all():
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y.zero_() if x.sum() > 100 else y + 1

    model = made_of(forward, inner=nn.Linear(2, 2))
    batches = [torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2) + 100, torch.rand(3, 2)]
    with LayerReader(model, "inner", batches[0]) as reader:
        for batch in batches:
            assert torch.equal(reader.read(batch)["inner"], model.inner(batch))


@pytest.mark.parametrize(
    ("layers", "settings", "error", "said"),
    [
        ([], {}, InvalidArgument, "layers must be keys"),
        (["firts"], {}, LayerNotFound, "first"),
        (["first"], {"transform": "median"}, InvalidArgument, "mean, max, first_token, last_token"),
        (["first"], {"transform": {"fisrt": "mean"}}, InvalidArgument, "Did you mean 'first'"),
        (["first"], {"transform": 3}, InvalidArgument, "a function of a tensor"),
        (["first"], {"dtype": "half16"}, InvalidArgument, "Did you mean 'float16'"),
        (["first"], {"dtype": 16}, InvalidArgument, "dtype is a torch type"),
        (["first"], {"flatten": "words"}, InvalidArgument, 'flatten is "tokens" or None'),
        (["first"], {"call": 3}, InvalidArgument, "call is a function"),
        ({"a": "first", "b": nn.Linear, "b:1": "last"}, {}, InvalidArgument, "two layers would be stored as 'b:1'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(layers, settings, error, said):
    with pytest.raises(error, match=said):
        LayerReader(Net(), layers, torch.rand(2, 4), **settings)


def test_a_first_dimension_that_is_not_samples_is_refused_with_the_transform_to_use():
    lstm, batch = nn.LSTM(4, 6), torch.rand(5, 3, 4)  # positions first
    reader = LayerReader(nn.Sequential(lstm), ["0[1]"], batch)
    with pytest.raises(InvalidArgument, match=r"batch 2 has 5; it gave a Tensor of shape \(1, 3, 6\)"):
        reader.read(batch, 2)
    sparse = LayerReader(nn.Linear(4, 2), ["output"], batch, transform=lambda tensor: tensor.to_sparse())
    with pytest.raises(InvalidArgument, match=r"dense tensors can be stored; its transform returned torch.sparse_coo"):
        sparse.read(batch)


def test_a_resnet_gives_what_hooks_give():
    model = torchvision.models.resnet18().eval()
    batches = [torch.rand(2, 3, 32, 32) for _ in range(2)]
    names = ["conv1", "bn1", "layer1.0.bn2", "layer2", "avgpool"]
    with LayerReader(model, names, batches[0]) as reader:
        for batch in batches:
            read = reader.read(batch)
            for name in names:
                assert torch.equal(read[name], hooked(model, name, batch)[0]), name


def test_a_model_that_writes_to_its_batch_gets_a_copy():
    """The first batch is run several times, and the caller's data stays as it is."""

    model = made_of(lambda self, x: self.linear(x.mul_(2).add_(1)), linear=nn.Linear(3, 2)).eval()
    batches = [torch.randn(4, 3), torch.randn(5, 3)]
    given = [batch.clone() for batch in batches]
    with LayerReader(model, ["linear"], batches[0]) as reader:
        for batch, plain in zip(batches, given, strict=True):
            assert torch.equal(reader.read(batch)["linear"], hooked(model, "linear", plain.clone())[0])
            assert torch.equal(batch, plain)


@pytest.mark.filterwarnings("ignore")  # torch warns that sparse CSR tensors are in beta
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_a_model_with_a_buffer_of_any_layout_is_read_and_left_as_it_was(layout):
    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.linear(self.adjacency @ x)

    model, x = (
        made_of(
            forward,
            adjacency=Buffer(torch.eye(3).to_sparse(layout=layout) if layout is not torch.strided else torch.eye(3)),
            seen=Buffer(torch.zeros(())),
            linear=nn.Linear(4, 2),
        ),
        torch.rand(3, 4),
    )
    with LayerReader(model, ["linear"], x) as reader:
        for number in range(2):
            assert torch.equal(reader.read(x, number)["linear"], model.linear(x))
    assert model.seen == 0
    assert model.adjacency.layout is layout
    assert torch.equal(model.adjacency.to_dense(), torch.eye(3))
