"""The small API: nodes, values, statistics and tiles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from aiohttp import web

from zarrasync.bulk.statistics import Summary, sample
from zarrasync.display import values as valuetext
from zarrasync.display.text import axis_names, chunk_shapes
from zarrasync.errors import NodeTypeError, SelectionError
from zarrasync.indexing.axis_order import in_c_order
from zarrasync.indexing.parse_text import Basic, parse_selection
from zarrasync.model.fill_values import format_fill_value
from zarrasync.model.paths import join
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.server import responses, tiles
from zarrasync.server.cache import Cache
from zarrasync.server.limits import BadQuery, TooMuch
from zarrasync.server.state import Broken, Member, Source

__all__ = ["Api"]

_SAMPLE = 1 << 18
"""Values that statistics and ranges of colours are made from."""
_TYPES = {"npy": "application/x-npy", "bin": "application/octet-stream", "csv": "text/csv", "png": "image/png"}


class Api:
    """The handlers of one application.

    Args:
        source: What is served.
        max_bytes: Bytes of pictures to remember.
    """

    def __init__(self, source: Source, max_bytes: int) -> None:
        self.source = source
        self._tiles: Cache[tuple[bytes, str]] = Cache(max_bytes, source.max_age, lambda tile: len(tile[0]) + 500)

    # -------------------------------------------------------------- nodes

    async def node(self, request: web.Request) -> web.StreamResponse:
        """``node?path=``: what a node is, and the names of its members."""
        path = request.query.get("path", "")
        node = await self.source.node(path)
        told = self._told(path, node)
        told["attributes"] = valuetext.strict(node.attrs)
        told["format"] = node.zarr_format
        if isinstance(node, AsyncGroup):
            members = await self.source.members(path)
            known = None if members is None else members[: self.source.limits.max_members]
            told["members"] = None if known is None else [self._told(join(path, name), own) for name, own in known]
        else:
            told["info"] = {name: text for name, text in node.info.items.items() if name != "Store"}
        return responses.json_answer(told, self.source.max_age)

    def _told(self, path: str, node: Member | Broken) -> dict[str, Any]:
        if isinstance(node, Broken):
            return {"path": path.strip("/"), "name": node.name, "kind": "broken"}
        told: dict[str, Any] = {"path": path.strip("/"), "name": node.basename}
        if isinstance(node, AsyncGroup):
            return {**told, "kind": "group", "pyramid": bool(tiles.pyramid_paths(node.attrs))}
        return {
            **told,
            "kind": "array",
            "shape": list(node.shape),
            "dtype": node.metadata.dtype.name,
            **chunk_shapes(node.metadata),
            "dimension_names": axis_names(node.metadata),
            "fill_value": format_fill_value(node.fill_value),
        }

    # -------------------------------------------------------------- values

    async def data(self, request: web.Request) -> web.StreamResponse:
        """``data?path=&select=&format=npy|json|csv|bin|png``: the values of a selection."""
        query = request.query
        array = await self.source.array(query.get("path", ""))
        view = array.view[parse_selection(query.get("select", "..."), array.shape, axis_names(array.metadata))]
        kind = query.get("format", "json")
        if kind not in (*_TYPES, "json"):
            raise BadQuery(f"format is json, {', '.join(_TYPES)}; found {kind[:20]!r}")
        self.source.check(view, cells=kind in ("json", "csv"))
        if kind == "png" and view.ndim != 2:
            raise SelectionError(f"a picture has two axes, the selection has shape {view.shape}", shape=view.shape)
        if kind == "png" and not view.size:
            raise SelectionError(f"there is nothing to see in a selection of shape {view.shape}", shape=view.shape)
        headers = {"Cache-Control": responses.cache_control(self.source.max_age)}
        if kind == "json":
            return await self.source.read(view, partial(_json_of, self.source.max_age))
        if kind == "bin":
            _check_size_of(view.dtype)
            told = {"X-Shape": ",".join(map(str, view.shape)), "X-Dtype": _told_type(view.dtype)}
            headers |= told
        makers: dict[str, Callable[[npt.NDArray[Any]], bytes]] = {
            "png": partial(_picture, query),
            "bin": _raw,
            "csv": _csv,
            "npy": valuetext.npy_bytes,
        }
        body = await self.source.read(view, makers[kind])
        return web.Response(body=body, content_type=_TYPES[kind], headers=headers)

    async def stats(self, request: web.Request) -> web.StreamResponse:
        """``stats?path=&index=&bins=``: numbers and a histogram of a plane, from a sample of its chunks."""
        pyramid = await self._pyramid(request.query.get("path", ""))
        bins = _integer(request.query, "bins", 64, 1, 1024)
        summary = await self._summary(pyramid, _index(request.query, pyramid), bins)
        return responses.json_answer(valuetext.strict(summary.to_dict()), self.source.max_age)

    async def _summary(self, pyramid: tiles.Pyramid, index: tuple[int, ...], bins: int = 64) -> Summary:
        """The statistics of a plane, of the coarsest level that has elements enough."""
        enough = [level for level in pyramid.levels if math.prod(level.array.shape[-2:]) >= _SAMPLE // 4]
        level = enough[-1] if enough else pyramid.levels[0]
        total = math.prod(pyramid.shape)

        async def make() -> Summary:
            limit = min(self.source.limits.max_decoded_bytes, max(self.source.chunks.max_size // 4, 1 << 22), 32 << 20)
            view = sample(level.array, [*level.index(index), None, None], limit, _SAMPLE)
            return await self.source.read(view, partial(_summarize, total, bins))

        name = ("stats", self.source.mark(level.array), total, index, bins)
        return await self.source.remember(name, make)

    async def _range(self, pyramid: tiles.Pyramid) -> tuple[float, float]:
        """The values of the first and the last colour: those of a plane, the first one that has some of three."""
        lead, dtype = pyramid.levels[0].array.shape[:-2], pyramid.levels[0].array.dtype
        if dtype.kind == "b":
            return 0.0, 1.0
        for part in (0.0, 0.5, 1.0):
            summary = await self._summary(pyramid, tuple(int(part * (n - 1)) for n in lead))
            if summary.low is not None and summary.high is not None:
                return (summary.low, summary.high) if summary.low < summary.high else (summary.low, summary.low + 1)
        return 0.0, 1.0

    # -------------------------------------------------------------- tiles

    async def view(self, request: web.Request) -> web.StreamResponse:
        """``view?path=``: what there is to know for showing a plane of an array or of a pyramid."""
        path = request.query.get("path", "")
        pyramid = await self._pyramid(path)
        finest = pyramid.levels[0].array
        names = axis_names(finest.metadata) or [None] * finest.ndim
        axes = [
            {"name": name or f"axis {n}", "size": size}
            for n, (name, size) in enumerate(zip(names, finest.shape, strict=True))
        ]
        told = {
            "path": path.strip("/"),
            "array": self._relative(finest),
            "axes": axes,
            "dtype": finest.metadata.dtype.name,
            "tile": tiles.TILE,
            "max_zoom": pyramid.max_zoom,
            "min_zoom": self._least_zoom(pyramid),
            "levels": [{"path": self._relative(own.array), "shape": list(own.array.shape)} for own in pyramid.levels],
            "range": valuetext.strict(await self._range(pyramid)),
        }
        return responses.json_answer(told, self.source.max_age)

    async def tile(self, request: web.Request) -> web.StreamResponse:
        """``tiles/{z}/{x}/{y}.png?path=&index=&cmap=&low=&high=&scale=&origin=``: a picture of 256 x 256 pixels."""
        query = request.query
        pyramid = await self._pyramid(query.get("path", ""))
        index = _index(query, pyramid)
        zoom, x, y = (int(request.match_info[name]) for name in ("z", "x", "y"))
        if query.get("origin", "upper") not in ("upper", "lower"):
            raise BadQuery("origin is upper or lower: where the first row lies")
        lower = query.get("origin") == "lower"
        if "low" in query and "high" in query:
            style = _style(query, 0.0, 1.0)
        else:
            style = _style(query, *await self._range(pyramid))
        tiles.colours(style.cmap)
        marks = tuple(self.source.mark(level.array) for level in pyramid.levels)
        mark = (marks, index, zoom, x, y, style, lower)
        body, etag = await self._tiles.get(mark, partial(self._drawn, pyramid, index, (zoom, x, y), style, lower))
        headers = {"ETag": etag, "Cache-Control": responses.cache_control(self.source.max_age)}
        if responses.matches(request.headers.get("If-None-Match"), etag):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type="image/png", headers=headers)

    async def _drawn(
        self,
        pyramid: tiles.Pyramid,
        index: tuple[int, ...],
        place: tuple[int, int, int],
        style: tiles.Style,
        lower: bool,
    ) -> tuple[bytes, str]:
        view = _tile_view(pyramid, index, place, lower=lower)
        return await self.source.read(view, partial(_tile, style))

    async def _pyramid(self, path: str) -> tiles.Pyramid:
        return await self.source.remember(("pyramid", path.strip("/")), partial(self._make_pyramid, path))

    async def _make_pyramid(self, path: str) -> tiles.Pyramid:
        node = await self.source.node(path)
        if isinstance(node, AsyncArray):
            return tiles.Pyramid.of([node])
        paths = tiles.pyramid_paths(node.attrs)
        if not paths:
            raise NodeTypeError(f"{node.name} is a group without multiscales", path=path, found="group", wanted="array")
        arrays = [await self.source.array(join(path.strip("/"), own)) for own in paths[:32]]
        return tiles.Pyramid.of(arrays)

    def _least_zoom(self, pyramid: tiles.Pyramid) -> int:
        """The least zoom whose tiles may be asked for."""
        index = (0,) * (pyramid.levels[0].array.ndim - 2)
        for zoom in range(pyramid.max_zoom + 1):
            try:
                self.source.check(_tile_view(pyramid, index, (zoom, 0, 0), lower=False))
            except TooMuch:
                continue
            return zoom
        return pyramid.max_zoom

    def _relative(self, array: AsyncArray) -> str:
        root = self.source.path
        return array.path[len(root) + 1 :] if root else array.path


def _tile_view(
    pyramid: tiles.Pyramid, index: tuple[int, ...], place: tuple[int, int, int], *, lower: bool
) -> AsyncSelection:
    zoom, x, y = place
    level, rows, columns = pyramid.tile(zoom, x, y, lower=lower)
    array = level.array
    return array.oindex[(*level.index(index), _sliced(rows), _sliced(columns))]


def _sliced(indices: npt.NDArray[np.int64]) -> slice | npt.NDArray[np.int64]:
    """Evenly spaced indices as a slice, which costs less."""
    if len(indices) == 1:
        return slice(int(indices[0]), int(indices[0]) + 1)
    step = int(indices[1] - indices[0])
    if not step or (np.diff(indices) != step).any():
        return indices
    stop = int(indices[-1]) + (1 if step > 0 else -1)
    return slice(int(indices[0]), stop if stop >= 0 else None, step)


def _index(query: Mapping[str, str], pyramid: tiles.Pyramid) -> tuple[int, ...]:
    """The indices on the leading axes that a query names; the first of each if it names none."""
    array = pyramid.levels[0].array
    lead, text = array.shape[:-2], query.get("index", "")
    found: Basic = parse_selection(text, lead, (axis_names(array.metadata) or [])[:-2])
    whole = [n for n in found if isinstance(n, int)]
    if not text:
        return (0,) * len(lead)
    if len(whole) != len(lead) or len(found) != len(lead):
        raise SelectionError(
            f"index needs an integer for each of the {len(lead)} leading axes, found {text!r}", shape=lead
        )
    for axis, (n, size) in enumerate(zip(whole, lead, strict=True)):
        if not -size <= n < size:
            raise SelectionError(f"index {n} is out of range for axis {axis} of size {size}", shape=lead)
    return tuple(n % size for n, size in zip(whole, lead, strict=True))


def _style(query: Mapping[str, str], low: float, high: float) -> tiles.Style:
    scale = query.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise BadQuery(f"scale is linear or log, found {scale[:20]!r}")
    return tiles.Style(
        query.get("cmap", "viridis")[:64],
        _number(query, "low", low),
        _number(query, "high", high),
        cast("Any", scale),
    )


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadQuery(f"{name} is a number, found {text[:30]!r}")
    return value


def _integer(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not least <= int(text) <= most:
        raise BadQuery(f"{name} is an integer from {least} to {most}, found {text[:30]!r}")
    return int(text)


def _tile(style: tiles.Style, values: npt.NDArray[Any]) -> tuple[bytes, str]:
    body = tiles.render(values, style, (tiles.TILE, tiles.TILE))
    return body, responses.etag_of(body)


def _picture(query: Mapping[str, str], values: npt.NDArray[Any]) -> bytes:
    return tiles.render(values, _style(query, *_extremes(values)))


def _json_of(max_age: float, values: npt.NDArray[Any]) -> web.Response:
    told = {"shape": list(values.shape), "dtype": str(values.dtype), "data": valuetext.as_json(values)}
    return responses.json_answer(told, max_age)


def _summarize(total: int, bins: int, values: npt.NDArray[Any]) -> Summary:
    summary = Summary(total=total)
    summary.add(values)
    summary.bin(values, bins, trim=True)
    return summary


def _extremes(values: npt.NDArray[Any]) -> tuple[float, float]:
    summary = Summary()
    summary.add(values)
    return (summary.minimum or 0.0), (summary.maximum if summary.maximum is not None else 1.0)


def _check_size_of(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject or dtype.kind == "T":
        raise BadQuery(f"{dtype} values have no bytes of one size: ask for json or npy")


def _told_type(dtype: np.dtype[Any]) -> str:
    """NumPy's word for elements as they are sent, their fields as JSON, or a name that NumPy has no word for."""
    if dtype.names:
        return json.dumps(dtype.newbyteorder("<").descr)
    return str(dtype.name if dtype.type.__module__ == "ml_dtypes" else dtype.newbyteorder("<").str)


def _raw(values: npt.NDArray[Any]) -> bytes:
    return in_c_order(values.astype(values.dtype.newbyteorder("<"), copy=False)).tobytes()


def _csv(values: npt.NDArray[Any]) -> bytes:
    return valuetext.as_csv(values).encode()
