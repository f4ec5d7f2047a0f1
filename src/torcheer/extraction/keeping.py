"""What `keep=` means: of which layers values are stored, and which reducers they go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InvalidArgument
from ..inputs import described
from ..reducers import KINDS, Reducer
from .layers.transforms import names_meant

ACTIVATIONS = "activations"
OneKept = Reducer | type[Reducer] | Literal["activations"]
KeptOfLayer = OneKept | Sequence[OneKept] | None
GivenKeep = KeptOfLayer | Mapping[str, KeptOfLayer]  # what `keep=` takes


@dataclass(frozen=True)
class Keeping:
    """By layer: whether its values are stored, and its reducers."""

    stored: list[str]
    reducers: dict[str, list[Reducer]]

    def describe(self) -> dict[str, Any]:
        """In values that JSON has."""
        return {
            "stored": self.stored,
            "reducers": {name: [one.describe() for one in some] for name, some in self.reducers.items()},
        }


def parse_keep(keep: Any, names: list[str], origins: Mapping[str, str]) -> Keeping:
    """Read what was given. Layers that a mapping does not name are stored."""
    by_name: dict[str, list[Any]] = {name: [ACTIVATIONS] for name in names}
    if isinstance(keep, Mapping):
        for key, value in keep.items():
            by_name.update(dict.fromkeys(names_meant(key, names, origins, "keep"), _listed(value)))
    else:
        by_name = dict.fromkeys(names, _listed(keep))
    return Keeping(
        [name for name, some in by_name.items() if ACTIVATIONS in some],
        {name: found for name, some in by_name.items() if (found := [one for one in some if isinstance(one, Reducer)])},
    )


def _listed(value: Any) -> list[Any]:
    given = [ACTIVATIONS] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    if not given:
        raise InvalidArgument(f"keep is empty, so nothing would be kept: leave it out, or name reducers or {ACTIVATIONS!r}.")
    found = [one() if isinstance(one, type) and one in KINDS.values() else one for one in given]
    for one in found:
        if not isinstance(one, Reducer) and one != ACTIVATIONS:
            raise InvalidArgument(
                f"keep takes reducers (Mean(), Covariance(), TopK(20), Histogram()), {ACTIVATIONS!r}, a list of these, or a "
                f"mapping from layers to these; got {described(one)}."
            )
    return found
