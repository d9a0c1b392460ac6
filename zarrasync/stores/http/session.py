"""The HTTP requests of one store on one event loop: by the lean client if it supports them, otherwise by a general one.

The lean client leaves redirects, proxies, credentials and encodings to aiohttp.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from zarrasync._concurrency import clock
from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync._util.memory import check_budget
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.stores.http.bodies import ACCEPTED, UNDECLARED_LIMIT, body_limit, codings_of, decoded, is_supported
from zarrasync.stores.http.connection import ConnectionPool, pool_of
from zarrasync.stores.http.responses import HEAD_LIMIT, Response, UnsupportedResponse
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
        lean: The lean client, if it supports the URL, headers and options.
        make_general: Makes the general client, when a request needs it.
    """

    def __init__(self, base: str, lean: Client | None, make_general: Callable[[], GeneralClient]) -> None:
        self._base, self._path = base, urlsplit(base).path
        self._lean, self._make_general = lean, make_general
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
            lean = Client(await pool_of(base), lean_headers, decodes=True, limiter=limiter)
        return cls(base, lean, partial(GeneralClient.make, headers, client_options, request_options, limiter))

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
            self._general = self._make_general()
        return await self._general.get(URL(f"{self._base}{target}", encoded=True), byte_range, limit)

    async def close(self) -> None:
        """Release the shared connections, and close the general client."""
        if self._lean is not None:
            self._lean.close()
        if self._general is not None:
            await self._general.close()


# ------------------------------------------------------------------ the general client


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REDIRECT_LIMIT = 10
"""Maximum number of redirects that one request follows, unless an option specifies it."""
_OF_CONNECTIONS = frozenset(
    {
        *("allow_redirects", "auto_decompress", "raise_for_status", "timeout", "trace_request_ctx"),
        *("max_field_size", "max_headers", "max_line_size", "read_bufsize", "read_until_eof", "skip_auto_headers"),
        *("proxy", "proxy_auth", "proxy_headers", "ssl", "ssl_context", "verify_ssl"),
    }
)
"""Arguments of requests to any server. Others may contain secrets for the store's server, or concern it alone."""
_PROXY = ("proxy", "proxy_auth")


class GeneralClient:
    """Sends GET requests by a session of aiohttp, within the same limits as the lean client.

    Redirects are followed here, because aiohttp passes on custom headers and cookies to any server. A request that has
    left the store's origin (scheme, host and port) carries neither headers nor credentials of the user from there on.
    Bodies are decoded here as well, because aiohttp decodes on the event loop, and without a limit.

    Args:
        session: The session.
        client_options: Arguments with which the session was made.
        request_options: Arguments of each request to the store's origin.
        limiter: The limiter of requests to the store's origin, which learns from its answers; ``None`` for none.
    """

    def __init__(
        self,
        session: Any,
        client_options: Mapping[str, Any],
        request_options: Mapping[str, Any],
        limiter: AdaptiveLimiter | None,
    ) -> None:
        import aiohttp

        proxy = {name: client_options[name] for name in _PROXY if client_options.get(name) is not None}
        options = {"max_line_size": HEAD_LIMIT, "max_field_size": HEAD_LIMIT, **proxy, **request_options}
        self._session, self._limiter = session, limiter
        self._follows, self._most = options.pop("allow_redirects", True), options.pop("max_redirects", _REDIRECT_LIMIT)
        self._headers = dict(options.pop("headers", None) or {})
        if isinstance(seconds := options.get("timeout"), int | float):
            options["timeout"] = aiohttp.ClientTimeout(total=seconds)
        options |= {"allow_redirects": False, "auto_decompress": False, "raise_for_status": False}
        self._options = options
        self._connection_options = {name: value for name, value in options.items() if name in _OF_CONNECTIONS}
        if isinstance(options.get("ssl"), aiohttp.Fingerprint):  # of the certificate of the store's server
            del self._connection_options["ssl"]

    @classmethod
    def make(
        cls,
        headers: Mapping[str, str],
        client_options: Mapping[str, Any],
        request_options: Mapping[str, Any],
        limiter: AdaptiveLimiter,
    ) -> GeneralClient:
        """Return a client with a new session.

        Args:
            headers: Sent with each request to the store's origin.
            client_options: Arguments of ``aiohttp.ClientSession``.
            request_options: Arguments of each request.
            limiter: The limiter of requests to the store's origin.
        """
        import aiohttp

        # The store's limiter limits the number of connections, and its retries the time.
        options: dict[str, Any] = {
            "connector": aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, keepalive_timeout=60),
            "timeout": aiohttp.ClientTimeout(total=None),
            "headers": dict(headers),
        }
        return cls(aiohttp.ClientSession(**{**options, **client_options}), client_options, request_options, limiter)

    async def get(self, url: Any, byte_range: str, limit: int | None) -> Response:
        """Send a GET request to the store's origin, and follow redirects.

        Args:
            url: The URL, as an object of yarl.
            byte_range: The ``Range`` header; empty for the whole file.
            limit: The most bytes of the whole file; ``None`` for any number.

        Raises:
            BudgetExceeded: If the file is larger.
            TransientError: If the connection failed.
            StoreError: If repeating the request makes no sense.
        """
        import aiohttp

        # The range would count the bytes of a compressed body.
        headers = {"Range": byte_range, "Accept-Encoding": "identity"} if byte_range else {}
        try:
            return await decoded(await self._follow(url, headers, limit), limit)
        except (aiohttp.InvalidURL, aiohttp.ClientConnectorCertificateError, UnicodeError) as error:
            raise StoreError(f"{type(error).__name__}: {redact(str(error))}") from error
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, StoreError):  # the connector refuses the address
                raise error.os_error from None
            raise connection_failure(error, aiohttp.ClientConnectorError) from error
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
            raise connection_failure(error, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) from error

    async def _follow(self, url: Any, headers: Mapping[str, str], limit: int | None) -> Response:
        session, options, current = self._session, self._options, url
        sent = {**self._headers, **headers}
        if not any(name.lower() == "accept-encoding" for name in (*sent, *session.headers)):
            sent["Accept-Encoding"] = ACCEPTED
        async with AsyncExitStack() as stack:
            for _ in range(self._most + 1):
                async with session.get(current, headers=sent, **options) as answer:
                    if self._limiter is not None and session is self._session and answer.status < 400:
                        closes = "close" in answer.headers.get("Connection", "").lower() or answer.version < (1, 1)
                        self._limiter.on_connection(0.0, kept=not closes)
                    location = answer.headers.get("Location")
                    if answer.status not in _REDIRECTS or location is None or not self._follows:
                        return await _received(answer, limit)
                target = _redirect_target(current, location)
                options = {name: value for name, value in options.items() if name != "params"}  # of the first URL
                if session is self._session and target.origin() != current.origin():
                    session = await stack.enter_async_context(_session_without_credentials(session))
                    options = self._connection_options
                    sent = {"Accept-Encoding": ACCEPTED, **headers}
                current = target
        raise StoreError(f"the server redirects more than {self._most} times, at last to {_shown(current)}")

    async def close(self) -> None:
        """Close the session and all connections."""
        await self._session.close()


def _session_without_credentials(session: Any) -> Any:
    """Return a session for other origins: it shares the connections of a session, but not its headers and credentials."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=session.connector,
        connector_owner=False,
        timeout=session.timeout,
        trust_env=session.trust_env,
        trace_configs=session.trace_configs,
    )


async def _received(answer: Any, limit: int | None) -> Response:
    """Return a response with its body, which is not decoded.

    Raises:
        BudgetExceeded: If the body is larger than the limit.
        StoreError: If it has a coding that is not supported.
    """
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if not is_supported(codings_of(headers)):
        raise StoreError(f"the server sent an unsupported Content-Encoding: {headers['content-encoding'][:40]!r}")
    body = await _body(answer, body_limit(limit, answer.status, headers))
    return Response(answer.status, answer.reason or "", headers, body)


async def _body(answer: Any, limit: int | None) -> Buffer:
    """Return the body of a response of aiohttp.

    Raises:
        BudgetExceeded: If it is larger than the limit.
    """
    most, declared, body = UNDECLARED_LIMIT if limit is None else limit, answer.content_length, bytearray()
    if declared is not None and limit is None:
        most = max(most, declared)
    check_budget(most, declared or 0, what="body")
    async for part in answer.content.iter_any():
        body += part
        check_budget(most, len(body), at_least=True, what="body")
    return memoryview(body).toreadonly()


def _redirect_target(url: Any, location: str) -> Any:
    """Return the URL of a redirect.

    Raises:
        StoreError: If it must not be followed.
    """
    from yarl import URL

    try:
        target = url.join(URL(location))
    except ValueError as error:
        raise StoreError(f"the server redirects to an invalid URL: {redact(location[:200])!r}") from error
    if target.scheme not in ("http", "https") or not target.host:
        raise StoreError(f"the server redirects to {redact(location[:200])!r}, which is not an HTTP URL")
    if (url.scheme, target.scheme) == ("https", "http"):
        raise StoreError(f"the server redirects from HTTPS to {_shown(target)}, which is not encrypted")
    return target


def _shown(url: Any) -> str:
    """Return a URL for messages, without secrets."""
    return redact(str(url))[:200]
