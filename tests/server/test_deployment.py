"""Tokens, proxies, several stores, HTTPS, Unix sockets, processes, and redirects to object stores."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
import aiohttp
from yarl import URL

from tests.support.server_client import serving
from zarrasync import sync
from zarrasync.server import Service, create_app
from zarrasync.server.access import Proxies
from zarrasync.server.messages import Request


def make_store(values: Any) -> dict[str, bytes]:
    store: dict[str, bytes] = {}
    sync.create_group(store).create_array("a", data=values, compressors=None, chunks=2)
    return store


@pytest.mark.servers
async def test_tokens():
    """Each store needs its token or the one of all, in any header that clients send; health checks need none."""
    services = {"open": Service(make_store([1])), "own": Service(make_store([2]))}
    async with serving(services, tokens={"": "all", "own": "its"}, allow_origins=["*"]) as client:
        for path, token in {
            "/open/api/data?path=a": "all",
            "/own/raw/a/zarr.json": "its",
            "/own/": "its",
            "/": "all",
        }.items():
            status, body, headers = await client.get(path)
            assert (status, json.loads(body)["error"]) == (401, "Unauthorized")
            assert headers["WWW-Authenticate"].startswith("Bearer")
            other = {"all": "its", "its": "all"}[token]
            for wrong in (f"Bearer {other}", f"Bearer {token}x", token, "Bearer", "Basic !!", f"Digest {token}"):
                assert (await client.get(path, Authorization=wrong))[0] == 401
            basic = base64.b64encode(f"anyone:{token}".encode()).decode()
            for right in (f"Bearer {token}", f"bearer {token}", f"Basic {basic}"):
                status, _, headers = await client.get(path, Authorization=right)
                assert status == 200
                assert headers["Cache-Control"] in ("private, max-age=60", "no-cache")
        assert (await client.get("/metrics"))[0] == 401
        assert (await client.get("/nothing"))[0] == 401
        assert {(await client.get(path))[0] for path in ("/livez", "/readyz", "/healthz")} == {200}
        status, _, headers = await client.get("/own/api/data?path=a", method="OPTIONS", Origin="https://x.example")
        assert status == 204
        assert "Authorization" in headers["Access-Control-Allow-Headers"]


@pytest.mark.parametrize("options", [{"tokens": {"x": "t"}}, {"tokens": "a b"}, {"tokens": ""}, {"root_path": "data"}])
def test_invalid_options(options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"token|root_path"):
        create_app({}, **options)
    with pytest.raises(TypeError, match="max_age"):
        create_app(Service({}), max_age=3)
    with pytest.raises(ValueError, match="name of a store"):
        create_app({"metrics": Service({})})


def test_clients_behind_proxies():
    proxies = Proxies(["10.0.0.0/8", "::1", "unix"])

    def client(address: str, forwarded: str) -> str:
        return proxies.resolve(Request("GET", "/", headers={"x-forwarded-for": forwarded}, client=address)).client

    assert client("10.1.1.1", "198.51.100.7, 203.0.113.9, 10.0.0.2") == "203.0.113.9"
    assert client("", "203.0.113.9") == "203.0.113.9"  # a Unix socket
    assert client("192.0.2.1", "203.0.113.9") == "192.0.2.1"  # not a proxy
    assert client("10.1.1.1", "") == "10.1.1.1"
    assert client("10.1.1.1", "10.0.0.3") == "10.0.0.3"
    with pytest.raises(ValueError, match="does not appear"):
        Proxies(["proxy.example"])


@pytest.mark.servers
async def test_several_stores():
    services = {"one": Service(make_store([1, 2, 3])), "two": Service(make_store([4]), max_age=0)}
    async with serving(services) as client:
        assert (await client.json("/one/api/data?path=a"))["data"] == [1, 2, 3]
        assert (await client.json("/two/api/data?path=a"))["data"] == [4]
        assert await client.json("/stores.json") == {"stores": ["one", "two"]}
        status, page, _ = await client.get("/")
        assert (status, page.count(b"<li>")) == (200, 2)
        assert (await client.get("/static/catalog.css"))[0] == (await client.get("/one/static/viewer.css"))[0] == 200
        assert (await client.get("/two"))[2]["Location"] == "/two/"
        assert {"/one/api/data", "/two/zarr/{key}", "/livez"} <= (await client.json("/openapi.json"))["paths"].keys()
        for path in ("/three/api/data?path=a", "/api/data?path=a", "/one/one/api/data"):
            assert (await client.json(path, 404))["error"] == "NotFound"


@pytest.mark.servers
async def test_unknown_and_repeated_parameters():
    async with serving(make_store([1])) as client:
        for query, words in {
            "/api/data?path=a&selection=0": "Did you mean 'select'",
            "/api/data?path=a&format=cvs": "Did you mean 'csv'",
            "/api/data?path=a&path=a": "more than once",
            "/api/view?path=a&bins=3": "/api/view has no parameter 'bins'",
            "/api/data?path=a&int64=text": "one of number, string",
        }.items():
            body = await client.json(query, 400)
            assert words in body["message"], body
        assert (await client.get("/raw/a/zarr.json?version=3"))[0] == 200  # keys have no parameters


@pytest.mark.servers
async def test_values_have_entity_tags():
    async with serving(make_store(np.arange(5000))) as client:
        for kind in ("json", "csv", "npy", "bin"):
            path = f"/api/data?path=a&format={kind}"
            _, plain, headers = await client.get(path, Accept_Encoding="identity")
            _, unpacked, packed = await client.get(path, Accept_Encoding="br, gzip")
            assert plain == unpacked  # the client has decompressed it
            assert ("Content-Encoding" in packed) == (kind in ("json", "csv"))
            for tag in (headers["ETag"], packed["ETag"]):
                assert (await client.get(path, If_None_Match=tag))[:2] == (304, b"")
            assert (await client.get(f"{path}&select=:9", If_None_Match=headers["ETag"]))[0] == 200


@pytest.mark.servers
async def test_redirects_to_an_object_store(s3):
    """Chunks come from the object store by a URL that lasts for minutes; documents that are converted do not."""
    url, options = s3
    values = np.arange(4.0)
    root = sync.create_group(f"{url}/x", storage_options=options, zarr_format=2)
    root.create_array("a", data=values, chunks=2, compressors=None)
    async with serving(f"{url}/x", storage_options=options, redirects=True, tokens="t") as client:
        assert (await client.get("/zarr/a/c/0"))[0] == 401
        bearer = {"Authorization": "Bearer t"}
        for path in ("/zarr/a/c/1", "/raw/a/1"):
            status, _, headers = await client.get(path, **bearer)
            assert (status, headers["Cache-Control"]) == (307, "no-store")
            assert "X-Amz-Expires=300" in headers["Location"]
            async with aiohttp.ClientSession() as session, session.get(headers["Location"]) as answer:
                assert await answer.read() == values[2:].tobytes()
        assert (await client.get("/zarr/a/zarr.json", **bearer))[0] == 200
        assert (await client.get("/zarr/a/c/1", method="HEAD", **bearer))[0] == 200


@pytest.mark.servers
@pytest.mark.parametrize("service", ["azure", "google"])
async def test_redirects_to_other_services(service, request):
    """URLs with a signature, which Azure's emulator checks; clients of the server need no credentials."""
    if service == "azure":
        url, options = request.getfixturevalue("azure")
        shared = options
    else:
        google = request.getfixturevalue("google")
        url, options = "gs://bucket/signed", google.options()
        shared = google.options(google_service_account_key=service_account(google.url))
    values = np.arange(4.0)
    sync.create_group(f"{url}/x", storage_options=options).create_array("a", data=values, chunks=2, compressors=None)
    async with serving(f"{url}/x", storage_options=shared, redirects=True) as client:
        status, _, headers = await client.get("/raw/a/c/1")
        location = headers["Location"]
        assert (status, headers["Cache-Control"]) == (307, "no-store")
        assert {"azure": "sig=", "google": "X-Goog-Signature="}[service] in location
        async with aiohttp.ClientSession() as session:
            async with session.get(URL(location, encoded=True)) as answer:
                assert await answer.read() == values[2:].tobytes()
            if service == "azure":
                changed = location.replace("/c/1?", "/c/0?")
                assert changed != location
                async with session.get(URL(changed, encoded=True)) as answer:
                    assert answer.status == 403  # it is for one key
                found = await asyncio.to_thread(lambda: sync.open_array(f"{client.base}/zarr/a")[...])
                np.testing.assert_array_equal(found, values)  # documents come from the server, chunks by redirects


def service_account(url: str) -> str:
    """Return the key of a service account of Google, as JSON."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(*form).decode()
    account = {"client_email": "me@example.org", "private_key": key, "private_key_id": "1", "gcs_base_url": url}
    return json.dumps(account)


# ------------------------------------------------------------------ processes


async def start(*arguments: str) -> tuple[Any, str]:
    """Start the command, and return the process and the address that it prints."""
    command = [sys.executable, "-m", "zarrasync", "serve", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    return process, line.decode().split()[-1]


@pytest.mark.processes
@pytest.mark.parametrize("program", ["aiohttp", "uvicorn"])
async def test_workers_with_https(tmp_path, certificate, program):
    """Killed workers are replaced, and all end with the first process."""
    cert, _ = certificate
    sync.create_array(tmp_path / "x.zarr", name="a", data=np.arange(3))
    (tmp_path / "token").write_text("t\n")
    key = str(cert.parent / "key.pem")
    options = ["--tls-cert", str(cert), "--tls-key", key, "--token-file", str(tmp_path / "token")]
    process, url = await start(str(tmp_path / "x.zarr"), "--port", "0", *options, "--workers", "2", "--server", program)
    try:
        assert url.startswith("https://")

        async def get() -> tuple[int, Any]:
            async with aiohttp.ClientSession() as session:
                headers = {"Authorization": "Bearer t"}
                async with session.get(f"{url}api/data?path=a", headers=headers, ssl=False) as answer:
                    return answer.status, (await answer.json())["data"]

        assert await get() == (200, [0, 1, 2])
        workers = children(process.pid)
        assert len(workers) >= 2
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        await asyncio.sleep(2)
        assert await asyncio.wait_for(get(), 20) == (200, [0, 1, 2])
        replaced = children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert not any(os.path.exists(f"/proc/{worker}") for worker in (*workers, *replaced))
    finally:
        if process.returncode is None:
            process.kill()


def children(pid: int) -> list[int]:
    """Return the processes whose parent is a process, except for the one that tracks resources."""
    numbers = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [number for number in numbers if "spawn_main" in Path(f"/proc/{number}/cmdline").read_text()]


@pytest.mark.processes
@pytest.mark.parametrize("program", ["aiohttp", "uvicorn"])
async def test_unix_socket_and_metrics_port(tmp_path, program):
    sync.create_array(tmp_path / "x.zarr", name="a", data=np.arange(3))
    sync.create_array(tmp_path / "y.zarr", name="a", data=np.arange(4))
    path, names = str(tmp_path / "socket"), [f"first={tmp_path / 'x.zarr'}", str(tmp_path / "y.zarr")]
    process, address = await start(
        *names, "--unix-socket", path, "--metrics-port", "0", "--root-path", "/data", "--server", program
    )
    try:
        assert address == path
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
            for name, size in {"first": 3, "y": 4}.items():
                async with session.get(f"http://any.example/{name}/api/data?path=a") as answer:
                    assert len((await answer.json())["data"]) == size
            async with session.get("http://any.example/y", allow_redirects=False) as answer:
                assert answer.headers["Location"] == "/data/y/"
                assert "/" not in answer.headers.get("Server", "")
            async with session.get("http://any.example/metrics") as answer:
                assert answer.status == 404
    finally:
        process.kill()
        await process.wait()


@pytest.mark.processes
@pytest.mark.parametrize(
    "more", [[], ["--server", "uvicorn"], ["--workers", "2"]], ids=["aiohttp", "uvicorn", "workers"]
)
async def test_a_unix_socket_in_use(tmp_path, more):
    """Neither a file nor the socket of another server is removed."""
    sync.create_group(tmp_path / "x.zarr")
    path = tmp_path / "socket"
    command = [sys.executable, "-m", "zarrasync", "serve", str(tmp_path / "x.zarr"), "--unix-socket", str(path), *more]

    async def fail() -> str:
        run = partial(subprocess.run, command, capture_output=True, text=True, timeout=60)
        second = await asyncio.to_thread(run)
        assert second.returncode == 1
        return second.stderr

    path.write_text("a file")
    assert "it is not a socket" in await fail()
    assert path.read_text() == "a file"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    first, _ = await start(str(tmp_path / "x.zarr"), "--unix-socket", str(path), *more)
    try:
        assert "another program uses the socket" in await fail()
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://x/livez") as answer:
            assert answer.status == 200
    finally:
        first.terminate()
        await first.wait()
    assert not path.exists()


@pytest.mark.servers
async def test_spans():
    """Of requests in the traces of clients."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))  # type: ignore[attr-defined]
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    async with serving(make_store([1, 2]), spans=True) as client:
        await client.get("/api/data?path=a", traceparent=parent)
        await client.get("/api/data?path=b")
    first, second = exporter.get_finished_spans()
    assert (first.name, first.attributes["http.response.status_code"]) == ("GET data", 200)
    assert (first.context.trace_id, first.parent.span_id) == (int("ab" * 16, 16), int("cd" * 8, 16))
    assert (second.parent, second.attributes["http.response.status_code"]) == (None, 404)


@pytest.mark.processes
async def test_a_port_in_use(tmp_path):
    sync.create_group(tmp_path / "x.zarr")
    first, url = await start(str(tmp_path / "x.zarr"), "--port", "0")
    try:
        port = url.rstrip("/").rpartition(":")[2]
        for workers in ("1", "2"):
            command = [sys.executable, "-m", "zarrasync", "serve", str(tmp_path / "x.zarr"), "--port", port]
            second = await asyncio.to_thread(
                subprocess.run, [*command, "--workers", workers], capture_output=True, text=True, timeout=30
            )
            assert second.returncode == 1
            assert f"127.0.0.1:{port}" in second.stderr
            assert "--port" in second.stderr
    finally:
        first.kill()
        await first.wait()
