"""The plan of an extraction: its model, data and settings. It is written before the first block, and compared on resuming."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from .._files.json_records import reader
from .._text import few
from ..errors import FeaturesExist, FeaturesMismatch, NotWritten, UnreadableFile
from .storage import Storage

PLAN = "plan.json"
END = "end.json"
_FORMAT = "torcheer features"
_VERSION = 1
_FEW = 5


@dataclass(frozen=True)
class Plan:
    """The settings of an extraction, as JSON values."""

    model: str  # the name of the model's class
    layers: list[str]
    settings: dict[str, Any]
    structure: str  # a hash of the operations for the first batch
    training: list[str]  # addresses of modules in training mode
    first_batch: str
    order: str  # a digest of the order of samples, if a sampler defines it
    state: dict[str, str] = field(repr=False)  # name of a parameter or buffer -> its digest

    def differences(self, other: Plan) -> Iterator[str]:
        """Yield texts that say how another plan differs from this plan."""
        if self.model != other.model:
            yield f"the model is a {other.model}, and was a {self.model}"
        if self.layers != other.layers:
            yield f"the layers are {_few(other.layers)}, and were {_few(self.layers)}"
        for name in {**self.settings, **other.settings}:
            was, now = self.settings.get(name), other.settings.get(name)
            if was != now and not (name == "keep" and self.layers != other.layers):  # the change of layers is already reported
                is_said = all(value is None or isinstance(value, (bool, int, str)) for value in (was, now))
                yield f"{name} is {now!r}, and was {was!r}" if is_said else f"{name} is another one"
        yield from self._states(other)
        if self.training != other.training:
            changed = sorted(set(self.training) ^ set(other.training))
            yield f"modules are in another mode (training or not): {_few([one or 'the model itself' for one in changed])}"
        if self.first_batch != other.first_batch:
            yield "the first batch has other values or another form (data that is augmented at random differs each time)"
        elif self.structure != other.structure:
            yield "the model runs other operations for the first batch"
        if self.order != other.order:
            yield "the samples come in another order, or there are more or fewer of them"

    def _states(self, other: Plan) -> Iterator[str]:
        missing = [name for name in self.state if name not in other.state]
        new = [name for name in other.state if name not in self.state]
        changed = [name for name in self.state if other.state.get(name, self.state[name]) != self.state[name]]
        said = (missing, "are missing from the model"), (new, "are new in the model"), (changed, "have other values")
        for names, what in said:
            if names:
                yield f"parameters or buffers {what}: {_few(names)}"

    def to_bytes(self) -> bytes:
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1, sort_keys=True).encode()


@dataclass(frozen=True)
class _Kept:
    """The settings of a plan that concern `keep=`."""

    stored: list[str]
    reducers: dict[str, list[Any]]


@dataclass(frozen=True)
class End:
    """The total number of blocks and samples of an extraction."""

    blocks: int
    samples: int


def read_plan(storage: Storage) -> Plan | None:
    """The plan of a folder; None if the folder has no plan."""
    data = storage.read(PLAN)
    return _parsed(data, storage) if data is not None else None


def _parsed(data: bytes, storage: Storage) -> Plan:
    where = f"{PLAN} in {storage.location}"
    try:
        found = json.loads(data)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise ValueError
        version = found["version"]
    except (ValueError, KeyError, RecursionError):
        raise UnreadableFile(f"{where} is not a plan of extracted features: it is damaged, or of another program.") from None
    if version != _VERSION:
        raise UnreadableFile(f"{where} is of version {version!r:.20}; this torcheer reads version {_VERSION}.")
    try:
        plan: Plan = reader(Plan)(found)
        reader(_Kept)(plan.settings.get("keep"))
    except ValueError as error:
        raise UnreadableFile(f"{where} is damaged: {error}.") from None
    return plan


def settle_plan(storage: Storage, plan: Plan, *, resume: bool) -> None:
    """Write the plan, or check that it equals the existing plan."""
    others = storage.names()  # read first, because another process may write the plan at any moment
    earlier = read_plan(storage)
    if earlier is None:
        if others:
            raise FeaturesExist(
                f"{storage.location} holds other files ({_few(others)}). Features are written into a new or empty folder."
            )
        storage.write(PLAN, plan.to_bytes())
        return
    if not resume:
        raise FeaturesExist(
            f"{storage.location} holds features already. Give another folder, delete this one, or resume=True to continue it."
        )
    differing = list(earlier.differences(plan))
    if differing:
        raise FeaturesMismatch(
            f"the features in {storage.location} cannot be resumed: {'; '.join(differing)}. "
            "Extract with the original settings, or into another folder."
        )


def check_plan_is_there(storage: Storage) -> None:
    """Raise if the folder was deleted or moved during the extraction: its blocks would be unreadable."""
    if not storage.has(PLAN):
        raise NotWritten(
            f"features cannot be written to {storage.location}: somebody deleted or moved the folder, or {PLAN} in it, while "
            "they were written. Extract again, into a folder that stays."
        )


# The end file ---------------------------------------------------------------------------------------------------------


def write_end(storage: Storage, end: End) -> None:
    """Write the total number of blocks and samples."""
    data = json.dumps(asdict(end)).encode()
    if storage.read(END) != data:
        storage.write(END, data)


def read_end(storage: Storage) -> End | None:
    """The total number of blocks and samples; None while it is unknown."""
    data = storage.read(END)
    if data is None:
        return None
    try:
        found: End = reader(End)(json.loads(data))
    except (ValueError, RecursionError):
        raise UnreadableFile(
            f"{END} in {storage.location} is damaged. Delete this file and extract again: the blocks are kept."
        ) from None
    return found


def _few(names: list[str]) -> str:
    return few(names, _FEW) or "none"
