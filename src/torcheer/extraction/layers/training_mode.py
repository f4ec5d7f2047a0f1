"""Which modules of a model are in training mode, and the warning of them."""

from __future__ import annotations

import warnings

from torch.nn import Module

from ...display import few
from ...errors import TrainingModeWarning

_ACTS = "Dropout BatchNorm InstanceNorm RReLU StochasticDepth DropPath Attention LSTM GRU RNN".split()  # differently in it


def training_modules(model: Module) -> list[str]:
    """The addresses of the modules in training mode."""
    return [
        address for address, module in model.named_modules() if getattr(module, "training", False)
    ]  # frozen TorchScript has no mode


def warn_of_training(model: Module, *, stacklevel: int) -> None:
    """Warn of modules in training mode; those first that are known to act differently in it."""
    training = training_modules(model)
    if not training:
        return
    modules = dict(model.named_modules())
    acting = [address for address in training if any(word in type(modules[address]).__name__ for word in _ACTS)]
    named = [*acting, *(address for address in training if address not in acting)]
    said = few((f"{address or 'the model itself'} ({type(modules[address]).__name__})" for address in named), 5)
    warnings.warn(
        f"modules are in training mode: {said}. Features of a trained model are mostly wanted in its other mode: model.eval().",
        TrainingModeWarning,
        stacklevel=stacklevel + 1,
    )
