"""Colours. Colour-blind readers can tell them apart; in grey print their lightness does, and shapes and words do besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..web.colors import COST_RAMPS

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
]


@dataclass(frozen=True, slots=True)
class Look:
    """The colours of a kind of node."""

    fill: str
    border: str
    width: float = 1.0
    line: str = "solid"
    text: str = ""  # the theme's ink unless given


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a picture."""

    page: str
    ink: str
    faint: str
    edge: str
    box_border: str
    box_fills: tuple[str, ...]  # by depth, in turn
    looks: dict[LookName, Look]
    ramp: tuple[str, ...]  # from little to much
    unknown: str  # where nothing is known to colour by
    gradient: str  # arrows of gradients


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
    },
    ramp=("#FFFFFF", "#E6E6E6", "#CCCCCC", "#ABABAB", "#858585", "#5C5C5C", "#333333"),
    unknown="#FFFFFF",
    gradient="#8A8A8A",
)

THEMES = {"light": _LIGHT, "dark": _DARK, "paper": _PAPER}


def luminance(color: str) -> float:
    """How light a colour is, from 0 (black) to 1.

    >>> round(luminance("#FFFFFF"), 3), round(luminance("#000000"), 3)
    (1.0, 0.0)
    """
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG counts it; text is easy to read from 4.5.

    >>> round(contrast("#FFFFFF", "#000000"))
    21
    """
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def ramp_color(ramp: tuple[str, ...], share: float) -> str:
    """The colour at a place between the ends of a ramp, 0 to 1."""
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
