"""Leases order processes that write to an object store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.shifted_clock import ShiftedClock
from zarrasync import stores
from zarrasync._concurrency import clock
from zarrasync.errors import WriteConflictError
from zarrasync.stores.leases import Entry, Lease, Turn

pytestmark = pytest.mark.servers


async def content(store: stores.Store) -> dict[str, Any]:
    value = await store.get("turn")
    return {} if value is None else json.loads(bytes(value))


async def test_one_holds_it_at_a_time(s3: tuple[str, dict[str, Any]]):
    url, options = s3
    holders: list[int] = []
    most = 0

    async def hold(number: int) -> None:
        nonlocal most
        async with Turn(stores.resolve(url, options), "turn", "the test", 60) as lease:
            holders.append(number)
            most = max(most, len(holders))
            await asyncio.sleep(0.02)
            await lease.check()
            holders.remove(number)

    await asyncio.gather(*map(hold, range(5)))
    assert most == 1
    assert await stores.resolve(url, options).get("turn") is None


async def test_the_lease_of_a_process_that_has_ended(s3: tuple[str, dict[str, Any]]):
    url, options = s3
    store = stores.resolve(url, options)
    for left in (b'{"id": "x", "owner": "", "beat": 3}', b"damaged", b"[]"):
        await store.put("turn", left)
        async with Turn(store, "turn", "the test", 60):
            assert (await content(store))["id"] != "x"
        assert await store.get("turn") is None


async def test_a_lease_that_is_not_renewed(s3: tuple[str, dict[str, Any]]):
    """The next process gets it after some time, and the process that was suspended notices."""
    url, options = s3
    store = stores.resolve(url, options)
    with clock.replaced(ShiftedClock(10)):
        await store.put("turn", json.dumps({"id": "x", "owner": "another-machine", "beat": 3}).encode())
        async with Turn(store, "turn", "the test", 1000):
            assert (await content(store))["id"] != "x"
        await store.put("turn", b"{}")  # its owner was killed before it had erased it
        async with Turn(store, "turn", "the test", 1000):
            pass
    assert await store.get("turn") is None


async def test_a_lease_that_was_taken_over(s3: tuple[str, dict[str, Any]]):
    """A process that was suspended notices before its next step, although it has not tried to renew the lease."""
    url, options = s3
    store = stores.resolve(url, options)
    async with Turn(store, "turn", "the test", 60) as lease:
        await lease.check()
        await store.put("turn", json.dumps({"id": "x", "owner": "another", "beat": 1}).encode())
        for _ in range(2):
            with pytest.raises(WriteConflictError, match="the test: another process has continued"):
                await lease.check()
    assert (await content(store))["id"] == "x"


async def test_a_lease_that_is_entered_again_is_renewed(s3: tuple[str, dict[str, Any]]):
    """The first entry was lost while this process was suspended, so that another one is made."""
    url, options = s3
    store = stores.resolve(url, options)
    calls = 0

    async def choose(working: list[Entry], over: list[Entry]) -> list[Entry]:
        return [lease.new_entry()]

    async def then() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await store.erase("turn")
            assert not await lease.renew()
            raise WriteConflictError("changed", key="turn")

    lease = Lease(store, "turn", "the test", 60)
    await lease.enter(choose, lambda: "busy", 60, then=then)
    beat = (await content(store))["beat"]
    assert await lease.renew()
    assert (await content(store))["beat"] != beat
    assert await lease.end()
    assert await store.get("turn") is None


async def test_renewals_at_the_same_time(s3: tuple[str, dict[str, Any]]):
    url, options = s3
    async with Turn(stores.resolve(url, options), "turn", "the test", 60) as lease:
        await asyncio.gather(*(lease.check() for _ in range(10)))


async def test_waiting_has_an_end(s3: tuple[str, dict[str, Any]]):
    url, options = s3
    store = stores.resolve(url, options)
    async with Turn(store, "turn", "the first", 60):
        with pytest.raises(WriteConflictError, match="another process did not finish within"):
            async with Turn(stores.resolve(url, options), "turn", "the second", 0.3):
                pass


async def test_stores_that_need_none():
    """Locks order processes in local files, and no other process writes to memory."""
    store = stores.MemoryStore()
    async with Turn(store, "turn", "the test", 60) as lease:
        assert not store.values
        await lease.check()


class Shared(Lease):
    """A lease in a document with the entries of several holders."""

    def _parse(self, value: stores.Value) -> list[Entry]:
        entries: list[Entry] = json.loads(bytes(value.data))
        return entries

    def _render(self, entries: Any) -> Any:
        return entries


async def test_a_document_with_many_entries(s3: tuple[str, dict[str, Any]]):
    """Changes of entries at the same time lose none, and the last entry takes the document with it."""
    url, options = s3
    store = stores.resolve(url, options)
    leases = [Shared(store, "turn", "the test", 60) for _ in range(6)]

    async def hold(number: int) -> None:
        lease = leases[number]

        async def choose(running: list[Entry], over: list[Entry]) -> list[Entry]:
            return [*running, lease.new_entry(number=number, count=0)]

        await lease.enter(choose, str, 60)
        for _ in range(3):
            assert await lease.change(lambda entry: {**entry, "count": entry["count"] + 1})

    await asyncio.gather(*map(hold, range(6)))
    value = await store.get("turn")
    assert value is not None
    stored = {entry["number"]: entry["count"] for entry in json.loads(bytes(value))}
    assert stored == dict.fromkeys(range(6), 3)
    ended = await asyncio.gather(*(lease.end() for lease in leases))
    assert ended == [True] * 6
    assert await store.get("turn") is None
    assert not await leases[0].end()
