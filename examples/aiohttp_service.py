"""An aiohttp service that reads from arrays, with the viewer mounted in it.

    pip install 'zarrasync[serve]'
    python aiohttp_service.py s3://bucket/weather.zarr

``/series/NAME?row=&column=`` returns JSON; ``/browse/`` is the viewer. Each series has the rows that exist at this moment. If a
client disconnects, its reads are cancelled:
``handler_cancellation=True`` turns this on in aiohttp.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from aiohttp import web

import zarrasync as za
from zarrasync import stores
from zarrasync.errors import NodeNotFoundError, SelectionError
from zarrasync.server import create_app, run

ROOT = web.AppKey("root", za.AsyncGroup)


async def series(request: web.Request) -> web.Response:
    """All of time at one place."""
    try:
        row, column = int(request.query["row"]), int(request.query["column"])
        await request.app[ROOT].refresh()  # other processes append
        array = await request.app[ROOT].getitem(request.match_info["name"])
        values = await array[:, row, column]
    except NodeNotFoundError as error:  # whose text contains the path of the store on this machine
        raise web.HTTPNotFound(text=f"there is no array {error.path!r}") from None
    except (KeyError, ValueError, SelectionError) as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    return web.json_response({"units": array.attrs.get("units"), "values": values.tolist()})


def make_app(url: str) -> web.Application:
    """Return the application. The mounted viewer shares the store, and so its connections and limits."""
    store = stores.resolve(url)

    async def opened(app: web.Application) -> AsyncIterator[None]:
        app[ROOT] = await za.open_group(store)
        yield
        await store.close()

    app = web.Application()
    app.cleanup_ctx.append(opened)
    app.router.add_get("/series/{name}", series)
    app.add_subapp("/browse", create_app(store))
    return app


if __name__ == "__main__":
    run(make_app(sys.argv[1]), port=8080)
