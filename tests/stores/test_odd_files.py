"""What is not a file in the place of one: it is an error that names it, and never waited for."""

from __future__ import annotations

import os
import signal
import socket
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.covering import covering
from zarrasync import stores, sync
from zarrasync.errors import StoreError, ZarrError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs pipes and links")


def _socket(path: Path) -> None:
    folder, here = os.open(path.parent, os.O_RDONLY), os.getcwd()
    os.chdir(folder)  # paths of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)
        os.close(folder)


ODD: dict[str, Callable[[Path], Any]] = {
    "link": lambda path: path.symlink_to("nothing"),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "directory": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "socket": _socket,
}


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """End a test that waits, such as for a writer of a pipe."""

    def end(*_: Any) -> None:
        raise AssertionError("the test has waited for 20 s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def replace(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    ODD[kind](path)


@pytest.mark.parametrize(
    ("kind", "layout", "native"),
    covering(
        [kind for kind in ODD if kind != "directory"],  # of other keys
        [{}, {"compressors": None}, {"shards": (4,)}],
        ["auto", "off"],
    ),
)
async def test_chunks(api: Api, tmp_path: Path, kind: str, layout: dict[str, Any], native: str):
    array = sync.create_array(tmp_path, shape=(8,), chunks=(2,), dtype="i4", **layout)
    array[:] = range(1, 9)
    replace(tmp_path / "c/1", kind)
    opened: Any = await api(api.open_array(tmp_path, mode="r+", config={"native": native, "total_timeout": 60.0}))
    for read in (slice(None), slice(2, 8), slice(2, 4) if "shards" not in layout else slice(4, 6)):
        with pytest.raises(StoreError, match="c/1"):
            await api(opened.view[read].read())
    with pytest.raises(StoreError, match="c/1"):
        await api.write(opened, slice(3 if "shards" not in layout else 5, 6), 0)


@pytest.mark.parametrize("native", ["auto", "off"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_directories_of_chunks_that_are_links(tmp_path: Path, depth: int, native: str):
    """Chunks behind a link that leads nowhere are not absent; those of absent directories are."""
    path = "a/c/0/0".rsplit("/", depth)[0]
    sync.create_array(tmp_path, name="a", shape=(4, 4), chunks=(1, 1), dtype="i4", fill_value=7)
    array = sync.open_array(tmp_path, path="a", config={"native": native})
    assert (array[:] == 7).all()
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).symlink_to("nothing")
    for key in (slice(None), (0, 0)):
        with pytest.raises(StoreError, match="leads nowhere"):
            array[key]


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "directory"])  # of other keys
async def test_documents(api: Api, tmp_path: Path, kind: str):
    for name in ("zarr.json", "g/zarr.json", ".zarray"):
        replace(tmp_path / name, kind)
        node = name.rpartition("/")[0]
        for call in (api.open, api.create_group):
            with pytest.raises(ZarrError, match=name):
                await api(call(tmp_path, path=node))
        (tmp_path / name).unlink()


@pytest.mark.parametrize("kind", ODD)
def test_notes_archives_and_entries_of_caches(tmp_path: Path, kind: str):
    array = sync.create_array(tmp_path / "x", shape=(4,), chunks=(2,), dtype="i4")
    array[:] = range(4)
    cache = stores.DiskCachingStore(stores.LocalStore(tmp_path / "x"), tmp_path / "cache")
    assert sync.open_array(cache)[:].tolist() == [0, 1, 2, 3]
    for path in list((tmp_path / "cache").rglob("*")):
        if path.is_file():
            replace(path, kind)
    assert sync.open_array(cache)[:].tolist() == [0, 1, 2, 3]
    replace(tmp_path / "x.zip", kind)
    for mode in ("r", "a") if kind != "link" else ("r",):  # whose target can be created
        with pytest.raises(StoreError, match=r"x\.zip"):
            sync.open(stores.ZipStore(tmp_path / "x.zip", mode=mode))


def test_exchanged_entries_of_a_cache(tmp_path: Path):
    """The file of another key, byte range or store is no entry."""
    values = np.arange(400, dtype="i4")
    for number, name in enumerate("ab"):
        sync.create_array(tmp_path / name, shape=400, chunks=100, shards=200, dtype="i4", compressors=None)[:] = (
            values + number
        )

    def read(name: str) -> Any:
        store = stores.DiskCachingStore(stores.LocalStore(tmp_path / name), tmp_path / "cache")
        array = sync.open_array(store)
        return np.concatenate([array[:50], array[100:350]]), store.hits

    expected = np.concatenate([values[:50], values[100:350]])
    np.testing.assert_array_equal(read("a")[0], expected)
    np.testing.assert_array_equal(read("b")[0], expected + 1)
    assert read("a")[1] > 0
    entries = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in entries]
    for shift in range(1, len(entries)):
        for path, content in zip(entries, contents[shift:] + contents[:shift], strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        np.testing.assert_array_equal(read("a")[0], expected)
        np.testing.assert_array_equal(read("b")[0], expected + 1)


# ------------------------------------------------------------------ archives in archives


def archive(path: str, data: bytes, method: int) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr(path, data)
    return out.getvalue()


@pytest.mark.parametrize(("outer", "inner"), [("STORED", "DEFLATED"), ("DEFLATED", "STORED"), ("BZIP2", "STORED")])
async def test_archives_in_archives(api: Api, tmp_path: Path, outer: str, inner: str):
    """Compressed ones take memory for what is read of them. What expands too much is refused."""
    rng = np.random.default_rng(0)
    data = np.repeat(rng.integers(0, 256, 1 << 19, dtype="u1"), 16)  # 8 MiB, of which a sixteenth remains
    out = BytesIO()
    with zipfile.ZipFile(out, "w", getattr(zipfile, f"ZIP_{inner}")) as file:
        store: dict[str, bytes] = {}
        sync.create_array(store, data=data, chunks=1 << 16, compressors=None)
        for key, value in store.items():
            file.writestr(key, value)
    (tmp_path / "x.zip").write_bytes(archive("y.zip", out.getvalue(), getattr(zipfile, f"ZIP_{outer}")))
    del out, store
    array: Any = await api(api.open_array(f"{tmp_path}/x.zip|zip:y.zip|zip:"))
    tracemalloc.start()
    try:
        np.testing.assert_array_equal(
            await api(array.view[5 << 20 : (5 << 20) + 100].read()), data[5 << 20 : (5 << 20) + 100]
        )
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", ["DEFLATED", "BZIP2", "LZMA"])
def test_archives_that_expand_too_much(tmp_path: Path, method: str):
    bomb = archive("a/zarr.json", bytes(80 << 20), zipfile.ZIP_STORED)
    (tmp_path / "x.zip").write_bytes(archive("y.zip", bomb, getattr(zipfile, f"ZIP_{method}")))
    del bomb
    tracemalloc.start()
    try:
        with pytest.raises(ZarrError, match=r"y\.zip.*64 times its stored size"):
            sync.open(f"{tmp_path}/x.zip|zip:y.zip|zip:a")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
