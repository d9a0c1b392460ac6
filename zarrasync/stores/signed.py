"""Objects through the lean client: of S3 by URLs that obstore signs, and those of S3 and Google that everybody may read.

obstore hands each answer to the event loop from a thread of its own; that takes as much of the processor as all the
rest of a request. What is out of the ordinary is left to it: proxies, settings that change what is sent, refusals.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

from zarrasync.config import Config
from zarrasync.stores.answers import check_passing, range_of, value_of
from zarrasync.stores.base import Request, Value, lacks_bucket
from zarrasync.stores.http1 import Answer, Client, Unfit, suits
from zarrasync.stores.remote import Attempt

__all__ = ["SignedRequests"]

_HOLDS = timedelta(minutes=15)
"""As long as a service believes a request that is signed in its head."""
_ERROR = 2000
"""Bytes of an answer in which a service says what is wrong."""
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
_PUBLIC = frozenset({"bucket", "base_url", "skip_signature"})
"""Settings of Google's stores: where objects lie that everybody may read."""
_HOW = frozenset({"unsigned_payload", "conditional_put", "disable_tagging", "checksum_algorithm"})
"""Settings of obstore's: where objects lie, who asks, how to write."""
_UNSEEN = re.compile("AWS_(SKIP_SIGNATURE|S3_EXPRESS|REQUEST_PAYER|SSE_CUSTOMER_.*|VIRTUAL_HOSTED_.*)", re.IGNORECASE)
"""Variables that obstore reads without showing them, and that change what is to be sent."""
_AROUND_GOOGLE = re.compile("GOOGLE_(BASE_URL|SKIP_SIGNATURE|PROXY_.*)", re.IGNORECASE)
_WRITTEN = re.compile("AWS_(SERVER_SIDE_ENCRYPTION|SSE_.*|CHECKSUM_ALGORITHM)", re.IGNORECASE)
"""The same, where something is stored."""


Sign: TypeAlias = Callable[[str, Sequence[str]], Awaitable[list[str]]]


class SignedRequests:
    """Requests for objects of a bucket, on one event loop.

    Args:
        client: Where the bucket is.
        sign: Makes the URLs to ask for of a method and objects' paths.
        skip: What of a URL is not in the request.
        missing: Statuses that mean that there is no such object.
        methods: What may be asked for so.
        version: The header that tells an object's version.
    """

    def __init__(
        self, client: Client, sign: Sign, skip: int, missing: frozenset[int], methods: set[str], version: str
    ) -> None:
        self._client, self._sign, self._skip = client, sign, skip
        self._missing, self._methods, self._version = missing, methods, version

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
        told = "access_key_id" in store.config and not provided
        sign: Sign = partial(_public if anonymous else _at_once if told else _renewing, store)
        (url,) = await sign("GET", ["x"])
        parts, proxies = urlsplit(url), getproxies()
        if (parts.scheme != "https" and not _allows_http(store)) or not suits(url, _HEADERS):
            return None
        if parts.scheme in proxies or "all" in proxies:
            return None
        if not (anonymous or provided) and _key_in(parts.query) == os.environ.get("AWS_ACCESS_KEY_ID"):
            sign = partial(_at_once, store)
        where = f"{parts.scheme}://{parts.netloc}"
        client = await Client.make(where, _HEADERS, 0)  # what S3 calls compressed is as it was stored
        methods = {"GET"} if anonymous or not _is_plain_to_write(store) else {"GET", "PUT"}
        version = "x-goog-generation" if _is_googles(store) else "etag"
        return cls(client, sign, len(where), missing | {404}, methods, version)

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
        wanted = range_of(request)
        answer = await self._ask("GET", self._client.get(target, f"Range: {wanted}\r\n" if wanted else ""))
        if answer.status in self._missing and not lacks_bucket(bytes(answer.body[:_ERROR])):
            return None
        if answer.status not in (200, 206):
            # An end of a range that lies past the object's is nothing to remember, nor a bucket that may come.
            raise self._unfit("GET", answer, remember=answer.status not in (404, 416))
        return value_of(request, answer, answer.headers.get(self._version))

    async def put(self, target: str, data: bytes) -> str | None:
        """Store an object, whatever is there; returns its version.

        Raises:
            Unfit: If obstore has to ask.
            Attempt: If it failed in a way that may pass.
        """
        answer = await self._ask("PUT", self._client.put(target, data))
        if answer.status != 200:
            raise self._unfit("PUT", answer, remember=True)
        return answer.headers.get(self._version)

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


def _ordinary(store: Any, settings: Config) -> bool:
    """Whether a store needs no more than signed or public URLs, and what was said of requests holds for ours, too."""
    if type(store).__name__ not in ("S3Store", "GCSStore") or not settings.retries:
        return False
    told = set(store.config)
    client, retries = dict(store.client_options or {}), dict(store.retry_config or {})
    known = {"allow_http": client.get("allow_http"), "timeout": f"{settings.request_timeout or 3600}s"}
    usual = client.items() <= known.items() and retries.get("max_retries", settings.retries) == settings.retries
    if _is_googles(store):  # to sign an URL takes it a millisecond
        return usual and told <= _PUBLIC and _is_anonymous(store) and not any(map(_AROUND_GOOGLE.fullmatch, os.environ))
    return (
        told <= _WHERE | _WHO | _HOW
        and usual
        and not any(map(_UNSEEN.fullmatch, os.environ))
        and store.config.get("skip_signature", "false") in ("true", "false")  # obstore knows other words
        and (not _is_anonymous(store) or _is_plain(told))
    )


def _is_googles(store: Any) -> bool:
    return type(store).__name__ == "GCSStore"


def _is_plain(told: set[str]) -> bool:
    """Whether all is known of where the objects lie that everybody may read."""
    elsewhere = any(name.upper().startswith("AWS_ENDPOINT") for name in os.environ)
    return "virtual_hosted_style_request" not in told and ("endpoint" in told or not elsewhere)


def _is_plain_to_write(store: Any) -> bool:
    """Whether an object is stored by its bytes alone: neither hashed nor encrypted in a way that was asked for."""
    return store.config.get("unsigned_payload") == "true" and not (
        "checksum_algorithm" in store.config or any(map(_WRITTEN.fullmatch, os.environ))
    )


def _allows_http(store: Any) -> bool:
    return str((store.client_options or {}).get("allow_http")).lower() == "true"


def _is_anonymous(store: Any) -> bool:
    return bool(store.config.get("skip_signature") == "true")


def _key_in(query: str) -> str:
    """The access key that a URL was signed with."""
    return parse_qs(query).get("X-Amz-Credential", [""])[0].partition("/")[0]


async def _at_once(store: Any, method: Any, paths: Sequence[str]) -> list[str]:
    """Signed by keys that are known."""
    import obstore

    return list(obstore.sign(store, method, list(paths), _HOLDS))


async def _renewing(store: Any, method: Any, paths: Sequence[str]) -> list[str]:
    """Signed by keys that obstore may have to ask for, which the event loop must not wait for."""
    import obstore

    return list(await obstore.sign_async(store, method, list(paths), _HOLDS))


async def _public(store: Any, method: str, paths: Sequence[str]) -> list[str]:
    """Where objects lie that everybody may read, as obstore asks for them."""
    told = store.config
    region = told.get("region") or told.get("default_region") or "us-east-1"
    usual = "https://storage.googleapis.com" if _is_googles(store) else f"https://s3.{region}.amazonaws.com"
    endpoint = told.get("endpoint") or told.get("base_url") or usual
    below = f"{store.prefix}/" if store.prefix else ""
    return [f"{endpoint.rstrip('/')}/{told['bucket']}/{quote(below + path)}" for path in paths]
