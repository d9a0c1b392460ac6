"""The command ``zarrasync``, which shows, validates, changes and serves stores.

Exit codes: 0 for success; 1 for an error, which is printed as one line, or if ``validate`` finds an error; 2 for
invalid arguments; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import zarrasync
from zarrasync import config
from zarrasync.cli import ingest, inspect, modify, serve
from zarrasync.cli.arguments import Run
from zarrasync.cli.console import Console
from zarrasync.display.text import printable
from zarrasync.errors import ZarrError

__all__ = ["main", "make_parser"]

_EXAMPLES = """examples:
  zarrasync info s3://bucket/era5.zarr -o anon=true
  zarrasync cat data.zarr --path t2m -s time=0,lat=10:20 --format csv
  zarrasync convert old.zarr new.zarr --to 3 --shards 1024,1024 --verify
  zarrasync serve data.zarr

`zarrasync COMMAND --help` shows more examples; `zarrasync completion bash` prints completion for a shell.
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="zarrasync",
        description="Inspect, validate, change and serve Zarr arrays and groups.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (inspect, ingest, modify, serve):
        module.add(partial(_add_command, commands))
    completion = commands.add_parser("completion", help="print a completion script, which the shell must evaluate")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(run=_completion, json=False, debug=False)
    return parser


def _version() -> str:
    return f"zarrasync {zarrasync.__version__} (compiled kernel: {config.get().kernel})"


def _add_command(
    commands: Any, name: str, text: str, run: Run, *, examples: Sequence[str] = (), as_json: bool = True
) -> argparse.ArgumentParser:
    title = "examples:" if len(examples) > 1 else "example:"
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog="\n".join([title, *(f"  zarrasync {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, json=False)
    parser.add_argument("url", help="a path or URL")
    parser.add_argument("--path", default="", help="the node's path in the store")
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a storage option, such as anon=true (may be repeated)",
    )
    if as_json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _completion(args: argparse.Namespace, console: Console) -> int:
    try:
        import shtab
    except ImportError as error:
        raise ImportError("completion needs shtab: pip install 'zarrasync[cli]'") from error
    parser = make_parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001  # as shtab does
    for command in commands.values():
        for action in command._actions:  # noqa: SLF001  # as shtab does
            if action.dest in ("url", "dest", "output"):
                action.complete = shtab.FILE  # an attribute that shtab looks for
    console.text(shtab.complete(parser, args.shell))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The arguments; by default ``sys.argv[1:]``.

    Returns:
        The exit code.
    """
    parser = make_parser()
    args, extra = parser.parse_known_args(_join_selections(sys.argv[1:] if arguments is None else arguments))
    if extra:
        _refuse(parser, args.command, extra)
    run: Run = args.run
    for stream in (sys.stdout, sys.stderr):  # for characters that the terminal cannot print; JSON parsers accept it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with config.set(**({"debug_errors": True} if args.debug else {})):
            return run(args, Console(as_json=args.json))
    except BrokenPipeError:  # the reader, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("zarrasync: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if args.debug:
            raise
        print(f"zarrasync: {printable(_error_line(error))}", file=sys.stderr)
        return 1


def _refuse(parser: argparse.ArgumentParser, command: str, extra: Sequence[str]) -> None:
    """Exit with the usage of a command, because it was called with unknown options or arguments."""
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001  # as shtab does
    command_parser: argparse.ArgumentParser = commands[command]
    unknown = [item for item in extra if item.startswith("-")]
    if not unknown:
        command_parser.error(
            f"{len(extra)} unexpected arguments, the first is {extra[0]!r}; call the command once for each file"
        )
    name = unknown[0].partition("=")[0]
    similar = get_close_matches(name, command_parser._option_string_actions, 1)  # noqa: SLF001  # has no public list
    command_parser.error(f"no option {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else ""))


def _error_line(error: BaseException) -> str:
    """Return an error as one line, with parameters as options of the command line."""
    if isinstance(error, BaseExceptionGroup):
        return _error_line(error.exceptions[0])
    message = "; ".join((str(error), *getattr(error, "__notes__", ())))
    text = " ".join(message.split()) or type(error).__name__
    if not isinstance(error, ZarrError | OSError | ValueError | TypeError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug shows more)"
    text = text.replace("storage_options={'anon': True}", "-o anon=true").replace("in storage_options", "in -o options")
    text = re.sub(r"\b(overwrite|resume)=True( or mode='w')?(?!\w)", r"--\1", text)
    return re.sub(r"\bmode='w'(?!\w)", "--overwrite", text)


def _join_selections(arguments: Sequence[str]) -> list[str]:
    """Join ``-s`` and ``-1,0`` to ``-s-1,0``: argparse takes a selection that begins with a minus for an option."""
    joined: list[str] = []
    for item in arguments:
        if joined and joined[-1] in ("-s", "--select") and re.match(r"-\d", item):
            joined[-1] += f"={item}" if joined[-1] == "--select" else item
        else:
            joined.append(item)
    return joined
