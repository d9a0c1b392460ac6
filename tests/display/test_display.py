"""Representations in notebooks: cards, trees and pictures, and the statistics behind pictures."""

from __future__ import annotations

import math
import pickle
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.api import Api
from tests.support.demo import create_temperature
from zarrasync import stores, sync
from zarrasync.display.presentation import Presentation, with_short_dates
from zarrasync.display.text import listed
from zarrasync.errors import SelectionError
from zarrasync.indexing.chunk_runs import split_chunks
from zarrasync.indexing.parse import parse_selection
from zarrasync.indexing.regions import Coverage
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.nodes.statistics import sample, summarize

VOID = {"input", "br", "meta", "link"}


class Page(HTMLParser):
    """An HTML fragment, parsed; raises if its tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data + " "


def hits(html: str) -> list[tuple[float, float, float, float]]:
    """Return the boxes of the touched chunks in a picture: x, y, width and height."""
    svg = ET.fromstring(re.search(r"<svg.*?</svg>", html, re.DOTALL)[0])
    found = [own for own in svg.iter("rect") if "za-hit" in own.get("class", "")]
    return [tuple(float(own.get(name)) for name in ("x", "y", "width", "height")) for own in found]  # type: ignore[misc]


@pytest.fixture
def weather() -> dict[str, bytes]:
    store: dict[str, bytes] = {}
    root = sync.create_group(store, attributes={"title": "<b>&", "n": 1})
    layout = {"chunks": (6, 30, 45), "shards": (24, 90, 180)}
    create_temperature(root, "surface/t2m", units="<K>", shape=(48, 90, 180), dtype="f4", **layout)
    root.create_array("time", data=np.arange(48))
    root.create_array("scalar", data=1)
    root.create_array("none", shape=(0, 5), dtype="i4")
    return store


async def opened(api: Api, store: Any, path: str = "") -> Any:
    return await api(api.open(store, path=path))


async def test_an_array_shows_itself_without_io(api: Api, weather):
    array = await opened(api, weather, "surface/t2m")
    weather.clear()
    html = array._repr_html_()
    page = Page(html)
    for text in ("Array /surface/t2m", "(48, 90, 180) float32", "sharding_indexed of bytes, zstd", "time 48", '"<K>"'):
        assert text in page.text
    assert "<K>" not in html
    assert hits(html) == []
    assert html.count("za-shard") == 1 + 1  # the style, and the line between the two shards along time


async def test_cards_are_text_where_styles_are_removed(api: Api, weather):
    group = await opened(api, weather)
    array = await api(group.get("surface/t2m"))
    tree = await api(group.tree())
    shown = {
        "Array /surface/t2m (48, 90, 180) float32": array,
        "Selection /surface/t2m (48, 90) float32": array.view[..., 0],
        "Group / call .tree()": group,
        "Name: /surface/t2m": array.info,
        str(tree): tree,
    }
    for text, node in shown.items():
        html = node._repr_html_()
        assert Page(re.search("<pre class=.za-plain.*?</pre>", html, re.DOTALL)[0]).text.startswith(text)
        assert html.count('<div class="za" style="display:none">') == 1
        assert ".za{display:block!important}" in html


async def test_cards_begin_with_what_values_are(api: Api):
    dtype: Any = [("id", "i4"), ("depth", "f8"), ("where", [("lat", "f4"), ("name", "S3")])]
    attributes = {"long_name": "soundings", "coordinates": "lat lon"}
    options: dict[str, Any] = {"attributes": attributes, "dimension_names": ["ship"], "chunks": (2,)}
    array = await api(api.create_array({}, data=np.zeros(3, dtype), **options))
    text = Page(array._repr_html_()).text.rpartition("Array /")[2]
    facts = [
        "Quantity",
        "soundings",
        "ship 3",
        "lat, lon",
        "id int32, depth float64, where (lat float32, name S3)",
        "Zarr format",
        "Codecs",
        "Store",
    ]
    places = [text.index(fact) for fact in facts]
    assert places == sorted(places)


async def test_cards_of_decoded_arrays_show_the_data_type_of_values(api: Api):
    attributes = {"scale_factor": 0.5, "units": "K"}
    array = await api(api.create_array({}, data=np.zeros(3, "i2"), attributes=attributes))
    assert "Decoded array / (3,) float64 from int16" in Page(array.decoded._repr_html_()).text.replace("  ", " ")
    assert "Array / (3,) int16" in Page(array._repr_html_()).text.replace("  ", " ")


def test_long_names_break_in_trees():
    group = sync.create_group({})
    group.create_array("x" * 200, shape=(3,), dtype="i1")
    assert re.search(r"\.za-tree li\{[^}]*overflow-wrap:anywhere", group.tree()._repr_html_())


async def test_lines_that_are_close_together_are_faint(api: Api):
    fine, coarse = [await api(api.create_array({}, shape=(50, 50), dtype="i1", chunks=(n, n))) for n in (1, 5)]
    assert fine._repr_html_().count('class="za-fine"') == 2 * 49
    assert coarse._repr_html_().count('class="za-chunk"') == 2 * 9


@pytest.mark.parametrize("path", ["time", "scalar", "none"])
async def test_arrays_of_any_shape_have_a_picture(api: Api, weather, path):
    array = await opened(api, weather, path)
    Page(array._repr_html_())
    html = array.view[...].explain()._repr_html_()
    Page(html)
    assert len(hits(html)) == (0 if path == "none" else 1)


async def test_groups_show_known_members(api: Api, weather):
    group = await opened(api, weather)
    page = Page(group._repr_html_())
    assert "call .tree() to list the members" in page.text
    assert "surface" not in page.text.replace(repr(group.store), "")
    await api(api.consolidate_metadata(weather))
    page = Page((await opened(api, weather))._repr_html_())
    for text in ("5 nodes below", "surface", "t2m", "(48, 90, 180) float32", '"title": "<b>&"'):
        assert text in page.text


async def test_trees_unfold(api: Api, weather):
    group = await opened(api, weather)
    tree = await api(group.tree())
    page = Page(tree._repr_html_())
    assert "4 arrays, 1 group" in page.text
    assert [tag for tag, own in page.tags if tag == "details" and "open" in own] == ["details"]
    assert any(tag == "input" for tag, _ in page.tags)
    again = pickle.loads(pickle.dumps(tree))
    assert again == tree == str(tree)
    assert again._repr_html_() == tree._repr_html_()
    Page(group.info._repr_html_())


async def test_a_tree_of_many_is_folded(api: Api):
    store: dict[str, bytes] = {}
    root = sync.create_group(store)
    for n in range(40):
        root.create_array(f"g{n % 4}/a{n}", shape=(2,), dtype="i1")
    root.create_group("empty")
    for n in range(25):
        root.create_group(f"h{n}")
    page = Page((await api((await opened(api, store)).tree()))._repr_html_())
    assert not any("open" in own for tag, own in page.tags if tag == "details")
    assert "empty group" in page.text


async def test_a_selection_shows_the_chunks_that_it_touches(api: Api, weather):
    array = await opened(api, weather, "surface/t2m")
    view = array.view[0:7, 31:60, ::-1] if api.name == "sync" else array[0:7, 31:60, ::-1]
    for html in (view._repr_html_(), view.explain()._repr_html_()):
        page = Page(html)
        assert "8 of 96" in page.text
        assert "1 of 2" in page.text
        (bar, plane) = hits(html)
        assert bar[2] == pytest.approx(250 * 12 / 48, abs=0.1)  # two of eight chunks of six hours
        assert plane[3] == pytest.approx(125 / 3, abs=0.1)  # one of three rows of chunks
        assert plane[2] == pytest.approx(250, abs=0.1)


async def test_points_and_steps_in_pictures(api: Api):
    array = await api(api.create_array({}, shape=(100, 100), chunks=(10, 10), dtype="i1"))
    view = array.view.vindex[[5, 15, 95], [5, 25, 95]]
    assert len(hits(view.explain()._repr_html_())) == 3
    assert len(hits(array.view[::20, ::50].explain()._repr_html_())) == 10
    rng = np.random.default_rng(0)
    many = array.view.vindex[rng.integers(0, 100, 5000), rng.integers(0, 100, 5000)]
    assert many.explain().chunks == 100
    wide = await api(api.create_array({}, shape=(10**6, 10**6), chunks=(10, 10), dtype="i1"))
    scattered = wide.view.vindex[rng.integers(0, 10**6, 5000), rng.integers(0, 10**6, 5000)]
    assert scattered.explain().chunks > 4900
    assert 100 < len(hits(scattered.explain()._repr_html_())) < 700


async def test_explaining_huge_arrays_costs_nothing(api: Api):
    array = await api(api.create_array({}, shape=(10**12, 10**6), chunks=(1, 1), dtype="u1"))
    plan = array.view[...].explain()
    assert plan.chunks == plan.requests == 10**18
    Page(plan._repr_html_())
    assert array.view[:: 10**9, 5].explain().chunks == 1000


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_coverage_is_what_a_visit_to_each_chunk_finds(data: st.DataObject):
    shape = data.draw(st.tuples(*[st.integers(1, 30)] * 3))
    edges = data.draw(st.booleans())
    chunks: Any = tuple(data.draw(st.integers(1, n)) for n in shape)
    if edges:
        chunks = [[1, 3] * (shape[0] // 4) + [shape[0] % 4 or 2], *chunks[1:]]
    array = sync.create_array({}, shape=shape, chunks=chunks, dtype="i2")
    kind = data.draw(st.sampled_from(["basic", "oindex", "vindex"]))

    def index(n: int) -> Any:
        return data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6))

    def cut(n: int) -> slice:
        step = data.draw(st.integers(1, 9))
        bounds = sorted([data.draw(st.integers(0, n)), data.draw(st.integers(0, n))])
        return slice(bounds[0], bounds[1], step)

    if kind == "basic":
        view = array.view[tuple(cut(n) for n in shape)]
    elif kind == "oindex":
        view = array.view.oindex[index(shape[0]), cut(shape[1]), index(shape[2])]
    else:
        count = data.draw(st.integers(1, 8))
        points = [data.draw(st.lists(st.integers(0, n - 1), min_size=count, max_size=count)) for n in shape]
        view = array.view.vindex[tuple(points)]
    region = view.async_._transform.layout.projection()
    grid = array.metadata.read_grid
    parts = split_chunks(region, grid)
    found = Coverage(region, grid)
    if view.size:
        assert found.count == len(parts)
        assert found.elements == sum(math.prod(grid.chunk_shape(part.coords)) for part in parts)
        plane = {(i, j) for high, wide in found.plane(1, 2) for i in high for j in wide}
        assert plane == {(part.coords[1], part.coords[2]) for part in parts}
    else:
        assert view.explain().chunks == 0


# ------------------------------------------------------------------ sizes of what is stored


async def test_what_is_stored_and_how_well_it_compresses(api: Api, tmp_path):
    array = await api(api.create_array(tmp_path, shape=(100, 100), chunks=(50, 50), dtype="f8"))
    assert await api(array.nbytes_stored()) == 0
    assert (await api(array.info_complete()))["Compression"] == "nothing is stored"
    await api.write(array, slice(0, 50), 1.0)
    files = [file for file in tmp_path.rglob("c/*/*") if file.is_file()]
    nbytes = sum(file.stat().st_size for file in files)
    assert await api(array.nbytes_stored()) == nbytes > 0
    told = await api(array.info_complete())
    assert told["Chunks"] == "2 of 4 are stored"
    assert told["Compression"] == f"{40_000 / nbytes:.1f} : 1"
    assert list(told.items)[-1] == "Store"


# ------------------------------------------------------------------ texts and numbers


@pytest.mark.parametrize("text", ["", "1", "1:5", "::-1", "...,3", "-4:,:,::2", "0,...", ":"])
def test_selection_strings_follow_python(text):
    values = np.arange(4 * 6 * 9).reshape(4, 6, 9)
    found = parse_selection(text, values.shape)
    np.testing.assert_array_equal(values[found], eval(f"values[{text or '...'}]"))
    assert parse_selection(f"[{text}]", values.shape) == found


def test_selection_strings_by_dimension_names():
    assert parse_selection("lon=3:5, time=-1", (4, 6, 9), ("time", "lat", "lon")) == (-1, slice(None), slice(3, 5))
    for wrong in ("depth=1", "time=x", "lat=1,2", "time=", "=1"):
        with pytest.raises(SelectionError):
            parse_selection(wrong, (4, 6, 9), ("time", "lat", None))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u8", "bool", "f2"])
async def test_summaries(dtype):
    rng = np.random.default_rng(3)
    values = (rng.normal(100, 20, (60, 70)) > 100) if dtype == "bool" else rng.normal(100, 20, (60, 70)).astype(dtype)
    if dtype[0] == "f":
        values[3, 4:9] = np.nan
    array = sync.create_array({}, data=values, chunks=(16, 16)).async_
    found = await summarize(array.view, Presentation(CFEncoding.from_attributes({}, array.dtype)), 12)
    wide = values.astype("f8")
    assert (found.count, found.invalid) == (values.size, int(np.isnan(wide).sum()))
    assert (found.minimum, found.maximum) == (np.nanmin(wide), np.nanmax(wide))
    assert found.mean == pytest.approx(np.nanmean(wide), rel=1e-9)
    assert found.std == pytest.approx(np.nanstd(wide), rel=1e-7)
    assert found.histogram == np.histogram(wide[np.isfinite(wide)], 12)[0].tolist()


async def test_samples_are_of_whole_chunks_and_small():
    array = sync.create_array({}, shape=(5, 1000, 1200), chunks=(1, 100, 100), dtype="f4").async_
    assert sample(array, (2, None, None), 1 << 30, 1 << 30).shape == (1000, 1200)
    view = sample(array, (2, None, None), 400_000, 5000)
    assert 1000 < view.size <= 5000
    assert view.explain().decoded_bytes <= 400_000


async def test_sizes_are_listed_by_every_store(tmp_path):
    """Every store lists sizes, with or without a method of its own."""

    class Plain(stores.MemoryStore):
        list_sizes = stores.Store.list_sizes

    for store in (stores.MemoryStore(), stores.LocalStore(tmp_path), Plain()):
        await store.set("a/b", b"123")
        await store.set("a/c", b"")
        await store.set("d", b"1")
        assert await store.list_sizes("a/") == {"a/b": 3, "a/c": 0}
        assert await stores.PrefixStore(store, "a/").list_sizes("") == {"b": 3, "c": 0}


def test_long_lists_are_cut():
    assert (listed(["a"]), listed(["a", "b"])) == ("a", "a, b")
    assert (listed(list("abc")), listed(["a", "b"], 1202)) == ("a, b and 1 more", "a, b and 1,200 more")


def test_dates_at_midnight_are_short_in_fields_and_alone():
    days = np.array(["2024-01-01", "NaT"], "M8[ns]")
    fields = np.zeros(2, [("day", "M8[s]"), ("time", "M8[s]"), ("more", [("at", "M8[ms]", (2,))]), ("text", "U19")])
    fields["day"], fields["time"], fields["more"]["at"] = days, np.datetime64("2024-01-01T06", "s"), days[:, None]
    fields["text"] = "2024-01-01T00:00:00"
    short = with_short_dates(fields)
    assert short.dtype == [("day", "M8[D]"), ("time", "M8[s]"), ("more", [("at", "M8[D]", (2,))]), ("text", "U19")]
    np.testing.assert_array_equal(short["more"]["at"], fields["more"]["at"])
    assert short[0].tolist()[1:2] == fields[0].tolist()[1:2]
    assert with_short_dates(days).dtype == "M8[D]"
    for value, text in ((days[0], "2024-01-01"), (fields[0][["day", "text"]], "('2024-01-01', '2024-01-01T00:00:00')")):
        array = sync.create_array({}, shape=2, dtype=value.dtype, fill_value=value)
        assert array.info["Fill value"] == text
