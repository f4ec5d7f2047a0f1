"""Records torch's fused attention as the plain model runs it.

`nn.TransformerEncoder`, `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` have a fused path for evaluation without
gradients. They skip it while a `TorchFunctionMode` is active, and the slower path gives different values at padded
positions. So while such a module runs its fused path, the interceptors leave the mode stack, and a `TorchDispatchMode`
reports the ATen calls to them: the fused call is one operation, `_transformer_encoder_layer_fwd` or
`_native_multi_head_attention`. For modules that run inside (the final norm of an encoder) the interceptors return to the
stack.

`_DECIDES` checks fewer conditions than torch does. If torch does not take the fused path after all, the log is still
correct, but its operations have the names of ATen operators.
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

Given = dict[int | str, Any]  # argument name -> value; if a positional argument has no known name, its key is its position
Decides = Callable[[Any, Given], bool]


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the mode stack that lasts as long as one module call."""

    module: Module
    interceptors: tuple[Interceptor, ...]
    undo: Callable[[], None]


class _Here(threading.local):
    def __init__(self) -> None:
        self.switches: list[Switch] = []
        self.watch: AtenWatch | None = None  # kept alive here: torch up to 2.8 frees a mode that only its mode stack refers to


_here = _Here()


def switches_here() -> list[Switch]:
    """The changes of this thread's mode stack that are not undone yet. All recordings share this list."""
    return _here.switches


class AtenWatch(TorchDispatchMode):  # type: ignore[misc]  # looked up
    """Reports ATen calls to the interceptors that were taken off the mode stack, the innermost first."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch's compiler, which takes a second, at the first call

    def __init__(self, interceptors: tuple[Interceptor, ...]) -> None:
        super().__init__()
        self.interceptors = interceptors
        self._autocast = autocast_state()  # torch switches autocast off before it calls a dispatch mode

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
    """Called when a module begins inside a fused module: put the interceptors back on the stack until it ends."""
    watch = current_dispatch_mode()
    if isinstance(watch, AtenWatch):
        _show_functions(watch)
        _here.switches.append(Switch(module, watch.interceptors, partial(_show_aten, watch.interceptors)))


def watch_fused(module: Module, interceptor: Interceptor) -> None:
    """Called when a module is about to take its fused path: take the interceptors off the mode stack until it ends.

    Does nothing if the program has a mode on the stack: then the plain model does not take the fused path either. If
    recordings are nested, the innermost does this for all of them.
    """
    modes = function_modes()
    if modes and modes[-1] is interceptor and all(type(mode) is type(interceptor) for mode in modes):
        interceptors = tuple(modes)
        _show_aten(interceptors)
        _here.switches.append(Switch(module, interceptors, _undo_show_aten))


def leave(module: Module) -> None:
    """Called when `module` ends: undo its switches, and the switches of inner modules that an interrupt left without an end."""
    switches = _here.switches
    while any(switch.module is module for switch in switches):
        switches.pop().undo()


def leave_all(interceptor: Interceptor) -> None:
    """Called when a recording ends: undo its switches."""
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
    # modes that returned to the stack earlier, when the same module ended
    others = [pop_function_mode() for _ in function_modes()]
    for mode in (*watch.interceptors, *reversed(others)):
        push_function_mode(mode)


def _undo_show_aten() -> None:
    watch = current_dispatch_mode()
    if isinstance(watch, AtenWatch):
        _show_functions(watch)


# Which modules take a fused path ----------------------------------------------------------------------------------------


def decision_of(cls: type) -> Decides | None:
    """Return the function that decides whether a module of this class takes its fused path; None if it has no such path."""
    for known, names, decides in _DECIDES if can_watch_aten else ():
        if issubclass(cls, known):
            code = getattr(cls.forward, "__code__", None)
            if code is known.forward.__code__:
                return partial(_decide, names, decides)
            if code is not None and "forward" in code.co_names:  # an overridden forward that calls the original
                return lambda module, given: True
    return None


def is_about_to_fuse(module: Module, decides: Decides, args: tuple[Any, ...], frame: FrameType) -> bool:
    """True if `module`, called from this frame with these arguments, takes its fused path."""
    with DisableTorchFunction():
        if module.training or torch.is_autocast_enabled() or not torch.backends.mha.get_fastpath_enabled():
            return False
        given: Given = {**dict(enumerate(args)), **named_arguments(frame)}
        tensors = [tensor for _, tensor in find_tensors(given, into_objects=False)]
        if not all(map(_is_ordinary, tensors)):
            return False
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*tensors, *module.parameters())):
            return False
        # a subclass may lack attributes that the decision reads
        with contextlib.suppress(AttributeError, IndexError, KeyError):
            return decides(module, given)
    return False


def named_arguments(frame: FrameType) -> Given:
    """Read the keyword arguments of a module call from the frame that calls its hooks: global pre-hooks do not get them."""
    named = frame.f_locals.get("kwargs")
    return named if isinstance(named, dict) else {}


def _is_ordinary(tensor: Tensor) -> bool:
    cls = type(tensor)
    is_plain = cls is Tensor or cls.__torch_function__ is disabled_torch_function
    return is_plain and not is_functorch_wrapped(tensor)


def _decide(names: tuple[str, ...], decides: Decides, module: Any, given: Given) -> bool:
    by_name = {names[key] if isinstance(key, int) and key < len(names) else key: value for key, value in given.items()}
    return decides(module, by_name)


def _encoder(module: Any, given: Given) -> bool:
    """True if the encoder converts its padded input to a nested tensor."""
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
