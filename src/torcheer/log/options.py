"""Declares and checks the options of `log_forward_pass`: which values to keep, on which device, how to name layers."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, TypeVar, get_args

import torch
from torch import Tensor

from .._torch.inputs import check_names
from ..errors import InvalidArgument
from .keys import AnyKey, Key, Several, parse_key

LayersToSave = AnyKey | None

_WORDS = ("all", "none", "modules")

DEFAULT_FORMAT = "{type}_{type_number}_{number}"
_FIELDS = {"type", "type_number", "number"}


def parse_layers_to_save(wanted: LayersToSave, option: str = "layers_to_save") -> str | Key:
    """Normalize `layers_to_save`, or another option of the same form, to `'all'`, `'none'`, `'modules'` or a key."""
    if wanted is None:
        return "none"
    if isinstance(wanted, str) and wanted.lower() in _WORDS:
        return wanted.lower()
    try:
        key = parse_key(wanted)
    except InvalidArgument as error:
        raise InvalidArgument(f"{option} must be 'all', 'none', 'modules', or a key: {error}") from None
    return "none" if isinstance(key, Several) and not key.keys else key


Unseen = Literal["warn", "raise", "ignore"]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class LogOptions(TypedDict, total=False):
    """The options as keyword arguments. `log_forward_pass` documents each."""

    layers_to_save: LayersToSave
    output_device: torch.device | str | None
    activation_postfunc: Callable[[Tensor], object] | None
    save_gradients: bool | LayersToSave
    time_on_device: bool
    keep_orphans: bool
    layer_label_format: str
    unseen: Unseen


@dataclass(frozen=True)
class Options:
    """The options of one recording, with their defaults."""

    layers_to_save: LayersToSave = "all"
    output_device: torch.device | str | None = None
    activation_postfunc: Callable[[Tensor], object] | None = None
    save_gradients: bool | LayersToSave = False
    time_on_device: bool = False
    keep_orphans: bool = False
    layer_label_format: str = DEFAULT_FORMAT
    unseen: Unseen = "warn"

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers_to_save", parse_layers_to_save(self.layers_to_save))
        wanted = self.save_gradients
        if isinstance(wanted, bool):
            wanted = "all" if wanted else "none"
        object.__setattr__(self, "save_gradients", parse_layers_to_save(wanted, "save_gradients"))
        check_format(self.layer_label_format)
        for name in ("time_on_device", "keep_orphans"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name} is True or False; got {getattr(self, name)!r}.")
        _check_device(self.output_device)
        if self.unseen not in get_args(Unseen):
            raise InvalidArgument(f"unseen is one of {', '.join(map(repr, get_args(Unseen)))}; got {self.unseen!r}.")
        if self.activation_postfunc is not None and not callable(self.activation_postfunc):
            raise InvalidArgument(f"activation_postfunc must be a function of a tensor; got {self.activation_postfunc!r}.")


def check_format(label_format: str) -> str:
    """Return the format of labels. Raises if two layers could get the same label."""
    if label_format == DEFAULT_FORMAT:
        return DEFAULT_FORMAT
    if not isinstance(label_format, str):
        raise InvalidArgument(f"layer_label_format is a text such as '{{type}}_{{number}}'; got {label_format!r}.")
    try:
        names = {name for _, name, _, _ in string.Formatter().parse(label_format) if name is not None}
        label_format.format(type="relu", type_number=1, number=1)
    except KeyError:
        names = set()
    except (ValueError, IndexError, AttributeError) as error:
        raise InvalidArgument(f"layer_label_format {label_format!r} is no format string: {error}") from error
    if not names <= _FIELDS or not (names >= {"type", "type_number"} or "number" in names):
        raise InvalidArgument(
            f"layer_label_format {label_format!r} must use {{number}}, or {{type}} and {{type_number}}, and nothing but "
            f"{{type}}, {{type_number}} and {{number}}; the default is {DEFAULT_FORMAT!r}."
        )
    return label_format


def _check_device(device: Any) -> None:
    try:
        if device is not None:
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"output_device is a device of this machine, such as 'cpu'; got {device!r}: {reason}") from None


def read_options(given: LogOptions, call: str, *others: str) -> Options:
    """Make `Options` from the keyword arguments `given` to `call`. `others` are the arguments of `call` besides options."""
    check_log_options(given, call, *others)
    return Options(**given)


def check_log_options(given: LogOptions, call: str, *others: str) -> None:
    """Raise if a keyword argument `given` to `call` is neither an option nor in `others`, the other arguments of `call`."""
    check_names(given, [*others, *(field.name for field in fields(Options))], f"{call} takes")


def shows_options(function: _Function) -> _Function:
    """Decorator: name each option in the signature of a function with `**options`, for `help` and notebooks."""
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Options)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]  # functions take attributes
    return function
