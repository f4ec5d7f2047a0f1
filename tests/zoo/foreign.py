"""How a package that is not part of `make setup` is asked for: a case of one that is missing is skipped by name."""

from __future__ import annotations

import importlib
from types import ModuleType

from .cases import Unavailable


def package(name: str) -> ModuleType:
    """The package, or the reason why its cases cannot be built."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(f"{name} cannot be imported ({error}); 'make zoo' installs it") from error
