"""The viewer in a real browser, and zarrita in that browser reading the served store."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.support.demo import WAVE, store_with_waves
from tests.support.examples import load_example

pytest.importorskip("cmap", reason="the server's extra is not installed")
playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
from aiohttp import web
from PIL import Image

from tests.support.server_client import running
from zarrasync import stores, sync
from zarrasync.server import create_app

ZARRITA = os.environ.get("ZARRASYNC_ZARRITA", "")
pytestmark = pytest.mark.servers


@pytest_asyncio.fixture
async def base() -> AsyncIterator[str]:
    app = web.Application()
    app.add_subapp("/waves", create_app(store_with_waves()))
    if ZARRITA:
        app.router.add_static("/node_modules", ZARRITA)
    app.router.add_get("/zarrita.html", zarrita_page)
    async with running(app, handler_cancellation=True) as url:
        yield url.rstrip("/")


async def zarrita_page(request: web.Request) -> web.Response:
    return web.Response(text=ZARRITA_PAGE, content_type="text/html")


async def settled(page: Any) -> None:
    await page.locator("#canvas[aria-busy=false]").wait_for()


async def value_at(page: Any, x: float, y: float) -> tuple[int, int, float]:
    """Return the row, the column and the value that the page shows for a point of the canvas."""
    row, column, value = re.fullmatch(r".+ (\d+), .+ (\d+): (\S+)(?: \S+)?", await readout(page, x, y)).groups()
    return int(row), int(column), float(value)


async def readout(page: Any, x: float, y: float) -> str:
    """Return the text that the page shows for a point of the canvas."""
    box = await page.locator("#canvas").bounding_box()
    await page.mouse.move(box["x"] + x, box["y"] + y)
    told = page.locator("#readout span")
    await playwright.expect(told).to_have_text(re.compile(r"\d+.*, .+ \d+.*: [^…]"))
    return await told.text_content()


async def pixel(page: Any, x: float, y: float) -> Any:
    """Return the colour of a point of the canvas."""
    box = await page.locator("#canvas").bounding_box()
    clip = {"x": box["x"] + x, "y": box["y"] + y, "width": 1, "height": 1}
    return Image.open(io.BytesIO(await page.screenshot(clip=clip))).convert("RGB").getpixel((0, 0))


async def open_wave(page: Any, base: str) -> None:
    await page.goto(f"{base}/waves/")
    await page.get_by_role("treeitem", name="field").click()
    await page.get_by_role("treeitem", name="wave").click()
    await settled(page)


@pytest.mark.smoke
async def test_a_slider_moves_through_time_and_the_cursor_reads_values(page, base):
    await open_wave(page, base)
    await playwright.expect(page.locator("#title")).to_have_text("/field/wave")
    await playwright.expect(page.locator("#subtitle")).to_have_text("[m] · time 5 × y 700 × x 1300")
    await playwright.expect(page.locator("#facts")).to_contain_text("5 of 1 × 100 × 130 in shards of 1 × 700 × 1300")
    for time in (0, 3):
        await page.locator("#axis-0").fill(str(time))
        await settled(page)
        for place in ((300, 90), (520, 210), (640, 130)):
            row, column, value = await value_at(page, *place)
            assert value == pytest.approx(float(WAVE[time, row, column]), rel=1e-6)
    await page.locator("#axis-0").press("ArrowRight")
    await playwright.expect(page.locator("#sliders output")).to_have_text("4")
    await playwright.expect(page).to_have_url(re.compile("index=4"))
    await settled(page)


async def test_pixels_show_the_values(page, base):
    await open_wave(page, base)
    await page.locator("#cmap").select_option("gray")
    await settled(page)
    low, high = [float(await page.locator(f"#{name}").input_value()) for name in ("low", "high")]
    for place in ((300, 90), (520, 210), (640, 130), (760, 50)):
        row, column, value = await value_at(page, *place)
        red, green, blue = await pixel(page, *place)
        assert red == green == blue
        near = WAVE[0, max(row - 3, 0) : row + 4, max(column - 3, 0) : column + 4]  # a pixel shows several elements
        spread = float(near.max() - near.min()) / (high - low)
        assert red / 255 == pytest.approx(np.clip((value - low) / (high - low), 0, 1), abs=spread + 0.02)


async def test_pan_and_zoom(page, base):
    await open_wave(page, base)
    box = await page.locator("#canvas").bounding_box()
    before = await value_at(page, 400, 150)
    await page.mouse.wheel(0, -720)  # magnified eight times around the pointer
    await settled(page)
    after = await value_at(page, 401, 150)
    assert abs(after[0] - before[0]) <= 3
    assert abs(after[1] - before[1]) <= 3
    await page.mouse.move(box["x"] + 400, box["y"] + 150)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 300, box["y"] + 100, steps=4)
    await page.mouse.up()
    await settled(page)
    moved = await value_at(page, 301, 100)
    assert abs(moved[0] - after[0]) <= 3
    assert abs(moved[1] - after[1]) <= 3
    assert moved[2] == pytest.approx(float(WAVE[0, moved[0], moved[1]]), rel=1e-6)
    scale = await page.evaluate("window.zarrasync.plane.view.scale")
    await page.locator("#canvas").focus()
    await page.keyboard.press("-")
    smaller = await page.evaluate("window.zarrasync.plane.view.scale")
    assert smaller == pytest.approx(scale / 1.5, rel=1e-6)
    told = f"{smaller:.6g}"[:5]
    await playwright.expect(page).to_have_url(re.compile(rf"at=[^&]*%2C{re.escape(told)}"))
    await page.keyboard.press("0")
    await settled(page)
    await page.get_by_role("button", name="zoom in").click()
    await settled(page)


async def test_an_address_brings_the_view_back(page, base):
    await page.goto(f"{base}/waves/#path=field%2Fwave&index=2&cmap=magma&at=350%2C650%2C2&flip=1")
    await settled(page)
    await playwright.expect(page.locator("#axis-0")).to_have_value("2")
    await playwright.expect(page.locator("#cmap")).to_have_value("magma")
    await playwright.expect(page.get_by_role("treeitem", name="wave")).to_have_attribute("aria-selected", "true")
    row, column, value = await value_at(page, 400, 150)
    assert value == pytest.approx(float(WAVE[2, row, column]), rel=1e-6)
    await playwright.expect(page).to_have_url(re.compile("at=350%2C650%2C2"))


async def test_an_address_is_followed_in_an_open_page(page, base):
    """Links to the same node and to other nodes, with a position."""
    await page.goto(f"{base}/waves/#path=field%2Fwave&index=0")
    await settled(page)
    await page.evaluate("location.hash = '#path=field%2Fwave&index=3&cmap=magma&range=-1,1'")
    await playwright.expect(page.locator("#axis-0")).to_have_value("3")
    await playwright.expect(page.locator("#cmap")).to_have_value("magma")
    await playwright.expect(page.locator("#low")).to_have_value("-1")
    await page.evaluate("location.hash = '#path=pyramid%2F0&at=100,200,4'")
    await playwright.expect(page.locator("#title")).to_have_text("/pyramid/0")
    await playwright.expect(page).to_have_url(re.compile("at=100%2C200%2C4"))
    await settled(page)


async def test_an_address_is_followed_although_the_page_writes_its_own_meanwhile(page, base):
    """The browser tells of a new address later, and the page may have replaced it until then."""
    await page.goto(f"{base}/waves/#path=field%2Fwave&index=2")
    await settled(page)
    await page.evaluate("""() => {
      const before = location.href;
      location.hash = '#path=pyramid%2F0&at=100,200,4';
      history.replaceState(null, '', before);
    }""")
    await playwright.expect(page.locator("#title")).to_have_text("/pyramid/0")
    await playwright.expect(page).to_have_url(re.compile("path=pyramid%2F0&at=100%2C200%2C4"))
    await settled(page)


async def test_the_last_of_two_addresses_is_shown(page, base):
    await page.goto(f"{base}/waves/#path=field%2Fwave&index=2")
    await settled(page)
    await page.evaluate("location.hash = '#path=pyramid%2F0'; location.hash = '#path=empty&index=1'")
    await playwright.expect(page.locator("#title")).to_have_text("/empty")
    await settled(page)
    await playwright.expect(page.locator("#title")).to_have_text("/empty")
    await playwright.expect(page).to_have_url(re.compile("path=empty&index=1"))


async def test_planes_without_values_and_those_beside(page, base):
    await page.goto(f"{base}/waves/#path=empty&index=0")
    await settled(page)
    # The whole plane is visible, and stays so while the page lays itself out.
    view, height = await page.evaluate("[window.zarrasync.plane.view, document.getElementById('canvas').clientHeight]")
    assert view["scale"] * 300 <= height + 1
    await playwright.expect(page.locator("figcaption")).to_have_text("no values")
    await page.get_by_role("button", name="Range of this slice").click()
    await page.locator("#axis-0").fill("1")
    await settled(page)
    await playwright.expect(page.locator("figcaption")).to_contain_text("mean")
    box = await page.locator("#canvas").bounding_box()
    assert len({await pixel(page, box["width"] / 2 + dx, box["height"] / 2) for dx in (-60, 0, 60)}) > 1
    assert "missing" not in await readout(page, box["width"] / 2, box["height"] / 2)
    await page.locator("#axis-0").fill("0")
    await settled(page)
    assert (await readout(page, box["width"] / 2 + 3, box["height"] / 2)).endswith("missing")


async def test_the_tree_by_keys_and_by_search(page, base):
    await page.goto(f"{base}/waves/")
    await page.get_by_role("treeitem", name="field").focus()
    await page.keyboard.press("ArrowRight")
    await page.get_by_role("treeitem", name="wave").wait_for()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        await page.keyboard.press(key)
    await playwright.expect(page.locator("#title")).to_have_text("/field/wave")
    await settled(page)
    await page.get_by_role("treeitem", name="wave").press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    await playwright.expect(page.get_by_role("treeitem", name="field")).to_have_attribute("aria-expanded", "false")
    await page.get_by_role("searchbox").fill("OD")
    await playwright.expect(page.get_by_role("treeitem", name="field")).to_be_hidden()
    await playwright.expect(page.locator("#found li")).to_have_text(
        ["/field/<b>odd & name<i>"]
    )  # in a group that is not open
    await page.get_by_role("searchbox").fill("numb")
    await page.get_by_role("link", name="/numbers").click()
    await playwright.expect(page.locator("#title")).to_have_text("/numbers")
    await playwright.expect(page.locator("#plane")).to_be_hidden()
    await page.get_by_role("searchbox").fill("")
    await playwright.expect(page.get_by_role("treeitem", name="numbers")).to_be_visible()


async def test_names_are_escaped(page, base):
    await page.goto(f"{base}/waves/")
    await page.get_by_role("treeitem", name="field").click()
    await page.get_by_role("treeitem", name="odd").click()
    await playwright.expect(page.locator("#title")).to_have_text("/field/<b>odd & name<i>")
    await settled(page)
    assert await page.locator("#title b, nav b, nav i").count() == 0


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True)
async def test_a_pyramid_in_the_dark(page, base):
    await page.goto(f"{base}/waves/#path=pyramid")
    await settled(page)
    await playwright.expect(page.locator("#histogram rect")).to_have_count(80)
    row, column, value = await value_at(page, 500, 200)
    assert value == pytest.approx(float(WAVE[0, row, column]), rel=1e-6)
    tabs = page.locator("#snippet [role=tab]")
    for name in await tabs.all_text_contents():
        await page.get_by_role("tab", name=name, exact=True).click()
        await playwright.expect(page.locator("#snippet pre")).to_contain_text("/waves/zarr")


async def test_the_demo_dataset(page, tmp_path):
    """The world from the coarse level, a point from the fine level, and its value."""
    pytest.importorskip("global_land_mask")
    demo = load_example("quickstart")
    mask, latitude, longitude = (array[(slice(None, None, 3),) * array.ndim] for array in demo.load_source())
    await demo.ingest(stores.LocalStore(tmp_path), mask, latitude, longitude)
    async with running(create_app(tmp_path), handler_cancellation=True) as url:
        await page.goto(f"{url}#path=&flip=1")
        await settled(page)
        await page.get_by_role("treeitem", name="pyramid").click()
        await page.get_by_role("treeitem", name="land").last.wait_for()
        await page.get_by_role("treeitem", name="land").first.click()
        await settled(page)
        box = await page.locator("#canvas").bounding_box()
        await page.mouse.move(box["x"] + 500, box["y"] + 120)
        for _ in range(5):
            await page.mouse.wheel(0, -240)
            await settled(page)
        found = re.fullmatch(r"latitude \S+°, longitude \S+°: (\w+)", await readout(page, 500, 121))
        row, column = json.loads(await page.locator("#readout small").text_content())
        assert found[1] == str(bool(mask[row, column])).lower()


async def test_packed_values_dates_and_flags(page):
    """Values with their unit, north at the top, dates at the slider, and the stored numbers on request."""
    root = sync.create_group(store := {})
    packed = np.full((2, 40, 60), 2000, "i2")
    packed[:, :20] = -32768  # in the south
    attributes = {"scale_factor": 0.01, "add_offset": 265.49, "_FillValue": -32768, "units": "K"}
    names = ("time", "lat", "lon")
    root.create_array("t2m", data=packed, dimension_names=names, attributes=attributes)
    root.create_array("time", data=[0, 1], attributes={"units": "days since 2024-02-28"})
    root.create_array("lat", data=np.arange(40.0), attributes={"units": "degrees_north"})
    flags = {"flag_values": [0, 1], "flag_meanings": "land water", "flag_colors": "#ff0000 #0000ff"}
    root.create_array("mask", data=np.ones((40, 60), "u1"), attributes=flags)
    async with running(create_app(store), handler_cancellation=True) as url:
        base = url.rstrip("/")
        await page.goto(f"{base}/#path=t2m&index=1")
        await settled(page)
        await playwright.expect(page.locator("#sliders output")).to_have_text("2024-02-29")
        await playwright.expect(page.locator("#unit")).to_have_text("K")
        await playwright.expect(page.locator("figcaption")).to_have_text(re.compile("mean 285.49 K, .+, 1,200 missing"))
        box = await page.locator("#canvas").bounding_box()
        middle, above, below = box["width"] / 2, box["height"] / 4, 3 * box["height"] / 4
        assert re.fullmatch(r"lat 3\d°N, lon \d+: 285.49 K", await readout(page, middle, above))
        assert (await readout(page, middle, below)).endswith(": missing")
        await page.locator("#stored").check()
        await page.wait_for_url("**stored=1*")
        await playwright.expect(page.locator("#low")).to_have_value("-32768")
        await settled(page)
        assert (await readout(page, middle, below)).endswith(": -32768")
        await page.goto(f"{base}/?again#path=t2m&stored=1&flip=0")
        await settled(page)
        await playwright.expect(page.locator("#stored")).to_be_checked()
        assert (await readout(page, middle, above)).endswith(": -32768")
        await page.evaluate("location.hash = '#path=mask'")
        await playwright.expect(page.locator("#cmap")).to_have_value("labels")
        await settled(page)
        assert await pixel(page, middle, above) == (0, 0, 255)
        assert (await readout(page, middle, above)).endswith(": 1 (water)")


async def test_the_code_on_the_page_runs(page, base):
    import asyncio

    await open_wave(page, base)
    await page.locator("#axis-0").fill("2")
    await settled(page)
    code = await page.locator("#snippet pre").text_content()
    found: dict[str, Any] = {}
    await asyncio.to_thread(exec, code, found)
    np.testing.assert_array_equal(found["values"], WAVE[2])


@pytest.mark.parametrize("page", [{"viewport": {"width": 400, "height": 800}, "has_touch": True}], indirect=True)
async def test_a_telephone(page, base):
    await page.goto(f"{base}/waves/#path=pyramid")
    await settled(page)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 400


ZARRITA_PAGE = """<!doctype html><link rel="icon" href="data:,">
<script type="importmap">{"imports": {
  "zarrita": "/node_modules/zarrita/dist/src/index.js",
  "@zarrita/storage/fetch": "/node_modules/@zarrita/storage/dist/src/fetch.js",
  "numcodecs/blosc": "/node_modules/numcodecs/dist/blosc.js",
  "numcodecs/lz4": "/node_modules/numcodecs/dist/lz4.js",
  "numcodecs/zstd": "/node_modules/numcodecs/dist/zstd.js"
}}</script>
<script type="module">
import * as zarr from "zarrita";
window.read = async (path, selection) => {
  const store = new zarr.FetchStore(new URL("/waves/zarr", location.href), { useSuffixRequest: true });
  const array = await zarr.open.v3(zarr.root(store).resolve(path), { kind: "array" });
  const { data, shape } = await zarr.get(array, selection?.map((s) => (Array.isArray(s) ? zarr.slice(...s) : s)));
  return { data: [...data].map(Number), shape };
};
window.ready = true;
</script>"""


@pytest.mark.skipif(not ZARRITA, reason="ZARRASYNC_ZARRITA does not name a node_modules folder with zarrita")
async def test_zarrita_reads_what_is_served(page, base):
    await page.goto(f"{base}/zarrita.html")
    await page.wait_for_function("window.ready")
    told = await page.evaluate("window.read('/field/wave', [2, [10, 400, 3], null])")
    np.testing.assert_array_equal(np.array(told["data"], "f4").reshape(told["shape"]), WAVE[2, 10:400:3])
    told = await page.evaluate("window.read('/numbers')")
    assert told["data"] == list(range(10))


@pytest.mark.skipif(not ZARRITA, reason="ZARRASYNC_ZARRITA does not name a node_modules folder with zarrita")
@pytest.mark.parametrize("zarr_format", [2, "3-draft"])
async def test_zarrita_reads_older_formats_translated(page, zarr_format):
    store: dict[str, bytes] = {}
    values = np.arange(48.0).reshape(6, 8)
    root = sync.create_group(store, zarr_format=zarr_format)
    root.create_array("a", data=values, chunks=(4, 3), order="F", compressors="gzip")
    app = web.Application()
    app.add_subapp("/waves", create_app(store))
    app.router.add_static("/node_modules", ZARRITA)
    app.router.add_get("/zarrita.html", zarrita_page)
    async with running(app) as url:
        await page.goto(f"{url}zarrita.html")
        await page.wait_for_function("window.ready")
        # zarrita keeps F order in memory and describes it by strides.
        told = await page.evaluate("window.read('/a', [[0, 6], 5])")
        assert told["data"] == values[:, 5].tolist()


async def test_the_first_picture_needs_few_requests_and_bytes(page, base):
    """The modules are requested at once, compressed, and not again when the page is visited later."""

    async def resources() -> list[Any]:
        await settled(page)
        await page.wait_for_load_state("networkidle")
        return await page.evaluate(
            "performance.getEntriesByType('resource').map((e) => [e.name, e.transferSize, e.initiatorType])"
        )

    address = f"{base}/waves/#path=field%2Fwave"
    await page.goto(address)
    first = await resources()
    static = [(name, size) for name, size, _ in first if "/static/" in name]
    others = [name for name, *_ in first if "/static/" not in name and "/api/tiles/" not in name]
    assert len(static) == 12
    assert sum(size for _, size in static) < 45_000
    assert len(others) <= 7, others
    linked = await page.evaluate("[...document.querySelectorAll('link[rel=modulepreload]')].map((link) => link.href)")
    assert {name for name, _ in static} == {
        *linked,
        f"{base}/waves/static/viewer.js",
        f"{base}/waves/static/viewer.css",
    }
    await page.goto("about:blank")
    await page.goto(address)
    again = [size for name, size, _ in await resources() if "/static/" in name]
    assert len(again) == 12
    assert sum(again) < 12 * 600  # headers: the files have not changed


async def test_the_first_picture_waits_for_few_requests(page, base):
    """For the page and its files, and then, one after the other, for the node, its view and a tile; not for the tree."""
    asked: list[str] = []
    is_drawn = asyncio.Event()

    async def hold(route: Any) -> None:
        await is_drawn.wait()
        await route.continue_()

    page.on("request", lambda request: asked.append(request.url.removeprefix(f"{base}/waves/")))
    await page.route("**/api/node?path=", hold)
    await page.goto(f"{base}/waves/#path=field/wave")
    await settled(page)
    before = asked[: next(at for at, url in enumerate(asked) if url.startswith("api/tiles"))]
    assert [url for url in before if url.startswith("api/")] == [
        "api/node?path=",
        "api/node?path=field%2Fwave",
        "api/view?path=field%2Fwave",
        "api/colours?cmap=viridis",
        "api/stats?path=field%2Fwave&index=0&bins=80",
    ]
    assert len([url for url in before if url.startswith("static/")]) <= 13
    is_drawn.set()
    await playwright.expect(page.get_by_role("treeitem", name="wave")).to_have_attribute("aria-selected", "true")
    assert len(asked) == len(set(asked)), "nothing is requested twice"
    await playwright.expect(page).to_have_title("field/wave · waves · zarrasync")
