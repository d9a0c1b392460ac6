"""Pools of HTTP connections: one per server and event loop, shared by the clients of all stores."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from zarrasync._concurrency.offload import name_lookup
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync.stores.http.connection import Connection
from zarrasync.stores.remote import request_limits

_IDLE_SECONDS = 60.0
"""Seconds after which an idle connection is closed; networks drop connections that are silent for minutes."""
_CONNECT_SECONDS = 5.0
"""Seconds for a connection attempt, if the host has several addresses."""
_DNS_SECONDS = 60.0
"""Seconds for which the addresses of a host are cached."""

Origin: TypeAlias = tuple[str, str]
"""Scheme and network location of a server."""


class ConnectionPool:
    """Connections to one server, on one event loop.

    Args:
        pools: The pools of the loop, from which this one removes itself when it is closed or unused.
        origin: The server.

    Attributes:
        origin: The server.
        clients: Number of clients that share the pool.
        idle: Idle connections with the loop time since when, oldest first.
    """

    def __init__(self, pools: dict[Origin, ConnectionPool], origin: Origin) -> None:
        parts = urlsplit("{}://{}".format(*origin))
        self.origin, self.clients = origin, 0
        self.idle: deque[tuple[Connection, float]] = deque()
        self._pools, self._closed = pools, False
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._tls_context: ssl.SSLContext | None = None
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._lookup: asyncio.Task[list[Any]] | None = None
        self._lookup_time = 0.0
        self._prune_timer: asyncio.TimerHandle | None = None

    def take_idle(self) -> Connection | None:
        """Return an idle connection, if there is one."""
        while self.idle:
            connection, _ = self.idle.pop()
            if connection.reusable:
                return connection
        return None

    async def connect(self) -> Connection:
        """Return a new connection.

        Raises:
            OSError: If no connection can be made.
        """
        if self._closed:
            raise ConnectionAbortedError("the client was closed")
        if self._tls and self._tls_context is None:
            self._tls_context = ssl.create_default_context()
        first_error: OSError | None = None
        addresses = await self._addresses()
        for address in tuple(addresses):
            try:
                # An address that does not respond must not use up the time of the others.
                async with asyncio.timeout(_CONNECT_SECONDS if len(addresses) > 1 else None):
                    return await self._connect(address)
            except OSError as error:
                first_error = first_error or error
                if address in addresses:  # tried last from now on
                    addresses.append(addresses.pop(addresses.index(address)))
        raise first_error or OSError(f"{self._host!r} has no address")

    async def _connect(self, address: Any) -> Connection:
        family, _, _, _, endpoint = address
        _, connection = await self._loop.create_connection(
            partial(Connection, self._loop, self._connections),
            endpoint[0],
            endpoint[1],
            family=family,
            ssl=self._tls_context,
            server_hostname=self._host if self._tls else None,
        )
        if self._closed:
            connection.transport.abort()
            raise ConnectionAbortedError("the client was closed")
        return connection

    async def _addresses(self) -> list[Any]:
        """Return the addresses of the host; concurrent callers share one lookup."""
        task, now = self._lookup, self._loop.time()
        failed = task is not None and task.done() and (task.cancelled() or task.exception() is not None)
        if task is None or failed or now - self._lookup_time > _DNS_SECONDS:
            task = self._lookup = self._loop.create_task(name_lookup(self._host, self._port))
            task.add_done_callback(_retrieve)  # all callers may be cancelled before it fails
            self._lookup_time = now
        return await asyncio.shield(task)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request."""
        if self._closed:
            connection.transport.abort()
            return
        self.idle.append((connection, self._loop.time()))
        if self._prune_timer is None:
            self._prune_timer = self._loop.call_later(_IDLE_SECONDS, self._prune)

    def _prune(self) -> None:
        """Close connections that have been idle for too long."""
        oldest = self._loop.time() - _IDLE_SECONDS
        while self.idle and self.idle[0][1] <= oldest:
            self.close_oldest()
        delay = self.idle[0][1] - oldest if self.idle else 0.0
        self._prune_timer = self._loop.call_later(delay, self._prune) if self.idle else None
        self._remove_if_unused()

    def close_oldest(self) -> None:
        """Close the connection that has been idle for longest."""
        connection, _ = self.idle.popleft()
        connection.transport.abort()
        self._connections.discard(connection)

    def leave(self) -> None:
        """Count one client less, and close the oldest idle connections that exceed the limit of the loop."""
        self.clients -= 1
        unused = [pool for pool in self._pools.values() if not pool.clients]
        for _ in range(sum(len(pool.idle) for pool in unused) - _idle_limit()):
            min((pool for pool in unused if pool.idle), key=lambda pool: pool.idle[0][1]).close_oldest()
        self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        """Remove this pool from the loop's if it has no clients and no connections."""
        if not self.clients and not self._connections and self._pools.get(self.origin) is self:
            self._closed = True  # for connections that are being made
            del self._pools[self.origin]

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._pools.get(self.origin) is self:
            del self._pools[self.origin]
        if self._prune_timer is not None:
            self._prune_timer.cancel()
        self.idle.clear()
        lost = [connection.lost for connection in self._connections]
        for connection in tuple(self._connections):
            connection.transport.abort()
        if lost:
            await asyncio.wait(lost)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Mark an error as retrieved."""
    if not task.cancelled():
        task.exception()


def _idle_limit() -> int:
    """Return how many connections without clients a loop keeps; few enough to leave file descriptors to others."""
    return request_limits(0)[1] // 2


async def _no_pools() -> dict[Origin, ConnectionPool]:
    return {}


async def _close_pools(pools: dict[Origin, ConnectionPool]) -> None:
    for pool in tuple(pools.values()):
        await pool.close()


pools: PerLoop[dict[Origin, ConnectionPool]] = PerLoop(_no_pools, _close_pools)
"""The pools of each event loop, closed with it."""


def origin_of(url: str) -> Origin:
    """Return the scheme and network location of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


async def pool_of(url: str) -> ConnectionPool:
    """Return the running loop's pool of connections to the server of a URL."""
    existing, origin = await pools.get(), origin_of(url)
    if origin not in existing:
        existing[origin] = ConnectionPool(existing, origin)
    return existing[origin]


async def close_unused(url: str) -> None:
    """Close the running loop's connections to the server of a URL, unless it has clients."""
    pool = (await pools.get()).get(origin_of(url))
    if pool is not None and not pool.clients:
        await pool.close()
