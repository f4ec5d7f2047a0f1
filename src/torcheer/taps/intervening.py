"""`intervene`: chosen values are changed while the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from torch import Tensor
from torch.nn import Module

from ..capture.session import note_change
from ..changes import Change, Given, HeadAxis, as_change
from ..display import few
from ..errors import InvalidArgument
from ..history import History, Operation
from ..history.attention import head_axis
from ..keys import AnyKey, KeyType
from .heads import heads_of
from .spots import Act, Spot
from .watched_keys import WatchedKeys, in_words


@dataclass(eq=False, slots=True)
class Edit:
    """A change at one key: how often it was made, and where."""

    key: AnyKey
    change: Change
    spots: list[Spot]

    @property
    def times(self) -> int:
        """How often it was made, over the whole block."""
        return sum(spot.reached for spot in self.spots)

    def __str__(self) -> str:
        reached = [spot for spot in self.spots if spot.reached]
        places = few((spot.place for spot in reached), 3, "; ")
        times = "once" if self.times == 1 else f"{self.times} times"
        return f"{self.key!r}: {self.change}, {times} ({places})" if reached else f"{self.key!r}: {self.change}, not reached"


class Edits:
    """What is changed while a block runs, and what was."""

    def __init__(self, model: Module, changes: Mapping[KeyType, Given], like: History | None, *, strict: bool) -> None:
        if not isinstance(changes, Mapping) or not changes:
            raise InvalidArgument(
                f"intervene() takes a dictionary from keys to changes; got {type(changes).__name__}: {changes!r:.60}."
            )
        self.notes: list[str] = []
        self._strict = strict
        made = [(key, as_change(change, key)) for key, change in changes.items()]
        acts = [(key, _Make(key, change, like)) for key, change in made]
        self._watched = WatchedKeys(model, acts, like)
        for (_, act), (_, spots) in zip(acts, self._watched.spots, strict=True):
            act.find_heads(spots)
        self.edits = [Edit(key, change, spots) for (key, change), (_, spots) in zip(made, self._watched.spots, strict=True)]

    def __enter__(self) -> Edits:
        self._watched.watch.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watched.watch.__exit__(kind, error, trace)
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
    """Makes one change."""

    changes = True

    def __init__(self, key: AnyKey, change: Change, like: History | None) -> None:
        self._key = key
        self._change = change
        self._like = like
        self._words: dict[Spot, str] = {}  # for errors
        self._heads: dict[Spot, HeadAxis | Sequence[int]] = {}  # what is known of attention heads

    def __call__(self, spot: Spot, tensor: Tensor) -> Tensor:
        words = self._words.get(spot)
        if words is None:
            words = self._words[spot] = in_words(spot.place, self._key)
        return self._change(tensor, words, self._heads.get(spot, ()))

    def find_heads(self, spots: list[Spot]) -> None:
        """Find out where attention heads are, if some are to be changed: from the history, else from the module."""
        for spot in spots if self._change.heads is not None else ():
            axis = None
            if self._like is not None and spot.place.label:
                axis = head_axis(Operation(self._like._index, self._like._lookup.meaning(spot.place.label).numbers[0]))
            self._heads[spot] = axis if axis is not None else heads_of(spot.module)

    def placed(self, spot: Spot, tensor: Tensor, part: int) -> None:
        note_change(tensor, self._change, spot.place, spot.module, spot.place.kind, part)


def intervene(model: Module, changes: Mapping[KeyType, Given], *, like: History | None = None, strict: bool = True) -> Edits:
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
        model: the model; its modules are hooked for the time of the block.
        changes: by key (docs/keys.md), one of `torcheer.changes`, a tensor to use instead, or a function of the tensor.
        like: a history of the model, in which keys that are not addresses or classes of modules mean something.
        strict: raise at the end of the block if a place was not reached, or not as logged; else `edits.notes` says it.

    Where two keys mean the same value, the one that means fewer counts, and of equal ones the last; blocks in one another
    change it one after the other. Gradients flow through changes. A change of a value that a module or function wrote in
    place is written there as well, unless it requires gradients and the program goes on with the result of the call.
    """
    return Edits(model, changes, like, strict=strict)
