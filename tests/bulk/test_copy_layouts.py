"""Copies with a layout for each array, from arrays and groups as sources, within bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.cli import main
from zarrasync.errors import ShapeError

VALUES = np.arange(48.0).reshape(6, 8)


def write(store: Any, **options: Any) -> Any:
    root = sync.create_group(store, **options)
    group = root.create_group("a")
    for name, rows in (("t2m", 2), ("u", 3)):
        group.create_array(name, data=VALUES, chunks=(rows, 8), **_names(root, "time", "x"))
    group.create_array("x", data=np.arange(8.0), **_names(root, "x"))
    return root


def _names(root: Any, *names: str) -> dict[str, Any]:
    return {"dimension_names": names} if root.zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": names}}


def layouts(store: Any) -> dict[str, tuple[Any, Any]]:
    arrays = {path: node for path, node in sync.open_group(store).members(None) if isinstance(node, sync.Array)}
    for path, array in arrays.items():
        np.testing.assert_array_equal(array[...], np.arange(8.0) if path.endswith("x") else VALUES)
    return {path: (array.chunks, array.shards) for path, array in arrays.items()}


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_layouts_of_single_arrays(api: Api, zarr_format: int):
    write(source := {}, zarr_format=zarr_format)
    chunks = {"time": 6, "a/u": (1, 4), "a/x": "keep"}
    report = await api(
        api.copy(source, dest := {}, zarr_format=3, chunks=chunks, shards={"a/u": {"time": 2}}, verify=True)
    )
    assert report.arrays == 3
    assert layouts(dest) == {"a/t2m": ((6, 8), None), "a/u": ((1, 4), (2, 8)), "a/x": ((8,), None)}
    await api(api.copy(dest, again := {}, shards={"a/u": None}, compressors={"a/u": "gzip", "a/t2m": None}))
    assert layouts(again)["a/u"] == ((1, 4), None)
    codecs = {name: sync.open_array(again, path=f"a/{name}").compressors for name in ("u", "t2m", "x")}
    assert "Gzip" in str(codecs["u"])
    assert codecs["t2m"] == ()
    assert codecs["x"] == sync.open_array(dest, path="a/x").compressors


async def test_sizes_of_numpy(api: Api):
    write(source := {})
    chunks = {"time": np.int64(6), "u": np.uint8(9), "a/u": {"time": np.int32(1)}}
    with pytest.raises(ShapeError, match="no dimension 'u'"):
        await api(api.copy(source, {}, chunks=chunks))
    del chunks["u"]
    await api(api.copy(source, dest := {}, chunks=chunks, shards={"time": np.int16(12)}))
    assert layouts(dest) == {"a/t2m": ((6, 8), (12, 8)), "a/u": ((1, 8), (12, 8)), "a/x": ((8,), None)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": {"tim": 3}}, "chunks: the source has no dimension 'tim'; it has time, x"),
        ({"chunks": {"u": (3, 8)}}, "chunks: the source has no array 'u'; it has a/t2m, a/u, a/x"),
        ({"shards": {"a/u": {"y": 3}}}, "shards of 'a/u': the source has no dimension 'y'"),
        ({"compressors": {"t2m": "gzip"}}, "compressors: the source has no array 't2m'"),
    ],
)
async def test_names_that_do_not_exist(api: Api, options: Any, message: str):
    write(source := {})
    dest: dict[str, bytes] = {}
    with pytest.raises(ShapeError, match=message):
        await api(api.copy(source, dest, **options))
    assert dest == {}


async def test_arrays_and_groups_as_sources(api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]]):
    url, options = s3
    write(f"{url}/a.zarr", storage_options=options)
    root = await api(api.open_group(f"{url}/a.zarr", storage_options=options))
    group, array = [await api(api.open(f"{url}/a.zarr", path=p, storage_options=options)) for p in ("a", "a/t2m")]
    await api(api.copy(root, tmp_path / "root.zarr", verify=True))
    assert set(layouts(tmp_path / "root.zarr")) == {"a/t2m", "a/u", "a/x"}
    await api(api.copy(group, tmp_path / "group.zarr", chunks={"u": {"x": 4}}))
    assert layouts(tmp_path / "group.zarr") == {"t2m": ((2, 8), None), "u": ((3, 4), None), "x": ((8,), None)}
    for source, path in (
        (array, "x"),
        (await api(root.getitem("a/t2m")), "a/y"),
        (await api(group.getitem("t2m")), "z"),
    ):
        report = await api(api.copy(source, f"{url}/{path}.zarr", chunks={"time": 3}, dest_options=options))
        assert report.arrays == 1
        copied = sync.open_array(f"{url}/{path}.zarr", storage_options=options)
        np.testing.assert_array_equal(copied[...], VALUES)
        assert copied.chunks == (3, 8)
        sync.open_group(url, mode="a", storage_options=options)
        await api(api.copy(source, f"{url}/{path}.zarr", overwrite=True, dest_options=options))
    with pytest.raises(ValueError, match="source_options are options of a URL"):
        await api(api.copy(array, {}, source_options=options))


def test_the_command(tmp_path: Path):
    write(tmp_path / "a.zarr")
    chunks = json.dumps({"a/t2m": {"time": 6}, "a/u": [1, 8]})
    words = ["convert", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), "--chunks", chunks, "--verify"]
    assert main([*words, "--compressor", '{"a/u": "gzip"}']) == 0
    assert layouts(tmp_path / "b.zarr") == {"a/t2m": ((6, 8), None), "a/u": ((1, 8), None), "a/x": ((8,), None)}
    assert main(["convert", str(tmp_path / "a.zarr"), str(tmp_path / "c.zarr"), "--chunks", "time=1"]) == 0
    assert layouts(tmp_path / "c.zarr")["a/u"] == ((1, 8), None)


async def test_memory_while_chunks_turn(api: Api, tmp_path: Path):
    """From columns to rows, of an array that is 16 times as large as the budget, also after an interruption."""
    budget, shape = 2 << 20, (2048, 2048)
    values = np.arange(2048 * 2048.0).reshape(shape)
    sync.create_array(tmp_path / "a.zarr", data=values, chunks=(2048, 16), compressors=None)
    del values
    options = {"chunks": (16, 2048), "config": {"memory_budget": budget}}
    sync.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=(16, 2048))
    for number in range(0, 128, 2):
        (tmp_path / f"b.zarr/c/{number}/0").unlink()
    tracemalloc.start()
    try:
        report = await api(api.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", resume=True, verify=True, **options))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.copied, report.skipped) == (64, 64)
    assert peak < budget + (6 << 20)  # of 32 MiB; without the kernel, threads also have encoded chunks
