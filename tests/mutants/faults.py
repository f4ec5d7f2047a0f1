"""Which faults can be put into a file, and the text of the file with one of them in it."""

from __future__ import annotations

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

_OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One change to one file."""

    file: str  # relative to src
    function: str  # the qualified name of what it is in; "" at the top of the file
    line: int
    text: str  # of that line, without its indentation
    start: int  # offsets in the file's text
    stop: int
    before: str
    after: str

    @property
    def folder(self) -> str:
        parts = Path(self.file).parts
        return parts[1] if len(parts) > 2 else parts[0] if parts[0] != "torcheer" else "torcheer"

    @property
    def key(self) -> tuple[str, ...]:
        """What stays the same when lines move."""
        return self.file, self.function, self.text, self.before, self.after

    def applied(self, text: str) -> str:
        assert text[self.start : self.stop] == self.before
        return text[: self.start] + self.after + text[self.stop :]

    def __str__(self) -> str:
        before, after = (" ".join(part.split())[:70] for part in (self.before, self.after))
        return f"{self.file}:{self.line} {self.function}: {before}  ->  {after}"


def choose(sources: Path, count: int, seed: int, only: str = "") -> list[Fault]:
    """`count` faults in as many lines. A line's chance follows from its text, so a change elsewhere leaves the choice as it is.

    `only` is the beginning of a path inside the package: `capture/`, or `xray/store.py`.
    """
    by_line: dict[tuple[str, int], list[Fault]] = defaultdict(list)
    for path in sorted(sources.rglob("*.py")):
        file = path.relative_to(sources).as_posix()
        if file.removeprefix("torcheer/").startswith(only):
            for fault in faults_in(path.read_text(), file):
                by_line[fault.file, fault.line].append(fault)
    seen: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for faults in by_line.values():
        line = (faults[0].file, faults[0].function, faults[0].text)
        seen[line] += 1
        chance = random.Random("\n".join((str(seed), *line, str(seen[line]))))
        ranked.append((chance.random(), chance.choice(faults)))
    ranked.sort(key=lambda pair: pair[0])
    return sorted((fault for _, fault in ranked[:count]), key=lambda fault: (fault.file, fault.line))


def faults_in(text: str, file: str) -> Iterator[Fault]:
    """Every fault that can be put into this file."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()
    encoded = [line.encode() for line in lines]

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(encoded[line - 1][:column].decode())

    for node, function, replacement in _replacements(ast.parse(text), ""):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, stop = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        yield Fault(file, function, node.lineno, lines[node.lineno - 1].strip(), start, stop, text[start:stop], replacement)


def _replacements(node: ast.AST, function: str) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Nodes below this one, the function each is in, and what to write instead of it."""
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, function)


def _visit(node: ast.AST, function: str) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        inner = f"{function}.{node.name}" if function else node.name
        for part in (*node.body, *(() if isinstance(node, ast.ClassDef) else node.args.defaults)):
            yield from _visit(part, inner)
    elif isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return  # wordings, and what only the type checker needs
    elif isinstance(node, ast.keyword) and node.arg == "strict":
        return  # of zip: an assertion
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from _visit(node.value, function)
    else:
        yield from _here(node, function)
        yield from _replacements(node, function)


def _here(node: ast.AST, function: str) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """What can be written instead of this node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _OTHER[type(node.ops[0])]()
        yield node, function, f"({ast.unparse(ast.Compare(node.left, [other], node.comparators))})"
    elif isinstance(node, ast.BoolOp):
        yield node, function, f"({ast.unparse(ast.BoolOp(_OTHER[type(node.op)](), node.values))})"
    elif isinstance(node, ast.BinOp) and type(node.op) in _OTHER:
        yield node, function, f"({ast.unparse(ast.BinOp(node.left, _OTHER[type(node.op)](), node.right))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, function, f"bool({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, function, str(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, function, str(node.value + 1 if node.value < 1000 else 0)  # one more hardly changes a large limit
    elif isinstance(node, ast.If):
        yield node.test, function, "False"
        yield node.test, function, "True"
    elif isinstance(node, ast.IfExp):
        yield node, function, f"({ast.unparse(node.orelse)})"
        yield node, function, f"({ast.unparse(node.body)})"
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield node, function, "return None"
    elif isinstance(node, (ast.Continue, ast.Break, ast.AugAssign)) or _is_call(node):
        yield node, function, "pass"
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield test, function, "True"


def _is_call(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
