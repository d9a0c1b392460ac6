"""Faults that are planted in a copy of the package, to see whether tests find them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import ROOT

__all__ = ["count_places", "plant"]

PACKAGE = ROOT / "zarrasync"


def count_places(module: str, old: str) -> int:
    """Return how often a string occurs in a module of the package; a fault needs exactly one place."""
    path = PACKAGE / module
    return path.read_text().count(old) if path.exists() else 0


@contextmanager
def plant(module: str, old: str, new: str) -> Iterator[dict[str, str]]:
    """Replace a string in a copy of the package, and yield the environment of processes that import the copy.

    If it is in the kernel's sources, the copy is compiled.

    Raises:
        ValueError: If the string does not occur exactly once.
    """
    if (places := count_places(module, old)) != 1:
        raise ValueError(f"{module} has {places} places for this fault, not 1: {old!r}")
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "zarrasync"
        shutil.copytree(PACKAGE, package)  # with its bytecode, which is valid for all files but the changed one
        path = package / module
        path.write_text(path.read_text().replace(old, new))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(ROOT)])}
        if path.suffix in (".c", ".h"):
            options = {"ZARRASYNC_NATIVE": "require", "CFLAGS": "-O1"}
            subprocess.run([sys.executable, path.parent / "build.py"], env={**environment, **options}, check=True)
        yield environment
