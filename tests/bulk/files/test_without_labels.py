"""Appending files whose rows have no labels: only the journal shows which ones were ingested."""

from __future__ import annotations

import os
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.ingested import journal_key, put_journal, read_journal
from zarrasync import sync
from zarrasync.bulk.files.records.journal import Rows
from zarrasync.cli import main
from zarrasync.errors import NodeExistsError, ShapeError

OPTIONS: dict[str, Any] = {"concat": "time", "dims": "lat,lon", "append": True}


def write(folder: Path, numbers: Any, *, add: int = 0) -> str:
    """Write files with one row each. Return a pattern for all of them."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        path = folder / f"{number}.npy"
        before = path.stat().st_mtime_ns if path.exists() else 0
        np.save(path, np.full((2, 3), number + add, "f4"))
        os.utime(path, ns=(0, max(before + 1, path.stat().st_mtime_ns)))
    return str(folder / "*.npy")


def rows(store: Any) -> list[int]:
    return [int(value) for value in sync.open_array(store, path="values")[:, 0, 0]]


@pytest.mark.parametrize("state", ["other version", "damaged", "no list"])
async def test_nothing_is_added_if_the_journal_does_not_contain_all_files(api: Api, tmp_path: Path, state: str):
    pattern, store = write(tmp_path / "x", range(3)), dict[str, bytes]()
    await api(api.ingest(pattern, store, **OPTIONS))
    value = read_journal(store)
    changed: dict[str, dict[str, Any]] = {
        "other version": {"version": 9},
        "damaged": {"files": [["0.npy"]]},
        "no list": {"files": None},
    }
    put_journal(store, {**value, **changed[state]}, journal_key(store))
    with pytest.raises(NodeExistsError, match=r"0.npy .* a second time. If none of the (1 file|3 files)"):
        await api(api.ingest(pattern, store, **OPTIONS))
    assert rows(store) == [0, 1, 2]
    del store[journal_key(store)]
    await api(api.ingest(write(tmp_path / "y", range(3, 5)), store, **OPTIONS))
    assert rows(store) == [0, 1, 2, 3, 4]


async def test_a_file_that_has_changed_is_not_added_again(api: Api, tmp_path: Path):
    pattern, store = write(tmp_path / "x", range(3)), dict[str, bytes]()
    await api(api.ingest(pattern, store, **OPTIONS))
    write(tmp_path / "x", [1], add=100)
    with pytest.raises(NodeExistsError, match=r"1.npy has changed .* region=\{'time': slice\(1, 2\)\}"):
        await api(api.ingest(pattern, store, **OPTIONS))
    write(tmp_path / "x", [3])
    report = await api(api.ingest(pattern, store, **OPTIONS, on_duplicate="skip"))
    assert (report.known, report.files) == (3, 1)
    assert report.notes == ["1 file left out: changed since its rows were added, or only some of its rows are left"]
    assert rows(store) == [0, 1, 2, 3]
    region = {"concat": "time", "dims": "lat,lon", "region": {"time": slice(1, 2)}}
    await api(api.ingest(tmp_path / "x" / "1.npy", store, **region))
    assert rows(store) == [0, 101, 2, 3]
    assert (await api(api.ingest(pattern, store, **OPTIONS))).known == 4
    with pytest.raises(ShapeError, match="has 1 rows, but the files have 2"):
        await api(api.ingest([tmp_path / "x" / "1.npy", tmp_path / "x" / "2.npy"], store, **region))


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
async def test_rows_of_changed_files_are_replaced(api: Api, tmp_path: Path, processes: int):
    pattern, store = write(tmp_path / "x", range(5)), tmp_path / "out.zarr"
    await api(api.ingest(pattern, store, chunks={"time": 2}, **OPTIONS))
    write(tmp_path / "x", [1, 3, 4], add=100)
    write(tmp_path / "x", [5, 6])
    options: dict[str, Any] = {**OPTIONS, "on_duplicate": "replace", "executor": processes, "verify": True}
    report = await api(api.ingest(pattern, store, **options))
    assert (report.known, report.files, report.rows) == (2, 5, 5)
    assert rows(store) == [0, 101, 2, 103, 104, 5, 6]
    report = await api(api.ingest(pattern, store, **options))
    assert (report.known, report.files) == (7, 0)
    sync.open_group(store, mode="r+")["values"].resize((4, 2, 3))
    write(tmp_path / "x", [0, 6], add=200)
    await api(api.ingest(pattern, store, **options))  # removed rows are added at the end
    assert rows(store) == [200, 101, 2, 103, 104, 5, 206]


async def test_files_with_another_number_of_rows_are_not_replaced(api: Api, tmp_path: Path):
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", np.full((2, 3), number, "f4"))
    options: dict[str, Any] = {"concat": "time", "dims": "time,x", "append": True, "on_duplicate": "replace"}
    await api(api.ingest(str(tmp_path / "*.npy"), store := {}, **options))
    np.save(tmp_path / "0.npy", np.full((3, 3), 9, "f4"))
    before = dict(store)
    with pytest.raises(ShapeError, match=r"0.npy has 3 rows, but 2 in the destination"):
        await api(api.ingest(str(tmp_path / "*.npy"), store, **options))
    assert store == before
    np.save(tmp_path / "0.npy", np.full((2, 3), 9, "f4"))
    sync.open_group(store, mode="r+")["values"].resize((1, 3))
    with pytest.raises(ShapeError, match=r"0.npy has 2 rows, but 1 in the destination"):
        await api(api.ingest(str(tmp_path / "*.npy"), store, **options))


async def test_rows_that_other_files_have_taken(api: Api, tmp_path: Path):
    """The values of a file are gone if the rows of another file are where they were."""
    paths, store = [tmp_path / f"{number}.npy" for number in range(4)], dict[str, bytes]()
    write(tmp_path, range(4))
    await api(api.ingest(paths[:2], store, **OPTIONS))
    sync.open_group(store, mode="r+")["values"].resize((1, 2, 3))
    await api(api.ingest(paths[2], store, **OPTIONS))
    assert rows(store) == [0, 2]
    report = await api(api.ingest(paths[:3], store, **OPTIONS))
    assert (report.known, report.files) == (2, 1)
    assert rows(store) == [0, 2, 1]
    region = {"concat": "time", "dims": "lat,lon", "region": {"time": slice(0, 1)}}
    await api(api.ingest(paths[3], store, **region))
    assert rows(store) == [3, 2, 1]
    write(tmp_path, range(4), add=100)
    await api(api.ingest(paths[:4], store, **OPTIONS, on_duplicate="replace", verify=True))
    assert rows(store) == [103, 102, 101, 100]


async def test_a_file_that_has_lost_some_rows(api: Api, tmp_path: Path):
    options: dict[str, Any] = {"concat": "time", "dims": "time,x"}
    paths, store = [tmp_path / f"{number}.npy" for number in range(3)], dict[str, bytes]()
    for number, path in enumerate(paths):
        np.save(path, np.full((4, 3), number, "f4"))
    await api(api.ingest(paths[:2], store, **options))
    await api(api.ingest(paths[2], store, region={"time": slice(2, 6)}, **options))
    for number in range(2):
        with pytest.raises(NodeExistsError, match=rf"{number}.npy has changed .* or only some of its rows are left"):
            await api(api.ingest(paths[number], store, append=True, **options))
        with pytest.raises(ShapeError, match=rf"{number}.npy has 4 rows, but 2 in the destination"):
            await api(api.ingest(paths[number], store, append=True, on_duplicate="replace", **options))
    assert (await api(api.ingest(paths[2], store, append=True, **options))).known == 1


async def test_two_files_in_the_journal_of_an_earlier_version_have_the_same_rows(api: Api, tmp_path: Path):
    pattern, store = write(tmp_path / "x", range(3)), dict[str, bytes]()
    await api(api.ingest(pattern, store, **OPTIONS))
    value = read_journal(store)
    files = [list(file) for file in value["files"]]
    files[1][3:5] = files[2][3:5]
    put_journal(store, {**value, "files": files}, journal_key(store))
    write(tmp_path / "x", range(3), add=100)
    with pytest.raises(ShapeError, match=r"1.npy and .*2.npy have the same row 2 in the destination"):
        await api(api.ingest(pattern, store, **OPTIONS, on_duplicate="replace"))
    assert rows(store) == [0, 1, 2]


def test_written_rows():
    """All files and jobs on an axis of a few rows, compared with sets of rows."""
    spans = [(start, stop) for start, stop in combinations(range(7), 2)]
    for first, second in product(spans, spans):
        taken = {*range(*first), *range(*second)}
        written = np.isin(np.arange(max(taken) + 1), [*taken])
        for span in spans:
            left = set(range(*span)) - taken
            assert Rows(*span, "").without(written) == (Rows(min(left), max(left) + 1, "") if left else None)


def test_the_command_names_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["ingest", write(tmp_path / "x", range(3)), str(tmp_path / "out.zarr"), "--concat", "time", "--append"]
    words += ["--dims", "lat,lon"]
    assert main(words) == 0
    write(tmp_path / "x", [1, 2], add=100)
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "1.npy has changed since its rows were added to" in error
    assert "as has 1 more" in error
    assert "pass --on-duplicate replace to write them again, --on-duplicate skip" in error
    assert "--region 1:2" in error
    assert rows(tmp_path / "out.zarr") == [0, 1, 2]
    assert main([*words, "--on-duplicate", "replace"]) == 0
    assert rows(tmp_path / "out.zarr") == [0, 101, 102]
