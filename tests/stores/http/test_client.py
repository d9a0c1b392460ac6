"""The lean HTTP client against servers that send exactly these bytes in these pieces."""

from __future__ import annotations

import asyncio
import gc
import gzip
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.raw_answers import listening
from tests.support.servers import http_server
from tests.support.shifted_clock import advance_loop
from zarrasync import stores
from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync.errors import StoreError
from zarrasync.stores.http import connection as pools
from zarrasync.stores.http import responses
from zarrasync.stores.http import session as http1

BODY = bytes(range(256)) * 40
Script = Callable[[int, bytes], Sequence[bytes | None]]


class Server:
    """A server that answers successive requests by a script: pieces of bytes, or ``None`` to disconnect.

    Attributes:
        url: The URL of the server.
        requests: The heads of all requests.
        connections: The number of connections.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self.requests: list[bytes] = []
        self.connections = 0
        self.hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                for piece in self.script(len(self.requests), head):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)  # so that pieces usually arrive separately
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()


@asynccontextmanager
async def serving(script: Script, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(script)
    scheme, host = ("https", "localhost") if context else ("http", "127.0.0.1")
    async with listening(server.serve, context) as port:
        server.url = f"{scheme}://{host}:{port}"
        yield server


def always(*pieces: bytes | None) -> Script:
    return lambda number, head: pieces


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *lines, "")).encode()


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[http1.Client]:
    client = http1.Client(
        await pools.pool_of(server.url), {"User-Agent": "test"}, decodes=True, limiter=AdaptiveLimiter(8)
    )
    try:
        yield client
    finally:
        client.close()
        await pools.close_unused(server.url)


async def left(server: Server) -> None:
    """Wait until collected stores have released the connections of the server, which background tasks do."""
    gc.collect()
    pool = (await pools.pools.get())[pools.origin_of(server.url)]
    async with asyncio.timeout(5):
        while pool.clients:
            await asyncio.sleep(0)


async def get(server: Server, limit: int = 1 << 20) -> responses.Response:
    async with client_of(server) as client:
        return await asyncio.wait_for(client.get("/a", limit=limit), 10)


def chunks(body: bytes, size: int, ending: bytes = b"0\r\n\r\n") -> bytes:
    parts = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts) + ending


LENGTH = head(f"Content-Length: {len(BODY)}", "ETag: 'x'") + BODY
CHUNKED = head("Transfer-Encoding: chunked") + chunks(BODY, 1000)
TRAILED = head("Transfer-Encoding: chunked") + chunks(BODY, 7, b"0\r\nExpires: never\r\n\r\n")
GZIPPED = gzip.compress(BODY)
MEMBERS = gzip.compress(BODY[:1000]) + gzip.compress(BODY[1000:])
GZIPS = head(f"Content-Length: {len(MEMBERS)}", "Content-Encoding: gzip") + MEMBERS
GZIP = head(f"Content-Length: {len(GZIPPED)}", "Content-Encoding: gzip") + GZIPPED
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH
OLD = b"HTTP/1.0 200 OK\r\n\r\n" + BODY


@pytest.mark.servers
@pytest.mark.parametrize("size", [1, 3, 1000, 1 << 20])
@pytest.mark.parametrize("answer", [LENGTH, CHUNKED, TRAILED, GZIP, GZIPS, EARLY, OLD])
async def test_answers_in_all_forms_and_pieces(answer: bytes, size: int):
    if size < 1000:  # the interesting part in small pieces, the rest at once
        cut = min(len(answer), 400)
        pieces: list[bytes | None] = [answer[start : start + size] for start in range(0, cut, size)]
        pieces += [answer[(pieces and sum(map(len, pieces))) or 0 :]]
    else:
        pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    if answer is OLD:
        pieces.append(None)
    async with serving(always(*pieces)) as server:
        found = await get(server)
        assert (found.status, bytes(found.body)) == (200, BODY)


@pytest.mark.servers
async def test_statuses_without_a_body():
    async with serving(always(head(status="304 Not Modified"))) as server:
        assert (await get(server))[:2] == (304, "Not Modified")
    async with serving(always(head("Content-Length: 0", status="404 Not Found"))) as server:
        assert bytes((await get(server)).body) == b""


@pytest.mark.servers
async def test_connections_are_kept_and_replaced():
    """A connection that the server closed is replaced without counting as a failed attempt."""

    def script(number: int, _: bytes) -> Sequence[bytes | None]:
        if number == 3:
            return [LENGTH, None]  # closes the connection silently
        return [head("Connection: close", "Content-Length: 0"), None] if number == 5 else [LENGTH]

    async with serving(script) as server, client_of(server) as client:
        for number in range(7):
            answer = await client.get("/a")
            assert bytes(answer.body) == (b"" if number == 4 else BODY)
            await asyncio.sleep(0.01 if number == 2 else 0)
        assert server.connections == 3


@pytest.mark.servers
async def test_a_connection_that_ends_while_it_is_used_again():
    def script(number: int, _: bytes) -> Sequence[bytes | None]:
        return [None] if number == 2 else [LENGTH]

    async with serving(script) as server, client_of(server) as client:
        for _ in range(2):
            assert bytes((await client.get("/a")).body) == BODY
        assert (len(server.requests), server.connections) == (3, 2)


@pytest.mark.servers
async def test_connections_outlive_stores_for_a_while(monkeypatch):
    async with serving(always(LENGTH)) as server:
        for _ in range(3):  # the store lives only for one request
            assert await stores.HTTPStore(server.url).get("a") == BODY
            await left(server)
        assert server.connections == 1
        other = stores.HTTPStore(server.url)
        assert await other.get("a") == BODY
        async with stores.HTTPStore(server.url) as store:
            assert await store.get("a") == BODY
        assert not server.hung_up.is_set()  # one store is closed, the other is still open
        await other.close()
        await asyncio.wait_for(server.hung_up.wait(), 5)
        assert server.connections == 1

        server.hung_up.clear()
        assert await stores.HTTPStore(server.url).get("a") == BODY
        advance_loop(monkeypatch, 61)
        await asyncio.wait_for(server.hung_up.wait(), 5)
        assert server.connections == 2


@pytest.mark.servers
async def test_few_connections_outlive_stores(monkeypatch):
    """Idle connections to unused servers must not exhaust file descriptors."""
    monkeypatch.setattr(pools, "_idle_limit", lambda: 3)
    async with serving(always(LENGTH)) as first, serving(always(LENGTH)) as second:
        for server in (first, second):
            store = stores.HTTPStore(server.url)
            await asyncio.gather(*(store.get(str(number)) for number in range(8)))
            assert server.connections > 3
            del store
            await left(server)
        by_origin = await pools.pools.get()
        assert [len(by_origin[pools.origin_of(server.url)].idle) for server in (first, second)] == [0, 3]
        for server in (first, second):
            await pools.close_unused(server.url)
        assert not by_origin


@pytest.mark.servers
async def test_a_store_that_is_closed_while_it_connects_leaves_nothing_open():
    async with serving(always(LENGTH)) as server:
        for ticks in range(1, 20):
            store = stores.HTTPStore(server.url)
            asked = asyncio.create_task(store.get("a"))
            for _ in range(ticks):
                await asyncio.sleep(0)
            await store.close()
            assert await asked == BODY  # on a connection of its own
            await store.close()
        assert not await pools.pools.get()


@pytest.mark.servers
def test_connections_end_with_their_loop(tmp_path):
    (tmp_path / "a").write_bytes(BODY)

    async def read(url: str) -> object:
        return await stores.HTTPStore(url).get("a")

    with http_server(tmp_path) as url:
        for _ in range(2):  # unclosed resources warn, and warnings are errors in tests
            assert asyncio.run(read(url)) == BODY
            gc.collect()


@pytest.mark.servers
async def test_the_general_client_takes_over():
    """After a redirect the general client handles all requests."""
    async with serving(always(LENGTH)) as target:
        moved = head(f"Location: {target.url}/b", "Content-Length: 0", status="302 Found")
        async with serving(always(moved)) as server, stores.HTTPStore(server.url) as store:
            assert await store.get("a") == BODY
            assert [b"aiohttp" in request for request in server.requests] == [False, True]
            assert await store.get("b") == BODY
            assert len(server.requests) == 3


@pytest.mark.servers
async def test_what_is_asked():
    async with (
        serving(always(LENGTH)) as server,
        stores.HTTPStore(f"{server.url}/x/?sig=a%2Fb", headers={"X-Key": "v"}) as store,
    ):
        await store.get("ü a/b")
        (request,) = server.requests
        first, *lines = request.decode().rstrip().split("\r\n")
        assert first == "GET /x/%C3%BC%20a/b?sig=a%2Fb HTTP/1.1"
        assert {"X-Key: v", "User-Agent: zarrasync", f"Host: {server.url[7:]}"} <= set(lines)


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://user:secret@host/x", {}),
        ("http://host/x y", {}),
        ("http://host/x", {"A": "b\r\nC: d"}),
        ("http://host/x", {"A:": "b"}),
        ("http://hüst/x", {}),
    ],
)
def test_what_is_left_to_the_general_client(url: str, headers: dict[str, str]):
    assert http1.supports("http://host/x?y=z", {"A": "b c"})
    assert not http1.supports(url, headers)


async def test_tls(certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch):
    cert, context = certificate
    async with serving(always(LENGTH), context) as server:
        async with stores.HTTPStore(server.url) as stranger:
            with pytest.raises(StoreError, match="certificate verify failed"):
                await stranger.get("a")
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        async with stores.HTTPStore(server.url) as store:
            assert [await store.get("a") for _ in range(3)] == [BODY] * 3
        assert len(server.requests) == 3
