"""`Module`: a module of the model with its calls and parameters; `Modules`: all modules of a history, by address."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from .._text import ShownTable, Table
from .._torch.source_code import SourceLine
from ..errors import InvalidArgument, LayerNotFound
from ..log.keys import split_turn
from ..log.param import Param, describe_param, own_params
from ..log.records import RegisteredModule
from ..log.run import Index, named_once
from .attributes import Helpful, OfRecord
from .call import Call
from .drawing import draw_history
from .layer import Layer, add_common, agreed
from .operation import Operation
from .printing import describe_module, table_of_modules


class Module(OfRecord[RegisteredModule], Helpful):
    """One module of the model, called or not. It has the attributes of `Call` on which all its calls agree."""

    __slots__ = ()

    # Attributes on which all calls agree; documented in `Call`.
    label: str
    call_num: int
    training: bool
    source: SourceLine | None
    inputs: list[Operation]
    outputs: list[Operation]
    input_shapes: list[tuple[int, ...]]
    output_shapes: list[tuple[int, ...]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    own_operations: list[Operation]
    num_operations: int
    outer: Call | None
    inner: list[Call]
    containing_modules: list[str]

    @property
    def address(self) -> str:
        """The module's address in the model: `features.6`; empty for the model itself."""
        return self._record.address

    @property
    def other_addresses(self) -> list[str]:
        """Further addresses of the same module in the model."""
        return list(self._record.other_addresses)

    @property
    def name(self) -> str:
        """The last part of the module's address."""
        return self._record.address.rpartition(".")[2]

    @property
    def class_name(self) -> str:
        """The name of the module's class."""
        return self._record.class_name

    @property
    def depth(self) -> int:
        """The number of modules that contain this module."""
        return len(self._index.module_parents(self.address))

    @property
    def parent(self) -> Module | None:
        """The module that this module is registered in."""
        parents = self._index.module_parents(self.address)
        return Module(self._index, self._index.log.registered[parents[-1]]) if parents else None

    @property
    def children(self) -> list[Module]:
        """The modules registered in this module, in order."""
        registered = self._index.log.registered
        return [Module(self._index, registered[address]) for address in self._index.module_children[self.address]]

    @property
    def shared_children(self) -> dict[str, str]:
        """Maps names of submodules that were first registered elsewhere to their first addresses."""
        return self._index.shared_children.get(self.address, {})

    # Calls --------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """The calls of the module, in order."""
        return [Call(self._index, record) for record in self._index.calls.get(self.address, ())]

    @property
    def num_calls(self) -> int:
        """How many times the module was called."""
        return len(self._index.calls.get(self.address, ()))

    def __getitem__(self, number: int) -> Call:
        """Call `number`, from 1 as in `address:1`."""
        if not 1 <= number <= self.num_calls:
            raise IndexError(f"module {self.address!r} was called {self.num_calls} times; there is no call {number}.")
        return Call(self._index, self._index.calls[self.address][number - 1])

    @property
    def operations(self) -> list[Operation]:
        """Every operation that ran in any call of the module."""
        numbers = dict.fromkeys(one._number for call in self.calls for one in call.operations)
        return [Operation(self._index, number) for number in numbers]

    @property
    def layers(self) -> list[Layer]:
        """The layers of the operations that ran in the module."""
        entries = dict.fromkeys(self._index.layer(one._number) for one in self.operations)
        return [Layer(self._index, entry) for entry in entries]

    @property
    def is_bottom_level(self) -> bool:
        """True if exactly one operation ran in each call of the module, even if the module has submodules."""
        calls = self.calls
        return bool(calls) and all(call.is_bottom_level for call in calls)

    @property
    def time_elapsed(self) -> float:
        """Seconds of all calls of the module; a call inside another call of the same module is counted once."""
        return sum(call.time_elapsed for call in self.calls if not call._record.is_nested)

    def draw(
        self, path: str | os.PathLike[str] | IO[bytes] | IO[str] | None = None, *, format: str | None = None, **options: Any
    ) -> Any:
        """Draw this module, and its neighbours as stubs.

        Takes and returns what `history.draw` does; it is `history.draw(path, focus=address)`. The model itself is drawn whole.
        """
        if "focus" in options:
            raise InvalidArgument(
                f"module.draw() draws {self.address or 'the model'!r}; use history.draw(focus=…) for another."
            )
        if self.address and not self.num_calls:
            raise InvalidArgument(f"module {self.address!r} was not called: there is nothing to draw.")
        focus = {"focus": self.address} if self.address else {}
        return draw_history(self._index, path, format, {**options, **focus})

    # Parameters ---------------------------------------------------------------------------------------------------

    @property
    def own_params(self) -> list[Param]:
        """The parameters registered in this module itself."""
        return own_params(self._index, self.address)

    @property
    def params(self) -> list[Param]:
        """The parameters of the module and its submodules, each once."""
        inside = map(self._index.log.registered.__getitem__, self._index.modules_inside(self.address))
        return [describe_param(self._index, name, tensor) for name, tensor in named_once(inside, "parameters").items()]

    @property
    def buffers(self) -> list[Param]:
        """The buffers registered in this module itself."""
        return own_params(self._index, self.address, "buffers")

    @property
    def num_params(self) -> int:
        """How many parameter elements the module has, including submodules, each parameter counted once."""
        return sum(param.numel for param in self.params)

    @property
    def num_params_trainable(self) -> int:
        """How many parameter elements of the module require gradients."""
        return sum(param.numel for param in self.params if param.is_trainable)

    @property
    def num_params_frozen(self) -> int:
        """How many parameter elements of the module require no gradients."""
        return sum(param.numel for param in self.params if not param.is_trainable)

    @property
    def num_params_shared(self) -> int:
        """How many parameter elements of the module the model also has under another name."""
        return sum(param.numel for param in self.params if param.is_shared)

    @property
    def params_fsize(self) -> int:
        """The size in bytes of the module's parameters."""
        return sum(param.fsize for param in self.params)

    def _common(self, name: str) -> Any:
        calls = self.calls
        if not calls:
            raise AttributeError(f"module {self.address!r} was not called, so it has no {name}.")
        values = [getattr(call, name) for call in calls]
        return agreed(name, values, f"calls of {self.address!r}", [call.label for call in calls])

    @property
    def _key(self) -> str:
        return self.address

    def __str__(self) -> str:
        return describe_module(self)

    def __repr__(self) -> str:
        return f"<Module {self.address!r}: {self.class_name}, {self.num_calls} calls>"


add_common(Module, Call, Module.__annotations__)


class Modules(ShownTable, Mapping[str, Module]):
    """The modules of a history by address, in the order the model registers them. Prints as a table."""

    __slots__ = ("_index",)

    def __init__(self, index: Index) -> None:
        self._index = index

    def __getitem__(self, key: str) -> Module:
        """A module by any of its addresses; `'features.6:1'` means its first call, as `modules['features.6'][1]` does."""
        registered, others = self._index.log.registered, self._index.addresses.others
        name, number = split_turn(key) if isinstance(key, str) else (key, None)
        if number is None or others.get(key, key) in registered or others.get(name, name) not in registered:
            return Module(self._index, registered[self._index.address_of_module(key)])
        module = self[name]
        if 1 <= number <= module.num_calls:
            return module[number]  # type: ignore[return-value]  # typed as the module, which is what nearly all keys mean
        raise LayerNotFound(f"module {module.address!r} was called {module.num_calls} times, so there is no {key!r}.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.log.registered)

    def __len__(self) -> int:
        return len(self._index.log.registered)

    @property
    def roots(self) -> list[Module]:
        """The recorded models themselves: one, unless several models were recorded."""
        return [Module(self._index, record) for record in self._index.log.registered.values() if record.is_root]

    @property
    def calls(self) -> list[Call]:
        """Every module call, in the order they began."""
        return [Call(self._index, record) for record in self._index.log.modules]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    @property
    def table(self) -> Table:
        """The printed table as cells."""
        return table_of_modules(self)
