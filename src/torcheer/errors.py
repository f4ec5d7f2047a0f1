"""Every error and warning of torcheer, in one tree.

Each message says what was expected, what came, where, and what to do next.
"""

from __future__ import annotations


def put_on(error: BaseException, note: str, **facts: object) -> None:
    """Put a note and attributes on an exception of the user's, also on one of a frozen class."""
    for name, value in {**facts, "__notes__": [*getattr(error, "__notes__", ()), note]}.items():
        BaseException.__setattr__(error, name, value)


class TorcheerError(Exception):
    """The base of every error torcheer raises on purpose."""


class MissingInTorch(TorcheerError, RuntimeError):
    """The installed torch lacks a private part that this call needs."""


class InvalidArgument(TorcheerError, ValueError):
    """A call was given something it cannot work with."""


class NotWritten(InvalidArgument, OSError):
    """A file could not be written where it was asked for."""


class FolderNotFound(NotWritten, FileNotFoundError):
    """A file was to be written into a folder that does not exist."""


class LayerNotFound(TorcheerError, KeyError):
    """A lookup key fits no layer."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class AmbiguousKey(LayerNotFound):
    """A lookup key fits several layers."""


class ActivationNotSaved(TorcheerError):
    """The layer was logged, but its tensor was not kept."""


class GradientNotSaved(TorcheerError):
    """The layer was logged, but its gradient was not asked for."""


class ParameterChanged(TorcheerError):
    """A parameter changed after the history was logged, so it is not returned as the argument it was."""


class ParameterNotSaved(TorcheerError):
    """A parameter was asked for its values, which are not in the file of a saved history."""


class ActivationLost(TorcheerError):
    """A kept tensor was overwritten by code that could not be watched, so it is not returned."""


class SeveralPasses(TorcheerError, AttributeError):
    """A layer was asked for something that differs between its passes."""


class GraphChanged(TorcheerError):
    """A second pass did not run the operations the first pass ran."""


class ReplayFailed(TorcheerError):
    """A history could not be run again."""

    operation: int | None = None  # the number of the operation it failed at


class BackwardFailed(TorcheerError, RuntimeError):
    """A backward pass of a history would not read what the forward pass left, so it was not run."""


class PlaceNotReached(TorcheerError):
    """A place to be read or changed while a model runs was not reached, or not in the way it was logged."""


class DrawingFailed(TorcheerError):
    """A picture could not be made."""


class GraphvizNotFound(DrawingFailed, ImportError):
    """Nothing on this machine can lay a graph out."""


class ViewerNotBuilt(TorcheerError, FileNotFoundError):
    """The program of a page is not there: this is a source tree in which the browser programs were not built."""


class ModelInUse(TorcheerError, RuntimeError):
    """Two threads would log or change one model at once, or one would log it while the other reads it."""


class RecordingsOverlap(TorcheerError, RuntimeError):
    """Two asyncio tasks of one thread would record at once."""


class RunNotFound(TorcheerError, FileNotFoundError):
    """There is no run of an Xray in a folder, or none that can be read."""


class RunInUse(TorcheerError):
    """Two Xrays would write to one folder."""


class RunExists(TorcheerError, FileExistsError):
    """A new run would be written into a folder that holds one."""


class RunMismatch(TorcheerError):
    """A run was to be resumed with a model that is not the one it is of."""


class SnapshotNotFound(TorcheerError, KeyError):
    """A run has no snapshot of what was asked for."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class UnreadableFile(TorcheerError, ValueError):
    """A file is not what it should be: of another kind, of a later version, cut, damaged, or made to do harm."""


class HistoryNotFound(TorcheerError, FileNotFoundError):
    """There is no file with a saved history where one was looked for."""


class CannotBeSaved(TorcheerError, TypeError):
    """A history holds something that no file can give back as it was; the message names it."""


class ModelMismatch(TorcheerError):
    """A saved history was loaded with a model that is not the one it is of."""


class FunctionNotFound(TorcheerError):
    """A saved history was to call a function that is not torch's own and was not passed to `load`."""


class FeaturesNotFound(TorcheerError, FileNotFoundError):
    """There are no extracted features where they were looked for."""


class FeaturesExist(TorcheerError, FileExistsError):
    """Features would be written into a folder that holds something else, or features that are not to be resumed."""


class FeaturesMismatch(TorcheerError):
    """An extraction was to be resumed with another model, other data or other settings; the message says what differs."""


class NotPicklable(TorcheerError, TypeError):
    """Histories are not pickled: loading a pickle can run code."""


class UnseenWork(TorcheerError):
    """Part of the model ran where it could not be watched, and `unseen="raise"` was asked for."""


class UnseenWorkWarning(UserWarning):
    """Part of the model ran where it could not be watched, for example on another thread."""


class StateNotRestored(UserWarning):
    """A pass changed something that could not be put back; the message names it."""


class EmptyLogWarning(UserWarning):
    """A log is empty: nothing was computed, and no tensor was returned."""


class SnapshotLost(UserWarning):
    """A snapshot of an Xray could not be written; the training goes on."""


class TrainingModeWarning(UserWarning):
    """Features are extracted from modules in training mode; the message names them."""
