"""JSON documents as the bytes of their members: split, joined, compared, and copied to other documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarrasync._util.json import copied_document, is_same_document, join_members, split_members, without_member
from zarrasync.errors import MetadataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
DOCUMENTS = st.dictionaries(st.sampled_from("ab") | st.text(), VALUES, max_size=4)
FORMATTING: Any = st.sampled_from([None, 0, 1, 2, 7, "\t"])


@given(DOCUMENTS, FORMATTING, st.booleans(), st.lists(st.sampled_from("ab"), max_size=2))
def test_members_are_joined_to_the_same_document(document: Any, indent: Any, ascii_only: bool, path: list[str]):
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    members = split_members(data, "zarr.json", *path)
    assert list(members) == list(document)
    joined = join_members(members)
    assert json.loads(joined) == document
    assert join_members(split_members(joined, "zarr.json", *path)) == joined
    assert is_same_document(data, joined, "zarr.json")


@given(DOCUMENTS, FORMATTING)
def test_a_member_is_left_out(document: Any, indent: Any):
    data = json.dumps(document, indent=indent).encode()
    assert json.loads(without_member(data, ["a", "b"])) == {k: v for k, v in document.items() if k != "a"}


def test_indentation_does_not_grow():
    member = b'{\n  "x": [\n    1\n  ]\n}'
    document = join_members({"a": {"b": member}})
    assert document == b'{\n  "a": {\n    "b": {\n      "x": [\n        1\n      ]\n    }\n  }\n}'
    assert split_members(document, "zarr.json", "a") == {"a": {"b": member}}


BAD = [b"", b" ", b"[]", b"1", b"{", b"}", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{,}", b'{"a" 1}', b"{1: 2}", b'{"a":1}x',
       b'{"a":1 "b":2}', b'{"a":{"b":1}', b'{"a":"\n"}', b"\xff{}", b"{null: 1}", b'{"a":nul}', b"{} {}", b"nul"]  # fmt: skip


@pytest.mark.parametrize("data", BAD)
def test_invalid_documents(data: bytes):
    for path in ((), ("a",)):
        with pytest.raises(MetadataError, match="zarr"):
            split_members(data, "zarr.json", *path)
    assert without_member(data, ["a"]) == data  # the parser reports them


def test_differences_in_more_than_formatting():
    assert is_same_document(b'{"a": 1, "b": [1, {"c": 2}]}', b' {"b":[1,{"c":2}],"a":1}', "zarr.json")
    assert not is_same_document(b'{"a": 1}', b'{"a": 2}', "zarr.json")
    assert not is_same_document(b'{"a": 1}', b'{"a": 1, "b": null}', "zarr.json")


def test_copies_are_strict_json():
    assert copied_document(b'\xef\xbb\xbf{"a": 1}\n', "zarr.json") == b'{"a": 1}'
    assert json.loads(copied_document(b'{"a": NaN, "b": [-Infinity]}', "zarr.json")) == {"a": "NaN", "b": ["-Infinity"]}
    assert json.loads(copied_document(b'{"a": "NaN"}', "zarr.json")) == {"a": "NaN"}


@pytest.mark.parametrize(("one", "other"), [(b"true", b"1"), (b"0", b"false"), (b"1", b"1.0"), (b"[true]", b"[1]")])
def test_values_of_different_types_are_not_the_same(one: bytes, other: bytes) -> None:
    assert not is_same_document(b'{"a": %b}' % one, b'{"a":%b}' % other, "k")
