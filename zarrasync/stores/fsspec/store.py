"""Stores over fsspec filesystems."""

from __future__ import annotations

import builtins
import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from zarrasync import config
from zarrasync._concurrency.gather import SingleFlight, gather
from zarrasync._concurrency.limiter import AdaptiveLimiter, request_limiter
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._concurrency.semaphores import Held
from zarrasync._util.memory import BudgetExceeded
from zarrasync._util.redact import public_url, redact
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.model.paths import TEMPORARY_SUFFIX, check_key, check_keys, check_prefix
from zarrasync.stores.base import Directories
from zarrasync.stores.errors import concerns_key, is_missing_bucket, store_error, store_errors
from zarrasync.stores.fsspec import http, s3
from zarrasync.stores.fsspec.filesystem import Filesystem, is_local, open_url, read_file
from zarrasync.stores.fsspec.identity import (
    AZURE,
    CACHES,
    GCS,
    READ_ONLY,
    S3,
    WEB,
    WITHOUT_SUFFIX_RANGES,
    is_viewer_lasting,
    viewer_of,
)
from zarrasync.stores.http.responses import OVERLOAD, TRANSIENT_FOR_WRITES, is_past_end
from zarrasync.stores.local import LocalStore
from zarrasync.stores.remote import (
    REFUSALS,
    WRITE_MARK,
    CurrentValue,
    RemoteStore,
    TransientError,
    UnknownOutcome,
    missing_statuses,
    run_request,
)
from zarrasync.stores.values import ABSENT, Listing, Request, Value, clip

_log = logging.getLogger(__name__)
_ABSENCE_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors of filesystems for absent files."""
_VERSION_FIELDS = ("ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "created")
"""Entries of filesystems' ``info`` that change with the value."""

_existing_buckets: set[Hashable] = set()
"""Google buckets that exist, or whose existence cannot be checked."""
T = TypeVar("T")
_MAGIC = frozenset("*?[")
"""Characters of patterns."""
_BULK_SIZE = 1000
"""Maximum number of keys in an S3 DeleteObjects request."""


class FsspecStore(RemoteStore):
    """Files of an fsspec filesystem under a path.

    Asynchronous filesystems (s3, gs, az, http, …) get an instance per event loop, made from the arguments of ``fs``.
    Blocking filesystems are used as they are, on threads.

    Args:
        fs: The filesystem.
        path: The path in it.
        concurrency: Maximum number of requests in flight; 0 for the configured one, or 128 (16 if ``fs`` is blocking).
        missing: HTTP statuses of reads that mean absence, besides 404. Filesystems other than HTTP support 401 and
            403, and treat both alike.
        allow_targets: For a document of references, URLs and local directories that it may refer to, in addition to
            the rule of ``Targets``; ``"*"`` for everything.

    Attributes:
        local_store: A ``LocalStore`` over the same files, if the filesystem is local.

    Raises:
        ValueError: If ``missing`` contains another status.
    """

    _unshared = ("_bucket_checks",)

    def __init__(
        self,
        fs: Any,
        path: str = "",
        *,
        concurrency: int = 0,
        missing: Iterable[int] = (),
        allow_targets: Iterable[str] = (),
    ) -> None:
        from fsspec.implementations.dirfs import DirFileSystem

        path = str(fs._strip_protocol(path)).rstrip("/")
        while isinstance(fs, DirFileSystem):  # use the filesystem behind it, and full paths
            fs, path = fs.fs, str(fs._join(path)).rstrip("/")
        self._filesystem, self.path = Filesystem(fs, allow_targets), path
        self.blocking, self.protocol = self._filesystem.blocking, self._filesystem.protocol
        self.missing = _check_missing(missing, self.protocol)
        self._absence_errors = (*_ABSENCE_ERRORS, PermissionError) if self.missing else _ABSENCE_ERRORS
        self.writeable = self.protocol not in READ_ONLY
        self.conditional = self._is_s3 = s3.is_supported(fs, self.protocol)
        self._read = s3.read if self._is_s3 else http.read if http.is_supported(fs) else None
        # References contain byte ranges, whose ends old versions of fsspec would exceed.
        self._limits_by_ranges = self._read is None and self.protocol not in {"reference", "data"}
        if self.protocol in S3 | GCS | AZURE:
            options = fs.storage_options
            is_anonymous = options.get("anon") is True or options.get("token") == "anon"
            self.access = "anonymous" if is_anonymous else "credentials"
        self.listable = self.protocol not in WEB | {"data"}
        self.quick_listing = self.protocol in S3 | GCS | AZURE
        # Other filesystems implement retries and timeouts, and make several requests for a large value.
        self.settings = config.get() if self._read is not None else replace(config.get(), request_timeout=0.0)
        self.limits_requests = not self.blocking
        self.initial_concurrency = self.concurrency = (
            concurrency or self.settings.concurrency or (16 if self.blocking else 128)
        )
        self._read_options: dict[str, Any] = {}
        if not self.blocking and "max_concurrency" in inspect.signature(type(fs)._cat_file).parameters:
            self._read_options["max_concurrency"] = 1  # one request per value
        self.local_store = LocalStore(path or "/") if is_local(fs) else None
        self.exclusive_locks = self.protocol == "memory" or (
            self.local_store is not None and self.local_store.exclusive_locks
        )
        self._make_unshared()

    def _make_unshared(self) -> None:
        self._bucket_checks = SingleFlight()

    @classmethod
    def from_url(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> FsspecStore:
        """Make a store from a URL and fsspec's storage options.

        Args:
            url: The URL, which may be a chain (``simplecache::s3://…``).
            storage_options: Options of the filesystem; also ``concurrency`` and ``missing``.

        Raises:
            UnknownAdapterError: If no filesystem is known for the URL's protocol.
            TypeError: If an option looks like a misspelt one.
            ImportError: If the filesystem needs a package that is not installed.
            StoreError: If it cannot be opened.
        """
        options = dict(storage_options or {})
        concurrency = int(options.pop("concurrency", 0) or config.get().concurrency)
        missing = options.pop("missing", ())
        fs, path = open_url(url, options, concurrency or 128)
        return cls(fs, path, concurrency=concurrency, missing=missing)

    @property
    def identity(self) -> Hashable:
        return (*self._filesystem.service, self.path)

    @property
    def viewer(self) -> Hashable:
        return viewer_of(self._filesystem.template, self.protocol), *sorted(self.missing)

    @property
    def lasting_identity(self) -> bool:
        if self.protocol == "reference":  # references may be in memory
            return False
        return self.shareable and is_viewer_lasting(self._filesystem.template, self.protocol)

    @property
    def shareable(self) -> bool:
        return self._filesystem.shareable

    @property
    def flat_namespace(self) -> bool:
        return self.protocol == "memory"

    def location(self, key: str) -> Hashable:
        if self.local_store is not None:
            return self.local_store.location(key)
        return (*self._filesystem.service, self._path(key))

    def lineage(self, path: str) -> tuple[Hashable, ...]:
        return super().lineage(path) if self.local_store is None else self.local_store.lineage(path)

    def lock(self, key: str) -> AbstractAsyncContextManager[object, None]:
        # The store does not compare versions, so that a lock must also hold for values in directories that do not exist.
        return super().lock(key) if self.local_store is None else self.local_store.locks([key])

    def locks(self, keys: Sequence[str]) -> AbstractAsyncContextManager[object, None]:
        return super().locks(keys) if self.local_store is None else self.local_store.locks(keys)

    def lock_identities(self, keys: Sequence[str]) -> Sequence[Hashable]:
        return super().lock_identities(keys) if self.local_store is None else self.local_store.lock_identities(keys)

    def limiter(self) -> AdaptiveLimiter:
        bucket = self.path.partition("/")[0] if "://" not in self.path else "/".join(self.path.split("/", 3)[:3])
        cautious = self.protocol in WEB | {"reference"}
        return request_limiter((*self._filesystem.service, bucket), self.concurrency, cautious=cautious)

    def __repr__(self) -> str:
        if self._filesystem.document:
            return f"FsspecStore('reference::{redact(self._filesystem.document)}')"
        path = public_url(self.path) if "://" in self.path else self.path.partition("?")[0]
        return f"FsspecStore({path if '://' in path else f'{self.protocol}://{path}'!r})"

    async def close(self) -> None:
        await self._filesystem.close()

    def confined(self) -> Self:
        """Return a store whose references lead to local files in the directory of their document only."""
        filesystem = self._filesystem.confined()
        if filesystem is self._filesystem:
            return self
        store = copy.copy(self)
        store._filesystem = filesystem
        return store

    def _path(self, key: str) -> str:
        return f"{self.path}/{key}" if self.path else key

    async def _call(self, operation: str, *args: Any, **options: Any) -> Any:
        timeout = self.settings.total_timeout
        return await self._filesystem.call(self.limiter, timeout, operation, *args, **options)

    async def _gather(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> builtins.list[Any]:
        if self.blocking:
            return [await call() for call in calls]
        return await gather(calls)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        return await self._gather([partial(self._fetch_one, request) for request in requests])

    async def _fetch_one(self, request: Request) -> Value | None:
        if request.suffix and self.protocol in WITHOUT_SUFFIX_RANGES:
            return await self._fetch_suffix(request)
        options = {**self._read_options, **self._byte_range(request)}
        try:
            with http.limited(request.limit, self.limiter()):
                value = await self._read_value(request, options)
            request.check_size(len(value.data))
        except StoreError:
            raise
        except Exception as error:
            if self._means_absent(error):
                await self._check_bucket(request.key)
                return await self._read_behind_cache(request)
            if "start" in options and is_past_end(error):
                return await self._past_end(request, error)
            raise store_error(error, request.key, "read", self) from error
        if request.length is not None and len(value.data) > request.length:  # the server may ignore byte ranges
            return value._replace(data=clip(value.data, request))
        return value

    def _byte_range(self, request: Request) -> dict[str, int | None]:
        """Return the arguments of ``cat_file`` that select the bytes of a request."""
        length = None if request.length is None else max(request.length, 1)  # HTTP has no empty byte ranges
        if request.suffix:
            return {"start": -(length or 1), "end": None}
        if length is None and self._limits_by_ranges and request.limit is not None:
            length = max(request.limit + 1 - request.start, 1)  # one byte more shows that the value is too large
        elif length is None and not request.start:
            return {}
        return {"start": request.start, "end": None if length is None else request.start + length}

    async def _read_value(self, request: Request, options: Mapping[str, Any]) -> Value:
        path = self._path(request.key)
        if self.blocking:
            return Value(await read_file(self._filesystem.template, self.protocol, path, self.settings, **options))
        value: Value = await self._request(request.key, "read", partial(self._attempt, path, options, request))
        return value

    async def _attempt(self, path: str, options: Mapping[str, Any], request: Request) -> Value:
        """Make one attempt to read; most filesystems implement retries."""
        fs = await self._filesystem.instances.get()
        try:
            if self._read is None:
                return Value(await fs._cat_file(path, **options))
            return await self._read(fs, path, request)
        except (StoreError, TransientError):
            raise
        except Exception as error:
            if isinstance(error.__cause__, BudgetExceeded | StoreError | TransientError):  # behind a reference
                raise error.__cause__ from None
            if not http.is_transient(error):
                raise
            reason = f"{type(error).__name__}: {redact(str(error))}"
            raise TransientError(reason, slow_down=getattr(error, "status", None) in OVERLOAD) from error

    async def _fetch_suffix(self, request: Request) -> Value | None:
        """Fetch the last bytes of a value by requesting its size first."""
        try:
            size = int((await self._call("info", self._path(request.key)))["size"])
        except _ABSENCE_ERRORS:
            return await self._read_behind_cache(request)
        except Exception as error:
            raise store_error(error, request.key, "read", self) from error
        length = min(request.length or 0, size)
        value = await self._fetch_one(request._replace(start=size - length, length=length, suffix=False))
        return None if value is None else value._replace(size=size)

    async def _read_behind_cache(self, request: Request) -> Value | None:
        """Return the value from behind a cache, which reports absence also if a web server refuses or does not list it."""
        if self.protocol not in CACHES:
            return None
        try:
            with http.limited(request.limit, self.limiter()):
                data = await read_file(self._filesystem.template.fs, "", self._path(request.key), self.settings)
        except Exception as error:
            if self._means_absent(error):
                return None
            raise store_error(error, request.key, "read", self) from error
        return Value(clip(data, request), size=len(data))

    async def _past_end(self, request: Request, error: Exception) -> Value | None:
        """Return no bytes if a byte range is past the end. The same error may have another cause, which is raised."""
        with store_errors(request.key, "read", self):
            size = (await self._call("info", self._path(request.key)))["size"]
        if size is not None and (request.start >= size or (request.suffix and size == 0)):
            return Value(b"", size=size)
        raise store_error(error, request.key, "read", self) from error

    async def stat(self, key: str) -> Value | None:
        check_key(key)
        if self._read is http.read:  # with the version that reading returns
            return await super().stat(key)
        try:
            info = await self._call("info", self._path(key))
        except Exception as error:
            if self._means_absent(error):
                return None
            raise store_error(error, key, "read", self) from error
        if info.get("type") == "directory":
            return None
        if info.get("size") is None:
            return await super().stat(key)
        if self._is_s3:
            return Value(b"", info.get("ETag"), int(info["size"]))
        version = [str(info[name]) for name in _VERSION_FIELDS if info.get(name) is not None]
        return Value(b"", (*version, info["size"]) if version else None, int(info["size"]))

    def _means_absent(self, error: Exception) -> bool:
        if getattr(error, "status", None) in self.missing:  # aiohttp's error for a web server
            return True
        if isinstance(error, PermissionError):
            return isinstance(error, self._absence_errors) and concerns_key(error)
        return isinstance(error, _ABSENCE_ERRORS) and not is_missing_bucket(error)

    async def _check_bucket(self, key: str) -> None:
        """Raise ``StoreError`` if a Google bucket does not exist, which gcsfs reports like an absent key."""
        bucket = (self._filesystem.service, self.path.partition("/")[0])
        if self.protocol not in GCS or bucket in _existing_buckets:
            return
        if not await self._bucket_checks.share(bucket, partial(self._has_bucket, bucket[1])):
            failure = FileNotFoundError("the specified bucket does not exist")
            raise store_error(failure, key, "read", self) from failure
        _existing_buckets.add(bucket)

    async def _has_bucket(self, name: str) -> bool:
        try:
            await self._call("call", "GET", "b/{}", name, json_out=True)
        except FileNotFoundError:
            return False
        except Exception as error:  # permission to read objects does not include buckets
            _log.debug("cannot check whether the bucket %r exists: %s", name, error)
        return True

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        paths = await self._list(check_prefix(prefix), "find")
        return [key for key in map(self._key, paths) if _is_value(key, prefix)]

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        entries = await self._list(check_prefix(prefix), "find", detail=True)
        sizes = {self._key(path): entry.get("size") for path, entry in dict(entries).items()}
        if None in sizes.values():
            return await super().list_sizes(prefix)
        return {key: size for key, size in sizes.items() if _is_value(key, prefix)}

    async def list_dir(self, prefix: str) -> Listing:
        entries = await self._list(check_prefix(prefix), "ls", detail=True)
        keys, prefixes = [], []
        for entry in entries:
            key = self._key(entry["name"].rstrip("/"))
            if not _is_value(key, prefix) or key == prefix.rstrip("/"):
                continue
            if entry["type"] == "directory":
                prefixes.append(f"{key}/")
            else:
                keys.append(key)
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    def _key(self, path: str) -> str:
        """Return the key of a listed path."""
        return path[len(self.path) + 1 :] if self.path else path.lstrip("/")

    async def _list(self, prefix: str, operation: str, *, detail: bool = False) -> Any:
        if not self.listable:
            raise self._unsupported("list: a web server has no listing", "open nodes by their paths")
        path = self._path(prefix.rstrip("/")) if prefix else self.path
        options: dict[str, Any] = {"detail": detail}
        if operation == "ls" and not self.blocking:
            options["refresh"] = True
        with store_errors(prefix, "list", self), suppress(*_ABSENCE_ERRORS):
            return await self._call(operation, path, **options)
        return []

    # -------------------------------------------------------------- local files

    async def _on_local_store(self, work: Callable[[LocalStore], Coroutine[Any, Any, T]]) -> T:
        """Use the local store, on a worker thread if this store is asynchronous."""
        assert self.local_store is not None
        call = partial(work, self.local_store)
        return await call() if self.blocking else await run_in_worker(call)

    @property
    def directories(self) -> Directories | None:
        return None if self.local_store is None else self.local_store.directories

    # -------------------------------------------------------------- writing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        if not self.writeable:
            raise self._unsupported("write")
        if self.local_store is not None and if_version in (None, ABSENT):  # atomic, unlike fsspec's writes
            return await self._on_local_store(lambda store: store.put(key, data, if_version=if_version))
        value = data if isinstance(data, bytes) else bytes(data)
        if self._is_s3 and if_version is not None:
            put, look_up = partial(self._put_if, key, value), partial(self._look_up, key)
            return await self._put_if_unchanged(put, look_up, if_version)
        fs, path, options = self._filesystem.template, self._path(key), dict[str, Any]()
        if self._is_s3 and len(value) <= s3.SMALL:
            options["chunksize"] = s3.ONE_REQUEST
        elif if_version is ABSENT and "mode" in inspect.signature(type(fs).pipe_file).parameters:
            options["mode"] = "create"
        elif if_version is not None:
            raise self._unsupported("compare versions")
        try:
            if self.blocking:
                fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            answer = await self._call("pipe_file", path, value, **options)
        except FileExistsError as error:
            raise self._conflict(key) from error
        except Exception as error:
            raise store_error(error, key, "write", self) from error
        return answer.get("ETag") if self._is_s3 and isinstance(answer, Mapping) else None

    async def _put_if(self, key: str, value: bytes, expected: object, mark: str) -> object:
        """Make one attempt at a conditional write on S3."""
        fs = await self._filesystem.unretried.get()
        condition = {"IfNoneMatch": "*"} if expected is ABSENT else {"IfMatch": expected}
        options = {**condition, "Metadata": {WRITE_MARK: mark}}
        put = partial(s3.put_conditionally, fs, self._path(key), value, options)
        limiter = self.limiter()
        async with Held(limiter):
            try:
                return (await run_request(put, "write", self.settings.request_timeout)).get("ETag")
            except Exception as error:
                if s3.is_conflict(error):
                    raise self._conflict(key) from error
                if s3.is_unsupported_condition(error):
                    raise self._conditions_unsupported() from error
                failure, status = store_error(error, key, "write", self), s3.status_of(error)
                (limiter.on_overload if status in OVERLOAD else limiter.on_failure)()
                if status is None or status in TRANSIENT_FOR_WRITES:
                    raise UnknownOutcome(failure, answered=status is not None) from error
                raise failure from error

    async def _look_up(self, key: str) -> CurrentValue | None:
        """Return the current version of a value on S3, and the mark of the write that stored it."""
        fs = await self._filesystem.instances.get()
        try:
            return await self._request(key, "read", partial(s3.look_up, fs, self._path(key)))
        except StoreError:
            raise
        except Exception as error:
            if self._means_absent(error):
                return None
            raise store_error(error, key, "read", self) from error

    async def erase(self, key: str, *, if_version: object = None) -> None:
        check_key(key)
        if if_version is not None:
            raise self._unsupported("compare versions")
        if not self.writeable:
            raise self._unsupported("erase")
        with store_errors(key, "erase", self), suppress(*_ABSENCE_ERRORS):
            await self._call("rm_file", self._path(key))

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        check_keys(keys)
        if not hasattr(self._filesystem.template, "_bulk_delete"):
            await self._gather([partial(self.erase, key) for key in keys])
            return
        batches = [keys[start : start + _BULK_SIZE] for start in range(0, len(keys), _BULK_SIZE)]
        await self._gather([partial(self._erase_batch, batch) for batch in batches])

    async def _erase_batch(self, keys: Sequence[str]) -> None:
        """Erase many keys by one S3 request. s3fs's own method ignores errors in the response."""
        bucket, _, prefix = self.path.partition("/")
        objects = [{"Key": f"{prefix}/{key}" if prefix else key} for key in keys]
        delete = {"Objects": objects, "Quiet": True}
        with store_errors(keys[0], "erase", self):
            answer = await self._call("call_s3", "delete_objects", Bucket=bucket, Delete=delete)
        for failure in answer.get("Errors", ()):
            key, message = failure.get("Key"), failure.get("Message")
            raise StoreError(f"could not erase {key!r}: {message}", key=str(key))

    async def erase_prefix(self, prefix: str) -> None:
        if self.local_store is not None:  # at once, including temporary files
            await self._on_local_store(lambda store: store.erase_prefix(prefix))
            return
        await super().erase_prefix(prefix)
        path = self._path(prefix.rstrip("/"))
        if self.blocking and prefix and await self._call("isdir", path):  # otherwise directories would remain
            with store_errors(prefix, "erase", self):
                await self._remove_directory(path)

    async def _remove_directory(self, path: str) -> None:
        """Remove a directory of a blocking filesystem and everything below it."""
        if _MAGIC.isdisjoint(path):
            await self._call("rm", path, recursive=True)
            return
        # fsspec takes such a path for a pattern, which may match other directories instead of this one.
        entries = await self._call("find", path, withdirs=True, detail=True)
        for name in sorted(set(entries) - {path}, key=len, reverse=True):
            await self._call("rmdir" if entries[name]["type"] == "directory" else "rm_file", name)
        await self._call("rmdir", path)


def _check_missing(missing: Iterable[int], protocol: str) -> frozenset[int]:
    """Return the statuses that mean absence besides 404, as far as errors of the filesystem distinguish them."""
    if protocol in WEB:
        return missing_statuses(missing)
    return REFUSALS if missing_statuses(missing, REFUSALS) else frozenset()


def _is_value(key: str, prefix: str) -> bool:
    """Return whether a listed file is a value below a prefix, and not a temporary file."""
    return key.startswith(prefix) and key != "" and not key.endswith(TEMPORARY_SUFFIX)
