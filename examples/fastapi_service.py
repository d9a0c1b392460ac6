"""A service on FastAPI with arrays behind it, and the viewer mounted in it.

    pip install 'zarrasync[serve]' fastapi uvicorn
    ZARR_URL=s3://bucket/weather.zarr uvicorn fastapi_service:app --workers 2

The service is made once and shared by all requests: they share its connections, its limits and its caches of nodes, decoded
chunks and stored values. Rows that another process appends are seen within two minutes. Values are physical ones, as
attributes of CF specify. A read ends when its client leaves, or after five seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from zarrasync.errors import NodeNotFoundError, SelectionError, StoreError, ZarrError
from zarrasync.server import Service, TooMuch, asgi
from zarrasync.stores import StoreLike

T = TypeVar("T")


def make_app(store: StoreLike, *, max_age: float = 60.0) -> FastAPI:
    """Return the application.

    Args:
        store: The store.
        max_age: Seconds for which nodes and values are reused.
    """
    service = Service(store, max_age=max_age, cache_bytes=256 << 20)
    viewer = asgi.create_app(service)
    app = FastAPI(lifespan=viewer.router.lifespan_context)  # closes the store's connections
    app.state.service = service
    app.mount("/browse", viewer)
    app.add_exception_handler(ZarrError, explain)
    app.get("/{name}/series")(series)
    app.get("/{name}/at")(series_at)
    app.get("/{name}/mean")(mean)
    return app


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


async def explain(request: Request, error: Exception) -> JSONResponse:
    """What went wrong, with the status that it means here. Other messages contain paths of this machine."""
    statuses = {NodeNotFoundError: 404, SelectionError: 422, TooMuch: 413, StoreError: 502}
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 500)
    text = f"there is no node {error.path!r}" if isinstance(error, NodeNotFoundError) else "the data cannot be read"
    return JSONResponse({"detail": str(error) if status in (422, 413) else text}, status)


async def series(
    request: Request, name: str, row: Annotated[int, Query(ge=0)], column: Annotated[int, Query(ge=0)]
) -> dict[str, Any]:
    """All of time at one element."""
    found = await while_connected(request, request.app.state.service.read_selection(name, f":,{row},{column}"))
    return {"name": name, "units": found.unit, "values": found.values.tolist()}


async def series_at(request: Request, name: str, lat: float, lon: float) -> dict[str, Any]:
    """All of time at the element that is nearest to a place."""
    found = await while_connected(request, request.app.state.service.read_series(name, {"lat": lat, "lon": lon}))
    places = {dim: values.item() for dim, values in found.coordinates.items() if values.size == 1}
    return {"name": name, "units": found.unit, "values": found.values.tolist(), **places}


async def mean(request: Request, name: str) -> dict[str, Any]:
    """The mean over everything, read in blocks: memory stays within the budget, whatever the array's size."""

    async def work() -> float:
        array = await request.app.state.service.array(name)
        total = 0.0
        async for _, block in array.view.chunks():
            total += float(block.sum(dtype="f8"))
        return total / array.size

    return {"name": name, "mean": await while_connected(request, work(), 60.0)}


if "ZARR_URL" in os.environ:
    app = make_app(os.environ["ZARR_URL"], max_age=float(os.environ.get("ZARR_MAX_AGE", "60")))
