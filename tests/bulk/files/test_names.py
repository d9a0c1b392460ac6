"""Names of source files: those with characters of patterns, and several names of one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.support.api import Api
from tests.support.servers import http_server
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.errors import NodeExistsError

NAMES = ["a[b].npz", "a*.npz", "a?.npz", "[0-9].npz"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files that each of the names would match as a pattern."""
    monkeypatch.chdir(tmp_path)
    for name in ("ab.npz", "1.npz"):
        np.savez(tmp_path / name, v=np.zeros((1, 3)))
    return tmp_path


def values(store: Any) -> list[list[float]]:
    return sync.open_array(store, path="v")[...].tolist()


@pytest.mark.parametrize("form", ["relative", "absolute", "URL", "path"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_file_with_the_name_of_a_pattern(api: Api, folder: Path, name: str, form: str):
    np.savez(folder / name, v=np.ones((1, 3)))
    forms = {"relative": name, "absolute": str(folder / name), "URL": (folder / name).as_uri(), "path": folder / name}
    source: Any = forms[form]
    await api(api.ingest(source, store := {}))
    assert values(store) == [[1, 1, 1]]
    await api(api.ingest([source], store := {}, concat="time", dims="time,x"))
    assert values(store) == [[1, 1, 1]]
    await api(api.ingest(source, store := {}, concat="time", dims="time,x"))
    assert values(store) == [[1, 1, 1]]
    assert main(["ingest", str(source), "one.zarr"]) == 0
    assert main(["ingest", str(source), "many.zarr", "--concat", "time", "--dims", "time,x"]) == 0
    assert values("one.zarr") == values("many.zarr") == [[1, 1, 1]]


@pytest.mark.parametrize("name", NAMES)
async def test_arrays_with_the_name_of_a_pattern(api: Api, folder: Path, name: str):
    array, hierarchy = name.replace(".npz", ".npy"), name.replace(".npz", ".zarr")
    for other in ("ab", "1"):
        np.save(folder / f"{other}.npy", np.zeros(3))
    np.save(folder / array, np.ones(3))
    sync.create_array(hierarchy, data=np.ones(3))
    for number, source in enumerate([array, (folder / array).as_uri(), hierarchy, (folder / hierarchy).as_uri()]):
        await api(api.ingest(source, store := {}))
        assert sync.open_array(store)[...].tolist() == [1, 1, 1]
        assert main(["ingest", source, f"out{number}.zarr"]) == 0
        assert sync.open_array(f"out{number}.zarr")[...].tolist() == [1, 1, 1]


async def test_patterns_below_a_folder_with_such_a_name(api: Api, folder: Path):
    for name, value in (("data[1]", 1), ("data1", 0)):
        (folder / name).mkdir()
        np.savez(folder / name / "a.npz", v=np.full((1, 3), value))
    await api(api.ingest("data[1]/*.npz", store := {}, concat="time", dims="time,x"))
    assert values(store) == [[1, 1, 1]]
    await api(api.ingest("data[0-9]/*.npz", store := {}, concat="time", dims="time,x"))
    assert values(store) == [[0, 0, 0]]


async def test_a_name_that_does_not_exist_is_a_pattern(api: Api, folder: Path):
    report = await api(api.ingest("[0-9].npz", {}, concat="time", dims="time,x"))
    assert report.files == 1
    report = await api(api.ingest("*.npz", {}, concat="time", dims="time,x"))
    assert report.files == 2
    with pytest.raises(FileNotFoundError, match=r"no file matches 'x\[1\].npz'"):
        await api(api.ingest("x[1].npz", {}, concat="time"))


@pytest.mark.servers
@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("kind", ["memory", "s3"])
async def test_remote_files_with_the_name_of_a_pattern(
    api: Api, folder: Path, s3: tuple[str, dict[str, Any]], kind: str, name: str
):
    url, options = s3 if kind == "s3" else ("memory://names", {})
    np.savez(folder / name, v=np.ones((1, 3)))
    fs, path = fsspec.url_to_fs(url, **options)
    for local in (name, "ab.npz", "1.npz"):
        fs.pipe_file(f"{path}/{local}", (folder / local).read_bytes())
    source = f"{url}/{name}"
    await api(api.ingest(source, store := {}, source_options=options))
    assert values(store) == [[1, 1, 1]]
    await api(api.ingest([source], store := {}, concat="time", dims="time,x", source_options=options))
    assert values(store) == [[1, 1, 1]]
    told = [word for option in options.items() for word in ("--option", "=".join(option))]
    assert main(["ingest", source, "many.zarr", "--concat", "time", "--dims", "time,x", *told]) == 0
    assert values("many.zarr") == [[1, 1, 1]]
    fs.rm_file(f"{path}/{name}")
    report = await api(api.ingest(f"{url}/*.npz", {}, concat="time", dims="time,x", source_options=options))
    assert report.files == 2
    if kind == "memory":
        fs.rm(path, recursive=True)


@pytest.mark.servers
async def test_files_of_a_web_server_with_the_name_of_a_pattern(api: Api, folder: Path):
    np.savez(folder / "a[b].npz", v=np.ones((1, 3)))
    with http_server(folder, show_index=True) as url:
        await api(api.ingest(f"{url}/a[b].npz", store := {}))
        assert values(store) == [[1, 1, 1]]
        report = await api(api.ingest(f"{url}/*.npz", {}, concat="time", dims="time,x"))
        assert report.files == 3


async def test_erasing_a_directory_with_the_name_of_a_pattern():
    """Filesystems of fsspec would erase the directories that match it."""
    fs = fsspec.filesystem("memory")
    for name in ("a[b]", "ab"):
        sync.create_array(f"memory://erase/{name}/below", data=np.ones(3))
    store = stores.resolve("memory://erase")
    await store.erase_prefix("a[b]/")
    assert await store.list_prefix("") != []
    assert not fs.exists("/erase/a[b]")
    assert sync.open_array("memory://erase/ab/below")[...].tolist() == [1, 1, 1]
    fs.rm("/erase", recursive=True)


# ------------------------------------------------------------------ several names of one file

FORMS = ["a.{}", "./a.{}", "sub/../a.{}", "{root}/a.{}", "file://{root}/a.{}", "link.{}", "linked/a.{}"]


@pytest.fixture
def named(folder: Path) -> Path:
    """A folder with files of several formats, which have several names."""
    xr = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    values = np.arange(12.0).reshape(3, 4)
    np.save("a.npy", values)
    np.savez("a.npz", u=values, v=np.arange(3.0))
    xr.Dataset({"t2m": (("time", "x"), values)}).to_netcdf("a.nc")
    xr.Dataset({"t2m": (("time", "x"), values)}, {"time": [0, 1, 2]}).to_netcdf("labels.nc")
    sync.create_array("a.zarr", data=values)
    (folder / "sub").mkdir()
    (folder / "linked").symlink_to(".")
    for kind in ("npy", "npz", "nc", "zarr"):
        (folder / f"link.{kind}").symlink_to(f"a.{kind}")
    return folder


async def ingest_by(api: Api, end: str, source: str, dest: str, **options: Any) -> str:
    """Ingest by the command line or by the API, and return the report of the API."""
    if end == "API":
        return str(await api(api.ingest(source, dest, **options)))
    words = [
        word for name, value in options.items() for word in ([f"--{name}"] if value is True else [f"--{name}", value])
    ]
    assert main(["ingest", source, dest, *words]) == 0
    return ""


def contents(dest: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(dest).rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["npy", "npz", "nc", "zarr"])
@pytest.mark.parametrize(("first", "second"), [("CLI", "API"), ("API", "CLI"), ("API", "API"), ("CLI", "CLI")])
async def test_both_front_ends_know_a_file_of_the_other(api: Api, named: Path, kind: str, first: str, second: str):
    """Nothing is written a second time, whatever the name; a link to a file of a dataset is another name of it."""
    dest = f"{first}.zarr"
    await ingest_by(api, first, f"a.{kind}", dest)
    before = contents(dest)
    for form in FORMS:
        is_link = "link" in form
        if is_link and kind in ("npz", "nc"):
            continue  # which is an error: see test_links
        report = await ingest_by(api, second, form.format(kind, root=named), dest)
        is_dataset = kind in ("npz", "nc")
        assert report == "" or (not is_dataset and "0 blocks written" in report) or "ingested before: nothing" in report
        assert contents(dest) == before
    for path, data in before.items():
        assert str(named).encode() not in data, path


@pytest.mark.parametrize("name", ["a.nc", "labels.nc"])
@pytest.mark.parametrize("form", FORMS[:5])
async def test_rows_of_an_array_are_not_appended_again(api: Api, named: Path, name: str, form: str):
    import xarray as xr

    source = form.format("nc", root=named).replace("a.nc", name)
    assert main(["ingest", name, "out.zarr"]) == 0
    report = await api(api.ingest(source, "out.zarr", concat="time", append=True))
    assert (report.known, report.files) == (1, 0)
    labels = {} if name == "a.nc" else {"time": [3, 4, 5]}
    xr.Dataset({"t2m": (("time", "x"), np.ones((3, 4)))}, labels).to_netcdf("next.nc")
    report = await api(api.ingest("next.nc", "out.zarr", concat="time", append=True))
    assert report.files == 1
    for _ in range(2):
        report = await api(api.ingest([source, "next.nc"], "out.zarr", concat="time", append=True))
        assert (report.known, report.files) == (2, 0)
    assert main(["ingest", source, "out.zarr", "--concat", "time", "--append"]) == 0
    assert sync.open_array("out.zarr/t2m").shape == (6, 4)
    assert sync.open_array("out.zarr/t2m")[:3].tolist() == np.arange(12.0).reshape(3, 4).tolist()


async def test_a_file_of_which_the_destination_has_a_part(api: Api, named: Path):
    assert main(["ingest", "a.npz", "out.zarr", "--variable", "u"]) == 0
    with pytest.raises(NodeExistsError, match=r"other parameters \(chunks, encoding, variables or decode\)"):
        await api(api.ingest("a.npz", "out.zarr"))
    assert (await api(api.ingest("a.npz", "out.zarr", mode="w"))).files == 1  # as the message advises
