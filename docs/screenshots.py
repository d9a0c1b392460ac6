"""Makes the pictures of the documentation, with a real browser: python docs/screenshots.py (needs Chromium and playwright)."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import numpy as np
from aiohttp import web
from playwright.async_api import Page, async_playwright

from zarrasync import sync
from zarrasync.server import create_app

OUT = Path(__file__).parent / "_static"
PAGE = "<!doctype html><meta charset=utf-8><body style='margin:0;padding:12px;width:760px;{}'>{}</body>"
COLOURS = {"light": "background:#fff;color:#222832", "dark": "background:#14181e;color:#ced6dd"}


def demo() -> dict[str, bytes]:
    """Something to look at."""
    store: dict[str, bytes] = {}
    y, x = np.mgrid[-2:2:900j, -3:3:1600j]
    waves = np.stack(
        [np.sin(5 * np.hypot(x - 1, y) - t) + np.sin(5 * np.hypot(x + 1, y) - t) for t in np.linspace(0, 3, 8)]
    ).astype("f4")
    waves[:, np.hypot(x - 1, y) < 0.08] = np.nan
    waves[:, np.hypot(x + 1, y) < 0.08] = np.nan
    root = sync.create_group(store, attributes={"title": "Two sources of waves"})
    root.create_array(
        "water/height",
        data=waves,
        chunks=(1, 225, 200),
        shards=(1, 900, 1600),
        dimension_names=("time", "y", "x"),
        attributes={"units": "m", "long_name": "height of the surface"},
    )
    root.create_array("water/speed", data=np.abs(np.diff(waves, axis=0)), chunks=(1, 300, 400))
    root.create_array("time", data=np.linspace(0, 3, 8))
    root.create_array("land/mask", data=np.hypot(x, y) > 2.5, chunks=(300, 400))
    return store


def reprs() -> dict[str, str]:
    """HTML that notebooks show."""
    array = sync.create_array(
        {},
        name="t2m",
        shape=(365, 180, 360),
        dtype="f4",
        chunks=(5, 45, 60),
        shards=(75, 180, 360),
        dimension_names=("time", "lat", "lon"),
        attributes={"units": "K"},
    )
    return {"repr": array._repr_html_(), "explain": array.view[10:40, 100:, 200:300].explain()._repr_html_()}


async def viewer(page: Page, url: str, scheme: str) -> None:
    """The page of the server."""
    await page.goto(f"{url}/#path=water%2Fheight&index=3&cmap=matplotlib%3Acoolwarm")
    await page.locator("#canvas[aria-busy=false]").wait_for()
    box = await page.locator("#canvas").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 420, box["y"] + 160)
    await page.locator("#readout", has_text=": ").filter(has_not_text="…").wait_for()
    await page.locator("#histogram rect").nth(10).wait_for()
    await page.screenshot(path=OUT / f"viewer-{scheme}.png")


async def main() -> None:
    """Make all pictures, light and dark."""
    OUT.mkdir(exist_ok=True)
    runner = web.AppRunner(create_app(demo()), access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=shutil.which("chromium") or sys.exit("no Chromium"))
        for scheme, colours in COLOURS.items():
            context = await browser.new_context(viewport={"width": 1180, "height": 780}, color_scheme=scheme)  # type: ignore[arg-type]
            page = await context.new_page()
            await viewer(page, url, scheme)
            page = await context.new_page()  # the viewer's allows no styles but its own
            for name, html in reprs().items():
                await page.set_content(PAGE.format(colours, html))
                await page.locator("body").screenshot(path=OUT / f"{name}-{scheme}.png")
        await browser.close()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
