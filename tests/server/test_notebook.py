"""The viewer in a cell of a notebook: its JavaScript in a real browser, with a kernel's side that answers it, and in a real kernel."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")
from PIL import Image

from tests.support.demo import WAVE, store_with_waves
from zarrasync import errors, sync
from zarrasync.server import notebook

AXE = os.environ.get("ZARRASYNC_AXE", "")
PAGE = """<!doctype html><html lang="en"><head><title>A notebook</title><meta charset="utf-8"><link rel="icon" href="data:,">
<style>body {{ margin: 0; background: {colour} }}</style></head><body><main><div id="cell"></div></main></body></html>"""
MODEL = """async (traits) => {
  const listeners = [];
  window.model = {
    get: (name) => traits[name],
    set: (name, value) => (traits[name] = value),
    save_changes: () => window.toKernel({ kind: "state", address: traits.address }, []),
    on: (name, call) => listeners.push({ name, call }),
    off: (name, call) => listeners.splice(listeners.findIndex((item) => item.name === name && item.call === call), 1),
    send: (content, _, buffers = []) => window.toKernel(content, buffers.map((b) => btoa(Array.from(new Uint8Array(b), (c) => String.fromCharCode(c)).join("")))),
    emit: (name, ...values) => listeners.filter((item) => item.name === name).forEach(({ call }) => call(...values)),
  };
  window.fromKernel = (content, buffer) => window.model.emit("msg:custom", content, [new DataView(Uint8Array.from(atob(buffer), (c) => c.charCodeAt(0)).buffer)]);
  const url = URL.createObjectURL(new Blob([traits._esm], { type: "text/javascript" }));
  window.widget = (await import(url)).default;
  window.end = await window.widget.render({ model: window.model, el: document.getElementById("cell") });
}"""


class Cell:
    """A widget, and a page that shows it. Messages between them go through the browser's driver."""

    def __init__(self, page: Any, widget: notebook.Viewer) -> None:
        self.page, self.widget = page, widget
        self.sent: list[dict[str, Any]] = []

    async def show(self, colour: str = "white") -> None:
        loop = asyncio.get_running_loop()

        def send(content: dict[str, Any], buffers: list[bytes]) -> None:  # on the thread of the library's loop
            told = [content, base64.b64encode(buffers[0]).decode()]
            asyncio.run_coroutine_threadsafe(self.page.evaluate("(told) => window.fromKernel(...told)", told), loop)

        self.widget.send = send
        await self.page.expose_function("toKernel", self._receive)
        await self.page.set_content(PAGE.format(colour=colour))
        traits = {name: getattr(self.widget, name) for name in ("_esm", "address", "picture_name")}
        await self.page.evaluate(MODEL, traits)

    def _receive(self, content: dict[str, Any], buffers: list[str]) -> None:
        self.sent.append(content)
        if content["kind"] == "state":
            self.widget.address = content["address"]
        else:
            self.widget._receive(None, content, [memoryview(base64.b64decode(item)) for item in buffers])

    @property
    def view(self) -> dict[str, str]:
        return dict(parse_qsl(self.widget.address))

    async def settled(self) -> None:
        await self.page.locator("#canvas[aria-busy=false]").wait_for()

    async def until(self, condition: Any) -> None:
        for _ in range(100):
            if condition():
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the condition was not met within 10 s")


def shown_picture(outputs: list[dict[str, Any]]) -> Any:
    return Image.open(io.BytesIO(base64.b64decode(outputs[-1]["image/png"]))).convert("RGB")


@pytest.mark.servers
async def test_a_cell_shows_the_viewer(page, monkeypatch):
    """The same elements as on the page of the server; the view goes to the kernel, and its picture to the notebook."""
    outputs: list[dict[str, Any]] = []
    monkeypatch.setattr(notebook, "update_display", lambda data, **options: outputs.append(data))
    array = sync.open_array(store_with_waves(), path="field/wave")
    cell = Cell(page, array.view[2, 100:300, 400:900].show())
    await cell.show()
    await cell.settled()
    assert await page.locator("#title").text_content() == "/field/wave"
    assert await page.locator("#sliders output").text_content() == "2"
    rows, columns = (float(number) for number in cell.view["at"].split(",")[:2]) if "at" in cell.view else (0, 0)
    await cell.until(lambda: "at" in cell.view)
    rows, columns, scale = (float(number) for number in cell.view["at"].split(","))
    assert (rows, columns) == (200, 650)  # the middle of the selection
    assert cell.view["index"] == "2"
    box = await page.locator("#canvas").bounding_box()
    assert scale * 200 <= box["height"] + 1
    assert scale * 500 <= box["width"] + 1
    await page.mouse.move(box["x"] + box["width"] / 2 + 0.4 * scale, box["y"] + box["height"] / 2 + 0.4 * scale)
    readout = page.locator("#readout span")
    await readout.filter(has_text=f"{WAVE[2, 200, 650]:.4f}"[:5]).wait_for()
    await cell.until(lambda: outputs)
    picture = shown_picture(outputs)
    assert picture.width > 0.9 * box["width"]
    assert len(picture.getcolors(1 << 20)) > 200  # of the plane, and of the colour bar
    # The address can be set in Python, and another node be shown.
    await page.evaluate("model.set('address', 'path=field/wave&index=4'); model.emit('change:address')")
    await page.locator("#sliders output").filter(has_text="4").wait_for()
    await page.get_by_role("button", name="Browse").click()
    await page.get_by_role("treeitem", name="numbers").click()
    await page.locator("#title").filter(has_text="/numbers").wait_for()
    await page.locator("#chart path").wait_for()
    before = len(outputs)
    await cell.until(lambda: len(outputs) > before)
    async with page.expect_download() as download:
        await page.get_by_role("link", name="npy").click()
    np.testing.assert_array_equal(np.load(await (await download.value).path()), np.arange(10))
    assert await page.locator("#code").is_hidden()  # no program could reach a server


@pytest.mark.servers
async def test_a_slider_cancels_requests(page):
    """Requests of values that are not shown any more end in the kernel."""
    cell = Cell(page, sync.open_array(store_with_waves(), path="field/wave").show())
    ended: list[str] = []
    respond = cell.widget._core.respond

    async def slowly(request: Any) -> Any:
        if "tiles" in request.path:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                ended.append(request.path)
                raise
        return await respond(request)

    cell.widget._core.respond = slowly  # type: ignore[method-assign]
    await cell.show()
    await page.locator("#axis-0").wait_for()
    for time in (1, 2, 3):
        await page.locator("#axis-0").fill(str(time))
        await page.wait_for_timeout(60)
    await cell.settled()
    cancelled = {item["id"] for item in cell.sent if item["kind"] == "cancel"}
    assert cancelled
    assert ended
    await cell.until(lambda: not cell.widget._running)
    await page.evaluate("window.end()")
    assert await page.evaluate("window.model.emit('msg:custom', { kind: 'answer', id: 'x' }, [])") is None


@pytest.mark.servers
async def test_a_notebook_without_a_kernel(page):
    """The picture stays, and the viewer disappears."""
    widget = sync.open_array(store_with_waves(), path="field/wave").show()
    await page.expose_function("toKernel", lambda *_: None)
    await page.set_content(PAGE.format(colour="white") + f'<div class="{widget.picture_name}">picture</div>')
    traits = {name: getattr(widget, name) for name in ("_esm", "address", "picture_name")}
    await page.evaluate(MODEL, traits)
    await page.locator("#cell > div").wait_for(state="hidden")
    assert await page.get_by_text("picture").is_visible()


@pytest.mark.servers
@pytest.mark.skipif(not AXE, reason="ZARRASYNC_AXE does not name axe.min.js")
@pytest.mark.parametrize("colour", ["white", "#111"])
async def test_a_cell_is_accessible(page, colour):
    cell = Cell(page, sync.open_array(store_with_waves(), path="field/wave").show())
    await cell.show(colour)
    await cell.settled()
    await page.locator("#histogram rect").first.wait_for()
    await page.add_script_tag(path=AXE)
    found = await page.evaluate("axe.run(document, { rules: { 'page-has-heading-one': { enabled: false } } })")
    assert [f"{item['id']}: {node['html']}" for item in found["violations"] for node in item["nodes"]] == []


def test_the_viewer_names_the_store(tmp_path):
    sync.create_array(tmp_path / "weather.zarr", data=np.zeros((4, 5)))
    for node in (sync.open_array(tmp_path / "weather.zarr"), sync.open_array(tmp_path / "weather.zarr", mode="r+")):
        assert node.show()._service.name == "weather.zarr"
    assert sync.create_array({}, data=np.zeros((4, 5))).show()._service.name == ""


def test_selections_that_cannot_be_shown():
    array = sync.create_array({}, data=np.zeros((4, 5)), chunks=(2, 2))
    with pytest.raises(errors.SelectionError, match="integers and slices"):
        array.view.oindex[[0, 2], :].show()
    with pytest.raises(errors.SelectionError, match="integers and slices"):
        array.view[2:2].show()
    place = dict(parse_qsl(array.view[::-1, 3].show().address))
    assert place == {"box": "0,4,3,4"}
    image = sync.create_array({}, data=np.zeros((30, 40, 3), "u1"), dimension_names=("y", "x", "c"))
    place = dict(parse_qsl(image.view[10:20, 5:9, 1].show().address))  # the colours are on the last axis
    assert place == {"index": "1", "box": "10,20,5,9"}


def test_the_outputs_of_a_cell(monkeypatch):
    """The card and a picture for readers without a kernel; only the card of groups; a reason without a picture."""
    outputs: list[dict[str, Any]] = []
    monkeypatch.setattr(notebook, "display", lambda data, **options: outputs.append(data))
    root = sync.open_group(store := store_with_waves())
    sync.open_array(store, path="field/wave").show()._ipython_display_()
    assert "application/vnd.jupyter.widget-view+json" in outputs[0]
    assert "field/wave" in outputs[0]["text/html"]
    assert shown_picture(outputs).size == (650, 350)  # every other element
    root.show()._ipython_display_()
    assert "image/png" not in outputs[-1]
    for values in (np.ones((2, 3), "c8"), np.zeros((0, 3)), np.zeros((2, 3), [("a", "i4")])):
        sync.create_array({}, data=values).show()._ipython_display_()
        assert "no picture" not in outputs[-1]["text/html"]
    for key in [key for key in store if key.startswith("field/wave/c/")]:
        store[key] = store[key][:100]
    sync.open_array(store, path="field/wave").show()._ipython_display_()
    assert "no picture" in outputs[-1]["text/html"]


@pytest.mark.processes
def test_a_kernel():
    """A notebook that is executed without a browser contains the card and a picture, with both interfaces."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = (
        "import numpy as np, zarrasync as za\nfrom zarrasync import sync",
        "store = {}\nsync.create_array(store, data=np.arange(600.0).reshape(20, 30)).show()",
        "await (await za.open_array(store)).show()",
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(book, timeout=120).execute()
    for cell in book.cells[1:]:
        widget, picture = (output.data for output in cell.outputs)
        assert "application/vnd.jupyter.widget-view+json" in widget
        assert widget["text/html"].startswith("<style>")
        assert Image.open(io.BytesIO(base64.b64decode(picture["image/png"]))).size == (240, 160)
    assert json.loads(nbformat.writes(book))["cells"]


def test_without_anywidget(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "zarrasync.server.notebook")
    with pytest.raises(
        ImportError, match=r"show\(\) cannot be imported: .*anywidget.*; pip install 'zarrasync\[show\]'"
    ):
        sync.create_array({}, data=[[1]]).show()
