"""Appends of labels that exist: refused, skipped, replaced or allowed, also by several writers and after failures."""

from __future__ import annotations

import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.dying import dying_store, in_child
from tests.support.processes import PROCESSES, together
from tests.support.shifted_clock import ShiftedClock
from zarrasync import stores, sync
from zarrasync._concurrency import clock
from zarrasync.errors import ShapeError, StoreError
from zarrasync.stores import CountingStore
from zarrasync.testing import FaultyStore

xr: Any = pytest.importorskip("xarray")
pytest.importorskip("zarr")

from zarrasync.integrations.xarray import WriteOptions, write_dataset  # after the skip

pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")


def dates(*numbers: int) -> Any:
    return np.datetime64("2024-01-01", "ns") + np.asarray(numbers) * np.timedelta64(1, "D")


def rows(labels: Any, value: float, *, lazy: bool = False, **encoding: Any) -> Any:
    labels = np.asarray(labels)
    result = xr.Dataset(
        {"v": (("time", "x"), np.full((len(labels), 2), value)), "w": ("time", np.full(len(labels), value))},
        {"time": labels},
    )
    result.time.encoding = encoding
    return result.chunk(x=1) if lazy else result


def days(*numbers: int, value: float = 0.0, lazy: bool = False) -> Any:
    return rows(dates(*numbers), value, lazy=lazy)


def found(store: Any) -> dict[Any, list[float]]:
    """Return the values of each label, and check that the variables agree."""
    for engine in ("zarr", "zarrasync") if isinstance(store, Path) else ("zarrasync",):
        dataset = xr.open_dataset(store, engine=engine).load()
        np.testing.assert_array_equal(dataset.v.values[:, 0], dataset.w)
        np.testing.assert_array_equal(dataset.v.values[:, 1], dataset.w)
    result: dict[Any, list[float]] = {}
    for label, value in zip(dataset.time.values.tolist(), dataset.w.values.tolist(), strict=True):
        result.setdefault(label, []).append(value)
    return result


def by_day(store: Any) -> dict[int, list[float]]:
    start = dates(0).astype("i8").item()
    return {(label - start) // 86_400_000_000_000: values for label, values in found(store).items()}


EXPECTED = {
    "skip": {0: [0.0], 1: [0.0], 2: [1.0], 3: [1.0]},
    "replace": {0: [0.0], 1: [1.0], 2: [1.0], 3: [1.0]},
    "allow": {0: [0.0], 1: [0.0, 1.0], 2: [1.0, 1.0], 3: [1.0]},
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("chunk", [1, 4])
def test_rows_with_labels_that_exist(zarr_format: Any, lazy: bool, chunk: int):
    for choice, expected in EXPECTED.items():
        store = stores.MemoryStore()
        encoding = {"v": {"chunks": (chunk, 2)}, "time": {"chunks": (chunk,)}}
        write_dataset(days(0, 1), store, encoding=encoding, zarr_format=zarr_format)
        before = dict(store.values)
        more = days(1, 2, 3, 2, value=1.0, lazy=lazy)
        with pytest.raises(
            ShapeError, match=r"1 label of 'time' .* exists already in the store: 2024-01-02; pass on_dup"
        ):
            write_dataset(more, store, append_dim="time")
        with pytest.raises(ShapeError, match="is repeated in the dataset: 2024-01-03"):
            write_dataset(more.isel(time=[1, 3]), store, append_dim="time")
        assert store.values == before
        write_dataset(more, store, append_dim="time", on_duplicate=choice, verify=True)
        assert by_day(store) == expected
        assert not [key for key in store.values if ".appends" in key]
        if choice != "allow":
            write_dataset(more, store, append_dim="time", on_duplicate=choice)  # as often as one likes
            assert by_day(store) == expected


LABELS = {
    "other units": (rows(dates(0, 1), 0.0), rows(dates(1), 1.0, units="hours since 1970-01-01", dtype="f8")),
    "coarser dates": (rows(dates(0, 1), 0.0), rows(dates(1).astype("M8[s]"), 1.0)),
    "rounded numbers": (rows([0.1, 0.2], 0.0, dtype="f4"), rows([0.2], 1.0)),
    "packed numbers": (rows([0.1, 0.2], 0.0, dtype="i2", scale_factor=0.1, _FillValue=-1), rows([0.2001], 1.0)),
    "other integers": (rows(np.array([3, 4], "i8"), 0.0), rows(np.array([4], "u1"), 1.0)),
    "strings": (rows(np.array(["a", "bé"], object), 0.0), rows(np.array(["bé"]), 1.0)),
    "missing numbers": (rows([1.0, np.nan], 0.0), rows([np.nan], 1.0)),
    "missing times": (rows(np.array(["2024-01-01", "NaT"], "M8[ns]"), 0.0), rows(np.array(["NaT"], "M8[ns]"), 1.0)),
    "durations": (rows(np.array([1, 2], "m8[h]").astype("m8[ns]"), 0.0), rows(np.array([120], "m8[m]"), 1.0)),
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_compared_by_their_meaning(kind: str, zarr_format: Any):
    first, again = LABELS[kind]
    store = stores.MemoryStore()
    write_dataset(first, store, zarr_format=zarr_format)
    with pytest.raises(ShapeError, match="1 label of 'time' that would be appended exists already"):
        write_dataset(again, store, append_dim="time")
    write_dataset(again, store, append_dim="time", on_duplicate="replace")
    assert xr.open_dataset(store, engine="zarrasync").w.values.tolist() == [0, 1]


def test_dates_of_other_calendars_are_shown_as_dates():
    cftime: Any = pytest.importorskip("cftime")
    store = stores.MemoryStore()
    day = rows(np.array([cftime.DatetimeNoLeap(2024, 2, 28)]), 0.0)
    write_dataset(day, store)
    with pytest.raises(ShapeError, match="exists already in the store: 2024-02-28"):
        write_dataset(day, store, append_dim="time")


def test_without_a_coordinate_there_is_no_check():
    store = stores.MemoryStore()
    for number in range(3):
        write_dataset(days(0, value=number).drop_vars("time"), store, **({"append_dim": "time"} if number else {}))
    assert sync.open_array(store, path="w")[...].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="on_duplicate must be one of error, skip, replace, allow"):
        write_dataset(days(0), store, append_dim="time", on_duplicate="ignore")


def test_rows_to_replace_are_unique_and_new_arrays_complete():
    store = stores.MemoryStore()
    write_dataset(days(0, 1), store)
    write_dataset(days(1, value=1), store, append_dim="time", on_duplicate="allow")
    with pytest.raises(ShapeError, match="stored several times: 2024-01-02"):
        write_dataset(days(1, value=2), store, append_dim="time", on_duplicate="replace")
    assert by_day(store) == {0: [0], 1: [0, 1]}


# ------------------------------------------------------------------ several writers


class Slow(stores.MemoryStore):
    """A store whose values of chunks take a moment."""

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        if "/c/" in key:
            clock.current().sleep_blocking(0.02)
        return await super().put(key, data, if_version=if_version)


@pytest.mark.parametrize("choice", ["error", "skip", "replace"])
def test_threads_that_append_the_same_labels(choice: str):
    store = Slow()
    write_dataset(days(0), store, encoding={"w": {"chunks": (4,)}, "time": {"chunks": (4,)}})
    outcomes: list[Any] = []

    def append(number: int) -> None:
        try:
            write_dataset(days(1, 2 + number % 2, value=number), store, append_dim="time", on_duplicate=choice)
            outcomes.append(number)
        except ShapeError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(done) == (1 if choice == "error" else 4), outcomes
    assert all(len(values) == 1 for values in by_day(store).values())
    assert len(by_day(store)) == (3 if choice == "error" else 4)


class Overtaken(stores.MemoryStore):
    """A store in which another append takes place just before an append claims its rows."""

    before: Any = None

    async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
        if key.endswith(".appends") and self.before is not None:
            before, self.before = self.before, None
            thread = threading.Thread(target=before)
            thread.start()
            thread.join()
        return await super().put(key, data, if_version=if_version)


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("choice", ["error", "skip", "replace", "allow"])
@pytest.mark.parametrize("day", [1, 2])
def test_an_append_between_comparing_labels_and_claiming_rows(day: int, choice: str, exclusive: bool):
    """It leaves no trace in the claims, but the coordinate is longer."""
    store = Overtaken()
    store.exclusive_locks = exclusive
    write_dataset(days(0), store, encoding={"v": {"chunks": (4, 2)}, "time": {"chunks": (1,)}})
    store.before = lambda: write_dataset(days(day, value=1), store, append_dim="time")
    refused = (choice, day) == ("error", 1)
    with pytest.raises(ShapeError, match="exists already in the store") if refused else nullcontext():
        write_dataset(days(1, value=2), store, append_dim="time", on_duplicate=choice)
    repeated = {"error": [1.0], "skip": [1.0], "replace": [2.0], "allow": [1.0, 2.0]}[choice]
    assert by_day(store) == ({0: [0.0], 1: repeated} if day == 1 else {0: [0.0], 2: [1.0], 1: [2.0]})
    assert not [key for key in store.values if ".appends" in key]


def test_the_requests_of_appending_a_row():
    """Two for the claim, besides the changed documents and chunks."""
    store = CountingStore(stores.MemoryStore())
    encoding = {"v": {"chunks": (1, 2)}, "w": {"chunks": (1,)}, "time": {"chunks": (512,)}}
    write_dataset(days(0, 1), store, encoding=encoding, options=WriteOptions(consolidated=False))
    store.reset()
    write_dataset(days(2), store, append_dim="time", options=WriteOptions(consolidated=False))
    counts = store.reset()
    assert counts.puts + counts.erases == 3 + 3 + 2


APPEND = """
from zarrasync.integrations.xarray import write_dataset
from zarrasync.errors import ShapeError
import xarray as xr
done = 0
for i in range(writes):
    time = np.datetime64("2024-01-01", "ns") + np.array([2 * i, 2 * i + 1]) * np.timedelta64(1, "D")
    value = np.full(2, float(number))
    dataset = xr.Dataset({"v": (("time", "x"), np.stack([value, value], 1)), "w": ("time", value)}, {"time": time})
    try:
        write_dataset(dataset, url, append_dim="time", **options)
        done += 1
    except ShapeError as error:
        assert "exist already" in str(error), error
sync.create_array(url, path=f"done/{number}", data=np.array([done]), **options)
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_processes_that_append_the_same_labels(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    url, options = (str(tmp_path / "x.zarr"), {}) if kind == "local" else request.getfixturevalue("s3")
    storage: Any = {"storage_options": options} if options else {}
    first = rows(dates(-1), -1.0)
    write_dataset(
        first, url, encoding={"v": {"chunks": (8, 2)}, "w": {"chunks": (8,)}, "time": {"chunks": (8,)}}, **storage
    )
    writes = 3 if options else 6
    together(APPEND, url, options, writes)
    dataset = xr.open_dataset(url, engine="zarrasync", **storage).load()
    assert dataset.indexes["time"].is_unique
    assert dataset.sizes["time"] == 1 + 2 * writes
    np.testing.assert_array_equal(dataset.v.values[:, 1], dataset.w)
    counts = [sync.open_array(url, path=f"done/{number}", **storage)[0] for number in range(PROCESSES)]
    assert sum(counts) == writes


# ------------------------------------------------------------------ failures


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["error", "skip", "replace"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_a_repeated_call_completes_an_append_that_failed(choice: str, exclusive: bool):
    """Whichever request fails, also if the store is down from then on, and rows cannot be removed."""
    for lasts in (False, True):
        for number in range(100):
            memory = stores.MemoryStore()
            memory.exclusive_locks = exclusive
            write_dataset(days(0, 1), memory, encoding={"w": {"chunks": (4,)}, "time": {"chunks": (4,)}})
            count = 0

            def fails(operation: str, key: str) -> bool:
                nonlocal count
                count += operation in ("put", "erase")
                return operation in ("put", "erase") and (count > number if lasts else count == number + 1)

            with clock.replaced(ShiftedClock(50)):
                try:
                    write_dataset(
                        days(1, 2, 3, value=1) if choice != "error" else days(2, 3, value=1),
                        FaultyStore(memory, fails=fails),
                        append_dim="time",
                        on_duplicate=choice,
                    )
                    failed = False
                except StoreError:
                    failed = True
                if not failed and count <= number:
                    break
                again = days(1, 2, 3, value=2) if choice != "error" else days(2, 3, value=2)
                with clock.replaced(ShiftedClock(50)):
                    if failed:
                        write_dataset(again, memory, append_dim="time", on_duplicate=choice)
            values = by_day(memory)
            assert {day: len(rows) for day, rows in values.items()} == dict.fromkeys(range(4), 1), (number, values)
            assert not failed or values[3] == [2] or choice == "skip", (number, values)
            assert bytes(memory.values.get("time/.appends", b"[]")) == b"[]", number  # erasing it may have failed
        else:
            pytest.fail("the append never succeeded")


def append_and_die(out: Path, puts: int) -> None:
    store = dying_store(out, puts)
    write_dataset(days(2, 3, value=1), store, append_dim="time")


@pytest.mark.processes
@pytest.mark.parametrize("other", [False, True])
def test_a_repeated_call_completes_an_append_whose_process_was_killed(other: bool, tmp_path: Path):
    """Also if another writer has appended rows in the meantime."""
    encoding = {"v": {"chunks": (4, 2)}, "w": {"chunks": (1,)}, "time": {"chunks": (4,)}}
    for puts in range(100):
        out = tmp_path / str(puts)
        write_dataset(days(0, 1), out, encoding=encoding)
        code = in_child(append_and_die, out, puts)
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            assert not list(out.rglob(".appends"))
            break
        if other:
            write_dataset(days(4, value=4), out, append_dim="time")
        written = 2
        try:
            write_dataset(days(2, 3, value=2), out, append_dim="time")
        except ShapeError:
            written = 1  # the append was complete
        assert by_day(out) == {0: [0], 1: [0], 2: [written], 3: [written]} | ({4: [4]} if other else {}), puts
        assert not list(out.rglob(".appends"))
    else:
        pytest.fail("the append never succeeded")
    assert puts > 6


@pytest.mark.parametrize("damaged", [b"", b"\xff", b"[5]", b'[{"id": 1}]', b'{"a": 1}', b"[" * 100_000])
def test_damaged_claims(damaged: bytes):
    """The error names the value to erase, and nothing is appended."""
    store: dict[str, bytes] = {}
    write_dataset(rows(dates(0), 1.0), store)
    store["time/.appends"] = damaged
    with pytest.raises(StoreError, match=r"erase 'time/\.appends'"):
        write_dataset(rows(dates(1), 2.0), store, append_dim="time")
    del store["time/.appends"]
    write_dataset(rows(dates(1), 2.0), store, append_dim="time")
    assert sync.open_array(store, path="w")[:].tolist() == [1, 2]
