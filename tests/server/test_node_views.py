"""Views of groups and of arrays without planes, addresses, and accessibility, in a real browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.support.demo import store_with_weather

pytest.importorskip("cmap", reason="the server's extra is not installed")
playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")

import zarrasync as za
from tests.support.server_client import running
from zarrasync import sync
from zarrasync.server import create_app

pytestmark = pytest.mark.servers
AXE = os.environ.get("ZARRASYNC_AXE", "")
expect = playwright.expect
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest_asyncio.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    sync.copy(store_with_weather(), tmp_path / "weather.zarr")
    async with running(create_app(tmp_path / "weather.zarr")) as url:
        yield url


async def rows(page: Any, table: str) -> list[list[str]]:
    lines = await page.locator(f"table:has(caption:text-is('{table}')) tbody tr").all()
    return [await line.locator("th, td").all_text_contents() for line in lines]


async def test_a_group_is_a_table_of_its_members(page, url):
    await page.goto(url)
    await expect(page).to_have_title("weather.zarr · zarrasync")
    await expect(page.get_by_role("heading", level=1)).to_have_text("weather.zarr")
    await expect(page.get_by_role("row", name="2024-01-01 … 2024-12-31")).to_be_visible()
    assert await rows(page, "Dimensions") == [
        ["time", "366", "2024-01-01 … 2024-12-31"],
        ["latitude", "61", "90°N … 90°S"],
        ["longitude", "120", "0° … 357°E"],
    ]
    variables = {row[0]: row[1:] for row in await rows(page, "Variables")}
    assert list(variables) == ["mask", "mean", "t2m", "version", "walk"]
    size = "time 366 × latitude 61 × longitude 120"
    assert variables["t2m"] == ["temperature at 2 m", "K", size, "int16", "30 × 61 × 120"]
    assert variables["version"][2] == "scalar"
    coordinates = await rows(page, "Coordinates")
    assert [row[0] for row in coordinates] == ["latitude", "longitude", "time"]
    assert coordinates[0] == ["latitude", "degrees_north", "latitude 61", "float64", "61"], (
        "and no column without texts"
    )
    found: dict[str, Any] = {}
    code = await page.locator("#code").text_content()
    await asyncio.to_thread(exec, code, found)
    assert found["group"].name == "/"
    await page.get_by_role("tab", name="xarray").click()
    await expect(page.locator("#code")).to_contain_text("xr.open_dataset(")
    text = await page.locator("main").inner_text()
    assert not re.search(r"\(\d+,[ )]", text)  # Python's tuples
    await page.get_by_role("link", name="stations").click()
    await expect(page.locator("#title")).to_have_text("/stations")


async def test_series_are_charts_with_dates(page, url):
    await page.goto(f"{url}#path=mean")
    chart = page.locator("#chart svg")
    await expect(chart.locator("path.line")).to_have_count(1)
    labels = await chart.locator("text").all_text_contents()
    assert {"2024-02", "2024-11", "in K", "time"} <= set(labels)
    values = await (await za.open_array(f"{url}zarr", path="mean"))[...]
    await chart.focus()
    for _ in range(60):
        await page.keyboard.press("ArrowRight")
    told = await page.locator("#chart output").text_content()
    assert re.fullmatch(r"time 2024-02-29: \S+ K", told)
    assert float(told.split()[-2]) == pytest.approx(values[59], rel=1e-6)
    await page.keyboard.press("+")
    await expect(page).to_have_url(re.compile("span=0%2C183"))
    await expect(page.locator("#values tbody tr").first).to_contain_text("2024-01-01")
    await page.goto(f"{url}?again#path=walk&span=100,300")
    await expect(page.locator("#chart svg path")).to_have_class(re.compile("line"))
    await page.get_by_role("button", name="show the whole chart").click()
    await expect(page.locator("#chart")).to_contain_text("the least and the greatest of 334 values")
    await chart.focus()
    await page.keyboard.press("Home")
    part = await (await za.open_array(f"{url}zarr", path="walk"))[:334]
    least, greatest = (f"{number:.6g}" for number in (part.min(), part.max()))
    await expect(page.locator("#chart output")).to_have_text(f"axis 0 0 to 333: {least} to {greatest}")


async def test_other_values_are_tables(page, url):
    for path, cells in {
        "version": ["7"],
        "stations/name": ["Oslo", "Oslo"],
        "stations/site": ["Oslo", "23", "1492"],
        "time": ["2024-01-01", "2024-01-01"],
    }.items():
        await page.goto(f"{url}#path={path}")
        await expect(page.locator("#title")).to_have_text(f"/{path}")
        await expect(page.locator("#values tbody tr").first.locator("th, td")).to_have_text(cells)
        await expect(page.locator("#chart")).to_be_hidden()
    await page.get_by_role("button", name="next rows").click()
    await expect(page.locator("#values tbody tr").first).to_contain_text("2024-02-20")
    await page.goto(f"{url}#path=stations/spectrum")
    await expect(page.locator("#chart path")).to_have_count(2)
    await expect(page.locator("#values tbody tr").nth(1)).to_contain_text(re.compile(r"^1\s*0.9937\d+ \+ 0.0497\d+i$"))


@pytest.mark.parametrize("page", [{}, {"color_scheme": "dark"}, PHONE], indirect=True)
async def test_columns_of_tables_are_dates_or_numbers(page, url, tmp_path):
    root = sync.open_group(tmp_path / "weather.zarr", mode="r+")
    since = {"units": "hours since 2024-01-01"}
    root.create_array("hours", data=np.array([0, 24, 30]), attributes=since)
    root.create_array("days", data=np.array([0, 24, 48]), attributes={**since, "calendar": "noleap"})
    pairs = np.array([["2024-01-01", "2024-01-02T06:00"], ["NaT", "2024-01-02"]], "M8[ns]")
    root.create_array("pairs", data=pairs, dimension_names=("a", "b"))
    root.create_array("ids", data=np.array([2**63 - 1, -5]))
    root.create_array("texts", data=np.array(["2024-01-01T00:00:00", "1"]))
    events = np.array([("2024-01-01", 1 + 2j), ("2024-01-02", 3)], [("t", "M8[s]"), ("n", "c8")])
    root.create_array("events", data=events)
    root.create_array("pages", data=events[None])
    times = ["2024-01-01T00:00:00", "2024-01-02T00:00:00", "2024-01-02T06:00:00"]
    nanoseconds = [f"2024-01-02T{time}.000000000" for time in ("06:00:00", "00:00:00")]
    left, right = "start", "right"
    for path, texts, alignment in (
        ("hours", [*zip("012", times, strict=True)], [right, left]),  # one of which is not midnight
        ("days", [("0", "2024-01-01"), ("1", "2024-01-02"), ("2", "2024-01-03")], [right, left]),
        ("pairs", [("0", "2024-01-01", nanoseconds[0]), ("1", "missing", nanoseconds[1])], [right, left, left]),
        ("ids", [("0", str(2**63 - 1)), ("1", "-5")], [right, right]),
        ("texts", [("0", "2024-01-01T00:00:00"), ("1", "1")], [right, left]),
        ("events", [("0", "2024-01-01", "1 + 2i"), ("1", "2024-01-02", "3 + 0i")], [right, left, right]),
        ("pages", [("0", "2024-01-01, 1 + 2i", "2024-01-02, 3 + 0i")], [right, left, left]),
        ("stations/site", [("Oslo", "23", "1492")], [left, right, right]),
    ):
        await page.goto(f"{url}?{path.replace('/', '-')}#path={path}")
        table = page.locator("#values table")
        for number, cells in enumerate(texts):
            await expect(table.locator("tbody tr").nth(number).locator("th, td")).to_have_text(list(cells))
        for line in ("thead tr", "tbody tr:first-child"):
            for cell, side in zip(await table.locator(f"{line} > *").all(), alignment, strict=True):
                assert (
                    await cell.evaluate("(cell) => getComputedStyle(cell).textAlign.replace('left', 'start')") == side
                )
                assert await cell.evaluate("(cell) => getComputedStyle(cell).fontVariantNumeric") == "tabular-nums"


async def test_a_click_shows_a_profile_and_slices_can_be_downloaded(page, url):
    await page.goto(f"{url}#path=t2m&index=40")
    canvas = page.locator("#canvas[aria-busy=false]")
    await canvas.wait_for()
    box = await canvas.bounding_box()
    await canvas.click(position={"x": box["width"] / 2, "y": box["height"] / 3})
    await expect(page.locator("#profile path.line")).to_have_count(1)
    await page.locator("#readout small").wait_for()
    _, row, column = json.loads(await page.locator("#readout small").text_content())
    array = await za.open_array(f"{url}zarr", path="t2m", decode=True)
    values = await array[:, row, column]
    await page.locator("#profile svg").focus()
    await page.keyboard.press("Home")
    told = await page.locator("#profile output").text_content()
    assert told.startswith("time 2024-01-01: ")
    assert float(told.split()[-2]) == pytest.approx(values[0], rel=1e-6)
    await page.locator("#profile-axis").select_option("longitude")
    await expect(page.locator("#profile")).to_contain_text("time 2024-02-10, latitude")
    async with page.expect_download() as waiting:
        await page.get_by_role("link", name="npy").click()
    np.testing.assert_allclose(np.load(await (await waiting.value).path()), await array[40])
    await page.get_by_role("link", name="Show on a map").click()
    await page.locator("#canvas[aria-busy=false]").wait_for()
    box = await page.locator("#canvas").bounding_box()
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    readout = page.locator("#readout")
    await readout.filter(has_text=": ").filter(has_not_text="…").wait_for()
    _, latitude, longitude, kelvin = re.fullmatch(
        r"(([\d.]+)°[NS]?, ([\d.]+)°E): ([\d.]+) K", await readout.text_content()
    ).groups()
    south, east = round(float(latitude) / 3), round(float(longitude) / 3)
    assert float(kelvin) in (
        values_at := [float(f"{await array[40, 30 + sign * south, east]:.6g}") for sign in (-1, 1)]
    ), values_at
    await page.go_back()
    await canvas.wait_for()
    await canvas.click(position={"x": 100, "y": 100})
    await page.get_by_role("button", name="close the profile").click()
    await expect(page.locator("#profile")).to_be_hidden()


async def test_back_stays_inside(page, url):
    await page.goto(f"{url}#path=")
    await page.get_by_role("treeitem", name="t2m").click()
    await page.locator("#canvas[aria-busy=false]").wait_for()
    await page.locator("#axis-0").fill("40")
    await expect(page.locator("#sliders output")).to_have_text("2024-02-10")
    await page.get_by_role("treeitem", name="mask").click()
    await expect(page.locator("#title")).to_have_text("/mask")
    await page.locator("#canvas[aria-busy=false]").wait_for()
    await expect(page.locator("#key li")).to_have_text(["sea", "land"])
    await page.go_back()
    await expect(page.locator("#title")).to_have_text("/t2m")
    await expect(page.locator("#sliders output")).to_have_text("2024-02-10")
    await page.go_back()
    await expect(page.locator("#summary")).to_be_visible()
    await page.go_forward()
    await expect(page.locator("#title")).to_have_text("/t2m")


@pytest.mark.parametrize("page", [{"allowed": "404"}], indirect=True)
async def test_invalid_addresses_say_so(page, url):
    await page.goto(f"{url}#path=t3m")
    await expect(page.locator("#notice")).to_contain_text("asks for /t3m, which does not exist in this store")
    await expect(page).to_have_url(re.compile("#path=t3m$"))
    await page.get_by_role("link", name="Show the whole store").click()
    await expect(page.locator("#summary")).to_be_visible()
    await expect(page.locator("#notice")).to_be_hidden()
    await page.goto(f"{url}#path=t2m&index=999&cmap=pink2&range=1")
    for text in ("the index 999 (time has 366 elements)", "the colours pink2", "the range 1"):
        await expect(page.locator("#notice")).to_contain_text(text)
    await page.goto(f"{url}#path=mean&span=5,9000")
    await expect(page.locator("#notice")).to_contain_text("the part 5,9000 of 366 elements")


@pytest.mark.parametrize("page", [PHONE], indirect=True)
async def test_the_image_is_on_the_first_screen_of_a_phone(page, url):
    await page.goto(f"{url}#path=t2m")
    await page.locator("#canvas[aria-busy=false]").wait_for()
    box = await page.locator("#stage").bounding_box()
    assert box["y"] + box["height"] < 844
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    await expect(page.get_by_role("tree")).to_be_hidden()
    await page.get_by_role("button", name="Browse").click()
    await page.get_by_role("treeitem", name="mean").click()
    await expect(page.locator("#chart path")).to_have_count(1)
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.skipif(not AXE, reason="ZARRASYNC_AXE does not name axe.min.js of axe-core")
@pytest.mark.parametrize("page", [{}, {"color_scheme": "dark"}, PHONE], indirect=True)
async def test_pages_are_accessible(page, url):
    for path in ("", "t2m", "mask", "mean", "stations/site", "stations/spectrum"):
        await page.goto(f"{url}?{path.replace('/', '-')}#path={path}")
        await expect(page.locator("#title")).to_have_text(f"/{path}")
        await page.wait_for_load_state("networkidle")
        await page.evaluate(Path(AXE).read_text())
        found = await page.evaluate("axe.run()")
        problems = {item["id"]: [node["html"][:200] for node in item["nodes"]] for item in found["violations"]}
        assert problems == {}, path


async def test_charts_have_the_least_and_the_greatest_values_of_points():
    from zarrasync.server import Service

    values = np.array([3, 1, np.nan, np.nan, 5, 4, 7.0])
    store: dict[str, bytes] = {}
    sync.create_array(store, name="v", data=values, dimension_names=["x"])
    sync.create_array(store, name="grid", data=values[:6].reshape(2, 3))
    async with Service(store) as service:
        told = await service.chart("v", points=4)
        assert told["curves"] == [{"name": "", "low": [1.0, None, 4.0, 7.0], "high": [3.0, None, 5.0, 7.0]}]
        assert (told["axis"], told["start"], told["step"], told["width"]) == (0, 0, 1, 2)
        told = await service.chart("grid", ":,-1")
        assert told["curves"] == [{"name": "", "values": [None, 4.0]}]
        with pytest.raises(IndexError, match="one axis"):
            await service.chart("grid")
