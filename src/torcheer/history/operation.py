"""`Operation`: one tensor of a run and the call that made it, with its layer, its modules and neighbouring operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._text import Fold, preformatted
from ..analysis import flops_of
from ..analysis.attention import Heads, heads_of
from ..analysis.influence import Influence
from ..log.operation import OperationFacts
from .attributes import Helpful
from .printing import describe_operation, describe_values
from .read_as_tensor import ReadAsTensor

if TYPE_CHECKING:
    from .call import Call
    from .layer import Layer
    from .module import Module


class Operation(OperationFacts, ReadAsTensor, Helpful):
    """One execution of a function that yielded a tensor.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.ReLU(), torch.zeros(2))
    >>> history["relu_1_1:1"].tensor_shape
    (2,)
    """

    __slots__ = ()

    @property
    def _key(self) -> str:
        return self.layer_label_w_pass

    @property
    def layer(self) -> Layer:
        """The layer of which this operation is a pass."""
        from .layer import Layer

        return Layer(self._index, self._index.layer(self._number))

    @property
    def module(self) -> Module | None:
        """The innermost module that the operation ran in (the model, in its own forward); None outside all modules."""
        from .module import Module

        call = self._record.module
        return Module(self._index, self._index.log.registered[call.address]) if call is not None else None

    @property
    def module_call(self) -> Call | None:
        """The innermost module call that the operation ran in (in the model's own forward, the model's); None outside all."""
        call, module = self._record.module, self.module
        return module[call.call] if call is not None and module is not None else None

    @property
    def parents(self) -> list[Operation]:
        """The operations whose tensors this operation used."""
        return [Operation(self._index, number) for number in self._index.parents(self._number)]

    @property
    def children(self) -> list[Operation]:
        """The operations that used this operation's tensor."""
        return [Operation(self._index, number) for number in self._index.children.get(self._number, ())]

    @property
    def flops(self) -> int | None:
        """The floating-point operations of the call, counted as docs/cost.md says; None if no formula is known."""
        return flops_of(self._index).get(self._number, 0)

    @property
    def heads(self) -> Heads | None:
        """Queries, keys, values, outputs and the pattern of each head, if the operation is attention; else None."""
        return heads_of(self)

    @property
    def receptive_field(self) -> Influence:
        """Which elements of the inputs reach an element: `receptive_field[0, :, 3, 3]` is a `Field` with a mask and a box."""
        return Influence(self._index, self._number, "receptive")

    @property
    def projective_field(self) -> Influence:
        """Which elements of the outputs an element reaches: `projective_field[0, :, 3, 3]` is a `Field`."""
        return Influence(self._index, self._number, "projective")

    def __str__(self) -> str:
        return describe_operation(self)

    def _folds(self) -> list[Fold]:
        values = describe_values(self)
        stack = "\n".join(map(str, self.stack))
        return [Fold(title, preformatted(text)) for title, text in (("Values", values), ("Call stack", stack)) if text]

    def __repr__(self) -> str:
        dtype = str(self.tensor_dtype).removeprefix("torch.")
        return f"<Operation {self.label}: {dtype} {self.tensor_shape}>"
