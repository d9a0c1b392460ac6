"""Values, nodes and statistics that the server's interface returns."""

from __future__ import annotations

import asyncio
import io
import json
import os

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
from tests.support.server_client import FIELD, fill, serving
from zarrasync import sync
from zarrasync.server import Limits

pytestmark = pytest.mark.servers


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", np.s_[...]),
        ("0", np.s_[0]),
        ("1,2:9,::-7", np.s_[1, 2:9, ::-7]),
        ("...,5", np.s_[..., 5]),
        ("[2, 10:20, 3]", np.s_[2, 10:20, 3]),
        ("-1,-3:,:4", np.s_[-1, -3:, :4]),
        ("time=1,x=:3", np.s_[1, :, :3]),
        ("0,0,0", np.s_[0, 0, 0]),
        ("0,5:5,0", np.s_[0, 5:5, 0]),
    ],
)
async def test_selections_in_every_format(text, key):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 64, 64), dimension_names=["time", "y", "x"])
    want = np.asarray(FIELD[key])
    query = f"/api/data?path=f&select={text.replace(' ', '%20')}"
    async with serving(store) as client:
        for _ in range(2):  # from the store, and from the cache
            _, body, _ = await client.get(f"{query}&format=npy")
            np.testing.assert_array_equal(np.load(io.BytesIO(body)), want)
        _, body, headers = await client.get(f"{query}&format=bin")
        found = np.frombuffer(body, headers["X-Dtype"]).reshape([int(n) for n in headers["X-Shape"].split(",") if n])
        np.testing.assert_array_equal(found, want)
        told = await client.json(f"{query}&format=json")
        assert told["shape"] == list(want.shape)
        np.testing.assert_array_equal(np.array(told["data"], "f4").reshape(want.shape), want)
        _, body, _ = await client.get(f"{query}&format=csv")
        header, *rows = (line.split(",") for line in body.decode().splitlines())
        assert header == ["time", "y", "x", "f"]
        np.testing.assert_array_equal(np.array([row[3] or "nan" for row in rows], "f4"), want.reshape(-1))
        found = [FIELD[tuple(map(int, row[:3]))] for row in rows[:50]]
        np.testing.assert_array_equal(found, want.reshape(-1)[:50])


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (np.array([1.5, np.nan, np.inf, -np.inf]), [1.5, None, "Infinity", "-Infinity"]),
        (np.array([0.1, 16777216.0], "f4"), [0.1, 16777216.0]),
        (np.array([True, False]), [True, False]),
        (np.array([1 + 2j]), [[1.0, 2.0]]),
        (np.array(["2020-01-01", "NaT"], "M8[D]"), ["2020-01-01", None]),
        (np.array([3, "NaT"], "m8[s]"), ["3 seconds", None]),
        (np.array(["NaT", "é"]), ["NaT", "é"]),
        (np.array([b"ab\0\1"], "S4"), ["YWIAAQ=="]),
        (np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]), [[1, 2.5]]),
        (np.array([2**63 - 1], "i8"), [2**63 - 1]),
    ],
)
async def test_json_of_every_kind(values, want):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="x", data=values)
    async with serving(store) as client:
        assert (await client.json("/api/data?path=x"))["data"] == want


async def test_nodes():
    store: dict[str, bytes] = {}
    fill(store)
    async with serving(store) as client:
        told = await client.json("/api/node")
        assert told["kind"] == "group"
        assert told["attributes"] == {"title": "né", "nested": {"a": [1, None]}}
        assert [own["name"] for own in told["members"]] == ["a", "complex", "flags", "scalar", "sparse"]
        told = await client.json("/api/node?path=a/field")
        assert (told["shape"], told["chunks"], told["shards"]) == ([3, 300, 420], [1, 100, 128], [1, 200, 256])
        assert (await client.json("/api/node?path=zzz", 404))["error"] == "NodeNotFoundError"


async def test_statistics_are_numpys():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 100, 128))
    async with serving(store) as client:
        told = await client.json("/api/stats?path=f&index=0&bins=10")
        valid = FIELD[0][np.isfinite(FIELD[0])].astype("f8")
        assert (told["count"], told["invalid"], told["total"]) == (300 * 420, 600, 300 * 420)
        assert told["mean"] == pytest.approx(valid.mean(), abs=1e-6)
        assert told["std"] == pytest.approx(valid.std(), rel=1e-5)
        low, high = np.percentile(valid, (0.5, 99.5))
        assert told["histogram"] == np.histogram(valid, 10, (low, high))[0].tolist()


async def test_data_types_without_a_numpy_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    store: dict[str, bytes] = {}
    small = np.arange(4).astype(ml_dtypes.bfloat16)
    sync.create_array(store, name="small", data=small)
    fields = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
    sync.create_array(store, name="fields", data=fields)
    async with serving(store) as client:
        _, body, headers = await client.get("/api/data?path=small&format=bin")
        assert headers["X-Dtype"] == "bfloat16"
        assert np.frombuffer(body, ml_dtypes.bfloat16).tolist() == small.tolist()
        _, body, headers = await client.get("/api/data?path=fields&format=bin")
        dtype = np.dtype([tuple(field) for field in json.loads(headers["X-Dtype"])])
        np.testing.assert_array_equal(np.frombuffer(body, dtype), fields)
        told = await client.json("/api/data?path=fields")
        assert (told["fields"], told["field_dtypes"]) == (["a", "b"], ["int32", "float64"])
        _, body, _ = await client.get("/api/data?path=small&format=npy")
        assert np.load(io.BytesIO(body)).tolist() == small.tolist()


async def test_listed_chunk_sizes_are_reported():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", shape=(10, 4), chunks=[[3, 3, 4], 2])
    sync.create_array(store, name="b", shape=(10, 4), chunks=(1, 2), shards=[[4, 6], 2])
    async with serving(store) as client:
        found = [await client.json(f"/api/node?path={name}") for name in "ab"]
        assert [(one["chunks"], one["shards"]) for one in found] == [([[3, 3, 4], 2], None), ([1, 2], [[4, 6], 2])]


async def test_a_named_pipe_or_a_long_name_does_not_block(tmp_path):
    sync.create_array(tmp_path, name="a", shape=3)
    os.mkfifo(tmp_path / "pipe")
    async with serving(tmp_path, limits=Limits(active=1, timeout=20)) as client:
        async with asyncio.timeout(10):
            status, body, _ = await client.get("/raw/pipe")
        assert status != 200 or body == b""
        for prefix in ("raw", "zarr"):
            assert (await client.get(f"/{prefix}/" + "/".join(["x" * 200] * 30)))[0] in (400, 404)
        assert (await client.get("/raw/a/zarr.json"))[0] == 200


async def test_an_array_without_a_root():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="x/a", data=np.arange(4))
    for key in [key for key in store if key in ("zarr.json", "x/zarr.json")]:
        del store[key]
    async with serving(store) as client:
        assert (await client.json("/api/data?path=x/a"))["data"] == [0, 1, 2, 3]
        assert (await client.get("/zarr/x/a/c/0"))[0] == 200
        assert (await client.get("/healthz"))[0] == 200


async def test_strings_count_with_their_length():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="s", data=np.array(["a" * 50_000] * 400))
    sync.create_array(store, name="t", data=np.array([["a", "né"], ["", "x"]]))
    async with serving(store, limits=Limits(max_result_bytes=1 << 20)) as client:
        for kind in ("json", "npy", "csv"):
            assert (await client.get(f"/api/data?path=s&format={kind}"))[0] == 413
        _, body, _ = await client.get("/api/data?path=t&format=npy")
        assert np.load(io.BytesIO(body)).tolist() == [["a", "né"], ["", "x"]]


async def test_structured_values_keep_their_shape():
    values = np.array([[(1, 0.1), (2, 0.2), (3, 0.3)], [(4, 0.4), (5, 0.5), (6, 0.6)]], [("a", "i4"), ("b", "f4")])
    store: dict[str, bytes] = {}
    sync.create_array(store, name="s", data=values)
    async with serving(store) as client:
        told = await client.json("/api/data?path=s")
        assert told["data"] == [[[1, 0.1], [2, 0.2], [3, 0.3]], [[4, 0.4], [5, 0.5], [6, 0.6]]]


async def test_statistics_of_much_are_a_sample():
    store: dict[str, bytes] = {}
    big = sync.create_array(store, name="f", shape=(40_000, 40_000), dtype="f4", chunks=(500, 500), fill_value=1)
    big[:10] = 3
    async with serving(store, limits=Limits(max_decoded_bytes=20 << 20)) as client:
        told = await client.json("/api/stats?path=f")
        assert 10_000 < told["count"] < 1 << 19
        assert told["total"] == 1_600_000_000
        view = await client.json("/api/view?path=f")
        assert 0 < view["min_zoom"] < view["max_zoom"]
        least = view["min_zoom"]
        assert (await client.get(f"/api/tiles/{least}/0/0.png?path=f"))[0] == 200
        assert (await client.get(f"/api/tiles/{least - 1}/0/0.png?path=f&low=0&high=1"))[0] == 413
    sync.create_array(store, name="g", shape=(4000, 4000), dtype="f4", chunks=(100, 100), fill_value=1)
    async with serving(store, limits=Limits(max_decoded_bytes=40_000)) as client:  # one chunk; no tile is small enough
        view = await client.json("/api/view?path=g")
        assert view["min_zoom"] == view["max_zoom"]
