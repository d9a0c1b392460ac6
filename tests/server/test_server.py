"""The server: what other programs read from it, what it refuses, and what it does when clients leave."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
import aiohttp
from aiohttp import web
from PIL import Image
from yarl import URL

import zarrasync as za
from zarrasync import stores, sync
from zarrasync.server import Limits, create_app
from zarrasync.server.app import METRICS, SOURCE

RNG = np.random.default_rng(7)
FIELD = RNG.normal(size=(3, 300, 420)).astype("f4")
FIELD[0, :20, :30] = np.nan
FORMATS = [2, 3, "3-draft", "3-draft-2022"]


def fill(store: Any, zarr_format: Any = 3) -> dict[str, np.ndarray]:
    """A hierarchy with something of everything; gives what is in it."""
    root = sync.create_group(store, zarr_format=zarr_format, attributes={"title": "né", "nested": {"a": [1, None]}})
    arrays = {
        "a/field": FIELD,
        "a/big": np.arange(77, dtype=">i4").reshape(7, 11),
        "a/fortran": np.arange(35.0).reshape(5, 7),
        "scalar": np.array(2.5),
        "flags": RNG.random((40, 50)) > 0.5,
        "complex": (np.arange(6) + 1j).astype("c8"),
    }
    options: dict[str, Any] = {
        "a/field": {"chunks": (1, 100, 128)},
        "a/big": {"chunks": (3, 4), "compressors": "gzip"},
        "a/fortran": {"chunks": (2, 3), "order": "F"},
        "flags": {"chunks": (16, 16), "compressors": None},
    }
    if zarr_format != 2:
        options["a/field"]["shards"] = (1, 200, 256)
    for name, values in arrays.items():
        root.create_array(name, data=values, **options.get(name, {}))
    sparse = root.create_array("sparse", shape=(64, 64), chunks=(8, 8), dtype="u2", fill_value=9)
    sparse[8:16, 8:16] = 4
    arrays["sparse"] = sparse[...]
    return arrays


@asynccontextmanager
async def serving(store: Any, *, prefix: str = "", **options: Any):
    """A server on a free port, and a client for it."""
    app = create_app(store, **options)
    outer = app
    if prefix:
        outer = web.Application()
        outer.add_subapp(prefix, app)
    runner = web.AppRunner(outer, access_log=None, handler_cancellation=True, shutdown_timeout=2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}{prefix}"
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(base, session, app)
    finally:
        await runner.cleanup()


class Client:
    def __init__(self, base: str, session: aiohttp.ClientSession, app: web.Application) -> None:
        self.base, self.session, self.app = base, session, app

    async def get(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes, Any]:
        url = URL(self.base + path, encoded=True)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, url, headers=given, allow_redirects=False) as answer:
            return answer.status, await answer.read(), answer.headers

    async def json(self, path: str, status: int = 200) -> Any:
        found, body, _ = await self.get(path)
        assert found == status, body
        return json.loads(body)

    @property
    def upstream(self) -> int:
        return self.app[SOURCE].store.counts.requests


# ------------------------------------------------------------------ as Zarr


@pytest.mark.parametrize("zarr_format", FORMATS)
async def test_any_format_is_served_as_format_3(zarr_format):
    store: dict[str, bytes] = {}
    arrays = fill(store, zarr_format)
    async with serving(store) as client:
        await asyncio.to_thread(read_by_all, f"{client.base}/zarr", arrays)


def read_by_all(url: str, arrays: dict[str, np.ndarray]) -> None:
    """Ourselves, zarr-python and tensorstore read the same values."""
    import tensorstore as ts
    import zarr
    from zarr.storage import FsspecStore

    ours = sync.open_group(url)
    assert ours.zarr_format == 3
    assert ours.attrs["title"] == "né"
    assert {name for name, node in ours.members(None) if isinstance(node, sync.Array)} == set(arrays)
    theirs = zarr.open_group(FsspecStore.from_url(url), mode="r")
    assert {name for name, _ in theirs.arrays()} == {name for name in arrays if "/" not in name}
    for name, values in arrays.items():
        np.testing.assert_array_equal(ours[name][...], values, err_msg=name)
        np.testing.assert_array_equal(theirs[name][...], values, err_msg=name)
        if values.ndim:
            spec = {"driver": "zarr3", "kvstore": f"{url}/{name}/"}
            np.testing.assert_array_equal(ts.open(spec, read=True).result()[...].read().result(), values, err_msg=name)


async def test_what_is_the_same_in_format_3_is_not_decoded():
    store: dict[str, bytes] = {}
    root = sync.create_group(store, zarr_format=2)
    root.create_array("a", data=np.arange(16).reshape(4, 4), chunks=(2, 2), compressors="gzip")
    store["a/1.0"] = b"damaged"
    async with serving(store) as client:
        assert (await client.get("/zarr/a/c/1/0"))[1] == b"damaged"
        assert (await client.get("/zarr/a/c/0/0"))[1] == store["a/0.0"]
        assert (await client.get("/raw/a/1.0"))[1] == b"damaged"
        assert (await client.get("/zarr/a/1.0"))[0] == 404
        assert (await client.get("/zarr/a/c/2/0"))[0] == 404


async def test_xarray_and_a_hierarchy_without_listing(tmp_path):
    """Consolidated metadata is made, as a client behind HTTP can not list."""
    xr = pytest.importorskip("xarray")
    want = xr.Dataset({"t": (("y", "x"), FIELD[1])}, coords={"x": np.arange(420.0)})
    from zarrasync.integrations.xarray import write_dataset

    write_dataset(want, tmp_path / "x.zarr")
    assert "consolidated" not in (tmp_path / "x.zarr" / "zarr.json").read_text()
    async with serving(tmp_path / "x.zarr") as client:

        def read() -> None:
            for engine in ("zarrasync", "zarr"):
                with xr.open_dataset(f"{client.base}/zarr", engine=engine) as found:
                    xr.testing.assert_equal(found.load(), want)

        await asyncio.to_thread(read)


async def test_part_of_a_store_and_below_a_prefix(tmp_path):
    fill(tmp_path / "x.zarr")
    async with serving(tmp_path / "x.zarr", path="a", prefix="/data/one") as client:
        found = await asyncio.to_thread(lambda: sync.open_array(f"{client.base}/zarr", path="field")[...])
        np.testing.assert_array_equal(found, FIELD)
        assert (await client.json("/api/data?path=big&select=0,0"))["data"] == 0
        assert (await client.get("/raw/big/zarr.json"))[0] == 200
        assert (await client.get(""))[0] == 308
        assert b"viewer.js" in (await client.get("/"))[1]
        assert (await client.json("/api/node?path=field"))["path"] == "field"


async def test_what_format_3_can_not_say_is_said():
    store: dict[str, bytes] = {}
    root = sync.create_group(store, zarr_format=2)
    root.create_array("fine", data=np.arange(3))
    root.create_array("objects", data=np.array([{"a": 1}], object), filters=[{"id": "json2"}])
    async with serving(store) as client:
        told = await client.json("/zarr/objects/zarr.json", 501)
        assert told["error"] == "UnsupportedByFormat"
        group = await asyncio.to_thread(lambda: sync.open_group(f"{client.base}/zarr"))
        assert list(await asyncio.to_thread(group.keys)) == ["fine"]
        assert (await client.get("/raw/objects/.zarray"))[0] == 200


@pytest.fixture(params=["memory", "local", "http-latency"])
def big(request, tmp_path):
    """A store with a value of 9 MB, and the value."""
    value = RNG.integers(0, 256, 9_000_001, dtype=np.uint8).tobytes()
    (tmp_path / "big").write_bytes(value)
    kinds = {"memory": lambda: {"big": value}, "local": lambda: tmp_path}
    kinds["http-latency"] = lambda: stores.LatencyStore(stores.LocalStore(tmp_path), 0.001)
    return kinds[request.param](), value


async def test_ranges(big):
    store, value = big
    async with serving(store) as client:
        status, body, headers = await client.get("/raw/big")
        assert (status, body, int(headers["Content-Length"])) == (200, value, len(value))
        etag = headers["ETag"]
        for text, start, stop in [
            ("bytes=0-0", 0, 1),
            ("bytes=5-99", 5, 100),
            ("bytes=8999990-", 8_999_990, None),
            ("bytes=-7", -7, None),
            ("bytes=-6000000", -6_000_000, None),
            ("bytes=-99999999", 0, None),
            ("bytes=10-99999999", 10, None),
            ("bytes=100-5000100", 100, 5_000_101),
        ]:
            status, body, headers = await client.get("/raw/big", Range=text)
            assert (status, body == value[start:stop]) == (206, True), text
            first = len(value) + start if start < 0 else start
            assert headers["Content-Range"] == f"bytes {first}-{first + len(body) - 1}/{len(value)}"
            assert headers["ETag"] == etag
        for text in ("bytes=9000001-", "bytes=-0"):
            status, _, headers = await client.get("/raw/big", Range=text)
            assert (status, headers["Content-Range"]) == (416, f"bytes */{len(value)}")
        for text in ("bytes=5-1", "bytes=a-b", "items=1-2", "bytes=0-1,5-6", "bytes=--5", "bytes=" + "1" * 99):
            assert (await client.get("/raw/big", Range=text))[0] == 200  # as if it were not there (RFC 9110, 14.2)
        assert (await client.get("/raw/big", If_None_Match=etag))[:2] == (304, b"")
        assert (await client.get("/raw/big", If_None_Match=f'"x", W/{etag}'))[0] == 304
        assert (await client.get("/raw/big", If_None_Match='"x"', Range="bytes=0-3"))[1] == value[:4]
        assert (await client.get("/raw/big", If_Range=etag, Range="bytes=0-3"))[0] == 206
        assert (await client.get("/raw/big", If_Range='"x"', Range="bytes=0-3"))[:2] == (200, value)
        status, body, headers = await client.get("/raw/big", method="HEAD")
        assert (status, body, headers["Content-Length"], headers["ETag"]) == (200, b"", str(len(value)), etag)
        assert (await client.get("/raw/none", method="HEAD"))[0] == 404


async def test_headers_for_browsers_and_caches():
    async with serving({"x/zarr.json": b"{}"}, max_age=5) as client:
        _, _, headers = await client.get("/raw/x/zarr.json", Origin="https://elsewhere.org")
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert "Content-Range" in headers["Access-Control-Expose-Headers"]
        assert headers["Cache-Control"] == "public, max-age=5"
        assert headers["Content-Type"].startswith("application/json")
        assert headers["X-Content-Type-Options"] == "nosniff"
        status, _, headers = await client.get("/zarr/anything", method="OPTIONS")
        assert status == 204
        assert "Range" in headers["Access-Control-Allow-Headers"]
        status, _, headers = await client.get("/raw/none")
        assert (status, headers["Access-Control-Allow-Origin"]) == (404, "*")
        status, _, headers = await client.get("/nowhere")
        assert (status, headers["Access-Control-Allow-Origin"]) == (404, "*")
        for method in ("PUT", "POST", "DELETE", "PATCH"):
            assert (await client.get("/raw/x/zarr.json", method=method))[0] == 405


# ------------------------------------------------------------------ values


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
        for _ in range(2):  # from the store, and from what is remembered
            _, body, _ = await client.get(f"{query}&format=npy")
            np.testing.assert_array_equal(np.load(io.BytesIO(body)), want)
        _, body, headers = await client.get(f"{query}&format=bin")
        found = np.frombuffer(body, headers["X-Dtype"]).reshape([int(n) for n in headers["X-Shape"].split(",") if n])
        np.testing.assert_array_equal(found, want)
        told = await client.json(f"{query}&format=json")
        assert told["shape"] == list(want.shape)
        np.testing.assert_array_equal(np.array(told["data"], "f4").reshape(want.shape), want)
        if 0 < want.ndim < 3 and want.size:
            _, body, _ = await client.get(f"{query}&format=csv")
            rows = [line.split(",") for line in body.decode().splitlines()]
            lines = want.reshape(-1, 1) if want.ndim < 2 else want
            np.testing.assert_array_equal(np.array([[float(c or "nan") for c in row] for row in rows], "f4"), lines)


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


# ------------------------------------------------------------------ tiles


def decoded(body: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGBA"))


def coloured(values: np.ndarray, low: float, high: float, cmap: str = "gray") -> np.ndarray:
    """What a picture of values should be, by matplotlib."""
    import matplotlib as mpl

    level = np.clip((values.astype("f8") - low) / (high - low), 0, 1)
    picture = (mpl.colormaps[cmap](level) * 255).round()
    picture[np.isnan(values), 3] = 0
    return picture


@pytest.mark.parametrize("cmap", ["gray", "viridis", "magma"])
async def test_tiles_show_the_values(cmap):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 100, 128))
    async with serving(store) as client:
        told = await client.json("/api/view?path=f")
        assert (told["max_zoom"], told["min_zoom"], told["tile"]) == (1, 0, 256)
        query = f"path=f&index=0&low=-2&high=2&cmap={cmap}"
        whole = np.full((512, 512), np.nan)
        whole[:300, :420] = FIELD[0]
        for y in range(2):
            for x in range(2):
                status, body, _ = await client.get(f"/api/tiles/1/{x}/{y}.png?{query}")
                assert status == 200
                found, want = decoded(body), coloured(whole[y * 256 :, x * 256 :][:256, :256], -2, 2, cmap)
                assert found.shape == (256, 256, 4)
                np.testing.assert_array_equal(found[..., 3], want[..., 3])
                seen = want[..., 3] > 0
                assert np.abs(found[seen].astype(int) - want[seen]).max() <= 6  # 255 levels, not all
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?{query}")
        want = coloured(FIELD[0, 1::2, 1::2], -2, 2, cmap)
        found = decoded(body)[:150, :210]
        assert np.abs(found[want[..., 3] > 0].astype(int) - want[want[..., 3] > 0]).max() <= 6
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?{query}&origin=lower")
        flipped = decoded(body)[:150, :210]
        want = coloured(FIELD[0, ::-1][1::2, 1::2], -2, 2, cmap)
        assert np.abs(flipped[want[..., 3] > 0].astype(int) - want[want[..., 3] > 0]).max() <= 6


async def test_pyramids_are_read_from_the_level_that_suits():
    store: dict[str, bytes] = {}
    levels = [np.full((1000 >> n, 2000 >> n), n, "u1") for n in range(4)]
    datasets = [{"path": str(n)} for n in range(4)]
    for home in ("ome", "plain"):
        multiscales = {"multiscales": [{"datasets": datasets}]}
        group = sync.create_group(store, path=home, attributes={"ome": multiscales} if home == "ome" else multiscales)
        for n, values in enumerate(levels):
            group.create_array(str(n), data=values, chunks=(128, 128))
    async with serving(store) as client:
        for home in ("ome", "plain"):
            told = await client.json(f"/api/view?path={home}")
            assert told["max_zoom"] == 3
            assert [level["path"] for level in told["levels"]] == [f"{home}/{n}" for n in range(4)]
            for zoom in range(4):
                _, body, _ = await client.get(f"/api/tiles/{zoom}/0/0.png?path={home}&low=0&high=254&cmap=gray")
                assert set(decoded(body)[:64, :64, 0].reshape(-1).tolist()) == {3 - zoom}


async def test_tiles_have_validators_and_a_range_of_their_own():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="b", data=RNG.random((90, 90)) > 0.5)
    sync.create_array(store, name="c", data=np.full((9, 9), 5.0))
    sync.create_array(store, name="n", data=np.full((9, 9), np.nan))
    async with serving(store) as client:
        _, body, headers = await client.get("/api/tiles/0/0/0.png?path=b&cmap=gray")
        assert set(decoded(body)[:90, :90, 0].reshape(-1).tolist()) == {0, 255}
        assert (await client.get("/api/tiles/0/0/0.png?path=b&cmap=gray", If_None_Match=headers["ETag"]))[0] == 304
        for name in "cn":
            assert (await client.get(f"/api/tiles/0/0/0.png?path={name}"))[0] == 200
        assert (await client.json("/api/stats?path=n"))["mean"] is None
        _, body, _ = await client.get("/api/data?path=b&format=png&cmap=gray")
        assert decoded(body).shape == (90, 90, 4)


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


@pytest.mark.parametrize(
    "values",
    [
        np.full((9, 9), 9.96921e36, "f4"),
        np.full((9, 9), 300_000, "f4"),
        np.full((9, 9), 1e20),
        np.full((9, 9), 2**60),
        np.full((9, 9), 2**64 - 1, "u8"),
        np.array([[2**64 - 1, 2**64 - 2]], "u8"),
        np.array([[101325.0, 101325.01, 101325.02]], "f4"),
        np.array([[-1.7e308, 1.7e308]]),
        np.array([[np.inf, -np.inf, np.nan, 1.0]]),
    ],
    ids=lambda values: f"{values.dtype} {values.flat[0]}",
)
async def test_planes_that_are_hard_to_bin(values):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values)
    async with serving(store) as client:
        told = await client.json("/api/stats?path=a&bins=8")
        assert 0 < sum(told["histogram"]) <= np.isfinite(values.astype("f8")).sum()  # what is far out is left out
        await client.json("/api/view?path=a")
        assert (await client.get("/api/tiles/0/0/0.png?path=a"))[0] == 200


@pytest.mark.parametrize(
    ("dtype", "least"), [("i4", 2**30), ("u4", 2**31), ("f8", 2**50), ("i8", 2**60), ("u8", 2**60)]
)
async def test_small_differences_of_large_numbers_are_seen(dtype, least):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=(np.arange(100, dtype=dtype) + np.array(least, dtype)).reshape(10, 10))
    async with serving(store) as client:
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?path=a&low={least}&high={least + 256}&cmap=gray")
        assert len(np.unique(decoded(body)[:10, :10, 0])) > 90
        if least < 2**53:  # else the range that is found has no digits left
            _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray")
            assert len(np.unique(decoded(body)[:10, :10, 0])) > 90


async def test_logarithmic_colours():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(100.0).reshape(10, 10))
    async with serving(store) as client:
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray&scale=log&low=0&high=99")
        grey = decoded(body)[:10, :10, 0].reshape(-1).astype(int)
        want = (1 + np.log(np.arange(1, 100) / 99) / np.log(1000)) * 255  # three decades
        assert np.abs(grey[1:] - want).max() <= 3
        assert grey[0] == 0
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray&scale=log&low=99&high=0")
        assert np.abs(255 - decoded(body)[:10, :10, 0].reshape(-1)[1:] - want).max() <= 3


async def test_a_value_has_one_colour_in_all_tiles():
    values = np.full((300, 600), 10.0)
    values[0, :300], values[0, 300:] = 0.001, 1.0
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values)
    async with serving(store) as client:
        for scale in ("linear", "log"):
            found = set()
            for x in range(3):
                _, body, _ = await client.get(f"/api/tiles/2/{x}/1.png?path=a&scale={scale}&low=0&high=1000&cmap=gray")
                found |= set(decoded(body)[:40, :80, 0].reshape(-1).tolist())
            assert len(found) == 1


async def test_colours_of_the_largest_integers():
    store: dict[str, bytes] = {}
    ends = np.iinfo("i8")
    sync.create_array(store, name="a", data=np.array([[ends.min, 0, ends.max], [ends.min, 1000, 2000]]))
    async with serving(store) as client:
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?path=a&cmap=gray&low={ends.min}&high={ends.max}")
        assert decoded(body)[:2, :3, 0].tolist() == [[0, 128, 255], [0, 128, 128]]
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray&low=2000&high=0")
        assert decoded(body)[1, 1:3, 0].tolist() == [128, 0]


async def test_the_range_is_that_of_a_plane_with_values():
    values = np.full((3, 4, 4), np.nan)
    values[2] = np.arange(16).reshape(4, 4)
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values, chunks=(1, 4, 4))
    async with serving(store) as client:
        low, high = (await client.json("/api/view?path=a"))["range"]
        assert 0 <= low < 1
        assert 14 < high <= 15
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&index=2&cmap=gray")
        assert len(np.unique(decoded(body)[:4, :4, 0])) > 12


async def test_types_that_numpy_has_no_word_for():
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
        _, body, _ = await client.get("/api/data?path=small&format=npy")
        assert np.load(io.BytesIO(body)).tolist() == small.tolist()


async def test_listed_sizes_of_chunks_are_told():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", shape=(10, 4), chunks=[[3, 3, 4], 2])
    sync.create_array(store, name="b", shape=(10, 4), chunks=(1, 2), shards=[[4, 6], 2])
    async with serving(store) as client:
        found = [await client.json(f"/api/node?path={name}") for name in "ab"]
        assert [(one["chunks"], one["shards"]) for one in found] == [([[3, 3, 4], 2], None), ([1, 2], [[4, 6], 2])]


async def test_a_pipe_or_a_long_name_keeps_nobody_waiting(tmp_path):
    sync.create_array(tmp_path, name="a", shape=3)
    os.mkfifo(tmp_path / "pipe")
    async with serving(tmp_path, limits=Limits(active=1, timeout=20)) as client:
        async with asyncio.timeout(10):
            status, body, _ = await client.get("/raw/pipe")
        assert status != 200 or body == b""
        for prefix in ("raw", "zarr"):
            assert (await client.get(f"/{prefix}/" + "/".join(["x" * 200] * 30)))[0] in (400, 404)
        assert (await client.get("/raw/a/zarr.json"))[0] == 200


async def test_health_of_arrays_without_a_root():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(3))
    del store["zarr.json"]
    async with serving(store) as client:
        assert (await client.json("/api/data?path=a"))["data"] == [0, 1, 2]
        assert (await client.get("/healthz"))[0] == 200


def test_limits_that_are_no_numbers():
    with pytest.raises(ValueError, match="max_age"):
        create_app({}, max_age=float("nan"))
    with pytest.raises(ValueError, match="timeout"):
        Limits(timeout=float("nan"))


async def test_applications_around_it_add_to_large_answers_too():
    @web.middleware
    async def mark(request: web.Request, handler: Any) -> web.StreamResponse:
        answer = await handler(request)
        answer.headers["X-Outer"] = "yes"
        return answer

    store: dict[str, bytes] = {}
    values = np.random.default_rng(0).random((2, 1 << 20))
    sync.create_array(store, name="a", data=values)
    outer = web.Application(middlewares=[mark])
    outer.add_subapp("/inner", create_app(store))
    runner = web.AppRunner(outer, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/inner/api/data?path=a&format=bin"
        async with session.get(url) as answer:
            assert await answer.read() == values.tobytes()
            assert (answer.headers["X-Outer"], answer.content_length) == ("yes", values.nbytes)
        async with session.head(url) as answer:
            assert (answer.headers["X-Outer"], answer.content_length) == ("yes", values.nbytes)
    await runner.cleanup()


async def test_clients_that_take_nothing_hold_no_memory_for_ever():
    values = np.random.default_rng(0).random((2, 1 << 20))  # 16 MiB
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values)
    limits = Limits(max_pending_bytes=40 << 20, timeout=1.0)
    async with serving(store, limits=limits) as client:
        assert (await client.get("/api/data?path=a&format=bin"))[1] == values.tobytes()
        readers = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", URL(client.base).port, limit=1 << 10)
            writer.write(b"GET /api/data?path=a&format=bin HTTP/1.1\r\nHost: x\r\n\r\n")
            readers.append((reader, writer))
            assert b"200" in await reader.readline()
        status, _, headers = await client.get("/api/data?path=a&format=bin")
        assert (status, headers["Retry-After"]) == (503, "1")
        async with asyncio.timeout(20):  # they are given up, so that others are served
            while (await client.get("/api/data?path=a&format=bin"))[0] != 200:
                await asyncio.sleep(0.1)
        for reader, writer in readers:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(16 << 20)
            writer.close()


async def test_pyramids_whose_leading_axes_shrink_too():
    store: dict[str, bytes] = {}
    datasets = {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}
    group = sync.create_group(store, attributes={"ome": datasets})
    planes = np.arange(8)[:, None, None] * 10 * np.ones((1, 600, 600))
    group.create_array("0", data=planes.astype("u1"), chunks=(1, 300, 300))
    group.create_array("1", data=planes[::2, ::2, ::2].astype("u1"), chunks=(1, 300, 300))
    bad = group.create_group("bad", attributes={"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]})
    bad.create_array("0", data=planes.astype("u1"))
    bad.create_array("1", data=planes[0].astype("u1"))
    async with serving(store) as client:
        for index, want in ((3, {2: 30, 1: 20, 0: 20}), (7, {2: 70, 1: 60, 0: 60})):
            for zoom, value in want.items():
                _, body, _ = await client.get(f"/api/tiles/{zoom}/0/0.png?index={index}&low=0&high=254&cmap=gray")
                assert set(decoded(body)[:100, :100, 0].reshape(-1).tolist()) == {value}
            assert (await client.json(f"/api/stats?index={index}"))["mean"] in (index * 10, want[1])
        assert (await client.json("/api/view?path=bad", 400))["error"] == "SelectionError"


async def test_what_is_appended_is_not_read_as_fill_values(tmp_path):
    """Also by clients that asked too early."""
    array = sync.create_array(tmp_path, name="f", data=np.arange(10), chunks=5)
    async with serving(tmp_path, max_age=30) as client:
        assert (await client.get("/zarr/f/c/1"))[0] == 200
        status, _, headers = await client.get("/zarr/f/c/2")
        assert (status, headers["Cache-Control"]) == (404, "no-cache")
        await asyncio.to_thread(array.append, np.arange(10, 20))
        for prefix in ("zarr", "raw"):
            assert (await client.get(f"/{prefix}/f/c/2"))[0] == 200
            assert (await client.get(f"/{prefix}/f/c/3"))[0] == 200


async def test_one_broken_member_does_not_hide_the_others():
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    root.create_array("good", data=np.arange(4))
    root.create_array("g/also", data=np.arange(3))
    store["bad/zarr.json"] = b"{"
    async with serving(store) as client:
        told = await client.json("/api/node")
        assert {own["name"]: own["kind"] for own in told["members"]} == {"bad": "broken", "g": "group", "good": "array"}
        group = await asyncio.to_thread(lambda: sync.open_group(f"{client.base}/zarr"))
        names = await asyncio.to_thread(lambda: [name for name, _ in group.members(None)])
        assert names == ["g", "g/also", "good"]


async def test_an_array_without_a_root():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="x/a", data=np.arange(4))
    for key in [key for key in store if key in ("zarr.json", "x/zarr.json")]:
        del store[key]
    async with serving(store) as client:
        assert (await client.json("/api/data?path=x/a"))["data"] == [0, 1, 2, 3]
        assert (await client.get("/zarr/x/a/c/0"))[0] == 200


async def test_texts_count_as_long_as_they_are():
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


async def test_what_is_encoded_anew_is_encoded_once():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="d", data=np.arange(64.0).reshape(8, 8), chunks=(8, 8), zarr_format=2, order="F",
                      filters=[{"id": "delta", "dtype": "<f8"}])  # fmt: skip
    async with serving(store) as client:
        await client.get("/zarr/d/c/0/0")
        before = client.upstream
        for start in range(0, 40, 4):
            await client.get("/zarr/d/c/0/0", Range=f"bytes={start}-{start + 3}")
        assert client.upstream == before


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


# ------------------------------------------------------------------ limits


HOSTILE = [
    ("/raw/../etc/passwd", 400),
    ("/raw/%2e%2e/%2e%2e/etc/passwd", 400),
    ("/raw/..%2f..%2fetc%2fpasswd", 400),
    ("/raw//etc/passwd", 400),
    ("/raw/%2Fetc/passwd", 400),
    ("/raw/a%00b", 400),
    ("/raw/a/./b", 400),
    ("/raw/..%5c..%5cetc", 404),
    ("/zarr/../zarr.json", 400),
    ("/zarr/f/c/" + "9" * 30, 404),
    ("/zarr/f/c/" + "/".join(["0"] * 900), 400),
    ("/zarr/" + "/".join(["0"] * 50), 404),
    ("/api/node?path=" + "/".join(["x"] * 100), 400),
    ("/zarr/f/c/-1/0", 404),
    ("/static/..%2fapp.py", 404),
    ("/static/../app.py", 404),
    ("/api/node?path=../../etc", 400),
    ("/api/node?path=%00", 400),
    ("/api/data?path=f&select=1e9", 400),
    ("/api/data?path=f&select=::0", 400),
    ("/api/data?path=f&select=0,0,0,0", 400),
    ("/api/data?path=f&select=99999999999999999999", 400),
    ("/api/data?path=f&select=__import__('os')", 400),
    ("/api/data?path=f&select=.,.", 400),
    ("/api/data?path=f&select=...,...", 400),
    ("/api/data?path=f&format=exe", 400),
    ("/api/data?path=f", 413),
    ("/api/data?path=f&select=::1000&format=npy", 413),
    ("/api/data?path=f&format=npy", 413),
    ("/api/data?path=f&format=png", 413),
    ("/api/data?path=s", 413),
    ("/api/data?path=long&select=::1001", 413),
    ("/api/data?path=long&select=::1001&format=npy", 413),
    ("/raw/" + "a" * 300, 400),
    ("/api/tiles/3/0/0.png?path=f&low=0&high=1", 413),
    ("/api/tiles/99/0/0.png?path=f", 400),
    ("/api/tiles/0/999999999/0.png?path=f", 400),
    ("/api/tiles/-1/0/0.png?path=f", 404),
    ("/api/tiles/0/0/0.png?path=f&low=nan", 400),
    ("/api/tiles/0/0/0.png?path=f&low=x&high=1", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&cmap=../../x", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&scale=cubic", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&index=0", 400),
    ("/api/tiles/18/0/0.png?path=f&low=0&high=1&origin=left", 400),
    ("/api/stats?path=f&bins=0", 400),
    ("/api/stats?path=f&bins=99999999999", 400),
    ("/api/stats?path=one", 400),
    ("/api/view?path=one", 400),
    ("/api/view?path=", 400),
    ("/api/data?path=", 400),
]


async def test_hostile_requests_cost_nothing():
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    root.create_array("f", shape=(60_000_000, 60_000_000), dtype="f8", chunks=(1000, 1000))
    root.create_array("s", shape=(3_000_000,), dtype="i1", chunks=100)
    root.create_array("one", shape=(5,), dtype="i1")
    root.create_array("long", shape=(10**15,), dtype="i1", chunks=1000)
    async with serving(store) as client:
        for path in ("f", "s", "one", ""):
            await client.get(f"/api/node?path={path}")
        before, memory = client.upstream, peak_memory()
        for path, status in HOSTILE:
            found, body, _ = await client.get(path)
            assert found == status, (path, found, body)
            assert "Traceback" not in body.decode()
            if found in (400, 413):
                assert json.loads(body)["message"]
        assert client.upstream - before < 60  # what is absent was looked for; nothing was read
        assert peak_memory() - memory < 80 << 20  # with the colour maps, which come with the first picture
        assert (await client.get("/healthz"))[0] == 200


def peak_memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_abused_headers_are_refused():
    store = {"x": b"12345"}
    async with serving(store) as client:
        host, port = client.base.removeprefix("http://").split(":")
        for lines in (
            "GET /raw/x HTTP/1.1\r\nHost: x\r\nX-Long: " + "a" * 100_000 + "\r\n\r\n",
            "GET /raw/" + "a" * 100_000 + " HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /raw/x HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
            "GET /raw/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET /raw/x HTTP/9.9\r\nHost: x\r\nBad Header\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(lines.encode())
            answer = await asyncio.wait_for(reader.readline(), 10)
            assert answer.split()[1].startswith(b"4"), (lines[:60], answer)
            writer.close()
        many = {f"X-{n}": "y" for n in range(2000)}
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            assert (await client.get("/raw/x", **many))[0] == 200
        for header in ({"Range": "bytes=" + "9" * 50}, {"If_None_Match": '"' * 5000}):
            assert (await client.get("/raw/x", **header))[1] in (b"12345", b"")


async def test_too_many_are_told_to_come_again():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(4000).reshape(400, 10), chunks=(1, 10))
    slow = stores.LatencyStore(stores.MemoryStore(store), 0.1)
    async with serving(slow, limits=Limits(active=2, waiting=3), cache_bytes=0) as client:
        await client.get("/api/data?path=a&select=0")
        answers = await asyncio.gather(*(client.get(f"/api/data?path=a&select={n}") for n in range(20)))
        statuses = [status for status, _, _ in answers]
        assert statuses.count(200) >= 5
        assert statuses.count(503) >= 10
        assert all(headers["Retry-After"] == "1" for status, _, headers in answers if status == 503)
        assert (await client.get("/api/data?path=a&select=1"))[0] == 200


async def test_what_takes_too_long_ends():
    slow = stores.LatencyStore(stores.MemoryStore({"x": b"1"}), 30)
    async with serving(slow, limits=Limits(timeout=0.2)) as client:
        begin = time.monotonic()
        assert (await client.get("/raw/x"))[0] == 504
        assert time.monotonic() - begin < 10


async def test_a_failing_store_is_a_bad_gateway():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(10), compressors="gzip")
    faulty = stores.FaultyStore(stores.MemoryStore(store), 1.0)
    async with serving(faulty) as client:
        for path in ("/raw/a/zarr.json", "/api/data?path=a", "/zarr/a/c/0", "/api/node?path=a"):
            status, body, _ = await client.get(path)
            assert status == 502, body
        assert (await client.get("/healthz"))[0] == 503
    store["a/c/0"] = b"damaged"
    async with serving(store) as client:
        assert (await client.json("/api/data?path=a", 500))["error"] == "CodecError"


class Failing(stores.WrapperStore):
    """Fails behind the first eight MiB of a value."""

    async def fetch(self, requests, *, versions=False):
        if any(request.start >= 8 << 20 for request in requests):
            raise za.errors.StoreError("it fell over at http://host/secret?sig=SECRET")
        return await super().fetch(requests, versions=versions)


async def test_a_value_that_breaks_off_breaks_the_connection():
    """No second answer in the first one's body."""
    value = os.urandom(12 << 20)
    async with serving(Failing(stores.MemoryStore({"big": value}))) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/raw/big")
        async with client.session.get(client.base + "/raw/big") as answer:
            body = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                async for piece in answer.content.iter_any():
                    body += piece
        assert value.startswith(body)


async def test_a_slow_reader_takes_nobodys_turn():
    value = os.urandom(40 << 20)
    async with serving({"big": value, "small": b"1"}, limits=Limits(active=1, timeout=5)) as client:
        async with client.session.get(client.base + "/raw/big") as answer:
            first = await answer.content.read(1 << 20)  # and no more for a while
            for _ in range(3):
                assert (await asyncio.wait_for(client.get("/raw/small"), 2))[1] == b"1"
            assert first + await answer.content.read() == value


async def test_long_values_are_allowed_to_other_origins_too():
    async with serving({"big": bytes(9 << 20)}) as client:
        for headers in ({}, {"Range": "bytes=0-8000000"}):
            _, _, found = await client.get("/raw/big", Origin="https://elsewhere.org", **headers)
            assert found["Access-Control-Allow-Origin"] == "*"
            assert found["X-Content-Type-Options"] == "nosniff"


async def test_secrets_and_places_stay_here(tmp_path, caplog):
    async with serving(Failing(stores.MemoryStore({"big": bytes(9 << 20)}))) as client:
        _, body, _ = await client.get("/raw/big", Range="bytes=8500000-8500010")
        assert b"SECRET" not in body
        assert json.loads(body)["message"] == "the store failed"
    async with serving(tmp_path / "nothing") as client:
        for path in ("/api/node", "/api/data?path=x", "/healthz", "/zarr/zarr.json"):
            assert str(tmp_path).encode() not in (await client.get(path))[1]


# ------------------------------------------------------------------ sharing


async def test_many_who_want_the_same_cost_one_read():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 300, 420))
    slow = stores.LatencyStore(stores.MemoryStore(store), 0.05)
    async with serving(slow, limits=Limits(active=100)) as client:
        await client.get("/api/node?path=f")
        before = client.upstream
        tiles = [client.get(f"/api/tiles/1/{x}/0.png?path=f&index=1&low=0&high=1") for x in (0, 1)] * 1
        tiles += [client.get(f"/api/tiles/1/{n % 2}/0.png?path=f&index=1&low=0&high=1") for n in range(30)]
        tiles += [client.get(f"/api/data?path=f&select=1,{n},0") for n in range(30)]
        assert {status for status, _, _ in await asyncio.gather(*tiles)} == {200}
        assert client.upstream - before == 1
        before = client.upstream
        values = await asyncio.gather(*(client.get("/raw/f/c/2/0/0") for _ in range(30)))
        assert len({body for _, body, _ in values}) == 1
        assert client.upstream - before == 1


async def test_the_cache_stays_within_its_bytes():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 50, 60))
    async with serving(store, cache_bytes=1 << 20) as client:
        source = client.app[SOURCE]
        for n in range(3):
            for row in range(0, 300, 50):
                _, body, _ = await client.get(f"/api/data?path=f&select={n},{row}:{row + 60},:200:7&format=npy")
                np.testing.assert_array_equal(np.load(io.BytesIO(body)), FIELD[n, row : row + 60, :200:7])
                assert source.chunks.size <= source.chunks.max_size == 1 << 19
        assert source.chunks.hits > 0


async def test_changes_are_seen_after_max_age(tmp_path):
    array = sync.create_array(tmp_path, name="f", data=np.arange(10), chunks=6)
    async with serving(tmp_path, max_age=0.3) as client:
        assert (await client.json("/api/data?path=f"))["data"] == list(range(10))
        await asyncio.to_thread(array.append, np.arange(10, 15))
        await asyncio.sleep(0.35)
        assert (await client.json("/api/data?path=f"))["data"] == list(range(15))


async def test_who_leaves_frees_the_work():
    """The requests to the store stop when the client goes."""
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(4000), chunks=1, compressors=None)
    slow = stores.LatencyStore(stores.MemoryStore(store), 0.02, concurrency=4)
    async with serving(slow, cache_bytes=0) as client:
        await client.get("/api/node?path=a")
        before = client.upstream
        request = asyncio.ensure_future(client.get("/api/data?path=a"))  # 20 seconds of work
        while client.upstream - before < 8:
            await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await asyncio.sleep(0.2)
        settled = client.upstream
        await asyncio.sleep(0.5)
        assert client.upstream == settled < before + 200
        assert b'status="499"' in client.app[METRICS].text()
        assert b"zarrasync_active_requests 0.0" in client.app[METRICS].text()


async def test_one_of_two_who_leaves_does_not_disturb_the_other():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 300, 420))
    slow = stores.LatencyStore(stores.MemoryStore(store), 0.3)
    async with serving(slow) as client:
        await client.get("/api/node?path=f")
        query = "/api/tiles/1/0/0.png?path=f&low=0&high=1"
        first, second = (asyncio.ensure_future(client.get(query)) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second)[0] == 200


async def test_metrics_are_what_prometheus_reads():
    from prometheus_client.parser import text_string_to_metric_families

    store: dict[str, bytes] = {}
    fill(store)
    async with serving(store) as client:
        for _ in range(3):
            await client.get("/api/data?path=flags&select=0")
        await client.get("/raw/none")
        _, body, headers = await client.get("/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }
        assert found["zarrasync_requests_total", (("route", "data"), ("status", "200"))] == 3
        assert found["zarrasync_requests_total", (("route", "raw"), ("status", "404"))] == 1
        assert found["zarrasync_request_seconds_count", (("route", "data"),)] == 3
        assert found["zarrasync_chunk_cache_hits_total", ()] > 0


async def test_the_access_log_is_structured(caplog):
    caplog.set_level("INFO", "zarrasync.server.access")
    async with serving({"x": b"123"}) as client:
        await client.get("/raw/x?secret=1")
    (record,) = caplog.records
    told = json.loads(record.getMessage())
    assert (told["status"], told["bytes"], told["route"]) == (200, 3, "raw")
    assert told["ms"] > 0


# ------------------------------------------------------------------ processes


def start(path: Any, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "zarrasync", "serve", str(path), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert "http://" in process.stdout.readline()
    return process


def test_killed_and_started_again(tmp_path):
    fill(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = start(tmp_path, port)
    try:
        array = sync.open_array(f"http://127.0.0.1:{port}/zarr", path="a/field", config={"retries": 1})
        np.testing.assert_array_equal(array[0], FIELD[0])
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(za.errors.StoreError):
            array[1]
        process.stdout.close()
        process = start(tmp_path, port)
        np.testing.assert_array_equal(array[1], FIELD[1])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_requests_under_way_end_when_the_server_is_terminated(tmp_path):
    """A long value arrives whole though the server was told to end while it was sent."""
    value = os.urandom(30 << 20)
    sync.create_group(tmp_path)
    (tmp_path / "big").write_bytes(value)
    command = [sys.executable, "-m", "zarrasync", "serve", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
        async with aiohttp.ClientSession() as session, session.get(f"{url}raw/big") as answer:
            body = await answer.content.read(1 << 20)
            process.send_signal(signal.SIGTERM)
            body += await answer.content.read()
        assert body == value
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
async def test_two_hundred_clients(tmp_path):
    """Tiles and chunks for a while: no error, and memory stays where it was. Longer in the benchmarks."""
    field = np.round(np.sin(np.arange(2048) / 100) * np.cos(np.arange(2048) / 80)[:, None], 2).astype("f4")
    sync.create_array(tmp_path, name="f", data=field, chunks=(256, 256))
    command = [sys.executable, "-m", "zarrasync", "serve", str(tmp_path), "--port", "0", "--cache", "16"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    statuses: list[int] = []

    def memory() -> int:
        with open(f"/proc/{process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        choose = np.random.default_rng(number)
        while time.monotonic() < end:
            x, y, high = choose.integers(8), choose.integers(8), choose.random()
            path = f"api/tiles/3/{x}/{y}.png?path=f&low=-1&high={high}" if number % 3 else f"zarr/f/c/{y}/{x}"
            async with session.get(url + path) as answer:
                statuses.append(answer.status)
                await answer.read()

    try:
        url = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            end = time.monotonic() + 1
            await asyncio.gather(*(client(session, n) for n in range(200)))
            before, end = memory(), time.monotonic() + 4
            await asyncio.gather(*(client(session, n) for n in range(200)))
        assert set(statuses) == {200}
        assert len(statuses) > 500
        assert memory() - before < 48 << 20
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_limits_are_checked():
    with pytest.raises(ValueError, match="max_cells"):
        Limits(max_cells=0)
    with pytest.raises(ValueError, match="cache_bytes"):
        create_app({}, cache_bytes=-1)
    assert math.isinf(create_app({}, max_age=math.inf)[SOURCE].max_age)
