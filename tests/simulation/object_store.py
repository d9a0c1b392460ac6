"""An object store across an unreliable network, below the library's retries, limits and conditional writes.

What a service may do to a request, by the probabilities of ``Faults``: answer late, so that requests overtake each
other; lose the request; carry it out and lose the answer; carry it out twice; refuse it (409, 429, 500, 503); never
answer; carry out a conditional write long after its client has given up; list keys that are out of date. Values are
never out of date, as in the services that the library supports.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tests.simulation.history import History
from tests.simulation.scheduler import Client, Scheduler
from zarrasync import config
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import AdaptiveLimiter, request_limiter
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores.remote import CurrentValue, RemoteStore, TransientError, UnknownOutcome, run_request
from zarrasync.stores.values import ABSENT, Request, Value, clip

__all__ = ["Bucket", "Faults", "SimulatedStore"]

_OVERLOADED = (429, 503)
_PATIENCE = 4.9
"""Seconds for which the library waits for a change whose caller was cancelled."""


@dataclass(frozen=True)
class Faults:
    """Probabilities of what goes wrong with a request, and seconds that requests take.

    Attributes:
        lost_request: The connection breaks before the request arrives.
        lost_answer: The connection breaks after the request was carried out, or in the middle of the value.
        twice: The request is carried out twice, and the second answer is delivered. Of conditional writes only if there
            are no other writers, because nothing shows then that a conflict is one with oneself.
        alone: Whether there is one writer.
        refused: The service answers 429, 500 or 503 and does nothing.
        collision: The service answers 409 to a conditional write.
        silence: No answer ever comes.
        late: A conditional write whose client has given up is carried out all the same, later.
        stale_listing: A listing lacks the keys that were created in the last seconds.
        seconds: The mean time that a request takes each way.
        tail: The probability of a request that takes hundred times as long.
    """

    lost_request: float = 0.0
    lost_answer: float = 0.0
    twice: float = 0.0
    refused: float = 0.0
    collision: float = 0.0
    silence: float = 0.0
    alone: bool = False
    late: float = 0.0
    stale_listing: float = 0.0
    seconds: float = 0.02
    tail: float = 0.0


MOST_REQUESTS = 8
"""The number of requests that a client may send before one is answered."""


class _NoAnswerError(Exception):
    """The connection broke."""


class _RefusedError(Exception):
    """The service answered with an error and did nothing."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


class _PreconditionError(Exception):
    """The service answered 412: the value has another version."""


class _Stored(NamedTuple):
    data: bytes
    version: str
    mark: str | None
    created: float


@dataclass
class Bucket:
    """The service: it outlives its clients.

    Attributes:
        scheduler: Decides when requests arrive.
        faults: What goes wrong.
        history: Receives what was carried out.
        equal_tags: Whether equal values have equal versions, as in S3.
        conditional: Whether the service supports conditional writes.
        objects: The values.
        running: The number of requests of each client that have not been answered.
        most: The highest of these numbers.
    """

    scheduler: Scheduler
    faults: Faults
    history: History
    equal_tags: bool = True
    conditional: bool = True
    objects: dict[str, _Stored] = field(default_factory=dict)
    running: Counter[int] = field(default_factory=Counter)
    most: int = 0

    def _note(self, client: Client, text: str) -> None:
        self.history.note(f"{client.name}: {text}")

    # -------------------------------------------------------------- what the service does

    def get(self, request: Request) -> Value | None:
        stored = self.objects.get(request.key)
        if stored is None:
            return None
        return Value(clip(stored.data, request), stored.version, len(stored.data))

    def put(self, client: Client, key: str, data: bytes, expected: object = None, mark: str | None = None) -> object:
        stored = self.objects.get(key)
        if expected is not None and (ABSENT if stored is None else stored.version) != expected:
            self._note(client, f"may not replace {key}, which has changed")
            raise _PreconditionError
        version = str(self.scheduler.next_number())
        if self.equal_tags:
            version = hashlib.blake2b(data, digest_size=8).hexdigest()
        created = self.scheduler.now if stored is None else stored.created
        self.objects[key] = _Stored(data, version, mark, created)
        self._note(client, f"stored {key} as {version}")
        return version

    def erase(self, client: Client, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self._note(client, f"erased {key}")

    def list_prefix(self, prefix: str) -> list[str]:
        newest = self.scheduler.now
        if self.faults.stale_listing and self.scheduler.random.random() < self.faults.stale_listing:
            newest -= self.scheduler.random.random() * 10
        return [key for key, stored in self.objects.items() if key.startswith(prefix) and stored.created <= newest]

    # -------------------------------------------------------------- the network

    def _fault(self, kind: str) -> str:
        faults, draw = self.faults, self.scheduler.random.random()
        chances = [
            ("lost request", faults.lost_request),
            ("lost answer", faults.lost_answer),
            ("refused", faults.refused),
            ("silence", faults.silence),
            ("twice", faults.twice if kind in ("put", "erase") or (faults.alone and kind == "put if") else 0.0),
            ("collision", faults.collision if kind == "put if" else 0.0),
        ]
        for name, chance in chances:
            draw -= chance
            if draw < 0:
                return name
        return ""

    def _seconds(self) -> float:
        random, faults = self.scheduler.random, self.faults
        seconds = random.expovariate(1 / faults.seconds)
        return seconds * 100 if faults.tail and random.random() < faults.tail else seconds

    async def send(self, client: Client, kind: str, key: str, serve: Callable[[], Any]) -> Any:
        """Make one request: the function is called when it arrives, and its result is the answer."""
        message = _Message(self, client, kind, key, serve)
        self.scheduler.call_later(self._seconds(), message.arrive)
        try:
            return await message.answer
        except asyncio.CancelledError:
            message.abandoned = self.scheduler.now
            raise


class _Message:
    """A request on its way."""

    __slots__ = ("_bucket", "_client", "_fault", "_key", "_kind", "_sent", "_serve", "abandoned", "answer")

    def __init__(self, bucket: Bucket, client: Client, kind: str, key: str, serve: Callable[[], Any]) -> None:
        self._bucket, self._client, self._kind, self._key, self._serve = bucket, client, kind, key, serve
        self._fault = bucket._fault(kind)
        self.answer: asyncio.Future[Any] = client.loop.create_future()
        self._sent, self.abandoned = bucket.scheduler.now, 0.0

    def arrive(self) -> None:
        """Carry out the request, or not, and send the answer."""
        fault, bucket = self._fault, self._bucket
        if self.abandoned and not self._comes_late():
            return
        if fault:
            bucket._note(self._client, f"{fault}: {self._kind} {self._key}")
        if fault == "lost request":
            self._reply(None, _NoAnswerError("connection reset"))
        elif fault in ("refused", "collision"):
            status = 409 if fault == "collision" else (429, 500, 503)[int(bucket.scheduler.random.random() * 3)]
            self._reply(None, _RefusedError(status))
        elif fault != "silence" or (self._kind != "get" and bucket.scheduler.random.random() < 0.5):
            self._carry_out(fault)

    def _carry_out(self, fault: str) -> None:
        result, error = self._call()
        if self._kind in ("put", "erase") and fault in ("lost answer", "twice"):
            self._bucket.history.may_repeat(self._client.name, self._key)
        if fault == "twice":
            self._bucket.scheduler.call_later(self._bucket._seconds(), lambda: self._reply(*self._call()))
        elif fault == "lost answer":
            self._reply(None, _NoAnswerError("connection reset"))
        elif fault != "silence":
            self._reply(result, error)

    def _call(self) -> tuple[Any, Exception | None]:
        try:
            return self._serve(), None
        except _PreconditionError as error:
            return None, error

    def _comes_late(self) -> bool:
        """Return whether a request is carried out whose client has given up or died."""
        bucket = self._bucket
        if self._kind == "get":
            return False
        if self.abandoned and self.abandoned - self._sent < _PATIENCE:
            return True  # the library says that it waits for longer
        if self._client.dead:
            return bucket.scheduler.random.random() < 0.5
        return self._kind == "put if" and bucket.scheduler.random.random() < bucket.faults.late

    def _reply(self, result: Any, error: Exception | None) -> None:
        self._bucket.scheduler.call_later(self._bucket._seconds(), partial(self._deliver, result, error))

    def _deliver(self, result: Any, error: Exception | None) -> None:
        if not self._client.dead:
            self._client.loop.call_soon_threadsafe(self._receive, result, error)

    def _receive(self, result: Any, error: Exception | None) -> None:
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)


class SimulatedStore(RemoteStore):
    """A client's view of a bucket, with the retries of every remote store.

    Args:
        bucket: The service.
        client: The client.
    """

    conditional = True

    def __init__(self, bucket: Bucket, client: Client) -> None:
        self._bucket, self._client = bucket, client
        self.settings = config.get()
        self.initial_concurrency = self.concurrency = MOST_REQUESTS

    @property
    def identity(self) -> Hashable:
        return ("simulated", id(self._bucket))

    def limiter(self) -> AdaptiveLimiter:
        return request_limiter((self.identity, self._client.number), self.initial_concurrency, self.concurrency)

    def __repr__(self) -> str:
        return f"SimulatedStore({self._client.name})"

    async def _attempt(self, kind: str, key: str, serve: Callable[[], Any]) -> Any:
        running, number = self._bucket.running, self._client.number
        running[number] += 1
        self._bucket.most = max(self._bucket.most, running[number])
        try:
            return await self._bucket.send(self._client, kind, key, serve)
        except _RefusedError as error:
            raise TransientError(str(error), slow_down=error.status in _OVERLOADED) from error
        except _NoAnswerError as error:
            raise TransientError(str(error)) from error
        finally:
            running[number] -= 1

    async def _call(self, key: str, verb: str, kind: str, serve: Callable[[], Any]) -> Any:
        return await self._request(key, verb, partial(self._attempt, kind, key, serve))

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> list[Value | None]:
        return await gather([partial(self._fetch_one, request, versions) for request in requests])

    async def _fetch_one(self, request: Request, versions: bool) -> Value | None:
        value: Value | None = await self._call(request.key, "read", "get", partial(self._bucket.get, request))
        return value if value is None or versions else Value(value.data)

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        value = bytes(data)
        if if_version is None:
            return await self._call(key, "write", "put", partial(self._bucket.put, self._client, key, value))
        return await self._put_if_unchanged(partial(self._put_if, key, value), partial(self._look_up, key), if_version)

    async def _put_if(self, key: str, value: bytes, expected: object, mark: str) -> object:
        if not self._bucket.conditional:
            await self._call(key, "write", "get", lambda: None)  # the answer is 501
            raise self._conditions_unsupported()
        serve = partial(self._bucket.put, self._client, key, value, expected, mark)
        semaphore = self.limiter()
        await semaphore.acquire()
        try:
            send = partial(self._bucket.send, self._client, "put if", key, serve)
            return await run_request(send, "write", self.settings.request_timeout)
        except _PreconditionError as error:
            raise WriteConflictError(f"{key!r} was changed meanwhile", key=key) from error
        except (_RefusedError, _NoAnswerError, TimeoutError) as error:
            if isinstance(error, _RefusedError) and error.status in _OVERLOADED:
                semaphore.on_overload()
            failure = StoreError(f"could not write {key!r} in {self!r}: {error}", key=key)
            raise UnknownOutcome(failure, answered=isinstance(error, _RefusedError)) from error
        finally:
            semaphore.release()

    async def _look_up(self, key: str) -> CurrentValue | None:
        def serve() -> CurrentValue | None:
            stored = self._bucket.objects.get(key)
            return None if stored is None else CurrentValue(stored.version, stored.mark)

        return await self._call(key, "read", "get", serve)

    async def erase(self, key: str, *, if_version: object = None) -> None:
        if if_version is not None:
            raise self._unsupported("compare versions when erasing")
        await self.erase_values([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        # One request erases many keys, but not at the same moment.
        await gather([partial(self._erase_one, key) for key in keys])

    async def _erase_one(self, key: str) -> None:
        await self._call(key, "erase", "erase", partial(self._bucket.erase, self._client, key))

    async def list_prefix(self, prefix: str) -> list[str]:
        return await self._call(prefix, "list", "get", partial(self._bucket.list_prefix, prefix))
