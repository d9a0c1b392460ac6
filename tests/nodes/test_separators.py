"""Chunks whose keys have another separator than the metadata."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import zarrasync as za
from zarrasync import sync


def written(root: Path, separator: str, ndim: int = 2) -> None:
    """Write an array of format 2, and remove the separator from its document."""
    keys = {"name": "v2", "separator": separator}
    data = np.arange(1, 4**ndim + 1).reshape((4,) * ndim)
    sync.create_array(root, path="a", data=data, chunks=(2,) * ndim, zarr_format=2, chunk_key_encoding=keys)
    document = json.loads((root / "a" / ".zarray").read_bytes())
    document.pop("dimension_separator", None)
    (root / "a" / ".zarray").write_text(json.dumps(document))


async def test_validate_names_nested_chunks_without_separator(tmp_path: Path) -> None:
    written(tmp_path, "/")
    for report in (await za.validate(tmp_path), sync.validate(tmp_path)):
        (finding,) = [finding for finding in report.findings if "separators disagree" in finding.message]
        assert (finding.severity, finding.key) == ("error", "a/.zarray")
        assert "4 stored chunks" in finding.message
        assert not report.ok


@pytest.mark.parametrize(("separator", "ndim"), [(".", 2), (".", 1), ("/", 1)])
def test_validate_accepts_chunks_that_are_read(tmp_path: Path, separator: str, ndim: int) -> None:
    written(tmp_path, separator, ndim)
    assert sync.validate(tmp_path).ok


def test_a_few_ignored_chunks_are_a_warning(tmp_path: Path) -> None:
    written(tmp_path, ".")
    (tmp_path / "a" / "0").mkdir()
    (tmp_path / "a" / "0" / "0").write_bytes(b"x")
    (finding,) = [f for f in sync.validate(tmp_path).findings if "separators disagree" in f.message]
    assert finding.severity == "warning"


async def test_reading_warns_once(tmp_path: Path) -> None:
    written(tmp_path, "/")
    array = await za.open_array(tmp_path, path="a")
    with pytest.warns(UserWarning, match="'a/0/0' exists; add the separator"):
        assert not (await array[...]).any()
    blocking = sync.open_array(tmp_path, path="a")
    with pytest.warns(UserWarning, match="'a/1/0' exists"):
        assert blocking[3, 1] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await array[0, 0]
        blocking[:]


@pytest.mark.parametrize("is_empty", [False, True])
def test_reading_correct_arrays_does_not_warn(tmp_path: Path, is_empty: bool) -> None:
    written(tmp_path, ".")
    if is_empty:
        for key in ("0.0", "0.1", "1.0", "1.1"):
            (tmp_path / "a" / key).unlink()
    array = sync.open_array(tmp_path, path="a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert array[:].any() != is_empty
        assert array[:].any() != is_empty


def test_objects_that_are_arrays_are_compared():
    from numcodecs import VLenArray

    values = np.empty(4, object)
    values[:] = [np.arange(n) for n in range(4)]
    array = sync.create_array({}, data=values, chunks=(2,), zarr_format=2, filters=[VLenArray("i8")])
    assert [len(value) for value in array[...]] == [0, 1, 2, 3]
