"""Values as JSON in pieces, and as tables with their coordinates."""

from __future__ import annotations

import csv
import io
import json
import sys
from typing import Any

import numpy as np
import pytest

from zarrasync.display import values as value_text
from zarrasync.display.values import Column, ElementTable

BIG = np.random.default_rng(3).normal(280, 5, (3, 70, 311)).astype("f4")
BIG[0, 0, :2] = np.nan, np.inf
TIMES = np.array(["2024-01-01", "2024-02-29T06:00", "NaT"], "M8[s]")


@pytest.fixture(params=["orjson", "json"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package that writes JSON, which must not change values."""
    if request.param == "json":
        monkeypatch.setitem(sys.modules, "orjson", None)
    else:
        pytest.importorskip("orjson")
    value_text._orjson.cache_clear()
    yield request.param
    value_text._orjson.cache_clear()


@pytest.mark.parametrize(
    "values",
    [
        BIG,
        BIG[:, ::3].T,
        BIG.astype(">f8"),
        np.array([0.1, np.nan, -np.inf, 65504], "f2"),
        np.zeros((3, 0, 5)),
        np.arange(100_000).reshape(2, 1, -1),
        np.array([2**64 - 1, 0], "u8"),
        np.array(2.5),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.ma.masked_array(np.arange(40_000), np.arange(40_000) % 7 == 0),
        np.array(["é", "\ud800", "NaN"], object),
        np.array([(1, 0.1)], [("a", "i4"), ("b", "f4")]),
        TIMES,
    ],
)
def test_pieces_of_json_are_the_document(values: Any, encoder: str):
    pieces = list(value_text.json_pieces(values))
    assert (len(pieces) > 1) == (values.size > 1 << 13)
    assert max(map(len, pieces)) < 1 << 20
    found = json.loads(b"".join(pieces))
    assert found == json.loads(json.dumps(value_text.as_json(values), allow_nan=False))
    if values.dtype.kind == "f" and values.size > 1:
        back = np.array([np.nan if x is None else float(x) for x in np.array(found, object).reshape(-1)])
        np.testing.assert_array_equal(back.astype(values.dtype).reshape(values.shape), values)


def test_integers_as_strings(encoder: str):
    values = np.array([[-(2**63), 2**53 + 1]])
    assert json.loads(b"".join(value_text.json_pieces(values, quote_int64=True))) == [
        [str(n) for n in values[0].tolist()]
    ]
    masked = np.ma.masked_array([2**62, 5], [False, True])
    assert json.loads(b"".join(value_text.json_pieces(masked, quote_int64=True))) == [str(2**62), None]
    small = np.array([1, 2], "i4")
    assert json.loads(b"".join(value_text.json_pieces(small, quote_int64=True))) == [1, 2]


def make_table() -> ElementTable:
    return ElementTable(
        [Column("time", TIMES), Column("lat", np.linspace(-3, 3, 70)), Column("lon, east", np.arange(311))],
        [Column("t2m", BIG)],
    )


def test_csv_has_a_row_for_each_element(encoder: str):
    table = make_table()
    rows = list(csv.reader(io.StringIO(b"".join(table.csv_pieces()).decode())))
    assert rows[0] == ["time", "lat", "lon, east", "t2m"]
    assert len(rows) == 1 + BIG.size
    grid = np.indices(BIG.shape).reshape(3, -1)
    assert [row[0] for row in rows[1:]] == np.array(["2024-01-01T00:00:00", "2024-02-29T06:00:00", ""])[
        grid[0]
    ].tolist()
    np.testing.assert_array_equal([float(row[1]) for row in rows[1:]], np.linspace(-3, 3, 70)[grid[1]])
    assert [int(row[2]) for row in rows[1:]] == grid[2].tolist()
    np.testing.assert_array_equal(np.array([row[3] or "nan" for row in rows[1:]], "f4"), BIG.reshape(-1))


def test_csv_of_text():
    names = np.array(["a", 'say "é"', "1,2", "", None, "two\nlines"], object)
    table = ElementTable([Column("n", np.arange(6))], [Column("name", names)])
    rows = list(csv.reader(io.StringIO(b"".join(table.csv_pieces()).decode(), newline="")))
    assert rows == [["n", "name"], *([str(n), name or ""] for n, name in enumerate(names))]
    assert b"".join(ElementTable([], [Column("v", np.array(2.5))]).csv_pieces()) == b"v\n2.5\n"
    assert b"".join(ElementTable([Column("x", np.zeros(0))], [Column("v", np.zeros(0))]).csv_pieces()) == b"x,v\n"
    own = ElementTable([Column("x", np.arange(2))], [Column("x", np.array([5, 6]))])  # a coordinate
    assert b"".join(own.csv_pieces()) == b"x\n5\n6\n"


def test_arrow_and_parquet():
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stream = make_table().arrow()
    for found in (pyarrow.ipc.open_stream(stream).read_all(), parquet.read_table(io.BytesIO(make_table().parquet()))):
        assert found.column_names == ["time", "lat", "lon, east", "t2m"]
        assert found.column("t2m").null_count == 1  # NaN
        np.testing.assert_array_equal(found.column("t2m").to_numpy(), BIG.reshape(-1))
        times = found.column("time").to_numpy().reshape(BIG.shape)[:, 0, 0]
        np.testing.assert_array_equal(times, TIMES)
    text = ElementTable([Column("n", np.arange(2))], [Column("s", np.array(["é", None], object))])
    assert pyarrow.ipc.open_stream(text.arrow()).read_all().column("s").to_pylist() == ["é", None]
