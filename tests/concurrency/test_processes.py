"""Several processes that write the same chunks, append to one array or change one document lose no data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.support.processes import PREAMBLE, PROCESSES, together
from tests.support.strict_s3 import BUCKET, serve_s3
from zarrasync import stores, sync
from zarrasync.errors import NodeExistsError, WriteConflictError

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def strict_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as options:
        yield f"s3://{BUCKET}", options


@pytest.fixture(params=["files", "s3", "s3fs", "google"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any], int]:
    """A URL, its storage options, and the number of writes for each process."""
    if request.param == "files":
        return str(tmp_path / "x"), {}, 60
    if request.param == "google":
        return "gs://bucket/x", request.getfixturevalue("google").options(), 8
    url, options = request.getfixturevalue("strict_s3")
    more = {"backend": "fsspec"} if request.param == "s3fs" else {}
    return f"{url}/{tmp_path.name}", {**options, **more}, 8


def options_of(options: dict[str, Any]) -> dict[str, Any]:
    return {"storage_options": options} if options else {}


@pytest.mark.parametrize("layout", [{"chunks": (1000,)}, {"chunks": (8,), "shards": (1000,)}])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_parts_of_chunks(place: tuple[str, dict[str, Any], int], layout: dict[str, Any], zarr_format: int):
    url, options, writes = place
    if zarr_format == 2 and "shards" in layout:
        pytest.skip("format 2 has no shards")
    size = PROCESSES * writes
    sync.create_array(url, shape=(size,), dtype="i4", zarr_format=zarr_format, **layout, **options_of(options))
    together(
        """
        array = sync.open_array(url, mode="r+", **options)
        for turn in range(writes):
            array[turn * count + number] = turn * count + number + 1
        """,
        url,
        options,
        writes,
    )
    np.testing.assert_array_equal(sync.open_array(url, **options_of(options))[...], np.arange(1, size + 1))


def test_local_files_through_fsspec(tmp_path: Path):
    """They use the same locks as local files."""
    store = stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path))
    assert not store.conditional
    array = sync.create_array(store, path="parts", shape=(PROCESSES * 60,), chunks=(1000,), dtype="i4")
    rows = sync.create_array(store, path="rows", shape=(0,), chunks=(7,), dtype="i4")
    together(
        """
        import fsspec
        from zarrasync import stores
        store = stores.FsspecStore(fsspec.filesystem("file"), url)
        array, rows = (sync.open_array(store, path=path, mode="r+") for path in ("parts", "rows"))
        for turn in range(writes):
            array[turn * count + number] = turn * count + number + 1
            rows.append(np.array([turn * count + number]))
        """,
        str(tmp_path),
        {},
        60,
    )
    np.testing.assert_array_equal(array[...], np.arange(1, PROCESSES * 60 + 1))
    rows.refresh()
    np.testing.assert_array_equal(np.sort(rows[...]), np.arange(PROCESSES * 60))


def test_whole_chunks_of_local_files_through_fsspec(tmp_path: Path):
    """Replacing whole chunks waits for a process that changes part of one of them."""
    script = """
    import fsspec
    from zarrasync import stores
    array = sync.open_array(stores.FsspecStore(fsspec.filesystem("file"), url), mode="r+")
    for turn in range(writes):
        if number % 2:
            array[number] = turn
        else:
            array[...] = np.repeat(turn, 40)
    """
    array = sync.create_array(
        stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path)),
        shape=(40,),
        chunks=(4,),
        dtype="i4",
        compressors=None,
    )
    together(script, str(tmp_path), {}, 300)
    last = array[...]
    assert (np.delete(last, [1, 3]) == 299).all()


def test_chunks_that_become_empty(place: tuple[str, dict[str, Any], int]):
    """Clearing a chunk does not erase the values that another process has just written."""
    url, options, writes = place
    sync.create_array(url, shape=(PROCESSES,), chunks=(PROCESSES,), dtype="i4", **options_of(options))
    together(
        """
        array = sync.open_array(url, mode="r+", **options)
        for turn in range(writes):
            array[number] = 0
            array[number] = turn + 1
            assert array[number] == turn + 1
        """,
        url,
        options,
        writes,
    )
    np.testing.assert_array_equal(sync.open_array(url, **options_of(options))[...], np.full(PROCESSES, writes))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_appenders(place: tuple[str, dict[str, Any], int], zarr_format: int):
    url, options, writes = place
    sync.create_array(url, shape=(0, 3), chunks=(7, 3), dtype="i4", zarr_format=zarr_format, **options_of(options))
    together(
        """
        array = sync.open_array(url, mode="r+", **options)
        for turn in range(writes):
            rows = turn % 3 + 1
            array.append(np.full((rows, 3), number * writes + turn + 1, "i4"))
        """,
        url,
        options,
        writes,
    )
    found = sync.open_array(url, **options_of(options))[...]
    assert (found == found[:, :1]).all()
    expected = [n * writes + turn + 1 for n in range(PROCESSES) for turn in range(writes) for _ in range(turn % 3 + 1)]
    assert sorted(found[:, 0].tolist()) == expected


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_attributes(place: tuple[str, dict[str, Any], int], zarr_format: int):
    url, options, writes = place
    sync.create_group(url, zarr_format=zarr_format, **options_of(options))
    together(
        """
        group = sync.open_group(url, mode="r+", **options)
        for turn in range(writes):
            group.attrs[f"{number}-{turn}"] = turn
        """,
        url,
        options,
        writes,
    )
    expected = {f"{number}-{turn}": turn for number in range(PROCESSES) for turn in range(writes)}
    assert dict(sync.open_group(url, **options_of(options)).attrs) == expected


def test_one_of_many_creates(place: tuple[str, dict[str, Any], int]):
    """Of several concurrent creators one succeeds, and the others get an error."""
    url, options, _ = place
    together(
        """
        from zarrasync.errors import NodeExistsError
        won = 0
        for turn in range(writes):
            try:
                sync.create_array(f"{url}/{turn}", shape=(1,), dtype="i4", attributes={"by": number}, zarr_format=3, **options)
                won += 1
            except NodeExistsError:
                pass
        sync.create_array(f"{url}/won/{number}", shape=(won,), dtype="i4", **options)
        """,
        url,
        options,
        5,
    )
    won = [sync.open_array(f"{url}/won/{number}", **options_of(options)).shape[0] for number in range(PROCESSES)]
    assert sum(won) == 5
    with pytest.raises(NodeExistsError):
        sync.create_array(f"{url}/0", shape=(1,), dtype="i4", **options_of(options))


def test_a_writer_that_is_killed_leaves_no_lock_and_no_torn_value(tmp_path: Path):
    """After SIGKILL during writes all values are whole, and other processes continue."""
    url = str(tmp_path / "x")
    sync.create_array(url, shape=(1000,), chunks=(1000,), dtype="i4")
    code = PREAMBLE + "array = sync.open_array(url, mode='r+')\nwhile True: array[1:999] = np.random.randint(1, 9)\n"
    array = sync.open_array(url, mode="r+")
    for turn in range(5):
        victim = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps([url, None, 0, 1, 1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert victim.stdout is not None
        assert victim.stdin is not None
        victim.stdout.readline()
        before = os.stat(tmp_path / "x" / "c" / "0").st_ino if turn else None
        victim.stdin.write("\n")
        victim.stdin.flush()
        end = time.monotonic() + 20
        while not (tmp_path / "x" / "c" / "0").exists() or os.stat(tmp_path / "x" / "c" / "0").st_ino == before:
            assert time.monotonic() < end
            time.sleep(0.001)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        values = array[1:999]
        assert (values == values[0]).all()
        array[0] = turn + 1
        assert array[0] == turn + 1


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there are no signals that stop a process")
@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "c/0/1"),
        ({"shards": (8, 4)}, "c/0/1"),
        ({"zarr_format": 2}, "0.1"),
        ({"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}}, "0/1"),
    ],
)
@pytest.mark.parametrize("native", ["auto", "off"])
def test_waiting_for_a_stopped_writer_raises(tmp_path: Path, native: str, options: dict[str, Any], key: str):
    """The kernel and Python lock the same bytes."""
    settings = {"total_timeout": 0.3, "native": native}
    array = sync.create_array(tmp_path, shape=(8, 8), chunks=(4, 4), dtype="i4", config=settings, **options)
    array[...] = 1
    code = """
    import asyncio, os, signal, sys
    from zarrasync import stores
    async def hold():
        async with stores.LocalStore(sys.argv[1]).lock(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGSTOP)
    asyncio.run(hold())
    """
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(tmp_path), key])
    try:
        assert os.WIFSTOPPED(os.waitpid(holder.pid, os.WUNTRACED)[1])
        for part, value in (
            ((slice(1, 3), slice(3, 6)), 2),
            (..., 2),
            (..., 0),
        ):  # parts, whole chunks, and erased ones
            with pytest.raises(WriteConflictError, match=rf"process .* has been writing '.*{key}' for more than 0.3 s"):
                array[part] = value
        array[1:3, :3] = 3  # another chunk
    finally:
        holder.send_signal(signal.SIGCONT)
        holder.wait()
    array[1:3, 3:6] = 2
    assert array[2].tolist() == [3, 3, 3, 2, 2, 2, 1, 1]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("kind", ["http", "local"])
def test_threads_that_go_on_when_the_main_one_has_ended(way: str, kind: str, tmp_path: Path, http):
    """Python's thread pools accept no jobs after the main thread has ended."""
    url, root = http
    sync.create_array(root / "a", data=np.arange(1 << 16), chunks=1 << 10)
    where = f"{url}/a" if kind == "http" else str(root / "a")
    script = f"""
import asyncio, threading
import zarrasync as za
from zarrasync import sync

async def read():
    return (await (await za.open_array({where!r}, zarr_format=3))[...]).sum()

def work():
    threading.main_thread().join()
    print(sync.open_array({where!r}, zarr_format=3)[...].sum() if {way == "sync"} else asyncio.run(read()))

threading.Thread(target=work).start()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    if sys.version_info[:2] == (3, 12) and "can't create new thread" in done.stderr:
        pytest.skip("Python 3.12 starts no thread once the main one has ended")
    assert (done.stdout.strip(), done.stderr) == (str(np.arange(1 << 16).sum()), "")
