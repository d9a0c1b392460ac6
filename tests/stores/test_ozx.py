"""Archives of OME-Zarr images, ``.ozx``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.conventions import write_ome_image
from zarrasync import stores, sync
from zarrasync.cli import main
from zarrasync.errors import StoreError, UnsupportedOperation


async def test_documents_are_first_and_the_comment_has_the_version(api: Api, tmp_path: Path):
    store: dict[str, bytes] = {}
    values = write_ome_image(store, "0.5")
    write_ome_image(store, "0.5", path="labels/cells")
    for number, target in enumerate((tmp_path / "a.ozx", tmp_path / "b.ozx")):
        if number:
            sync.copy(store, tmp_path / "directory")
            assert main(["copy", str(tmp_path / "directory"), str(target)]) == 0
        else:
            archive = stores.ZipStore(target, mode="w")
            await api(api.copy(store, archive))
            await archive.close()
        with ZipFile(target) as archive:
            names = archive.namelist()
            comment = json.loads(archive.comment)
            assert {member.compress_type for member in archive.infolist()} == {ZIP_STORED}
        documents = [name for name in names if name.endswith("zarr.json")]
        assert comment == {"ome": {"version": "0.5", "zipFile": {"centralDirectory": {"jsonFirst": True}}}}
        assert names[: len(documents)] == documents
        assert [name.count("/") for name in documents] == sorted(name.count("/") for name in documents)
        array = await api(api.open_array(target, path="0"))
        np.testing.assert_array_equal(await api(array[...]), values)
        assert (await api(api.validate(target, data=True))).ok


def test_archives_keep_their_comment_when_they_are_changed(tmp_path: Path):
    path = tmp_path / "a.ozx"
    for mode in ("w", "a"):
        with sync.open_group(stores.ZipStore(path, mode=mode), mode="a") as group:
            group.attrs["ome"] = {"version": f"0.5{mode}"}
    with ZipFile(path) as archive:
        assert json.loads(archive.comment)["ome"]["version"] == "0.5a"
    with sync.open_group(stores.ZipStore(path, mode="a"), mode="a") as group:
        group.attrs["ome"] = 5
    with ZipFile(path) as archive:
        assert archive.comment == b""


def test_other_archives_have_no_comment(tmp_path: Path):
    with sync.create_group(stores.ZipStore(tmp_path / "a.zip", mode="w"), attributes={"ome": {"version": "0.5"}}):
        pass
    with ZipFile(tmp_path / "a.zip") as archive:
        assert archive.comment == b""


async def test_archives_that_other_programs_made_are_checked(api: Api, tmp_path: Path):
    store: dict[str, bytes] = {}
    write_ome_image(store, "0.5")
    with ZipFile(tmp_path / "a.ozx", "w", compression=ZIP_DEFLATED) as archive:
        for name in sorted(store):
            archive.writestr(name, store[name])
        archive.writestr("b.ozx", b"")
    report = await api(api.validate(tmp_path / "a.ozx"))
    messages = [finding.message for finding in report.findings if finding.severity == "warning"]
    assert [message.split(" ", 1)[0] for message in messages] == ["the", str(len(store) + 1), "the", "the"]
    assert "comment" in messages[0]
    assert "does not begin with all documents" in messages[2]
    assert "another archive" in messages[3]


async def test_documents_that_were_written_late_are_noted(api: Api, tmp_path: Path):
    with sync.create_group(
        stores.ZipStore(tmp_path / "a.ozx", mode="w"), attributes={"ome": {"version": "0.5"}}
    ) as group:
        for name in "ab":
            group.create_array(name, data=np.arange(4))
    report = await api(api.validate(tmp_path / "a.ozx"))
    notes = [finding.message for finding in report.findings if "does not begin" in finding.message]
    assert len(notes) == 1
    assert notes[0].startswith("the file does not begin with all documents")
    sync.copy(tmp_path / "a.ozx", tmp_path / "directory")
    assert main(["copy", str(tmp_path / "directory"), str(tmp_path / "b.ozx")]) == 0
    report = await api(api.validate(tmp_path / "b.ozx"))
    assert not [finding for finding in report.findings if "does not begin" in finding.message]
    with ZipFile(tmp_path / "b.ozx") as archive:
        places = [member.header_offset for member in archive.infolist()]
    assert places == sorted(places)


@pytest.mark.parametrize("backend", ["auto", "fsspec"])
@pytest.mark.parametrize("suffix", [".ozx", ".zip"])
async def test_urls_of_archives_on_s3(
    api: Api, s3: tuple[str, dict[str, Any]], tmp_path: Path, backend: str, suffix: str
):
    url, options = s3
    archive = stores.ZipStore(tmp_path / f"a{suffix}", mode="w")
    values = write_ome_image(archive, "0.5")
    sync.open_group(archive).close()
    await stores.resolve(url, options).set(f"a{suffix}", (tmp_path / f"a{suffix}").read_bytes())
    options = {**options, "backend": backend}
    group = await api(api.open_group(f"{url}/a{suffix}", storage_options=options))
    assert group.info["Conventions"] == "OME-Zarr 0.5 image"
    array = await api(api.open_array(f"{url}/a{suffix}", path="1", storage_options=options))
    np.testing.assert_array_equal(await api(array.view[0, 3:5].read()), values[0, 6:10:2, ::2])
    with pytest.raises(StoreError, match=r"the archive 'none.zip' does not exist.*add a slash"):
        await api(api.open(f"{url}/none.zip", storage_options=options))
    with pytest.raises(UnsupportedOperation, match="cannot write"):
        await api(api.create_group(f"{url}/a{suffix}", path="new", storage_options=options))
    await api(api.create_group(f"{url}/d.zip/", storage_options=options))
    assert await api(api.open_group(f"{url}/d.zip/", storage_options=options))


async def test_urls_of_archives_on_web_servers(api: Api, http: tuple[str, Path]):
    url, folder = http
    archive = stores.ZipStore(folder / "a b.ozx", mode="w")
    values = write_ome_image(archive, "0.5", shape=(2, 256, 384))
    sync.open_group(archive).close()
    for place in (f"{url}/a%20b.ozx", f"{url}/a%20b.ozx?token=1", f"file://{folder}/a b.ozx"):
        array = await api(api.open_array(place, path="0"))
        np.testing.assert_array_equal(await api(array.view[1, 40:50, ::7].read()), values[1, 40:50, ::7])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_ngff_zarr(tmp_path: Path):
    """Archives are exchanged with ngff-zarr."""
    ngff_zarr = pytest.importorskip("ngff_zarr")
    values = (np.arange(64 * 96) % 251).astype("u1").reshape(64, 96)
    image = ngff_zarr.to_ngff_image(values, dims=["y", "x"], scale={"y": 0.5, "x": 0.5})
    multiscales = ngff_zarr.to_multiscales(image, scale_factors=[], chunks=32)
    ngff_zarr.to_ngff_zarr(str(tmp_path / "theirs.ozx"), multiscales, version="0.5")
    group = sync.open_group(tmp_path / "theirs.ozx")
    assert group.info["Conventions"] == "OME-Zarr 0.5 image"
    first = group.info["Levels"].partition(" ")[0].rstrip(",")
    np.testing.assert_array_equal(group[first][...], values)
    archive = stores.ZipStore(tmp_path / "ours.ozx", mode="w")
    expected = write_ome_image(archive, "0.5")
    archive_path = str(tmp_path / "ours.ozx")
    sync.open_group(archive).close()
    read = ngff_zarr.from_ngff_zarr(archive_path)
    np.testing.assert_array_equal(np.asarray(read.images[0].data), expected)
