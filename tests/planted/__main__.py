"""Plant faults and see which test finds each.

python -m tests.planted draw     # draw the faults again from the current code, and write faults.json
python -m tests.planted find     # run `make test`'s tests with each fault, and print the test that found it
python -m tests.planted find --all --only indexing
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.planted import FILE, load
from tests.planted.draw import Fault, draw_faults
from tests.support import ROOT
from tests.support.planting import plant

SEED, COUNT = 20261126, 26
"""More faults than the twenty that must be found, because some cannot be observed."""


def write(count: int) -> None:
    """Draw faults and write them. Reasons why a fault cannot be observed are kept."""
    reasons = {(fault.module, fault.old): fault.equivalent for fault in load()} if FILE.exists() else {}
    drawn = [
        fault._replace(equivalent=reasons.get((fault.module, fault.old), "")) for fault in draw_faults(SEED, count)
    ]
    FILE.write_text(json.dumps([fault._asdict() for fault in drawn], indent=1) + "\n")


def find(fault: Fault, *options: str, is_near: bool = False) -> str:
    """Return the ID of a test that fails with a fault, or an empty string. Tests of the fault's package run first."""
    directories = [_nearest_tests(fault.module), *([] if is_near else [ROOT / "tests"])]
    with plant(fault.module, fault.old, fault.new) as environment, tempfile.TemporaryDirectory() as folder:
        for tests in directories:
            # Appending to sys.path keeps the copy of the package before the original.
            command = [
                sys.executable,
                "-m",
                "pytest",
                "--import-mode=append",
                f"--rootdir={ROOT}",
                "-q",
                "-x",
                "-n",
                "2",
            ]
            command += ["-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), *options, str(tests)]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 1, 2, 3, 5):
                raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
            if found := re.search(r"^(?:FAILED|ERROR) (.*)", done.stdout, re.MULTILINE):
                return "tests/" + found[1].partition(" - ")[0].rpartition("tests/")[2]
            if done.returncode in (2, 3):
                return "the tests cannot be collected"
    return ""


def _nearest_tests(module: str) -> Path:
    """Return the directory of tests that mirrors the package of a module."""
    directory = (ROOT / "tests" / module).parent
    while not directory.is_dir():
        directory = directory.parent
    return directory


def main() -> int:
    """Draw faults, or print a table of them; 1 if one was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["draw", "find"])
    parser.add_argument("--all", action="store_true", help="run the tests of all tiers")
    parser.add_argument("--near", action="store_true", help="run only the tests of the fault's package")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose module contains the text")
    args = parser.parse_args()
    if args.action == "draw":
        write(COUNT)
        return 0
    missed = 0
    print("| module | line | fault | found by | seconds |\n|---|--:|---|---|--:|")
    for fault in load():
        if args.only not in fault.module or fault.equivalent:
            continue
        begin = time.monotonic()
        found = find(fault, *(["--tier=all"] if args.all else []), is_near=args.near)
        missed += not found
        row = (fault.module, fault.line, fault.operator, found or "**not found**", f"{time.monotonic() - begin:.0f}")
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
