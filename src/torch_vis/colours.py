"""The colours of the types of operation, told apart by colour-blind readers and in grey print."""

from __future__ import annotations

from .structures import GRADIENT_FLOW, OperationType

# fill, border
COLOURS = {
    OperationType.FORWARD: ("#DCE9F7", "#00538A"),
    OperationType.LAYER_OP: ("#A9CFF2", "#00538A"),
    OperationType.TENSOR_OP: ("#FFFFFF", "#5E636C"),
    OperationType.MEMORY_OP: ("#BFE6D6", "#00684F"),
    OperationType.BACKWARD: ("#FCE3D2", "#A84300"),
    OperationType.GRADIENT_OP: ("#FFC9A0", "#A84300"),
    OperationType.CUSTOM: ("#E3D3EE", "#6C3F8A"),
    None: ("#F4F4F4", "#5E636C"),
}
NAMES = {
    OperationType.FORWARD: "FORWARD (module)",
    OperationType.LAYER_OP: "LAYER_OP (layer)",
    OperationType.TENSOR_OP: "TENSOR_OP (torch function)",
    OperationType.MEMORY_OP: "MEMORY_OP (input, allocation)",
    OperationType.BACKWARD: "BACKWARD (module)",
    OperationType.GRADIENT_OP: "GRADIENT_OP (autograd)",
    OperationType.CUSTOM: "CUSTOM",
}
INK = "#16181D"
FAINT = "#51565F"
BOX_FILLS = ("#F6F7F9", "#FFFFFF")
BOX_BORDER = "#9298A2"


def edge_colour(kind: str) -> str:
    """The colour of an arrow."""
    return "#B4480A" if kind == GRADIENT_FLOW else "#4D525B"
