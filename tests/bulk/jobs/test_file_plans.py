"""Plans of ingestions, whose tasks run in any process and in any order."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.server_client import serving
from tests.support.servers import http_server
from zarrasync import FileOptions, Layout, stores, sync
from zarrasync.errors import (
    MetadataError,
    NodeNotFoundError,
    ReadOnlyError,
    StoreError,
    UnsupportedOperation,
    WriteConflictError,
)

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import assert_same, joined, visible_length, write_days

LAYOUT = Layout(chunks={"time": 24, "lat": 3})
ROWS: dict[str, Any] = {"concat": "time", "layout": LAYOUT, "tasks": 3}
RUN = "import sys; from zarrasync import sync; sync.open_plan(sys.argv[1]).run(int(sys.argv[2]))"


class WithoutErasing(stores.WrapperStore):
    """Refuses to erase, like a bucket whose policy allows no deletes."""

    async def erase(self, key: str, **options: Any) -> None:
        raise PermissionError(13, "AccessDenied")

    async def erase_values(self, keys: Any) -> None:
        raise StoreError("AccessDenied", key="")


def names(folder: Path) -> list[str]:
    """Return the paths of all files."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ------------------------------------------------------------------ tasks


async def test_tasks_in_any_order(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    plan = await api(api.plan_ingest(paths, out, **ROWS))
    assert (plan.kind, plan.location) == ("ingest", str(out))
    assert [task.number for task in plan.tasks] == [0, 1, 2]
    assert sum(task.nbytes for task in plan.tasks) == 3 * 24 * 6 * 8 * 2  # packed values
    for number in reversed(range(3)):
        assert visible_length(out) == 0
        report = await api((await api(api.open_plan(out))).run(number, verify=True))
        assert report.verified == report.blocks > 0
    assert (await api(plan.run(2))).skipped == 1
    for beyond in (3, 10**6):
        assert (await api(plan.run(beyond))).blocks == 0
    report = await api(plan.finish(verify=True))
    assert (report.files, report.rows) == (3, 72)
    assert_same(out, joined(paths))
    assert not (out / ".ingest").exists()
    with pytest.raises(NodeNotFoundError, match="there is no plan"):
        await api(api.open_plan(out))
    with pytest.raises(WriteConflictError, match="it was finished, abandoned, or replaced"):
        await api(plan.run())
    assert "the plan was finished before" in (await api(plan.finish())).notes


@pytest.mark.processes
@pytest.mark.parametrize("name", ["", "job.plan"])
def test_tasks_in_other_processes(tmp_path: Path, name: str):
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    plan = sync.plan_ingest(paths, out, plan=tmp_path / name if name else None, **ROWS)
    assert plan.location == str(tmp_path / (name or "out.zarr"))
    started = [subprocess.Popen([sys.executable, "-c", RUN, plan.location, str(task.number)]) for task in plan.tasks]
    assert [process.wait() for process in started] == [0] * len(plan.tasks)
    sync.open_plan(plan.location).finish()
    assert_same(out, joined(paths))
    assert not (tmp_path / "job.plan").exists()


@pytest.mark.processes
async def test_tasks_on_an_executor(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    plan = await api(api.plan_ingest(paths, out, **ROWS))
    assert (await api(plan.run(executor=2))).blocks
    await api(plan.finish())
    assert_same(out, joined(paths))


async def test_finish_needs_all_tasks(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    plan = await api(api.plan_ingest(paths, out, **ROWS))
    await api(plan.run([1, 2]))
    with pytest.raises(NodeNotFoundError, match="1 task of 3 has not been run, the first is 0"):
        await api(plan.finish())
    assert (await api(plan.run())).skipped == 2
    await api(plan.finish())
    assert_same(out, joined(paths))


async def test_a_group_in_the_destination(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    plan = await api(api.plan_ingest(paths, out, path="a/b", **ROWS))
    assert plan.location == plan.explain().destination == str(out / "a" / "b")
    for opened in (await api(api.open_plan(plan.location)), await api(api.open_plan(out, path="a/b"))):
        assert opened.to_json() == plan.to_json()
    with pytest.raises(NodeNotFoundError):
        await api(api.open_plan(out))
    await api(opened.run())
    await api(opened.finish())
    assert_same(out / "a" / "b", joined(paths))


async def test_plans_can_be_pickled(api: Api, tmp_path: Path):
    """Also those of stores without a name, which have no document."""
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    for number, dest in enumerate((stores.LocalStore(out), out)):
        append = bool(number)
        plan = await api(api.plan_ingest(paths[: 1 + number], dest, append=append, **ROWS))
        assert (plan.location == "") == (not number)
        copy = pickle.loads(pickle.dumps(plan))
        assert copy.tasks == plan.tasks
        await api(copy.run())
        await api(pickle.loads(pickle.dumps(copy)).finish())
    assert_same(out, joined(paths))


async def test_a_store_in_memory(api: Api, tmp_path: Path):
    paths, store = write_days(tmp_path / "nc", range(2)), stores.MemoryStore()
    plan = await api(api.plan_ingest(paths, store, **ROWS))
    assert plan.location == ""
    await api(plan.run())
    await api(plan.finish())
    np.testing.assert_array_equal(sync.open_array(store, path="mask")[:], joined(paths).mask)


async def test_without_permission_to_erase(api: Api, tmp_path: Path):
    """Notes say that they are finished. A later, equal plan runs its tasks again, and other jobs are not kept away."""
    paths, inner = write_days(tmp_path / "nc", range(4)), stores.MemoryStore()
    store = WithoutErasing(inner)
    await api(api.ingest_files(paths[:3], store, concat="time", layout=LAYOUT))
    for _ in range(2):
        plan = await api(api.plan_ingest(paths[:3], store, region="auto", concat="time", tasks=3))
        with pytest.raises(NodeNotFoundError, match="3 tasks of 3 have not been run"):
            await api(plan.finish())
        for task in plan.tasks:
            assert (await api(plan.run(task.number))).blocks > 0
        assert (await api(plan.run(0))).skipped == 1
        await api(plan.finish())
        notes = sorted(key for key in await inner.list_prefix(".ingest/"))
        assert ".ingest/plan.json" not in notes  # a plan in memory has no document
        assert {bytes(await inner.get(key)) for key in notes} == {b'{"finished": true}'}
        assert_same(inner, joined(paths[:3]), engine="zarrasync")
        sync.open_array(inner, path="t2m", mode="r+")[30] = 0
    plan = await api(api.plan_ingest(paths[3:], store, concat="time", append=True))
    await api(plan.run())
    await api(plan.abandon())  # its rows are invisible
    await api(api.ingest_files(paths[3:], store, concat="time", append=True))
    assert sync.open_array(inner, path="t2m").shape[0] == 4 * 24


@pytest.mark.parametrize("kind", ["ingest", "copy", "pyramid"])
async def test_a_plan_of_new_arrays_is_not_abandoned_without_permission_to_erase(api: Api, tmp_path: Path, kind: str):
    source, inner = tmp_path / "source.zarr", stores.MemoryStore()
    store = WithoutErasing(inner)
    sync.create_array(source, path="0", data=np.arange(64.0).reshape(8, 8), chunks=(4, 4), dimension_names=("y", "x"))
    if kind == "ingest":
        plan = await api(api.plan_ingest(write_days(tmp_path / "nc", range(2)), store, concat="time", layout=LAYOUT))
    elif kind == "copy":
        plan = await api(api.plan_copy(source, store))
    else:
        plan = await api(api.plan_pyramid(source, path="0", dest=store, levels=2))
    await api(plan.run())
    before = {key: await inner.get(key) for key in await inner.list() if ".ingest/" not in key}
    with pytest.raises(StoreError, match="cannot be abandoned"):
        await api(plan.abandon())
    assert {key: await inner.get(key) for key in await inner.list() if ".ingest/" not in key} == before
    assert (await api(plan.run())).skipped == len(plan.tasks)
    await api(plan.finish())
    sync.open_group(inner)


async def test_a_document_elsewhere_that_cannot_be_erased(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It says that the plan is finished. A document that does not exist is not made."""
    paths, file, dest = write_days(tmp_path / "nc", range(2)), tmp_path / "job.plan", tmp_path / "out.zarr"
    plan, other = [
        await api(api.plan_ingest(paths, place, concat="time", layout=LAYOUT, plan=name))
        for place, name in ((dest, file), (tmp_path / "other.zarr", tmp_path / "other.plan"))
    ]
    (tmp_path / "other.plan").unlink()
    for each in (plan, other):
        await api(each.run())
    with monkeypatch.context() as patch:
        patch.setattr(stores.LocalStore, "erase", WithoutErasing.erase)
        for each in (plan, other):
            await api(each.finish())
    assert file.read_bytes() == b'{"finished": true}'
    assert not (tmp_path / "other.plan").exists()
    with pytest.raises(NodeNotFoundError, match="was finished"):
        await api(api.open_plan(file))


# ------------------------------------------------------------------ places


@pytest.mark.servers
async def test_an_object_store(
    api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    """Another machine may have the files in another folder."""
    url, options = s3
    paths, dest = write_days(tmp_path / "nc", range(3)), f"{url}/out.zarr"
    monkeypatch.chdir(tmp_path)
    plan = await api(api.plan_ingest("nc/*.nc", dest, storage_options=options, **ROWS))
    assert plan.location == dest
    document = json.dumps(plan.to_json())
    assert str(tmp_path) not in document
    assert '"nc/day0.nc"' in document
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (tmp_path / "nc").rename(moved / "nc")
    with pytest.raises((FileNotFoundError, ValueError), match="nc"):
        await api((await api(api.open_plan(dest, storage_options=options))).run(0))
    opened = await api(api.open_plan(dest, source_root=moved, storage_options=options))
    await api(opened.run([0, 1]))
    monkeypatch.chdir(moved)
    await api((await api(api.open_plan(dest, storage_options=options))).run())
    await api(opened.finish(verify=True))
    with xr.open_dataset(dest, engine="zarrasync", storage_options=options) as found:
        xr.testing.assert_equal(found.load(), joined([moved / "nc" / path.name for path in paths]))
    with pytest.raises(NodeNotFoundError, match="there is no plan"):
        await api(api.open_plan(dest, storage_options=options))


@pytest.mark.servers
@pytest.mark.parametrize("is_remote", [True, False])
async def test_a_document_beside_an_object_store(
    api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]], is_remote: bool
):
    url, options = s3
    paths, dest = write_days(tmp_path / "nc", range(2)), f"{url}/out.zarr"
    place = f"{url}/plans/job.json" if is_remote else str(tmp_path / "job.json")
    plan = await api(api.plan_ingest(paths, dest, plan=place, storage_options=options, **ROWS))
    assert plan.location == place
    opened = await api(api.open_plan(place, storage_options=options))
    assert opened.tasks == plan.tasks
    await api(opened.run())
    await api(opened.finish())
    with xr.open_dataset(dest, engine="zarrasync", storage_options=options) as found:
        xr.testing.assert_equal(found.load(), joined(paths))
    with pytest.raises(NodeNotFoundError, match="there is no plan"):
        await api(api.open_plan(place, storage_options=options))


async def test_a_document_needs_a_named_destination(api: Api, tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(1))
    with pytest.raises(UnsupportedOperation, match="was not opened by a path or URL"):
        await api(api.plan_ingest(paths, stores.LocalStore(tmp_path / "out.zarr"), plan=tmp_path / "job.plan", **ROWS))
    for place in (f"{tmp_path}/", "s3://bucket", "s3://bucket/", "s3://bucket/plan.json?x=1"):
        if place != f"{tmp_path}/":  # pathlib drops the slash
            with pytest.raises(ValueError, match="must be the path or the URL of a file"):
                await api(api.plan_ingest(paths, tmp_path / "out.zarr", plan=place, **ROWS))
    assert not (tmp_path / "out.zarr").exists()


async def test_a_plan_replaces_no_other_file(api: Api, tmp_path: Path):
    """A document is stored where nothing exists, or a plan for the same destination, which ended or was killed."""
    paths, out, other = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr", tmp_path / "other.zarr"
    node, document = tmp_path / "zarr.json", tmp_path / "job.plan"
    node.write_text('{"node_type": "group"}')
    for taken in (paths[0], node):
        before = taken.read_bytes()
        with pytest.raises(FileExistsError, match="the file exists, and is not a plan"):
            await api(api.plan_ingest(paths, out, plan=taken, **ROWS))
        assert taken.read_bytes() == before
        assert not out.exists()
    document.touch()
    plan = await api(api.plan_ingest(paths, out, plan=document, **ROWS))
    with pytest.raises(FileExistsError, match="not a plan for the same destination"):
        await api(api.plan_ingest(paths, other, plan=document, **ROWS))
    assert not other.exists()
    await api(api.create_array(source := tmp_path / "source.zarr", data=np.arange(4)))
    with pytest.raises(FileExistsError, match="not a plan for the same destination"):
        await api(api.plan_copy(source, other, plan=document))
    assert not other.exists()
    before = document.read_bytes()
    await api(plan.run())
    await api(plan.finish())
    document.write_bytes(before)  # as if the process had been killed before it erased the document
    plan = await api(api.plan_ingest(write_days(tmp_path / "nc", [3]), out, append=True, plan=document, concat="time"))
    await api(plan.run())
    await api(plan.finish())
    assert not document.exists()


async def test_archives_and_read_only_stores_have_no_plans(api: Api, tmp_path: Path):
    paths = write_days(tmp_path / "nc", range(1))
    archive = stores.ZipStore(tmp_path / "out.zip", mode="w")
    for dest in (archive, f"{tmp_path}/new.zip|zip:"):
        with pytest.raises(UnsupportedOperation, match="only one process can write an archive"):
            await api(api.plan_ingest(paths, dest, **ROWS))
    await archive.close()
    assert not (tmp_path / "new.zip").exists()
    for place in (None, tmp_path / "job.plan"):
        with pytest.raises(ReadOnlyError, match="no plan can be made"):
            await api(api.plan_ingest(paths, stores.ReadOnlyStore(stores.MemoryStore()), plan=place, **ROWS))
    assert not (tmp_path / "job.plan").exists()


async def test_damaged_documents(api: Api, tmp_path: Path):
    paths, file = write_days(tmp_path / "nc", range(1)), tmp_path / "job.plan"
    plan = await api(api.plan_ingest(paths, tmp_path / "out.zarr", plan=file, **ROWS))
    document = json.loads(file.read_text())
    for change in ({"version": 9}, {"kind": "x"}, {"dest": 5}, {"plan": {}}, {"plan": 5}, {"known": "x"}, {"notes": 5}):
        file.write_text(json.dumps({**document, **change}))
        with pytest.raises(MetadataError, match="plan"):
            await api(api.open_plan(file))
    file.write_text(json.dumps(document))
    await api((await api(api.open_plan(file))).abandon())
    assert plan.kind == "ingest"


# ------------------------------------------------------------------ ends


async def test_nothing_is_new(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    await api(api.ingest_files(paths, out, concat="time", layout=LAYOUT))
    before = names(out)
    for place in (None, tmp_path / "job.plan"):
        plan = await api(api.plan_ingest(paths, out, append=True, plan=place, **ROWS))
        assert plan.tasks == ()
        assert "nothing to do" in str(plan)
        opened = await api(api.open_plan(plan.location))
        assert opened.tasks == ()
        assert (await api(opened.run())).blocks == 0
        assert (await api(opened.run(0))).blocks == 0
        assert (await api(opened.finish())).known == 2
        assert names(out) == before
        assert not (out / ".ingest").exists()
        with pytest.raises(NodeNotFoundError, match="there is no plan"):
            await api(api.open_plan(plan.location))
    plan = await api(api.plan_ingest(paths, out, append=True, **ROWS))
    await api(plan.abandon())
    assert names(out) == before
    assert not (tmp_path / "job.plan").exists()


async def test_a_plan_that_is_abandoned(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    plan = await api(api.plan_ingest(paths[:1], out, **ROWS))
    await api(plan.run())
    await api((await api(api.open_plan(out))).abandon())
    assert not out.exists()
    await api(api.ingest_files(paths[:1], out, concat="time", layout=LAYOUT))
    plan = await api(api.plan_ingest(paths, out, append=True, **ROWS))
    await api(plan.run())
    await api(plan.abandon())
    with pytest.raises(WriteConflictError, match="it was finished, abandoned, or replaced"):
        await api(plan.finish())
    assert_same(out, joined(paths[:1]))
    assert not (out / ".ingest").exists()
    await api(api.ingest_files(paths, out, concat="time", append=True))
    assert_same(out, joined(paths))


@pytest.mark.parametrize("is_inside", [True, False])
async def test_a_lost_document(api: Api, tmp_path: Path, is_inside: bool):
    """The values of a new dataset are erased, and an existing one keeps its rows."""
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    file = out / ".ingest" / "plan.json" if is_inside else tmp_path / "job.plan"
    for append in (False, True):
        known = paths[: 1 + 2 * append]
        plan = await api(api.plan_ingest(known, out, append=append, plan=None if is_inside else file, **ROWS))
        await api(plan.run())
        file.unlink()
        lost = await api(api.open_plan(out))
        assert lost.tasks == ()
        assert "lost" in lost.notes[0]
        for call in (lost.run, partial(lost.run, 0), lost.finish):
            with pytest.raises(NodeNotFoundError, match="abandon the plan, and make it again"):
                await api(call())
        await api(lost.abandon())
        assert out.exists() == append
        if append:
            assert_same(out, joined(paths[:1]))
        await api(api.ingest_files(known, out, concat="time", layout=LAYOUT, append=append))
        assert_same(out, joined(known))


async def test_a_lost_plan_that_replaces_a_dataset(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    await api(api.ingest_files(paths, out, concat="time", layout=LAYOUT))
    plan = await api(api.plan_ingest(paths[:1], out, mode="w", **ROWS))
    await api(plan.run())
    (out / ".ingest" / "plan.json").unlink()
    await api((await api(api.open_plan(out))).abandon())
    assert visible_length(out) in (0, 48)
    await api(api.ingest_files(paths, out, concat="time", mode="w", layout=LAYOUT))
    assert_same(out, joined(paths))


@pytest.mark.parametrize("name", ["", "job.plan"])
async def test_a_late_finish_keeps_the_document_of_a_later_plan(api: Api, tmp_path: Path, name: str):
    """Calls may be repeated, for example by a scheduler."""
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    options = {**ROWS, "plan": tmp_path / name if name else None}
    first = await api(api.plan_ingest(paths[:2], out, **options))
    await api(first.run())
    await api(first.finish())
    nothing_new = await api(api.plan_ingest(paths[:2], out, append=True, **options))
    later = await api(api.plan_ingest(paths, out, append=True, **options))
    await api(first.finish())
    await api(nothing_new.finish())
    opened = await api(api.open_plan(later.location))
    assert opened.tasks == later.tasks
    await api(opened.run())
    await api(opened.finish())
    assert_same(out, joined(paths))


async def test_two_plans_for_one_destination(api: Api, tmp_path: Path):
    """An equal plan may be made again, as after a kill. Another one is refused, and changes no document."""
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    for number, place in enumerate((None, tmp_path / "job.plan")):
        options = {**ROWS, "plan": place, "append": True}
        plan = await api(api.plan_ingest(paths[: 1 + number], out, **options))
        again = await api(api.plan_ingest(paths[: 1 + number], out, **options))
        assert again.to_json() == plan.to_json()
        with pytest.raises(WriteConflictError, match="is not finished"):
            await api(api.plan_ingest(paths, out, **options))
        opened = await api(api.open_plan(plan.location))
        assert opened.to_json() == plan.to_json()
        await api(opened.run())
        await api(opened.finish())
    assert_same(out, joined(paths[:2]))


@pytest.mark.parametrize("is_inside", [True, False])
async def test_nothing_is_kept_if_the_plan_cannot_be_stored(api: Api, tmp_path: Path, is_inside: bool):
    paths, out, obstacle = write_days(tmp_path / "nc", range(1)), tmp_path / "out.zarr", tmp_path / "file"
    if is_inside:
        (out / ".ingest" / "plan.json").mkdir(parents=True)
    else:
        obstacle.write_text("")
    with pytest.raises(StoreError, match="plan"):
        await api(api.plan_ingest(paths, out, plan=None if is_inside else obstacle / "job.plan", **ROWS))
    assert not out.exists() or names(out) == []
    if is_inside:
        (out / ".ingest" / "plan.json").rmdir()
    await api(api.ingest_files(paths, out, concat="time"))
    assert_same(out, joined(paths))


# ------------------------------------------------------------------ secrets


@pytest.mark.servers
async def test_documents_contain_no_credentials(api: Api, tmp_path: Path):
    """The process that made the plan still has them. Other processes need their own."""
    paths, out = write_days(tmp_path / "nc", range(2)), tmp_path / "out.zarr"
    with http_server(tmp_path / "nc") as address:
        host = address.removeprefix("http://").rstrip("/")
        urls = [f"http://user:hunter2xyz@{host}/{path.name}?X-Amz-Signature=T0PSECRETT" for path in paths]
        source = FileOptions(storage_options={"headers": {"X-Key": "HEADERSECRET"}})
        plan = await api(api.plan_ingest(urls, out, source=source, **ROWS))
        stored = (out / ".ingest" / "plan.json").read_text()
        for text in (stored, json.dumps(plan.to_json()), repr(plan), str(plan.explain())):
            assert not re.search("hunter2xyz|T0PSECRETT|HEADERSECRET", text)
        opened = await api(api.open_plan(out))
        assert any("lacks the credentials in the URLs of 2 files" in note for note in opened.notes)
        await api(plan.run(0))
        await api(opened.run(source_options={"headers": {"X-Key": "HEADERSECRET"}}))  # this server needs none
        await api(opened.finish())
    assert_same(out, joined(paths))


async def test_documents_contain_no_secret_options_of_engines(api: Api, tmp_path: Path):
    paths, out = write_days(tmp_path / "nc", range(1)), tmp_path / "out.zarr"
    source = FileOptions(engine="netcdf4", engine_options={"drop_variables": "ftp://user:hunter2xyz@host/x"})
    plan = await api(api.plan_ingest(paths, out, source=source, **ROWS))
    assert "hunter2xyz" not in json.dumps(plan.to_json())
    assert "hunter2xyz" not in (out / ".ingest" / "plan.json").read_text()
    opened = await api(api.open_plan(out))
    assert "the document of the plan lacks the credentials in the options of the engine" in opened.notes[-1]
    await api(plan.run())
    await api(plan.finish())
    assert_same(out, joined(paths))


@pytest.mark.servers
async def test_credentials_of_an_object_store(
    api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]], aws_config: Path
):
    """Each call gets them, or the environment has them."""
    url, options = s3
    options = {**options, "secret": "hunter2xyz"}
    paths = write_days(tmp_path / "nc", range(1))
    plan = await api(
        api.plan_ingest(paths, f"{url}/out.zarr", plan=tmp_path / "job.plan", storage_options=options, **ROWS)
    )
    assert "hunter2xyz" not in (tmp_path / "job.plan").read_text()
    opened = await api(api.open_plan(tmp_path / "job.plan"))
    await api(opened.run(storage_options=options))
    await api(opened.finish(storage_options=options))
    assert plan.tasks == opened.tasks
    with xr.open_dataset(f"{url}/out.zarr", engine="zarrasync", storage_options=options) as found:
        xr.testing.assert_equal(found.load(), joined(paths))


# ------------------------------------------------------------------ readers of a dataset with a plan


@pytest.fixture
async def planned(api: Api, tmp_path: Path) -> tuple[Path, Any, list[Path]]:
    """A dataset of two files with the plan to append a third one, all tasks of which have run."""
    paths, out = write_days(tmp_path / "nc", range(3)), tmp_path / "out.zarr"
    await api(api.ingest_files(paths[:2], out, concat="time", layout=LAYOUT))
    plan = await api(api.plan_ingest(paths, out, append=True, **ROWS))
    await api(plan.run())
    assert (out / ".ingest" / "plan.json").exists()
    return out, plan, paths


async def test_readers_do_not_see_a_plan(api: Api, planned: tuple[Path, Any, list[Path]], tmp_path: Path):
    zarr = pytest.importorskip("zarr")
    out, plan, paths = planned
    members = {"t2m", "mask", "time", "lat", "lon"}
    group = zarr.open_group(out, mode="r", use_consolidated=False)
    with pytest.warns(zarr.errors.ZarrUserWarning, match=r"Object at \.ingest is not recognized"):
        assert {name for name, _ in group.members(max_depth=None)} == members
    with pytest.warns(zarr.errors.ZarrUserWarning, match=r"Object at \.ingest is not recognized"):
        found = xr.open_zarr(out, consolidated=False).load()
    xr.testing.assert_equal(found, joined(paths[:2]))
    assert {name for name, _ in sync.open_group(out, use_consolidated=False).members(None)} == members
    with xr.open_zarr(out) as found:  # without a warning
        xr.testing.assert_equal(found.load(), joined(paths[:2]))
    assert (await api(api.copy(out, tmp_path / "copy.zarr"))).left_out == []
    await api(api.copy(out, tmp_path / "all.zarr", all_files=True))
    for copied in ("copy.zarr", "all.zarr"):
        assert not (tmp_path / copied / ".ingest").exists()
        assert_same(tmp_path / copied, joined(paths[:2]))
        with pytest.raises(NodeNotFoundError):
            await api(api.open_plan(tmp_path / copied))
    await api(api.consolidate_metadata(out))
    assert ".ingest" not in (out / "zarr.json").read_text()
    await api(plan.finish())
    assert_same(out, joined(paths))


@pytest.mark.servers
async def test_the_server_hides_a_plan(planned: tuple[Path, Any, list[Path]]):
    out, plan, _ = planned
    async with serving(stores.LocalStore(out)) as client:
        assert (await client.get("/raw/zarr.json"))[0] == 200
        for name in ("plan.json", "claim"):
            for prefix in ("raw", "zarr"):
                assert (await client.get(f"/{prefix}/.ingest/{name}"))[0] == 404
    assert plan.tasks
