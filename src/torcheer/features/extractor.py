"""`Extractor`: adds layers of a model as columns to batches of columns, for example in Ray Data.

`ray.data.Dataset.map_batches` makes one in each of its actors. Ray is not imported here: a batch is a dictionary of NumPy
arrays, and an `Extractor` is an ordinary callable.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from .._text import few
from .._torch.addresses import innermost
from .._torch.inputs import described, taken_by
from ..errors import InvalidArgument
from .exporting import as_numpy
from .layer_reader import Call, GivenLayers, LayerReader, warn_of_training
from .transforms import GivenTransform

Batch = Mapping[str, Any]
_MOST = 8  # an error lists at most this many columns


class Extractor:
    """Adds a column for each layer to a batch of columns: call it with a batch.

    >>> import numpy, torch, torcheer
    >>> extractor = torcheer.Extractor(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), ["0", "1"])
    >>> batch = extractor({"x": numpy.ones((2, 4), numpy.float32)})
    >>> {name: column.shape for name, column in batch.items()}
    {'x': (2, 4), '0': (2, 3), '1': (2, 3)}

    On a cluster, in actors of Ray Data, each with its own model:

        dataset.map_batches(
            torcheer.Extractor,
            fn_constructor_kwargs={"model": make_model, "layers": ["layer3"], "inputs": "image"},
            batch_size=64, compute=ray.data.ActorPoolStrategy(size=4), num_gpus=1,
        )

    Args:
        model: a function without arguments that makes the model, or the model itself; in the mode and on the device it will
            run.
        layers: keys (docs/keys.md), or a mapping from names of columns to keys.
        inputs: the column that goes into the model, or a list of several, or a mapping from parameters of `forward` to
            columns. Not needed if columns have the names of parameters, or if there is only one column.
        transform: changes a value, as in `extract`.
        dtype: the dtype to which floating-point values are converted.
        call: a function `call(model, batch)` that runs the model; `batch` has all columns, with numbers as tensors.
        stop: end each pass after the last of the layers, by an exception. None: if more than a tenth of the operations come
            after it.

    Layers are found with the first batch. Dtypes that NumPy lacks (bfloat16, float8) become float32. The model keeps its
    hooks until `close`, or until the extractor is deleted.
    """

    def __init__(
        self,
        model: Module | Callable[[], Module],
        layers: GivenLayers,
        *,
        inputs: str | Sequence[str] | Mapping[str, str] | None = None,
        transform: GivenTransform = None,
        dtype: torch.dtype | str | None = None,
        call: Call | None = None,
        stop: bool | None = None,
    ) -> None:
        if inputs is not None and call is not None:
            raise InvalidArgument("inputs and call both define how the model is called with a batch: give one of them.")
        self._inputs = _Inputs(inputs, call)
        self._layers = layers
        self._options: dict[str, Any] = {"transform": transform, "dtype": dtype, "stop": stop}
        self._model = _made(model)
        self._begin()

    def _begin(self) -> None:
        self._lock = Lock()  # an actor may have several threads, but the model has one set of hooks
        self._reader: LayerReader | None = None
        self._count = 0  # number of batches so far

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """Run the model on a batch. Returns the batch with a column for each layer."""
        _check_batch(batch)
        with self._lock:
            given = self._inputs.of(batch, self._model, with_all=self._options["transform"] is not None)
            if self._reader is None:
                self._reader = self._opened(given)
            taken = [name for name in self._reader.names if name in batch]
            if taken:
                raise InvalidArgument(
                    f"the batch has a column {taken[0]!r} already, so the layer of that name must be renamed: "
                    f"layers={{'{taken[0]}_features': {taken[0]!r}}}."
                )
            values = self._reader.read(given, self._count, seed=_seed(given))
            self._count += 1
        return {**batch, **{name: as_numpy(value) for name, value in values.items()}}

    def _opened(self, given: Any) -> LayerReader:
        reader = LayerReader(self._model, self._layers, given, call=self._inputs.call, **self._options)
        weakref.finalize(self, reader.close)
        warn_of_training(innermost(self._model), stacklevel=3)
        return reader

    def close(self) -> None:
        """Remove the hooks from the model. The next batch adds them again."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The state without hooks, because Ray sends objects to other processes."""
        self.close()
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_reader", "_count")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()


def _made(model: Any) -> Module:
    """The model, or the result of the function that makes it."""
    if isinstance(model, Module):
        return model
    if not callable(model):
        raise InvalidArgument(f"model is an nn.Module, or a function without arguments that makes one; got {described(model)}.")
    name = getattr(model, "__qualname__", type(model).__name__)
    found = model()
    if not isinstance(found, Module):
        raise InvalidArgument(f"{name} should make an nn.Module; it returned {described(found)}.")
    return found


# Batches ------------------------------------------------------------------------------------------------------------------


class _Inputs:
    """Chooses the columns that go into the model, and calls it."""

    def __init__(self, inputs: Any, call: Call | None) -> None:
        self.call = call
        self._columns: list[str] = []  # all columns if empty
        if inputs is None:
            return
        named, listed = isinstance(inputs, Mapping), isinstance(inputs, (list, tuple))
        self._columns = list(inputs.values() if named else inputs if listed else [inputs])
        if not self._columns or not all(isinstance(column, str) for column in self._columns):
            raise InvalidArgument(
                f"inputs is the name of a column, a list of names, or a mapping from parameters to columns; got {inputs!r}."
            )
        self.call = _Call(dict(inputs) if named else self._columns)

    def of(self, batch: Batch, model: Module, *, with_all: bool) -> dict[str, Any]:
        """Convert a batch for the reader. Only columns that the model needs are converted, unless `with_all`."""
        if self.call is None:
            self._guess(batch, model)
        missing = [column for column in self._columns if column not in batch]
        if missing:
            raise InvalidArgument(f"the column {missing[0]!r} goes into the model; this batch has {_named(batch)}.")
        is_chosen = self._columns and not with_all
        names = [name for name in batch if name in self._columns] if is_chosen else list(batch)
        return {name: _as_tensor(batch[name]) for name in names}

    def _guess(self, batch: Batch, model: Module) -> None:
        """Choose input columns: names matching forward's parameters, else the only numeric one."""
        known = [name for name in taken_by(model).names if name in batch]
        numeric = [name for name, column in batch.items() if _is_numeric(column)]
        if known:
            self._columns, self.call = known, _Call({name: name for name in known})
        elif len(numeric) == 1:
            self._columns, self.call = numeric, _Call(numeric)
        else:
            raise InvalidArgument(
                f"no column has the name of a parameter of {type(innermost(model)).__name__}.forward; the batch has "
                f"{_named(batch)}. Name the columns for the model: inputs={next(iter(numeric), 'image')!r}."
            )


class _Call:
    """Calls a model with columns of a batch: a list of positional arguments, or keyword arguments by parameter."""

    def __init__(self, columns: list[str] | dict[str, str]) -> None:
        self._columns = columns

    def __call__(self, model: Module, batch: Batch) -> Any:
        if isinstance(self._columns, dict):
            return model(**{name: batch[column] for name, column in self._columns.items()})
        return model(*(batch[column] for column in self._columns))


def _check_batch(batch: Any) -> None:
    """Raise if this is not a batch of columns."""
    if not isinstance(batch, Mapping) or not batch:
        what = (
            f"a {type(batch).__module__.partition('.')[0]} {type(batch).__name__}" if not isinstance(batch, Mapping) else "none"
        )
        raise InvalidArgument(
            f'a batch is a dictionary of columns, NumPy arrays, as map_batches gives it with batch_format="numpy"; got {what}.'
        )
    lengths = {name: len(column) for name, column in batch.items() if hasattr(column, "__len__")}
    if len(lengths) < len(batch) or len(set(lengths.values())) > 1:
        raise InvalidArgument(f"the columns of a batch are arrays with one row for each sample; got {_named(batch)}.")


def _named(batch: Batch) -> str:
    """The text for the columns of a batch."""
    return few((f"{name!r} ({_kind(column)})" for name, column in batch.items()), _MOST)


def _kind(column: Any) -> str:
    return f"{column.dtype} {list(column.shape)}" if isinstance(column, np.ndarray) else described(column)


def _is_numeric(column: Any) -> bool:
    return isinstance(column, Tensor) or (isinstance(column, np.ndarray) and column.dtype.kind in "biufc")


def _as_tensor(column: Any) -> Any:
    """A column for the model: a copy, because the model may write to it, and Ray's memory is read-only.

    Arrays of different shapes become a list of tensors; columns without numbers become a list.
    """
    if isinstance(column, Tensor):
        return column.clone()
    if _is_numeric(column):
        return torch.from_numpy(np.array(column, dtype=column.dtype.newbyteorder("="), order="C"))
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":
        return [_as_tensor(one) if _is_numeric(one) and one.ndim else one for one in column]
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _seed(given: Mapping[str, Any]) -> int:
    """Compute the seed for the model's random numbers from a batch, so that it does not depend on the actor."""
    found = 0
    for value in given.values():
        if isinstance(value, Tensor) and len(value):
            found = crc32(value[:1].cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes(), found)
    return found
