"""Small stored values that expand to more than a chunk may have raise an error before they fill the memory."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.support import ROOT, bombs
from tests.support.api import Api
from zarrasync import config, errors, stores, sync

READABLE_BY_DEFAULT = {"many elements", "wide characters", "JSON", "MessagePack"}
"""Chunks that are as large as their metadata declares, or as small as the default limit allows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bombs") / "arrays"
    bombs.write(path)
    return path


def outcomes(kind: str, api: str, folder: Path, limit: int) -> dict[str, dict]:
    """Read each bomb in a process of its own kind; return the outcomes by name."""
    command = [sys.executable, "-m", "tests.support.bombs", kind, api, str(folder), str(limit)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["name"] for one in found) == sorted(path.name for path in folder.iterdir())
    return {one["name"]: one for one in found}


@pytest.mark.slow
@pytest.mark.parametrize("api", ["async", "sync"])
@pytest.mark.parametrize("kind", ["local", "memory", "zipstored", "zipdeflated", "http"])
def test_small_values_that_expand_to_large_ones(folder, kind, api):
    for name, found in outcomes(kind, api, folder, bombs.LIMIT).items():
        assert "ZarrError" in found["kinds"], found
        assert found["peak"] < bombs.LIMIT + bombs.MARGIN, found
        if name not in ("large chunk", "many elements"):
            assert name in found["message"], found


@pytest.mark.slow
def test_small_values_without_limits_in_the_settings(folder):
    found = outcomes("local", "sync", folder, 0)
    for name in set(found) - READABLE_BY_DEFAULT:
        assert "ZarrError" in found[name]["kinds"], found[name]
        assert found[name]["peak"] < (64 << 20) + bombs.MARGIN, found[name]


# ---------------------------------------------------------------- a fast sample


@pytest.mark.parametrize("limit", [0, 1000])
async def test_the_limit_and_its_setting_are_named(api: Api, limit: int):
    values = {
        "zarr.json": bombs.v3([{"name": "vlen-utf8"}, bombs.ZSTD]),
        "c/0": zstandard.compress(bombs.one_string(80 << 20)),
    }
    array = await api(api.open_array(values, config={"max_chunk_bytes": limit}))
    expected = r"config\.max_chunk_bytes is 1,000" if limit else r"the limit is 67,108,864, .*config\.max_chunk_bytes"
    with pytest.raises(errors.CodecError, match=rf"c/0 .*83,886,088 bytes; {expected}"):
        await api(array.get_basic_selection())
    array = await api(api.open_array(values, config={"max_chunk_bytes": 1 << 28}))
    assert (await api(array.get_basic_selection()))[0] == "a" * (80 << 20)


@pytest.mark.parametrize("dtype", [str, bytes])
@pytest.mark.parametrize("shards", [None, 20])
async def test_max_read_bytes_counts_the_content_of_elements(api: Api, dtype, shards):
    """Strings and bytes count with their content, in the selected elements only."""
    words = np.array(["a" * 5000] * 5 + [""] * 95, dtype=object)
    words = words if dtype is str else np.array([word.encode() for word in words], object)
    array = await api(
        api.create_array({}, shape=100, dtype=dtype, chunks=10, shards=shards, config={"max_read_bytes": 20_000})
    )
    await api.write(array, np.s_[...], words)
    for key in (np.s_[:], np.s_[:5], [0, 1, 2, 3], np.s_[:10:2]):
        many = isinstance(key, list) or key.step is None
        if many:
            with pytest.raises(errors.SelectionError, match=r"more than 20,000 bytes, which is config\.max_read_bytes"):
                await api(array.view[key].read())
        else:
            assert (await api(array.view[key].read())).tolist() == words[key].tolist()
    for key in (np.s_[5:], np.s_[3:20], [0, 1, 99]):
        assert (await api(array.view[key].read())).tolist() == words[key].tolist()


@pytest.mark.parametrize("method", ["STORED", "DEFLATED", "BZIP2", "LZMA"])
@pytest.mark.parametrize("remote", [False, True])
async def test_members_of_archives_are_not_inflated_beyond_a_chunk(tmp_path, method, remote):
    """Members whose declared size is larger than a chunk, and members that are larger than declared."""
    path, size = tmp_path / "x.zip", 8 << 20
    with zipfile.ZipFile(path, "w", getattr(zipfile, f"ZIP_{method}")) as file:
        file.writestr("zarr.json", bombs.v3([{"name": "bytes", "configuration": {"endian": "little"}}], "int32", 4))
        file.writestr("c/0", bytes(size))
    data = path.read_bytes()
    for declared in (size, 16):
        path.write_bytes(data.replace(size.to_bytes(4, "little"), declared.to_bytes(4, "little")))
        store = stores.RemoteZipStore(stores.LocalStore(tmp_path), "x.zip") if remote else stores.ZipStore(path)
        if method == "STORED" and declared == 16:
            continue  # the archive is not valid
        message = "8,388,608 bytes; a chunk has 16 bytes" if declared == size else "has 17 bytes, but 16"
        with pytest.raises(errors.StoreError, match=rf"could not read 'c/0' .*{message}"):
            sync.open_array(store)[:]


@pytest.mark.parametrize("kind", ["memory", "local", "zip"])
async def test_documents_are_not_read_beyond_their_limit(api: Api, tmp_path, kind):
    document = bombs.v3([{"name": "bytes"}], "uint8", 4) + b" " * 4000
    (tmp_path / "zarr.json").write_bytes(document)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zarr.json", document)
    store = {"memory": {"zarr.json": document}, "local": tmp_path, "zip": tmp_path / "x.zip"}[kind]
    with pytest.raises(errors.MetadataError, match=r"zarr.json.* bytes; config\.max_document_bytes is 1,000"):
        await api(api.open_array(store, config={"max_document_bytes": 1000}))
    with config.set(max_document_bytes=5000):
        await api(api.open_array(store))
