"""The totals of a history: how many, how large, and whether anything in it repeats, branches or depends on data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import IO, TYPE_CHECKING, Any, Literal, SupportsIndex, overload

from torch import Tensor

from .._text import Fold, data_frame
from .._torch.functions.facts import Origin
from .._torch.inputs import LEFT_OUT, as_arguments
from .._torch.internals import DisableTorchFunction
from .._torch.randomness import RandomState
from ..errors import GraphChanged
from ..log.keys import AnyKey, Keyed, OneKey
from ..log.labels import LayerTable
from ..log.records import PARENTS, UNSAVED, BackwardLog, Failure, Log, OperationRecord
from .attributes import Helpful
from .backward import BackwardPass, run_backward
from .copying import copy_of_log, refuse_pickling, twin_of_log
from .fingerprint import fingerprint_of
from .index import Index, Makers
from .keeping import LayersToSave, Options, run
from .layer import Layer
from .lookup import Found, LayerTypes, Lookup, check_where, numbers_that_fit
from .module import Module, Modules
from .operation import Operation
from .param import Param, describe_param
from .printing import describe_history, layers_table, plural
from .python_reads import PythonRead
from .table import row_of, write_csv

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Self


class Totals:
    """The totals of a history. `History` is built on it."""

    _log: Log

    if TYPE_CHECKING:

        @property
        def _index(self) -> Index: ...

        @property
        def params(self) -> dict[str, Param]: ...

    @property
    def num_modules(self) -> int:
        """How many modules the model has below its root."""
        return sum(1 for module in self._log.registered.values() if module.address)

    @property
    def num_operations(self) -> int:
        """How many operations ran, inputs and outputs included."""
        return len(self._index.operations)

    num_tensors_total = num_operations

    @property
    def num_tensors_saved(self) -> int:
        values = self._log.values
        return sum(1 for number in self._index.operations if values[number] is not UNSAVED)

    @property
    def tensor_fsize_total(self) -> int:
        """Bytes of all tensors. An output is the tensor some operation made, so it adds nothing."""
        index = self._index
        return sum(index.tensor_bytes(number) for number in index.operations if number not in index.outputs)

    @property
    def tensor_fsize_saved(self) -> int:
        """Bytes of the tensors that are saved. An output adds nothing where the operation that made it is saved, too."""
        index, rows = self._index, self._log.rows
        saved = {number for number in index.operations if self._log.values[number] is not UNSAVED}
        again = {number for number in saved & index.outputs if rows[number][PARENTS] < 0 or rows[number][PARENTS] in saved}
        return sum(map(index.tensor_bytes, saved - again))

    @property
    def num_param_operations(self) -> int:
        """How many operations used parameters."""
        index = self._index
        parameters = {state.number for state in self._log.states if state.is_parameter}
        return sum(1 for number in index.operations if not parameters.isdisjoint(self._log.rows[number][PARENTS:]))

    @property
    def num_params_total(self) -> int:
        """How many values the parameters have, each parameter counted once."""
        return sum(param.numel for param in self.params.values())

    @property
    def params_fsize_total(self) -> int:
        return sum(param.fsize for param in self.params.values())

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer ran more than once."""
        return self.max_passes > 1

    @property
    def max_passes(self) -> int:
        """The largest number of passes that a layer has."""
        return self._index.table.most_passes

    @property
    def is_branching(self) -> bool:
        """Whether any tensor was used by more than one operation."""
        return any(len(children) > 1 for children in self._index.children.values())

    @property
    def has_data_dependent_branching(self) -> bool:
        """Whether a truth value computed from a tensor left for Python, where it can decide what runs next."""
        return any(isinstance(read.value, bool) for read in self._log.python_reads)


# The first operation in which two passes of a model differ.


def first_difference(old: History, new: History) -> str | None:
    """The first operation in which two passes differ, in words; None when they ran the same graph."""
    before, after = old._index, new._index
    for position, (a, b) in enumerate(zip(before.operations, after.operations, strict=False)):
        one, two = before.record(a), after.record(b)
        label = before.label(a)
        where = Operation(after, b).source
        at = f" ({where})" if where is not None else ""
        if one.function.type != two.function.type:
            return f"operation {position + 1} was {label}, now {two.function.name!r} ran{at}"
        ours = [before.positions[p] for p in before.parents(a)]
        theirs = [after.positions[p] for p in after.parents(b)]
        if ours != theirs:
            return f"{label} has other parents than before{at}"
        if _address(one) != _address(two):
            return f"{label} ran in module {_address(two)!r}, before it was {_address(one)!r}{at}"
    count, now = len(before.operations), len(after.operations)
    if count != now:
        longer, numbers = (before, before.operations) if count > now else (after, after.operations)
        first = longer.label(numbers[min(count, now)])
        return f"it has {now} operations instead of {count}; {first} is the first that only one of them has"
    return None


def _address(record: OperationRecord) -> str | None:
    return record.module.address if record.module is not None else None


# History: what one recording knows, and every way to look it up.


class History(Totals, Helpful):
    """What one recording knows: layers, operations, parameters, and the lookup of each."""

    _makers = Makers(Layer, Module, lambda index: {})

    def __init__(self, title: str, options: Options) -> None:
        self._options = options
        self._begin(title)

    def _begin(self, title: str) -> None:
        """Make an empty log, for the pass that is about to be recorded."""
        options = self._options
        backward = None if options.save_gradients == "none" else BackwardLog()
        self._log = Log(title, holds_tensors=options.activation_postfunc is None, backward=backward)
        self._growing = LayerTable(self._log, options.layer_label_format)
        self._made_index: Index | None = None
        self._made_lookup: Lookup | None = None

    @classmethod
    def _of_log(cls, log: Log, options: Options) -> Self:
        """The history of an existing log: of a copy, a replay or a file."""
        new = cls(log.title, options)
        new._log, new._growing = log, LayerTable(log, options.layer_label_format)
        return new

    @property
    def _index(self) -> Index:
        index = self._made_index
        if index is None or not index.is_current:
            if self._log.is_complete:
                table = LayerTable(self._log, self._options.layer_label_format)
                table.complete(self._options.keep_orphans)
            else:
                table = self._growing
                table.catch_up()
            index = self._made_index = Index(self._log, table, self._makers)
            self._made_lookup = None
        return index

    @property
    def _lookup(self) -> Lookup:
        index = self._index
        if self._made_lookup is None:
            self._made_lookup = Lookup(index, Operation)
        return self._made_lookup

    # Looking up -------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: str | SupportsIndex | Keyed) -> Layer | Operation: ...  # type: ignore[overload-overlap]  # text is iterable
    @overload
    def __getitem__(
        self, key: slice | type | UnionType | Callable[..., object] | Iterable[OneKey]
    ) -> list[Layer | Operation]: ...
    def __getitem__(self, key: AnyKey) -> Layer | Operation | list[Layer | Operation]:
        """The layer a key means: a label, a label with its pass, a module address, a position; docs/keys.md has them all.

        A slice, a list, a class, a torch function, a function of an operation and an address with `*` mean a list of layers.
        """
        found = self._lookup.find_any(key)
        return [self._made(one) for one in found] if isinstance(found, list) else self._made(found)

    def _made(self, found: Found) -> Layer | Operation:
        if found.number is not None and len(found.layer.passes) > 1:
            return Operation(self._index, found.number)
        return Layer(self._index, found.layer)

    def filter(
        self,
        key: AnyKey | None = None,
        *,
        type: LayerTypes | None = None,
        module: AnyKey | None = None,
        where: Callable[[Operation], object] | None = None,
    ) -> list[Operation]:
        """The operations that fit everything that is given, in execution order.

        Args:
            key: any key (docs/keys.md); a text means the operations that `layers_to_save` would keep for it.
            type: layer types (`"relu"`, `"maxpool2d"`), torch functions, classes (what their modules returned), or a list.
            module: those that ran inside these modules: an address, also with `*`, a class, or a list.
            where: a function of an `Operation`.
        """
        check_where(where)
        numbers = numbers_that_fit(self._lookup, key, type, module)
        found = [Operation(self._index, number) for number in numbers]
        return [one for one in found if where(one)] if where is not None else found

    def __contains__(self, key: object) -> bool:
        if isinstance(key, (Layer, Operation)):
            return key._index.log is self._log
        try:
            found = self._lookup.find_any(key)
        except KeyError:
            return False
        return found != []

    def __len__(self) -> int:
        """The number of layers."""
        return len(self._index.table)

    def __iter__(self) -> Iterator[Layer]:
        """The layers, in execution order."""
        return iter(self.layers)

    def keys(self) -> list[str]:
        """The labels of all layers and the addresses of all modules that were called."""
        return self._lookup.names.known()

    _ipython_key_completions_ = keys

    @property
    def layers(self) -> list[Layer]:
        """Every layer, in execution order, inputs and outputs included."""
        index = self._index
        return [Layer(index, entry) for entry in index.table.layers]

    @property
    def operations(self) -> list[Operation]:
        """Every operation, in execution order, inputs and outputs included."""
        index = self._index
        return [Operation(index, number) for number in index.operations]

    @property
    def saved(self) -> list[Operation]:
        """The operations whose activations were kept."""
        return [one for one in self.operations if one.has_saved_activations]

    @property
    def layer_labels(self) -> list[str]:
        index = self._index
        return [index.table.label(entry) for entry in index.table.layers]

    def _of_origin(self, origin: Origin) -> list[Operation]:
        index = self._index
        return [Operation(index, n) for n in index.operations if index.record(n).origin is origin]

    @property
    def inputs(self) -> list[Operation]:
        """The tensors given to the model."""
        return self._of_origin(Origin.INPUT)

    @property
    def outputs(self) -> list[Operation]:
        """The tensors the model returned."""
        return self._of_origin(Origin.OUTPUT)

    @property
    def sources(self) -> list[Operation]:
        """Tensors that turned up unexplained: closed over, made by NumPy, or computed in code torcheer cannot trace."""
        return self._of_origin(Origin.SOURCE)

    # Parameters, buffers, modules --------------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Param]:
        """Every parameter, by name."""
        index = self._index
        return {name: describe_param(index, name, tensor) for name, tensor in index.all_parameters().items()}

    @property
    def buffers(self) -> dict[str, Param]:
        """Every buffer, by name."""
        index = self._index
        return {name: describe_param(index, name, tensor) for name, tensor in index.all_buffers().items()}

    @property
    def modules(self) -> Modules:
        """The modules, by address: `history.modules['features']`, or one call of it: `history.modules['features:1']`."""
        return Modules(self._index)

    @property
    def model_name(self) -> str:
        return self._log.title

    @property
    def python_reads(self) -> list[PythonRead]:
        """Where tensor data left for Python (`bool(t)`, `.item()`, `.numpy()`)."""
        index = self._index
        return [PythonRead(index, record) for record in self._log.python_reads]

    # Backward -----------------------------------------------------------------------------------------------------

    @property
    def backward_passes(self) -> list[BackwardPass]:
        """The backward passes that were followed, in order. Needs `save_gradients`."""
        passes = self._log.backward.passes if self._log.backward is not None else []
        return [BackwardPass(self._index, record, number) for number, record in enumerate(passes, 1)]

    @property
    def param_grads(self) -> dict[str, Tensor]:
        """The gradient of every parameter in the last backward pass, by name."""
        passes = self.backward_passes
        return passes[-1].param_grads if passes else {}

    def log_backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        *,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Tensor | Sequence[Tensor] | None = None,
    ) -> BackwardPass:
        """Run `loss.backward(…)` with these arguments and return what happened.

        The loss is computed from this history's outputs, which carry their autograd graph when gradients are asked for. While
        backward runs, the state that the logged pass changed is as the pass left it, for what reads it (checkpointed blocks,
        functions and hooks of yours); afterwards it is what it was before. Gradients stay in `.grad`.
        """
        run_backward(self._log.backward, loss, gradient, retain_graph, create_graph, inputs)
        return self.backward_passes[-1]

    def fingerprint(self) -> str:
        """A hash of the structure: functions, shapes and what each was computed from; not names, weights or values.

        >>> import torch, torcheer
        >>> torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)).fingerprint()[:2]
        '3-'
        """
        return fingerprint_of(self)

    @property
    def notes(self) -> list[str]:
        """Remarks on this history, such as work that could not be watched."""
        return list(self._log.notes)

    @property
    def is_complete(self) -> bool:
        """Whether the pass ran to its end."""
        return self._log.is_complete

    @property
    def failure(self) -> Failure | None:
        """The operation that raised, if the pass failed in one."""
        return self._log.failure

    @property
    def random_seed(self) -> int | None:
        return self._log.random_seed

    @property
    def random_state(self) -> RandomState:
        """The random state the pass started from: `log_forward_pass(…, random_state=history.random_state)` repeats it.

        `random_state.restore()` puts every generator back to it.
        """
        state: RandomState = self._log.random_state
        return state

    @property
    def time_elapsed(self) -> float | None:
        """Seconds for everything: setup, forward pass, cleanup. None while a recording has not ended."""
        return sum(self._log.seconds.values()) if self._log.seconds else None

    @property
    def time_by_phase(self) -> dict[str, float]:
        """Seconds by phase; `functions` is the part of `forward` spent in the operations themselves."""
        functions = sum({r.call: r.elapsed for r in self._log.operations}.values()) / 1e9
        return {**self._log.seconds, "functions": functions}

    # Activations ------------------------------------------------------------------------------------------------

    def clear_activations(self) -> None:
        """Free every kept tensor, gradients too, and keep the graph."""
        self._log.clear()

    def save_new_activations(
        self,
        model: Callable[..., object],
        input_args: object = LEFT_OUT,
        input_kwargs: Mapping[str, object] | None = None,
        *,
        layers_to_save: LayersToSave | Literal["as before"] = "as before",
        random_seed: int | None = None,
        random_state: RandomState | None = None,
    ) -> None:
        """Run the same graph with another input and keep its activations instead; arguments as in `log_forward_pass`.

        Raises `GraphChanged`, naming the first operation that differs, when the model ran other operations; the history
        is then as it was.
        """
        options = self._options
        if layers_to_save != "as before":
            options = replace(options, layers_to_save=layers_to_save)
        new = type(self)(self._log.title, options)
        arguments = as_arguments(model, input_args, input_kwargs, call="save_new_activations")
        run(new, model, arguments, random_seed, random_state, call="save_new_activations")
        difference = first_difference(self, new)
        if difference is not None:
            raise GraphChanged(
                f"the new pass is not the one that was logged: {difference}. "
                "The history is unchanged; use log_forward_pass for a new one."
            )
        self._log, self._options, self._growing = new._log, options, new._growing
        self._made_index = self._made_lookup = None

    # Everything else --------------------------------------------------------------------------------------------

    def to_rows(self) -> list[dict[str, Any]]:
        """One dictionary per operation: what `to_pandas` makes its table from."""
        return [row_of(one) for one in self.operations]

    @overload
    def to_csv(self, path: str | os.PathLike[str]) -> Path: ...
    @overload
    def to_csv(self, path: IO[bytes] | IO[str]) -> None: ...
    def to_csv(self, path: str | os.PathLike[str] | IO[bytes] | IO[str]) -> Path | None:
        """Write one row per operation as comma-separated values, to a path, which is returned, or to a file object."""
        return write_csv(self.to_rows(), path)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per operation. Needs pandas."""
        return data_frame(self.to_rows())

    def __repr__(self) -> str:
        with DisableTorchFunction():
            return describe_history(self)

    def _card_text(self) -> str:
        """The text without modules and layers, which are in folds."""
        return repr(self).partition("\n\tModule Hierarchy:")[0].partition("\n\tLayers:")[0]

    def _folds(self) -> list[Fold]:
        with DisableTorchFunction():
            return [
                Fold(plural(self.num_modules, "module"), self.modules.table.html()),
                Fold(plural(len(self.layers), "layer"), layers_table(self).html()),
            ]

    def __deepcopy__(self, memo: dict[int, Any]) -> History:
        """A history of its own: kept tensors are copied, parameters are the model's."""
        return self._of_log(copy_of_log(self._log, memo), self._options)

    def __copy__(self) -> History:
        """Another history of the same kept tensors."""
        return self._of_log(twin_of_log(self._log), self._options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        refuse_pickling(type(self).__name__)
