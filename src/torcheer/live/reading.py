"""`tap` reads values at chosen places while a model runs; `activation` runs the model and returns values in one call.

Values are held by reference; a value that the model overwrites later is copied (`TakenValue`). Without a history, labels are
resolved by logging the model until the wanted operations ran (`values_in_log`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from .._cleanup import Managed
from .._text import few
from .._torch.addresses import innermost
from .._torch.containers import Arguments, shares_no_container, tensors_in
from .._torch.functions.facts import TorchFunction
from .._torch.inputs import LEFT_OUT, as_arguments
from .._torch.internals import (
    DisableTorchFunction,
    base_of,
    functorch_unwrapped,
    is_functorch_wrapped,
    without_transforms,
    write_count,
)
from .._torch.left_as_found import left_as_found
from .._torch.memory import cloned, has_memory, version_of
from .._torch.shapes import shape_of
from .._torch.thread_state import thread_left_as_found
from ..capture import Numbering, Selection, Session, open_session, run_model
from ..errors import ActivationLost, InvalidArgument, LayerNotFound
from ..log.keys import AnyKey, parse_key
from ..log.operation import OperationFacts
from ..log.options import Options, parse_layers_to_save
from ..log.records import ModuleCall, OperationRecord
from ..log.run import HoldsRun, LoggedRun
from .places import Act, ModelPlaces, Spot, Stopped
from .watch import WatchedKeys, in_words


class TakenValue:
    """A value that was read: the tensor, and also a copy if the model may later overwrite the tensor in place.

    A parameter, or a view of one, outlives the pass, and programs write to parameters in ways that torch does not count
    (`p.data`, fused optimizers, `swap_tensors`). So the copy of a parameter is kept, and compared when the value is asked for.
    """

    __slots__ = ("_copy", "_is_parameter", "_version", "tensor")

    def __init__(self, tensor: Tensor, *, copies: bool) -> None:
        while is_functorch_wrapped(tensor):  # wrappers of torch.func are invalid later: hold the whole batch
            tensor = functorch_unwrapped(tensor)
        self.tensor = tensor
        self._copy: Tensor | None = None
        self._is_parameter = any(isinstance(one, Parameter) for one in (tensor, base_of(tensor)))
        self._version = version_of(tensor)
        if copies or self._is_parameter:
            with DisableTorchFunction(), without_transforms():
                if has_memory(tensor):
                    self._copy = cloned(tensor)
                else:  # the memory was freed by `storage.resize_(0)`: there is no value to read
                    self._version = -1

    @property
    def may_be_overwritten(self) -> bool:
        """True if the tensor was written to since it was read, and for inference tensors, whose writes torch does not count.

        torch does not count writes through `.data` either, so the tensor is compared with the copy, if there is one. A tensor
        whose memory was freed (`storage.resize_(0)`, as FSDP frees parameters) is not compared: torch would end the process.
        """
        if self._version < 0 or write_count(self.tensor) != self._version:
            return True
        if self._copy is None or type(self.tensor) not in (Tensor, Parameter):
            return False
        with DisableTorchFunction():
            if not has_memory(self.tensor):
                return True
            try:
                return not torch.equal(self._copy, self.tensor)
            except RuntimeError:  # torch does not compare sparse, nested and meta tensors, nor some dtypes
                return True

    def settle(self) -> None:
        """Release the copy or, if the tensor was overwritten, the tensor. For parameters, keep both."""
        if self._is_parameter:
            return
        if not self.may_be_overwritten:
            self._copy = None
        elif self._copy is not None:
            self.tensor = self._copy

    def get(self) -> Tensor | None:
        """The value as it was read; None if it was overwritten and there is no copy."""
        return self._copy if self.may_be_overwritten else self.tensor


class Take(Act):
    """Holds the values at places in the last call of the model.

    In the first call every value is copied. If that call did not overwrite the value at a place, later values are held there
    by reference.
    """

    def __init__(self) -> None:
        self.values: dict[Spot, list[TakenValue]] = {}
        self._is_safe: set[Spot] = set()  # places whose values were not overwritten in the last call of the model

    def __call__(self, spot: Spot, tensor: Tensor) -> None:
        value = TakenValue(tensor, copies=spot not in self._is_safe)
        if spot.here == 1:
            self.values[spot] = [value]
        else:
            self.values[spot].append(value)

    def begin(self) -> None:
        """Release the values of the last call, and remember at which places the call overwrote no value.

        Values of a module that the program called directly stay: `generate` calls an encoder before it calls the model.
        """
        self._is_safe -= self.values.keys()
        self._is_safe |= {s for s, values in self.values.items() if not any(value.may_be_overwritten for value in values)}
        self.values = {spot: values for spot, values in self.values.items() if spot.is_alone}

    def end(self) -> None:
        """Called when the block ends."""
        for values in self.values.values():
            for value in values:
                value.settle()

    def lost(self, spot: Spot) -> None:
        """Called when a value was overwritten and there is no copy: copy the values at this place from now on."""
        self._is_safe.discard(spot)


# Logs a model until the wanted operations ran. Needed for labels, which exist only once operations are numbered.


def values_in_log(model: Module, arguments: Arguments, keys: list[Any]) -> list[Any]:
    """Log a model as far as needed. Returns the value of each key in its first pass; for a plural key, a list of values."""
    title, options = type(innermost(model)).__name__, Options(layers_to_save=parse_layers_to_save(keys))
    run = LoggedRun.begin(title, options)
    until = _stopped_log(run, model, arguments, keys)
    try:
        if until is None or not until.is_right():
            raise LayerNotFound
        return [_value(run, key) for key in keys]
    except LayerNotFound:  # the pass ran to its end, or operations got other numbers: only the complete log can tell
        run = LoggedRun.begin(title, options)
        run_model(run, model, arguments, None, call="activation")
        return [_value(run, key) for key in keys]


def _value(run: LoggedRun, key: Any) -> Any:
    numbers = run.lookup.meaning(key).numbers
    found: list[Tensor] = [OperationFacts(run.index, number).tensor_contents for number in numbers]
    return found if parse_key(key).is_plural else found[0]


def _stopped_log(run: LoggedRun, model: Module, arguments: Arguments, keys: list[Any]) -> _Until | None:
    """Log until every key was reached. Returns None if the pass ran to its end, or if a key is known only at the end."""
    addresses = ModelPlaces(innermost(model)).addresses
    signs = [parse_key(key).first_sign(addresses) for key in keys]
    if None in signs:
        return None
    session = open_session(run)
    until = _Until(run, session, {sign: key for sign, key in zip(signs, keys, strict=True) if sign is not None})
    try:
        session.run(model, *arguments, None)
    except Stopped as stopped:
        if stopped.args != (until,):
            raise
        return until
    return None


class _Until(Selection):
    """Keeps what another selection keeps, and ends the pass after the last wanted operation."""

    def __init__(self, run: LoggedRun, session: Session, signs: dict[tuple[str, str, int], Any]) -> None:
        self._run = run
        assert session.keeper.selection is not None  # keys say what is kept
        self._inner = session.keeper.selection
        self._numbering = Numbering(run.log)
        self._awaited = signs  # maps the sign of the first operation that a key means (`Key.first_sign`) to the key
        self._sure: dict[Any, int] = {}  # maps a key to the number of the operation that was taken for its first
        session.keeper.selection = self

    def is_right(self) -> bool:
        """True if, by the numbers after the run, each key means the operation that was taken for its first."""
        meaning = self._run.lookup.meaning
        return all(meaning(key).numbers[:1] == [number] for key, number in self._sure.items())

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        if not self._awaited:
            raise Stopped(self)
        return self._inner.before(function, module)

    def after(self, record: OperationRecord) -> bool:
        (least, most), _ = self._numbering.catch_up(record.number)
        key = self._awaited.pop(("layer", record.function.type, least), None) if least == most else None
        if key is not None:
            self._sure[key] = record.number
        return self._inner.after(record)

    def entering(self, call: ModuleCall) -> bool:
        return self._inner.entering(call)

    def leaving(self, call: ModuleCall) -> bool:
        self._awaited.pop(("module", call.address, call.call), None)
        return self._inner.leaving(call)


# `tap` reads values at chosen places while a model runs; `activation` does so in one line.


class TappedValues(Managed["TappedValues"], Mapping[AnyKey, Any]):
    """The values that were read: `values[key]` is a tensor, or a list if the key means several values.

    They come from the last call of the model, and keep their autograd graph. They are held by reference, except for values
    that the model overwrites in place later, which are copied.
    """

    def __init__(self, model: Module, keys: list[AnyKey], like: HoldsRun | None, *, stop: bool, strict: bool) -> None:
        self.notes: list[str] = []  # with strict=False: which places were not reached, or did not run as logged
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
                is_one = len(found) == 1 and len(spots) == 1 and not parse_key(key).is_plural
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


def tap(model: Module, keys: AnyKey, *, like: HoldsRun | None = None, stop: bool = False, strict: bool = True) -> TappedValues:
    """Read chosen values while the model runs in a `with` block; nothing else is watched.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with torcheer.tap(model, ["0"]) as values:
    ...     output = model(torch.ones(1, 2))
    >>> torch.equal(values["0"].relu(), output)
    True

    Args:
        model: the model; its modules have hooks during the block.
        keys: a key, or a list of keys (docs/keys.md). Addresses, globs and classes of modules need no `like`.
        like: a history of the model. Needed for all other keys: labels, positions, functions.
        stop: end the pass when every place was reached (without `like`: reached once). The rest of the block is skipped.
        strict: raise at the end of the block if a place was not reached, or not as logged; else `values.notes` says it.
    """
    given = list(keys) if isinstance(keys, (list, tuple)) else [keys]
    if not given:
        raise InvalidArgument("tap() needs a key: what is to be read.")
    return TappedValues(model, given, like, stop=stop, strict=strict)


@thread_left_as_found
def activation(
    model: Module,
    input_args: object = LEFT_OUT,
    keys: AnyKey | None = None,
    *,
    input_kwargs: Mapping[str, object] | None = None,
    like: HoldsRun | None = None,
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

    For a layer that runs several times, the value is that of the first pass, because the model stops there. With `like`, it is
    a list of the values of all logged passes; `key:2` means the second pass.
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

    The model gets copies of the inputs, since it may write to them. The copies are not restored as buffers are, so that the
    inputs that autograd saved for a backward pass stay valid.
    """
    modules = list(innermost(model).modules())
    with left_as_found(model, modules, tensors_in(arguments), arguments, []) as undone:
        undone.restorer.back_up_all_but_parameters()
        copies = {id(tensor): _copy(tensor) for tensor in tensors_in((undone.args, undone.kwargs))}
        args, kwargs = shares_no_container((undone.args, undone.kwargs), copies)
        model(*args, **kwargs)


def _copy(tensor: Tensor) -> Tensor:
    """Copy a tensor so that gradients flow through the copy; returns the tensor itself if torch cannot copy it."""
    try:
        return cloned(tensor)
    except (RuntimeError, TypeError):
        return tensor
