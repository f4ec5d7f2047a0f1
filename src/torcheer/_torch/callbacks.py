"""The base classes of callbacks of Lightning and of the Trainer of Hugging Face, imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec


def lightning_callbacks(name: str) -> list[type]:
    """The class Callback of each imported Lightning package; if none is imported, of the first installed package."""
    packages = "lightning.pytorch", "pytorch_lightning"
    used = [module for package in packages if (module := sys.modules.get(package)) is not None]
    if not used:
        installed = [package for package in packages if find_spec(package.partition(".")[0])]
        used = [importlib.import_module(package) for package in installed[:1]]
    if not used:
        raise ImportError(f"{name} needs Lightning: pip install lightning")
    return [module.Callback for module in used]


def trainer_callbacks(name: str) -> list[type]:
    """The class TrainerCallback."""
    if not find_spec("transformers"):
        raise ImportError(f"{name} needs the Trainer of Hugging Face: pip install transformers accelerate")
    return [importlib.import_module("transformers").TrainerCallback]
