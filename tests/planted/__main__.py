"""Plant faults and see which test finds each.

python -m tests.planted draw           # draw the faults again from the current code, and write faults.json
python -m tests.planted record         # record which lines each test of `make test` executes; needed once, for find
python -m tests.planted find           # run those tests with each fault, and print the test that found it
python -m tests.planted find --all     # also run the tests of all tiers of the fault's package
python -m tests.planted find --only indexing
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from tests.planted import FILE, load
from tests.planted.draw import Fault, draw_faults
from tests.planted.recording import CHOICE, record, tests_of
from tests.support import ROOT
from tests.support.planting import PACKAGE, plant

SEED, COUNT = 20261126, 26
"""More faults than the twenty that must be found, because some cannot be observed."""
_FEW = 30
"""So many tests run first, in one process, because a file that is imported costs more than most tests."""


def write(count: int) -> None:
    """Draw faults and write them. Reasons why a fault cannot be observed are kept."""
    reasons = {(fault.module, fault.old): fault.equivalent for fault in load()} if FILE.exists() else {}
    drawn = [
        fault._replace(equivalent=reasons.get((fault.module, fault.old), "")) for fault in draw_faults(SEED, count)
    ]
    FILE.write_text(json.dumps([fault._asdict() for fault in drawn], indent=1) + "\n")


def find(fault: Fault, *, all_tiers: bool = False) -> str:
    """Return the ID of a test that fails with a fault and passes without it, or an empty string.

    First those tests of ``make test`` run that executed the line when they were recorded. If all pass, the tests of the
    fault's package run, because code that is cached, or that runs in another process, is recorded for no test.
    """
    tests = tests_of(fault.module, _changed_lines(fault))
    near = [str(_nearest_tests(fault.module)), *(["--tier=all"] if all_tiers else [])]
    failing_anyway: list[str] = []
    with plant(fault.module, fault.old, fault.new) as environment, tempfile.TemporaryDirectory() as folder:
        choice = Path(folder) / "choice.json"
        for chosen in (tests[:_FEW], tests[_FEW:], []):
            choice.write_text(json.dumps(chosen))
            files = sorted({str(ROOT / test.partition("::")[0]) for test in chosen})
            variables = {**environment, CHOICE: str(choice)} if chosen else environment
            arguments = ["-n", "0" if 0 < len(chosen) <= _FEW else "2", *(files if chosen else near)]
            while found := _run([*arguments, *(f"--deselect={test}" for test in failing_anyway)], variables, folder):
                if not _run(["-n", "0", str(ROOT / found)], os.environ, folder):
                    return found
                failing_anyway.append(found)
    return ""


def _run(arguments: list[str], environment: Mapping[str, str], folder: str) -> str:
    """Return the ID of the first test that fails, or an empty string."""
    # Appending to sys.path keeps the copy of the package before the original.
    command = [sys.executable, "-m", "pytest", "--import-mode=append", f"--rootdir={ROOT}", "-q", "-x"]
    command += ["-p", "no:cacheprovider", "-p", "tests.planted.recording", "-c", str(ROOT / "pyproject.toml")]
    command += arguments
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode in (0, 5):
        return ""
    if found := re.search(
        r"^(?:FAILED|ERROR) (?:\S*/)?(tests/\S+?\.py(?:::.*?)?)(?: - .*)?$", done.stdout, re.MULTILINE
    ):
        return found[1]
    raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])


def _changed_lines(fault: Fault) -> range:
    """Return the numbers of the lines that a fault changes, without equal lines before them."""
    source = (PACKAGE / fault.module).read_text()
    first = source[: source.index(fault.old)].count("\n") + 1
    pairs = zip_longest(fault.old.splitlines(), fault.new.splitlines())
    same = next(number for number, (old, new) in enumerate(pairs) if old != new)
    return range(first + same, first + fault.old.count("\n"))


def _nearest_tests(module: str) -> Path:
    """Return the directory of tests that mirrors the package of a module."""
    directory = (ROOT / "tests" / module).parent
    while not directory.is_dir():
        directory = directory.parent
    return directory


def main() -> int:
    """Draw faults, record tests, or print a table of the faults; 1 if one was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["draw", "record", "find"])
    parser.add_argument("--all", action="store_true", help="run the tests of the fault's package in all tiers")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose module contains the text")
    args = parser.parse_args()
    if args.action == "draw":
        write(COUNT)
        return 0
    if args.action == "record":
        return record()
    missed = 0
    print("| module | line | fault | found by | seconds |\n|---|--:|---|---|--:|")
    for fault in load():
        if args.only not in fault.module or fault.equivalent:
            continue
        begin = time.monotonic()
        found = find(fault, all_tiers=args.all)
        missed += not found
        row = (fault.module, fault.line, fault.operator, found or "**not found**", f"{time.monotonic() - begin:.0f}")
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
