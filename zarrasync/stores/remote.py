"""Common parts of stores behind a network: an adaptive request limit, retries, timeouts, conditional writes."""

from __future__ import annotations

import asyncio
import builtins
import math
import operator
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import RetryCounts
from zarrasync._concurrency.cancel import shielded
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import bounding, current_bound, request_bound
from zarrasync._concurrency.semaphores import FifoSemaphore, Held
from zarrasync._util.memory import BudgetExceeded
from zarrasync._util.redact import redact
from zarrasync.config import Config
from zarrasync.errors import ConditionsUnsupported, StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.stores.base import Store
from zarrasync.stores.errors import store_error
from zarrasync.stores.values import ABSENT, Request, Value
from zarrasync.stores.wrappers import HookedStore, WrapperStore

T = TypeVar("T")
R = TypeVar("R")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_CHANGES = ("write", "erase")
_MOST_LEVELS = 64
"""Maximum depth of directories below one that is listed."""
_INITIAL_LIMIT, _MAXIMUM_LIMIT = 256, 512


def request_limits(concurrency: int) -> tuple[int, int]:
    """Return the initial and the maximum number of requests in flight.

    A request may need a file descriptor, of which some systems allow few per process. Half of them are left to others.

    Args:
        concurrency: The user's limit; 0 for the default.
    """
    if concurrency:
        return concurrency, concurrency
    try:
        import resource
    except ImportError:  # Windows, where sockets are not file descriptors
        return _INITIAL_LIMIT, _MAXIMUM_LIMIT
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    maximum = _MAXIMUM_LIMIT if descriptors == resource.RLIM_INFINITY else max(descriptors // 2, 1)
    return min(_INITIAL_LIMIT, maximum), min(_MAXIMUM_LIMIT, maximum)


REFUSALS = frozenset({401, 403})
"""Statuses of services that do not report whether a key exists."""


def missing_statuses(statuses: Iterable[int], possible: frozenset[int] | None = None) -> frozenset[int]:
    """Return the HTTP statuses that the user has chosen to mean absence, besides 404.

    Args:
        statuses: The option ``missing``.
        possible: The statuses that the store distinguishes, besides 404; all by default.

    Raises:
        ValueError: If one is not an integer from 400 to 499, or is not possible.
    """
    try:
        checked = frozenset(map(operator.index, statuses if isinstance(statuses, Iterable) else [statuses]))
    except TypeError:
        checked = frozenset({0})
    if not all(400 <= status < 500 for status in checked):
        raise ValueError(f"missing must contain HTTP statuses from 400 to 499, such as [403], found {statuses!r}")
    checked -= {404}
    if possible is not None and checked - possible:
        raise ValueError(f"missing may contain only 401, 403 and 404, found {sorted(checked)}")
    return checked


async def run_request(make: Callable[[], Awaitable[T]], verb: str, seconds: float = 0.0) -> T:
    """Return the result of a request. Changes are not interrupted, because they may still take effect later.

    Args:
        make: Makes the request.
        verb: What the request does: "write" and "erase" are changes.
        seconds: Timeout; 0 for no limit.

    Raises:
        TimeoutError: If it takes longer.
    """
    attempt = partial(_within, make, seconds) if seconds else make
    return await (shielded(attempt) if verb in _CHANGES else attempt())


async def _within(make: Callable[[], Awaitable[T]], seconds: float) -> T:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await make()
    except TimeoutError as error:
        if limit.expired():
            raise TimeoutError(f"no answer within {seconds:.3g} s") from error
        raise


class TransientError(Exception):
    """A failed request that may succeed when it is repeated.

    Attributes:
        reason: The failure, for messages.
        slow_down: Whether the server bears fewer requests.
        retry_after: Seconds that the server asked to wait; 0 if it did not.
    """

    def __init__(self, reason: str, *, slow_down: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.slow_down, self.retry_after = reason, slow_down, retry_after


def connection_failure(error: Exception, *resets: type[Exception]) -> TransientError:
    """Return the error for a connection that cannot be made or was lost.

    A server with too many connections resets or refuses some.

    Args:
        error: The error.
        resets: Types of errors that mean so, besides ``ConnectionError``.
    """
    reason = f"{type(error).__name__}: {redact(str(error))}"
    return TransientError(reason, slow_down=isinstance(error, (ConnectionError, *resets)))


class UnknownOutcome(Exception):
    """A conditional write that failed so that it is unknown whether it took effect.

    Attributes:
        failure: The error to raise if it did not take effect and is not repeated.
        answered: Whether the service responded at all. If it did, the write very probably had no effect.
    """

    def __init__(self, failure: StoreError, *, answered: bool) -> None:
        super().__init__(str(failure))
        self.failure, self.answered = failure, answered


WRITE_MARK = "zarrasync"
"""Name of the object metadata that identifies the conditional write which stored a value."""


class CurrentValue(NamedTuple):
    """The version of a stored value, and the mark of the write that stored it, if it has one."""

    version: object
    mark: str | None


class RemoteStore(Store):
    """A store behind a network.

    Attributes:
        settings: Retries and timeouts, captured when the store was made.
        initial_concurrency: Initial number of requests in flight; it grows up to ``concurrency`` while the server responds quickly.
    """

    limits_requests = True
    settings: Config
    initial_concurrency: int
    _unquoted_tags: bool | None = None
    """Whether the service compares entity tags without their quotes; ``None`` while unknown."""

    async def _put_if_unchanged(
        self,
        put: Callable[[object, str], Awaitable[object]],
        look_up: Callable[[], Awaitable[CurrentValue | None]],
        expected: object,
    ) -> object:
        """Replace one version of a value by another (compare-and-swap), and return the new version.

        If the response to a write is lost, the write must not simply be repeated, or ``append`` would append twice.
        Each write stores a random mark in the value's metadata, by which a retry recognises it. The mark is also looked up
        after a conflict, because a proxy may have repeated the request, which then conflicts with itself.

        Older Ceph gateways send entity tags in quotes but compare them without. If such a gateway reports a conflict
        although the version has not changed, the write is repeated with the unquoted tag.

        Args:
            put: Stores the value if its version is the given one, with a mark. Raises ``UnknownOutcome`` if it is
                unknown whether it took effect.
            look_up: Returns the current version and mark.
            expected: The version to replace; ``ABSENT`` to create.

        Raises:
            WriteConflictError: If the current version is another one.
            ConditionsUnsupported: If the service does not support conditional writes.
            StoreError: If the value was not stored, or the outcome stays unknown.
        """
        if not self.conditional:
            raise self._conditions_unsupported()
        mark, start, pause, attempts = secrets.token_hex(8), clock.monotonic(), _FIRST_PAUSE, 0
        unquoted = expected.strip('"') if isinstance(expected, str) else expected
        version = unquoted if self._unquoted_tags else expected
        unknown: UnknownOutcome | None = None
        while True:
            attempts += 1
            try:
                new_version = await put(version, mark)
            except UnknownOutcome as error:
                unknown, current = error, await _try_look_up(look_up)
                if current is None:
                    raise unknown.failure from unknown.failure.__cause__
            except WriteConflictError:
                current = await _try_look_up(look_up)
                if current is not None and current.mark == mark:  # it arrived twice, or an earlier attempt late
                    return current.version
                may_compare_unquoted = unknown is None and self._unquoted_tags is None and version != unquoted
                if current is None or not may_compare_unquoted or current.version != expected:
                    raise
                version = unquoted
                continue
            else:
                if unquoted != expected:
                    self._unquoted_tags = version == unquoted
                return new_version
            if current.mark == mark:
                return current.version
            failure = unknown.failure
            if current.version != expected and unknown.answered:
                raise self._conflict(failure.key)
            timeout = self.settings.total_timeout
            expired = timeout and clock.monotonic() - start + pause > timeout
            if current.version != expected or attempts > self.settings.retries or expired:
                raise failure from failure.__cause__
            RetryCounts.count("retries")
            await clock.current().sleep(clock.current().uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _list_below(self, prefix: str) -> builtins.list[str]:
        """List the keys below a prefix, with a listing for each directory."""
        keys, level, depth = list[str](), [prefix], 0
        while level:
            listings = await gather([partial(self.list_dir, directory) for directory in level])
            keys.extend(key for listing in listings for key in listing.keys)
            level = [directory for listing in listings for directory in listing.prefixes]
            depth += 1
            if level and depth >= _MOST_LEVELS:  # a server may list a directory inside of itself
                raise StoreError(
                    f"could not list {prefix or '/'!r} in {self!r}: more than {_MOST_LEVELS} levels of directories",
                    key=prefix,
                )
        return keys

    def _conditions_unsupported(self) -> ConditionsUnsupported:
        """Return the error for a service without conditional writes, and remember that it has none."""
        self.conditional = False
        return ConditionsUnsupported(
            f"{self!r} cannot compare versions: the service ignores or rejects conditional writes; let one process write "
            "at a time, with config.unaligned='allow'"
        )

    async def _request(self, key: str, verb: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a request, repeating it after transient failures within the limits of the settings.

        Args:
            key: The key, for messages.
            verb: What the request does, for messages.
            make: Makes one attempt. Raises ``TransientError`` if repeating it may help.

        Raises:
            StoreError: With the key, and the number of attempts and the last failure if it was repeated.
        """
        settings, semaphore = self.settings, self.limiter()
        now = clock.current().monotonic
        attempts, elapsed, pause = 0, 0.0, _FIRST_PAUSE  # elapsed: without the time spent waiting for the semaphore
        while True:
            attempts += 1
            await semaphore.acquire()
            start = now()
            try:
                remaining = settings.total_timeout - elapsed if settings.total_timeout else math.inf
                timeout = min(settings.request_timeout or math.inf, remaining)
                result = await run_request(make, verb, 0.0 if timeout == math.inf else timeout)
            except TransientError as error:
                last_error: Exception = error
                (semaphore.on_overload if error.slow_down else semaphore.on_failure)()
            except TimeoutError as error:
                last_error = error
                semaphore.on_failure()
            except (BudgetExceeded, MemoryError) as error:
                raise store_error(error, key, verb, self) from error
            except StoreError as error:
                if error.key or isinstance(error, UnsupportedOperation):
                    raise
                raise StoreError(f"could not {verb} {key!r} in {self!r}: {error}", key=key) from error
            else:
                semaphore.on_success(now() - start)
                return result
            finally:
                semaphore.release()
            elapsed += now() - start
            wait = max(getattr(last_error, "retry_after", 0.0), clock.current().uniform(0.5, 1.0) * pause)
            expired = settings.total_timeout and elapsed + wait > settings.total_timeout
            if attempts > settings.retries or expired:
                raise StoreError(
                    f"could not {verb} {key!r} in {self!r}: {last_error} (attempt {attempts}, after {elapsed:.1f} s); "
                    f"{_hint(last_error)}",
                    key=key,
                    attempts=attempts,
                ) from last_error
            elapsed += wait
            RetryCounts.count("retries")
            await clock.current().sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _hint(failure: Exception) -> str:
    """Return what users can do about a request that has failed at every attempt."""
    if isinstance(failure, TimeoutError):
        return "check the connection, or raise config.request_timeout"
    return "try again later" if "the server answered" in str(failure) else "check the URL and the connection"


async def _try_look_up(look_up: Callable[[], Awaitable[CurrentValue | None]]) -> CurrentValue | None:
    """Return the current version and mark, or ``None`` if looking them up failed."""
    try:
        return await look_up() or CurrentValue(ABSENT, None)
    except StoreError:
        return None


# ------------------------------------------------------------------ limits on requests in flight


_TOGETHER = 16
"""Maximum number of keys that one call passes to the inner store, because the first ones wait for the last one."""
_UNBOUNDED = FifoSemaphore(1 << 62)
"""Inside an operation that has a permit, so that it does not wait for a second one."""


def bounded(store: Store, limit: int) -> Store:
    """Return a store with at most ``limit`` requests in flight, together with all such stores over the same data.

    A store whose limiter is stricter, and one whose requests are calls on threads, are returned unchanged.

    Args:
        store: The store.
        limit: The limit; 0 for the store's own.
    """
    if isinstance(store, BoundedStore):
        store = store.inner
    inner = store
    while isinstance(inner, WrapperStore) and not isinstance(inner, BoundedStore):
        inner = inner.inner
    strictest = inner.concurrency if isinstance(inner, BoundedStore) or store.limits_requests else 0
    if strictest and (not limit or limit >= strictest):
        return store
    if store.blocking and (not limit or store.direct_files is not None):
        return store
    return BoundedStore(store, limit or store.concurrency)


class BoundedStore(HookedStore):
    """A store with a limit on requests in flight.

    If the store limits requests, they pass both limiters. Otherwise an operation counts as one request, and a
    batch as one for each key.

    Args:
        inner: The store.
        limit: Maximum number of requests in flight.
    """

    _is_shown = False

    def __init__(self, inner: Store, limit: int) -> None:
        super().__init__(inner)
        self.concurrency = limit

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        return await self._run(call)

    async def _run(self, operation: Callable[[], Awaitable[T]], requests: int = 1) -> T:
        semaphore, outer = request_bound(self.identity, self.concurrency), current_bound()
        if self.limits_requests:
            with bounding(semaphore if outer is None or outer.capacity > semaphore.capacity else outer):
                return await operation()
        if outer is _UNBOUNDED:
            return await operation()
        async with Held(semaphore, requests):
            with bounding(_UNBOUNDED):
                return await operation()

    async def _run_parts(
        self, operation: Callable[[Sequence[T]], Awaitable[R]], items: Sequence[T]
    ) -> builtins.list[R]:
        """Run an operation on parts of a batch."""
        if self.blocking or self.limits_requests:  # one after the other, or counted by the store
            return [await self._run(partial(operation, items))]
        most = max(1, min(_TOGETHER, self.concurrency // 4))
        parts = [items[start : start + most] for start in range(0, len(items), most)]
        return await gather([partial(self._run, partial(operation, part), len(part)) for part in parts])

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        parts = await self._run_parts(partial(self.inner.fetch, versions=versions), requests)
        return [value for part in parts for value in part]

    async def erase_values(self, keys: Iterable[str]) -> None:
        await self._run_parts(self.inner.erase_values, list(keys))

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        if self.sizes_listings or self.limits_requests:
            return await super().list_sizes(prefix)
        return await Store.list_sizes(self, prefix)
