"""What a picture can be told: one frozen record, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, get_args

import torch

from ..errors import InvalidArgument
from ..graph import ModuleBox, Node
from ..history import Operation
from ..inputs import check_names, is_whole
from ..keys import AnyKey, is_torch_function
from .styles import STYLES, Length, Style, read_length
from .themes import THEMES

Direction = Literal["down", "up", "right", "left"]
Measure = Literal["time", "memory", "flops", "params", "grad"]
Pick = int | str | type | Callable[[ModuleBox], bool]
Value = str | float | Callable[[Any], str | float | None]
PARTS = ("graph", "node", "edge", "module")


class DrawOptions(TypedDict, total=False):
    """The options of `draw` as named arguments: the fields of `PictureOptions`, one as `options`, and `vis_opt`."""

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
    """How a picture looks. The default is a picture that can be read, whatever the model.

    >>> PictureOptions(direction="right", nesting_depth=2).direction
    'right'

    Args:
        rolled: each layer once (`×3`) instead of once per pass. None: only when there are too many passes to read.
        nesting_depth: how many levels of modules are seen; those at the last one are single boxes. A wrapper, which is nearly
            the whole model, is not counted. `"all"` opens everything; None opens as much as can be read.
        collapse: modules to draw as one box: a depth, an address (`"layer*.0"`, `"cell:2"`), a class or its name, a function
            of a `ModuleBox`, or a list of these.
        direction: where the model goes: `"down"`, `"up"`, `"right"`, `"left"`.
        merge_elementwise: runs of elementwise operations as one node, `add → relu → mul`.
        fold_repeats: equal blocks in a row once, with their number. None: only in larger models.
        show_buffers: buffers as nodes.
        show_constants: tensors that do not depend on an input.
        show_gradients: arrows for the gradients of backward passes that were followed.
        color_by: `"time"`, `"memory"`, `"params"`, `"flops"` and `"grad"` (the norm of the gradient) where they are known, or a
            function that gives a number.
        label: a format string of a node's fields (`"{type} {shape}"`), or a function of a `Node` that gives text.
        style: `"screen"`, or `"paper"`: small and grey, with few words, without title and legend; written as `.pdf`, `.svg` or
            `.tex`.
        width: how wide the picture is where it is shown or printed: `"8.5cm"`, `"80mm"`, `"3.3in"`, or a number of points.
        columns: in how many columns a long model is drawn (in rows, where it goes to the right or left). None: in several when
            it is very tall, and can be divided without many arrows from one column to the next.
        focus: a key of a module or of operations: only these and what is next to them are drawn, the rest as stubs.
        theme: `"light"`, `"dark"`, or `"paper"`, which is grey. None: that of the style.
        overrides: Graphviz attributes by part, `{"node": {"fontsize": 9}}`; the parts are graph, node, edge and module. A value
            may be a function of the node, edge or module box.
        legend: whether the picture explains its colours and lines. None: on the screen.
        time_limit: seconds for the layout. What takes longer is drawn with fewer modules open.
    """

    rolled: bool | None = None
    nesting_depth: int | Literal["all"] | None = None
    collapse: Pick | Iterable[Pick] = ()
    direction: Direction = "down"
    merge_elementwise: bool = False
    fold_repeats: bool | None = None
    show_buffers: bool = False
    show_constants: bool = True
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

    def __new__(cls, *args: Any, **named: Any) -> PictureOptions:  # before `__init__` would raise a plain TypeError
        if args:
            raise InvalidArgument(f"the options of a picture are given by name; got {args[0]!r:.60}.")
        check_names(named, [f.name for f in fields(PictureOptions)], "a picture has")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("merge_elementwise", "show_buffers", "show_constants", "show_gradients"):
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
        """What its style sets."""
        return STYLES[self.style]

    @property
    def has_legend(self) -> bool:
        return self.looks.has_head if self.legend is None else self.legend

    @property
    def length(self) -> Length | None:
        """The width that was asked for."""
        return None if self.width is None else read_length(self.width)

    @property
    def picks(self) -> list[Pick]:
        """What `collapse` names, as a list."""
        named = self.collapse
        return [named] if isinstance(named, (int, str, type)) or not isinstance(named, Iterable) else list(named)


def _refuse_class(name: str, value: Any, of: str) -> None:
    if isinstance(value, type) or (callable(value) and _is_of_torch(value)):
        raise InvalidArgument(f"{name} is a name or a function of {of}; got {type(value).__name__}: {value!r:.60}.")


def _is_of_torch(value: Any) -> bool:
    return isinstance(value, torch.nn.Module) or is_torch_function(value)


def picture_options(options: Mapping[str, Any]) -> PictureOptions:
    """The options that keywords mean; `vis_opt="rolled"` is another spelling of `rolled=True`."""
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
