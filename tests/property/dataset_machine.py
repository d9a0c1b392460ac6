"""A state machine of a stored dataset, beside a dataset of xarray in memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.fresh_stores import NODE_STORES, fresh_path
from tests.property.other_readers import zarr_python_store
from tests.property.strategies import ATTRIBUTES, SEEDS
from tests.support.api import Driver
from zarrasync.errors import NodeExistsError, ShapeError
from zarrasync.integrations.xarray import WriteOptions, write_dataset, write_dataset_async

DIMS = {"a": ("t", "y"), "b": ("t",), "c": ("y",), "s": ("t",), "p": ("y", "t"), "when": ("t",), "one": ()}
NAMES = st.sets(st.sampled_from([*DIMS]), min_size=1)
ENCODINGS: dict[str, dict[str, Any]] = {
    "p": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -99},
    "when": {"dtype": "i8", "units": "seconds since 2000-01-01"},
}
LAYOUTS = st.sampled_from(["default", "chunks", "shards"])
HEIGHT = 3


def random_variable(name: str, length: int, seed: int) -> xr.Variable:
    """Return a variable of the model with random values, some of them missing where the type allows that."""
    rng = np.random.default_rng([seed, ord(name[0])])
    dims = DIMS[name]
    shape = tuple({"t": length, "y": HEIGHT}[dim] for dim in dims)
    if name == "s":
        return xr.Variable(dims, np.array(["", "é", "long string"], object)[rng.integers(0, 3, shape)])
    if name == "when":
        return xr.Variable(dims, np.datetime64("2000-01-01", "ns") + rng.integers(0, 9**6, shape).astype("m8[s]"))
    if name == "b":
        return xr.Variable(dims, rng.integers(-9, 9, shape).astype("i4"))
    values = rng.integers(-9, 9, shape) / 2  # packing keeps these
    return xr.Variable(
        dims, np.where(rng.integers(0, 5, shape) == 0, np.nan, values).astype("f4" if name == "a" else "f8")
    )


class DatasetMachine(RuleBasedStateMachine):
    """Each rule is a write, in one of the modes, whose result both engines read."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        super().__init__()
        self.driver, self.folder = driver, folder

    # -------------------------------------------------------------- writing

    def _write(self, dataset: xr.Dataset, **options: Any) -> None:
        write = write_dataset if self.driver.name == "sync" else write_dataset_async
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of consolidated metadata in format 3
            self.driver(write(dataset, self.store, options=WriteOptions(consolidated=self.consolidated), **options))

    def _dataset(self, names: Any, start: int, length: int, seed: int, *, coords: bool = True) -> xr.Dataset:
        coordinates = {"t": np.arange(start, start + length) * 10, "y": np.linspace(0, 1, HEIGHT)} if coords else {}
        return xr.Dataset({name: random_variable(name, length, seed) for name in sorted(names)}, coordinates)

    def _encoding(self, names: Any, layout: str) -> dict[str, Any]:
        encoding = {name: dict(ENCODINGS[name]) for name in ENCODINGS if name in names}
        for name in names:
            if layout != "default" and DIMS[name]:
                encoding.setdefault(name, {})["chunks"] = (2,) * len(DIMS[name])
            if layout == "shards" and DIMS[name] and self.zarr_format == 3:
                encoding[name]["shards"] = (4,) * len(DIMS[name])
        return encoding

    @initialize(
        kind=st.sampled_from([*NODE_STORES]),
        zarr_format=st.sampled_from([2, 3]),
        consolidated=st.sampled_from([None, True, False]),
        names=NAMES,
        layout=LAYOUTS,
        length=st.integers(1, 5),
        seed=SEEDS,
        attributes=ATTRIBUTES,
    )
    def create(
        self,
        kind: str,
        zarr_format: Any,
        consolidated: Any,
        names: Any,
        layout: str,
        length: int,
        seed: int,
        attributes: Any,
    ) -> None:
        self.store, self.zarr_format = NODE_STORES[kind](fresh_path(self.folder)), zarr_format
        self.consolidated = consolidated
        self.model = self._dataset(names, 0, length, seed).assign_attrs(attributes)
        self._write(self.model, zarr_format=zarr_format, encoding=self._encoding(names, layout))

    @property
    def _length(self) -> int:
        return self.model.sizes["t"]

    @property
    def _along_t(self) -> list[str]:
        return [str(name) for name in self.model.data_vars if "t" in self.model[name].dims]

    @rule(names=NAMES, layout=LAYOUTS, length=st.integers(1, 5), seed=SEEDS, attributes=ATTRIBUTES)
    def replace_all(self, names: Any, layout: str, length: int, seed: int, attributes: Any) -> None:
        with pytest.raises(NodeExistsError):
            self._write(self._dataset(names, 0, length, seed))
        self.model = self._dataset(names, 0, length, seed).assign_attrs(attributes)
        options = {"zarr_format": self.zarr_format, "encoding": self._encoding(names, layout)}
        self._write(self.model, mode="w", **options)

    @rule(names=NAMES, layout=LAYOUTS, seed=SEEDS, attributes=ATTRIBUTES, lazy=st.booleans())
    def add_or_replace(self, names: Any, layout: str, seed: int, attributes: Any, lazy: bool) -> None:
        new = self._dataset(names, 0, self._length, seed, coords=False).assign_attrs(attributes)
        added = [name for name in names if name not in self.model]  # encodings of others are refused
        self._write(new.chunk(2) if lazy else new, mode="a", encoding=self._encoding(added, layout))
        self.model = self.model.assign(new.variables).assign_attrs(attributes)

    @precondition(lambda self: self._length < 20)
    @rule(length=st.integers(1, 5), seed=SEEDS, others=st.booleans(), lazy=st.booleans(), attributes=ATTRIBUTES)
    def append(self, length: int, seed: int, others: bool, lazy: bool, attributes: Any) -> None:
        names = [str(name) for name in self.model.data_vars] if others else self._along_t
        new = self._dataset(names, self._length, length, seed).assign_attrs(attributes)
        self._write(new.chunk(t=2) if lazy else new, append_dim="t")
        joined = {
            name: xr.Variable.concat([self.model[name].variable, new[name].variable], "t")
            for name in ("t", *self._along_t)
        }
        rest = {name: new[name].variable for name in names if "t" not in new[name].dims}
        kept = self.model.drop_vars(["t", *self._along_t])
        self.model = kept.assign(rest).assign_coords(t=joined.pop("t")).assign(joined).assign_attrs(attributes)

    @precondition(lambda self: len(self._along_t) > 1)
    @rule(data=st.data(), seed=SEEDS)
    def append_without_a_variable(self, data: st.DataObject, seed: int) -> None:
        left_out = data.draw(st.sampled_from(self._along_t))
        new = self._dataset(self._along_t, self._length, 2, seed).drop_vars(left_out)
        with pytest.raises(ShapeError):
            self._write(new, append_dim="t")

    @precondition(lambda self: self._along_t)
    @rule(data=st.data(), seed=SEEDS, auto=st.booleans(), lazy=st.booleans())
    def write_region(self, data: st.DataObject, seed: int, auto: bool, lazy: bool) -> None:
        names = data.draw(st.sets(st.sampled_from(self._along_t), min_size=1))
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, self._length)] * 2)))
        if start == stop:
            return
        new = self._dataset(names, start, stop - start, seed)
        region: Any = "auto" if auto else {"t": slice(start, stop)}
        new = new if auto else new.drop_vars(["y"])
        self._write(new.chunk(t=2) if lazy else new, region=region)
        for name in names:
            changed = self.model[name].copy(deep=True)
            changed[{"t": slice(start, stop)}] = new[name].variable
            self.model = self.model.assign({name: changed.variable})

    # -------------------------------------------------------------- what always holds

    @invariant()
    def both_engines_read_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        self._compare(self.store, engine="zarrasync")
        values = {key: self.driver.store(self.store, "get", key) for key in self.driver.store(self.store, "list")}
        options: Any = {"consolidated": False, "zarr_format": self.zarr_format}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unstable specifications
            self._compare(zarr_python_store(values), engine="zarr", **options)

    def _compare(self, store: Any, **options: Any) -> None:
        found = xr.open_dataset(store, **options).load()
        xr.testing.assert_identical(found, self.model)
        for name, variable in self.model.variables.items():
            if variable.dtype.kind != "O":
                assert found[name].dtype == variable.dtype, name
