"""A lean HTTP/1.1 client for GET and PUT requests over kept-alive connections.

A general client takes several times the CPU time of the request itself, which dominates reads of small chunks. This
one implements what stores need and raises ``UnsupportedResponse`` for a response that needs more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from zarrasync._concurrency import clock
from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync.stores.http.bodies import decoded
from zarrasync.stores.http.message import Response
from zarrasync.stores.http.pool import ConnectionPool, pool_of

__all__ = ["Client", "supports"]

_URL = re.compile(r"[!-~]*")
_HEADER_NAME = re.compile(r"[!-9;-~]*")
_HEADER_VALUE = re.compile(r"[ -~]*")


def supports(url: str, headers: Mapping[str, str]) -> bool:
    """Return whether the client can send requests to a URL, with these headers."""
    return (
        _URL.fullmatch(url) is not None
        and "@" not in urlsplit(url).netloc
        and all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, value in headers.items())
    )


class Client:
    """Sends requests to one server, on one event loop. Clients of the same server share its connections.

    Connections outlive clients for a while, so that opening one array after another connects once.

    Args:
        pool: Connections to the server.
        headers: Sent with each request.
        decodes: Whether to decode content codings. Otherwise, encoded responses are unsupported.
        limiter: The limiter of requests to the server, which learns from each new connection.
    """

    def __init__(
        self, pool: ConnectionPool, headers: Mapping[str, str], *, decodes: bool, limiter: AdaptiveLimiter
    ) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._common = f" HTTP/1.1\r\nHost: {pool.origin[1]}\r\n{lines}"
        self._decodes, self._pool, self._limiter = decodes, pool, limiter
        pool.clients += 1

    @classmethod
    async def make(cls, url: str, headers: Mapping[str, str], *, decodes: bool, limiter: AdaptiveLimiter) -> Client:
        """Return a client for the server of a URL, on the running loop."""
        return cls(await pool_of(url), headers, decodes=decodes, limiter=limiter)

    async def get(self, target: str, header_lines: str = "", limit: int | None = None) -> Response:
        """Send a GET request.

        Args:
            target: Path and query, as they appear in the request.
            header_lines: Further headers of this request, each ending in CRLF.
            limit: Maximum size of the value in bytes; ``None`` for any size.

        Raises:
            BudgetExceeded: If it is larger.
            UnsupportedResponse: If the response needs a general client.
            OSError: If the connection cannot be made or is lost.
        """
        response = await self._send(f"GET {target}{self._common}{header_lines}\r\n", b"", limit)
        return await decoded(response, limit) if "content-encoding" in response.headers else response

    async def put(self, target: str, data: bytes, header_lines: str = "") -> Response:
        """Send a PUT request, again if an idle connection turns out to be closed.

        Args:
            target: Path and query, as they appear in the request.
            data: The body.
            header_lines: Further headers of this request, each ending in CRLF.

        Raises:
            UnsupportedResponse: If the response needs a general client.
            OSError: If the connection cannot be made or is lost.
        """
        head = f"PUT {target}{self._common}{header_lines}Content-Length: {len(data)}\r\n\r\n"
        return await self._send(head, data, None)

    async def _send(self, head: str, body: bytes, limit: int | None) -> Response:
        request = head.encode("ascii") + body if body else head.encode("ascii")
        while True:
            connection, seconds = self._pool.take_idle(), 0.0
            is_new = connection is None
            if connection is None:
                start = clock.monotonic()
                connection = await self._pool.connect()
                seconds = clock.monotonic() - start
            try:
                response = await connection.send(request, limit, decodes=self._decodes)
            except ConnectionError:
                if not is_new and not connection.answered:
                    continue  # servers may close idle connections at any time
                raise
            # After errors, servers often close connections that they keep otherwise.
            if is_new and response.status < 400:
                self._limiter.on_connection(seconds, kept=connection.reusable)
            if body and response.status >= 300:  # the server may not have read the whole body
                connection.transport.abort()
            elif connection.reusable:
                self._pool.release(connection)
            return response

    def close(self) -> None:
        """Stop using the pool. Its connections stay open for other clients."""
        self._pool.leave()
