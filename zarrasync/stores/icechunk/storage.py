"""The arguments of icechunk for the place of a repository, from a location and storage options of this library."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from zarrasync._util.redact import redact
from zarrasync.stores.cloud.storage_options import (
    CREDENTIAL_PROVIDER,
    CREDENTIAL_VARIABLES,
    SERVICES,
    environment_variable,
    to_obstore,
)
from zarrasync.stores.locations import Location

_COMMON_OPTIONS = ("backend", "concurrency", "missing")
"""Storage options that configure stores of this library, and not the service."""
_ENDPOINTS = {"aws_endpoint": "endpoint_url", "aws_endpoint_url": "endpoint_url", "aws_endpoint_url_s3": "endpoint_url"}
_PARAMETERS: dict[str, dict[str, str]] = {
    "s3": {
        **_ENDPOINTS,
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "aws_region": "region",
        "aws_skip_signature": "anonymous",
        "aws_request_payer": "requester_pays",
        "aws_unsigned_payload": "",
        "client_options": "allow_http",
        CREDENTIAL_PROVIDER: "get_credentials",
    },
    "gcs": {"google_skip_signature": "anonymous", "google_service_account": "service_account_file"},
    "azure": {
        "azure_storage_account_name": "account",
        "azure_storage_account_key": "access_key",
        "azure_storage_sas_key": "sas_token",
        "azure_skip_signature": "anonymous",
    },
}
"""icechunk's parameter for each setting of obstore; empty for settings that only matter to writers."""
_IDENTITIES = ("access_key_id", "get_credentials", "anonymous", "service_account_file", "access_key", "sas_token")
_SECRETS = ("secret_access_key", "session_token")
_CREDENTIALS = (*_SECRETS, "access_key_id", "get_credentials", "access_key", "sas_token")
_PLACE = ("path", "base_url", "endpoint_url", "account", "bucket", "container", "prefix")
"""icechunk's parameters that determine which repository is read; the others determine how, and with whose permissions."""


@dataclass(frozen=True)
class Storage:
    """icechunk's storage of a repository, which can be pickled.

    Attributes:
        kind: The name of icechunk's function that makes it.
        arguments: The arguments of that function.
    """

    kind: str
    arguments: Mapping[str, Any] = field(repr=False)  # may contain credentials

    def make(self) -> Any:
        """Return icechunk's object."""
        import icechunk

        return getattr(icechunk, self.kind)(**self.arguments)

    @property
    def place(self) -> tuple[Hashable, ...]:
        """The arguments that determine which repository is read."""
        return (self.kind, *self._selected(lambda name: name in _PLACE))

    @property
    def viewer(self) -> Hashable:
        """The arguments, and the environment variable, that determine with whose permissions it is read."""
        variables = CREDENTIAL_VARIABLES.get(self.kind.removesuffix("_storage"), ())
        return (*self._selected(lambda name: name not in (*_PLACE, *_SECRETS)), environment_variable(variables))

    @property
    def secrets(self) -> list[str]:
        """The names of arguments that are credentials. Pickled sessions of icechunk contain them."""
        return sorted(name for name in self.arguments if name in _CREDENTIALS)

    def _selected(self, is_selected: Callable[[str], bool]) -> list[str]:
        return [f"{name}={value!r}" for name, value in sorted(self.arguments.items()) if is_selected(name)]


def storage_at(location: Location) -> Storage:
    """Return icechunk's storage for a location.

    Raises:
        ValueError: If icechunk cannot read from such a location.
    """
    if location.local_path is not None:
        return Storage("local_filesystem_storage", {"path": os.path.realpath(location.local_path)})
    options = {name: value for name, value in location.storage_options.items() if name not in _COMMON_OPTIONS}
    parts = urlsplit(location.url)
    if parts.scheme in ("http", "https") and not options.keys() - {"headers"}:
        headers = {"headers": dict(options["headers"])} if "headers" in options else {}
        return Storage("http_storage", {"base_url": location.url, **headers})
    service = SERVICES.get(parts.scheme)
    settings = to_obstore(location.url, options)
    if service is None or settings is None:
        raise ValueError(
            f"icechunk cannot read a repository at {redact(location.url)!r}: it reads local directories, s3://, "
            "gs:// and az:// URLs with options of credentials, and https:// URLs with headers"
        )
    arguments = _arguments(service, settings)
    place = {"container" if service == "azure" else "bucket": parts.netloc, "prefix": parts.path.strip("/")}
    return Storage(f"{service}_storage", {**place, **arguments})


def _arguments(service: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return icechunk's arguments for settings of obstore.

    Raises:
        ValueError: If icechunk has no such parameter.
    """
    parameters = _PARAMETERS[service]
    if unknown := sorted(settings.keys() - parameters.keys()):
        raise ValueError(f"the adapter icechunk: has no counterpart of the storage option {unknown[0]!r}")
    arguments: dict[str, Any] = {
        parameters[name]: _literal(value) for name, value in settings.items() if parameters[name]
    }
    if "allow_http" in arguments:
        arguments["allow_http"] = bool(arguments["allow_http"].get("allow_http"))
    if "get_credentials" in arguments:
        arguments["get_credentials"] = _Credentials(arguments["get_credentials"])
    if "endpoint_url" in arguments:
        arguments["force_path_style"] = True  # most services besides Amazon's need it
    if not arguments.keys() & set(_IDENTITIES):
        arguments["from_env"] = True
    return arguments


def _literal(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True)
class _Credentials:
    """Credentials for icechunk from a provider for obstore."""

    provider: Callable[[], Mapping[str, Any]]

    def __call__(self) -> Any:
        import icechunk

        values = self.provider()
        return icechunk.S3StaticCredentials(
            access_key_id=values["access_key_id"],
            secret_access_key=values["secret_access_key"],
            session_token=values.get("token"),
            expires_after=values.get("expires_at"),
        )
