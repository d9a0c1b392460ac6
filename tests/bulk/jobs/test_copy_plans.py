"""Plans of copies, whose tasks run in any process and in any order."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import (
    ChecksumError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    ShapeError,
    StoreError,
    UnsupportedOperation,
    WriteConflictError,
)
from zarrasync.testing import FaultyStore

VALUES = np.arange(4000, dtype="f4").reshape(80, 50)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A hierarchy of three arrays with consolidated metadata, an absent chunk, and a file of the user."""
    path = tmp_path / "source.zarr"
    group = sync.create_group(path, attributes={"title": "test"})
    group.create_array("x", data=VALUES, chunks=(8, 50))
    sparse = group.create_array("inner/sparse", shape=(40, 40), dtype="i2", chunks=(10, 10), fill_value=-1)
    sparse[5:20, 30:] = 7
    group.create_array("scalar", data=np.array(3.5))
    sync.consolidate_metadata(path)
    (path / "README.txt").write_text("of the user")
    return path


def assert_copied(source: Path, dest: Any, **options: Any) -> None:
    for name in ("x", "inner/sparse", "scalar"):
        expected, copied = (sync.open_array(store, path=name) for store in (source, dest))
        np.testing.assert_array_equal(copied[...], expected[...])
        assert dict(copied.attrs) == dict(expected.attrs)
    assert sync.open_group(dest).attrs["title"] == "test"


async def test_tasks_in_any_order(api: Api, source: Path, tmp_path: Path):
    dest = tmp_path / "dest.zarr"
    plan = await api(api.plan_copy(source, dest, chunks={"x": (80, 5)}, tasks=6))
    assert 4 <= len(plan.tasks) <= 10
    assert [task.number for task in plan.tasks] == list(range(len(plan.tasks)))
    assert sum(task.nbytes for task in plan.tasks) == VALUES.nbytes + 40 * 40 * 2 + 8
    for number in reversed(range(len(plan.tasks))):
        with pytest.raises(NodeNotFoundError):
            sync.open(dest)
        report = await api(plan.run(number, verify=True))
        assert report.verified == report.blocks
    report = await api(plan.finish())
    assert (report.arrays, report.groups) == (3, 2)
    assert report.left_out == ["README.txt"]
    assert_copied(source, dest)
    assert sync.open_array(dest, path="x").chunks == (80, 5)
    assert "consolidated_metadata" in json.loads((dest / "zarr.json").read_text())
    assert not (dest / ".ingest").exists()


async def test_the_plan_lies_in_the_destination_until_it_is_finished(api: Api, source: Path, tmp_path: Path):
    dest = tmp_path / "dest.zarr"
    plan = await api(api.plan_copy(source, dest, chunks={"x": (10, 10)}, tasks=2))
    assert plan.location == str(dest)
    opened = await api(api.open_plan(dest))
    assert opened.tasks == plan.tasks
    assert opened.to_json() == plan.to_json()
    await api(opened.run(0))
    assert (await api(opened.run(0))).skipped == 1
    for number in range(1, len(plan.tasks)):
        await api(opened.run(number))
    for beyond in (len(plan.tasks), 10**6):
        assert (await api(opened.run(beyond))).blocks == 0
    await api((await api(api.open_plan(dest))).finish())
    assert_copied(source, dest)
    with pytest.raises(NodeNotFoundError, match="no plan"):
        await api(api.open_plan(dest))
    with pytest.raises(WriteConflictError, match="not in progress"):
        await api(plan.run(0))
    await api(plan.finish())  # may be repeated


@pytest.mark.processes
def test_tasks_in_other_processes(source: Path, tmp_path: Path):
    dest = tmp_path / "dest.zarr"
    plan = sync.plan_copy(source, dest, chunks={"x": (16, 25)}, tasks=3, plan=tmp_path / "job.plan")
    code = "import sys; from zarrasync import sync; sync.open_plan(sys.argv[1]).run(int(sys.argv[2]))"
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "job.plan"), str(task.number)])
        for task in plan.tasks
    ]
    assert [process.wait() for process in started] == [0] * len(started)
    plan.finish()
    assert_copied(source, dest)
    assert not (tmp_path / "job.plan").exists()


@pytest.mark.processes
def test_tasks_on_an_executor(source: Path, tmp_path: Path):
    plan = sync.plan_copy(source, tmp_path / "dest.zarr", chunks={"x": (80, 5)}, tasks=4)
    report = plan.run(executor=2)
    assert report.blocks
    plan.finish()
    assert_copied(source, tmp_path / "dest.zarr")


async def test_a_plan_that_is_abandoned(api: Api, source: Path, tmp_path: Path):
    dest = tmp_path / "dest.zarr"
    plan = await api(api.plan_copy(source, dest, dest_path="a/b", tasks=2))
    await api(plan.run())
    await api(plan.abandon())
    assert [path for path in dest.rglob("*") if path.is_file()] == []
    with pytest.raises(WriteConflictError, match="not in progress"):
        await api(plan.finish())
    plan = await api(api.plan_copy(source, dest, dest_path="a/b"))
    opened = await api(api.open_plan(plan.location))
    await api(opened.run())
    await api(opened.finish())
    assert_copied(source, dest / "a" / "b")


async def test_a_task_opens_each_array_once(api: Api):
    memory, requests = stores.MemoryStore(), list[tuple[str, str]]()
    sync.create_array(memory, path="x", data=np.arange(41 * 41).reshape(41, 41), chunks=(20, 20))

    def note(operation: str, key: str) -> bool:
        requests.append((operation, key))
        return False

    plan = await api(api.plan_copy(FaultyStore(memory, fails=note), {}, tasks=3))
    (task,) = (task for task in plan.tasks if "5 parts" in task.name)
    requests.clear()
    await api(plan.run(task))
    assert requests.count(("fetch", "x/zarr.json")) == 1
    await api(plan.run())
    await api(plan.finish())


async def test_finish_needs_all_tasks(api: Api, source: Path, tmp_path: Path):
    plan = await api(api.plan_copy(source, tmp_path / "dest.zarr", chunks={"x": (10, 10)}, tasks=3))
    await api(plan.run(1))
    with pytest.raises(NodeNotFoundError, match="the first is 0"):
        await api(plan.finish())
    await api(plan.run())
    await api(plan.finish())
    assert_copied(source, tmp_path / "dest.zarr")


async def test_two_plans_for_one_destination(api: Api, source: Path, tmp_path: Path):
    dest = tmp_path / "dest.zarr"
    plan = await api(api.plan_copy(source, dest))
    again = await api(api.plan_copy(source, dest))  # as after a kill
    assert again.to_json() == plan.to_json()
    with pytest.raises(WriteConflictError, match="not finished"):
        await api(api.plan_copy(source, dest, chunks={"x": (10, 10)}))
    other = tmp_path / "other.zarr"  # the same arrays, with other values
    sync.copy(source, other)
    sync.open_array(other, path="x", mode="r+")[...] = 0
    with pytest.raises(WriteConflictError, match="not finished"):
        await api(api.plan_copy(other, dest))
    await api(again.run())
    await api(again.finish())
    with pytest.raises(NodeExistsError, match="overwrite=True"):
        await api(api.plan_copy(source, dest))
    assert not (dest / ".ingest").exists()
    plan = await api(api.plan_copy(source, dest, overwrite=True, zarr_format=2))
    await api(plan.run())
    await api(plan.finish())
    assert_copied(source, dest)
    assert sync.open(dest).metadata is not None


async def test_plans_of_data_in_memory(api: Api, source: Path):
    origin, dest = stores.MemoryStore(), stores.MemoryStore()
    sync.copy(source, origin)
    plan = await api(api.plan_copy(origin, dest, chunks={"x": (10, 10)}))
    assert plan.location == ""
    with pytest.raises(UnsupportedOperation, match="no name"):
        plan.to_json()
    await api(plan.run())
    await api(plan.finish())
    assert_copied(source, dest)


def test_plans_can_be_pickled(source: Path, tmp_path: Path):
    plan = sync.plan_copy(sync.open_group(source), tmp_path / "dest.zarr", tasks=2)
    assert plan.location == ""  # the source was not opened by this call
    other = pickle.loads(pickle.dumps(plan))
    other.run()
    other.finish()
    assert_copied(source, tmp_path / "dest.zarr")


async def test_nothing_is_kept_if_the_plan_cannot_be_stored(api: Api, source: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="file"):
        await api(api.plan_copy(source, tmp_path / "dest.zarr", plan=tmp_path / "file" / "job.plan"))
    assert not (tmp_path / "dest.zarr").exists()


async def test_a_source_that_changed_since(api: Api, source: Path, tmp_path: Path):
    plan = await api(api.plan_copy(source, tmp_path / "dest.zarr"))
    sync.open_array(source, path="x", mode="r+").resize((81, 50))
    with pytest.raises(ShapeError, match="changed since the copy was planned"):
        await api(plan.run())
    await api(plan.abandon())


async def test_damaged_documents(api: Api, source: Path, tmp_path: Path):
    file = tmp_path / "job.plan"
    plan = await api(api.plan_copy(source, tmp_path / "dest.zarr", plan=file))
    document = json.loads(file.read_text())
    for change in ({"version": 9}, {"kind": "x"}, {"dest": 5}, {"boxes": 5}, {"documents": {"": 5}}, {"source": {}}):
        file.write_text(json.dumps({**document, **change}))
        with pytest.raises(MetadataError):
            await api((await api(api.open_plan(file))).run())
    for text in ("{", "[]", '"x"'):
        file.write_text(text)
        with pytest.raises(MetadataError):
            await api(api.open_plan(file))
    file.write_text(json.dumps(document))
    await api((await api(api.open_plan(file))).abandon())
    assert plan.kind == "copy"


async def test_verification_finds_values_that_others_changed(api: Api, source: Path, tmp_path: Path):
    class Damaging(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            is_chunk = key == "x/c/0/0"
            return await self.inner.put(key, bytes(len(bytes(data))) if is_chunk else data, if_version=if_version)

    dest = Damaging(stores.LocalStore(tmp_path / "dest.zarr"))
    plan = await api(api.plan_copy(source, dest, chunks={"x": (80, 5)}, compressors=None))
    with pytest.raises(ChecksumError, match="differs"):
        await api(plan.run(verify=True))


async def test_invalid_numbers_of_tasks(api: Api, source: Path, tmp_path: Path):
    plan = await api(api.plan_copy(source, tmp_path / "dest.zarr"))
    for number in (-1, True, 1.5, "0"):
        with pytest.raises(ValueError, match="number of a task"):
            await api(plan.run(number))
    await api(plan.abandon())


async def test_an_explanation(api: Api, source: Path, tmp_path: Path):
    plan = await api(api.plan_copy(source, tmp_path / "dest.zarr", chunks={"x": (80, 5)}, tasks=2))
    explanation = plan.explain()
    assert explanation.written_bytes == VALUES.nbytes + 40 * 40 * 2 + 8
    assert explanation.passes >= 1
    assert f"{len(plan.tasks)} tasks" in str(explanation)
    assert "<table" in plan._repr_html_()
    await api(plan.abandon())


async def test_the_state_of_jobs_is_no_member(api: Api, tmp_path: Path):
    """A listing of a group does not look for a node in the folder of its job, nor does a hint name it."""
    store = stores.CountingStore(stores.LocalStore(tmp_path))
    await api(api.create_array(store, path="x", data=np.arange(4)))
    (tmp_path / ".ingest").mkdir()
    (tmp_path / ".ingest" / "plan.json").write_text("{}")
    group = await api(api.open_group(store))
    store.reset()
    assert list(dict(await api(group.members()))) == ["x"]
    assert store.reset().absent <= 2
    with pytest.raises(NodeNotFoundError, match=r"Members of /: x\."):
        await api(api.open(store, path="y"))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_planned", [False, True])
async def test_readers_see_all_nodes_at_once(api: Api, source: Path, zarr_format: int, is_planned: bool):
    memory, seen = stores.MemoryStore(), list[list[str]]()

    def look(operation: str, key: str) -> bool:
        with contextlib.suppress(NodeNotFoundError):
            seen.append([path for path, _ in sync.open_group(memory).members(None)])
        return False

    dest = FaultyStore(memory, fails=look)
    if is_planned:
        plan = await api(api.plan_copy(source, dest, zarr_format=zarr_format))
        await api(plan.run())
        await api(plan.finish())
    else:
        await api(api.copy(source, dest, zarr_format=zarr_format))
    assert seen
    assert all(sorted(names) == ["inner", "inner/sparse", "scalar", "x"] for names in seen)


async def test_a_plan_that_is_abandoned_after_finish_has_failed(api: Api, source: Path):
    """The documents that it has stored are erased with the values."""
    memory, is_down = stores.MemoryStore(), False
    dest = FaultyStore(memory, fails=lambda operation, key: is_down and (operation, key) == ("put", "zarr.json"))
    plan = await api(api.plan_copy(source, dest))
    await api(plan.run())
    is_down = True
    with pytest.raises(StoreError):
        await api(plan.finish())
    assert "x/zarr.json" in memory.values
    is_down = False
    await api(plan.abandon())
    assert memory.values == {}
    await api(api.copy(source, dest))
