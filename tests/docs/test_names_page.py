"""The list of public names and signatures is up to date."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest

import zarrasync as za

pytest.importorskip("xarray")
pytest.importorskip("dask")
pytest.importorskip("zarr")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
pytest.importorskip("cmap")
from tests.support import names_page  # after the skips

MOST_PARAMETERS = 16
MORE_PARAMETERS = {
    "create": 20,  # as in zarr-python
    "create_array": 20,
    "ingest_files": 20,
    "plan_ingest": 20,
}


def test_names_and_signatures_are_these():
    """After an intended change, run ``python -m tests.support.names_page``, and review the difference."""
    assert names_page.page() == names_page.PAGE.read_text()


def test_a_changed_signature_is_noticed(monkeypatch):
    def load(store, path="", *, extra=None):
        """Read values."""

    monkeypatch.setattr(za, "load", load)
    assert names_page.page() != names_page.PAGE.read_text()


def test_functions_have_few_parameters():
    public = {
        name: len(inspect.signature(value).parameters)
        for module in map(import_module, names_page.MODULES)
        for name in module.__all__
        if inspect.isfunction(value := getattr(module, name))
    }
    assert {name: count for name, count in public.items() if count > MOST_PARAMETERS} == MORE_PARAMETERS
