"""Make the pictures of the documentation, with a real browser: make screenshots (needs Chromium and playwright)."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from aiohttp import web
from playwright.async_api import Page, async_playwright

from tests.support.demo import (
    create_temperature,
    store_with_cells,
    store_with_two_sources,
)
from zarrasync import sync
from zarrasync.server import create_app

OUT = Path(__file__).parent / "_static"
PAGE = "<!doctype html><meta charset=utf-8><body style='margin:0;padding:12px;width:760px;{}'>{}</body>"
COLOURS = {
    "light": "background:#fff;color:#222832",
    "dark": "background:#14181e;color:#ced6dd",
}


def reprs() -> dict[str, str]:
    """Return the HTML that notebooks show, by the name of its picture."""
    layout = {"chunks": (5, 45, 60), "shards": (75, 180, 360)}
    array = create_temperature(
        sync.create_group({}), shape=(365, 180, 360), dtype="f4", **layout
    )
    return {
        "repr": array._repr_html_(),
        "explain": array.view[10:40, 100:, 200:300].explain()._repr_html_(),
    }


async def viewer(page: Page, url: str, name: str) -> None:
    """Take a picture of the page that the server offers."""
    await page.goto(url)
    await page.locator("#canvas[aria-busy=false]").wait_for()
    box = await page.locator("#canvas").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 420, box["y"] + 160)
    await page.locator("#readout", has_text=": ").filter(has_not_text="…").wait_for()
    await page.locator("#histogram rect").nth(10).wait_for()
    await page.screenshot(path=OUT / f"{name}.png")


VIEWS = {
    "viewer": "waves/#path=water%2Fheight&index=3&cmap=matplotlib%3Acoolwarm",
    "viewer-labels": "cells/#path=&index=1&cmap=gray&labels=labels%2Fnuclei",
}
"""Addresses of pages, by the name of their picture."""


async def main() -> None:
    """Make all pictures, light and dark."""
    OUT.mkdir(exist_ok=True)
    app = web.Application()
    app.add_subapp("/waves", create_app(store_with_two_sources()))
    app.add_subapp("/cells", create_app(store_with_cells()))
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium") or sys.exit("no Chromium")
        )
        for scheme, colours in COLOURS.items():
            context = await browser.new_context(
                viewport={"width": 1180, "height": 780}, color_scheme=scheme
            )  # type: ignore[arg-type]
            for name, address in VIEWS.items():
                await viewer(
                    await context.new_page(), f"{url}/{address}", f"{name}-{scheme}"
                )
            page = await context.new_page()  # the viewer's allows no styles but its own
            for name, html in reprs().items():
                await page.set_content(PAGE.format(colours, html))
                await page.locator("body").screenshot(path=OUT / f"{name}-{scheme}.png")
        await browser.close()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
