"""Stores that the server passes on or shows as format 3, read by other programs."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
from yarl import URL

from tests.support.server_client import FIELD, RNG, fill, serving
from zarrasync import stores, sync
from zarrasync.server import Limits
from zarrasync.testing import LatencyStore

FORMATS = [2, 3, "3-draft", "3-draft-2022"]


@pytest.mark.servers
@pytest.mark.parametrize("zarr_format", FORMATS)
async def test_any_format_is_served_as_format_3(zarr_format):
    store: dict[str, bytes] = {}
    arrays = fill(store, zarr_format)
    async with serving(store) as client:
        await asyncio.to_thread(read_by_all, f"{client.base}/zarr", arrays)


def read_by_all(url: str, arrays: dict[str, np.ndarray]) -> None:
    """Assert that zarrasync, zarr-python and tensorstore read the same values."""
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
        np.testing.assert_array_equal(np.asarray(theirs[name]), values, err_msg=name)
        if values.ndim:
            spec = {"driver": "zarr3", "kvstore": f"{url}/{name}/"}
            np.testing.assert_array_equal(ts.open(spec, read=True).result()[...].read().result(), values, err_msg=name)


@pytest.mark.servers
async def test_chunks_that_are_equal_in_format_3_are_not_decoded():
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


@pytest.mark.servers
async def test_xarray_and_a_hierarchy_without_listing(tmp_path):
    """The server creates consolidated metadata, because HTTP clients cannot list."""
    xr = pytest.importorskip("xarray")
    want = xr.Dataset({"t": (("y", "x"), FIELD[1])}, coords={"x": np.arange(420.0)})
    from zarrasync.integrations.xarray import WriteOptions, write_dataset

    write_dataset(want, tmp_path / "x.zarr", options=WriteOptions(consolidated=False))
    assert "consolidated" not in (tmp_path / "x.zarr" / "zarr.json").read_text()
    async with serving(tmp_path / "x.zarr") as client:

        def read() -> None:
            for engine in ("zarrasync", "zarr"):
                with xr.open_dataset(f"{client.base}/zarr", engine=engine) as found:
                    xr.testing.assert_equal(found.load(), want)

        await asyncio.to_thread(read)


@pytest.mark.servers
async def test_part_of_a_store_and_below_a_prefix(tmp_path):
    fill(tmp_path / "x.zarr")
    async with serving(tmp_path / "x.zarr", path="a", prefix="/data/one") as client:
        found = await asyncio.to_thread(lambda: sync.open_array(f"{client.base}/zarr", path="field")[...])
        np.testing.assert_array_equal(found, FIELD)
        assert (await client.json("/api/data?path=big&select=0,0"))["data"] == 0
        assert (await client.get("/raw/big/zarr.json"))[0] == 200
        assert (await client.get(""))[0] in (307, 308)
        assert b"viewer.js" in (await client.get("/"))[1]
        assert (await client.json("/api/node?path=field"))["path"] == "field"


@pytest.mark.servers
async def test_untranslatable_arrays_are_explained():
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
    """A store with a value of 9 MB, and that value."""
    value = RNG.integers(0, 256, 9_000_001, dtype=np.uint8).tobytes()
    (tmp_path / "big").write_bytes(value)
    kinds = {"memory": lambda: {"big": value}, "local": lambda: tmp_path}
    kinds["http-latency"] = lambda: LatencyStore(stores.LocalStore(tmp_path), 0.001)
    return kinds[request.param](), value


@pytest.mark.servers
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
            assert (await client.get("/raw/big", Range=text))[0] == 200  # an invalid header is ignored (RFC 9110, 14.2)
        assert (await client.get("/raw/big", If_None_Match=etag))[:2] == (304, b"")
        assert (await client.get("/raw/big", If_None_Match=f'"x", W/{etag}'))[0] == 304
        assert (await client.get("/raw/big", If_None_Match='"x"', Range="bytes=0-3"))[1] == value[:4]
        assert (await client.get("/raw/big", If_Range=etag, Range="bytes=0-3"))[0] == 206
        assert (await client.get("/raw/big", If_Range='"x"', Range="bytes=0-3"))[:2] == (200, value)
        status, body, headers = await client.get("/raw/big", method="HEAD")
        assert (status, body, headers["Content-Length"], headers["ETag"]) == (200, b"", str(len(value)), etag)
        assert (await client.get("/raw/none", method="HEAD"))[0] == 404


@pytest.mark.servers
async def test_headers_for_browsers_and_caches():
    async with serving({"x/zarr.json": b"{}"}, max_age=5, allow_origins=["*"]) as client:
        _, _, headers = await client.get("/raw/x/zarr.json", Origin="https://elsewhere.org")
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert "Content-Range" in headers["Access-Control-Expose-Headers"]
        assert headers["Cache-Control"] == "max-age=5"
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


@pytest.mark.servers
async def test_clients_that_stop_reading_release_memory():
    values = np.random.default_rng(0).random((2, 1 << 20))  # 16 MiB
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values)
    limits = Limits(max_pending_bytes=40 << 20, timeout=1.0)
    async with serving(store, limits=limits) as client:
        assert (await client.get("/api/data?path=a&format=bin"))[1] == values.tobytes()
        readers = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", URL(client.base).port, limit=1 << 10)
            writer.write(b"GET /api/data?path=a&format=bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
            readers.append((reader, writer))
            assert b"200" in await reader.readline()
        status, _, headers = await client.get("/api/data?path=a&format=bin")
        assert (status, headers["Retry-After"]) == (503, "1")
        async with asyncio.timeout(20):  # the server drops them to serve others
            while (await client.get("/api/data?path=a&format=bin"))[0] != 200:
                await asyncio.sleep(0.1)
        bodies = await asyncio.gather(*(reader.readexactly(16 << 20) for reader, _ in readers), return_exceptions=True)
        for _, writer in readers:
            writer.close()
        # The first one that is dropped makes room, and the other one may then continue.
        assert any(isinstance(body, ConnectionError | asyncio.IncompleteReadError) for body in bodies)


@pytest.mark.servers
async def test_appended_rows_are_not_read_as_fill_values(tmp_path):
    """Also by clients that requested the rows before they were stored."""
    array = sync.create_array(tmp_path, name="f", data=np.arange(10), chunks=5)
    async with serving(tmp_path, max_age=30) as client:
        assert (await client.get("/zarr/f/c/1"))[0] == 200
        status, _, headers = await client.get("/zarr/f/c/2")
        assert (status, headers["Cache-Control"]) == (404, "no-store")
        await asyncio.to_thread(array.append, np.arange(10, 20))
        for prefix in ("zarr", "raw"):
            assert (await client.get(f"/{prefix}/f/c/2"))[0] == 200
            assert (await client.get(f"/{prefix}/f/c/3"))[0] == 200


@pytest.mark.servers
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


@pytest.mark.servers
async def test_a_slow_reader_does_not_block_other_clients():
    value = os.urandom(40 << 20)
    async with serving({"big": value, "small": b"1"}, limits=Limits(active=1, timeout=5)) as client:  # noqa: SIM117  # an answer needs its client
        async with client.session.get(client.base + "/raw/big") as answer:
            first = await answer.content.read(1 << 20)  # the client pauses here
            for _ in range(3):
                assert (await asyncio.wait_for(client.get("/raw/small"), 2))[1] == b"1"
            assert first + await answer.content.read() == value


@pytest.mark.servers
async def test_long_values_are_allowed_to_other_origins_too():
    async with serving({"big": bytes(9 << 20)}, allow_origins=["*"]) as client:
        for headers in ({}, {"Range": "bytes=0-8000000"}):
            _, _, found = await client.get("/raw/big", Origin="https://elsewhere.org", **headers)
            assert found["Access-Control-Allow-Origin"] == "*"
            assert found["X-Content-Type-Options"] == "nosniff"
