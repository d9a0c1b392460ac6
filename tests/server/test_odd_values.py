"""Views of values at the ends of what numbers can represent, of readings that go out of date, and of invalid addresses."""

from __future__ import annotations

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

from tests.support.server_client import running
from zarrasync import sync
from zarrasync.server import create_app

pytestmark = pytest.mark.servers
AXE = os.environ.get("ZARRASYNC_AXE", "")
expect = playwright.expect
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
LARGE = 2**53


def odd() -> dict[str, bytes]:
    root = sync.create_group(store := {})
    plane = np.arange(600).reshape(20, 30)
    arrays = {
        "large": LARGE + plane,
        "tiny": plane * -1e-30,
        "shorts": (plane * 100).astype("u2"),
        "decades": 10.0 ** (plane / 100),
        "empty": np.zeros((0, 30)),
        "cube": np.stack([plane, plane + 1000]),
        "largest": np.uint64(2**64 - 1) - np.arange(30, dtype="u8"),
        "infinite": np.r_[np.inf, np.arange(28.0), -np.inf],
        "missing": np.full(30, np.nan),
    }
    for name, values in arrays.items():
        root.create_array(name, data=values, dimension_names=["t", "y", "x"][-values.ndim :])
    flags = {"flag_values": [0, 1, 2], "flag_meanings": "clear cloud snow"}
    root.create_array("flags", data=(plane % 3).astype("u1"), dimension_names=["y", "x"], attributes=flags)
    root.create_array("text", shape=(), dtype=str)[...] = "hello"
    x = {"units": "m", "standard_name": "projection_x_coordinate"}
    root.create_array("utm/t2m", data=plane.astype("f4"), dimension_names=["y", "x"])
    root.create_array(
        "utm/y", data=5_600_000 - 20_000 * np.arange(20), dimension_names=["y"], attributes={"units": "m"}
    )
    root.create_array("utm/x", data=200_000 + 20_000 * np.arange(30), dimension_names=["x"], attributes=x)
    return store


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    async with running(create_app(odd())) as url:
        yield url


async def opened(page: Any, url: str, address: str) -> None:
    await page.goto("about:blank")
    await page.goto(f"{url}#path={address}")
    await page.wait_for_load_state("networkidle")


async def overflows(page: Any, texts: str, box: str) -> list[str]:
    """Return the texts that are not inside of a box."""
    code = """([texts, box]) => { const outer = document.querySelector(box).getBoundingClientRect();
      return [...document.querySelectorAll(texts)].filter((item) => { const inner = item.getBoundingClientRect();
        return inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5; }).map((item) => item.textContent); }"""
    return await page.evaluate(code, [texts, box])


@pytest.mark.parametrize("page", [{}, PHONE], indirect=True)
async def test_the_colour_bar_has_room_for_its_numbers(page, url):
    for path in ("large", "tiny", "shorts"):
        await opened(page, url, path)
        texts = await page.locator("#key .marks span").all_text_contents()
        assert len(set(texts)) == len(texts) > 2, texts
        assert await overflows(page, "#key .marks span", "#key") == []
    await opened(page, url, "large")
    low, high = [int(await page.locator(f"#{name}").input_value()) for name in ("low", "high")]
    assert LARGE <= low < high < LARGE + 600


async def test_flags_have_no_mean(page, url):
    await opened(page, url, "flags")
    await expect(page.locator("#histogram figcaption")).to_have_text("0 to 2")
    await opened(page, url, "tiny")
    await expect(page.locator("#histogram figcaption")).to_contain_text("mean")


async def test_the_marks_of_a_logarithmic_scale_are_round(page, url):
    await opened(page, url, "decades&scale=log")
    assert await page.locator("#key .marks span").all_text_contents() == ["10", "100", "1000", "10000", "100000"]
    await opened(page, url, "decades&scale=log&range=20,60")
    assert await page.locator("#key .marks span").all_text_contents() == ["20", "30", "40", "50", "60"]


@pytest.mark.parametrize("page", [{}, PHONE], indirect=True)
async def test_the_names_of_axes_do_not_cover_coordinates(page, url):
    await opened(page, url, "utm/t2m")
    title = await page.locator("#down text").last.bounding_box()
    assert await page.locator("#down text").last.text_content() == "y [m]"
    for mark in (await page.locator("#down text").all())[:-1]:
        box = await mark.bounding_box()
        assert box["x"] >= title["x"] + title["width"] - 4, await mark.text_content()
    for edge in ("#down", "#across"):
        assert await page.locator(f"{edge} line").count() >= 2, "one coordinate does not show the scale"


async def test_charts_of_numbers_that_are_infinite_or_large(page, url):
    """The console of the page shows no errors, which the fixture checks."""
    for path, curve in (("infinite", r"^M\d"), ("largest", r"^M\d"), ("missing", "^$")):
        await opened(page, url, path)
        drawn = await page.locator("#chart path").get_attribute("d")
        assert re.search(curve, drawn)
        assert "N" not in drawn
        assert await overflows(page, "#chart text", "#chart .frame") == []
        await page.locator("#chart svg").focus()
        await page.keyboard.press("Home")
        await expect(page.locator("#chart output")).to_contain_text("x 0: ")
    await expect(page.locator("#chart .legend")).to_contain_text("no finite values")


async def test_scalar_strings_and_empty_arrays(page, url):
    await opened(page, url, "text")
    await expect(page.locator("#values")).to_contain_text("hello")
    await opened(page, url, "empty")
    await expect(page.locator("#values")).to_have_text("The array has no elements.")


async def test_the_cursor_reads_the_slice_that_is_shown(page, url):
    await opened(page, url, "cube")
    box = await page.locator("#canvas").bounding_box()
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    readout = page.locator("#readout span")
    await expect(readout).to_have_text("y 10, x 15: 315")
    await page.locator("#axis-0").focus()
    await page.keyboard.press("ArrowRight")
    await expect(readout).to_have_text("y 10, x 15: 1315")
    await page.evaluate("location.hash = 'path=shorts'")
    await expect(page.locator("#title")).to_have_text("/shorts")
    await page.locator("#canvas[aria-busy=false]").wait_for()
    await expect(page.locator("#readout")).to_be_empty()


@pytest.mark.parametrize("page", [{"allowed": "404|400"}], indirect=True)
async def test_invalid_addresses_say_what_is_invalid(page, url):
    problems = {
        "at=a,b,c": "the place a,b,c",
        "at=1,2": "the place 1,2",
        "at=1,2,0": "the place 1,2,0",
        "box=1,,2,3": "the place 1,,2,3",
        "labels=none": "the labels none",
        "colour=red": "the parameter colour",
    }
    for text, problem in problems.items():
        await opened(page, url, f"cube&{text}")
        await expect(page.locator("#notice")).to_contain_text(f"{problem}. The default is shown instead.")
    await opened(page, url, "&colour=red")
    await expect(page.locator("#notice")).to_contain_text("the parameter colour")
    await opened(page, url, "cube&at=10,15,4&index=1")
    await expect(page.locator("#notice")).to_be_hidden()
    for address in (
        "#path=nothing",
        "WebMercatorQuad/map.html?variable=nothing",
        "WebMercatorQuad/map.html?variable=cube",
    ):
        await page.goto("about:blank")
        await page.goto(url + address)
        await expect(page.locator("#notice")).to_be_visible()
        await expect(page.locator("#canvas")).to_be_hidden()
        if AXE:
            await page.evaluate(Path(AXE).read_text())
            found = await page.evaluate("axe.run()")
            assert [item["id"] for item in found["violations"]] == [], address


async def test_axes_named_as_latitudes_and_longitudes_have_degrees(page):
    """Coordinates without units, and grids of conventions that have none."""
    root = sync.create_group(store := {})
    lat, lon = np.arange(89.0, -90, -2), np.arange(-179.0, 180, 2)
    root.create_array("v", data=lat[:, None] + lon, dimension_names=["lat", "lon"])
    for name, values in (("lat", lat), ("lon", lon)):
        root.create_array(name, data=values, dimension_names=[name])
    sync.pyramid(store, path="v", dest=(levels := {}), levels=1)
    sync.copy(levels, store, dest_path="levels")
    async with running(create_app(store)) as url:
        for path in ("v", "levels"):
            await opened(page, url, path)
            assert "30°N" in await page.locator("#down text").all_text_contents()
            assert "90°W" in await page.locator("#across text").all_text_contents()
            await expect(page.locator("#bar")).to_be_hidden()
