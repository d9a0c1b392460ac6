"""Object stores (S3, Google Cloud Storage, Azure) through obstore, the Python face of Rust's object_store.

It signs and sends a request in a tenth of the time that botocore takes. It has threads and retries of its own.
"""

from __future__ import annotations

import atexit
import builtins
import os
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

from zarrasync import config
from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import request_limiter
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync._util.memory import stays
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.model.paths import check_key, check_prefix
from zarrasync.stores.base import ABSENT, Listing, Request, Store, Value, from_environment, statuses
from zarrasync.stores.cloud.presigned import SignedRequests
from zarrasync.stores.cloud.storage_options import ENDPOINTS, KEYS, PROVIDER, same_endpoint, translate
from zarrasync.stores.errors import lacks_bucket, plain_text, store_error, tells_of_key, without_queries
from zarrasync.stores.http.client import Unfit
from zarrasync.stores.http.responses import SLOW_DOWN, UNABLE, UNDONE
from zarrasync.stores.remote import MARK, Present, RemoteStore, Unsure, asked, in_flight

__all__ = ["ObjectStore", "usable"]

_BULK = 1000
_SMALL = 1 << 20
"""Bytes of a value up to which it pays to store it by a URL; obstore sends larger ones from threads of its own."""


_STATUS = re.compile(r"non-2xx status code: (\d\d\d)")
"""What obstore says of answers; of those that were lost it says something else."""
_RETRIES = re.compile(r", after (\d+) retries")


_first_used_in = 0


def usable() -> bool:
    """Whether obstore works in this process: not in a fork of one that has used it. Counts as a use."""
    global _first_used_in
    if not _first_used_in:
        _first_used_in = os.getpid()
        atexit.register(_settle)
    return _first_used_in == os.getpid()


def _settle() -> None:
    """Let obstore's threads leave the interpreter.

    One that has just delivered an answer may wait for the interpreter to return from that; if it ends meanwhile, the
    thread is unwound through Rust, and that aborts a process which had done all its work.
    """
    end = clock.monotonic() + 1.0
    while set(sys._current_frames()) - {thread.ident for thread in threading.enumerate()} and clock.monotonic() < end:
        clock.sleep_blocking(0.001)


class ObjectStore(RemoteStore):
    """Objects of a bucket or container, under a prefix.

    Args:
        store: An obstore store, such as ``obstore.store.S3Store``.
        prefix: Begins every key, after the prefix that ``store`` may have; empty, or ending with ``/``.
        concurrency: Requests in flight at the most; 256, and up to 512 while the service answers quickly, if 0.
        missing: HTTP statuses beside 404 that mean that there is no such key when it is read: 403 for buckets that
            answer so to those who may not list them, 401.
        instead: Makes the store to use where obstore does not work: in forks of processes that have used it.

    Raises:
        ValueError: If ``missing`` has another status.
    """

    _other: Store | None
    _once: _Once | None = None

    def __init__(
        self,
        store: Any,
        *,
        prefix: str = "",
        concurrency: int = 0,
        missing: Iterable[int] = (),
        instead: Callable[[], Store] | None = None,
    ) -> None:
        self._instead, self._other = instead, None
        self.missing = statuses(missing) - {404}
        if self.missing - {401, 403}:
            raise ValueError(f"missing takes 401, 403 and 404, found {sorted(self.missing)}")
        self.settings = config.get()
        self.store, self.prefix = store, check_prefix(prefix)
        disabled = dict(getattr(store, "config", {})).get("conditional_put") == "disabled"
        self.conditional = not disabled and type(store).__name__ not in ("LocalStore", "HTTPStore")
        self.usual, self.concurrency = in_flight(concurrency or self.settings.concurrency)
        self._service = self._find_service()
        self._bucket = self._find_bucket()
        self._signed = self._by_urls()

    @classmethod
    def from_url(
        cls, url: str, storage_options: Mapping[str, Any] | None = None, *, instead: Callable[[], Store] | None = None
    ) -> ObjectStore:
        """The store of an ``s3://``, ``gs://``, ``az://`` or ``abfs://`` URL.

        Args:
            url: The URL.
            storage_options: As fsspec's filesystems take them (``key``, ``secret``, ``token``, ``anon``,
                ``endpoint_url``, ``client_kwargs``, ``account_name``, …), or obstore's own names of settings.
            instead: Makes the store to use where obstore does not work.

        Raises:
            ValueError: If the URL or an option has no counterpart in obstore; ``backend="fsspec"`` takes it.
            InvalidKeyError: If the URL's path can not be that of keys.
            ImportError: If obstore is not installed.
        """
        settings = config.get()
        options = dict(storage_options or {})
        concurrency, missing = int(options.pop("concurrency", 0)), options.pop("missing", ())
        found = translate(url, options)
        if found is None:
            raise ValueError(
                f"obstore has no counterpart of {without_queries(url)!r} with the storage options {sorted(options)}; "
                "use backend='fsspec'"
            )
        client = {"timeout": f"{settings.request_timeout or 3600:.6f}s", **found.pop("client_options", {})}
        retry = {"max_retries": settings.retries, "retry_timeout": timedelta(seconds=settings.total_timeout or 3600)}
        parts = urlsplit(url)
        path = parts.path.strip("/")  # as it stands, like fsspec's; no segment is empty, says ``translate``
        return cls(
            _bucket(f"{parts.scheme}://{parts.netloc}", found, client, retry),
            prefix=f"{path}/" if path else "",
            concurrency=concurrency,
            missing=missing,
            instead=instead,
        )

    @property
    def _tag(self) -> str:
        """What obstore calls that by which the service compares versions: Google's knows them by number."""
        return "version" if type(self.store).__name__ == "GCSStore" else "e_tag"

    def _by_urls(self) -> PerLoop[SignedRequests | None]:
        return PerLoop(partial(SignedRequests.make, self.store, self.settings, self.missing), _leave)

    @property
    def identity(self) -> Hashable:
        return (*self._service, self._path("").rstrip("/"))

    @property
    def viewer(self) -> Hashable:
        config = dict(getattr(self.store, "config", {}))
        told = tuple(f"{name}={config[name]}" for name in _WHO if name in config)
        return told or from_environment(KEYS.get(_KINDS.get(type(self.store).__name__, ""), ()))

    @property
    def lasting(self) -> bool:
        return self.portable

    @property
    def portable(self) -> bool:
        return type(self.store).__name__ != "MemoryStore"

    def _path(self, key: str) -> str:
        """Where a key lies in the bucket."""
        own = getattr(self.store, "prefix", None) or ""
        return f"{own}/{self.prefix}{key}" if own else f"{self.prefix}{key}"

    def _known(self) -> dict[str, str]:
        """Settings that say what a key is a key in, as they are now: the environment may change."""
        config = dict(getattr(self.store, "config", {}))
        known = {name: str(config[name]) for name in _PLACE if name in config}
        for name, variables in _AROUND.get(type(self.store).__name__, {}).items():
            known.setdefault(name, from_environment(variables))
        return {name: value for name, value in known.items() if value}

    def _find_service(self) -> tuple[str, ...]:
        """What keys are keys in."""
        kind = type(self.store).__name__
        parts = tuple(f"{name}={value}" for name, value in sorted(self._known().items()))
        if not parts:
            parts = (str(id(self.store)),) if kind == "MemoryStore" else (repr(self.store),)
        return (kind, *parts)

    def _find_bucket(self) -> tuple[str, ...]:
        """The service, endpoint and bucket in words that are those of fsspec's filesystems, too; nothing for others."""
        known, kind = self._known(), _KINDS.get(type(self.store).__name__, "")
        if kind not in ("s3", "gcs") or "bucket" not in known:
            return ()
        return (kind, same_endpoint(known.get("endpoint") or known.get("base_url")), known["bucket"])

    def location(self, key: str) -> Hashable:
        if not self._bucket:
            return (*self._service, self._path(key))
        return (*self._bucket[:2], f"{self._bucket[2]}/{self._path(key)}")

    def limiter(self) -> Any:
        return request_limiter(self._service, self.usual, self.concurrency)

    def __repr__(self) -> str:
        below = f", prefix={self.prefix!r}" if self.prefix else ""
        return f"ObjectStore({without_queries(repr(self.store))}{below})"

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "conditional",
            "settings",
            "store",
            "prefix",
            "usual",
            "concurrency",
            "missing",
            "_instead",
            "_service",
            "_bucket",
        )
        return {"_other": None, **{name: getattr(self, name) for name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._signed = self._by_urls()

    def _elsewhere(self) -> Store | None:
        """The store to use in the place of this one, in a process in which obstore does not work."""
        if usable():
            return None
        if self._instead is None:
            raise StoreError(
                f"{self!r} can not be used here: obstore was used before this process was forked, and its threads did "
                "not come along; start processes by spawn, or pass backend='fsspec'"
            )
        if self._other is None:
            self._other = self._instead()
        return self._other

    async def close(self) -> None:
        await self._signed.close()
        if self._other is not None:
            await self._other.close()

    async def _call(self, key: str, verb: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """An answer of obstore's, which retries by itself; ``None`` for an absent key."""
        gate = self.limiter()
        await gate.acquire()
        begin = clock.monotonic()
        try:
            try:
                answer = await asked(make, verb)
            except Exception as error:
                if not self._means_absent(error, verb):
                    raise
                answer = None
            gate.on_success(clock.monotonic() - begin)
            return answer
        except WriteConflictError:
            raise
        except Exception as error:
            gate.on_failure()
            failure = store_error(error, key, verb, self)
            again = _RETRIES.search(str(error))
            failure.attempts += int(again[1]) if again else 0
            raise failure from error
        finally:
            gate.release()

    def _means_absent(self, error: Exception, verb: str) -> bool:
        if isinstance(error, FileNotFoundError):
            return verb != "write" and not lacks_bucket(error)
        return verb == "read" and _status(error) in self.missing and tells_of_key(error)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        if (other := self._elsewhere()) is not None:
            return await other.fetch(requests, versions=versions)
        signed, targets = await self._sign("GET", "read", [request.key for request in requests])
        work = zip(requests, targets, strict=True)
        return await gather([partial(self._fetch_one, request, versions, signed, target) for request, target in work])

    async def _fetch_one(
        self, request: Request, versions: bool, signed: SignedRequests | None, target: str
    ) -> Value | None:
        found: Value | None
        if signed is not None:
            with suppress(Unfit):  # obstore can do more, and knows what to say
                found = await self._request(request.key, "read", partial(signed.get, target, request))
                return found
        found = await self._call(request.key, "read", partial(self._get, request, versions))
        return found

    async def _sign(self, method: str, verb: str, keys: Sequence[str]) -> tuple[SignedRequests | None, Sequence[str]]:
        """What to ask for values by; by nothing where obstore is to ask."""
        try:
            signed = await self._signed.get() if keys else None
            if signed is None or not signed.takes(method) or not all(map(str.isprintable, keys)):
                return None, [""] * len(keys)
            return signed, await signed.sign(method, [self.prefix + key for key in keys])
        except Exception as error:  # obstore finds no keys, or panics
            raise store_error(error, keys[0], verb, self) from error

    async def _get(self, request: Request, versions: bool) -> Value | None:
        import obstore

        path = self.prefix + request.key
        if request.suffix and type(self.store).__name__ == "AzureStore":  # which has no ranges from the end
            meta = await obstore.head_async(self.store, path)
            count = min(request.length or 0, meta["size"])
            request = request._replace(start=meta["size"] - count, length=count, suffix=False)
        start, length = request.start, request.length
        plain = not request.suffix and length is not None and length > 0 and not versions
        try:
            if plain:
                return Value(memoryview(await obstore.get_range_async(self.store, path, start=start, length=length)))
            options: Any = {}
            if request.suffix:
                options["range"] = {"suffix": max(length or 0, 1)}
            elif length is not None:
                options["range"] = (start, start + max(length, 1))
            elif start:
                options["range"] = {"offset": start}
            answer = await obstore.get_async(self.store, path, options=options)
            data = memoryview(await answer.bytes_async())
        except FileNotFoundError:
            raise
        except Exception as error:
            return await self._past_end(request, error)
        meta = answer.meta
        if length is not None:
            data = data[len(data) - min(length, len(data)) :] if request.suffix else data[:length]
        return Value(data, meta.get(self._tag), meta["size"])

    async def _past_end(self, request: Request, error: Exception) -> Value | None:
        """A range that lies past the end has no bytes; obstore calls that a failure like any other."""
        import obstore

        if not request.suffix and not request.start and request.length is None:
            raise error
        meta = await obstore.head_async(self.store, self.prefix + request.key)
        size = meta["size"]
        if request.start >= size or size == 0:
            return Value(b"", meta.get(self._tag), size)
        raise error

    # -------------------------------------------------------------- writing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        if (other := self._elsewhere()) is not None:
            try:
                return await other.put(key, data, if_version=if_version)
            finally:
                self.conditional = other.conditional
        if if_version is None and memoryview(data).nbytes <= _SMALL:
            signed, (target,) = await self._sign("PUT", "write", [key])
            if signed is not None:
                with suppress(Unfit):
                    return await self._request(key, "write", partial(signed.put, target, bytes(data)))
        value: Any = data if stays(data) else bytes(data)
        if if_version is None:
            return await self._call(key, "write", partial(self._put, key, value, self.store, {}))
        return await self._put_once(partial(self._put_if, key, value), partial(self._look, key), if_version)

    async def _put(self, key: str, value: Any, store: Any, options: dict[str, Any]) -> object:
        import obstore

        large = len(value) > 64 << 20
        answer = await obstore.put_async(store, self.prefix + key, value, use_multipart=large, **options)
        return answer.get(self._tag)

    async def _put_if(self, key: str, value: Any, expected: object, mark: str) -> object:
        """Store a value in the place of another one, or of none."""
        try:
            return await self._call(key, "write", partial(self._replace, key, value, expected, mark))
        except WriteConflictError:
            raise
        except StoreError as error:
            status = _answered(error.__cause__)
            if status == UNABLE or "<Code>NotImplemented</Code>" in str(error.__cause__):
                raise self._without_conditions() from error
            if status in SLOW_DOWN:
                self.limiter().on_overload()
            if status in UNDONE or (status is None and type(error.__cause__).__name__ == "GenericError"):
                raise Unsure(error, answered=status is not None) from error.__cause__
            raise

    async def _replace(self, key: str, value: Any, expected: object, mark: str) -> object:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if self._once is None:
            self._once = _Once.of(self.store)
        mode = "create" if expected is ABSENT else {self._tag: expected}
        try:
            return await self._put(key, value, self._once.once, {"mode": mode, "attributes": {MARK: mark}})
        except (AlreadyExistsError, PreconditionError, FileExistsError) as error:
            if _answered(error) in UNDONE:
                raise
            changed: Exception = error
        except FileNotFoundError as error:
            if expected is ABSENT or lacks_bucket(error):
                raise
            changed = error  # the value that was to be replaced is gone
        raise WriteConflictError(f"{key!r} was changed meanwhile", key=key) from changed

    async def _look(self, key: str) -> Present | None:
        """What is there, and which write it comes from."""
        found: Present | None = await self._call(key, "read", partial(self._attributes, key))
        return found

    async def _attributes(self, key: str) -> Present:
        import obstore

        answer = await obstore.get_async(self.store, self.prefix + key, options={"range": (0, 1)})
        attributes: Mapping[str, Any] = answer.attributes
        return Present(answer.meta.get(self._tag), attributes.get(MARK))

    async def erase(self, key: str, *, if_version: object = None) -> None:
        if if_version is not None:
            raise self._unable("compare versions when erasing")
        await self.erase_values([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        import obstore

        if (other := self._elsewhere()) is not None:
            await other.erase_values(keys)
            return
        keys = list(keys)
        for start in range(0, len(keys), _BULK):
            paths = [self.prefix + key for key in keys[start : start + _BULK]]
            await self._call(keys[start], "erase", partial(obstore.delete_async, self.store, paths))

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        if (other := self._elsewhere()) is not None:
            return await other.list_prefix(prefix)
        return list(await self.list_sizes(prefix))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        if (other := self._elsewhere()) is not None:
            return await other.list_sizes(prefix)
        check_prefix(prefix)
        found: dict[str, int] = await self._call(prefix, "list", partial(self._list, prefix))
        return found

    async def _list(self, prefix: str) -> dict[str, int]:
        import obstore

        wanted, start = self.prefix + prefix, len(self.prefix)
        found: dict[str, int] = {}
        async for batch in obstore.list(self.store, wanted or None, chunk_size=1000):
            found.update({meta["path"]: meta["size"] for meta in batch})
        return {path[start:]: size for path, size in found.items() if path.startswith(wanted)}

    async def list_dir(self, prefix: str) -> Listing:
        import obstore

        if (other := self._elsewhere()) is not None:
            return await other.list_dir(prefix)
        check_prefix(prefix)
        wanted, start = (self.prefix + prefix) or None, len(self.prefix)
        answer = await self._call(prefix, "list", partial(obstore.list_with_delimiter_async, self.store, wanted))
        keys = sorted(meta["path"][start:] for meta in answer["objects"]) if answer else []
        prefixes = sorted(f"{path[start:].rstrip('/')}/" for path in answer["common_prefixes"]) if answer else []
        return Listing(tuple(keys), tuple(prefixes))


async def _leave(signed: SignedRequests | None) -> None:
    if signed is not None:
        signed.leave()


_PLACE = ("bucket", "container_name", "account_name", "endpoint", "base_url", "use_emulator")
"""Settings of obstore's that say what a key is a key in."""
_KINDS = {"S3Store": "s3", "GCSStore": "gcs", "AzureStore": "azure"}
_WHO = ("access_key_id", "account_name", "client_id", "service_account", "skip_signature", "sas_key")
"""Settings of obstore's that say who asks, if anything does."""
_AROUND: dict[str, dict[str, tuple[str, ...]]] = {
    "S3Store": {"endpoint": ENDPOINTS},
    "AzureStore": {"account_name": ("AZURE_STORAGE_ACCOUNT_NAME",)},
}
"""Where obstore finds the like if nothing was set, without showing it."""


_buckets: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
_latest: deque[Any] = deque(maxlen=1)
"""Kept though nobody uses it now: who opens one array after the other uses it again. More would keep connections, too."""


def _bucket(url: str, options: dict[str, Any], client: dict[str, Any], retry: dict[str, Any]) -> Any:
    """An obstore store of a whole bucket; the same one for the same settings in the same environment.

    To make one takes 15 ms, and each has connections, and credentials, of its own. Google's default ones are in files,
    which may be replaced, so that each store reads them anew.
    """
    from obstore.store import from_url

    open_url: Any = from_url  # which settings there are depends on the URL
    where = url.replace("s3a://", "s3://").replace("gcs://", "gs://")

    config = {name: value for name, value in options.items() if name != PROVIDER}
    keys = {PROVIDER: options[PROVIDER]} if PROVIDER in options else {}

    def make() -> Any:
        try:
            return open_url(where, config=config, client_options=client, retry_config=retry, **keys)
        except Exception as error:
            raise ValueError(f"{url!r} can not be opened: {plain_text(error)}") from error

    try:
        name = (where, *(frozenset(told.items()) for told in (options, client, retry, os.environ)))
    except TypeError:  # a setting that can not be compared, such as headers
        return make()
    if where.startswith("gs://") and options.keys().isdisjoint(("google_skip_signature", PROVIDER)):
        return make()
    found = _buckets.get(name)
    if found is None:
        found = _buckets[name] = make()
    _latest.append(found)
    return found


class _Once:
    """An obstore store that makes each request once, beside the one that it is like; one for all who write through that.

    If an answer is lost, another attempt would find what the first one has stored, and take it for somebody else's.
    """

    _known: ClassVar[weakref.WeakValueDictionary[int, _Once]] = weakref.WeakValueDictionary()
    _latest: ClassVar[deque[_Once]] = deque(maxlen=1)

    def __init__(self, store: Any) -> None:
        self._store = self.once = store  # which lives as long as this, so that nothing else gets its number
        if hasattr(store, "__getnewargs_ex__"):  # those in memory are made of nothing
            arguments, options = store.__getnewargs_ex__()
            self.once = type(store)(*arguments, **{**options, "retry_config": {"max_retries": 0}})

    @classmethod
    def of(cls, store: Any) -> _Once:
        """That of a store, which is made if there is none yet."""
        found = cls._known.get(id(store))
        if found is None:
            found = cls._known[id(store)] = cls(store)
        cls._latest.append(found)
        return found


def _answered(error: BaseException | None) -> int | None:
    """The HTTP status of the answer that an error of obstore's tells of; ``None`` if there was none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _status(error: Exception) -> int:
    """The HTTP status that one of obstore's errors stands for, where it may mean absence."""
    if "credential provider" in str(error):  # nothing was asked for, as there are no keys
        return 0
    return {"PermissionDeniedError": 403, "UnauthenticatedError": 401}.get(type(error).__name__, 0)
