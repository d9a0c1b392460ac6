"""The identity of an obstore store: service and bucket, and with whose permissions it accesses them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from zarrasync.stores.cloud.storage_options import (
    CREDENTIAL_VARIABLES,
    S3_ENDPOINT_VARIABLES,
    environment_variable,
    normalize_endpoint,
)

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
    return provider is None or bool(getattr(provider, "lasting", False))


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
