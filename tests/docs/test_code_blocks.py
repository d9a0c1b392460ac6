"""The code blocks of the documentation and the quickstart run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.transcripts import normal

pytestmark = pytest.mark.docs

BLOCK = re.compile(r"(?:<!-- (not run|needs): ([^>]+) -->\n)?```(python|sh)\n(.*?)```", re.DOTALL)
"""A block of code. ``<!-- needs: torch -->`` before it names a package without which it is not run."""
SHOWN = re.compile(r"```python\n[^`]*```\n\n```text\n(.*?)```", re.DOTALL)
"""The output that follows a program; lines may be left out."""
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]
SHELL = 'set -eu\nzarrasync() { "$PYTHON" -m zarrasync "$@"; }\n'


def blocks_of(page, language, packages=()):
    return [
        code
        for note, text, name, code in BLOCK.findall(page.read_text())
        if name == language and (not note or (note == "needs" and text in packages))
    ]


def needed_packages():
    found = {(page, text) for page in PAGES for note, text, _, _ in BLOCK.findall(page.read_text()) if note == "needs"}
    return sorted(found)


def run(command, directory):
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(blocks, directory):
    (directory / "page.py").write_text("\n".join(blocks))
    return run([sys.executable, "-W", "error", "page.py"], directory)


def id_of(page):
    return str(page.relative_to(ROOT).with_suffix(""))


def is_plain(page):
    """Return whether a page has code, but no outputs of commands, which ``test_transcripts`` runs and compares."""
    text = page.read_text()
    return BLOCK.search(text) is not None and "```console\n$ " not in text


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.smoke] * (page.name == "README.md")) for page in PAGES if is_plain(page)],
    ids=id_of,
)
def test_code_blocks_run(page, tmp_path):
    """All Python blocks of a page, in one process and an empty directory; then its shell blocks. They print what the page shows."""
    if python := blocks_of(page, "python"):
        printed = normal(run_python(python, tmp_path)).splitlines()
        shown = [line for text in SHOWN.findall(page.read_text()) for line in normal(text).splitlines()]
        assert [line for line in shown if line not in printed] == []
    if shell := blocks_of(page, "sh"):
        (tmp_path / "page.sh").write_text(SHELL + "\n".join(shell))
        run(["bash", "page.sh"], tmp_path)


@pytest.mark.parametrize(("page", "package"), needed_packages())
def test_blocks_with_other_packages_run(page, package, tmp_path):
    pytest.importorskip(package, reason=f"{package} is not installed, which code in {page.name} needs")
    run_python(blocks_of(page, "python", [package]), tmp_path)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "getting-started.md"], ids=id_of
)
def test_first_programs_can_be_run_again(page, tmp_path):
    for _ in range(2):
        run_python(blocks_of(page, "python"), tmp_path)


def test_quickstart(tmp_path):
    pytest.importorskip("global_land_mask")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Done in" in done.stdout
    assert done.stdout.count("as in the source") == 4
    assert (tmp_path / "land.png").stat().st_size > 50_000
