"""Objects of S3, Azure and Google through the lean client, by URLs that hold a signature or need none.

obstore hands each answer to the event loop from a thread of its own; that takes as much of the processor as all the
rest of a request. What is out of the ordinary is left to it: proxies, settings that change what is sent, refusals.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Sequence
from typing import Any
from urllib.parse import urlsplit

from zarrasync.config import Config
from zarrasync.stores.base import Request, Value
from zarrasync.stores.cloud.object_urls import Way, way_to
from zarrasync.stores.errors import tells_of_key
from zarrasync.stores.http.client import Answer, Client, Unfit, suits
from zarrasync.stores.http.responses import check_passing, range_of, value_of
from zarrasync.stores.remote import Attempt

__all__ = ["SignedRequests"]

_ERROR = 2000
"""Bytes of an answer in which a service says what is wrong."""
_HEADERS = {"User-Agent": "zarrasync", "Accept-Encoding": "identity"}


class SignedRequests:
    """Requests for objects of a bucket, on one event loop.

    Args:
        client: Where the bucket is.
        way: How to ask for its objects.
        skip: What of a URL is not in the request.
        missing: Statuses that mean that there is no such object.
    """

    def __init__(self, client: Client, way: Way, skip: int, missing: frozenset[int]) -> None:
        self._client, self._service, self._sign, self._skip = client, way.service, way.sign, skip
        self._missing, self._methods = missing, set(way.methods)

    @classmethod
    async def make(cls, store: Any, settings: Config, missing: frozenset[int]) -> SignedRequests | None:
        """Requests for an obstore store's objects; ``None`` where obstore has to make all of them.

        Raises:
            Exception: Of obstore's, if it finds no keys.
        """
        from urllib.request import getproxies

        way = await way_to(store, settings)
        if way is None:
            return None
        (url,) = await way.sign("GET", ["x"])
        parts, proxies = urlsplit(url), getproxies()
        headers = {**_HEADERS, **dict(way.service.headers)}
        if (parts.scheme != "https" and not _allows_http(store)) or not suits(url, headers):
            return None
        if parts.scheme in proxies or "all" in proxies:
            return None
        where = f"{parts.scheme}://{parts.netloc}"
        client = await Client.make(where, headers, 0)  # what they call compressed is as it was stored
        return cls(client, way, len(where), missing | {404})

    def takes(self, method: str) -> bool:
        """Whether to ask so: obstore does what was answered by something out of the ordinary before."""
        return method in self._methods

    async def sign(self, method: str, paths: Sequence[str]) -> list[str]:
        """What to ask for objects by; holds for a quarter of an hour.

        Raises:
            Exception: Of obstore's, if it finds no keys.
        """
        return [url[self._skip :] for url in await self._sign(method, paths)]

    async def get(self, target: str, request: Request) -> Value | None:
        """What a request asks for of an object.

        Raises:
            Unfit: If obstore has to ask.
            Attempt: If it failed in a way that may pass.
        """
        if not request.suffix or self._service.suffixes:
            return await self._get(target, request)
        first = await self._get(target, Request(request.key, 0, 1))
        if first is None or not first.size:
            return first
        length = min(request.length or 0, first.size)
        found = await self._get(target, Request(request.key, first.size - length, length))
        if found is not None and found.version != first.version:
            raise Attempt("the value was replaced while its end was read")
        return found

    async def _get(self, target: str, request: Request) -> Value | None:
        wanted = range_of(request)
        answer = await self._ask("GET", self._client.get(target, f"Range: {wanted}\r\n" if wanted else ""))
        if answer.status in self._missing and tells_of_key(bytes(answer.body[:_ERROR])):
            return None
        if answer.status not in (200, 206):
            # An end of a range that lies past the object's is nothing to remember, nor a bucket that may come.
            raise self._unfit("GET", answer, remember=answer.status not in (404, 416))
        return value_of(request, answer, answer.headers.get(self._service.version))

    async def put(self, target: str, data: bytes) -> str | None:
        """Store an object, whatever is there; returns its version.

        Raises:
            Unfit: If obstore has to ask.
            Attempt: If it failed in a way that may pass.
        """
        answer = await self._ask("PUT", self._client.put(target, data, self._service.put))
        if answer.status not in (200, 201):
            raise self._unfit("PUT", answer, remember=True)
        return answer.headers.get(self._service.version)

    async def _ask(self, method: str, asking: Awaitable[Answer]) -> Answer:
        try:
            answer = await asking
        except (Unfit, ssl.SSLCertVerificationError) as error:  # obstore may trust others
            self._methods.discard(method)
            raise Unfit(str(error)) from error
        except OSError as error:
            raise Attempt(f"{type(error).__name__}: {error}") from error
        check_passing(answer)
        return answer

    def _unfit(self, method: str, answer: Answer, *, remember: bool) -> Unfit:
        if remember:
            self._methods.discard(method)
        return Unfit(f"{answer.status} {answer.reason}")

    def leave(self) -> None:
        """Use the connections no more."""
        self._client.leave()


def _allows_http(store: Any) -> bool:
    return str((store.client_options or {}).get("allow_http")).lower() == "true"
