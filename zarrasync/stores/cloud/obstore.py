"""A store over objects of S3, Google Cloud Storage or Azure, through obstore (bindings of Rust's object_store).

obstore signs and sends a request in a tenth of the time that botocore takes. It has its own threads and retries.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from zarrasync import config
from zarrasync._concurrency import clock
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import AdaptiveLimiter, request_limiter
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync._util.memory import is_immutable
from zarrasync._util.redact import redact
from zarrasync.codecs.spec import Buffer
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.model.paths import check_key, check_keys, check_prefix
from zarrasync.stores.base import Store
from zarrasync.stores.cloud.buckets import (
    UnretriedTwin,
    bucket_of,
    find_region,
    in_region,
    is_usable,
    is_viewer_lasting,
    kind_of,
    known_region,
    may_be_in_another_region,
    open_bucket,
    region_in,
    region_of,
    service_of,
    viewer_of,
)
from zarrasync.stores.cloud.objects import PresignedRequests, is_anonymous, look_up, read, url_access, version_field
from zarrasync.stores.cloud.storage_options import to_obstore
from zarrasync.stores.errors import (
    concerns_key,
    is_missing_bucket,
    refusal_status,
    response_status,
    retry_count,
    store_error,
)
from zarrasync.stores.http.responses import NOT_IMPLEMENTED, OVERLOAD, TRANSIENT_FOR_WRITES, UnsupportedResponse
from zarrasync.stores.remote import (
    REFUSALS,
    WRITE_MARK,
    CurrentValue,
    RemoteStore,
    UnknownOutcome,
    missing_statuses,
    request_limits,
    run_request,
)
from zarrasync.stores.values import ABSENT, Listing, Request, Value

_BULK_SIZE = 1000
"""Maximum number of keys in a request that erases objects."""
_SMALL = 1 << 20
"""Maximum size in bytes of a value that is stored by a presigned URL; obstore sends larger ones from its own threads."""
_MULTIPART = 64 << 20
"""Size in bytes above which a value is stored by a multipart upload."""
_PART, _PARTS_TOGETHER = 5 << 20, 12
"""Size in bytes of a part of such an upload, and the number of parts that obstore sends at the same time."""


class ObjectStore(RemoteStore):
    """Objects of a bucket or container, under a prefix.

    Args:
        store: An obstore store, such as ``obstore.store.S3Store``.
        prefix: Begins every key, after the prefix that ``store`` may have. Empty, or ending with ``/``.
        concurrency: Maximum number of requests in flight. 0 for 256, and up to 512 while the service responds quickly.
        missing: HTTP statuses of reads that mean absence, besides 404: 401, or 403, which S3 returns for absent
            objects if the user may not list the bucket.
        instead: Makes the store to use where obstore does not work: in forks of processes that have used it.

    Raises:
        ValueError: If ``missing`` contains another status.
    """

    _unretried: UnretriedTwin | None
    _unshared = ("_fallback_store", "_former", "_presigned", "_region", "_unretried")

    def __init__(
        self,
        store: Any,
        *,
        prefix: str = "",
        concurrency: int = 0,
        missing: Iterable[int] = (),
        instead: Callable[[], Store] | None = None,
    ) -> None:
        self._make_fallback = instead
        self.missing = missing_statuses(missing, REFUSALS)
        self.settings = config.get()
        self.prefix = check_prefix(prefix)
        self._service, self._bucket = service_of(store), bucket_of(store)
        disabled = dict(getattr(store, "config", {})).get("conditional_put") == "disabled"
        self.conditional = not disabled and kind_of(store) not in ("LocalStore", "HTTPStore")
        self.is_local = kind_of(store) in ("LocalStore", "MemoryStore")
        self.quick_listing = not self.is_local and kind_of(store) != "HTTPStore"
        self.initial_concurrency, self.concurrency = request_limits(concurrency or self.settings.concurrency)
        if kind_of(store) in ("S3Store", "GCSStore", "AzureStore"):
            self.access = "anonymous" if is_anonymous(store) else "credentials"
        self.store = in_region(store, region) if (region := known_region(store)) else store
        self._make_unshared()

    def _make_unshared(self) -> None:
        self._fallback_store: Store | None = None
        self._former: list[PerLoop[PresignedRequests | None]] = []
        self._make_clients()

    @classmethod
    def from_url(
        cls, url: str, storage_options: Mapping[str, Any] | None = None, *, instead: Callable[[], Store] | None = None
    ) -> ObjectStore:
        """Make a store from an ``s3://``, ``gs://``, ``az://`` or ``abfs://`` URL.

        Args:
            url: The URL. Its path is used verbatim, without percent-decoding.
            storage_options: Options of fsspec's filesystems (``key``, ``secret``, ``token``, ``anon``,
                ``endpoint_url``, ``client_kwargs``, ``account_name``, …) or settings of obstore.
            instead: Makes the store to use where obstore does not work.

        Raises:
            ValueError: If obstore has no equivalent of the URL or an option; ``backend="fsspec"`` supports them.
            InvalidKeyError: If the URL's path is not a valid prefix of keys.
            ImportError: If obstore is not installed.
        """
        settings = config.get()
        options = dict(storage_options or {})
        concurrency, missing = int(options.pop("concurrency", 0)), options.pop("missing", ())
        bucket_settings = to_obstore(url, options)
        if bucket_settings is None:
            raise ValueError(
                f"obstore has no counterpart of {redact(url)!r} with the storage options {sorted(options)}; "
                "use backend='fsspec'"
            )
        timeout = f"{settings.request_timeout or 3600:.6f}s"
        client_options = {"timeout": timeout, **bucket_settings.pop("client_options", {})}
        retry_timeout = timedelta(seconds=settings.total_timeout or 3600)
        retry_config = {"max_retries": settings.retries, "retry_timeout": retry_timeout}
        parts = urlsplit(url)
        path = parts.path.strip("/")
        return cls(
            open_bucket(f"{parts.scheme}://{parts.netloc}", bucket_settings, client_options, retry_config),
            prefix=f"{path}/" if path else "",
            concurrency=concurrency,
            missing=missing,
            instead=instead,
        )

    def _use(self, store: Any) -> None:
        """Use an obstore store instead of the present one. Requests that have begun end by its clients."""
        self.store = store
        self._former.append(self._presigned)
        self._make_clients()

    def _make_clients(self) -> None:
        make = partial(PresignedRequests.make, self.store, self.settings, self.missing, self.limiter())
        self._presigned = PerLoop[PresignedRequests | None](make, _close_presigned)
        self._region = PerLoop[str](partial(find_region, self.store), _keep)
        self._unretried = None

    @property
    def identity(self) -> Hashable:
        return (*self._service, self._full_path("").rstrip("/"))

    @property
    def viewer(self) -> Hashable:
        return viewer_of(self.store), *sorted(self.missing)

    @property
    def lasting_identity(self) -> bool:
        return self.shareable and is_viewer_lasting(self.store)

    @property
    def shareable(self) -> bool:
        return kind_of(self.store) != "MemoryStore"

    def _full_path(self, key: str) -> str:
        """Return the path of a key in the bucket, including the prefix of the obstore store."""
        prefix = getattr(self.store, "prefix", None) or ""
        return f"{prefix}/{self.prefix}{key}" if prefix else f"{self.prefix}{key}"

    def location(self, key: str) -> Hashable:
        if not self._bucket:
            return (*self._service, self._full_path(key))
        return (*self._bucket[:2], f"{self._bucket[2]}/{self._full_path(key)}")

    def limiter(self) -> AdaptiveLimiter:
        return request_limiter(self._service, self.initial_concurrency, self.concurrency, cautious=True)

    def __repr__(self) -> str:
        prefix = f", prefix={self.prefix!r}" if self.prefix else ""
        return f"ObjectStore({redact(repr(self.store))}{prefix})"

    def _fallback(self) -> Store | None:
        """Return the store to use instead of this one in a process where obstore does not work; otherwise ``None``."""
        if is_usable():
            return None
        if self._make_fallback is None:
            raise StoreError(
                f"{self!r} cannot be used here: obstore was used before this process was forked, and its threads do "
                "not exist in a fork; start processes by spawn, or pass backend='fsspec'"
            )
        if self._fallback_store is None:
            self._fallback_store = self._make_fallback()
        return self._fallback_store

    async def close(self) -> None:
        for clients in (self._presigned, *self._former):
            await clients.close()
        if self._fallback_store is not None:
            await self._fallback_store.close()

    async def _call(
        self, key: str, verb: str, make: Callable[[Any], Awaitable[Any]], *, requests: int = 1, is_limited: bool = True
    ) -> Any:
        """Return the result of a call of obstore, which retries internally; ``None`` for an absent key.

        Args:
            key: The key, for messages.
            verb: What the call does, for messages.
            make: Makes the call, with the obstore store as its argument.
            requests: The number of requests that it makes at the same time.
            is_limited: Whether ``total_timeout`` limits the call. Calls of many requests have a limit for each.
        """
        semaphore = self.limiter()
        await semaphore.acquire(requests)
        start = clock.monotonic()
        try:
            try:
                result = await self._in_region(make, verb, self.settings.total_timeout if is_limited else 0.0)
            except Exception as error:
                if not self._means_absent(error, verb):
                    raise
                result = None
            semaphore.on_success(clock.monotonic() - start)
            return result
        except WriteConflictError:
            raise
        except Exception as error:
            semaphore.on_failure()
            failure = store_error(error, key, verb, self)
            failure.attempts += retry_count(error)
            raise failure from error
        finally:
            semaphore.release(requests)

    async def _in_region(self, make: Callable[[Any], Awaitable[Any]], verb: str, seconds: float) -> Any:
        """Return the result of a call, which is repeated once if the bucket lies in another region than the store's.

        The service has refused the first call then, so repeating it is safe, also for conditional writes.
        """
        store = self.store
        try:
            # obstore's own limits do not include the time in which it looks for credentials.
            return await run_request(partial(make, store), verb, seconds)
        except Exception as error:
            if not await self._moves(store, error):
                raise
        return await run_request(partial(make, self.store), verb, seconds)

    async def _moves(self, store: Any, failure: Exception) -> bool:
        """Return whether a request failed because of the region of an obstore store, and use another one then.

        Args:
            store: The obstore store that made the request. Another request may have replaced it meanwhile.
            failure: The error of the request.
        """
        if not may_be_in_another_region(store, failure):
            return False
        if self.store is store:
            region = region_in(failure)
            if not region and not isinstance(
                failure, UnsupportedResponse
            ):  # obstore may succeed where the lean client fails
                region = await self._region.get()
            if self.store is store and region and region != region_of(store):
                self._use(in_region(store, region))
        return self.store is not store

    def _means_absent(self, error: Exception, verb: str) -> bool:
        if isinstance(error, FileNotFoundError):
            return verb != "write" and not is_missing_bucket(error)
        return verb == "read" and refusal_status(error) in self.missing and concerns_key(error)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        if (other := self._fallback()) is not None:
            return await other.fetch(requests, versions=versions)
        store = self.store
        presigned, targets = await self._sign("GET", "read", [request.key for request in requests])
        work = zip(requests, targets, strict=True)
        return await gather(
            [partial(self._fetch_one, request, versions, store, presigned, target) for request, target in work]
        )

    async def _fetch_one(
        self, request: Request, versions: bool, store: Any, presigned: PresignedRequests | None, target: str
    ) -> Value | None:
        value: Value | None
        if presigned is not None:
            try:
                value = await self._request(request.key, "read", partial(presigned.get, target, request))
                return value
            except UnsupportedResponse as error:
                await self._moves(store, error)
        make = partial(read, path=self.prefix + request.key, request=request, versions=versions)
        value = await self._call(request.key, "read", make)
        return value

    async def _sign(
        self, method: str, verb: str, keys: Sequence[str]
    ) -> tuple[PresignedRequests | None, Sequence[str]]:
        """Return presigned requests and the target of each key; ``None`` and empty strings if obstore must be used."""

        async def sign() -> tuple[PresignedRequests | None, Sequence[str]]:
            presigned = await self._presigned.get() if keys else None
            if presigned is None or not presigned.supports(method) or not all(map(str.isprintable, keys)):
                return None, [""] * len(keys)
            return presigned, await presigned.sign(method, [self.prefix + key for key in keys])

        try:
            return await run_request(sign, "read", self.settings.total_timeout)
        except Exception as error:  # obstore has no credentials, or panics
            raise store_error(error, keys[0], verb, self) from error

    async def presigned_url(self, key: str, seconds: float) -> str:
        """Return a URL by which anybody can read a value for some time; the plain URL if the store has no credentials.

        Args:
            key: The key, which need not exist.
            seconds: The time for which the URL is valid. It ends earlier if temporary credentials do.

        Raises:
            StoreError: If the credentials cannot sign URLs, such as a shared access signature of Azure.
        """
        import obstore

        check_key(key)
        path = self.prefix + key

        async def sign(store: Any) -> str:
            if is_anonymous(store) and (access := await url_access(store, self.settings)) is not None:
                return (await access.sign("GET", [path]))[0]
            return str(await obstore.sign_async(store, "GET", path, timedelta(seconds=seconds)))

        url: str = await self._call(key, "sign", sign)
        return url

    # -------------------------------------------------------------- writing

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        check_key(key)
        if (other := self._fallback()) is not None:
            try:
                return await other.put(key, data, if_version=if_version)
            finally:
                self.conditional = other.conditional
        if if_version is None and memoryview(data).nbytes <= _SMALL:
            store = self.store
            presigned, (target,) = await self._sign("PUT", "write", [key])
            if presigned is not None:
                try:
                    return await self._request(key, "write", partial(presigned.put, target, bytes(data)))
                except UnsupportedResponse as error:
                    await self._moves(store, error)
        value: Any = data if is_immutable(data) else bytes(data)
        if if_version is None:
            parts = min(-(-len(value) // _PART), _PARTS_TOGETHER, self.limiter().most) if len(value) > _MULTIPART else 1
            options = {"max_concurrency": parts} if parts > 1 else {}
            make = partial(self._put, key, value, options)
            return await self._call(key, "write", make, requests=parts, is_limited=parts == 1)
        return await self._put_if_unchanged(partial(self._put_if, key, value), partial(self._look_up, key), if_version)

    async def _put(self, key: str, value: Any, options: dict[str, Any], store: Any) -> object:
        import obstore

        multipart = len(value) > _MULTIPART
        answer = await obstore.put_async(store, self.prefix + key, value, use_multipart=multipart, **options)
        return answer.get(version_field(store))

    async def _put_if(self, key: str, value: Any, expected: object, mark: str) -> object:
        """Make one attempt at a conditional write."""
        try:
            return await self._call(key, "write", partial(self._put_version, key, value, expected, mark))
        except WriteConflictError:
            raise
        except StoreError as error:
            status = response_status(error.__cause__)
            if status == NOT_IMPLEMENTED or "<Code>NotImplemented</Code>" in str(error.__cause__):
                raise self._conditions_unsupported() from error
            if status in OVERLOAD:
                self.limiter().on_overload()
            no_response = status is None and type(error.__cause__).__name__ in ("GenericError", "TimeoutError")
            if status in TRANSIENT_FOR_WRITES or no_response:
                raise UnknownOutcome(error, answered=status is not None) from error.__cause__
            raise

    async def _put_version(self, key: str, value: Any, expected: object, mark: str, store: Any) -> object:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if self._unretried is None or self._unretried.original is not store:
            self._unretried = UnretriedTwin.of(store)
        mode = "create" if expected is ABSENT else {version_field(store): expected}
        options = {"mode": mode, "attributes": {WRITE_MARK: mark}}
        try:
            return await self._put(key, value, options, self._unretried.twin)
        except (AlreadyExistsError, PreconditionError, FileExistsError) as error:
            if response_status(error) in TRANSIENT_FOR_WRITES:
                raise
            conflict: Exception = error
        except FileNotFoundError as error:
            if expected is ABSENT or is_missing_bucket(error):
                raise
            conflict = error  # the expected value was erased
        raise self._conflict(key) from conflict

    async def _look_up(self, key: str) -> CurrentValue | None:
        """Return the current version of a value, and the mark of the write that stored it."""
        current: CurrentValue | None = await self._call(key, "read", partial(look_up, path=self.prefix + key))
        return current

    async def erase(self, key: str, *, if_version: object = None) -> None:
        if if_version is not None:
            raise self._unsupported("compare versions when erasing")
        await self.erase_values([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        import obstore

        keys = list(keys)
        check_keys(keys)
        if (other := self._fallback()) is not None:
            await other.erase_values(keys)
            return
        for start in range(0, len(keys), _BULK_SIZE):
            paths = [self.prefix + key for key in keys[start : start + _BULK_SIZE]]
            await self._call(keys[start], "erase", partial(obstore.delete_async, paths=paths))

    # -------------------------------------------------------------- listing

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        if (other := self._fallback()) is not None:
            return await other.list_prefix(prefix)
        return list(await self.list_sizes(prefix))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        if (other := self._fallback()) is not None:
            return await other.list_sizes(prefix)
        check_prefix(prefix)
        sizes: dict[str, int] = await self._call(prefix, "list", partial(self._list, prefix=prefix), is_limited=False)
        return sizes

    async def _list(self, store: Any, prefix: str, limit: int | None = None) -> dict[str, int]:
        """Return the sizes of values by key. If a limit is given, make no request after it is reached."""
        import obstore

        path_prefix, start = self.prefix + prefix, len(self.prefix)
        sizes: dict[str, int] = {}
        pages = aiter(obstore.list(store, path_prefix or None, chunk_size=limit or 1000))
        while (
            batch := await run_request(partial(anext, pages, None), "list", self.settings.total_timeout)
        ) is not None:
            found = {meta["path"]: meta["size"] for meta in batch}
            sizes.update({path[start:]: size for path, size in found.items() if path.startswith(path_prefix)})
            if limit is not None and len(sizes) >= limit:
                break
        return sizes

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        if (other := self._fallback()) is not None:
            return await other.list_few(prefix, limit)
        check_prefix(prefix)
        sizes: dict[str, int] | None = await self._call(
            prefix, "list", partial(self._list, prefix=prefix, limit=limit), is_limited=False
        )
        return None if sizes is None else list(sizes)

    async def list_dir(self, prefix: str) -> Listing:
        import obstore

        if (other := self._fallback()) is not None:
            return await other.list_dir(prefix)
        check_prefix(prefix)
        path_prefix, start = (self.prefix + prefix) or None, len(self.prefix)
        make = partial(obstore.list_with_delimiter_async, prefix=path_prefix)
        answer = await self._call(prefix, "list", make)
        keys = sorted(meta["path"][start:] for meta in answer["objects"]) if answer else []
        prefixes = sorted(f"{path[start:].rstrip('/')}/" for path in answer["common_prefixes"]) if answer else []
        return Listing(tuple(keys), tuple(prefixes))


async def _keep(region: str) -> None:
    """Do nothing to close the name of a region."""


async def _close_presigned(presigned: PresignedRequests | None) -> None:
    if presigned is not None:
        presigned.close()
