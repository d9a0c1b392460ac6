"""The HTTP requests of one store on one event loop: by the lean client if it supports them, otherwise by the general one."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from zarrasync._concurrency import clock
from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync.errors import StoreError
from zarrasync.stores.http.bodies import decoded
from zarrasync.stores.http.connection import ConnectionPool, pool_of
from zarrasync.stores.http.general import GeneralClient
from zarrasync.stores.http.responses import Response, UnsupportedResponse
from zarrasync.stores.remote import connection_failure

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
    """Sends GET and PUT to one server, on one event loop. Clients of the same server share its connections.

    A general client takes several times the CPU time of the request itself, which dominates reads of small chunks. This one
    raises ``UnsupportedResponse`` for responses that need more. Connections outlive clients for a while, so that opening
    one array after another connects once.

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


_USER_AGENT = "zarrasync"


class Session:
    """Sends GET requests to one server.

    Args:
        base: URL without query, below which all targets are.
        headers: Sent with each request.
        client_options: Arguments of ``aiohttp.ClientSession``.
        request_options: Arguments of each request of it.
        limiter: The limiter of requests to the server.
        lean: The lean client, if it supports the URL, headers and options.
    """

    def __init__(
        self,
        base: str,
        headers: Mapping[str, str],
        client_options: Mapping[str, Any],
        request_options: Mapping[str, Any],
        limiter: AdaptiveLimiter,
        lean: Client | None,
    ) -> None:
        self._base, self._headers = base, headers
        self._client_options, self._request_options, self._limiter = client_options, request_options, limiter
        self._path = urlsplit(base).path
        self._lean = lean
        self._general: GeneralClient | None = None
        self._needs_general = lean is None

    @classmethod
    async def make(
        cls,
        base: str,
        query: str,
        headers: Mapping[str, str],
        client_options: Mapping[str, Any],
        request_options: Mapping[str, Any],
        limiter: AdaptiveLimiter,
    ) -> Session:
        """Return a session on the running loop.

        Args:
            base: URL without query.
            query: The query of each request, with its question mark.
            headers: Sent with each request.
            client_options: Arguments of ``aiohttp.ClientSession``.
            request_options: Arguments of each request of it.
            limiter: The limiter of requests to the server.
        """
        has_user_agent = any(name.lower() == "user-agent" for name in headers)
        lean_headers = headers if has_user_agent else {**headers, "User-Agent": _USER_AGENT}
        lean = None
        if not client_options and not request_options and supports(base + query, lean_headers):
            lean = await Client.make(base, lean_headers, decodes=True, limiter=limiter)
        return cls(base, headers, client_options, request_options, limiter, lean)

    async def get(self, target: str, byte_range: str, limit: int | None) -> Response:
        """Send a GET request.

        Args:
            target: Path and query below the base.
            byte_range: The ``Range`` header; empty for the whole file.
            limit: The most bytes of the whole file; ``None`` for any number.

        Raises:
            BudgetExceeded: If the file is larger.
            TransientError: If the connection failed.
            StoreError: If repeating the request makes no sense.
        """
        if self._lean is not None and not self._needs_general:
            if byte_range:  # which would count the bytes of the compressed body
                lines = f"Range: {byte_range}\r\nAccept-Encoding: identity\r\n"
            else:
                lines = "Accept-Encoding: gzip\r\n"
            try:
                return await self._lean.get(self._path + target, lines, limit)
            except UnsupportedResponse:
                self._needs_general = True
            except (ssl.SSLCertVerificationError, UnicodeError) as error:  # UnicodeError: an invalid host name
                raise StoreError(f"{type(error).__name__}: {error}") from error
            except OSError as error:
                raise connection_failure(error) from error
        from yarl import URL

        if self._general is None:
            self._general = GeneralClient.make(
                self._headers, self._client_options, self._request_options, self._limiter
            )
        return await self._general.get(URL(f"{self._base}{target}", encoded=True), byte_range, limit)

    async def close(self) -> None:
        """Release the shared connections, and close the general client."""
        if self._lean is not None:
            self._lean.close()
        if self._general is not None:
            await self._general.close()
