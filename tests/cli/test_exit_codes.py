"""The exit codes of commands, as the page about the command line lists them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support import ROOT
from tests.support.netcdf import day, write_days
from zarrasync import sync
from zarrasync.cli import main

JOIN = ("--concat", "time")


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_days(tmp_path / "nc", range(3))
    return tmp_path


def code(*words: str) -> int:
    """Run a command, and return its exit code."""
    try:
        return main(words)
    except SystemExit as error:  # of the parser
        return int(error.code or 0)


def test_errors():
    assert code("ingest", "nc/day0.nc", "out.zarr", *JOIN) == 0
    assert code("ingest", "nc/day1.nc", "out.zarr", *JOIN) == 1  # another file without --append
    assert code("ingest", "nc/none.nc", "out.zarr", *JOIN, "--append") == 1  # no such file
    day(0, seed=9).to_netcdf("again.nc")
    assert code("ingest", "again.nc", "out.zarr", *JOIN, "--append") == 1  # repeated labels
    assert code("ingest", "nc/day2.nc", "out.zarr", *JOIN, "--append", "--on-gap", "error") == 1
    assert code("ingest", "nc/day2.nc", "out.zarr", *JOIN, "--region", "auto") == 1  # rows that do not exist
    assert code("copy", "out.zarr", "out.zarr") == 1
    sync.create_array("bad.zarr", data=np.arange(4))
    Path("bad.zarr/c/0").write_bytes(b"damaged")
    assert code("validate", "bad.zarr", "--data") == 1  # found a problem


@pytest.mark.parametrize(
    "words",
    [
        ("ingest", "nc/day0.nc"),  # no destination
        ("ingest", "nc/day0.nc", "nc/day1.nc"),  # the destination is a file
        ("ingest", "nc/day0.nc", "nc/day1.nc", "out.zarr"),  # no --concat
        ("ingest", "nc/*.nc", "out.zarr"),
        ("ingest", "nc/day0.nc", "out.zarr", "--append"),  # has no effect without --concat
        ("ingest", "nc/day0.nc", "out.zarr", "--on-gap", "error"),
        ("ingest", "nc/day0.nc", "out.zarr", *JOIN, "--overwrite", "--resume"),
        ("ingest", "nc/day0.nc", "out.zarr", *JOIN, "--region", "1-2"),
        ("ingest", "nc/day0.nc", "out.zarr", *JOIN, "--wait", "-1"),
        ("ingest", "nc/day0.nc", "out.zarr", *JOIN, "--on-duplicate", "x"),
        ("ingest", "nc/day0.nc", "out.zarr", *JOIN, "--report", "none/r.html"),
        ("ingest", "plan", "nc/*.nc", "out.zarr", *JOIN, "--verify"),  # an option of run and finish
        ("ingest", "plan", "nc/*.nc", "out.zip", *JOIN),
        ("ingest", "run", "out.zarr", "--task", "auto"),  # not in an array job
        ("ingest", "plan", "nc/*.nc", "out.zarr", "--plan", "job.plan"),  # no --concat
        ("ingest", "run"),
        ("ingest", "run", "job.plan", "other.plan"),
        ("ingest", "finish", "job.plan", "--chunks", "4"),
    ],
)
def test_wrong_arguments(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert code(*words) == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: zarrasync ingest ")
    assert error.startswith("zarrasync ingest")
    assert not Path("out.zarr").exists()
    assert not Path("job.plan").exists()


@pytest.mark.processes
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signals(workdir: Path, number: int, expected: int):
    """A waiting job is interrupted, and another one ends with its signal."""
    assert code("ingest", "plan", "nc/*.nc", "out.zarr", *JOIN, "--plan", "job.plan") == 0
    claim = Path("out.zarr/.ingest/claim")
    claim.write_text(claim.read_text().replace("planned", "running").replace('"owner": "', '"owner": "x'))
    script = (
        "import signal, sys; from zarrasync.stores.leases import Lease; from zarrasync.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # shells ignore it in background jobs
        "read = Lease._read\n"
        "Lease._read = lambda self: (print('waiting', flush=True), read(self))[1]\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "ingest", "nc/*.nc", "out.zarr", *JOIN]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == expected
