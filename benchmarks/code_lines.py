"""Count lines of code by package: lines with tokens, without docstrings, comments and blank lines.

python benchmarks/code_lines.py [PATH ...]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "zarrasync"
_BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the number of lines of code of a module."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _BLANK
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for number, statement in enumerate(body if isinstance(body, list) else []):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_text and isinstance(statement.value.value, str) and (number or isinstance(node, _DOCUMENTED)):
                lines -= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return len(lines)


def main(paths: list[str]) -> None:
    """Print the counts of the packages below some paths."""
    for path in map(Path, paths or [str(ROOT)]):
        counts: Counter[str] = Counter()
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            inner = file.relative_to(path).parts
            counts["/".join(inner[:-1][:1]) or "."] += code_lines(file.read_text())
        for name, count in sorted(counts.items()):
            print(f"{count:7,}  {path.name}/{name}")
        print(f"{counts.total():7,}  {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
