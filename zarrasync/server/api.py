"""The API for nodes and values: ``/api/node`` and ``/api/data``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import web

from zarrasync.bulk.statistics import Summary
from zarrasync.display import values as value_text
from zarrasync.display.meaning import encoding_facts, meaning_facts
from zarrasync.display.presentation import Presentation
from zarrasync.display.text import chunk_shapes
from zarrasync.errors import SelectionError
from zarrasync.indexing.parse_text import parse_selection
from zarrasync.indexing.projection import in_c_order
from zarrasync.metadata.conventions import axis_names, meaning_of
from zarrasync.model.fill_values import format_fill_value
from zarrasync.model.paths import join
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server.chunk_reader import ChunkReader
from zarrasync.server.described import Described
from zarrasync.server.hierarchy import Hierarchy, InvalidMember, Member
from zarrasync.server.images import render
from zarrasync.server.label_colours import LabelColours, flag_labels
from zarrasync.server.limits import BadQuery
from zarrasync.server.query import decodes, style_of
from zarrasync.server.responses import cache_control, json_response

__all__ = ["Api"]

_CONTENT_TYPES = {
    "npy": "application/x-npy",
    "bin": "application/octet-stream",
    "csv": "text/csv",
    "png": "image/png",
}
_SHOWN = ("well", "image")
"""The kinds of related nodes of which the viewer shows pictures."""


class Api:
    """Handlers of requests for nodes and values.

    Args:
        hierarchy: The served hierarchy.
        chunks: Reads its arrays.
    """

    def __init__(self, hierarchy: Hierarchy, chunks: ChunkReader) -> None:
        self._hierarchy, self._chunks, self._described = hierarchy, chunks, Described(hierarchy)

    # -------------------------------------------------------------- nodes

    async def node(self, request: web.Request) -> web.StreamResponse:
        """``node?path=``: a node and the names of its members."""
        path = request.query.get("path", "")
        node = await self._hierarchy.node(path)
        body = self._summary(path, node)
        body["attributes"] = value_text.strict(node.attrs)
        body["format"] = node.zarr_format
        if isinstance(node, AsyncGroup):
            meaning = meaning_of(node.metadata)
            body["info"] = meaning_facts(meaning)
            members = await self._hierarchy.members(path)
            most = self._hierarchy.limits.max_members
            shown = [link for link in meaning.links if link.kind in _SHOWN]
            body["gallery"] = [{"path": join(path, link.path), "kind": link.kind} for link in shown[:most]]
            body["members"] = (
                None
                if members is None
                else [self._summary(join(path, name), member) for name, member in members[:most]]
            )
        else:
            inherited = encoding_facts((await self._described.presentation(node)).encoding)  # by bounds
            body["info"] = {name: text for name, text in node.info.items.items() if name != "Store"} | inherited
        return json_response(body, self._hierarchy.max_age)

    def _summary(self, path: str, node: Member | InvalidMember) -> dict[str, Any]:
        if isinstance(node, InvalidMember):
            return {"path": path.strip("/"), "name": node.name, "kind": "broken"}
        summary: dict[str, Any] = {"path": path.strip("/"), "name": node.basename}
        if isinstance(node, AsyncGroup):
            return {**summary, "kind": "group", "pyramid": bool(meaning_of(node.metadata).levels)}
        return {
            **summary,
            "kind": "array",
            "shape": list(node.shape),
            "dtype": node.metadata.dtype.name,
            **chunk_shapes(node.metadata),
            "dimension_names": axis_names(node.metadata),
            "fill_value": format_fill_value(node.fill_value),
        }

    # -------------------------------------------------------------- values

    async def data(self, request: web.Request) -> web.StreamResponse:
        """``data?path=&select=&format=npy|json|csv|bin|png&decode=``: the values of a selection."""
        query = request.query
        array = await self._hierarchy.array(query.get("path", ""))
        view = array.view[parse_selection(query.get("select", "..."), array.shape, axis_names(array.metadata))]
        kind = query.get("format", "json")
        presentation = await self._described.presentation(array, decode=decodes(query))
        self._check(presentation, view, kind)
        if kind == "json":
            return await self._chunks.read(view, partial(_json_response, self._hierarchy.max_age, presentation))
        headers = {"Cache-Control": cache_control(self._hierarchy.max_age)}
        if kind == "bin":
            body, dtype = await self._chunks.read(view, partial(_raw_bytes, presentation))
            headers |= {"X-Shape": ",".join(map(str, view.shape)), "X-Dtype": dtype}
        else:
            renderers: dict[str, Callable[[npt.NDArray[Any]], bytes]] = {
                "png": partial(_png_bytes, presentation, query),
                "csv": partial(_csv_bytes, presentation),
                "npy": partial(_npy_bytes, presentation),
            }
            body = await self._chunks.read(view, renderers[kind])
        return web.Response(body=body, content_type=_CONTENT_TYPES[kind], headers=headers)

    def _check(self, presentation: Presentation, view: AsyncSelection, kind: str) -> None:
        """Check that a selection can be returned in a format.

        Raises:
            BadQuery: If the format is unknown, or cannot represent the values.
            SelectionError: If a picture of the selection is not possible.
            TooMuch: If the selection exceeds the limits.
        """
        if kind not in (*_CONTENT_TYPES, "json"):
            raise BadQuery(f"format must be json, {', '.join(_CONTENT_TYPES)}; found {kind[:20]!r}")
        self._chunks.check(view, as_text=kind in ("json", "csv"), itemsize=presentation.value_bytes)
        if kind == "png" and view.ndim != 2:
            raise SelectionError(
                f"a picture needs two axes, but the selection has shape {view.shape}", shape=view.shape
            )
        if kind == "png" and not view.size:
            raise SelectionError(f"the selection of shape {view.shape} is empty and has no picture", shape=view.shape)
        if kind == "bin" and (view.dtype.hasobject or view.dtype.kind == "T"):
            raise BadQuery(f"{view.dtype} elements vary in size and have no raw bytes; request json or npy")


def _json_response(max_age: float, presentation: Presentation, stored: npt.NDArray[Any]) -> web.Response:
    shown = presentation.show(stored)
    values = shown.values
    body = {
        "shape": list(values.shape),
        "dtype": str(values.dtype),
        "data": value_text.as_json(values),
        **shown.facts,
    }
    return json_response(body, max_age)


def _png_bytes(presentation: Presentation, query: Mapping[str, str], stored: npt.NDArray[Any]) -> bytes:
    values, summary = presentation.numbers(stored), Summary()
    summary.add(values)
    low, high = summary.minimum or 0.0, summary.maximum if summary.maximum is not None else 1.0
    flags = flag_labels(presentation.encoding.flags)
    return render(values, style_of(query, low, high, LabelColours(flags.colours if flags is not None else None)))


def _raw_bytes(presentation: Presentation, stored: npt.NDArray[Any]) -> tuple[bytes, str]:
    values = presentation.array(stored)
    return in_c_order(values.astype(values.dtype.newbyteorder("<"), copy=False)).tobytes(), _dtype_text(values.dtype)


def _csv_bytes(presentation: Presentation, stored: npt.NDArray[Any]) -> bytes:
    return value_text.as_csv(presentation.show(stored).values).encode()


def _npy_bytes(presentation: Presentation, stored: npt.NDArray[Any]) -> bytes:
    return value_text.npy_bytes(presentation.array(stored))


def _dtype_text(dtype: np.dtype[Any]) -> str:
    """Return NumPy's code of a data type, the fields of a structured type as JSON, or the name of another type."""
    if dtype.names:
        return json.dumps(dtype.newbyteorder("<").descr)
    return str(dtype.name if dtype.type.__module__ == "ml_dtypes" else dtype.newbyteorder("<").str)
