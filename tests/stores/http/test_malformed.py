"""Valid, unusual and malformed answers of web servers: the right bytes, or an error that names what is wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.raw_answers import (
    BODY,
    MALFORMED,
    VALID,
    Answer,
    answering,
    chunked,
    listening,
    redirecting,
    serve_array,
    sized,
)
from tests.support.web_stores import web_store
from zarrasync import stores, sync
from zarrasync.errors import StoreError, UnsupportedOperation, ZarrError
from zarrasync.stores import Request

pytestmark = pytest.mark.servers

CONFIG = {"retries": 0, "request_timeout": 5.0}


async def read_async(url: str) -> bytes:
    return np.asarray(await (await za.open_array(url, zarr_format=3, config=CONFIG))[...]).tobytes()


async def read_sync(url: str) -> bytes:
    def read() -> bytes:
        return np.asarray(sync.open_array(url, zarr_format=3, config=CONFIG)[...]).tobytes()

    return await asyncio.to_thread(read)


@pytest.fixture(params=[read_async, read_sync], ids=["async", "sync"])
def read(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return request.param


@pytest.mark.parametrize("answer", VALID, ids=lambda answer: answer.name)
async def test_unusual_answers(read: Callable[[str], Any], answer: Answer):
    async with answering(serve_array(lambda: (answer.data, answer.closes))) as url:
        assert await asyncio.wait_for(read(url), 10) == BODY


@pytest.mark.parametrize("answer", MALFORMED, ids=lambda answer: answer.name[:50])
async def test_malformed_answers(read: Callable[[str], Any], answer: Answer):
    async with answering(serve_array(lambda: (answer.data, answer.closes))) as url:
        with pytest.raises(ZarrError) as caught:
            await asyncio.wait_for(read(url), 4)  # before the time limit of the request
        message = str(caught.value)
        assert answer.error is not None
        assert re.search(answer.error, message), message
        assert "c/0" in message
        if isinstance(caught.value, StoreError):
            assert url in message


LENIENT = {"a chunk that is too short"}
"""aiohttp accepts a chunk that ends with LF, and so takes the CR for data."""


@pytest.mark.parametrize("way", ["general", "fsspec", "references", "redirected"])
@pytest.mark.parametrize(
    "answer", [each for each in (*VALID, *MALFORMED) if each.name not in LENIENT], ids=lambda answer: answer.name[:50]
)
async def test_answers_to_other_clients(way: str, answer: Answer):
    """aiohttp's parser accepts more, but the result is the same bytes or an error."""
    serve = serve_array(lambda: (answer.data, True))
    async with answering(redirecting(serve) if way == "redirected" else serve) as url:
        with za.config.set(request_timeout=5.0):
            store = web_store("lean" if way == "redirected" else way, url)
        array = await za.open_array(store, zarr_format=3)
        with suppress(ZarrError):
            assert np.asarray(await asyncio.wait_for(array[...], 10)).tobytes() == BODY
        await store.close()


PARTIAL = "HTTP/1.1 206 Partial Content"
PAST_END = "HTTP/1.1 416 Range Not Satisfiable"
VALUE = bytes(range(10))


@pytest.mark.parametrize(
    ("request_", "answer", "result"),
    [
        (Request("k", 2, 3), sized("Content-Range: bytes 2-4/10", body=VALUE[2:5], status=PARTIAL), VALUE[2:5]),
        (Request("k", 2, 3), sized("Content-Range: bytes 2-4/*", body=VALUE[2:5], status=PARTIAL), VALUE[2:5]),
        (Request("k", 2, 3), sized("Content-Range: bytes 0-9/10", body=VALUE, status=PARTIAL), VALUE[2:5]),
        (Request("k", 8, 5), sized("Content-Range: bytes 8-9/10", body=VALUE[8:], status=PARTIAL), VALUE[8:]),
        (Request("k", 2), sized("Content-Range: bytes 2-9/10", body=VALUE[2:], status=PARTIAL), VALUE[2:]),
        (Request("k", 0, 3, True), sized("Content-Range: bytes 7-9/10", body=VALUE[7:], status=PARTIAL), VALUE[7:]),
        (Request("k", 0, 3, True), sized("Content-Range: bytes 7-9/*", body=VALUE[7:], status=PARTIAL), VALUE[7:]),
        (Request("k", 0, 30, True), sized("Content-Range: bytes 0-9/*", body=VALUE, status=PARTIAL), VALUE),
        (Request("k", 2, 3), sized(body=VALUE), VALUE[2:5]),
        (Request("k", 0, 3, True), sized(body=VALUE), VALUE[7:]),
        (Request("k", 20, 3), sized(body=VALUE), b""),
        (Request("k", 20, 3), sized("Content-Range: bytes */10", body=b"", status=PAST_END), b""),
        (Request("k", 0, 3, True), sized("Content-Range: bytes */0", body=b"", status=PAST_END), b""),
        (Request("k", 0, 3), sized("Content-Range: bytes 0-1/*", body=VALUE[:2], status=PARTIAL), None),
        (Request("k", 0, 3), sized("Content-Range: bytes 0-1/10", body=VALUE[:2], status=PARTIAL), None),
        (Request("k", 0, 3), sized("Content-Range: bytes 0-1/*", body=VALUE[:3], status=PARTIAL), None),
        (Request("k", 0, 2), sized("Content-Range: bytes 0-1/*", body=VALUE[:3], status=PARTIAL), None),
        (Request("k", 2), sized("Content-Range: bytes 2-4/*", body=VALUE[2:5], status=PARTIAL), None),
        (Request("k", 2), sized("Content-Range: bytes 2-4/10", body=VALUE[2:5], status=PARTIAL), None),
        (Request("k", 2, 3), sized("Content-Range: bytes 0-2/10", body=VALUE[:3], status=PARTIAL), None),
        (Request("k", 2, 3), sized("Content-Range: bytes 3-5/10", body=VALUE[3:6], status=PARTIAL), None),
        (Request("k", 0, 3, True), sized("Content-Range: bytes 7-8/*", body=VALUE[7:9], status=PARTIAL), None),
        (Request("k", 0, 3, True), sized("Content-Range: bytes 6-8/10", body=VALUE[6:9], status=PARTIAL), None),
        (Request("k", 0, 3), sized("Content-Type: multipart/byteranges; boundary=x", status=PARTIAL), None),
        (Request("k", 0, 3), sized("Content-Range: bytes */10", body=b"", status=PAST_END), None),
        (Request("k", 20, 3), sized("Content-Range: bytes */x", body=b"", status=PAST_END), None),
    ],
)  # fmt: skip
async def test_byte_ranges(request_: Request, answer: bytes, result: bytes | None):
    async with answering(lambda request: (answer, False)) as url:
        with za.config.set(retries=0, request_timeout=5.0):
            store = stores.HTTPStore(url)
        async with store:
            if result is None:
                with pytest.raises(StoreError, match=re.escape(url)):
                    await store.fetch([request_])
            else:
                (value,) = await store.fetch([request_])
                assert value is not None
                assert bytes(value.data) == result


@pytest.mark.parametrize("late", [sized(body=b"EVIL"), b"x"])
async def test_bytes_after_an_answer_close_the_connection(late: bytes):
    """What a server sends unasked must not be taken for the answer to the next request."""
    connections: list[asyncio.StreamWriter] = []
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(sized())
        finally:
            closed.set()

    async with listening(serve) as port, stores.HTTPStore(f"http://127.0.0.1:{port}") as store:
        assert await store.get("a") == BODY
        connections[0].write(late)
        await asyncio.wait_for(closed.wait(), 5)
        assert await store.get("b") == BODY
        assert len(connections) == 2


async def test_a_chunked_body_is_decoded_once():
    """A server that ends each segment like a body must not make the client decode the body again each time."""
    part = b"fffe\r\n" + b"\r\n" * 0x7FFF + b"\r\n"
    data = chunked(*[part] * 400)
    async with answering(lambda request: (data, True)) as url, stores.HTTPStore(url) as store:
        begin = asyncio.get_running_loop().time()
        (value,) = await store.fetch([Request("k")])
        assert value is not None
        assert len(value.data) == 0xFFFE * 400
        assert asyncio.get_running_loop().time() - begin < 10  # decoding again for each segment takes minutes


@pytest.mark.parametrize("body", [b"<title>Index of /</title>" + b"<a " * 300_000,
                                  b"<title>Index of /</title><a " + b'href="x" ' * 100_000])  # fmt: skip
async def test_hostile_listings_take_linear_time(body: bytes):
    data = sized("Content-Type: text/html", body=body)
    async with answering(lambda request: (data, True)) as url, stores.HTTPStore(url) as store:
        begin = asyncio.get_running_loop().time()
        assert (await store.list_dir("")).keys == ()
        assert asyncio.get_running_loop().time() - begin < 5


@pytest.mark.parametrize("body", [b"[" * 200_000, b'[{"name": "../x", "type": "file"}]', b'[{"name": 1, "type": "x"}]'])
async def test_hostile_json_listings(body: bytes):
    data = sized("Content-Type: application/json", body=body)
    async with answering(lambda request: (data, True)) as url, stores.HTTPStore(url) as store:
        with suppress(UnsupportedOperation):  # it shows no directories
            assert (await store.list_dir("")).keys == ()


async def test_a_directory_that_contains_itself():
    data = sized("Content-Type: application/json", body=b'[{"name": "again", "type": "directory"}]')
    async with answering(lambda request: (data, False)) as url, stores.HTTPStore(url) as store:
        with pytest.raises(StoreError, match="more than 64 levels"):
            await asyncio.wait_for(store.list_prefix(""), 20)
