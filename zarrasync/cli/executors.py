"""Executors that arguments specify: processes of this machine, or a cluster of dask."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
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
    """Yield the executor, or the client of dask; ``None`` for threads of this process."""
    if args.scheduler:
        distributed: Any = import_module("distributed")  # untyped
        with distributed.Client(args.scheduler) as client:
            yield client
    elif args.processes > 1:
        with ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn")) as executor:
            yield executor
    else:
        yield None
