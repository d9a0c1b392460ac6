"""Stores over fsspec filesystems."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from zarrasync import config
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError
from zarrasync.model.paths import check_key, check_keys
from zarrasync.stores.base import Directories
from zarrasync.stores.errors import store_error
from zarrasync.stores.fsspec import s3
from zarrasync.stores.fsspec.filesystem import open_url
from zarrasync.stores.fsspec.readable import ABSENCE_ERRORS, ReadableFsspecStore
from zarrasync.stores.http.responses import OVERLOAD, TRANSIENT_FOR_WRITES
from zarrasync.stores.local import LocalStore
from zarrasync.stores.remote import WRITE_MARK, CurrentValue, UnknownOutcome, run_request
from zarrasync.stores.values import ABSENT

T = TypeVar("T")
_MAGIC = frozenset("*?[")
"""Characters of patterns."""
_BULK_SIZE = 1000
"""Maximum number of keys in an S3 DeleteObjects request."""


class FsspecStore(ReadableFsspecStore):
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

    @classmethod
    def from_url(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> FsspecStore:
        """Make a store from a URL and fsspec's storage options.

        Args:
            url: The URL, which may be a chain (``simplecache::s3://…``).
            storage_options: Options of the filesystem; also ``concurrency`` and ``missing``.

        Raises:
            ValueError: If no filesystem is known for the URL's protocol.
            TypeError: If an option looks like a misspelt one.
            ImportError: If the filesystem needs a package that is not installed.
            StoreError: If it cannot be opened.
        """
        options = dict(storage_options or {})
        concurrency = int(options.pop("concurrency", 0) or config.get().concurrency)
        missing = options.pop("missing", ())
        fs, path = open_url(url, options, concurrency or 128)
        return cls(fs, path, concurrency=concurrency, missing=missing)

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
        fs = await self._filesystem.unretried_instance()
        condition = {"IfNoneMatch": "*"} if expected is ABSENT else {"IfMatch": expected}
        options = {**condition, "Metadata": {WRITE_MARK: mark}}
        gate = self.limiter()
        await gate.acquire()
        try:
            put = partial(s3.put_conditionally, fs, self._path(key), value, options)
            return (await run_request(put, "write", self.settings.request_timeout)).get("ETag")
        except Exception as error:
            if s3.is_conflict(error):
                raise self._conflict(key) from error
            if s3.is_unsupported_condition(error):
                raise self._conditions_unsupported() from error
            failure, status = store_error(error, key, "write", self), s3.status_of(error)
            (gate.on_overload if status in OVERLOAD else gate.on_failure)()
            if status is None or status in TRANSIENT_FOR_WRITES:
                raise UnknownOutcome(failure, answered=status is not None) from error
            raise failure from error
        finally:
            gate.release()

    async def _look_up(self, key: str) -> CurrentValue | None:
        """Return the current version of a value on S3, and the mark of the write that stored it."""
        fs = await self._filesystem.instance()
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
        try:
            await self._call("rm_file", self._path(key))
        except ABSENCE_ERRORS:
            pass
        except Exception as error:
            raise store_error(error, key, "erase", self) from error

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
        try:
            answer = await self._call("call_s3", "delete_objects", Bucket=bucket, Delete=delete)
        except Exception as error:
            raise store_error(error, keys[0], "erase", self) from error
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
            try:
                await self._remove_directory(path)
            except Exception as error:
                raise store_error(error, prefix, "erase", self) from error

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
