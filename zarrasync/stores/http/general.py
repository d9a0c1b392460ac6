"""A general HTTP client for what the lean client leaves to it: redirects, proxies, credentials, encodings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync._util.memory import check_budget
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.stores.http.bodies import ACCEPTED, UNDECLARED_LIMIT, body_limit, codings_of, decoded, is_supported
from zarrasync.stores.http.responses import HEAD_LIMIT, Response
from zarrasync.stores.remote import connection_failure

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
