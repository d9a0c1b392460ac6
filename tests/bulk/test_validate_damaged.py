"""Validating a root whose document is damaged: every line of the report names a document and a problem."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.support.api import Api
from zarrasync.cli import main
from zarrasync.errors import NodeNotFoundError

DOCUMENTS = {
    "zarr.json": (
        b"",
        b"{",
        b"[1]",
        b"5",
        b"null",
        b"\x00\xff",
        b"<html>",
        b'{"zarr_format": "3"}',
        b'{"zarr_format": 7}',
        b'{"zarr_format": 3}',
        b'{"zarr_format": 3, "node_type": "array"}',
        b'{"zarr_format": 3, "node_type": "group", "attributes": 5}',
        b'{"zarr_format": 3, "node_type": "group", "": 1}',
        b'{"zarr_format": 3, "node_type": "group", "consolidated_metadata": {"kind": "inline", "metadata": {"": 5}}}',
        b'{"zarr_format": 3, "node_type": "array", "shape": 1, "data_type": 2, "chunk_grid": 3, "codecs": {}}',
    ),
    ".zarray": (b"[]", b'{"zarr_format": 2'),
    ".zgroup": (b"5",),
}


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize(("key", "data"), [(key, data) for key, values in DOCUMENTS.items() for data in values])
def test_damaged_root_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, data: bytes, archived: bool
) -> None:
    if archived:
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr(key, data or b" ")
    else:
        (tmp_path / "x.zip").mkdir()
        (tmp_path / "x.zip" / key).write_bytes(data)
    assert main(["validate", str(tmp_path / "x.zip")]) == 1
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("0 arrays, ")
    assert lines
    for line in lines:
        severity, found_key, *rest = line.split(": ")
        assert (severity, found_key) == ("error", key), line
        assert rest, line
        assert all(rest), line


async def test_missing_roots_are_explained(api: Api, tmp_path: Path) -> None:
    (tmp_path / "era5.zarr").mkdir()
    with pytest.raises(NodeNotFoundError, match=r"the directory does not exist; did you mean 'era5\.zarr'"):
        await api(api.validate(tmp_path / "eraf5.zarr"))
    with pytest.raises(
        NodeNotFoundError, match=r"directory '.*/eraf5\.zarr' does not exist; did you mean 'era5\.zarr'"
    ):
        await api(api.validate(tmp_path / "eraf5.zarr" / "group"))
