"""Requests for single objects of S3, Azure and Google: by presigned URLs and the lean HTTP client, or by obstore.

obstore passes each response to the event loop from one of its threads, which takes as much CPU time as the rest of a
request. It is used with proxies, with settings that change requests, and after rejected requests.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit

from zarrasync._concurrency.limiter import AdaptiveLimiter
from zarrasync._util.redact import redact
from zarrasync.config import Config
from zarrasync.stores.cloud.buckets import kind_of, region_of
from zarrasync.stores.errors import concerns_key
from zarrasync.stores.http.connection import pool_of
from zarrasync.stores.http.responses import Response, UnsupportedResponse, parse_value, raise_if_transient, range_header
from zarrasync.stores.http.session import Client, supports
from zarrasync.stores.remote import WRITE_MARK, CurrentValue, TransientError, connection_failure
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
        client = Client(await pool_of(origin), headers, decodes=False, limiter=limiter)
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


# ------------------------------------------------------------------ URLs


_EXPIRY = timedelta(minutes=15)
"""How long presigned URLs are valid; services accept signed headers for as long."""

Sign: TypeAlias = Callable[[str, Sequence[str]], Awaitable[list[str]]]


class Service(NamedTuple):
    """What a service requires besides a URL.

    Attributes:
        version_header: Response header with the version of an object.
        headers: Sent with each request.
        put_headers: Header lines of requests that store an object, each ending in CRLF.
        suffix_ranges: Whether byte ranges can count from the end.
    """

    version_header: str = "etag"
    headers: tuple[tuple[str, str], ...] = ()
    put_headers: str = ""
    suffix_ranges: bool = True


class UrlAccess(NamedTuple):
    """How to request objects of a store by URLs.

    Attributes:
        service: The service.
        sign: Makes the URLs for a method and paths of objects. Raises obstore's errors if credentials are missing.
        methods: The HTTP methods that work.
    """

    service: Service
    sign: Sign
    methods: frozenset[str]


_READ, _READ_WRITE = frozenset({"GET"}), frozenset({"GET", "PUT"})


async def url_access(store: Any, settings: Config) -> UrlAccess | None:
    """Return how to request objects of an obstore store by URLs; ``None`` if obstore must make the requests.

    Raises:
        Exception: One of obstore's, if credentials are missing.
    """
    access = _SERVICES.get(type(store).__name__)
    if access is None or not settings.retries:
        return None
    client_options, retries = dict(store.client_options or {}), dict(store.retry_config or {})
    known_options = {
        "allow_http": client_options.get("allow_http"),
        "timeout": f"{settings.request_timeout or 3600:.6f}s",
    }
    if not client_options.items() <= known_options.items():
        return None  # options that only obstore's client implements
    if retries.get("max_retries", settings.retries) != settings.retries:
        return None
    if store.config.get("skip_signature", "false") not in ("true", "false"):  # obstore accepts other spellings
        return None
    return await access(store)


# ---------------------------------------------------------------------- S3

_S3 = Service()
_S3_LOCATION = frozenset({"bucket", "region", "default_region", "endpoint", "virtual_hosted_style_request"})
_S3_CREDENTIALS = frozenset(
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
_S3_WRITING = frozenset({"unsigned_payload", "conditional_put", "disable_tagging", "checksum_algorithm"})
_S3_HIDDEN_VARIABLES = re.compile(
    "AWS_(SKIP_SIGNATURE|S3_EXPRESS|REQUEST_PAYER|SSE_CUSTOMER_.*|VIRTUAL_HOSTED_.*)", re.IGNORECASE
)
"""Environment variables that obstore reads without reporting them, and that change requests."""
_S3_HIDDEN_WRITE_VARIABLES = re.compile("AWS_(SERVER_SIDE_ENCRYPTION|SSE_.*|CHECKSUM_ALGORITHM)", re.IGNORECASE)
"""The same for requests that store an object."""


async def _s3_access(store: Any) -> UrlAccess | None:
    config = store.config
    if not set(config) <= _S3_LOCATION | _S3_CREDENTIALS | _S3_WRITING or _has_variable(_S3_HIDDEN_VARIABLES):
        return None
    if is_anonymous(store):
        endpoint_in_environment = any(name.upper().startswith("AWS_ENDPOINT") for name in os.environ)
        if "virtual_hosted_style_request" in config or (endpoint_in_environment and "endpoint" not in config):
            return None
        return UrlAccess(_S3, _unsigned(store, f"https://s3.{region_of(store)}.amazonaws.com"), _READ)
    # A PUT by URL sends the bytes alone, without the hash or encryption that may be configured.
    hashed = config.get("unsigned_payload") != "true" or "checksum_algorithm" in config
    methods = _READ if hashed or _has_variable(_S3_HIDDEN_WRITE_VARIABLES) else _READ_WRITE
    if store.credential_provider is not None:
        return UrlAccess(_S3, partial(_sign_async, store), methods)
    if "access_key_id" not in config:
        (url,) = await _sign_async(store, "GET", ["x"])
        key = parse_qs(urlsplit(url).query).get("X-Amz-Credential", [""])[0].partition("/")[0]
        if key != os.environ.get("AWS_ACCESS_KEY_ID"):
            return UrlAccess(_S3, partial(_sign_async, store), methods)
    return UrlAccess(_S3, partial(_sign, store), methods)


# ---------------------------------------------------------------------- Google

_GCS = Service(version_header="x-goog-generation")
_GCS_PUBLIC = frozenset({"bucket", "base_url", "skip_signature"})
_GCS_HIDDEN_VARIABLES = re.compile("GOOGLE_(BASE_URL|SKIP_SIGNATURE|PROXY_.*)", re.IGNORECASE)


async def _gcs_access(store: Any) -> UrlAccess | None:
    """Return the access to public objects. For others obstore takes a millisecond to sign a URL."""
    if not set(store.config) <= _GCS_PUBLIC or not is_anonymous(store) or _has_variable(_GCS_HIDDEN_VARIABLES):
        return None
    return UrlAccess(_GCS, _unsigned(store, "https://storage.googleapis.com"), _READ)


# ---------------------------------------------------------------------- Azure

_AZURE = Service(
    headers=(("x-ms-version", "2023-11-03"),),  # as obstore sends
    put_headers="x-ms-blob-type: BlockBlob\r\n",
    suffix_ranges=False,
)
_AZURE_SETTINGS = frozenset({"container_name", "account_name", "account_key", "sas_key", "skip_signature", "endpoint"})
_AZURE_HIDDEN_VARIABLES = re.compile(
    "AZURE_(STORAGE_)?(.*ENDPOINT|USE_.*|SKIP_SIGNATURE|SAS_.*|TOKEN|BEARER_TOKEN|.*PROXY.*|CONTAINER_NAME|CLIENT_.*|FEDERATED_.*)",
    re.IGNORECASE,
)


async def _azure_access(store: Any) -> UrlAccess | None:
    config = store.config
    if not set(config) <= _AZURE_SETTINGS or _has_variable(_AZURE_HIDDEN_VARIABLES):
        return None
    account = config.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account or store.credential_provider is not None:
        return None
    endpoint = f"https://{account}.blob.core.windows.net"
    if is_anonymous(store):
        return UrlAccess(_AZURE, _unsigned(store, endpoint), _READ)
    if "account_key" in config or os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"):
        return UrlAccess(_AZURE, partial(_sign, store), _READ_WRITE)
    if "sas_key" in config:
        return UrlAccess(_AZURE, _unsigned(store, endpoint, _escape_signature(config["sas_key"])), _READ_WRITE)
    return None


def _escape_signature(signature: str) -> str:
    """Return a shared access signature as a query, from one with or without escapes."""
    pairs = (pair.partition("=") for pair in signature.lstrip("?").split("&") if pair)
    return "?" + "&".join(f"{name}={quote(unquote(value), safe='')}" for name, _, value in pairs)


_SERVICES: dict[str, Callable[[Any], Awaitable[UrlAccess | None]]] = {
    "S3Store": _s3_access,
    "GCSStore": _gcs_access,
    "AzureStore": _azure_access,
}

# ---------------------------------------------------------------------- all services


def _has_variable(names: re.Pattern[str]) -> bool:
    return any(map(names.fullmatch, os.environ))


def is_anonymous(store: Any) -> bool:
    """Return whether requests of an obstore store have no credentials."""
    return bool(store.config.get("skip_signature") == "true")


async def _sign(store: Any, method: Any, paths: Sequence[str]) -> list[str]:
    """Sign with keys that obstore has."""
    import obstore

    return list(obstore.sign(store, method, list(paths), _EXPIRY))


async def _sign_async(store: Any, method: Any, paths: Sequence[str]) -> list[str]:
    """Sign with keys that obstore may have to request, without blocking the event loop."""
    import obstore

    return list(await obstore.sign_async(store, method, list(paths), _EXPIRY))


def _unsigned(store: Any, default_endpoint: str, query: str = "") -> Sign:
    """Return a function that makes the URLs which obstore would request, without signatures."""
    config = store.config
    endpoint = (config.get("endpoint") or config.get("base_url") or default_endpoint).rstrip("/")
    bucket = config.get("bucket") or config["container_name"]
    prefix = f"{store.prefix}/" if store.prefix else ""

    async def sign(method: str, paths: Sequence[str]) -> list[str]:
        return [f"{endpoint}/{bucket}/{quote(prefix + path)}{query}" for path in paths]

    return sign


# ---------------------------------------------------------------------- requests by obstore


def version_field(store: Any) -> str:
    """Return the name that obstore gives the version which the service compares; Google compares generation numbers."""
    return "version" if kind_of(store) == "GCSStore" else "e_tag"


async def read(store: Any, path: str, request: Request, versions: bool) -> Value:
    """Return an object or a byte range of it.

    Args:
        store: An obstore store.
        path: The path of the object in it.
        request: The byte range.
        versions: Whether version and size must be returned.

    Raises:
        FileNotFoundError: If the object does not exist.
        Exception: One of obstore's, if it cannot be read.
    """
    import obstore

    if request.suffix and kind_of(store) == "AzureStore":  # without byte ranges from the end
        meta = await obstore.head_async(store, path)
        count = min(request.length or 0, meta["size"])
        request = request._replace(start=meta["size"] - count, length=count, suffix=False)
    start, length = request.start, request.length
    try:
        if not request.suffix and length is not None and length > 0 and not versions:
            return Value(memoryview(await obstore.get_range_async(store, path, start=start, length=length)))
        options: Any = {}
        if request.suffix:
            options["range"] = {"suffix": max(length or 0, 1)}
        elif length is not None:
            options["range"] = (start, start + max(length, 1))
        elif start:
            options["range"] = {"offset": start}
        response = await obstore.get_async(store, path, options=options)
        if not options:
            request.check_size(response.meta["size"])
        data = memoryview(await response.bytes_async())
    except FileNotFoundError:
        raise
    except Exception as error:
        return await _past_end(store, path, request, error)
    meta = response.meta
    if length is not None:
        data = data[len(data) - min(length, len(data)) :] if request.suffix else data[:length]
    return Value(data, meta.get(version_field(store)), meta["size"])


async def _past_end(store: Any, path: str, request: Request, error: Exception) -> Value:
    """Return no bytes if a byte range is past the end, which obstore does not distinguish from other failures."""
    import obstore

    if not request.suffix and not request.start and request.length is None:
        raise error
    meta = await obstore.head_async(store, path)
    size = meta["size"]
    if request.start >= size or size == 0:
        return Value(b"", meta.get(version_field(store)), size)
    raise error


async def look_up(store: Any, path: str) -> CurrentValue:
    """Return the version of an object, and the mark of the write that stored it."""
    import obstore

    response = await obstore.get_async(store, path, options={"range": (0, 1)})
    attributes: Mapping[str, Any] = response.attributes
    return CurrentValue(response.meta.get(version_field(store)), attributes.get(WRITE_MARK))
