"""The tools that are compared, each as a function that makes one pass and returns what a user would then hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode


class NotInstalled(Exception):
    """The tool cannot be measured here."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A tool that has seen the model once, so that what it prepares once is not measured."""

    once: Callable[[], Any]
    operations: int | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """How to use a tool, and how to measure it."""

    title: str
    prepare: Callable[[Module, Tensor], Ready]
    leaves_torch_as_it_was: bool = True  # only then may plain passes be interleaved with it
    uses: int = 20  # before plain passes are measured again


def _torcheer(model: Module, x: Tensor) -> Ready:
    import torcheer

    history = torcheer.log_forward_pass(model, x)
    label = _middle(history.layer_labels)

    def once() -> Any:
        history = torcheer.log_forward_pass(model, x)
        return history, history[label]

    return Ready(once, history.num_operations)


def _hooks(model: Module, x: Tensor) -> Ready:
    """The least that anyone does by hand: the outputs of modules, by reference, without a graph."""

    def once() -> Any:
        kept: list[Any] = []
        handles = [module.register_forward_hook(lambda _, __, output: kept.append(output)) for module in model.modules()]
        model(x)
        for handle in handles:
            handle.remove()
        return kept

    once()
    return Ready(once)


class _Keeping(TorchFunctionMode):
    """Keeps every result, and a copy of what a call is about to overwrite. It knows nothing of either."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.__name__
        if (kwargs and kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__")):
            self.kept.append(args[0].clone())
        result = func(*args, **kwargs or {})
        self.kept.append(result)
        return result


def _keeping(model: Module, x: Tensor) -> Ready:
    """The least that keeping everything as it was can cost: fresh memory for each result, and the copies; no record."""

    def once() -> Any:
        with _Keeping() as mode:
            model(x)
        return mode.kept

    once()
    return Ready(once)


def _torchlens(model: Module, x: Tensor) -> Ready:
    """TorchLens as its README shows it: `trace(model, x)` saves every activation."""
    try:
        version("torchlens")
    except PackageNotFoundError as error:
        raise NotInstalled("torchlens") from error
    import torchlens

    trace = torchlens.trace(model, x)
    label = _middle(list(trace.layer_labels))

    def once() -> Any:
        trace = torchlens.trace(model, x)
        return trace, trace[label]

    return Ready(once, len(trace.layer_list))


def _middle(labels: list[str]) -> str:
    return labels[len(labels) // 2]


TOOLS = {
    "torcheer": Tool("torcheer", _torcheer),
    "keeping": Tool("keeping alone", _keeping),
    "hooks": Tool("hooks on every module", _hooks),
    "torchlens": Tool("TorchLens", _torchlens, leaves_torch_as_it_was=False, uses=3),
}
