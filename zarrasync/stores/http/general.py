"""A general HTTP client for what the lean client leaves to it: redirects, proxies, credentials, encodings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from zarrasync._util.output_budget import check_budget
from zarrasync.errors import StoreError
from zarrasync.stores.errors import redact_queries
from zarrasync.stores.http.bodies import ACCEPTED, UNDECLARED_LIMIT, body_limit, codings_of, decoded, is_supported
from zarrasync.stores.http.message import Response
from zarrasync.stores.remote import TransientError

__all__ = ["GeneralClient", "read_body"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REDIRECT_LIMIT = 10
"""Maximum number of redirects that one request follows."""
_CREDENTIALS = frozenset({"headers", "auth", "cookies", "cookie_jar", "middlewares"})
"""Options that may contain secrets for the store's server."""


class GeneralClient:
    """Sends GET requests by aiohttp.

    Redirects are followed here, because aiohttp passes on custom headers and cookies to any server. A request that has
    left the store's origin (scheme, host and port) carries neither headers nor credentials of the user from there on.

    Args:
        headers: Sent with each request to the store's origin.
        client_options: Arguments of ``aiohttp.ClientSession``.
        request_options: Arguments of each request.
    """

    def __init__(
        self, headers: Mapping[str, str], client_options: Mapping[str, Any], request_options: Mapping[str, Any]
    ) -> None:
        import aiohttp

        # The store's limiter limits the number of connections, and its retries the time.
        self._client_options: dict[str, Any] = {
            "connector": aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, keepalive_timeout=60),
            "timeout": aiohttp.ClientTimeout(total=None),
            "headers": dict(headers),
            **client_options,
            "auto_decompress": False,  # aiohttp decodes without a limit, and on the event loop
        }
        names = {name.lower() for name in self._client_options["headers"]}
        self._accepted = {} if "accept-encoding" in names else {"Accept-Encoding": ACCEPTED}
        self._request_options = dict(request_options)
        self._follows = self._request_options.pop("allow_redirects", True)
        if isinstance(seconds := self._request_options.get("timeout"), int | float):
            self._request_options["timeout"] = aiohttp.ClientTimeout(total=seconds)
        self._session = aiohttp.ClientSession(**self._client_options)
        self._session_elsewhere: Any = None

    async def get(self, url: str, headers: Mapping[str, str], limit: int | None) -> Response:
        """Send a GET request to the store's origin, and follow redirects.

        Args:
            url: The URL, with its escapes.
            headers: Headers of this request, which every server may see.
            limit: The most bytes of the decoded body; ``None`` for any number.

        Raises:
            BudgetExceeded: If the body is larger.
            TransientError: If the connection failed.
            StoreError: If repeating the request makes no sense.
        """
        import aiohttp

        try:
            response = await self._follow(url, {**self._accepted, **headers}, limit)
            return await decoded(response, limit)
        except (aiohttp.InvalidURL, aiohttp.ClientConnectorCertificateError, UnicodeError) as error:
            raise StoreError(f"{type(error).__name__}: {redact_queries(str(error))}") from error
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
            raise TransientError(f"{type(error).__name__}: {redact_queries(str(error))}") from error

    async def _follow(self, url: str, headers: Mapping[str, str], limit: int | None) -> Response:
        from yarl import URL

        current, at_origin = URL(url, encoded=True), True
        for _ in range(_REDIRECT_LIMIT + 1):
            async with self._request(current, headers, at_origin=at_origin) as answer:
                location = answer.headers.get("Location")
                if answer.status not in _REDIRECTS or location is None or not self._follows:
                    return await _received(answer, limit)
            target = _redirect_target(current, location)
            at_origin = at_origin and target.origin() == current.origin()
            current = target
        raise StoreError(f"the server redirects more than {_REDIRECT_LIMIT} times, at last to {_shown(current)}")

    def _request(self, url: Any, headers: Mapping[str, str], *, at_origin: bool) -> Any:
        if at_origin:
            return self._session.get(url, headers=headers, allow_redirects=False, **self._request_options)
        if self._session_elsewhere is None:
            options = {**_without_credentials(self._client_options), "connector": self._session.connector}
            self._session_elsewhere = type(self._session)(**{**options, "connector_owner": False})
        options = _without_credentials(self._request_options)
        return self._session_elsewhere.get(url, headers=headers, allow_redirects=False, **options)

    async def close(self) -> None:
        """Close all connections."""
        if self._session_elsewhere is not None:
            await self._session_elsewhere.close()
        await self._session.close()


async def _received(answer: Any, limit: int | None) -> Response:
    """Return a response with its body, which is not decoded.

    Raises:
        BudgetExceeded: If the body is larger than the limit.
        StoreError: If it has a coding that is not supported.
    """
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if not is_supported(codings_of(headers)):
        raise StoreError(f"the server sent an unsupported Content-Encoding: {headers['content-encoding'][:40]!r}")
    body = await read_body(answer, body_limit(limit, answer.status, headers))
    return Response(answer.status, answer.reason or "", headers, body)


async def read_body(answer: Any, limit: int | None) -> bytes:
    """Return the body of a response of aiohttp.

    Raises:
        BudgetExceeded: If it is larger than the limit.
    """
    most, parts, size = UNDECLARED_LIMIT if limit is None else limit, list[bytes](), 0
    if limit is None and answer.content_length is not None:
        most = max(most, answer.content_length)
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        check_budget(most, size, at_least=True, what="body")
    return b"".join(parts)


def _without_credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _CREDENTIALS}


def _redirect_target(url: Any, location: str) -> Any:
    """Return the URL of a redirect.

    Raises:
        StoreError: If it must not be followed.
    """
    from yarl import URL

    try:
        target = url.join(URL(location))
    except ValueError as error:
        raise StoreError(f"the server redirects to an invalid URL: {redact_queries(location[:200])!r}") from error
    if target.scheme not in ("http", "https") or not target.host:
        raise StoreError(f"the server redirects to {redact_queries(location[:200])!r}, which is not an HTTP URL")
    if (url.scheme, target.scheme) == ("https", "http"):
        raise StoreError(f"the server redirects from HTTPS to {_shown(target)}, which is not encrypted")
    return target


def _shown(url: Any) -> str:
    """Return a URL for messages, without secrets."""
    return redact_queries(str(url.with_user(None)))[:200]
