"""`summary_of`: a table with one row per module, chosen columns and totals. Also `slowest` and `largest` operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from .._text import Column, ShownTable, Table, describe_shapes, human_size, human_time, plural
from .._torch.functions.facts import Origin
from .._torch.inputs import is_whole
from ..errors import InvalidArgument
from ..log.param import Param, not_counted, own_params
from ..log.run import HoldsRun, Index, run_of
from .calls import FactsOf, calls_of
from .cost import Cost, Expense, sum_of
from .memory import Storages

_ROWS_SHOWN = 400
_NOT_CALLED = "not called"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the values of a column are printed, and whether its rows add up to the column's total."""

    text: Callable[[Any], str]
    is_number: bool = True
    adds_up: bool = True
    missing: str = "unknown"  # text for None

    def words(self, value: Any) -> str:
        return self.missing if value is None else self.text(value)


def count_of(value: int) -> str:
    """A count as text, with three digits and a unit: `1.23 G`."""
    size = float(value)
    if size < 1000:
        return str(value)
    for unit in ("k", "M", "G", "T", "P"):
        size /= 1000
        if size < 999.5 or unit == "P":
            break
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def _number(value: int) -> str:
    return f"{value:,}" if value else "–"


COLUMNS: dict[str, _Kind] = {
    "calls": _Kind(lambda value: str(value or _NOT_CALLED), adds_up=False, missing=""),
    "in": _Kind(describe_shapes, is_number=False, adds_up=False),
    "out": _Kind(describe_shapes, is_number=False, adds_up=False),
    "params": _Kind(_number),
    "trainable": _Kind(_number),
    "flops": _Kind(count_of),
    "total flops": _Kind(count_of, adds_up=False),
    "macs": _Kind(count_of),
    "backward flops": _Kind(count_of),
    "self time": _Kind(human_time),
    "time": _Kind(human_time, adds_up=False),
    "self backward time": _Kind(human_time),
    "backward time": _Kind(human_time, adds_up=False),
    "memory": _Kind(human_size, adds_up=False, missing=""),
    "%": _Kind(lambda value: f"{value:.1f}"),
}
_TOTALS = frozenset({"time", "total flops", "backward time"})  # columns that include submodules
_BACKWARD_TIMES = frozenset({"self backward time", "backward time"})
# In print, these columns show a module's sum over all modules inside it.
_SUBTOTALS = frozenset(
    {"params", "trainable", "flops", "macs", "backward flops", "memory", "%", "time", "total flops", "backward time"}
)
_EXTRA = frozenset({"in", "out", "calls"})  # columns that are left out if the screen has no room
_SCREEN = 33  # largest number of rows of a table that fits a screen of forty lines
_FORM = ("calls", "in", "out", "params", "flops", "memory")  # modules are equal only if these columns are equal
DEFAULT_COLUMNS = ("calls", "in", "out", "params", "flops", "time", "memory")


class Summary(ShownTable):
    """A table with a row per module. `print` shows text, `to_rows()` returns the numbers, `totals` the column totals.

    In print, a container shows the sums of all modules inside it. Consecutive equal modules are one row, followed by what is
    inside the first of them.
    """

    def __init__(
        self, rows: list[dict[str, Any]], tree: _Tree, totals: dict[str, Any], notes: list[str], *, folds: bool, fits: bool
    ) -> None:
        self._rows = rows
        self._tree = tree
        self._notes = notes
        self._is_folded = folds
        self._is_cut = fits  # True: print only as many levels as fit a screen
        self.totals = totals

    def to_rows(self) -> list[dict[str, Any]]:
        """One dictionary per row: the module's address and class, and a plain value for each column."""
        return [dict(row) for row in self._rows]

    @property
    def table(self) -> Table:
        """The printed table as cells."""
        names = list(self.totals)
        lines, notes = self._lines()
        summed = {name: self._tree.subtotals([row[name] for row in self._rows], name) for name in names if name in _SUBTOTALS}
        body = [
            (
                title,
                self._rows[at]["class"],
                *(COLUMNS[name].words(summed[name][at] if name in summed else self._rows[at][name]) for name in names),
            )
            for title, at in lines
        ]
        kinds = {name: COLUMNS[name] for name in names if COLUMNS[name].adds_up or name in _TOTALS}
        last = ("total", "", *(kinds[name].words(self.totals[name]) if name in kinds else "" for name in names))
        cut = len(body) - _ROWS_SHOWN
        heads = (Column(name, COLUMNS[name].is_number, name in _EXTRA) for name in names)
        more = f"… {plural(cut, 'row')} more …" if cut > 0 else ""
        return Table([Column("module"), Column("class"), *heads], body[:_ROWS_SHOWN], last, more, [*self._notes, *notes])

    def _lines(self) -> tuple[list[tuple[str, int]], list[str]]:
        """Return the printed lines, each as (title, number of its row), and notes about rows that are not printed."""
        deepest = max(self._tree.levels, default=0)
        lines = self._tree.lines(self._is_folded, deepest)
        depth = deepest
        while self._is_cut and len(lines) > _SCREEN and depth > 1:
            depth -= 1
            lines = self._tree.lines(self._is_folded, depth)
        notes = []
        if any(_EQUAL in title for title, _ in lines):
            notes.append("Equal modules are one row, with the figures of each; fold=False shows all.")
        if depth < deepest:
            notes.append(f"Deeper modules count for what contains them; depth={deepest} shows all.")
        return lines, notes


_EQUAL = " equal)"


class _Tree:
    """The tree of a summary's rows. For each row: its name, its level, and a form that is equal for equal modules."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.levels: list[int] = []
        self._own: list[object] = []
        self._children: list[list[int]] = []
        self._tops: list[int] = []

    def add(self, name: str, level: int, form: object) -> None:
        at = len(self.names)
        self.names.append(name)
        self.levels.append(level)
        self._own.append(form)
        self._children.append([])
        around = next((one for one in range(at - 1, -1, -1) if self.levels[one] < level), None)
        (self._tops if around is None else self._children[around]).append(at)

    def subtotals(self, values: list[Any], name: str) -> list[Any]:
        """Add to each row's value the values of all rows inside it. For memory, only modules without submodules count."""
        sums = list(values)
        for at in range(len(sums) - 1, -1, -1):
            inside = [sums[child] for child in self._children[at]]
            if name in _TOTALS:
                inside = [] if values[at] else inside  # a list of modules is not called: its time is that of the modules in it
            own = [] if name == "memory" and any(one is not None for one in inside) else [values[at]]
            parts = [*own, *inside]
            known = [one for one in parts if one is not None]
            sums[at] = sum(known) if len(known) == len(parts) or any(known) else None  # 0 with an unknown part is unknown
        return sums

    def _is_numbered(self, at: int) -> bool:
        """True for a module of a list, such as `layers.0`."""
        return self.names[at].isdecimal()

    def lines(self, folds: bool, deepest: int) -> list[tuple[str, int]]:
        """The printed lines, down to a level."""
        forms: list[object] = list(self._own)
        for at in range(len(forms) - 1, -1, -1):
            forms[at] = (self._own[at], *(forms[child] for child in self._children[at]))
        found: list[tuple[str, int]] = []

        def write(rows: list[int], indent: str, outer: str) -> None:
            groups = [list(group) for _, group in groupby(rows, lambda at: forms[at] if self._is_numbered(at) else at)]
            groups = groups if folds else [[at] for at in rows]
            for number, group in enumerate(groups, 1):
                at, is_last = group[0], number == len(groups)
                is_top = self.levels[at] == 0
                branch = "" if is_top else indent + ("└─ " if is_last else "├─ ")
                name = self.names[at]
                if len(group) > 1:
                    first, last = (_within(self.names[one], outer) for one in (at, group[-1]))
                    name = f"{first} … {last} ({len(group)}{_EQUAL}"
                found.append((branch + name, at))
                if self.levels[at] < deepest:
                    write(self._children[at], "" if is_top else indent + ("   " if is_last else "│  "), self.names[at])

        write(self._tops, "", "")
        return found


def _within(name: str, outer: str) -> str:
    """Prefix a module's name with the name of the module or list around it, `layers.0`; not with the name of the model."""
    return f"{outer}.{name}" if outer != "(model)" else name


def summary_of(
    history: HoldsRun, columns: Iterable[str] = DEFAULT_COLUMNS, *, depth: int | None = None, fold: bool = True
) -> Summary:
    """A table with a row per module: shapes, parameters, FLOPs, time, memory.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> history = torcheer.log_forward_pass(model, torch.ones(2, 4))
    >>> print(summary_of(history, ["calls", "out", "params", "flops"]))
    module   class       calls  out     params  flops
    ───────  ──────────  ─────  ──────  ──────  ─────
    (model)  Sequential      1  (2, 8)      40    144
    ├─ 0     Linear          1  (2, 8)      40    128
    └─ 1     ReLU            1  (2, 8)       –     16
    ───────  ──────────  ─────  ──────  ──────  ─────
    total                                   40    144

    Args:
        columns: any of `calls`, `in`, `out`, `params`, `trainable`, `flops`, `total flops`, `macs`, `backward flops`,
            `self time`, `time`, `self backward time`, `backward time`, `memory` (bytes of the module's output) and `%`
            (of all FLOPs), in the order wanted.
        depth: how many levels of modules to show. Deeper modules count for the module that contains them. None: all, and in
            print as many as fit a screen of forty lines.
        fold: equal modules in a row are printed as one row: `layers.0 … layers.31 (32 equal)`. False prints every module.

    In print, a module has the sums of all below it. A row of `to_rows()` has the figures of the module without its submodules,
    so its columns add up; only `total flops`, `time` and `backward time` include submodules. A parameter that several modules
    share counts for the first of them. Backward time is summed over all recorded backward passes (`save_gradients`). Unknown
    figures print as "unknown", and are None in `to_rows()`.
    """
    wanted = (columns,) if isinstance(columns, str) else tuple(dict.fromkeys(columns))
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown or not wanted:
        named = f"no column is called {', '.join(map(repr, unknown))}" if unknown else "no column was asked for"
        raise InvalidArgument(f"{named}. The columns are {', '.join(map(repr, COLUMNS))}.")
    if depth is not None and not is_whole(depth, 0):
        raise InvalidArgument(f"depth must be a whole number of levels, 0 for the model alone, or None for all; got {depth!r}.")
    if not isinstance(fold, bool):
        raise InvalidArgument(f"fold is True or False; got {fold!r:.60}.")
    return _Table(run_of(history).index, wanted, depth, fold).summary()


class _Table:
    def __init__(self, index: Index, columns: tuple[str, ...], depth: int | None, fold: bool) -> None:
        self.index = index
        self.columns = columns
        self.depth = depth
        self.fold = fold
        self.cost = Cost(index)
        self.rows: list[dict[str, Any]] = []
        self.tree = _Tree()
        self._counted: set[str] = set()
        self._not_made = 0  # number of parameters of lazy modules that did not run

    def summary(self) -> Summary:
        for address, module in self.index.log.registered.items():
            if module.is_root:
                self._add(address, 0)
        total = self.cost.total
        left = self.cost.elsewhere
        if left.flops or left.seconds or left.backward_seconds or left.unknown or left.untimed or not self.rows:
            nowhere: dict[str, Any] = {"calls": None, "in": [], "out": [], "memory": None}
            self._append("(in no module)", 0, "", "", (0, 0), left, left, nowhere)
        totals = {name: self._total(name, total) for name in self.columns}
        fits = self.depth is None and self.fold
        return Summary(self.rows, self.tree, totals, self._notes(), folds=self.fold, fits=fits)

    def _total(self, name: str, total: Expense) -> Any:
        if name in _TOTALS:
            return _figures(total, total)[name]
        known = [row[name] for row in self.rows if row[name] is not None]
        return (sum(known) if known else None) if COLUMNS[name].adds_up else None

    def _notes(self) -> list[str]:
        notes = [
            f"{what} unknown for {plural(sum(counts.values()), 'call')}, counted nowhere: {_names(counts)}"
            for what, counts in (("FLOPs", self.cost.unknown), ("Time", self.cost.untimed))
            if counts
        ]
        if self._not_made and not {"params", "trainable"}.isdisjoint(self.columns):
            notes.append(
                f"Size unknown for {plural(self._not_made, 'parameter')} of lazy modules that did not run, counted nowhere"
            )
        if not _BACKWARD_TIMES.isdisjoint(self.columns) and self.cost.backward_seconds is None:
            notes.append(
                "Backward time unknown: no backward pass was followed. Log with save_gradients=True, then call "
                "history.log_backward(loss)."
            )
        return notes

    def _add(self, address: str, level: int) -> None:
        is_last_level = self.depth is not None and level >= self.depth
        index, cost = self.index, self.cost
        inside = index.modules_inside(address) if is_last_level else [address]
        params = self._params(inside)
        own = sum_of([cost.module(one).own for one in inside])
        calls = index.calls.get(address, ())
        given, made = (
            [index.shown(numbers) for numbers in ends] for ends in ([c.inputs for c in calls], [c.outputs for c in calls])
        )
        facts = {
            "calls": len(calls),
            "in": [[index.record(n).shape for n in numbers] for numbers in given],
            "out": [[index.record(n).shape for n in numbers] for numbers in made],
            "memory": sum(map(index.tensor_bytes, chain.from_iterable(made))) if any(made) else None,
        }
        name = address.rpartition(".")[2] or "(model)"
        self._append(
            name, level, address, index.log.registered[address].class_name, params, own, cost.module(address).total, facts
        )
        children = [] if is_last_level else index.module_children[address]
        for child in children:
            self._add(child, level + 1)

    def _append(
        self,
        name: str,
        level: int,
        address: str,
        kind: str,
        params: tuple[int | None, int | None],
        own: Expense,
        total: Expense,
        facts: dict[str, Any],
    ) -> None:
        values = {**facts, "params": params[0], "trainable": params[1], **_figures(own, total)}
        flops = self.cost.total.flops
        is_known = values["flops"] is not None and (flops or not self.cost.total.unknown)
        values["%"] = (100 * own.flops / flops if flops else 0.0) if is_known else None
        self.tree.add(name, level, repr((kind, [values[one] for one in _FORM])))
        self.rows.append({"module": address, "class": kind, **{name: values[name] for name in self.columns}})

    def _params(self, addresses: Sequence[str]) -> tuple[int | None, int | None]:
        """The number of parameter elements that were not counted for an earlier row: all of them, and the trainable ones.

        None if none of these parameters has a shape yet (lazy modules).
        """
        new = not_counted((param for address in addresses for param in own_params(self.index, address)), self._counted)
        self._not_made += sum(param.is_uninitialized for param in new)
        return _sum_of_made(new), _sum_of_made([param for param in new if param.is_trainable])


def _figures(own: Expense, total: Expense) -> dict[str, Any]:
    """The figures of a row: `own` without submodules, `total` with them; None for a figure that is wholly unknown."""
    return {
        "flops": own.flops or (None if own.unknown else 0),
        "total flops": total.flops or (None if total.unknown else 0),
        "macs": own.macs or (None if own.unknown else 0),
        "backward flops": own.backward_flops or (None if own.unknown else 0),
        "self time": own.seconds or (None if own.untimed else 0.0),
        "time": total.seconds or (None if total.untimed else 0.0),
        "self backward time": own.backward_seconds,
        "backward time": total.backward_seconds,
    }


def _sum_of_made(params: list[Param]) -> int | None:
    made = [param.numel for param in params if not param.is_uninitialized]
    return sum(made) if made or not params else None


def _names(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in counts.most_common())


def slowest(history: HoldsRun, n: int = 10) -> list[Any]:
    """The operations that took longest, slowest first. For a call that made several tensors: its first operation.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.Linear(4, 8), torch.ones(2, 4))
    >>> [one.label for one in slowest(history, 1)]
    ['linear_1_1']
    """
    index = run_of(history).index
    calls = calls_of(index.log, FactsOf(index.log), index.length)
    shown = [(call.elapsed, next((k for k in call.numbers if index.table.shows(k)), None)) for call in calls if call.elapsed]
    found = sorted(((elapsed, number) for elapsed, number in shown if number is not None), reverse=True)
    return [Index.operation(index, number) for _, number in found[: _positive(n)]]


def largest(history: HoldsRun, n: int = 10) -> list[Any]:
    """The operations with the largest tensors, largest first; views and in-place results have no memory of their own.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.Linear(4, 8), torch.ones(2, 4))
    >>> [(one.label, one.tensor_fsize) for one in largest(history, 2)]
    [('linear_1_1', 64), ('input_1_0', 32)]
    """
    index = run_of(history).index
    facts = FactsOf(index.log)
    storages = Storages(index.log, facts, index.length)
    shown = [k for k in index.operations if storages.is_fresh(k) and index.record(k).origin is not Origin.OUTPUT]
    found = sorted(shown, key=lambda number: (-facts.bytes(number), number))
    return [Index.operation(index, number) for number in found[: _positive(n)]]


def _positive(n: int) -> int:
    if not is_whole(n, 0):
        raise InvalidArgument(f"n must be a whole number, how many operations to return; got {n!r}.")
    return n
