"""Kinds of source files, on local disks and on servers, joined along a dimension."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import fsspec
import fsspec.asyn
import numpy as np
import pytest

from tests.support.api import Api
from tests.support.servers import http_server
from zarrasync import FileOptions, sync
from zarrasync.bulk.files.sources import identify
from zarrasync.bulk.files.sources.headers import ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.identify import find_files
from zarrasync.bulk.files.sources.readers import LocalCopies, OpenFiles
from zarrasync.cli import main
from zarrasync.errors import NodeExistsError, ShapeError

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.dying import in_child
from tests.support.netcdf import PACKED, assert_same, day, joined, write_days

KINDS: dict[str, dict[str, Any]] = {
    "netcdf3": {},
    "netcdf4": {"group": "a/b"},
    "hdf5": {"dims": "time,lat,lon"},
    "npy": {"dims": "time,lat,lon"},
    "npz": {"dims": "time,lat,lon"},
    "geotiff": {"concat": "number"},
    "zarr2": {},
    "zarr3": {},
    "unknown": {"engine": "h5netcdf"},
}


def write(kind: str, folder: Path) -> list[str]:
    """Write two files, and return their names."""
    folder.mkdir()
    for number in range(2):
        dataset = day(number)
        if kind == "netcdf3":
            dataset.to_netcdf(folder / f"{number}.nc", format="NETCDF3_64BIT", engine="scipy", encoding=PACKED)
        elif kind == "netcdf4":
            dataset.to_netcdf(folder / f"{number}.nc", group="a/b", encoding=PACKED)
        elif kind == "unknown":
            dataset.to_netcdf(folder / f"{number}.dat", engine="h5netcdf")
        elif kind == "hdf5":
            h5py = pytest.importorskip("h5py")
            with h5py.File(folder / f"{number}.h5", "w") as file:
                file["t2m"] = dataset.t2m.values
        elif kind == "npy":
            np.save(folder / f"{number}.npy", dataset.t2m.values)
        elif kind == "npz":
            np.savez(folder / f"{number}.npz", t2m=dataset.t2m.values)
        elif kind == "geotiff":
            pytest.importorskip("rioxarray")
            dataset.t2m[0].rename(lat="y", lon="x").rio.to_raster(folder / f"{number}.tif")
        else:
            dataset.to_zarr(folder / f"{number}.zarr", zarr_format=int(kind[-1]), consolidated=True)
    return sorted(path.name for path in folder.iterdir())


def expected(kind: str) -> Any:
    parts = [day(number).t2m.values for number in range(2)]
    return np.stack([part[:1] for part in parts]) if kind == "geotiff" else np.concatenate(parts)


def stored(store: Any, kind: str) -> Any:
    name = {"npy": "values", "geotiff": "band_data"}.get(kind, "t2m")
    with xr.open_dataset(store, engine="zarrasync") as dataset:
        return dataset[name].values


@pytest.mark.filterwarnings("ignore")  # of rasterio about images without coordinates, of zarr about consolidation
@pytest.mark.parametrize("kind", KINDS)
async def test_kinds_of_files(api: Api, tmp_path: Path, kind: str, s3: tuple[str, dict[str, Any]]):
    names = write(kind, folder := tmp_path / "files")
    (url, options), arguments = s3, {"concat": "time", **KINDS[kind]}
    fsspec.filesystem("s3", **options).put(str(folder), url.removeprefix("s3://"), recursive=True)
    with http_server(folder) as server:
        places: list[tuple[Any, dict[str, Any]]] = [
            (str(folder / "*"), {}),
            ([f"file://{folder}/{name}" for name in names], {}),
            (f"{url}/*", {"source_options": options}),
            ([f"{server}/{name}" for name in names], {}),
        ]
        for source, own in places:
            report = await api(api.ingest(source, store := {}, verify=True, **arguments, **own))
            assert report.files == 2
            np.testing.assert_allclose(stored(store, kind), expected(kind), atol=0.01)


@pytest.mark.servers
@pytest.mark.parametrize("place", ["local", "s3"])
async def test_chunks_of_a_hierarchy_that_change(api: Api, tmp_path: Path, place: str, s3: tuple[str, dict[str, Any]]):
    """The documents stay as they are when values are written in place."""
    folder, source_options = (tmp_path, None) if place == "local" else s3
    sources = [f"{folder}/{number}.zarr" for number in range(2)]
    options: dict[str, Any] = {"concat": "time", "append": True, "source": FileOptions(storage_options=source_options)}
    for number, source in enumerate(sources):
        group = sync.create_group(source, storage_options=source_options)
        times = np.arange(4 * number, 4 * number + 4)
        for name, values in (("time", times), ("v", times * 10)):
            group.create_array(name, data=values, chunks=2, compressors=None, dimension_names=["time"])
    await api(api.ingest_files(sources, store := {}, **options))
    assert (await api(api.ingest_files(sources, store, **options))).known == 2
    sync.open_array(sources[1], path="v", mode="r+", storage_options=source_options)[3] = 99
    with pytest.raises(ShapeError, match="on_duplicate"):
        await api(api.ingest_files(sources, store, **options))
    report = await api(api.ingest_files(sources, store, on_duplicate="replace", **options))
    assert (report.known, report.files) == (1, 1)
    assert sync.open_array(store, path="v")[:].tolist() == [0, 10, 20, 30, 40, 50, 60, 99]


async def test_linked_arrays_of_a_hierarchy_that_change(api: Api, tmp_path: Path):
    """Links may lead in a circle."""
    group = sync.create_group(source := tmp_path / "a.zarr")
    for name, values in (("time", np.arange(4)), ("v", np.arange(4) * 10)):
        group.create_array(name, data=values, chunks=2, compressors=None, dimension_names=["time"])
    (source / "v").rename(tmp_path / "elsewhere")
    (source / "v").symlink_to(tmp_path / "elsewhere")
    (source / "circle").symlink_to(source)
    options: dict[str, Any] = {"concat": "time", "append": True, "source": FileOptions(variables=["v"])}
    await api(api.ingest_files(source, store := {}, **options))
    assert (await api(api.ingest_files(source, store, **options))).known == 1
    sync.open_array(source, path="v", mode="r+")[3] = 99
    await api(api.ingest_files(source, store, on_duplicate="replace", **options))
    assert sync.open_array(store, path="v")[:].tolist() == [0, 10, 20, 99]


async def test_packages_that_do_not_exist(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("xarray.backends.list_engines", lambda: {"scipy": None})
    for name, message in [("a.grib2", "needs the engine cfgrib .* cfgrib"), ("a.tif", "rasterio .* rioxarray")]:
        (tmp_path / name).write_bytes(b"?")
        with pytest.raises(ImportError, match=message):
            await api(api.ingest(tmp_path / name, {}, concat="time"))
    (tmp_path / "a.xyz").write_bytes(b"?")
    with pytest.raises(ImportError, match="engine="):
        await api(api.ingest(tmp_path / "a.xyz", {}, concat="time"))


@pytest.mark.servers
async def test_signatures_are_not_recorded(api: Api, tmp_path: Path):
    write_days(tmp_path / "nc", [0])
    with http_server(tmp_path / "nc") as server:
        urls = [f"{server}/day0.nc?version=1&X-Amz-Signature={word}&sig={word}" for word in ("secret1", "secret2")]
        await api(api.ingest(urls[0], store := {}, concat="time"))
        assert "secret" not in json.dumps({key: str(bytes(value)) for key, value in store.items()})
        assert (await api(api.ingest(urls[1], store, concat="time"))).known == 1
        with pytest.raises(ValueError, match=r"day0.nc: ") as caught:
            await api(api.ingest(urls[0], {}, concat="time", engine="scipy"))
        assert "secret" not in str(caught.value)


@pytest.mark.servers
def test_a_plan_with_other_signatures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A plan whose signatures have expired is made again."""
    paths = write_days(tmp_path / "nc", range(2))
    out, plan = str(tmp_path / "out.zarr"), str(tmp_path / "plan.json")
    with http_server(tmp_path / "nc") as server:
        for word in ("secret1", "secret2"):
            urls = [f"{server}/{path.name}?X-Amz-Signature={word}" for path in paths]
            assert main(["ingest", "plan", *urls, out, "--concat", "time", "--plan", plan]) == 0
            assert word not in Path(plan).read_text()
            assert main(["ingest", "run", plan]) == 0
        assert main(["ingest", "finish", plan]) == 0
        assert_same(out, joined(paths))
    assert "lacks the credentials in the URLs of 2 files" in capsys.readouterr().out


async def test_a_file_that_changes_meanwhile(api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (path,) = write_days(tmp_path / "nc", [0])
    words = ["ingest", "plan", str(path), str(tmp_path / "out.zarr"), "--concat", "time", "--plan", str(tmp_path / "p")]
    assert main(words) == 0
    day(1).to_netcdf(path, encoding=PACKED)
    assert main(["ingest", "run", str(tmp_path / "p")]) == 1
    assert "has changed since the job was planned" in capsys.readouterr().err


@pytest.mark.servers
def test_copies_stay_within_their_limit(tmp_path: Path):
    for number in range(40):
        (tmp_path / f"{number}.nc").write_bytes(bytes(1000))
    with http_server(tmp_path) as server:
        files = find_files([f"{server}/{number}.nc" for number in range(40)], {})
        copies = LocalCopies({}, most_bytes=3500)
        kept = ExitStack()
        paths = [Path(path) for path in kept.enter_context(copies.use(files, nullcontext()))]
        assert paths == [Path(copies.acquire(file)) for file in files]
        assert all(path.exists() for path in paths)
        kept.close()
        for file in files:
            copies.release(file)
        assert [path.exists() for path in paths] == [True] * 3 + [False] * 37  # those that are needed next
        assert Path(copies.acquire(files[3], for_values=True)).read_bytes() == bytes(1000)
        copies.release(files[3])  # over the limit: it has been read, so it is not needed any more
        assert len(list(paths[0].parent.glob("*.nc"))) == 3
        with copies.use(files[:3], nullcontext()) as again:
            assert again == [str(path) for path in paths[:3]]
        assert [path.exists() for path in paths] == [True] * 3 + [False] * 37
        missing = SourceFile(f"{server}/missing.nc")
        with pytest.raises(FileNotFoundError), copies.use([files[1], missing], nullcontext()):
            pass
        folder = paths[0].parent
        copies.close()
        assert not folder.exists()


@pytest.mark.servers
def test_copies_without_a_folder_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The next call does not wait for the one that has failed."""
    (tmp_path / "0.nc").write_bytes(bytes(1000))
    with http_server(tmp_path) as server:
        (file,), copies, paths = find_files([f"{server}/0.nc"], {}), LocalCopies({}), list[str]()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(FileNotFoundError):
            copies.acquire(file)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        again = threading.Thread(target=lambda: paths.append(copies.acquire(file)), daemon=True)
        again.start()
        again.join(30)
        assert [Path(path).stat().st_size for path in paths] == [1000]
        copies.close()


@pytest.mark.servers
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only /proc lists the open files of a process")
@pytest.mark.parametrize("kind", ["netcdf3", "netcdf4"])
def test_deleted_copies_are_not_kept_open(tmp_path: Path, kind: str):
    folder = tmp_path / "nc"
    folder.mkdir()
    for number in range(3):
        engine: Literal["scipy", "netcdf4"] = "scipy" if kind == "netcdf3" else "netcdf4"
        chunks: dict[Any, Any] = {} if kind == "netcdf3" else {"t2m": {"chunksizes": (6, 6, 8)}}
        day(number).to_netcdf(folder / f"{number}.nc", engine=engine, encoding=chunks)
    with http_server(folder) as server:
        found = find_files([f"{server}/{number}.nc" for number in range(3)], {})
        files = OpenFiles(ReaderOptions())
        for limit in (1 << 30, 0):
            files._copies._most_bytes = limit
            with files.prepared(found):
                for number in (0, 1, 2, 0):
                    values = files.read(found[number], "t2m", (slice(2, 9), slice(0, 6), slice(0, 8)))
                    np.testing.assert_array_equal(values, day(number).t2m[2:9])
            kept = files._copies._folder
            assert kept is not None
            links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
            assert len({link for link in links if link.startswith(kept.name)}) == (3 if limit else 0)
        files.close()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def limit_space(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Leave space for copies of this size."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * limit))


def fetch_and_die(url: str) -> None:
    copies = LocalCopies({})
    copies.acquire(SourceFile(url))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes")
def test_copies_of_a_process_that_was_killed_are_deleted(tmp_path: Path, temporary: Path):
    (path,) = write_days(tmp_path / "nc", [0])
    url = path.as_uri()
    assert in_child(fetch_and_die, url) == -signal.SIGKILL
    assert len(list(temporary.glob("*/*.nc"))) == 1
    (temporary / "zarrasync-scratch-of-others").mkdir()
    one, two = LocalCopies({}), LocalCopies({})
    for copies in (one, two):
        copies.acquire(SourceFile(url))
    assert len(list(temporary.glob("*/*.nc"))) == 2
    for copies in (one, two):
        copies.close()
    assert [folder.name for folder in temporary.iterdir()] == ["zarrasync-scratch-of-others"]


@pytest.mark.servers
@pytest.mark.parametrize(("limit", "downloads"), [(8 << 30, [1, 1, 1, 1]), (30_000, [1, 1, 2, 2]), (0, [2, 2, 2, 2])])
async def test_each_file_is_downloaded_once_if_there_is_space(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, downloads: list[int]
):
    limit_space(monkeypatch, limit)
    paths, counts = write_days(tmp_path / "nc", range(4)), Counter[str]()
    with http_server(tmp_path / "nc", seen=counts.update) as server:
        urls = [f"{server}/{path.name}" for path in paths]
        await api(api.ingest(urls, out := tmp_path / "out.zarr", concat="time", chunks={"time": 24}))
    assert_same(out, joined(paths))
    assert [counts[f"GET /{path.name}"] for path in paths] == downloads


async def test_files_in_memory(api: Api, tmp_path: Path):
    """Their times are numbers in listings, and dates elsewhere."""
    memory = fsspec.filesystem("memory")
    for path in write_days(tmp_path / "nc", range(2)):
        memory.pipe(f"/stamps/{path.name}", path.read_bytes())
    await api(api.ingest("memory://stamps/*.nc", store := {}, concat="time", verify=True))
    report = await api(api.ingest([f"memory://stamps/day{n}.nc" for n in range(2)], store, concat="time"))
    assert (report.known, report.files) == (2, 0)
    memory.pipe("/stamps/day1.nc", memory.cat("/stamps/day1.nc"))
    with pytest.raises(NodeExistsError, match=r"day1.nc has changed since"):
        await api(api.ingest("memory://stamps/*.nc", store, concat="time"))
    memory.rm("/stamps", recursive=True)


@pytest.mark.servers
def test_listings_are_forgotten_where_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Threads share the filesystem of a server, which reads its listings on the thread of its event loop."""
    threads: list[Any] = []
    http = fsspec.get_filesystem_class("http")
    monkeypatch.setattr(
        http, "invalidate_cache", lambda self: threads.append(threading.current_thread()), raising=False
    )
    write_days(tmp_path, [0])
    with http_server(tmp_path) as server:
        assert find_files([f"{server}/day0.nc"], {})[0].size
    assert threads == [fsspec.asyn.iothread[0]]


def test_a_file_that_is_closed_while_a_thread_reads_it(tmp_path: Path):
    """A process keeps few files open, so other threads may close one right after this one has found it."""
    np.savez(tmp_path / "0.npz", values=np.arange(3))
    files = OpenFiles(ReaderOptions())
    file = find_files(tmp_path / "0.npz", {})[0]
    reader = files._get(file, file.url)
    files.close()
    assert reader.read("values", (slice(1, 3),)).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("url", "path", "name", "result"),
    [
        ("sftp://host/d/*.nc", "/d/*.nc", "/d/0.nc", "sftp://host/d/0.nc"),
        ("github://org:repo@main/d/*.nc", "d/*.nc", "d/0.nc", "github://org:repo@main/d/0.nc"),
        ("s3://bucket/*.nc", "bucket/*.nc", "bucket/0.nc", "s3://bucket/0.nc"),
        ("https://host/*.nc", "https://host/*.nc", "https://host/0.nc", "https://host/0.nc"),
        ("zip://*.nc::s3://bucket/a.zip", "*.nc", "0.nc", "zip://0.nc::s3://bucket/a.zip"),
    ],
)
def test_urls_of_files_keep_the_host_of_their_pattern(url: str, path: str, name: str, result: str):
    assert identify._address(name, url, path) == result


async def test_how_often_a_hierarchy_is_listed(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once for a call: listing all chunks of a source takes long."""
    group, listed, scan = sync.create_group(tmp_path / "a.zarr"), list[str](), os.scandir

    def scandir(path: Any = ".") -> Any:
        listed.append(str(path))
        return scan(path)

    group.create_array("v", data=np.arange(8.0).reshape(4, 2), chunks=(1, 2), dimension_names=["t", "x"])
    monkeypatch.setattr(os, "scandir", scandir)
    await api(api.ingest_files(tmp_path / "a.zarr", tmp_path / "out.zarr"))
    assert listed.count(str(tmp_path / "a.zarr" / "v" / "c")) == 1
    np.testing.assert_array_equal(sync.open_array(tmp_path / "out.zarr", path="v")[...], group["v"][...])
    listed.clear()
    assert main(["ingest", "check", str(tmp_path / "a.zarr")]) == 0
    assert listed.count(str(tmp_path / "a.zarr" / "v" / "c")) == 1
