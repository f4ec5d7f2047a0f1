"""Watches layers change during training: what is watched, what is kept, what is shown."""

from ..measure import Statistics as Statistics
from . import callbacks as callbacks
from .snapshots.records import Entry as Entry
from .snapshots.records import Snapshot as Snapshot
from .snapshots.run import Run as Run
from .snapshots.sampling import Limits as Limits
from .snapshots.saved import Saved as Saved
from .store import FileManager as FileManager
from .watch.selectors import ChosenFilters as ChosenFilters
from .watch.selectors import FirstFilters as FirstFilters
from .watch.selectors import RandomFilterSelectorType as RandomFilterSelectorType
from .watch.selectors import TopVarianceFilters as TopVarianceFilters
from .watch.tracer import ArchitectureTracer as ArchitectureTracer
from .watch.verify import Verification as Verification
from .xray import Xray as Xray


def __getattr__(name: str) -> object:
    """The callbacks of other packages, made when they are first asked for."""
    if name in ("LightningXray", "TrainerXray"):
        return getattr(callbacks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
