"""How batches go into models, and what is left over."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch
from torch import Tensor, nn

from models import made_of
from torcheer.errors import InvalidArgument
from torcheer.features.layer_reader import Calling, LayerReader


class One(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return x + y


class Optional(nn.Module):
    def forward(self, input_ids=None, attention_mask=None, labels=None):
        return input_ids


class Mixed(nn.Module):
    def forward(self, input_ids, attention_mask, **others):
        return input_ids


X, Y, Z = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3)


@pytest.mark.parametrize(
    ("model", "batch", "args", "kwargs", "labels"),
    [
        (One(), X, (X,), {}, {}),
        (One(), (X,), (X,), {}, {}),
        (One(), [X, Z], (X,), {}, {"labels": Z}),
        (One(), (X, Y, Z), (X,), {}, {"labels_1": Y, "labels_2": Z}),
        (Two(), (X, Y, Z), (X, Y), {}, {"labels": Z}),
        (nn.Sequential(One()), (X, Z), (X,), {}, {"labels": Z}),
        (One(), {"x": X, "y": Z}, (), {"x": X}, {"y": Z}),
        (Optional(), {"input_ids": X, "labels": Z}, (), {"input_ids": X, "labels": Z}, {"labels": Z}),
        (Optional(), UserDict(input_ids=X, topic=Z), (), {"input_ids": X}, {"topic": Z}),
        (Mixed(), {"input_ids": X, "attention_mask": Y, "id": Z}, (), {"input_ids": X, "attention_mask": Y}, {"id": Z}),
        (made_of(lambda self, **batch: batch), {"a": X, "b": Z}, (), {"a": X, "b": Z}, {}),
        (One(), {"pixels": X, "label": Z}, ({"pixels": X, "label": Z},), {}, {"label": Z}),
        (nn.DataParallel(One()), (X, Z), (X,), {}, {"labels": Z}),
    ],
)
def test_forward_gets_what_it_requires_and_the_rest_are_labels(model, batch, args, kwargs, labels):
    calling = Calling(model)
    assert calling.arguments(batch) == (args, kwargs)
    assert calling.labels(batch) == labels
    assert calling.samples(batch) == 3


def test_what_is_not_clear_is_asked_for():
    with pytest.raises(InvalidArgument, match=r"which of the 2 items .* call=lambda model, batch: model\(batch\[0\]\)"):
        Calling(Optional()).arguments((X, Z))
    with pytest.raises(
        InvalidArgument, match=r"no item of the batch has the name of a parameter of Two.forward \(x, y, mask\)"
    ):
        Calling(Two()).arguments({"pixels": X})
    with pytest.raises(InvalidArgument, match=r"missing a required argument: 'y'"):
        LayerReader(Two(), "output", (X,))
    with pytest.raises(InvalidArgument, match="the number of samples"):
        Calling(One()).samples(torch.tensor(1.0))
    with pytest.raises(InvalidArgument, match=r"model is an nn.Module; got"):
        Calling(lambda x: x)


def test_a_model_on_several_threads_is_refused():
    model = nn.DataParallel(One())
    model.device_ids = [0, 1]
    with pytest.raises(InvalidArgument, match=r"model\.module; for several GPUs .* torchrun"):
        Calling(model)


def test_the_samples_of_lists_are_their_items():
    assert Calling(One()).samples(([torch.rand(3, 4, 4), torch.rand(3, 5, 5)], ["a", "b"])) == 2
    assert Calling(One(), lambda model, batch: None).samples(["a text", "another", "third"]) == 3
    assert Calling(One(), lambda model, batch: None).samples({"text": ["a", "b"]}) == 2


def test_the_mask_is_found_by_its_name():
    mask = torch.ones(3, 2)
    assert Calling(Optional()).mask({"input_ids": X, "attention_mask": mask}) is mask
    assert Calling(Mixed()).mask((X, mask, Z)) is mask
    assert Calling(One()).mask((X, mask)) is None
