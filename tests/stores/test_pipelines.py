"""URL pipelines: adapters after a path or URL, in functions, the xarray engine, dask, the command line, and the server."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import dask.array
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

import zarrasync as za
from tests.support.api import Api
from tests.support.raw_answers import answering, sized
from tests.support.server_client import serving
from zarrasync import stores, sync
from zarrasync._util import plugins
from zarrasync.cli import main
from zarrasync.errors import NodeNotFoundError, StoreError, UnknownAdapterError, UnsupportedOperation
from zarrasync.integrations.dask import from_zarr, to_zarr
from zarrasync.integrations.xarray import write_dataset
from zarrasync.integrations.zarr import zarr_store
from zarrasync.stores.locations import Location

VALUES = np.arange(24).reshape(4, 6)


def zipped(folder: str = "") -> bytes:
    """Return an archive with groups of both formats, each with an array."""
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        for zarr_format in (2, 3):
            values: dict[str, bytes] = {}
            group = sync.create_group(values, zarr_format=zarr_format)
            group.create_array("t", data=VALUES, chunks=(2, 3))
            for key, value in values.items():
                archive.writestr(f"{folder}v{zarr_format}/{key}", value)
    return file.getvalue()


def nested() -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("a b/inner.zip", zipped())
    return file.getvalue()


async def check(api: Api, archive_url: str, options: dict[str, Any] | None = None) -> None:
    """Read an archive of both formats with every spelling of its URL."""
    for suffix in ("|zip:v3/t", "|zip:/v3/|zarr3:t", "|ZIP:|zarr:v3/t/", "| zip |zarr3:v3/t", "|zip:v2/|zarr2:t"):
        array = await api(api.open_array(archive_url + suffix, storage_options=options))
        np.testing.assert_array_equal(await api(array.view.read()), VALUES)
        assert array.zarr_format == (2 if "2" in suffix else 3)
    group = await api(api.open_group(f"{archive_url}|zip:v3", storage_options=options))
    assert [name for name, _ in await api(group.members())] == ["t"]
    with pytest.raises(NodeNotFoundError, match="of Zarr format 3"):
        await api(api.open(f"{archive_url}|zip:v2|zarr3:", storage_options=options))


@pytest.mark.parametrize(
    "root", ["a.zip", "file:a.zip", "file:{}/a.zip", "file://{}/a.zip", "file://localhost{}/a.zip"]
)
async def test_local_archives(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str):
    monkeypatch.chdir(tmp_path)
    Path("a.zip").write_bytes(zipped())
    await check(api, root.format(tmp_path))


async def test_archives_on_s3(api: Api, s3: tuple[str, dict[str, Any]]):
    url, options = s3
    store = stores.resolve(url, options)
    await store.set("x/a.zip", zipped())
    await check(api, f"{url}/x/a.zip", options)
    await check(api, f"{url}/x/a.zip", {**options, "backend": "fsspec"})
    await check(api, f"simplecache::{url}/x/a.zip", {"s3": options})


async def test_archives_on_web_servers(api: Api, http: tuple[str, Path]):
    url, folder = http
    (folder / "a b.zip").write_bytes(zipped())
    await check(api, f"{url}/a%20b.zip?token=1")
    (folder / "outer.zip").write_bytes(nested())
    await check(api, f"{url}/outer.zip|zip:a%20b/inner.zip")


async def test_directories(api: Api, tmp_path: Path, s3: tuple[str, dict[str, Any]]):
    url, options = s3
    for root, storage_options in ((f"{url}/d.zarr", options), (str(tmp_path / "d.zarr"), None)):
        await api(api.create_array(f"{root}|zarr2:", path="t", data=VALUES, storage_options=storage_options))
        array = await api(api.open_array(f"{root}/|zarr2:t", storage_options=storage_options))
        assert array.zarr_format == 2
        with pytest.raises(ValueError, match="omit zarr_format"):
            await api(api.open(f"{root}|zarr2:", zarr_format=3, storage_options=storage_options))


async def test_archives_are_written(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    await api(api.save("a.zip|zip:", VALUES))
    group = await api(api.create_group("b.zip|zip:inside|zarr2:"))
    await api(group.create_array("t", data=VALUES))
    assert not pickle.loads(pickle.dumps(stores.resolve("b.zip|zip:"))).writeable  # a copy that has not written reads
    with pytest.raises(StoreError, match="the store of its writer was closed"):
        await api(api.create_group("b.zip|zip:other"))
    await api(group.close())
    report = await api(api.copy("b.zip|zip:inside", "c.zip|zip:|zarr3:"))
    assert report.arrays == 1
    await api(api.ingest(VALUES, "d.zip|zip:|zarr2:", path="x"))
    del group
    for url, path in (("a.zip", ""), ("b.zip", "inside/t"), ("c.zip", "t"), ("d.zip", "x")):
        array = await api(api.open_array(url, path=path))
        np.testing.assert_array_equal(await api(array.view.read()), VALUES)
        assert array.zarr_format == (2 if url in ("b.zip", "d.zip") else 3)
    changed = await api(api.open_array("c.zip|zip:t", mode="r+"))
    await api(changed.view[0].write(7))
    await api(changed.close())
    assert (await api(api.load("c.zip", path="t")))[0].tolist() == [7] * 6
    assert zipfile.ZipFile("c.zip").testzip() is None


async def test_options_need_a_service(api: Api, tmp_path: Path):
    for root in (f"{tmp_path}/a.zip", f"file://{tmp_path}/a.zip"):
        with pytest.raises(TypeError, match="storage_options are for URLs"):
            await api(api.open(f"{root}|zip:", storage_options={"anon": True}))


async def test_reading_makes_no_archive(api: Api, tmp_path: Path):
    with pytest.raises(NodeNotFoundError, match=r"none\.zip' does not exist"):
        await api(api.open(f"{tmp_path}/none.zip|zip:"))
    assert not os.listdir(tmp_path)


async def test_existing_paths_are_paths(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A path that contains "|" is one, if it exists or is a Path."""
    monkeypatch.chdir(tmp_path)
    await api(api.create_array(Path("x.zip|zip:"), data=VALUES))
    assert os.listdir(tmp_path) == ["x.zip|zip:"]
    np.testing.assert_array_equal(await api(api.load("x.zip|zip:")), VALUES)


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("a.zip|ocdbt:x", UnknownAdapterError, r"unknown adapter 'ocdbt' in .*icechunk, .*zarr2, zarr3, zip;"),
        (
            "https://host/a.n5?sign=secret|n5:x",
            UnknownAdapterError,
            r"unknown adapter 'n5' in the URL 'https://host/a\.n5\?",
        ),
        (
            "s4://b/x.zarr",
            UnknownAdapterError,
            r"cannot open 's4://b/x.zarr': unknown protocol 's4'; did you mean 's3'\?",
        ),
        ("s4://b/x.zip|zip:", UnknownAdapterError, r"unknown protocol 's4'; did you mean 's3'\?"),
        ("htps://h/x", UnknownAdapterError, r"unknown protocol 'htps'; did you mean 'https'\?"),
        ("foo://h/x", UnknownAdapterError, "unknown protocol 'foo'; install an fsspec filesystem for foo://"),
        ("a|b c", ValueError, "'b c' .* is not an adapter, .*pathlib.Path"),
        ("a||zip:", ValueError, "is not an adapter"),
        ("https://h/x?a=1|2", ValueError, "'…' in 'https://h/x.…' is not an adapter, .*; write %7C for a '|'"),
        ("https://h/x?a=1|secret", UnknownAdapterError, "unknown adapter '…' in .*; write %7C for a '|'"),
        ("https://h/x|n5:", UnknownAdapterError, "write %7C"),
        ("s3://b/x|ocdbt:", UnknownAdapterError, "URL of a directory above with path="),
        ("a|zarr2:|zarr3:", ValueError, "'a.zarr2:' is followed by 'zarr3:', but names Zarr format 2"),
        ("https://h/x?s=secret|zarr3:a|zarr2:b", ValueError, "followed by 'zarr2:', but names Zarr format 3"),
        ("|zip:", ValueError, "does not start with a path or URL"),
        ("a.zip|zip:../x", ValueError, "not a valid"),
        ("a.zip|zip:|zip:", ValueError, "not a single value"),
        ("memory://r|icechunk:", ValueError, "icechunk cannot read a repository at 'memory://r'"),
    ],
)
async def test_malformed_pipelines(api: Api, tmp_path, monkeypatch, url: str, error: type[Exception], message: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        await api(api.create_array(url, data=VALUES))
    assert "secret" not in str(caught.value)
    assert not os.listdir(tmp_path)
    if isinstance(caught.value, UnknownAdapterError):
        assert caught.value.scheme in url
        assert "zip" in caught.value.known


@pytest.mark.parametrize("suffix", ["|zip:v3/t", "|zip:v3/|zarr3:t", "|zip:|zarr3:v3/t"])
async def test_an_archive_in_a_hierarchy_has_a_format_of_its_own(api: Api, tmp_path: Path, suffix: str):
    (tmp_path / "a.zip").write_bytes(zipped())
    array = await api(api.open_array(f"{tmp_path}|zarr2:a.zip{suffix}"))
    assert array.zarr_format == 3


@pytest.mark.servers
async def test_a_vertical_line_in_a_query():
    values: dict[str, bytes] = {}
    sync.create_array(values, data=VALUES)
    targets: list[str] = []

    def serve(request: bytes) -> tuple[bytes, bool]:
        targets.append(request.split()[1].decode())
        value = values.get(targets[-1].removeprefix("/").removesuffix("?sig=a%7Cb"))
        return (sized(status="HTTP/1.1 404 Not Found") if value is None else sized(body=value)), False

    async with answering(serve) as url:
        array = await za.open_array(f"{url}?sig=a%7Cb")
        np.testing.assert_array_equal(await array[...], VALUES)
    assert all(target.endswith("?sig=a%7Cb") for target in targets)


def repository(storage: Any) -> str:
    """Make a repository whose branch main is one commit after its tag v1. Return the snapshot of the tag."""
    repo = icechunk.Repository.create(storage)
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("t", data=VALUES, dimension_names=["x", "y"])
    group.create_group("deep/er").create_array("@t", data=VALUES)
    snapshot: str = session.commit("first")
    repo.create_tag("v1", snapshot)
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="t")[0] = -1
    session.commit("second")
    return snapshot


async def check_repository(api: Api, root: str, snapshot: str, options: dict[str, Any] | None = None) -> None:
    urls = ["", "@branch.main", "//branch.main", "@tag.v1/", "//tag.v1/", f"@{snapshot}", f"//{snapshot}/"]
    for version in urls:
        first = [-1] * 6 if version in urls[:3] else VALUES[0].tolist()
        for path in ("/t", "/|zarr3:t") if version else ("t", "|zarr3:t"):
            array = await api(api.open_array(f"{root}|icechunk:{version.rstrip('/')}{path}", storage_options=options))
            assert (await api(array.view[0].read())).tolist() == first, version
    group = await api(api.open_group(f"{root}|icechunk:", storage_options=options))
    names = [name for name, _ in await api(group.members(max_depth=None))]
    assert names == ["deep", "deep/er", "deep/er/@t", "t"]
    odd = await api(api.open_array(f"{root}|icechunk:deep/er/%40t", storage_options=options))
    assert odd.shape == (4, 6)


async def test_icechunk_repositories(api: Api, tmp_path: Path):
    root = f"{tmp_path}/r"
    snapshot = repository(icechunk.local_filesystem_storage(root))
    await check_repository(api, root, snapshot)
    await check_repository(api, f"file://{root}/", snapshot)
    array = await api(api.open_array(f"{root}|icechunk:t"))
    session = icechunk.Repository.open(icechunk.local_filesystem_storage(root)).writable_session("main")
    zarr.open_array(session.store, path="t")[0] = 5
    session.commit("third")
    for copy in (array, pickle.loads(pickle.dumps(array))):  # which stays at the snapshot
        assert (await api(copy.view[0, 0].read())).tolist() == -1
    with pytest.raises(StoreError, match=r"cannot open tag 'v2' .*its branches are \['main'\], its tags \['v1'\]"):
        await api(api.open(f"{root}|icechunk:@tag.v2"))
    with pytest.raises(StoreError, match="cannot open the icechunk repository"):
        await api(api.open(f"{tmp_path}/none|icechunk:"))
    with pytest.raises(UnsupportedOperation, match=r"writable_session\('main'\)"):
        await api(api.create_array(f"{root}|icechunk:", path="new", data=VALUES))


async def test_icechunk_repositories_on_s3(api: Api, s3: tuple[str, dict[str, Any]]):
    url, options = s3
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    storage = icechunk.s3_storage(
        bucket=bucket,
        prefix=f"{prefix}/r",
        endpoint_url=options["endpoint_url"],
        allow_http=True,
        force_path_style=True,
        region="us-east-1",
        access_key_id=options["key"],
        secret_access_key=options["secret"],
    )
    await check_repository(api, f"{url}/r", repository(storage), options)
    with pytest.raises(ValueError, match="no counterpart of the storage option"):
        await api(api.open(f"{url}/r|icechunk:", storage_options={**options, "aws_checksum_algorithm": "sha256"}))


@pytest.mark.skipif(not hasattr(icechunk, "http_storage"), reason="icechunk 1 does not read from web servers")
async def test_icechunk_repositories_on_web_servers(api: Api, http: tuple[str, Path]):
    url, folder = http
    snapshot = repository(icechunk.local_filesystem_storage(str(folder / "r")))
    await check_repository(api, f"{url}/r", snapshot, {"headers": {"x-a": "1"}})


@pytest.mark.parametrize(
    ("url", "options", "other_url", "other_options"),
    [
        ("s3://b/r", {"endpoint_url": "http://a:1"}, "s3://b/r", {"endpoint_url": "http://b:1"}),
        ("s3://b/r", {}, "s3://c/r", {}),
        ("s3://b/r", {}, "s3://b/s", {}),
        ("az://b/r", {"account_name": "a"}, "az://b/r", {"account_name": "b"}),
        ("https://h/r?version=1", {}, "https://h/r?version=2", {}),
        ("r", {}, "other/r", {}),
    ],
)
def test_identities_of_different_repositories(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, options: Any, other_url: str, other_options: Any
):
    monkeypatch.chdir(tmp_path)
    store, other = (
        stores.resolve(f"{place}|icechunk:{path}", given)
        for place, given, path in ((url, options, ""), (other_url, other_options, "//branch.main"))
    )
    same = stores.resolve(f"{url}|icechunk:", options)
    assert store.identity == same.identity != other.identity
    assert store.location("k") == same.location("k") != other.location("k")
    assert store.lineage("k")[0] == same.lineage("k")[0] != other.lineage("k")[0]
    assert stores.resolve(f"{url}|icechunk:@tag.x/", options).identity != store.identity


def test_identities_of_local_repositories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A relative path means another repository in another directory, a symbolic link the same."""
    (tmp_path / "a" / "r").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "r")
    identities = []
    for folder in (tmp_path, tmp_path / "a"):
        monkeypatch.chdir(folder)
        identities.append(stores.resolve("r|icechunk:").identity)
    assert identities[0] != identities[1] == stores.resolve(f"{tmp_path}/link|icechunk:").identity


@pytest.mark.parametrize(
    ("url", "options", "other_options"),
    [
        ("s3://b/r", {"key": "a", "secret": "s"}, {"key": "b", "secret": "s"}),
        ("s3://b/r", {"key": "a", "secret": "s"}, {"anon": True}),
        ("s3://b/r", {}, {"anon": True}),
        ("gs://b/r", {"token": "anon"}, {"google_service_account": "/x.json"}),
        ("https://h/r", {"headers": {"Authorization": "a"}}, {"headers": {"Authorization": "b"}}),
    ],
)
def test_users_of_repositories(url: str, options: Any, other_options: Any):
    store, same, other = (
        stores.resolve(f"{url}|icechunk:", given) for given in (options, dict(options), other_options)
    )
    assert store.identity == other.identity
    assert store.viewer == same.viewer != other.viewer
    assert "'s'" not in repr(store.viewer)


def test_without_icechunk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "icechunk", None)
    with pytest.raises(ImportError, match="pip install icechunk"):
        sync.open("r|icechunk:")


@pytest.mark.servers
async def test_the_server(tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(zipped())
    async with serving(f"{tmp_path}/a.zip|zip:v2|zarr2:") as client:
        assert (await client.json("/zarr/t/zarr.json"))["shape"] == [4, 6]


@pytest.mark.filterwarnings("ignore:.*consolidated")
def test_other_entrances(tmp_path: Path, http: tuple[str, Path], capsys: pytest.CaptureFixture[str]):
    """The xarray engine, dask, zarr-python, and the command line."""
    url, folder = http
    repository(icechunk.local_filesystem_storage(str(tmp_path / "r")))
    data = xr.Dataset({"t": (("x", "y"), VALUES)})
    write_dataset(data, f"{tmp_path}/d.zip|zip:|zarr2:")
    (folder / "d.zip").write_bytes((tmp_path / "d.zip").read_bytes())
    for source in (f"{tmp_path}/d.zip|zip:", f"{url}/d.zip|zip:|zarr2:", f"{tmp_path}/r|icechunk:@tag.v1/"):
        xr.testing.assert_equal(xr.open_dataset(source, engine="zarrasync", chunks={})[["t"]].load(), data)
        assert (from_zarr(f"{source}|zarr:t").compute() == VALUES).all()
        np.testing.assert_array_equal(zarr.open_array(zarr_store(source), path="t", mode="r")[:], VALUES)
        assert main(["info", f"{source}|zarr:t", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["shape"] == [4, 6]
    to_zarr(dask.array.from_array(VALUES, chunks=(2, 6)), f"{tmp_path}/e.zip|zip:x|zarr2:")
    assert sync.open_array(f"{tmp_path}/e.zip", path="x").zarr_format == 2
    for command in ("copy", "ingest"):
        main([command, f"{url}/d.zip|zip:", f"{tmp_path}/{command}.zip|zip:inside", "--path", "t"])
        found = sync.open(f"{tmp_path}/{command}.zip", path="inside")
        assert (found[:] if isinstance(found, sync.Array) else found["t"][:]).tolist() == VALUES.tolist()


def test_adapters_of_other_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An installed package with an entry point adds an adapter."""
    package = tmp_path / "site"
    (package / "reversed_keys-1.dist-info").mkdir(parents=True)
    (package / "reversed_keys-1.dist-info" / "METADATA").write_text("Name: reversed-keys\nVersion: 1\n")
    (package / "reversed_keys-1.dist-info" / "entry_points.txt").write_text(
        f"[zarrasync.url_adapters]\nswap = {__name__}:swap\n"
    )
    monkeypatch.syspath_prepend(package)
    plugins.entry_points_in.cache_clear()
    try:
        sync.create_array(tmp_path / "a.zarr", data=VALUES)
        assert sync.load(f"{tmp_path}|swap:rraz.a").tolist() == VALUES.tolist()
    finally:
        plugins.entry_points_in.cache_clear()


def swap(location: Location, path: str) -> Location:
    return location.inside(location.open_directory(), path[::-1])
