"""The viewer in a cell of a notebook: a widget whose requests the kernel answers, without a server.

Entry points register these functions as ``show`` of groups, arrays and selections, because nodes import nothing above them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from concurrent.futures import Future
from functools import cache
from html import escape
from typing import Any
from urllib.parse import unquote, urlencode
from uuid import uuid4

import anywidget
import traitlets
from IPython.display import display, update_display

from zarrasync._concurrency.bridge import start
from zarrasync.errors import SelectionError, ZarrError
from zarrasync.indexing.transform import Const, Stride
from zarrasync.metadata.conventions import meaning_of
from zarrasync.nodes.access import transform_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.decoded import AsyncDecodedArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.core import Core
from zarrasync.server.messages import Request
from zarrasync.server.pages import viewer_files
from zarrasync.server.pyramid import Pyramid, in_order
from zarrasync.server.service import Service

_CACHE_BYTES = 64 << 20
"""Bytes of the caches of a viewer. A notebook may have many."""


@cache
def _module() -> str:
    """Return the JavaScript of the widget: the files of the viewer, and the code that shows them in a cell."""
    files = viewer_files()
    widget = files.pop("widget.js")
    return f"const FILES = {json.dumps(files)};\n{widget}"


class Viewer(anywidget.AnyWidget):
    """The viewer of a store as a widget.

    Notebooks that are read without a kernel show the card of the node, and the last picture of the viewer below it.

    Args:
        node: The array or the group that is shown first.
        place: Parameters of the view, such as ``index``.

    Attributes:
        address: The shown node and view, with the parameters of addresses of the viewer on a server. May be set.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    address = traitlets.Unicode().tag(sync=True)
    picture_name = traitlets.Unicode().tag(sync=True)

    def __init__(self, node: AsyncArray | AsyncGroup, **place: str) -> None:
        name = f"zarrasync-picture-{uuid4().hex}"
        super().__init__(_esm=_module(), address=urlencode({"path": node.path, **place}), picture_name=name)
        self._node, self._index = node, place.get("index", "")
        self._service = Service(node.store, cache_bytes=_CACHE_BYTES, config=node.config)
        self._core = Core({"": self._service}, metrics=False)
        self._running: dict[str, Future[None]] = {}
        self.on_msg(self._receive)

    # -------------------------------------------------------------- requests

    def _receive(self, _: object, content: dict[str, Any], buffers: list[memoryview]) -> None:
        number = content.get("id", "")
        if content["kind"] == "request":
            task = self._running[number] = start(self._answer(number, content["path"]))
            task.add_done_callback(lambda _: self._running.pop(number, None))
        elif content["kind"] == "cancel":
            running = self._running.get(number)  # it may end, on the thread of the event loop, between two looks
            if running is not None:
                running.cancel()
        elif content["kind"] == "picture":
            self._update_picture(bytes(buffers[0]) if buffers else b"")

    async def _answer(self, number: str, path: str) -> None:
        """Answer a request as a server does. Its messages do not contain paths of the store either."""
        place, _, query = path.partition("?")
        response = await self._core.respond(Request("GET", f"/{unquote(place)}", query, hosts=("localhost",)))
        body = [*response.body]
        if response.stream is not None:
            body += [piece async for piece in response.stream]
        answer = {"kind": "answer", "id": number, "status": response.status, "headers": response.headers}
        try:
            self.send(answer, [b"".join(body)])
        finally:
            if response.release is not None:  # otherwise the server would wait for slow clients
                response.release()

    def close(self) -> None:
        """End the requests, and remove the viewer from the notebook."""
        for task in [*self._running.values()]:
            task.cancel()
        super().close()

    # -------------------------------------------------------------- pictures

    def _ipython_display_(self) -> None:
        bundle: Any = self._repr_mimebundle_() or {}
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        card = {"text/html": self._node._repr_html_(), "text/plain": repr(self._node).replace("<Async", "<", 1)}
        display({**data, **card}, raw=True)  # type: ignore[no-untyped-call]
        picture, note = start(self._draw()).result()
        display(self._as_output(picture, note), raw=True, display_id=self.picture_name)  # type: ignore[no-untyped-call]

    async def _draw(self) -> tuple[bytes, str]:
        """Return a picture of the first view, until the viewer sends one; without one, a note with the reason."""
        node = self._node
        if not isinstance(node, AsyncArray) or node.ndim < 2 or not node.size:
            return b"", ""
        if node.dtype.names or node.dtype.kind in "cmMOSTU":
            return b"", ""
        try:
            return await self._service.preview(self._node.path, index=self._index), ""
        except ZarrError as error:
            return b"", f"no picture: {error}"

    def _update_picture(self, picture: bytes) -> None:
        output = self._as_output(picture, "")
        update_display(output, raw=True, display_id=self.picture_name)  # type: ignore[no-untyped-call]

    def _as_output(self, picture: bytes, note: str) -> dict[str, Any]:
        """Return a picture as an output that the viewer hides while it works."""
        text = f"{self._node.name}: {note or 'the last view'}" if picture or note else ""
        encoded = b64encode(picture).decode()
        image = f'<img src="data:image/png;base64,{encoded}" alt="{escape(text)}">' if picture else escape(note)
        output = {"text/html": f'<div class="{self.picture_name}">{image}</div>', "text/plain": text}
        return {**output, "image/png": encoded} if picture else output


def show_group(group: AsyncGroup) -> Viewer:
    """Show a group in a notebook; see ``AsyncGroup.show``."""
    return Viewer(group)


def show_array(array: AsyncArray) -> Viewer:
    """Show an array in a notebook; see ``AsyncArray.show``."""
    return Viewer(array)


def show_selection(view: AsyncSelection) -> Viewer:
    """Show an array at the place of a selection; see ``AsyncSelection.show``."""
    array, shape = view.array, view.shape
    array = array.stored if isinstance(array, AsyncDecodedArray) else array
    assert isinstance(array, AsyncArray)
    spans = []
    for axis, item in enumerate(transform_of(view).maps):
        if isinstance(item, Const):
            spans.append((item.value, item.value))
        elif isinstance(item, Stride) and shape[item.dim]:
            ends = item.start, item.start + item.step * (shape[item.dim] - 1)
            spans.append((min(ends), max(ends)))
        else:
            raise SelectionError(
                f"show() needs integers and slices with elements, found another selection of axis {axis} of "
                f"{array.name}; show the array instead",
                shape=shape,
            )
    if array.ndim < 2:
        is_part = bool(spans) and spans[0][0] < spans[0][1]
        return Viewer(array, span=f"{spans[0][0]},{spans[0][1] + 1}") if is_part else Viewer(array)
    order = Pyramid.of([array], meaning_of(array.metadata).axes).levels[0].order
    *others, rows, columns = in_order(spans, order)
    box = [number for first, last in (rows, columns) for number in (first, last + 1)]
    index = ",".join(str(first) for first, _ in others)
    return Viewer(array, index=index, box=",".join(map(str, box)))
