"""Whether the tolerances of a comparison are right: no culprit where only rounding differs, the planted one where a fault is.

`python -m tests.compare.tolerance_study` runs all of it and prints two tables; a part of it is among the default tests.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests.zoo.cases import TYPICAL, Unavailable, all_cases
from torch import Tensor, nn

import torcheer as tl

ARCHITECTURES = (
    *TYPICAL,
    "torchvision/vit_b_16",
    "torchvision/convnext_tiny",
    "torchvision/deeplabv3_mobilenet_v3_large",
    "transformers/llama",
    "transformers/whisper",
    "transformers/gemma2",
    "handwritten/vae",
    "handwritten/unet",
)
Program = Callable[..., Any]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def built(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    case = next((one for one in all_cases() if one.name == name), None)
    if case is None:
        raise Unavailable(f"the zoo has no {name}")
    return case.make()


# What differs by rounding only ------------------------------------------------------------------------------------------


def other_threads(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tl.compare.Comparison | None:
    histories = []
    for count in (1, 2):
        with threads(count):
            histories.append(tl.log_forward_pass(model, args, kwargs, random_seed=0))
    return tl.compare(*histories)


def other_dtype(dtype: torch.dtype) -> Callable[..., Any]:
    def compared(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(model, nn.Module):
            return None
        other = copy.deepcopy(model).to(dtype)
        return tl.compare_models(model, other, args, kwargs)

    return compared


def channels_last(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    images = [arg for arg in args if isinstance(arg, Tensor) and arg.dim() == 4]
    if not images or not isinstance(model, nn.Module):
        return None
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    moved = tuple(
        arg.to(memory_format=torch.channels_last) if isinstance(arg, Tensor) and arg.dim() == 4 else arg for arg in args
    )
    a = tl.log_forward_pass(model, args, kwargs, random_seed=0)
    return tl.compare(a, tl.log_forward_pass(other, moved, kwargs, random_seed=0))


def other_attention(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        return None
    other = copy.deepcopy(model)
    try:
        model.set_attn_implementation("eager")
        other.set_attn_implementation("sdpa")
    except ValueError:  # this model has one of the two only
        return None
    return tl.compare_models(model, other, args, kwargs)


def larger_batch(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) != 1 or not isinstance(args[0], Tensor) or args[0].dim() != 4:
        return None

    def twice(x: Tensor) -> Tensor:
        found = model(torch.cat([x, x.flip(0)]))
        return found[: len(x)] if isinstance(found, Tensor) else found["out"][: len(x)]

    def once(x: Tensor) -> Tensor:
        found = model(x)
        return found if isinstance(found, Tensor) else found["out"]

    return tl.compare_models(once, twice, args)


ROUNDING: dict[str, Callable[..., Any]] = {
    "threads": other_threads,
    "bfloat16": other_dtype(torch.bfloat16),
    "float16": other_dtype(torch.float16),
    "float64": other_dtype(torch.float64),
    "channels_last": channels_last,
    "eager / fused": other_attention,
    "batch": larger_batch,
}


# Planted faults -----------------------------------------------------------------------------------------------------------


def fault(func: Program, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)  # the planted call


def replaced(args: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*args[:place], value, *args[place + 1 :])


def argument(place: int, name: str, change: Callable[[Any], Any], default: Any = None) -> Callable[..., Any]:
    """A call with one of its arguments changed."""

    def altered(func: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > place:
            return fault(func, *replaced(args, place, change(args[place])), **kwargs)
        return fault(func, *args, **{**kwargs, name: change(kwargs.get(name, default))})

    return altered


def rolled(func: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fault(torch.roll, func(*args, **kwargs), 1, -1)


def twice(func: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fault(torch.add, func(*args, **kwargs), args[0])


def swapped_heads(func: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    order = [1, 0, *range(2, args[0].shape[1])]
    return func(fault(torch.Tensor.__getitem__, args[0], (slice(None), order)), *args[1:], **kwargs)


def reflected(func: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    pad = args[4] if isinstance(args[4], (tuple, list)) else (args[4],) * 2
    padded = fault(nn.functional.pad, args[0], (pad[1], pad[1], pad[0], pad[0]), mode="reflect")
    return fault(func, padded, *replaced(args[1:], 3, 0), **kwargs)


def is_square(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return args[1].dim() == 2 and args[1].shape[0] == args[1].shape[1]


def is_padded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) > 4 and args[4] not in (0, (0, 0)) and not isinstance(args[4], str)


def is_residual(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(isinstance(arg, Tensor) and arg.is_floating_point() for arg in args[:2]) and args[0].shape == args[1].shape


def has_number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) > 1 and isinstance(args[1], float) and args[1] != 1


def is_smooth(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("mode") in ("bilinear", "bicubic", "linear", "trilinear")


def always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def has(place: int, name: str) -> Callable[..., bool]:
    return lambda args, kwargs: kwargs.get(name, args[place] if len(args) > place else None) is not None


# By name: the functions it is planted in (the middle call of these), the change, and which calls it applies to.
FAULTS: dict[str, tuple[tuple[str, ...], Callable[..., Any], Callable[..., bool]]] = {
    "eps × 10 in LayerNorm": (("layer_norm",), argument(4, "eps", lambda eps: eps * 10, 1e-5), always),
    "eps × 10 in BatchNorm": (("batch_norm",), argument(7, "eps", lambda eps: eps * 10, 1e-5), always),
    "eps in RMSNorm": (("rsqrt",), lambda func, args, kwargs: func(fault(torch.add, args[0], 1e-3)), always),
    "LayerNorm without bias": (("layer_norm",), argument(3, "bias", lambda bias: None), has(3, "bias")),
    "other GELU": (("gelu",), argument(99, "approximate", lambda kind: "tanh" if kind == "none" else "none", "none"), always),
    "softmax over another dim": (("softmax",), argument(1, "dim", lambda dim: -2, -1), always),
    "missing scale": (("scaled_dot_product_attention",), argument(99, "scale", lambda scale: 1.0), always),
    "scale of 1": (("__mul__", "mul", "__truediv__", "div"), argument(1, "other", lambda scale: 1.0), has_number),
    "swapped heads": (("scaled_dot_product_attention",), swapped_heads, always),
    "off by one": (("__getitem__", "chunk", "view"), rolled, lambda args, kwargs: args[0].is_floating_point()),
    "transposed weight": (("linear",), argument(1, "weight", lambda weight: weight.T), is_square),
    "missing bias": (("linear",), argument(2, "bias", lambda bias: None), has(2, "bias")),
    "dropout left on": (("dropout",), argument(2, "training", lambda training: True), always),
    "padding mode": (("conv2d",), reflected, is_padded),
    "residual added twice": (("add", "__add__", "__iadd__"), twice, is_residual),
    "align_corners": (("interpolate",), argument(99, "align_corners", lambda corners: not corners), is_smooth),
    "momentum in eval": (("batch_norm",), argument(6, "momentum", lambda momentum: 0.9), always),
}
PLANTED_IN = (
    "torchvision/resnet18",
    "transformers/gpt2",
    "transformers/llama",
    "transformers/bert-MaskedLM",
    "transformers/t5",
    "transformers/swin",
    "transformers/clip",
    "handwritten/unet",
    "handwritten/seq2seq_attention",
)


class Planting(torch.overrides.TorchFunctionMode):
    """Changes one call of a program: the one with this number among those that a fault applies to; counts them without one."""

    def __init__(self, name: str, at: int | None) -> None:
        self.names, self.alter, self.applies = FAULTS[name]
        self.at, self.count, self.before = at, 0, ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.names and self._applies(args, kwargs):
            self.count += 1
            if self.count - 1 == self.at:
                return self.alter(func, args, kwargs)
        return func(*args, **kwargs)

    def _applies(self, args: Any, kwargs: Any) -> bool:
        return bool(args) and isinstance(args[0], Tensor) and self.applies(args, kwargs)


def planted(model: Any, name: str, at: int | None) -> tuple[Callable[..., Any], Planting]:
    mode = Planting(name, at)

    class Program(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            with mode:
                return model(*args, **kwargs)

    program = Program().eval()
    program.model = model
    return program, mode


def outcome(architecture: str, name: str) -> str | None:
    """ "found", "missed: …", or "harmless"; None where the architecture has nothing to plant the fault in."""
    model, args, kwargs = built(architecture)
    plain, counting = planted(model, name, None)
    with torch.no_grad():
        before = tl.log_forward_pass(plain, args, kwargs, random_seed=0)
    if not counting.count:
        return None
    program, _ = planted(model, name, counting.count // 2)
    with torch.no_grad():
        after = tl.log_forward_pass(program, args, kwargs, random_seed=0)
    comparison = tl.compare(before, after)
    culprit = comparison.culprit
    outputs = zip(before.outputs, after.outputs, strict=False)
    if all(torch.equal(one.activation, other.activation) for one, other in outputs):
        return (
            "harmless" if culprit is None else f"found: {culprit}" if _is_planted(culprit) else f"missed: {comparison.headline}"
        )
    return "found" if culprit is not None and _is_planted(culprit) else f"missed: {comparison.headline}"


def _is_planted(culprit: Any) -> bool:
    return culprit.b is not None and culprit.b.source is not None and "the planted call" in culprit.b.source.text


# Tables -------------------------------------------------------------------------------------------------------------------


def rounding_outcome(architecture: str, kind: str) -> str | None:
    """ "ok", or what is said though only rounding differs; None where the kind does not apply.

    Where activations are too small for the dtype the outputs differ, and the verdict says which value is lost.
    """
    comparison = ROUNDING[kind](*built(architecture))
    if comparison is None:
        return None
    if comparison.culprit is not None:
        return f"named: {comparison.headline}"
    return "ok" if comparison or comparison.first_lost is not None else f"beyond: {comparison.headline}"


def main(names: list[str]) -> int:
    """Print every outcome, and the totals."""
    import torchvision_operators

    torchvision_operators.declare()
    warnings.simplefilter("ignore")
    failures = 0
    for title, kinds, architectures, run in (
        ("Only rounding differs", ROUNDING, ARCHITECTURES, rounding_outcome),
        ("A fault is planted", FAULTS, PLANTED_IN, outcome),
    ):
        print(title)
        for architecture in architectures:
            if names and architecture not in names:
                continue
            for kind in kinds:
                started = time.perf_counter()
                try:
                    said = run(architecture, kind)
                except (Unavailable, RuntimeError, ValueError, tl.TorcheerError) as error:
                    said = f"not run: {type(error).__name__}: {error}"
                if said is not None:
                    is_noise = "it draws random numbers" in said  # others in another dtype, which no tolerance can allow for
                    failures += said.startswith(("named", "beyond", "missed")) and not is_noise
                    print(f"  {architecture:42} {kind:26} {time.perf_counter() - started:6.1f} s  {said:.200}", flush=True)
    print(f"{failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.path.insert(0, "tests")
    sys.exit(main(sys.argv[1:]))
