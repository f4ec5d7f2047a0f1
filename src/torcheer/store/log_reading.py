"""Reads a log from its JSON document, and refuses a document whose references lead nowhere or in a circle.

Rows may name only earlier rows, module calls only earlier calls; every number is within its table. So no computation on a log
can run forever, whatever is in a file.
"""

from __future__ import annotations

from typing import Any

import torch

from .._torch.functions.facts import TorchFunction
from .._torch.memory import FREED
from .._torch.shapes import RaggedShape
from ..log.records import (
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
    PythonReadRecord,
    RegisteredModule,
    Row,
    States,
)
from ..log.templates import slot_paths
from .checking import (
    LARGEST,
    column,
    each,
    fields,
    flag,
    items,
    lists,
    number,
    numbers,
    real,
    refuse,
    sizes,
    split,
    text,
    text_or_none,
)
from .function_names import Functions
from .log_parts import read_backward, read_random_states, read_sites
from .log_writing import DETAIL_FLAGS, FLAGS, FREED_VALUE, LOST_VALUE, NOT_KEPT
from .tensors import SavedHeld, SavedTensors, SavedValues, Stored
from .values import Reader, read_device, read_dtype


class LogReader:
    """Reads a log from one document."""

    def __init__(self, document: Any, tensors: SavedTensors, functions: Functions) -> None:
        self._document = fields(document, "the document")
        self._tensors = tensors
        self._values = Reader(tensors.read)
        self._found = functions
        self.log = Log(text(self._get("title"), "the title"))

    def _get(self, name: str) -> Any:
        if name not in self._document:
            refuse(f"there is no {name!r} in its document")
        return self._document[name]

    def read(self) -> Log:
        """Read the log. Its tensors are not read yet."""
        log = self.log
        self._names = [tuple(each(names, "a name", text)) for names in items(self._get("names"), "names")]
        self._texts = each(self._get("texts"), "a text", text)
        log.sites = read_sites(self._get("sites"))
        count, written = items(self._get("functions"), "the functions")
        found = items(written, "the functions")
        count = number(count, "how many functions there are", 0, len(found) + 1)
        self._functions = [self._found.read(one, runs=place < count) for place, one in enumerate(found)]
        log.functions = self._functions[:count]
        self._templates = [self._values.read(one) for one in items(self._get("templates"), "the templates")]
        if any(type(template) is not tuple for template in self._templates):
            refuse("the arguments of a call are no tuple")
        self._slots = [len(slot_paths(template, None)) for template in self._templates]
        self._length = len(items(fields(self._get("rows"), "the rows").get("function"), "the rows"))
        self._read_states()
        self._read_modules()
        log.rows = self._rows()
        self._read_values()
        self._read_details()
        self._read_others()
        log.backward = read_backward(self._get("backward"), log, self._tensors)
        return log

    def _number(self, value: Any, what: str, low: int | None = None) -> int:
        """Check the number of an operation, or the negative number of a parameter."""
        return number(value, what, -len(self.log.states) if low is None else low, self._length)

    def _numbers(self, value: Any, what: str, low: int | None = None) -> tuple[int, ...]:
        return tuple(numbers(value, what, -len(self.log.states) if low is None else low, self._length))

    # Rows ---------------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[Row]:
        log, found, length = self.log, fields(self._get("rows"), "the rows"), self._length

        def read(name: str, low: int, high: int = LARGEST) -> list[int]:
            return column(found.get(name), f"{name!r} of rows", length, low, high)

        facts = [self._facts(one) for one in items(self._get("facts"), "the facts")]
        texts = [*self._texts, None]
        counts = read("counts", 0)
        parents = split(numbers(found.get("parents"), "parents", -len(log.states), length), counts, "the parents")
        for place, those in enumerate(parents):
            if those and max(those) >= place:
                refuse(f"operation {place} uses one that came after it")
        templates = read("template", 0, len(self._templates))
        if any(self._slots[one] > len(those) for one, those in zip(templates, parents, strict=True)):
            refuse("a call has more tensors among its arguments than it has parents")
        columns = (
            read("function", 0, len(log.functions)),
            [self._templates[one] for one in templates],
            [self._names[one] for one in read("names", 0, len(self._names))],
            read("module", -1, len(log.modules)),
            read("site", -1, len(log.sites)),
            read("started", 0),
            read("elapsed", 0),
            [texts[one] for one in read("node", -1, len(self._texts))],
            [facts[one] for one in read("facts", 0, len(facts))],
        )
        rows = [(*row[:-1], *row[-1]) for row in zip(*columns, parents, strict=True)]
        for row in rows:
            if len(row[2]) > len(row[1]):
                refuse("a call has more names than arguments")
        return rows

    def _facts(self, written: Any) -> Facts:
        written_shape, dtype, device, *elements = items(written, "the facts of a tensor")
        return _read_shape(written_shape, *elements), read_dtype(dtype), read_device(device)

    def _read_values(self) -> None:
        log, found = self.log, fields(self._get("values"), "the values")
        kept = items(found.get("kept"), "the values")
        by_operation = column(found.get("by_operation"), "the values", self._length, LOST_VALUE, len(kept))
        values: list[Any] = []
        for one in kept:
            if type(one) is str:
                values.append(Stored(one, self._tensors))
            else:  # the value is what a postfunc returned
                (value,) = items(one, "a value")
                values.append(self._values.read(value))
        special = {NOT_KEPT: UNSAVED, FREED_VALUE: FREED, LOST_VALUE: FREED}
        given = [values[one] if one >= 0 else special[one] for one in by_operation]
        log.values = SavedValues(given, log, are_tensors=flag(self._get("holds_tensors"), "holds_tensors"))
        log.versions = [-1] * self._length
        log._lost = {place for place, one in enumerate(by_operation) if one == LOST_VALUE}
        firsts = column(self._get("first_passes"), "the first passes", self._length, -1, self._length)
        for place, first in enumerate(firsts):
            if first > place or (first >= 0 and firsts[first] != first):
                refuse("the first pass of a layer is not its first")
        log.first_passes = firsts

    def _read_details(self) -> None:
        composites: list[Composite] = []
        for name, turn, outer in lists(self._get("composites"), "the composites", "a composite"):
            outer = number(outer, "the composite around one", -1, len(composites))
            around = composites[outer] if outer >= 0 else None
            composites.append(Composite(text(name, "a composite"), number(turn, "a composite"), around))
        for place, written in lists(self._get("details"), "the details", "the details of an operation"):
            place = self._number(place, "an operation", 0)
            self.log.details[place] = self._details(place, fields(written, "the details of an operation"), composites)

    def _details(self, place: int, written: dict[str, Any], composites: list[Composite]) -> Details:
        details = Details()
        if "call" in written:
            details.call = number(written["call"], "a call", 0, place + 1)
        if "path" in written:
            details.output_path = self._values.read_path(written["path"])
        details.also = tuple(numbers(written.get("also", []), "writes", 0, place))
        details.mutated = tuple(numbers(written.get("mutated", []), "slots", 0, 1 << 20))
        if "composite" in written:
            details.composite = composites[number(written["composite"], "a composite", 0, len(composites))]
        pairs = lists(written.get("autocast", []), "the autocasts", "an autocast")
        details.autocast = tuple([(text(device, "a device"), read_dtype(dtype)) for device, dtype in pairs])
        if "held" in written:
            held = lists(written["held"], "the arguments", "an argument")
            details.held = {number(slot, "a slot", 0, 1 << 20): self._held(name) for slot, name in held}
        if "home" in written:
            home = number(written["home"], "memory that is shared", -len(self.log.states), place)
            details.home = home, number(written.get("distance", 0), "a distance", -LARGEST)
        details.changed = text(written.get("changed", ""), "a change")
        for name in items(written.get("is", []), "the details"):
            if name in DETAIL_FLAGS:
                setattr(details, name, True)
        return details

    def _held(self, name: Any) -> Held:
        return Held(FREED, -1) if name is None else SavedHeld(Stored(text(name, "an argument"), self._tensors))

    # Modules and parameters ---------------------------------------------------------------------------------------------

    def _read_states(self) -> None:
        log, found = self.log, fields(self._get("states"), "the parameters")
        tensors = [self._state(fields(one, "a parameter")) for one in items(found.get("tensors"), "the parameters")]
        log.states = States()
        log.states.tensors = [tensors[one] for one in numbers(found.get("used"), "the parameters", 0, len(tensors))]
        used = len(log.states.tensors)
        saved = numbers(found.get("before"), "the parameters that were changed", -used, 0)
        for one in numbers(found.get("changed"), "the parameters that were changed", -used, 0):
            log.states.before[one] = (
                self._tensors.read(f"params/before/{-one}") if one in saved else _absent_like(log.states.tensors[-1 - one])
            )
        for written in lists(found.get("registered"), "the modules", "a module"):
            module = self._registered(written, tensors)
            log.registered[module.address] = module
        if any(log.root_of(address) is None for address in log.registered):  # a walk from a module up to its root would not end
            refuse("a module is in no other one")
        if not any(state.is_absent for state in log.states):
            log.states.mark()

    def _state(self, written: dict[str, Any]) -> Any:
        is_parameter = flag(written.get("is_parameter"), "whether it is a parameter")
        requires_grad = flag(written.get("requires_grad"), "whether a parameter is trained")
        stored = text_or_none(written.get("stored"), "a parameter")
        shape = _read_shape(written.get("shape"), written.get("elements"))
        if stored is not None:
            tensor = Stored(stored, self._tensors).read(shape)
            trains = requires_grad and (tensor.is_floating_point() or tensor.is_complex())
            return torch.nn.Parameter(tensor, requires_grad=trains) if is_parameter else tensor.detach().requires_grad_(trains)
        return AbsentTensor(
            shape,
            sizes(written.get("strides", [0] * len(shape)), "strides"),
            read_dtype(written.get("dtype")),
            read_device(written.get("device")),
            requires_grad,
            is_parameter,
            self._values.read({"layout": written.get("layout")}),
            text(written.get("fingerprint"), "a fingerprint"),
            bool(written.get("is_uninitialized", False)),
        )

    def _registered(self, written: list[Any], tensors: list[Any]) -> RegisteredModule:
        address, class_name, is_root, classes, others, calls, is_made_running, *groups = written
        parameters, buffers = [
            {
                text(name, "a parameter"): tensors[place] if number(place, "a parameter", -1, len(tensors)) >= 0 else None
                for name, place in lists(group, "the parameters", "a parameter")
            }
            for group in groups
        ]
        names = tuple(each(classes, "a class", text)) or ("",)
        return RegisteredModule(
            text(address, "an address"),
            text(class_name, "a class"),
            parameters,
            buffers,
            flag(is_root, "whether a module is a root"),
            ClassNames(names),
            tuple(each(others, "an address", text)),
            number(calls, "how often a module was called"),
            flag(is_made_running, "whether a module was made by the pass"),
        )

    def _read_modules(self) -> None:
        log, found = self.log, fields(self._get("modules"), "the module calls")
        count = len(items(found.get("address"), "the module calls"))

        def read(name: str, low: int = 0, high: int = LARGEST) -> list[int]:
            return column(found.get(name), f"{name!r} of module calls", count, low, high)

        texts = len(self._texts)
        flows = [
            split(list(self._numbers(found.get(name), name)), read(f"{name}_counts"), name) for name in ("inputs", "outputs")
        ]
        columns: list[Any] = [
            *(read("address", 0, texts), read("class", 0, texts), read("call"), read("outer", -1, count)),
            *(read("site", -1, len(log.sites)), read("training", 0, 2), read("first", 0, self._length + 1)),
            *(read("args", 0, len(self._templates)), read("names", 0, len(self._names)), *flows),
            *(read("end", -1, self._length + 1), read("exit"), read("started"), read("elapsed")),
        ]
        for place, one in enumerate(zip(*columns, strict=True)):
            address, cls, call, outer, site, training, first, args, names, inputs, outputs, *rest = one
            if outer >= place or self._texts[address] not in log.registered:
                refuse("a module call is inside of a later one, or of no module")
            around = log.modules[outer] if outer >= 0 else None
            where = log.sites[site] if site >= 0 else None
            if len(self._names[names]) > len(self._templates[args]) or self._slots[args] > len(inputs):
                refuse("a module call has more names or tensors than arguments")
            log.modules.append(
                ModuleCall(
                    *(place, self._texts[address], self._texts[cls], call, around, where, bool(training), first),
                    *(self._templates[args], self._names[names], inputs, outputs, *rest),
                )
            )

    # Everything else ----------------------------------------------------------------------------------------------------

    def _where(self, module: Any, site: Any) -> tuple[Any, Any]:
        log = self.log
        module = number(module, "a module call", -1, len(log.modules))
        site = number(site, "a site", -1, len(log.sites))
        return log.modules[module] if module >= 0 else None, log.sites[site] if site >= 0 else None

    def _function(self, place: Any) -> TorchFunction:
        return self._functions[number(place, "a function", 0, len(self._functions))]

    def _read_others(self) -> None:
        log = self.log
        for name in FLAGS:
            setattr(log, name, flag(self._get(name), name))
        for name in ("without_memory", "hollow", "leaves"):
            setattr(log, name, set(self._numbers(self._get(name), name)))
        log.collectives = number(self._get("collectives"), "the collectives")
        log.notes = each(self._get("notes"), "a note", text)
        log.argument_names = tuple(each(self._document.get("argument_names", []), "an argument", text))  # new in version 0.2
        for place, name in lists(self._get("source_names"), "the sources", "a source"):
            log.source_names[self._number(place, "a source", 0)] = text(name, "a source")
        for place, paths in lists(self._get("input_paths"), "the inputs", "an input"):
            found = [self._values.read_path(path) for path in items(paths, "the paths of an input")]
            if any(path and type(path[0]) is not str for path in found):
                refuse("an input is no argument")
            log.input_paths[self._number(place, "an input", 0)] = found
        for function, parents, value, module, site, before in lists(self._get("reads"), "the reads", "a read"):
            what = (self._function(function), self._numbers(parents, "what was read"), self._values.read(value))
            log.python_reads.append(PythonReadRecord(*what, *self._where(module, site), number(before, "a read")))
        if self._get("failure") is not None:
            log.failure = self._failure(items(self._get("failure"), "the failure"))
        if (result := self._document.get("result")) is not None:  # files of earlier versions do not have the model's result
            pairs = lists(result, "the result", "an item of the result")
            log.result = [(self._values.read_path(path), self._values.read(item)) for path, item in pairs]
            try:
                hash(tuple(path for path, _ in log.result))
            except TypeError:
                refuse("a path in the result has a step that is no key")
        seed = self._get("random_seed")
        log.random_seed = None if seed is None else number(seed, "the seed", 0, 1 << 63)
        seconds = fields(self._get("seconds"), "the times")
        log.seconds = {text(name, "a time"): real(value, "a time") for name, value in seconds.items()}
        read_random_states(self._get("random"), log)

    def _failure(self, written: list[Any]) -> Failure:
        function, parents, shapes, module, site, error, before = written
        found = tuple([sizes(shape, "a shape", -1) for shape in items(shapes, "shapes")])
        where = self._where(module, site)
        those = self._numbers(parents, "the arguments of what failed")
        return Failure(self._function(function), those, found, *where, text(error, "the error"), number(before, "an operation"))


def _absent_like(tensor: Any) -> Any:
    """Stands for the earlier value of a parameter that the pass changed."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return AbsentTensor(shape, strides, tensor.dtype, tensor.device, tensor.requires_grad, True)


def _read_shape(written: Any, elements: Any = None) -> tuple[int, ...]:
    """A shape. For a nested tensor, the number of elements is written too."""
    shape = sizes(written, "a shape", -1)
    if elements is None:
        return shape
    ragged = RaggedShape(shape)
    ragged.elements = number(elements, "a number of elements")
    return ragged
