"""`intervene`: changes chosen values while the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from torch import Tensor
from torch.nn import Module

from .._cleanup import Managed
from .._text import few
from ..analysis.attention import head_axis
from ..capture import note_change
from ..changes import Change, Given, HeadAxis, as_change
from ..errors import InvalidArgument
from ..log.keys import AnyKey, KeyType
from ..log.operation import OperationFacts
from ..log.run import HoldsRun, run_of
from .places import Act, Spot, heads_of
from .watch import WatchedKeys, in_words, is_in_backward


@dataclass(eq=False, slots=True)
class Edit:
    """A change of one key: how often it was made, and where."""

    key: AnyKey
    change: Change
    spots: list[Spot]

    @property
    def times(self) -> int:
        """How many times the model continued with the result of the change, over the whole block."""
        return sum(spot.made for spot in self.spots)

    @property
    def changed(self) -> int:
        """How many times the result differed from the value before: `scale(2)` of zeros does not."""
        return sum(int(spot.changed) for spot in self.spots)

    def __str__(self) -> str:
        places = [spot.place for spot in self.spots if spot.made]
        if not places:
            is_reached = any(spot.reached for spot in self.spots)
            return f"{self.key!r}: {self.change}, {'reached, but not made' if is_reached else 'not reached'}"
        times = "once" if self.times == 1 else f"{self.times} times"
        if self.changed < self.times:
            times += f", {f'in {self.changed} of them with' if self.changed else 'without'} a change of any value"
        return f"{self.key!r}: {self.change}, {times} ({few(places, 3, '; ')})"


class Edits(Managed["Edits"]):
    """The changes of a `with` block. Entering it hooks the model; after it, the object lists what was changed."""

    def __init__(self, model: Module, changes: Mapping[KeyType, Given], like: HoldsRun | None, *, strict: bool) -> None:
        if not isinstance(changes, Mapping) or not changes:
            raise InvalidArgument(
                f"intervene() takes a dictionary from keys to changes; got {type(changes).__name__}: {changes!r:.60}."
            )
        self.notes: list[str] = []
        self._strict = strict
        acts = [(key, _Make(as_change(change, key))) for key, change in changes.items()]
        self._watched = WatchedKeys(model, acts, like)
        self.edits: list[Edit] = []
        for (key, act), (_, spots) in zip(acts, self._watched.spots, strict=True):
            act.prepare(key, spots, like)
            self.edits.append(Edit(key, act.change, spots))

    def _begin(self) -> Edits:
        self._watched.watch.__enter__()
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watched.watch.leave(kind, error, trace)
        if error is None:
            self._watched.check(self._strict, self.notes)

    def __iter__(self) -> Iterator[Edit]:
        return iter(self.edits)

    def __len__(self) -> int:
        return len(self.edits)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.edits), *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__


class _Make(Act):
    """Makes the change of one key."""

    changes = True

    def __init__(self, change: Change) -> None:
        self.change = change
        self._words: dict[Spot, str] = {}  # spot -> its text for errors
        self._heads: dict[Spot, HeadAxis | Sequence[int]] = {}  # spot -> what is known of attention heads

    def prepare(self, key: AnyKey, spots: list[Spot], like: HoldsRun | None) -> None:
        """Write the texts of places for errors. If heads are changed, find them by the history or the module's attributes."""
        for spot in spots:
            self._words[spot] = in_words(spot.place, key)
            if self.change.heads is not None:
                axis = None
                if like is not None and spot.place.label:
                    run = run_of(like)
                    axis = head_axis(OperationFacts(run.index, run.lookup.meaning(spot.place.label).numbers[0]))
                self._heads[spot] = axis if axis is not None else heads_of(spot.module)

    def __call__(self, spot: Spot, tensor: Tensor) -> Tensor:
        return self.change(tensor, self._words[spot], self._heads.get(spot, ()))

    def placed(self, spot: Spot, tensor: Tensor, part: int, is_other: Tensor | bool) -> None:
        if not is_in_backward():
            spot.made += 1
            spot.changed = spot.changed + is_other
        note_change(tensor, self.change, spot.place, spot.module, spot.place.kind, part)


def intervene(model: Module, changes: Mapping[KeyType, Given], *, like: HoldsRun | None = None, strict: bool = True) -> Edits:
    """Change chosen values while the model runs in a `with` block. The model and its weights are not touched.

    >>> import torch, torcheer
    >>> from torcheer import changes
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with torcheer.intervene(model, {"0": changes.zero()}) as edits:
    ...     model(torch.ones(1, 2))
    tensor([[0., 0., 0.]])
    >>> print(edits)
    '0': zero(), once (what '0' returned)

    Args:
        model: the model; its modules have hooks during the block.
        changes: maps keys (docs/keys.md) to one of `torcheer.changes`, a replacement tensor, or a function of the tensor.
        like: a history of the model. Needed for keys that are neither addresses nor classes of modules.
        strict: raise at the end of the block if a place was not reached, or not as logged; else `edits.notes` says it.

    If two keys mean the same value, the key that means fewer values wins; of equal keys, the last. Nested blocks change a
    value one after the other. Gradients flow through changes. A value that a module or function wrote in place is changed in
    place: all later readers of the tensor see the new value. If that is impossible, an error names the place.
    """
    return Edits(model, changes, like, strict=strict)
