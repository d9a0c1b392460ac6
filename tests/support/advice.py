"""Advice in the messages of the package: finding it in the sources, and following it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zarrasync

__all__ = ["changes", "option_changes", "texts_with_advice"]

_SOURCES = Path(zarrasync.__file__).parent
_VALUE = r"'[^']*'|True|False|None|\d+|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\[[^\]…]*\]"
_CHANGE = re.compile(
    rf"\b(omit|without|instead of) (\w+)|\b(with )?([a-z]\w*)=({_VALUE})|, or ('\w+')(?: to|$)|, ('\w+') to"
)
_OPTION = re.compile(
    r"(instead of )?(?<![\w-])(--[a-z-]+)(?: (auto|skip|replace|report|\d+:\d+|[23]|[A-Z]?[a-z]*\d\w*))?"
)
_ADVICE = re.compile(
    r"\b(pass|use|omit|set|raise|lower|choose|with|run|or|open it|made?)\b[^;.]*?"
    r"((?<![\w-])--[a-z]|\b[a-z]\w*=(\{\}|['\[{\d…]|True|False)|\bconfig\.|`zarrasync )"
)


def texts_with_advice() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each string of the package whose advice names parameters, options or settings.

    Values in the text are ``{}``. Docstrings, and the help of commands, are left out.
    """
    for path in sorted(_SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        ignored: set[ast.AST] = set()
        for node in ast.walk(tree):
            name = getattr(getattr(node, "func", None), "attr", "") or getattr(getattr(node, "func", None), "id", "")
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                ignored.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                ignored |= {*ast.walk(node)} - {node}
            elif isinstance(node, ast.Call) and name in ("command", "add_argument", "commands", "group", "sub"):
                ignored |= {*ast.walk(node)}
        for node in ast.walk(tree):
            if node in ignored or not isinstance(node, ast.Constant | ast.JoinedStr):
                continue
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
            if path.name not in ("sync.py", "generate_sync.py") and _ADVICE.search(text):
                yield f"{path.relative_to(_SOURCES)}:{node.lineno}", text


def changes(message: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the options of each call that an error advises.

    Args:
        message: The message. Its last sentence contains the advice, such as ``pass mode='w' instead of append``.
        options: The options of the call that raised it.
    """
    found: list[dict[str, Any]] = []
    last = ""
    for match in _CHANGE.finditer(_advice_of(message)):
        verb, left_out, joined, name, value, *others = match.groups()
        other = next(filter(None, others), None)
        if verb == "instead of" and found:
            found[-1].pop(left_out, None)
        elif left_out in options:
            found.append({key: value for key, value in options.items() if key != left_out})
        elif name or (other and last):
            last = name or last
            base = found.pop() if joined and found else options
            found.append({**base, last: eval(value or other, {"slice": slice})})
    return found


def option_changes(message: str, words: list[str]) -> list[list[str]]:
    """Return the arguments of each command that an error of a command advises."""
    found: list[list[str]] = []
    for instead, option, value in _OPTION.findall(_advice_of(message)):
        if instead:
            found[-1].remove(option)
        else:
            found.append([*words, option, *([value] if value else [])])
    return found


def _advice_of(message: str) -> str:
    """Return the part of a message from the first verb in its last clause."""
    clause = message.rpartition(";")[2]
    verb = re.search(r"\b(pass|omit|use|open|locate|choose|ingest|write|read|select)\b", clause)
    return clause[verb.start() :] if verb else clause
