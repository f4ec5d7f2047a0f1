"""Colours shared by figures and browser pages. Colour-blind readers can tell them apart, and grey prints by lightness.

`make web-types` writes them into web/shared/generated/; a test fails when that is stale.
"""

from __future__ import annotations

from typing import Literal

ThemeName = Literal["light", "dark"]

# Colour scales for values: one for both signs, one for values that are never negative. Their lightness changes evenly.
BOTH_SIGNS = ("#083572", "#075DA0", "#3D8EC5", "#8EBFDF", "#E4E6E7", "#E4A988", "#CD6439", "#9F361B", "#6A211B")
NEVER_NEGATIVE = ("#190D32", "#2C215D", "#30427D", "#266791", "#2A8C9B", "#3EB094", "#7BCE80", "#BDE566", "#FAF65E")
NONFINITE = "#D400FF"  # for NaN and infinity: in neither scale, and colour-blind readers can tell it from both scales

# Colours from little to much, for each theme: costs of operations, and fractions from 0 to 1.
COST_RAMPS: dict[ThemeName, tuple[str, ...]] = {
    "light": ("#FFFDE7", "#FDE7A5", "#F9C46B", "#EF9A4D", "#D96B3F", "#B23A3A", "#7A1F3D"),
    "dark": ("#2B2E34", "#3F3A4F", "#653F63", "#95456A", "#C55A5C", "#EB8B54", "#FAD06A"),
}
SHARE_RAMPS: dict[ThemeName, tuple[str, ...]] = {
    "light": ("#F2F3F1", "#B9D4E8", "#5F9FCB", "#1F62A3", "#0A2A55"),
    "dark": ("#20252C", "#1F4A7D", "#3F8FC9", "#9BD0F5", "#F4FAFF"),
}

# Colours of the pages, used on canvases and as CSS variables: (light, dark).
THEME: dict[str, tuple[str, str]] = {
    "page": ("#F7F8FA", "#15171B"),
    "surface": ("#FFFFFF", "#1D2025"),
    "raised": ("#FFFFFF", "#262A31"),
    "sunken": ("#F0F2F5", "#16181C"),
    "ink": ("#16181D", "#F0F1F3"),
    "faint": ("#59616C", "#AEB5BF"),
    "border": ("#D5DAE1", "#3A4049"),
    "accent": ("#0B57D0", "#7CB4FF"),  # selected items
    "accent_ink": ("#FFFFFF", "#10141B"),
    "tint": ("#E3EDFC", "#253650"),
    "found": ("#8A6508", "#FFD54A"),  # text of search results
    "alarm": ("#B3261E", "#FF8A82"),
    "alarm_tint": ("#FDECEA", "#40201F"),
    "nonfinite": (NONFINITE, NONFINITE),
    "nonfinite_ink": ("#C000E8", "#EA7DFF"),
    "grid": ("#E8E8E4", "#2A2F37"),
    "hatch": ("#CFCFC9", "#434A55"),
    "dots": ("#E3E6EB", "#24272D"),
    "edge": ("#7A828E", "#8D95A1"),
    "edge_faint": ("#C9CED6", "#414750"),
    "box": ("#FFFFFF", "#282C33"),  # closed modules
    "box_border": ("#8A929E", "#89919D"),
    "inside": ("#FFFFFF", "#1B1E23"),  # open modules, of even and of odd depth
    "inside_odd": ("#F4F6F9", "#20242A"),
    "inside_border": ("#C3C9D3", "#434A54"),
    "header": ("#EDF0F4", "#262A31"),
    "header_odd": ("#E5E9EF", "#2C3138"),
    "into": ("#0B7285", "#4FD1E0"),  # edges into the selection
    "out_of": ("#B54708", "#FFAA66"),  # edges out of the selection
    "match": ("#B8860B", "#FFD54A"),  # search results
    "chip": ("#E9ECF1", "#343A43"),
    "missing": ("#FFFFFF", "#22252B"),  # no value to colour by
    "only_left": ("#B54708", "#FFAA66"),
    "only_right": ("#0B57D0", "#7CB4FF"),
    "changed": ("#8A2BA8", "#DE9BF5"),
}

# Categories of operations: name in the legend; fill and accent (light), fill and accent (dark).
CATEGORIES: dict[str, tuple[str, str, str, str, str]] = {
    "input": ("input", "#D6F1E5", "#00724F", "#12493A", "#5FDDB4"),
    "output": ("output", "#FFE1C7", "#A84300", "#5E3214", "#FFB077"),
    "layer": ("layer with weights", "#DCEAFB", "#1565B8", "#1B3F66", "#7CC0FA"),
    "attention": ("attention", "#F9DDEC", "#AD2470", "#562543", "#F58ACB"),
    "normalisation": ("normalisation", "#E8E2F7", "#6A4FB0", "#3B3160", "#B9A3F2"),
    "activation": ("activation", "#FDF0C4", "#94690A", "#50420F", "#F3D05A"),
    "pooling": ("pooling", "#D4F0F3", "#0B7285", "#124650", "#5FD3E3"),
    "arithmetic": ("arithmetic", "#E9ECF0", "#4B5563", "#363C45", "#A9B2BE"),
    "reduction": ("reduction", "#E2F0D5", "#4A7A10", "#32481A", "#A9D86E"),
    "shape": ("shape and indexing", "#F7F6F2", "#97958A", "#2B2C2E", "#8E8D86"),
    "random": ("dropout and random", "#F4E7DE", "#8D5B3E", "#4A3628", "#DBA98A"),
    "constant": ("constant or buffer", "#EFEFEF", "#7D7D7D", "#353537", "#A0A0A3"),
    "opaque": ("opaque", "#DEE1E7", "#16181D", "#40444D", "#FFFFFF"),
    "failed": ("failed", "#FFD9D5", "#C00000", "#651818", "#FF8A82"),
}
