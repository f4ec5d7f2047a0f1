"""Converts arguments and other values to JSON (`Writer`) and back (`Reader`), and takes sparse or nested tensors apart.

None, booleans, integers, finite floats and strings are written directly; a tuple is an array; any other value is a JSON object
whose first key names its kind. An object of a class, or a function, is written as its repr with the paths of the tensors in
it, and is read as a `SavedObject`. Reading a value imports and calls nothing.

`parts_of` and `put_together` convert sparse, quantized, nested and meta tensors to strided tensors and back.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.containers import Attribute, Members, Nth, Other, SavedObject, kind_of
from .._torch.internals import nested_from_parts, nested_parts, quantised_from_parts
from .._torch.memory import SPARSE, parts_of_sparse, sparse_of_parts
from .._torch.sentinels import TENSOR
from ..errors import CannotBeSaved
from ..log.templates import blank
from .checking import fields, flag, items, lists, number, real, refuse, sizes, text

_DEEPEST = 60  # a container that is nested deeper than this is written as its repr
_LONGEST = 20_000  # write at most this many characters of a repr
_ITSELF = frozenset({type(None), bool, int})
_NUMPY_KINDS = "biufc"  # kinds of NumPy dtypes: truth values, whole numbers, floats and complex numbers
_CONTAINERS: dict[type, str] = {list: "list", deque: "deque"}

Json = Any


class Writer:
    """Writes values as JSON. `name_of(tensor)` gives a tensor a name in the file."""

    def __init__(self, name_of: Callable[[Tensor], str]) -> None:
        self._name_of = name_of
        self._open: set[int] = set()  # the ids of containers that are being written

    def write(self, value: Any, depth: int = 0) -> Json:
        """Convert a value to JSON."""
        cls = type(value)
        if cls in _ITSELF:
            return value
        if cls is str:
            return {"tensor": True} if value is TENSOR else value
        if cls is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if depth > _DEEPEST:
            return self._as_printed(value, depth)
        if cls is tuple:
            return [self.write(item, depth + 1) for item in value]
        plain = _write_plain(value, cls)
        if plain is not None:
            return plain
        if id(value) in self._open:  # a container that holds itself
            return {"other": cls.__name__}
        self._open.add(id(value))
        try:
            return self._write_held(value, cls, depth)
        finally:
            self._open.discard(id(value))

    def _write_held(self, value: Any, cls: type, depth: int) -> Json:
        """Write a container or an object as JSON."""
        if cls in _CONTAINERS:
            return {_CONTAINERS[cls]: [self.write(item, depth + 1) for item in value]}
        if cls is dict or cls is OrderedDict:
            pairs = [[self.write(key, depth + 1), self.write(item, depth + 1)] for key, item in value.items()]
            return {"dict" if cls is dict else "ordered": pairs}
        if cls is slice:
            return {"slice": [self.write(one, depth + 1) for one in (value.start, value.stop, value.step)]}
        if cls is Members and type(value.like) in (set, frozenset):
            return {type(value.like).__name__: [self.write(item, depth + 1) for item in value.items]}
        if cls is np.ndarray and value.dtype.kind in _NUMPY_KINDS and value.dtype.isnative:
            return {"array": self._name_of(torch.from_numpy(np.array(value, order="C"))), "shape": list(value.shape)}
        if cls is Tensor or cls is torch.nn.Parameter:
            return {"value": self._name_of(value)}
        return self._as_printed(value, depth)

    def _as_printed(self, value: Any, depth: int) -> Json:
        """Write an object as its repr, with the paths to the tensors inside it."""
        if type(value) is SavedObject:
            steps, held, printed, name = value.steps, value.items, value.printed, value.type_name
        else:
            printed, name = _printed(value), type(value).__name__
            kind = kind_of(value) if depth <= _DEEPEST else None
            steps, held = (kind.read(value) if kind is not None else None) or ([], [])
        inner = [(self.write_step(step), self.write(item, depth + 1)) for step, item in zip(steps, held, strict=True)]
        kept = [pair for pair in inner if _has_tensor(pair[1])]
        return {"object": name, "prints": printed, **({"holds": [list(pair) for pair in kept]} if kept else {})}

    def write_step(self, step: Any) -> Json:
        """Write a step of a path: an attribute, an index of an item without a name, or a key."""
        if type(step) is Attribute:
            return {"attribute": str(step)}
        return {"nth": int(step)} if type(step) is Nth else self.write(step)

    def write_path(self, path: tuple[Any, ...]) -> Json:
        return [self.write_step(step) for step in path]

    def write_kept(self, value: Any, label: str) -> Json:
        """Write the result of an `activation_postfunc`. Raises if it could not be read back."""
        written = self.write(value)
        name = _object_in(written)
        if name is not None:
            raise CannotBeSaved(
                f"{label} was kept as a {type(value).__name__} that holds a {name}, which no file can give back. Return "
                "tensors, numbers and texts, in tuples, lists and dictionaries, from activation_postfunc."
            )
        return written


def _write_plain(value: Any, cls: type) -> Json:
    """The JSON of a value that is not a container; None if such a value has no JSON form."""
    if isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS and cls is value.dtype.type:
        return {"scalar": [value.dtype.str, _text_of(value.tobytes())]}
    form = _FORMS.get(cls)
    written = form.write(value) if form is not None else None
    return {form.word: written} if form is not None and written is not None else None


def _text_of(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _printed(value: Any) -> str:
    try:
        return repr(blank(value))[:_LONGEST]
    except Exception as error:  # a user-defined __repr__ may raise anything
        pass_interrupts_on(error)
        return f"(cannot be shown: {type(error).__name__})"


def _has_tensor(written: Json) -> bool:
    if isinstance(written, list):
        return any(map(_has_tensor, written))
    if isinstance(written, dict):
        return "tensor" in written or any(map(_has_tensor, written.values()))
    return False


def _object_in(written: Json) -> str | None:
    """The class of an object that is written as its repr; None if `written` is something else."""
    if isinstance(written, list):
        return next((found for found in map(_object_in, written) if found is not None), None)
    if isinstance(written, dict):
        return str(written["object"]) if "object" in written else _object_in(list(written.values()))
    return None


class Reader:
    """Reads values from JSON. `tensor_of(name)` finds tensors of the file."""

    def __init__(self, tensor_of: Callable[[str], Tensor]) -> None:
        self._tensor_of = tensor_of
        self._depth = 0  # nesting depth of the container that is being read

    def read(self, written: Json) -> Any:
        """Read a value from its JSON."""
        cls = type(written)
        if cls is not list and cls is not dict:
            return written
        if self._depth > 2 * _DEEPEST:
            refuse("containers lie in one another deeper than they are written")
        self._depth += 1
        try:
            return tuple([self.read(item) for item in written]) if cls is list else self._word(written)
        finally:
            self._depth -= 1

    def _word(self, written: dict[str, Json]) -> Any:
        """Read a JSON object, whose first key names the kind of the value."""
        if not written:
            refuse("a value says nothing")
        word, what = next(iter(written.items()))
        if word in _READ:
            return _READ[word](what)
        if word in _NESTED:
            return _NESTED[word](self, what)
        if word == "array":
            return self.tensor(what).numpy().copy().reshape(sizes(written.get("shape"), "the shape of an array"))
        if word != "object":
            refuse(f"there is a value of an unknown kind, {word[:40]!r}")
        return self._object(what, written)

    def read_step(self, written: Json) -> Any:
        if type(written) is dict and "attribute" in written:
            return Attribute(text(written["attribute"], "an attribute"))
        if type(written) is dict and "nth" in written:
            return Nth(number(written["nth"], "a place"))
        return self.read(written)

    def read_path(self, written: Json) -> tuple[Any, ...]:
        return tuple([self.read_step(step) for step in items(written, "a path")])

    def sequence(self, what: Json) -> list[Any]:
        return [self.read(item) for item in items(what, "a list")]

    def mapping(self, what: Json) -> dict[Any, Any]:
        try:
            return {self.read(key): self.read(item) for key, item in lists(what, "a dictionary", "an item")}
        except TypeError:
            refuse("a key of a dictionary cannot be one")

    def bounds(self, what: Json) -> slice:
        found = self.sequence(what)
        if len(found) != 3:
            refuse("a slice has no three bounds")
        return slice(*found)

    def tensor(self, what: Json) -> Tensor:
        return self._tensor_of(text(what, "a tensor"))

    def _object(self, what: Json, written: Json) -> SavedObject:
        pairs = lists(written.get("holds", []), "what an object holds", "what an object holds")
        steps, held = [self.read_step(step) for step, _ in pairs], [self.read(item) for _, item in pairs]
        return SavedObject(text(what, "a class"), text(written.get("prints"), "an object"), steps, held)


_NESTED: dict[str, Callable[[Reader, Json], Any]] = {  # values that hold other values
    "list": Reader.sequence,
    "deque": lambda reader, what: deque(reader.sequence(what)),
    "dict": Reader.mapping,
    "ordered": lambda reader, what: OrderedDict(reader.mapping(what)),
    "slice": Reader.bounds,
    "set": lambda reader, what: Members(set(), reader.sequence(what)),
    "frozenset": lambda reader, what: Members(frozenset(), reader.sequence(what)),
    "value": Reader.tensor,
}


def _bytes(what: Json) -> bytes:
    return base64.b64decode(text(what, "bytes"), validate=True)


def _float(what: Json) -> float:
    if what not in ("inf", "-inf", "nan"):
        refuse("a float is neither finite, infinite nor no number")
    return float(what)


def _part(what: Json) -> float:
    return float(text(what, "a part of a complex number"))


def _generator(what: Json) -> torch.Generator:
    made = torch.Generator()
    made.set_state(torch.tensor(list(_bytes(what)), dtype=torch.uint8))
    return made


def _scalar(what: Json) -> Any:
    kind, data = items(what, "a scalar")
    dtype: Any = np.dtype(text(kind, "the type of a scalar"))
    if dtype.kind not in _NUMPY_KINDS:
        refuse("a scalar is no number")
    return np.frombuffer(_bytes(data), dtype, 1)[0]


def _machine_array(what: Json) -> array[Any]:
    code, data = items(what, "an array")
    if code not in "bBhHiIlLqQfd" or not isinstance(code, str):
        refuse("an array is not of numbers")
    return array(code, _bytes(data))


def read_dtype(what: Json) -> torch.dtype:
    """A dtype by its name: `float32`."""
    found = getattr(torch, text(what, "a dtype"), None)
    if not isinstance(found, torch.dtype):
        refuse(f"{what[:40]!r} is no dtype")
    return found


def read_device(what: Json) -> torch.device:
    try:
        return torch.device(text(what, "a device"))
    except RuntimeError:
        refuse(f"{what[:40]!r} is no device")


def _range(what: Json) -> range:
    found = [number(one, "a range", -(2**62)) for one in items(what, "a range")]
    if len(found) != 3 or not found[2]:
        refuse("a range has no start, stop and step")
    return range(*found)


def _chosen(known: Any, names: str) -> _Form:
    """Make the form for layouts or memory formats, which are written by name."""
    by_name = {f"torch.{name}": getattr(torch, name) for name in names.split()}

    def read(what: Json) -> Any:
        if type(what) is not str or what not in by_name:
            refuse("there is a layout or memory format that torch does not know")
        return by_name[what]

    return _Form(known.__name__, known, lambda value: str(value) if str(value) in by_name else None, read)


class _Form(NamedTuple):
    """Writes and reads values of one class; `word` names the class in JSON. `write` returns None if it cannot write a value."""

    word: str
    cls: type
    write: Callable[[Any], Json]
    read: Callable[[Json], Any]


_ALL = (
    _Form(
        "complex",
        complex,
        lambda value: [repr(value.real), repr(value.imag)],
        lambda what: complex(*map(_part, items(what, "a complex number"))),
    ),
    _Form("bytes", bytes, _text_of, _bytes),
    _Form("bytearray", bytearray, _text_of, lambda what: bytearray(_bytes(what))),
    _Form("dtype", torch.dtype, lambda value: str(value)[6:], read_dtype),
    _Form("device", torch.device, str, read_device),
    _Form(
        "size", torch.Size, list, lambda what: torch.Size([number(one, "a size", -(2**62)) for one in items(what, "a size")])
    ),
    _Form("ellipsis", type(...), lambda value: True, lambda what: ...),
    _Form("range", range, lambda value: [value.start, value.stop, value.step], _range),
    _Form("other", Other, lambda value: value.type_name, lambda what: Other(text(what, "a class"))),
    _chosen(torch.layout, "strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc jagged"),
    _chosen(torch.memory_format, "contiguous_format channels_last channels_last_3d preserve_format"),
    _Form(
        "generator",
        torch.Generator,
        lambda value: _text_of(bytes(value.get_state().tolist())) if value.device.type == "cpu" else None,
        _generator,
    ),
    _Form(
        "machine_array",
        array,
        lambda value: [value.typecode, _text_of(value.tobytes())] if value.typecode != "u" else None,
        _machine_array,
    ),
)
_FORMS = {form.cls: form for form in _ALL}
_READ: dict[str, Callable[[Json], Any]] = {
    **{form.word: form.read for form in _ALL},
    "tensor": lambda what: TENSOR,
    "float": _float,
    "scalar": _scalar,
}


# Sparse, quantized, nested and meta tensors.
#
# Each is taken apart into strided tensors and a few facts, which are written. If a tensor could not be put together again,
# an error names it.

Form = tuple[dict[str, Any], dict[str, Tensor]]  # facts, and parts by name

_LAYOUTS = {str(layout)[6:]: layout for layout in SPARSE}


def parts_of(tensor: Tensor, what: str) -> Form | None:
    """The facts and strided tensors that a tensor is made of; None for a strided tensor, which is written as it is."""
    if tensor.is_nested:
        return _nested(tensor, what)
    if tensor.is_quantized:
        return _quantised(tensor, what)
    if tensor.device.type == "meta":
        shape, strides = list(tensor.shape), list(tensor.stride())
        return {"form": "meta", "dtype": str(tensor.dtype)[6:], "shape": shape, "strides": strides}, {}
    if tensor.layout is torch.strided:
        return None
    if type(tensor) is Tensor and tensor.layout in SPARSE:
        facts: dict[str, Any] = {"form": str(tensor.layout)[6:], "shape": list(tensor.shape)}
        if tensor.layout is torch.sparse_coo:
            facts["is_coalesced"] = tensor.is_coalesced()
        return facts, parts_of_sparse(tensor)
    raise _refused(tensor, what)


def _refused(tensor: Tensor, what: str) -> CannotBeSaved:
    return not_in_a_file(what, f"{type(tensor).__name__} ({tensor.dtype}, {tensor.layout})")


def not_in_a_file(what: str, kind: str) -> CannotBeSaved:
    """The error for a kind of tensor that no file can give back."""
    return CannotBeSaved(
        f"{what} is a {kind}, which no file can give back. Leave it out: activations= of save, or layers_to_save= of a log "
        "with save_to=, says which activations are written; parameters are written with params=True alone."
    )


def _nested(tensor: Tensor, what: str) -> Form:
    found = nested_parts(tensor)
    if found is None:
        raise _refused(tensor, what)
    facts, parts = found
    return {"form": "nested", **facts}, parts


def _quantised(tensor: Tensor, what: str) -> Form:
    scheme = tensor.qscheme()
    facts: dict[str, Any] = {"form": "quantised", "dtype": str(tensor.dtype)[6:]}
    if scheme is torch.per_tensor_affine and tensor.dtype in (torch.quint8, torch.qint8, torch.qint32):
        facts |= {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
        return facts, {"values": tensor.int_repr()}
    if scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams) and tensor.dtype is not torch.quint4x2:
        parts = {"values": tensor.int_repr(), "scales": tensor.q_per_channel_scales()}
        return facts | {"axis": tensor.q_per_channel_axis()}, parts | {"zero_points": tensor.q_per_channel_zero_points()}
    raise _refused(tensor, what)


# Reading ----------------------------------------------------------------------------------------------------------------


def put_together(facts: dict[str, Any], part: Callable[[str], Tensor]) -> Tensor:
    """Put a tensor together again from `parts_of`: `part(name)` reads a part."""
    form = text(facts.get("form"), "the form of a tensor")
    if form == "meta":
        shape, strides = sizes(facts.get("shape"), "a shape"), sizes(facts.get("strides"), "strides")
        return torch.empty_strided(shape, strides, dtype=read_dtype(facts.get("dtype")), device="meta")
    names = fields(facts.get("parts"), "the parts of a tensor")

    def read(key: str) -> Tensor:
        return part(text(names.get(key), "a part of a tensor"))

    if form == "quantised":
        return _read_quantised(facts, read)
    if form == "nested":
        return nested_from_parts(facts, {key: read(key) for key in names})
    shape = sizes(facts.get("shape"), "a shape")
    if form not in _LAYOUTS:
        refuse(f"a tensor has an unknown form, {form[:40]!r}")
    layout = _LAYOUTS[form]
    is_coalesced = flag(facts.get("is_coalesced"), "whether a tensor is coalesced") if layout is torch.sparse_coo else None
    return sparse_of_parts(layout, {key: read(key) for key in SPARSE[layout]}, shape, is_coalesced)


def _read_quantised(facts: dict[str, Any], read: Callable[[str], Tensor]) -> Tensor:
    dtype = read_dtype(facts.get("dtype"))
    if "axis" in facts:
        axis = number(facts["axis"], "an axis", 0, 64)
        return quantised_from_parts(read("values"), dtype, (read("scales"), read("zero_points"), axis))
    scale, zero = real(facts.get("scale"), "a scale"), number(facts.get("zero_point"), "a zero point", -(2**31), 2**31)
    return quantised_from_parts(read("values"), dtype, (scale, zero))
