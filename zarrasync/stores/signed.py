"""Objects of S3 through the lean client, by URLs that obstore signs.

obstore hands each answer to the event loop from a thread of its own; that takes as much of the processor as all the
rest of a request. What is out of the ordinary is left to it: other credentials than keys, proxies, refusals.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from zarrasync.config import Config
from zarrasync.stores.answers import check_passing, range_of, value_of
from zarrasync.stores.base import Request, Value
from zarrasync.stores.http1 import Client, Unfit, suits
from zarrasync.stores.remote import Attempt

__all__ = ["SignedReads"]

_HOLDS = timedelta(minutes=15)
"""As long as a service believes a request that is signed in its head."""
_HEADERS = {"User-Agent": "zarrasync", "Accept-Encoding": "identity"}
_WHERE = frozenset({"bucket", "region", "default_region", "endpoint", "virtual_hosted_style_request"})
_WHO = frozenset({"access_key_id", "secret_access_key", "session_token", "skip_signature"})
_HOW = frozenset({"unsigned_payload", "conditional_put", "disable_tagging", "checksum_algorithm"})
"""Settings of obstore's: where objects lie, who asks, how to write."""
_UNSEEN = re.compile("AWS_(SKIP_SIGNATURE|S3_EXPRESS|REQUEST_PAYER|SSE_CUSTOMER_.*|VIRTUAL_HOSTED_.*)", re.IGNORECASE)
"""Variables that obstore reads without showing them, and that change what is to be sent."""


class SignedReads:
    """Requests for objects of a bucket, on one event loop.

    Args:
        client: Where the bucket is.
        sign: Makes the path and query to ask for of an object's path.
        missing: Statuses that mean that there is no such object.

    Attributes:
        refused: Whether an answer was out of the ordinary, so that obstore is to ask from now on.
    """

    def __init__(self, client: Client, sign: Callable[[str], str], missing: frozenset[int]) -> None:
        self._client, self._sign, self._missing = client, sign, missing
        self.refused = False

    @classmethod
    async def make(cls, store: Any, settings: Config, missing: frozenset[int]) -> SignedReads | None:
        """Reads of an obstore store's objects; ``None`` where obstore has to do it."""
        if not _ordinary(store, settings):
            return None
        from urllib.request import getproxies

        sign = partial(_public if _is_anonymous(store) else _signed, store)
        told = _is_anonymous(store) or "access_key_id" in store.config
        try:
            url = sign("x") if told else await asyncio.to_thread(sign, "x")  # it might ask for credentials
        except Exception:  # obstore will say when it is asked for an object
            return None
        parts, proxies = urlsplit(url), getproxies()
        allowed = parts.scheme == "https" or "allow_http" in (store.client_options or {})
        if not allowed or parts.scheme in proxies or "all" in proxies or not suits(url, _HEADERS):
            return None
        if not _is_anonymous(store) and _key_in(parts.query) not in _keys(store):
            return None
        where = f"{parts.scheme}://{parts.netloc}"
        client = await Client.make(where, _HEADERS, 0)  # what S3 calls compressed is as it was stored
        return cls(client, lambda path: sign(path)[len(where) :], missing | {404})

    async def get(self, path: str, request: Request) -> Value | None:
        """What a request asks for of an object.

        Raises:
            Unfit: If obstore has to ask.
            Attempt: If it failed in a way that may pass.
        """
        wanted = range_of(request)
        try:
            target = self._sign(path)
        except Exception as error:  # obstore says more when it is asked for the object
            raise Unfit(str(error)) from error
        try:
            answer = await self._client.get(target, f"Range: {wanted}\r\n" if wanted else "")
        except (Unfit, ssl.SSLCertVerificationError) as error:  # obstore may trust others
            self.refused = True
            raise Unfit(str(error)) from error
        except OSError as error:
            raise Attempt(f"{type(error).__name__}: {error}") from error
        if answer.status in self._missing:
            return None
        check_passing(answer)
        if answer.status not in (200, 206):
            # An end of a range that lies past the object's is nothing to remember.
            self.refused |= answer.status != 416
            raise Unfit(f"{answer.status} {answer.reason}")
        return value_of(request, answer, answer.headers.get("etag"))

    def leave(self) -> None:
        """Use the connections no more."""
        self._client.leave()


def _ordinary(store: Any, settings: Config) -> bool:
    """Whether a store is one of S3 that needs no more than signed URLs, and what was said of requests holds for ours, too."""
    if type(store).__name__ != "S3Store" or store.credential_provider is not None or not settings.retries:
        return False
    told = set(store.config)
    client, retries = dict(store.client_options or {}), dict(store.retry_config or {})
    known = {"allow_http": client.get("allow_http"), "timeout": f"{settings.request_timeout or 3600}s"}
    return (
        told <= _WHERE | _WHO | _HOW
        and client.items() <= known.items()
        and retries.get("max_retries", settings.retries) == settings.retries
        and not any(map(_UNSEEN.fullmatch, os.environ))
        and (_is_plain(told) if _is_anonymous(store) else bool(_keys(store)))
    )


def _is_plain(told: set[str]) -> bool:
    """Whether all is known of where the objects lie that everybody may read."""
    elsewhere = any(name.upper().startswith("AWS_ENDPOINT") for name in os.environ)
    return "virtual_hosted_style_request" not in told and ("endpoint" in told or not elsewhere)


def _is_anonymous(store: Any) -> bool:
    return bool(store.config.get("skip_signature") == "true")


def _keys(store: Any) -> set[str]:
    """The access keys that may have been given to a store; all others are obstore's to renew."""
    return {key for key in (store.config.get("access_key_id"), os.environ.get("AWS_ACCESS_KEY_ID")) if key}


def _key_in(query: str) -> str:
    """The access key that a URL was signed with."""
    return parse_qs(query).get("X-Amz-Credential", [""])[0].partition("/")[0]


def _signed(store: Any, path: str) -> str:
    import obstore

    return str(obstore.sign(store, "GET", path, _HOLDS))


def _public(store: Any, path: str) -> str:
    """Where an object lies that everybody may read, as obstore asks for it."""
    told = store.config
    region = told.get("region") or told.get("default_region") or "us-east-1"
    endpoint = told.get("endpoint") or f"https://s3.{region}.amazonaws.com"
    below = f"{store.prefix}/" if store.prefix else ""
    return f"{endpoint.rstrip('/')}/{told['bucket']}/{quote(below + path)}"
