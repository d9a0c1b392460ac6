"""Bodies of web servers that are larger than a document or chunk may be, sent or decoded."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import zstandard

import zarrasync as za
from tests.support import ROOT, bombs
from tests.support.api import Api
from tests.support.raw_answers import head, listening
from tests.support.web_stores import WAYS, web_store
from zarrasync import errors, stores

SIZE = 160 << 20
LIMIT = 1 << 20
ZEROS = bytes(SIZE)


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(1, wbits=-15)
    return compressor.compress(data) + compressor.flush()


CODINGS = {
    "gzip": lambda data: gzip.compress(data, 1),
    "x-gzip": lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:], 1),
    "deflate": lambda data: zlib.compress(data, 1),
    "Deflate": raw_deflate,
    "zstd": zstandard.compress,
    "zstd, gzip": lambda data: gzip.compress(zstandard.compress(data), 1),
}


@cache
def bomb(coding: str) -> bytes:
    """Return the answer that contains zeros in a coding."""
    return sized(CODINGS[coding](ZEROS), f"Content-Encoding: {coding}") if coding else sized(ZEROS)


def sized(data: bytes, *lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return head(f"Content-Length: {len(data)}", *lines, status=status) + data


@asynccontextmanager
async def serving(answer: Callable[[str], bytes], *, endless: str = "") -> AsyncIterator[str]:
    """Serve answers by path on a thread of its own, and yield the URL. The endless one repeats its last part."""
    loop, ready, url = asyncio.new_event_loop(), threading.Event(), list[str]()
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            path = request.split()[1].decode()
            writer.write(answer(path))
            while endless and path == endless:
                writer.write(b"%x\r\n%s\r\n" % (1 << 16, bytes(1 << 16)))
                await writer.drain()
            await writer.drain()

    async def run() -> None:
        async with listening(serve) as port:
            url.append(f"http://127.0.0.1:{port}")
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def open_bounded(api: Api, store: Any):
    return await api(api.open_array(store, zarr_format=3, config={"max_document_bytes": LIMIT, "retries": 0}))


# ---------------------------------------------------------------- documents


READ = """
import sys
from functools import cache, partial
from tests.support import ROOT, bombs
from tests.support.web_stores import web_store

api, way, url, limit, *names = sys.argv[1:]
read = bombs.reader(api, {"max_document_bytes": int(limit), "retries": 0})
for name in names:
    bombs.report(name, partial(read, web_store(way, url, [f"{name}/zarr.json"]), name))
"""
"""Opens arrays, and prints the outcomes as lines of JSON."""


@pytest.mark.processes
async def test_documents_that_are_too_large_when_decoded(api: Api, way: str):
    """Read in a process of its own, whose memory contains neither the server nor what other tests left."""
    answers = {coding.replace(", ", "-") or "plain": bomb(coding) for coding in (*CODINGS, "")}

    def answer(path: str) -> bytes:
        _, kind, name, document = path.split("/")
        moved = f"Location: /direct/{name}/{document}"
        return answers[name] if kind == "direct" else sized(b"", moved, status="HTTP/1.1 302 Found")

    names = [f"{kind}/{name}" for kind in ("direct", "redirected") for name in answers]
    async with serving(answer) as url:
        command = [sys.executable, "-c", READ, api.name, way, url, str(LIMIT), *names]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [found["name"] for found in outcomes] == names
    for found in outcomes:
        assert "MetadataError" in found["kinds"], found
        assert re.search(r"zarr\.json: .* bytes; config.max_document_bytes is 1,048,576", found["message"]), found
        # Tasks of the other documents receive at the same time.
        assert found["peak"] < LIMIT + (100 << 20), found


@pytest.mark.servers
@pytest.mark.parametrize("coding", ["gzip", "deflate", ""])
async def test_documents_in_a_cache(api: Api, coding: str, tmp_path: Path):
    """A cache stores whole files, but no more of them than the limit is read."""
    async with serving(lambda path: bomb(coding)) as url:
        with pytest.raises(errors.MetadataError, match=r"1,048,577 bytes; config\.max_document_bytes is 1,048,576"):
            await open_bounded(api, web_store("cache", url, cache_folder=tmp_path))


@pytest.mark.servers
@pytest.mark.parametrize(
    "headers", [["Transfer-Encoding: chunked"], ["Transfer-Encoding: chunked", "Content-Encoding: gzip"]]
)
@pytest.mark.parametrize("redirected", [False, True])
async def test_documents_without_an_end(api: Api, way: str, headers: list[str], redirected: bool):
    moved = sized(b"", "Location: /endless", status="HTTP/1.1 302 Found")
    endless = "/endless" if redirected else "/zarr.json"
    absent = sized(b"", status="HTTP/1.1 404 Not Found")

    def answer(path: str) -> bytes:
        return head(*headers) if path == endless else moved if path == "/zarr.json" else absent

    async with serving(answer, endless=endless) as url:
        with pytest.raises(
            errors.MetadataError, match=r"more than 1,\d+,\d+ bytes; config.max_document_bytes is 1,048,576"
        ):
            await open_bounded(api, web_store(way, url))


@pytest.mark.servers
@pytest.mark.parametrize("way", ["lean", "general", "fsspec"])
async def test_error_pages_may_be_larger_than_documents(api: Api, way: str):
    page = sized(b"x" * 5000, status="HTTP/1.1 404 Not Found")
    async with serving(lambda path: page) as url:
        with pytest.raises(errors.NodeNotFoundError):
            await api(api.open_array(web_store(way, url), config={"max_document_bytes": 1000}))


# ---------------------------------------------------------------- chunks


def array_of(codecs: list, count: int, data_type: str = "uint8") -> bytes:
    return sized(bombs.v3(codecs, data_type, count))


@pytest.mark.servers
@pytest.mark.parametrize("coding", CODINGS)
async def test_encoded_chunks_may_be_larger_than_documents(api: Api, way: str, coding: str):
    """Chunks have a limit of their own."""
    size = 3 << 20
    document = array_of([{"name": "bytes"}], size)
    chunk = sized(CODINGS[coding](b"7" * size), f"Content-Encoding: {coding}")
    async with serving(partial(_array_answer, document, chunk)) as url:
        array = await open_bounded(api, web_store(way, url))
        assert bytes(await api(array.get_basic_selection())) == b"7" * size


@pytest.mark.servers
@pytest.mark.parametrize("coding", [*CODINGS, ""])
async def test_chunks_that_are_larger_than_their_metadata_says(api: Api, way: str, coding: str):
    document = array_of([{"name": "bytes"}], 4)
    async with serving(partial(_array_answer, document, bomb(coding))) as url:
        array = await open_bounded(api, web_store(way, url))
        with pytest.raises(errors.StoreError, match=r"could not read 'c/0' .* bytes; a chunk has 4 bytes"):
            await api(array.get_basic_selection())


def _array_answer(document: bytes, chunk: bytes, path: str) -> bytes:
    return document if path == "/zarr.json" else chunk


@pytest.mark.servers
async def test_bodies_that_cannot_be_decoded(api: Api, way: str):
    document = array_of([{"name": "bytes"}], 4)
    for coding, body, message in (
        ("gzip", b"nope", "its body is not valid gzip"),
        ("zstd", zstandard.compress(b"1234")[:-1], "its body is not valid zstd"),
        ("br", b"1234", "unsupported Content-Encoding: 'br'"),
        (", ".join(["gzip"] * 4), b"1234", "unsupported Content-Encoding"),
    ):
        chunk = sized(body, f"Content-Encoding: {coding}")
        async with serving(partial(_array_answer, document, chunk)) as url:
            array = await open_bounded(api, web_store(way, url))
            with pytest.raises(errors.StoreError, match=re.escape(message)):
                await api(array.get_basic_selection())


# ---------------------------------------------------------------- the event loop


BODIES: dict[str, Callable[[], bytes]] = {
    "empty members": lambda: sized(gzip.compress(b"") * 150_000, "Content-Encoding: gzip"),
    "large body": lambda: sized(gzip.compress(bytes(100 << 20), 1), "Content-Encoding: gzip"),
    "zstd": lambda: sized(zstandard.compress(bytes(100 << 20)), "Content-Encoding: zstd"),
    "gzip of gzip": lambda: sized(gzip.compress(gzip.compress(bytes(100 << 20))), "Content-Encoding: gzip, gzip"),
    "small chunks": lambda: head("Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 500_000 + b"0\r\n\r\n",
    "document": lambda: sized(bombs.v3([{"name": "bytes"}], "uint8", 3, attributes={"x": [[1, "a"]] * 1_000_000})),
    "listing": lambda: sized(
        b"<title>Index of /</title>" + b"".join(b'<a href="%d">%d</a>' % (n, n) for n in range(200_000)),
        "Content-Type: text/html",
    ),
}


@pytest.mark.servers
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("way", ["lean", "general", "fsspec"])
async def test_the_event_loop_runs_while_bodies_are_decoded(way: str, name: str):
    """No step of the loop takes long. CPU time of its thread is counted, which others do not add to."""
    if way != "lean" and name in ("document", "listing"):
        pytest.skip("the bodies are processed in the same way")
    answer = BODIES[name]()
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    async with serving(lambda path: answer) as url:
        store = web_store(way, url)
        await asyncio.sleep(0)
        watcher = asyncio.create_task(watch())
        if name == "document":
            assert len((await za.open_array(store, zarr_format=3)).attrs["x"]) == 1_000_000
        elif name == "listing":
            assert len((await store.list_dir("")).keys) == 200_000
        elif name == "empty members":
            with pytest.raises(errors.StoreError, match="members"):
                await store.fetch([stores.Request("value", limit=100 << 20)])
        else:
            (value,) = await store.fetch([stores.Request("value", limit=100 << 20)])
            assert value is not None
            assert len(value.data) == (500_000 if name == "small chunks" else 100 << 20)
        await asyncio.sleep(0)  # the watcher measures the last step
        watcher.cancel()
        await store.close()
    assert longest < 0.2, longest
