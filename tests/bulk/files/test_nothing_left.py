"""A job that fails before it has stored values leaves no files and no folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.cli import main
from zarrasync.errors import NodeExistsError, ShapeError
from zarrasync.stores.local_files import make_directory

OPTIONS: dict[str, Any] = {"concat": "time", "dims": "x"}


def write(folder: Path, name: str, size: int = 3) -> Path:
    np.save(folder / name, np.arange(size))
    return folder / name


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def damaged(folder: Path) -> list[Path]:
    (folder / "bad.npy").write_bytes(b"?")
    return [write(folder, "0.npy"), folder / "bad.npy"]


def different(folder: Path) -> list[Path]:
    return [write(folder, "0.npy"), write(folder, "1.npy", 4)]


@pytest.mark.parametrize("files", [damaged, different])
@pytest.mark.parametrize(
    ("place", "path", "kind"),
    [
        ("out.zarr", "", "path"),
        ("new/folder/out.zarr", "", "path"),
        ("new/folder/out.zarr", "a/b", "url"),
        ("existing/out.zarr", "a/b", "store"),
        ("new/folder/out.zarr", "a/b", "fsspec"),
        ("empty.zarr", "", "path"),
        ("empty.zarr", "a/b", "fsspec"),
    ],
)
async def test_a_first_job_that_fails(api: Api, tmp_path: Path, files: Any, place: str, path: str, kind: str):
    sources = files(tmp_path)
    (tmp_path / "existing").mkdir()
    (tmp_path / "empty.zarr").mkdir()
    before = contents(tmp_path)
    dest: Any = tmp_path / place
    if kind == "url":
        dest = dest.as_uri()
    elif kind == "store":
        dest = stores.LocalStore(dest)
    elif kind == "fsspec":
        fsspec = pytest.importorskip("fsspec", reason="one of the kinds of stores")
        dest = fsspec.filesystem("file").get_mapper(str(dest))
    for _ in range(2):
        with pytest.raises((ValueError, ShapeError)):
            await api(api.ingest(sources, dest, path=path, **OPTIONS))
        assert contents(tmp_path) == before
    await api(api.ingest(sources[:1], dest, path=path, **OPTIONS))
    after = contents(tmp_path)
    with pytest.raises((ValueError, ShapeError)):
        await api(api.ingest(sources, dest, path=path, append=True, **OPTIONS))
    assert contents(tmp_path) == after


async def test_folders_that_others_use_stay(api: Api, tmp_path: Path):
    sources, out = different(tmp_path), tmp_path / "new" / "out.zarr"
    other = Claim(stores.LocalStore(out), "other")
    other.acquire(0)
    with pytest.raises(ShapeError):
        await api(api.ingest(sources, out, **OPTIONS))
    assert contents(tmp_path / "new") == [
        "out.zarr",
        "out.zarr/other",
        *[f"out.zarr/other/.ingest{n}" for n in ("", "/claim")],
    ]
    other.release()
    assert not (tmp_path / "new").exists()


def test_a_job_that_waits_for_one_that_fails(tmp_path: Path):
    """It creates the folder again, and removes it if it fails too."""
    one, two = (Claim(stores.LocalStore(tmp_path / "a" / "out.zarr"), "") for _ in range(2))
    one.acquire(0)
    assert two.planned() == {}
    one.release()
    two.acquire(0)
    two.release()
    assert contents(tmp_path) == []


def test_an_abandoned_plan(tmp_path: Path):
    write(tmp_path, "0.npy")
    before = contents(tmp_path)
    words = [str(tmp_path / "0.npy"), str(tmp_path / "new" / "out.zarr"), "--concat", "time", "--dims", "x"]
    plan = tmp_path / "job.plan"
    assert main(["ingest", "plan", *words, "--plan", str(plan)]) == 0
    assert main(["ingest", "run", str(plan)]) == 0
    assert main(["ingest", "abandon", str(plan)]) == 0
    assert contents(tmp_path) == before


async def test_arrays_of_others_are_refused_each_time(api: Api, tmp_path: Path):
    out = tmp_path / "out.zarr"
    sync.create_array(out, path="values", shape=(5,), dtype="i4")[:] = 7
    (out / "zarr.json").unlink()
    before = contents(out)
    for _ in range(2):
        with pytest.raises(NodeExistsError, match=r"a node exists at /values, although / in .* has no arrays"):
            await api(api.ingest(write(tmp_path, "0.npy"), out, **OPTIONS))
        assert contents(out) == before
    assert (sync.open_array(out, path="values")[:] == 7).all()


@pytest.mark.skipif(sys.platform == "win32", reason="a folder cannot be removed there while it is renamed")
def test_folders_that_are_removed_while_they_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, removals = os.mkdir, iter(range(3))

    def mkdir(path: str) -> None:
        if path.endswith("b") and next(removals, None) is not None:
            (tmp_path / "a").rmdir() if (tmp_path / "a").exists() else None
        real(path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert make_directory(str(tmp_path / "a" / "b"), fsync=False) == 2
    assert make_directory(str(tmp_path / "a" / "b"), fsync=False) == 0
    assert make_directory(str(tmp_path / "a" / "c" / "d"), fsync=True) == 2
