"""Arguments that commands share, parsers of their values, and the nodes, executors and monitors that they select."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast
from zipfile import ZipFile

from zarrasync import stores, sync
from zarrasync._concurrency.bridge import run
from zarrasync._util.redact import redact
from zarrasync.cli.console import Console, error_line, options_of, typed_places
from zarrasync.display.presentation import Presentation
from zarrasync.display.progress import JobProgress, Monitor, ProgressLike
from zarrasync.display.report import REPORT_FILES, FailedJob, JobReport
from zarrasync.indexing.parse import parse_selection
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.conventions import axis_names
from zarrasync.nodes.access import array_encoding
from zarrasync.stores.pipelines import is_pipeline
from zarrasync.stores.zip_format import is_archive_name

FORMATS: dict[str, int | str] = {"2": 2, "3": 3, "3-draft": "3-draft", "3-draft-2022": "3-draft-2022"}
CommandFunction = Callable[[argparse.Namespace, Console], int]
"""Runs a command and returns its exit code."""


class RedactingParser(argparse.ArgumentParser):
    """A parser whose messages contain no passwords of URLs."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit with a message."""
        super().exit(status, None if message is None else redact(message))


class CommandParser(RedactingParser):
    """A parser that accepts options also between positional arguments: ``attrs get data.zarr --path t2m units``."""

    _is_parsing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # argparse has overloads
        if self._is_parsing or any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions):
            return super().parse_known_args(args, namespace)
        self._is_parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parsing = False

    def error(self, message: str) -> NoReturn:
        """Exit with one line about the usage, and one about the error."""
        names = [str(action.metavar or action.dest).upper() for action in self._actions if not action.option_strings]
        usage = f"usage: {self.prog} {' '.join(names)} [options]    (see {self.prog} --help)"
        self.exit(2, f"{usage}\n{self.prog}: error: {message}\n")


class Commands:
    """Adds commands with the arguments that all commands have.

    Args:
        subparsers: The object that ``add_subparsers`` returned.
    """

    def __init__(self, subparsers: Any) -> None:
        self._subparsers = subparsers

    def __call__(
        self,
        name: str,
        text: str,
        run: CommandFunction,
        *,
        examples: Sequence[str] = (),
        as_json: bool = True,
        of_node: bool = True,
    ) -> argparse.ArgumentParser:
        """Add a command.

        Args:
            name: The name.
            text: A short description.
            run: Runs the command.
            examples: Examples for the help.
            as_json: Whether the command can print JSON.
            of_node: Whether its first argument is the URL of a node or a file.
        """
        title = "examples:" if len(examples) > 1 else "example:"
        parser: argparse.ArgumentParser = self._subparsers.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog="\n".join([title, *(f"  zarrasync {example}" for example in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(run=run, json=False, parser=parser)
        if of_node:
            parser.add_argument("url", help="a path or URL")
            parser.add_argument("--path", default="", help="the node's path in the store")
        text = "a storage option, such as anon=true (may be repeated)"
        parser.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help=text)
        parser.add_argument(
            "--allow-target",
            dest="option",
            action="append",
            type=_target,
            metavar="URL",
            help="a URL or directory that references may lead to; '*' for all (repeatable)",
        )
        if as_json:
            parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return parser

    def group(self, name: str, text: str) -> Commands:
        """Add a group of commands, such as ``attrs`` with ``attrs get`` and ``attrs set``."""
        parser = self._subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
        return Commands(subparsers)


def add_destination(command: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that writes to another store."""
    command.add_argument("dest", help="the path or URL to write")
    command.add_argument("--dest-path", default="", help="the node's path in the destination")
    add_several(command, "--dest-option", "NAME=VALUE", "its storage options")
    command.add_argument("--overwrite", action="store_true", help="replace an existing node")
    command.add_argument("--verify", action="store_true", help="read all values back and compare them")


def add_several(command: Any, name: str, metavar: str, text: str) -> None:
    """Add an option that may be repeated, to a parser or a group of options."""
    command.add_argument(name, action="append", default=[], metavar=metavar, help=text)


def add_layout(command: argparse.ArgumentParser, default: str, to: str) -> None:
    """Add the arguments of a command that may change format, chunks and compressors, with their defaults."""
    command.add_argument("--zarr-format", choices=FORMATS, help=f"the Zarr format to write (default: {to})")
    add_shapes(command, default)


def add_shapes(command: argparse.ArgumentParser, default: str) -> None:
    """Add the arguments of a command that may change chunks and compressors, with their default."""
    command.add_argument("--chunks", type=shape, default=default, metavar="N,N,…", help="the shape of chunks")
    command.add_argument("--shards", type=shape, default=default, metavar="N,N,…", help="the shape of shards, or none")
    command.add_argument("--compressor", type=codec, default=default, help="a codec's name or JSON entry, or none")


def is_local_archive(path: str) -> bool:
    """Return whether a destination is a ZIP archive of this machine, which may not exist yet."""
    return is_archive_name(path) and "://" not in path and not os.path.isdir(path)


def check_destination(args: argparse.Namespace) -> None:
    """Exit if the destination is a file that cannot contain nodes."""
    if os.path.isfile(args.dest) and not is_local_archive(args.dest):
        args.parser.error(f"the destination {args.dest!r}, the last argument, is a file")


@contextmanager
def destination(args: argparse.Namespace) -> Iterator[Any]:
    """Yield the destination: a path or URL, or the store of a ZIP archive, which is created if necessary."""
    path = args.dest
    if is_pipeline(path) and not args.dest_option:
        store = stores.resolve(path)
        try:
            yield store
        finally:
            run(store.close(), blocking=store.blocking)
        return
    if not is_local_archive(path):
        check_destination(args)
        yield path
        return
    existed = os.path.exists(path)
    archive = stores.ZipStore(path, mode="a" if existed else "w")
    try:
        yield archive
    finally:
        run(archive.close(), blocking=True)
        if not existed and os.path.exists(path) and not ZipFile(path).namelist():  # nothing was written
            os.remove(path)


def shape(text: str) -> Any:
    """Parse ``512,512`` as a shape, ``none`` as ``None``, and ``keep`` and ``auto`` as themselves.

    ``time=24,lat=90`` is a mapping of dimensions to sizes, and JSON such as ``{"t2m": {"time": 24}}`` any mapping.
    """
    if text in ("keep", "auto", "none"):
        return None if text == "none" else text
    try:
        if text.startswith("{"):
            return json.loads(text)
        if "=" in text:
            return {name: int(size) for name, size in (part.split("=") for part in text.split(","))}
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a shape N,N,… or DIM=N,DIM=N,…, found {text!r}") from None


def count(text: str, least: int = 0) -> int:
    """Parse a number of at least 0, or of at least another one."""
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a number of at least {least}, found {text!r}")
    return int(text)


levels = partial(count, least=1)


def seconds(text: str) -> float:
    """Parse a duration of at least 0 seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds of at least 0, found {text!r}")
    return value


def port(text: str) -> int:
    """Parse the number of a port; 0 for a free one."""
    number = count(text)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"a port must be at most 65535, found {number}")
    return number


def codec(text: str) -> Any:
    """Parse a codec's name, its JSON entry, or ``none``."""
    try:
        return None if text == "none" else json.loads(text) if text.startswith("{") else text
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None


def _target(text: str) -> str:
    """Return the storage option for a place that references may lead to."""
    return f"allow_targets={json.dumps([text])}"


def options(items: Sequence[str]) -> dict[str, object] | None:
    """Parse ``NAME=VALUE`` as storage options. Values may be true, false, or JSON objects and lists.

    Raises:
        ValueError: If an option is invalid.
    """
    values: dict[str, object] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            found = f", found {item!r}" if item in _FLAGS else "; one has no name or no value"
            raise ValueError(f"a storage option must be NAME=VALUE{found}")
        try:
            parsed = json.loads(value) if value[:1] in ("{", "[") else _LITERALS.get(value.lower(), value)
        except json.JSONDecodeError as error:
            raise ValueError(f"the value of the storage option {name!r} is not JSON: {error}") from None
        if name == "allow_targets" and isinstance(parsed, list):
            parsed = [*cast(list[object], values.get(name, [])), *parsed]
        values[name] = parsed
    return values or None


_LITERALS: dict[str, object] = {"true": True, "false": False}
_FLAGS = frozenset({"anon", "requester_pays", "use_ssl"})
"""Options that are easily written without a value. Others may be secrets."""


def open_node(args: argparse.Namespace, mode: Any = "r") -> sync.Array | sync.Group:
    """Open the node that the arguments specify."""
    return sync.open(args.url, path=args.path, mode=mode, storage_options=options(args.option))


def arrays_of(args: argparse.Namespace) -> list[tuple[str, sync.Array]]:
    """Open the array that the arguments specify, or all arrays below the group, with their names."""
    node = open_node(args)
    if isinstance(node, sync.Array):
        return [(node.name, node)]
    return [(f"/{name}", member) for name, member in node.members(None) if isinstance(member, sync.Array)]


def add_raw(command: argparse.ArgumentParser) -> None:
    """Add the argument of commands that show values."""
    command.add_argument(
        "--raw", action="store_true", help="use the stored numbers instead of the values that they stand for"
    )


def presentation_of(
    args: argparse.Namespace, array: sync.Array, siblings: Mapping[str, ArrayMetadata] | None = None
) -> Presentation:
    """Return how to show the stored numbers of an array.

    Args:
        args: The arguments of the command.
        array: The array.
        siblings: The arrays of its group by name, if they are known.
    """
    encoding = run(array_encoding(array.async_, siblings), blocking=array.store.blocking)
    return Presentation(encoding, decode=not args.raw)


def presented_arrays(args: argparse.Namespace) -> list[tuple[str, sync.Array, Presentation]]:
    """Open the array that the arguments specify, or all arrays below the group, with their names and how to show them."""
    arrays = arrays_of(args)
    if len(arrays) == 1:
        return [(name, array, presentation_of(args, array)) for name, array in arrays]
    groups: dict[str, dict[str, ArrayMetadata]] = {}
    for _, array in arrays:
        groups.setdefault(array.path.rpartition("/")[0], {})[array.basename] = array.metadata
    return [
        (name, array, presentation_of(args, array, groups[array.path.rpartition("/")[0]])) for name, array in arrays
    ]


def select(array: sync.Array, text: str) -> sync.Selection:
    """Select a part of an array by a selection written as a string."""
    view: sync.Selection = array.view[parse_selection(text, array.shape, axis_names(array.metadata))]
    return view


def add_executor(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the options that choose where a job runs: ``--processes`` and ``--scheduler``, for ``executor_of``.

    Args:
        parser: The parser of a command.
        verb: What the command does.
    """
    add_processes(parser, verb)
    parser.add_argument("--scheduler", metavar="ADDRESS", help=f"{verb} on the dask cluster at this address")


def add_processes(parser: argparse._ActionsContainer, verb: str) -> None:
    """Add the option ``--processes``, which is 0 for threads of this process.

    Args:
        parser: The parser of a command, or a group of its arguments.
        verb: What the command does.
    """
    parser.add_argument(
        "--processes", type=count, default=0, metavar="N", help=f"{verb} in N processes (default: threads)"
    )


@contextmanager
def executor_of(args: argparse.Namespace) -> Iterator[Any]:
    """Yield the argument ``executor``: a client of dask, a number of processes, or ``None``."""
    if args.scheduler:
        distributed: Any = import_module("distributed")  # untyped
        with distributed.Client(args.scheduler) as client:
            yield client
    else:
        yield args.processes or None


# ------------------------------------------------------------------ progress, reports, metrics and spans


def add_monitoring(command: argparse.ArgumentParser) -> None:
    """Add the options for progress, the report, metrics and spans, which ``monitored`` reads."""
    command.add_argument("--quiet", action="store_true", help="show no progress")
    command.add_argument(
        "--report", type=_report_file, metavar="FILE", help="also write the report to a file: .html, .json or .txt"
    )
    command.add_argument(
        "--metrics",
        type=_file_or_port,
        metavar="FILE|PORT",
        help="write Prometheus metrics to a file, or serve them on a port of this machine",
    )
    command.add_argument("--spans", action="store_true", help="make OpenTelemetry spans")


class Watch(Monitor):
    """The monitors of a job, and its report.

    Attributes:
        progress: What the job gets as ``progress``.
        report: The report of the job; ``None`` before the job has one.
    """

    def __init__(self, monitors: Sequence[Any]) -> None:
        self.progress: ProgressLike = [*monitors, self]
        self.report: JobReport | None = None

    def ended(self, job: JobProgress, error: BaseException | None) -> None:
        if job.parent is None and job.report is not None:
            self.report = job.report


@contextmanager
def monitored(args: argparse.Namespace) -> Iterator[Watch]:
    """Watch a job inside a ``with`` block, and write the report to the file that the options name.

    The report of a failed job contains the error and the completed work.

    Raises:
        ImportError: If a package for metrics or spans is not installed.
    """
    watch = Watch(_monitors(args))
    try:
        yield watch
    except BaseException as error:
        if args.report is not None:
            text = (
                "interrupted"
                if isinstance(error, KeyboardInterrupt)
                else error_line(error, typed_places(args), options_of(args))
            )
            try:
                FailedJob(text, watch.report).save(args.report)
            except OSError as failure:
                error.add_note(f"the report could not be written: {failure}")
        raise
    if args.report is not None and watch.report is not None:
        watch.report.save(args.report)


def _monitors(args: argparse.Namespace) -> list[Any]:
    monitors: list[Any] = [] if args.quiet else [True]
    if args.metrics is not None:
        from zarrasync.integrations.monitoring import PrometheusMonitor

        if isinstance(args.metrics, int):
            from prometheus_client import REGISTRY, start_http_server

            monitors.append(PrometheusMonitor(REGISTRY))
            start_http_server(args.metrics, "127.0.0.1")
        else:
            monitors.append(PrometheusMonitor(file=args.metrics))
    if args.spans:
        from zarrasync.integrations.monitoring import OpenTelemetryMonitor

        monitors.append(OpenTelemetryMonitor())
    return monitors


def _report_file(text: str) -> str:
    if Path(text).suffix.lower() not in REPORT_FILES:
        raise argparse.ArgumentTypeError(f"expected a file that ends in {', '.join(REPORT_FILES)}, found {text!r}")
    return _new_file(text)


def _file_or_port(text: str) -> str | int:
    return port(text) if text.isdigit() else _new_file(text)


def _new_file(text: str) -> str:
    """Return the path of a file to write, whose directory must exist before a long job begins."""
    if not Path(text).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"the directory of {text!r} does not exist")
    return text
