"""Running the application as a server, in one process or in several ones."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from zarrasync.server.aiohttp_app import CORE
from zarrasync.server.connections import GuardedRunner
from zarrasync.server.limits import Limits

__all__ = ["listen", "run", "run_processes"]

_SITE_OPTIONS = frozenset({"ssl_context", "backlog", "reuse_address", "reuse_port"})
_SHUTDOWN_SECONDS = 10.0
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
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(app, host, port, limits.within_descriptors(), metrics_port, options))


async def _run(
    app: web.Application, host: str, port: int, limits: Limits, metrics_port: int | None, options: dict[str, Any]
) -> None:
    announce: Callable[..., Any] | None = options.pop("print", print)
    where = {name: value for name in ("path", "sock") if (value := options.pop(name, None)) is not None}
    # As many connections are accepted at a time, and need file descriptors before the limit of connections applies.
    backlog = max(limits.connections // 8, 8)
    site_options = {"backlog": backlog, **{name: options.pop(name) for name in _SITE_OPTIONS & options.keys()}}
    runner = GuardedRunner(app, limits, **{"shutdown_timeout": _SHUTDOWN_SECONDS, **options})
    await runner.setup()
    try:
        async with _metrics_served(app, limits, metrics_port):
            with _explained(host, port):
                await _site(runner, host, port, where, site_options).start()
            if announce is not None:
                for site in runner.sites:
                    announce(f"Running on {site.name}")
            await _stop_signal()
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _metrics_served(app: web.Application, limits: Limits, port: int | None) -> AsyncIterator[None]:
    """Serve the metrics of an application on a port of this machine."""
    if port is None:
        yield
        return

    async def respond(request: web.Request) -> web.Response:
        return web.Response(body=app[CORE].metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    own = web.Application()
    own.router.add_get("/metrics", respond)
    runner = GuardedRunner(own, limits)
    await runner.setup()
    try:
        with _explained("127.0.0.1", port, "--metrics-port"):
            await web.TCPSite(runner, "127.0.0.1", port).start()
        yield
    finally:
        await runner.cleanup()


def _site(runner: web.AppRunner, host: str, port: int, where: dict[str, Any], options: dict[str, Any]) -> web.BaseSite:
    if "sock" in where:
        return web.SockSite(runner, where["sock"], ssl_context=options.get("ssl_context"))
    if "path" in where:
        return web.UnixSite(runner, where["path"], ssl_context=options.get("ssl_context"))
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


async def _stop_signal() -> None:
    """Wait until the process is interrupted or terminated."""
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
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen()
    return sock


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
        sock.close()
