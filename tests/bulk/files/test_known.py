"""Files with labels that are recognized as ingested before, and added again when their rows were removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.covering import covering
from zarrasync import sync
from zarrasync.bulk.reports import FilesReport

OPTIONS: dict[str, Any] = {"concat": "time", "dims": "time"}


def write(path: Path, times: Any) -> Path:
    np.savez(path, t=np.arange(len(times)) + 1.0, time=np.asarray(times))
    return path


def known(report: Any) -> tuple[int, int]:
    assert isinstance(report, FilesReport)
    return report.known, report.files


@pytest.mark.parametrize(
    ("dtypes", "stored"),
    covering(["i8 i4", "i8 >i2", "f8 i4", ">i8 i8", "f8 f4", "M8[s] M8[s]", "U3 U3"], ["", "f8", "i4"], strength=1),
)
async def test_labels_with_other_data_types(api: Api, tmp_path: Path, dtypes: str, stored: str):
    if stored and dtypes[0] in "MU":
        return
    paths = [
        write(tmp_path / f"{number}.npz", np.arange(4 * number, 4 * number + 4).astype(dtype))
        for number, dtype in enumerate(dtypes.split())
    ]
    options: dict[str, Any] = {**OPTIONS, **({"encoding": {"time": {"dtype": stored}}} if stored else {})}
    one: dict[str, bytes] = {}
    await api(api.ingest(paths, together := {}, **options))
    assert known(await api(api.ingest(paths, together, **options))) == (2, 0)
    await api(api.ingest(paths[0], one, **options))
    assert known(await api(api.ingest(paths, one, append=True, **options))) == (1, 1)
    assert known(await api(api.ingest(paths, one, append=True, **options))) == (2, 0)


@pytest.mark.parametrize("labels", ["increasing", "decreasing", "strings"])
@pytest.mark.parametrize("together", [False, True])
async def test_a_file_of_which_all_rows_were_skipped(api: Api, tmp_path: Path, labels: str, together: bool):
    """It is known until one of its labels is removed."""
    times: Any = np.arange(6) if labels == "increasing" else np.arange(6)[::-1]
    if labels == "strings":
        times = np.array([f"s{number * 7 % 6}" for number in range(6)])
    whole, part = write(tmp_path / "0.npz", times), write(tmp_path / "1.npz", times[1:4])
    options: dict[str, Any] = {**OPTIONS, "append": True, "on_duplicate": "skip"}
    store: dict[str, bytes] = {}
    for sources in [[whole, part]] if together else [whole, part]:
        await api(api.ingest(sources, store, **options))
    assert known(await api(api.ingest([whole, part], store, **options))) == (2, 0)
    for length, is_known in ((5, True), (4, True), (3, False)):
        group = sync.open_group(store, mode="r+")
        for _, array in group.arrays():
            array.resize((length,))
        expected = (1, 0) if is_known else (0, 1)
        assert known(await api(api.ingest(part, store, **options))) == expected
    assert sync.open_array(store, path="time")[:].tolist() == times[:4].tolist()
    assert sync.open_array(store, path="t")[3] == 3


async def test_the_same_call_with_replace(api: Api, tmp_path: Path):
    """Without append, a job is known by its files, also if their rows replace each other."""
    paths = [tmp_path / f"{number}.npz" for number in range(2)]
    for number, path in enumerate(paths):
        np.savez(path, v=np.full(3, number), time=np.arange(number, number + 3))
    options = {**OPTIONS, "on_duplicate": "replace"}
    await api(api.ingest(paths, store := {}, **options))
    before = dict(store)
    assert known(await api(api.ingest(paths, store, **options))) == (2, 0)
    assert store == before
    assert known(await api(api.ingest(paths[0], store, append=True, **options))) == (1, 0)
    np.savez(paths[0], v=np.full(3, 7), time=np.arange(3))
    assert known(await api(api.ingest(paths, store, append=True, **options))) == (1, 1)
    assert sync.open_array(store, path="v")[:].tolist() == [7, 7, 7, 1]
