"""Records as JSON values, which are read by the annotations of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest

from zarrasync._util.records import TRANSIENT, from_json, to_json
from zarrasync.errors import MetadataError


class Corner(NamedTuple):
    name: str
    at: tuple[int, ...]


@dataclass(frozen=True)
class Inner:
    scale: float = 1.0
    units: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Outer:
    count: int | Literal["auto"]
    corners: Sequence[Sequence[Corner]]
    pair: tuple[int, str]
    inner: Inner = field(default_factory=Inner)
    anything: Any = None
    store: object = field(default=None, metadata=TRANSIENT, compare=False)


RECORD = Outer("auto", [[Corner("a", (1, 2))], []], (3, "b"), Inner(2.5, {"x": "m"}), {"y": [1, None]}, object())


def test_records_are_read_as_they_were_written():
    document = json.loads(json.dumps(to_json(RECORD)))
    assert document["corners"] == [[["a", [1, 2]]], []]
    assert "store" not in document
    found = from_json(Outer, document, "plan", store=RECORD.store)
    assert found == RECORD
    assert found.store is RECORD.store


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": True}, "count must be of type int, found True"),
        ({"count": 1.5}, "count must be of type int, found 1.5"),
        ({"corners": 5}, "corners must be of type list, found 5"),
        ({"corners": [[["a", [1, "x"]]]]}, r"corners\[0\]\[0\].at\[1\] must be of type int, found 'x'"),
        ({"corners": [[["a"]]]}, r"corners\[0\]\[0\] is incomplete"),
        ({"pair": [1]}, "pair must have 2 items, found 1"),
        ({"inner": {"scale": "1"}}, "inner.scale must be of type float"),
        ({"inner": {"units": {"a b": 1}}}, r"inner.units\['a b'\] must be of type str"),
        ({"inner": {"color": 1}}, "inner has the unknown member 'color'"),
        ({"store": 1}, "it has the unknown member 'store'"),
    ],
)
def test_errors_name_the_damaged_member(change: Any, words: str):
    with pytest.raises(MetadataError, match=f"^the plan is damaged: {words}"):
        from_json(Outer, {**to_json(RECORD), **change}, "plan")
