"""Xray as a callback: `LightningXray` for Lightning, `TrainerXray` for the Trainer of Hugging Face.

A snapshot is taken right before the optimizer's step, where the gradients of all accumulated batches are in `.grad`; outputs
and activations are a probe's, so the training stays bit-identical. The two classes are made when they are first asked for:
importing this module needs neither package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._torch.callbacks import callback_class
from .._torch.containers import replace_tensors
from .._torch.inputs import check_names
from ..errors import InvalidArgument
from .xray import Xray


class _Watching:
    """The common part of the callbacks: holds an Xray from the beginning of a training to its end."""

    def __init__(self, input: Any, layers: Any = None, **options: Any) -> None:
        known = [name for name in inspect.signature(Xray).parameters if name not in ("model", "input", "layers")]
        check_names(options, known, f"{type(self).__name__} takes")
        self.input, self.layers, self.options = input, layers, options
        self.xray: Xray | None = None  # set when a training begins; stays set after the end of the training
        self._last: int | None = None

    def close(self) -> None:
        """Write the remaining snapshots and release the folder. The end of a training does this."""
        if self.xray is not None:
            self.xray.close()

    def _begin(self, model: Module, optimizers: list[Any], place: Callable[[Any], Any]) -> None:
        """Called when a training begins: make the Xray, in the same folder as the previous Xray."""
        self.close()
        options = dict(self.options)
        if self.xray is not None:
            options.update(folder=self.xray.folder, resume=True)
        if len(optimizers) == 1 and isinstance(optimizers[0], torch.optim.Optimizer):
            options.setdefault("optimizer", optimizers[0])
        if "target" in options:
            options["target"] = place(options["target"])
        self.xray = Xray(model, place(self.input), self.layers, **options)
        self._last = None

    def _is_wanted(self, step: int) -> bool:
        """True if a step is to be watched. A step is watched once, even if its optimizer calls the closure several times."""
        if self.xray is None or step == self._last or step % self.options.get("every", 1):
            return False
        self._last = step
        return True


class _LightningHooks(_Watching):
    """Watches layers during `trainer.fit` of Lightning, for `lightning.pytorch` and `pytorch_lightning`.

        watch = LightningXray(torch.randn(8, 3, 32, 32), ["conv1", "fc"], every=50, folder="runs/xray")
        trainer = Trainer(callbacks=[watch])
        trainer.fit(model, data)
        watch.xray.report("report.html")

    Args:
        input, layers, options: as those of `Xray`. Tensors are moved to the device and type of the training. The optimizer is
            the trainer's, if it has one.
        module: the network inside the LightningModule that takes the input, such as `"net"` or `"model.encoder"`; by default
            the LightningModule itself, by its `forward`.

    Steps are `trainer.global_step`: every step of an optimizer counts, batches that are only accumulated do not. Gradients are
    taken before they are clipped. They are unscaled, except with a fused optimizer under float16, which unscales by itself. The
    entry's note says both. Only the first process watches. Weights that are spread over processes (FSDP, DeepSpeed) cannot be
    watched.
    """

    def __init__(self, input: Any, layers: Any = None, *, module: str | None = None, **options: Any) -> None:
        super().__init__(input, layers, **options)
        self.module = module

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        model = self._model(pl_module)
        precision = trainer.precision_plugin
        with precision.forward_context():
            self._begin(model, trainer.optimizers, lambda given: precision.convert_input(moved(given, pl_module.device)))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        step = trainer.global_step
        if self.xray is None or not self._is_wanted(step):
            return
        precision, scale = trainer.precision_plugin, None
        scaler = getattr(precision, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scale = scaler.get_scale()
        if trainer.gradient_clip_val:
            algorithm = getattr(trainer.gradient_clip_algorithm, "value", None) or "norm"
            self.xray.note_gradients(f"before clipping to {algorithm} {trainer.gradient_clip_val:g}")
        with precision.forward_context():
            self.xray.take_graphs(step, scale=scale, metrics=_numbers(trainer.callback_metrics))

    def on_train_end(self, *given: Any, **named: Any) -> None:
        self.close()

    on_exception = teardown = on_train_end

    def _model(self, pl_module: Any) -> Module:
        name = type(pl_module).__name__
        inside = [child for child, _ in pl_module.named_children()]
        if self.module is None:
            if not _has_forward(pl_module):
                raise InvalidArgument(f"{name} has no forward to probe: name the network in it, module= one of {inside}.")
            return pl_module  # type: ignore[no-any-return]  # Lightning need not be installed
        try:
            return pl_module.get_submodule(self.module)  # type: ignore[no-any-return]
        except AttributeError as error:
            raise InvalidArgument(f"module={self.module!r} is not in {name}, which has {inside}.") from error


class _TrainerHooks(_Watching):
    """Watches layers during `trainer.train()` of the Trainer of Hugging Face.

        watch = TrainerXray(dict(tokenizer("a sentence", return_tensors="pt")), ["bert.pooler.dense"], every=100)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[watch])
        trainer.train()
        watch.xray.report("report.html")

    Args:
        input, layers, options: as those of `Xray`. Tensors are moved to the device of the training. The optimizer is the
            trainer's.

    Steps are `state.global_step` as it is before the optimizer's step. Gradients are those of all accumulated batches, unscaled
    and already clipped, which is noted. Only the first process watches. The Trainer calls no callback after an exception:
    earlier snapshots are written all the same, and `close()` lets another Xray write to the folder. Weights that are spread
    over processes (FSDP, DeepSpeed) cannot be watched.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if not state.is_world_process_zero:
            return
        optimizer = others.get("optimizer")
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps the optimizer
        self._begin(others["model"], [optimizer], lambda given: moved(given, args.device))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        step = state.global_step
        if self.xray is not None and self._is_wanted(step):
            logged = state.log_history[-1] if state.log_history else {}
            metrics = _numbers({name: value for name, value in logged.items() if name not in ("step", "epoch")})
            self.xray.take_graphs(step, clipped=args.max_grad_norm or None, metrics=metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.close()


def _numbers(logged: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a trainer's log that are single numbers."""
    return {
        name: value
        for name, value in logged.items()
        if (isinstance(value, Tensor) and value.numel() == 1) or type(value) in (int, float)
    }


def moved(given: Any, device: Any) -> Any:
    """Nested values with their tensors on a device; other values unchanged."""
    return replace_tensors(given, lambda tensor: tensor.to(device))


def _has_forward(pl_module: Any) -> bool:
    """True if the class of a LightningModule, or a base class that the user wrote, defines `forward`."""
    found = [cls for cls in type(pl_module).__mro__ if "forward" in vars(cls)]
    return any(cls is not Module and not cls.__module__.startswith(("lightning.", "pytorch_lightning.")) for cls in found)


# The classes --------------------------------------------------------------------------------------------------------


def __getattr__(name: str) -> Any:
    hooks = {"LightningXray": _LightningHooks, "TrainerXray": _TrainerHooks}.get(name)
    if hooks is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return callback_class(name, hooks, __name__)
