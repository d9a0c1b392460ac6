"""Kinds of fsspec filesystems by protocol, the service that their paths refer to, and with whose permissions."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from zarrasync.stores.cloud.credentials import token_identity
from zarrasync.stores.cloud.storage_options import (
    CREDENTIAL_VARIABLES,
    SERVICES,
    environment_variable,
    normalize_endpoint,
)

S3 = frozenset({"s3", "s3a"})
GCS = frozenset({"gs", "gcs"})
AZURE = frozenset({"az", "abfs", "abfss"})
WEB = frozenset({"http", "https"})
LOCAL = frozenset({"file", "local", "memory"})
"""Protocols of files on this machine, and of files in the memory of this process."""
CACHES = frozenset({"simplecache", "filecache", "blockcache"})
"""Caches of files in front of another filesystem."""

NETWORK_SERVICES = S3 | GCS | AZURE | WEB | {"memory"}
"""Protocols whose filesystems are equal if their endpoints are; others are compared by their arguments."""
READ_ONLY = WEB | {"reference", "github", "data"}
WITHOUT_SUFFIX_RANGES = AZURE | CACHES
"""Protocols that cannot read the last bytes of a file without its size."""
IMMEDIATE = frozenset({"memory", "file", "local", "zip", "tar", "libarchive", "data", "reference"})
"""Protocols of blocking filesystems that mostly respond without network access."""


_SECRET = re.compile(" *(AccountKey|SharedAccessSignature) *=", re.IGNORECASE)
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3a": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "gcs": ("STORAGE_EMULATOR_HOST",),
}
"""Environment variables in which filesystems look for an endpoint if no option specifies one."""
_CREDENTIAL_OPTIONS = frozenset(
    {
        *("key", "anon", "profile", "account_name", "username", "headers", "auth", "cookies"),
        *("aws_access_key_id", "client_id", "sas_token", "connection_string", "token", "session", "credential"),
    }
)


def service_of(fs: Any, protocol: str) -> tuple[str, str]:
    """Return the service that paths refer to: an endpoint, or one filesystem instance (zip files, references, …)."""
    if protocol not in NETWORK_SERVICES:
        from fsspec.utils import tokenize

        if protocol == "reference":  # several may have equal arguments
            return (protocol, str(fs._fs_token))
        return (protocol, tokenize(type(fs), fs.storage_args, fs.storage_options))  # each thread has its own instance
    options = {**(fs.storage_options.get("client_kwargs") or {}), **fs.storage_options}
    endpoint = options.get("endpoint_url") or environment_variable(_ENDPOINT_VARIABLES.get(protocol, ()))
    parts = [normalize_endpoint(endpoint)]
    if protocol in AZURE:
        connection = str(options.get("connection_string") or "").split(";")
        parts += [getattr(fs, "account_url", ""), *(part for part in connection if not _SECRET.match(part))]
    if protocol in WEB and "params" in options:  # which may choose a version of the files
        parts.append(repr(options["params"]))
    return (SERVICES.get(protocol, protocol), " ".join(map(str, parts)))


def viewer_of(fs: Any, protocol: str) -> Hashable:
    """Return the options, or else the environment variable, that identify the user."""
    credentials = _credentials(fs, protocol)
    variable = environment_variable(CREDENTIAL_VARIABLES.get(SERVICES.get(protocol, ""), ()))
    values = ((name, token_identity(value) if name == "token" else value) for name, value in credentials)
    return tuple(f"{name}={value!r}" for name, value in values) or variable


def is_viewer_lasting(fs: Any, protocol: str) -> bool:
    """Return whether the viewer of a filesystem means the same user in other processes, and later."""
    values = [value for _, value in _credentials(fs, protocol)]
    return all(isinstance(value, str | bytes | bool | Mapping | tuple | None) for value in values)


def _credentials(fs: Any, protocol: str) -> list[tuple[str, Any]]:
    """Return the options that identify the user, by their names."""
    options = {**fs.storage_options, **(fs.storage_options.get("client_kwargs") or {})}
    names = _CREDENTIAL_OPTIONS - ({"token"} if protocol in S3 else set())  # temporary, and belongs to a key
    return [(name, options[name]) for name in sorted(names & options.keys())]
