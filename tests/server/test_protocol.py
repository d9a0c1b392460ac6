"""Requests that are malformed or unusual at the level of HTTP: errors are JSON, whoever notices them."""

from __future__ import annotations

import json
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from tests.server.test_access import ask
from tests.server.test_edr import make, url
from tests.support.server_client import serving
from zarrasync import sync
from zarrasync.server import Limits

HOST = b"Host: localhost\r\n"
END = b"Connection: close\r\n\r\n"


async def respond(base: str, line: bytes, *headers: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send a request, and return the status, the headers and the body of the response."""
    return parsed(await ask(base, line + b"\r\n" + b"".join(headers) + END))


def parsed(response: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


MALFORMED = {
    "no host": (b"GET /livez HTTP/1.1",),
    "two hosts": (b"GET /livez HTTP/1.1", HOST, HOST),
    "header": (b"GET /livez HTTP/1.1", HOST, b"Bad Header: 1\r\n"),
    "length": (b"POST /edr/collections/root/position HTTP/1.1", HOST, b"Content-Length: -5\r\n"),
    "bytes": (b"\x16\x03\x01\x02",),
    "long": (b"GET /api/data?select=" + b"0" * 70_000 + b" HTTP/1.1", HOST),
    "query": (b"GET /api/data?path=%ff HTTP/1.1", HOST),
    "path": (b"GET /a%0Ab HTTP/1.1", HOST),
    "authority": (b"CONNECT example.org:443 HTTP/1.1", HOST),
}


@pytest.mark.servers
@pytest.mark.parametrize("request_lines", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_requests(request_lines: tuple[bytes, ...]):
    async with serving({"x": b"1"}) as client:
        status, headers, body = await respond(client.base, *request_lines)
        assert status in (400, 404, 405)
        assert headers["content-type"].partition(";")[0] == "application/json"
        assert headers["cache-control"] == "no-store"
        assert {"error", "message"} <= json.loads(body).keys()


@pytest.mark.servers
async def test_unusual_requests():
    store: dict[str, bytes] = {}
    name = quote("line\nbreak")
    sync.create_array(store, name="line\nbreak", data=np.arange(3))
    async with serving(store) as client:
        assert (await respond(client.base, b"GET http://localhost/livez HTTP/1.1", HOST))[0] == 200
        assert (await respond(client.base, b"GET /livez HTTP/1.1", HOST, b"Expect: anything\r\n"))[0] == 200
        assert (await client.json(f"/api/data?path={name}"))["data"] == [0, 1, 2]
        assert (await client.get(f"/zarr/{name}/zarr.json"))[0] == 200
        body = b'{"coords":"POINT(1 1)"}'
        waiting = (
            f"Content-Length: {len(body)}\r\n".encode(),
            b"Expect: 100-continue\r\nContent-Type: application/json\r\n",
        )
        sent = b"POST /edr/collections/root/position HTTP/1.1\r\n" + HOST + b"".join(waiting) + END + body
        assert (await ask(client.base, sent)).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 ")


@pytest.mark.servers
async def test_connections_beyond_the_limit():
    async with serving({"x": b"1"}, limits=Limits(connections=1)) as client:
        async with client.session.get(f"{client.base}/livez") as first:  # is kept
            assert first.status in (200, 503)
            status, headers, body = await respond(client.base, b"GET /livez HTTP/1.1", HOST)
        if status == 503:
            assert (headers["retry-after"], headers["cache-control"]) == ("1", "no-store")
            assert json.loads(body)["error"] == "Overloaded"


@pytest.mark.servers
@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("*;q=0, gzip", "gzip"),
        ("gzip;q=0, *", None),
        ("*", "gzip"),
        ("*;q=0", None),
        ("br, GZIP;q=0.1", "gzip"),
        ("", None),
    ],
)
async def test_accepted_codings(header: str, coding: str | None):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.zeros(5000))
    async with serving(store) as client:
        _, _, headers = await client.get("/api/data?path=a", Accept_Encoding=header)
        assert headers.get("Content-Encoding") == coding


@pytest.mark.servers
async def test_contradictions():
    """Heights in two parameters, and a time zone that does not exist, are not ignored."""
    store: dict[str, bytes] = {}
    make(store)
    async with serving(store) as client:
        wrong = {
            "exclude each other": {"coords": "POINT Z(8 47 850)", "z": "500"},
            "a time zone": {"coords": "POINT(8 47)", "datetime": "2024-03-02T00:00:00+25:00"},
        }
        for message, parameters in wrong.items():
            assert message in (await client.json(url("position", parameter_name="wind", **parameters), 400))["message"]
