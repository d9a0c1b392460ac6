"""Arguments that commands share, and what texts on the command line mean."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from zarrasync import sync
from zarrasync.cli.console import Console

__all__ = [
    "FORMATS",
    "Commands",
    "Run",
    "add_destination",
    "codec",
    "count",
    "open_node",
    "options",
    "shape",
]

FORMATS: dict[str, int | str] = {"2": 2, "3": 3, "3-draft": "3-draft", "3-draft-2022": "3-draft-2022"}
Run = Callable[[argparse.Namespace, Console], int]
"""What a command does; gives its exit code."""


class Commands(Protocol):
    """Makes a command, with the arguments that all have."""

    def __call__(
        self, name: str, text: str, run: Run, *, examples: Sequence[str] = (), as_json: bool = True
    ) -> argparse.ArgumentParser:
        """A command that is about what lies at a URL.

        Args:
            name: Its name.
            text: What it does, in a few words.
            run: Does it.
            examples: Calls that show how.
            as_json: Whether it can say what it has to say as JSON.
        """


def add_destination(command: argparse.ArgumentParser) -> None:
    """The arguments of a command that writes somewhere else."""
    command.add_argument("dest", help="the path or URL to write")
    command.add_argument("--dest-path", default="", help="the node's path in the destination")
    command.add_argument("--dest-option", action="append", default=[], metavar="NAME=VALUE", help="its storage options")
    command.add_argument("--overwrite", action="store_true", help="replace what is there")
    command.add_argument("--verify", action="store_true", help="read everything again and compare")
    command.add_argument("--quiet", action="store_true", help="show no progress")


def shape(text: str) -> Any:
    """``512,512`` as a shape; ``none``, ``keep`` and ``auto`` as what they say."""
    if text in ("keep", "auto", "none"):
        return None if text == "none" else text
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a shape is N,N,…, found {text!r}") from None


def count(text: str) -> int:
    """A number of things."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, found {text!r}")
    return int(text)


def codec(text: str) -> Any:
    """A codec's name, its JSON entry, or ``none``."""
    try:
        return None if text == "none" else json.loads(text) if text.startswith("{") else text
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None


def options(given: Sequence[str]) -> dict[str, object] | None:
    """``NAME=VALUE`` texts as storage options; values may be true, false, or JSON objects and lists.

    Raises:
        ValueError: If one is no such text.
    """
    found: dict[str, object] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"a storage option is NAME=VALUE, found {item!r}")
        try:
            found[name] = json.loads(value) if value[:1] in ("{", "[") else _WORDS.get(value.lower(), value)
        except json.JSONDecodeError as error:
            raise ValueError(f"the storage option {item!r} is no JSON: {error}") from None
    return found or None


_WORDS: dict[str, object] = {"true": True, "false": False}


def open_node(given: argparse.Namespace, mode: Any = "r") -> sync.Array | sync.Group:
    """The node that a command is about."""
    return sync.open(given.url, path=given.path, mode=mode, storage_options=options(given.option))
