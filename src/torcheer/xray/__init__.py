"""Watches layers of a model while it is trained: takes snapshots, keeps them in a folder, draws and exports them."""

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
    """Return a callback class for Lightning or Hugging Face; the class is made at first use."""
    if name in ("LightningXray", "TrainerXray"):
        return getattr(callbacks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
