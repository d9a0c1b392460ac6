"""Files that symbolic links name several times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.ingested import read_journal
from zarrasync import sync
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.errors import NodeExistsError

OPTIONS: dict[str, Any] = {"concat": "time", "dims": "x"}


@pytest.fixture(autouse=True)
def linked(tmp_path: Path) -> Path:
    """A folder with two files, and links to them and to the folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(2):
        np.save(folder / f"{number}.npy", np.full(3, number))
    try:
        (folder / "a.npy").symlink_to("0.npy")
        (folder / "b.npy").symlink_to(folder / "a.npy")
        (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    except OSError:
        pytest.skip("this system does not allow symbolic links")
    return folder


def rows(store: Any) -> list[int]:
    return [int(value) for value in sync.open_array(store, path="values")[:, 0]]


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["data/a.npy", "data/b.npy"], ["data/0.npy"]),
        (["data/a.npy", "data/1.npy", "data/0.npy"], ["data/0.npy", "data/1.npy"]),
        (["link/0.npy", "data/1.npy", "data/0.npy"], ["data/0.npy", "data/1.npy"]),
        (["link/a.npy", "data/1.npy", "link/b.npy"], ["data/0.npy", "data/1.npy"]),
        (["data/*.npy"], ["data/0.npy", "data/1.npy"]),
    ],
)
async def test_in_one_call(api: Api, tmp_path: Path, names: list[str], kept: list[str]):
    paths = [tmp_path / name for name in names]
    report = await api(api.ingest(paths, store := {}, **OPTIONS))
    assert (report.files, report.rows) == (len(kept), len(kept))
    assert [note for note in report.notes if note.endswith("left out: other names of the same files")]
    recorded = [file[0] for file in read_journal(store)["files"]]
    assert recorded == [SourceFile(str(tmp_path / name)).recorded.url for name in kept]
    assert rows(store) == [int("1.npy" in name) for name in kept]


@pytest.mark.parametrize(
    ("first", "second"), [("a.npy", "b.npy"), ("0.npy", "b.npy"), ("b.npy", "0.npy"), ("0.npy", "../link/0.npy")]
)
async def test_in_two_calls(api: Api, linked: Path, first: str, second: str):
    await api(api.ingest([linked / "1.npy", linked / first], store := {}, **OPTIONS))
    paths = [os.path.normpath(linked / second), linked / "1.npy"]
    report = await api(api.ingest(paths, store, append=True, **OPTIONS))
    assert (report.known, report.files) == (2, 0)
    np.save(linked / "0.npy", np.full(3, 9))
    with pytest.raises(NodeExistsError, match=f"{second[-5:]} has changed since its rows were added"):
        await api(api.ingest(paths, store, append=True, **OPTIONS))
    assert rows(store) == [1, 0]
    await api(api.ingest(paths, store, append=True, on_duplicate="replace", **OPTIONS))
    assert rows(store) == [1, 9]
    sync.open_group(store, mode="r+")["values"].resize((1, 3))
    await api(api.ingest(paths, store, append=True, **OPTIONS))
    assert rows(store) == [1, 9]


async def test_a_link_that_leads_to_another_file(api: Api, linked: Path):
    latest = linked / "latest.npy"
    for number in (0, 1):
        latest.unlink(missing_ok=True)
        latest.symlink_to(f"{number}.npy")
        paths = [linked / f"{n}.npy" for n in range(number + 1)]
        await api(api.ingest([latest, *paths], store := {}, append=True, on_duplicate="skip", **OPTIONS))
        assert rows(store) == [number, *range(number)]


async def test_labels_in_the_names_of_links(api: Api, linked: Path):
    """Folders that store equal files once contain links to one file for different times."""
    pytest.importorskip("xarray", reason="converts times")
    for number in range(2):
        (linked / f"x_2024010{number + 1}.npy").symlink_to("0.npy")
    await api(api.ingest(str(linked / "x_*.npy"), store := {}, labels="x_%Y%m%d", **OPTIONS))
    assert rows(store) == [0, 0]
    (linked / "x_20240103.npy").symlink_to("0.npy")
    report = await api(api.ingest(str(linked / "x_*.npy"), store, append=True, labels="x_%Y%m%d", **OPTIONS))
    assert (report.known, report.files) == (2, 1)
    assert rows(store) == [0, 0, 0]
