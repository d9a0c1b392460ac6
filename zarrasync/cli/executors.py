"""Executors that arguments specify: processes of this machine, or a cluster of dask."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from zarrasync.cli.arguments import count

__all__ = ["add_executor", "executor_of"]


def add_executor(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments.

    Args:
        parser: The parser of a command.
        verb: What the command does.
    """
    parser.add_argument(
        "--processes", type=count, default=0, metavar="N", help=f"{verb} in N processes (default: threads)"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help=f"{verb} on the dask cluster at this address")


@contextmanager
def executor_of(args: argparse.Namespace) -> Iterator[Any]:
    """Yield the argument ``executor``: a client of dask, a number of processes, or ``None``."""
    if args.scheduler:
        distributed: Any = import_module("distributed")  # untyped
        with distributed.Client(args.scheduler) as client:
            yield client
    else:
        yield args.processes or None
