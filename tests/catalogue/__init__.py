"""The catalogue: named models, each with what it is given. `test_promises.py` holds every promise against every one."""

from __future__ import annotations

from collections import Counter

from catalogue import constructs, functions, layers, modules, random_states, state
from catalogue.entry import Entry, positive

SEEN = [name for name in constructs.CONSTRUCTS if name not in constructs.UNSEEN]
CATALOGUE: dict[str, Entry] = {
    **{f"construct {name}": Entry(lambda name=name: constructs.Construct(name), positive) for name in SEEN},
    **functions.ENTRIES,
    **layers.ENTRIES,
    **modules.ENTRIES,
    **random_states.ENTRIES,
    **state.ENTRIES,
}

_PARTS = (SEEN, functions.ENTRIES, layers.ENTRIES, modules.ENTRIES, random_states.ENTRIES, state.ENTRIES)
assert len(CATALOGUE) == sum(map(len, _PARTS)), Counter(name for part in _PARTS for name in part).most_common(3)
