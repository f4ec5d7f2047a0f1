"""Callbacks of Lightning and of the Trainer of Hugging Face: classes made when they are first asked for, since they need the
package.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.util import find_spec


@functools.cache
def callback_class(name: str, hooks: type, module: str) -> type:
    """Make the class `name` from its hooks and the base class of Lightning, for names with `Lightning`, or of the Trainer."""
    bases = _lightning_callbacks(name) if name.startswith("Lightning") else _trainer_callbacks(name)
    return type(name, (hooks, *bases), {"__doc__": hooks.__doc__, "__module__": module})


def _lightning_callbacks(name: str) -> list[type]:
    """Return the class Callback of each imported Lightning package; if none is imported, that of the first installed one."""
    packages = "lightning.pytorch", "pytorch_lightning"
    used = [module for package in packages if (module := sys.modules.get(package)) is not None]
    if not used:
        installed = [package for package in packages if find_spec(package.partition(".")[0])]
        used = [importlib.import_module(package) for package in installed[:1]]
    if not used:
        raise ImportError(f"{name} needs Lightning: pip install lightning")
    return [module.Callback for module in used]


def _trainer_callbacks(name: str) -> list[type]:
    if not find_spec("transformers"):
        raise ImportError(f"{name} needs the Trainer of Hugging Face: pip install transformers accelerate")
    return [importlib.import_module("transformers").TrainerCallback]
