"""The command ``zarrasync``: look at what is in a store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import zarrasync
from zarrasync import sync
from zarrasync.errors import ZarrError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zarrasync", description="Look at Zarr arrays and groups.")
    parser.add_argument("--version", action="version", version=f"zarrasync {zarrasync.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("info", "facts about an array or group"), ("tree", "the hierarchy below a group")):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("url", help="a path or URL")
        command.add_argument("--path", default="", help="the node's path in the store")
        command.add_argument(
            "-o",
            "--option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a storage option, such as anon=true (may be repeated)",
        )
    return parser


def _options(given: Sequence[str]) -> dict[str, object]:
    options: dict[str, object] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"a storage option is NAME=VALUE, found {item!r}")
        options[name] = {"true": True, "false": False}.get(value.lower(), value)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The arguments; those of the process if none are given.

    Returns:
        The exit code: 0, or 1 after an error, which is printed in one line.
    """
    given = _parser().parse_args(arguments)
    try:
        node = sync.open(given.url, path=given.path, storage_options=_options(given.option) or None)
        if given.command == "info":
            print(node.info)
        else:
            print(node.tree() if isinstance(node, sync.Group) else f"{node.name} {node.shape} {node.dtype}")
    except (ZarrError, ValueError, ImportError) as error:
        print(f"zarrasync: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
