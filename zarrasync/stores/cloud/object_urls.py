"""By which URLs the objects of a bucket are asked for: such as obstore signs, and such as need no signature.

What obstore was told, and what it finds in the environment without showing it, says whether a URL is all that a request
needs. Where it is not, obstore has to make the requests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit

from zarrasync.config import Config

__all__ = ["Service", "Way", "way_to"]

_HOLDS = timedelta(minutes=15)
"""As long as a service believes a request that is signed in its head."""

Sign: TypeAlias = Callable[[str, Sequence[str]], Awaitable[list[str]]]


class Service(NamedTuple):
    """What a kind of service says and wants to hear beside a URL.

    Attributes:
        version: The header that tells an object's version.
        headers: Sent with each request.
        put: Lines of the head of a request that stores something.
        suffixes: Whether it knows ranges that are counted from the end.
    """

    version: str = "etag"
    headers: tuple[tuple[str, str], ...] = ()
    put: str = ""
    suffixes: bool = True


class Way(NamedTuple):
    """How to ask for a store's objects without it.

    Attributes:
        service: What is asked.
        sign: Makes the URLs of a method and objects' paths; raises what obstore does that finds no keys.
        methods: What may be asked for so.
    """

    service: Service
    sign: Sign
    methods: frozenset[str]


READ, _BOTH = frozenset({"GET"}), frozenset({"GET", "PUT"})


async def way_to(store: Any, settings: Config) -> Way | None:
    """How to ask for the objects of an obstore store; ``None`` where obstore has to.

    Raises:
        Exception: Of obstore's, if it finds no keys.
    """
    find = _WAYS.get(type(store).__name__)
    if find is None or not settings.retries:
        return None
    client, retries = dict(store.client_options or {}), dict(store.retry_config or {})
    known = {"allow_http": client.get("allow_http"), "timeout": f"{settings.request_timeout or 3600:.6f}s"}
    if not client.items() <= known.items() or retries.get("max_retries", settings.retries) != settings.retries:
        return None  # what was said of requests holds for obstore's only
    if store.config.get("skip_signature", "false") not in ("true", "false"):  # obstore knows other words
        return None
    return await find(store)


# ---------------------------------------------------------------------- S3

_S3 = Service()
_S3_WHERE = frozenset({"bucket", "region", "default_region", "endpoint", "virtual_hosted_style_request"})
_S3_WHO = frozenset(
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
_S3_HOW = frozenset({"unsigned_payload", "conditional_put", "disable_tagging", "checksum_algorithm"})
"""Settings of obstore's: where objects lie, who asks, how to write."""
_S3_UNSEEN = re.compile(
    "AWS_(SKIP_SIGNATURE|S3_EXPRESS|REQUEST_PAYER|SSE_CUSTOMER_.*|VIRTUAL_HOSTED_.*)", re.IGNORECASE
)
"""Variables that obstore reads without showing them, and that change what is to be sent."""
_S3_WRITTEN = re.compile("AWS_(SERVER_SIDE_ENCRYPTION|SSE_.*|CHECKSUM_ALGORITHM)", re.IGNORECASE)
"""The same, where something is stored."""


async def _s3(store: Any) -> Way | None:
    told = set(store.config)
    if not told <= _S3_WHERE | _S3_WHO | _S3_HOW or _any_variable(_S3_UNSEEN):
        return None
    if _is_anonymous(store):
        elsewhere = any(name.upper().startswith("AWS_ENDPOINT") for name in os.environ)
        if "virtual_hosted_style_request" in told or (elsewhere and "endpoint" not in told):
            return None
        region = store.config.get("region") or store.config.get("default_region") or "us-east-1"
        return Way(_S3, _unsigned(store, f"https://s3.{region}.amazonaws.com"), READ)
    # Objects are stored by their bytes alone if these are neither hashed nor encrypted in a way that was asked for.
    hashed = store.config.get("unsigned_payload") != "true" or "checksum_algorithm" in told
    methods = READ if hashed or _any_variable(_S3_WRITTEN) else _BOTH
    if store.credential_provider is not None:
        return Way(_S3, partial(_renewing, store), methods)
    if "access_key_id" not in told:
        (url,) = await _renewing(store, "GET", ["x"])
        key = parse_qs(urlsplit(url).query).get("X-Amz-Credential", [""])[0].partition("/")[0]
        if key != os.environ.get("AWS_ACCESS_KEY_ID"):
            return Way(_S3, partial(_renewing, store), methods)
    return Way(_S3, partial(_at_once, store), methods)


# ---------------------------------------------------------------------- Google

_GOOGLE = Service(version="x-goog-generation")
_GOOGLE_PUBLIC = frozenset({"bucket", "base_url", "skip_signature"})
_GOOGLE_UNSEEN = re.compile("GOOGLE_(BASE_URL|SKIP_SIGNATURE|PROXY_.*)", re.IGNORECASE)


async def _google(store: Any) -> Way | None:
    """Of what everybody may read: to sign a URL takes obstore a millisecond."""
    if not set(store.config) <= _GOOGLE_PUBLIC or not _is_anonymous(store) or _any_variable(_GOOGLE_UNSEEN):
        return None
    return Way(_GOOGLE, _unsigned(store, "https://storage.googleapis.com"), READ)


# ---------------------------------------------------------------------- Azure

_AZURE = Service(
    headers=(("x-ms-version", "2023-11-03"),),  # as obstore asks
    put="x-ms-blob-type: BlockBlob\r\n",
    suffixes=False,
)
_AZURE_KNOWN = frozenset({"container_name", "account_name", "account_key", "sas_key", "skip_signature", "endpoint"})
_AZURE_UNSEEN = re.compile(
    "AZURE_(STORAGE_)?(.*ENDPOINT|USE_.*|SKIP_SIGNATURE|SAS_.*|TOKEN|BEARER_TOKEN|.*PROXY.*|CONTAINER_NAME|CLIENT_.*|FEDERATED_.*)",
    re.IGNORECASE,
)


async def _azure(store: Any) -> Way | None:
    told = store.config
    if not set(told) <= _AZURE_KNOWN or _any_variable(_AZURE_UNSEEN) or store.credential_provider is not None:
        return None
    account = told.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        return None
    usual = f"https://{account}.blob.core.windows.net"
    if _is_anonymous(store):
        return Way(_AZURE, _unsigned(store, usual), READ)
    if "account_key" in told or os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"):
        return Way(_AZURE, partial(_at_once, store), _BOTH)
    if "sas_key" in told:
        return Way(_AZURE, _unsigned(store, usual, _query(told["sas_key"])), _BOTH)
    return None


def _query(signature: str) -> str:
    """A shared access signature as it stands in a URL, from one with or without escapes."""
    pairs = (pair.partition("=") for pair in signature.lstrip("?").split("&") if pair)
    return "?" + "&".join(f"{name}={quote(unquote(value), safe='')}" for name, _, value in pairs)


_WAYS: dict[str, Callable[[Any], Awaitable[Way | None]]] = {"S3Store": _s3, "GCSStore": _google, "AzureStore": _azure}

# ---------------------------------------------------------------------- all of them


def _any_variable(names: re.Pattern[str]) -> bool:
    return any(map(names.fullmatch, os.environ))


def _is_anonymous(store: Any) -> bool:
    return bool(store.config.get("skip_signature") == "true")


async def _at_once(store: Any, method: Any, paths: Sequence[str]) -> list[str]:
    """Signed by keys that are known."""
    import obstore

    return list(obstore.sign(store, method, list(paths), _HOLDS))


async def _renewing(store: Any, method: Any, paths: Sequence[str]) -> list[str]:
    """Signed by keys that obstore may have to ask for, which the event loop must not wait for."""
    import obstore

    return list(await obstore.sign_async(store, method, list(paths), _HOLDS))


def _unsigned(store: Any, usual: str, query: str = "") -> Sign:
    """Where objects lie, as obstore asks for them: at the usual place if none was told."""
    told = store.config
    endpoint = (told.get("endpoint") or told.get("base_url") or usual).rstrip("/")
    bucket = told.get("bucket") or told["container_name"]
    below = f"{store.prefix}/" if store.prefix else ""

    async def sign(method: str, paths: Sequence[str]) -> list[str]:
        return [f"{endpoint}/{bucket}/{quote(below + path)}{query}" for path in paths]

    return sign
