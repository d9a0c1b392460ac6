"""Output of commands: tables and colours on a terminal, plain text for pipes, JSON, and errors as one line.

Errors name options of the command line instead of parameters, and paths as the user typed them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from zarrasync._util.redact import redact
from zarrasync.display.report import JobReport
from zarrasync.display.text import Table, printable, table_lines
from zarrasync.display.values import strict
from zarrasync.errors import ZarrError

INCOMPLETE = 3
"""The exit code of a command whose result lacks parts of the source that no option excludes."""


class Console:
    """The output of a command.

    Args:
        as_json: Whether to print JSON.
        translate: Translates reports, which name parameters of functions, for the command line.
    """

    def __init__(self, *, as_json: bool = False, translate: Callable[[str], str] = str) -> None:
        self.as_json, self._translate = as_json, translate
        self._rich = None if as_json else _terminal()

    def text(self, text: object) -> None:
        """Print one or more lines."""
        print(printable(str(text), lines=True))

    def data(self, value: Any) -> None:
        """Print a value as a JSON document."""
        print(json.dumps(strict(value), indent=2, ensure_ascii=not prints_unicode(), allow_nan=False))

    def result(self, value: Any, *lines: str) -> int:
        """Print the result of a successful command, as a JSON document or as lines, and return the exit code."""
        self.data(value) if self.as_json else self.text("\n".join(lines))
        return 0

    def report(self, report: JobReport) -> int:
        """Print a report, and return the exit code: ``INCOMPLETE`` if the result lacks parts of the source."""
        self.data(report.to_dict()) if self.as_json else self.text(self._translate(str(report)))
        return INCOMPLETE if report.losses() else 0

    def facts(self, items: Mapping[str, str]) -> None:
        """Print names and values."""
        items = {name: printable(text) for name, text in items.items()}
        if self._rich is None:
            width = max(map(len, items), default=0)
            self.text("\n".join(f"{name:<{width}} : {text}" for name, text in items.items()))
            return
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in items.items():
            table.add_row(name, Text(text))
        self._rich.print(table)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table. Columns whose name begins with ``>`` contain numbers."""
        table = Table(columns, [list(map(printable, row)) for row in rows])
        lines = table_lines(table)
        if self._rich is None or max(map(len, lines)) + 2 > self._rich.width:  # rich would wrap numbers
            self.text("\n".join(lines))
            return
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            justify: Any = "right" if name.startswith(">") else "left"
            grid.add_column(name.removeprefix(">"), justify=justify, overflow="fold")
        for line in table.rows:
            grid.add_row(*(Text(cell) for cell in line))
        self._rich.print(grid)

    def bars(self, labels: Sequence[str], counts: Sequence[int]) -> None:
        """Print a histogram with horizontal bars."""
        most, width = max(counts, default=0) or 1, max(map(len, labels), default=0)
        style = ("\x1b[36m", "\x1b[0m") if self._rich is not None else ("", "")
        for label, count in zip(labels, counts, strict=True):
            eighths = round(count / most * 40 * 8)
            bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
            print(f"{label:>{width}}  {style[0]}{bar}{style[1]} {count:,}")


def prints_unicode() -> bool:
    """Return whether any character can be printed."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") in ("utf8", "utf8sig")


def _terminal() -> Any:
    """Return the console of rich on a terminal with colours, if rich is installed."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console as Rich
    except ImportError:
        return None
    return Rich(highlight=False)


@contextmanager
def show_log(name: str) -> Iterator[None]:
    """Print messages of a logger to the standard error stream for the length of a block."""
    log, handler = logging.getLogger(name), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("zarrasync: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


# ------------------------------------------------------------------ errors and advice


_OPTIONS: tuple[tuple[str, str], ...] = (
    (r"the storage option anon=True", "-o anon=true"),
    (r"the storage option allow_targets=\[…\]", "--allow-target URL"),
    (r"\ball_files=True(?!\w)", "--all"),
    (r"\bcopy without all_files\b", "copy without --all"),
    (r"\b(append|decode|overwrite|resume|verify)=True(?!\w)", r"--\1"),
    (r"\binstead of (append|region)\b", r"instead of --\1"),
    (r"\bmode='w'(?!\w)", "--overwrite"),
    (r"\bon_(duplicate|gap|late)='(\w+)'", r"--on-\1 \2"),
    (r"\bon_bad_file='(\w+)'", r"--on-bad-file \1"),
    (r"\breserve='([^']*)'", r"--reserve '\1'"),
    (r"\bingest_files\(\)", "`zarrasync ingest`"),
    (r"\blabels='([^']*)'", r"--labels '\1'"),
    (r"\b(region|concat|engine|convention)='([\w-]+)'", r"--\1 \2"),
    (r"\bregion=\{'[^']*': slice\((\d+), (\d+)\)\}", r"--region \1:\2"),
    (r"\bregion=\{'[^']*': slice\(…\)\}", "--region A:B"),
    (r"\bvariables=\[[^\]]*\]", "--variable NAME"),
    (r"\bsource=FileOptions\(coordinate_tolerance=…\)", "--coordinate-tolerance X"),
    (r"\bsource=FileOptions\(ignore_attributes=\[.*?\]\)", "--ignore-attribute NAME"),
    (r"\bpreprocess=…", "--preprocess MODULE:FUNCTION"),
    (r"\blabels=…", "--labels PATTERN"),
    (r"\blabels=None", "--labels none"),
    (r"\bgroup=…", "--path PATH"),
    (r"\bpath='([^']*)'", r"--path \1"),
    (r"\bengine_options=(\{'filter_by_keys': \{.*?\}\})", r"--engine-option NAME=VALUE for \1"),
    (r"\bpass axes, such as '(\w+)'", r"pass --axes, such as \1"),
    (r"\b(pass|use) zarr_format='?([\w-]+)'?", r"\1 --zarr-format \2"),
    (r"\b(pass|use) zarr_format='?([\w-]+)'?", r"use `zarrasync convert` with the format \2"),
    (r"\bconsolidate_metadata\(\)", "`zarrasync consolidate`"),
)
"""Parameters of Python functions, and the options that replace them if the command has them."""
_SETTING = re.compile(r"\bconfig(?:=\{'(\w+)': '?(\w+)'?\}|\.(\w+))")
_ENCODING = re.compile(r"\bencoding=(\{.*?\}\})")
_NODE = re.compile(r"(?:(?<![\w/])(/[^\s',;]*|'/[^']*') (?:in|of) )?LocalStore\('([^']*)'\)")
"""A directory with a store, with or without a node in front of it."""


def error_line(
    error: BaseException,
    typed: Iterable[str] = (),
    options: Container[str] | None = None,
    secrets: Mapping[str, Any] | None = None,
) -> str:
    """Return an error as one line.

    Args:
        error: The error.
        typed: The arguments of the command, to name local files as the user has typed them.
        options: The options of the command; all commands if ``None``.
        secrets: Values that may contain credentials; see ``secrets_of``.
    """
    if isinstance(error, BaseExceptionGroup):
        return error_line(error.exceptions[0], typed, options, secrets)
    message = redact("; ".join((str(error), *getattr(error, "__notes__", ()))), secrets)
    text = " ".join(message.split()) or type(error).__name__
    if not isinstance(error, ZarrError | OSError | ValueError | TypeError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug shows more)"
    return for_shell(text, typed, options)


def for_shell(text: str, typed: Iterable[str] = (), options: Container[str] | None = None) -> str:
    """Return a message with options instead of parameters, and paths instead of stores.

    Args:
        text: The message.
        typed: The arguments of the command.
        options: The options of the command; all commands if ``None``.
    """

    def as_option(found: re.Match[str], template: str) -> str:
        option = found.expand(template)
        words = re.findall(r"(?<![\w-])--[a-z-]+", option)
        return option if options is None or all(word in options for word in words) else found[0]

    for pattern, template in _OPTIONS:
        text = re.sub(pattern, partial(as_option, template=template), text)
    text = _SETTING.sub(_variable, text)
    text = _ENCODING.sub(lambda found: f"--encoding FILE with {found[1]} in the file".replace("'", '"'), text)
    text = _NODE.sub(_path_of_node, text)
    relative = [word for word in typed if "://" not in word and not os.path.isabs(word)]
    places = {os.path.abspath(word): word.rstrip(os.sep) for word in relative}
    for directory, word in sorted(places.items(), key=lambda place: len(place[0]), reverse=True):
        text = re.sub(rf"(?<![\w/.-]){re.escape(directory)}(?![\w.-])", word.replace("\\", r"\\"), text)
    here = re.escape(os.getcwd().rstrip(os.sep) + os.sep)
    return re.sub(rf"(?<![\w/.-]){here}(?=\w)", "", text) if relative else text


def _path_of_node(found: re.Match[str]) -> str:
    """Return the path of a node of a local store."""
    return f"{found[2]}{(found[1] or '').strip(chr(39))}".rstrip("/") or "/"


def _variable(found: re.Match[str]) -> str:
    """Return the environment variable of a setting."""
    name, value, alone = found.groups()
    variable = f"ZARRASYNC_{(name or alone).upper()}"
    return f"the environment variable {variable}={value.lower()}" if name else variable


def options_of(args: argparse.Namespace) -> Container[str]:
    """Return the options of a command."""
    return {option for action in args.parser._actions for option in action.option_strings}  # noqa: SLF001  # has no public list


def secrets_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a command that may contain credentials: storage options by name, and URLs."""
    words = [word for value in vars(args).values() for word in (value if isinstance(value, list) else [value])]
    texts = [word for word in words if isinstance(word, str)]
    pairs = [text.partition("=") for text in texts if "=" in text]
    options = [{name: _leaves(value)} for name, _, value in pairs]
    return {"options": options, "urls": [text for text in texts if "://" in text]}


def _leaves(value: str) -> Any:
    """Return the value of an option, which may be JSON."""
    try:
        return json.loads(value) if value[:1] in ("{", "[") else value
    except ValueError:
        return [value, *re.findall(r"[^\s{}\[\]:,\"']+", value)]


def typed_places(args: argparse.Namespace) -> list[str]:
    """Return the paths and URLs among the arguments of a command."""
    values = [getattr(args, name, None) for name in ("url", "dest")]
    return [word for value in values if value for word in ([value] if isinstance(value, str) else value)]
