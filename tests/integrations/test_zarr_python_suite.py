"""zarr-python's own tests, from its source distribution, with zarrasync as its codec pipeline.

``ZARRASYNC_ZARR_SUITE=1`` in the environment runs all of them instead of a sample, which takes about ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.foreign

zarr = pytest.importorskip("zarr", minversion="3.4")  # whose tests the list of differences is made for

ROOT = Path(__file__).parents[2]
LEFT_OUT = [  # these need packages and tools that are not installed here, or the repository
    "benchmarks",
    "test_api/test_synchronous.py",
    "test_docs.py",
    "test_examples.py",
    "test_regression",  # installs earlier releases
    "test_version_derivation.py",
]
SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers =
  gpu
  slow_hypothesis
  slow_wheel
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A directory with the tests of the installed release."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("pip is not installed, which downloads zarr-python's tests")
    command = ["download", "--quiet", "--no-deps", "--no-binary", "zarr", f"zarr=={zarr.__version__}"]
    download = subprocess.run(
        [sys.executable, "-m", "pip", *command], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    archives = list(tmp_path.glob("zarr-*.tar.gz"))
    if not archives:
        pytest.skip(f"the source distribution of zarr-python cannot be downloaded: {download.stderr[-200:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = archives[0].with_suffix("").with_suffix("") / "tests"
    if not unpacked.is_dir():
        pytest.skip("the source distribution of zarr-python contains no tests")
    unpacked.rename(tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    # Processes that the tests start find the pipeline as in an installation.
    distribution = tmp_path / "installed" / "pipeline-0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: pipeline\nVersion: 0\n")
    (distribution / "entry_points.txt").write_text(
        "[zarr.codec_pipeline]\nzarrasync = zarrasync.integrations.zarr:CodecPipeline\n"
    )
    return tmp_path


@pytest.mark.slow
def test_tests_of_zarr_python_pass(suite: Path):
    environment = {
        **os.environ,
        "ZARR_CODEC_PIPELINE__PATH": "zarrasync.integrations.zarr.CodecPipeline",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(suite / "installed"), str(ROOT / "tests" / "support")]),
        "DIFFERENCES": str(ROOT / "tests" / "integrations" / "zarr_python_differences.toml"),
        "SAMPLE": "1" if os.environ.get("ZARRASYNC_ZARR_SUITE") else "23",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "-p", "zarr_python_suite", "-W", "ignore"]
    command += ["-p", "no:cacheprovider", "--tb=short", "tests", *(f"--ignore=tests/{name}" for name in LEFT_OUT)]
    run = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-1000:]
    assert " passed" in run.stdout
