"""Planes of chosen axes, colours, and scales around 0: pictures compared with NumPy, and chosen in a real browser."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

pytest.importorskip("cmap", reason="the server's extra is not installed")
playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

from tests.server.test_tiles import coloured, decoded
from tests.support.server_client import running, serving
from zarrasync import sync
from zarrasync.server import Limits, create_app

pytestmark = pytest.mark.servers
AXE = os.environ.get("ZARRASYNC_AXE", "")
expect = playwright.expect
VALUES = np.random.default_rng(3).normal(size=(5, 30, 40, 50))
PIXELS = np.random.default_rng(4).integers(0, 256, (60, 80, 4), "u1")
NAMES = ("time", "level", "lat", "lon")


def store_with_planes() -> dict[str, bytes]:
    root = sync.create_group(store := {})
    root.create_array("v", data=VALUES, chunks=(1, 10, 40, 50), dimension_names=NAMES, attributes={"units": "m s-1"})
    root.create_array("time", data=np.arange(5), attributes={"units": "days since 2024-02-27"})
    root.create_array("lat", data=np.linspace(-39, 39, 40), attributes={"units": "degrees_north"})
    world = root.create_group("world")
    world.create_array("flat", data=np.full((180, 360), 0.5), dimension_names=("lat", "lon"))
    world.create_array("lat", data=np.arange(-89.5, 90), attributes={"units": "degrees_north"})
    world.create_array("lon", data=np.arange(0.5, 360), attributes={"units": "degrees_east"})
    root.create_array("rgb", data=PIXELS[..., :3], chunks=(20, 80, 3))
    root.create_array("rgba", data=PIXELS.transpose(2, 0, 1), dimension_names=("rgba", "y", "x"))
    root.create_array("bands", data=PIXELS.transpose(2, 0, 1).astype("f4"), dimension_names=("band", "y", "x"))
    return store


@pytest.mark.parametrize("plane", [(0, 1), (1, 0), (3, 1), (2, 3), (0, 3), (3, 2)])
async def test_tiles_of_chosen_axes(plane):
    others = [axis for axis in range(4) if axis not in plane]
    index = [2, 3]
    expected = VALUES.transpose(*others, *plane)[tuple(index)]
    query = f"path=v&plane={plane[0]},{plane[1]}&index={index[0]},{index[1]}"
    async with serving(store_with_planes()) as client:
        view = await client.json(f"/api/view?path=v&plane={plane[0]},{plane[1]}")
        assert view["order"] == [*others, *plane]
        assert [axis["name"] for axis in view["axes"]] == [NAMES[axis] for axis in (*others, *plane)]
        assert (view["axes"][-2]["size"], view["axes"][-1]["size"]) == expected.shape
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?{query}&cmap=gray&low=-3&high=3&origin=upper")
        rows, columns = expected.shape
        found, want = decoded(body)[:rows, :columns].astype(int), coloured(expected, -3, 3)
        assert np.abs(found - want).max() <= 1
        assert not decoded(body)[rows:].any()
        stats = await client.json(f"/api/stats?{query}")
        assert stats["mean"] == pytest.approx(expected.mean())
        assert stats["total"] == expected.size


async def test_planes_that_do_not_exist_or_take_too_many_chunks():
    limits = Limits(max_decoded_bytes=400_000)  # two chunks
    async with serving(store_with_planes(), limits=limits) as client:
        for plane in ("0,0", "0,4", "1", "a,b", "0,1,2", "-1,0"):
            assert (await client.json(f"/api/view?path=v&plane={plane}", 400))["error"] == "BadQuery"
        assert (await client.json("/api/view?path=v"))["order"] == [0, 1, 2, 3]
        assert (await client.json("/api/view?path=v&plane=0,1", 413))["error"] == "TooMuch"


async def test_colours():
    opaque = np.concatenate([PIXELS[..., :3], np.full((60, 80, 1), 255, "u1")], axis=-1)
    async with serving(store_with_planes()) as client:
        for name, expected in {"rgb": opaque, "rgba": PIXELS}.items():
            view = await client.json(f"/api/view?path={name}")
            assert (view["has_colours"], view["range"]) == (True, [0, 255])
            assert [axis["size"] for axis in view["axes"]][-2:] == [60, 80]
            _, body, _ = await client.get(f"/api/tiles/0/0/0.png?path={name}&cmap=rgb")
            np.testing.assert_array_equal(decoded(body)[:60, :80], expected)
        # Bands of satellites are no colours by default, and the fourth one is no opacity.
        view = await client.json("/api/view?path=bands")
        assert (view["has_colours"], view["samples"], view["channel"]) == (False, 3, 0)
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=bands&cmap=rgb&low=51&high=204")
        scaled = np.rint(np.clip((PIXELS[..., :3].astype("f8") - 51) / 153, 0, 1) * 255)
        np.testing.assert_array_equal(decoded(body)[:60, :80, :3], scaled)
        for query in ("path=v", "path=bands&plane=0,1"):
            assert (await client.json(f"/api/tiles/0/0/0.png?{query}&cmap=rgb", 400))["error"] == "BadQuery"
        assert (await client.json("/api/data?path=rgb&select=:,:,0&format=png&cmap=rgb", 400))["error"]


async def test_a_scale_around_0():
    async with serving(store_with_planes()) as client:
        query = "path=v&cmap=gray&low=-1&high=3&scale=diverging&origin=upper"
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?{query}")
        found = decoded(body)[:40, :50].astype(int)
        assert np.abs(found - coloured(VALUES[0, 0], -3, 3)).max() <= 1
        assert (await client.json(f"/api/tiles/0/0/0.png?{query[:-30]}&scale=round", 400))["error"] == "BadQuery"


# ------------------------------------------------------------------ the browser


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    async with running(create_app(store_with_planes())) as url:
        yield url


async def settled(page: Any) -> None:
    await page.locator("#canvas[aria-busy=false]").wait_for()


async def until(page: Any, condition: str) -> None:
    """Wait for a condition in JavaScript, as the page does not allow the driver to evaluate strings itself."""
    for _ in range(100):
        if await page.evaluate(f"Boolean({condition})"):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(condition)


async def read_middle(page: Any) -> tuple[str, tuple[int, ...]]:
    """Return the text and the indices that the page shows for an element in the middle of the plane."""
    box = await page.locator("#canvas").bounding_box()
    await page.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2 + 1)
    told = page.locator("#readout span")
    await expect(told).to_have_text(re.compile(r": [^…]"))
    elements = page.locator("#readout small")
    indices = re.findall(r"\d+", await elements.text_content()) if await elements.count() else []
    return await told.text_content(), tuple(map(int, indices))


REFUSED = {"allowed": "400 \\(Bad Request\\)"}  # of a plane that does not exist


@pytest.mark.parametrize("page", [REFUSED, {**REFUSED, "color_scheme": "dark"}], indirect=True)
async def test_axes_are_chosen(page, url):
    await page.goto(f"{url}#path=v&index=2,7")
    await settled(page)
    await page.locator("#rows").select_option("time")
    await expect(page.locator("#sliders label")).to_have_text(["level", "lat"])
    await expect(page).to_have_url(re.compile(r"index=7%2C0&plane=0%2C3"))
    await settled(page)
    await page.locator("#axis-1").fill("12")
    await expect(page.locator("#sliders output").last).to_have_text("15°S")
    await settled(page)
    text, place = await read_middle(page)
    assert re.match(r"time 2024-02-\d\d, lon \d+: ", text)
    assert place[1:3] == (7, 12)
    assert float(text.split()[-3]) == pytest.approx(VALUES[place])
    await expect(page.locator("#code")).to_contain_text("array[:, 7, 12, :]")
    await page.locator("#columns").select_option("time")  # which was the axis of rows
    await expect(page.locator("#rows")).to_have_value("3")
    await settled(page)
    text, place = await read_middle(page)
    assert re.match(r"lon \d+, time 2024-02-\d\d: ", text)
    assert float(text.split()[-3]) == pytest.approx(VALUES[place])
    await page.locator("#canvas").focus()
    await page.keyboard.press("Enter")
    await page.locator("#profile-axis").select_option("level")
    await expect(page.locator("#profile path.line")).to_have_count(1)
    told = await page.evaluate("zarrasync.state")
    before, after = told["picked"][-1], told["picked"][-2]
    await page.locator("#profile-chart svg").focus()
    await page.keyboard.press("Home")
    await expect(page.locator("#profile output")).to_have_text(
        re.compile(rf"level 0: {VALUES[before, 0, 12, after]:.6f}"[:-2])
    )
    if AXE:
        await page.evaluate(Path(AXE).read_text())
        found = await page.evaluate("axe.run(document)")
        assert [f"{item['id']}: {node['html']}" for item in found["violations"] for node in item["nodes"]] == []
    await page.goto(f"{url}?again#path=v&plane=1,2&index=3,4")
    await expect(page.locator("#rows")).to_have_value("1")
    await expect(page.locator("#sliders output").first).to_have_text("2024-03-01")
    await page.goto(f"{url}?again#path=v&plane=1,7")
    await expect(page.locator("#notice")).to_contain_text("the plane 1,7")
    await expect(page.locator("#rows")).to_have_value("2")


PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.mark.parametrize("page", [{}, PHONE], ids=["desktop", "phone"], indirect=True)
async def test_colours_are_shown_and_scales_chosen(page, url):
    await page.goto(f"{url}#path=rgb")
    await settled(page)
    await expect(page.locator("#cmap")).to_have_value("rgb")
    text, _ = await read_middle(page)
    row, column, *sample = map(int, re.findall(r"\d+", text.replace("axis 0", "").replace("axis 1", "")))
    assert sample == PIXELS[row, column, :3].tolist()
    await expect(page.locator("#key")).to_be_hidden()
    await expect(page.locator("#axis-0")).to_be_hidden()  # the picture has all channels
    await page.locator("#cmap").select_option("viridis")
    await expect(page.locator("#key")).to_be_visible()
    await expect(page.locator("#axis-0")).to_be_visible()
    await page.evaluate("location.hash = '#path=v&range=-1,3'")
    await expect(page.locator("#low")).to_have_value("-1")
    await page.locator("#cmap").select_option("colorbrewer:RdBu_r")
    await page.locator("#scaling").select_option("around 0")
    await expect(page).to_have_url(re.compile("scale=diverging"))
    await expect(page.locator("#key .marks span").first).to_have_text("-3")
    await settled(page)
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_code_and_files_contain_all_channels_of_colours(page, url):
    for path, picture, items in (
        ("rgb", PIXELS[..., :3], "[null, null, zarr.slice(0, 3)]"),
        ("rgba", PIXELS.transpose(2, 0, 1), "[zarr.slice(0, 4), null, null]"),
    ):
        await page.goto(f"{url}?{path}#path={path}")
        await settled(page)
        for tab in ("zarrasync", "xarray"):
            await page.get_by_role("tab", name=tab, exact=True).click()
            code, found = await page.locator("#code").text_content(), dict[str, Any]()
            await asyncio.to_thread(exec, f"import numpy as np\n{code}\nvalues = np.asarray(values)", found)
            np.testing.assert_array_equal(found["values"], picture)
        await page.get_by_role("tab", name="zarrita").click()
        await expect(page.locator("#code")).to_contain_text(items)
        async with page.expect_download() as waiting:
            await page.get_by_role("link", name="npy").click()
        np.testing.assert_array_equal(np.load(await (await waiting.value).path()), picture)
    await page.locator("#cmap").select_option("viridis")
    await expect(page.locator("#code")).to_contain_text("[0, null, null]")


async def test_coastlines_lie_between_land_and_sea(page, url):
    globe = pytest.importorskip("global_land_mask").globe
    await page.goto(f"{url}#path=world/flat&range=0,1&cmap=gray")
    await settled(page)
    await until(page, "zarrasync.plane.lines && zarrasync.plane.settled")
    pixels, view = await page.evaluate("""async () => {
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      const { canvas, width, height, view } = zarrasync.plane;
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const dark = [];
      for (let n = 0; n < data.length; n += 4)
        if (data[n] < 80 && data[n + 3] > 200) dark.push([Math.floor(n / 4 / canvas.width), (n / 4) % canvas.width]);
      return [dark, { ...view, width, height }];
    }""")
    rows, columns = np.array(pixels).T + 0.5
    lat = 90 - (view["row"] + (rows - view["height"] / 2) / view["scale"])
    lon = (view["column"] + (columns - view["width"] / 2) / view["scale"] + 180) % 360 - 180
    steps = np.array([-1.5, -0.75, 0, 0.75, 1.5])
    near = globe.is_land(
        np.clip(lat[:, None, None] + steps[:, None], -89.9, 89.9), (lon[:, None, None] + steps + 180) % 360 - 180
    ).reshape(len(lat), -1)
    is_coast = near.any(axis=1) & ~near.all(axis=1)
    assert len(lat) > 300
    assert is_coast[lat > -60].mean() > 0.9  # ice shelves are land in one of the sources
    await page.locator("#coast").uncheck()
    await expect(page).to_have_url(re.compile("coast=0"))
    await until(page, "!zarrasync.plane.lines && zarrasync.plane.settled")
    await page.locator("#coast").check()
    await until(page, "zarrasync.plane.lines")
    await page.evaluate("location.hash = '#path=v'")  # without coordinates along one axis
    await expect(page.locator("#coast")).to_be_hidden()
    await page.set_viewport_size(PHONE["viewport"])
    await page.emulate_media(color_scheme="dark")
    await page.evaluate("location.hash = '#path=world/flat'")
    await expect(page.locator("#coast")).to_be_visible()
    await until(page, "zarrasync.plane.lines && zarrasync.plane.settled")
    if AXE:
        await page.evaluate(Path(AXE).read_text())
        found = await page.evaluate("axe.run(document)")
        assert [f"{item['id']}: {node['html']}" for item in found["violations"] for node in item["nodes"]] == []
