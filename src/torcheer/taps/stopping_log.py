"""A log that ends once the wanted operations ran: for labels, which mean something only when operations are numbered."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

from ..capture import Session
from ..capture.addresses import innermost
from ..containers import Arguments
from ..errors import LayerNotFound
from ..history import History
from ..history.keeping.filling import open_session, run
from ..history.keeping.options import Options
from ..history.keeping.selection import Numbering, parse_layers_to_save
from ..keys import Text, find_address, parse_key, readings
from ..records import ModuleCall, OperationRecord, TorchFunction
from .model_places import ModelPlaces
from .spots import Stopped
from .watched_keys import is_plural


def values_in_log(model: Module, arguments: Arguments, keys: list[Any]) -> list[Any]:
    """Log a model as far as needed. Returns the value of each key: of its first pass, or a list where the key is plural."""
    title, options = type(innermost(model)).__name__, Options(layers_to_save=parse_layers_to_save(keys))
    history = History(title, options)
    until = _stopped_log(history, model, arguments, keys)
    try:
        if until is None or not until.is_right():
            raise LayerNotFound
        return [_value(history, key) for key in keys]
    except LayerNotFound:  # the pass ran to its end, or operations got other numbers: the whole log tells
        history = History(title, options)
        run(history, model, arguments, None, call="activation")
        return [_value(history, key) for key in keys]


def _value(history: History, key: Any) -> Any:
    table, numbers = history._index.table, history._lookup.meaning(key).numbers
    found: list[Tensor] = [history[table.label_of(number)].tensor_contents for number in numbers]
    return found if is_plural(key) else found[0]


def _stopped_log(history: History, model: Module, arguments: Arguments, keys: list[Any]) -> _Until | None:
    """Log until every key was reached; None if the pass ran to its end, or a key can be understood only then."""
    session = open_session(history)
    until = _Until(history, session, keys, ModelPlaces(innermost(model)))
    if until.can_stop:
        try:
            session.run(model, *arguments, None)
        except Stopped as stopped:
            if stopped.args != (until,):
                raise
            return until
    return None


class _Until:
    """A selection that keeps what another one keeps, and ends the pass after the last wanted operation."""

    def __init__(self, history: History, session: Session, keys: list[Any], places: ModelPlaces) -> None:
        self._history = history
        self._places = places
        self._inner: Any = session.keeper.selection
        self._numbering = Numbering(history._log)
        self._labels: dict[tuple[str, int], str] = {}  # layers that are waited for, by type and number: the key
        self._addresses: dict[str, int] = {}  # modules that are waited for: the number of the call
        self._sure: dict[str, int] = {}  # by key: the operation that was taken for it
        self.can_stop = all(map(self._read, map(parse_key, keys)))
        session.keeper.selection = self

    def _read(self, key: Any) -> bool:
        """Wait for the operation that a key means. Returns whether it can be told while the model runs."""
        if not isinstance(key, Text) or "*" in key.text:
            return False
        for way in readings(key.text):
            if not way.can_be_label:
                return False
            if (address := find_address(way.name, self._places.modules, self._places.others)) is not None:
                self._addresses[address] = way.turn or 1
                return True
            kind, _, number = way.name.partition("_")
            if number.isdecimal() and way.turn in (None, 1):
                self._labels[kind, int(number)] = key.text
                return True
        return False

    def is_right(self) -> bool:
        """Whether the keys mean the operations that were taken for them, now that everything that ran is numbered."""
        meaning = self._history._lookup.meaning
        return all(meaning(key).numbers[:1] == [number] for key, number in self._sure.items())

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        if not self._labels and not self._addresses:
            raise Stopped(self)
        kept: bool | None = self._inner.before(function, module)
        return kept

    def after(self, record: OperationRecord) -> bool:
        (least, most), _ = self._numbering.catch_up(record.number)
        key = self._labels.pop((record.function.type, least), None) if least == most else None
        if key is not None:
            self._sure[key] = record.number
        return bool(self._inner.after(record))

    def entering(self, call: ModuleCall) -> bool:
        return bool(self._inner.entering(call))

    def leaving(self, call: ModuleCall) -> bool:
        if self._addresses.get(call.address) == call.call:
            del self._addresses[call.address]
        return bool(self._inner.leaving(call))
