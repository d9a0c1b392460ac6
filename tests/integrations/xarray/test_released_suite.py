"""xarray's released tests of its Zarr engine pass with zarrasync, except for those in ``differences.toml``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.foreign

pytest.importorskip("xarray")
pytest.importorskip("zarr")
if importlib.util.find_spec("xarray.tests") is None:
    pytest.skip("this package of xarray does not contain its tests", allow_module_level=True)

ROOT = Path(__file__).parents[3]
CLASSES = [
    "TestZarrDictStore",
    "TestZarrNoConsolidatedMetadataSupport",
    "TestZarrDirectoryStore",
    "TestZarrWriteEmpty",
    "TestDataArrayToZarr or TestZarrRectilinearChunksRead or TestZarrRegionAuto or TestZarrDatatreeIO",
]
"""Selections of tests that take half a minute each."""
SAMPLE = "TestZarrDirectoryStore and (test_roundtrip_consolidated or orthogonal or fill_value) or test_zarr_encoding"


def run(direction: str, selection: str, directory: Path) -> None:
    """Run tests of xarray in another process, because they replace parts of xarray.

    Raises:
        AssertionError: If tests fail that are not listed, or listed ones pass.
    """
    modules = ["xarray.tests.test_backends", "xarray.tests.test_backends_datatree"]
    options = [
        "-q",
        "-c",
        "/dev/null",
        "-W",
        "ignore",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-o",
        "asyncio_mode=auto",
    ]
    suite = ["-p", "tests.support.xarray_suite", "--through", direction, "-k", f"({selection}) and (zarr or Zarr)"]
    with_tests = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", with_tests, *options, *suite, "--pyargs", *modules]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # options of our own
    outcome = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout[-6000:] + outcome.stderr[-2000:]
    assert " passed" in outcome.stdout


def test_a_sample_through_our_engine(tmp_path: Path):
    run("reading", SAMPLE, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("selection", CLASSES)
@pytest.mark.parametrize("direction", ["reading", "writing"])
def test_all_tests(direction: str, selection: str, tmp_path: Path):
    run(direction, selection, tmp_path)
