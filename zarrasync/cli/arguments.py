"""Arguments that commands share, and what texts on the command line mean."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol
from zipfile import ZipFile

from zarrasync import stores, sync
from zarrasync._concurrency.bridge import run
from zarrasync.cli.console import Console

__all__ = [
    "FORMATS",
    "Commands",
    "Run",
    "add_destination",
    "add_layout",
    "codec",
    "count",
    "destination",
    "open_node",
    "options",
    "shape",
    "shows_bar",
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
        ...


def add_destination(command: argparse.ArgumentParser) -> None:
    """The arguments of a command that writes somewhere else."""
    command.add_argument("dest", help="the path or URL to write")
    command.add_argument("--dest-path", default="", help="the node's path in the destination")
    command.add_argument("--dest-option", action="append", default=[], metavar="NAME=VALUE", help="its storage options")
    command.add_argument("--overwrite", action="store_true", help="replace what is there")
    command.add_argument("--verify", action="store_true", help="read everything again and compare")
    command.add_argument("--quiet", action="store_true", help="show no progress")


def add_layout(command: argparse.ArgumentParser, default: str, to: str) -> None:
    """The arguments of a command that may store arrays in another way, with what stands where nothing is said."""
    command.add_argument("--to", choices=FORMATS, help=f"the Zarr format to write (default: {to})")
    command.add_argument("--chunks", type=shape, default=default, metavar="N,N,…", help="the shape of chunks")
    command.add_argument("--shards", type=shape, default=default, metavar="N,N,…", help="the shape of shards, or none")
    command.add_argument("--compressor", type=codec, default=default, help="a codec's name or JSON entry, or none")


@contextmanager
def destination(given: argparse.Namespace) -> Iterator[Any]:
    """Where to write: what was named, or an archive that is there, or made, under the name of one."""
    path = given.dest
    if not path.endswith(".zip") or "://" in path or os.path.isdir(path):
        yield path
        return
    there = os.path.exists(path)
    store = stores.ZipStore(path, mode="a" if there else "w")
    try:
        yield store
    finally:
        run(store.close(), blocking=True)
        if not there and os.path.exists(path) and not ZipFile(path).namelist():  # nothing came of it
            os.remove(path)


def shows_bar(given: argparse.Namespace) -> bool:
    """Whether somebody sees a bar, and there is what draws it."""
    return sys.stderr.isatty() and not given.quiet and find_spec("tqdm") is not None


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
