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
