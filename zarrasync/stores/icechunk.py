"""Repositories of icechunk by URL: reading a branch, tag or snapshot, and transactions in a branch, with its package."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from zarrasync._concurrency.fork import thread_lock
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores.base import Transaction
from zarrasync.stores.cloud.storage_options import CREDENTIAL_PROVIDER, CREDENTIAL_VARIABLES, SERVICES, to_obstore
from zarrasync.stores.errors import redact_queries
from zarrasync.stores.locations import Location
from zarrasync.stores.options import environment_variable
from zarrasync.stores.zarr_python import ZarrPythonStore

__all__ = ["IcechunkStore", "open_repository"]

_VERSION = re.compile(r"(?:@|//)(?:(branch|tag)\.)?([^/]+)(?:/(.*))?", re.DOTALL)
"""A version before the path: ``@branch.main/`` in Neuroglancer, ``//branch.main/`` in the specification of pipelines."""
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
_PLACE = ("path", "base_url", "endpoint_url", "account", "bucket", "container", "prefix")
"""icechunk's parameters that determine which repository is read; the others determine how, and with whose permissions."""


def open_repository(location: Location, path: str) -> Location:
    """Return the location of a path in a version of the repository at a location.

    Args:
        location: The location of the repository.
        path: A version, unless it is the branch ``main``, and the path.

    Raises:
        ImportError: If icechunk is not installed.
        ValueError: If icechunk cannot read from such a location.
    """
    match = _VERSION.fullmatch(path)
    version = {"branch": "main"}
    if match is not None:
        kind, name, path = match[1] or "snapshot_id", unquote(match[2]), match[3] or ""
        version = {kind: name}
    try:
        import icechunk  # noqa: F401  # a missing package is reported when the URL is given
    except ImportError as error:
        raise ImportError(
            f"reading {redact_queries(location.url)!r} requires the icechunk package: pip install icechunk"
        ) from error
    repository = Repository(redact_queries(location.url), _storage(location), version)
    return location.inside(IcechunkStore(repository), path)


@dataclass
class Repository:
    """A session of a repository with zarr-python's interface, which opens it on first use. Copies read the same snapshot.

    Attributes:
        url: The URL of the repository, for messages.
        storage: The place and the permissions.
        version: The argument of ``readonly_session``.
    """

    url: str
    storage: _Storage
    version: dict[str, str]
    store: Any = None
    supports_writes = False
    supports_listing = True
    supports_consolidated_metadata = False

    @property
    def _is_open(self) -> bool:
        return self.store is not None

    async def _open(self) -> None:
        session = await run_in_new_thread(self._open_session)
        if self.store is None:  # another task may have been faster
            self.store, self.version = session.store, {"snapshot_id": session.snapshot_id}

    def _open_session(self) -> Any:
        return self._session(self.storage.make(), "readonly_session", **self.version)

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
        return self._session(storage, "writable_session", branch=branch), None

    def _exists(self, storage: Any) -> bool:
        import icechunk

        try:
            return bool(icechunk.Repository.exists(storage))
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot open the icechunk repository {self.url!r}: {_reason(error)}") from error

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
            raise StoreError(f"cannot create the icechunk repository {self.url!r}: {_reason(error)}") from error

    def _session(self, storage: Any, method: str, **version: str) -> Any:
        import icechunk

        try:
            repository = icechunk.Repository.open(storage)
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot open the icechunk repository {self.url!r}: {_reason(error)}") from error
        try:
            return getattr(repository, method)(**version)
        except Exception as error:
            (kind, name), *_ = version.items()
            branches, tags = sorted(repository.list_branches()), sorted(repository.list_tags())
            raise StoreError(
                f"cannot open {kind.removesuffix('_id')} {name!r} of {self.url!r}: {_reason(error)}; "
                f"its branches are {branches}, its tags {tags}"
            ) from error

    def __getattr__(self, name: str) -> Any:
        store = self.__dict__.get("store")
        if store is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(store, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "store": None}

    # Attributes by which an object is recognized as a store, before it is open.

    def get_partial_values(self, *args: Any, **options: Any) -> Any:
        """Forward to the session's store."""
        return self.store.get_partial_values(*args, **options)

    def list_prefix(self, prefix: str) -> Any:
        """Forward to the session's store."""
        return self.store.list_prefix(prefix)

    def list_dir(self, prefix: str) -> Any:
        """Forward to the session's store."""
        return self.store.list_dir(prefix)


class IcechunkStore(ZarrPythonStore):
    """A version of an icechunk repository, read-only. Changes need a commit: of a transaction, or of a session of icechunk.

    Args:
        repository: The repository and version.
    """

    def __init__(self, repository: Repository) -> None:
        super().__init__(repository)
        self._repository = repository
        self._url, self._storage = repository.url, repository.storage
        ((self._kind, self._name),) = repository.version.items()  # a branch, while it is read at a snapshot
        self.bounded = True

    @property
    def identity(self) -> Hashable:
        return ("icechunk", *self._storage.place, self._kind, self._name)

    @property
    def viewer(self) -> Hashable:
        return self._storage.viewer

    def begin(self) -> Transaction:
        if self._kind != "branch":
            raise UnsupportedOperation(
                f"cannot write to {self!r}, because only branches can change; write to {self._url!r} with @branch.NAME"
            )
        return _SessionTransaction(*self._repository.begin(self._name), repr(self), self._name)

    def __repr__(self) -> str:
        return f"IcechunkStore({self._url!r}, {self._kind}={self._name!r})"

    def _unsupported(
        self, verb: str, hint: str = "write to repository.writable_session('main').store with icechunk, and commit"
    ) -> UnsupportedOperation:
        return super()._unsupported(verb, hint)


class _SessionStore(ZarrPythonStore):
    """The store of a session that changes a branch.

    Args:
        session: The session.
        begin: Returns the session to use from the first write on; ``None`` if that is the same.
        name: The name of the branch's store, for messages.
    """

    def __init__(self, session: Any, begin: Callable[[], Any] | None, name: str) -> None:
        super().__init__(session.store)
        self.session, self._begin, self._name = session, begin, name
        self._lock = thread_lock()

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        if self._begin is not None:
            await run_in_new_thread(self._begin_session)
        return await super().put(key, data, if_version=if_version)

    def _begin_session(self) -> None:
        with self._lock:
            if self._begin is not None:
                self.session = self._begin()
                self.store, self._begin = self.session.store, None

    def __repr__(self) -> str:
        return self._name


class _SessionTransaction(Transaction):
    """The changes of a session.

    Args:
        session: The session.
        begin: Returns the session to use from the first write on; ``None`` if that is the same.
        name: The name of the branch's store, for messages.
        branch: The branch.
    """

    def __init__(self, session: Any, begin: Callable[[], Any] | None, name: str, branch: str) -> None:
        self._name, self._branch = name, branch
        self.store = self._store = _SessionStore(session, begin, name)

    def commit(self, message: str) -> None:
        import icechunk

        if not self._store.session.has_uncommitted_changes:
            return
        try:
            self._store.session.commit(message)
        except icechunk.ConflictError as error:
            raise WriteConflictError(
                f"another writer has committed to the branch {self._branch!r} of {self._name} meanwhile; nothing was "
                "published, repeat the call",
                key="",
            ) from error
        except Exception as error:  # of different classes in icechunk 1 and 2
            raise StoreError(f"cannot commit to {self._name}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the first line of an error of icechunk, which continues with where in its sources it happened."""
    return str(error).strip().partition("\n")[0]


@dataclass(frozen=True)
class _Storage:
    """icechunk's storage of a repository, which can be pickled.

    Attributes:
        kind: The name of icechunk's function that makes it.
        arguments: The arguments of that function.
    """

    kind: str
    arguments: Mapping[str, Any]

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

    def _selected(self, is_selected: Callable[[str], bool]) -> list[str]:
        return [f"{name}={value!r}" for name, value in sorted(self.arguments.items()) if is_selected(name)]


def _storage(location: Location) -> _Storage:
    """Return icechunk's storage for a location.

    Raises:
        ValueError: If icechunk cannot read from such a location.
    """
    if location.local_path is not None:
        return _Storage("local_filesystem_storage", {"path": os.path.realpath(location.local_path)})
    options = {name: value for name, value in location.storage_options.items() if name not in _COMMON_OPTIONS}
    parts = urlsplit(location.url)
    if parts.scheme in ("http", "https") and not options.keys() - {"headers"}:
        headers = {"headers": dict(options["headers"])} if "headers" in options else {}
        return _Storage("http_storage", {"base_url": location.url, **headers})
    service = SERVICES.get(parts.scheme)
    settings = to_obstore(location.url, options)
    if service is None or settings is None:
        raise ValueError(
            f"icechunk cannot read a repository at {redact_queries(location.url)!r}: it reads local directories, s3://, "
            "gs:// and az:// URLs with options of credentials, and https:// URLs with headers"
        )
    arguments = _arguments(service, settings)
    place = {"container" if service == "azure" else "bucket": parts.netloc, "prefix": parts.path.strip("/")}
    return _Storage(f"{service}_storage", {**place, **arguments})


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
