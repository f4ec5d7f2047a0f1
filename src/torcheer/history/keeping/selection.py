"""Which activations to keep, decided as the model runs.

Labels follow execution, so most keys can be matched as an operation runs. For keys that can only be matched at the end of the
pass (positions from the end, slices) everything is kept by reference and released then. Whether an operation is an orphan, or a
later pass of a layer, is known only at the end; until then a key is matched against every number the operation may get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InvalidArgument
from ...keys import (
    AnyKey,
    Key,
    OfClass,
    OfFunction,
    Position,
    Reading,
    Several,
    Text,
    Where,
    end_of,
    find_address,
    fitting_glob,
    glob_pattern,
    parse_key,
    readings,
)
from ...records import Log, ModuleCall, OperationRecord, Origin, TorchFunction, is_kind_of
from ..layers.places import Owners
from ..names import layer_type_of
from .early import EarlyAnswers

LayersToSave = AnyKey | None

_WORDS = ("all", "none", "modules")


def parse_layers_to_save(wanted: LayersToSave, option: str = "layers_to_save") -> str | Key:
    """`layers_to_save`, or an option that takes the same, as `'all'`, `'none'`, `'modules'`, or a key."""
    if wanted is None:
        return "none"
    if isinstance(wanted, str) and wanted.lower() in _WORDS:
        return wanted.lower()
    try:
        key = parse_key(wanted)
    except InvalidArgument as error:
        raise InvalidArgument(f"{option} must be 'all', 'none', 'modules', or a key: {error}") from None
    return "none" if isinstance(key, Several) and not key.keys else key


class Nothing:
    """Keeps nothing."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        return False

    def after(self, record: OperationRecord) -> bool:
        return False

    def entering(self, call: ModuleCall) -> bool:
        return False

    def leaving(self, call: ModuleCall) -> bool:
        return False


class LeavingModules(Nothing):
    """Keeps what modules return."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        return None

    def leaving(self, call: ModuleCall) -> bool:
        return True


class Keyed:
    """Keeps every activation that a key may turn out to mean."""

    def __init__(self, log: Log, key: Key, answers: EarlyAnswers, labels_are_default: bool) -> None:
        self._key: Key | None = key  # read when the first operation runs and addresses are known
        self._labels_are_default = labels_are_default
        self._answers = answers
        self._everything = False
        self._types: set[str] = set()
        self._positions: set[int] = set()
        self._modules = _Modules(log)
        self._predicates: list[Where] = []
        self._numbering = Numbering(log)

    def _add(self, key: Key) -> None:
        if isinstance(key, Several):
            for one in key.keys:
                self._add(one)
        elif isinstance(key, Position) and key.position >= 0:
            self._positions.add(key.position)
        elif isinstance(key, OfFunction):
            self._types.add(layer_type_of(key.function))
        elif isinstance(key, OfClass):
            self._modules.classes.append(key.cls)
        elif isinstance(key, Where):
            self._predicates.append(key)
        elif isinstance(key, Text):
            self._add_text(key.text)
        else:
            self._everything = True

    def _add_text(self, text: str) -> None:
        """Look for every reading of a text. If none fits a name yet, a module created while the model runs may fit."""
        ways = readings(text)
        known = [way for way in ways if self._add_name(way)]
        if known:
            return
        for way in ways:
            self._modules.add(way, way.name)
        if any(way.can_be_label and (way.is_glob or not self._labels_are_default) for way in ways):
            self._everything = True

    def _add_name(self, way: Reading) -> bool:
        """Look for one reading of a text. Returns whether it is known to be a name."""
        address = self._modules.find(way)
        if address is not None:
            self._modules.add(way, address)
        if not way.can_be_label:
            return address is not None
        end = end_of(way.name)
        if end is not None:
            self._types.add(end[0])
        kind, _, rest = way.name.partition("_")
        number = rest.partition("_")[0]
        is_label = self._labels_are_default and number.isdecimal() and len(number) < 10 and kind == kind.lower()
        if is_label:
            self._numbering.wanted.setdefault(kind, set()).add(int(number))
        return address is not None or end is not None or is_label

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        if self._key is not None:
            key, self._key = self._key, None
            self._add(key)
        kind = function.type
        if self._everything or kind in self._types:
            return True
        unsure = self._positions or self._predicates or self._modules or kind in self._numbering.wanted
        return None if unsure else False

    def after(self, record: OperationRecord) -> bool:
        if self._everything or record.function.type in self._types:
            return True
        if self._positions or self._numbering.wanted:
            of_type, overall = self._numbering.catch_up(record.number)
            numbers = self._numbering.wanted.get(record.function.type, ())
            if any(of_type[0] <= n <= of_type[1] for n in numbers) or any(
                overall[0] <= n <= overall[1] for n in self._positions
            ):
                return True
        return any(self._answers.ask(key.predicate, record.number) for key in self._predicates)

    def entering(self, call: ModuleCall) -> bool:
        return bool(self._modules) and self._modules.are_wanted(call.address, is_input=True)

    def leaving(self, call: ModuleCall) -> bool:
        return bool(self._modules) and self._modules.are_wanted(call.address, is_input=False)

    def settled(self, key: Key) -> Key:
        """The key, with the final answers that predicates gave while the model ran."""
        if isinstance(key, Several):
            return Several(tuple(self.settled(one) for one in key.keys))
        return Where(self._answers.settled(key.predicate)) if isinstance(key, Where) else key


class _Modules:
    """The modules whose outputs or inputs are wanted."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.classes: list[type] = []
        self._left: list[Callable[[str], Any]] = []  # functions of an address
        self._given: list[Callable[[str], Any]] = []
        self._known: dict[tuple[str, bool], bool] = {}

    def __bool__(self) -> bool:
        return bool(self.classes or self._left or self._given)

    def find(self, way: Reading) -> str | None:
        """The first address, or the glob, by which a reading means modules that are registered."""
        registered = self._log.registered
        others = {other: address for address, module in registered.items() for other in module.other_addresses}
        address = find_address(way.name, registered, others)
        return address if address is not None or not way.is_glob else fitting_glob(way.name, registered, others)

    def add(self, way: Reading, name: str) -> None:
        """Look for the module at an address, or the modules that a glob fits."""
        wanted = self._given if way.is_input else self._left
        if name not in self._log.registered and way.is_glob:
            fits = glob_pattern(name).fullmatch
            wanted.append(lambda one: one and any(map(fits, (one, *self._log.registered[one].other_addresses))))
        else:
            wanted.append(name.__eq__)

    def are_wanted(self, address: str, *, is_input: bool) -> bool:
        """Whether the outputs (or inputs) of the module at an address are wanted."""
        known = self._known.get((address, is_input))
        if known is None:
            fits = any(wanted(address) for wanted in (self._given if is_input else self._left))
            known_class = self._log.registered[address].cls
            is_one = not is_input and any(is_kind_of(known_class, cls) for cls in self.classes)
            known = self._known[address, is_input] = fits or is_one
        return known


class Numbering:
    """Which numbers an operation may get, in its type and overall, while the pass goes on."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.wanted: dict[str, set[int]] = {}  # type -> numbers among layers of that type
        self._counts: dict[str, tuple[int, int]] = {}  # by type: how many layers there are, at least and at most
        self._total = (0, 0)
        self._lowest: dict[tuple[str | None, str], tuple[int, int]] = {}  # by owner and type: the least numbers
        self._owners = Owners(log)
        self._seen = 0
        self._reached: list[bool] = []

    def catch_up(self, number: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Count up to operation `number`. Returns the least and greatest number it may get, in its type and overall.

        Only an operation of the same type with the same owner can be another pass of its layer.
        """
        self._owners.catch_up()
        of_type = overall = (0, 0)
        for record in self._log.operations[self._seen : number + 1]:
            kind = record.function.type
            least, most = self._counts.get(kind, (0, 0))
            where = (self._owners.address(record.module.number if record.module is not None else -1), kind)
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
