"""A state machine of one array that several handles read and change, beside a NumPy array."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.fresh_stores import NODE_STORES, fresh_path
from tests.property.other_readers import zarr_python_reads
from tests.property.selections import Selected, basic, selections
from tests.property.strategies import ATTRIBUTES, SEEDS, array_options, filled, same, values_of
from tests.support.api import Driver
from zarrasync.errors import MissingChunkError, UnsupportedByFormat
from zarrasync.model import dtypes

HANDLES = st.integers(0, 1)


class ArrayMachine(RuleBasedStateMachine):
    """Each rule changes or reads the array through one of two handles, whose metadata may be outdated."""

    model: np.ndarray

    def __init__(self, driver: Driver, folder: Path) -> None:
        super().__init__()
        self.driver, self.folder = driver, folder

    # -------------------------------------------------------------- creating and opening

    @initialize(
        options=array_options(),
        attributes=ATTRIBUTES,
        seed=SEEDS,
        kind=st.sampled_from([*NODE_STORES]),
        keep_empty=st.booleans(),
        start=st.booleans(),
    )
    def create(self, options: Any, attributes: Any, seed: int, kind: str, keep_empty: bool, start: bool) -> None:
        self.store = NODE_STORES[kind](fresh_path(self.folder))
        self.config = {"write_empty_chunks": keep_empty}
        if start and "shards" in options and options["zarr_format"] == 3:
            options = {**options, "shards": {"shape": options["shards"], "index_location": "start"}}
        try:
            array = self._create(options, attributes, seed)
        except UnsupportedByFormat:
            assert self.driver.store(self.store, "list") == []
            plain = {name: options[name] for name in ("shape", "zarr_format")}
            array = self._create({**plain, "dtype": "i4", "chunks": options["shape"] and 3}, attributes, seed)
        self.options, self.attributes = options, attributes
        self.fill = array.fill_value
        self.model = filled(array.shape, self.fill, self.data_type)
        self.handles = [array, self._open()]

    def _create(self, options: Any, attributes: Any, seed: int) -> Any:
        self.data_type = dtypes.from_numpy(options["dtype"])
        fill = values_of(self.data_type, 1, seed)[0]
        create = self.driver.za.create_array
        return self.driver(create(self.store, fill_value=fill, attributes=attributes, config=self.config, **options))

    def _open(self) -> Any:
        return self.driver(self.driver.za.open_array(self.store, mode="r+", config=self.config))

    @rule(number=HANDLES)
    def open_again(self, number: int) -> None:
        self.handles[number] = self._open()

    def _handle(self, number: int) -> Any:
        """Return a handle that knows the present shape."""
        array = self.handles[number]
        if array.shape != self.model.shape:
            self.driver(array.refresh())
        return array

    def _equal(self, found: Any, expected: Any) -> bool:
        """Return whether two results, which may be scalars, have the same bits."""
        return same(np.asarray(found, self.model.dtype), np.asarray(expected, self.model.dtype))

    def _values(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return values, a third of them equal to the fill value."""
        values = values_of(self.data_type, int(np.prod(shape, dtype=int)), seed).copy()
        rng = np.random.default_rng(seed)
        if len(values) and rng.integers(3) == 0:
            values[rng.integers(0, len(values), max(1, len(values) // 2))] = self.fill
        return values.reshape(shape)

    # -------------------------------------------------------------- reading

    def _select(self, number: int, data: st.DataObject) -> tuple[Any, Selected]:
        """Return a handle that knows the present shape, and a selection."""
        array = self._handle(number)
        return array, data.draw(selections(array.shape, array.write_chunk_sizes))

    @rule(number=HANDLES, data=st.data())
    def read(self, number: int, data: st.DataObject) -> None:
        array, selected = self._select(number, data)
        expected = self.model.ravel()[selected.at]
        found = self._read(array, selected, data.draw(st.sampled_from(["now", "view", "method", "out", "read_into"])))
        assert self._equal(found, expected), (selected, found, expected)
        assert np.shape(found) == selected.at.shape

    def _read(self, array: Any, selected: Selected, way: str) -> Any:
        kind, key, at = selected
        if way in ("method", "out") and kind != "advanced":
            options = {"out": np.empty(at.shape, self.model.dtype)} if way == "out" else {}
            found = self.driver(getattr(array, f"get_{kind}_selection")(key, **options))
            assert way == "method" or found is options["out"] or at.shape == ()
            return found
        if way == "now" and kind in ("basic", "advanced"):
            return self.driver(array.getitem(key))
        if way == "view" and kind != "block":
            return self.driver(accessor(array.view, kind)[key].read())
        return self.driver.read(accessor(array, kind), key)

    @rule(number=HANDLES, data=st.data())
    def read_view_of_view(self, number: int, data: st.DataObject) -> None:
        array, outer = self._select(number, data)
        if outer.kind == "block":
            return
        inner = data.draw(basic(outer.at.shape))
        view = accessor(array.view, outer.kind)[outer.key][inner]
        expected = self.model.ravel()[outer.at[inner]]
        assert view.shape == np.shape(expected)
        assert self._equal(self.driver(view.read()), expected)

    @rule(number=HANDLES, data=st.data(), seed=SEEDS)
    def iterate(self, number: int, data: st.DataObject, seed: int) -> None:
        key = data.draw(basic(self.model.shape))
        view, expected = self._handle(number).view[key], self.model[key]
        found = filled(view.shape, self.fill, self.data_type)
        covered = np.zeros(view.shape, int)
        unit = data.draw(st.just("auto") | st.tuples(*[st.integers(1, 4)] * view.ndim))
        for region, block in self.driver.collect(view.chunks(unit)):
            found[region] = block
            covered[region] += 1
        assert (covered == 1).all()
        assert self._equal(found, expected)

    @rule(number=HANDLES)
    def count_chunks(self, number: int) -> None:
        """Each chunk with other values than the fill value is stored, and no chunk outside of the array."""
        array = self._handle(number)
        stored = self.driver(array.nchunks_initialized())
        filled_chunks = sum(
            not same(part, filled(part.shape, self.fill, self.data_type)) for part in self._chunks(array)
        )
        total = int(np.prod([len(sizes) for sizes in array.write_chunk_sizes]))
        assert filled_chunks <= stored <= total
        if not self.config["write_empty_chunks"]:
            assert stored == filled_chunks
        if stored < total and self.model.size:
            try:
                self.driver(array.view.read(missing="error"))
            except MissingChunkError:
                return
            raise AssertionError("a chunk that is not stored was read")

    def _chunks(self, array: Any) -> list[Any]:
        edges = [np.cumsum([0, *sizes]) for sizes in array.write_chunk_sizes]
        spans = [[slice(a, b) for a, b in itertools.pairwise(cuts)] for cuts in edges]
        return [np.asarray(self.model[box], self.model.dtype) for box in itertools.product(*spans)]

    # -------------------------------------------------------------- writing

    @rule(number=HANDLES, data=st.data(), seed=SEEDS, form=st.sampled_from(["full", "scalar", "row", "transposed"]))
    def write(self, number: int, data: st.DataObject, seed: int, form: str) -> None:
        array, selected = self._select(number, data)
        if selected.repeats:
            return
        shape = selected.at.shape
        values = self._values({"scalar": (), "row": shape[1:]}.get(form, shape), seed)
        if form == "transposed":
            values = np.copy(values, order="F")
        self._write(array, selected, values, data.draw(st.sampled_from(["now", "view", "method"])))
        self.model.reshape(-1)[selected.at] = values

    def _write(self, array: Any, selected: Selected, values: np.ndarray, way: str) -> None:
        kind, key, _ = selected
        if way == "method" and kind != "advanced":
            self.driver(getattr(array, f"set_{kind}_selection")(key, values))
        elif way == "view" and kind != "block":
            self.driver(accessor(array.view, kind)[key].write(values))
        else:
            self.driver.write(accessor(array, kind), key, values)

    @rule(number=HANDLES, data=st.data(), seed=SEEDS)
    def write_view_of_view(self, number: int, data: st.DataObject, seed: int) -> None:
        array, outer = self._select(number, data)
        if outer.kind == "block" or outer.repeats:
            return
        inner = data.draw(basic(outer.at.shape))
        at = outer.at[inner]
        values = self._values(np.shape(at), seed)
        self.driver(accessor(array.view, outer.kind)[outer.key][inner].write(values))
        self.model.reshape(-1)[at] = values

    @precondition(lambda self: self.model.dtype.names == ("a", "b"))
    @rule(number=HANDLES, data=st.data(), seed=SEEDS, field=st.sampled_from(["a", ["b"], ["a", "b"]]))
    def use_fields(self, number: int, data: st.DataObject, seed: int, field: Any) -> None:
        key, array = data.draw(basic(self.model.shape)), self._handle(number)
        values = self._values(self.model[key].shape, seed)[field]
        self.driver(array.set_basic_selection(key, values, fields=field))
        names = [field] if isinstance(field, str) else field
        for name in names:
            self.model[name][key] = values if isinstance(field, str) else values[name]
        found = self.driver(array.get_basic_selection(key, fields=field))
        for name in names:
            assert same(found if isinstance(field, str) else found[name], self.model[name][key])

    # -------------------------------------------------------------- changing the shape and the attributes

    @rule(number=HANDLES, data=st.data())
    def resize(self, number: int, data: st.DataObject) -> None:
        shape = tuple(data.draw(st.integers(0, 12)) for _ in self.model.shape)
        self.driver(self.handles[number].resize(shape))
        old, self.model = self.model, filled(shape, self.fill, self.data_type)
        common = tuple(slice(0, min(pair)) for pair in zip(old.shape, shape, strict=True))
        self.model[common] = old[common]

    @precondition(lambda self: self.model.ndim and self.model.size)
    @rule(number=HANDLES, data=st.data(), seed=SEEDS)
    def shrink_and_grow(self, number: int, data: st.DataObject, seed: int) -> None:
        """Overwrite the whole array, cut a few rows, and grow it again: the rows must read as fill values."""
        axis = data.draw(st.integers(0, self.model.ndim - 1))
        array, shape = self._handle(number), self.model.shape
        self.model = self._values(shape, seed)
        self.driver(array.setitem(..., self.model))
        kept = max(0, shape[axis] - data.draw(st.integers(1, 3)))
        self.driver(array.resize((*shape[:axis], kept, *shape[axis + 1 :])))
        self.driver(self.handles[1 - number].resize(shape))
        cut = (*(slice(None),) * axis, slice(kept, None))
        self.model[cut] = filled(self.model[cut].shape, self.fill, self.data_type)

    @precondition(lambda self: self.model.ndim)
    @rule(number=HANDLES, data=st.data(), seed=SEEDS, count=st.integers(0, 6))
    def append(self, number: int, data: st.DataObject, seed: int, count: int) -> None:
        axis = data.draw(st.integers(0, self.model.ndim - 1))
        if self.model.shape[axis] > 20:
            return
        # The handle may have an outdated length, but the sizes of the other axes are checked against its metadata.
        array = self.handles[number]
        if [*np.delete(array.shape, axis)] != [*np.delete(self.model.shape, axis)]:
            array = self._handle(number)
        values = self._values((*self.model.shape[:axis], count, *self.model.shape[axis + 1 :]), seed)
        shape = self.driver(array.append(values, axis))
        self.model = np.concatenate([self.model, values], axis, dtype=self.model.dtype)
        assert shape == self.model.shape == array.shape

    @rule(number=HANDLES, attributes=ATTRIBUTES)
    def update_attributes(self, number: int, attributes: Any) -> None:
        self.driver(self.handles[number].update_attributes(attributes))
        self.attributes = {**self.attributes, **attributes}
        assert dict(self.handles[number].attrs) == self.attributes

    @rule(number=HANDLES)
    def refresh(self, number: int) -> None:
        self.driver(self.handles[number].refresh())
        assert self.handles[number].shape == self.model.shape
        assert dict(self.handles[number].attrs) == self.attributes

    # -------------------------------------------------------------- what always holds

    @invariant()
    def values_are_those_of_the_model(self) -> None:
        if hasattr(self, "handles"):
            array = self._open()
            assert (array.shape, array.dtype) == (self.model.shape, self.model.dtype)
            assert dict(array.attrs) == self.attributes
            assert same(self.driver(array.getitem(...)), self.model)

    def teardown(self) -> None:
        if hasattr(self, "handles"):
            values = {key: self.driver.store(self.store, "get", key) for key in self.driver.store(self.store, "list")}
            zarr_python_reads(values, self.options, self.model, self.attributes)


def accessor(target: Any, kind: str) -> Any:
    """Return what is indexed for a kind of indexing: the target itself, or one of its accessors."""
    name = {"orthogonal": "oindex", "coordinate": "vindex", "block": "blocks"}.get(kind)
    return target if name is None else getattr(target, name)
