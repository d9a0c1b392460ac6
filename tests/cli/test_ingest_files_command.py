"""The command ``zarrasync ingest`` with many files, and its plans."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import PACKED, assert_same, day, joined, write_days
from zarrasync import sync
from zarrasync.bulk.jobs.claim import WAIT_SECONDS
from zarrasync.cli import main


def run(*words: object) -> int:
    return main(["ingest", *map(str, words)])


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_days(tmp_path / "nc", range(3))
    out = tmp_path / "out.zarr"
    layout = ("--concat", "time", "--chunks", "time=12,lat=3", "--shards", "time=24", "--compressor", "none")
    assert run(*paths[:2], out, *layout, "--verify") == 0
    assert "2 files with 48 rows" in capsys.readouterr().out
    t2m = sync.open_array(out, path="t2m")
    assert (t2m.chunks, t2m.shards) == ((12, 3, 8), (24, 6, 8))
    assert run(tmp_path / "nc/*.nc", out, *layout) == 1
    assert "does not contain day2.nc; pass --append" in capsys.readouterr().err
    assert run(tmp_path / "nc/*.nc", out, "--concat", "time", "--append", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["files"], report["known"], report["rows"]) == (1, 2, 24)
    assert_same(out, joined(paths))
    day(1, seed=8).to_netcdf(paths[1], encoding=PACKED)
    for region in ("auto", "24:48"):
        assert run(paths[1], out, "--concat", "time", "--region", region) == 0
        assert_same(out, joined(paths))


def test_processes(tmp_path: Path):
    """0 stands for threads of this process, as for the other commands."""
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    assert run(tmp_path / "nc/*.nc", out, "--concat", "time", "--processes", 0) == 0
    assert_same(out, joined(paths))
    plan = tmp_path / "plan.json"
    assert run("plan", tmp_path / "nc/*.nc", tmp_path / "b.zarr", "--concat", "time", "--plan", plan) == 0
    assert run("run", plan, "--processes", 0) == 0
    assert run("finish", plan) == 0
    assert_same(tmp_path / "b.zarr", joined(paths))


def test_encoding(tmp_path: Path):
    write_days(tmp_path / "nc", range(2))
    (tmp_path / "encoding.json").write_text('{"t2m": {"dtype": "f8", "chunks": {"lat": 2}}}')
    files, out = tmp_path / "nc/*.nc", tmp_path / "out.zarr"
    assert run(files, out, "--concat", "time", "--decode", "--encoding", tmp_path / "encoding.json") == 0
    t2m = sync.open_array(out, path="t2m")
    assert (t2m.dtype, t2m.chunks) == (np.dtype("f8"), (48, 2, 8))


@pytest.mark.parametrize("is_apart", [True, False])
def test_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str], is_apart: bool):
    paths, out = write_days(tmp_path / "nc", range(6)), tmp_path / "out.zarr"
    plan = tmp_path / "plan.json" if is_apart else out
    words = (tmp_path / "nc/*.nc", out, "--concat", "time", "--chunks", "time=24")
    assert run("plan", *words, "--tasks", 3, *(["--plan", plan] if is_apart else [])) == 0
    assert f"3 tasks in {plan}: run them with\n  zarrasync ingest run {plan} --task N" in capsys.readouterr().out
    assert run(*words, "--wait", 0) == 1
    assert "is not finished" in capsys.readouterr().err
    assert run("run", plan, "--task", 2) == 0
    assert run("finish", plan) == 1
    assert "2 tasks of 3 have not been run, the first is 0" in capsys.readouterr().err
    assert not (out / "zarr.json").exists()
    assert run("run", plan, "--task", 9) == 0  # an array job may be larger than the plan
    assert "0 blocks" in capsys.readouterr().out
    assert run("run", plan, "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 1
    assert run("finish", plan) == 0
    assert "6 files with 144 rows" in capsys.readouterr().out
    assert_same(out, joined(paths))
    assert not (out / ".ingest").exists()
    for action in ("run", "finish", "abandon"):
        assert run(action, plan) == 1
        assert "there is no plan" in capsys.readouterr().err
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("name", ["SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX"])
def test_tasks_of_an_array_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    assert run("plan", *paths, out, "--concat", "time", "--chunks", "time=24", "--tasks", 3) == 0
    for number in reversed(range(5)):  # more than the plan has
        monkeypatch.setenv(name, str(number))
        assert run("run", out, "--task", "auto") == 0
    assert run("finish", out) == 0
    assert_same(out, joined(paths))


def test_a_plan_is_verified_by_its_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    with pytest.raises(SystemExit, match="2"):
        run("plan", *paths, out, "--concat", "time", "--verify")
    assert "pass --verify to `ingest run` and `ingest finish`" in capsys.readouterr().err
    assert run("plan", *paths, out, "--concat", "time") == 0
    assert run("run", out, "--verify") == 0
    assert "verified" in capsys.readouterr().out
    assert run("finish", out, "--verify") == 0
    assert_same(out, joined(paths))


def test_an_archive_has_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_days(tmp_path / "nc", range(2))
    out = tmp_path / "out.zip"
    for words in ([], ["--plan", tmp_path / "plan.json"]):
        with pytest.raises(SystemExit, match="2"):
            run("plan", *paths, out, "--concat", "time", *words)
        assert "only one process can write an archive" in capsys.readouterr().err
        assert run("plan", *paths, f"{out}|zip:", "--concat", "time", *words) == 1
        assert "only one process can write an archive" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["nc"]


def test_a_lost_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths, out, plan = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr", tmp_path / "plan.json"
    assert run("plan", *paths, out, "--concat", "time", "--plan", plan) == 0
    assert run("run", plan) == 0
    plan.unlink()
    assert run("finish", out) == 1
    assert "is lost; abandon the plan, and make it again" in capsys.readouterr().err
    assert run("abandon", out) == 0
    assert not out.exists()
    assert run(*paths, out, "--concat", "time") == 0


def test_another_plan_in_the_same_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The file still contains the first plan."""
    paths, out, plan = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr", tmp_path / "plan.json"
    assert run("plan", paths[0], out, "--concat", "time", "--plan", plan) == 0
    first = plan.read_text()
    assert run("plan", *paths, out, "--concat", "time", "--plan", plan, "--wait", "0") == 1
    assert "is not finished" in capsys.readouterr().err
    assert plan.read_text() == first
    assert run("run", plan) == 0
    assert run("finish", plan) == 0
    assert_same(out, joined(paths[:1]))


def test_an_abandoned_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = write_days(tmp_path / "nc", range(3))
    out, plan = tmp_path / "out.zarr", tmp_path / "plan.json"
    assert run("plan", *paths[:1], out, "--concat", "time", "--plan", plan) == 0
    assert run("run", plan) == 0
    assert run("abandon", plan) == 0
    assert [path for path in out.rglob("*") if path.is_file()] == []
    assert run(*paths[:2], out, "--concat", "time") == 0
    assert run("plan", *paths, out, "--concat", "time", "--append", "--plan", plan) == 0
    assert run("abandon", plan) == 0
    assert_same(out, joined(paths[:2]))
    (tmp_path / "no-plan.json").write_text("{}")
    assert run("run", tmp_path / "no-plan.json") == 1
    assert "not a plan" in capsys.readouterr().err


def test_a_second_file_is_not_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", np.full((4, 4), number + 1))
    (nc, other) = write_days(tmp_path, range(2))
    for one, two in ((tmp_path / "0.npy", tmp_path / "1.npy"), (nc, other)):
        out = tmp_path / f"{one.name}.zarr"
        assert run(one, out) == 0
        assert run(one, out) == 0
        assert run(two, out) == 1
        message = rf"contains (the values of )?\S*{one.name},.* not .*{two.name}; pass .*--overwrite"
        assert re.search(message, capsys.readouterr().err)
        assert run(two, out, "--overwrite") == 0
        assert run(two, out) == 0


def test_a_second_file_is_not_dropped_if_the_first_one_contains_only_fill_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """No chunk of the first file is stored, so only the record shows that it was ingested."""
    np.save(tmp_path / "a.npy", np.zeros((4, 4)))
    np.save(tmp_path / "b.npy", np.ones((4, 4)))
    np.savez(tmp_path / "a.npz", v=np.zeros(4), w=np.ones(4))
    np.savez(tmp_path / "b.npz", v=np.ones(4))
    sync.create_array(tmp_path / "a.zarr", data=np.zeros(4), dimension_names=["x"], attributes={"units": "K"})
    sync.create_array(tmp_path / "b.zarr", data=np.ones(4), dimension_names=["x"])
    for suffix, member in ((".npy", ""), (".npz", "v"), (".zarr", "")):
        one, two = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
        for words in ([], ["--zarr-format", "2"], ["--dest-path", "deep/er"]):
            out = tmp_path / f"{suffix}{len(words)}{words[-1:] == ['2']}"
            place = "/".join(part for part in (words[-1] if "--dest-path" in words else "", member) if part)
            for _ in range(2):
                assert run(one, out, *words) == 0
            assert run(two, out, *words) == 1
            assert re.search(rf"contains (the values of )?{one.name},.* not .*{two.name}", capsys.readouterr().err)
            assert not np.any(sync.open_array(out, path=place)[...])
            assert run(two, out, *words, "--overwrite") == 0
            assert np.all(sync.open_array(out, path=place)[...])
    array = sync.open_array(tmp_path / ".zarr0False")
    assert (array.dimension_names, array.attrs.keys()) == (("x",), set())
    os.utime(tmp_path / "b.npy", ns=(0, 1))
    assert run(tmp_path / "b.npy", tmp_path / ".npy0False") == 1
    assert "b.npy, which has changed since; pass --overwrite" in capsys.readouterr().err


def test_arrays_of_several_files_in_one_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    np.savez(tmp_path / "a.npz", v=np.zeros(4))
    np.savez(tmp_path / "b.npz", w=np.zeros(4))
    np.savez(tmp_path / "c.npz", v=np.ones(4), w=np.ones(4))
    for _ in range(2):
        assert run(tmp_path / "a.npz", tmp_path / "out") == 0
        assert run(tmp_path / "b.npz", tmp_path / "out", "--dest-path", "other") == 0
    assert run(tmp_path / "c.npz", tmp_path / "out") == 1
    assert f"{tmp_path}/out contains a.npz, and it does not contain c.npz" in capsys.readouterr().err
    assert sorted(sync.open_group(tmp_path / "out")) == ["other", "v"]


def test_the_documented_wait_is_the_one_of_the_library(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["ingest", "--help"])
    assert f"(default: {WAIT_SECONDS / 60:.0f} minutes)" in " ".join(capsys.readouterr().out.split())
