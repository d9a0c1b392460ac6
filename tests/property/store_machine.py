"""A state machine of a store, beside a dict."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.fresh_stores import HAS_DIRECTORIES, NOT_PICKLED, Maker, fresh_path
from tests.support.api import Driver
from zarrasync.errors import WriteConflictError
from zarrasync.stores import ABSENT, Request

KEYS = ["x", "ab/f", "a/b", "a/c/d", "a/c/e", "a/é k", "A", "a.b", "d/0/0/1", "d/0/1", "zarr.json"]
"""Keys of which none is a directory of another."""
STORED = st.sampled_from(KEYS)
ASKED = st.sampled_from([*KEYS, "a", "a/c", "a/b/c", "d/0", "nothing", "no/thing"])
PREFIXES = st.sampled_from(["", "a/", "a/c/", "d/", "d/0/", "ab/", "no/", "x/"])
VALUES = st.binary(max_size=40) | st.integers(0, 70_000).map(lambda size: bytes(i % 251 for i in range(size)))


class StoreMachine(RuleBasedStateMachine):
    """Each rule is an operation of the store, which may be closed and opened again, or pickled, in between."""

    def __init__(self, driver: Driver, folder: Path, make: Maker) -> None:
        super().__init__()
        self.driver, self.path, self.make = driver, fresh_path(folder), make

    def _do(self, operation: str, *arguments: Any, **options: Any) -> Any:
        return self.driver.store(self.store, operation, *arguments, **options)

    @initialize()
    def create(self) -> None:
        self.store = self.make(self.path)
        self.model: dict[str, bytes] = {}
        self.past: dict[str, list[tuple[object, bytes | None, int]]] = {}
        self.changes: Counter[str] = Counter()

    def _change(self, key: str, value: bytes | None) -> None:
        """Store a value in the model, or erase it."""
        self.changes[key] += 1
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = value

    @rule(pickled=st.booleans())
    def open_again(self, pickled: bool) -> None:
        if pickled and self.make not in NOT_PICKLED:
            self.store, old = pickle.loads(pickle.dumps(self.store)), self.store
            self.driver.store(old, "close")
            if not old.shareable:
                self.past.clear()  # a copy of the values, whose versions differ
        else:
            self._do("close")

    # -------------------------------------------------------------- writing

    @rule(key=STORED, value=VALUES, kind=st.sampled_from([bytes, bytearray, memoryview]))
    def put(self, key: str, value: bytes, kind: Any) -> None:
        self._do("put", key, kind(value))
        self._change(key, value)

    @rule(values=st.dictionaries(STORED, VALUES, max_size=4))
    def put_values(self, values: dict[str, bytes]) -> None:
        self._do("put_values", [*values], [*values.values()])
        for key, value in values.items():
            self._change(key, value)

    @rule(key=STORED, parts=st.lists(st.tuples(st.integers(0, 30), st.binary(max_size=9)), max_size=2))
    def set_partial_values(self, key: str, parts: list[tuple[int, bytes]]) -> None:
        self._do("set_partial_values", [(key, start, value) for start, value in parts])
        for start, value in parts:
            data = bytearray(self.model.get(key, b""))
            data.extend(bytes(max(0, start + len(value) - len(data))))
            data[start : start + len(value)] = value
            self._change(key, bytes(data))

    @rule(key=STORED)
    def note_version(self, key: str) -> None:
        """Keep the present version of a value, which later writes may depend on."""
        (value,) = self._do("fetch", [Request(key)], versions=True)
        assert (None if value is None else bytes(value.data)) == self.model.get(key)
        if value is not None:
            assert value.size in (None, len(self.model[key]))
        if self.store.conditional:
            version = ABSENT if value is None else value.version
            assert version is not None
            self.past.setdefault(key, []).append((version, self.model.get(key), self.changes[key]))

    @precondition(lambda self: self.past)
    @rule(data=st.data(), new=VALUES)
    def put_if_unchanged(self, data: st.DataObject, new: bytes) -> None:
        key = data.draw(st.sampled_from(sorted(self.past)))
        version, old, count = data.draw(st.sampled_from(self.past[key]))
        if old != self.model.get(key):
            with pytest.raises(WriteConflictError):
                self._do("put", key, new, if_version=version)
            return
        try:
            stored = self._do("put", key, new, if_version=version)
        except WriteConflictError:
            assert (
                count != self.changes[key]
            )  # stores may distinguish equal values that were stored one after the other
            return
        self._change(key, new)
        self.past[key].append((stored, new, self.changes[key]))

    @rule(key=ASKED)
    def erase(self, key: str) -> None:
        self._do("erase", key)
        self._change(key, None)

    @rule(keys=st.lists(ASKED, max_size=4))
    def erase_values(self, keys: list[str]) -> None:
        self._do("erase_values", keys)
        for key in keys:
            self._change(key, None)

    @rule(prefix=PREFIXES)
    def erase_prefix(self, prefix: str) -> None:
        self._do("erase_prefix", prefix)
        for key in [key for key in self.model if key.startswith(prefix)]:
            self._change(key, None)

    # -------------------------------------------------------------- reading

    @rule(data=st.data(), versions=st.booleans())
    def fetch(self, data: st.DataObject, versions: bool) -> None:
        requests = data.draw(st.lists(_requests(self.model), max_size=5))
        for request, value in zip(requests, self._do("fetch", requests, versions=versions), strict=True):
            whole = self.model.get(request.key)
            assert (value is None) == (whole is None), request
            if whole is not None:
                assert bytes(value.data) == _part(whole, request), request
                assert value.size in (None, len(whole))

    @rule(past=st.integers(0, 3))
    def fetch_ends(self, past: int) -> None:
        """Fetch ranges of all values that end, or begin, beyond the value."""
        sizes = {key: len(self.model.get(key, b"")) for key in KEYS}
        requests = [Request(key, 0, size + past, suffix=True) for key, size in sizes.items()]
        requests += [Request(key, max(0, size - 1), 1 + past) for key, size in sizes.items()]
        requests += [Request(key, size + past) for key, size in sizes.items()]
        for request, value in zip(requests, self._do("fetch", requests), strict=True):
            whole = self.model.get(request.key)
            assert (None if value is None else bytes(value.data)) == (None if whole is None else _part(whole, request))

    @rule(keys=st.lists(ASKED, max_size=4), size=st.integers(0, 50))
    def fetch_values(self, keys: list[str], size: int) -> None:
        spaces = [memoryview(bytearray(size)) if size % 3 else None for _ in keys]
        values = self._do("fetch_values", keys, spaces)
        assert [None if value is None else bytes(value) for value in values] == [self.model.get(key) for key in keys]

    @rule(key=ASKED, start=st.integers(-45, 45), length=st.none() | st.integers(0, 45))
    def get_partial_values(self, key: str, start: int, length: int | None) -> None:
        length = None if start < 0 else length
        (found,) = self._do("get_partial_values", [(key, (start, length))])
        whole = self.model.get(key)
        assert found == (None if whole is None else whole[start:] if length is None else whole[start : start + length])

    @rule(key=ASKED)
    def look_up(self, key: str) -> None:
        assert self._do("get", key) == self.model.get(key)
        assert self._do("exists", key) == (key in self.model)
        found = self._do("stat", key)
        assert (None if found is None else found.size) == (len(self.model[key]) if key in self.model else None)

    @rule(prefix=PREFIXES)
    def list_keys(self, prefix: str) -> None:
        below = {key: len(value) for key, value in self.model.items() if key.startswith(prefix)}
        assert sorted(self._do("list_prefix", prefix)) == sorted(below)
        assert self._do("list_sizes", prefix) == below
        few = self._do("list_few", prefix, len(below) + 1)
        assert few is None or sorted(few) == sorted(below)
        some = self._do("list_few", prefix, max(len(below) - 1, 1))
        assert some is None or (set(some) <= set(below) and len(some) >= min(len(below), max(len(below) - 1, 1)))
        tails = [key[len(prefix) :] for key in below]
        keys = sorted(prefix + tail for tail in tails if "/" not in tail)
        prefixes = sorted({f"{prefix}{tail.partition('/')[0]}/" for tail in tails if "/" in tail})
        listing = self._do("list_dir", prefix)
        empty = set(listing.prefixes) - set(prefixes)
        assert (sorted(listing.keys), sorted({*listing.prefixes} - empty)) == (keys, prefixes)
        assert not empty or self.make in HAS_DIRECTORIES

    # -------------------------------------------------------------- what always holds

    @invariant()
    def values_are_those_of_the_model(self) -> None:
        if hasattr(self, "store"):
            assert sorted(self._do("list")) == sorted(self.model)
            values = self._do("fetch", [Request(key) for key in KEYS])
            assert [None if v is None else bytes(v.data) for v in values] == [self.model.get(key) for key in KEYS]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self._do("close")


@st.composite
def _requests(draw: st.DrawFn, model: dict[str, bytes]) -> Request:
    """Draw a request of a value or a byte range, which often begins or ends near the end of the value."""
    key, kind = draw(ASKED), draw(st.sampled_from(["whole", "from", "range", "suffix", "into"]))
    size = len(model.get(key, b""))
    offsets = st.integers(0, 45) | st.integers(max(0, size - 2), size + 3) | st.just(70_000)
    if kind == "suffix":
        return Request(key, 0, draw(offsets), suffix=True)
    start = 0 if kind == "whole" else draw(offsets)
    length = draw(offsets) if kind in ("range", "into") else None
    return Request(key, start, length, out=memoryview(bytearray(length or 0)) if kind == "into" else None)


def _part(value: bytes, request: Request) -> bytes:
    """Return the byte range that a request asks for."""
    if request.suffix:
        assert request.length is not None
        return value[max(0, len(value) - request.length) :]
    return value[request.start :] if request.length is None else value[request.start : request.start + request.length]
