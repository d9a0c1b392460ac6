"""The page ``docs/interop.md``: which packages read our stores, and whose we read. ``python -m tests.interop.page`` writes it.

A package that is not installed keeps its row from the last run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.interop import exchange
from tests.interop.exchange import PACKAGES, Package
from tests.support import ROOT
from zarrasync import sync

PAGE = ROOT / "docs" / "interop.md"
ZARRITA = Package("zarrita.js", "", (2, 3), "zarrita", "", "numbers, shards")
_HEAD = """# Other libraries

<!-- Written by `make interop`. Do not edit. -->

The table shows which packages read stores of zarrasync, and whose stores zarrasync reads. `make interop` installs the packages and runs
each of them: the package writes a store, and zarrasync reads the same values as the package, without findings by `validate`. Then
zarrasync encodes all values again in a copy, and the package reads the copy. The columns name the Zarr formats; a dash marks a package that
does not write or read this format.

| package | version | content | zarrasync reads it | it reads zarrasync |
|---|---|---|---|---|
"""
_TAIL = """
kerchunk, VirtualiZarr, and tifffile describe chunks in files of other formats. zarrasync reads their references through fsspec's
`reference://` filesystem, and the virtual stores of VirtualiZarr and tifffile directly; see [Stores](guides/stores.md).
Repositories of icechunk are opened by [URL](guides/stores.md#url-pipelines), or as a session's store.
[Supported features](status.md) compares data types and codecs one by one.
"""


def main() -> int:
    """Run all packages, and write the page. Return the number of failures."""
    warnings.simplefilter("ignore")
    failures: list[str] = []
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    old = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    rows = [_row(package, failures, old) for package in PACKAGES]
    PAGE.write_text(_HEAD + "".join(f"{row}\n" for row in (*rows, _zarrita_row(failures, old))) + _TAIL)
    sys.stderr.writelines(f"{failure}\n" for failure in failures)
    return len(failures)


def _row(package: Package, failures: list[str], old: dict[str, str]) -> str:
    if exchange.python_of(package) is None:
        return old.get(package.title, f"| {package.title} | | {package.content} | not tried | not tried |")
    versions: dict[str, str] = {}
    read: list[str] = []
    written: list[str] = []
    for zarr_format in package.formats:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "data.zarr"
            versions, expected = exchange.run_script(package, "write", folder, str(zarr_format))
            cells = [(read, exchange.check_reading)]
            if package.kind != "references":
                cells.append((written, exchange.check_writing))
            for cell, check in cells:
                cell.append(_outcome(check, (package, folder, expected), zarr_format, failures))
    version = next(iter(versions.values()))
    return f"| {package.title} | {version} | {package.content} | {', '.join(read)} | {', '.join(written) or '—'} |"


def _outcome(check: Callable[..., None], arguments: tuple[Any, ...], zarr_format: int, failures: list[str]) -> str:
    try:
        check(*arguments)
    except Exception as error:
        failures.append(f"{arguments[0].title}, format {zarr_format}: {error}")
        return f"{zarr_format} ✗"
    return f"{zarr_format} ✓"


def write_for_zarrita(folder: Path, zarr_format: int) -> dict[str, Any]:
    """Write arrays that JavaScript can represent. Return their values by name."""
    values = np.arange(60).reshape(6, 10)
    arrays = {name: values.astype(name) for name in ("u1", "i2", "i4", "f4", "f8")}
    group = sync.create_group(folder, zarr_format=zarr_format)
    for name, array in arrays.items():
        shards: Any = {"shards": (6, 10)} if name == "f8" and zarr_format > 2 else {}
        group.create_array(name, data=array, chunks=(3, 5), **shards)
    return arrays


def _zarrita_row(failures: list[str], old: dict[str, str]) -> str:
    modules = os.environ.get("ZARRASYNC_ZARRITA", "")
    if not modules:
        return old.get(ZARRITA.title, f"| {ZARRITA.title} | | {ZARRITA.content} | — | not tried |")
    version, cells = "", []
    for zarr_format in ZARRITA.formats:
        with tempfile.TemporaryDirectory() as place:
            arrays = write_for_zarrita(Path(place), zarr_format)
            version, found = exchange.read_with_zarrita(modules, Path(place), list(arrays))
            is_same = all(np.array_equal(found[name], values) for name, values in arrays.items())
        if not is_same:
            failures.append(f"zarrita.js, format {zarr_format}: it reads other values")
        cells.append(f"{zarr_format} {'✓' if is_same else '✗'}")
    return f"| {ZARRITA.title} | {version} | {ZARRITA.content} | — | {', '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(min(main(), 1))
