"""Values of tensors for the page: small pictures with eight bits per pixel, statistics, and digests of parameters."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import adaptive_avg_pool2d

from .._cleanup import pass_interrupts_on
from .._text import Progress, plural
from .._torch.internals import DisableTorchFunction
from .._torch.measure import Statistics, dense, real, short, statistics_of
from .._torch.memory import is_freed
from .._torch.shapes import shape_of
from ..errors import InvalidArgument
from ..graph import Node
from ..log.operation import OperationFacts
from ..log.run import Index
from .document import packed
from .schema import GRAPH, Plain, lean

PATIENCE = 2.0  # progress is shown after this many seconds

Kind = Literal["image", "maps", "matrix", "attention", "vector"]

SIDE = 96  # number of pixels of the longest side, without the lines between tiles
_LONGEST_ROW = 1024  # a vector is drawn with at most this many pixels
_TILES = 16
_HEADS = 9
_SMALLEST_IMAGE = 8
_LONGEST_IMAGE = 4  # a tensor of three dimensions is no image if its longer side is more than this many times its shorter side
_NARROWEST = 4  # each side of a tile has at least 1/4 of the pixels of its room, or one pixel per value
_AVERAGED = 4  # one pixel averages at most this many neighbouring values
_OUTLIERS = 0.005  # the scale leaves out this fraction of the smallest and of the largest values
_FIRST_ROWS = 0.02  # the same fraction for attention, whose first tokens have few keys
_ALOOF = 1e4  # a value larger than this many times the median magnitude is a mark, such as the -1e9 of a mask
_LOOKED_AT = 4096  # the median is computed from about this many values


@dataclass(frozen=True, slots=True)
class PreviewPlan:
    """The plan of a preview: `count` tiles of `height`×`width` pixels, in `columns`."""

    kind: Kind
    height: int
    width: int
    count: int = 1
    columns: int = 1
    channels: int = 1
    note: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the whole preview, with a line of pixels between tiles."""
        rows = -(-self.count // self.columns)
        return self.columns * (self.width + 1) - 1, rows * (self.height + 1) - 1


def plan_of(shape: tuple[int, ...], *, is_input: bool) -> PreviewPlan | None:
    """The plan for a tensor of this shape; None if there is nothing to see."""
    if math.prod(shape) < 2 or min(shape) < 1:
        return None
    if is_input and (image := _image_plan(shape)) is not None:
        return image
    extents = [size for size in shape if size > 1]
    if len(extents) == 1:
        return PreviewPlan("vector", 1, min(extents[0], _LONGEST_ROW), note=_reduced(1, extents[0], _LONGEST_ROW))
    if len(shape) == 2:
        return _tiled("matrix", 1, *shape, notes=[])
    if len(shape) == 3:
        return _tiled("matrix", 1, *shape[1:], notes=_sampled(shape[0]))
    deeper = ["the middle slice"] if len(shape) > 4 else []
    return _tiled("maps", shape[1], *shape[-2:], notes=[*_sampled(shape[0]), *deeper])


def _image_plan(shape: tuple[int, ...]) -> PreviewPlan | None:
    if len(shape) not in (3, 4):
        return None
    sizes = shape[-3:]
    for channels, (height, width) in ((sizes[0], sizes[1:]), (sizes[2], sizes[:2])):
        is_flat = len(shape) == 3 and max(height, width) > _LONGEST_IMAGE * min(height, width)  # tokens and their features
        if channels in (1, 3) and min(height, width) >= _SMALLEST_IMAGE and not is_flat:
            tall, wide = _fitted(height, width, SIDE)
            notes = [*_sampled(shape[0] if len(shape) == 4 else 1), _reduced(height, width, SIDE)]
            return PreviewPlan("image", tall, wide, channels=channels, note=_joined(notes))
    return None


def _tiled(
    kind: Kind, count: int, height: int, width: int, *, notes: list[str], most: int = _TILES, noun: str = "channels"
) -> PreviewPlan:
    shown = min(count, most)
    columns = math.ceil(math.sqrt(shown))
    side = SIDE // columns
    tall, wide = _fitted(height, width, side) if kind == "maps" else (min(height, side), min(width, side))
    some = [f"{shown} of {count} {noun}"] if shown < count else []
    return PreviewPlan(kind, tall, wide, shown, columns, note=_joined([*some, *notes, _reduced(height, width, side)]))


def _fitted(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width in pixels: at most one pixel per value, and not too narrow to be seen."""
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


def preview_of(tensor: Tensor, plan: PreviewPlan) -> dict[str, Any] | None:
    """The preview of a tensor for the payload; None if its values cannot be read."""
    with DisableTorchFunction(), torch.no_grad():
        values = dense(tensor)
        if values is None or values.shape != tensor.shape:
            return None
        return _image(values, plan) if plan.kind == "image" else _tiles(values, plan)


def _image(values: Tensor, plan: PreviewPlan) -> dict[str, Any]:
    picture = values[0] if values.dim() == 4 else values
    if picture.shape[0] != plan.channels or min(picture.shape[1:]) < _SMALLEST_IMAGE:
        picture = picture.permute(2, 0, 1)
    pixels, note = _shrunk(picture, plan.height, plan.width)
    low, high = (float(end) for end in pixels.aminmax())
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    return _packed(_quantized(pixels, low, high).permute(1, 2, 0), plan, low, high, note)


def _tiles(values: Tensor, plan: PreviewPlan) -> dict[str, Any]:
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


def _stack(values: Tensor, plan: PreviewPlan) -> Tensor:
    """The shown values, one matrix for each tile."""
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
    """True if each matrix is square and each of its rows is a probability distribution."""
    height, width = stack.shape[-2:]
    if height != width or height < 2 or not stack.is_floating_point():
        return False
    rows = real(stack[:, :: max(height // 32, 1)])
    exact = 1e-3 if stack.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < exact).all())


def _attention_plan(values: Tensor) -> PreviewPlan:
    heads = 1 if values.dim() == 2 else values.shape[0] if values.dim() == 3 else values.shape[1]
    notes = _sampled(values.shape[0]) if values.dim() > 3 else []
    return _tiled("attention", heads, *values.shape[-2:], notes=notes, most=_HEADS, noun="heads")


def _shrunk(stack: Tensor, height: int, width: int) -> tuple[Tensor, str]:
    """Average a stack down to a size, and return a note about changes. Of a very large stack, not every value is read."""
    tall, wide = stack.shape[-2:]
    values = real(stack[..., :: max(tall // (height * _AVERAGED), 1), :: max(wide // (width * _AVERAGED), 1)])
    values, note = _without_marks(values)
    note = _joined(["magnitudes of complex numbers" if stack.is_complex() else "", note])
    return (values if values.shape[-2:] == (height, width) else adaptive_avg_pool2d(values, (height, width))), note


def _without_marks(values: Tensor) -> tuple[Tensor, str]:
    """Remove infinities and marks, which would leave other values without contrast. Also returns a note about changes."""
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
    """Return the smallest and the largest value. Outliers are left out, unless all values are outliers."""
    ordered = tiles.flatten().sort().values
    cut = int(tiles.numel() * outliers)
    low, high = float(ordered[cut]), float(ordered[-1 - cut])
    return (low, high) if low < high else (float(ordered[0]), float(ordered[-1]))


def _quantized(values: Tensor, low: float, high: float) -> Tensor:
    if not 0 < high - low < math.inf:
        return torch.zeros(values.shape, dtype=torch.uint8, device="cpu")
    scaled = (values.cpu().double() - low) * (255 / (high - low))
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def _laid_out(tiles: Tensor, plan: PreviewPlan, between: int) -> Tensor:
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


def _packed(
    pixels: Tensor, plan: PreviewPlan, low: float, high: float, note: str, *, is_diverging: bool = False
) -> dict[str, Any]:
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


# Statistics of kept tensors and, as far as they fit, small pictures.

_Found = TypeVar("_Found")
Look = Callable[[], Plain | None]
Metrics = Mapping[str, Callable[[Tensor], Any]]
_TOGETHER = 1.03  # factor for a part's size, because it may compress slightly worse together with other parts


class Values:
    """The kept tensors of one history. A tensor that occurs twice (an output is also an operation's result) is read once."""

    def __init__(self, index: Index, nodes: tuple[Node, ...]) -> None:
        self._index = index
        self._nodes = nodes
        self._tensors: dict[int, Tensor] = {}  # number of a node -> its tensor
        # memory, which the tensor keeps allocated -> the tensor and its statistics
        self._known: dict[object, tuple[Tensor, Plain | None]] = {}
        self._unread: list[str] = []
        self._failed: dict[str, list[str]] = {}  # metric -> names of the tensors for which the metric raised
        self._metric_notes: list[str] = []

    @property
    def notes(self) -> list[str]:
        """The tensors that could not be read, with reasons."""
        tensors = plural(len(self._unread), "tensor")
        unread = [f"The values of {tensors} could not be read; the first: {self._unread[0]}"] if self._unread else []
        return [*self._metric_notes, *unread]

    # Statistics -----------------------------------------------------------------------------------------------------

    def add_statistics(self, plains: list[Plain]) -> None:
        """Add the statistics of each node's tensor, and of its gradient."""
        with Progress("Statistics", len(plains), "operations", after=PATIENCE) as progress:
            for number, (node, plain) in enumerate(zip(self._nodes, plains, strict=True)):
                progress.reached(number)
                if node.operations:
                    self._add_statistics(number, node, plain)

    def _add_statistics(self, number: int, node: Node, plain: Plain) -> None:
        operation = OperationFacts(self._index, node.operations[0])
        if operation.has_saved_activations and not self._index.log.is_lost(node.operations[0]):
            plain["saved"] = True
            value = operation.tensor_contents
            if isinstance(value, Tensor):
                self._tensors[number] = value
                plain |= self._statistics(node, value)
        gradient = operation.grad_contents
        if gradient is not None:
            plain["grad"] = {"shape": shape_of(gradient), **self._statistics(node, gradient)}

    def add_metrics(self, plains: list[Plain], metrics: Metrics) -> None:
        """Add the results of the user's metrics for the kept tensor of each node."""
        for number, tensor in self._tensors.items() if metrics else ():
            plains[number]["metrics"] = [self._figure(name, function, number, tensor) for name, function in metrics.items()]
        for name in metrics:
            failed = self._failed.get(name, [])
            if failed:
                self._metric_notes.append(f"{name!r} could not be computed for {plural(len(failed), 'tensor')}: {failed[0]}.")

    def _figure(self, name: str, function: Callable[[Tensor], Any], number: int, tensor: Tensor) -> float | None:
        try:
            found = function(tensor.detach().clone())  # a copy, because the function may write to it
        except Exception as error:  # a user's function may raise anything
            pass_interrupts_on(error)
            self._failed.setdefault(name, []).append(f"{self._nodes[number].key}, {type(error).__name__}: {error!s:.200}")
            return None
        try:
            figure = float(found)
        except (TypeError, ValueError, RuntimeError) as error:
            said = f"it returned {type(found).__name__} for {self._nodes[number].key}"
            raise InvalidArgument(f"metrics[{name!r}] is a function from a tensor to one number; {said}.") from error
        return short(figure) if math.isfinite(figure) else None

    def _statistics(self, node: Node, tensor: Tensor) -> Plain:
        """The key `stats`, if the tensor has statistics."""
        found = self._read(node, lambda: self._looked_up(tensor))
        return {"stats": found} if found is not None else {}

    def _looked_up(self, tensor: Tensor) -> Plain | None:
        key = _memory(tensor)
        if key is None or key not in self._known:
            self._known[key] = (tensor, shown_statistics(tensor))
        return self._known[key][1]

    def _read(self, node: Node, look: Callable[[], _Found]) -> _Found | None:
        try:
            return look()
        except Exception as error:  # a tensor of a user-defined class may raise anything
            pass_interrupts_on(error)
            self._unread.append(f"{node.key}, {type(error).__name__}: {error!s:.200}")
            return None

    # Previews -------------------------------------------------------------------------------------------------------

    def add_previews(self, plains: list[Plain], weights: list[tuple[Plain, Tensor]], room: int) -> int:
        """Add previews, the most important first, as long as they fit into `room` bytes of a page. Returns the number left
        out.
        """
        left_out = 0
        with Progress("Previews", len(self._tensors) + len(weights), "tensors", after=PATIENCE) as progress:
            for done, (plain, plan, look) in enumerate(self._pictures(plains, weights)):
                progress.reached(done)
                if room <= 0:
                    left_out += plan is not None
                    continue
                preview = look()
                if preview is None:
                    continue
                size = int(len(packed(json.dumps(preview).encode())) * _TOGETHER)
                if size > room:
                    left_out += 1
                    continue
                room -= size
                plain["preview"] = preview
        return left_out

    def _pictures(
        self, plains: list[Plain], weights: list[tuple[Plain, Tensor]]
    ) -> Iterator[tuple[Plain, PreviewPlan | None, Look]]:
        """For each preview: the plain value it belongs to, its plan, and a function that draws it. Activations come first."""
        for number in sorted(self._tensors, key=self._rank):
            node, tensor = self._nodes[number], self._tensors[number]
            if _is_pattern(plains[number], tensor):
                continue
            plan = None if tensor.is_nested else plan_of(tuple(tensor.shape), is_input=node.kind == "input")
            yield plains[number], plan, partial(self._read, node, partial(_preview, tensor, plan))
        for plain, tensor in weights:
            plan = plan_of(tuple(tensor.shape), is_input=False)
            yield plain, plan, partial(_preview, tensor, plan)

    def _rank(self, number: int) -> tuple[int, int]:
        """Inputs and outputs come first, then module outputs and attention maps in first passes, then other first passes,
        then the rest.
        """
        node = self._nodes[number]
        shape = node.shape or ()
        is_square = len(shape) > 1 and shape[-1] == shape[-2]
        if node.kind in ("input", "output"):
            return 0, number
        return (1 if node.passes[0] == 1 and (node.exits or is_square) else 2 if node.passes[0] == 1 else 3), number


def _preview(tensor: Tensor, plan: PreviewPlan | None) -> Plain | None:
    found = preview_of(tensor, plan) if plan is not None else None
    return lean("preview", found) if found is not None else None


def _is_pattern(plain: Plain, tensor: Tensor) -> bool:
    """True if a tensor is an attention pattern, whose heads are already shown."""
    shown = plain.get("attention")
    return shown is not None and tuple(tensor.shape[-2:]) == (shown["queries"], shown["keys"])


def _memory(tensor: Tensor) -> object:
    """A key that is equal for tensors with the same memory; None if unknown."""
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type != "meta"
    if not is_plain or tensor.is_nested or tensor.is_neg() or not tensor.is_contiguous():
        return None
    return (tensor.device, tensor.dtype, tensor.data_ptr(), tensor.numel())


def shown_statistics(tensor: Tensor) -> Plain | None:
    """The statistics of a tensor for a payload; None if the tensor has no statistics."""
    found = statistics_of(tensor, "linear")
    return lean("stats", _shown(found)) if found is not None else None


def _shown(found: Statistics) -> Plain:
    """Statistics in the page's format."""
    values = {name: getattr(found, name) for name in GRAPH["stats"]}
    numbers = {name: short(value) if isinstance(value, float) else value for name, value in values.items()}
    bins = {"low": numbers["min"], "high": numbers["max"], "counts": list(found.histogram)} if found.histogram else None
    return {**numbers, "histogram": bins}


# Statistics, a small picture and a digest for each parameter and buffer that operations read.

MOST_VALUES = 200_000_000  # at most this many values of parameters and buffers are read, which takes about a second
_PIECE = 1 << 24  # at most this many bytes are hashed at once


class Weights:
    """The parameters and buffers of one history, by name, with notes about parameters and buffers that cannot be shown."""

    def __init__(self, index: Index) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.notes: list[str] = []
        absent = changed = large = left = 0
        for state in index.log.states:
            if state.is_absent:
                absent += 1
                continue
            if not _is_plain(state.value) or is_freed(state.value):
                continue
            if state.is_changed or state.may_be_changed:
                changed += 1
            elif left + state.value.numel() > MOST_VALUES:
                large += 1
            else:
                left += state.value.numel()
                self.tensors[index.state_name(state)] = state.value
        if absent:
            self.notes.append(f"The values of {plural(absent, 'parameter')} are not in the file of this history.")
        if changed:
            self.notes.append(f"{plural(changed, 'parameter')} changed since the pass; their values are not shown.")
        if large:
            self.notes.append(
                f"The values of {plural(large, 'parameter')} are not shown: the model is too large to read them all."
            )

    def plain(self) -> list[Plain]:
        """All parameters and buffers as plain values, with statistics and digests."""
        return [
            lean("weight", {"name": name, "values_id": digest_of(tensor), "stats": shown_statistics(tensor)})
            for name, tensor in self.tensors.items()
        ]


def _is_plain(value: Any) -> bool:
    """True if the values can be read directly: False for a wrapper, and in a saved history without parameters."""
    if type(value) is not Tensor and type(value) is not Parameter:
        return False
    return value.layout is torch.strided and value.device.type != "meta" and not value.is_nested and not value.is_quantized


def digest_of(tensor: Tensor) -> str:
    """A twelve-character digest, equal for equal values of one dtype and shape; empty if they cannot be read."""
    values = dense(tensor)
    if values is None:
        return ""
    try:
        data: Any = values.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten().view(torch.uint8).numpy()
    except (RuntimeError, TypeError):  # the class only wraps other tensors
        return ""
    found = blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=6)
    for start in range(0, len(data), _PIECE):
        found.update(data[start : start + _PIECE].data)
    return found.hexdigest()
