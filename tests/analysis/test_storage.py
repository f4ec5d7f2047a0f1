"""Which tensors share memory is known without their values: from views, and from how tensors are laid out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models import log
from torcheer.analysis import memory_of


def test_reshape_copies_where_strides_demand_it():
    def f(x: Tensor) -> Tensor:
        return x.reshape(4).reshape(2, 2).T.reshape(4)

    history = log(f, torch.ones(2, 2), layers_to_save="none")
    assert memory_of(history).live == (16, 16, 16, 16, 32, 32)
    assert memory_of(log(f, torch.ones(2, 2))).live == (16, 16, 16, 16, 32, 32)


def test_the_layout_of_elementwise_results_is_followed():
    def f(x: Tensor) -> Tensor:
        return torch.relu(x.T).T.reshape(6)  # relu's result is laid out like its argument

    assert memory_of(log(f, torch.ones(2, 3), layers_to_save="none")).live == (24, 24, 48, 48, 48, 48)


MAYBE_COPIES = {
    "a contiguous tensor": lambda x: x.reshape(-1),
    "transposed": lambda x: x.transpose(1, 2).reshape(-1),
    "transposed and back": lambda x: x.transpose(1, 2).transpose(1, 2).reshape(-1),
    "transposed, and two dimensions joined that lie together": lambda x: x.permute(2, 0, 1).reshape(4, 6),
    "transposed, and two dimensions joined that do not": lambda x: x.permute(1, 0, 2).reshape(6, 4),
    "every second": lambda x: x[:, :, ::2].reshape(-1),
    "a part": lambda x: x[1].reshape(-1),
    "contiguous already": lambda x: x.contiguous(),
    "made contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "contiguous after a dimension of one": lambda x: x[:1].transpose(0, 1).contiguous(),
    "contiguous as asked": lambda x: x.contiguous(memory_format=torch.contiguous_format),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "channels last already": lambda x: x[None].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last),
    "flattened after channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last).reshape(-1)[:1],
    "flattened after a copy with channels last": lambda x: x[None].clone(memory_format=torch.channels_last).reshape(-1)[:1],
    "of the same type": lambda x: x.transpose(0, 1).to(torch.float32),
    "of the same type, as a copy": lambda x: x.to(torch.float32, copy=True),
    "of the same type, channels last": lambda x: x[None].to(memory_format=torch.channels_last),
    "of the same type, channels last already": lambda x: x[None].permute(0, 3, 1, 2).to(memory_format=torch.channels_last),
    "flattened without elements": lambda x: x[:0].transpose(1, 2).reshape(-1),
}


@pytest.mark.parametrize("kept", ["all", "none"])
@pytest.mark.parametrize("name", MAYBE_COPIES)
def test_a_copy_is_counted_exactly_where_torch_makes_one(name, kept):
    """Torch tells by the memory of what comes out; the log, which may hold no values, by how the views are laid out."""
    x = torch.rand(2, 3, 4)
    result = MAYBE_COPIES[name](x)
    memory = result.untyped_storage()
    copied = 0 if memory.data_ptr() == x.untyped_storage().data_ptr() else memory.nbytes()
    with torch.no_grad():
        history = log(MAYBE_COPIES[name], x, layers_to_save=kept)
    assert memory_of(history).live[-1] == x.nbytes + copied
