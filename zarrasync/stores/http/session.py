"""The HTTP requests of one store on one event loop: by the lean client if it supports them, otherwise by the general one."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync.errors import StoreError
from zarrasync.stores.http import client as lean_client
from zarrasync.stores.http.general import GeneralClient
from zarrasync.stores.http.message import Response, UnsupportedResponse
from zarrasync.stores.remote import connection_failure

__all__ = ["Session"]

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
        lean: lean_client.Client | None,
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
        if not client_options and not request_options and lean_client.supports(base + query, lean_headers):
            lean = await lean_client.Client.make(base, lean_headers, decodes=True, limiter=limiter)
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
