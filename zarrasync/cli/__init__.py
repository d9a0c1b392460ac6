"""The command ``zarrasync``, which shows, validates, changes and serves stores.

Exit codes: 0 for success; 1 for an error, which is printed as one line, or if ``validate`` finds an error; 2 for
invalid arguments; 130 after Ctrl-C. The code is 3 if the result lacks parts of the source that no option excludes. The
report names them.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import zarrasync
from zarrasync import config
from zarrasync._util.advice import most_similar
from zarrasync.cli import completion, copy, ingest, inspect, modify, serve
from zarrasync.cli.arguments import CommandFunction, CommandParser, Commands, RedactingParser
from zarrasync.cli.console import Console, error_line, for_shell, options_of, secrets_of, typed_places
from zarrasync.cli.ingest_plans import is_plan_command, make_plan_parser
from zarrasync.display.text import counted, printable

__all__ = ["main", "make_parser"]

_EXAMPLES = """examples:
  zarrasync info s3://bucket/era5.zarr -o anon=true
  zarrasync cat data.zarr --path t2m -s time=0,lat=10:20 --format csv
  zarrasync convert old.zarr new.zarr --zarr-format 3 --shards 1024,1024 --verify
  zarrasync serve data.zarr

`zarrasync COMMAND --help` shows more examples; `zarrasync completion bash` prints completion for a shell.
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = RedactingParser(
        prog="zarrasync",
        description="Inspect, validate, change and serve Zarr arrays and groups.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=CommandParser)
    for module in (inspect, ingest, copy, modify, serve):
        module.add(Commands(commands))
    completion.add(commands, make_parser)
    return parser


def _version() -> str:
    return f"zarrasync {zarrasync.__version__} (compiled kernel: {config.get().kernel})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The arguments; by default ``sys.argv[1:]``.

    Returns:
        The exit code.
    """
    words = _join_selections(sys.argv[1:] if arguments is None else arguments)
    if is_plan_command(words):
        args, extra = make_plan_parser().parse_known_args(words[1:])
    else:
        args, extra = make_parser().parse_known_args(words)
    if extra:
        _refuse(args.parser, extra)
    run: CommandFunction = args.run
    for stream in (sys.stdout, sys.stderr):  # for characters that the terminal cannot print; JSON parsers accept it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with config.set(**({"debug_errors": True} if args.debug else {})):
            translate = partial(for_shell, typed=typed_places(args), options=options_of(args))
            return run(args, Console(as_json=args.json, translate=translate))
    except BrokenPipeError:  # the reader, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("zarrasync: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if args.debug:
            raise
        print(
            f"zarrasync: {printable(error_line(error, typed_places(args), options_of(args), secrets_of(args)))}",
            file=sys.stderr,
        )
        return 1


def _refuse(parser: argparse.ArgumentParser, extra: Sequence[str]) -> NoReturn:
    """Exit with the usage of a command, because it was called with unknown options or arguments."""
    unknown = [item for item in extra if item.startswith("-")]
    if not unknown:
        first = (
            f", the first is {extra[0]!r}; call the command once for each file" if len(extra) > 1 else f": {extra[0]!r}"
        )
        parser.error(f"{counted(len(extra), 'unexpected argument')}{first}")
    name = unknown[0].partition("=")[0]
    known = {option.lstrip("-"): option for action in parser._actions for option in action.option_strings}  # noqa: SLF001  # has no public list
    similar = most_similar(name.lstrip("-"), known)  # the hyphens make short names similar
    parser.error(f"no option {name!r}" + (f"; did you mean {known[similar]!r}?" if similar else ""))


def _join_selections(arguments: Sequence[str]) -> list[str]:
    """Join ``-s`` and ``-1,0`` to ``-s-1,0``: argparse takes a selection that begins with a minus for an option."""
    joined: list[str] = []
    for item in arguments:
        if joined and joined[-1] in ("-s", "--select") and re.match(r"-\d", item):
            joined[-1] += f"={item}" if joined[-1] == "--select" else item
        else:
            joined.append(item)
    return joined
