"""Storage options as fsspec's filesystems take them: in obstore's words, and those that nobody takes."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from zarrasync.stores.base import from_environment
from zarrasync.stores.cloud.aws_credentials import read_profile
from zarrasync.stores.cloud.gcs_credentials import RenewedToken

__all__ = ["ENDPOINTS", "KEYS", "PROVIDER", "SERVICES", "check_names", "same_endpoint", "translate"]

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
SERVICES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""The service of a protocol, after which the extra is called that its filesystem takes."""
KEYS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "gcs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "azure": ("AZURE_STORAGE_ACCOUNT_NAME",),
}
"""Variables of the environment that say who asks a service, if nothing else does."""
_S3 = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint",
    "anon": "aws_skip_signature",
    "region_name": "aws_region",
    "requester_pays": "aws_request_payer",
    "profile": "profile",
}
_AZURE = {
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
    "tenant_id": "azure_storage_tenant_id",
    "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
    "anon": "azure_skip_signature",
}
_GCS = {"endpoint_url": "google_base_url"}
_NAMES = {"s3": _S3, "azure": _AZURE, "gcs": _GCS}
_OWN = ("aws_", "google_", "azure_")
_ENDPOINT = ("aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3")
PROVIDER = "credential_provider"
"""What obstore asks for keys, in its own words."""


def same_endpoint(endpoint: str | None) -> str:
    """An endpoint in a form that is the same for each way to write it."""
    parts = urlsplit((endpoint or "").rstrip("/"))
    if not parts.hostname:
        return endpoint or ""
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def translate(url: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fsspec's storage options as obstore's settings; ``None`` if obstore does not know one, or what the URL says."""
    parts = urlsplit(url)
    service = SERVICES.get(parts.scheme)
    if service is None or "::" in url or "@" in parts.netloc or parts.query or parts.fragment or "//" in parts.path:
        return None
    if not parts.netloc:
        raise ValueError(f"{url!r} names no bucket")
    names, found = _NAMES[service], dict[str, Any]()
    client = dict(options.get("client_kwargs") or {})
    given = {**{name: value for name, value in options.items() if name != "client_kwargs"}, **client}
    if service == "gcs":
        _add_token(found, given)
    for name, value in given.items():
        if value is None or name in ("use_listings_cache", "asynchronous"):
            continue
        if service == "azure" and name == "connection_string":
            known = _connection(str(value))
            if known is None:
                return None
            found.update(known)
            continue
        if name in names:
            found[names[name]] = str(value).lower() if isinstance(value, bool) else str(value)
        elif name.startswith(_OWN):
            found[name] = value
        elif name == "client_options":
            found[name] = dict(value)
        elif name == PROVIDER:
            found[name] = value
        else:
            return None
    if service == "s3":
        _add_profile(found, str(found.pop("profile", "")))
    told = (found.get(name) for name in (*_ENDPOINT, "azure_endpoint", "google_base_url"))
    endpoint = str(next((one for one in told if one is not None), ""))
    if service == "gcs" and not endpoint and os.environ.get("STORAGE_EMULATOR_HOST"):
        return None  # emulators speak the JSON interface, as gcsfs does
    if endpoint and "://" not in endpoint:
        raise ValueError(f"the endpoint {endpoint!r} has no scheme: 'https://{endpoint}', or 'http://…'")
    if endpoint.startswith("http://"):
        found["client_options"] = {"allow_http": True, **found.get("client_options", {})}
    if service == "s3":
        found.setdefault(
            "aws_region", os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        )
        if not endpoint.startswith("http://") and "AWS_UNSIGNED_PAYLOAD" not in os.environ:
            # TLS protects what is sent. To hash it for the signature, too, which botocore does without TLS only, costs
            # client and server about a second for each 1.5 GB.
            found.setdefault("aws_unsigned_payload", "true")
    return found


def _add_token(found: dict[str, Any], given: dict[str, Any]) -> None:
    """Add to settings for Google what gcsfs's options say of credentials, which are taken from these."""
    token = given.pop("token", None)
    if token == "anon":  # noqa: S105  # it says that there is none
        found["google_skip_signature"] = "true"
    elif token is not None:
        found[PROVIDER] = RenewedToken(token, given.pop("access", "full_control"), given.pop("project", None))


_OWN_KEYS = re.compile("access_key|session_token|credential|web_identity")
_ELSEWHERE = re.compile("AWS_(ACCESS_KEY_ID|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_.*)")
"""What comes before keys in files: parts of the names of settings, and variables."""


def _add_profile(found: dict[str, Any], name: str) -> None:
    """Add to settings for S3 what files say of a profile, of the user's if none is named, and the environment of the place."""
    profile, anonymous = read_profile(name), found.get("aws_skip_signature") == "true"
    told = any(map(_OWN_KEYS.search, found)) or (not name and any(map(_ELSEWHERE.fullmatch, os.environ)))
    if not anonymous and not told:
        renewed = profile.renewed
        found.update(profile.keys if renewed is None else {PROVIDER: renewed})
    region, endpoint = profile.settings.get("region"), profile.settings.get("endpoint_url")
    if region and (name or not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys()):
        found.setdefault("aws_region", region)
    around = from_environment(ENDPOINTS)
    endpoint = (endpoint or around) if name else (around or endpoint)
    if endpoint and found.keys().isdisjoint(_ENDPOINT):
        found["aws_endpoint"] = endpoint


_CONNECTION = {
    "accountname": "azure_storage_account_name",
    "accountkey": "azure_storage_account_key",
    "sharedaccesssignature": "azure_storage_sas_key",
    "blobendpoint": "azure_endpoint",
}


def _connection(text: str) -> dict[str, str] | None:
    """The settings in a connection string of Azure's; ``None`` if it says what has no counterpart."""
    parts = {k.strip().lower(): v for k, _, v in (part.partition("=") for part in text.split(";")) if k.strip()}
    parts.pop("defaultendpointsprotocol", None)
    if parts.pop("endpointsuffix", "core.windows.net") != "core.windows.net" or set(parts) - set(_CONNECTION):
        return None
    return {_CONNECTION[name]: value for name, value in parts.items()}


def check_names(kind: type, options: Iterable[str]) -> None:
    """Complain of options that a filesystem does not have but for a letter or so: it would take them without a word.

    Raises:
        TypeError: If there is one.
    """
    made = [vars(base)["__init__"] for base in kind.__mro__[:-1] if "__init__" in vars(base)]
    known = {name for make in made for name in inspect.signature(make).parameters}
    for name in options:
        close = get_close_matches(name, known, 1, 0.85) if name not in known else ()
        if close:
            raise TypeError(f"{kind.__name__} has no option {name!r}; it has {close[0]!r}")
