"""`Layer`: one step of the computation, with one `Operation` (pass) for each time it ran; and what all passes agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._text import Fold, few
from ..analysis.attention import Heads
from ..analysis.influence import Influence
from ..errors import SeveralPasses
from ..log.keys import Lookup
from ..log.operation import OperationFacts, facts_of
from ..log.param import Param
from ..log.run import Index, LayerEntry
from .attributes import Helpful
from .operation import Operation
from .printing import describe_layer
from .read_as_tensor import ReadAsTensor

if TYPE_CHECKING:
    from .call import Call
    from .module import Module


class Layer(OperationFacts, ReadAsTensor, Helpful):
    """One step of the computation, run once or several times: a layer has one or more passes, each an `Operation`.

    A layer has every attribute on which its passes agree; for other attributes, the error names the labels to use.

    >>> import torch, torcheer
    >>> layer = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))["linear_1"]
    >>> layer.shape, layer.flops, [parent.name for parent in layer.parents]
    ((1, 3), 12, ['input_1_0'])
    """

    __slots__ = ("_entry",)

    # Attributes of the passes that lead to other objects. Attributes of `OperationFacts` are added below the class.
    heads: Heads | None
    receptive_field: Influence
    projective_field: Influence
    module: Module | None
    module_call: Call | None

    def __init__(self, index: Index, entry: LayerEntry) -> None:
        super().__init__(index, -1)  # no operation has the number -1, so a layer equals no operation
        self._entry = entry

    def _common(self, name: str) -> Any:
        passes = self.passes
        values = [getattr(one, name) for one in passes]
        if len(values) == 1:
            return values[0]
        hint = ", or go over history.operations, which has every pass"
        return agreed(name, values, f"passes of {self.label}", [one.label for one in passes], hint)

    @property
    def passes(self) -> list[Operation]:
        """The operations of this layer, in order."""
        return [Operation(self._index, number) for number in self._entry.passes]

    @property
    def num_passes(self) -> int:
        """How many times the layer ran."""
        return len(self._entry.passes)

    @property
    def label(self) -> str:
        """The layer's label: `conv2d_3_7`."""
        return self._index.table.label(self._entry)

    name = label

    @property
    def layer(self) -> Layer:
        """This layer itself."""
        return self

    @property
    def lookup_keys(self) -> list[int | str]:
        """Every key that finds this layer."""
        return Lookup(self._index).keys_of_layer(self._entry)

    @property
    def parents(self) -> list[Layer]:
        """The layers whose tensors any pass used."""
        return self._layers([number for one in self._entry.passes for number in self._index.parents(one)])

    @property
    def children(self) -> list[Layer]:
        """The layers that used the tensor of any pass."""
        return self._layers([number for one in self._entry.passes for number in self._index.children.get(one, ())])

    def _layers(self, numbers: list[int]) -> list[Layer]:
        return [Layer(self._index, entry) for entry in self._index.table.by_layer(numbers)]

    @property
    def params(self) -> list[Param]:
        """The parameters that any pass used, each once."""
        return list(dict.fromkeys(param for one in self.passes for param in one.params))

    @property
    def flops(self) -> int | None:
        """The floating-point operations of all passes together; None if no formula is known."""
        found = [one.flops for one in self.passes]
        known = [flops for flops in found if flops is not None]
        return sum(known) if len(known) == len(found) else None

    def __getitem__(self, number: int) -> Operation:
        """Pass `number`, from 1 as in labels."""
        if not 1 <= number <= self.num_passes:
            raise IndexError(f"{self.label} has passes 1 to {self.num_passes}; there is no pass {number}.")
        return Operation(self._index, self._entry.passes[number - 1])

    @property
    def _key(self) -> str:
        return self.label

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layer) and other._index.log is self._index.log and other._entry.passes == self._entry.passes

    def __hash__(self) -> int:
        return hash((id(self._index.log), self._entry.passes[0]))

    def __str__(self) -> str:
        return describe_layer(self)

    def _folds(self) -> list[Fold]:
        return self.passes[0]._folds() if self.num_passes == 1 else []

    def __repr__(self) -> str:
        return f"<Layer {self.label}: {self.num_passes} pass{'es' if self.num_passes > 1 else ''}>"


def add_common(cls: type, part: type, names: Iterable[str]) -> None:
    """Give a layer the attributes of its passes, or a module those of its calls. Reading one returns the common value."""
    for name in names:
        setattr(cls, name, property(_reader(name), doc=getattr(part, name).__doc__))


def _reader(name: str) -> Callable[[Any], Any]:
    return lambda holder: holder._common(name)


def agreed(name: str, values: Sequence[Any], owner: str, labels: Sequence[str], hint: str = "") -> Any:
    """The value on which all passes (or calls) agree. Raises `SeveralPasses` if they differ."""
    if all(_same(value, values[0]) for value in values[1:]):
        return values[0]
    raise SeveralPasses(f"{name} differs between the {len(values)} {owner}: ask one of them ({few(labels, 4)}){hint}.")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    try:
        return bool(one == other)
    except Exception as error:  # a user-defined __eq__ may raise anything
        pass_interrupts_on(error)
        return False


add_common(Layer, OperationFacts, [fact.name for fact in facts_of(OperationFacts) if fact.name not in vars(Layer)])
add_common(Layer, Operation, Layer.__annotations__)
