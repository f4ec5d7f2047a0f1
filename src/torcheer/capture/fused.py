"""Records torch's fused attention as the plain model runs it.

`nn.TransformerEncoder`, `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` have a fused path for evaluation without
gradients. They do not take it while a `TorchFunctionMode` is active, and on padded positions the other path gives other
values. So while such a module takes its fused path, the interceptors step aside, and a `TorchDispatchMode` reports to them
what runs: the fused call is one operation, `_transformer_encoder_layer_fwd` or `_native_multi_head_attention`. Modules that run
inside (the final norm of an encoder) are watched by the interceptors again.

`_DECIDES` asks for fewer conditions than torch does. Where torch does not take the fused path after all, the log is as true,
only its operations carry the names of ATen operators.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from .._torch.containers import find_tensors
from .._torch.internals import (
    DisableTorchFunction,
    TorchDispatchMode,
    can_watch_aten,
    current_dispatch_mode,
    disabled_torch_function,
    forward_hooks_of,
    forward_pre_hooks_of,
    function_modes,
    is_functorch_wrapped,
    pop_function_mode,
    push_function_mode,
)
from .._torch.thread_state import autocast_as, autocast_state

if TYPE_CHECKING:
    from .interceptor import Interceptor


_MACHINERY = sys.modules[TorchDispatchMode.__module__].__file__

NOTE = (
    "attention ran on torch's fused path, as it does without torcheer in evaluation mode and without gradients: one operation "
    "stands for a whole layer. To see the operations inside, log with gradients enabled, or call "
    "torch.backends.mha.set_fastpath_enabled(False) first; values at padded positions are then others."
)

Given = dict[int | str, Any]  # arguments by name, or by position where that has none
Decides = Callable[[Any, Given], bool]


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of what watches, made for the duration of one module call."""

    module: Module
    interceptors: tuple[Interceptor, ...]
    undo: Callable[[], None]


class _Here(threading.local):
    def __init__(self) -> None:
        self.switches: list[Switch] = []
        self.watch: AtenWatch | None = None  # the active one: torch up to 2.8 frees a mode that only its stack holds


_here = _Here()


def switches_here() -> list[Switch]:
    """The switches of this thread that are in force: the same list for all recordings."""
    return _here.switches


class AtenWatch(TorchDispatchMode):  # type: ignore[misc]  # looked up
    """Reports ATen calls to interceptors that stepped aside, the innermost first."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler, which takes a second, at the first call

    def __init__(self, interceptors: tuple[Interceptor, ...]) -> None:
        super().__init__()
        self.interceptors = interceptors
        self._autocast = autocast_state()  # torch leaves it before it calls a dispatch mode

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == _MACHINERY:
            frame = frame.f_back
        run = func
        for interceptor in self.interceptors:
            run = partial(interceptor.watch_aten, func, run, frame)
        with autocast_as(self._autocast):
            return run(*args, **(kwargs or {}))


def watch_functions(module: Module) -> None:
    """Inside a module that takes a fused path another one begins: the interceptors watch again until it ends."""
    watch = current_dispatch_mode()
    if isinstance(watch, AtenWatch):
        _show_functions(watch)
        _here.switches.append(Switch(module, watch.interceptors, partial(_show_aten, watch.interceptors)))


def watch_fused(module: Module, interceptor: Interceptor) -> None:
    """A module is about to take a fused path: the interceptors step aside until it ends.

    Another mode on the stack keeps the plain model from the fused path as well, so then nothing changes. Of several
    recordings the innermost, whose hook comes last, does this for all.
    """
    modes = function_modes()
    if modes and modes[-1] is interceptor and all(type(mode) is type(interceptor) for mode in modes):
        interceptors = tuple(modes)
        _show_aten(interceptors)
        _here.switches.append(Switch(module, interceptors, _undo_show_aten))


def leave(module: Module) -> None:
    """A call of `module` ends: undo what was switched for it, and for modules inside that an interrupt left without an end."""
    switches = _here.switches
    while any(switch.module is module for switch in switches):
        switches.pop().undo()


def leave_all(interceptor: Interceptor) -> None:
    """A recording ends: undo what was switched for it."""
    switches = _here.switches
    while any(interceptor in switch.interceptors for switch in switches):
        switches.pop().undo()


def _show_aten(interceptors: tuple[Interceptor, ...]) -> None:
    for _ in interceptors:
        pop_function_mode()
    _here.watch = AtenWatch(interceptors)
    _here.watch.__enter__()


def _show_functions(watch: AtenWatch) -> None:
    watch.__exit__(None, None, None)
    others = [pop_function_mode() for _ in function_modes()]  # that came back on top before, at the end of the same module
    for mode in (*watch.interceptors, *reversed(others)):
        push_function_mode(mode)


def _undo_show_aten() -> None:
    watch = current_dispatch_mode()
    if isinstance(watch, AtenWatch):
        _show_functions(watch)


# Which modules take a fused path ----------------------------------------------------------------------------------------


def decision_of(cls: type) -> Decides | None:
    """How modules of a class are asked whether they are about to take a fused path; None for classes that have none."""
    for known, names, decides in _DECIDES if can_watch_aten else ():
        if issubclass(cls, known):
            code = getattr(cls.forward, "__code__", None)
            if code is known.forward.__code__:
                return partial(_decide, names, decides)
            if code is not None and "forward" in code.co_names:  # a forward that calls the one it replaces
                return partial(_decide, (), _in_any_case)
    return None


def is_about_to_fuse(module: Module, decides: Decides, args: tuple[Any, ...], frame: FrameType) -> bool:
    """Whether a module takes its fused path when it is called with these arguments, from this frame."""
    with DisableTorchFunction():
        if module.training or torch.is_autocast_enabled() or not torch.backends.mha.get_fastpath_enabled():
            return False
        given: Given = {**dict(enumerate(args)), **named_arguments(frame)}
        tensors = [tensor for _, tensor in find_tensors(given, into_objects=False)]
        if not all(map(_is_ordinary, tensors)):
            return False
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*tensors, *module.parameters())):
            return False
        with contextlib.suppress(AttributeError, IndexError, KeyError):  # a subclass that is built differently
            return decides(module, given)
    return False


def named_arguments(frame: FrameType) -> Given:
    """The named arguments of a module call, from the frame that calls its hooks: global hooks before it are not shown them."""
    named = frame.f_locals.get("kwargs")
    return named if isinstance(named, dict) else {}


def _is_ordinary(tensor: Tensor) -> bool:
    cls = type(tensor)
    is_plain = cls is Tensor or cls.__torch_function__ is disabled_torch_function
    return is_plain and not is_functorch_wrapped(tensor)


def _decide(names: tuple[str, ...], decides: Decides, module: Any, given: Given) -> bool:
    by_name = {names[key] if isinstance(key, int) and key < len(names) else key: value for key, value in given.items()}
    return decides(module, by_name)


def _in_any_case(module: Any, given: Given) -> bool:
    return True


def _encoder(module: Any, given: Given) -> bool:
    """Whether an encoder turns its padded input into a nested tensor."""
    if given.get("src_key_padding_mask") is None or given.get("mask") is not None:
        return False
    return bool(module.use_nested_tensor) and not module.layers[0].training and given["src"].dim() == 3


def _encoder_layer(module: Any, given: Given) -> bool:
    attention = module.self_attn
    return bool(
        attention.batch_first
        and attention.in_proj_bias is not None
        and attention.in_proj_weight is not None
        and attention.num_heads % 2 == 0
        and module.activation_relu_or_gelu
        and module.norm1.eps == module.norm2.eps
        and given["src"].dim() == 3
        and not any(forward_hooks_of(inner) or forward_pre_hooks_of(inner) for inner in module.modules())
    )


def _attention(module: Any, given: Given) -> bool:
    masks = [given[name] for name in ("attn_mask", "key_padding_mask") if given.get(name) is not None]
    return bool(
        given["query"] is given["key"] is given["value"]
        and given["query"].dim() == 3
        and module.batch_first
        and module.in_proj_weight is not None
        and module.in_proj_bias is not None
        and module.num_heads % 2 == 0
        and module.bias_k is None
        and module.bias_v is None
        and not module.add_zero_attn
        and not any(mask.is_floating_point() for mask in masks)
    )


_DECIDES: tuple[tuple[type[Module], tuple[str, ...], Decides], ...] = (
    (nn.TransformerEncoder, ("src", "mask", "src_key_padding_mask", "is_causal"), _encoder),
    (nn.TransformerEncoderLayer, ("src", "src_mask", "src_key_padding_mask", "is_causal"), _encoder_layer),
    (nn.MultiheadAttention, ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask"), _attention),
)
FUSING = tuple([known for known, _, _ in _DECIDES])  # the classes that have a fused path
