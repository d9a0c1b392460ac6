"""Running the application as a server, in one process or in several ones."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import multiprocessing
import os
import signal
import socket
import ssl
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from zarrasync.server.aiohttp_app import CORE
from zarrasync.server.connections import GuardedRunner
from zarrasync.server.core import Core
from zarrasync.server.limits import Limits
from zarrasync.server.uvicorn_guard import uvicorn_config

_SITE_OPTIONS = frozenset({"ssl_context", "backlog", "reuse_address", "reuse_port"})
_SHUTDOWN_SECONDS = 10.0
_SWITCH_SECONDS = 0.0002
"""The time after which a thread that computes lets the event loop go on. Python's default is 25 times as long."""
_ARENA_MAX, _TRIM_THRESHOLD, _MMAP_THRESHOLD = -8, -1, -3
_MALLOC_LIMITS = {_ARENA_MAX: 2, _TRIM_THRESHOLD: 1 << 20, _MMAP_THRESHOLD: 16 << 20}
"""Limits of glibc's memory (``mallopt(3)``): arenas, free bytes at the end of one, and bytes from which on blocks are mapped.

By default each of eight threads per core has an own arena, which keeps the memory of its largest requests.
"""
_RESTART_SECONDS = 1.0
"""Time between the end of a process and the start of another one."""


def run(
    app: web.Application,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    metrics_port: int | None = None,
    **options: Any,
) -> None:
    """Run the application until it is interrupted or terminated. Pending requests then have ten seconds to finish.

    The number of connections, the time for a request to arrive, and the time for a response to be received are limited.

    Args:
        app: The result of ``create_app``, or an application that it is mounted in.
        host: The address to listen on; by default only this machine can connect.
        port: The port.
        limits: Limits of connections; by default the application's limits.
        metrics_port: A port of this machine that serves ``/metrics``, besides the application.
        **options: ``path`` (of a Unix socket) or ``sock``, to listen there; ``print``, which is called with the URL;
            ``ssl_context``, ``backlog``, ``reuse_address`` and ``reuse_port`` as for ``aiohttp.web.TCPSite``; others as
            for ``aiohttp.web.AppRunner``.

    Raises:
        OSError: If the address is in use or not one of this machine.
    """
    if limits is None:
        limits = app[CORE].limits if CORE in app else Limits()
    _limit_malloc()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(app, host, port, limits.within_descriptors(), metrics_port, options))


def run_asgi(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    path: str | None = None,
    sock: socket.socket | None = None,
    ssl_context: ssl.SSLContext | None = None,
    metrics_port: int | None = None,
    print: Callable[..., Any] | None = print,
) -> None:
    """Run an application of ``asgi.create_app`` with uvicorn until it is interrupted or terminated.

    Pending requests then have ten seconds to finish. Connections have the same limits as by ``run``, but beyond
    ``Limits.connections`` new ones get status 503 instead of replacing others.

    Args:
        app: The application.
        host: The address to listen on; by default only this machine can connect.
        port: The port.
        path: The path of a Unix socket, to listen there.
        sock: A socket that listens, instead of an address.
        ssl_context: Certificates for HTTPS.
        metrics_port: A port of this machine that serves ``/metrics``, besides the application.
        print: Is called with the URL.

    Raises:
        ImportError: If uvicorn is not installed.
        OSError: If the address is in use or not one of this machine.
    """
    _limit_malloc()
    own = listen(host, port, path) if sock is None else sock
    with contextlib.suppress(KeyboardInterrupt), own, _removed_at_end(path):
        asyncio.run(_run_asgi(app, own, ssl_context, metrics_port, print))


async def _run_asgi(
    app: Any,
    sock: socket.socket,
    ssl_context: ssl.SSLContext | None,
    metrics_port: int | None,
    announce: Callable[..., Any] | None,
) -> None:
    limits: Limits = app.state.core.limits.within_descriptors()
    config = uvicorn_config(app, limits, timeout_graceful_shutdown=int(_SHUTDOWN_SECONDS))
    import uvicorn  # it is installed

    config.load()
    config.ssl = ssl_context
    server = uvicorn.Server(config)
    begin = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        await begin(sockets)
        if announce is not None and server.started:
            announce(f"Running on {_address_of(sock, ssl_context)}")

    server.startup = startup  # type: ignore[method-assign]  # uvicorn has no hook for it
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]  # they stop this function
    async with _metrics_served(app.state.core, limits, metrics_port):
        task = asyncio.ensure_future(server.serve(sockets=[sock]))
        try:
            stop = asyncio.ensure_future(_stop_signal())
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
        finally:
            server.should_exit = True
            await task


def _address_of(sock: socket.socket, ssl_context: ssl.SSLContext | None) -> str:
    name = sock.getsockname()
    if not isinstance(name, tuple):
        return str(name)
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{'http' if ssl_context is None else 'https'}://{host}:{name[1]}"


async def _run(
    app: web.Application, host: str, port: int, limits: Limits, metrics_port: int | None, options: dict[str, Any]
) -> None:
    announce: Callable[..., Any] | None = options.pop("print", print)
    where = {name: value for name in ("path", "sock") if (value := options.pop(name, None)) is not None}
    # As many connections are accepted at a time, and need file descriptors before the limit of connections applies.
    backlog = max(limits.connections // 8, 8)
    site_options = {"backlog": backlog, **{name: options.pop(name) for name in _SITE_OPTIONS & options.keys()}}
    async with (
        _runner(app, limits, **{"shutdown_timeout": _SHUTDOWN_SECONDS, **options}) as runner,
        _metrics_served(app.get(CORE), limits, metrics_port),
    ):
        site = _site(runner, host, port, where, site_options)
        with _explained(host, port):
            await site.start()
        if announce is not None:
            announce(f"Running on {site.name}")
        with _removed_at_end(where.get("path")):
            await _stop_signal()


@asynccontextmanager
async def _runner(app: web.Application, limits: Limits, **options: Any) -> AsyncIterator[GuardedRunner]:
    """Start an application for the length of a block."""
    runner = GuardedRunner(app, limits, **options)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _metrics_served(core: Core | None, limits: Limits, port: int | None) -> AsyncIterator[None]:
    """Serve the metrics of an application on a port of this machine."""
    if port is None:
        yield
        return
    assert core is not None  # only this application has metrics

    async def respond(request: web.Request) -> web.Response:
        return web.Response(body=core.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    own = web.Application()
    own.router.add_get("/metrics", respond)
    async with _runner(own, limits) as runner:
        with _explained("127.0.0.1", port, "--metrics-port"):
            await web.TCPSite(runner, "127.0.0.1", port).start()
        yield


def _site(runner: web.AppRunner, host: str, port: int, where: dict[str, Any], options: dict[str, Any]) -> web.BaseSite:
    if "sock" in where:
        return web.SockSite(runner, where["sock"], ssl_context=options.get("ssl_context"))
    if "path" in where:
        sock = listen(host, port, where["path"])
        return web.SockSite(runner, sock, ssl_context=options.get("ssl_context"))
    return web.TCPSite(runner, host, port, **options)


@contextlib.contextmanager
def _explained(host: str, port: int, option: str = "--port") -> Any:
    """Raise an error that names the option to change if an address is in use."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        message = f"cannot listen on {host}:{port}: another program uses the port. Choose another one with {option}"
        raise OSError(errno.EADDRINUSE, message) from error


def _limit_malloc() -> None:
    """Let threads share memory that is free, unless the environment or another C library has own limits."""
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(AttributeError):  # musl has no such limits
        for name, value in _MALLOC_LIMITS.items():
            ctypes.CDLL(None).mallopt(name, value)


async def _stop_signal() -> None:
    """Wait until the process is interrupted or terminated."""
    sys.setswitchinterval(min(_SWITCH_SECONDS, sys.getswitchinterval()))
    gc.collect()
    gc.freeze()  # collections then leave out all imported objects, which would take tens of milliseconds each
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Only the main thread receives signals, and on Windows interrupts cancel this task.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
    await stop.wait()


# ------------------------------------------------------------------ processes


def listen(host: str, port: int, path: str | None = None) -> socket.socket:
    """Return a socket that listens on an address, for ``run_processes``.

    Args:
        host: The address.
        port: The port.
        path: The path of a Unix socket, instead of an address.

    Raises:
        OSError: If the address is in use or not one of this machine.
    """
    if path is None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with _explained(host, port):
            return socket.create_server((host, port), family=family)
    sock = socket.socket(socket.AF_UNIX)
    try:
        _make_way(path)
        sock.bind(path)
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def _removed_at_end(path: str | None) -> Iterator[None]:
    """Remove a Unix socket at the end of a block."""
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _make_way(path: str) -> None:
    """Remove the socket of a server that has ended.

    Raises:
        OSError: If another program listens on it, or the path is not one of a socket.
    """
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, f"cannot listen on {path!r}: it is not a socket. Choose another --unix-socket")
        with contextlib.suppress(ConnectionRefusedError):
            probe.connect(path)
            message = f"cannot listen on {path!r}: another program uses the socket. Choose another --unix-socket"
            raise OSError(errno.EADDRINUSE, message)
        os.unlink(path)


def run_processes(count: int, serve: Callable[..., None], sock: socket.socket, *args: Any) -> None:
    """Run several processes that accept connections of one socket, until this one is interrupted or terminated.

    A process that ends is replaced. The processes are spawned, as connections and threads do not survive a fork.

    Args:
        count: The number of processes.
        serve: Serves until its process is terminated; can be pickled. Its arguments are the number of the process,
            the socket, and ``args``.
        sock: The socket.
        *args: Further arguments.
    """
    context, stop = multiprocessing.get_context("spawn"), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    processes: list[Any] = [None] * count
    try:
        while not stop.is_set():
            for place, process in enumerate(processes):
                if process is None or not process.is_alive():
                    processes[place] = context.Process(target=serve, args=(place, sock, *args))
                    processes[place].start()
            stop.wait(_RESTART_SECONDS)
    finally:
        for process in filter(None, processes):
            process.terminate()
        for process in filter(None, processes):
            process.join(_SHUTDOWN_SECONDS + 5)
            process.kill()
        name = sock.getsockname()
        with _removed_at_end(name if isinstance(name, str) else None):
            sock.close()
