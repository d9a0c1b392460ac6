"""Manifests: digests equal to those of ``zarr_checksum``, and stores compared with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.store_kinds import make_store
from zarrasync import stores
from zarrasync.bulk.digests import Manifest
from zarrasync.cli import main
from zarrasync.errors import NodeNotFoundError, StoreError

KINDS = ["local", "zip", "s3"]
ODD_NAMES = [
    "shapes.parquet",
    "é/ü ñ/\U0001f600",
    "a b/c'd\"e",
    "a.b/c",
    "a/b",
    "a!/b",
    "%41/{x}",
    "-n",
    ".hidden/.zattrs",
    "1/10/2",
]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    return make_store(request.param, request, tmp_path)


async def fill(api: Api, store: Any) -> None:
    root = await api(api.create_group(store))
    await api(root.create_array("x/y", data=np.arange(100), chunks=10))
    await api(root.create_array("s", data=np.arange(100), chunks=5, shards=50))
    for name in ODD_NAMES:
        await stores.resolve(store).set(f"odd/{name}", name.encode() * 100)
    await stores.resolve(store).set("empty", b"")


def reference(folder: Path) -> str:
    """Return the digest that ``zarr_checksum`` computes for a folder."""
    zarr_checksum = pytest.importorskip("zarr_checksum")
    from zarr_checksum.generators import yield_files_local

    return str(zarr_checksum.compute_zarr_checksum(yield_files_local(folder)))


async def test_the_digest_is_that_of_zarr_checksum(api: Api, store: stores.Store, tmp_path: Path):
    await fill(api, store)
    folder = tmp_path / "reference"
    for key in await store.list():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(await store.get(key) or b"")
    manifest = await api(api.manifest(store))
    assert sorted(manifest.files) == sorted(await store.list())
    assert manifest.digest == reference(folder)
    below = await api(api.manifest(store, path="odd"))
    assert sorted(below.files) == sorted(ODD_NAMES)
    assert below.digest == reference(folder / "odd")
    report = await api(api.validate(store, manifest=Manifest.loads(manifest.dumps())))
    assert report.ok


@pytest.mark.parametrize(
    "names", [["a"], ["b/c/d/e/f", "b/c", "a/b/c", "tab\there", "new\nline/x"], [f"{i}" for i in range(1100)]]
)
def test_trees(tmp_path: Path, names: list[str]):
    from zarrasync import sync

    for name in names:
        if not (tmp_path / name).is_dir():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
    assert sync.manifest(tmp_path).digest == reference(tmp_path)


async def test_nothing_to_digest(api: Api):
    with pytest.raises(NodeNotFoundError, match="no files exist below /a in"):
        await api(api.manifest({"b/zarr.json": b"{}"}, path="a"))


async def test_differences(api: Api, store: stores.Store):
    await fill(api, store)
    manifest = await api(api.manifest(store))
    await store.erase("x/y/c/3")
    await store.set("x/y/c/77", b"extra")
    flipped = bytearray(await store.get("s/c/1") or b"")
    flipped[-1] ^= 1
    await store.set("s/c/1", bytes(flipped))
    await store.set("empty", b"not empty")
    report = await api(api.validate(store, manifest=manifest))
    assert not report.ok
    found = {finding.key: finding.message for finding in report.findings if finding.severity == "error"}
    assert found.pop("x/y/c/3") == "is missing: the manifest contains it"
    assert found.pop("x/y/c/77") == "is not in the manifest"
    assert found.pop("empty") == "has 9 bytes, but 0 in the manifest"
    assert "in the manifest" in found.pop("s/c/1")
    assert not found


async def test_a_missing_root(api: Api):
    values: dict[str, bytes] = {}
    await fill(api, values)
    manifest = await api(api.manifest(values))
    del values["zarr.json"]
    report = await api(api.validate(values, manifest=manifest))
    assert [(f.key, f.message) for f in report.findings if f.severity == "error"] == [
        ("zarr.json", "is missing: the manifest contains it")
    ]


async def test_files_that_cannot_be_read(api: Api):
    await fill(api, inner := stores.MemoryStore())
    manifest = await api(api.manifest(inner))

    class Failing(stores.WrapperStore):
        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            if any(request.key == "odd/-n" for request in requests):
                raise StoreError("a bad sector", key="odd/-n")
            return await self.inner.fetch(requests, versions=versions)

    with pytest.raises(StoreError, match="a bad sector"):
        await api(api.manifest(Failing(inner)))
    report = await api(api.validate(Failing(inner), manifest=manifest))
    assert [f.key for f in report.findings if f.severity == "error"] == ["odd/-n"]


async def test_large_files_are_read_in_parts(api: Api, tmp_path: Path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(20 << 20)
        file.write(b"end")
    lengths: list[int] = []

    class Watching(stores.WrapperStore):
        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            values = await self.inner.fetch(requests, versions=versions)
            lengths.extend(len(value.data) for value in values if value is not None)
            return values

    found = await api(api.manifest(Watching(stores.LocalStore(tmp_path))))
    assert found.digest == reference(tmp_path)
    assert max(lengths) == 8 << 20
    assert sum(lengths) == 20 << 20


async def test_files_that_change_meanwhile(api: Api, tmp_path: Path):
    path = tmp_path / "large"
    path.write_bytes(bytes(9 << 20))

    class Changing(stores.WrapperStore):
        async def fetch(self, requests: Any, *, versions: bool = False) -> Any:
            values = await self.inner.fetch(requests, versions=versions)
            os.utime(path, ns=(1, 1))
            return values

    with pytest.raises(StoreError, match=r"'large' in .* was changed while it was read"):
        await api(api.manifest(Changing(stores.LocalStore(tmp_path))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(version=2), "not a zarrasync manifest of version 1"),
        (lambda document: document["files"].pop("zarr.json"), "the manifest is damaged"),
        (lambda document: document["files"].update(x=["0" * 32, -1]), "entry of 'x'"),
        (lambda document: document["files"].update(x=["g" * 32, 1]), "entry of 'x'"),
        (lambda document: document["files"].update(x=None), "entry of 'x'"),
        (lambda document: document.update(files=[]), "no object 'files'"),
    ],
)
async def test_damaged_manifests(api: Api, change: Any, message: str):
    document = json.loads((await api(api.manifest({"zarr.json": b"{}"}))).dumps())
    change(document)
    with pytest.raises(ValueError, match=message):
        Manifest.loads(json.dumps(document))
    for text in ("", "[]", '{"files"', "[" * 100_000):
        with pytest.raises(ValueError, match=r"the manifest|not a zarrasync manifest"):
            Manifest.loads(text)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    from zarrasync import sync

    monkeypatch.chdir(tmp_path)
    sync.create_array("a.zarr", path="x", data=np.arange(10), chunks=5)
    assert main(["manifest", "a.zarr"]) == 0
    Path("a.json").write_text(capsys.readouterr().out)
    assert main(["manifest", "a.zarr", "--digest"]) == 0
    assert capsys.readouterr().out.strip() == reference(tmp_path / "a.zarr")
    assert main(["validate", "a.zarr", "--manifest", "a.json"]) == 0
    Path("a.zarr/x/c/0").write_bytes(b"")
    Path("a.zarr/extra.txt").write_text("more")
    capsys.readouterr()
    assert main(["validate", "a.zarr", "--manifest", "a.json"]) == 1
    printed = capsys.readouterr().out
    assert "error: x/c/0: has 0 bytes" in printed
    assert "error: extra.txt: is not in the manifest" in printed
    Path("a.json").write_text("{}")
    assert main(["validate", "a.zarr", "--manifest", "a.json"]) == 1
    assert "not a zarrasync manifest" in capsys.readouterr().err
    assert main(["validate", "a.zarr", "--manifest", "missing.json"]) == 1
