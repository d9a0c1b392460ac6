"""The dataset of serving_values.py behind xpublish-edr and xpublish-tiles. Run by serving.py with uvicorn, in another environment."""

from __future__ import annotations

import os

import xarray as xr
import xpublish
from xpublish_edr import CfEdrPlugin
from xpublish_tiles.xpublish.tiles.plugin import TilesPlugin

dataset = xr.open_zarr(os.environ["SERVED"], group="weather", consolidated=False)
dataset["lat"].attrs.update(standard_name="latitude", axis="Y")
dataset["lon"].attrs.update(standard_name="longitude", axis="X")
dataset["time"].attrs.update(standard_name="time", axis="T")
rest = xpublish.Rest(
    {"weather": dataset}, plugins={"edr": CfEdrPlugin(), "tiles": TilesPlugin()}, cache_kws={"available_bytes": 1}
)
app = rest.app


@app.get("/livez")
async def livez() -> dict[str, str]:
    return {"status": "ok"}
