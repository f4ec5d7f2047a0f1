"""An `Extractor` adds the layers of a model to batches of columns; what hooks see is the oracle."""

import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn

import torcheer
from models import made_of, made_with
from tiny_transformers import tiny
from torcheer import Extractor, InvalidArgument, TrainingModeWarning


@made_with(
    conv=lambda: nn.Conv2d(3, 4, 3),
    norm=lambda: nn.BatchNorm2d(4),
    act=lambda: nn.ReLU(inplace=True),
    head=lambda: nn.Linear(4, 2),
)
def Net(self, pictures):
    """A convolution, what is made of it in place, and a head."""
    return self.head(self.act(self.norm(self.conv(pictures))).mean((2, 3)))


def make_net():
    torch.manual_seed(0)
    return Net().eval()


def pictures(count=5):
    return np.random.default_rng(count).standard_normal((count, 3, 6, 6)).astype(np.float32)


def hooked(model, addresses, *args, **kwargs):
    """What modules return, by plain hooks that copy."""
    found = {}

    def hook(address):
        def keep(_module, _args, output):
            found[address] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        return keep

    handles = [model.get_submodule(address).register_forward_hook(hook(address)) for address in addresses]
    with torch.no_grad():
        model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("model", [make_net, make_net()], ids=["made by a function", "given"])
def test_a_batch_comes_back_with_a_column_for_each_layer(model):
    """Also with a layer that is overwritten in place, and for batches of other sizes than the first."""
    extractor = Extractor(model, ["conv", "norm", "head"])
    plain = make_net()
    for count in (5, 2, 5):
        batch = {"pictures": pictures(count), "label": np.arange(count), "file": np.array(["a"] * count)}
        given = {name: column.copy() for name, column in batch.items()}
        found = extractor(batch)
        expected = hooked(plain, ["conv", "norm", "head"], torch.from_numpy(batch["pictures"]))
        assert list(found) == ["pictures", "label", "file", "conv", "norm", "head"]
        assert all(isinstance(column, np.ndarray) for column in found.values())
        for name, value in expected.items():
            assert np.array_equal(found[name], value.numpy()), name
        for name, column in given.items():
            assert np.array_equal(batch[name], column)
            assert np.array_equal(found[name], column)
        assert list(batch) == list(given)


@pytest.mark.parametrize(
    "inputs", [None, "picture", ["picture"], {"pictures": "picture"}], ids=["the only one", "name", "list", "mapping"]
)
def test_columns_go_into_the_model_as_inputs_says(inputs):
    batch = {"picture": pictures(), "file": np.array(list("abcde"))}
    found = Extractor(make_net, "head", inputs=inputs)(batch)
    assert np.array_equal(found["head"], hooked(make_net(), ["head"], torch.from_numpy(batch["picture"]))["head"].numpy())


def test_several_columns_go_into_the_model_by_the_names_of_its_parameters():
    model = tiny("gpt2", n_embd=32, n_layer=2, n_head=2, vocab_size=60, n_positions=16).eval()
    tokens, mask = np.random.default_rng(0).integers(0, 50, (3, 7)), np.ones((3, 7), np.int64)
    mask[1, 4:] = 0
    found = Extractor(model, {"block": "h.0"}, transform="mean")({"attention_mask": mask, "input_ids": tokens, "n": mask[:, 0]})
    given = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
    expected = hooked(model, ["h.0"], **given)["h.0"]
    weights = given["attention_mask"][..., None].to(expected.dtype)
    assert np.allclose(found["block"], ((expected * weights).sum(1) / weights.sum(1)).numpy(), atol=1e-6)


def test_call_and_transform_get_all_columns():
    def call(model, batch):
        assert batch["file"] == list("abcde")
        return model(batch["picture"] * batch["scale"][:, None, None, None])

    batch = {"picture": pictures(), "file": np.array(list("abcde")), "scale": np.arange(5, dtype=np.float32)}
    transform = lambda tensor, batch: tensor + batch["scale"][:, None]
    found = Extractor(make_net, "head", call=call, transform=transform)(batch)
    scale = torch.from_numpy(batch["scale"])
    expected = hooked(make_net(), ["head"], torch.from_numpy(batch["picture"]) * scale[:, None, None, None])["head"]
    assert np.array_equal(found["head"], (expected + scale[:, None]).numpy())


def test_pictures_of_different_sizes_are_a_list_of_tensors():
    column = np.empty(2, dtype=object)
    column[:] = [pictures(1)[0], pictures(2)[0, :, :3]]
    found = Extractor(
        made_of(
            lambda self, some: self.all(torch.stack([one.mean((1, 2)) for one in some])),
            pool=nn.AdaptiveAvgPool2d(1),
            all=nn.Identity(),
        ).eval(),
        "all",
        inputs="picture",
    )({"picture": column})
    assert np.array_equal(found["all"], np.stack([torch.from_numpy(one).mean((1, 2)).numpy() for one in column]))


def test_memory_that_is_not_to_be_written_to_is_copied():
    """Ray gives arrays that are mapped read-only; a model that writes to its input would end the process."""

    column = np.ones((4, 3), np.float32)
    column.setflags(write=False)
    model = made_of(lambda self, x: self.linear(x.mul_(2)), linear=nn.Linear(3, 2)).eval()
    found = Extractor(model, "linear")({"x": column})
    with torch.no_grad():
        expected = model.linear(torch.full((4, 3), 2.0))
    assert np.array_equal(found["linear"], expected.numpy())
    assert np.array_equal(column, np.ones((4, 3)))


def test_types_that_numpy_lacks_become_float32_and_other_byte_orders_are_read():
    model = nn.Sequential(nn.Linear(3, 2)).eval()
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    with torch.no_grad():
        expected = model(torch.arange(6.0).view(2, 3))
    found = Extractor(model, "0", dtype="bfloat16")({"x": x})["0"]
    assert found.dtype == np.float32
    assert np.array_equal(found, expected.bfloat16().float().numpy())
    assert Extractor(model, "0", dtype=torch.float16)({"x": x})["0"].dtype == np.float16


def test_random_numbers_depend_on_the_batch_alone():
    """Which actor gets a batch, and after which others, does not matter."""

    def make():
        return nn.Sequential(nn.Dropout(0.5)).train()

    batches = [{"x": np.full((4, 50), value, np.float32)} for value in (1, 2)]
    one, other = Extractor(make, "0"), Extractor(make, "0")
    with pytest.warns(TrainingModeWarning, match="0 \\(Dropout\\)"):
        first = [one(batch)["0"] for batch in batches]
    with pytest.warns(TrainingModeWarning):
        second = other(batches[1])["0"]
    assert np.array_equal(second, first[1])
    before = torch.get_rng_state()
    assert np.array_equal(other(batches[0])["0"], first[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert not np.array_equal(first[0] * 2, first[1])


def test_hooks_are_gone_after_close_and_with_the_extractor():
    model = make_net()

    def hooks():
        return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())

    with Extractor(model, ["conv", "head"]) as extractor:
        first = extractor({"pictures": pictures()})
        assert hooks()
    assert not hooks()
    again = extractor({"pictures": pictures()})
    assert np.array_equal(first["conv"], again["conv"])
    assert hooks()
    del extractor
    assert not hooks()


def test_an_extractor_can_be_sent_to_another_process():
    extractor = Extractor(make_net(), ["conv"])
    found = extractor({"pictures": pictures()})
    copy = pickle.loads(pickle.dumps(extractor))
    assert np.array_equal(copy({"pictures": pictures()})["conv"], found["conv"])
    assert np.array_equal(extractor({"pictures": pictures()})["conv"], found["conv"])


def test_several_threads_may_call_one():
    extractor = Extractor(make_net(), ["conv"])
    batches = [{"pictures": pictures(count)} for count in range(1, 9)]
    found = {}

    def run(number):
        found[number] = extractor(batches[number])["conv"]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, batch in enumerate(batches):
        assert np.array_equal(found[number], hooked(make_net(), ["conv"], torch.from_numpy(batch["pictures"]))["conv"].numpy())


def test_a_batch_without_samples_gives_columns_without_rows():
    extractor = Extractor(make_net, ["conv", "head"])
    extractor({"pictures": pictures()})
    found = extractor({"pictures": pictures(0).reshape(0, 3, 6, 6)})
    assert found["conv"].shape == (0, 4, 4, 4)
    assert found["head"].shape == (0, 2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Extractor("resnet50", "conv"),
            "model is an nn.Module, or a function without arguments that makes one; got 'r",
        ),
        (lambda: Extractor(lambda: 3, "conv"), "should make an nn.Module; it returned"),
        (lambda: Extractor(make_net, "conv", inputs=3), "inputs is the name of a column"),
        (lambda: Extractor(make_net, "conv", inputs="a", call=lambda model, batch: None), "give one of them"),
    ],
)
def test_what_cannot_be_an_extractor_is_refused(make, said):
    with pytest.raises(InvalidArgument, match=said):
        make()


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (np.zeros((2, 3)), 'batch_format="numpy"'),
        ({}, "got none"),
        ({"a": pictures(2), "b": pictures(3)}, "one row for each sample; got 'a' \\(float32 \\[2, 3, 6, 6\\]\\)"),
        ({"a": pictures(2), "b": pictures(2)}, "no column has the name of a parameter of Net.forward; .* inputs='a'"),
        ({"a": np.array(["x"])}, "no column has the name of a parameter of Net.forward"),
        ({"pictures": pictures(2), "conv": pictures(2)}, "a column 'conv' already.* layers={'conv_features': 'conv'}"),
    ],
)
def test_batches_that_cannot_be_read_are_refused(batch, said):
    with pytest.raises(InvalidArgument, match=said):
        Extractor(make_net, "conv")(batch)


def test_a_batch_that_lacks_the_column_is_refused():
    with pytest.raises(InvalidArgument, match="the column 'picture' goes into the model; this batch has 'other'"):
        Extractor(make_net, "conv", inputs="picture")({"other": pictures()})


def test_a_layer_that_is_not_there_is_named():
    with pytest.raises(torcheer.LayerNotFound, match="convv"):
        Extractor(make_net, "convv")({"pictures": pictures()})


def test_compiled_code_runs_compiled_between_batches():
    ran: list[int] = []

    def backend(module, inputs):
        ran.append(1)
        return module.forward

    torch._dynamo.reset()
    with Extractor(make_net, ["act"]) as extractor:
        extractor({"pictures": pictures()})
        torch.compile(lambda t: t + 1, backend=backend)(torch.ones(2))
        assert ran
        extractor({"pictures": pictures()})
    torch._dynamo.reset()
