"""The common parts of the benchmark scripts: command lines, processes of engines, tables and result files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
HERE = Path(__file__).parent
MEASUREMENTS = HERE.parent / "docs" / "measurements" / "measurements.json"
"""The results that the documentation contains, by section. ``pages.py`` writes them into the pages."""
PACKAGES = {"zarrasync": "zarrasync", "zarr-python": "zarr", "zarrista": "zarrista", "tensorstore": "tensorstore"}


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


def parse_publishable(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the arguments of a script whose results can be written into the documentation, if they are complete."""
    parser.add_argument("--write-docs", action="store_true", help="write the results into the documentation")
    args = parser.parse_args()
    if args.write_docs and any(getattr(args, name, None) for name in ("only", "tasks", "engines")):
        parser.error("--write-docs needs the results of all rows and engines: omit --only, --tasks, and --engines")
    if args.write_docs and (missing := PACKAGES.keys() - _versions().keys()):
        parser.error(f"--write-docs needs all libraries; not installed: {', '.join(sorted(missing))}")
    return args


def machine() -> str:
    """Return a description of this machine."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if "model name" in line), model)
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"{os.cpu_count()} cores, {model}, {platform.system()}, {versions}"


def _versions() -> dict[str, str]:
    """Return the versions of the installed libraries."""
    versions = {}
    for name, package in PACKAGES.items():
        try:
            versions[name] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def columns(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of all engines in rows."""
    return list(dict.fromkeys(name for row in rows.values() for name in row))


def _public(value: Any) -> Any:
    """Return results with four digits per number, without logs, and without the messages of failures."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_public(item) for item in value]
    if isinstance(value, dict):
        return {name: name == "failed" or _public(item) for name, item in value.items() if name != "log"}
    return value


def _lines(value: Any, depth: int = 0) -> str:
    """Return JSON with one line per row of a section."""
    if depth == 3 or not isinstance(value, dict | list) or not value:
        return json.dumps(value, ensure_ascii=False)
    indent = " " * depth
    if isinstance(value, list):
        items, (begin, end) = [_lines(item, depth + 1) for item in value], "[]"
    else:
        items, (begin, end) = [f"{json.dumps(name)}: {_lines(item, depth + 1)}" for name, item in value.items()], "{}"
    return f"{begin}\n{indent} " + f",\n{indent} ".join(items) + f"\n{indent}{end}"


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


def installed(workers: Sequence[EngineProcess], *, all_needed: bool) -> list[EngineProcess]:
    """Return the processes whose engine could be imported. If all are needed, end unless these are all."""
    for worker in workers:
        if not worker.is_installed:
            print(f"{worker.name}: not installed ({worker.hello})")
    found = [worker for worker in workers if worker.is_installed]
    if all_needed and len(found) < len(workers):
        for worker in workers:
            worker.kill()
        raise SystemExit("--write-docs needs all engines")
    return found


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


def save(args: argparse.Namespace, name: str, render: Callable[[dict[str, Any]], str], results: dict[str, Any]) -> None:
    """Print results and write them to files, and with ``--write-docs`` into the documentation.

    Args:
        args: The arguments of the script.
        name: The name of the files and of the section of the documented measurements.
        render: Returns the results as Markdown.
        results: ``rows``, and further facts that pages name. ``versions`` replaces the versions of the libraries.
    """
    facts = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "versions": _versions()}
    section = {**facts, **results}
    args.out.mkdir(parents=True, exist_ok=True)
    text = render(section)
    print(text)
    (args.out / f"{name}.md").write_text(f"{text}\n")
    (args.out / f"{name}.json").write_text(json.dumps(section, indent=1))
    if getattr(args, "write_docs", False):
        sections = json.loads(MEASUREMENTS.read_text())
        MEASUREMENTS.write_text(f"{_lines({**sections, name: _public(section)})}\n")
        # Other sections may follow, so that a sentence that is no longer true must not end the measurements.
        subprocess.run([sys.executable, str(HERE / "pages.py")], check=False)


def remove(target: str, s3: dict[str, Any]) -> None:
    """Erase the result of a run: a directory, or keys in a bucket."""
    if not s3:
        shutil.rmtree(target, ignore_errors=True)
        return
    from zarrasync import stores
    from zarrasync._concurrency.bridge import run

    store = stores.resolve(target, s3)
    run(store.erase_prefix(""), blocking=store.blocking)
