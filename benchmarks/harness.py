"""The common parts of the benchmark scripts: command lines, processes of engines, tables and result files."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["EngineProcess", "add_hidden", "make_parser", "markdown_table", "medians", "ram_disk", "rotate", "save"]

T = TypeVar("T")
HERE = Path(__file__).parent


def make_parser(
    doc: str | None, *, only: Collection[str] = (), engines: Collection[str] = (), rounds: int = 0
) -> argparse.ArgumentParser:
    """Return a parser with the options that the scripts have in common.

    Args:
        doc: The docstring of the script, whose first line is the description.
        only: Choices for ``--only``, the rows to measure.
        engines: Choices for ``--engines``.
        rounds: Default for ``--rounds``.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "out", help="the directory for results")
    if only:
        parser.add_argument("--only", nargs="*", choices=list(only), help="the rows to measure")
    if engines:
        parser.add_argument("--engines", nargs="*", choices=list(engines), help="the engines to measure")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="the number of rounds, whose median counts")
    return parser


def add_hidden(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options that a script passes to its own processes."""
    for name in names:
        parser.add_argument(name, help=argparse.SUPPRESS)


def ram_disk(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory on a RAM disk if there is one, so that the page cache does not matter."""
    shm = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None, prefix=f"zarrasync-{prefix}-")


class EngineProcess:
    """A process that runs one engine: it prints a JSON line when it is ready, and one for each line that it reads.

    Args:
        name: The name of the engine.
        command: The command that starts the process.
        environment: Additional environment variables of the process.

    Attributes:
        hello: Its first line, with the version of the engine or the reason why it cannot run.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.hello = self._read()

    @property
    def is_installed(self) -> bool:
        """Whether the engine could be imported."""
        return not {"missing", "failed"} & self.hello.keys()

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, and return the response."""
        if self._process.poll() is not None:
            return {"failed": "the process ended"}
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"failed": "the process ended"}

    def kill(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def rotate(items: Sequence[T], number: int) -> list[T]:
    """Return items in another order for each round, as the first one pays for fresh memory."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def medians(results: Sequence[dict[str, Any]], keys: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the medians of several results by key, or the first failure."""
    failure = next((result for result in results if "failed" in result), None)
    if failure is not None:
        return {"failed": failure["failed"]}
    return {key: statistics.median(result[key] for result in results) for key in keys or results[0]}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, labels: int = 1) -> str:
    """Return a Markdown table.

    Args:
        head: The titles of the columns.
        rows: The cells of each row.
        labels: How many columns are aligned to the left. The others contain numbers.
    """
    lines = [" | ".join(head), "---|" * labels + "--:|" * (len(head) - labels)]
    return "\n".join([f"| {lines[0]} |", f"|{lines[1]}", *(f"| {' | '.join(row)} |" for row in rows)])


def save(out: Path, name: str, table: str, data: Any) -> None:
    """Print a table, and write it and the results to files."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(f"{table}\n")
    (out / f"{name}.json").write_text(json.dumps(data, indent=1))
    print(table)


def remove(target: str, s3: dict[str, Any]) -> None:
    """Erase the result of a run: a directory, or keys in a bucket."""
    if not s3:
        shutil.rmtree(target, ignore_errors=True)
        return
    from zarrasync import stores
    from zarrasync._concurrency.bridge import run

    store = stores.resolve(target, s3)
    run(store.erase_prefix(""), blocking=store.blocking)
