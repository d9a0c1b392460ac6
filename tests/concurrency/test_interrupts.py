"""Ctrl-C and other signals whose handlers raise: nothing is lost, left behind or blocked, wherever they arrive."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.shifted_clock import ShiftedClock
from zarrasync import sync
from zarrasync._concurrency import clock
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.locks import KeyLock
from zarrasync.errors import StoreError
from zarrasync.stores import LocalStore, Request, Value, WrapperStore, local, local_files

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")

STORM = """
import gc, json, os, random, signal, sys, threading, time
import numpy as np
from zarrasync import sync
from zarrasync._concurrency import semaphores, locks
from zarrasync.errors import ZarrError

url, options, seed, count, longest = json.loads(sys.argv[1])
rng = random.Random(seed)
options = {"storage_options": options, "config": {"threads": 3}}
armed, fired, caught = False, 0, 0

def interrupt(number, frame):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
plain = sync.create_array(url, path="plain", shape=(100, 50), dtype="f8", chunks=(16, 50), **options)
plain[...] = 5.0
sharded = sync.create_array(url, path="sharded", shape=(64, 64), dtype="i4", chunks=(8, 8), shards=(32, 32), **options)
sharded[...] = 5
log = sync.create_array(url, path="log", shape=(0, 4), dtype="i4", chunks=(16, 4), **options)

def whole_write(): plain[0:90] = np.full((90, 50), 6.0)
def partial_write(): plain[3:40] = np.full((37, 50), 5.0)
def read(): assert np.isin(plain[...], (5.0, 6.0)).all()
def shard_write(): sharded[5:40, 3:50] = rng.choice([5, 6])
def shard_read(): assert np.isin(sharded[2:50, 1:60], (5, 6)).all()
def append(): log.append(np.full((3, 4), 7, "i4"))
def attribute(): log.attrs["x"] = rng.random()
def create():
    name = f"new/{rng.randrange(10)}"
    a = sync.create_array(url, path=name, shape=(40,), dtype="i4", chunks=(10,), overwrite=True, **options)
    a[...] = np.arange(40)
def walk(): sync.open_group(url, path="", **options).members(None)
tasks = [whole_write, partial_write, read, shard_write, shard_read, append, attribute, create, walk]

def state():
    descriptors = sorted(os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
                         for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
    held = sum("lock:" in open(f"/proc/self/fdinfo/{name}").read() for name in os.listdir("/proc/self/fdinfo")
               if os.path.exists(f"/proc/self/fdinfo/{name}"))
    gc.collect()
    every = list(semaphores._semaphores)
    taken = [(item.capacity, item.free) for item in every if item.free != item.capacity]
    return descriptors, held, len(locks._holders), taken

def storm():
    global fired
    pause = random.Random(seed + 1)
    while fired < count:
        time.sleep(pause.uniform(0.0005, longest))
        fired += 1
        os.kill(os.getpid(), signal.SIGINT)

for task in tasks:
    task()
before = state()
thread = threading.Thread(target=storm)
thread.start()
while thread.is_alive():
    try:
        armed = True
        rng.choice(tasks)()
        armed = False
    except KeyboardInterrupt:
        caught += 1
    except ZarrError as error:  # an interrupted create leaves no array, or one without its values
        if "new/" not in str(error):
            raise
for task in tasks:
    task()
rows = log[...]
assert (rows == 7).all() and len(rows) % 3 == 0, rows
after = state()
print(json.dumps([fired, caught, before, after]), flush=True)
"""


def _storm(url: str, options: dict[str, Any], seed: int, count: int, longest: float) -> tuple[list[Any], float]:
    """Run the storm; return its report, and the seconds that the process needed to end after it."""
    arguments = json.dumps([url, options, seed, count, longest])
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", STORM, arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        report = process.stdout.readline()
        start = time.monotonic()
        assert process.wait(30) == 0
        return json.loads(report), time.monotonic() - start


def _check(report: list[Any], seconds: float, count: int) -> None:
    fired, caught, before, after = report
    sys.stdout.write(f"{fired} interrupts, {caught} caught; before {before}; after {after}; exit {seconds:.2f} s\n")
    assert fired == count
    assert caught > count / 4  # several may arrive at once
    assert len(after[0]) <= len(before[0]) + 2, (before[0], after[0])  # connections are kept open
    assert after[1:] == [0, 0, []]
    assert seconds < 2


@pytest.mark.processes
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 60), *(pytest.param(seed, 200, marks=pytest.mark.slow) for seed in range(2, 8))]
)
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_interrupts_of_work_on_files(tmp_path: Path, seed: int, count: int):
    report, seconds = _storm(str(tmp_path / "x.zarr"), {}, seed, count, 0.02)
    _check(report, seconds, count)
    assert report[2][0] == report[3][0]
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".zarrasync-partial")] == []


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 40), *(pytest.param(seed, 160, marks=pytest.mark.slow) for seed in range(2, 4))]
)
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_interrupts_of_work_on_s3(s3: tuple[str, dict[str, Any]], seed: int, count: int):
    url, options = s3
    report, seconds = _storm(f"{url}/x.zarr", options, seed, count, 0.2)
    _check(report, seconds, count)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the handlers of signals that a test sets."""
    numbers = (signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class _Signalling(WrapperStore):
    """A store that sends this process a signal when a chunk is read or written."""

    number: int = signal.SIGINT
    calls = 0

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> list[Value | None]:
        self._send(requests[0].key)
        return await super().fetch(requests, versions=versions)

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        self._send(key)
        return await super().put(key, data, if_version=if_version)

    def _send(self, key: str) -> None:
        if "c/" in key:
            self.calls += 1
            signal.raise_signal(self.number)


def _array(tmp_path: Path, number: int) -> tuple[_Signalling, sync.Array]:
    store = _Signalling(LocalStore(tmp_path))
    a = sync.create_array(store, shape=(40,), dtype="i4", chunks=(10,), config={"threads": 1, "batch_bytes": 1})
    store.number = number
    return store, a


@pytest.mark.usefixtures("handlers")
def test_an_exception_of_a_handler_is_raised_when_the_work_has_stopped(tmp_path: Path):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store, a = _array(tmp_path, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        a[...] = 1
    assert caught.value.__suppress_context__
    assert store.calls == 1  # the other chunks were not begun
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # as asyncio.run expects
    assert len(list((tmp_path / "c").iterdir())) == 1
    with pytest.raises(KeyboardInterrupt):
        a[0:3]
    assert asyncio.run(_answer()) == 42


async def _answer() -> int:
    return 42


@pytest.mark.usefixtures("handlers")
def test_a_handler_that_returns_does_not_disturb_the_work(tmp_path: Path):
    received = list[int]()
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    store, a = _array(tmp_path, signal.SIGINT)
    a[...] = 1
    assert (a[...] == 1).all()
    assert received == [signal.SIGINT] * store.calls
    assert store.calls > 1


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("options", [{}, {"memory_budget": 40}], ids=["default", "budget"])
def test_a_handler_that_writes_what_the_call_writes_gets_an_error(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """Waiting for the interrupted call would never end. Other values are written."""
    a = sync.create_array(
        tmp_path, shape=(40,), dtype="i4", chunks=(10,), config={"native": "off", "threads": 1, **options}
    )
    a[...] = 9
    real = local_files.write_fully

    def write_and_signal(*arguments: Any) -> None:
        real(*arguments)
        signal.raise_signal(signal.SIGINT)

    outcomes = list[str]()

    def write(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for key in (slice(1, 3), slice(33, 35)):
            try:
                a[key] = 7
            except StoreError as error:
                outcomes.append(str(error))
            else:
                outcomes.append("written")

    signal.signal(signal.SIGINT, write)
    monkeypatch.setattr(local, "write_fully", write_and_signal)
    a[0:5] = 1
    assert outcomes[0].startswith("deadlock: ")
    assert outcomes[1:] == ["written"]
    assert a[[0, 1, 4, 5, 33, 34]].tolist() == [1, 1, 1, 9, 7, 7]


@pytest.mark.usefixtures("handlers")
def test_a_handler_waits_before_the_call_that_it_interrupts():
    """Both wait for a lock of another thread. The interrupted call cannot take it before the handler returns."""
    order, lock = list[str](), KeyLock("value")
    main, held, waits = (
        threading.get_ident(),
        threading.Event(),
        {"call": threading.Event(), "handler": threading.Event()},
    )

    def take(name: str) -> None:
        async def work() -> None:
            waits[name].set()
            async with lock:
                order.append(name)

        drive(work())

    async def hold() -> None:
        async with lock:
            held.set()
            assert waits["call"].wait(10)
            signal.pthread_kill(main, signal.SIGUSR1)
            assert waits["handler"].wait(10)
            order.append("other thread")

    signal.signal(signal.SIGUSR1, lambda *_: take("handler"))
    thread = threading.Thread(target=lambda: drive(hold()))
    thread.start()
    assert held.wait(10)
    take("call")
    thread.join()
    assert order == ["other thread", "handler", "call"]


@pytest.mark.usefixtures("handlers")
def test_a_handler_may_raise_any_exception(tmp_path: Path):
    """As those do that limit the time of a function."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError("too slow")

    signal.signal(signal.SIGINT, give_up)
    store, a = _array(tmp_path, signal.SIGINT)
    with pytest.raises(TimeoutError, match="too slow"):
        a.append(np.ones(25, "i4"))
    assert store.calls == 1
    assert sync.open_array(tmp_path).shape == (40,)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["zarr.json"]


@pytest.mark.usefixtures("handlers")
def test_a_handler_that_is_set_during_a_call_stays(tmp_path: Path):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, a = _array(tmp_path, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda number, frame: signal.signal(signal.SIGINT, signal.SIG_IGN))
    a[0] = 1
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.usefixtures("handlers")
def test_calls_within_calls(tmp_path: Path):
    """An interrupt of the inner call ends both, and the handlers are those of before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, inner = _array(tmp_path / "inner", signal.SIGINT)
    outer = sync.create_array(tmp_path / "outer", shape=(40,), dtype="i4", chunks=(10,), config={"threads": 1})

    def read_inner(nbytes: int) -> None:
        assert inner[0:3].shape == (3,)

    with pytest.raises(KeyboardInterrupt):
        outer.view[...].read(progress=read_inner)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert outer[0] == 0


@pytest.mark.usefixtures("handlers")
def test_a_later_interrupt_does_not_wait_for_stuck_work(tmp_path: Path):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = list[str]()

    class Stuck(_Signalling):
        def _send(self, key: str) -> None:
            if "c/" in key:
                super()._send(key)
                reached.append("after the first")
                later.ahead = 4
                super()._send(key)
                reached.append("after the second")
                later.ahead = 6
                super()._send(key)
                reached.append("after the third")

    sync.create_array(tmp_path, data=np.ones(4))
    with clock.replaced(later := ShiftedClock()), pytest.raises(KeyboardInterrupt):
        sync.open_array(Stuck(LocalStore(tmp_path)))[...]
    assert reached == ["after the first", "after the second"]


EXIT = """
import signal, sys
import numpy as np
from zarrasync import sync

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
a = sync.create_array(sys.argv[1], shape=(1000, 1000), dtype="f8", chunks=(10, 1000), config={"threads": 3})
print("ready", flush=True)
while True:
    a[...] = np.random.random((1000, 1000))
"""


@pytest.mark.processes
@pytest.mark.parametrize("turn", range(3))
def test_a_process_that_is_interrupted_ends_soon_and_leaves_nothing(tmp_path: Path, turn: int):
    with subprocess.Popen(
        [sys.executable, "-c", EXIT, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while not (tmp_path / f"c/{10 * turn}/0").exists():
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, errors = process.communicate(timeout=30)
        assert time.monotonic() - start < 2
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "During handling" not in errors
    assert not list(tmp_path.rglob("*.zarrasync-partial"))
