"""Temporary files of writers that were killed are removed once their owner is gone, and never before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.shifted_clock import ShiftedClock
from zarrasync import sync
from zarrasync._concurrency import clock
from zarrasync.cli import main
from zarrasync.stores import LocalStore
from zarrasync.stores.local_files import is_abandoned, temporary_path

WRITER = """
import sys
import numpy as np
from zarrasync import stores, sync
from zarrasync.stores import local

def stop(handle, data):
    print("writing", flush=True)
    sys.stdin.readline()

a = sync.open_array(sys.argv[1], mode="r+")
local.write_fully = stop
a[...] = 1
"""

needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs signals")


def _partial(root: Path) -> list[str]:
    return [path.name for path in root.rglob("*.zarrasync-partial")]


@pytest.mark.processes
@needs_posix
def test_validate_removes_files_of_killed_writers(tmp_path: Path):
    sync.create_array(tmp_path, data=np.zeros(4))
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        assert len(_partial(tmp_path)) == 1
        report = sync.validate(tmp_path, repair=True)
        assert "if its writer was interrupted" in str(report)
        assert len(_partial(tmp_path)) == 1  # the writer is alive
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert "--repair" in str(sync.validate(tmp_path))
    assert len(_partial(tmp_path)) == 1  # nothing is changed without the argument
    report = sync.validate(tmp_path, repair=True)
    assert report.ok
    assert "it was removed" in str(report)
    assert _partial(tmp_path) == []
    assert str(sync.validate(tmp_path, repair=True)).endswith("no problems found")
    assert (sync.open_array(tmp_path)[...] == 0).all()


def test_the_command_removes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sync.create_array(tmp_path, data=np.zeros(4))
    killed = temporary_path("0").replace(f".{os.getpid():x}.", ".7ffffff0.")
    for name in (killed, "0.ffffffff.1.1-0.zarrasync-partial"):
        (tmp_path / "c" / name).write_bytes(b"x")
    assert main(["validate", str(tmp_path), "--repair"]) == 0
    assert capsys.readouterr().out.count("it was removed") == 1
    assert _partial(tmp_path) == ["0.ffffffff.1.1-0.zarrasync-partial"]  # of another machine, and new


def test_files_of_other_machines_are_abandoned_after_a_day(tmp_path: Path):
    path = tmp_path / "x.ffffffff.1.1-0.zarrasync-partial"
    path.write_bytes(b"x")
    assert not is_abandoned(str(path))
    note = tmp_path / "zarr.json.pending.zarrasync-partial"
    note.write_bytes(b"[4]")
    with clock.replaced(tomorrow := ShiftedClock()):
        tomorrow.ahead = 86_000
        assert not is_abandoned(str(path))
        tomorrow.ahead = 86_401
        assert is_abandoned(str(path))
        assert not is_abandoned(str(note))  # the next append reads it
        assert not is_abandoned(temporary_path(str(tmp_path / "own")))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the start time of a process")
def test_the_number_of_a_process_may_be_used_again(tmp_path: Path):
    own = temporary_path(str(tmp_path / "x"))
    head, pid, start = own.removesuffix(".zarrasync-partial").rpartition("-")[0].rsplit(".", 2)
    assert int(pid, 16) == os.getpid()
    assert not is_abandoned(own)
    assert is_abandoned(f"{head}.{pid}.{int(start, 16) - 1:x}-0.zarrasync-partial")
    assert is_abandoned(f"{head}.7ffffff0.1-0.zarrasync-partial")


@needs_posix
async def test_directories_of_killed_erasures_are_removed(tmp_path: Path):
    store = LocalStore(tmp_path)
    await store.set("group/a/x", b"1")
    name = temporary_path("b").replace(f".{os.getpid():x}.", ".7ffffff0.")
    (tmp_path / "group/a").rename(tmp_path / "group" / name)
    assert store.directories.remove_unfinished("group/") == [f"group/{name}"]
    assert list(tmp_path.rglob("*")) == [tmp_path / "group"]
