"""The region of an S3 bucket, which is found if a service refuses requests for another region.

Redirects are not followed: only the name of the region is taken from a response, and the request is signed again for
the same endpoint, or for the endpoint of AWS in this region. So a response cannot direct credentials to another host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from zarrasync.codecs.spec import Buffer
from zarrasync.stores.cloud.identity import bucket_of, endpoint_of, kind_of
from zarrasync.stores.cloud.obstore_reads import response_status
from zarrasync.stores.cloud.storage_options import DEFAULT_REGION
from zarrasync.stores.http.responses import UnsupportedResponse

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
