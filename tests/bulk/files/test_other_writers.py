"""Other writers between the tasks of a job and its end: nothing is stored under wrong labels, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import FileOptions, stores, sync
from zarrasync.bulk.files.ingestion import run_ingestion
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.errors import NodeExistsError, ShapeError, UnsupportedOperation, WriteConflictError

xr = pytest.importorskip("xarray")
pytest.importorskip("h5netcdf")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_day(number: int, **others: Any) -> str:
    time = np.datetime64(f"2024-01-0{number}", "ns") + np.arange(2) * np.timedelta64(12, "h")
    values = {"t": (("time", "x"), np.full((2, 20_000), number, "f4")), **others}
    xr.Dataset(values, {"time": time}).to_netcdf(file := f"{number}.nc", engine="h5netcdf")
    return file


async def test_datasets_are_not_written_during_a_plan(api: Api):
    from zarrasync.integrations.xarray import write_dataset

    files = [write_day(number) for number in (1, 2, 3)]
    await api(api.ingest_files(files[0], "a.zarr", concat="time"))
    plans = [await api(api.plan_ingest(files[1], "a.zarr", concat="time", append=True))]
    plans.append(await api(api.plan_ingest(files[1], "b.zarr", concat="time")))
    other = xr.open_dataset(files[2])
    cases: list[tuple[str, dict[str, Any]]] = [
        ("a.zarr", {"append_dim": "time"}),
        ("a.zarr", {"mode": "w"}),
        ("b.zarr", {}),
    ]
    for store, options in cases:
        with pytest.raises(WriteConflictError, match=r"a plan of 2\.nc .* is not finished"):
            write_dataset(other, store, **options)
    for plan in plans:
        await api(plan.run())
        await api(plan.finish())
    write_dataset(other, "a.zarr", append_dim="time")
    found = xr.open_zarr("a.zarr")
    assert found.t[:, 0].values.tolist() == [1, 1, 2, 2, 3, 3]
    xr.testing.assert_equal(found.time.load(), xr.concat([xr.open_dataset(file) for file in files], "time").time)
    assert xr.open_zarr("b.zarr").t[:, 0].values.tolist() == [2, 2]


async def test_rows_of_others_before_the_end_of_a_plan(api: Api):
    for number in range(2):
        np.save(f"{number}.npy", np.full((4, 20_000), number, "f4"))
    options: dict[str, Any] = {"concat": "time", "source": FileOptions(dims="time,x")}
    await api(api.ingest_files("0.npy", "a.zarr", **options))
    plan = await api(api.plan_ingest("1.npy", "a.zarr", append=True, **options))
    await api(plan.run())
    sync.open_array("a.zarr", path="values", mode="r+").append(np.full((4, 20_000), 77, "f4"))
    with pytest.raises(ShapeError, match="another writer changed the shape of /values"):
        await api(plan.finish())
    await api(plan.abandon())
    assert sync.open_array("a.zarr", path="values")[:, 0].tolist() == [0] * 4 + [77] * 4
    assert not list(Path("a.zarr/.ingest").glob("*"))


async def test_rows_without_values_of_integers(api: Api):
    """They would be numbers and dates, whether the variable begins later in one call or by appends, or rows are reserved."""
    counts = ("time", np.array([5, 6]))
    files = [write_day(1), write_day(2, n=counts)]
    source = FileOptions(optional=["n"])
    message = "some rows of 'n' would have no values"
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest_files(files, {}, concat="time", source=source))
    await api(api.ingest_files(files[0], store := {}, concat="time", source=source))
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest_files(files[1], store, concat="time", append=True, source=source))
    with pytest.raises(ShapeError, match=message):
        await api(api.ingest_files(files[1], {}, concat="time", reserve="2024-01-01/2024-01-03/12h"))

    def filled(dataset: Any) -> Any:
        return dataset.assign(n=dataset.n.assign_attrs(_FillValue=-1)) if "n" in dataset else dataset

    await api(api.ingest_files(files[1], store, concat="time", append=True, source=source, preprocess=filled))
    assert sync.open_array(store, path="n")[...].tolist() == [-1, -1, 5, 6]


async def test_files_that_do_not_exist(api: Api):
    write_day(1)
    Path("2.nc").symlink_to("nowhere")
    Path("3.nc").mkdir()
    report = await api(api.ingest_files(["?.nc", "4.nc"], "a.zarr", concat="time", on_bad_file="skip"))
    assert (report.files, len(report.bad_files)) == (1, 3)
    assert xr.open_zarr("a.zarr").t[:, 0].values.tolist() == [1, 1]


async def test_executors_that_lose_results(api: Api):
    files = [write_day(number) for number in (1, 2, 3)]

    def drop(function: Any, items: Any) -> list[Any]:
        return [function(item) for item in list(items)[:-1]]

    def forget(function: Any, items: Any) -> None:
        for item in items:
            function(item)

    for executor in (drop, forget):
        with pytest.raises(UnsupportedOperation, match="must return the result of each item"):
            await api(api.ingest_files(files, store := {}, concat="time", executor=executor))
        await api(api.ingest_files(files, store, concat="time"))
        assert sync.open_array(store, path="t")[:, 0].tolist() == [1, 1, 2, 2, 3, 3]


async def test_another_preprocess(api: Api):
    files = [write_day(number) for number in (1, 2)]
    await api(api.ingest_files(files[0], store := {}, concat="time", preprocess=lambda dataset: dataset * 2))
    report = await api(api.ingest_files(files[1], store, concat="time", append=True))
    assert any("preprocess is none, but the dataset was created with" in note for note in report.notes)


def test_options_show_no_secrets():
    source = FileOptions(storage_options={"secret": "TOPSECRET"}, engine_options={"token": "TOPSECRET"})
    assert "TOPSECRET" not in repr(source)


async def test_names_and_dimensions_of_archives(api: Api):
    values: dict[str, Any] = {"a": np.arange(3), "a/b": np.arange(3)}
    np.savez("a.npz", **values)
    with pytest.raises(NodeExistsError, match="cannot be created below the array"):
        await api(api.ingest_files("a.npz", {}))
    np.savez("b.npz", a=np.arange(3), b=np.zeros((2, 2)))
    await api(api.ingest_files("b.npz", "b.zarr"))
    assert xr.open_zarr("b.zarr").sizes == {"a_dim_0": 3, "b_dim_0": 2, "dim_1": 2}
    np.savez("c.npz", a=np.zeros(2, [("x", "f4")]))
    with pytest.raises(ShapeError, match="it has the fields x"):
        await api(api.ingest_files("c.npz", {}))


async def test_a_group_without_variables_waits_for_other_jobs(tmp_path: Path):
    """Replacing the dataset of another job would erase it."""
    source = sync.create_group(tmp_path / "source.zarr", attributes={"a": 1})
    source.create_array("inner/x", data=np.arange(4), dimension_names=("x",))
    out = tmp_path / "out.zarr"
    sync.create_array(out, path="precious", data=np.arange(3))
    claim = Claim(stores.LocalStore(out), "")
    claim.acquire(0)
    replacement = parameters_of(files=tmp_path / "source.zarr", store=out, mode="w", wait=0)
    with pytest.raises(WriteConflictError, match="another job writes / in"):
        await run_ingestion(replacement)
    np.testing.assert_array_equal(sync.load(out, path="precious"), np.arange(3))
    claim.release()
    await run_ingestion(replacement)
    assert sync.open_group(out).attrs["a"] == 1
    assert not (out / ".ingest").exists()


async def test_all_groups_of_a_file(api: Api):
    tree = xr.DataTree.from_dict(
        {"/": xr.Dataset(attrs={"title": "all"}), "/a/b": xr.Dataset({"v": ("x", [1, 2])}, attrs={"n": 1})}
    )
    tree.to_netcdf("t.nc", engine="h5netcdf")
    for _ in range(2):
        report = await api(api.ingest_files("t.nc", "t.zarr", verify=True))
        assert report.left_out == []
    assert report.known == 1
    group = sync.open_group("t.zarr")
    assert (dict(group.attrs), dict(group["a/b"].attrs)) == ({"title": "all"}, {"n": 1})
    assert group["a/b/v"][...].tolist() == [1, 2]
