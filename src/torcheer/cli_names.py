"""What names on a command line mean: `module:name`, classes and functions; and errors of what they name, in one line."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar

import torch

from .errors import InvalidArgument, TorcheerError

T = TypeVar("T")

_RAISED = "torcheer: raised in "  # how the note on an error of a model begins


def find_object(name: str, what: str, example: str) -> Any:
    """What `module:name` names; modules of the folder the command runs in too."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidArgument(f"{what} is named module:name, as in {example}; got {name!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = _imported(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [known for known in dir(found) if not known.startswith("_")], n=1)
            whose = f"module {module!r}" if inspect.ismodule(found) else repr(found)
            raise InvalidArgument(f"{whose} has no attribute {part!r}." + (f" Did you mean {near[0]}?" if near else ""))
        found = getattr(found, part)
    return found


def _imported(module: str) -> Any:
    """A module. One that is not there, and an error in one that is, are told in a line."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):  # one that this one imports
            raise _not_imported(module, error) from error
        raise InvalidArgument(
            f"there is no module {error.name!r} in this folder, or installed. Write it as Python imports it: what is "
            "called Net in models/small.py is models.small:Net."
        ) from error
    except Exception as error:  # the module's own code may raise anything
        raise _not_imported(module, error) from error


def _not_imported(module: str, error: Exception) -> InvalidArgument:
    return InvalidArgument(": ".join([f"importing {module} raised {type(error).__name__}", *str(error).splitlines()[:1]]))


def make_object(name: str, found: Any, what: str) -> Any:
    """The object, or what it makes where it is a class or a function that needs no arguments."""
    if isinstance(found, type) and (needed := _needed(found)):
        raise InvalidArgument(
            f"{name} is a class that needs {', '.join(needed)}: name a function that makes the {what} without arguments."
        )
    if isinstance(found, type) or (not isinstance(found, torch.nn.Module) and callable(found) and _needed(found) == []):
        return told(f"{name}()", found)
    return found


def find_model(name: str) -> Callable[..., Any]:
    """What `module:name` means: a model, or what makes one when called without arguments."""
    found = make_object(name, find_object(name, "a model", "torchvision.models:resnet18"), "model")
    if not callable(found):
        raise InvalidArgument(f"{name} is a {type(found).__name__}, not a model.")
    return found.eval() if isinstance(found, torch.nn.Module) else found


def told(what: str, call: Callable[[], T]) -> T:
    """What a call returns. An error of the model's own is told in one line: what was called, the error, where it was raised."""
    try:
        return call()
    except (TorcheerError, OSError):
        raise
    except Exception as error:
        where = [note for note in getattr(error, "__notes__", ()) if note.startswith(_RAISED)]
        place = where[0].removeprefix(_RAISED).partition(". The partial history")[0].splitlines()[0] if where else ""
        said = [f"{what} raised {type(error).__name__}", *str(error).strip().splitlines()[:1]]
        raise InvalidArgument(": ".join(said) + (f" (in {place})" if place else "")) from error


def _needed(function: Callable[..., Any]) -> list[str] | None:
    """The names of the arguments that a function cannot be called without; None where its signature is not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def object_named(text: str) -> Any:
    """The position, slice, class or function that a text spells; None where it spells none."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", text):
        return slice(*(int(part) if part else None for part in text.split(":")))
    short = {"nn": "torch.nn", "F": "torch.nn.functional"}
    first, dot, rest = text.partition(".")
    try:
        found = pkgutil.resolve_name(f"{short.get(first, first)}{dot}{rest}") if dot or ":" in text else None
    except (ImportError, AttributeError, ValueError):
        return None
    return found if callable(found) else None
