"""Stores behind web servers that behave well, or are slow, overloaded, broken or wrong."""

from __future__ import annotations

import asyncio
import gc
import pickle
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import NodeNotFoundError, StoreError, UnsupportedOperation
from zarrasync.stores import Listing
from zarrasync.stores.http import connection as pool
from zarrasync.stores.http import session as lean

VALUE = b"0123456789"
FAST = {"retries": 3, "request_timeout": 5.0}


@pytest.fixture(params=["lean", "general"], autouse=True)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lean client, and the general client for requests that the lean one does not support."""
    if request.param == "general":
        monkeypatch.setattr(lean, "supports", lambda url, headers: False)
    return str(request.param)


@asynccontextmanager
async def served(handler: Callable[..., Awaitable[Any]]) -> AsyncIterator[str]:
    """Run a server in this event loop whose responses a function returns."""
    from aiohttp import web

    app = web.Application()
    app.router.add_route("*", "/{key:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def store_of(url: str, **options: Any) -> stores.HTTPStore:
    with za.config.set(**FAST):
        return stores.HTTPStore(url, **options)


# ------------------------------------------------------------------ servers that do what they should


async def test_values_and_ranges(http):
    url, root = http
    (root / "a").mkdir()
    (root / "a" / "b").write_bytes(VALUE)
    (root / "a" / "ü %20#?").write_bytes(b"1")
    (root / "empty").write_bytes(b"")
    async with stores.resolve(url) as store:
        assert isinstance(store, stores.HTTPStore)
        assert await store.get("a/b") == VALUE
        assert await store.get("a/c") is None
        assert await store.get("a/ü %20#?") == b"1"
        asked = [(0, 3), (3, None), (8, 5), (10, 2), (25, 1), (0, 0), (-3, None), (-30, None)]
        found = await store.get_partial_values([("a/b", part) for part in asked])
        assert found == [b"012", b"3456789", b"89", b"", b"", b"", b"789", VALUE]
        assert await store.get_partial_values([("a/c", (0, 3)), ("empty", (0, 3)), ("empty", (-2, None))]) == [
            None,
            b"",
            b"",
        ]
        (value,) = await store.fetch([stores.Request("a/b", 2, 3)], versions=True)
        assert (value.size, bool(value.version)) == (10, True)
        with pytest.raises(UnsupportedOperation, match="cannot write"):
            await store.set("k", b"v")
        with pytest.raises(UnsupportedOperation, match="cannot list"):
            await store.list()
    assert await pickle.loads(pickle.dumps(store)).get("a/b") == VALUE


async def test_arrays_and_groups(api: Api, http):
    url, root = http
    values = np.arange(900, dtype="f4").reshape(30, 30)
    for zarr_format in (2, 3, "3-draft"):
        place = root / str(zarr_format)
        made = sync.create_group(place, zarr_format=zarr_format)
        made.create_array("a", data=values, chunks=(7, 7), shards=None if zarr_format == 2 else (14, 14))
        array = await api(api.open_array(f"{url}/{zarr_format}", path="a"))
        np.testing.assert_array_equal(await api(array.get_basic_selection(np.s_[3:20, ::-2])), values[3:20, ::-2])
        if zarr_format != "3-draft":
            direct = await api(api.open_array(f"{url}/{zarr_format}/a"))
            assert (await api(direct.get_basic_selection((5, 5)))) == values[5, 5]
        with pytest.raises(NodeNotFoundError):
            await api(api.open_array(f"{url}/{zarr_format}", path="b"))
    sync.consolidate_metadata(root / "3")
    group = await api(api.open_group(f"{url}/3"))
    assert await api(group.array_keys()) == ("a",)
    report = await api(api.validate(f"{url}/2", data=True))
    assert [f.message for f in report.findings] == ["nodes below were not checked, because the store cannot list keys"]


def test_options_are_those_of_fsspec(http):
    url, root = http
    (root / "k").write_bytes(VALUE)
    with stores.resolve(
        url, {"client_kwargs": {"headers": {"X-A": "1"}, "trust_env": True}, "headers": {"X-B": "2"}}
    ) as store:
        assert isinstance(store, stores.HTTPStore)
        assert store.headers == {"X-A": "1", "X-B": "2"}
    with stores.resolve(url, {"backend": "fsspec"}) as store:
        assert isinstance(store, stores.FsspecStore)
    with pytest.raises(ValueError, match="backend"):
        stores.resolve(url, {"backend": "other"})
    with pytest.raises(TypeError):
        stores.resolve(url, {"surprise": 1})
    with pytest.raises(ValueError, match="not an http"):
        stores.HTTPStore("ftp://x")
    assert repr(stores.HTTPStore("https://user:secret@host/x?sig=secret")) == "HTTPStore('https://host/x')"


@pytest.mark.processes
def test_directories_that_python_shows(tmp_path: Path):
    import sys

    for key in ("x", "a/b", "a/c/d e", "a/c/ü"):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"1")
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        port = server.stdout.readline().split(" port ")[1].split()[0]
        with stores.HTTPStore(f"http://127.0.0.1:{port}") as store:
            found = asyncio.run(listings(store))
        server.terminate()
    assert found == EXPECTED


async def listings(store: stores.HTTPStore) -> object:
    async with store:
        return sorted(await store.list()), await store.list_dir("a/"), await store.list_dir("none/")


EXPECTED = (
    ["a/b", "a/c/d e", "a/c/ü", "x"],
    Listing(("a/b",), ("a/c/",)),
    Listing((), ()),
)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.parametrize("style", ["html", "json"])
def test_directories_that_nginx_shows(tmp_path: Path, style: str):
    import socket

    root = tmp_path / "root"
    for key in ("x", "a/b", "a/c/d e", "a/c/ü"):
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(VALUE)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (tmp_path / "nginx.conf").write_text(
        f"""
        daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/log;
        events {{ worker_connections 64; }}
        http {{ access_log off; client_body_temp_path {tmp_path}/t1; proxy_temp_path {tmp_path}/t2;
          fastcgi_temp_path {tmp_path}/t3; uwsgi_temp_path {tmp_path}/t4; scgi_temp_path {tmp_path}/t5;
          server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; autoindex_format {style}; }} }}
        """
    )
    with subprocess.Popen(["nginx", "-c", tmp_path / "nginx.conf"], stderr=subprocess.DEVNULL) as server:
        with za.config.set(retries=20):
            store = stores.HTTPStore(f"http://127.0.0.1:{port}")
        assert asyncio.run(listings(store)) == EXPECTED
        assert asyncio.run(parts(store)) == [b"89", b"", b"789", VALUE]
        server.terminate()


async def parts(store: stores.HTTPStore) -> object:
    async with store:
        return await store.get_partial_values([("a/b", p) for p in ((8, 5), (10, 1), (-3, None), (0, None))])


# ------------------------------------------------------------------ servers that do not


@pytest.mark.servers
async def test_a_server_that_ignores_ranges():
    from aiohttp import web

    async def whole(request: web.Request) -> web.Response:
        return web.Response(body=VALUE)

    async with served(whole) as url, store_of(url) as store:
        assert await store.get_partial_values([("k", (2, 3)), ("k", (-4, None)), ("k", (20, 1))]) == [
            b"234",
            b"6789",
            b"",
        ]


@pytest.mark.servers
async def test_failures_that_pass():
    from aiohttp import web

    asked: list[str] = []

    async def flaky(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        number = asked.count(request.path)
        kind = request.path[1:]
        if number > 2:
            return web.Response(body=VALUE)
        if kind == "reset":
            request.transport.abort()
            return web.Response()
        if kind == "cut":
            answer = web.StreamResponse(headers={"Content-Length": "10"})
            await answer.prepare(request)
            await answer.write(VALUE[:4])
            request.transport.close()
            return answer
        if kind == "lie":
            return web.Response(status=206, body=VALUE[:4], headers={"Content-Range": "bytes 0-9/10"})
        if kind == "short":
            return web.Response(status=206, body=VALUE[:4], headers={"Content-Range": "bytes 0-3/10"})
        if kind == "elsewhere":
            return web.Response(status=206, body=VALUE[4:], headers={"Content-Range": "bytes 4-9/10"})
        return web.Response(status=int(kind), headers={"Retry-After": "0"} if kind == "429" else {})

    async with served(flaky) as url, store_of(url) as store:
        for kind in ("503", "429", "500", "reset", "cut"):
            assert await store.get(kind) == VALUE
        for kind in ("lie", "short", "elsewhere"):
            assert await store.get_partial_values([(kind, (0, 8))]) == [VALUE[:8]]
    assert len(asked) == 3 * 8


@pytest.mark.servers
async def test_failures_that_do_not():
    from aiohttp import web

    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=int(request.path[1:4]))

    async with served(refuse) as url, store_of(url) as store:
        for status, attempts in ((403, 1), (401, 1), (400, 1), (503, 4)):
            asked.clear()
            with pytest.raises(
                StoreError, match=f"could not read '{status}' in HTTPStore.*answered {status}"
            ) as caught:
                await store.get(str(status))
            assert len(asked) == attempts == caught.value.attempts
            assert caught.value.key == str(status)
        assert await store.get("404") is None
        assert await store.get("410") is None
        async with store_of(url, missing=(404, 403)) as lenient:
            assert await lenient.get("403") is None
        with pytest.raises(StoreError):
            await za.open_array(f"{url}/403")
    unreachable = store_of("http://127.0.0.1:9/x")
    with pytest.raises(StoreError, match=r"Connect.*Error.*attempt 4"):
        await unreachable.get("k")
    await unreachable.close()


@pytest.mark.servers
async def test_time_limits():
    from aiohttp import web

    async def stall(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "10"})
        await answer.prepare(request)
        await answer.write(VALUE[:4])
        await asyncio.sleep(3600)
        return answer

    async with served(stall) as url:
        with za.config.set(retries=1, request_timeout=0.2):
            store = stores.HTTPStore(url)
        with pytest.raises(StoreError, match=r"no answer within 0\.2 s .attempt 2"):
            await store.get("k")
        with za.config.set(retries=1000, request_timeout=0.05, total_timeout=0.5):
            patient = stores.HTTPStore(url)
        with pytest.raises(StoreError, match="no answer"):
            await patient.get("k")
        await store.close()
        await patient.close()


@pytest.mark.servers
async def test_cancelling_stops_the_requests():
    from aiohttp import web

    gone = asyncio.Event()
    begun = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            gone.set()
            raise
        return web.Response()

    async with served(hang) as url, store_of(url) as store:
        task = asyncio.create_task(store.get("k"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 5)
        assert store.limiter().free == store.limiter().capacity


@pytest.mark.servers
async def test_the_limit_adapts():
    from aiohttp import web

    busy, most = 0, 0

    async def loaded(request: web.Request) -> web.Response:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        try:
            await asyncio.sleep(0.005)
            return web.Response(status=503 if busy > 8 else 200, body=VALUE)
        finally:
            busy -= 1

    async with served(loaded) as url:
        with za.config.set(retries=50):
            store = stores.HTTPStore(url, concurrency=64)
        values = await store.get_partial_values([(str(n), (0, None)) for n in range(200)])
        assert values == [VALUE] * 200
        assert store.limiter().capacity < 64
        await store.close()


async def _most_at_once(answer_after, *, fail: bool = False, concurrency: int = 0) -> int:
    """Return the maximum of concurrent requests to a server that answers with this delay and limit."""
    from aiohttp import web

    busy, most, failed = 0, 0, not fail

    async def slow(request: web.Request) -> web.Response:
        nonlocal busy, most, failed
        busy += 1
        most = max(most, busy)
        try:
            await asyncio.sleep(answer_after(busy))
            if not failed:
                failed = True
                return web.Response(status=500)
            return web.Response(body=VALUE)
        finally:
            busy -= 1

    async with served(slow) as url:
        store = stores.HTTPStore(url, concurrency=concurrency)
        for _ in range(10 if answer_after(1) < 0.1 else 1):  # a busy machine may delay a fast server
            await store.get("first")
        assert await store.get_partial_values([(str(n), (0, None)) for n in range(1200)]) == [VALUE] * 1200
        assert store.limiter().free == store.limiter().capacity
        await store.close()
    return most


@pytest.mark.servers
async def test_the_limit_grows_where_answers_wait_and_not_where_the_server_does():
    assert 256 < await _most_at_once(lambda busy: 0.5) <= 512  # constant delay, independent of concurrency
    assert await _most_at_once(lambda busy: 0.002 * busy) <= 256  # the delay grows with concurrency
    assert await _most_at_once(lambda busy: 0.1, fail=True) <= 256  # failures occurred
    assert await _most_at_once(lambda busy: 0.05, concurrency=64) == 64  # the configured limit


@pytest.mark.processes
def test_the_limit_leaves_file_descriptors_to_others():
    program = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        "from zarrasync.stores import HTTPStore\n"
        "few, told = HTTPStore('http://localhost'), HTTPStore('http://localhost', concurrency=100)\n"
        "print(few.concurrency, few.initial_concurrency, told.concurrency)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["64", "64", "100"]


@pytest.mark.servers
async def test_a_server_that_calls_everything_out_of_range():
    from aiohttp import web

    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=416)

    async with served(handler) as url, store_of(url) as store:
        with pytest.raises(StoreError, match="answered 416"):
            await store.get("a")
        with pytest.raises(StoreError, match="answered 416"):
            await store.fetch([stores.Request("a", 5, 5)])
    assert len(asked) == 3


@pytest.mark.servers
async def test_signatures_do_not_show_where_redirects_fail():
    from aiohttp import web

    async def handler(request: web.Request) -> web.Response:
        where = "ftp://h/x?token=hush-hush" if request.path.startswith("/else") else str(request.rel_url)
        return web.Response(status=302, headers={"Location": where})

    async with served(handler) as url:
        for path in ("round", "else"):
            with pytest.raises(StoreError) as found:
                await za.open_array(f"{url}/{path}?signature=hush-hush", zarr_format=3, config=FAST)
            assert "hush-hush" not in str(found.value)


@pytest.mark.servers
async def test_an_invalid_retry_after_header():
    from aiohttp import web

    left = [1]

    async def handler(request: web.Request) -> web.Response:
        if left.pop() if left else 0:
            return web.Response(status=503, headers={"Retry-After": "\u00b2"})
        return web.Response(body=VALUE)

    async with served(handler) as url, store_of(url) as store:
        assert await store.get("a") == VALUE


# ------------------------------------------------------------------ what is no answer


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".org", ".x"])
async def test_invalid_hosts(api: Api, host: str):
    with pytest.raises(StoreError, match=r"could not read '.* in HTTPStore.*Unicode.*Error"):
        await api(api.open_array(f"http://{host}/x", config=FAST))


@pytest.mark.servers
@pytest.mark.parametrize("when", ["Mon, 01 Jan 0001 00:00:00 +2400", "Mon, 99 Jan 2024 00:00:00 GMT", "tomorrow"])
async def test_invalid_times(when: str):
    from aiohttp import web

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=VALUE, headers={"Last-Modified": when, "Date": when})

    async with served(handler) as url, store_of(url) as store:
        assert await store.get("k") == VALUE


async def test_a_lookup_that_nobody_waits_for_any_more(monkeypatch: pytest.MonkeyPatch):
    complaints: list[str] = []
    failed = asyncio.Event()

    async def fails(host: str, port: int) -> list[Any]:
        await failed.wait()
        raise OSError("no such name")

    monkeypatch.setattr(pool, "name_lookup", fails)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: complaints.append(context["message"]))
    store = store_of("http://slow.example.org")
    reading = asyncio.ensure_future(store.get("k"))
    await asyncio.wait([reading], timeout=0.05)
    reading.cancel()
    await asyncio.wait([reading])
    failed.set()
    await asyncio.sleep(0)
    await store.close()
    del reading
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    loop.set_exception_handler(None)
    assert complaints == []


async def opened(api: Api, url: str | stores.Store, **options: Any) -> Any:
    """Open an array that this event loop serves."""
    if api.name == "async":
        return await za.open_array(url, **options)
    return await asyncio.to_thread(partial(sync.open_array, url, **options))


def answer_from(values: Mapping[str, bytes], absent: int = 404) -> Callable[..., Awaitable[Any]]:
    """Return a handler for the keys below ``x.zarr``."""
    from aiohttp import web

    async def handler(request: Any) -> Any:
        value = values.get(request.match_info["key"].removeprefix("x.zarr/"))
        return web.Response(status=absent) if value is None else web.Response(body=value)

    return handler


@pytest.mark.servers
@pytest.mark.parametrize("path", ["//a", "/./a"])
async def test_urls_that_name_no_node(api: Api, path: str):
    """The group above is not asked for such a member."""
    values = dict[str, bytes]()
    sync.create_group(values).create_array("a", data=[1])
    async with served(answer_from(values)) as url:
        assert (await opened(api, f"{url}/x.zarr/a")).shape == (1,)
        with pytest.raises(NodeNotFoundError, match="no array"):
            await opened(api, f"{url}/x.zarr{path}")


@pytest.mark.servers
async def test_viewers_do_not_share_cached_chunks(api: Api):
    """A chunk that needs a token is not shown without it, and is not absent for others because it is so for one."""
    from aiohttp import web

    values = dict[str, bytes]()
    sync.create_array(values, data=np.arange(8), chunks=4)
    answer = answer_from(values)

    async def handler(request: Any) -> Any:
        is_allowed = "/c/" not in request.path or request.headers.get("X-Token") == "valid"
        return await answer(request) if is_allowed else web.Response(status=403)

    async with served(handler) as url:

        async def read(**storage_options: Any) -> list[int]:
            config = {"chunk_cache_bytes": 1 << 20, "chunk_cache_max_age": 60.0, "retries": 0}
            array = await opened(api, f"{url}/x.zarr", storage_options=storage_options, config=config)
            values = await (array[4:6] if api.name == "async" else asyncio.to_thread(array.__getitem__, slice(4, 6)))
            return list(values)

        for _ in range(2):
            assert await read(missing=[403]) == [0, 0]
            assert await read(headers={"X-Token": "valid"}) == [4, 5]
        with pytest.raises(StoreError, match="403"):
            await read()


@pytest.mark.servers
async def test_servers_that_refuse_absent_keys_do_not_hide_a_node(api: Api):
    """Some servers answer 403 for keys that do not exist, also for the documents of other formats."""
    values = dict[str, bytes]()
    sync.create_array(values, data=[1, 2, 3])
    async with served(answer_from(values, absent=403)) as url:
        store = store_of(url)
        assert (await opened(api, store, path="x.zarr")).shape == (3,)
        with pytest.raises(StoreError, match="403"):
            await opened(api, store_of(url), path="other.zarr")
