"""Watches layers change during training: what is watched, what is kept, what is shown."""

from .._torch.measure import Statistics as Statistics
from . import callbacks as callbacks
from .records import Entry as Entry
from .records import Snapshot as Snapshot
from .run import Run as Run
from .run import Saved as Saved
from .sampling import Limits as Limits
from .selectors import ChosenFilters as ChosenFilters
from .selectors import FirstFilters as FirstFilters
from .selectors import RandomFilterSelectorType as RandomFilterSelectorType
from .selectors import TopVarianceFilters as TopVarianceFilters
from .store import FileManager as FileManager
from .tracer import ArchitectureTracer as ArchitectureTracer
from .verify import Verification as Verification
from .xray import Xray as Xray


def __getattr__(name: str) -> object:
    """The callbacks of other packages, made when they are first asked for."""
    if name in ("LightningXray", "TrainerXray"):
        return getattr(callbacks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
