"""Storage options: fsspec's options as settings of obstore, and checks for misspelt ones."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from zarrasync._util.advice import most_similar
from zarrasync._util.redact import public_url
from zarrasync.stores.cloud.credentials import RefreshingToken, read_profile

S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
SERVICES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""The service of each protocol, which is also the name of the extra that installs its filesystem."""
CREDENTIAL_VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
    "gcs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "azure": ("AZURE_STORAGE_ACCOUNT_NAME",),
}
"""Environment variables that identify the user of a service if no option does."""
DEFAULT_REGION = "us-east-1"
CREDENTIAL_PROVIDER = "credential_provider"
"""obstore's argument for a callable that returns credentials."""

_S3_NAMES = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint",
    "anon": "aws_skip_signature",
    "region_name": "aws_region",
    "requester_pays": "aws_request_payer",
    "profile": "profile",
}
_AZURE_NAMES = {
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
    "tenant_id": "azure_storage_tenant_id",
    "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
    "anon": "azure_skip_signature",
}
_GCS_NAMES = {"endpoint_url": "google_base_url"}
_NAMES = {"s3": _S3_NAMES, "azure": _AZURE_NAMES, "gcs": _GCS_NAMES}
_OBSTORE_PREFIXES = ("aws_", "google_", "azure_")
_S3_ENDPOINT_SETTINGS = ("aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3")
_ENDPOINT_SETTINGS = (*_S3_ENDPOINT_SETTINGS, "azure_endpoint", "google_base_url")
_IGNORED_OPTIONS = ("use_listings_cache", "asynchronous")

_CREDENTIAL_SETTING = re.compile("access_key|session_token|credential|web_identity")
_CREDENTIAL_SOURCE = re.compile("AWS_(ACCESS_KEY_ID|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_.*)")
"""Parts of the names of settings, and environment variables, that take precedence over keys in files."""

_UNUSED_KEYS = {"aws_access_key_id": "anonymous", "aws_secret_access_key": "anonymous"}
"""Keys for unsigned requests where only one of the keys exists, with which obstore does not open a bucket."""

_CONNECTION_FIELDS = {
    "accountname": "azure_storage_account_name",
    "accountkey": "azure_storage_account_key",
    "sharedaccesssignature": "azure_storage_sas_key",
    "blobendpoint": "azure_endpoint",
}
"""Fields of Azure connection strings, in lower case, and the corresponding settings."""


def normalize_endpoint(endpoint: str | None) -> str:
    """Return an endpoint in a form that is equal for equivalent URLs."""
    parts = urlsplit((endpoint or "").rstrip("/"))
    if not parts.hostname:
        return endpoint or ""
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


def to_obstore(url: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert fsspec's storage options to settings of obstore.

    Args:
        url: The URL of a bucket or of a prefix in it.
        options: Storage options of fsspec's filesystems, or settings of obstore.

    Returns:
        The settings, or ``None`` if obstore has no equivalent of the URL or of an option.

    Raises:
        ValueError: If the URL has no bucket, or an endpoint has no scheme.
    """
    parts = urlsplit(url)
    service = SERVICES.get(parts.scheme)
    if service is None or "::" in url or "@" in parts.netloc or parts.query or parts.fragment or "//" in parts.path:
        return None
    if not parts.netloc:
        raise ValueError(f"{url!r} does not contain a bucket")
    settings = _convert(service, options)
    if settings is None:
        return None
    if service == "s3":
        _add_profile(settings, str(settings.pop("profile", "")))
        if _is_anonymous(settings) and len({*_UNUSED_KEYS} & {*settings, *map(str.lower, os.environ)}) == 1:
            settings.update(_UNUSED_KEYS)
    endpoints = (settings[name] for name in _ENDPOINT_SETTINGS if settings.get(name) is not None)
    endpoint = str(next(endpoints, ""))
    if service == "gcs" and not endpoint and os.environ.get("STORAGE_EMULATOR_HOST"):
        return None  # emulators implement the JSON API, which gcsfs uses
    if endpoint and "://" not in endpoint:
        host = public_url(f"https://{endpoint}").removeprefix("https://")
        raise ValueError(f"the endpoint {host!r} has no scheme; use 'https://{host}' or 'http://…'")
    if endpoint.startswith("http://"):
        settings["client_options"] = {"allow_http": True, **settings.get("client_options", {})}
    if service == "s3":
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
        settings.setdefault("aws_region", region)
        if not endpoint.startswith("http://") and "AWS_UNSIGNED_PAYLOAD" not in os.environ:
            # TLS protects the payload. Hashing it for the signature as well, which botocore does only without TLS,
            # costs client and server about a second per 1.5 GB.
            settings.setdefault("aws_unsigned_payload", "true")
    return settings


def _convert(service: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings that correspond to options; ``None`` if one has no equivalent."""
    names, settings = _NAMES[service], dict[str, Any]()
    flat = {name: value for name, value in options.items() if name != "client_kwargs"}
    flat.update(options.get("client_kwargs") or {})
    if service == "gcs":
        _move_token(flat, settings)
    for name, value in flat.items():
        if value is None or name in _IGNORED_OPTIONS:
            continue
        if service == "azure" and name == "connection_string":
            connection = _parse_connection_string(str(value))
            if connection is None:
                return None
            settings.update(connection)
        elif name in names:
            settings[names[name]] = str(value).lower() if isinstance(value, bool) else str(value)
        elif name.startswith(_OBSTORE_PREFIXES) or name == CREDENTIAL_PROVIDER:
            settings[name] = value
        elif name == "client_options":
            settings[name] = dict(value)
        else:
            return None
    return settings


def _move_token(options: dict[str, Any], settings: dict[str, Any]) -> None:
    """Convert gcsfs's options for credentials, and ``anon`` as for the other services."""
    token = options.pop("token", None)
    if options.pop("anon", False) or token == "anon":  # noqa: S105  # it means no credentials
        settings["google_skip_signature"] = "true"
    elif token is not None:
        access, project = options.pop("access", "full_control"), options.pop("project", None)
        settings[CREDENTIAL_PROVIDER] = RefreshingToken(token, access, project)


def _add_profile(settings: dict[str, Any], name: str) -> None:
    """Add keys, region and endpoint of an AWS profile, and the endpoint in the environment, to settings.

    Args:
        settings: Settings for S3.
        name: The profile's name; empty for the default one, over which the environment takes precedence.
    """
    profile, anonymous = read_profile(name), _is_anonymous(settings)
    has_credentials = any(map(_CREDENTIAL_SETTING.search, settings)) or (
        not name and any(map(_CREDENTIAL_SOURCE.fullmatch, os.environ))
    )
    if not anonymous and not has_credentials:
        refreshing = profile.refreshing_keys
        settings.update(profile.keys if refreshing is None else {CREDENTIAL_PROVIDER: refreshing})
    region, endpoint = profile.settings.get("region"), profile.settings.get("endpoint_url")
    if region and (name or not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys()):
        settings.setdefault("aws_region", region)
    from_environment = environment_variable(S3_ENDPOINT_VARIABLES)
    endpoint = (endpoint or from_environment) if name else (from_environment or endpoint)
    if endpoint and settings.keys().isdisjoint(_S3_ENDPOINT_SETTINGS):
        settings["aws_endpoint"] = endpoint


def _is_anonymous(settings: Mapping[str, Any]) -> bool:
    return str(settings.get("aws_skip_signature")).lower() in ("true", "1", "yes", "y", "on")  # as obstore reads it


def _parse_connection_string(connection: str) -> dict[str, str] | None:
    """Return the settings in an Azure connection string; ``None`` if a field has no equivalent."""
    pairs = (field.partition("=") for field in connection.split(";"))
    fields = {name.strip().lower(): value for name, _, value in pairs if name.strip()}
    fields.pop("defaultendpointsprotocol", None)
    if fields.pop("endpointsuffix", "core.windows.net") != "core.windows.net" or set(fields) - set(_CONNECTION_FIELDS):
        return None
    return {_CONNECTION_FIELDS[name]: value for name, value in fields.items()}


def check_names(kind: type, options: Iterable[str]) -> None:
    """Check for misspelt options, which filesystems ignore silently.

    Args:
        kind: The class of the filesystem.
        options: Names of options.

    Raises:
        TypeError: If an unknown name is similar to a known one.
    """
    constructors = [vars(base)["__init__"] for base in kind.__mro__[:-1] if "__init__" in vars(base)]
    parameters = {name for constructor in constructors for name in inspect.signature(constructor).parameters}
    for name in sorted({*options} - parameters):
        if similar := most_similar(name, parameters, 0.85):
            raise TypeError(f"{kind.__name__} has no option {name!r}; it has {similar!r}")


def environment_variable(names: Iterable[str]) -> str:
    """Return the value of the first of some environment variables that is not empty; otherwise an empty string."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
