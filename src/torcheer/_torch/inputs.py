"""Turns the user's inputs into the positional and keyword arguments of a call. Every entry point uses it.

- A tuple holds the positional arguments. If `forward` takes one positional argument, a tuple of several is passed to it
  whole.
- A mapping, given alone, holds the keyword arguments if every key names a parameter of `forward`.
- Anything else is one argument.

Inputs that cannot be passed raise before the model runs. If the model itself raises for an input that is probably a mistake
(a list, a NumPy array, a shape), `explained` suggests the right call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import TracebackType
from typing import Any, Final

from torch.nn import Module
from torch.utils.data import DataLoader, Dataset

from .._cleanup import pass_interrupts_on
from .._text import did_you_mean, few
from ..errors import InvalidArgument
from .addresses import innermost, without_parallelism
from .containers import Arguments, find_leaves, is_tensor
from .internals import FunctionSchema, forward_pre_hooks_of, has_global_pre_hooks
from .sentinels import Sign

LEFT_OUT: Final = Sign("…")  # the default of an argument: not given
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
# errors that a model may raise for wrong arguments
_REFUSALS = (TypeError, AttributeError, ValueError, RuntimeError, IndexError, KeyError)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def check_names(given: Iterable[str], known: Sequence[str], who: str) -> None:
    """Raise if an option is not among the known names. `who` begins the message: `"log_forward_pass takes"`.

    Functions without `**options` need no check: Python's TypeError names the function and the argument.
    """
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, cutoff=0.5)
            raise InvalidArgument(f"{who} no option {name!r}.{hint} There are: {', '.join(known)}.")


def as_arguments(
    model: Callable[..., object], input_args: object = LEFT_OUT, input_kwargs: object = None, *, call: str = "log_forward_pass"
) -> Arguments:
    """Make the positional and keyword arguments for a call of `model`. `call` names the entry point that got the inputs."""
    kwargs = _named(input_kwargs)
    if not kwargs:  # usually one tensor; whether the model accepts it is checked only if the model raises
        one = input_args[0] if type(input_args) is tuple and len(input_args) == 1 else input_args
        if is_tensor(one):
            return (one,), kwargs
    taken = taken_by(model)
    args: tuple[Any, ...]
    if input_args is LEFT_OUT or (input_args is None and (kwargs or taken.takes_nothing)):
        args = ()
    elif not kwargs and isinstance(input_args, Mapping) and taken.names_all(input_args):
        args, kwargs = (), dict(input_args.items())
    elif type(input_args) is tuple and not (len(input_args) > 1 and taken.takes_one):
        args = input_args
    else:
        args = (input_args,)
    _refuse(model, taken, args, kwargs, call)
    return args, kwargs


def refuse_read_once(arguments: Arguments, call: str) -> None:
    """Raise if an argument can be read only once, such as a generator, and the model will run several times."""
    for item in find_leaves(arguments, lambda value: isinstance(value, Iterator)):
        try:
            copy.deepcopy(item)
        except Exception as error:
            pass_interrupts_on(error)
            raise InvalidArgument(
                f"{call}() runs the model several times, and an argument contains a {type(item).__name__}, which can be read "
                "only once. Pass its items as a list, or iter() of a list."
            ) from error


def _named(input_kwargs: object) -> dict[str, Any]:
    if input_kwargs is None:
        return {}
    if not isinstance(input_kwargs, Mapping):
        raise InvalidArgument(
            f"input_kwargs must be a dictionary or other mapping of named arguments; got {described(input_kwargs)}. "
            "Positional arguments go into input_args."
        )
    odd = [key for key in input_kwargs if not isinstance(key, str)]
    if odd:
        raise InvalidArgument(
            f"the keys of input_kwargs must be the names of arguments; got {odd[0]!r:.60}. "
            "A dictionary that is one positional argument goes into input_args."
        )
    return dict(input_kwargs.items())


# Parameters of a model ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """The parameters of a model's forward: of the function as it was written, and of the function that is called."""

    written: Signature | None  # signature of the function inside a decorator: it has the names
    called: Signature | None

    @property
    def takes_nothing(self) -> bool:
        return self.called is not None and not self.called.parameters

    @property
    def takes_one(self) -> bool:
        """True if there is exactly one positional parameter, and no `*args`."""
        return self.most == 1

    @property
    def required(self) -> int:
        """The number of required positional arguments."""
        return sum(p.default is Parameter.empty for p in self._positional)

    @property
    def most(self) -> float:
        """The largest number of positional arguments."""
        takes_any = self.written is None or any(p.kind is Parameter.VAR_POSITIONAL for p in self._parameters)
        return math.inf if takes_any else len(self._positional)

    @property
    def names(self) -> list[str]:
        """The parameters that can be passed by name."""
        return [p.name for p in self._parameters if p.kind in _NAMED]

    @property
    def positional_names(self) -> tuple[str, ...]:
        """The parameters that can be passed by position, in order."""
        return tuple(p.name for p in self._positional)

    @property
    def takes_any_name(self) -> bool:
        """True if there is a `**kwargs`."""
        return any(p.kind is Parameter.VAR_KEYWORD for p in self._parameters)

    @property
    def _parameters(self) -> list[Parameter]:
        return list(self.written.parameters.values()) if self.written is not None else []

    @property
    def _positional(self) -> list[Parameter]:
        return [p for p in self._parameters if p.kind in _POSITIONAL]

    def names_all(self, given: Mapping[Any, Any]) -> bool:
        """True if `given` can be keyword arguments: every key names a parameter, or some do and `**kwargs` takes all others."""
        if self.written is None or not all(isinstance(key, str) for key in given):
            return False
        if not given:
            return not self._positional
        names = set(self.names)
        if names.issuperset(given):
            return True
        needed = {p.name for p in self._positional if p.default is Parameter.empty}
        return self.takes_any_name and needed.issubset(given) and (self.most == 0 or not names.isdisjoint(given))


def taken_by(model: Any) -> Taken:
    """The parameters of a model; for a module, of its forward."""
    function = _called_function(model)
    return Taken(_signature(function, True), _signature(function, False))


def _called_function(model: Any) -> Any:
    """The function that receives the arguments: a module's forward, inside compiled and parallel wrappers."""
    if isinstance(model, functools.partial) and isinstance(model.func, Module):
        return functools.partial(_called_function(model.func), *model.args, **model.keywords)
    model = innermost(model)
    if not isinstance(model, Module):
        return model
    own = _signature(type(model).__call__, False)  # a class may override __call__, mostly to pass everything on
    hands_on = own is None or all(p.kind not in _NAMED for p in list(own.parameters.values())[1:])
    return model.forward if hands_on else model


def _signature(function: Any, follow_wrapped: bool) -> Signature | None:
    schema = getattr(function, "schema", None)
    if isinstance(schema, FunctionSchema):  # a TorchScript method
        kind = Parameter.POSITIONAL_OR_KEYWORD
        return Signature(
            [
                Parameter(one.name, kind, default=one.default_value if one.has_default_value() else Parameter.empty)
                for one in schema.arguments
                if one.name != "self"
            ]
        )
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped)
    except Exception as error:  # a function written in C, or a user-defined __signature__
        pass_interrupts_on(error)
        return None


# Maps functions of torcheer that call the model with batches to the advice to give if a batch does not fit the model.
_OF_BATCHES = {"extract": "Define how the model is called with a batch: call=lambda model, batch: model(…)."}


# Errors before the model runs ------------------------------------------------------------------------------------------


def _refuse(model: Any, taken: Taken, args: tuple[Any, ...], kwargs: dict[str, Any], call: str) -> None:
    """Raise if the model cannot be called with these arguments."""
    if isinstance(model, Module) and len(args) == 1 and isinstance(args[0], (DataLoader, Dataset)):
        raise InvalidArgument(f"{call}() runs the model on one batch; got {described(args[0])}. {_right_call(args[0], call)}")
    misfit = misfit_of(model, taken, args, kwargs)
    if misfit is not None:
        raise InvalidArgument(
            f"{_name(model)} takes {misfit.taken} and cannot be called with {_given(args, kwargs)}: {misfit.why}. "
            f"{_right_call_for(misfit.taken, args, kwargs, call)}"
        )


@dataclass(frozen=True)
class Misfit:
    """The model's signature, without annotations, and why the given arguments do not fit it."""

    taken: Signature
    why: str


def misfit_of(model: Any, taken: Taken, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Misfit | None:
    """Explains why a model cannot be called with these arguments; None if it can, or if only a call can tell."""
    if taken.called is None or _has_pre_hooks(model):
        return None
    try:
        taken.called.bind(*args, **kwargs)
    except TypeError as error:
        parameters = (taken.written or taken.called).parameters.values()
        return Misfit(Signature([p.replace(annotation=Parameter.empty) for p in parameters]), str(error))
    return None


def _has_pre_hooks(model: Any) -> bool:
    """True if forward pre-hooks may change the arguments."""
    model = without_parallelism(model)
    if not isinstance(model, Module):
        return False
    return bool(forward_pre_hooks_of(model)) or has_global_pre_hooks()


def _right_call_for(taken: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], call: str) -> str:
    if call in _OF_BATCHES:
        return _OF_BATCHES[call]
    positional = [p.name for p in taken.parameters.values() if p.kind in _POSITIONAL]
    names = [p.name for p in taken.parameters.values() if p.kind in _NAMED]
    if not names and not positional:
        return f"It takes no inputs: {call}(model, ())."
    by_name = f"{call}(model, input_kwargs={{{', '.join(f'{name!r}: …' for name in names[:3])}}})"
    if not args and not kwargs:
        return f"Give it inputs: {call}(model, {_joined(positional)}), or by name: {by_name}."
    if len(args) == 1 and isinstance(args[0], Mapping) and any(name in args[0] for name in names):
        strange = [key for key in args[0] if key not in names]
        return f"Not a parameter: {few(map(repr, strange), 5)}. Leave out what it does not take: {by_name}."
    if len(args) == 1 and isinstance(args[0], (list, tuple)):
        return _right_call(args[0], call)
    if len(args) > 1 and is_shape(args):
        return _right_call(args, call)
    if positional:
        return f"Arguments go into a tuple, {call}(model, {_joined(positional)}), or by name: {by_name}."
    return f"Arguments are given by name: {by_name}."


# Errors from the model -----------------------------------------------------------------------------------------------------


class explained:  # noqa: N801 - used as a function: `with explained(…)`
    """Inside this block, if the model raises because of its arguments, an error is raised that suggests the right call.

    Of nested blocks, the outermost decides the message: it belongs to the function that the user called.
    """

    def __init__(self, model: Any, arguments: Arguments, call: str) -> None:
        self._model, self._arguments, self._call = model, arguments, call

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, Exception):
            return
        cause = error.__cause__ if type(error) is InvalidArgument and isinstance(error.__cause__, Exception) else error
        refusal = _refusal(self._model, cause, self._arguments, self._call)
        if refusal is None:
            return
        history = getattr(error, "history", None)
        if history is not None:
            refusal.history = history  # type: ignore[attr-defined]  # what the pass logged is not lost
        raise refusal from cause


def _refusal(model: Any, error: BaseException, arguments: Arguments, call: str) -> InvalidArgument | None:
    """If a model's error names the class of an argument, make the error to raise in its place; else return None."""
    if isinstance(error, InvalidArgument) or not isinstance(error, _REFUSALS):
        return None
    text = str(error)
    args, kwargs = arguments
    try:
        _refuse(model, taken_by(model), args, kwargs, call)
    except InvalidArgument as refusal:
        return refusal
    places: list[tuple[Any, Any]] = [*enumerate(args), *kwargs.items()]
    for place, value in places:
        if is_tensor(value) or (value is None and len(places) > 1) or type(value).__name__ not in text:
            continue
        where = f"argument {place!r}" if place in kwargs else f"argument {int(place) + 1}" if len(args) > 1 else "the input"
        meant = args if len(args) > 1 and is_shape(args) else value
        return InvalidArgument(
            f"the model does not take {described(value)} as {where}: {type(error).__name__}: {text:.300}\n"
            f"{_right_call(meant, call, takes_one=taken_by(model).takes_one)}"
        )
    return None


def _right_call(value: Any, call: str, *, takes_one: bool = False) -> str:
    """Advise how to call the model if an argument is probably a mistake."""
    if call in _OF_BATCHES:
        return _OF_BATCHES[call]
    if isinstance(value, DataLoader):
        return f"Take one batch: batch = next(iter(loader)), then {call}(model, batch[0])."
    if isinstance(value, Dataset):
        return f"Take one sample and make it a batch: {call}(model, dataset[0][0].unsqueeze(0))."
    if is_shape(value):
        return f"For an input of this shape: {call}(model, torch.rand({', '.join(map(str, value))}))."
    if isinstance(value, (list, tuple)):
        items = _joined([f"items[{n}]" for n in range(min(max(len(value), 1), 3))])
        if len(value) == 1:
            return f"A {type(value).__name__} is one argument. For its items: {call}(model, items[0])."
        one = f"For one of its items: {call}(model, items[0])."
        if takes_one:
            return f"forward takes one argument, which is the whole {type(value).__name__}. {one}"
        return f"A {type(value).__name__} is one argument. Several arguments go into a tuple: {call}(model, {items}). {one}"
    if isinstance(value, Mapping):
        return f"Named arguments go into input_kwargs: {call}(model, input_kwargs=inputs)."
    if _is_array(value):
        return f"Make it a tensor: {call}(model, torch.as_tensor(array))."
    if isinstance(value, (bool, int, float, complex)):
        return f"Make it a tensor: {call}(model, torch.tensor({value!r}))."
    if isinstance(value, str):
        return f"Make tensors of text first: {call}(model, tokenizer(text, return_tensors='pt'))."
    if value is None:
        return f"Give it an input: {call}(model, x)."
    if isinstance(value, Iterator):
        return f"Take one of its items: {call}(model, next(iterator))."
    return f"Give tensors, or whatever else the model's forward takes: {call}(model, x)."


def is_shape(value: Any, least: float = 0) -> bool:
    """True for a non-empty list or tuple of integers, each at least `least`."""
    return isinstance(value, (tuple, list)) and bool(value) and all(is_whole(size, least) for size in value)


def is_whole(value: Any, least: float) -> bool:
    """True for an integer of at least `least`; False for a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("numpy", "pandas", "jax", "jaxlib") or hasattr(type(value), "__array__")


# Formatting --------------------------------------------------------------------------------------------------------------


def _name(model: Any) -> str:
    model = innermost(model)
    if isinstance(model, Module):
        return f"{type(model).__name__}.forward"
    return str(getattr(model, "__qualname__", None) or type(model).__name__)


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    parts = [*map(described, args), *(f"{name}={described(value)}" for name, value in kwargs.items())]
    return few(parts, 6) or "no inputs"


def described(value: Any) -> str:
    """A short description of a value: its class and its size."""
    cls = type(value).__name__
    if is_tensor(value):
        return f"a {cls}" if value.is_nested else f"a {cls} of shape {tuple(value.shape)}"
    if isinstance(value, (bool, int, float, complex, str)):
        return f"{value!r:.40}"
    if value is None:
        return "None"
    if isinstance(value, (list, tuple)):
        return f"the shape {tuple(value)!r:.60}" if is_shape(value) else f"a {cls} of {len(value)}"
    if cls == "ndarray":
        return f"a NumPy array of shape {value.shape}"
    if isinstance(value, Mapping):
        return f"a {cls} with the keys {few(map(repr, value), 6)}" if len(value) else f"an empty {cls}"
    return f"{'an' if cls[:1] in 'AEIOUaeiou' else 'a'} {cls}"


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
