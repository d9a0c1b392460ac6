"""What users pass for a store: URLs, their options, mappings, stores of other libraries."""

from __future__ import annotations

import asyncio
import dbm.dumb
import json
import os
import shelve
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem

import zarrasync as za
from tests.support.api import Api
from tests.support.servers import http_server
from zarrasync import stores, sync
from zarrasync.errors import MetadataError, MissingChunkError, NodeNotFoundError, StoreError
from zarrasync.stores import local_locks

VALUES = np.arange(100, dtype="i4").reshape(10, 10)


def make(store: Any, **options: Any) -> None:
    sync.create_array(store, data=VALUES, chunks=3, shards=6, **options)


# ------------------------------------------------------------------ files


def test_file_urls_keep_special_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Number signs and question marks are part of the path, and a name is not a host."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "run")
    for name in ("run#2", "run?x=1", "a b"):
        sync.create_array(f"file://{tmp_path}/{name}", data=np.zeros(1), overwrite=True)
        assert sync.open_array(tmp_path / name).shape == (1,)
    sync.create_group("file://new.zarr", overwrite=True)
    assert (tmp_path / "new.zarr" / "zarr.json").is_file()
    assert sync.open_array(f"file://localhost{tmp_path}/run").shape == (10, 10)
    assert sync.open_array((tmp_path / "a b").as_uri()).shape == (1,)
    np.testing.assert_array_equal(sync.open_array(tmp_path / "run")[...], VALUES)


def test_colons_in_names_are_not_url_chains(tmp_path: Path):
    sync.create_array(tmp_path / "run", data=np.full(4, 7))
    for number, name in enumerate(("run::a.zarr", "run::b.zarr", "x::y")):
        sync.create_array(f"{tmp_path}/{name}", data=np.full(4, number), overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["run", "run::a.zarr", "run::b.zarr", "x::y"]
    assert [int(sync.open_array(f"{tmp_path}/{name}")[0]) for name in ("run", "run::a.zarr", "run::b.zarr")] == [
        7,
        0,
        1,
    ]
    assert isinstance(stores.resolve("http://[::1]:9/x?t=12::30"), stores.HTTPStore)
    fsspec.register_implementation("mycache", type("Mine", (DirFileSystem,), {"protocol": "mycache"}), clobber=True)
    assert isinstance(stores.resolve("mycache::memory://x"), stores.FsspecStore)


def test_names_that_are_not_utf8(tmp_path: Path):
    name = os.path.join(tmp_path, os.fsdecode(b"caf\xe9.zarr"))
    array = sync.create_array(name, data=np.arange(1, 11), chunks=5)
    array[1] = 7
    array.attrs["a"] = 1
    array.append([11])
    assert sync.open_array(name)[...].tolist() == [1, 7, *range(3, 12)]


def test_locks_without_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in containers whose /tmp is read-only."""
    open_in = local_locks._open

    def share(*directories: str) -> None:
        monkeypatch.setattr(local_locks, "_handles", [])
        monkeypatch.setattr(local_locks, "_open", partial(open_in, directories))

    share("/proc", str(tmp_path))
    array = sync.create_array(tmp_path / "a", data=np.arange(8), chunks=4)
    array[1] = 5
    assert (tmp_path / "zarrasync.lock").is_file()
    (tmp_path / "zarrasync.lock").unlink()  # as services do that clean temporary directories
    array[1] = 5
    assert (tmp_path / "zarrasync.lock").is_file()
    (tmp_path / "other/zarrasync.lock").mkdir(parents=True)  # cannot be opened, like a lock file of another user
    share(str(tmp_path / "other"), str(tmp_path))
    with pytest.raises(StoreError, match="cannot create or open the lock file"):
        array[1] = 6
    share("/proc")
    with pytest.raises(StoreError, match="cannot create or open the lock file"):
        array[1] = 6
    assert array[:3].tolist() == [0, 5, 2]


# ------------------------------------------------------------------ fsspec's chains


UNCLOSED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec's files


@pytest.mark.parametrize("cache", ["simplecache", "filecache", pytest.param("blockcache", marks=UNCLOSED)])
async def test_caches_of_fsspec(api: Api, s3, cache: str, tmp_path: Path):
    url, options = s3
    make(url, storage_options=options)
    chained = {"s3": options, cache: {"cache_storage": str(tmp_path / "cache")}}
    for _ in range(2):
        array = await api(api.open_array(f"{cache}::{url}", storage_options=chained))
        np.testing.assert_array_equal(await api(array.view[2:5, 5:8].read()), VALUES[2:5, 5:8])
        np.testing.assert_array_equal(await api(array.view[...].read()), VALUES)


@pytest.mark.parametrize("kind", ["s3", "file", "memory"])
async def test_directories_of_filesystems(api: Api, s3, kind: str, tmp_path: Path):
    """A URL and a filesystem object have the same identity as the path they denote."""
    from fsspec.implementations.dirfs import DirFileSystem

    url, options = {"s3": s3, "file": (f"file://{tmp_path}", {}), "memory": (f"memory://{tmp_path}", {})}[kind]
    array = await api(api.create_array(f"dir://below/a.zarr::{url}", data=VALUES, storage_options={kind: options}))
    fs = fsspec.filesystem(kind, **options)
    store = stores.FsspecStore(DirFileSystem(url.partition("://")[2], fs), "below/a.zarr")
    same = stores.FsspecStore(fs, f"{url}/below/a.zarr")
    assert store.location("key") == same.location("key")
    for place in (array.store, store, same):
        np.testing.assert_array_equal(await api((await api(api.open_array(place))).view[...].read()), VALUES)


@pytest.mark.parametrize("remote", ["s3", "http"])
def test_references_to_remote_files(s3, http, remote: str, tmp_path: Path):
    url, options = s3
    web, root = http
    if remote == "s3":
        with fsspec.filesystem("s3", **options).open(f"{url}/d.bin", "wb") as file:
            file.write(VALUES.tobytes())
    else:
        url, options = web, {}
        (root / "d.bin").write_bytes(VALUES.tobytes())
    document = {"zarr_format": 2, "shape": [10, 10], "chunks": [10, 10], "dtype": "<i4", "compressor": None}
    document |= {"fill_value": 0, "order": "C", "filters": None}
    refs = {".zgroup": '{"zarr_format":2}', "x/.zarray": json.dumps(document), "x/0.0": [f"{url}/d.bin", 0, 400]}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    given = {"fo": str(tmp_path / "refs.json"), "remote_protocol": remote, "remote_options": options}

    async def read() -> Any:
        group = await za.open_group("reference://", storage_options=given)
        array: Any = await group["x"]
        return await array[...].read()

    for _ in range(2):  # in a new event loop each time
        np.testing.assert_array_equal(asyncio.run(read()), VALUES)
    np.testing.assert_array_equal(sync.open_group("reference://", storage_options=given)["x"][...], VALUES)
    mapper = fsspec.get_mapper("reference://", **given)
    np.testing.assert_array_equal(sync.open_group(mapper)["x"][...], VALUES)


# ------------------------------------------------------------------ the web


async def test_urls_as_people_write_them(api: Api, http):
    url, root = http
    make(root / "é" / "a b.zarr")
    for path in ("é/a b.zarr", "%C3%A9/a%20b.zarr"):
        array = await api(api.open_array(f"{url}/{path}"))
        np.testing.assert_array_equal(await api(array.view[...].read()), VALUES)


def test_options_of_fsspecs_web_filesystem(http):
    url, root = http
    make(root / "a")
    readahead = {"block_size": 0, "cache_type": "none", "simple_links": True}
    for options in (readahead, {"ssl": False}):
        np.testing.assert_array_equal(sync.open_array(f"{url}/a", storage_options=options)[...], VALUES)
    with pytest.raises(TypeError, match=r"unknown storage option 'hedders' .*headers"):
        stores.resolve(url, {"hedders": {}})


@pytest.mark.servers
def test_directories_with_links_from_the_root(tmp_path: Path):
    """Index pages of aiohttp use absolute links; a copy must include all entries."""
    group = sync.create_group(tmp_path / "d x.zarr", zarr_format=2)
    group.create_array("a", data=VALUES)
    group.create_array("deep/..b", data=VALUES + 1)
    with http_server(tmp_path, "/s/", show_index=True) as server:
        url = f"{server}/s"
        assert sync.open_group(f"{url}/d x.zarr").array_keys() == ("a",)
        with stores.resolve(f"{url}/d x.zarr") as store:
            found = asyncio.run(store.list_prefix(""))
        assert {".zgroup", "a/.zarray", "a/0.0", "deep/..b/0.0"} <= set(found)
        copied: dict[str, bytes] = {}
        assert sync.copy(f"{url}/d x.zarr", copied, verify=True).arrays == 2
    np.testing.assert_array_equal(sync.open_array(copied, path="deep/..b")[...], VALUES + 1)


# ------------------------------------------------------------------ object stores


@pytest.fixture
def profile(aws_config: Path) -> Any:
    """Return a function that writes the AWS configuration files; the environment has no credentials."""

    def write(credentials: str = "", config: str = "") -> None:
        (aws_config / "credentials").write_text(credentials)
        (aws_config / "config").write_text(config)

    return write


KEYS = "aws_access_key_id = k\naws_secret_access_key = s\n"


def test_keys_in_the_files_of_aws(s3, profile, monkeypatch: pytest.MonkeyPatch):
    url, options = s3
    make(url, storage_options=options)
    profile(
        f"[default]\n{KEYS}",
        "[default]\nregion = eu-central-1\naws_session_token = of others\n[profile renewed]\ncredential_process = /none\n",
    )
    where = {"endpoint_url": options["endpoint_url"]}
    np.testing.assert_array_equal(sync.open_array(url, storage_options=where)[...], VALUES)
    told = settings_of(url, where)
    assert (told["access_key_id"], told["region"], "session_token" in told) == ("k", "eu-central-1", False)
    for name in ("renewed", "unknown"):  # botocore handles or reports them
        monkeypatch.setenv("AWS_PROFILE", name)
        with pytest.raises(StoreError, match="credential"):
            sync.open_array(url, storage_options=where)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    np.testing.assert_array_equal(sync.open_array(url, storage_options=where)[...], VALUES)


def settings_of(url: str, options: dict[str, Any] | None = None) -> Any:
    """Return what obstore is configured with."""
    store = stores.resolve(url, options)
    assert isinstance(store, stores.ObjectStore)
    return store.store.config


def test_settings_in_the_files_of_aws(profile, monkeypatch: pytest.MonkeyPatch):
    profile("", f"[profile default]\n{KEYS}region = eu-west-1\nendpoint_url = http://127.0.0.1:9\n")
    told = settings_of("s3://b/x")
    assert (told["access_key_id"], told["region"], told["endpoint"]) == ("k", "eu-west-1", "http://127.0.0.1:9")
    told = settings_of("s3://b/x", {"anon": True})
    assert ("access_key_id" in told, told["region"]) == (False, "eu-west-1")
    told = settings_of("s3://b/x", {"key": "a", "secret": "b", "endpoint_url": "https://own"})
    assert (told["access_key_id"], told["region"], told["endpoint"]) == ("a", "eu-west-1", "https://own")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert settings_of("s3://b/x")["region"] == "eu-north-1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://around")
    assert settings_of("s3://b/x")["endpoint"] == "http://around"
    for name in ("aws_endpoint_url", "aws_endpoint", "endpoint_url"):
        assert settings_of("s3://b/x", {name: "https://own"})["endpoint"] == "https://own"
    profile("no ini file", "\0")
    assert "access_key_id" not in settings_of("s3://b/x")


@pytest.mark.parametrize(
    "names", [["ACCESS_KEY_ID"], ["SECRET_ACCESS_KEY"], ["SESSION_TOKEN"], ["PROFILE"], []], ids=str
)
def test_anonymous_requests_need_no_other_settings(names: list[str], monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in names:
        monkeypatch.setenv(f"AWS_{name}", "x")
    for options in ({"anon": True}, {"anon": True, "key": "k"}):
        assert settings_of("s3://b/x", options)["skip_signature"] == "true"
    for url in ("gs://b/x", "gcs://b/x"):
        store = stores.resolve(url, {"anon": True})
        assert store == stores.resolve(url, {"token": "anon"})
        assert isinstance(store, stores.ObjectStore)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("zip::file:///nowhere/nope.zip", {}),
        ("reference://", {"fo": "/nowhere/nope.json"}),
        pytest.param("ftp://127.0.0.1:1/x", {}, marks=pytest.mark.servers),
        ("reference://", {"fo": "bad.json"}),
        ("reference://", {}),
        ("zip://a::file://{here}/bad.zip", {}),
        ("tar://a::file://{here}/bad.tar", {}),
    ],
)
def test_filesystems_that_cannot_be_made(url: str, options: dict[str, Any], tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bad.json", "bad.zip", "bad.tar"):
        (tmp_path / name).write_text('{"a": 1,}')
    with pytest.raises((StoreError, MetadataError), match=r"reference://|bad\.json|zip|tar|ftp"):
        sync.open_group(url.format(here=tmp_path), storage_options=options)


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("s3://", {}, "does not contain a bucket"),
        ("gs:///x", {"token": "anon"}, "does not contain a bucket"),
        ("az://c/x", {}, "'az://c' cannot be opened: .*Account must be specified$"),
        ("s3://b/x", {"endpoint_url": "127.0.0.1:9"}, "has no scheme; use 'https://127.0.0.1:9'"),
    ],
)
def test_incomplete_urls_of_object_stores(url: str, options: dict[str, Any], match: str):
    with pytest.raises(ValueError, match=match):
        sync.open(url, storage_options=options)


def test_an_emulator_of_google_without_tls(http):
    """The emulator is addressed by options of obstore, without TLS."""
    url, _ = http
    options = {"token": "anon", "endpoint_url": url}
    assert isinstance(stores.resolve("gs://bucket/x", options), stores.ObjectStore)
    with pytest.raises(NodeNotFoundError):
        sync.open("gs://bucket/x", storage_options=options)


def test_all_kinds_of_obstores_stores(tmp_path: Path, http):
    obstore = pytest.importorskip("obstore")
    url, root = http
    make(root / "a")
    web = obstore.store.HTTPStore.from_url(f"{url}/a", client_options={"allow_http": True})
    np.testing.assert_array_equal(sync.open_array(web)[...], VALUES)
    for given in (obstore.store.MemoryStore(), obstore.store.LocalStore(tmp_path / "x", mkdir=True)):
        make(given)
        sync.open_array(given, mode="r+")[1, 1:3] = 7
        assert sync.open_array(given)[1, :4].tolist() == [10, 7, 7, 13]


# ------------------------------------------------------------------ mappings


class Fresh(dict[str, bytes]):
    """A mapping that creates its values at each access, like mappings over files."""

    kind: Any = bytes

    def __getitem__(self, key: str) -> Any:
        return self.kind(bytearray(super().__getitem__(key)))

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  # this is get()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(bytes(data), "u1")])
async def test_mappings_that_make_values_anew(api: Api, kind: Any):
    values = Fresh()
    values.kind = kind
    array = await api(api.create_array(values, data=np.arange(10), chunks=4))
    with za.config.set(total_timeout=5):
        await api.write(array, slice(1, 3), 7)
        await api(array.append([1]))
    assert (await api(array.view[...].read())).tolist() == [0, 7, 7, *range(3, 10), 1]


def test_mappings_of_parts_of_one_buffer():
    made: dict[str, bytes] = {}
    sync.create_array(made, data=np.arange(10), chunks=4, compressors=None)
    blob, values, start = memoryview(b"".join(made.values())), dict[str, Any](), 0
    for key, value in made.items():
        values[key] = blob[start : start + len(value)]
        start += len(value)
    array = sync.open_array(values, mode="r+")
    assert array[...].tolist() == list(range(10))
    array[1:3] = 7
    assert array[...].tolist() == [0, 7, 7, *range(3, 10)]


def test_a_shelf(tmp_path: Path):
    database: Any = dbm.dumb.open(str(tmp_path / "shelf"))  # noqa: SIM115  # other databases belong to one thread
    with shelve.Shelf(database) as values:
        array = sync.create_array(values, data=np.arange(10), chunks=4)
        array[1:3] = 7
        array.attrs["x"] = 1
        assert sync.open_array(values)[:4].tolist() == [0, 7, 7, 3]


def test_mappings_that_hold_something_else():
    with pytest.raises(StoreError, match=r"could not read 'zarr.json' in MemoryStore.*str"):
        sync.open({"zarr.json": "{}"}, zarr_format=3)

    class Failing(dict[str, bytes]):
        def __getitem__(self, key: str) -> bytes:
            raise OSError("the disk is gone")

        def __len__(self) -> int:
            raise OSError("the disk is gone")

    with pytest.raises(StoreError, match=r"in MemoryStore\(Failing\): OSError: the disk is gone"):
        sync.open(Failing())
    assert sync.open_group({"zarr.json": b'{"zarr_format":3,"node_type":"group"}', 3: b""}).keys() == ()


def test_persistent_identities():
    """Whether an identity is valid in other and later processes."""
    assert stores.resolve("s3://bucket/x", {"anon": True}).lasting_identity
    assert not stores.resolve("memory://x").lasting_identity
    assert not stores.PrefixStore(stores.MemoryStore(), "a/").lasting_identity


@pytest.mark.parametrize("suffix", ["", "|zip:", "|zip:a/"])
@pytest.mark.parametrize("backend", ["auto", "fsspec"])
def test_queries_of_urls_belong_to_identities(suffix: str, backend: str):
    """A query may choose a version of the files, and caches must not mix versions."""
    first, same, second = (
        stores.resolve(f"https://h/x?version={version}{suffix}", {"backend": backend}) for version in (1, 1, 2)
    )
    assert (first.identity, first.location("k")) == (same.identity, same.location("k"))
    assert first.identity != second.identity
    assert first.location("k") != second.location("k")


def test_parameters_of_requests_belong_to_identities():
    identities = {stores.HTTPStore("http://h", request_options={"params": {"v": v}}).identity for v in "112"}
    assert len(identities) == 2
    filesystems = [fsspec.filesystem("http", params={"v": v}, skip_instance_cache=True) for v in "112"]
    assert len({stores.FsspecStore(fs, "http://h/x").identity for fs in filesystems}) == 2


def test_archives_are_as_lasting_as_their_stores():
    memory = stores.RemoteZipStore(stores.MemoryStore(), "a.zip")
    assert (memory.lasting_identity, memory.shareable) == (False, False)
    remote = stores.RemoteZipStore(stores.HTTPStore("http://h"), "a.zip")
    assert (remote.lasting_identity, remote.shareable) == (True, True)


def _account(name: str) -> dict[str, str]:
    return {"type": "authorized_user", "client_id": name, "client_secret": "s", "refresh_token": "t"}


@pytest.mark.parametrize(
    ("url", "options", "other_options"),
    [
        ("s3://b/x", {"key": "a", "secret": "s"}, {"key": "b", "secret": "s"}),
        ("s3://b/x", {"backend": "fsspec", "client_kwargs": {"aws_access_key_id": "a"}}, {"backend": "fsspec"}),
        ("s3://b/x", {"key": "a", "secret": "s"}, {"client_options": {"default_headers": {"Authorization": "b"}}}),
        ("gs://b/x", {"token": _account("a")}, {"token": _account("b")}),
        ("gs://b/x", {"token": _account("a")}, {}),
        ("gs://b/x", {"token": "anon"}, {}),
        ("gs://b/x", {"token": "anon", "backend": "fsspec"}, {"token": _account("a"), "backend": "fsspec"}),
        ("az://b/x", {"account_name": "a", "sas_token": "sig=b"}, {"account_name": "a", "sas_token": "sig=c"}),
        ("https://h/x", {"headers": {"Authorization": "a"}}, {"headers": {"Authorization": "b"}}),
        ("https://h/x", {"auth": ("a", "b")}, {"auth": ("a", "c")}),
        ("https://h/x", {"client_kwargs": {"cookies": {"a": "b"}}}, {}),
    ],
)
def test_users_of_one_place_have_caches_of_their_own(url: str, options: Any, other_options: Any):
    store, same, other = (stores.resolve(url, given) for given in (options, dict(options), other_options))
    assert store.identity == same.identity == other.identity
    assert store.viewer == same.viewer != other.viewer
    assert store.lasting_identity


@pytest.mark.servers
@pytest.mark.parametrize(
    ("url", "option", "value"),
    [
        ("s3://b/x", "credential_provider", dict),
        ("gs://b/x", "token", object()),
        ("gs://b/x", "session", object()),
        ("https://h/x", "ssl", ssl.create_default_context()),
    ],
)
def test_users_without_a_name(url: str, option: str, value: Any):
    """Another process could not tell the user from others."""
    assert not stores.resolve(url, {option: value}).lasting_identity


def test_cached_values_of_mappings_are_not_shared(tmp_path: Path):
    """A new mapping may have the memory address of a collected one."""
    for number in range(20):
        values: dict[str, bytes] = {}
        sync.create_array(values, data=np.full(4, number))
        store = stores.DiskCachingStore(stores.resolve(values), tmp_path)
        assert sync.open_array(store)[0] == number
        assert sync.open_array(store)[1] == number
        assert store.hits
        del store, values


# ------------------------------------------------------------------ what is no store, and settings


def test_values_that_are_not_stores():
    for wrapper in (stores.CachingStore, stores.ReadOnlyStore):
        with pytest.raises(TypeError, match=rf"{wrapper.__name__} needs a Store, found"):
            wrapper({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path must be a string, found 3"):
        sync.open_array({}, path=3)  # type: ignore[call-overload]
    array = sync.create_array({}, data=VALUES)
    with pytest.raises(TypeError, match=r"out must be a NumPy array, or support DLPack .* found list"):
        array.view[...].read(out=[1])


def test_seconds_may_be_whole():
    with za.config.set(total_timeout=8) as settings:
        assert settings.total_timeout == 8.0
        assert isinstance(settings.total_timeout, float)


async def test_chunks_that_are_absent_from_a_shard(api: Api):
    array = await api(api.create_array({}, shape=(8,), chunks=1, shards=4, dtype="f8", fill_value=-1))
    await api.write(array, slice(0, 1), 5)
    assert (await api(array.view[:1].read(missing="error"))).tolist() == [5]
    with pytest.raises(MissingChunkError, match=r"3 of the chunks .* absent .*: c/0; "):
        await api(array.view[:4].read(missing="error"))
    with pytest.raises(MissingChunkError) as found:
        await api(array.view[2:8].read(missing="error"))
    assert found.value.keys == ("c/0", "c/1")


def test_resolving(tmp_path):
    values: dict[str, bytes] = {}
    memory = stores.resolve(values)
    assert isinstance(memory, stores.MemoryStore)
    assert memory.values is values
    assert isinstance(stores.resolve(None), stores.MemoryStore)
    assert stores.resolve(tmp_path) == stores.resolve(str(tmp_path)) == stores.resolve(f"file://{tmp_path}")
    mapper = fsspec.get_mapper("memory://somewhere")
    assert isinstance(stores.resolve(mapper), stores.FsspecStore)
    assert isinstance(stores.resolve(mapper.fs), stores.FsspecStore)
    store = stores.MemoryStore()
    assert stores.resolve(store) is store
    with pytest.raises(TypeError, match="int is not a store"):
        stores.resolve(3)
    with pytest.raises(TypeError, match="storage_options are for URLs"):
        stores.resolve(Path(tmp_path), {"anon": True})
    with pytest.raises(ValueError, match="nosuch"):
        stores.resolve("nosuch://x")


def test_secrets_do_not_show(s3):
    url, options = s3
    store = stores.resolve(url, {**options, "secret": "hush-hush"})
    assert "hush-hush" not in repr(store)
    signed = stores.resolve("http://127.0.0.1:9/x.zarr?signature=hush-hush")
    assert "hush-hush" not in repr(signed)


async def test_listing_below_a_prefix_that_is_also_a_key():
    store = stores.resolve(f"memory://{id(stores)}")
    await store.set("foo", b"1")
    await store.set("bar/x", b"1")
    assert await store.list_prefix("foo/") == []
    await store.erase_prefix("foo/")
    assert await store.get("foo") == b"1"
    root = stores.FsspecStore(fsspec.filesystem("memory"))
    assert all(not key.startswith("/") for key in await root.list())
    await store.erase_prefix("")


def test_local_files_through_fsspec_are_the_local_store(tmp_path):
    for given in (f"local://{tmp_path}", fsspec.get_mapper(str(tmp_path)), fsspec.filesystem("file")):
        assert isinstance(stores.resolve(given), stores.LocalStore)


@pytest.mark.parametrize(
    "url", ["s3://key:se/cret@bucket/a.zarr", "gs://user:secret@bucket/a.zarr", "s3a://secret@bucket"]
)
def test_urls_of_buckets_contain_no_credentials(url: str):
    """Clients would quote them as a part of the bucket's name, in messages and logs."""
    with pytest.raises(ValueError, match="pass storage options") as caught:
        stores.resolve(url)
    assert "cret" not in str(caught.value)
    assert "bucket" in str(caught.value)
