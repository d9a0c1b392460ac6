"""Drawing of faults: a turned comparison, a number that is off by one, or a call that is dropped."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.planting import PACKAGE

__all__ = ["Fault", "draw_faults"]

_GENERATED = {"sync.py", "_util/generate_sync.py"}
_TURNED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


class Fault(NamedTuple):
    """A fault that can be planted.

    Attributes:
        operator: What was changed: ``comparison``, ``off by one``, or ``dropped call``.
        module: The file, relative to the package.
        line: The number of the changed line when the fault was drawn.
        old: Lines that occur once in the file.
        new: What replaces them.
        equivalent: Why no test can find it, if the code behaves in the same way with it.
    """

    operator: str
    module: str
    line: int
    old: str
    new: str
    equivalent: str = ""


class _Change(NamedTuple):
    operator: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def draw_faults(seed: int, count: int) -> list[Fault]:
    """Return faults in different modules, as many of each operator as possible. A seed gives the same ones again."""
    choice = random.Random(seed)
    candidates: dict[str, list[Fault]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module not in _GENERATED:
            for fault in _faults_of(path, module):
                candidates.setdefault(fault.operator, []).append(fault)
    drawn: list[Fault] = []
    while len(drawn) < count:
        operator = sorted(candidates)[len(drawn) % len(candidates)]
        fault = choice.choice(candidates[operator])
        if all(fault.module != other.module for other in drawn):
            drawn.append(fault)
    return drawn


def _faults_of(path: Path, module: str) -> Iterator[Fault]:
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    for change in _changes(ast.parse(source)):
        first, last = change.start[0] - 1, change.end[0]
        before = lines[first].encode()[: change.start[1]].decode()
        after = lines[last - 1].encode()[change.end[1] :].decode()
        new = f"{before}{change.text}{after}"
        while source.count("".join(lines[first:last])) != 1 and first:
            first -= 1
            new = lines[first] + new
        yield Fault(change.operator, module, change.start[0], "".join(lines[first:last]), new)


def _changes(tree: ast.AST) -> Iterator[_Change]:
    """Yield what can be changed inside of functions, where code runs when the library is used."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {child for function in functions for child in ast.walk(function) if child is not function}
    for function in functions:
        if function not in inner:
            for statement in function.body:
                for node in ast.walk(statement):
                    yield from _changes_of(node)


def _changes_of(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        turned = f"({ast.unparse(left)} {_TURNED[type(node.ops[0])]} {ast.unparse(right)})"
        yield _Change("comparison", *_span(node), turned)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _is_number(node.right):
        sign = "+" if isinstance(node.op, ast.Add) else "-"
        number = ast.literal_eval(node.right) + 1
        yield _Change("off by one", *_span(node), f"(({ast.unparse(node.left)}) {sign} {number})")
    elif isinstance(node, ast.Slice) and node.lower is not None and node.upper is not None and node.step is None:
        yield _Change("off by one", *_span(node.upper), f"({ast.unparse(node.upper)}) + 1")
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield _Change("dropped call", *_span(node), "pass")


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _span(node: ast.expr | ast.stmt) -> tuple[tuple[int, int], tuple[int, int]]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
