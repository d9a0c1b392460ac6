"""What readers see that open a dataset again and again while a job runs."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import Layout, stores, sync
from zarrasync.errors import MissingChunkError, NodeNotFoundError, UnsupportedOperation

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")
from zarrasync.integrations.xarray import plan_write_dataset, write_dataset  # after the skips

DAYS, HOURS = 6, 24
PLACES = ["local", "s3", "plain", "icechunk"]


class PlainStore(stores.LocalStore):
    """A store without conditional writes, like most filesystems of fsspec."""

    conditional = False


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """A destination, and the options with which it is opened."""
    if request.param == "s3":
        url, options = request.getfixturevalue("s3")
        return url, {"storage_options": options}
    if request.param == "icechunk":
        pytest.importorskip("icechunk", "2")
        return f"{tmp_path / 'repo'}|icechunk:", {}
    if request.param == "plain":
        return PlainStore(tmp_path / "plain.zarr"), {"config": {"unaligned": "allow"}}
    return tmp_path / "out.zarr", {}


def write_day(folder: Path, day: int, *, version: int = 0) -> Path:
    """Write a file whose values tell the hours since the first day, and its version."""
    folder.mkdir(exist_ok=True)
    hours = np.arange(day * HOURS, (day + 1) * HOURS)
    values = np.broadcast_to(hours[:, None] + 1000.0 * version, (HOURS, 50)).astype("f4")
    time = np.datetime64("2024-01-01", "ns") + hours * np.timedelta64(1, "h")
    path = folder / f"{day}.nc"
    xr.Dataset({"t": (("time", "x"), values)}, {"time": time}).to_netcdf(path, engine="h5netcdf")
    return path


@contextmanager
def reader(read: Callable[[], Any], check: Callable[[Any], None]) -> Iterator[list[Any]]:
    """Read in a loop on another thread as long as the block runs, and once more. Yield what it has read."""
    seen: list[Any] = []
    errors: list[BaseException] = []
    is_over, has_read = threading.Event(), threading.Event()

    def loop() -> None:
        try:
            while True:
                is_last = is_over.is_set()
                seen.append(value := read())
                check(value)
                has_read.set()
                if is_last:
                    return
        except BaseException as error:
            errors.append(error)
            has_read.set()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert has_read.wait(60)
        yield seen
    finally:
        is_over.set()
        thread.join(120)
    assert not errors, errors


def is_plannable(store: Any) -> bool:
    """Whether a store has a name, and marks of tasks."""
    return isinstance(store, str | Path)


def repository_of(store: Any, *, create: bool = False) -> Any:
    """Return the repository of icechunk that a URL names; ``None`` for another store."""
    if "icechunk" not in str(store):
        return None
    icechunk = pytest.importorskip("icechunk")
    storage = icechunk.local_filesystem_storage(str(store).partition("|")[0])
    return icechunk.Repository.create(storage) if create else icechunk.Repository.open(storage)


@contextmanager
def transaction(store: Any) -> Iterator[Any]:
    """Provide the store that ``write_dataset`` writes: of icechunk a session, which is committed at the end."""
    if (repository := repository_of(store)) is None:
        yield store
        return
    session = repository.writable_session("main")
    yield session.store
    session.commit("write")


def whole_days(count: int) -> np.ndarray:
    return np.broadcast_to(np.arange(count * HOURS)[:, None], (count * HOURS, 50))


@pytest.mark.parametrize("tasks", ["one call", "plan"])
def test_new_datasets(place: tuple[Any, dict[str, Any]], tmp_path: Path, tasks: str):
    """Readers find nothing, or the complete dataset."""
    store, options = place
    repository_of(store, create=True)  # readers cannot open one that does not exist
    files = [write_day(tmp_path / "nc", day) for day in range(DAYS)]
    arguments = {"concat": "time", "layout": Layout(chunks={"time": 10, "x": 20}), **options}
    if tasks == "plan" and not is_plannable(store):
        with pytest.raises(UnsupportedOperation):
            sync.plan_ingest(files, store, plan=tmp_path / "plan.json", **arguments)
        return

    def read() -> np.ndarray | None:
        try:
            group = sync.open_group(store, **options)
        except NodeNotFoundError:
            return None
        assert group.get_array("time").shape == (DAYS * HOURS,)
        return group.get_array("t")[...]

    def check(values: np.ndarray | None) -> None:
        assert values is None or np.array_equal(values, whole_days(DAYS))

    with reader(read, check) as seen:
        if tasks == "plan":
            plan = sync.plan_ingest(files, store, plan=tmp_path / "plan.json", tasks=6, **arguments)
            plan.run()
            plan.finish()
        else:
            sync.ingest_files(files, store, **arguments)
    assert seen[0] is None
    assert seen[-1] is not None


@pytest.mark.parametrize("tasks", ["one call", "plan"])
def test_appends(place: tuple[Any, dict[str, Any]], tmp_path: Path, tasks: str):
    """Readers find whole days, in order, each with its values."""
    store, options = place
    layout = Layout(chunks={"time": 10, "x": 20})
    if tasks == "plan" and not is_plannable(store):
        pytest.skip("a plan needs a name of its destination, and marks of tasks")
    sync.ingest_files(write_day(tmp_path / "nc", 0), store, concat="time", layout=layout, **options)

    def read() -> np.ndarray:
        group = sync.open_group(store, **options)
        time, values = group.get_array("time")[...], group.get_array("t")[...]
        assert len(time) <= len(values)
        return values[: len(time)]

    def check(values: np.ndarray) -> None:
        assert len(values) % HOURS == 0
        np.testing.assert_array_equal(values, whole_days(len(values) // HOURS))

    with reader(read, check) as seen:
        for day in range(1, DAYS):
            files = write_day(tmp_path / "nc", day)
            if tasks == "plan":
                plan = sync.plan_ingest(
                    files, store, concat="time", append=True, plan=tmp_path / "plan.json", tasks=3, **options
                )
                plan.run()
                plan.finish()
            else:
                sync.ingest_files(files, store, concat="time", append=True, **options)
    assert len(seen[-1]) == DAYS * HOURS


@pytest.mark.parametrize("how", [{"region": "auto"}, {"append": True, "on_duplicate": "replace"}], ids=str)
def test_rows_that_are_written_again(place: tuple[Any, dict[str, Any]], tmp_path: Path, how: dict[str, Any]):
    """Readers find old and new values, each chunk in one version; in icechunk, all in one version."""
    store, options = place
    files = [write_day(tmp_path / "nc", day) for day in range(DAYS)]
    sync.ingest_files(files, store, concat="time", layout=Layout(chunks={"time": HOURS, "x": 50}), **options)
    new = [write_day(tmp_path / "new", day, version=1) for day in range(DAYS)]
    is_atomic = "icechunk" in str(store)

    def read() -> np.ndarray:
        return sync.open_group(store, **options).get_array("t")[...]

    def check(values: np.ndarray) -> None:
        hours = np.arange(DAYS * HOURS)
        versions, rest = np.divmod(values, 1000)
        np.testing.assert_array_equal(rest, np.broadcast_to(hours[:, None], rest.shape))
        by_chunk = versions.reshape(DAYS, -1)
        assert (by_chunk == by_chunk[:, :1]).all()
        assert not is_atomic or (versions == versions[0, 0]).all()

    with reader(read, check) as seen:
        sync.ingest_files(new, store, concat="time", **how, **options)
    assert (seen[0] < 1000).any()
    assert (seen[-1] >= 1000).all()


@pytest.mark.parametrize("job", ["ingest", "copy"])
def test_replacements(place: tuple[Any, dict[str, Any]], tmp_path: Path, job: str):
    """Readers find the old dataset, nothing, or the new one; in icechunk, always one of them."""
    store, options = place
    is_atomic = "icechunk" in str(store)
    if job == "copy" and is_atomic:
        pytest.skip("a copy does not replace a repository")
    old = [write_day(tmp_path / "nc", day) for day in range(2)]
    new = [write_day(tmp_path / "new", day, version=1) for day in range(DAYS)]
    arguments: dict[str, Any] = {"concat": "time", "layout": Layout(chunks={"time": 10, "x": 20})}
    sync.ingest_files(old, store, **arguments, **options)
    sync.ingest_files(new, tmp_path / "source.zarr", **arguments)

    def read() -> np.ndarray | None:
        """Return the values, or ``None`` if the dataset does not exist, or is replaced while it is read."""
        try:
            array = sync.open_group(store, **options).get_array("t")
            values = array.view[...].read(missing="error")
            after = sync.open_group(store, **options).get_array("t")
        except (NodeNotFoundError, MissingChunkError):
            assert not is_atomic
            return None
        return values if array.shape == after.shape or is_atomic else None

    def check(values: np.ndarray | None) -> None:
        if values is not None:
            version = int(len(values) > 2 * HOURS)
            np.testing.assert_array_equal(values, whole_days(DAYS if version else 2) + 1000 * version)

    with reader(read, check) as seen:
        if job == "ingest":
            sync.ingest_files(new, store, mode="w", **arguments, **options)
        else:
            dest_options = {"dest_options": options.get("storage_options"), "config": options.get("config")}
            sync.copy(tmp_path / "source.zarr", store, overwrite=True, **dest_options)
    assert len(seen[0]) == 2 * HOURS
    assert len(seen[-1]) == DAYS * HOURS


@pytest.mark.parametrize("tasks", ["one call", "plan"])
def test_copies(place: tuple[Any, dict[str, Any]], tmp_path: Path, tasks: str):
    """Readers find nothing, or all of the copy. Without conditional writes, they find the nodes before the values."""
    store, options = place
    source, values = tmp_path / "source.zarr", np.arange(1, 4001.0).reshape(80, 50)
    group = sync.create_group(source)
    for name in ("a", "b"):
        group.create_array(name, data=values, chunks=(10, 50))
    if "icechunk" in str(store):
        pytest.skip("only jobs with files commit at their end")
    arguments: dict[str, Any] = {"chunks": {"a": (80, 5)}, "dest_options": options.get("storage_options")}
    if tasks == "plan" and not is_plannable(store):
        with pytest.raises(UnsupportedOperation):
            sync.plan_copy(source, store, tasks=4, **arguments)
        return

    def read() -> dict[str, np.ndarray]:
        try:
            opened = sync.open_group(store, **options)
        except NodeNotFoundError:
            return {}
        return {name: opened.get_array(name)[...] for name in ("a", "b") if name in opened}

    def check(found: dict[str, np.ndarray]) -> None:
        if found and is_plannable(store):
            assert sorted(found) == ["a", "b"]
        for copied in found.values():
            is_right = copied == values
            assert is_right.all() or (not is_plannable(store) and (copied[~is_right] == 0).all())

    with reader(read, check) as seen:
        if tasks == "plan":
            plan = sync.plan_copy(source, store, tasks=4, **arguments)
            plan.run()
            plan.finish()
        else:
            sync.copy(source, store, verify=True, **arguments)
    assert seen[0] == {}
    assert all((seen[-1][name] == values).all() for name in ("a", "b"))


@pytest.mark.parametrize("tasks", ["one call", "plan"])
def test_pyramids(place: tuple[Any, dict[str, Any]], tmp_path: Path, tasks: str):
    """Readers that follow the metadata find no levels, or all of them."""
    store, options = place
    if "icechunk" in str(store):
        pytest.skip("only jobs with files commit at their end")
    values = np.random.default_rng(0).random((256, 256))
    sync.create_array(store, path="0", data=values, chunks=(32, 32), dimension_names=("y", "x"), **options)
    if tasks == "plan" and not is_plannable(store):
        with pytest.raises(UnsupportedOperation):
            sync.plan_pyramid(store, levels=4, tasks=6, **options)
        return

    def read() -> list[np.ndarray]:
        group = sync.open_group(store, **options)
        scales = group.attrs.get("ome", {}).get("multiscales", [{"datasets": []}])[0]
        return [group.get_array(level["path"])[...] for level in scales["datasets"]]

    def check(levels: list[np.ndarray]) -> None:
        for fine, coarse in pairwise(levels):
            blocks = fine.reshape(coarse.shape[0], 2, coarse.shape[1], 2)
            np.testing.assert_allclose(coarse, blocks.mean((1, 3)))

    with reader(read, check) as seen:
        arguments: dict[str, Any] = {"levels": 4, "layout": Layout(shards=None), **options}
        if tasks == "plan":
            plan = sync.plan_pyramid(store, tasks=6, **arguments)
            plan.run()
            plan.finish()
        else:
            sync.pyramid(store, **arguments)
    assert (len(seen[0]), len(seen[-1])) == (0, 4)


# ------------------------------------------------------------------ datasets of xarray


def dataset_of(*days: int) -> Any:
    parts = [np.arange(day * HOURS, (day + 1) * HOURS) for day in days]
    hours = np.concatenate(parts)
    values = np.broadcast_to(hours[:, None] * 1.0, (len(hours), 50))
    time = np.datetime64("2024-01-01", "ns") + hours * np.timedelta64(1, "h")
    dataset = xr.Dataset({"t": (("time", "x"), values)}, {"time": time})
    return dataset.chunk({"time": 7}) if importlib.util.find_spec("dask") else dataset


ENCODING: Any = {"t": {"chunks": (10, 20)}, "time": {"chunks": (10,)}}


def test_planned_datasets(place: tuple[Any, dict[str, Any]]):
    """Readers find nothing, or the complete dataset."""
    store, options = place
    arguments: dict[str, Any] = {"encoding": ENCODING, "tasks": 6, **options}
    if not is_plannable(store) or "icechunk" in str(store):
        with pytest.raises(UnsupportedOperation):
            plan_write_dataset(dataset_of(*range(DAYS)), store, **arguments)
        return

    def read() -> np.ndarray | None:
        try:
            return sync.open_group(store, **options).get_array("t")[...]
        except NodeNotFoundError:
            return None

    def check(values: np.ndarray | None) -> None:
        assert values is None or np.array_equal(values, whole_days(DAYS))

    with reader(read, check) as seen:
        plan = plan_write_dataset(dataset_of(*range(DAYS)), store, **arguments)
        plan.run()
        plan.finish()
    assert seen[0] is None
    assert seen[-1] is not None


def test_appended_datasets(place: tuple[Any, dict[str, Any]]):
    """Readers find new rows with their values or the fill value, and no variable that is longer than its labels.

    In icechunk, they find complete rows only.
    """
    store, options = place
    is_atomic, written = "icechunk" in str(store), [0]
    repository_of(store, create=True)
    with transaction(store) as opened:
        write_dataset(dataset_of(0), opened, encoding=ENCODING, **options)
    written[0] = 1

    def read() -> tuple[int, np.ndarray, int]:
        complete = written[0] * HOURS
        group = sync.open_group(store, **options)
        values = group.get_array("t")[...]
        labels = group if is_atomic else sync.open_group(store, **options)
        return complete, values, labels.get_array("time").shape[0]

    def check(found: tuple[int, np.ndarray, int]) -> None:
        complete, values, labels = found
        assert complete <= len(values) <= labels
        assert len(values) % HOURS == 0
        is_right = values == whole_days(DAYS)[: len(values)]
        assert is_right[:complete].all()
        assert np.isnan(values[~is_right]).all()
        if is_atomic:
            assert is_right.all()
            assert len(values) == labels

    with reader(read, check) as seen:
        for day in range(1, DAYS):
            with transaction(store) as opened:
                write_dataset(dataset_of(day), opened, append_dim="time", **options)
            written[0] = day + 1
    np.testing.assert_array_equal(seen[-1][1], whole_days(DAYS))
