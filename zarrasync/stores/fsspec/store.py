"""A store on any fsspec filesystem.

Asynchronous filesystems (s3, gs, az, http, …) get an instance per event loop, made from the
configuration of the one that was given; blocking ones are used as they are, on threads. Listings
of an fsspec filesystem's directory cache are never used: they go stale.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from zarrasync import config
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import AdaptiveLimiter, request_limiter
from zarrasync._concurrency.offload import run_in_worker
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync._concurrency.single_flight import SingleFlight
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.base import ABSENT, Listing, Request, Value, clip, from_environment, statuses
from zarrasync.stores.cloud.storage_options import KEYS, SERVICES, check_names, same_endpoint
from zarrasync.stores.errors import lacks_bucket, store_error, tells_of_key, without_queries
from zarrasync.stores.fsspec import blocking, http, s3
from zarrasync.stores.http.responses import SLOW_DOWN, UNDONE, found_missing, past_end
from zarrasync.stores.local import LocalStore
from zarrasync.stores.local_files import PARTIAL
from zarrasync.stores.remote import MARK, Attempt, Present, RemoteStore, Unsure, asked

__all__ = ["FsspecStore"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_READ_ONLY = frozenset({"http", "https", "reference", "github", "data"})
_SERVICES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "http", "https", "memory"})
_AZURE = frozenset({"az", "abfs", "abfss"})
_SECRET = re.compile(" *(AccountKey|SharedAccessSignature) *=", re.IGNORECASE)
_AROUND = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3a": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "gcs": ("STORAGE_EMULATOR_HOST",),
}
"""Where filesystems find an endpoint if nobody tells them one."""
_WHO = frozenset({"key", "anon", "profile", "account_name", "username", "headers"})
"""Options that say who asks."""
_CACHES = frozenset({"simplecache", "filecache", "blockcache"})
_QUICK, _LONG = frozenset({"info", "isdir", "ls"}), frozenset({"find", "rm"})
"""Operations that change nothing and end soon, and those that take as long as there are files."""
_VERBS = {"pipe_file": "write", "rm_file": "erase", "rm": "erase", "call_s3": "erase"}
_NO_SUFFIX = _AZURE | _CACHES
"""Those that have no ranges from the end."""
_BULK = 1000
"""Keys that one S3 DeleteObjects request takes."""

_buckets: set[Hashable] = set()
"""Google's buckets that are there, or of which nothing is told."""


class FsspecStore(RemoteStore):
    """Files of an fsspec filesystem under a path.

    Args:
        fs: The filesystem.
        path: The path inside it.
        concurrency: Requests in flight at the most.
        missing: HTTP statuses beside 404 that mean that there is no such key when it is read; of filesystems that are
            not the web's 401 or 403, which are not told apart.

    Raises:
        ValueError: If ``missing`` has another status.
    """

    def __init__(self, fs: Any, path: str = "", *, concurrency: int = 0, missing: Iterable[int] = ()) -> None:
        from fsspec.implementations.dirfs import DirFileSystem

        path = str(fs._strip_protocol(path)).rstrip("/")
        while isinstance(fs, DirFileSystem):  # paths below a directory are paths of the filesystem it lies in
            fs, path = fs.fs, str(fs._join(path)).rstrip("/")
        self._template, self.path = fs, path
        # Caches of files say what the filesystem behind them is, and are not asynchronous themselves.
        self.blocking = not (fs.async_impl and _is_asynchronous(type(fs)))
        protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
        self.protocol = protocol
        refused, web = statuses(missing) - {404}, protocol in ("http", "https")
        if refused - {401, 403} and not web:
            raise ValueError(f"missing takes 401, 403 and 404, found {sorted(refused)}")
        self.missing = refused if web else frozenset({401, 403}) if refused else frozenset()
        self._missing = (*_MISSING, PermissionError) if refused else _MISSING
        self.writeable = protocol not in _READ_ONLY
        self.conditional = self._tells_versions = s3.can_compare(fs, protocol)
        self._ask = s3.ask if self._tells_versions else http.ask if http.suits(fs, protocol) else None
        self.listable = protocol not in ("http", "https", "data")
        # Others have limits and attempts of their own for each request, and make several for a large value.
        self.settings = config.get() if self._ask is not None else replace(config.get(), request_timeout=0.0)
        self.usual = self.concurrency = concurrency or self.settings.concurrency or (16 if self.blocking else 128)
        self._service = self._find_service()
        self._files = LocalStore(path or "/") if blocking.is_local(fs) else None
        self.exclusive = protocol == "memory" or (self._files is not None and self._files.exclusive)
        self._make_pools()

    def _make_pools(self) -> None:
        self._clients: PerLoop[Any] = PerLoop(self._make_client, _close_client)
        self._once: PerLoop[Any] = PerLoop(partial(self._make_client, once=True), _close_client)
        self._flights = SingleFlight()

    @classmethod
    def from_url(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> FsspecStore:
        """The store of a URL, with fsspec's ``storage_options``.

        Raises:
            ValueError: If no filesystem is known for the URL's protocol.
            TypeError: If an option is another one misspelt.
            ImportError: If the filesystem needs a package that is not installed; says which.
        """
        from fsspec import get_filesystem_class
        from fsspec.core import url_to_fs

        options = dict(storage_options or {})
        concurrency = int(options.pop("concurrency", 0) or config.get().concurrency)
        missing = options.pop("missing", ())
        if "::" not in url:
            options.setdefault("use_listings_cache", False)
            if url.startswith(("s3://", "s3a://")):
                # botocore keeps ten connections unless told otherwise, however many requests there are.
                extra = dict(options.get("config_kwargs") or {})
                extra.setdefault("max_pool_connections", concurrency or 128)
                options["config_kwargs"] = extra
        try:
            if "::" not in url:
                check_names(get_filesystem_class(url.partition("://")[0]), options)
            fs, path = url_to_fs(url, **options)
        except OSError as error:
            raise StoreError(f"{without_queries(url)!r} can not be opened: {type(error).__name__}: {error}") from error
        except ImportError as error:
            protocol = url.partition("://")[0]
            install = f"pip install 'zarrasync[{SERVICES[protocol]}]'" if protocol in SERVICES else str(error)
            raise ImportError(f"{protocol}:// URLs need a package that is not installed: {install}") from error
        return cls(fs, path, concurrency=concurrency, missing=missing)

    @property
    def identity(self) -> Hashable:
        return (*self._service, self.path)

    @property
    def viewer(self) -> Hashable:
        told = sorted(self._template.storage_options.items())
        given = tuple(f"{name}={value!r}" for name, value in told if name in _WHO)
        return given or from_environment(KEYS.get(SERVICES.get(self.protocol, ""), ()))

    @property
    def lasting(self) -> bool:
        return self.portable and self.protocol != "reference"  # references may be in memory, too

    @property
    def portable(self) -> bool:
        return self.protocol != "memory"

    def _find_service(self) -> tuple[str, str]:
        """What the paths are paths in: an endpoint, or (zip files, references, …) one filesystem instance."""
        fs = self._template
        if self.protocol not in _SERVICES:
            from fsspec.utils import tokenize

            if self.protocol == "reference":  # of which there may be many
                return (self.protocol, str(fs._fs_token))
            return (self.protocol, tokenize(type(fs), fs.storage_args, fs.storage_options))  # each thread has its own
        told = {**(fs.storage_options.get("client_kwargs") or {}), **fs.storage_options}
        place = [same_endpoint(told.get("endpoint_url") or from_environment(_AROUND.get(self.protocol, ())))]
        if self.protocol in _AZURE:
            connection = str(told.get("connection_string") or "").split(";")
            place += [getattr(fs, "account_url", ""), *(part for part in connection if not _SECRET.match(part))]
        return (SERVICES.get(self.protocol, self.protocol), " ".join(map(str, place)))

    def location(self, key: str) -> Hashable:
        return (*self._service, self._full(key)) if self._files is None else self._files.location(key)

    def lock(self, key: str) -> AbstractAsyncContextManager[None, None]:
        return super().lock(key) if self._files is None else self._files.lock(key)

    def limiter(self) -> AdaptiveLimiter:
        bucket = self.path.partition("/")[0] if "://" not in self.path else "/".join(self.path.split("/", 3)[:3])
        return request_limiter((*self._service, bucket), self.concurrency)

    def __repr__(self) -> str:
        path = self.path.partition("?")[0]  # a query may hold a signature
        return f"FsspecStore({path if '://' in path else f'{self.protocol}://{path}'!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_clients", "_once", "_flights")}
        return kept if self.portable else {**kept, "_template": blocking.leaving(self._template)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._template = blocking.arrived(self._template)
        self._make_pools()

    async def _on_files(self, work: Callable[[LocalStore], Coroutine[Any, Any, T]]) -> T:
        """What local files do by themselves; on a thread where an event loop would wait, which a cancelled call waits for."""
        assert self._files is not None
        call = partial(work, self._files)
        return await call() if self.blocking else await run_in_worker(call)

    async def pending(self, key: str) -> bytes | None:
        return None if self._files is None else await self._on_files(lambda files: files.pending(key))

    async def set_pending(self, key: str, note: bytes | None) -> None:
        if self._files is not None:
            await self._on_files(lambda files: files.set_pending(key, note))

    async def unfinished(self, prefix: str) -> builtins.list[str]:
        return [] if self._files is None else await self._on_files(lambda files: files.unfinished(prefix))

    # -------------------------------------------------------------- clients

    async def _make_client(self, *, once: bool = False) -> Any:
        known = self._template
        options = {**known.storage_options, "skip_instance_cache": True}
        if once:
            options = s3.once(options)
        if self.protocol == "reference" and any(_is_asynchronous(type(fs)) for fs in known.fss.values()):
            options["remote_options"] = {
                **(options.get("remote_options") or {}),
                "asynchronous": True,
                "skip_instance_cache": True,
                "loop": asyncio.get_running_loop(),
            }
        if self.protocol not in _AZURE:  # adlfs would at exit close its client on a loop that is gone by then
            options.update(asynchronous=True, loop=asyncio.get_running_loop())
        fs = type(known)(*known.storage_args, **options)
        start = getattr(fs, "set_session", None) or getattr(fs, "_set_session", None)
        if start is not None:
            await start()
        return fs

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a filesystem operation: a method on a blocking one, under the limiter on others."""
        if self.blocking:
            work = partial(getattr(self._template, name), *args, **options)
            # A write that was left alone would go on, and come after later ones.
            return blocking.call(work, self.protocol, self.settings.total_timeout) if name in _QUICK else work()
        fs = await self._clients.get()
        gate, limit = self.limiter(), self.settings.total_timeout
        await gate.acquire()
        try:
            make = partial(getattr(fs, f"_{name}"), *args, **options)
            return await asked(make, _VERBS.get(name, "read"), 0.0 if name in _LONG else limit)
        except FileNotFoundError as error:
            raise found_missing(error) from error
        finally:
            gate.release()

    async def _each(self, calls: Sequence[Callable[[], Awaitable[Any]]]) -> builtins.list[Any]:
        """Make calls side by side; the first failure cancels the others."""
        if self.blocking:
            return [await call() for call in calls]
        return await gather(calls)

    async def close(self) -> None:
        if not self.blocking:
            await self._clients.close()
            await self._once.close()

    def _full(self, key: str) -> str:
        return f"{self.path}/{key}" if self.path else key

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return await self._each([partial(self._fetch_one, request) for request in requests])

    async def _fetch_one(self, request: Request) -> Value | None:
        path, options = self._full(request.key), dict(self._read_options())
        length = None if request.length is None else max(request.length, 1)  # no server gives nothing
        if request.suffix and self.protocol in _NO_SUFFIX:
            return await self._fetch_end(request)
        if request.suffix:
            options.update(start=-(length or 1), end=None)
        elif length is not None or request.start:
            options.update(start=request.start, end=None if length is None else request.start + length)
        ranged = "start" in options
        try:
            if self.blocking:
                value = Value(await blocking.read(self._template, self.protocol, path, self.settings, **options))
            else:
                value = await self._request(request.key, "read", partial(self._attempt, path, options, request))
        except StoreError:
            raise
        except Exception as error:
            if self._means_absent(error):
                await self._check_bucket(request.key)
                return await self._behind(request)
            if ranged and past_end(error):
                return await self._past_end(request, error)
            raise store_error(error, request.key, "read", self) from error
        data = value.data
        if length is not None and len(data) > length:
            return value._replace(data=clip(data, request))  # the server ignored the range and sent everything
        return (
            value
            if request.length is None or len(data) <= request.length
            else value._replace(data=data[: request.length])
        )

    async def _attempt(self, path: str, options: Mapping[str, Any], request: Request) -> Value:
        """One of several attempts to read; most filesystems make some of their own."""
        fs = await self._clients.get()
        try:
            return (
                Value(await fs._cat_file(path, **options)) if self._ask is None else await self._ask(fs, path, request)
            )
        except Attempt:
            raise
        except Exception as error:
            if not http.passes(error):
                raise
            reason = f"{type(error).__name__}: {without_queries(str(error))}"
            raise Attempt(reason, slow_down=getattr(error, "status", None) in SLOW_DOWN) from error

    async def stat(self, key: str) -> Value | None:
        check_key(key)
        try:
            found = await self._call("info", self._full(key))
        except Exception as error:
            if self._means_absent(error):
                return None
            raise store_error(error, key, "read", self) from error
        if found.get("size") is None:
            return await super().stat(key)
        if self._tells_versions:
            return Value(b"", found.get("ETag"), int(found["size"]))
        known = [found[name] for name in _VERSIONS if found.get(name) is not None]
        return Value(b"", (*map(str, known), found["size"]) if known else None, int(found["size"]))

    async def _fetch_end(self, request: Request) -> Value | None:
        """The last bytes of a value, where its size is to be asked for first."""
        try:
            size = int((await self._call("info", self._full(request.key)))["size"])
        except _MISSING:
            return await self._behind(request)
        except Exception as error:
            raise store_error(error, request.key, "read", self) from error
        length = min(request.length or 0, size)
        found = await self._fetch_one(request._replace(start=size - length, length=length, suffix=False))
        return None if found is None else found._replace(size=size)

    def _means_absent(self, error: Exception) -> bool:
        if getattr(error, "status", None) in self.missing:  # of aiohttp, for a web server
            return True
        if isinstance(error, PermissionError):
            return isinstance(error, self._missing) and tells_of_key(error)
        return isinstance(error, _MISSING) and not lacks_bucket(error)

    async def _check_bucket(self, key: str) -> None:
        """Complain if gcsfs found nothing because there is no bucket, which it does not say."""
        place = (self._service, self.path.partition("/")[0])
        if self.protocol not in ("gs", "gcs") or place in _buckets:
            return
        if not await self._flights.share(place, partial(self._has_bucket, place[1])):
            failure = FileNotFoundError("the specified bucket does not exist")
            raise store_error(failure, key, "read", self) from failure
        _buckets.add(place)

    async def _has_bucket(self, name: str) -> bool:
        try:
            await self._call("call", "GET", "b/{}", name, json_out=True)
        except FileNotFoundError:
            return False
        except Exception as error:  # whoever may read objects need not be told about their bucket
            _log.debug("whether there is a bucket %r is not known: %s", name, error)
        return True

    async def _behind(self, request: Request) -> Value | None:
        """What a cache has no value of: it also calls absent what a web server refuses, or does not list."""
        if self.protocol not in _CACHES:
            return None
        try:
            data = await blocking.read(self._template.fs, "", self._full(request.key), self.settings)
        except Exception as error:
            if self._means_absent(error):
                return None
            raise store_error(error, request.key, "read", self) from error
        return Value(clip(data, request), size=len(data))

    def _read_options(self) -> Mapping[str, Any]:
        # s3fs would otherwise ask for the size first and cut the value into parts.
        wants = (
            "max_concurrency" in inspect.signature(type(self._template)._cat_file).parameters
            if not self.blocking
            else False
        )
        return {"max_concurrency": 1} if wants else {}

    async def _past_end(self, request: Request, error: Exception) -> Value | None:
        """Bytes past the end are none; a server says so with an error that it may also use otherwise."""
        try:
            size = (await self._call("info", self._full(request.key)))["size"]
        except Exception as other:
            raise store_error(other, request.key, "read", self) from other
        if size is not None and (request.start >= size or (request.suffix and size == 0)):
            return Value(b"", size=size)
        raise store_error(error, request.key, "read", self) from error

    # -------------------------------------------------------------- writing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        if not self.writeable:
            raise self._unable("write")
        if self._files is not None and if_version in (None, ABSENT):  # which fsspec would write in place
            return await self._on_files(lambda files: files.put(key, data, if_version=if_version))
        value = data if isinstance(data, bytes) else bytes(data)
        options: dict[str, Any] = {}
        if self._tells_versions and if_version is not None:
            return await self._put_once(partial(self._put_if, key, value), partial(self._look, key), if_version)
        if self._tells_versions and len(value) <= s3.SMALL:
            options["chunksize"] = s3.ONE_REQUEST
        elif if_version is ABSENT and "mode" in inspect.signature(type(self._template).pipe_file).parameters:
            options["mode"] = "create"
        elif if_version is not None:
            raise self._unable("compare versions")
        try:
            if self.blocking:
                self._template.makedirs(self._full(key).rpartition("/")[0], exist_ok=True)
            answer = await self._call("pipe_file", self._full(key), value, **options)
        except FileExistsError as error:
            raise WriteConflictError(f"{key!r} was changed meanwhile", key=key) from error
        except Exception as error:
            raise store_error(error, key, "write", self) from error
        return answer.get("ETag") if self._tells_versions and isinstance(answer, Mapping) else None

    async def _put_if(self, key: str, value: bytes, expected: object, mark: str) -> object:
        """Store a value in the place of the version that was read, or of none."""
        fs = await self._once.get()
        condition = {"IfNoneMatch": "*"} if expected is ABSENT else {"IfMatch": expected}
        options = {**condition, "Metadata": {MARK: mark}}
        gate, limit = self.limiter(), self.settings.request_timeout
        await gate.acquire()
        try:
            put = partial(s3.put_if, fs, self._full(key), value, options)
            return (await asked(put, "write", limit)).get("ETag")
        except Exception as error:
            if s3.says_changed(error):
                raise WriteConflictError(f"{key!r} was changed meanwhile", key=key) from error
            if s3.says_unable(error):
                raise self._without_conditions() from error
            failure, status = store_error(error, key, "write", self), s3.status(error)
            (gate.on_overload if status in SLOW_DOWN else gate.on_failure)()
            if status is None or status in UNDONE:
                raise Unsure(failure, answered=status is not None) from error
            raise failure from error
        finally:
            gate.release()

    async def _look(self, key: str) -> Present | None:
        """What is there, and which write it comes from."""
        fs = await self._clients.get()
        try:
            return await self._request(key, "read", partial(s3.present, fs, self._full(key)))
        except StoreError:
            raise
        except Exception as error:
            if self._means_absent(error):
                return None
            raise store_error(error, key, "read", self) from error

    async def erase(self, key: str, *, if_version: object = None) -> None:
        if if_version is not None:
            raise self._unable("compare versions")
        if not self.writeable:
            raise self._unable("erase")
        if self.blocking or self._files is not None:  # as those that are made of directories are
            check_key(key)
        try:
            await self._call("rm_file", self._full(key))
        except _MISSING:
            pass
        except Exception as error:
            raise store_error(error, key, "erase", self) from error

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        if not hasattr(self._template, "_bulk_delete"):
            await self._each([lambda key=key: self.erase(key) for key in keys])  # type: ignore[misc]  # bound early
            return
        parts = [keys[start : start + _BULK] for start in range(0, len(keys), _BULK)]
        await self._each([lambda part=part: self._erase_bulk(part) for part in parts])  # type: ignore[misc]  # likewise

    async def erase_prefix(self, prefix: str) -> None:
        if self._files is not None:  # at once, and what is no value, too
            await self._on_files(lambda files: files.erase_prefix(prefix))
            return
        await super().erase_prefix(prefix)
        path = self._full(prefix.rstrip("/"))
        if self.blocking and prefix and await self._call("isdir", path):  # directories go along, which stay otherwise
            try:
                await self._call("rm", path, recursive=True)
            except Exception as error:
                raise store_error(error, prefix, "erase", self) from error

    async def _erase_bulk(self, keys: Sequence[str]) -> None:
        """One S3 request for many keys; unlike s3fs's own it looks at the errors in the answer."""
        bucket, _, prefix = self.path.partition("/")
        objects = [{"Key": f"{prefix}/{key}" if prefix else key} for key in keys]
        try:
            answer = await self._call(
                "call_s3", "delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True}
            )
        except Exception as error:
            raise store_error(error, keys[0], "erase", self) from error
        for failed in answer.get("Errors", ()):
            raise StoreError(
                f"could not erase {failed.get('Key')!r}: {failed.get('Message')}", key=str(failed.get("Key"))
            )

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        found = await self._list(check_prefix(prefix), "find")
        return [name for name in map(self._relative, found) if _is_key(name, prefix)]

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        found = await self._list(check_prefix(prefix), "find", detail=True)
        named = {self._relative(name): entry.get("size") for name, entry in dict(found).items()}
        if None in named.values():
            return await super().list_sizes(prefix)
        return {name: size for name, size in named.items() if _is_key(name, prefix)}

    async def list_dir(self, prefix: str) -> Listing:
        found = await self._list(check_prefix(prefix), "ls", detail=True)
        keys, prefixes = [], []
        for entry in found:
            name = self._relative(entry["name"].rstrip("/"))
            if not _is_key(name, prefix) or name == prefix.rstrip("/"):
                continue
            if entry["type"] == "directory":
                prefixes.append(f"{name}/")
            else:
                keys.append(name)
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    def _relative(self, name: str) -> str:
        """A listed path as a key."""
        return name[len(self.path) + 1 :] if self.path else name.lstrip("/")

    async def _list(self, prefix: str, operation: str, *, detail: bool = False) -> Any:
        if not self.listable:
            raise self._unable("list (a web server has no listing; open nodes by their paths)")
        path = self._full(prefix.rstrip("/")) if prefix else self.path
        options: dict[str, Any] = {"detail": detail}
        if operation == "ls" and not self.blocking:
            options["refresh"] = True
        try:
            return await self._call(operation, path, **options)
        except _MISSING:
            return []
        except Exception as error:
            raise store_error(error, prefix, "list", self) from error


def _is_asynchronous(kind: type) -> bool:
    from fsspec.asyn import AsyncFileSystem

    return issubclass(kind, AsyncFileSystem)


_VERSIONS = ("ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "created")
"""What filesystems call that which changes with a value."""


def _is_key(name: str, prefix: str) -> bool:
    """Whether a listed file is a value below a prefix, and not the half of one that is being written."""
    return name.startswith(prefix) and name != "" and not name.endswith(PARTIAL)


async def _close_client(fs: Any) -> None:
    for other in getattr(fs, "fss", {}).values():  # what references refer to
        if other is not fs:
            await _close_client(other)
    session = getattr(fs, "_s3", None) or getattr(fs, "_session", None) or getattr(fs, "service_client", None)
    if session is not None:
        await session.close()
