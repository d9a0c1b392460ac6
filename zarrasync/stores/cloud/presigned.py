"""Access to single objects of S3, Azure and Google through presigned URLs and the lean HTTP client.

obstore passes each response to the event loop from one of its threads, which takes as much CPU time as the rest of a
request. It still handles proxies, settings that change requests, and rejected requests.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Sequence
from typing import Any
from urllib.parse import urlsplit

from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync._util.redact import redact
from zarrasync.config import Config
from zarrasync.stores.cloud.object_urls import UrlAccess, url_access
from zarrasync.stores.errors import concerns_key
from zarrasync.stores.http.responses import Response, UnsupportedResponse, parse_value, raise_if_transient, range_header
from zarrasync.stores.http.session import Client, supports
from zarrasync.stores.remote import TransientError, connection_failure
from zarrasync.stores.values import Request, Value

_ERROR_BYTES = 2000
"""Bytes of a response body in which a service explains an error."""
_HEADERS = {"User-Agent": "zarrasync", "Accept-Encoding": "identity"}


class PresignedRequests:
    """Requests for objects of a bucket, on one event loop.

    Args:
        client: A client for the server.
        access: How to make URLs for the objects.
        origin_length: Length of the part of a URL that is not in the request.
        missing: Statuses that mean absence.
    """

    def __init__(self, client: Client, access: UrlAccess, origin_length: int, missing: frozenset[int]) -> None:
        self._client, self._service, self._sign = client, access.service, access.sign
        self._origin_length, self._missing, self._methods = origin_length, missing, set(access.methods)

    @classmethod
    async def make(
        cls, store: Any, settings: Config, missing: frozenset[int], limiter: AdaptiveLimiter
    ) -> PresignedRequests | None:
        """Return requests for an obstore store; ``None`` if obstore must make all of them.

        Args:
            store: The store.
            settings: Settings of the store.
            missing: Statuses that mean absence.
            limiter: The limiter of requests to the service.

        Raises:
            Exception: One of obstore's, if credentials are missing.
        """
        from urllib.request import getproxies

        access = await url_access(store, settings)
        if access is None:
            return None
        (url,) = await access.sign("GET", ["x"])
        parts, proxies = urlsplit(url), getproxies()
        headers = {**_HEADERS, **dict(access.service.headers)}
        if (parts.scheme != "https" and not _allows_http(store)) or not supports(url, headers):
            return None
        if parts.scheme in proxies or "all" in proxies:
            return None
        origin = f"{parts.scheme}://{parts.netloc}"
        # Objects with a content encoding are returned as stored.
        client = await Client.make(origin, headers, decodes=False, limiter=limiter)
        return cls(client, access, len(origin), missing | {404})

    def supports(self, method: str) -> bool:
        """Return whether a method can be used. It cannot after an unexpected response, which obstore may understand."""
        return method in self._methods

    async def sign(self, method: str, paths: Sequence[str]) -> list[str]:
        """Return the request targets for objects, valid for 15 minutes.

        Raises:
            Exception: One of obstore's, if credentials are missing.
        """
        return [url[self._origin_length :] for url in await self._sign(method, paths)]

    async def get(self, target: str, request: Request) -> Value | None:
        """Return an object or a byte range of it; ``None`` if it does not exist.

        Raises:
            UnsupportedResponse: If obstore must make the request.
            TransientError: If repeating the request may help.
        """
        if not request.suffix or self._service.suffix_ranges:
            return await self._get(target, request)
        first = await self._get(target, Request(request.key, 0, 1))
        if first is None or not first.size:
            return first
        length = min(request.length or 0, first.size)
        value = await self._get(target, Request(request.key, first.size - length, length))
        if value is not None and value.version != first.version:
            raise TransientError("the value was replaced while its end was read")
        return value

    async def _get(self, target: str, request: Request) -> Value | None:
        byte_range = range_header(request)
        lines = f"Range: {byte_range}\r\n" if byte_range else ""
        response = await self._send("GET", self._client.get(target, lines, request.limit))
        if response.status in self._missing and concerns_key(bytes(response.body[:_ERROR_BYTES])):
            return None
        if response.status not in (200, 206):
            # Byte ranges past the end and missing buckets concern single requests.
            raise self._unsupported("GET", response, permanent=response.status not in (404, 416))
        return parse_value(request, response, response.headers.get(self._service.version_header))

    async def put(self, target: str, data: bytes) -> str | None:
        """Store an object unconditionally, and return its version.

        Raises:
            UnsupportedResponse: If obstore must make the request.
            TransientError: If repeating the request may help.
        """
        response = await self._send("PUT", self._client.put(target, data, self._service.put_headers))
        if response.status not in (200, 201):
            raise self._unsupported("PUT", response, permanent=True)
        return response.headers.get(self._service.version_header)

    async def _send(self, method: str, request: Awaitable[Response]) -> Response:
        try:
            response = await request
        except (UnsupportedResponse, ssl.SSLCertVerificationError) as error:  # obstore may trust other certificates
            self._methods.discard(method)
            if isinstance(error, UnsupportedResponse):
                raise
            raise UnsupportedResponse(str(error)) from error
        except OSError as error:
            raise connection_failure(error) from error
        raise_if_transient(response)
        return response

    def _unsupported(self, method: str, response: Response, *, permanent: bool) -> UnsupportedResponse:
        if permanent:
            self._methods.discard(method)
        reason = f"{response.status} {redact(response.reason)}"
        return UnsupportedResponse(reason, response.status, response.headers, response.body)

    def close(self) -> None:
        """Stop using the shared connections."""
        self._client.close()


def _allows_http(store: Any) -> bool:
    return str((store.client_options or {}).get("allow_http")).lower() == "true"
