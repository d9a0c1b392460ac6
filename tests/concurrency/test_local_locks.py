"""Locks of local files belong to the place of a file, whatever path leads there, and end with their process."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import zarrasync as za
from tests.support.processes import PROCESSES, together
from zarrasync import sync
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores import FsspecStore, LocalStore, Request
from zarrasync.stores.local_locks import FileLocks, Place, describe_holder, lock_position, place_of

needs_processes = pytest.mark.skipif(not LocalStore.exclusive_locks, reason="locks exclude threads only")


@contextmanager
def _bound(source: Path, target: Path) -> Iterator[None]:
    """Mount a directory at another one."""
    target.mkdir()
    mount = ["mount", "--bind", str(source), str(target)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the permission to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


@pytest.fixture(params=["symlinked root", "symlink inside the root", "bind mount"])
def roots(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """Two paths of directories that contain the same group."""
    real, view = tmp_path / "real", tmp_path / "view"
    (real / "group").mkdir(parents=True)
    if request.param == "bind mount":
        with _bound(real, view):
            yield [str(real), str(view)]
        return
    if request.param == "symlinked root":
        view.symlink_to(real)
    else:
        view.mkdir()
        (view / "group").symlink_to(real / "group")
    yield [str(real), str(view)]


@pytest.mark.processes
@needs_processes
def test_processes_that_use_different_paths_lose_no_update(roots: list[str]):
    """The chunks' directories do not exist when they begin."""
    writes = 25
    sync.create_array(roots[0], path="group/rows", shape=(0, 4), dtype="i8", chunks=(64, 4))
    sync.create_array(roots[0], path="group/parts", shape=(writes, PROCESSES), dtype="i4", chunks=(writes, 8))
    together(
        """
        rows = sync.open_array(url, path="group/rows", mode="r+")
        parts = sync.open_array(url, path="group/parts", mode="r+")
        for turn in range(writes):
            parts[turn, number] = number + 1
            rows.append(np.full((1, 4), number * 1000 + turn))
            rows.attrs[f"{number}-{turn}"] = turn
        """,
        roots,
        {},
        writes,
    )
    rows, parts = (sync.open_array(roots[0], path=f"group/{name}") for name in ("rows", "parts"))
    assert sorted(rows[:, 0].tolist()) == [n * 1000 + turn for n in range(PROCESSES) for turn in range(writes)]
    assert len(rows.attrs) == PROCESSES * writes
    np.testing.assert_array_equal(parts[...], np.broadcast_to(np.arange(PROCESSES) + 1, (writes, PROCESSES)))


@pytest.mark.processes
def test_threads_that_use_different_paths_lose_no_update(roots: list[str]):
    sync.create_array(roots[0], path="group/a", shape=(200,), dtype="i4", chunks=(200,))

    def write(number: int) -> None:
        sync.open_array(roots[number % 2], path="group/a", mode="r+")[number] = number + 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(200)))
    np.testing.assert_array_equal(sync.open_array(roots[1], path="group/a")[...], np.arange(200) + 1)


def test_all_stores_of_local_files_share_their_locks(tmp_path: Path):
    zarr_storage = pytest.importorskip("zarr.storage")
    (tmp_path / "view").symlink_to(tmp_path)
    stores = [
        LocalStore(tmp_path),
        za.stores.PrefixStore(LocalStore(tmp_path.parent), f"{tmp_path.name}/"),
        FsspecStore.from_url(f"file://{tmp_path}/view"),
        za.stores.resolve(zarr_storage.LocalStore(tmp_path)),
    ]
    identities = {tuple(store.lock_identities(["c/0", "c/1", "x"])) for store in stores}
    assert len(identities) == 1


def test_the_place_of_a_file_ignores_case_and_unicode_forms(tmp_path: Path):
    """A filesystem may ignore them, and on others a shared lock does no harm."""
    assert place_of(f"{tmp_path}/A") == place_of(f"{tmp_path}/a")
    assert place_of(f"{tmp_path}/\u00c9") == place_of(f"{tmp_path}/e\u0301")
    assert place_of(f"{tmp_path}/missing/b/c") == place_of(f"{tmp_path}/./missing/b/c")
    assert len({place_of(f"{tmp_path}/{name}") for name in ("a", "b", "missing/a", "missing/b")}) == 4


HOLD = """
import asyncio, sys
from zarrasync.stores import LocalStore

async def hold():
    async with LocalStore(sys.argv[1]).lock(sys.argv[2]):
        print("held", flush=True)
        sys.stdin.readline()

asyncio.run(hold())
"""


@contextmanager
def _held_elsewhere(root: Path, key: str) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold the lock of a value."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, root, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.processes
@needs_processes
async def test_a_change_waits_for_the_lock_of_the_place_where_the_value_is_now(tmp_path: Path):
    """The directory is replaced while the lock of the former one is held."""
    with za.config.set(total_timeout=0.3):
        store = LocalStore(tmp_path)
    await store.set("d/x", b"old")
    async with store.lock("d/x"):
        (tmp_path / "d").rename(tmp_path / "former")
        await store.set("d/x", b"new")
        (value,) = await store.fetch([Request("d/x")], versions=True)
        assert value is not None
        with _held_elsewhere(tmp_path, "d/x") as holder:
            for change in (
                lambda: store.put("d/x", b"mine", if_version=value.version),
                lambda: store.erase("d/x", if_version=value.version),
            ):
                with pytest.raises(WriteConflictError, match=rf"process {holder.pid} .* 'd/x'|process {holder.pid} "):
                    await change()
        await store.put("d/x", b"mine", if_version=value.version)
    assert (tmp_path / "d/x").read_bytes() == b"mine"


@pytest.mark.processes
@needs_processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows who holds a lock")
def test_the_error_names_the_process_that_holds_the_lock(tmp_path: Path):
    a = sync.create_array(tmp_path, data=np.arange(4), config={"total_timeout": 0.3})
    with _held_elsewhere(tmp_path, "zarr.json") as holder:
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(WriteConflictError, match=rf"process {holder.pid} \(python.*may be suspended"):
            a.attrs["x"] = 1
    a.attrs["x"] = 2  # the holder was killed


FORK = """
import asyncio, os, signal, sys
from zarrasync.stores import LocalStore

async def hold():
    async with LocalStore(sys.argv[1]).lock("zarr.json"):
        if os.fork() == 0:
            print("child", flush=True)
            sys.stdin.readline()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(hold())
"""


@pytest.mark.processes
@needs_processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_locks_of_its_killed_parent(tmp_path: Path):
    a = sync.create_array(tmp_path, data=np.arange(4), config={"total_timeout": 5})
    with subprocess.Popen(
        [sys.executable, "-c", FORK, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == "child\n"
        assert parent.wait(10) == -signal.SIGKILL
        a.attrs["x"] = 1
        parent.stdin.write("\n")


@pytest.mark.processes
@needs_processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_under_a_lock_can_leave_it_and_lock_again(tmp_path: Path):
    a = sync.create_array(tmp_path, data=np.arange(4))
    script = """
    import os, sys
    from zarrasync._concurrency.drive import drive
    from zarrasync.stores import LocalStore

    async def change(store):
        async with store.lock("zarr.json"):
            return os.fork()

    async def change_again(store):
        async with store.lock("zarr.json"):
            await store.set("x", b"1")

    store = LocalStore(sys.argv[1])
    if child := drive(change(store)):
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    else:
        drive(change_again(store))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), tmp_path], check=True, timeout=30)
    assert (tmp_path / "x").read_bytes() == b"1"
    a.attrs["x"] = 1


def test_positions_are_hashes():
    """Neighbouring devices and inodes have different positions."""
    places = [
        (device, inode, name) for device in range(40, 60) for inode in range(100, 120) for name in ("0", "1", "c.0")
    ]
    assert len(set(map(lock_position, places))) == len(places)
    assert all(0 <= lock_position(place) < 1 << 62 for place in places)


@pytest.mark.parametrize("native", ["auto", "off"])
@pytest.mark.parametrize("key", [np.s_[1:3, 1:3], np.s_[:4, :4], np.s_[:]], ids=["part", "chunk", "all"])
@pytest.mark.parametrize("many", [False, True])
async def test_writes_under_a_lock_of_the_caller(tmp_path: Path, native: Literal["auto", "off"], key: Any, many: bool):
    """They do not wait for it, and do not release it."""
    array = await za.create_array(tmp_path, data=np.ones((8, 8), "i4"), chunks=(4, 4), config=za.Config(native=native))
    store = LocalStore(tmp_path)
    position = lock_position(place_of(f"{tmp_path}/c/0/0"))
    async with store.locks(["c/0/0", "c/0/1"]) if many else store.lock("c/0/0"):
        await asyncio.wait_for(array.view[key].write(7), 60)
        (value,) = await store.fetch([Request("c/0/0")], versions=True)
        assert value is not None
        await asyncio.wait_for(store.put("c/0/0", bytes(value.data), if_version=value.version), 60)
        if LocalStore.exclusive_locks:
            assert describe_holder(position) != "another process"
    assert (await array.view[key].read() == 7).all()
    assert describe_holder(position) == "another process"


def test_stores_with_their_own_locks(tmp_path: Path):
    """Compiled code bypasses no method of a derived class."""

    class Locked(LocalStore):
        entered = 0

        def lock(self, key: str) -> FileLocks:
            Locked.entered += 1
            return super().lock(key)

    array = sync.create_array(Locked(tmp_path), data=np.ones((8, 8), "i4"), chunks=(4, 4))
    Locked.entered = 0
    array[1:3, 3:6] = 2
    assert Locked.entered >= 2


@pytest.mark.processes
@needs_processes
@pytest.mark.parametrize("native", ["auto", "off"])
def test_a_lock_in_a_directory_that_does_not_exist(tmp_path: Path, native: Literal["auto", "off"]):
    """A store of fsspec does not compare versions, so its lock must hold also for the first value of a directory."""
    array = sync.create_array(
        tmp_path, shape=(8, 8), chunks=(4, 4), dtype="i4", config={"native": native, "total_timeout": 0.3}
    )
    code = """
    import asyncio, sys
    from zarrasync.stores import FsspecStore
    async def hold():
        async with FsspecStore.from_url(f"file://{sys.argv[1]}").lock("c/0/1"):
            print("locked", flush=True)
            sys.stdin.readline()
    asyncio.run(hold())
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        for part in (np.s_[1:3, 5:7], np.s_[:4, 4:], np.s_[:4]):
            with pytest.raises(WriteConflictError, match="has been writing"):
                array[part] = 1
        holder.communicate("\n")
    array[1:3, 5:7] = 1
    assert int(array[:, 4:].sum()) == 4


def test_a_system_without_more_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error has its type, and nothing stays locked."""
    array = sync.create_array(tmp_path, data=np.ones((8, 8), "i4"), chunks=(4, 4), config={"native": "off"})

    def refuse(handle: int, position: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr("zarrasync.stores.local_locks.lock_byte", refuse)
        for part in (np.s_[1:3, 1:3], np.s_[:4, :4], np.s_[:]):
            with pytest.raises(StoreError, match=f"could not lock .*{os.strerror(errno.ENOLCK)}"):
                array[part] = 2
    array[...] = 2
    assert (array[...] == 2).all()


async def test_a_directory_that_cannot_be_examined_after_waiting():
    """Nothing stays locked."""
    place, calls = (1, 2, "x"), 0

    def find() -> list[Place]:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreError("the directory is gone", key="x")
        return [place]

    async def enter(find: Callable[[], list[Place]]) -> None:
        async with FileLocks(["x"], find, 0):
            pass

    async with FileLocks(["x"], lambda: [place], 0):
        task = asyncio.create_task(enter(find), context=Context())  # which does not hold the lock
        while not calls:  # afterwards it waits for the lock
            await asyncio.sleep(0)
    with pytest.raises(StoreError, match="gone"):
        await task
    await asyncio.wait_for(enter(lambda: [place]), 60)
