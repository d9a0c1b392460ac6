"""Copies whose source and destination overlap, however the two places are spelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from zarrasync import stores
from zarrasync.errors import NodeExistsError


def spellings(tmp_path: Path, s3: Any) -> list[tuple[Any, dict[str, Any], Any, dict[str, Any]]]:
    """Pairs of a hierarchy and of a place inside it that is spelled in another way, each with storage options."""
    local = tmp_path / "world.zarr"
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "direct").symlink_to(local)
    url, options = s3
    obstore = {**options, "backend": "obstore"}
    fsspec = {**options, "backend": "fsspec"}
    memory = stores.MemoryStore()
    return [
        (local, {}, f"file://{local}/inside", {}),
        (local, {}, tmp_path / "direct" / "inside", {}),
        (tmp_path / "link" / "world.zarr", {}, local / "group" / ".." / "inside", {}),
        (local, {}, stores.LocalStore(tmp_path / "link" / "world.zarr" / "x"), {}),
        (url, obstore, f"{url}/inside", fsspec),
        (url, fsspec, f"{url}/inside/x", obstore),
        (memory, {}, stores.PrefixStore(memory, "inside/"), {}),
    ]


@pytest.mark.parametrize("consolidated", [False, True])
async def test_copies_into_themselves_by_another_name(api: Api, tmp_path: Path, s3: Any, consolidated: bool):
    for source, source_options, dest, dest_options in spellings(tmp_path, s3):
        await api(api.create_array(source, path="group/x", data=[1, 2], storage_options=source_options, overwrite=True))
        if consolidated:
            await api(api.create_group(source, storage_options=source_options, overwrite=True))
            await api(api.consolidate_metadata(source, storage_options=source_options))
        store = stores.resolve(source, source_options)
        before = await store.list()
        with pytest.raises(NodeExistsError, match="one contains the other"):
            await api(api.copy(source, dest, source_options=source_options, dest_options=dest_options))
        assert await store.list() == before
        await api(api.create_array(dest, data=[1, 2], storage_options=dest_options, overwrite=True))
        before = await store.list()
        with pytest.raises(NodeExistsError, match="one contains the other"):
            await api(api.copy(dest, source, source_options=dest_options, dest_options=source_options, overwrite=True))
        assert await store.list() == before


async def test_an_archive_inside_of_what_it_would_contain(api: Api, tmp_path: Path):
    await api(api.create_array(tmp_path / "a.zarr", path="x", data=[1, 2]))
    with (
        stores.ZipStore(tmp_path / "a.zarr" / "x" / "a.zip", mode="w") as archive,
        pytest.raises(NodeExistsError, match="one contains the other"),
    ):
        await api(api.copy(tmp_path / "a.zarr", archive))


async def test_neighbours_with_similar_names_are_apart(api: Api, tmp_path: Path):
    await api(api.create_array(tmp_path / "a.zarr", data=[1, 2]))
    for dest in (tmp_path / "a.zarr2", tmp_path / "a", tmp_path / "b" / "a.zarr"):
        await api(api.copy(tmp_path / "a.zarr", dest))
        assert (await api(api.load(dest))).tolist() == [1, 2]
