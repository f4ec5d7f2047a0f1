"""Writes a log as one JSON document: columns of numbers, and tables that say what the numbers mean.

Live objects of a log are written as plain values: functions by name, templates as JSON, parameters as shape, dtype and
fingerprint, sites as files and lines with their text, and tensors as names in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .._torch.functions.facts import TorchFunction
from .._torch.internals import DisableTorchFunction
from .._torch.memory import is_freed
from .._torch.shapes import RaggedShape, shape_of
from ..errors import CannotBeSaved
from ..log.records import (
    ELAPSED,
    FACTS,
    FUNCTION,
    MODULE,
    NAMES,
    NODE,
    PARENTS,
    SITE,
    STARTED,
    TEMPLATE,
    UNSAVED,
    AbsentTensor,
    ClassNames,
    Composite,
    Details,
    Facts,
    Failure,
    Held,
    Log,
    ModuleCall,
    is_parameter,
    number_of,
    was_overwritten,
)
from .function_names import write_function
from .log_parts import fingerprint, write_backward, write_random_states, write_sites
from .tensors import TensorNames, Written
from .values import Json, Writer

NOT_KEPT, FREED_VALUE, LOST_VALUE = -1, -2, -3  # codes in the column `values`
FLAGS = ("is_recording", "is_complete", "is_cleared", "holds_tensors")
DETAIL_FLAGS = (
    "is_collective",
    "is_foreign",
    "is_hooked",
    "is_no_grad",
    "is_passing",
    "is_through_unseen",
    "is_transformed",
)
_OF_CALLS = ("call", "first", "end", "exit", "started", "elapsed")  # attributes of module calls, each written as a column


HIDDEN = "hidden/"  # the names of orphans begin with this


class Table:
    """Gives each different value a number, in the order in which the values come."""

    def __init__(self, write: Callable[[Any], Json] = lambda value: value) -> None:
        self.items: list[Json] = []
        self._numbers: dict[Hashable, int] = {}
        self._write = write

    def number(self, value: Hashable) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.items)
            self.items.append(self._write(value))
        return found


class Templates:
    """Gives each template that is written differently a number. The results of one call share a template."""

    def __init__(self, writer: Writer) -> None:
        self.items: list[Json] = []
        self._writer = writer
        self._by_id: dict[int, int] = {}  # id of a template, which the log keeps alive -> its number
        self._by_text: dict[str, int] = {}  # text -> number. The key is not the value, because True and 1 are equal

    def number(self, template: tuple[Any, ...]) -> int:
        found = self._by_id.get(id(template))
        if found is None:
            written = self._writer.write(template)
            found = self._by_id[id(template)] = self._by_text.setdefault(repr(written), len(self.items))
            if found == len(self.items):
                self.items.append(written)
        return found


def _argument_names(tensors: TensorNames) -> Callable[[Tensor], str]:
    """Make a function that names tensors inside of values: arrays among the arguments, and parts of a postfunc's result."""
    numbers = count(1)

    def name(tensor: Tensor) -> str:
        number = next(numbers)
        return tensors.add(f"value/{number}", tensor, f"value {number}")

    return name


class LogWriter:
    """Writes one log as a document. `label_of(number)` is the label of an operation."""

    def __init__(self, log: Log, tensors: TensorNames, label_of: Callable[[int], str], *, has_sources: bool = True) -> None:
        self.log = log
        self._tensors = tensors
        self._label_of = label_of
        self._has_sources = has_sources
        # the function must not refer to this object: all tensors would stay alive in a cycle
        self._values = Writer(_argument_names(tensors))
        self._templates = Templates(self._values)
        self._names = Table(list)
        self._facts = Table(_written_facts)
        self._texts = Table()
        self._functions = list(log.functions)
        self._composites: dict[int, int] = {}
        self._composite_items: list[Json] = []

    def document(self, kept: Iterable[int], names: dict[int, str], *, gradients: bool, params: bool) -> Json:
        """Write the whole log as a document. The tensors of the operations in `kept` get the names in `names`."""
        log = self.log
        with DisableTorchFunction(), torch.no_grad():
            document: dict[str, Any] = {"title": log.title, "values": self._kept(set(kept), names)}
            document["rows"] = self._rows()
            document["details"] = [[number, self._details(number, details)] for number, details in log.details.items()]
            document["states"] = self._states(params)
            document["modules"] = self._modules(log.modules)
            document["reads"] = [
                [self._function(read.function), read.parents, self._values.write(read.value), *self._where(read), read.before]
                for read in log.python_reads
            ]
            document["failure"] = self._failure(log.failure) if log.failure is not None else None
            document["backward"] = write_backward(log, self._tensors, self._label_of, gradients)
            document |= self._facts_of_log()
        document["functions"] = [len(log.functions), [write_function(function) for function in self._functions]]
        document["sites"] = write_sites(log.sites, with_texts=self._has_sources)
        document |= {"templates": self._templates.items, "names": self._names.items, "facts": self._facts.items}
        document |= {"texts": self._texts.items, "composites": self._composite_items}
        return document

    # Values -----------------------------------------------------------------------------------------------------------

    def _kept(self, kept: set[int], names: dict[int, str]) -> Json:
        """List names and plain values; and for each operation the index of its value there, or a code for a missing value."""
        log = self.log
        found: list[Json] = []
        column: list[int] = []
        lost = log.overwritten() if log.is_complete else {n for n in kept if was_overwritten(log.values[n], log.versions[n])}
        for number, value in enumerate(log.values):
            if value is UNSAVED or number not in kept:
                column.append(NOT_KEPT)
            elif number in lost:
                column.append(LOST_VALUE)
            elif is_freed(value):
                column.append(FREED_VALUE)
            else:
                try:
                    written = self._value(number, value, names[number])
                except CannotBeSaved:
                    if not names[number].startswith(HIDDEN):
                        raise
                    column.append(NOT_KEPT)  # an orphan has no name, so a reader cannot leave it out by name
                    continue
                column.append(len(found))
                found.append(written)
        return {"by_operation": column, "kept": found}

    def _value(self, number: int, value: Any, name: str) -> Json:
        if isinstance(value, (Tensor, Written)):
            self._tensors.add(name, value, name)
            return name
        label = self._label_of(number)
        return [self._values.write_kept(value, f"the activation of {label}")]

    # Rows -------------------------------------------------------------------------------------------------------------

    def _rows(self) -> Json:
        rows, log = self.log.rows, self.log
        facts, template, names, text = self._facts.number, self._templates.number, self._names.number, self._texts.number
        operations = log.operations
        return {
            "function": [row[FUNCTION] for row in rows],
            "template": [template(row[TEMPLATE]) for row in rows],
            "names": [names(row[NAMES]) for row in rows],
            "module": [row[MODULE] for row in rows],
            "site": [row[SITE] for row in rows],
            "started": [row[STARTED] for row in rows],
            "elapsed": [row[ELAPSED] for row in rows],
            "node": [-1 if row[NODE] is None else text(row[NODE]) for row in rows],
            "facts": [facts(_countable(row[FACTS] or operations[number].facts)) for number, row in enumerate(rows)],
            "parents": [parent for row in rows for parent in row[PARENTS:]],
            "counts": [len(row) - PARENTS for row in rows],
        }

    def _details(self, number: int, details: Details) -> Json:
        written: dict[str, Any] = {
            "call": details.call if details.call >= 0 else None,
            "path": self._values.write_path(details.output_path),
            "also": details.also,
            "mutated": details.mutated,
            "composite": self._composite(details.composite) if details.composite is not None else None,
            "autocast": [[device, str(dtype)[6:]] for device, dtype in details.autocast],
            "held": [[slot, self._held(number, slot, held)] for slot, held in (details.held or {}).items()],
            "home": details.home[0] if details.home is not None else None,
            "distance": details.home[1] if details.home is not None else None,
            "changed": details.changed,
            "is": [name for name in DETAIL_FLAGS if getattr(details, name)],
        }
        return {key: value for key, value in written.items() if value or value == 0}

    def _held(self, number: int, slot: int, held: Held) -> Json:
        if is_freed(held.value):
            return None
        label = self._label_of(number)
        name = f"argument/{label}/{slot}"
        self._tensors.add(name, held.value, f"argument {slot} of {label}")
        return name

    def _composite(self, composite: Composite) -> int:
        found = self._composites.get(id(composite))
        if found is None:
            outer = self._composite(composite.outer) if composite.outer is not None else -1
            found = self._composites[id(composite)] = len(self._composite_items)
            self._composite_items.append([composite.name, composite.number, outer])
        return found

    def _function(self, function: TorchFunction) -> int:
        for number, known in enumerate(self._functions):
            if known is function:
                return number
        self._functions.append(function)
        return len(self._functions) - 1

    def _where(self, record: Any) -> tuple[int, int]:
        return number_of(record.module), number_of(record.site)

    def _failure(self, failure: Failure) -> Json:
        return [
            *(self._function(failure.function), failure.parents, failure.shapes),
            *(*self._where(failure), failure.error, failure.before),
        ]

    # Modules and parameters -------------------------------------------------------------------------------------------

    def _modules(self, calls: list[ModuleCall]) -> Json:
        text = self._texts.number
        return {
            "address": [text(call.address) for call in calls],
            "class": [text(call.class_name) for call in calls],
            "outer": [number_of(call.outer) for call in calls],
            "site": [number_of(call.site) for call in calls],
            "training": [int(call.training) for call in calls],
            **{name: [getattr(call, name) for call in calls] for name in _OF_CALLS},
            "args": [self._templates.number(call.args) for call in calls],
            "names": [self._names.number(call.names) for call in calls],
            **_flat("inputs", [call.inputs for call in calls]),
            **_flat("outputs", [call.outputs for call in calls]),
        }

    def _states(self, params: bool) -> Json:
        """The parameters and buffers that modules register and that operations read, each with its facts."""
        states = self.log.states
        places = {id(state.tensor): state for state in states}
        numbers: dict[int, int] = {}
        tensors: list[Json] = []

        def number(tensor: Any, name: str) -> int:
            found = numbers.get(id(tensor))
            if found is None:
                found = numbers[id(tensor)] = len(tensors)
                state = places.get(id(tensor))
                is_gone = state is not None and (state.is_changed or state.may_be_changed)
                tensors.append(self._state(tensor, name, params, is_gone))
            return found

        registered = []
        for address, module in self.log.registered.items():
            held = [
                [[name, -1 if one is None else number(one, module.full_name(name))] for name, one in group.items()]
                for group in (module.parameters, module.buffers)
            ]
            about = [module.class_name, module.is_root, ClassNames.of(module.cls).names, module.other_addresses, module.calls]
            registered.append([address, *about, module.is_made_running, *held])
        used = [number(tensor, f"unregistered_{place}") for place, tensor in enumerate(states.tensors, 1)]
        before = dict(states.before) if params else {}
        for reference, value in before.items():
            self._tensors.add(f"params/before/{-reference}", value, f"what parameter {-reference} was")
        found = {"tensors": tensors, "registered": registered, "used": used}
        return found | {"before": list(before), "changed": list(states.before)}

    def _state(self, tensor: Any, name: str, params: bool, is_gone: bool) -> Json:
        is_nothing = not isinstance(tensor, AbsentTensor) and (is_lazy(tensor) or is_freed(tensor))
        shape = (0,) if is_lazy(tensor) else tensor.shape if isinstance(tensor, AbsentTensor) else shape_of(tensor)
        written: dict[str, Any] = {
            "shape": shape,
            "dtype": str(tensor.dtype)[6:],
            "device": str(tensor.device),
            "layout": str(tensor.layout),
            "requires_grad": bool(tensor.requires_grad),
            "is_parameter": is_parameter(tensor),
            **({"elements": shape.elements} if isinstance(shape, RaggedShape) else {}),
        }
        if tensor.is_uninitialized if isinstance(tensor, AbsentTensor) else is_lazy(tensor):
            written["is_uninitialized"] = True
        if not is_nothing and tensor.layout is torch.strided and not tensor.is_nested:
            written["strides"] = tuple(tensor.stride())
        if is_nothing or is_gone or isinstance(tensor, AbsentTensor):
            if params and not is_nothing:
                why = "was changed after the pass" if is_gone else "is not there: the history was loaded without parameters"
                raise CannotBeSaved(f"{name!r} {why}, so what the pass used cannot be saved. Save without params=True.")
            return {**written, "fingerprint": tensor.fingerprint if isinstance(tensor, AbsentTensor) else ""}
        written["fingerprint"] = fingerprint(tensor)
        if params:
            self._tensors.add(f"params/{name}", tensor, repr(name))
            written["stored"] = f"params/{name}"
        return written

    # Everything else --------------------------------------------------------------------------------------------------

    def _facts_of_log(self) -> Json:
        log = self.log
        paths = [[number, [self._values.write_path(path) for path in paths]] for number, paths in log.input_paths.items()]
        result = [[self._values.write_path(path), self._values.write(item)] for path, item in log.result or ()]
        return {
            **{name: getattr(log, name) for name in FLAGS},
            "result": result if log.result is not None else None,
            **{name: sorted(getattr(log, name)) for name in ("without_memory", "hollow", "leaves")},
            "collectives": log.collectives,
            "notes": log.notes,
            "source_names": list(log.source_names.items()),
            "input_paths": paths,
            "argument_names": list(log.argument_names),
            "random_seed": log.random_seed,
            "random": write_random_states(log),
            "seconds": log.seconds,
        }


def _countable(facts: Facts) -> Hashable:
    """A key for the facts of a tensor, with the number of elements of a nested tensor, which its shape does not show."""
    return (facts, facts[0].elements) if isinstance(facts[0], RaggedShape) else (facts,)


def _written_facts(counted: tuple[Facts, int] | tuple[Facts]) -> Json:
    (shape, dtype, device), *elements = counted
    return [[int(size) for size in shape], str(dtype)[6:], str(device), *elements]


def _flat(name: str, groups: list[tuple[int, ...]]) -> Json:
    """Write tuples as two columns: all items, and the length of each tuple."""
    return {name: [one for group in groups for one in group], f"{name}_counts": [len(group) for group in groups]}
