"""URLs of titiler 2 work after the host is changed: parameters that clients send to it, paths, and the keys of documents."""

from __future__ import annotations

import asyncio
import io
from xml.etree import ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
pytest.importorskip("xarray", reason="xarray is not installed")
from PIL import Image

from tests.server.test_map_statistics import post
from tests.server.test_maps import numbers, stored, world
from tests.support.server_client import serving
from zarrasync import sync

pytestmark = pytest.mark.servers
MERCATOR_NORTH = 85.0511287798066
SOURCE = "url=s3://bucket/some.zarr&decode_times=true"
STYLE = "rescale=0,254&colormap_name=gray"
POLYGON = {
    "type": "Feature",
    "properties": {},
    "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [20, 0], [20, 20], [0, 0]]]},
}


def grouped() -> dict[str, bytes]:
    """Return a store with a globe in the group ``weather/daily``."""
    store, _ = world()
    return {"zarr.json": store["zarr.json"], **{f"weather/daily/{key}": value for key, value in store.items()}} | {
        "weather/zarr.json": store["zarr.json"]
    }


async def test_the_store_and_the_group_are_named_as_for_titiler():
    paths = (
        "/tiles/WebMercatorQuad/1/0/0.png",
        "/tiles/WebMercatorQuad/1/0/0",
        "/WebMercatorQuad/tilejson.json",
        "/WebMercatorQuad/map.html",
        "/point/10,45",
        "/bbox/-10,30,40,60/50x30.png",
        "/bbox/-10,30,40,60.webp",
        "/preview.png",
        "/preview/50x30.png",
        "/info",
        "/legend.json",
        "/legend.png",
        "/statistics",
        "/WMTSCapabilities.xml",
    )
    async with serving(grouped()) as client:
        for path in paths:
            query = f"{SOURCE}&group=/weather/daily/&variable=v&sel=time=2024-02-29&bidx=1"
            status, _, _ = await client.get(f"{path}?{query}")
            assert status == 200, path
        ours = await client.get(f"{paths[0]}?variable=weather/daily/v&{STYLE}&resampling=nearest")
        theirs = f"{paths[0]}?{SOURCE}&group=weather/daily&variable=v&{STYLE}&reproject=nearest&return_mask=true"
        assert (await client.get(theirs))[1] == ours[1]
        status, _, _ = await client.get(f"{paths[0]}?{SOURCE}&group=weather&variable=v")
        assert status == 404


async def test_ranges_have_the_notations_of_titiler():
    async with serving(grouped()) as client:
        path = "/tiles/WebMercatorQuad/1/0/0.png?group=weather/daily&variable=v&colormap_name=gray&rescale="
        bodies = [(await client.get(path + text))[1] for text in ("10,200", "[10,200]", "[[10,200]]")]
    assert bodies[0] == bodies[1] == bodies[2]


async def test_parameters_that_would_change_a_picture_are_not_ignored():
    async with serving(grouped()) as client:
        for text in ("algorithm=hillshade", "color_formula=gamma", "bidx=2", "return_mask=false", "decode_times=false"):
            status, body, _ = await client.get(f"/preview.png?group=weather/daily&variable=v&{text}")
            assert (status, text.partition("=")[0].encode() in body) == (400, True)
        days = "sel=time=2024-02-28&sel=time=2024-02-29"
        status, body, _ = await client.get(f"/preview.png?group=weather/daily&variable=v&{days}")
        assert (status, b"twice" in body) == (400, True)


async def test_the_longer_side_of_pictures_is_limited():
    async with serving(grouped()) as client:
        for path, size in (("/preview.png", (64, 32)), ("/bbox/0,0,10,40.png", (16, 64))):
            _, body, _ = await client.get(f"{path}?group=weather/daily&variable=v&max_size=64")
            assert Image.open(io.BytesIO(body)).size == size


async def test_documents_have_the_keys_of_titiler():
    query = f"{SOURCE}&group=weather/daily&variable=v"
    async with serving(grouped()) as client:
        tiles = await client.json(f"/WebMercatorQuad/tilejson.json?{query}&minzoom=1&maxzoom=7&tile_format=webp")
        assert (tiles["minzoom"], tiles["maxzoom"], tiles["center"]) == (1, 7, [0, 0, 1])
        assert tiles["tiles"][0].endswith(".webp?decode_times=true&group=weather%2Fdaily&variable=v")
        assert tiles["data_type"] == "float32"
        path = tiles["tiles"][0].partition("/tiles")[2].replace("{z}/{x}/{y}", "1/0/0")
        assert (await client.get(f"/tiles{path}"))[0] == 200
        status, body, _ = await client.get(f"/WebMercatorQuad/tilejson.json?{query}&minzoom=3&maxzoom=2")
        assert (status, b"minzoom" in body) == (400, True)
        info = await client.json(f"/info?{query}")
        assert (info["name"], info["count"], info["dimensions"]) == ("v", 3, ["time", "lat", "lon"])
        assert [axis["name"] for axis in info["axes"]] == ["time"]
        point = await client.json(f"/point/10,45?{query}")
        assert (point["band_names"], point["band_descriptions"]) == (["b1"], ["weather/daily/v"])
        assert [*await client.json(f"/statistics?{query}")] == ["b1"]
        told = await post(client, f"/statistics?{query}", POLYGON)
        assert [*told["properties"]["statistics"]] == ["b1"]


async def test_wmts_describes_tiles_of_the_requested_size():
    """With twice as many pixels along each side, a tile covers the same area at half the scale."""
    name = "{http://www.opengis.net/wmts/1.0}"
    async with serving(grouped()) as client:
        found = {}
        for size in (256, 512):
            _, body, _ = await client.get(f"/WMTSCapabilities.xml?group=weather/daily&variable=v&tilesize={size}")
            matrix = ET.fromstring(body).find(f".//{name}TileMatrix")
            found[size] = {item.tag.removeprefix(name): item.text for item in matrix}
    assert (found[512]["TileWidth"], found[512]["TileHeight"]) == ("512", "512")
    assert float(found[512]["ScaleDenominator"]) == float(found[256]["ScaleDenominator"]) / 2


async def test_the_store_of_a_group_is_not_mistaken():
    """The names of a group and a variable are joined, without leaving the store."""
    store = grouped()
    sync.open_group(store, mode="r+").create_array("v", data=np.zeros((4, 8)), dimension_names=("lat", "lon"))
    async with serving(store) as client:
        _, body, _ = await client.get(f"/preview.png?group=weather/daily&variable=v&{STYLE}&width=180&height=90")
        assert len(np.unique(numbers(body))) > 50
        status, _, _ = await client.get("/preview.png?group=weather/daily&variable=../../v")
        assert status in (400, 404)


@pytest.mark.parametrize(
    ("west", "north", "boxes"),
    [
        (0.0, 90.0, [[-180, -MERCATOR_NORTH, 180, MERCATOR_NORTH], [-180, -90, 180, 90]]),
        (5.0, 50.0, [[5, 40, 15, 50]] * 2),
        (365.0, 50.0, [[5, 40, 15, 50]] * 2),
        (175.0, 50.0, [[-180, 40, 180, 50]] * 2),
    ],
)
async def test_wmts_names_the_area_for_which_there_are_tiles(west, north, boxes):
    """Clients compute the numbers of tiles from its corners, and request all of them."""
    size = 360 if west == 0 else 10
    lat, lon = np.arange(north - 0.5, north - (180 if west == 0 else size), -1), np.arange(west + 0.5, west + size)
    store, _ = stored(np.zeros((1, len(lat), len(lon)), "f4"), lat, lon)
    async with serving(store) as client:
        _, body, _ = await client.get("/WMTSCapabilities.xml?variable=v")
        corners = ET.fromstring(body).iter("{http://www.opengis.net/ows/1.1}WGS84BoundingBox")
        found = [[float(number) for corner in box for number in corner.text.split()] for box in corners]
        assert found == [pytest.approx(box) for box in boxes]
        if west == 0:
            return
        rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
        address = f"WMTS:{client.base}/WMTSCapabilities.xml?variable=v&rescale=0%2C1,layer=v_WebMercatorQuad"

        def read() -> np.ndarray:
            with rasterio.Env() as env:
                if "WMTS" not in env.drivers():
                    pytest.skip("this GDAL has no driver for WMTS")
            with rasterio.open(address) as source:
                return source.read()

        shown = await asyncio.to_thread(read)
        assert (shown[3] == 255).sum() > 20
