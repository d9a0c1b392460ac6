"""Running the application as a server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import Any

from aiohttp import web

from zarrasync.server.connections import GuardedRunner
from zarrasync.server.hierarchy import HIERARCHY
from zarrasync.server.limits import Limits

__all__ = ["run"]

_SITE_OPTIONS = frozenset({"ssl_context", "backlog", "reuse_address", "reuse_port"})


def run(
    app: web.Application, *, host: str = "127.0.0.1", port: int = 8000, limits: Limits | None = None, **options: Any
) -> None:
    """Run the application until it is interrupted or terminated. Pending requests then have ten seconds to finish.

    The number of connections, the time for a request to arrive, and the time for a response to be received are limited.

    Args:
        app: The result of ``create_app``, or an application that it is mounted in.
        host: The address to listen on; by default only this machine can connect.
        port: The port.
        limits: Limits of connections; by default the application's limits.
        **options: ``path`` (of a Unix socket) or ``sock``, to listen there; ``print``, which is called with the URL;
            ``ssl_context``, ``backlog``, ``reuse_address`` and ``reuse_port`` as for ``aiohttp.web.TCPSite``; others as
            for ``aiohttp.web.AppRunner``.
    """
    if limits is None:
        limits = app[HIERARCHY].limits if HIERARCHY in app else Limits()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(app, host, port, limits.within_descriptors(), options))


async def _run(app: web.Application, host: str, port: int, limits: Limits, options: dict[str, Any]) -> None:
    announce: Callable[..., Any] | None = options.pop("print", print)
    where = {name: options.pop(name) for name in ("path", "sock") if options.get(name) is not None}
    # As many connections are accepted at a time, and need file descriptors before the limit of connections applies.
    backlog = max(limits.connections // 8, 8)
    site_options = {"backlog": backlog, **{name: options.pop(name) for name in _SITE_OPTIONS & options.keys()}}
    runner = GuardedRunner(app, limits, **{"shutdown_timeout": 10.0, **options})
    await runner.setup()
    try:
        await _site(runner, host, port, where, site_options).start()
        if announce is not None:
            for site in runner.sites:
                announce(f"Running on {site.name}")
        await _stop_signal()
    finally:
        await runner.cleanup()


def _site(runner: web.AppRunner, host: str, port: int, where: dict[str, Any], options: dict[str, Any]) -> web.BaseSite:
    if "sock" in where:
        return web.SockSite(runner, where["sock"], ssl_context=options.get("ssl_context"))
    if "path" in where:
        return web.UnixSite(runner, where["path"], ssl_context=options.get("ssl_context"))
    return web.TCPSite(runner, host, port, **options)


async def _stop_signal() -> None:
    """Wait until the process is interrupted or terminated."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Only the main thread receives signals, and on Windows interrupts cancel this task.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
    await stop.wait()
