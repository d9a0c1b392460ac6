"""The dataset of serving_values.py behind titiler-xarray. Run by serving.py with uvicorn, in another environment."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from titiler.xarray.factory import TilerFactory

app = FastAPI()
app.include_router(TilerFactory().router)


@app.middleware("http")
async def replace_url(request: Request, call: Callable[[Request], Awaitable[Any]]) -> Any:
    """Clients do not know the path of the dataset."""
    query = request.scope["query_string"].replace(b"SERVED", os.environ["SERVED"].encode())
    request.scope["query_string"] = query
    return await call(request)


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {"status": "ok"}
