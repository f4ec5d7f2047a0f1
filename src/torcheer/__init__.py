"""torcheer: run any PyTorch model once and hold its whole history."""

from importlib import metadata as _metadata
from types import ModuleType as _ModuleType

from . import changes as changes
from . import errors as errors
from . import reducers as reducers
from ._files.files import write_whole as write_whole
from .analysis.device import device_memory as device_memory
from .analysis.diagnosis import Diagnosis as Diagnosis
from .analysis.diagnosis import Finding as Finding
from .api import diagnose as diagnose
from .api import load as load
from .api import log_forward_pass as log_forward_pass
from .api import recording as recording
from .api import show_model_graph as show_model_graph
from .api import summary as summary
from .api import validate_forward_pass as validate_forward_pass
from .compare.comparing import compare as compare
from .compare.comparison import Comparison as Comparison
from .compare.culprit import Culprit as Culprit
from .compare.models import assert_close as assert_close
from .compare.models import assert_unchanged as assert_unchanged
from .compare.models import compare_models as compare_models
from .errors import ActivationLost as ActivationLost
from .errors import ActivationNotSaved as ActivationNotSaved
from .errors import AmbiguousKey as AmbiguousKey
from .errors import BackwardFailed as BackwardFailed
from .errors import CannotBeSaved as CannotBeSaved
from .errors import DrawingFailed as DrawingFailed
from .errors import EmptyLogWarning as EmptyLogWarning
from .errors import FeaturesExist as FeaturesExist
from .errors import FeaturesMismatch as FeaturesMismatch
from .errors import FeaturesNotFound as FeaturesNotFound
from .errors import FolderNotFound as FolderNotFound
from .errors import FunctionNotFound as FunctionNotFound
from .errors import GradientNotSaved as GradientNotSaved
from .errors import GraphChanged as GraphChanged
from .errors import GraphvizNotFound as GraphvizNotFound
from .errors import HistoryNotFound as HistoryNotFound
from .errors import InvalidArgument as InvalidArgument
from .errors import LayerNotFound as LayerNotFound
from .errors import MissingInTorch as MissingInTorch
from .errors import ModelInUse as ModelInUse
from .errors import ModelMismatch as ModelMismatch
from .errors import NotFinite as NotFinite
from .errors import NotFiniteWarning as NotFiniteWarning
from .errors import NotPicklable as NotPicklable
from .errors import NotWritten as NotWritten
from .errors import ParameterChanged as ParameterChanged
from .errors import ParameterNotSaved as ParameterNotSaved
from .errors import PlaceNotReached as PlaceNotReached
from .errors import RecordingsOverlap as RecordingsOverlap
from .errors import ReplayFailed as ReplayFailed
from .errors import RunExists as RunExists
from .errors import RunInUse as RunInUse
from .errors import RunMismatch as RunMismatch
from .errors import RunNotFound as RunNotFound
from .errors import SeveralPasses as SeveralPasses
from .errors import SnapshotLost as SnapshotLost
from .errors import SnapshotNotFound as SnapshotNotFound
from .errors import StateNotRestored as StateNotRestored
from .errors import TorcheerError as TorcheerError
from .errors import TrainingModeWarning as TrainingModeWarning
from .errors import UnreadableFile as UnreadableFile
from .errors import UnseenWork as UnseenWork
from .errors import UnseenWorkWarning as UnseenWorkWarning
from .errors import ViewerNotBuilt as ViewerNotBuilt
from .errors import put_on as put_on
from .features.extract import extract as extract
from .features.extractor import Extractor as Extractor
from .features.features import Features as Features
from .features.features import open_features as open_features
from .features.similarity import Similarity as Similarity
from .features.similarity import similarity as similarity
from .guard import guard as guard
from .history import ModelHistory as ModelHistory
from .history.call import Call as Call
from .history.layer import Layer as Layer
from .history.module import Module as Module
from .history.operation import Operation as Operation
from .live.intervening import Edits as Edits
from .live.intervening import intervene as intervene
from .live.module_calls import ModuleCalls as ModuleCalls
from .live.module_calls import watch_modules as watch_modules
from .live.places import Place as Place
from .live.reading import TappedValues as TappedValues
from .live.reading import activation as activation
from .live.reading import tap as tap
from .pictures.options import PictureOptions as PictureOptions
from .pictures.picture import Picture as Picture
from .replay.report import ValidationReport as ValidationReport
from .training_step import TrainingStep as TrainingStep
from .xray.selectors import RandomFilterSelectorType as RandomFilterSelectorType
from .xray.store import FileManager as FileManager
from .xray.tracer import ArchitectureTracer as ArchitectureTracer
from .xray.xray import Xray as Xray

try:
    __version__ = _metadata.version("torcheer")
except _metadata.PackageNotFoundError:  # torcheer is run from a source tree that was never installed
    __version__ = "0+unknown"

_MODULES = ("changes", "errors", "graph", "reducers")  # public modules


def __dir__() -> list[str]:
    """The public names. Errors are listed in `torcheer.errors`, and are importable from here, too."""
    found = ["__version__", *_MODULES]
    for name, value in globals().items():
        is_error = isinstance(value, type) and issubclass(value, (BaseException, Warning))
        if not name.startswith("_") and not isinstance(value, _ModuleType) and not is_error:
            found.append(name)
    return sorted(found)
