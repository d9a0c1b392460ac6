"""A service on FastAPI with an array behind it.

    pip install 'zarrasync[serve]' fastapi uvicorn
    ZARR_URL=s3://bucket/weather.zarr uvicorn fastapi_service:app

The store is opened once, when the application starts, and shared by all requests: they share its connections, its limit
of requests in flight and its cache of stored values. Rows that another process appends are seen within two minutes. A
read ends when its client leaves, or after five seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse

import zarrasync as za
from zarrasync import stores
from zarrasync.errors import NodeNotFoundError, SelectionError, StoreError, ZarrError

T = TypeVar("T")
MAX_AGE = float(os.environ.get("ZARR_MAX_AGE", "60"))
"""Seconds for which stored values, and the metadata of nodes, are reused."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store before the first request, and let go of its connections after the last."""
    async with stores.CachingStore(stores.resolve(os.environ["ZARR_URL"]), 128 << 20, max_age=MAX_AGE) as store:
        app.state.root = await za.open_group(store)
        yield


app = FastAPI(lifespan=lifespan)


async def while_connected(request: Request, work: Awaitable[T], seconds: float = 5.0) -> T:
    """The result of some work, which is cancelled when the client leaves: FastAPI would let it run to its end."""
    task = asyncio.ensure_future(work)
    try:
        async with asyncio.timeout(seconds):
            while not task.done():
                await asyncio.wait([task], timeout=0.1)
                if await request.is_disconnected():
                    raise HTTPException(499)
            return task.result()
    except TimeoutError:
        raise HTTPException(504, "the store is too slow") from None
    finally:
        task.cancel()


async def array_of(request: Request, name: str) -> za.AsyncArray:
    """An array, as large as it is now: the metadata is read again if it is too old."""
    root = request.app.state.root
    await root.refresh(max_age=MAX_AGE)
    array: za.AsyncArray = await root.getitem(name)
    return array


@app.exception_handler(ZarrError)
async def explain(request: Request, error: ZarrError) -> JSONResponse:
    """What went wrong, with the status that it means here. Other messages contain paths of this machine."""
    statuses = {NodeNotFoundError: 404, SelectionError: 422, StoreError: 502}
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 500)
    text = f"there is no node {error.path!r}" if isinstance(error, NodeNotFoundError) else "the data cannot be read"
    return JSONResponse({"detail": str(error) if isinstance(error, SelectionError) else text}, status)


@app.get("/{name}/series")
async def series(
    request: Request, name: str, row: Annotated[int, Query(ge=0)], column: Annotated[int, Query(ge=0)]
) -> dict[str, Any]:
    """All of time at one place."""
    array = await array_of(request, name)
    values = await while_connected(request, array[:, row, column].read())
    return {"name": name, "units": array.attrs.get("units"), "values": values.tolist()}


@app.get("/{name}/mean")
async def mean(request: Request, name: str) -> dict[str, Any]:
    """The mean over everything, read in blocks: memory stays within the budget, whatever the array's size."""

    async def work() -> float:
        array = await array_of(request, name)
        total = 0.0
        async for _, block in array.view.chunks():
            total += float(block.sum(dtype="f8"))
        return total / array.size

    return {"name": name, "mean": await while_connected(request, work(), 60.0)}
