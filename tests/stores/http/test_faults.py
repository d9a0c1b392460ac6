"""Web servers that refuse, stall or are overloaded: what is read is right, or an error says why."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from email.utils import formatdate
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.s3_server import VALUES, Answer, Bucket
from zarrasync import stores, sync
from zarrasync.errors import StoreError
from zarrasync.stores.http.responses import Response, version_of

pytestmark = pytest.mark.servers


def test_disk_cached_absence_depends_on_the_store(bucket: Bucket, tmp_path: Path):
    """A 403 means a missing key only for stores that are configured so."""
    denied = (403, {}, b"")
    bucket.fault = lambda key, data: denied if data is None else None
    del bucket.values["c/1/1"]

    def read(**options: Any) -> np.ndarray:
        store = stores.HTTPStore(f"{bucket.url}/bucket", **options)
        return np.asarray(sync.open_array(stores.DiskCachingStore(store, tmp_path), zarr_format=3)[...])

    assert (read(missing=(403, 404))[100:, 100:] == -1).all()
    with pytest.raises(StoreError, match="403"):
        read()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec's files
@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
@pytest.mark.parametrize("status", [200, 403, 503])
def test_caches_of_fsspec_report_no_false_absence(bucket: Bucket, cache: str, status: int, tmp_path: Path):
    """fsspec's caches report missing files if a server refuses or shows no directories."""
    plain: dict[str, bytes] = {}
    sync.create_array(plain, data=VALUES, chunks=100, fill_value=-1)
    bucket.values.update({f"plain/{key}": value for key, value in plain.items()})
    bucket.fault = lambda key, data: (status, {}, b"") if status != 200 and "c/0" in key else None
    options = {cache: {"cache_storage": str(tmp_path)}}
    for path in ("", "/plain"):
        url = f"{cache}::{bucket.url}/bucket{path}"
        array = sync.open_array(url, zarr_format=3, storage_options=options, config={"retries": 2})
        for missing in ("fill", "error"):
            if status == 200:
                np.testing.assert_array_equal(array.view[:60, 30:90].read(missing=missing), VALUES[:60, 30:90])
            else:
                with pytest.raises(StoreError, match=str(status)):
                    array.view[:60, 30:90].read(missing=missing)


@pytest.mark.parametrize("backend", ["auto", "fsspec"])
def test_no_attempt_lasts_longer_than_all_may(bucket: Bucket, backend: str):
    stalled = threading.Event()

    def fault(key: str, data: bytes | None) -> Answer | None:
        stalled.wait(20)
        return None

    array = sync.open_array(
        f"{bucket.url}/bucket", zarr_format=3, storage_options={"backend": backend},
        config={"total_timeout": 0.3, "request_timeout": 15.0},
    )  # fmt: skip
    bucket.fault = fault
    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"no answer within 0\.(3|29\d*) s"):
        array[...]
    assert time.monotonic() - begin < 10
    stalled.set()


def test_config_of_a_call_reaches_its_store(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bucket.fault = lambda key, data: (503, {}, b"")
    with pytest.raises(StoreError, match="attempt 1,"):
        sync.open_array(f"{bucket.url}/bucket", zarr_format=3, config={"retries": 0})
    with pytest.raises(StoreError, match="attempt 2,"):
        asyncio.run(za.open_array(f"{bucket.url}/bucket", zarr_format=3, config={"retries": 1}))
    synced: list[int] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(handle)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    for write in (
        lambda where: sync.create_array(where, data=VALUES, config={"fsync": True}),
        lambda where: asyncio.run(za.ingest(VALUES, where, config={"fsync": True})),
        lambda where: sync.ingest(VALUES, where, config={"fsync": True}),
    ):
        synced.clear()
        write(tmp_path / str(len(list(tmp_path.iterdir()))))
        assert len(synced) > 1
    store = stores.resolve(bucket.url, config={"concurrency": 3})
    assert (store.concurrency, stores.resolve(bucket.url).concurrency > 3) == (3, True)


@pytest.mark.parametrize(
    ("tag", "age", "is_version"),
    [('"6b0b3774-1d7"', 1, False), ('"6b0b3774-1d7"', 2, True), ('"6b0b3775-1d7"', 0, True), ('"a"', 0, True)],
)
def test_tags_of_nginx_are_versions_after_a_second(tag: str, age: int, is_version: bool):
    """They consist of the modification time and the size, which values written in the same second have in common."""
    written = 0x6B0B3774
    headers = {
        "etag": tag,
        "last-modified": formatdate(written, usegmt=True),
        "date": formatdate(written + age, usegmt=True),
    }
    assert (version_of(Response(200, "OK", headers, b"")) is not None) == is_version


@pytest.mark.parametrize(("age", "asked"), [(0, 2), (3600, 1)])
def test_a_modification_time_is_a_version_after_a_second(tmp_path: Path, age: int, asked: int):
    """Python's server sends only modification times, which are equal for versions within one second."""
    requests: list[str] = []

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def do_GET(self) -> None:
            requests.append(self.path)
            data = (tmp_path / self.path[1:]).read_bytes() if (tmp_path / self.path[1:]).is_file() else None
            if data is None or "Range" not in self.headers:
                super().do_GET()
                return
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            part = data[start : int(last) + 1 if first and last else len(data)]
            self.send_response(206)
            modified = (tmp_path / self.path[1:]).stat().st_mtime
            self.send_header("Last-Modified", self.date_time_string(int(modified)))
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *args: Any) -> None:
            pass

    array = sync.create_array(tmp_path, shape=20_000, dtype="i4", chunks=10_000, shards=20_000, compressors=None)
    shard, when = tmp_path / "c" / "0", time.time() + (-age or 60)  # treats a minute as one moment
    array[10_000:] = 1
    os.utime(shard, (when, when))
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = sync.open_array(f"http://127.0.0.1:{server.server_port}", zarr_format=3)
        assert found[10_000:10_003].tolist() == [1, 1, 1]
        requests.clear()
        assert found[10_003:10_005].tolist() == [1, 1]
        assert len(requests) == asked
        if not age:
            array[...] = np.repeat([2, 3], 10_000)
            os.utime(shard, (when, when))
            assert found[10_000:10_003].tolist() == [3, 3, 3]
        server.shutdown()
