"""Objects of S3 through the lean client, by URLs that obstore signs.

obstore hands each answer to the event loop from a thread of its own; that takes as much of the processor as all the
rest of a request. What is out of the ordinary is left to it: proxies, settings that change what is sent, refusals.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from zarrasync.config import Config
from zarrasync.stores.answers import check_passing, range_of, value_of, version_of
from zarrasync.stores.base import Request, Value
from zarrasync.stores.http1 import Answer, Client, Unfit, suits
from zarrasync.stores.remote import Attempt

__all__ = ["SignedRequests"]

_HOLDS = timedelta(minutes=15)
"""As long as a service believes a request that is signed in its head."""
_BELIEVED = 0.05
"""Seconds for which keys that lapse are believed to hold: obstore looks for new ones 0.1 s after it did at the earliest,
so that no signature waits for them on the event loop meanwhile."""
_HEADERS = {"User-Agent": "zarrasync", "Accept-Encoding": "identity"}
_WHERE = frozenset({"bucket", "region", "default_region", "endpoint", "virtual_hosted_style_request"})
_WHO = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "skip_signature",
        "imdsv1_fallback",
        "metadata_endpoint",
        "container_credentials_relative_uri",
        "container_credentials_full_uri",
        "container_authorization_token_file",
        "web_identity_token_file",
        "role_arn",
        "role_session_name",
        "sts_endpoint",
    }
)
_HOW = frozenset({"unsigned_payload", "conditional_put", "disable_tagging", "checksum_algorithm"})
"""Settings of obstore's: where objects lie, who asks, how to write."""
_UNSEEN = re.compile("AWS_(SKIP_SIGNATURE|S3_EXPRESS|REQUEST_PAYER|SSE_CUSTOMER_.*|VIRTUAL_HOSTED_.*)", re.IGNORECASE)
"""Variables that obstore reads without showing them, and that change what is to be sent."""
_WRITTEN = re.compile("AWS_(SERVER_SIDE_ENCRYPTION|SSE_.*|CHECKSUM_ALGORITHM)", re.IGNORECASE)
"""The same, where something is stored."""


class SignedRequests:
    """Requests for objects of a bucket, on one event loop.

    Args:
        client: Where the bucket is.
        sign: Makes the path and query to ask for of a method and an object's path.
        renew: Sees that there are keys that hold; ``None`` where they do not lapse.
        missing: Statuses that mean that there is no such object.
        methods: What may be asked for so.
    """

    def __init__(
        self,
        client: Client,
        sign: Callable[[str, str], str],
        renew: Callable[[], Awaitable[Any]] | None,
        missing: frozenset[int],
        methods: set[str],
    ) -> None:
        self._client, self._sign, self._missing = client, sign, missing
        self._renew, self._renewing, self._renewed = renew, asyncio.Lock(), asyncio.get_running_loop().time()
        self._methods = methods

    @classmethod
    async def make(cls, store: Any, settings: Config, missing: frozenset[int]) -> SignedRequests | None:
        """Requests for an obstore store's objects; ``None`` where obstore has to make all of them.

        Raises:
            Exception: Of obstore's, if it finds no keys.
        """
        if not _ordinary(store, settings):
            return None
        from urllib.request import getproxies

        anonymous, provided = _is_anonymous(store), store.credential_provider is not None
        sign, renew = partial(_public if anonymous else _signed, store), partial(_renewed, store)
        told = anonymous or ("access_key_id" in store.config and not provided)
        url = sign("GET", "x") if told else await renew()
        parts, proxies = urlsplit(url), getproxies()
        allowed = parts.scheme == "https" or "allow_http" in (store.client_options or {})
        if not allowed or parts.scheme in proxies or "all" in proxies or not suits(url, _HEADERS):
            return None
        lapse = not told and (provided or _key_in(parts.query) != os.environ.get("AWS_ACCESS_KEY_ID"))
        where = f"{parts.scheme}://{parts.netloc}"
        client = await Client.make(where, _HEADERS, 0)  # what S3 calls compressed is as it was stored
        return cls(
            client,
            lambda method, path: sign(method, path)[len(where) :],
            renew if lapse else None,
            missing | {404},
            {"GET"} if anonymous or not _is_plain_to_write(store) else {"GET", "PUT"},
        )

    def takes(self, method: str) -> bool:
        """Whether to ask so: obstore does what was answered by something out of the ordinary before."""
        return method in self._methods

    async def get(self, path: str, request: Request) -> Value | None:
        """What a request asks for of an object.

        Raises:
            Unfit: If obstore has to ask.
            Attempt: If it failed in a way that may pass.
            Exception: Of obstore's, if it finds no keys.
        """
        wanted = range_of(request)
        answer = await self._ask("GET", path, f"Range: {wanted}\r\n" if wanted else "")
        if answer.status in self._missing:
            return None
        if answer.status not in (200, 206):
            # An end of a range that lies past the object's is nothing to remember.
            raise self._unfit("GET", answer, remember=answer.status != 416)
        return value_of(request, answer, version_of(answer))

    async def put(self, path: str, data: bytes) -> str | None:
        """Store an object, whatever is there; returns its version.

        Raises:
            Unfit: If obstore has to ask.
            Attempt: If it failed in a way that may pass.
            Exception: Of obstore's, if it finds no keys.
        """
        answer = await self._ask("PUT", path, data)
        if answer.status != 200:
            raise self._unfit("PUT", answer, remember=True)
        return answer.headers.get("etag")

    async def _ask(self, method: str, path: str, rest: Any) -> Answer:
        await self._hold_keys()
        send: Any = self._client.get if method == "GET" else self._client.put
        try:
            answer: Answer = await send(self._sign(method, path), rest)
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

    async def _hold_keys(self) -> None:
        """Have keys that hold for a moment."""
        now = asyncio.get_running_loop().time
        if self._renew is None or now() - self._renewed < _BELIEVED:
            return
        async with self._renewing:
            if now() - self._renewed >= _BELIEVED:
                await self._renew()
                self._renewed = now()

    def leave(self) -> None:
        """Use the connections no more."""
        self._client.leave()


def _ordinary(store: Any, settings: Config) -> bool:
    """Whether a store is one of S3 that needs no more than signed URLs, and what was said of requests holds for ours, too."""
    if type(store).__name__ != "S3Store" or not settings.retries:
        return False
    told = set(store.config)
    client, retries = dict(store.client_options or {}), dict(store.retry_config or {})
    known = {"allow_http": client.get("allow_http"), "timeout": f"{settings.request_timeout or 3600}s"}
    return (
        told <= _WHERE | _WHO | _HOW
        and client.items() <= known.items()
        and retries.get("max_retries", settings.retries) == settings.retries
        and not any(map(_UNSEEN.fullmatch, os.environ))
        and (not _is_anonymous(store) or _is_plain(told))
    )


def _is_plain(told: set[str]) -> bool:
    """Whether all is known of where the objects lie that everybody may read."""
    elsewhere = any(name.upper().startswith("AWS_ENDPOINT") for name in os.environ)
    return "virtual_hosted_style_request" not in told and ("endpoint" in told or not elsewhere)


def _is_plain_to_write(store: Any) -> bool:
    """Whether an object is stored by its bytes alone: neither hashed nor encrypted in a way that was asked for."""
    return store.config.get("unsigned_payload") == "true" and not (
        "checksum_algorithm" in store.config or any(map(_WRITTEN.fullmatch, os.environ))
    )


def _is_anonymous(store: Any) -> bool:
    return bool(store.config.get("skip_signature") == "true")


def _key_in(query: str) -> str:
    """The access key that a URL was signed with."""
    return parse_qs(query).get("X-Amz-Credential", [""])[0].partition("/")[0]


def _signed(store: Any, method: Any, path: str) -> str:
    import obstore

    return str(obstore.sign(store, method, path, _HOLDS))


async def _renewed(store: Any) -> str:
    """A signed URL, for which obstore may have had to ask some service for keys."""
    import obstore

    return str(await obstore.sign_async(store, "GET", "x", _HOLDS))


def _public(store: Any, method: str, path: str) -> str:
    """Where an object lies that everybody may read, as obstore asks for it."""
    told = store.config
    region = told.get("region") or told.get("default_region") or "us-east-1"
    endpoint = told.get("endpoint") or f"https://s3.{region}.amazonaws.com"
    below = f"{store.prefix}/" if store.prefix else ""
    return f"{endpoint.rstrip('/')}/{told['bucket']}/{quote(below + path)}"
