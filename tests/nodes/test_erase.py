"""Erasing and replacing nodes: files that are not Zarr's are kept, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec import filesystem

from tests.support.api import Api
from zarrasync import stores

FORMATS = [2, 3, "3-draft", "3-draft-2022"]
KINDS = ["memory", "local", "zip", "s3"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Any) -> stores.Store:
    from tests.support.store_kinds import make_store

    return make_store(request.param, request, tmp_path)


async def fill(api: Api, store: stores.Store, zarr_format: Any) -> set[str]:
    """Create nodes with other files beside them, and return the keys of these files inside ``g``."""
    root = await api(api.create_group(store, zarr_format=zarr_format))
    for name in ("g/sub/a", "g/b", "other"):
        await api(root.create_array(name, data=np.arange(4), chunks=2))
    (prefix, *_) = prefixes(root, "g")
    inside = {f"{prefix}points.parquet", f"{prefix}sub/a/notes.txt", f"{prefix}only/here/é ü.bin"}
    for key in (*inside, "README.md"):
        await store.set(key, b"mine")
    return inside


def prefixes(root: Any, path: str) -> tuple[str, ...]:
    from zarrasync.nodes.access import handle_of

    return handle_of(getattr(root, "async_", root)).format.erase_prefixes(path)


async def below(store: stores.Store, root: Any, path: str) -> set[str]:
    return {key for prefix in prefixes(root, path) for key in await store.list_prefix(prefix)}


async def test_other_files_are_kept(api: Api, store: stores.Store):
    inside = await fill(api, store, 3)
    root = await api(api.open_group(store, mode="r+"))
    before = await store.list_prefix("other/")
    await api(root.delete("g"))
    assert await below(store, root, "g") == inside
    assert sorted(await store.list_prefix("other/")) == sorted(before)
    assert list(await api(root.keys())) == ["other"]
    await api(root.create_array("g", data=[1, 2]))  # nothing is in its way
    await api(root.create_group("g", overwrite=True))
    assert await below(store, root, "g") == inside | {"g/zarr.json"}
    await api(root.delete("g", all_files=True))
    assert await below(store, root, "g") == set()
    assert await store.get("README.md") == b"mine"


@pytest.mark.parametrize("zarr_format", FORMATS)
async def test_of_every_format(api: Api, zarr_format: Any):
    store = stores.MemoryStore()
    inside = await fill(api, store, zarr_format)
    root = await api(api.open_group(store, mode="r+"))
    await api(root.delete("g"))
    assert await below(store, root, "g") == inside
    await api(api.create_group(store, zarr_format=zarr_format, overwrite=True))
    assert inside | {"README.md"} <= set(await store.list())
    assert not [key for key in await store.list() if "other" in key]


async def test_moving_takes_other_files_along(api: Api, tmp_path: Any):
    store = stores.LocalStore(tmp_path)
    inside = await fill(api, store, 3)
    root = await api(api.open_group(tmp_path, mode="r+"))
    await api(root.move("g", "h"))
    assert await store.list_prefix("g/") == []
    assert {key.replace("g/", "h/", 1) for key in inside} <= set(await store.list_prefix("h/"))


@pytest.mark.parametrize("zarr_format", ["3-draft", "3-draft-2022"])
async def test_an_empty_directory_is_not_a_group(api: Api, zarr_format: str, tmp_path: Path):
    """In the drafts, a group without a document exists if nodes exist below it. Erasing files leaves directories."""
    for store in (
        stores.LocalStore(tmp_path / "ours"),
        stores.FsspecStore(filesystem("file"), str(tmp_path / "theirs")),
    ):
        root = await api(api.create_group(store, zarr_format=zarr_format))
        await api(root.create_array("a/b/c", data=[1]))
        assert await api(root.keys()) == ("a",)
        await api(root.delete("a/b/c"))
        assert await api(root.keys()) == ()
        assert not await api(root.contains("a"))
        await api(root.create_array("a", data=[1]))
