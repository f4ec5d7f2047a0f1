"""Every error and warning of torcheer, in one tree.

Each message says what was expected, what was given, where, and what to do next.
"""

from __future__ import annotations


def put_on(error: BaseException, note: str, **facts: object) -> None:
    """Add a note and attributes to an exception, even one of a frozen class."""
    for name, value in {**facts, "__notes__": [*getattr(error, "__notes__", ()), note]}.items():
        BaseException.__setattr__(error, name, value)


class TorcheerError(Exception):
    """The base of all errors that torcheer raises on purpose."""


class MissingInTorch(TorcheerError, RuntimeError):
    """The installed torch lacks a private part that this call needs."""


class InvalidArgument(TorcheerError, ValueError):
    """An argument has a wrong type or value."""


class NotWritten(InvalidArgument, OSError):
    """A file could not be written."""


class FolderNotFound(NotWritten, FileNotFoundError):
    """A file cannot be written because its folder does not exist."""


class LayerNotFound(TorcheerError, KeyError):
    """A lookup key matches no layer."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class AmbiguousKey(LayerNotFound):
    """A lookup key matches several layers."""


class ActivationNotSaved(TorcheerError):
    """The layer was logged, but its tensor was not kept."""


class GradientNotSaved(TorcheerError):
    """The layer was logged, but its gradient was not kept."""


class ParameterChanged(TorcheerError):
    """A parameter changed after the pass, so its earlier value is not available."""


class ParameterNotSaved(TorcheerError):
    """The values of a parameter are not in the file of the saved history."""


class ActivationLost(TorcheerError):
    """A kept tensor was overwritten by unwatched code, so its value is lost."""


class SeveralPasses(TorcheerError, AttributeError):
    """The attribute differs between the passes of a layer."""


class GraphChanged(TorcheerError):
    """A second pass ran other operations than the first."""


class ReplayFailed(TorcheerError):
    """A history could not be replayed."""

    operation: int | None = None  # the number of the operation that failed


class BackwardFailed(TorcheerError, RuntimeError):
    """The state that the forward pass left is gone, so the backward pass was not run."""


class PlaceNotReached(TorcheerError):
    """A place to read or change was not reached while the model ran, or was reached differently than logged."""


class DrawingFailed(TorcheerError):
    """A picture could not be made."""


class GraphvizNotFound(DrawingFailed, ImportError):
    """No Graphviz was found to lay out a graph."""


class ViewerNotBuilt(TorcheerError, FileNotFoundError):
    """The browser programs are missing: this source tree has not built them."""


class ModelInUse(TorcheerError, RuntimeError):
    """Two threads use one model at once, and at least one of them logs or changes it."""


class RecordingsOverlap(TorcheerError, RuntimeError):
    """Two asyncio tasks of one thread record at the same time."""


class RunNotFound(TorcheerError, FileNotFoundError):
    """A folder has no readable run of an Xray."""


class RunInUse(TorcheerError):
    """Two Xrays write to one folder."""


class RunExists(TorcheerError, FileExistsError):
    """A new run was requested in a folder that has one."""


class RunMismatch(TorcheerError):
    """A run cannot be resumed with another model."""


class SnapshotNotFound(TorcheerError, KeyError):
    """A run has no snapshot for this layer, kind or step."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class UnreadableFile(TorcheerError, ValueError):
    """A file is of another kind or of a later version, or it was cut, damaged or manipulated."""


class HistoryNotFound(TorcheerError, FileNotFoundError):
    """There is no file with a saved history at this path."""


class CannotBeSaved(TorcheerError, TypeError):
    """A history has an object that no file can restore; the message names it."""


class ModelMismatch(TorcheerError):
    """A saved history was loaded with another model."""


class FunctionNotFound(TorcheerError):
    """A saved history calls a function that is neither torch's own nor passed to `load`."""


class FeaturesNotFound(TorcheerError, FileNotFoundError):
    """A folder has no extracted features."""


class FeaturesExist(TorcheerError, FileExistsError):
    """A folder for new features has other files, or features that must not be resumed."""


class FeaturesMismatch(TorcheerError):
    """An extraction cannot be resumed with another model, data or settings; the message says what differs."""


class NotFinite(TorcheerError, FloatingPointError):
    """A step of a training has NaN or infinity in its gradients; `guard` stopped it before the weights changed.

    The attributes say where NaN or infinity began. Attributes that are not known are empty.
    """

    step: int = -1  # the step of the optimizer, counted from 0
    phase: str = "unknown"  # "forward", "backward", "loss" (computed outside the model), "parameter", "overflow" or "unknown"
    label: str = ""  # the label of the operation
    module: str = ""
    source: object = None  # the line of the model's program, a `SourceLine`
    reason: str = ""
    operands: tuple[str, ...] = ()  # texts that describe the arguments of the operation
    parameters: tuple[str, ...] = ()  # names of the parameters whose gradients are not finite
    path: str = ""  # the path of the file with the saved history of the step
    diagnosis: object = None  # the `Diagnosis` of the step


class NotPicklable(TorcheerError, TypeError):
    """Histories cannot be pickled, because loading a pickle can run code."""


class UnseenWork(TorcheerError):
    """Part of the model ran unwatched, with `unseen="raise"`."""


class UnseenWorkWarning(UserWarning):
    """Part of the model ran unwatched, for example on another thread."""


class StateNotRestored(UserWarning):
    """A pass changed something that could not be restored; the message names it."""


class NotFiniteWarning(UserWarning):
    """A step of a training has NaN or infinity in its gradients, with `guard(…, action="warn")` or `"skip"`."""


class EmptyLogWarning(UserWarning):
    """A log is empty: nothing was computed, and no tensor was returned."""


class SnapshotLost(UserWarning):
    """A snapshot of an Xray could not be written; the training continues."""


class TrainingModeWarning(UserWarning):
    """Features are extracted from modules in training mode; the message names them."""
