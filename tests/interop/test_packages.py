"""Other packages and zarrasync read what the other one wrote. ``docs/interop.md`` lists the results."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.interop import exchange, page
from tests.interop.exchange import PACKAGES, Package
from zarrasync import sync

pytestmark = pytest.mark.foreign

CASES = [(package, zarr_format) for package in PACKAGES for zarr_format in package.formats]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize(("package", "zarr_format"), CASES, ids=[f"{p.title}-{f}" for p, f in CASES])
def test_stores_are_exchanged(tmp_path: Path, package: Package, zarr_format: int):
    if exchange.python_of(package) is None:
        pytest.skip(
            f"{package.title} is not installed; ZARRASYNC_INTEROP or ZARRASYNC_ZARR2 names a Python that has it"
        )
    folder = tmp_path / "data.zarr"
    _, expected = exchange.run_script(package, "write", folder, str(zarr_format))
    assert expected
    exchange.check_reading(package, folder, expected)
    if package.kind != "references":
        exchange.check_writing(package, folder, expected)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarrita_reads_what_we_write(tmp_path: Path, zarr_format: int):
    modules = os.environ.get("ZARRASYNC_ZARRITA", "")
    if not modules:
        pytest.skip("ZARRASYNC_ZARRITA does not name a node_modules folder with zarrita")
    arrays = page.write_for_zarrita(tmp_path, zarr_format)
    _, found = exchange.read_with_zarrita(modules, tmp_path, list(arrays))
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
        np.testing.assert_array_equal(sync.load(tmp_path, path=name), values)


def test_the_page_has_all_packages():
    """Run ``make interop`` if this fails."""
    rows = [line.split("|")[1].strip() for line in page.PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [package.title for package in (*PACKAGES, page.ZARRITA)]
