"""Tests of the protocol run with the server on aiohttp, and on Starlette in uvicorn."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

_ON_BOTH = {
    "test_access",
    "test_api",
    "test_caching",
    "test_connections",
    "test_edr",
    "test_limits",
    "test_protocol",
    "test_served_stores",
}
_AIOHTTP_ALONE = {"test_connections_make_room", "test_connections_with_requests_are_not_replaced"}
"""Tests of connections that replace others, for which uvicorn has no place."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    is_protocol = metafunc.module.__name__.rpartition(".")[2] in _ON_BOTH
    if (
        is_protocol
        and metafunc.definition.get_closest_marker("servers")
        and metafunc.definition.name not in _AIOHTTP_ALONE
    ):
        metafunc.parametrize("framework", ["aiohttp", "asgi"], indirect=True)


@pytest.fixture(autouse=True)
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The framework that ``serving`` uses."""
    name = getattr(request, "param", "aiohttp")
    monkeypatch.setenv("FRAMEWORK", name)
    return name


def chromium() -> str | None:
    """Return the path of Chromium; ``None`` if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest_asyncio.fixture
async def page(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """A browser page; the test fails if its console shows errors or warnings."""
    options = dict(getattr(request, "param", {}))
    # The server ends before the page, which may still load pictures; then a pattern of messages that the test provokes.
    allowed = f"net::ERR_CONNECTION_REFUSED|{options.pop('allowed', '$^')}"
    complaints: list[str] = []
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    if chromium() is None:
        pytest.skip("there is no Chromium")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium())
        context = await browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        page = await context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        folder = Path(os.environ.get("ZARRASYNC_ARTIFACTS", tmp_path))
        folder.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=folder / (re.sub(r"\W+", "-", request.node.name) + ".png"))
        await browser.close()
    assert [text for text in complaints if not re.search(allowed, text)] == []
