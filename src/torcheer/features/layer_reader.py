"""Reads chosen layers of a model, batch after batch: the common part of `extract` and `Extractor`.

`Calling` decides how a batch goes into the model, and which items are labels:

- A tensor is the argument.
- Of a tuple or list, `forward` gets as many items as it requires; the others are labels.
- Of a mapping (a dictionary, a tokenizer's `BatchEncoding`), `forward` gets the items with names of its parameters; the
  others are labels.
- With a function `call`, `call(model, batch)` runs the model.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from threading import get_ident
from types import MethodType, TracebackType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import DataParallel, Module
from torch.nn.parameter import is_lazy

from .._cleanup import Managed, held_signals, undoing
from .._text import did_you_mean, few
from .._torch.addresses import innermost, without_parallelism
from .._torch.containers import Arguments, is_tensor, replace_tensors, tensors_in
from .._torch.inputs import Taken, described, taken_by
from .._torch.internals import storage_address, storage_use_count
from .._torch.object_state import items_of, refill
from .._torch.randomness import random_as_found
from ..capture import run_model
from ..errors import ActivationLost, InvalidArgument, PlaceNotReached, TrainingModeWarning
from ..history import ModelHistory
from ..live.places import Place, Spot, places_of
from ..live.reading import Take
from ..live.watch import WatchedKeys, in_words
from ..log.fingerprint import fingerprint_of
from ..log.keys import AnyKey, Meaning, parse_key
from ..log.options import Options
from ..log.run import run_of
from ..replay.comparison import same_bits
from .transforms import transforms_by_name

Call = Callable[[Module, Any], Any]
MASK = "attention_mask"
_LABELS = ("label", "labels", "target", "targets")  # kept as labels even if forward has such parameters


class Calling:
    """Calls one model with batches."""

    def __init__(self, model: Module, call: Call | None = None) -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(
                f"extract() reads layers by hooks on modules, so model is an nn.Module; got {described(model)}."
            )
        if isinstance(model, DataParallel) and len(model.device_ids) > 1:
            raise InvalidArgument(
                f"a DataParallel model runs on {len(model.device_ids)} threads, whose layers cannot be read in order. Give the "
                "model inside, model.module; for several GPUs start one process for each with torchrun."
            )
        if call is not None and not callable(call):
            raise InvalidArgument(f"call is a function call(model, batch) that runs the model; got {described(call)}.")
        self.model: Module = without_parallelism(model)  # without the parallel wrapper, which may wait for other processes
        self._call = call

    @cached_property
    def device(self) -> torch.device:
        """The device of the model, to which batches are moved."""
        devices = {one.device for one in (*self.model.parameters(), *self.model.buffers())}
        return devices.pop() if len(devices) == 1 else torch.device("cpu")

    @cached_property
    def _taken(self) -> Taken:
        return taken_by(self.model)

    @cached_property
    def _arguments_of_sequence(self) -> int:
        """How many items of a batch that is a sequence are arguments; 0 if `forward` does not tell."""
        return 1 if self._taken.takes_one else self._taken.required

    # Running --------------------------------------------------------------------------------------------------------

    def on_device(self, batch: Any) -> Any:
        """The batch, with its tensors on the model's device."""
        if self.device.type == "cpu" or all(one.device == self.device for one in tensors_in(batch)):
            return batch
        return replace_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def run(self, batch: Any) -> None:
        """Run the model on a batch."""
        if self._call is not None:
            self._call(self.model, batch)
        else:
            args, kwargs = self.arguments(batch)
            self.model(*args, **kwargs)

    def as_function(self, batch: Any) -> tuple[Callable[..., Any], Arguments]:
        """The function and arguments to run a batch. The model's modules keep their addresses."""
        if self._call is not None:
            return MethodType(self._call, self.model), ((batch,), {})
        return self.model, self.arguments(batch)

    def arguments(self, batch: Any) -> Arguments:
        """The arguments of `forward` in a batch."""
        if isinstance(batch, Mapping):
            named = self._named(batch)
            return ((), {name: batch[name] for name in named}) if named is not None else ((batch,), {})
        if isinstance(batch, (tuple, list)):
            return tuple(batch[: self._count(batch)]), {}
        return (batch,), {}

    def _named(self, batch: Mapping[Any, Any]) -> list[Any] | None:
        """Return the names of those items of a mapping that are arguments. None if the mapping itself is the argument."""
        found = [name for name in batch if name in self._taken.names]
        if found:
            return found
        if self._taken.takes_any_name and not self._taken.required and all(isinstance(name, str) for name in batch):
            return list(batch)
        if self._taken.takes_one or self._taken.required == 1:
            return None
        raise InvalidArgument(
            f"no item of the batch has the name of a parameter of {type(self.model).__name__}.forward "
            f"({', '.join(self._taken.names) or 'it has none'}); got {described(batch)}. Define how the model is "
            f"called with it: call=lambda model, batch: model(batch[{next(iter(batch), 'name')!r}])."
        )

    def _count(self, batch: tuple[Any, ...] | list[Any]) -> int:
        """Return how many items of a sequence, from the first on, are arguments."""
        if len(batch) < 2:
            return 1
        if self._arguments_of_sequence:
            return self._arguments_of_sequence
        raise InvalidArgument(
            f"{type(self.model).__name__}.forward requires no argument, so which of the {len(batch)} items of a batch are "
            "arguments and which are labels is unclear. Define it: call=lambda model, batch: model(batch[0])."
        )

    # Parts of a batch ---------------------------------------------------------------------------------------------------

    def labels(self, batch: Any, ids: str | int | None = None) -> dict[str, Any]:
        """Return the items of a batch, by name, that are neither arguments nor the item `ids`.

        If the user gave `call`, which takes the whole batch: the items with common names of labels.
        """
        if isinstance(batch, Mapping):
            taken = set(batch) if self._call is not None else set(self.arguments(batch)[1] or batch)
            kept = [name for name in batch if (name not in taken or name in _LABELS) and name != ids]
            return {str(name): batch[name] for name in kept}
        if self._call is not None or not isinstance(batch, (tuple, list)):
            return {}
        rest = [batch[at] for at in range(self._count(batch), len(batch)) if ids not in (at, at - len(batch))]
        return {"labels" if len(rest) == 1 else f"labels_{place}": value for place, value in enumerate(rest, 1)}

    def mask(self, batch: Any) -> Tensor | None:
        """The attention mask of a batch, [samples, positions], found by its name or its parameter's name."""
        if isinstance(batch, Mapping):
            found = batch.get(MASK)
        elif self._call is None and isinstance(batch, (tuple, list)) and MASK in self._taken.names:
            at = self._taken.names.index(MASK)
            found = batch[at] if at < self._count(batch) else None
        else:
            found = None
        return found if isinstance(found, Tensor) and found.dim() == 2 else None

    def samples(self, batch: Any) -> int:
        """Return the number of samples in a batch: the size of the first dimension of the first tensor with dimensions, or
        the length of a list.
        """
        if self._call is None:
            args, kwargs = self.arguments(batch)
            values = [*args, *kwargs.values()]
        else:
            values = list(batch) if isinstance(batch, (tuple, list)) and any(is_tensor(one) for one in batch) else [batch]
        for value in values:
            count = _length(value)
            if count is not None:
                return count
        raise InvalidArgument(
            f"the number of samples in {described(batch)} is unknown: no tensor in it has a dimension. "
            "A batch is a tensor, a tuple or a mapping of tensors, whose first dimension is samples."
        )


def _length(value: Any) -> int | None:
    if is_tensor(value):
        return value.size(0) if value.dim() else None
    if isinstance(value, Mapping):
        return next((count for one in value.values() if (count := _length(one)) is not None), None)
    if isinstance(value, (tuple, list)):  # pictures of different sizes, or texts
        return len(value)
    return next((one.size(0) for one in tensors_in(value) if one.dim()), None)


# Modules in training mode, and the warning about them.

# classes that behave differently in training mode
_ACTS = "Dropout BatchNorm InstanceNorm RReLU StochasticDepth DropPath Attention LSTM GRU RNN".split()


def training_modules(model: Module) -> list[str]:
    """The addresses of the modules that are in training mode."""
    return [
        address for address, module in model.named_modules() if getattr(module, "training", False)
    ]  # a frozen TorchScript module has no mode


def warn_of_training(model: Module, *, stacklevel: int) -> None:
    """Warn about modules in training mode; modules that behave differently in it come first."""
    training = training_modules(model)
    if not training:
        return
    modules = dict(model.named_modules())
    acting = [address for address in training if any(word in type(modules[address]).__name__ for word in _ACTS)]
    named = [*acting, *(address for address in training if address not in acting)]
    said = few((f"{address or 'the model itself'} ({type(modules[address]).__name__})" for address in named), 5)
    warnings.warn(
        f"modules are in training mode: {said}. For features of a trained model, call model.eval() first.",
        TrainingModeWarning,
        stacklevel=stacklevel + 1,
    )


# Reads the layers of a model for one batch after another.
#
# The layers are found by logging the first batch; afterwards only these places are watched. Each pass starts from the same
# state: changes by a pass (to buffers, parameters, attributes, lists and dictionaries) are undone, and if the model draws
# random numbers, each batch has its own seed. A model that writes to its batch gets a copy. So the values do not depend on
# which batches were read before, or by which process.

Flatten = Literal["tokens"]
GivenLayers = AnyKey | Mapping[str, AnyKey]  # keys, or a mapping from the user's names to keys


class LayerReader(Managed["LayerReader"]):
    """Reads chosen layers of a model. The options are those of `extract`; the model has hooks until `close`."""

    def __init__(
        self,
        model: Module,
        layers: Any,
        first_batch: Any,
        *,
        transform: Any = None,
        dtype: torch.dtype | str | None = None,
        flatten: Flatten | None = None,
        call: Call | None = None,
        stop: bool | None = None,
    ) -> None:
        if flatten not in (None, "tokens"):
            raise InvalidArgument(f'flatten is "tokens" or None; got {flatten!r}.')
        self.calling = Calling(model, call)
        self.dtype = _dtype(dtype)
        self.flatten = flatten
        self._model = innermost(model)
        self._history = self._logged(first_batch)
        self.structure = fingerprint_of(run_of(self._history).index)  # a hash of the operations
        self._keys = _keys(layers)
        meanings = [run_of(self._history).lookup.meaning(key) for _, key in self._keys]
        self._named = _named_places(self._history, self._keys, meanings)
        self._stops = _is_worth_stopping(self._history, meanings) if stop is None else stop
        self.names = list(dict.fromkeys(name for name, _ in self._named))
        self.origins = dict(self._named)  # name of a layer -> its key, as text
        self._transforms = transforms_by_name(transform, self.names, self.origins)
        self._written: list[tuple[Tensor, Tensor]] | None = None  # (tensor that a pass writes to, its value before the pass)
        self._draws = False  # True if a pass draws random numbers
        self._writes_batch = False  # True if a pass writes to its batch
        self._thread = 0  # the thread that is watched
        self._take = Take()
        self._watched: WatchedKeys | None = None

    def _logged(self, batch: Any) -> ModelHistory:
        """A history of one batch, without values."""
        batch = self.calling.on_device(batch)
        function, arguments = self.calling.as_function(batch)
        history = ModelHistory.begin(type(self._model).__name__, Options(layers_to_save="none", unseen="ignore"))
        with torch.no_grad():
            restorer = run_model(run_of(history), function, arguments, None, call="extract").recorder.restorer
        assert restorer is not None
        own = {id(tensor) for tensor in tensors_in(batch)}  # the pass gets a copy of a batch that it writes to
        self.state = [tensor for tensor in restorer.written if id(tensor) not in own]  # tensors that a pass writes to
        self._moved = restorer.moved  # attributes of modules, lists and dictionaries that a pass changes
        return history

    # Opening and closing --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Add hooks to the model, for this thread. `read` calls it if needed."""
        if self._watched is not None and self._thread != get_ident():
            self.close()
        if self._watched is None:
            self._thread = get_ident()
            keys = [(key, self._take) for _, key in self._keys]
            watched = WatchedKeys(self.calling.model, keys, self._history, lasts=True)
            with held_signals():
                watched.watch.__enter__()
                self._watched = watched

    def close(self, error: BaseException | None = None) -> None:
        """Remove the hooks."""
        with held_signals():
            watched, self._watched = self._watched, None
            if watched is not None:
                self._take = Take()
                watched.watch.leave(type(error) if error is not None else None, error, None)

    def _begin(self) -> LayerReader:
        self.open()
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(error)

    # Reading --------------------------------------------------------------------------------------------------------

    def read(self, batch: Any, number: int = 0, *, seed: int | None = None) -> dict[str, Tensor]:
        """Run the model on a batch. Returns the value of each layer by name, as tensors that nothing else writes to.

        `number` is the batch's number, for errors and, without a `seed`, for the random numbers that the model draws.
        """
        seed = number if seed is None else seed
        self.open()
        # taken before the batch is moved, so that nothing waits for a device
        mask = self.calling.mask(batch) if self.flatten else None
        batch = self.calling.on_device(batch)
        with torch.no_grad():
            if self._written is None:
                self._find_effects(batch, seed)
            else:
                self._pass(batch, seed)
            taken = self._taken(number)
            if taken is None:  # an earlier batch did not overwrite this layer, so no copy was made: repeat the pass with a copy
                self._pass(batch, seed)
                taken = self._taken(number)
            if taken is None:
                raise ActivationLost(
                    f"batch {number} overwrote a layer in place after it was read, each time a different layer."
                )
            return self._finished(taken, batch, number, mask)

    def tokens(self, batch: Any, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """With `flatten="tokens"`, for each row: the index of its sample in the batch, and the index of its token.

        Tokens are counted without padding. Without an attention mask, every position is a token.
        """
        mask = self.calling.mask(batch)
        if mask is not None:
            kept = mask.cpu().bool()
            return kept.nonzero()[:, 0], (kept.cumsum(1) - 1)[kept]
        samples = self.calling.samples(batch)
        rows = {len(rows) for rows in values.values()}
        if len(rows) > 1:
            lengths = ", ".join(f"{name!r}: {len(rows) // samples}" for name, rows in values.items())
            raise InvalidArgument(
                'flatten="tokens" needs layers with the same number of positions, since a batch has no attention_mask; '
                f"got {lengths}. Extract them into separate folders."
            )
        length = rows.pop() // max(samples, 1)
        numbers = torch.arange(samples, device="cpu")
        return numbers.repeat_interleave(length), torch.arange(length, device="cpu").repeat(samples)

    def _find_effects(self, batch: Any, seed: int) -> None:
        """Run the first batch to learn whether it draws random numbers, or writes to the batch or to buffers, even unseen.

        If it draws, it is run again with its own seed.
        """
        state = {id(tensor): tensor for tensor in (*self._model.buffers(), *self.state)}
        originals = [(tensor, tensor.clone()) for tensor in state.values() if not is_lazy(tensor)]
        copy = _copied(batch)
        with random_as_found() as random, undoing() as undo:
            undo.callback(self._put_back, originals)
            self._pass(copy, seed)
            self._draws = random.is_moved()
            pairs = zip(tensors_in(copy), tensors_in(batch), strict=True)
            self._writes_batch = not all(same_bits(one, other) for one, other in pairs)
            self._written = [(tensor, original) for tensor, original in originals if not same_bits(tensor, original)]
        if self._draws:
            self._pass(batch, seed)

    def _put_back(self, originals: list[tuple[Tensor, Tensor]]) -> None:
        for tensor, original in originals if self._written is None else self._written:
            tensor.copy_(original)

    def _pass(self, batch: Any, seed: int) -> None:
        """Run the model, and undo its changes."""
        for tensor, original in self._written or ():  # the program may have changed the tensor since the last batch
            original.copy_(tensor)
        with undoing() as undo:
            for container in self._moved:
                undo.callback(refill, container, items_of(container))
            self._run(batch, seed)

    def _run(self, batch: Any, seed: int) -> None:
        assert self._watched is not None
        with random_as_found() if self._draws else contextlib.nullcontext() as random, undoing() as undo:
            undo.callback(self._put_back, [])
            if random is not None:
                random.start_from(seed)
            with self._watched.watch.one_pass(stops=self._stops):
                self.calling.run(_copied(batch) if self._writes_batch else batch)

    def _taken(self, number: int) -> dict[str, Tensor] | None:
        """Return the value at each place. None if a value was overwritten and was not copied."""
        assert self._watched is not None
        watch = self._watched.watch
        if watch.otherwise:
            said = "; ".join(watch.otherwise)
            watch.otherwise.clear()
            raise PlaceNotReached(f"batch {number} did not run like the first batch: {said}.")
        found: dict[str, Tensor] = {}
        is_lost = False
        places = [(key, spot) for key, spots in self._watched.spots for spot in spots]
        for (name, _), (key, spot) in zip(self._named, places, strict=True):
            values = self._take.values.get(spot, ())
            if len(values) != 1:
                raise PlaceNotReached(_times(spot, key, len(values), number))
            tensor = values[0].get()
            if tensor is None:
                self._take.lost(spot)
                is_lost = True
            else:
                # a new tensor object, so that holders of the old tensor object count as users of its memory
                found[name] = tensor.detach()
        if is_lost:
            return None
        self._take.begin()  # releases the tensors
        return found

    # Postprocessing -------------------------------------------------------------------------------------------------

    def _finished(self, taken: dict[str, Tensor], batch: Any, number: int, tokens: Tensor | None) -> dict[str, Tensor]:
        samples = self.calling.samples(batch)
        mask = self.calling.mask(batch) if self._transforms else None
        for name in self.names:
            tensor = taken[name]
            if (transform := self._transforms.get(name)) is not None:
                tensor = transform(tensor, batch, mask)
                tensor = tensor.detach() if isinstance(tensor, Tensor) else tensor  # detached, as in `_taken`
            taken[name] = self._stored(_plain(tensor, name, transform is not None), name, samples, tokens, number)
            del tensor
        counts: dict[int, int] = {}  # storage -> number of these tensors that use it
        for one in {id(one): one for one in taken.values()}.values():
            address = storage_address(one)
            counts[address] = counts.get(address, 0) + 1
        return {name: _owned(tensor, counts) for name, tensor in taken.items()}

    def _stored(self, tensor: Tensor, name: str, samples: int, mask: Tensor | None, number: int) -> Tensor:
        if self.flatten == "tokens":
            tensor = _rows(tensor, name, samples, mask)
        elif not tensor.dim() or tensor.shape[0] != samples:
            what, right = "its transform made" if name in self._transforms else "it gave", _hint(tensor, samples)
            raise InvalidArgument(
                f"{name!r}: the first dimension of a stored tensor must be samples, and batch {number} has {samples}; {what} "
                f"{described(tensor)}. Bring it into that form: transform={{{name!r}: lambda tensor: {right}}}."
            )
        return tensor.to(self.dtype) if self.dtype is not None and tensor.is_floating_point() else tensor


def _copied(batch: Any) -> Any:
    return replace_tensors(batch, lambda tensor: tensor.clone())


def _owned(tensor: Tensor, counts: dict[int, int]) -> Tensor:
    """Return the tensor; or a copy if other code may write to its memory, or if the tensor uses little of its memory."""
    address = storage_address(tensor)
    # read the count before `untyped_storage` is read, because reading it adds a use
    is_shared = storage_use_count(address) > counts[address]
    storage = tensor.untyped_storage()
    is_foreign = not storage.resizable()  # such as the memory of a NumPy array, whose other users are not counted
    if is_shared or is_foreign or storage.nbytes() > 2 * tensor.numel() * tensor.element_size() + 4096:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def _rows(tensor: Tensor, name: str, samples: int, mask: Tensor | None) -> Tensor:
    """The rows of a value with `flatten="tokens"`: one for each position that is not padding."""
    if tensor.dim() < 2 or tensor.shape[0] != samples or (mask is not None and tensor.shape[:2] != mask.shape):
        expected = f"({', '.join(map(str, mask.shape))}, …)" if mask is not None else f"({samples}, positions, …)"
        raise InvalidArgument(
            f'{name!r}: flatten="tokens" makes rows of a tensor of shape {expected}; got {described(tensor)}. '
            "Leave the layer out, or bring it into that form with transform=."
        )
    if mask is None:
        return tensor.flatten(0, 1)
    kept = mask.flatten().nonzero()[:, 0]
    return tensor.flatten(0, 1).index_select(0, kept.to(tensor.device, non_blocking=True))


def _plain(tensor: Any, name: str, is_transformed: bool) -> Tensor:
    """Return the value. Raises if it is not a tensor that can be stored."""
    what = "its transform returned" if is_transformed else "it is"
    if not isinstance(tensor, Tensor):
        raise InvalidArgument(f"{name!r}: only tensors can be stored; {what} {described(tensor)}.")
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)
        raise InvalidArgument(f"{name!r}: only dense tensors can be stored; {what} {kind}. Convert it with transform=.")
    if tensor.is_meta:
        raise InvalidArgument(
            f"{name!r}: only values can be stored; {what} on the meta device, which has none. Give the model and the data "
            "memory: model.to_empty(device='cpu'), and load its weights."
        )
    if type(tensor) is not Tensor:
        return tensor.detach().as_subclass(Tensor)
    return tensor


def _hint(tensor: Tensor, samples: int) -> str:
    at = next((at for at, size in enumerate(tensor.shape) if size == samples), None)
    return f"tensor.movedim({at}, 0)" if at else "…"


def _times(spot: Spot, key: Any, count: int, number: int) -> str:
    where = in_words(spot.place, key)
    if not count:
        return (
            f"{where} was not reached in batch {number}, as it was in the first one. Every layer needs a value for every "
            "sample: leave it out, or give data that goes the same way through the model."
        )
    return f"{where} was reached {count} times in batch {number}; one value is needed for each sample."


# Names --------------------------------------------------------------------------------------------------------------------


def _keys(layers: Any) -> list[tuple[str | None, Any]]:
    """Return pairs: the name that the user gave, or None; and the key."""
    found: list[tuple[str | None, Any]]
    if isinstance(layers, Mapping):
        found = [(str(name), key) for name, key in layers.items()]
    else:
        found = [(None, key) for key in (layers if isinstance(layers, (list, tuple)) else [layers])]
    if not found or layers is None:
        raise InvalidArgument('layers must be keys of layers: extract(model, data, ["layer3"], to=folder).')
    return found


def _named_places(history: ModelHistory, keys: list[tuple[str | None, Any]], meanings: list[Meaning]) -> list[tuple[str, str]]:
    """Name the places that the keys mean, in order. Returns pairs: the name, and the key as text.

    The name of a place is its key, numbered if the key means several places. For a glob, a class, a function or a position,
    it is an address or a label. A place with two keys has the name of the first.
    """
    found: list[tuple[str, str]] = []
    known: dict[str, Place] = {}
    for (given, key), meaning in zip(keys, meanings, strict=True):
        places = places_of(run_of(history), meaning)
        text = given if given is not None else key if isinstance(key, str) and not parse_key(key).is_plural else None
        for turn, place in enumerate(places, 1):
            if text is None:
                name = _name_of(place, places)
            elif len(places) == 1:
                name = text
            elif text in ("input", "output"):  # one of several inputs or outputs of the model
                name = text if turn == 1 else f"{text}{turn}"
            else:
                name = f"{text}:{turn}"
            if known.setdefault(name, place) != place:
                raise InvalidArgument(f"two layers would be stored as {name!r}. Name them: layers={{'first': …, 'second': …}}.")
            found.append((name, key if isinstance(key, str) else str(given or name)))
    return found


def _is_worth_stopping(history: ModelHistory, meanings: list[Meaning]) -> bool:
    """True if more than a tenth of the operations of a pass come after the last layer."""
    last = max(number for meaning in meanings for number in meaning.numbers)
    index = run_of(history).index
    count = index.length - len(index.outputs)
    return count - 1 - last > count / 10


def _name_of(place: Place, places: list[Place]) -> str:
    if place.kind == "function" or (not place.module and place.call is None):
        return re.sub(r"^(.+_\d+)_\d+(:\d+)?$", r"\1\2", place.label)
    others = [other for other in places if (other.kind, other.module, other.part) == (place.kind, place.module, place.part)]
    name = place.module or "output"
    name = f"input:{name}" if place.kind == "input" else name
    name = f"{name}[{place.part}]" if place.part else name
    return f"{name}:{place.call}" if len(others) > 1 else name


def _dtype(dtype: Any) -> torch.dtype | None:
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if isinstance(found, torch.dtype):
            return found
        hint = did_you_mean(dtype, ["float16", "bfloat16", "float32", "float64"], cutoff=0.3)
        raise InvalidArgument(f"torch has no type {dtype!r}.{hint}")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise InvalidArgument(f"dtype is a torch type, such as torch.float16; got {described(dtype)}.")
    return dtype
