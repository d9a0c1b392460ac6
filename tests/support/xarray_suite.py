"""A pytest plugin that runs xarray's own tests of its Zarr engine with zarrasync in the engine's place.

    python -m pytest -p tests.support.xarray_suite --through reading --pyargs xarray.tests.test_backends -k zarr

``--through reading`` replaces the engine ``"zarr"``: the tests write with ``to_zarr`` and read with zarrasync.
``--through writing`` replaces ``to_zarr`` of datasets, arrays and trees: the tests write with zarrasync and read with
xarray's own engine.

``tests/integrations/xarray/differences.toml`` lists the tests that fail, per direction, with the reasons. These tests are
expected to fail: one that passes, because the difference is gone, is a failure until it is removed from the list.

To list a difference, add an entry to the file::

    [[writing]]
    reason = "what differs, and why"
    tests = ["test_name", "TestClass::test_name", "TestClass::test_name[parameters]"]

An entry of a name matches this test in all classes with all parameters, and ``*`` matches anything.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xarray as xr
import zarr
from xarray.backends import ZarrBackendEntrypoint, writers
from xarray.backends.common import BACKEND_ENTRYPOINTS
from xarray.backends.plugins import detect_parameters

from zarrasync.integrations.xarray import WriteOptions, ZarrasyncBackend, write_dataset

DIFFERENCES = Path(__file__).parents[1] / "integrations" / "xarray" / "differences.toml"


class Difference(NamedTuple):
    """A test that fails, and why."""

    test: str
    reason: str


def listed(direction: str) -> list[Difference]:
    """Return the listed differences of a direction, ``"reading"`` or ``"writing"``."""
    entries = tomllib.loads(DIFFERENCES.read_text())
    return [
        Difference(test, entry["reason"])
        for part in ("both", direction)
        for entry in entries[part]
        for test in entry["tests"]
    ]


# ------------------------------------------------------------------ the engine


class Engine(ZarrasyncBackend):
    """The engine of zarrasync with the parameters of xarray's."""

    open_dataset_parameters = (*detect_parameters(ZarrasyncBackend().open_dataset), "mode", "cache_members")

    def open_dataset(self, filename_or_obj: Any, *, mode: str = "r", cache_members: bool = True, **options: Any) -> Any:
        return super().open_dataset(filename_or_obj, **options)

    def open_groups_as_dict(self, filename_or_obj: Any, *, mode: str = "r", **options: Any) -> dict[str, xr.Dataset]:
        return super().open_groups_as_dict(filename_or_obj, **options)

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        return ZarrBackendEntrypoint().guess_can_open(filename_or_obj)


# ------------------------------------------------------------------ to_zarr


class Written:
    """What ``to_zarr`` returns: something that can be closed."""

    def close(self) -> None:
        """Do nothing."""


def _to_zarr(
    data: Any, store: Any = None, mode: Any = None, group: Any = None, encoding: Any = None, **options: Any
) -> Any:
    """Write with zarrasync, with the parameters and the defaults of ``to_zarr``."""
    options = {"safe_chunks": True, "align_chunks": False, **options}
    rare = {field.name: options.pop(field.name) for field in fields(WriteOptions) if field.name in options}
    empty = options.pop("write_empty_chunks", None)
    config = {} if options.pop("safe_chunks") else {"unaligned": "allow"}
    options["config"] = config if empty is None else {**config, "write_empty_chunks": empty}
    options |= {"mode": mode, "group": group, "encoding": encoding}
    if options.get("zarr_format") is None and mode != "r+":
        options["zarr_format"] = zarr.config.get("default_zarr_format")
    passed = {name: value for name, value in options.items() if value is not None}
    result = write_dataset(
        data, zarr.storage.MemoryStore() if store is None else store, options=WriteOptions(**rare), **passed
    )
    return Written() if rare.get("compute", True) else result


# ------------------------------------------------------------------ hooks of pytest

_original_raises = pytest.raises


def _raises(*arguments: Any, match: Any = None, **options: Any) -> Any:
    """Expect an error of a type with any message, because ours are worded differently."""
    return _original_raises(*arguments, **options)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--through", choices=["reading", "writing"], default="reading", help="what zarrasync does")


def pytest_configure(config: pytest.Config) -> None:
    pytest.raises = _raises
    for marker in ("flaky", "network", "skip_if_param"):
        config.addinivalue_line("markers", f"{marker}: of xarray's tests")
    if config.getoption("through") == "reading":
        BACKEND_ENTRYPOINTS["zarr"] = ("zarr", Engine)
    else:
        writers.to_zarr = _to_zarr  # type: ignore[assignment]
        writers._datatree_to_zarr = _to_zarr  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Expect the listed tests to fail."""
    differences = [
        (re.compile(re.escape(test).replace(r"\*", ".*")), reason)
        for test, reason in listed(config.getoption("through"))
    ]
    for item in items:
        names = _names(item)
        for pattern, reason in differences:
            if any(pattern.fullmatch(name) for name in names):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
                break


def _names(item: Any) -> list[str]:
    short, class_name = item.originalname, f"{item.cls.__name__}::" if item.cls else ""
    return [short, item.name, class_name + short, class_name + item.name]


def pytest_runtest_setup(item: Any) -> None:
    """Skip combinations of parameters, as the configuration in xarray's repository does, which is not installed."""
    values = item.callspec.params if hasattr(item, "callspec") else {}
    for marker in item.iter_markers("skip_if_param"):
        unwanted = dict(marker.kwargs)
        reason, condition = unwanted.pop("reason", ""), unwanted.pop("condition", True)
        if condition and all(name in values and _is(values[name], value) for name, value in unwanted.items()):
            pytest.skip(reason)


def _is(value: Any, unwanted: Any) -> bool:
    return value == unwanted or getattr(value, "__name__", None) == unwanted
