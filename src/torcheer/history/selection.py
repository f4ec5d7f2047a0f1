"""Which activations to keep, decided as the model runs.

Labels follow execution, so most keys can be matched at once. What cannot be known until the end (positions from the end,
slices, parts of names) is kept by reference and released then. Whether an operation is an orphan, or a later pass of a
layer, is known for sure only at the end; until then a key is matched against every number the operation may get.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import InvalidArgument
from ..records import Log, ModuleCall, OperationRecord, Origin, TorchFunction
from .labels import split_turn

LayersToSave = str | None | Iterable[Any] | Callable[[Any], bool]

_LABEL = re.compile(r"^(?P<type>[a-z0-9]+)_(?P<number>\d+)(_\d+)?(:\d+)?$")
_END = re.compile(r"^(?P<type>input|output)(_?\d+)?$")


def parse_layers_to_save(wanted: LayersToSave) -> str | list[Any] | Callable[[Any], bool]:
    """`layers_to_save` as `'all'`, `'none'`, `'modules'`, a list of keys, or a function."""
    if wanted is None or (isinstance(wanted, str) and wanted.lower() in ("none", "")):
        return "none"
    if isinstance(wanted, str):
        return wanted.lower() if wanted.lower() in ("all", "modules") else [wanted]
    if callable(wanted):
        return wanted
    if isinstance(wanted, (int, slice)):
        return [wanted]
    try:
        keys = list(wanted)
    except TypeError:
        raise InvalidArgument(
            f"layers_to_save must be 'all', 'none', 'modules', a list of lookup keys or a function of an operation; "
            f"got {type(wanted).__name__}: {wanted!r}."
        ) from None
    return keys if keys else "none"


class Nothing:
    """Keeps nothing."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        return False

    def after(self, record: OperationRecord) -> bool:
        return False

    def leaving(self, call: ModuleCall) -> bool:
        return False


class LeavingModules(Nothing):
    """Keeps what leaves a module."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        return None

    def leaving(self, call: ModuleCall) -> bool:
        return True


class Chosen:
    """Keeps what a function of an operation says."""

    def __init__(self, choose: Callable[[OperationRecord], bool]) -> None:
        self._choose = choose

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        return None

    def after(self, record: OperationRecord) -> bool:
        return bool(self._choose(record))

    def leaving(self, call: ModuleCall) -> bool:
        return False


class Keyed:
    """Keeps whatever may turn out to fit one of the keys."""

    def __init__(self, log: Log, keys: list[Any], labels_are_default: bool) -> None:
        self._log = log
        self._numbers: dict[str, set[int]] = {}  # type -> numbers among layers of that type
        self._positions: set[int] = set()
        self._addresses: set[str] = set()
        self._types: set[str] = set()
        self._everything = False
        self._counts: dict[str, tuple[int, int]] = {}  # by type: how many layers there are, at least and at most
        self._total = (0, 0)
        self._lowest: dict[
            tuple[str | None, str], tuple[int, int]
        ] = {}  # by module and type: the least numbers, of type and overall
        self._seen = 0
        self._reached: list[bool] = []
        self._keys: list[Any] | None = keys  # sorted out when the first operation runs and addresses are known
        self._labels_are_default = labels_are_default

    def _sort_keys(self) -> None:
        for key in self._keys or ():
            self._add(key, self._labels_are_default)
        self._keys = None

    def _add(self, key: Any, labels_are_default: bool) -> None:
        if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
            self._positions.add(key)
            return
        if not isinstance(key, str):
            self._everything = True
            return
        label, end = _LABEL.match(key), _END.match(key)
        address = split_turn(key)[0]
        if address in self._log.registered:
            self._addresses.add(address)
        if end is not None:
            self._types.add(end["type"])
        elif label is not None and labels_are_default:
            self._numbers.setdefault(label["type"], set()).add(int(label["number"]))
        elif address not in self._log.registered:
            self._everything = True  # part of a name, or a label in a form of the user's own

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        if self._keys is not None:
            self._sort_keys()
        if self._everything:
            return True
        unsure = self._positions or self._addresses or function.type in self._numbers or function.type in self._types
        return None if unsure else False

    def after(self, record: OperationRecord) -> bool:
        kind = record.function.type
        if self._everything or kind in self._types:
            return True
        of_type, overall = self._catch_up(record.number)
        return any(of_type[0] <= n <= of_type[1] for n in self._numbers.get(kind, ())) or any(
            overall[0] <= n <= overall[1] for n in self._positions
        )

    def leaving(self, call: ModuleCall) -> bool:
        return call.address in self._addresses

    def _catch_up(self, number: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Count up to operation `number`. Returns the least and greatest number it may get, in its type and overall.

        Only an operation of the same type in the same module can be another pass of its layer.
        """
        of_type = overall = (0, 0)
        for record in self._log.operations[self._seen : number + 1]:
            kind = record.function.type
            least, most = self._counts.get(kind, (0, 0))
            where = (record.module.address if record.module is not None else None, kind)
            is_new = where not in self._lowest or record.origin is Origin.INPUT
            if is_new:
                self._lowest[where] = (least + 1, self._total[0])
            lowest = self._lowest[where]
            of_type, overall = (lowest[0], most + 1), (lowest[1], self._total[1])
            is_reached = record.origin is Origin.INPUT or any(self._reached[n] for n in record.dependencies)
            self._reached.append(is_reached)
            counts = is_new and is_reached
            self._counts[kind] = (least + counts, most + 1)
            self._total = (self._total[0] + counts, self._total[1] + 1)
        self._seen = max(self._seen, number + 1)
        return of_type, overall
