"""A store that counts operations and bytes."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from zarrasync._concurrency import clock
from zarrasync._concurrency.fork import thread_lock
from zarrasync._kernel.structs import Traffic
from zarrasync.codecs.spec import Buffer
from zarrasync.stores.base import Store
from zarrasync.stores.values import Listing, Request, Value
from zarrasync.stores.wrappers import WrapperStore

__all__ = ["CountingStore", "Counts", "Event", "Latencies", "TracingStore"]


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


class CountingStore(WrapperStore):
    """A store that counts operations and bytes.

    The compiled kernel reads long raw chunks of local files in several ranges, and each is a fetch.

    Args:
        inner: The store.
    """

    _is_shown = False

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._start()

    def _start(self) -> None:
        self._lock = thread_lock()
        self._since_reset = [Counts()]  # shared by the stores of transactions

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_since_reset")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    @property
    def counts(self) -> Counts:
        """Operations since the last ``reset``, in this process, with the operations of transactions."""
        return self._since_reset[0]

    def reset(self) -> Counts:
        """Set the counts to zero, and return the previous ones."""
        with self._lock:
            counts, self._since_reset[0] = self.counts, Counts()
        return counts

    def _count(self, **amounts: int) -> None:
        with self._lock:
            counts = self.counts
            for name, amount in amounts.items():
                setattr(counts, name, getattr(counts, name) + amount)

    @property
    def local_directory(self) -> bytes | None:
        return None if self.extends(CountingStore) else self.inner.local_directory

    @property
    def file_counter(self) -> Callable[[Traffic], None]:
        return self._count_files

    def _count_files(self, traffic: Traffic) -> None:
        self._count(**traffic._asdict())
        if (inner := self.inner.file_counter) is not None:
            inner(traffic)

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        values = await self.inner.fetch(requests, versions=versions)
        self._count(
            fetches=len(values),
            absent=sum(value is None for value in values),
            bytes_read=sum(len(value.data) for value in values if value is not None),
        )
        return values

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        values = await self.inner.fetch_values(keys, spaces, limit)
        absent = sum(value is None for value in values)
        self._count(fetches=len(values), absent=absent, bytes_read=sum(len(v) for v in values if v is not None))
        return values

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        version = await self.inner.put(key, data, if_version=if_version)
        self._count(puts=1, bytes_written=memoryview(data).nbytes)
        return version

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        await self.inner.put_values(keys, values)
        self._count(puts=len(keys), bytes_written=sum(memoryview(value).nbytes for value in values))

    async def erase(self, key: str, *, if_version: object = None) -> None:
        await self.inner.erase(key, if_version=if_version)
        self._count(erases=1)

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        await self.inner.erase_values(keys)
        self._count(erases=len(keys))

    async def erase_prefix(self, prefix: str) -> None:
        await self.inner.erase_prefix(prefix)
        self._count(erases=1)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        keys = await self.inner.list_prefix(prefix)
        self._count(lists=1)
        return keys

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        keys = await self.inner.list_few(prefix, limit)
        self._count(lists=1)
        return keys

    async def stat(self, key: str) -> Value | None:
        value = await self.inner.stat(key)
        self._count(fetches=1, absent=int(value is None))
        return value

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        sizes = await self.inner.list_sizes(prefix)
        self._count(lists=1)
        return sizes

    async def list_dir(self, prefix: str) -> Listing:
        listing = await self.inner.list_dir(prefix)
        self._count(lists=1)
        return listing


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
            _tracer()

    @contextmanager
    def _watch(self, operation: str, keys: Sequence[str]) -> Iterator[builtins.list[int]]:
        """Measure an operation. The block appends sizes of values to the list."""
        span: Any = nullcontext()
        if self.spans:
            attributes = {"zarrasync.store": repr(self.inner), "zarrasync.keys": tuple(keys)}
            span = _tracer().start_as_current_span(f"zarrasync.{operation}", attributes=attributes)
        nbytes, begin, error = list[int](), clock.monotonic(), None
        try:
            with span as current:
                yield nbytes
                if current is not None:
                    current.set_attribute("zarrasync.bytes", sum(nbytes))
        except BaseException as failure:
            error = failure
            raise
        finally:
            seconds = clock.monotonic() - begin
            with self._lock:
                self.latencies.setdefault(operation, Latencies()).add(seconds)
            if self.on_event is not None:
                self.on_event(Event(operation, tuple(keys), sum(nbytes), seconds, error))

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        with self._watch("fetch", [request.key for request in requests]) as nbytes:
            values = await super().fetch(requests, versions=versions)
            nbytes.extend(len(value.data) for value in values if value is not None)
            return values

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        with self._watch("fetch", keys) as nbytes:
            values = await super().fetch_values(keys, spaces, limit)
            nbytes.extend(memoryview(value).nbytes for value in values if value is not None)
            return values

    async def put_values(self, keys: Sequence[str], values: Sequence[Buffer]) -> None:
        with self._watch("put", keys) as nbytes:
            nbytes.extend(memoryview(value).nbytes for value in values)
            await super().put_values(keys, values)

    async def put(self, key: str, data: Buffer, *, if_version: object = None) -> object:
        with self._watch("put", [key]) as nbytes:
            nbytes.append(len(data))
            return await super().put(key, data, if_version=if_version)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        with self._watch("erase", [key]):
            await super().erase(key, if_version=if_version)

    async def erase_values(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        with self._watch("erase", keys):
            await super().erase_values(keys)

    async def erase_prefix(self, prefix: str) -> None:
        with self._watch("erase", [prefix]):
            await super().erase_prefix(prefix)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        with self._watch("list", [prefix]):
            return await super().list_prefix(prefix)

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        with self._watch("list", [prefix]):
            return await super().list_few(prefix, limit)

    async def stat(self, key: str) -> Value | None:
        with self._watch("fetch", [key]):
            return await super().stat(key)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        with self._watch("list", [prefix]):
            return await super().list_sizes(prefix)

    async def list_dir(self, prefix: str) -> Listing:
        with self._watch("list", [prefix]):
            return await super().list_dir(prefix)


def _tracer() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError("spans need OpenTelemetry: pip install 'zarrasync[otel]'") from error
    return trace.get_tracer("zarrasync")
