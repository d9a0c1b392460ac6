"""Arrays that were made shorter and longer again with ``resize`` after a job, so that rows of files are fill values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api
from zarrasync import sync
from zarrasync.cli import main
from zarrasync.errors import NodeExistsError, ShapeError

pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
from tests.support.netcdf import assert_same, joined, write_days

OPTIONS: dict[str, Any] = {"concat": "time", "chunks": {"time": 10, "lat": 4}}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write_days(tmp_path / "nc", range(4))


def resize(out: Path, *lengths: int, names: tuple[str, ...] = ("t2m", "time")) -> None:
    """Resize arrays with rows, to one length after the other."""
    for length in lengths:
        for name in names:
            array = sync.open_array(out, path=name, mode="r+")
            array.resize((length, *array.shape[1:]))


def values(out: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("numbers", "options", "length", "message"),
    [
        (range(3), {}, 24, "it does not contain|pass append=True"),
        (range(3), {"append": True}, 47, "in row 47, .* to 47 rows and append"),
        (range(4), {"append": True, "on_duplicate": "replace"}, 24, "in row 24, .* to 24 rows and append"),
        ([1], {"region": "auto"}, 24, "in row 24, .* to 24 rows and append"),
        ([1], {"region": {"time": slice(24, 48)}}, 24, "labels of the files differ from those of the rows 24:48"),
    ],
    ids=str,
)
async def test_files_are_refused(
    api: Api, tmp_path: Path, paths: list[Path], numbers: Any, options: dict[str, Any], length: int, message: str
):
    sync.ingest(paths[:3], out := tmp_path / "out.zarr", **OPTIONS)
    resize(out, length, 72)
    before = values(out)
    with pytest.raises((NodeExistsError, ShapeError), match=message):
        await api(api.ingest([paths[number] for number in numbers], out, **OPTIONS, **options))
    assert values(out) == before
    resize(out, length)
    report = await api(api.ingest(paths, out, append=True, on_duplicate="replace", **OPTIONS))
    assert (report.known, report.files) == (1, 3)
    assert_same(out, joined(paths))


async def test_other_files_are_appended_after_the_rows_were_removed(api: Api, tmp_path: Path, paths: list[Path]):
    sync.ingest(paths[:3], out := tmp_path / "out.zarr", **OPTIONS)
    resize(out, 30, 72)
    with pytest.raises(ShapeError, match=r"destination are not in order: .* in row 30, .* to 30 rows and append"):
        await api(api.ingest(paths[3], out, append=True, **OPTIONS))
    resize(out, 24)
    await api(api.ingest(paths, out, append=True, **OPTIONS))
    assert_same(out, joined(paths))


async def test_rows_of_other_files_in_the_place_of_removed_ones(api: Api, tmp_path: Path, paths: list[Path]):
    """The journal does not contain the removed file any more, so it is not refused, but added at the end."""
    sync.ingest([paths[0], paths[3]], out := tmp_path / "out.zarr", **OPTIONS)
    resize(out, 24)
    await api(api.ingest(paths[1:3], out, append=True, **OPTIONS))
    report = await api(api.ingest(paths, out, append=True, **OPTIONS))
    assert (report.known, report.files) == (3, 1)
    assert_same(out, joined(paths))


async def test_one_array_is_shorter(api: Api, tmp_path: Path, paths: list[Path]):
    """Its labels remain, so the job does not notice if it becomes longer again. A region writes the rows."""
    sync.ingest(paths[:2], out := tmp_path / "out.zarr", **OPTIONS)
    resize(out, 30, names=("t2m",))
    with pytest.raises(ShapeError, match=r"along 'time', but .* resize\(\) the arrays to the same length"):
        await api(api.ingest(paths, out, append=True, **OPTIONS))
    resize(out, 48, names=("t2m",))
    assert (await api(api.ingest(paths[:2], out, append=True, **OPTIONS))).known == 2
    await api(api.ingest(paths[1], out, region="auto", **OPTIONS))
    assert_same(out, joined(paths[:2]))


def test_the_command_names_its_options(tmp_path: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]):
    sync.ingest(paths[:3], out := tmp_path / "out.zarr", **OPTIONS)
    resize(out, 24, 72)
    assert main(["ingest", *map(str, paths), str(out), "--concat", "time", "--append"]) == 1
    assert "--overwrite instead of --append" in capsys.readouterr().err
