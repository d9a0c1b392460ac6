"""Plans whose tasks write to repositories of icechunk as separate commands, and share one commit."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import ROOT
from zarrasync import stores, sync
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.cli import main
from zarrasync.errors import StoreError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
icechunk = pytest.importorskip("icechunk", "2", reason="icechunk 1 cannot fork sessions with changes")
from tests.support.icechunk_branch import messages, repository, stored
from tests.support.netcdf import day, joined, write_days

FIRST = "Repository initialized"


def notes(place: Path) -> list[str]:
    """Return the files that are not icechunk's."""
    return [path.name for path in (place / "zarrasync").rglob("*") if path.is_file()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, in which commands work."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(paths: list[Path], *words: str, dest: str = "repo|icechunk:", code: int = 0) -> int:
    """Make a plan, and return the number of its tasks."""
    files = [str(path) for path in paths]
    assert main(["ingest", "plan", *files, dest, "--concat", "time", "--plan", "job", "--tasks", "5", *words]) == code
    return len(json.loads(Path("job").read_text())["plan"]["parts"]) if code == 0 else 0


def command(*words: str) -> Any:
    """Return a command that runs in another process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ICECHUNK_LOG": "error"}
    return subprocess.Popen([sys.executable, "-m", "zarrasync", "ingest", *words], env=environment)


@pytest.mark.parametrize("path", ["", "deep/er"])
def test_commands(folder: Path, path: str, capsys: pytest.CaptureFixture[str]):
    paths, place, dest = write_days(folder / "nc", range(6)), folder / "repo", f"repo|icechunk:@branch.main/{path}"
    for count, words in ((3, ["--chunks", "time=7"]), (6, ["--append"])):
        tasks = plan(paths[:count], *words, dest=dest)
        assert tasks >= 3
        assert main(["ingest", "run", "job", "--task", "1"]) == 0
        assert main(["ingest", "finish", "job"]) == 1
        assert f"{tasks - 1} tasks of {tasks} have not been run" in capsys.readouterr().err
        assert main(["ingest", "run", "job", "--verify"]) == 0
        assert len(messages(place)) == count // 3
        assert main(["ingest", "finish", "job", "--verify"]) == 0
        assert messages(place)[0] == "zarrasync ingest: 3 files with 72 rows"
        xr.testing.assert_equal(stored(place, path), joined(paths[:count]))
        assert notes(place) == []
        assert not Path("job").exists()
        for action in ("run", "finish", "abandon"):
            assert main(["ingest", action, "job"]) == 1
            assert "there is no plan" in capsys.readouterr().err
    assert main(["ingest", "plan", *map(str, paths), dest, "--concat", "time", "--append", "--plan", "job"]) == 0
    assert json.loads(Path("job").read_text())["plan"] is None
    assert "0 tasks" in capsys.readouterr().out
    assert main(["ingest", "run", "job", "--task", "0"]) == 0
    assert main(["ingest", "finish", "job"]) == 0
    assert "6 files ingested before" in capsys.readouterr().out
    assert not Path("job").exists()
    plan(paths[:2], "--overwrite", dest=dest)
    assert main(["ingest", "run", "job"]) == 0
    xr.testing.assert_equal(stored(place, path), joined(paths))
    assert main(["ingest", "finish", "job"]) == 0
    xr.testing.assert_equal(stored(place, path), joined(paths[:2]))
    assert len(messages(place)) == 4


@pytest.mark.slow
@pytest.mark.processes
def test_tasks_in_other_processes(folder: Path):
    """Several tasks run at a time; one of them is started twice."""
    paths, place = write_days(folder / "nc", range(6)), folder / "repo"
    tasks = plan(paths, "--chunks", "time=7")
    running = [command("run", "job", "--task", str(number)) for number in [*range(tasks), 0]]
    running.append(command("run", "job", "--processes", "2"))
    assert {process.wait() for process in running} == {0}
    assert command("finish", "job").wait() == 0
    assert messages(place) == ["zarrasync ingest: 6 files with 144 rows", FIRST]
    xr.testing.assert_equal(stored(place), joined(paths))


DYING = """
import os, signal, sys
import icechunk
from zarrasync.cli import main
from zarrasync.stores.local import LocalStore

left = int(sys.argv[1])

def count():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

def dying(method):
    async def call(*args, **options):
        count()
        result = await method(*args, **options)
        count()
        return result
    return call

def dying_commit(*args, **options):
    count()
    result = commit(*args, **options)
    count()
    return result

commit = icechunk.Session.commit
icechunk.Session.commit = dying_commit
for name in ("put", "erase", "erase_values"):
    setattr(LocalStore, name, dying(getattr(LocalStore, name)))
sys.exit(main(["ingest", *sys.argv[2:]]))
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("step", [7, 2])
def test_a_kill_of_any_command(folder: Path, step: int):
    """A command that is killed before or after it changes a note, or commits, can be repeated."""
    paths, place = write_days(folder / "nc", range(4)), folder / "repo"
    (folder / "dying.py").write_text(DYING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ICECHUNK_LOG": "error"}
    files = [str(path) for path in paths]
    sync.ingest(paths[:2], f"{place}|icechunk:", concat="time", chunks={"time": 7})
    words = {
        "plan": [*files, "repo|icechunk:", "--concat", "time", "--append", "--plan", "job", "--tasks", "2"],
        "run": ["job"],
        "finish": ["job"],
    }
    for action, rest in words.items():
        left, code = 0, -1
        while code:
            call = [sys.executable, "dying.py", str(left), action, *rest]
            code = subprocess.run(call, env=environment, check=False).returncode
            assert code in (0, -signal.SIGKILL)
            assert stored(place).sizes["time"] in ((48, 96) if action == "finish" else (48,))
            left += step
    xr.testing.assert_equal(stored(place), joined(paths))
    assert messages(place) == ["zarrasync ingest: 2 files with 48 rows"] * 2 + [FIRST]
    assert notes(place) == []


def test_a_kill_between_the_commit_and_its_note(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The commit is not made again, and the plan cannot be abandoned any more."""
    paths, place = write_days(folder / "nc", range(3)), folder / "repo"
    sync.ingest(paths[:1], f"{place}|icechunk:", concat="time")
    plan(paths, "--append")
    assert main(["ingest", "run", "job"]) == 0

    update = Claim.update

    def fail(claim: Claim, **values: Any) -> None:
        if values.get("committed"):
            raise StoreError("the process ended", key="")
        update(claim, **values)

    with monkeypatch.context() as patch:
        patch.setattr(Claim, "update", fail)
        assert main(["ingest", "finish", "job"]) == 1
    history = messages(place)
    assert len(history) == 3
    assert main(["ingest", "abandon", "job"]) == 1
    assert "cannot be abandoned" in capsys.readouterr().err
    sync.ingest(paths[:1], f"{place}|icechunk:", path="other", concat="time")
    assert main(["ingest", "finish", "job"]) == 0
    assert messages(place)[1:] == history
    assert notes(place) == []
    xr.testing.assert_equal(stored(place), joined(paths))


def test_an_equal_plan_later(folder: Path):
    """Rows are written again that another writer has changed since an equal plan was finished."""
    paths, place = write_days(folder / "nc", range(2), packed=False), folder / "repo"
    sync.ingest(paths, f"{place}|icechunk:", concat="time")
    made = []
    for number in range(2):
        plan(paths[1:], "--region", "auto")
        made.append(Path("job").read_text())
        assert main(["ingest", "run", "job"]) == 0
        assert main(["ingest", "finish", "job"]) == 0
        assert len(messages(place)) == 3 + 2 * number
        xr.testing.assert_equal(stored(place), joined(paths))
        with repository(place).transaction("main", message="other") as store:
            sync.open_array(store, path="t2m", mode="r+")[30] = 0
    assert made[0] == made[1]


def test_a_plan_that_is_abandoned(folder: Path, capsys: pytest.CaptureFixture[str]):
    paths, place = write_days(folder / "nc", range(3)), folder / "repo"
    plan(paths[:2], "--chunks", "time=7")
    assert main(["ingest", "run", "job"]) == 0
    plan(paths, code=1)
    assert "is not finished" in capsys.readouterr().err
    assert main(["ingest", "abandon", "job"]) == 0
    assert (messages(place), notes(place)) == ([FIRST], [])
    plan(paths, "--chunks", "time=24")
    assert main(["ingest", "run", "job"]) == 0
    assert main(["ingest", "finish", "job"]) == 0
    xr.testing.assert_equal(stored(place), joined(paths))


def test_an_abandonment_that_was_killed(folder: Path, capsys: pytest.CaptureFixture[str]):
    paths, place = write_days(folder / "nc", range(1)), folder / "repo"
    plan(paths)
    (place / "zarrasync/main/.ingest/transaction").unlink()
    for action in ("run", "finish"):
        assert main(["ingest", action, "job"]) == 1
        assert "was abandoned; complete that" in capsys.readouterr().err
    assert main(["ingest", "abandon", "job"]) == 0
    assert notes(place) == []


def test_a_task_of_another_version_of_icechunk(folder: Path, capsys: pytest.CaptureFixture[str]):
    plan(write_days(folder / "nc", range(1)))
    (note,) = (folder / "repo").rglob("transaction")
    note.write_text(json.dumps({**json.loads(note.read_text()), "changes": "AAAA"}))
    assert main(["ingest", "run", "job"]) == 1
    assert "need the same version of icechunk" in capsys.readouterr().err


# ------------------------------------------------------------------ commits of others


@pytest.mark.parametrize("path", ["", "a", "new/er"])
def test_others_commit_other_nodes(folder: Path, path: str):
    """Both commits remain."""
    paths, place = write_days(folder / "nc", range(3)), folder / "repo"
    options: dict[str, Any] = {"concat": "time", "append": True}
    for own in {path, "other"} - {"new/er"}:
        sync.ingest(paths[:1], f"{place}|icechunk:", path=own, **options)
    plan(paths, "--append", "--chunks", "time=24", dest=f"repo|icechunk:@branch.main/{path}")
    sync.ingest(paths[:2], f"{place}|icechunk:", path="other", **options)
    assert main(["ingest", "run", "job"]) == 0
    sync.ingest(paths, f"{place}|icechunk:", path="third", **options)
    count = len(messages(place))
    assert main(["ingest", "finish", "job"]) == 0
    assert len(messages(place)) == count + 1
    xr.testing.assert_equal(stored(place, path), joined(paths))
    xr.testing.assert_equal(stored(place, "other"), joined(paths[:2]))
    xr.testing.assert_equal(stored(place, "third"), joined(paths))


@pytest.mark.parametrize("change", ["rows", "coordinate", "replace", "erase", "above", "below"])
def test_others_commit_the_same_dataset(folder: Path, change: str, capsys: pytest.CaptureFixture[str]):
    """The plan can only be abandoned."""
    paths, place = write_days(folder / "nc", range(3)), folder / "repo"
    url = f"{place}|icechunk:"
    options: dict[str, Any] = {"concat": "time", "path": "a/b"}
    if change != "above":
        sync.ingest(paths[:1], url, **options)
    if change == "below":
        sync.ingest(paths[:1], url, concat="time", path="a/b/c")
    way = "--overwrite" if change == "below" else "--append"
    plan(paths, way, dest="repo|icechunk:@branch.main/a/b")
    assert main(["ingest", "run", "job"]) == 0
    if change == "rows":
        sync.ingest(paths[:2], url, append=True, **options)
    elif change == "below":
        sync.ingest(paths[:2], url, concat="time", path="a/b/c", append=True)
    elif change == "replace":
        sync.ingest(paths[1:2], url, mode="w", **options)
    else:
        with repository(place).transaction("main", message="other") as store:
            if change == "coordinate":
                sync.open_array(store, path="a/b/lat", mode="r+")[0] = -80.0
            elif change == "erase":
                sync.open_group(store, mode="r+").delete("a")
            else:
                sync.create_group(store, path="a")
    history = messages(place)
    assert main(["ingest", "finish", "job"]) == 1
    error = capsys.readouterr().err
    assert "another writer has committed to the branch 'main'" in error
    assert "nothing was published. Drop the plan with `zarrasync ingest abandon PLAN`" in error
    assert messages(place) == history
    assert main(["ingest", "abandon", "job"]) == 0
    if change == "rows":
        plan(paths, "--append", dest="repo|icechunk:@branch.main/a/b")
        assert main(["ingest", "run", "job"]) == 0
        assert main(["ingest", "finish", "job"]) == 0
        xr.testing.assert_equal(stored(place, "a/b"), joined(paths))


# ------------------------------------------------------------------ refusals, and other storage


def test_rows_of_a_chunk_that_are_replaced_in_several_places(folder: Path):
    paths, place, places = write_days(folder / "nc", range(2), packed=False), folder / "repo", [3, 4, 8, 9, 30]
    sync.ingest(paths, f"{place}|icechunk:", concat="time", chunks={"time": 24})
    expected = joined(paths).load()
    (expected.isel(time=places) + 1).assign(mask=day(0).mask).to_netcdf(folder / "later.nc")
    plan([folder / "later.nc"], "--append", "--on-duplicate", "replace")
    assert main(["ingest", "run", "job"]) == 0
    assert main(["ingest", "finish", "job"]) == 0
    expected.t2m[places] += 1
    xr.testing.assert_equal(stored(place), expected)


def test_copies_of_a_repository_store_read(folder: Path):
    (path,), place = write_days(folder / "nc", range(1)), folder / "repo"
    sync.ingest(path, f"{place}|icechunk:", concat="time")
    copy = pickle.loads(pickle.dumps(stores.resolve(f"{place}|icechunk:")))  # made here
    assert copy.notes is copy
    np.testing.assert_array_equal(
        sync.open_array(copy, path="t2m")[:], sync.open_array(f"{place}|icechunk:", path="t2m")[:]
    )


def test_an_object_store(
    folder: Path,
    s3: tuple[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Credentials come from the environment. They would be stored otherwise."""
    url, options = s3
    paths, dest = write_days(folder / "nc", range(3)), f"{url}/repo|icechunk:"
    words = [f"--dest-option=endpoint_url={options['endpoint_url']}"]
    secret = [*words, "--dest-option=key=test", "--dest-option=secret=test"]
    plan(paths, *secret, dest=dest, code=1)
    assert "access_key_id would be stored among its files" in capsys.readouterr().err
    plan(paths, "--chunks", "time=7", *words, dest=dest)
    assert main(["ingest", "run", "job", *words]) == 0
    assert main(["ingest", "finish", "job", *words]) == 0
    with xr.open_dataset(dest, engine="zarrasync", storage_options=options) as found:
        xr.testing.assert_equal(found.load(), joined(paths))
