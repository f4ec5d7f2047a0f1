"""The options of pictures, and their themes (colours) and styles (sizes).

Colour-blind readers can tell the colours apart; grey prints differ in lightness, and shapes and texts help in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import torch

from .._text.colors import COST_RAMPS
from .._torch.inputs import check_names, is_whole
from ..errors import InvalidArgument
from ..graph import ModuleBox, Node
from ..log.keys import AnyKey, is_torch_function

if TYPE_CHECKING:
    from ..history import Operation


LookName = Literal[
    "input",
    "output",
    "function",
    "trainable",
    "frozen",
    "mixed",
    "internal",
    "buffer",
    "decision",
    "opaque",
    "failed",
    "omitted",
    "plumbing",
]


@dataclass(frozen=True, slots=True)
class Look:
    """The colours of a kind of node."""

    fill: str
    border: str
    width: float = 1.0
    line: str = "solid"
    text: str = ""  # colour of the text; default: the theme's ink


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a picture."""

    page: str
    ink: str
    faint: str
    edge: str
    box_border: str
    box_fills: tuple[str, ...]  # fills of boxes, by depth, in turn
    looks: dict[LookName, Look]
    ramp: tuple[str, ...]  # colours from little to much
    unknown: str  # fill of nodes without a value
    gradient: str  # colour of the arrows of gradients


_LIGHT = Theme(
    page="#FFFFFF",
    ink="#16181D",
    faint="#51565F",
    edge="#4D525B",
    box_border="#7C828C",
    box_fills=("#F6F7F9", "#FFFFFF"),
    looks={
        "input": Look("#B9E4D3", "#00684F", 2.0),
        "output": Look("#FFCFA6", "#A84300", 2.0),
        "function": Look("#FFFFFF", "#5E636C"),
        "trainable": Look("#C9E0F7", "#00538A", 1.6),
        "frozen": Look("#9FB2C4", "#2F3E4C", 1.6),
        "mixed": Look("#C9E0F7:#9FB2C4", "#00538A", 1.6),
        "internal": Look("#E9E9E9", "#8B8B8B", 1.0, "dashed"),
        "buffer": Look("#E6D9F0", "#6C3F8A", 1.2),
        "decision": Look("#FAEC8C", "#7A6700", 1.6),
        "opaque": Look("#4A4F5C", "#16181D", 1.0, text="#FFFFFF"),
        "failed": Look("#FFD6D2", "#C00000", 3.0),
        "omitted": Look("#FFFFFF", "#8B8B8B", 1.0, "dotted"),
        "plumbing": Look("#F7F8FA", "#C3C9D3", 1.0, "dashed", "#59616C"),
    },
    ramp=COST_RAMPS["light"],
    unknown="#FFFFFF",
    gradient="#B0006D",
)

_DARK = Theme(
    page="#1B1D21",
    ink="#F0F1F3",
    faint="#B4B9C2",
    edge="#A9AFB9",
    box_border="#7D838D",
    box_fills=("#23262B", "#1B1D21"),
    looks={
        "input": Look("#0F5A45", "#5FDDB4", 2.0),
        "output": Look("#7A3A0C", "#FFB077", 2.0),
        "function": Look("#2B2E34", "#A3A9B3"),
        "trainable": Look("#174A7C", "#7CC0FA", 1.6),
        "frozen": Look("#56636F", "#C3D0DC", 1.6),
        "mixed": Look("#174A7C:#56636F", "#7CC0FA", 1.6),
        "internal": Look("#3A3A3C", "#8F8F92", 1.0, "dashed"),
        "buffer": Look("#4B3263", "#C9A2EA", 1.2),
        "decision": Look("#665808", "#F3DC4E", 1.6),
        "opaque": Look("#D5D8DE", "#FFFFFF", 1.0, text="#16181D"),
        "failed": Look("#6E1515", "#FF7B72", 3.0),
        "omitted": Look("#1B1D21", "#8F8F92", 1.0, "dotted"),
        "plumbing": Look("#15171B", "#434A54", 1.0, "dashed", "#AEB5BF"),
    },
    ramp=COST_RAMPS["dark"],
    unknown="#1B1D21",
    gradient="#F58ACB",
)

_PAPER = Theme(
    page="#FFFFFF",
    ink="#000000",
    faint="#3A3A3A",
    edge="#222222",
    box_border="#666666",
    box_fills=("#FFFFFF", "#F7F7F7"),
    looks={
        "input": Look("#FFFFFF", "#000000", 2.4),
        "output": Look("#FFFFFF", "#000000", 2.4),
        "function": Look("#FFFFFF", "#444444"),
        "trainable": Look("#DADADA", "#000000", 1.4),
        "frozen": Look("#A6A6A6", "#000000", 1.4),
        "mixed": Look("#DADADA:#A6A6A6", "#000000", 1.4),
        "internal": Look("#F1F1F1", "#8B8B8B", 1.0, "dashed"),
        "buffer": Look("#EFEFEF", "#444444", 1.0),
        "decision": Look("#FFFFFF", "#000000", 2.0, "dashed"),
        "opaque": Look("#3C3C3C", "#000000", 1.0, text="#FFFFFF"),
        "failed": Look("#FFFFFF", "#C00000", 3.0),
        "omitted": Look("#FFFFFF", "#8B8B8B", 1.0, "dotted"),
        "plumbing": Look("#FFFFFF", "#8B8B8B", 1.0, "dashed", "#3A3A3A"),
    },
    ramp=("#FFFFFF", "#E6E6E6", "#CCCCCC", "#ABABAB", "#858585", "#5C5C5C", "#333333"),
    unknown="#FFFFFF",
    gradient="#8A8A8A",
)

THEMES = {"light": _LIGHT, "dark": _DARK, "paper": _PAPER}


def luminance(color: str) -> float:
    """The lightness of a colour, from 0 (black) to 1.

    >>> round(luminance("#FFFFFF"), 3), round(luminance("#000000"), 3)
    (1.0, 0.0)
    """
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG; text is easy to read from 4.5 on.

    >>> round(contrast("#FFFFFF", "#000000"))
    21
    """
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def ramp_color(ramp: tuple[str, ...], share: float) -> str:
    """The colour at a position between the ends of a ramp, 0 to 1."""
    at = min(max(share, 0.0), 1.0) * (len(ramp) - 1)
    low = min(int(at), len(ramp) - 2)
    parts = []
    for i in (1, 3, 5):
        a, b = int(ramp[low][i : i + 2], 16), int(ramp[low + 1][i : i + 2], 16)
        parts.append(round(a + (b - a) * (at - low)))
    return "#{:02X}{:02X}{:02X}".format(*parts)


def readable_ink(fill: str) -> str:
    """Black or white, whichever is easier to read on a colour."""
    return max(("#16181D", "#FFFFFF"), key=lambda ink: contrast(ink, fill))


# Styles set sizes, distances, the amount of text, and the tallest shape of a picture.


@dataclass(frozen=True, slots=True)
class Style:
    """Text sizes are in points, distances in inches."""

    theme: str
    has_head: bool  # True if the picture has a title, notes and a legend
    is_short: bool  # True if the picture has only the text that a reader of a paper needs
    name_size: float
    text_size: float
    edge_size: float
    title_size: float
    node_margin: str
    solid_margin: str  # margin of collapsed modules
    room: float  # distance between nodes side by side
    rank_room: float
    noted_rank_room: float  # distance between ranks if many arrows have notes
    box_margin: float  # margin of boxes, in points
    arrow: float
    line: float  # factor for line widths
    tallest: float  # the ratio of height to width from which a picture is drawn in columns
    tall: float  # the height, in points, from which a picture is drawn in columns
    best: float  # the ratio of height to width that columns aim at


STYLES = {
    "screen": Style(
        theme="light",
        has_head=True,
        is_short=False,
        name_size=10.5,
        text_size=9,
        edge_size=8,
        title_size=10,
        node_margin="0.11,0.055",
        solid_margin="0.16,0.09",
        room=0.28,
        rank_room=0.34,
        noted_rank_room=0.52,
        box_margin=9,
        arrow=0.6,
        line=1.0,
        tallest=4.0,
        tall=2000.0,
        best=1.3,
    ),
    "paper": Style(
        theme="paper",
        has_head=False,
        is_short=True,
        name_size=8,
        text_size=7,
        edge_size=7,
        title_size=7.5,
        node_margin="0.055,0.025",
        solid_margin="0.11,0.075",
        room=0.14,
        rank_room=0.16,
        noted_rank_room=0.3,
        box_margin=6,
        arrow=0.45,
        line=0.6,
        tallest=2.0,
        tall=300.0,
        best=1.2,
    ),
}

_POINTS = {"pt": 1.0, "px": 0.75, "mm": 72 / 25.4, "cm": 72 / 2.54, "in": 72.0}


@dataclass(frozen=True, slots=True)
class Length:
    """A length with its unit, as given by the user."""

    number: float
    unit: str

    @property
    def points(self) -> float:
        return self.number * _POINTS[self.unit]

    def times(self, factor: float) -> Length:
        return Length(self.number * factor, self.unit)

    def __str__(self) -> str:
        return f"{self.number:.6g}{self.unit}"


def read_length(length: object) -> Length:
    """Parse a length; a number is in points.

    >>> str(read_length("8.5 cm")), round(read_length("8.5cm").points, 1), read_length(240).points
    ('8.5cm', 240.9, 240.0)
    """
    found = Length(0.0, "pt")
    if isinstance(length, (int, float)) and not isinstance(length, bool):
        found = Length(float(length), "pt")
    elif isinstance(length, str) and (read := re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(pt|px|mm|cm|in)\s*", length)):
        found = Length(float(read[1]), read[2])
    if not 10 <= found.points <= 100_000:
        raise InvalidArgument(
            f"width is a length such as '8.5cm', '80mm', '3.3in' or '240pt', from 10 points; got {length!r:.60}."
        )
    return found


# The options of a picture: one frozen record, checked when it is made.

Direction = Literal["down", "up", "right", "left"]
Measure = Literal["time", "memory", "flops", "params", "grad"]
Pick = int | str | type | Callable[[ModuleBox], bool]
Value = str | float | Callable[[Any], str | float | None]
PARTS = ("graph", "node", "edge", "module")


class DrawOptions(TypedDict, total=False):
    """The options of `draw` as keyword arguments: the fields of `PictureOptions`, a whole record as `options`, and
    `vis_opt`.
    """

    options: PictureOptions | None
    vis_opt: Literal["rolled", "unrolled"]
    rolled: bool | None
    nesting_depth: int | Literal["all"] | None
    collapse: Pick | Iterable[Pick]
    direction: Direction
    merge_elementwise: bool
    fold_repeats: bool | None
    show_buffers: bool
    show_constants: bool
    plumbing: bool
    show_gradients: bool
    color_by: Measure | Callable[[Operation], float | None] | None
    label: str | Callable[[Node], str] | None
    style: Literal["screen", "paper"]
    width: str | float | None
    columns: int | None
    focus: AnyKey | None
    theme: str | None
    overrides: Mapping[str, Mapping[str, Value]]
    legend: bool | None
    time_limit: float


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """The options of a picture. By default a picture is readable, whatever the model.

    >>> PictureOptions(direction="right", nesting_depth=2).direction
    'right'

    Args:
        rolled: each layer once (`×3`) instead of once per pass. None: only if there are too many passes to read.
        nesting_depth: how many levels of modules are shown; modules at the last level are single boxes. A wrapper around
            nearly the whole model is not counted. `"all"` opens everything; None opens as much as is readable.
        collapse: modules to draw as one box: a depth, an address (`"layer*.0"`, `"cell:2"`), a class or its name, a function
            of a `ModuleBox`, or a list of these.
        direction: the direction of the model: `"down"`, `"up"`, `"right"`, `"left"`.
        merge_elementwise: draws runs of elementwise operations as one node, `add → relu → mul`.
        fold_repeats: draws consecutive equal blocks once, with their number. None: only in larger models.
        show_buffers: shows buffers as nodes.
        show_constants: shows tensors that do not depend on an input.
        plumbing: draws shape functions, casts, masks, positions and what leads only to these. By default they fold into the
            edges they stand on, or into one small node: `mask · 14 operations`.
        show_gradients: shows the gradients of followed backward passes as arrows.
        color_by: `"time"`, `"memory"`, `"params"`, `"flops"` and `"grad"` (the norm of the gradient) if known, or a function
            that returns a number.
        label: a format string of a node's fields (`"{type} {shape}"`), or a function of a `Node` that returns text.
        style: `"screen"`, or `"paper"`: small and grey, with little text, without title and legend; written as `.pdf`
            or `.svg`.
        width: the width of the picture on screen or paper: `"8.5cm"`, `"80mm"`, `"3.3in"`, or a number of points. In style
            `"paper"` modules close and repeats fold until no text is smaller than 6 points at this width, and a note says so.
        columns: the number of columns for a long model (rows, if it goes right or left). None: several if it is very tall
            and can be divided with few arrows between columns.
        focus: a key of a module or of operations: only these and their neighbours are drawn, the rest as stubs.
        theme: `"light"`, `"dark"`, or `"paper"`, which is grey. None: the theme of the style.
        overrides: Graphviz attributes by part, `{"node": {"fontsize": 9}}`; the parts are graph, node, edge and module. A
            value may be a function of the node, edge or module box.
        legend: whether the picture explains its colours and lines. None: only in style `"screen"`.
        time_limit: seconds for the layout. If it takes longer, fewer modules are open.
    """

    rolled: bool | None = None
    nesting_depth: int | Literal["all"] | None = None
    collapse: Pick | Iterable[Pick] = ()
    direction: Direction = "down"
    merge_elementwise: bool = False
    fold_repeats: bool | None = None
    show_buffers: bool = False
    show_constants: bool = True
    plumbing: bool = False
    show_gradients: bool = False
    color_by: Measure | Callable[[Any], float | None] | None = None
    label: str | Callable[[Node], str] | None = None
    style: Literal["screen", "paper"] = "screen"
    width: str | float | None = None
    columns: int | None = None
    focus: AnyKey | None = None
    theme: str | None = None
    overrides: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    legend: bool | None = None
    time_limit: float = 30.0

    def __new__(cls, *args: Any, **named: Any) -> PictureOptions:  # runs before `__init__`, which would raise a plain TypeError
        if args:
            raise InvalidArgument(f"the options of a picture are given by name; got {args[0]!r:.60}.")
        check_names(named, [f.name for f in fields(PictureOptions)], "a picture has")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("merge_elementwise", "show_buffers", "show_constants", "plumbing", "show_gradients"):
            _one_of(name, getattr(self, name), (True, False))
        for name in ("rolled", "fold_repeats", "legend"):
            _one_of(name, getattr(self, name), (True, False, None))
        _one_of("direction", self.direction, get_args(Direction))
        _one_of("style", self.style, tuple(STYLES))
        if self.theme is not None:
            _one_of("theme", self.theme, tuple(THEMES))
        if self.width is not None:
            read_length(self.width)
        if self.columns is not None and not is_whole(self.columns, 1):
            raise InvalidArgument(f"columns is a number from 1; got {self.columns!r:.60}.")
        depth = self.nesting_depth
        if depth not in (None, "all") and not is_whole(depth, 1):
            raise InvalidArgument(f"nesting_depth is a number from 1, or 'all'; got {depth!r}.")
        _refuse_class("color_by", self.color_by, "an operation")
        _refuse_class("label", self.label, "a node")
        if self.color_by is not None and not callable(self.color_by):
            _one_of("color_by", self.color_by, get_args(Measure), " or a function that gives a number")
        if self.label is not None and not isinstance(self.label, str) and not callable(self.label):
            raise InvalidArgument(f"label is a format string or a function of a node; got {self.label!r}.")
        limit = self.time_limit
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < float("inf"):
            raise InvalidArgument(f"time_limit is a number of seconds above 0; got {limit!r}.")
        for pick in self.picks:
            is_named = isinstance(pick, (str, type)) or (callable(pick) and not _is_of_torch(pick))
            if not is_whole(pick, 1) and not is_named:
                raise InvalidArgument(
                    "collapse takes a depth from 1, an address, a class or its name, a function of a module, or a list; "
                    f"got {pick!r}."
                )
        _check_overrides(self.overrides)

    @property
    def looks(self) -> Style:
        """The `Style` that the option `style` names."""
        return STYLES[self.style]

    @property
    def has_legend(self) -> bool:
        return self.looks.has_head if self.legend is None else self.legend

    @property
    def length(self) -> Length | None:
        """The requested width of the picture; None if it was not given."""
        return None if self.width is None else read_length(self.width)

    @property
    def picks(self) -> list[Pick]:
        """The option `collapse` as a list."""
        named = self.collapse
        return [named] if isinstance(named, (int, str, type)) or not isinstance(named, Iterable) else list(named)


def _refuse_class(name: str, value: Any, of: str) -> None:
    if isinstance(value, type) or (callable(value) and _is_of_torch(value)):
        raise InvalidArgument(f"{name} is a name or a function of {of}; got {type(value).__name__}: {value!r:.60}.")


def _is_of_torch(value: Any) -> bool:
    return isinstance(value, torch.nn.Module) or is_torch_function(value)


def picture_options(options: Mapping[str, Any]) -> PictureOptions:
    """The options given as keywords; `vis_opt="rolled"` is another spelling of `rolled=True`."""
    named = dict(options)
    base = named.pop("options", None)
    if base is not None and not isinstance(base, PictureOptions):
        raise InvalidArgument(f"options is a PictureOptions; got {base!r:.80}.")
    if "vis_opt" in named:
        mode = named.pop("vis_opt")
        _one_of("vis_opt", mode, ("unrolled", "rolled"))
        named.setdefault("rolled", mode == "rolled")
    return replace(base, **named) if base is not None else PictureOptions(**named)


def _one_of(name: str, value: object, allowed: tuple[object, ...], more: str = "") -> None:
    if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
        raise InvalidArgument(f"{name} is one of {', '.join(map(repr, allowed))}{more}; got {value!r}.")


def _check_overrides(overrides: Mapping[str, Mapping[str, Value]]) -> None:
    if not isinstance(overrides, Mapping):
        raise InvalidArgument(f"overrides is a dictionary such as {{'node': {{'fontsize': 9}}}}; got {overrides!r:.80}.")
    for part, attributes in overrides.items():
        _one_of("a part in overrides", part, PARTS)
        if not isinstance(attributes, Mapping):
            raise InvalidArgument(f"overrides[{part!r}] is a dictionary of Graphviz attributes; got {attributes!r:.80}.")
        for name, value in attributes.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise InvalidArgument(f"{name!r} in overrides[{part!r}] is not the name of a Graphviz attribute.")
            if not isinstance(value, (str, int, float)) and not callable(value):
                raise InvalidArgument(f"overrides[{part!r}][{name!r}] is text, a number or a function; got {value!r:.80}.")
