"""The command ``zarrasync``: look at what is in a store, check it, change it, serve it.

Exit codes: 0; 1 after an error, which is one readable line, and where ``validate`` finds one; 2 for arguments that make
no sense; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence

import zarrasync
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

`zarrasync COMMAND --help` has more of them; `zarrasync completion bash` prints completion for a shell.
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="zarrasync",
        description="Look at Zarr arrays and groups, check them, change them, serve them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"zarrasync {zarrasync.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, text: str, run: Run, *, examples: Sequence[str] = (), as_json: bool = True
    ) -> argparse.ArgumentParser:
        own = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog="\n".join(
                ["examples:" if len(examples) > 1 else "example:", *(f"  zarrasync {e}" for e in examples)]
            ),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.set_defaults(run=run, json=False)
        own.add_argument("url", help="a path or URL")
        own.add_argument("--path", default="", help="the node's path in the store")
        own.add_argument(
            "-o",
            "--option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a storage option, such as anon=true (may be repeated)",
        )
        if as_json:
            own.add_argument("--json", action="store_true", help="print what programs read")
        own.add_argument("--debug", action="store_true", help="show the traceback of an error")
        return own

    inspect.add(command)
    ingest.add(command)
    modify.add(command)
    serve.add(command)
    completion = commands.add_parser("completion", help="print completion for a shell, to be evaluated by it")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(run=_completion, json=False, debug=False)
    return parser


def _completion(given: argparse.Namespace, console: Console) -> int:
    try:
        import shtab
    except ImportError as error:
        raise ImportError("completion needs shtab: pip install 'zarrasync[cli]'") from error
    parser = make_parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001  # as shtab does
    for command in commands.values():
        for action in command._actions:  # noqa: SLF001  # as shtab does
            if action.dest in ("url", "dest", "output"):
                action.complete = shtab.FILE  # what shtab looks for
    console.text(shtab.complete(parser, given.shell))
    return 0


def _line(error: BaseException) -> str:
    """An error in one line, with options as they are written here."""
    if isinstance(error, BaseExceptionGroup):
        return _line(error.exceptions[0])
    said = "; ".join((str(error), *getattr(error, "__notes__", ())))
    text = " ".join(said.split()) or type(error).__name__
    if not isinstance(error, ZarrError | OSError | ValueError | TypeError | ImportError):
        text = f"{type(error).__name__}: {text} (--debug shows more)"
    text = re.sub(r"\b(overwrite|resume)=True( or mode='w')?(?!\w)", r"--\1", text)
    return re.sub(r"\bmode='w'(?!\w)", "--overwrite", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The arguments; those of the process if none are given.

    Returns:
        The exit code.
    """
    given = make_parser().parse_args(_joined(sys.argv[1:] if arguments is None else arguments))
    run: Run = given.run
    for stream in (sys.stdout, sys.stderr):  # names may have letters that a terminal or a pipe has not; JSON reads this
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return run(given, Console(as_json=given.json))
    except BrokenPipeError:  # who read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("zarrasync: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if given.debug:
            raise
        print(f"zarrasync: {printable(_line(error))}", file=sys.stderr)
        return 1


def _joined(arguments: Sequence[str]) -> list[str]:
    """Arguments in which a selection that begins with a minus is no option: ``-s -1,0`` as ``-s=-1,0``."""
    found: list[str] = []
    for item in arguments:
        if found and found[-1] in ("-s", "--select") and re.match(r"-\d", item):
            found[-1] += f"={item}" if found[-1] == "--select" else item
        else:
            found.append(item)
    return found
