"""The meaning of stored numbers has one home: other modules ask it, and do not read the attributes themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import zarrasync

PACKAGE = Path(zarrasync.__file__).parent
NAMES = {"_FillValue", "missing_value", "scale_factor", "add_offset", "calendar", "_Unsigned"}
HOME = "metadata/conventions/cf"
VIEWS = ("server/", "cli/", "display/", "nodes/statistics.py")
OTHER_MEANINGS = {
    ("model/dtypes.py", "scale_factor"),  # of NumPy's times in documents of format 3
    ("server/edr_documents.py", "calendar"),  # of reference systems in CoverageJSON
}


def literals(path: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_no_other_module_names_the_attributes():
    found = {
        (name, literal)
        for path in PACKAGE.rglob("*.py")
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(HOME)
        for literal in literals(path) & NAMES
    }
    assert found - OTHER_MEANINGS == set()


def test_the_home_names_all_of_them():
    assert set().union(*(literals(path) for path in PACKAGE.glob(f"{HOME}*.py"))) >= NAMES


def test_views_read_no_attributes():
    """They ask the encoding of an array. The pages of the viewer contain no names of attributes either."""
    files = [path for path in PACKAGE.rglob("*.*") if path.relative_to(PACKAGE).as_posix().startswith(VIEWS)]
    sources = {
        path.relative_to(PACKAGE).as_posix(): path.read_text() for path in files if path.suffix in (".py", ".js")
    }
    readers = ("cf_attributes", *(f'"{name}"' for name in NAMES), *(f".{name}" for name in NAMES - {"calendar"}))
    found = {(name, word) for name, text in sources.items() for word in readers if word in text}
    found -= {(name, f'"{word}"') for name, word in OTHER_MEANINGS}
    assert len(sources) > 50
    assert found == set()
