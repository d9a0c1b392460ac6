"""Reports and metrics of long commands, also of commands that fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="metrics are written with prometheus_client")
pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import write_days
from zarrasync import sync
from zarrasync.cli import main


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(file).read_text())
    return found


def metric(file: str, name: str) -> list[float]:
    lines = [line for line in Path(file).read_text().splitlines() if line.startswith(f"zarrasync_job_{name}")]
    return [float(line.rpartition(" ")[2]) for line in lines]


def damaged_group() -> None:
    """Write a group with a good array, and one whose last chunk cannot be decoded."""
    group = sync.create_group("a.zarr")
    group.create_array("good", data=np.arange(10.0), chunks=5)
    group.create_array("poor", data=np.arange(10.0), chunks=5)
    Path("a.zarr/poor/c/1").write_bytes(b"damaged")


@pytest.mark.parametrize("command", [["copy", "--verify"], ["convert", "--chunks", "2"]])
def test_a_failed_copy(command: list[str]):
    damaged_group()
    name, *options = command
    assert main([name, "a.zarr", "b.zarr", *options, "--report", "r.json", "--metrics", "r.prom"]) == 1
    report = load("r.json")
    assert "poor" in str(report["error"])
    done = report["done"]
    assert done["arrays"] + len(done["members"]) > 0
    assert metric("r.prom", "failures_total") == [1]
    assert main([name, "a.zarr", "b.zarr", *options, "--overwrite", "--report", "r.html"]) == 1
    assert "failed: " in Path("r.html").read_text()
    assert "done before: " in Path("r.html").read_text()


def test_a_copy_that_fails_before_it_begins():
    Path("r.txt").write_text("the report of an earlier run")
    assert main(["copy", "none.zarr", "b.zarr", "--report", "r.txt"]) == 1
    assert Path("r.txt").read_text().startswith("failed: cannot open none.zarr: no array or group exists there")


def test_a_pyramid():
    sync.create_array("a.zarr", path="0", data=np.ones((1, 300, 200)), chunks=(1, 100, 100))
    command = ["pyramid", "a.zarr", "--axes", "cyx", "--levels", "2", "--quiet"]
    assert main([*command, "--report", "p.json", "--metrics", "p.prom"]) == 0
    (level,) = load("p.json")["levels"]
    assert level["path"] == "1"
    assert metric("p.prom", "last_success_timestamp_seconds")
    assert metric("p.prom", "done_bytes")[0] == level["nbytes"]
    assert main([*command, "--report", "p.html"]) == 0
    assert "1 x 150 x 100<" in Path("p.html").read_text()


def test_tasks_of_a_plan():
    write_days(Path("nc"), range(4))
    main(
        [
            "ingest",
            "plan",
            "nc/*.nc",
            "o.zarr",
            "--concat",
            "time",
            "--chunks",
            "time=24",
            "--tasks",
            "2",
            "--plan",
            "p",
        ]
    )
    assert main(["ingest", "run", "p", "--task", "1", "--report", "r.json", "--metrics", "r.prom"]) == 0
    report = load("r.json")
    assert report["tasks"] == 1
    assert metric("r.prom", "total_bytes")[0] == metric("r.prom", "done_bytes")[0] == report["nbytes"]
    assert main(["ingest", "finish", "p", "--report", "f.json", "--metrics", "f.prom"]) == 1
    assert "not been run" in str(load("f.json")["error"])
    assert metric("f.prom", "failures_total") == [1]
    assert main(["ingest", "run", "p", "--metrics", "r.prom"]) == 0
    assert metric("r.prom", "skipped_bytes")[0] == report["nbytes"]
    assert metric("r.prom", "done_bytes")[0] == metric("r.prom", "total_bytes")[0]
    assert main(["ingest", "finish", "p", "--verify", "--report", "f.txt", "--metrics", "f.prom"]) == 0
    assert Path("f.txt").read_text().startswith("4 files with 96 rows: published")
    assert 'job="finish o.zarr"' in Path("f.prom").read_text()


def test_a_job_without_new_files_is_a_success():
    write_days(Path("nc"), range(2))
    command = ["ingest", "nc/*.nc", "o.zarr", "--concat", "time", "--metrics", "i.prom", "--report", "i.txt"]
    assert main(command) == 0
    (first,) = metric("i.prom", "last_success_timestamp_seconds")
    assert main(command) == 0
    assert Path("i.txt").read_text().startswith("2 files ingested before: nothing to do")
    assert metric("i.prom", "last_success_timestamp_seconds")[0] > first
    Path("nc/day0.nc").write_text("damaged")
    assert main([*command, "--append"]) == 1
    assert metric("i.prom", "failures_total") == [1]
    assert Path("i.txt").read_text().startswith("failed: cannot read the header of nc/day0.nc")
