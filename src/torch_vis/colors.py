"""The colours of the types of operation, told apart by colour-blind readers and in grey print."""

from __future__ import annotations

from .structures import GRADIENT_FLOW, OperationType

# name, fill, border
LOOKS = {
    OperationType.FORWARD: ("FORWARD (module)", "#DCE9F7", "#00538A"),
    OperationType.LAYER_OP: ("LAYER_OP (layer)", "#A9CFF2", "#00538A"),
    OperationType.TENSOR_OP: ("TENSOR_OP (torch function)", "#FFFFFF", "#5E636C"),
    OperationType.MEMORY_OP: ("MEMORY_OP (input, allocation)", "#BFE6D6", "#00684F"),
    OperationType.BACKWARD: ("BACKWARD (module)", "#FCE3D2", "#A84300"),
    OperationType.GRADIENT_OP: ("GRADIENT_OP (autograd)", "#FFC9A0", "#A84300"),
    OperationType.CUSTOM: ("CUSTOM", "#E3D3EE", "#6C3F8A"),
    None: ("output, reference", "#F4F4F4", "#5E636C"),
}
INK = "#16181D"
FAINT = "#51565F"
BOX_FILLS = ("#F6F7F9", "#FFFFFF")
BOX_BORDER = "#9298A2"


def edge_color(kind: str) -> str:
    return "#B4480A" if kind == GRADIENT_FLOW else "#4D525B"
