"""Redirects: which are followed, and what goes along to another server."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest

import zarrasync as za
from tests.support.raw_answers import BODY, answering, head, listening, sized
from zarrasync import stores
from zarrasync.errors import StoreError
from zarrasync.stores import Request

pytestmark = pytest.mark.servers

SECRETS = ("TOP-SECRET", "COOKIE")


def redirect(location: str, status: int = 302) -> bytes:
    return head(f"Location: {location}", "Content-Length: 0", status=f"HTTP/1.1 {status} Found")


def store_of(url: str, **options: Any) -> stores.HTTPStore:
    with za.config.set(retries=0, request_timeout=5.0):
        return stores.HTTPStore(url, **options)


OPTIONS: list[dict[str, Any]] = [
    {"headers": {"Authorization": "Bearer TOP-SECRET", "X-Api-Key": "TOP-SECRET", "Cookie": "sid=COOKIE"}},
    {"client_kwargs": {"cookies": {"sid": "COOKIE"}, "headers": {"X-Api-Key": "TOP-SECRET"}}},
    {"cookies": {"sid": "COOKIE"}, "headers": {"X-Api-Key": "TOP-SECRET"}},
]


@pytest.mark.parametrize("backend", ["auto", "fsspec"])
@pytest.mark.parametrize("options", OPTIONS, ids=["headers", "client_options", "request_options"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_secrets_stay_with_their_server(backend: str, options: dict[str, Any], status: int):
    """Neither does the other server get them, nor the own one if the other sends the request back."""
    seen: dict[str, list[bytes]] = {"own": [], "other": []}
    urls: dict[str, str] = {}

    def own(request: bytes) -> tuple[bytes, bool]:
        seen["own"].append(request)
        target = {b"/x/k": "/x/same", b"/x/same": f"{urls['other']}/away"}.get(request.split()[1])
        return (redirect(target, status) if target else sized()), False

    def other(request: bytes) -> tuple[bytes, bool]:
        seen["other"].append(request)
        return redirect(f"{urls['own']}/back", status), False

    async with answering(own) as urls["own"], answering(other) as urls["other"]:
        async with stores.resolve(f"{urls['own']}/x", {**options, "backend": backend}) as store:
            (value,) = await store.fetch([Request("k", 0, 3)])
        assert value is not None
        assert bytes(value.data) == BODY

    def secrets(request: bytes) -> int:
        return sum(secret.encode() in request for secret in SECRETS)

    *first, last = seen["own"]
    assert all(secrets(request) == 2 for request in first)
    assert [secrets(request) for request in (*seen["other"], last)] == [0, 0]
    assert all(b"Range: bytes=0-2" in request for request in (*seen["other"], last))


async def read_redirected(backend: str, url: str, options: dict[str, Any]) -> None:
    """Read a value with options of requests of aiohttp."""
    if backend == "fsspec":
        store: Any = stores.FsspecStore(fsspec.filesystem("http", skip_instance_cache=True, **options), url)
    else:
        store = store_of(url, request_options=options)
    async with store:
        assert bytes(await store.get("k") or b"") == BODY


@pytest.mark.parametrize("backend", ["http", "fsspec"])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_parameters_belong_to_the_first_url(backend: str, elsewhere: bool):
    targets: list[bytes] = []
    urls = {"other": ""}

    def own(request: bytes) -> tuple[bytes, bool]:
        targets.append(request.split()[1])
        location = f"{urls['other'] if elsewhere else ''}/moved?x=1"
        return (redirect(location) if targets[-1].startswith(b"/k") else sized()), False

    def other(request: bytes) -> tuple[bytes, bool]:
        targets.append(request.split()[1])
        return sized(), False

    async with answering(other) as urls["other"], answering(own) as url:
        await read_redirected(backend, url, {"params": {"token": "TOP-SECRET"}})
    assert targets == [b"/k?token=TOP-SECRET", b"/moved?x=1"]


@pytest.mark.parametrize("backend", ["http", "fsspec"])
async def test_server_names_and_bodies_stay_with_their_server(backend: str, certificate: tuple[Path, ssl.SSLContext]):
    names: list[str | None] = []
    requests: list[bytes] = []
    ports: list[int] = []

    def record(connection: Any, name: str | None, context: Any) -> None:
        names.append(name)

    context = certificate[1]
    context.sni_callback = record

    async def own(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"TOP-SECRET"))
        writer.write(redirect(f"https://localhost:{ports[0]}/k"))
        await writer.drain()

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(sized())
        await writer.drain()

    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    async with listening(other, context) as port, listening(own, context) as own_port:
        ports.append(port)
        options = {"ssl": client, "server_hostname": "inner.example", "data": b"TOP-SECRET"}
        await read_redirected(backend, f"https://127.0.0.1:{own_port}", options)
    assert names == ["inner.example", "localhost"]
    assert b"content-length" not in requests[1].lower()


async def test_fingerprints_stay_with_their_server(certificate: tuple[Path, ssl.SSLContext]):
    """The certificate of another server is verified as usual."""

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("a request was sent to a server without a valid certificate")

    async with listening(other, certificate[1]) as port:
        target = f"https://localhost:{port}/k"
        async with answering(lambda request: (redirect(target), False)) as url:
            with pytest.raises(StoreError, match="CertificateError"):
                await read_redirected("http", url, {"ssl": aiohttp.Fingerprint(bytes(32))})


@pytest.mark.parametrize("options", [{"max_redirects": 1}, {"max_redirects": 2}])
async def test_the_number_of_redirects_can_be_limited(options: dict[str, Any]):
    def own(request: bytes) -> tuple[bytes, bool]:
        target = {b"/k": "/a", b"/a": "/b"}.get(request.split()[1])
        return (redirect(target) if target else sized()), False

    async with answering(own) as url:
        if options["max_redirects"] == 2:
            await read_redirected("http", url, options)
        else:
            with pytest.raises(StoreError, match="more than 1 times"):
                await read_redirected("http", url, options)


async def test_proxies_of_sessions_apply_to_redirects():
    """The option ``proxy`` is for all servers."""
    seen: list[bytes] = []

    def proxy(request: bytes) -> tuple[bytes, bool]:
        seen.append(request.split()[1])
        return (redirect("http://b.example/k") if b"a.example" in seen[-1] else sized()), False

    async with answering(proxy) as address:
        store = store_of("http://a.example", client_options={"proxy": address})
        async with store:
            assert bytes(await store.get("k") or b"") == BODY
    assert seen == [b"http://a.example/k", b"http://b.example/k"]


async def test_passwords_in_urls_stay_with_their_server():
    seen: list[bytes] = []

    def other(request: bytes) -> tuple[bytes, bool]:
        seen.append(request)
        return sized(), False

    async with answering(other) as target, answering(lambda request: (redirect(f"{target}/a"), False)) as url:
        async with store_of(url.replace("//", "//user:TOP-SECRET@")) as store:
            assert await store.get("k") == BODY
        assert b"authorization" not in seen[0].lower()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "not an HTTP URL"),
        ("ftp://127.0.0.1/x", "not an HTTP URL"),
        ("data:text/plain,abc", "not an HTTP URL"),
        ("javascript:x", "not an HTTP URL"),
        ("http://", "not an HTTP URL|invalid URL|more than 10 times"),
        ("http://[::1", "invalid URL"),
        ("http://127.0.0.1:99999/", "invalid URL"),
        ("/again?sig=SIGNATURE", "more than 10 times"),
        ("//", "not an HTTP URL|more than 10 times|invalid URL"),
        ("", "more than 10 times|302"),
    ],
)
async def test_redirects_that_are_not_followed(location: str, message: str):
    async with answering(lambda request: (redirect(location), False)) as url, store_of(url) as store:
        with pytest.raises(StoreError, match=message) as caught:
            await asyncio.wait_for(store.get("k"), 10)
        assert re.search(re.escape(url), str(caught.value))
        assert "SIGNATURE" not in str(caught.value)


async def test_a_redirect_without_a_target():
    answer = sized(status="HTTP/1.1 302 Found")
    async with answering(lambda request: (answer, False)) as url, store_of(url) as store:
        with pytest.raises(StoreError, match="302"):
            await store.get("k")


async def test_redirects_can_be_switched_off():
    options = {"allow_redirects": False}
    async with (
        answering(lambda request: (redirect("/b"), False)) as url,
        store_of(url, request_options=options) as store,
    ):
        with pytest.raises(StoreError, match="302"):
            await store.get("k")


async def test_encryption_is_not_given_up(certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch):
    path, context = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    async with answering(lambda request: (sized(), False)) as plain:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(redirect(f"{plain}/k"))
            await writer.drain()

        client = ssl.create_default_context(cafile=path)
        async with (
            listening(serve, context) as port,
            store_of(f"https://localhost:{port}", request_options={"ssl": client}) as store,
        ):
            with pytest.raises(StoreError, match="not encrypted"):
                await store.get("k")
