"""Stores that count operations and bytes, and that trace and time operations."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._kernel.structs import Traffic
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.base import DirectFiles, Store, has_own_values
from zarrasync.stores.values import Value
from zarrasync.stores.wrappers import HookedStore

T = TypeVar("T")


@dataclass
class Counts:
    """Operations of a ``CountingStore``.

    Attributes:
        fetches: Number of values or byte ranges that were requested.
        absent: Number of these whose key was absent.
        puts: Number of stored values.
        erases: Number of erased values.
        lists: Number of listings.
        bytes_read: Number of bytes that were fetched.
        bytes_written: Number of bytes that were stored.
    """

    fetches: int = 0
    absent: int = 0
    puts: int = 0
    erases: int = 0
    lists: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def requests(self) -> int:
        """Number of operations of all kinds."""
        return self.fetches + self.puts + self.erases + self.lists


class CountingStore(HookedStore):
    """A store that counts operations and bytes.

    The compiled kernel reads long raw chunks of local files in several ranges, and each is a fetch.

    Args:
        inner: The store.
    """

    _is_shown = False
    _unshared = ("_lock", "_since_reset")

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._make_unshared()

    def _make_unshared(self) -> None:
        self._lock = thread_lock()
        self._since_reset = [Counts()]  # shared by the stores of transactions

    @property
    def counts(self) -> Counts:
        """Operations since the last ``reset``, in this process, with the operations of transactions."""
        return self._since_reset[0]

    def reset(self) -> Counts:
        """Set the counts to zero, and return the previous ones."""
        with self._lock:
            counts, self._since_reset[0] = self.counts, Counts()
        return counts

    def _add(self, **amounts: int) -> None:
        with self._lock:
            counts = self.counts
            for name, amount in amounts.items():
                setattr(counts, name, getattr(counts, name) + amount)

    @property
    def direct_files(self) -> DirectFiles | None:
        files = self.inner.direct_files
        if files is None or has_own_values(self, CountingStore):
            return None
        return files._replace(counter=partial(self._count_files, files.counter))

    def _count_files(self, inner: Callable[[Traffic], None] | None, traffic: Traffic) -> None:
        self._add(**traffic._asdict())
        if inner is not None:
            inner(traffic)

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        result = await call()
        values = _values_of(result) if operation == "fetch" else ()
        absent, bytes_read = sum(value is None for value in values), sum(map(_size, values))
        self._add(**{_COUNTED[operation]: len(keys)}, absent=absent, bytes_read=bytes_read, bytes_written=nbytes)
        return result

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        return await self._operate("fetch", keys, partial(self.inner.fetch_values, keys, spaces, limit))


_COUNTED = {"fetch": "fetches", "put": "puts", "erase": "erases", "list": "lists"}


def _values_of(result: Any) -> Sequence[Value | Buffer | None]:
    """Return the results of an operation that fetches values."""
    return result if isinstance(result, list) else [result]


def _size(value: Value | Buffer | None) -> int:
    return 0 if value is None else len(value.data) if isinstance(value, Value) else memoryview(value).nbytes


class Event(NamedTuple):
    """An operation of a store, after it has ended.

    Attributes:
        operation: ``"fetch"``, ``"put"``, ``"erase"`` or ``"list"``.
        keys: The keys or the prefix.
        nbytes: Size of the values, in bytes.
        seconds: Duration.
        error: The error that it failed with.
    """

    operation: str
    keys: tuple[str, ...]
    nbytes: int
    seconds: float
    error: BaseException | None = None


class Latencies:
    """Histogram of durations, with buckets whose limits double from one microsecond on.

    Attributes:
        total: Sum of all durations, in seconds.
    """

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self._buckets[max(0, int(seconds * 1e6)).bit_length()] += 1
        self.total += seconds

    def __len__(self) -> int:
        return self._buckets.total()

    def buckets(self) -> builtins.list[tuple[float, int]]:
        """Return pairs of an upper limit in seconds and the number of durations up to it."""
        pairs, count = [], 0
        for power in range(max(self._buckets, default=-1) + 1):
            count += self._buckets[power]
            pairs.append((2**power / 1e6, count))
        return pairs

    def quantile(self, share: float) -> float:
        """Return the duration in seconds that a share of the operations did not exceed, rounded up to a bucket's limit.

        Args:
            share: From 0 to 1.

        Raises:
            ValueError: If the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, found {share}")
        return next((limit for limit, count in self.buckets() if count >= share * len(self)), 0.0)

    def __repr__(self) -> str:
        if not len(self):
            return "<no operations>"
        shown = ", ".join(f"p{int(100 * q)} {1e3 * self.quantile(q):.3g} ms" for q in (0.5, 0.9, 0.99))
        return f"<{len(self)} operations, {shown}>"


class TracingStore(CountingStore):
    """A store that counts operations and bytes, and measures durations.

    Args:
        inner: The store.
        on_event: Called after each operation.
        spans: Whether to make an OpenTelemetry span for each operation, as a child of the current one.

    Attributes:
        latencies: Durations, by operation.

    Raises:
        ImportError: If ``spans`` is true and ``opentelemetry-api`` is not installed.
    """

    def __init__(self, inner: Store, *, on_event: Callable[[Event], object] | None = None, spans: bool = False) -> None:
        super().__init__(inner)
        self.on_event, self.spans = on_event, spans
        self.latencies: dict[str, Latencies] = {}
        if spans:
            tracer()

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        span: Any = nullcontext()
        if self.spans:
            attributes = {"zarrasync.store": repr(self.inner), "zarrasync.keys": tuple(keys)}
            span = tracer().start_as_current_span(f"zarrasync.{operation}", attributes=attributes)
        begin, error = clock.monotonic(), None
        try:
            with span as current:
                result = await super()._operate(operation, keys, call, nbytes)
                if operation == "fetch":
                    nbytes = sum(map(_size, _values_of(result)))
                if current is not None:
                    current.set_attribute("zarrasync.bytes", nbytes)
                return result
        except BaseException as failure:
            error = failure
            raise
        finally:
            seconds = clock.monotonic() - begin
            with self._lock:
                self.latencies.setdefault(operation, Latencies()).add(seconds)
            if self.on_event is not None:
                self.on_event(Event(operation, tuple(keys), nbytes, seconds, error))


def tracer() -> Any:
    """Return what makes spans of OpenTelemetry.

    Raises:
        ImportError: If ``opentelemetry-api`` is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError("spans need OpenTelemetry: pip install 'zarrasync[otel]'") from error
    return trace.get_tracer("zarrasync")
