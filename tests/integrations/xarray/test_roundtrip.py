"""A table of datasets, each written and read by either engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("zarr")
from zarrasync.integrations.xarray import write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore")


def _times(*texts: str) -> Any:
    return np.array(texts, "M8[ns]")


TABLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "coordinates": (
        xr.Dataset(
            {"a": (("y", "x"), np.ones((2, 3)))}, {"x": [1.0, 2, 3], "lat": (("y", "x"), np.eye(2, 3)), "run": 7}
        ),
        {},
    ),
    "no coordinates": (xr.Dataset({"a": ("x", np.arange(3))}), {}),
    "coordinates alone": (xr.Dataset(coords={"x": [3, 1, 2], "z": 1.5}), {}),
    "scalars": (xr.Dataset({"f": 2.5, "i": 3, "b": True, "s": "né", "t": _times("2020-02-29")[0]}), {}),
    "strings": (
        xr.Dataset({"o": ("x", np.array(["a", "né", ""], object)), "u": ("x", np.array(["a", "bc", "d"]))}),
        {},
    ),
    "fixed bytes": (xr.Dataset({"s": ("x", np.array([b"ab", b"c"], "S2"))}), {}),
    "times": (
        xr.Dataset({"t": ("x", _times("1850-01-01", "2020-02-29T12:30", "NaT"))}),
        {"t": {"units": "hours since 1800-01-01", "dtype": "f8"}},
    ),
    "times as integers": (xr.Dataset(coords={"time": _times("2020-01-01", "2020-01-02")}), {"time": {"dtype": "i4"}}),
    "spells": (xr.Dataset({"d": ("x", np.array([1, 90], "m8[s]").astype("m8[ns]"))}), {}),
    "masks": (xr.Dataset({"m": ("x", [1.0, np.nan, 3.0])}), {"m": {"_FillValue": -1.0}}),
    "integers with holes": (xr.Dataset({"m": ("x", [1.0, np.nan, 3.0])}), {"m": {"dtype": "i2", "_FillValue": -9}}),
    "scale and offset": (
        xr.Dataset({"p": ("x", [10.0, 10.5, np.nan])}),
        {"p": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -99}},
    ),
    "unsigned": (
        xr.Dataset({"p": ("x", [0.0, 200.0, 255.0])}),
        {"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": np.int8(-2)}},
    ),
    "flags": (xr.Dataset({"b": ("x", [True, False])}), {}),
    "small types": (
        xr.Dataset({f"v{n}": ("x", np.arange(3).astype(t)) for n, t in enumerate(["i1", "u2", "f2", "u8"])}),
        {},
    ),
    "empty axes": (xr.Dataset({"e": (("t", "x"), np.zeros((0, 3)))}), {}),
    "attributes": (
        xr.Dataset(
            {"a": ("x", [1], {"n": np.float32(1.5), "l": np.arange(3), "s": "né"})},
            attrs={"none": None, "d": {"a": [1]}},
        ),
        {},
    ),
}


def _unlimited() -> Any:
    made = xr.Dataset({"a": (("time", "x"), np.ones((2, 3)))}, {"time": _times("2020-01-01", "2020-01-02")})
    made.encoding["unlimited_dims"] = {"time"}
    return made


TABLE["unlimited dimensions"] = (_unlimited(), {})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", TABLE)
def test_datasets_round_trip(name: str, zarr_format: Any, tmp_path: Path):
    """Both engines read the same dataset, whichever of them wrote it."""
    given, encoding = TABLE[name]
    given.to_zarr(tmp_path / "theirs.zarr", zarr_format=zarr_format, encoding=encoding, consolidated=False)
    write_dataset(given, tmp_path / "ours.zarr", zarr_format=zarr_format, encoding=encoding)
    want = xr.open_dataset(tmp_path / "theirs.zarr", engine="zarr", consolidated=False).load()
    for path in ("theirs.zarr", "ours.zarr"):
        for engine, options in (("zarrasync", {}), ("zarr", {"consolidated": False})):
            found = xr.open_dataset(tmp_path / path, engine=engine, **options).load()
            xr.testing.assert_identical(found, want)
            assert {n: v.dtype for n, v in found.variables.items()} == {n: v.dtype for n, v in want.variables.items()}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_trees_round_trip(zarr_format: Any, tmp_path: Path):
    nodes = {"/": TABLE["coordinates"][0], "/model": TABLE["times"][0], "/model/fine": TABLE["strings"][0]}
    tree = xr.DataTree.from_dict(nodes)
    tree.to_zarr(tmp_path / "theirs.zarr", zarr_format=zarr_format, consolidated=False)
    for path, node in nodes.items():
        write_dataset(node, tmp_path / "ours.zarr", group=path.strip("/"), zarr_format=zarr_format, mode="a")
    want = xr.open_datatree(tmp_path / "theirs.zarr", engine="zarr", consolidated=False).load()
    for path in ("theirs.zarr", "ours.zarr"):
        for engine, options in (("zarrasync", {}), ("zarr", {"consolidated": False})):
            xr.testing.assert_identical(xr.open_datatree(tmp_path / path, engine=engine, **options).load(), want)
