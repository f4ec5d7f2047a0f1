"""What is kept stays right when memory is written by somebody torch does not know: NumPy, DLPack, pointers, files."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import torch
from torch import nn

import torcheer
from models import Buffer, is_upstream, log, made_of

x = torch.arange(12.0).reshape(3, 4) + 1


def written_by_numpy(y):
    y.numpy()[:] = 0


def written_by_array(y):
    np.asarray(y)[:] = 0


def written_by_dunder_array(y):
    y.__array__()[:] = 0


def written_by_numpy_from_dlpack(y):
    np.from_dlpack(y)[:] = 0


def written_by_dlpack(y):
    torch.from_dlpack(y).zero_()


def written_by_capsule(y):
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y)).zero_()


def written_by_storage(y):
    y.untyped_storage().fill_(0)


def written_by_typed_storage(y):
    y.storage().fill_(0)


def written_by_pointer(y):
    ctypes.memset(y.data_ptr(), 0, y.numel() * y.element_size())


def written_by_a_view(y):
    y.detach().view(-1).numpy()[:] = 0


def written_by_tensor_over_numpy(y):
    torch.from_numpy(y.numpy()).zero_()


def written_in_shared_memory(y):
    y.share_memory_()
    ctypes.memset(y.data_ptr(), 0, y.numel() * y.element_size())


WRITERS = [
    written_by_numpy,
    written_by_array,
    written_by_dunder_array,
    written_by_dlpack,
    written_by_capsule,
    written_by_storage,
    written_by_typed_storage,
    written_by_pointer,
    written_by_a_view,
    written_by_tensor_over_numpy,
    written_in_shared_memory,
    # before torch 2.9 the array is read-only
    *([written_by_numpy_from_dlpack] if np.from_dlpack(torch.ones(1)).flags.writeable else []),
]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("write", WRITERS)
def test_a_value_written_where_torch_does_not_look_is_kept_as_it_was_made(write):
    def model(t):
        y = t * 2
        write(y)
        return y + 1

    given = x.clone()
    history = log(model, given)
    assert torch.equal(history["mul_1"].tensor_contents, x * 2)
    assert torch.equal(history["add_1"].tensor_contents, torch.ones(3, 4))
    assert torch.equal(history["output"].tensor_contents, torch.ones(3, 4))
    assert torch.equal(history["add_1"].creation_args[0], torch.zeros(3, 4))
    assert torch.equal(given, x)
    assert is_upstream(history, "mul_1", "add_1")
    assert history.validate().is_valid, history.validate()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("options", [{"layers_to_save": ["mul_1", "add_1"]}, {"save_gradients": True}], ids=str)
def test_it_is_so_with_every_way_of_keeping(write, options):
    def model(t):
        y = t * 2
        with torch.no_grad():
            write(y.detach())
        return y + 1

    history = log(model, x.clone(), **options)
    assert torch.equal(history["mul_1"].tensor_contents, x * 2)
    assert torch.equal(history["add_1"].tensor_contents, torch.ones(3, 4))


def test_the_write_is_an_operation_between_what_was_made_and_what_reads_it():
    def model(t):
        y = t * 2
        y.numpy()[0] = 0
        return y + 1

    history = log(model, x.clone())
    write = history["numpywrite_1"]
    assert write.parent_layers == ["mul_1_1"]
    assert history["add_1"].parent_layers == [write.label]
    expected = x * 2
    expected[0] = 0
    assert torch.equal(write.tensor_contents, expected)


def test_reading_by_numpy_is_no_operation():
    def model(t):
        y = t * 2
        assert y.numpy().sum() > 0
        return (y + 1) * y

    history = log(model, x.clone())
    assert [layer.layer_type for layer in history] == ["input", "mul", "add", "mul", "output"]
    assert history.validate().is_valid


def test_views_and_writes_of_torch_go_together_with_those_of_numpy():
    def model(t):
        y = t * 2
        flat = y.view(-1)
        array = y.numpy()
        array[0, 0] = 100
        y.add_(1)
        array[0, 1] = 200
        z = flat * 1
        flat.mul_(2)
        array[0, 2] = 300
        return z, y + 0, flat

    given = x.clone()
    history = log(model, given)
    expected = [t.clone() for t in model(x.clone())]
    for ours, theirs in zip(history.outputs, expected, strict=True):
        assert torch.equal(ours.tensor_contents, theirs)
    before = x * 2
    assert torch.equal(history["mul_1"].tensor_contents, before)
    assert torch.equal(history["view_1"].tensor_contents, before.view(-1))
    before[0, 0] = 100
    assert torch.equal(history["add_1:1"].tensor_contents, before + 1)
    assert history.validate().is_valid, history.validate()


def test_a_refilled_array_gives_every_call_its_own_input():
    array = np.zeros((3, 4), dtype=np.float32)
    model = nn.Linear(4, 2)
    outputs = []
    with torcheer.recording(model) as history:
        for value in range(3):
            array[:] = value
            outputs.append(model(torch.from_numpy(array)))
    calls = [one for one in history.operations if one.func_applied_name == "linear"]
    assert len(history.inputs) == 3
    for value, call, output in zip(range(3), calls, outputs, strict=True):
        assert torch.equal(call.tensor_contents, output)
        assert torch.equal(call.creation_args[0], torch.full((3, 4), float(value)))


def test_an_input_over_an_array_that_the_model_refills():
    array = np.ones((3, 4), dtype=np.float32)

    def model(t):
        first = t * 2
        array[:] = 5
        return first + t

    history = log(model, torch.from_numpy(array))
    assert torch.equal(history["input"].tensor_contents, torch.ones(3, 4))
    assert torch.equal(history["mul_1"].tensor_contents, torch.full((3, 4), 2.0))
    assert torch.equal(history["add_1"].creation_args[1], torch.full((3, 4), 5.0))
    assert history.validate().is_valid
    assert (array == 1).all()  # inputs are as they were


def test_a_registered_buffer_over_an_array_that_is_refilled():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.array = np.ones(4, dtype=np.float32)
            self.register_buffer("scale", torch.from_numpy(self.array))

        def forward(self, t):
            first = t * self.scale
            view = self.scale.view(2, 2)
            self.array[:] = 3
            return first, view, t * self.scale

    model = Model()
    history = log(model, x.clone())
    assert torch.equal(history["mul_1"].tensor_contents, x)
    assert torch.equal(history["view_1"].tensor_contents, torch.ones(2, 2))
    assert torch.equal(history["mul_2"].tensor_contents, x * 3)
    assert torch.equal(history["mul_2"].creation_args[1], torch.full((4,), 3.0))
    assert history.validate().is_valid, history.validate()


def makers():
    array = np.ones(4, dtype=np.float32)
    memory = bytearray(array.tobytes())
    yield "from_numpy", array, lambda: torch.from_numpy(array)
    yield "as_tensor", array, lambda: torch.as_tensor(array)
    yield "asarray", array, lambda: torch.asarray(array)
    yield "from_dlpack", array, lambda: torch.from_dlpack(array)
    yield "frombuffer", np.frombuffer(memory, dtype=np.float32), lambda: torch.frombuffer(memory, dtype=torch.float32)


@pytest.mark.parametrize(("name", "array", "make"), list(makers()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_tensor_made_over_foreign_memory_inside_the_model(name, array, make):
    def model(t):
        array[:] = 1
        table = make()
        first = t * table
        row = table[:2]
        array[:] = 7
        return first, row, t * table

    for _ in range(2):
        history = log(model, x.clone())
        assert torch.equal(history["mul_1"].tensor_contents, x)
        assert torch.equal(history["getitem_1"].tensor_contents, torch.ones(2))
        assert torch.equal(history["output_2"].tensor_contents, torch.full((2,), 7.0))
        assert torch.equal(history["mul_2"].tensor_contents, x * 7)
        assert history.validate().is_valid, history.validate()
        assert history.validate().is_valid


def test_a_tensor_over_a_file_that_is_written(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.ones(4, dtype=np.float32).tobytes())
    mapped = np.memmap(path, dtype=np.float32, mode="r+")

    def model(t):
        table = torch.from_file(str(path), shared=True, size=4)
        first = t * table
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[:] = np.full(4, 2, dtype=np.float32).tobytes()
        second = t * table
        mapped[:] = 3
        return first, second, t * table

    history = log(model, x.clone())
    products = [one for one in history.operations if one.func_applied_name == "mul"]
    for product, factor in zip(products, (1, 2, 3), strict=True):
        assert torch.equal(product.tensor_contents, x * factor)


def test_arrays_given_to_torch_functions_are_copied():
    index = np.array([0, 1])

    def model(t):
        index[:] = (0, 1)
        picked = t[index]
        index[:] = (2, 2)
        return picked * 2

    history = log(model, x.clone())
    assert torch.equal(history["getitem_1"].tensor_contents, x[:2])
    assert history.validate().is_valid, history.validate()


def test_a_module_gets_what_crossed_its_boundary():
    inner = nn.Linear(4, 4)

    def forward(self, t):
        y = t * 2
        y.numpy()[:] = 0
        z = self.inner(y)
        z.detach().numpy()[:] = 9
        return z

    model = made_of(forward, inner=inner)
    with torch.no_grad():
        history = log(model, x.clone())
        assert torcheer.validate_forward_pass(model, x.clone()).is_valid
    assert torch.equal(history["inner"].tensor_contents, inner(torch.zeros(3, 4)))
    assert torch.equal(history["output"].tensor_contents, torch.full((3, 4), 9.0))


def test_memory_whose_storage_was_emptied_is_not_read():
    def model(t):
        y = t * 2
        y.untyped_storage().resize_(0)
        z = t * 3
        y.untyped_storage().resize_(48)
        y.copy_(z)
        return y + 1

    history = log(model, x.clone())
    assert torch.equal(history["mul_1"].tensor_contents, x * 2)
    assert torch.equal(history["output"].tensor_contents, x * 3 + 1)


@pytest.mark.parametrize("options", [{}, {"layers_to_save": "none"}])
def test_memory_that_a_storage_is_given_and_filled_with_is_a_write(options):
    """A storage copies and resizes itself unseen, as FSDP lets it: what is read then is no older value of the tensor."""

    def model(t):
        y = t * 2
        memory = y.untyped_storage()
        memory.resize_(0)
        memory = y.untyped_storage()
        other = t * 3
        memory.resize_(48)
        memory.copy_(other.untyped_storage())
        return y + 1

    history = log(model, x.clone(), **options)
    assert [(one.layer_label_short, one.parent_layers) for one in history.operations] == [
        ("input_1", []),
        ("mul_1", ["input_1_0"]),
        ("mul_2", ["input_1_0"]),
        ("untypedstoragewrite_1", ["mul_1_1"]),
        ("add_1", ["untypedstoragewrite_1_3"]),
        ("output_1", ["add_1_4"]),
    ]
    if not options:
        assert torch.equal(history["mul_1"].tensor_contents, x * 2)
        assert torch.equal(history["untypedstoragewrite_1"].tensor_contents, x * 3)
        assert torch.equal(history["output"].tensor_contents, x * 3 + 1)
        assert history.validate()


def test_a_buffer_that_is_filled_for_the_pass_alone_is_a_write_and_empty_again():
    class Fills(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(3, 4))
            self.whole = torch.full((3, 4), 5.0)
            self.b.untyped_storage().resize_(0)

        def forward(self, t):
            memory = self.b.untyped_storage()
            memory.resize_(48)
            memory.copy_(self.whole.untyped_storage())
            y = t + self.b
            memory.resize_(0)
            return y

    model = Fills()
    history = log(model, x.clone())
    assert history["add_1"].parent_layers == ["input_1_0", "untypedstoragewrite_1_1"]
    assert torch.equal(history["untypedstoragewrite_1"].tensor_contents, model.whole)
    assert torch.equal(history["output"].tensor_contents, x + 5)
    assert model.b.untyped_storage().nbytes() == 0


def test_a_buffer_whose_storage_the_model_empties_is_put_back():
    def forward(self, t):
        row = self.b[0]
        y = t + row
        self.b.untyped_storage().resize_(0)
        return y

    model = made_of(forward, b=Buffer(torch.ones(3, 4)))
    history = log(model, x.clone())
    assert torch.equal(history["getitem_1"].tensor_contents, torch.ones(4))
    assert torch.equal(model.b, torch.ones(3, 4))
    assert history.validate().is_valid


def test_pointers_of_parameters_copy_nothing():
    model = nn.Linear(4, 4)

    def forward(t):
        assert model.weight.data_ptr() != 0
        assert model.weight.untyped_storage().nbytes() == 64
        return model(t)

    history = log(forward, x)
    assert [layer.layer_type for layer in history] == ["input", "linear", "output"]


@pytest.mark.parametrize("made", [True, False])
def test_outputs_that_are_parts_of_memory_that_was_handed_out_are_themselves(made):
    def model(t):
        t = t * 1 if made else t
        array = t.numpy()
        array *= 10
        return t[0], t[1], t.unbind(0)[1], t[:, 0]

    given = torch.arange(8.0).reshape(2, 4)
    history = log(model, given)
    expected = model(given.clone())
    assert [one.activation.tolist() for one in history.outputs] == [one.tolist() for one in expected]
    assert torcheer.validate_forward_pass(model, given)
    assert given.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_output_before_one_that_numpy_wrote_to_is_an_output():
    """That write is noticed when the model returns, and comes before all outputs."""
    table = torch.ones(2)

    def model(t):
        made = t * 2
        added = t + table
        made.numpy()[:] = 5
        return table, made, added

    history = log(model, torch.ones(2))
    assert [one.label for one in history.operations][-3:] == ["output_1_5", "output_2_6", "output_3_7"]
    assert [one.activation.tolist() for one in history.outputs] == [[1, 1], [5, 5], [2, 2]]
    assert torcheer.validate_forward_pass(model, torch.ones(2))
    with torcheer.recording() as recorded:
        kept = model(torch.ones(2))
    assert len(kept) == 3
    assert recorded.validate()


def rows(base):
    return base.view(4, 6)


OVERLAPS = {
    "before": lambda base: (base[4:14], base[:8]),
    "behind": lambda base: (base[4:14], base[10:]),
    "around": lambda base: (base[4:14], base),
    "columns": lambda base: (rows(base)[:, 1:4], rows(base)[:, 2:6]),
    "every other": lambda base: (base[4:14], base[1::2]),
    "rows": lambda base: (rows(base)[1:3], rows(base)[2:]),
}


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("name", OVERLAPS)
def test_a_tensor_of_the_model_that_partly_overlaps_one_written_before_is_proved(name, is_given, tmp_path):
    def forward(self, t):
        first = t if is_given else self.first
        first.mul_(2)
        self.second.add_(1)
        early = first + 1
        self.second[0] = 5
        self.third.sub_(1)
        return early, self.second.sum(), first.sum(), self.third * 2, t + 0

    def made_anew():
        base = torch.rand(24, generator=torch.Generator().manual_seed(0))
        model = made_of(forward)
        model.first, model.second = OVERLAPS[name](base)
        model.third = base[3:7]
        return model, model.first if is_given else torch.ones(2)

    model, t = made_anew()
    expected = model(t)
    model, t = made_anew()
    history = log(model, t)
    assert all(map(torch.equal, [one.activation for one in history.outputs], expected))
    report = torcheer.validate_forward_pass(model, t)
    assert report, report
    assert torcheer.load(history.save(tmp_path / "log.safetensors", params=True)).validate()
    assert all(map(torch.equal, [one.activation for one in history.replay().outputs], expected))
