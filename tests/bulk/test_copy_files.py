"""What a copy keeps besides arrays: files that are not Zarr's, consolidated metadata, separators of chunk keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.store_kinds import make_store
from zarrasync import stores
from zarrasync.cli import main
from zarrasync.errors import ChecksumError, NodeExistsError, StoreError, UnsupportedOperation

FORMATS = [2, 3, "3-draft", "3-draft-2022"]
KINDS = ["local", "zip", "s3", "fsspec-memory"]
OTHERS = {"README.md": b"# mine", "shapes/c/shapes.parquet": b"PAR1" * 1000, "images/a/é ü.txt": b""}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    return make_store(request.param, request, tmp_path)


async def spatial(api: Api, store: Any, **options: Any) -> None:
    """Create a hierarchy with files beside its nodes."""
    root = await api(api.create_group(store, **options))
    await api(root.create_array("images/a", data=np.arange(6), chunks=2))
    await api(root.create_group("shapes/c"))
    for key, data in OTHERS.items():
        await stores.resolve(store).set(key, data)


async def test_other_files(api: Api, store: stores.Store):
    await spatial(api, source := stores.MemoryStore())
    report = await api(api.copy(source, store, verify=True))
    assert report.files == 0
    assert report.left_out == sorted(OTHERS)
    assert "not copied: 3 other files (README.md, images/a/é ü.txt, shapes/c/shapes.parquet)" in str(report)
    assert not set(OTHERS) & set(await store.list())
    report = await api(api.copy(source, store, verify=True, all_files=True, overwrite=True))
    assert report.files == 3
    assert not report.left_out
    assert sorted(await store.list()) == sorted(await source.list())
    back = stores.MemoryStore()
    await api(api.copy(store, back, all_files=True, verify=True))
    assert back.values == source.values


@pytest.mark.parametrize(("source_format", "dest_format"), [*zip(FORMATS, FORMATS[::-1], strict=True)])
async def test_into_every_format(api: Api, source_format: Any, dest_format: Any):
    source, dest = stores.MemoryStore(), stores.MemoryStore()
    root = await api(api.create_group(source, zarr_format=source_format))
    await api(root.create_array("a/b", data=[1, 2]))
    prefix = "data/root/a/" if source_format == "3-draft-2022" else "data/a/" if source_format == "3-draft" else "a/"
    await source.set(f"{prefix}x.parquet", b"1")
    options = {"dest_path": "z", "zarr_format": dest_format}
    group = await api(api.open_group(source, path="a"))
    assert (await api(api.copy(group, dest, **options))).left_out == [f"{prefix}x.parquet"]
    report = await api(api.copy(group, dest, all_files=True, overwrite=True, verify=True, **options))
    assert report.files == 1
    (key,) = [key for key in dest.values if key.endswith(".parquet")]
    expected = {"3-draft": "data/z/", "3-draft-2022": "data/root/z/"}.get(dest_format, "z/")
    assert key == f"{expected}x.parquet"


async def test_differences_of_files_are_found(api: Api):
    class Damaging(stores.MemoryStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            damaged = bytes([data[0] ^ 1, *data[1:]]) if key == "README.md" else data
            return await super().put(key, damaged, if_version=if_version)

    await spatial(api, source := stores.MemoryStore())
    await api(api.copy(source, Damaging(), all_files=True))
    with pytest.raises(ChecksumError, match=r"'README\.md' in .* differs from 'README\.md'"):
        await api(api.copy(source, Damaging(), all_files=True, verify=True))


async def test_interrupted_copies_of_files(api: Api):
    class Cut(stores.WrapperStore):
        async def put(self, key: str, data: Any, *, if_version: object = None) -> object:
            if key.startswith("shapes/c/shapes"):
                raise StoreError("power cut", key=key)
            return await self.inner.put(key, data, if_version=if_version)

    await spatial(api, source := stores.MemoryStore())
    dest = stores.MemoryStore()
    with pytest.raises(StoreError, match="power cut"):
        await api(api.copy(source, Cut(dest), all_files=True))
    report = await api(api.copy(source, dest, all_files=True, resume=True, verify=True))
    assert report.files == 1
    assert report.skipped == 3 + 2
    assert dest.values == source.values


async def test_files_in_the_way(api: Api, tmp_path: Path):
    await spatial(api, source := stores.MemoryStore())
    (tmp_path / "README.md").write_text("another")
    with pytest.raises(NodeExistsError, match=r"'README\.md' exists in .* pass overwrite=True"):
        await api(api.copy(source, tmp_path, all_files=True))
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    await api(api.copy(source, tmp_path))
    assert (tmp_path / "README.md").read_text() == "another"


async def test_sources_without_listing(api: Api):
    class Unlistable(stores.WrapperStore):
        async def list_prefix(self, prefix: str) -> list[str]:
            raise UnsupportedOperation("cannot list")

    source = stores.MemoryStore()
    await api(api.create_array(source, data=[1, 2]))
    assert (await api(api.copy(Unlistable(source), {}))).left_out == []
    with pytest.raises(UnsupportedOperation, match="cannot list"):
        await api(api.copy(Unlistable(source), {}, all_files=True))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from zarrasync import sync

    monkeypatch.chdir(tmp_path)
    sync.create_array("a.zarr", path="x", data=[1, 2])
    (tmp_path / "a.zarr" / "notes.txt").write_text("mine")
    assert main(["copy", "a.zarr", "b.zarr", "--verify"]) == 0
    assert "not copied: 1 other file (notes.txt); pass --all with --resume to copy them" in capsys.readouterr().out
    assert main(["copy", "a.zarr", "c.zarr", "--all", "--verify"]) == 0
    assert "1 other file" in capsys.readouterr().out
    assert (tmp_path / "c.zarr" / "notes.txt").read_text() == "mine"


# ------------------------------------------------------------------ consolidated metadata


@pytest.mark.parametrize(
    ("source_format", "dest_format"), [(2, 2), (2, 3), (3, "3-draft"), ("3-draft-2022", 2), (3, "3-draft-2022")]
)
async def test_consolidated_metadata_is_kept(api: Api, source_format: Any, dest_format: Any):
    source = stores.MemoryStore()
    root = await api(api.create_group(source, zarr_format=source_format))
    await api(root.create_array("g/x", data=[1, 2]))
    dest = stores.MemoryStore()
    await api(api.copy(source, dest, zarr_format=dest_format))
    assert not await is_consolidated(api, dest)
    await api(api.consolidate_metadata(source))
    report = await api(api.copy(source, dest, zarr_format=dest_format, overwrite=True, verify=True))
    if dest_format == "3-draft":
        assert "has no consolidated metadata" in str(report)
        return
    assert await is_consolidated(api, dest)
    opened = await api(api.open_group(dest, use_consolidated=True))
    assert [name for name, _ in await api(opened.members(None))] == ["g", "g/x"]
    report = await api(api.validate(dest))
    assert report.ok
    assert "stale" not in str(report)


async def is_consolidated(api: Api, store: Any, path: str = "") -> bool:
    group = await api(api.open_group(store, path=path))
    return getattr(group, "async_", group)._cell.handle.consolidated is not None


@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_consolidated_metadata_of_groups_below(api: Api, zarr_format: int):
    source, dest = stores.MemoryStore(), stores.MemoryStore()
    root = await api(api.create_group(source, zarr_format=zarr_format))
    await api(root.create_array("g/x", data=[1, 2]))
    await api(root.create_array("h/x", data=[1, 2]))
    await api(api.consolidate_metadata(source, path="g"))
    await api(api.copy(source, dest))
    assert await is_consolidated(api, dest, "g")
    assert not await is_consolidated(api, dest, "h")
    assert not await is_consolidated(api, dest)


# ------------------------------------------------------------------ separators and progress


@pytest.mark.parametrize(
    ("source_format", "separator", "dest_format", "expected"),
    [(2, "/", 2, "/"), (2, ".", 2, "."), (2, "/", 3, "/"), (2, ".", 3, "/"), (3, "/", 2, "/"), (3, ".", 3, ".")],
)
async def test_separators(api: Api, source_format: int, separator: str, dest_format: int, expected: str):
    source, dest = stores.MemoryStore(), stores.MemoryStore()
    encoding = {"name": "v2" if source_format == 2 else "default", "configuration": {"separator": separator}}
    values = np.arange(12).reshape(3, 4)
    options = {"zarr_format": source_format, "chunk_key_encoding": encoding}
    await api(api.create_array(source, data=values, chunks=(2, 2), **options))
    await api(api.copy(source, dest, zarr_format=dest_format, compressors="gzip", verify=True))
    array = await api(api.open_array(dest))
    assert array.metadata.keys.separator == expected
    if source_format == dest_format:
        assert array.metadata.keys.name == encoding["name"]


@pytest.mark.parametrize("options", [{}, {"chunks": (3, 5)}, {"chunks": (2, 2), "shards": (4, 4)}, {"resume": True}])
async def test_progress_ends_at_the_total(api: Api, options: dict[str, Any]):
    source, dest = stores.MemoryStore(), stores.MemoryStore()
    values = np.arange(7 * 11, dtype="f4").reshape(7, 11)
    await api(api.create_array(source, path="a", data=values, chunks=(4, 4)))
    await api(api.create_array(source, path="s", shape=(100,), chunks=(7,), dtype="u1"))  # nothing is stored
    if options.get("resume"):
        await api(api.copy(source, dest))
    done: list[int] = []
    report = await api(api.copy(source, dest, progress=done.append, **options))
    assert sum(done) == values.nbytes + 100
    assert report.nbytes == (0 if options.get("resume") else values.nbytes)
