"""Where in the program something ran: the module that owns it, and the place within that module's code.

A module without parameters is treated as a function called where the module was called, so `self.act(x)` and `F.relu(x)` run
at the same kind of place. In

    def forward(self, x):           # of a model with parameters
        x = self.act(self.fc1(x))   # line A
        x = self.act(self.fc2(x))   # line B

the two `relu` calls are both line 1 of `nn.ReLU.forward`, but `act` has no parameters, so the model owns them, and their places
are "`act`, called from line A" and "`act`, called from line B".
"""

from __future__ import annotations

from torch import nn

from ...records import Log, ModuleCall
from ...source_places import CodeFacts, same_positions

_SEQUENTIAL = CodeFacts.of(nn.Sequential.forward.__code__)
_OUTSIDE = 0  # the chain of an operation that runs directly in its owner


def holders_of_parameters(log: Log) -> set[str]:
    """The addresses of modules that have parameters, their own or in a module below. Buffers do not count."""
    found: set[str] = set()
    for module in log.registered.values():
        if all(parameter is None for parameter in module.parameters.values()):
            continue
        for address in (module.address, *module.other_addresses):
            while address not in found:
                known = log.registered.get(address)
                found.add(address)
                if (known is not None and known.is_root) or not address:
                    break
                address = address.rpartition(".")[0]
    return found


class Owners:
    """By module call: the call that owns the operations in it. Grows with the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        # By number: the call itself or the nearest one around it of a module with parameters; else the call of the model.
        self.calls: list[ModuleCall | None] = []
        self.holders: set[str] = set()  # the addresses of modules that have parameters
        self._registered = -1

    def catch_up(self) -> None:
        """Take in the calls that are new in the log."""
        log = self._log
        if len(log.registered) != self._registered:
            self._registered = len(log.registered)
            self.holders = holders_of_parameters(log)
        for call in log.modules[len(self.calls) :]:
            if self.is_owner(call):
                self.calls.append(call)
            else:
                self.calls.append(self.calls[call.outer.number] if call.outer is not None else None)

    def is_owner(self, call: ModuleCall) -> bool:
        """Whether a call owns the operations in it: the module has parameters, or is the model."""
        return call.address in self.holders or not call.address

    def address(self, call: int) -> str | None:
        """The address of the module that owns the operations in a module call (-1: in no call)."""
        owner = self.calls[call] if call >= 0 else None
        return owner.address if owner is not None else None


class Places:
    """By module call: how it was reached from its owner. Grows with the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.owners = Owners(log)
        self.chains: list[int] = []  # a number for the modules without parameters on the way there, and where each was called
        self.sites: list[int] = [-1]  # by site: the first one at the same position of the source; -1 (no site) at the end
        self._known: dict[tuple[int, str, int, int], int] = {}
        self._turns: dict[tuple[int, str, int], int] = {}  # how often a Sequential ran the same module so far

    def catch_up(self) -> None:
        """Take in the calls and sites that are new in the log."""
        log = self._log
        if len(self.sites) != len(log.sites) + 1:
            self.sites = same_positions(log.sites)
        self.owners.catch_up()
        for call in log.modules[len(self.chains) :]:
            if self.owners.is_owner(call):
                self.chains.append(_OUTSIDE)
            else:
                outer = self.chains[call.outer.number] if call.outer is not None else _OUTSIDE
                site = self.sites[call.site.number] if call.site is not None else -1
                step = (outer, self._name(call), site, self._position(call))
                self.chains.append(self._known.setdefault(step, len(self._known) + 1))

    def within(self, address: str | None, site: int, call: ModuleCall | None) -> int:
        """The site in the module at `address` that led to `site` in `call`, however deep inside; -1 when it is outside."""
        while call is not None and call.address != address:
            site, call = call.site.number if call.site is not None else -1, call.outer
        return self.sites[site] if address is None or call is not None else -1

    def _name(self, call: ModuleCall) -> str:
        """The address of a module; for one that was made as the model ran, such as `nn.ReLU()(x)`, its class stands first."""
        root = self._log.root_of(call.address)
        if root is None or not root.is_made_running:
            return call.address
        return f"{root.class_name} made here{call.address[len(root.address) :]}"

    def _position(self, call: ModuleCall) -> int:
        """Which of its positions in an `nn.Sequential` a module runs for; 0 where it has one."""
        outer, site = call.outer, call.site
        if outer is None or site is None or not site.codes or site.functions[0] != _SEQUENTIAL:
            return 0
        registered = self._log.registered[call.address]
        positions = [a for a in (call.address, *registered.other_addresses) if a.rpartition(".")[0] == outer.address]
        if len(positions) < 2:
            return 0
        key = (outer.number, call.address, site.number)
        turn = self._turns[key] = self._turns.get(key, -1) + 1
        return turn % len(positions)
