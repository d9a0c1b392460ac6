"""Buckets: shared obstore stores, one per bucket and settings, their identities, and the region of a bucket of S3.

Each store has a twin without retries for conditional writes, in processes that can use obstore. The region is found if a
service refuses requests for another region. Redirects are not followed: only the name of the region is taken from a response,
and the request is signed again for the same endpoint, or for the endpoint of AWS in this region. So a response cannot direct
credentials to another host.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from zarrasync._concurrency import clock
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.cloud.storage_options import (
    CREDENTIAL_PROVIDER,
    CREDENTIAL_VARIABLES,
    DEFAULT_REGION,
    S3_ENDPOINT_VARIABLES,
    environment_variable,
    normalize_endpoint,
)
from zarrasync.stores.errors import message_of, response_status
from zarrasync.stores.http.responses import UnsupportedResponse

_buckets: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
_latest: deque[Any] = deque(maxlen=1)
"""Kept alive for the next store, as programs open one array after another. More would keep connections open."""


def open_bucket(
    url: str, settings: dict[str, Any], client_options: dict[str, Any], retry_config: dict[str, Any]
) -> Any:
    """Return an obstore store of a whole bucket, the same one for equal settings and environment.

    Making one takes 15 ms, and each has its own connections and credentials. Stores with Google's default
    credentials are not shared, because the files with these credentials may be replaced.

    Args:
        url: The bucket's URL, without a path.
        settings: obstore's settings for the service.
        client_options: obstore's settings for its HTTP client.
        retry_config: obstore's settings for retries.

    Raises:
        ValueError: If obstore rejects the URL or the settings.
    """
    from obstore.store import from_url

    open_url: Any = from_url  # its parameters depend on the URL
    bucket_url = url.replace("s3a://", "s3://").replace("gcs://", "gs://")
    config = {name: value for name, value in settings.items() if name != CREDENTIAL_PROVIDER}
    provider = {CREDENTIAL_PROVIDER: settings[CREDENTIAL_PROVIDER]} if CREDENTIAL_PROVIDER in settings else {}

    def make() -> Any:
        try:
            return open_url(
                bucket_url, config=config, client_options=client_options, retry_config=retry_config, **provider
            )
        except Exception as error:
            raise ValueError(f"{url!r} cannot be opened: {message_of(error)}") from error

    try:
        options = (settings, client_options, retry_config, os.environ)
        identity = (bucket_url, *(frozenset(mapping.items()) for mapping in options))
    except TypeError:  # an unhashable setting, such as headers
        return make()
    if bucket_url.startswith("gs://") and settings.keys().isdisjoint(("google_skip_signature", CREDENTIAL_PROVIDER)):
        return make()
    store = _buckets.get(identity)
    if store is None:
        store = _buckets[identity] = make()
    if region := known_region(store):
        return open_bucket(url, {**settings, "aws_region": region}, client_options, retry_config)
    _latest.append(store)
    return store


class UnretriedTwin:
    """An obstore store with the settings of another one, but without retries.

    If the response to a conditional write is lost, a retry would find the value that the first attempt stored, and
    mistake it for a conflict.

    Attributes:
        original: The other store.
        twin: The store without retries.
    """

    _twins: ClassVar[weakref.WeakValueDictionary[int, UnretriedTwin]] = weakref.WeakValueDictionary()
    _latest: ClassVar[deque[UnretriedTwin]] = deque(maxlen=1)

    def __init__(self, store: Any) -> None:
        self.original = self.twin = store  # kept alive, so that its id is not reused
        if hasattr(store, "__getnewargs_ex__"):  # memory stores have no arguments
            arguments, options = store.__getnewargs_ex__()
            self.twin = type(store)(*arguments, **{**options, "retry_config": {"max_retries": 0}})

    @classmethod
    def of(cls, store: Any) -> UnretriedTwin:
        """Return the twin of a store, which all users of the store share."""
        twin = cls._twins.get(id(store))
        if twin is None:
            twin = cls._twins[id(store)] = cls(store)
        cls._latest.append(twin)
        return twin


_first_process = 0


def is_usable() -> bool:
    """Return whether obstore works in this process. It does not work in a fork of a process that has used it.

    Calling this function counts as use.
    """
    global _first_process
    if not _first_process:
        _first_process = os.getpid()
        atexit.register(_wait_for_foreign_threads)
    return _first_process == os.getpid()


def _wait_for_foreign_threads() -> None:
    """Wait until obstore's threads have left the interpreter.

    A thread that has just delivered a response may wait for the interpreter lock. If the interpreter ends meanwhile, the
    thread is unwound through Rust code, which aborts the process.
    """
    end = clock.monotonic() + 1.0
    while clock.monotonic() < end:
        python_threads = {thread.ident for thread in threading.enumerate()}
        if not set(sys._current_frames()) - python_threads:  # noqa: SLF001  # documented, despite its name
            break
        clock.current().sleep_blocking(0.001)


# ------------------------------------------------------------------ identities


_SERVICES = {"S3Store": "s3", "GCSStore": "gcs", "AzureStore": "azure"}
_LOCATION_SETTINGS = ("bucket", "container_name", "account_name", "endpoint", "base_url", "use_emulator")
_CREDENTIAL_SETTINGS = (
    "access_key_id",
    "account_name",
    "client_id",
    "service_account",
    "skip_signature",
    "sas_key",
)
_LOCATION_VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "S3Store": {"endpoint": S3_ENDPOINT_VARIABLES},
    "AzureStore": {"account_name": ("AZURE_STORAGE_ACCOUNT_NAME",)},
}
"""Environment variables that obstore reads without reporting them, by setting."""


def kind_of(store: Any) -> str:
    """Return the name of the class of an obstore store, such as "S3Store"."""
    return type(store).__name__


def service_of(store: Any) -> tuple[str, ...]:
    """Return the parts that determine which service and bucket a store accesses: class, endpoint, bucket, account."""
    kind = kind_of(store)
    parts = tuple(f"{name}={value}" for name, value in sorted(_location(store).items()))
    if not parts:
        parts = (str(id(store)),) if kind == "MemoryStore" else (repr(store),)
    return (kind, *parts)


def bucket_of(store: Any) -> tuple[str, ...]:
    """Return service, endpoint and bucket, as for fsspec's filesystems; empty for other services."""
    location, service = _location(store), _SERVICES.get(kind_of(store), "")
    if service not in ("s3", "gcs") or "bucket" not in location:
        return ()
    return (service, normalize_endpoint(endpoint_of(store)), location["bucket"])


def endpoint_of(store: Any) -> str:
    """Return the endpoint of an obstore store, from its settings or the environment; empty for the default one."""
    location = _location(store)
    return location.get("endpoint") or location.get("base_url") or ""


def viewer_of(store: Any) -> Hashable:
    """Return the settings, or else the environment variable, that identify the user."""
    config = dict(getattr(store, "config", {}))
    credentials = [f"{name}={config[name]}" for name in _CREDENTIAL_SETTINGS if name in config]
    if (provider := _provider(store)) is not None:
        credentials.append(f"provider={getattr(provider, 'identity', id(provider))!r}")
    if headers := (getattr(store, "client_options", None) or {}).get("default_headers"):
        credentials.append(f"headers={sorted(headers.items())!r}")
    variable = environment_variable(CREDENTIAL_VARIABLES.get(_SERVICES.get(kind_of(store), ""), ()))
    return tuple(credentials) or variable


def is_viewer_lasting(store: Any) -> bool:
    """Return whether the viewer of a store means the same user in other processes, and later."""
    provider = _provider(store)
    return provider is None or bool(getattr(provider, "lasting_identity", False))


def _provider(store: Any) -> Any:
    """Return the callable that provides the credentials of a store; ``None`` if they are settings."""
    return getattr(store, "credential_provider", None)


def _location(store: Any) -> dict[str, str]:
    """Return the settings that determine what a path refers to, in the current environment."""
    config = dict(getattr(store, "config", {}))
    location = {name: str(config[name]) for name in _LOCATION_SETTINGS if name in config}
    for name, variables in _LOCATION_VARIABLES.get(kind_of(store), {}).items():
        location.setdefault(name, environment_variable(variables))
    return {name: value for name, value in location.items() if value}


# ------------------------------------------------------------------ regions of S3


_HEADER = "x-amz-bucket-region"
_REGION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""Names of regions. They become a part of a host name, so nothing else may be in them."""
_STATED = re.compile(
    r"<Code>(?:AuthorizationHeaderMalformed|AuthorizationQueryParametersError|PermanentRedirect|TemporaryRedirect|"
    r"IllegalLocationConstraintException)</Code>.*?(?:<Region>([a-z0-9-]+)</Region>|expecting '([a-z0-9-]+)')",
    re.DOTALL,
)
"""Bodies of responses that contain the region of a bucket."""
_SUSPICIOUS = frozenset({301, 302, 307, 308, 400, 403})
"""Statuses of requests for another region. obstore hides some: it follows redirects of reads without a signature, which
are then refused, and responses to HEAD requests have no body."""
_NO_LOCATION = "redirect without LOCATION"
"""A part of obstore's message for a redirect that it cannot follow."""
_ERROR_BYTES = 10_000
"""Bytes of a message in which the region is searched, after the URL of the request, which may be long."""
_TIMEOUT = 10.0
"""Seconds for the request that asks for the region of a bucket."""

_regions: dict[tuple[str, ...], str] = {}
"""Regions that were found, by bucket. The region of a bucket does not depend on who sends a request."""


def region_of(store: Any) -> str:
    """Return the region for which an obstore store signs requests."""
    config = store.config
    return str(config.get("region") or config.get("default_region") or DEFAULT_REGION)


def known_region(store: Any) -> str:
    """Return the region of a store's bucket if it was found to be another one than the store's; otherwise empty."""
    region = _regions.get(bucket_of(store), "") if kind_of(store) == "S3Store" else ""
    return "" if region and region == region_of(store) else region


def in_region(store: Any, region: str) -> Any:
    """Return an obstore store like another one, for a bucket in a region, and remember the region."""
    _regions[bucket_of(store)] = region
    arguments, options = store.__getnewargs_ex__()
    settings = {name: value for name, value in options["config"].items() if name != "default_region"}
    settings["region"] = region
    if f".{region_of(store)}.amazonaws.com" in (endpoint := endpoint_of(store)):  # one of AWS that serves one region
        settings["endpoint"] = endpoint.replace(f".{region_of(store)}.", f".{region}.")
    return type(store)(*arguments, **{**options, "config": settings})


def may_be_in_another_region(store: Any, failure: Exception) -> bool:
    """Return whether a request may have failed because the bucket of a store lies in another region."""
    if kind_of(store) != "S3Store":
        return False
    if isinstance(failure, UnsupportedResponse):
        return failure.status in _SUSPICIOUS
    return response_status(failure) in _SUSPICIOUS or _NO_LOCATION in str(failure)


def region_in(failure: Exception) -> str:
    """Return the region of the bucket according to a response; empty if it states none."""
    if isinstance(failure, UnsupportedResponse):
        return _stated(failure.headers, failure.body)
    return _stated({}, str(failure).encode())


def _stated(headers: Mapping[str, str], body: Buffer) -> str:
    region = headers.get(_HEADER, "")
    if not region and (match := _STATED.search(bytes(body[:_ERROR_BYTES]).decode(errors="replace"))) is not None:
        region = match[1] or match[2]
    return region if _REGION.fullmatch(region) else ""


async def find_region(store: Any) -> str:
    """Ask the service for the region of a store's bucket, without credentials; empty if it does not respond with one."""
    from urllib.request import getproxies

    import aiohttp

    url = _bucket_url(store)
    proxy = getproxies().get(url.partition(":")[0])
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT)) as session,
            session.head(url, allow_redirects=False, proxy=proxy) as response,
        ):
            return _stated({name.lower(): value for name, value in response.headers.items()}, b"")
    except (aiohttp.ClientError, OSError, ValueError):
        return ""  # the failure that led here is reported


def _bucket_url(store: Any) -> str:
    """Return the URL of a store's bucket."""
    config, endpoint = store.config, endpoint_of(store).rstrip("/")
    bucket = quote(config["bucket"], safe="")
    if not endpoint:
        return f"https://s3.{region_of(store)}.amazonaws.com/{bucket}"
    is_virtual = str(config.get("virtual_hosted_style_request", "")).lower() == "true"  # the endpoint has the bucket
    return endpoint if is_virtual else f"{endpoint}/{bucket}"
