"""Axes, levels and label images of conventions in the API and in the viewer."""

from __future__ import annotations

import io
import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
from PIL import Image

from tests.support.conventions import geo_attributes, write_ome_image
from tests.support.server_client import running, serving
from zarrasync import sync
from zarrasync.server import create_app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHANNELS = {"channels": [{"label": "DAPI"}, {"label": "GFP"}]}


def image_with_labels(version: str) -> dict[str, bytes]:
    """Return a store with an image of two channels, and a label image with a label in its upper left quarter."""
    store: dict[str, bytes] = {}
    ome: dict[str, Any] = {"labels": ["cells"]}
    write_ome_image(store, version, omero=CHANNELS)
    zarr_format: Any = 2 if version < "0.5" else 3
    attributes = ome if zarr_format == 2 else {"ome": {"version": version, **ome}}
    sync.create_group(store, path="labels", zarr_format=zarr_format, attributes=attributes)
    label: dict[str, Any] = {"image-label": {}}
    write_ome_image(store, version, path="labels/cells", **label)
    cells = np.zeros((2, 64, 96), "i4")
    cells[:, :32, :48] = 7
    for n in range(2):
        sync.open_array(store, path=f"labels/cells/{n}", mode="r+")[...] = cells[:, :: 2**n, :: 2**n]
    return store


@pytest.mark.servers
@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
async def test_images(version):
    async with serving(image_with_labels(version)) as client:
        node = await client.json("/api/node?path=")
        assert node["info"]["Conventions"] == f"OME-Zarr {version} image"
        view = await client.json("/api/view?path=")
        assert (view["labels"], view["is_labels"]) == (["labels/cells"], False)
        assert (view["axes"][0]["name"], "step" in view["axes"][0]) == ("c", False)
        assert view["axes"][0]["labels"] == ["DAPI", "GFP"]
        y = {"name": "y", "size": 64, "unit": "micrometer", "kind": "space", "step": 0.5, "origin": 0.0}
        assert view["axes"][1] == y
        assert view["dataset"] == ["0", "image"]
        level = await client.json("/api/view?path=1")
        assert (level["axes"][1]["step"], level["axes"][1]["origin"]) == (1.0, 0.25)
        labels = await client.json("/api/view?path=labels/cells")
        assert (labels["is_labels"], labels["dataset"]) == (True, ["labels/cells/0", "labels"])


@pytest.mark.servers
async def test_labels_have_colours_and_the_background_has_none():
    async with serving(image_with_labels("0.5")) as client:
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=labels/cells&index=1&cmap=labels&low=0&high=1")
        picture = np.asarray(Image.open(io.BytesIO(body)).convert("RGBA"))
        assert (picture[:32, :48, 3] == 255).all()
        assert (picture[32:, :, 3] == 0).all()
        assert len(np.unique(picture[:32, :48].reshape(-1, 4), axis=0)) == 1


@pytest.mark.servers
@pytest.mark.parametrize("path", ["labels/cells", "labels/cells/0"])
async def test_labels_have_the_colours_of_their_document(path):
    store: dict[str, bytes] = {}
    colours = [{"label-value": 3, "rgba": [255, 128, 0, 200]}, {"label-value": 0, "rgba": [0, 0, 9, 255]}]
    properties = [{"label-value": 3, "class": "cell"}]
    image_label: dict[str, Any] = {"image-label": {"colors": colours, "properties": properties}}
    write_ome_image(store, "0.5", path="labels/cells", levels=1, **image_label)
    values = (np.arange(2 * 64 * 96) % 1000).reshape(2, 64, 96).astype("u8")
    values[0, -1, -1] = 2**64 - 5
    sync.create_array(store, path="labels/cells/0", data=values, overwrite=True, dimension_names=("c", "y", "x"))
    async with serving(store) as client:
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?path={path}&cmap=labels")
        picture = np.asarray(Image.open(io.BytesIO(body)).convert("RGBA"))
        assert (picture[:64, :96][values[0] == 3] == (255, 128, 0, 200)).all()
        assert (picture[:64, :96][values[0] == 0] == (0, 0, 9, 255)).all()
        pixels = {label: picture[tuple(np.argwhere(values[0] == label)[0])].tolist() for label in range(1000)}
        assert len({*map(tuple, pixels.values())}) > 900
        assert len({tuple(pixels[label]) for label in range(64)}) == 64
        view = await client.json(f"/api/view?path={path}")
        assert (view["is_labels"], view["label_properties"]) == (True, {"3": "class cell"})
        sync.open_group(store, path="labels/cells", mode="r+").attrs["ome"] = {"version": "0.5"}
    async with serving(store) as client:
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=labels/cells/0&cmap=labels")
        picture = np.asarray(Image.open(io.BytesIO(body)).convert("RGBA"))
        assert (picture[:64, :96][values[0] == 0] == 0).all()


@pytest.mark.servers
async def test_plates_and_wells_have_pictures():
    store: dict[str, bytes] = {}
    names = [("A", "1"), ("A", "2"), ("B", "1")]
    wells = [{"path": f"{r}/{c}", "rowIndex": "AB".index(r), "columnIndex": "12".index(c)} for r, c in names]
    plate = {"rows": [{"name": "A"}, {"name": "B"}], "columns": [{"name": "1"}, {"name": "2"}], "wells": wells}
    sync.create_group(store, attributes={"ome": {"version": "0.5", "plate": plate}})
    for row, column in names:
        well = {"images": [{"path": "0"}, {"path": "1"}]}
        sync.create_group(store, path=f"{row}/{column}", attributes={"ome": {"version": "0.5", "well": well}})
        write_ome_image(store, "0.5", path=f"{row}/{column}/0")
    async with serving(store) as client:
        node = await client.json("/api/node?path=")
        assert node["gallery"] == [{"path": f"{row}/{column}", "kind": "well"} for row, column in names]
        node = await client.json("/api/node?path=A/2")
        assert node["gallery"] == [{"path": f"A/2/{n}", "kind": "image"} for n in range(2)]
        assert (await client.json("/api/view?path=A/2"))["array"] == "A/2/0/0"
        assert (await client.get("/api/tiles/0/0/0.png?path=B/1"))[0] == 200
        assert (await client.json("/api/node?path=A/2/0"))["gallery"] == []


@pytest.mark.servers
async def test_levels_that_are_groups():
    store: dict[str, bytes] = {}
    root = sync.create_group(store, attributes=geo_attributes())
    for number, (name, shape) in enumerate({"r10m": (600, 800), "r20m": (300, 400)}.items()):
        for band in ("b2", "b3"):
            values = np.full(shape, number, "u1")
            root.create_array(f"{name}/{band}", data=values, chunks=(100, 100), dimension_names=("Y", "X"))
    async with serving(store) as client:
        for path, band in (("", "b2"), ("r10m/b3", "b3")):
            view = await client.json(f"/api/view?path={path}")
            assert [level["path"] for level in view["levels"]] == [f"r10m/{band}", f"r20m/{band}"]
            assert (view["axes"][1]["step"], view["axes"][1]["origin"]) == (10, 500005)
            assert view["dataset"] == ["r10m", band]
        assert len((await client.json("/api/view?path=r20m/b2"))["levels"]) == 1
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=&low=0&high=1&cmap=gray")
        assert set(np.asarray(Image.open(io.BytesIO(body)).convert("L"))[:60, :80].flat) == {255}  # the coarser level


@pytest.mark.processes
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
async def test_viewer():
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    async with running(create_app(image_with_labels("0.5"))) as url, playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM)
        page = await (await browser.new_context(viewport={"width": 1100, "height": 800})).new_page()
        await page.goto(f"{url}#path=&at=32,48,8")
        await page.locator("#canvas[aria-busy=false]").wait_for()
        assert await page.locator("#bar").inner_text() == "5 µm"
        assert (await page.locator("#bar").bounding_box())["width"] == pytest.approx(80, abs=4)
        await page.locator("#labels").select_option("labels/cells")
        await page.wait_for_url("**labels=labels*")
        await page.locator("#canvas[aria-busy=false]").wait_for()
        tiles = [url for url in await page.evaluate("[...zarrasync.plane.tiles.keys()]") if "cmap=labels" in url]
        assert tiles
        box = await page.locator("#canvas").bounding_box()
        await page.mouse.move(box["x"] + box["width"] / 2 + 4, box["y"] + box["height"] / 2 + 4)
        told = page.locator("#readout", has_text=": ").filter(has_not_text="…")
        await told.wait_for()
        assert (await told.inner_text()).startswith("y 16 µm, x 24 µm: ")
        await page.mouse.move(box["x"] + box["width"] / 2 - 4, box["y"] + box["height"] / 2 - 4)
        await page.locator("#readout", has_text=", cells 7").wait_for()
        await browser.close()
