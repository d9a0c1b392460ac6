"""Repositories of icechunk by URL, with its package: their sessions, places and permissions."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.redact import redact
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores.cloud.storage_options import (
    CREDENTIAL_PROVIDER,
    CREDENTIAL_VARIABLES,
    SERVICES,
    environment_variable,
    to_obstore,
)
from zarrasync.stores.icechunk.sessions import reason
from zarrasync.stores.locations import Location


@dataclass
class Repository:
    """A session of a repository with zarr-python's interface, which opens it on first use. Copies read the same snapshot.

    Attributes:
        url: The URL of the repository, for messages.
        storage: The place and the permissions.
        version: The argument of ``readonly_session``.
    """

    url: str
    storage: Storage
    version: dict[str, str]
    store: Any = None
    supports_writes = False
    supports_listing = True
    supports_consolidated_metadata = False

    @property
    def _is_open(self) -> bool:
        return self.store is not None

    async def _open(self) -> None:
        session = await run_in_new_thread(partial(self._session, None, "readonly_session", **self.version))
        if self.store is None:  # another task may have been faster
            self.store, self.version = session.store, {"snapshot_id": session.snapshot_id}

    def begin(self, branch: str) -> tuple[Any, Callable[[], Any] | None]:
        """Return a session that changes a branch, and a function that returns the session to use for writes, if it differs.

        A repository that does not exist is created by this function, with the branch ``main``. Until then, the session
        belongs to an empty repository in memory.

        Raises:
            StoreError: If the repository or the branch cannot be opened.
        """
        import icechunk

        storage = self.storage.make()
        if branch == "main" and not self._exists(storage):
            session = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main")
            return session, partial(self._create, storage)
        return self.writable_session(branch, storage), None

    def writable_session(self, branch: str, storage: Any = None) -> Any:
        """Return a session that changes a branch.

        Args:
            branch: The branch.
            storage: The storage of icechunk, if it was made already.

        Raises:
            StoreError: If the repository or the branch cannot be opened.
        """
        return self._session(storage, "writable_session", branch=branch)

    def _exists(self, storage: Any) -> bool:
        import icechunk

        try:
            return bool(icechunk.Repository.exists(storage))
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot open the icechunk repository {self.url!r}: {reason(error)}") from error

    def _create(self, storage: Any) -> Any:
        """Create the repository, and return a session that changes it."""
        import icechunk

        try:
            return icechunk.Repository.create(storage).writable_session("main")
        except Exception as error:  # of different classes in icechunk 1 and 2
            if self._exists(storage):
                raise WriteConflictError(
                    f"another writer has created the repository {self.url!r} meanwhile; repeat the call", key=""
                ) from error
            raise StoreError(f"cannot create the icechunk repository {self.url!r}: {reason(error)}") from error

    def _session(self, storage: Any, method: str, **version: str) -> Any:
        repository = self.open(storage)
        try:
            return getattr(repository, method)(**version)
        except Exception as error:
            (kind, name), *_ = version.items()
            branches, tags = sorted(repository.list_branches()), sorted(repository.list_tags())
            raise StoreError(
                f"cannot open {kind.removesuffix('_id')} {name!r} of {self.url!r}: {reason(error)}; "
                f"its branches are {branches}, its tags {tags}"
            ) from error

    def open(self, storage: Any = None) -> Any:
        """Return icechunk's object.

        Args:
            storage: The storage of icechunk, if it was made already.

        Raises:
            StoreError: If the repository cannot be opened.
        """
        import icechunk

        try:
            return icechunk.Repository.open(storage or self.storage.make())
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot open the icechunk repository {self.url!r}: {reason(error)}") from error

    def compare(self, begin: str, end: str) -> Any:
        """Return the nodes that differ between two snapshots, in icechunk's form."""
        return self.open().diff(from_snapshot_id=begin, to_snapshot_id=end)

    def properties(self, branch: str, begin: str) -> Iterator[Mapping[str, Any]]:
        """Yield the properties of the commits of a branch after a snapshot, the newest first."""
        for commit in self.open().ancestry(branch=branch):
            if commit.id == begin:
                return
            yield commit.metadata

    def __getattr__(self, name: str) -> Any:
        store = self.__dict__.get("store")
        if store is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(store, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "store": None}


# ------------------------------------------------------------------ places


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
