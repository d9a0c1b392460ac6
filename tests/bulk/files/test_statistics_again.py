"""Statistics of jobs that are repeated without new files: only rows that certainly come from the files are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.ingested import forget_names
from zarrasync import sync
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.errors import ChecksumError, ShapeError

OPTIONS: dict[str, Any] = {"concat": "time", "dims": "time"}


def write(path: Path, value: float, times: Any = None) -> Path:
    """Write a file in which all values are equal. Its rows have labels if times are passed."""
    arrays = {"t": np.full(4 if times is None else len(times), value), **({} if times is None else {"time": times})}
    np.savez(path, **arrays)
    return path


def compared(report: Any) -> tuple[int, list[str]]:
    """Return the number of rows that were compared, and the messages."""
    assert isinstance(report, FilesReport)
    assert not report.files
    found = {item.name: item for item in report.statistics}
    assert not any(item.differences for item in found.values())
    return found["t"].files.count if "t" in found else 0, report.notes


def left_out(count: int) -> list[str]:
    return [f"{count} rows not compared, because they may come from other files"] if count else []


@pytest.mark.parametrize("is_labelled", [True, False])
async def test_converted_values(api: Api, tmp_path: Path, is_labelled: bool):
    paths = [tmp_path / f"{number}.npz" for number in range(3)]
    for number, path in enumerate(paths):
        times: dict[str, Any] = {"time": np.arange(4) + 4 * number} if is_labelled else {}
        np.savez(path, t=np.arange(4) / 7 + number, **times)
    converted: dict[str, Any] = {**OPTIONS, "encoding": {"t": {"dtype": "f4"}}}
    await api(api.ingest(paths[:2], store := {}, **converted))
    assert compared(await api(api.ingest(paths[:2], store, statistics=True, **converted))) == (8, [])
    assert compared(await api(api.ingest(paths[:2], store, append=True, statistics=True, **OPTIONS))) == (8, [])
    with pytest.raises(ShapeError, match="an existing array keeps its data type"):
        await api(api.ingest(paths, store, append=True, **OPTIONS))
    await api(api.ingest(paths, store, append=True, statistics=True, **converted))
    assert compared(await api(api.ingest(paths, store, append=True, statistics=True, **OPTIONS))) == (12, [])


@pytest.mark.parametrize("names", [10, 1])
async def test_rows_that_another_file_has(api: Api, tmp_path: Path, names: int):
    a, b = (write(tmp_path / f"{start}.npz", start, np.arange(start, start + 4)) for start in (0, 2))
    for policy, rows in (("skip", {a: 4, b: 2}), ("replace", {a: 2, b: 2})):
        await api(api.ingest(a, store := {}, **OPTIONS))
        forget_names(store, names)
        await api(api.ingest(b, store, append=True, on_duplicate=policy, **OPTIONS))
        forget_names(store, names)
        again: dict[str, Any] = {**OPTIONS, "append": True, "statistics": True, "on_duplicate": "skip"}
        for path, count in rows.items():
            assert compared(await api(api.ingest(path, store, **again))) == (count, left_out(4 - count))
        both = compared(await api(api.ingest([a, b], store, **again)))
        assert both == (sum(rows.values()), left_out(8 - sum(rows.values())))
        sync.open_array(store, path="t", mode="r+")[4] = 7
        with pytest.raises(
            ChecksumError, match=r"other files have some of the labels of .*2.npz, so writing all of its"
        ):
            await api(api.ingest(b, store, **again))


async def test_the_error_names_what_can_be_written_again(api: Api, tmp_path: Path):
    paths = [write(tmp_path / f"{number}.npz", number) for number in range(2)]
    await api(api.ingest(paths, store := {}, **OPTIONS))
    sync.open_array(store, path="t", mode="r+")[5] = 7
    with pytest.raises(ChecksumError, match=r"rows of single files again with region=\{'time': slice\(…\)\}"):
        await api(api.ingest(paths, store, statistics=True, **OPTIONS))
    with pytest.raises(ChecksumError, match=r"rows of .*1.npz again with region=\{'time': slice\(4, 8\)\}"):
        await api(api.ingest(paths[1], store, statistics=True, append=True, **OPTIONS))
    await api(api.ingest(paths[1], store, region={"time": slice(4, 8)}, **OPTIONS))
    assert compared(await api(api.ingest(paths, store, statistics=True, **OPTIONS))) == (8, [])
    await api(api.ingest(paths[0], single := {}))
    sync.open_array(single, path="t", mode="r+")[1] = 7
    with pytest.raises(ChecksumError, match=r"write .*0.npz again with mode='w'"):
        await api(api.ingest(paths[0], single, statistics=True))


@pytest.mark.parametrize("seed", range(4))
def test_random_jobs(tmp_path: Path, seed: int):
    """Files with labels that overlap are added, replaced and skipped. No later comparison uses the rows of another file."""
    random, store, owners = np.random.default_rng(seed), dict[str, bytes](), np.zeros(0, "i8")
    paths, least = list[Path](), 0
    for number in range(1, 7):
        start = int(random.integers(0, len(owners) + 1))
        times = np.unique(random.integers(start, len(owners) + 6, 5))
        times = np.unique(np.r_[times, np.arange(len(owners), int(times.max()) + 1)])  # without gaps behind the rows
        paths.append(write(tmp_path / f"{number}.npz", number, times))
        policy = ["skip", "replace"][int(random.integers(2))]
        sync.ingest(paths[-1], store, append=True, on_duplicate=policy, **OPTIONS)  # type: ignore[arg-type]  # one of two
        before, owners = owners, np.pad(owners, (0, max(int(times.max()) + 1 - len(owners), 0)))
        own = times if policy == "replace" else times[times >= len(before)]
        owners[own] = number
        assert sync.open_array(store, path="t")[:].tolist() == owners.tolist()
        again: dict[str, Any] = {**OPTIONS, "append": True, "on_duplicate": "skip", "statistics": True}
        for chosen in (paths, paths[-1], paths[0], paths[::2]):
            least += compared(sync.ingest(chosen, store, **again))[0]
    assert least > 20
    saved = dict(store)
    for number, path in enumerate(paths, 1):
        store.update(saved)
        sync.open_array(store, path="t", mode="r+")[:] = -1
        message = ""
        try:
            sync.ingest(path, store, **again)
        except ChecksumError as error:
            message = str(error)
        if "region='auto'" in message:
            sync.ingest(path, store, region="auto", **OPTIONS)
            assert (sync.open_array(store, path="t")[:] == np.where(owners == number, number, -1)).all()
