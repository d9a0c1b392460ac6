"""Many files into repositories of icechunk: one commit per job, which readers see as a whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.errors import (
    NodeExistsError,
    ShapeError,
    StoreError,
    UnsupportedOperation,
    WriteConflictError,
)

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
icechunk = pytest.importorskip("icechunk")
from tests.support.netcdf import day, joined, write_days

MAIN = "Repository initialized"


def messages(place: Path) -> list[str]:
    """Return the history of the branch, the newest commit first."""
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)))
    return [commit.message for commit in repository.ancestry(branch="main")]


def stored(place: Path, path: str = "") -> Any:
    return xr.load_dataset(f"{place}|icechunk:@branch.main/{path}", engine="zarrasync")


@pytest.mark.parametrize("form", ["{}|icechunk:", "file://{}|icechunk:@branch.main/"])
async def test_each_job_is_one_commit(api: Api, tmp_path: Path, form: str):
    paths, place = write_days(tmp_path / "nc", range(4)), tmp_path / "repo"
    url, options = form.format(place), {"concat": "time", "chunks": {"time": 7}, "verify": True}
    await api(api.ingest(paths[:2], url, **options))
    xr.testing.assert_equal(stored(place), joined(paths[:2]))
    report = await api(api.ingest(paths[:3], url, append=True, **options))
    assert (report.files, report.known) == (1, 2)
    history = ["zarrasync ingest: 1 file with 24 rows", "zarrasync ingest: 2 files with 48 rows", MAIN]
    assert messages(place) == history
    assert (await api(api.ingest(paths[:3], url, append=True, **options))).files == 0
    day(9).rename(t2m="t").to_netcdf(tmp_path / "bad.nc")
    with pytest.raises(ShapeError):
        await api(api.ingest(tmp_path / "bad.nc", url, append=True, **options))
    with pytest.raises(NodeExistsError):
        await api(api.ingest(paths[3], url, **options))
    assert messages(place) == history
    xr.testing.assert_equal(stored(place), joined(paths[:3]))
    await api(api.ingest(paths, url, path="deep/er", **options))
    xr.testing.assert_equal(stored(place, "deep/er"), joined(paths))
    await api(api.ingest(paths[3], url, mode="w", **options))
    xr.testing.assert_equal(stored(place), joined(paths[3:]))


def read_with_zarr_python(place: Path) -> Any:
    """Return the dataset, as other programs see it at a time at which zarrasync's event loop is busy."""
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)))
    return xr.open_zarr(repository.readonly_session("main").store, consolidated=False).load()


async def test_readers_see_replaced_rows_together(api: Api, tmp_path: Path):
    """While a job replaces rows and adds others, readers see the old ones."""
    paths, place = write_days(tmp_path / "nc", range(2), packed=False), tmp_path / "repo"
    url, seen = f"{place}|icechunk:", list[Any]()
    await api(api.ingest(paths, url, concat="time", chunks={"time": 6}))
    before = joined(paths)
    day(1, rows=48, seed=5).to_netcdf(tmp_path / "later.nc")
    options: dict[str, Any] = {"concat": "time", "append": True, "on_duplicate": "replace"}
    await api(
        api.ingest(
            tmp_path / "later.nc", url, progress=lambda nbytes: seen.append(read_with_zarr_python(place)), **options
        )
    )
    assert len(seen) > 2
    for dataset in seen:
        xr.testing.assert_equal(dataset, before)
    xr.testing.assert_equal(stored(place), joined([paths[0], tmp_path / "later.nc"]))
    assert len(messages(place)) == 3


async def test_a_commit_of_another_writer(api: Api, tmp_path: Path):
    paths, place = write_days(tmp_path / "nc", range(2), packed=False), tmp_path / "repo"
    url, others = f"{place}|icechunk:", ["another writer"]
    await api(api.ingest(paths[0], url, concat="time"))

    def commit(nbytes: int) -> None:
        if others:
            repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)))
            with repository.transaction("main", message=others.pop()) as store:
                sync.open_group(store, mode="r+").update_attributes({"title": "other"})

    options: dict[str, Any] = {"concat": "time", "append": True, "progress": commit}
    with pytest.raises(WriteConflictError, match=r"committed to the branch 'main' of .*; nothing was published"):
        await api(api.ingest(paths, url, **options))
    assert stored(place).sizes["time"] == 24
    await api(api.ingest(paths, url, **options))
    xr.testing.assert_equal(stored(place), joined(paths))
    assert sync.open_group(f"{place}|icechunk:").attrs["title"] == "other"


@pytest.mark.processes
async def test_a_job_that_is_killed_leaves_nothing(api: Api, tmp_path: Path):
    paths, place = write_days(tmp_path / "nc", range(3)), tmp_path / "repo"
    await api(api.ingest(paths[:1], f"{place}|icechunk:", concat="time"))
    program = f"""
import os, signal
from zarrasync import stores, sync
kill = lambda nbytes: os.kill(os.getpid(), signal.SIGKILL)
sync.ingest({str(tmp_path / "nc/*.nc")!r}, {f"{place}|icechunk:"!r}, concat="time", append=True, progress=kill)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == -9
    xr.testing.assert_equal(stored(place), joined(paths[:1]))
    await api(api.ingest(paths, f"{place}|icechunk:", concat="time", append=True))
    xr.testing.assert_equal(stored(place), joined(paths))
    assert len(messages(place)) == 3


async def test_a_job_that_fails_early_creates_no_repository(api: Api, tmp_path: Path):
    pytest.importorskip("icechunk", "2", reason="icechunk 1 creates the directory when it looks for a repository")
    paths, place = write_days(tmp_path / "nc", range(2)), tmp_path / "repo"
    (tmp_path / "nc/bad.nc").write_bytes(b"CDF")
    sources: list[Any] = [
        tmp_path / "nc/bad.nc",
        [*paths, tmp_path / "nc/bad.nc"],
        [paths[0], paths[0], tmp_path / "other.nc"],
    ]
    day(0).to_netcdf(tmp_path / "other.nc")
    for own in sources:
        with pytest.raises((ShapeError, ValueError)):
            await api(api.ingest(own, f"{place}|icechunk:", concat="time"))
        assert not place.exists()
    await api(api.ingest(paths, f"{place}|icechunk:", concat="time"))
    assert messages(place) == ["zarrasync ingest: 2 files with 48 rows", MAIN]
    xr.testing.assert_equal(stored(place), joined(paths))


async def test_another_writer_creates_the_repository(api: Api, tmp_path: Path):
    """It appears after the job was planned for a repository that did not exist."""
    paths, place = write_days(tmp_path / "nc", range(2)), tmp_path / "repo"
    transactions = stores.resolve(f"{place}|icechunk:").transactions
    assert transactions is not None
    transaction = transactions.begin()
    assert transaction is not None
    await api(api.ingest(paths[0], f"{place}|icechunk:", concat="time"))
    with pytest.raises(WriteConflictError, match=r"another writer has created the repository .*; repeat the call"):
        await api(api.ingest(paths[1], transaction.store, concat="time"))
    assert len(messages(place)) == 2


async def test_sessions(api: Api, tmp_path: Path):
    """The caller of a session commits it."""
    paths = write_days(tmp_path / "nc", range(2))
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    await api(api.ingest(paths[:1], session, concat="time"))
    await api(api.ingest(paths, session, concat="time", append=True))
    assert len(list(repository.ancestry(branch="main"))) == 1
    session.commit("both")
    found = xr.load_dataset(repository.readonly_session("main").store, engine="zarrasync")
    xr.testing.assert_equal(found, joined(paths))


async def test_what_cannot_be_written(api: Api, tmp_path: Path):
    (path,), place = write_days(tmp_path / "nc", [0]), tmp_path / "repo"
    await api(api.ingest(path, f"{place}|icechunk:", concat="time"))
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(place)))
    repository.create_tag("v1", repository.lookup_branch("main"))
    for version, error, message in [
        ("@tag.v1/", UnsupportedOperation, "only branches can change"),
        ("@branch.dev/", StoreError, r"cannot open branch 'dev' of .*its branches are \['main'\]"),
    ]:
        with pytest.raises(error, match=message):
            await api(api.ingest(path, f"{place}|icechunk:{version}", concat="time"))
    with pytest.raises(StoreError):
        await api(api.ingest(path, f"{tmp_path / 'none'}|icechunk:@branch.dev/", concat="time"))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    paths = write_days(tmp_path / "nc", range(3))
    url = f"{(tmp_path / 'r').as_uri()}/|icechunk:"
    assert main(["ingest", *map(str, paths[:2]), url, "--concat", "time", "--verify"]) == 0
    assert main(["ingest", "nc/*.nc", url, "--concat", "time", "--append", "--json"]) == 0
    assert main(["ingest", "nc/*.nc", "r|icechunk:", "--concat", "time", "--append"]) == 0
    assert "3 files ingested before" in capsys.readouterr().out
    assert messages(tmp_path / "r")[:2] == [
        f"zarrasync ingest: {n}" for n in ("1 file with 24 rows", "2 files with 48 rows")
    ]
    xr.testing.assert_equal(stored(tmp_path / "r"), joined(paths))
