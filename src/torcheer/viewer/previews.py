"""Small pictures of tensors, eight bits a pixel: planned from the shape, then drawn from the values."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ..measure import dense, real, short
from ..torch_internals import DisableTorchFunction

Kind = Literal["image", "maps", "matrix", "attention", "vector"]

SIDE = 96  # pixels of the longest side, without the lines between tiles
_LONGEST_ROW = 1024  # pixels of a vector
_TILES = 16
_HEADS = 9
_SMALLEST_IMAGE = 8
_LONGEST_IMAGE = 4  # how much longer than wide
_NARROWEST = 4  # how much longer than wide a tile may be
_AVERAGED = 4  # values in a row that one pixel averages, at most
_OUTLIERS = 0.005  # the part of the values at either end that does not set the scale
_FIRST_ROWS = 0.02  # the same of attention, where the first tokens have few to look at
_ALOOF = 1e4  # values beyond so many times the median magnitude are marks, such as the -1e9 of a mask
_LOOKED_AT = 4096  # values that the median is taken of


@dataclass(frozen=True, slots=True)
class Plan:
    """What a preview will be: `count` tiles of `height`×`width` pixels, in `columns`."""

    kind: Kind
    height: int
    width: int
    count: int = 1
    columns: int = 1
    channels: int = 1
    note: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the whole, with a line of pixels between tiles."""
        rows = -(-self.count // self.columns)
        return self.columns * (self.width + 1) - 1, rows * (self.height + 1) - 1


def plan_of(shape: tuple[int, ...], *, is_input: bool) -> Plan | None:
    """What can be shown of a tensor of this shape; None where there is nothing to see."""
    if math.prod(shape) < 2 or min(shape) < 1:
        return None
    if is_input and (image := _image_plan(shape)) is not None:
        return image
    extents = [size for size in shape if size > 1]
    if len(extents) == 1:
        return Plan("vector", 1, min(extents[0], _LONGEST_ROW), note=_reduced(1, extents[0], _LONGEST_ROW))
    if len(shape) == 2:
        return _tiled("matrix", 1, *shape, notes=[])
    if len(shape) == 3:
        return _tiled("matrix", 1, *shape[1:], notes=_sampled(shape[0]))
    deeper = ["the middle slice"] if len(shape) > 4 else []
    return _tiled("maps", shape[1], *shape[-2:], notes=[*_sampled(shape[0]), *deeper])


def _image_plan(shape: tuple[int, ...]) -> Plan | None:
    if len(shape) not in (3, 4):
        return None
    sizes = shape[-3:]
    for channels, (height, width) in ((sizes[0], sizes[1:]), (sizes[2], sizes[:2])):
        is_flat = len(shape) == 3 and max(height, width) > _LONGEST_IMAGE * min(height, width)  # tokens and their features
        if channels in (1, 3) and min(height, width) >= _SMALLEST_IMAGE and not is_flat:
            tall, wide = _fitted(height, width, SIDE)
            notes = [*_sampled(shape[0] if len(shape) == 4 else 1), _reduced(height, width, SIDE)]
            return Plan("image", tall, wide, channels=channels, note=_joined(notes))
    return None


def _tiled(
    kind: Kind, count: int, height: int, width: int, *, notes: list[str], most: int = _TILES, noun: str = "channels"
) -> Plan:
    shown = min(count, most)
    columns = math.ceil(math.sqrt(shown))
    side = SIDE // columns
    tall, wide = _fitted(height, width, side) if kind == "maps" else (min(height, side), min(width, side))
    some = [f"{shown} of {count} {noun}"] if shown < count else []
    return Plan(kind, tall, wide, shown, columns, note=_joined([*some, *notes, _reduced(height, width, side)]))


def _fitted(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width in pixels: no more than there are values, and not too narrow to be seen."""
    scale = min(1.0, side / max(height, width))
    least = side // _NARROWEST
    return min(height, max(round(height * scale), least, 1)), min(width, max(round(width * scale), least, 1))


def _sampled(count: int) -> list[str]:
    return [f"the first of {count}"] if count > 1 else []


def _reduced(height: int, width: int, side: int) -> str:
    if max(height, width) <= side:
        return ""
    return f"averaged from {width} values" if height == 1 else f"averaged from {height}×{width}"


def _joined(notes: list[str]) -> str:
    return ", ".join(note for note in notes if note)


# Drawing ----------------------------------------------------------------------------------------------------------


def preview_of(tensor: Tensor, plan: Plan) -> dict[str, Any] | None:
    """The preview of a tensor, as the payload holds it; None where its values cannot be read."""
    with DisableTorchFunction(), torch.no_grad():
        values = dense(tensor)
        if values is None or values.shape != tensor.shape:
            return None
        return _image(values, plan) if plan.kind == "image" else _tiles(values, plan)


def _image(values: Tensor, plan: Plan) -> dict[str, Any]:
    picture = values[0] if values.dim() == 4 else values
    if picture.shape[0] != plan.channels or min(picture.shape[1:]) < _SMALLEST_IMAGE:
        picture = picture.permute(2, 0, 1)
    pixels, note = _shrunk(picture, plan.height, plan.width)
    low, high = (float(end) for end in pixels.aminmax())
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    return _packed(_quantized(pixels, low, high).permute(1, 2, 0), plan, low, high, note)


def _tiles(values: Tensor, plan: Plan) -> dict[str, Any]:
    if plan.kind != "vector" and _is_attention(_stack(values, plan)):
        plan = _attention_plan(values)
    tiles, note = _shrunk(_stack(values, plan), plan.height, plan.width)
    low, high = _scale(tiles, _FIRST_ROWS if plan.kind == "attention" else _OUTLIERS)
    is_diverging = low < 0 < high
    if is_diverging:
        high = max(-low, high)
        low = -high
    pixels = _laid_out(_quantized(tiles, low, high), plan, 128 if is_diverging else 0)
    return _packed(pixels, plan, low, high, note, is_diverging=is_diverging)


def _stack(values: Tensor, plan: Plan) -> Tensor:
    """What is shown, as one picture of values for each tile."""
    if plan.kind == "vector":
        return values.reshape(1, 1, -1)
    if values.dim() == 2:
        return values.unsqueeze(0)
    if values.dim() == 3:
        return values[: plan.count]
    values = values[0]
    while values.dim() > 3:
        values = values.select(1, values.shape[1] // 2)
    return values[: plan.count]


def _is_attention(stack: Tensor) -> bool:
    """Whether every row is a distribution over as many things as there are rows."""
    height, width = stack.shape[-2:]
    if height != width or height < 2 or not stack.is_floating_point():
        return False
    rows = real(stack[:, :: max(height // 32, 1)])
    exact = 1e-3 if stack.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < exact).all())


def _attention_plan(values: Tensor) -> Plan:
    heads = 1 if values.dim() == 2 else values.shape[0] if values.dim() == 3 else values.shape[1]
    notes = _sampled(values.shape[0]) if values.dim() > 3 else []
    return _tiled("attention", heads, *values.shape[-2:], notes=notes, most=_HEADS, noun="heads")


def _shrunk(stack: Tensor, height: int, width: int) -> tuple[Tensor, str]:
    """A stack averaged down to a size, with a note on what was changed; not every value of a very large stack is read."""
    tall, wide = stack.shape[-2:]
    values = real(stack[..., :: max(tall // (height * _AVERAGED), 1), :: max(wide // (width * _AVERAGED), 1)])
    values, note = _tamed(values)
    note = _joined(["magnitudes of complex numbers" if stack.is_complex() else "", note])
    return (values if values.shape[-2:] == (height, width) else adaptive_avg_pool2d(values, (height, width))), note


def _tamed(values: Tensor) -> tuple[Tensor, str]:
    """Values without infinities and marks, which would leave the rest no contrast, with a note on what was changed."""
    flat = values.flatten()
    sizes = flat[:: max(flat.numel() // _LOOKED_AT, 1)].abs()
    sizes = sizes[(sizes > 0) & sizes.isfinite()]
    limit = float(sizes.median()) * _ALOOF if sizes.numel() else math.inf
    is_ordinary = values.abs() <= min(limit, torch.finfo(values.dtype).max)
    if bool(is_ordinary.all()):
        return values, ""
    ordinary = values[is_ordinary]
    low, high = (float(end) for end in ordinary.aminmax()) if ordinary.numel() else (0.0, 0.0)
    is_nan = values.isnan()
    said = ["values far beyond the others cut"] if bool((~is_ordinary & ~is_nan).any()) else []
    said += ["NaN as 0"] if bool(is_nan.any()) else []
    return values.nan_to_num(0.0, math.inf, -math.inf).clamp(low, high), ", ".join(said)


def _scale(tiles: Tensor, outliers: float) -> tuple[float, float]:
    """The smallest and largest value, but for outliers, unless there is nothing else to see."""
    ordered = tiles.flatten().sort().values
    cut = int(tiles.numel() * outliers)
    low, high = float(ordered[cut]), float(ordered[-1 - cut])
    return (low, high) if low < high else (float(ordered[0]), float(ordered[-1]))


def _quantized(values: Tensor, low: float, high: float) -> Tensor:
    if not 0 < high - low < math.inf:
        return torch.zeros(values.shape, dtype=torch.uint8, device="cpu")
    scaled = (values.cpu().double() - low) * (255 / (high - low))
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def _laid_out(tiles: Tensor, plan: Plan, between: int) -> Tensor:
    """Tiles side by side, row by row, with a line of pixels between them."""
    width, height = plan.size
    if plan.count == 1:
        return tiles[0]
    whole = torch.full((height, width), between, dtype=torch.uint8, device="cpu")
    for number in range(plan.count):
        top = number // plan.columns * (plan.height + 1)
        left = number % plan.columns * (plan.width + 1)
        whole[top : top + plan.height, left : left + plan.width] = tiles[number]
    return whole


def _packed(pixels: Tensor, plan: Plan, low: float, high: float, note: str, *, is_diverging: bool = False) -> dict[str, Any]:
    width, height = plan.size
    return {
        "kind": plan.kind,
        "width": width,
        "height": height,
        "channels": plan.channels,
        "data": base64.b64encode(bytes(pixels.flatten().tolist())).decode(),
        "low": short(low),
        "high": short(high),
        "diverging": is_diverging,
        "note": _joined([plan.note, note]),
    }
