"""`tap` reads values at chosen places while a model runs; `activation` does so in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.nn import Module

from ..capture.addresses import innermost
from ..capture.restore.left_as_found import left_as_found
from ..cleaning import Managed
from ..containers import Arguments, shares_no_container, tensors_in
from ..display import few
from ..errors import ActivationLost, InvalidArgument
from ..history import History
from ..inputs import LEFT_OUT, as_arguments
from ..keys import AnyKey
from ..shapes import shape_of
from ..tensor_memory import cloned
from .model_places import ModelPlaces
from .spots import Spot
from .stopping_log import values_in_log
from .taking import Take, TakenValue
from .watched_keys import WatchedKeys, in_words, is_plural


class TappedValues(Managed["TappedValues"], Mapping[AnyKey, Any]):
    """The values that were read: `values[key]` is a tensor, or a list where a key means several or a module ran several times.

    They are those of the last call of the model, held by reference and with their autograd graph. A value that the model
    overwrites in place later is held as a copy.
    """

    def __init__(self, model: Module, keys: list[AnyKey], like: History | None, *, stop: bool, strict: bool) -> None:
        self.notes: list[str] = []  # with strict=False: what was not reached, or did not run as logged
        self._strict = strict
        self._take = Take()
        self._watched = WatchedKeys(model, [(key, self._take) for key in keys], like, stops=stop)

    # The block ----------------------------------------------------------------------------------------------------

    def _begin(self) -> TappedValues:
        self._watched.watch.__enter__()
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        is_stopped = self._watched.watch.leave(kind, error, trace) or False
        self._take.end()
        if error is None or is_stopped:
            self._watched.check(self._strict, self.notes)
        return is_stopped

    # Looking up ---------------------------------------------------------------------------------------------------

    def __getitem__(self, key: AnyKey) -> Any:
        for known, spots in self._watched.spots:
            if known is key or (type(known) is type(key) and known == key):
                found = [self._get(value, spot, key) for spot in spots for value in self._take.values.get(spot, ())]
                if not found:
                    raise KeyError(f"{key!r} was not reached in the last call of the model.")
                is_one = len(found) == 1 and len(spots) == 1 and not is_plural(key)
                return found[0] if is_one else found
        raise KeyError(f"{key!r} is not watched; these are: {', '.join(map(repr, self))}.")

    def _get(self, value: TakenValue, spot: Spot, key: Any) -> Tensor:
        tensor = value.get()
        if tensor is None:
            self._take.lost(spot)
            raise ActivationLost(
                f"{in_words(spot.place, key)} was overwritten in place after it was read, which earlier calls of the model "
                "did not do, so there is no copy of it. Read it in a block of its own."
            )
        return tensor

    def __iter__(self) -> Iterator[AnyKey]:
        return iter([key for key, _ in self._watched.spots])

    def __len__(self) -> int:
        return len(self._watched.spots)

    def __repr__(self) -> str:
        lines = []
        for key, spots in self._watched.spots:
            shapes = [shape_of(value.tensor) for spot in spots for value in self._take.values.get(spot, ())]
            lines.append(f"{key!r}: {few(shapes, 4) or 'not reached'}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def tap(model: Module, keys: AnyKey, *, like: History | None = None, stop: bool = False, strict: bool = True) -> TappedValues:
    """Read chosen values while the model runs in a `with` block; nothing else is watched.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with torcheer.tap(model, ["0"]) as values:
    ...     output = model(torch.ones(1, 2))
    >>> torch.equal(values["0"].relu(), output)
    True

    Args:
        model: the model; its modules are hooked for the time of the block.
        keys: a key, or a list of them (docs/keys.md). Addresses, globs and classes of modules need no `like`.
        like: a history of the model, in which the other keys mean something: labels, positions, functions.
        stop: end the pass when every place was reached (without `like`, reached once). The rest of the block is skipped.
        strict: raise at the end of the block if a place was not reached, or not as logged; else `values.notes` says it.
    """
    given = list(keys) if isinstance(keys, (list, tuple)) else [keys]
    if not given:
        raise InvalidArgument("tap() needs a key: what is to be read.")
    return TappedValues(model, given, like, stop=stop, strict=strict)


def activation(
    model: Module,
    input_args: object = LEFT_OUT,
    keys: AnyKey | None = None,
    *,
    input_kwargs: Mapping[str, object] | None = None,
    like: History | None = None,
) -> Any:
    """Run the model as far as needed and return one value, or a list of several.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> torcheer.activation(model, torch.ones(1, 2), "0").shape
    torch.Size([1, 3])

    Args:
        model: the model. It, the inputs and the random states are left as they were.
        input_args, input_kwargs: as for `log_forward_pass`.
        keys: a key, or a list of them: the value of each is returned.
        like: a history of the model, which says where values are. Without one, addresses and classes of modules are read by
            hooks; for other keys the model is logged as far as needed, and values have no autograd graph.

    Of a layer that runs several times it returns the first pass, since the model stops there. With `like` it returns a list of
    all passes that were logged; `key:2` means the second one.
    """
    if keys is None:
        raise InvalidArgument('activation() needs a key: activation(model, x, "layer3").')
    if not isinstance(model, Module):
        raise InvalidArgument(f"activation() takes an nn.Module; got {type(model).__name__}: {model!r:.60}.")
    arguments = as_arguments(model, input_args, input_kwargs, call="activation")
    given = keys if isinstance(keys, list) else [keys]
    if like is None and not ModelPlaces(innermost(model)).knows(given):
        found = values_in_log(model, arguments, given)
    else:
        with TappedValues(model, given, like, stop=True, strict=True) as values:
            _run_once(model, arguments)
        found = [values[key] for key in given]
    return found if isinstance(keys, list) else found[0]


def _run_once(model: Module, arguments: Arguments) -> None:
    """Run a model and restore everything; buffers are copied before and written back.

    The model gets copies of the inputs, since it may write to them. They are not written back as buffers are: what autograd
    saved of them for a backward pass stays.
    """
    modules = list(innermost(model).modules())
    with left_as_found(model, modules, tensors_in(arguments), arguments, []) as undone:
        undone.restorer.back_up_all_but_parameters()
        copies = {id(tensor): _copy(tensor) for tensor in tensors_in((undone.args, undone.kwargs))}
        args, kwargs = shares_no_container((undone.args, undone.kwargs), copies)
        model(*args, **kwargs)


def _copy(tensor: Tensor) -> Tensor:
    """A copy, which gradients flow through; the tensor itself where torch makes no copy of it."""
    try:
        return cloned(tensor)
    except (RuntimeError, TypeError):
        return tensor
