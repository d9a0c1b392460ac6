"""What stores behind a network have in common: a limit of requests in flight that adapts, retries, time limits."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from zarrasync._concurrency import clock
from zarrasync._concurrency.retry import RetryCounts
from zarrasync._concurrency.shield import shielded
from zarrasync.config import Config
from zarrasync.errors import ConditionsUnsupported, StoreError, WriteConflictError
from zarrasync.stores.base import ABSENT, Store

__all__ = ["MARK", "Attempt", "Present", "RemoteStore", "Unsure", "asked", "in_flight"]

T = TypeVar("T")
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
_CHANGES = ("write", "erase")
_USUAL, _MOST = 256, 512
"""Requests in flight at first, and while the other side answers as quickly as ever."""


def in_flight(asked: int) -> tuple[int, int]:
    """How many requests to have in flight at first, and at the most.

    Each may take a file descriptor, of which processes have few on some systems; half of them are for others.

    Args:
        asked: What the user asks for, 0 for the usual.
    """
    if asked:
        return asked, asked
    try:
        import resource
    except ImportError:  # Windows, where sockets are no descriptors
        return _USUAL, _MOST
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = _MOST if descriptors == resource.RLIM_INFINITY else max(descriptors // 2, 1)
    return min(_USUAL, room), min(_MOST, room)


async def asked(make: Callable[[], Awaitable[T]], verb: str, seconds: float = 0.0) -> T:
    """A request's answer. One that changes something is not broken off, as it may take effect all the same, and later.

    Args:
        make: Makes the request.
        verb: What is done: "write" and "erase" are changes.
        seconds: That it may take; 0 for as many as it likes.

    Raises:
        TimeoutError: If it takes longer; says so.
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


class Attempt(Exception):
    """A request that failed in a way that may pass.

    Attributes:
        reason: What happened, for messages.
        slow_down: Whether the server asked for fewer requests.
        wait: Seconds after which it may be asked again, if it said so.
    """

    def __init__(self, reason: str, *, slow_down: bool = False, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.slow_down, self.wait = reason, slow_down, wait


MARK = "zarrasync"
"""The name under which a value that was compared says which write it comes from, beside its bytes."""


class Unsure(Exception):
    """A compared write that failed in a way that does not tell whether it took effect.

    Attributes:
        failure: What to raise if it did not, and nothing else helps.
        answered: Whether the other side has answered at all: then it did not, or hardly ever.
    """

    def __init__(self, failure: StoreError, *, answered: bool) -> None:
        super().__init__(str(failure))
        self.failure, self.answered = failure, answered


class Present(NamedTuple):
    """What is stored now: its version, and the mark of the write that it comes from, if it has one."""

    version: object
    mark: str | None


class RemoteStore(Store):
    """A store behind a network. Subclasses make one request at a time through ``_request``.

    Attributes:
        settings: Retries and time limits; those that held when the store was made.
        usual: Requests in flight at first; up to ``concurrency`` while the other side answers as quickly as ever.
    """

    settings: Config
    usual: int
    _bare: bool | None = None
    """Whether the service compares tags without their quotes; ``None`` as long as that is not known."""

    async def _put_once(
        self,
        put: Callable[[object, str], Awaitable[object]],
        look: Callable[[], Awaitable[Present | None]],
        expected: object,
    ) -> object:
        """The version of a value that was stored in the place of another one, or of none.

        A write whose answer is lost must not be made again without a look: who appends would do so twice. It is known
        again by its mark. Older gateways of Ceph's compare tags only without the quotes that they send them in, and
        refuse others: there a look tells that nothing has changed.

        Args:
            put: Stores the value in the place of a version, with a mark; raises ``Unsure`` if it is not known whether
                it did.
            look: What is there now.
            expected: The version to replace; ``ABSENT`` for none.

        Raises:
            WriteConflictError: If another value is there.
            ConditionsUnsupported: If the service knows no conditions.
            StoreError: If it was not stored, or that can not be found out.
        """
        if not self.conditional:
            raise self._without_conditions()
        mark, begin, wait, attempts = secrets.token_hex(8), clock.monotonic(), _FIRST_WAIT, 0
        bare = expected.strip('"') if isinstance(expected, str) else expected
        version = bare if self._bare else expected
        unsure: Unsure | None = None
        while True:
            attempts += 1
            try:
                found = await put(version, mark)
            except Unsure as error:
                unsure, present = error, await _seen(look)
                if present is None:
                    raise unsure.failure from unsure.failure.__cause__
            except WriteConflictError:
                doubtful = unsure is not None or (self._bare is None and version != bare)
                present = await _seen(look) if doubtful else None
                if present is not None and present.mark == mark:  # an attempt that was given up arrived all the same
                    return present.version
                if present is None or unsure is not None or present.version != expected:
                    raise
                version = bare
                continue
            else:
                if bare != expected:
                    self._bare = version == bare
                return found
            if present.mark == mark:
                return present.version
            failure = unsure.failure
            if present.version != expected and unsure.answered:
                raise WriteConflictError(f"{failure.key!r} was changed meanwhile", key=failure.key)
            over = self.settings.total_timeout and clock.monotonic() - begin + wait > self.settings.total_timeout
            if present.version != expected or attempts > self.settings.retries or over:
                raise failure from failure.__cause__
            RetryCounts.count("retries")
            await clock.sleep(clock.uniform(0.5, 1.0) * wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _without_conditions(self) -> ConditionsUnsupported:
        """What to raise when a service says that it knows no conditions, which is kept in mind."""
        self.conditional = False
        return ConditionsUnsupported(f"{self!r} can not compare versions")

    async def _request(self, key: str, verb: str, make: Callable[[], Awaitable[T]]) -> T:
        """A request's answer, after as many attempts as it takes within the settings' limits.

        Args:
            key: The key, for messages.
            verb: What is done with it, for messages.
            make: Makes one attempt; raises ``Attempt`` for a failure that may pass, and anything else for one
                that will not.

        Raises:
            StoreError: With the number of attempts and the last failure.
        """
        settings, gate = self.settings, self.limiter()
        now = asyncio.get_running_loop().time
        attempts, spent, wait = 0, 0.0, _FIRST_WAIT  # spent: without waiting for one's turn
        while True:
            attempts += 1
            await gate.acquire()
            begun = now()
            try:
                left = settings.total_timeout - spent if settings.total_timeout else math.inf
                limit = min(settings.request_timeout or math.inf, left)
                answer = await asked(make, verb, 0.0 if limit == math.inf else limit)
            except Attempt as failure:
                last: Exception = failure
                (gate.on_overload if failure.slow_down else gate.on_failure)()
            except TimeoutError as failure:
                last = failure
                gate.on_failure()
            else:
                gate.on_success(now() - begun)
                return answer
            finally:
                gate.release()
            spent += now() - begun
            pause = max(getattr(last, "wait", 0.0), clock.uniform(0.5, 1.0) * wait)
            over = settings.total_timeout and spent + pause > settings.total_timeout
            if attempts > settings.retries or over:
                raise StoreError(
                    f"could not {verb} {key!r} in {self!r}: {last} (attempt {attempts}, after {spent:.1f} s)",
                    key=key,
                    attempts=attempts,
                ) from last
            spent += pause
            RetryCounts.count("retries")
            await clock.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT)


async def _seen(look: Callable[[], Awaitable[Present | None]]) -> Present | None:
    """What a look shows; ``None`` if that fails, too."""
    try:
        return await look() or Present(ABSENT, None)
    except StoreError:
        return None
