"""The cache of decoded chunks notices each change that this process makes, by any store and path of the same values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.errors import StoreError
from zarrasync.testing import FaultyStore
from zarrasync.transfer import chunk_cache

TRUSTED = {"chunk_cache_bytes": 1 << 22, "chunk_cache_max_age": 600.0}
VALUES = np.arange(24, dtype="i4").reshape(6, 4)
NEW = VALUES + 100
Change = Callable[[Any], object]


@pytest.fixture(autouse=True)
def fresh_caches():
    chunk_cache._shared.cache_clear()


def _move(place: Any) -> None:
    root = sync.open_group(place, mode="r+")
    root.create_array("other/a", data=NEW, chunks=(2, 4))
    root.move("g", "old")
    root.move("other", "g")


def _erase_above(place: Any) -> None:
    del sync.open_group(place, mode="r+")["g"]
    sync.create_array(place, path="g/a", data=NEW, chunks=(2, 4))


def _copy(place: Any) -> None:
    source = sync.create_group({})
    source.create_array("g/a", data=NEW, chunks=(2, 4))
    sync.copy(source, place, overwrite=True)


def _zarr_python(place: Any) -> None:
    zarr = pytest.importorskip("zarr")
    from zarrasync.integrations.zarr import zarr_store

    zarr.open_array(zarr_store(place), path="g/a", mode="r+")[...] = NEW


def _pipeline(place: Any) -> None:
    zarr = pytest.importorskip("zarr")
    store = zarr.storage.LocalStore(place)
    with zarr.config.set({"codec_pipeline.path": "zarrasync.integrations.zarr.CodecPipeline"}):
        zarr.open_array(store, path="g/a", mode="r+")[...] = NEW


def _assign(place: Any) -> None:
    sync.open_array(place, path="g/a", mode="r+")[...] = NEW


_CASES = [
    (kind, change) for kind in ("local", "memory") for change in (_move, _erase_above, _copy, _zarr_python, _assign)
]


@pytest.mark.parametrize(("kind", "change"), [*_CASES, ("local", _pipeline)])
async def test_changes_above_and_by_others(api: Api, kind: str, change: Change, tmp_path: Path):
    place: Any = tmp_path if kind == "local" else {}
    sync.create_array(place, path="g/a", data=VALUES, chunks=(2, 4))
    array = await api(api.open_array(place, path="g/a", config=TRUSTED))
    np.testing.assert_array_equal(await api(array[...]), VALUES)
    change(place)
    np.testing.assert_array_equal(await api(array[...]), NEW)


@pytest.mark.parametrize("kind", ["symbolic link", "fsspec", "zarr-python", "directory"])
def test_other_stores_of_the_same_values(kind: str, tmp_path: Path):
    sync.create_array(tmp_path / "x", path="g/a", data=VALUES, chunks=(2, 4))
    array = sync.open_array(tmp_path / "x", path="g/a", config=TRUSTED)
    np.testing.assert_array_equal(array[...], VALUES)
    place: Any = tmp_path / "x"
    if kind == "symbolic link":
        place = tmp_path / "y"
        place.symlink_to(tmp_path / "x")
    elif kind == "fsspec":
        place = stores.FsspecStore(pytest.importorskip("fsspec").filesystem("file"), str(place))
    elif kind == "zarr-python":
        place = pytest.importorskip("zarr").storage.LocalStore(place)
    path = "a" if kind == "directory" else "g/a"
    place = place / "g" if kind == "directory" else place
    sync.open_array(place, path=path, mode="r+")[...] = NEW
    np.testing.assert_array_equal(array[...], NEW)


def test_both_clients_of_s3(s3: tuple[str, dict[str, Any]]):
    url, options = s3
    sync.create_array(url, data=VALUES, chunks=(2, 4), storage_options={**options, "backend": "fsspec"})
    array = sync.open_array(url, config=TRUSTED, storage_options=options)
    np.testing.assert_array_equal(array[...], VALUES)
    sync.open_array(url, mode="r+", storage_options={**options, "backend": "fsspec"})[...] = NEW
    np.testing.assert_array_equal(array[...], NEW)


def test_a_resize_that_fails_halfway():
    inner = stores.MemoryStore()
    sync.create_array(inner, data=VALUES, chunks=(2, 4))
    array = sync.open_array(inner, config=TRUSTED)
    np.testing.assert_array_equal(array[...], VALUES)
    faulty = FaultyStore(inner, fails=lambda operation, key: operation == "put" and key == "zarr.json")
    with pytest.raises(StoreError):
        sync.open_array(faulty, mode="r+").resize((2, 4))
    np.testing.assert_array_equal(array[...], sync.open_array(inner)[...])
    assert array[5, 0] == 0


def test_a_change_leaves_other_arrays_trusted():
    group = sync.create_group({}, config=TRUSTED)
    one, other = (group.create_array(name, data=VALUES, chunks=(6, 4)) for name in "ab")
    for _ in range(2):
        other[0, 0] = 5
        assert (one[0, 0], other[0, 0]) == (0, 5)
    assert one.chunk_cache.stats.checks == 1  # of the array that changed


def test_a_snapshot_of_icechunk_has_versions(tmp_path: Path):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "r")))
    session = repository.writable_session("main")
    sync.create_array(session.store, path="a", data=VALUES, chunks=(2, 4))
    session.commit("values")
    checked = {"chunk_cache_bytes": 1 << 22}
    places: list[Any] = [repository.readonly_session("main").store, f"{tmp_path}/r|icechunk:"]
    for place in places:
        array = sync.open_array(place, path="a", config=checked)
        before = array.chunk_cache.stats
        for _ in range(3):
            np.testing.assert_array_equal(array[...], VALUES)
        stats = array.chunk_cache.stats
        assert (stats.misses - before.misses, stats.hits - before.hits) == (3, 6)
    session = repository.writable_session("main")
    own = sync.open_array(session.store, path="a", mode="r+", config=checked)
    own[0] = 7
    assert own[0, 0] == 7
    session.discard_changes()
    assert own[0, 0] == 0
    own[...] = NEW
    session.commit("new values")
    np.testing.assert_array_equal(array[...], VALUES)
    np.testing.assert_array_equal(sync.open_array(places[1], path="a", config=checked)[...], NEW)
