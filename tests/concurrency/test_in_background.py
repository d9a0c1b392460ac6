"""Calls that begin before it is known whether their results are needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gather import in_background


async def test_the_call_runs_during_the_block():
    started, gate = asyncio.Event(), asyncio.Event()

    async def call() -> int:
        started.set()
        await gate.wait()
        return 3

    async with in_background(call) as result:
        await started.wait()
        gate.set()
        assert [await result(), await result()] == [3, 3]


@pytest.mark.parametrize("failed", [False, True])
async def test_a_result_that_is_not_needed(failed: bool):
    """The call is cancelled, its error is not logged, and an error of the block is raised."""
    started, ended = asyncio.Event(), asyncio.Event()
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def call() -> None:
        started.set()
        try:
            if not failed:
                await asyncio.Event().wait()
            raise ValueError("not asked for")
        finally:
            ended.set()

    with pytest.raises(KeyError):
        async with in_background(call):
            await started.wait()
            raise KeyError
    assert ended.is_set()
    assert not logged


async def test_errors_are_raised_where_the_result_is_needed():
    async def call() -> None:
        raise ValueError("needed")

    async with in_background(call) as result:
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="needed"):
            await result()


async def test_a_cancelled_block_cancels_the_call():
    cancelled = asyncio.Event()

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def block() -> None:
        async with in_background(call) as result:
            await result()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


def test_driven_calls_start_when_their_result_is_needed():
    calls: list[str] = []

    async def call() -> int:
        calls.append("call")
        return 3

    async def block(needed: bool) -> int | None:
        async with in_background(call) as result:
            calls.append("block")
            return await result() if needed else None

    assert drive(block(True)) == 3
    assert drive(block(False)) is None
    assert calls == ["block", "call", "block"]
