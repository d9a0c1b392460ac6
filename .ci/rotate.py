"""Run tests in CI: those of the packages that a change touches in full, and a part of the others that rotates.

    .venv/bin/python .ci/rotate.py [--share N] [--most N] [options of pytest]

The part is drawn by the hash of the commit, so that a commit always has the same one, and the next commit another. Of the
tests of touched packages and this part, at most N run (220 by default), drawn in the same way, so that a change of many
packages takes minutes as well. The change begins at the commit that ZARRASYNC_BASE names, or else four hours before the
last commit.

A test outside of the touched packages that fails is run again with the code of the base. If it fails there as well, it is
reported, and does not block the change.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEFORE = 4 * 3600


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def find_base() -> str:
    """Return the commit before the change."""
    if name := os.environ.get("ZARRASYNC_BASE"):
        return git("rev-parse", f"{name}^{{commit}}")
    earlier = int(git("log", "-1", "--format=%ct")) - BEFORE
    return git("rev-list", "-1", f"--before={earlier}", "HEAD") or git("rev-list", "--max-parents=0", "HEAD").split()[0]


def touched_directories(base: str) -> list[str]:
    """Return the directories of tests for the packages that differ from a commit, such as ``tests/stores``."""
    found = set()
    for name in git("diff", "--name-only", base).splitlines():
        parts = Path(name).parts
        if parts[0] in ("zarrasync", "tests") and len(parts) > 2 and (ROOT / "tests" / parts[1]).is_dir():
            found.add(f"tests/{parts[1]}")
    return sorted(found - {"tests/support"})


def run_pytest(python: str, root: Path, options: list[str]) -> tuple[int, list[str]]:
    """Run pytest in a checkout. Return its exit code, and the tests that failed."""
    with tempfile.TemporaryDirectory() as cache:
        command = [python, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
        command += ["-o", f"cache_dir={cache}", *options]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        code = subprocess.run(command, cwd=root, env=environment, check=False).returncode
        failures = Path(cache) / "v" / "cache" / "lastfailed"
        return code, sorted(json.loads(failures.read_text())) if failures.exists() else []


def fails_before(tests: list[str], base: str) -> list[str]:
    """Return which tests also fail with the code of another commit."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git("worktree", "add", "--quiet", "--detach", str(before), base)
        try:
            existing = [test for test in tests if (before / test.partition("::")[0]).exists()]
            return run_pytest(sys.executable, before, existing)[1] if existing else []
        finally:
            git("worktree", "remove", "--force", str(before))


def main() -> int:
    parser = argparse.ArgumentParser(prog=".ci/rotate.py", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--share", type=int, default=10, metavar="N", help="run one test out of N of untouched packages"
    )
    parser.add_argument("--most", type=int, default=220, metavar="N", help="run at most N tests")
    args, options = parser.parse_known_args()
    base, head = find_base(), git("rev-parse", "HEAD")
    touched = touched_directories(base)
    print(f"The change since {base[:9]} touches {', '.join(touched) or 'no package'}.")
    print(
        f"Of the other tests, one out of {args.share} runs, drawn by {head[:9]}; at most {args.most} tests.", flush=True
    )
    options += [
        f"--share={args.share}",
        f"--most={args.most}",
        f"--draw={head}",
        *(f"--whole={directory}" for directory in touched),
    ]
    code, failed = run_pytest(sys.executable, ROOT, options)
    if code in (0, 5):  # 5: no test was chosen
        return 0
    blocking = [test for test in failed if test.startswith(tuple(f"{directory}/" for directory in touched))]
    others = [test for test in failed if test not in blocking]
    earlier = fails_before(others, base) if others else []
    for test in earlier:
        print(f"This test also fails with {base[:9]}, before the change, and does not block it: {test}")
    blocking += [test for test in others if test not in earlier]
    for test in blocking:
        print(f"Repeat with: make test PYTEST_ADDOPTS={shlex.quote(shlex.quote(test))}")
    return 1 if blocking or not failed else 0


if __name__ == "__main__":
    sys.exit(main())
