"""Recording of the lines that each test executes, so that tests that do not execute a fault's line need not run.

As a plugin of pytest, this module keeps the tests of a choice, and begins with those that execute the fewest files.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from coverage.numbits import register_sqlite_functions

from tests.support import ROOT
from tests.support.planting import PACKAGE

__all__ = ["CHOICE", "record", "tests_of"]

FILE = ROOT / "artifacts" / "planted" / "coverage"
CHOICE = "ZARRASYNC_PLANTED_TESTS"
"""The environment variable with the path of a file that lists IDs of tests in JSON."""
_TESTS = """
select context, (select count(*) from line_bits as other where other.context_id = context.id) as files
from line_bits join context on context.id = context_id join file on file.id = file_id
where path = ? and context != '' and num_in_numbits(?, numbits) order by files
"""


def record() -> int:
    """Run the tests of ``make test`` once, with a context of coverage for each, and return pytest's exit code."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    command += ["--cov", "--cov-context=test", "--cov-report="]
    # sys.monitoring, which is the default since Python 3.14, cannot switch contexts.
    environment = {**os.environ, "COVERAGE_CORE": "ctrace", "COVERAGE_FILE": str(FILE)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def tests_of(module: str, lines: range) -> list[str]:
    """Return the IDs of the tests that execute one of the lines, those first that execute the fewest files.

    Raises:
        ValueError: If there is no recording, or if the module has changed since.
    """
    path = PACKAGE / module
    if not FILE.exists() or FILE.stat().st_mtime < path.stat().st_mtime:
        raise ValueError(f"no recording of {module} as it is now; run `python -m tests.planted record`")
    with closing(sqlite3.connect(FILE)) as connection:
        register_sqlite_functions(connection)
        contexts = [row[0] for line in lines for row in connection.execute(_TESTS, (str(path), line))]
    return list(dict.fromkeys(context.partition("|")[0] for context in contexts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if choice := os.environ.get(CHOICE):
        order = {test: place for place, test in enumerate(json.loads(Path(choice).read_text()))}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
