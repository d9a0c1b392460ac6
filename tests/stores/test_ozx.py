"""Archives of OME-Zarr images, ``.ozx``."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.conventions import write_ome_image
from zarrasync import stores, sync
from zarrasync.cli import main


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
