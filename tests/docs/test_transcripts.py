"""Pages that show the output of their commands: the commands print what the pages show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
pytest.importorskip("netCDF4")
from tests.support import ROOT
from tests.support.transcripts import normal

BLOCK = re.compile(r"```(console|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "```console\n$ " in page.read_text()]
MARK = "@@@@"
pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(os.name != "posix" or shutil.which("bash") is None, reason="the pages have commands for Bash"),
]


class Step(NamedTuple):
    """A command with the output that the page shows, or a Python program.

    Attributes:
        code: The command or the program.
        output: The output on the page.
        start: The position of the output in the page.
        stop: The position after the output.
        is_python: Whether it is a program.
    """

    code: str
    output: str
    start: int
    stop: int
    is_python: bool = False


def steps_of(text: str) -> Iterator[Step]:
    """Yield the commands and programs of a page."""
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            shows = block[3] is not None
            yield Step(block[2], block[3] or "", block.start(3) if shows else -1, block.end(3), is_python=True)
            continue
        commands = list(re.finditer(r"^\$ (.*)\n", block[2], re.MULTILINE))
        ends = [command.start() for command in commands[1:]] + [len(block[2])]
        for command, end in zip(commands, ends, strict=True):
            start = block.start(2)
            yield Step(command[1], block[2][command.end() : end], start + command.end(), start + end)


def run(steps: list[Step], directory: Path) -> list[str]:
    """Run the steps in one shell, and return their outputs."""
    (directory / "bin").mkdir()
    program = directory / "bin" / "zarrasync"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zarrasync "$@"\n')
    program.chmod(0o755)
    work = directory / "work"
    work.mkdir()
    script = []
    for number, step in enumerate(steps):
        code = step.code
        if step.is_python:
            (directory / f"{number}.py").write_text(code)
            code = f'"{sys.executable}" -W error "{directory}/{number}.py"'
        is_background = code.endswith("&")
        script.append(f"{code}\ncode=$?; [ $code -eq 0 ] || echo [exit code $code]" if not is_background else code)
        script.append(f"echo {MARK}")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout.split(f"{MARK}\n")[: len(steps)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path):
    """``ZARRASYNC_WRITE=1`` rewrites the outputs of the page for review."""
    text = page.read_text()
    if "import icechunk" in text:
        pytest.importorskip("icechunk", "2", reason="the page shows repositories that several processes write to")
    steps = list(steps_of(text))
    outputs = run(steps, tmp_path)
    assert len(outputs) == len(steps), outputs
    if os.environ.get("ZARRASYNC_WRITE"):
        written = text
        for step, output in reversed(list(zip(steps, outputs, strict=True))):
            if step.start >= 0 and normal(output) != normal(step.output):
                written = written[: step.start] + output + written[step.stop :]
        page.write_text(written)
    for step, output in zip(steps, outputs, strict=True):
        if step.start >= 0:
            assert normal(output) == normal(step.output), step.code
        else:
            assert output == "", step.code
