"""A migration: a hierarchy in format 2, of many small chunks, into format 3 with shards, checked.

    python migrate_v2_to_v3.py [DIRECTORY]

Chunks that both formats store in the same way are copied unchanged; arrays with a new layout are decoded and written
again, block by block. If the copy is interrupted, ``resume=True`` continues it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from zarrasync import sync


def make_old(url: str) -> None:
    """A store as there are many: format 2, nested groups, thousands of small files."""
    root = sync.create_group(url, zarr_format=2, attributes={"title": "an old store"})
    data = np.arange(400 * 600, dtype=">f4").reshape(400, 600)
    names = {"_ARRAY_DIMENSIONS": ["y", "x"]}  # where xarray keeps the names of axes in format 2
    root.create_array("raw/pressure", data=data, chunks=(10, 20), order="F", attributes=names)
    root.create_array("raw/flags", data=data > 1000, chunks=(100, 100), attributes=names)


def count_files(url: str) -> int:
    """How many files a store takes."""
    return sum(path.is_file() for path in Path(url).rglob("*"))


def main(folder: Path) -> None:
    """Migrate, verify, validate."""
    old, new = str(folder / "old.zarr"), str(folder / "new.zarr")
    make_old(old)
    problems = sync.validate(old, data=True)
    assert problems.ok, problems

    report = sync.copy(old, new, zarr_format=3, chunks=(40, 60), shards=(200, 300), verify=True)
    print(report)

    found = sync.open_group(new)
    print(found.tree())
    pressure = found["raw/pressure"]
    print(f"{count_files(old):,} files became {count_files(new):,}; axes are called {pressure.dimension_names}")
    np.testing.assert_array_equal(pressure[...], sync.open_array(old, path="raw/pressure")[...])
    assert sync.validate(new, data=True).ok


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
