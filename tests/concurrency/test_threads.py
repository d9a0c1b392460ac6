"""Many threads that use the same arrays and the same state of the process at the same time.

A Python without the interpreter's lock runs them in parallel, which is what most of these tests are about.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import subprocess
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support import ROOT
from tests.support.covering import covering
from zarrasync import stores, sync
from zarrasync._concurrency import clock
from zarrasync._concurrency.backoff import RetryCounts
from zarrasync._concurrency.cancel import CancelFlag
from zarrasync._concurrency.interrupts import Interruptible
from zarrasync.codecs import decompression

THREADS = 8


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let an interpreter with a lock switch threads often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(function: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Return the results of a function on threads that start at the same moment."""
    barrier = threading.Barrier(count)

    def work(number: int) -> Any:
        barrier.wait()
        return function(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


# ------------------------------------------------------------------ state of the process


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has the lock")
def test_the_package_and_its_codecs_leave_the_lock_off(tmp_path):
    """Python switches the lock on when it imports an extension module that needs it."""
    code = f"""
import sys
import numpy as np
from zarrasync import sync

for name in ("zstd", "gzip", "blosc"):
    for native in ("auto", "off"):
        data = np.arange(1000)
        sync.create_array({{}}, data=data, chunks=10, compressors=name)[3]
        sync.create_array("{tmp_path}", path=name + native, data=data, compressors=name, config={{"native": native}})[3]
print(sys._is_gil_enabled())
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_threads_that_share_a_flag_get_the_same_byte(monkeypatch):
    """A thread that makes the byte a second time would free the one that another thread has given to compiled code."""
    barrier, make = threading.Barrier(2), ctypes.c_uint8

    def make_slowly() -> ctypes.c_uint8:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(0.5)  # for a second thread, which must not come
        return make()

    monkeypatch.setattr("zarrasync._concurrency.cancel.ctypes.c_uint8", make_slowly)
    parent = CancelFlag()
    flags = [CancelFlag(parent) for _ in range(2)]
    assert len(set(at_once(lambda number: flags[number].address, 2))) == 1


def test_a_cancellation_while_the_byte_is_made_is_not_lost(monkeypatch):
    flag, make = CancelFlag(), ctypes.c_uint8

    def make_late() -> ctypes.c_uint8:
        flag.cancel()  # as another thread does
        return make()

    monkeypatch.setattr("zarrasync._concurrency.cancel.ctypes.c_uint8", make_late)
    assert ctypes.c_char.from_address(flag.address).value == b"\1"


def test_ctrl_c_reaches_compiled_code():
    call = Interruptible()
    try:
        address = CancelFlag(call).address
        call.cancel()
        assert ctypes.c_char.from_address(address).value == b"\1"
    finally:
        call.end()


def test_threads_of_pools_have_no_variables_of_the_calls_they_are_started_for(monkeypatch):
    """On Python 3.14 without the lock, a thread inherits the context in which it is started, and so a cancelled call's flag."""
    start = threading.Thread.start

    def start_in_a_copy(thread: threading.Thread) -> None:
        thread.run = partial(copy_context().run, thread.run)  # type: ignore[method-assign]  # for this thread only
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_in_a_copy)
    variable = ContextVar[str]("variable", default="empty")
    token = variable.set("of the call")
    try:
        with clock.current().executor("test", 1) as pool:
            assert pool.submit(variable.get).result() == "empty"
        seen = list[str]()
        clock.current().start_thread("test", lambda: seen.append(variable.get())).join()
        assert seen == ["empty"]
    finally:
        variable.reset(token)


def test_conflicts_in_several_threads_are_all_counted(quick_switches):
    with RetryCounts() as counts:
        at_once(lambda _: [RetryCounts.count("conflicts") for _ in range(30_000)])
    assert counts.conflicts == THREADS * 30_000


def test_imports_of_numcodecs_in_two_threads_keep_the_filters_of_warnings(monkeypatch):
    """The thread that changes the filters first would restore them first, and the other one would restore its changes."""
    entered = {"numcodecs.first": threading.Event(), "numcodecs.second": threading.Event()}

    def slow_import(name: str) -> None:
        entered[name].set()
        if name == "numcodecs.first":
            entered["numcodecs.second"].wait(0.5)  # which must not come yet
        else:
            left.wait(5)

    def load(number: int) -> None:
        if number:
            entered["numcodecs.first"].wait(5)
        decompression.numcodecs_module.__wrapped__(["first", "second"][number])
        left.set()

    left = threading.Event()
    monkeypatch.setattr(decompression, "import_module", slow_import)
    before = warnings.filters
    at_once(load, 2)
    assert warnings.filters is before


# ------------------------------------------------------------------ arrays

LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks": {"chunks": (8, 8), "compressors": "auto"},
    "raw": {"chunks": (8, 8), "compressors": None},
    "blosc": {"chunks": (8, 8), "compressors": "blosc"},
    "gzip": {"chunks": (8, 8), "compressors": "gzip"},
    "shards": {"chunks": (4, 8), "shards": (16, 16), "compressors": "auto"},
    "v2": {"chunks": (8, 8), "zarr_format": 2, "compressors": {"id": "lz4"}},
}


@pytest.mark.parametrize(
    ("layout", "kind", "native"),
    covering(list(LAYOUTS), ["local", "memory", "caching"], ["auto", "off"], strength=2)[: 3 * len(LAYOUTS)],
)
def test_threads_write_and_read_boxes_of_one_array(tmp_path, kind, layout, native):
    """Each thread owns some rows, which share chunks with rows of others, and reads everything."""
    rows, size = 6, (THREADS * 6, 44)
    store = _store(kind, tmp_path)
    a = sync.create_array(store, shape=size, dtype="i4", config={"native": native}, **LAYOUTS[layout])
    final = np.zeros(size, "i4")

    def work(number: int) -> None:
        rng, own = random.Random(number), slice(number * rows, (number + 1) * rows)
        mine = final[own]
        handle = a if number % 2 else sync.open_array(store, mode="r+", config={"native": native})
        for turn in range(6):
            top, left = rng.randrange(rows), rng.randrange(size[1])
            box = slice(top, rng.randint(top + 1, rows)), slice(left, rng.randint(left + 1, size[1]))
            mine[box] = number * 100 + turn
            handle[own.start + box[0].start : own.start + box[0].stop, box[1]] = number * 100 + turn
            np.testing.assert_array_equal(handle[own], mine)
            index = rng.sample(range(rows), 3)
            np.testing.assert_array_equal(handle.oindex[[own.start + i for i in index], ::3], mine[index, ::3])
            everything = handle[...]
            owners = everything // 100
            assert ((everything == 0) | (owners == np.arange(size[0])[:, None] // rows)).all()

    at_once(work)
    np.testing.assert_array_equal(a[...], final)


def test_threads_create_open_and_append_to_arrays_of_one_group(tmp_path):
    group = sync.create_group(tmp_path)
    log = group.create_array("log", shape=(0,), dtype="i4", chunks=(5,))

    def work(number: int) -> None:
        for turn in range(4):
            values = np.full((20, 20), 10 * number + turn)
            group.create_array(f"a{number}/{turn}", data=values, chunks=(7, 7), attributes={"turn": turn})
            log.append(np.full(3, number, "i4"))
            again = sync.open_group(tmp_path)[f"a{number}/{turn}"]
            assert again.attrs["turn"] == turn
            np.testing.assert_array_equal(again[...], values)

    at_once(work)
    assert sorted(path for path, node in group.members(None) if hasattr(node, "shape")) == sorted(
        ["log", *(f"a{number}/{turn}" for number in range(THREADS) for turn in range(4))]
    )
    appended = sync.open_array(tmp_path, path="log")[...]
    assert sorted(appended.tolist()) == sorted(list(range(THREADS)) * 12)


def test_the_first_uses_of_a_fresh_array_may_come_from_many_threads(tmp_path):
    """Chunk grids, bound codecs and descriptions for compiled code are made when they are first needed."""
    data = np.arange(40 * 30).reshape(40, 30)
    for turn, options in enumerate([*LAYOUTS.values()] * 3):
        sync.create_array(tmp_path / str(turn), data=data, **options)
        with za.config.set(threads=1 + turn % 3):
            a = sync.open_array(tmp_path / str(turn))

        def read(number: int, a: sync.Array = a) -> tuple[Any, Any, Any]:
            return a[number], a[...], a[number:30:7, 3]

        for values in at_once(read):
            np.testing.assert_array_equal(values[1], data)


def _store(kind: str, folder: Path) -> Any:
    if kind == "memory":
        return stores.MemoryStore()
    local = stores.LocalStore(folder)
    return stores.CachingStore(local) if kind == "caching" else local
