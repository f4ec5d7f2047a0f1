"""The functions that users call first: each does its work in one line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from torch.nn import Module

from ._cleanup import Managed
from ._files.files import output_path
from ._torch.addresses import innermost
from ._torch.containers import Arguments
from ._torch.forward_backward import ForwardBackward
from ._torch.inputs import LEFT_OUT, as_arguments, explained, refuse_read_once
from ._torch.randomness import RandomState
from ._torch.restore_state import counts_as_found
from ._torch.thread_state import thread_as_found, thread_left_as_found
from .analysis import Summary
from .analysis.diagnosis import Diagnosis
from .analysis.summary import DEFAULT_COLUMNS
from .capture import Session, explain, finish, open_session, refuse_inside_compiled_code, run_model
from .errors import InvalidArgument, ModelMismatch
from .history import ModelHistory
from .log.options import LayersToSave, LogOptions, Options, read_options, shows_options
from .log.run import LoggedRun, run_of
from .pictures import DrawOptions, Picture, Target, check_format, make_picture, picture_options, present
from .replay import ValidationReport, validate_against
from .store import Streaming, bind, load_run

if TYPE_CHECKING:
    from typing_extensions import Unpack


VisOpt = Literal["none", "unrolled", "rolled"]


@shows_options
@thread_left_as_found
def log_forward_pass(
    model: Callable[..., object],
    input_args: object = LEFT_OUT,
    input_kwargs: Mapping[str, object] | None = None,
    *,
    random_seed: int | None = None,
    random_state: RandomState | None = None,
    vis_opt: VisOpt = "none",
    save_to: str | os.PathLike[str] | None = None,
    **options: Unpack[LogOptions],
) -> ModelHistory:
    """Run a model once and return its whole history.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
    >>> history["linear_1_1"].tensor_shape
    (1, 3)

    Args:
        model: any callable; usually a module. It runs once, as it is, and is restored afterwards.
        input_args: a tuple holds the positional arguments; anything else is one argument. If `forward` takes one positional
            argument, a tuple of several is passed to it whole. A mapping (a tokenizer's `BatchEncoding`), given alone, holds
            the keyword arguments if every key names a parameter of `forward`. Tensors are found in any nesting.
        input_kwargs: the keyword arguments, in any mapping; `input_args` may then be left out.
        random_seed: seeds Python, NumPy and torch for this pass. The random states are restored afterwards.
        random_state: starts this pass from another history's `history.random_state`, which repeats its random numbers.
        vis_opt: also shows a picture: `"unrolled"`, each pass of a layer on its own, or `"rolled"`, each layer once. For
            other options use `history.draw(…)`.
        save_to: writes kept tensors to this file during the pass, and returns the history that `load` opens: for activations
            that do not fit into memory. A pass that raises or is interrupted leaves no file.
        layers_to_save: `"all"`, `"none"`, `"modules"` (the outputs of modules), or a key: a label, an address, a glob, a
            class, a torch function, a function of an `Operation`, a list (docs/keys.md). The graph is always logged in full.
        output_device: the device to which kept activations are moved.
        activation_postfunc: a function of a tensor; its result is kept instead of the tensor.
        save_gradients: follow gradients too: True, or a value as for `layers_to_save`. The outputs then carry their autograd
            graph: compute a loss from `history.outputs[0].tensor_contents` and run `loss.backward()` or
            `history.log_backward(loss)`.
        time_on_device: time operations on a GPU by events, read after the pass. The CPU clock, the default, measures only
            the launch of an operation. Slower.
        keep_orphans: also show operations that are connected to neither an input nor an output.
        layer_label_format: the format of labels, for example `"{type}{type_number}"`.
        unseen: the reaction if work on other threads could not be seen, or if unwatched code wrote to a tensor of the pass:
            `"warn"`, `"raise"` an `UnseenWork` when the pass is over, or `"ignore"`. `history.notes` always says it.

    Limits: work on other threads cannot be seen (see `unseen`), nor can the inside of TorchScript and compiled extensions,
    which are logged as one opaque operation.
    """
    arguments = _arguments(model, input_args, input_kwargs, "log_forward_pass")
    if vis_opt not in ("none", "unrolled", "rolled"):
        raise InvalidArgument(f"vis_opt is one of 'none', 'unrolled', 'rolled'; got {vis_opt!r}.")
    others = ("input_kwargs", "random_seed", "random_state", "vis_opt", "save_to")
    history = ModelHistory.begin(_title(model), read_options(options, "log_forward_pass", *others))
    if save_to is None:
        run_model(run_of(history), model, arguments, random_seed, random_state)
    else:
        history = _streamed(
            run_of(history),
            output_path(save_to, "history", "run.safetensors", "safetensors"),
            model,
            arguments,
            random_seed,
            random_state,
        )
    if vis_opt != "none":
        try:
            present(make_picture(history.graph, picture_options({"vis_opt": vis_opt})))
        except Exception as error:
            error.history = history  # type: ignore[attr-defined]  # what the pass logged is not lost
            raise
    return history


def _streamed(
    run: LoggedRun, path: Path, model: Any, arguments: Arguments, seed: int | None, state: RandomState | None
) -> ModelHistory:
    """Log a pass into a file, and open the file as a history."""
    if run.log.backward is not None:
        raise InvalidArgument(
            "save_to writes a file as the model runs, and gradients come later: log with save_gradients alone, run the "
            "backward pass, then history.save(path)."
        )
    with Streaming(path) as file:
        try:
            run_model(run, model, arguments, seed, state, sink=file)
            file.finish(run)
        except BaseException:
            for number in range(len(run.log.rows)):  # the partial history cannot read from an unfinished file
                run.log.forget(number)
            if file.refused is not None:
                raise file.refused from None  # Python would take a TypeError inside an operator for a missing operator
            raise
    saved = load_run(path)
    with contextlib.suppress(InvalidArgument, ModelMismatch):  # only modules have parameters to bind
        bind(saved.log, model)
    return ModelHistory(saved)


def load(
    path: str | os.PathLike[str], *, model: Callable[..., object] | None = None, functions: Iterable[Callable[..., object]] = ()
) -> ModelHistory:
    """Open a history that `history.save` wrote. It offers everything the saved history did; tensors are read when accessed.

    >>> import tempfile, torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torcheer.load(history.save(f"{folder}/relu.safetensors"))["relu_1"].activation
    tensor([1., 1.])

    Args:
        path: the file. It must not change while the history is in use.
        model: the logged model, with the same weights: `replay` and `validate` need it if the file was saved without
            `params=True`. Raises `ModelMismatch` if names, shapes or values differ.
        functions: your functions that `replay` and `validate` may call: functions, modules, `torch.ops.my_library`. Other
            functions outside torch are known by name only.

    Nothing in the file is imported or run, whoever wrote it. A damaged file raises `UnreadableFile`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgument(f"path says which file is opened, such as 'run.safetensors'; got {path!r:.80}.")
    run = load_run(Path(path), functions)
    if model is not None:
        bind(run.log, model)
    return ModelHistory(run)


def show_model_graph(
    model: Callable[..., object],
    input_args: object = LEFT_OUT,
    input_kwargs: Mapping[str, object] | None = None,
    *,
    path: Target | None = None,
    format: str | None = None,
    random_seed: int | None = None,
    **options: Unpack[DrawOptions],
) -> Picture:
    """Run a model once and draw its graph.

    >>> import io, torch, torcheer
    >>> picture = torcheer.show_model_graph(torch.nn.Linear(2, 3), torch.ones(1, 2), path=io.BytesIO())
    >>> picture.title
    'Linear'

    Args:
        model, input_args, input_kwargs, random_seed: as in `log_forward_pass`.
        path: where to write the picture; without one it is shown.
        format, options: as in `ModelHistory.draw`.
    """
    chosen = picture_options(options)  # wrong options raise before the model runs
    check_format(path, format)
    saved: LayersToSave = "all" if callable(chosen.color_by) else "none"
    args, kwargs = _arguments(model, input_args, input_kwargs, "show_model_graph")
    with explained(model, (args, kwargs), "show_model_graph"):
        history = log_forward_pass(model, args, kwargs, layers_to_save=saved, random_seed=random_seed)
    return history.draw(path, format=format, **options)


def diagnose(
    model: Callable[..., object],
    input_args: object = LEFT_OUT,
    input_kwargs: Mapping[str, object] | None = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    random_seed: int | None = None,
) -> Diagnosis:
    """Run a model once and look for what is wrong with it. With a `loss`, run backward as well.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Softmax(dim=0))
    >>> [finding.kind for finding in torcheer.diagnose(model, torch.rand(4, 2))]
    ['softmax axis']

    Args:
        model, input_args, input_kwargs, random_seed: as in `log_forward_pass`.
        loss: a function of what the model returns, whose result is one number. A backward pass runs from it, and gradients are
            judged, too. Afterwards parameters and gradients are as before.

    The model runs in the mode it is in: `model.eval()` before a check of inference, `model.train()` before one of training.
    """
    args, kwargs = _arguments(model, input_args, input_kwargs, "diagnose")
    if loss is not None and not callable(loss):
        raise InvalidArgument(f"loss is a function of what the model returns; got {type(loss).__name__}: {loss!r:.80}.")
    if loss is not None and not isinstance(model, Module):
        raise InvalidArgument(f"with loss=, model must be an nn.Module; got {type(model).__name__}.")
    with explained(model, (args, kwargs), "diagnose"):
        if loss is None or not isinstance(model, Module):
            return log_forward_pass(model, args, kwargs, random_seed=random_seed).diagnose()
        step = ForwardBackward(model, False, loss)
        return log_forward_pass(step, args, kwargs, random_seed=random_seed, save_gradients=True).diagnose()


def summary(
    model: Callable[..., object],
    input_args: object = LEFT_OUT,
    input_kwargs: Mapping[str, object] | None = None,
    *,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    depth: int | None = None,
    fold: bool = True,
    random_seed: int | None = None,
) -> Summary:
    """Run a model once and return a table of its modules: shapes, parameters, FLOPs, time, memory. Prints as text.

    >>> import torch, torcheer
    >>> torcheer.summary(torch.nn.Linear(2, 3), torch.ones(1, 2)).totals["params"]
    9

    Args:
        model, input_args, input_kwargs, random_seed: as in `log_forward_pass`.
        columns, depth, fold: as in `ModelHistory.summary`.
    """
    args, kwargs = _arguments(model, input_args, input_kwargs, "summary")
    with explained(model, (args, kwargs), "summary"):
        history = log_forward_pass(model, args, kwargs, layers_to_save="none", random_seed=random_seed)
    return history.summary(columns, depth=depth, fold=fold)


def validate_forward_pass(
    model: Callable[..., object],
    input_args: object = LEFT_OUT,
    input_kwargs: Mapping[str, object] | None = None,
    *,
    random_seed: int | None = None,
) -> ValidationReport:
    """Log a model and prove the log: against the plain model, and by running the recorded graph again.

    >>> import torch, torcheer
    >>> bool(torcheer.validate_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2)))
    True

    The arguments are those of `log_forward_pass`. The report is true if everything agrees; printed, it lists the checks, the
    exemptions with reasons, and the first disagreement.

    Limits: the model runs about three times, each call a few times more, and copies of its tensors are made.
    """
    arguments = _arguments(model, input_args, input_kwargs, "validate_forward_pass")
    refuse_read_once(arguments, "validate_forward_pass")
    run = LoggedRun.begin(_title(model), Options())
    with thread_as_found(), counts_as_found(model, arguments):
        run_model(run, model, arguments, random_seed, backs_up_everything=True, call="validate_forward_pass")
        return validate_against(run, model, arguments)


class recording(Managed[ModelHistory]):  # noqa: N801 - used as a function: `with recording() as history`
    """Log everything that runs inside a `with` block: a training step, `generate()`, several models.

    >>> import torch, torcheer
    >>> model, x = torch.nn.Linear(2, 3), torch.ones(1, 2)
    >>> with torcheer.recording(model) as history:
    ...     loss = model(x).sum()
    >>> [layer.label for layer in history]
    ['input_1_0', 'linear_1_1', 'sum_1_2', 'output_1_3']

    Args:
        models: models to know by name. A single model gives its modules their plain addresses; for several models, and for
            models not named here, addresses start with the class name.
        options: `layers_to_save` and the options after it in `log_forward_pass`.

    Every tensor that the code in the block passes to a model is an input. The history can be read while it grows, and is
    complete when the block ends. The code is the user's own, so its effects (updated weights, random state) stay.
    """

    @shows_options
    def __init__(self, *models: Module, **options: Unpack[LogOptions]) -> None:
        refuse_inside_compiled_code()
        for model in models:
            if not isinstance(model, Module):
                raise InvalidArgument(f"recording() takes modules to know by name; got {type(model).__name__}.")
        self._models = models
        names = [type(model).__name__ for model in models]
        title = ", ".join(names) if names else "recorded"
        self._history = ModelHistory.begin(title, read_options(options, "recording"))
        self._session: Session | None = None

    def _begin(self) -> ModelHistory:
        if self._session is not None:
            raise InvalidArgument("this recording was used already; call recording() again for another one.")
        self._session = session = open_session(run_of(self._history), outermost=sys._getframe(2).f_code)
        for model in self._models:
            session.watcher.register(model, "" if len(self._models) == 1 else session.watcher.free_name(model))
        session.__enter__()
        return self._history

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._session is not None
        self._session.leave(kind, error, trace)

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the recording, unless it has ended already."""
        if self.has_begun:
            super().leave(kind, error, trace)
            with thread_as_found():
                if error is not None:
                    explain(run_of(self._history), error)
                elif self._session is not None:
                    finish(run_of(self._history), self._session)


def _arguments(model: Any, input_args: Any, input_kwargs: Any, call: str) -> Arguments:
    refuse_inside_compiled_code()
    if not callable(model):
        raise InvalidArgument(f"model must be callable, usually an nn.Module; got {type(model).__name__}: {model!r:.80}.")
    if isinstance(model, type) and issubclass(model, Module):
        name = model.__name__
        raise InvalidArgument(f"model must be a model; got the class {name}. Make one of it first: model = {name}(…).")
    return as_arguments(model, input_args, input_kwargs, call=call)


def _title(model: Any) -> str:
    model = innermost(model)
    return getattr(model, "__name__", None) or type(model).__name__
