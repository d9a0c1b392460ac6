"""Checks of a dataset after a job, with packages that do not depend on zarrasync where possible."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

from tests.bulk.kills.places import Place
from zarrasync import sync

__all__ = ["check_dataset", "check_same_values", "is_metadata"]

JOURNALS = ("time/.sources", "time/.sources/c/0")
_MARKS = (".zarrasync-partial", ".ingest")


def check_dataset(place: Place, paths: Sequence[Path], expected: xr.Dataset) -> None:
    """Check that a dataset contains the rows of files, once, and nothing else.

    Args:
        place: The dataset.
        paths: The files.
        expected: The values of the files, joined by xarray.
    """
    _check_leftovers(place)
    with place.dataset() as found:
        xr.testing.assert_equal(found.load(), expected)
        assert found.t2m.attrs == expected.t2m.attrs
        assert (np.diff(found.time.to_numpy()) > np.timedelta64(0, "ns")).all()
    groups = place.groups()
    raw = np.concatenate([_raw(path) for path in paths])
    group: Any
    for group in groups:
        assert {name: array.shape[0] for name, array in group.arrays() if name in ("time", "t2m")} == {
            "time": len(raw),
            "t2m": len(raw),
        }
        np.testing.assert_array_equal(group["t2m"][:], raw)
    group = groups[0]
    _check_journal(place.contents(), paths, group["time"][:])
    assert sync.validate(place.url, data=True, storage_options=place.options or None).ok


def _raw(path: Path) -> Any:
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        return file["t2m"][:]


def _check_leftovers(place: Place) -> None:
    left = [name for name in place.names() | place.folders() if any(mark in name for mark in _MARKS)]
    assert not left, f"left behind: {left}"


def _check_journal(contents: dict[str, bytes], paths: Sequence[Path], times: Any) -> None:
    (journal,) = (json.loads(data)["journal"] for key, data in contents.items() if key in JOURNALS)
    files = sorted(journal["files"], key=lambda item: item[3])
    assert [item[0].partition("#")[0] for item in files] == [path.name for path in paths]
    stop = 0
    for path, (_, size, stamp, first, end, digest) in zip(paths, files, strict=True):
        assert first == stop
        stop = end
        assert (size, stamp) == (path.stat().st_size, str(path.stat().st_mtime_ns))
        assert digest == f"{zlib.crc32(np.ascontiguousarray(times[first:end]).tobytes()):08x}"
    assert stop == len(times)


def check_same_values(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Check that two datasets consist of the same values."""
    assert set(found) == set(expected)
    for name, data in expected.items():
        if is_metadata(name):
            assert json.loads(found[name]) == json.loads(data), name
        else:
            assert found[name] == data, name


def is_metadata(name: str) -> bool:
    """Return whether a key belongs to a document."""
    return name.rpartition("/")[2] in ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")
