"""What ingestion records: nothing that other readers see, no secrets, and everything that it leaves out."""

from __future__ import annotations

import json
import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
from tests.support.api import Api
from tests.support.netcdf import write_days
from tests.support.servers import http_server
from zarrasync import sync
from zarrasync.cli import main

SECRETS = ("PASSWORD1", "SIGNATURE1", "SIGNATURE2", "OPTION1", "OPTION2", "OPTION3", "USERNAME1")


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=repr)


def assert_public(*values: Any, folder: Path | None = None) -> None:
    text = "\n".join(map(shown, values))
    assert [line for line in text.splitlines() if any(word in line for word in SECRETS)] == []
    assert folder is None or str(folder) not in text


# ------------------------------------------------------------------ other readers


@pytest.mark.processes
@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_other_readers_see_the_source_only(api: Api, tmp_path: Path, zarr_format: int):
    zarr = pytest.importorskip("zarr", minversion="3", reason="zarr-python 3 is not installed")
    (path,) = write_days(tmp_path / "nc", [0], packed=False)
    out = tmp_path / "out.zarr"
    await api(api.ingest(path, out, concat="time", zarr_format=zarr_format))
    assert str(tmp_path).encode() not in b"".join(file.read_bytes() for file in out.rglob("*") if file.is_file())
    with xr.open_dataset(path) as source, warnings.catch_warnings():
        warnings.simplefilter("error")
        for engine in ("zarr", "zarrasync"):
            for consolidated in (True, False):
                with xr.open_dataset(out, engine=engine, consolidated=consolidated) as found:
                    xr.testing.assert_identical(found, source)
                    for writer in ("netcdf4", "h5netcdf", "scipy"):
                        pytest.importorskip("netCDF4" if writer == "netcdf4" else writer)
                        found.to_netcdf(tmp_path / "back.nc", engine=writer)
                        with xr.open_dataset(tmp_path / "back.nc", engine=writer) as back:
                            xr.testing.assert_identical(back, source)
        names = {name for name, _ in zarr.open_group(out, mode="r", use_consolidated=False).members(max_depth=None)}
        assert names == {*source.variables}
        warnings.filterwarnings("ignore", message="Consolidated metadata is currently")
        zarr.consolidate_metadata(out)
    checked = await api(api.validate(out, data=True))
    assert checked.ok
    assert ".sources" not in str(checked)
    assert (await api(api.ingest(path, out, concat="time"))).known == 1


# ------------------------------------------------------------------ secrets


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    write_days(tmp_path / "nc", range(2))
    with http_server(tmp_path / "nc") as url:
        yield url.replace("://", "://USERNAME1:PASSWORD1@")


@pytest.mark.servers
def test_secrets_stay_secret(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.DEBUG, logger="zarrasync")
    query = "X-Amz-Signature=SIGNATURE1&sig=SIGNATURE2"
    urls = [f"{server}/day{number}.nc?{query}" for number in range(2)]
    options: dict[str, Any] = {
        "concat": "time",
        "source_options": {"headers": {"X-Token": "OPTION1"}, "client_kwargs": {"cookies": {"a": "OPTION2"}}},
    }
    out = tmp_path / "out.zarr"
    ingest: Any = sync.ingest
    reports = [ingest(urls, out, verify=True, **options) for _ in range(2)]
    assert [report.known for report in reports] == [0, 2]
    others = [url.replace("SIGNATURE1", "SIGNATURE3").replace("PASSWORD1", "other") for url in urls]
    assert ingest(others, out, **options).known == 2  # the same files
    plan = str(tmp_path / "plan.json")
    words = [*urls, str(tmp_path / "planned.zarr"), "--concat", "time", "-o", 'headers={"X-Token": "OPTION1"}']
    assert main(["ingest", "plan", *words, "--plan", plan]) == 0
    assert main(["ingest", "run", plan]) == 0
    left = [file for file in (tmp_path / "planned.zarr").rglob("*") if file.is_file()]
    document = Path(plan).read_text()
    assert main(["ingest", "finish", plan, "--json"]) == 0
    assert main(["ingest", *urls, str(tmp_path / "cli.zarr"), "--concat", "time", "--json"]) == 0
    wrong: list[Any] = [
        ([f"{server}/missing.nc?{query}"], {}),
        ([f"{server}/missing*.nc?{query}"], {}),
        (urls, {"engine": "scipy"}),
        (urls, {"engine_options": {"backend_kwargs": {"storage_options": {"token": "OPTION3"}}}}),
        (urls, {"engine_options": {"token": "OPTION3"}}),
        ([url.replace("127.0.0.1", "host.invalid") for url in urls], {}),
        ([f"{server.rpartition(':')[0]}:9/day0.nc?{query}"], {}),
        (
            ["s3://bucket/day0.nc"],
            {"source_options": {"key": "OPTION1", "secret": "OPTION2", "endpoint_url": "http://x.invalid"}},
        ),
    ]
    messages = []
    for files, more in wrong:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # of any class
            sync.ingest(files, {}, **{**options, **more})
        messages += [str(caught.value), repr(caught.value), *traceback.format_exception(caught.value, chain=True)]
    assert main(["ingest", f"{server}/missing.nc?{query}", str(tmp_path / "x.zarr"), "--concat", "time"]) == 1
    contents = [file.read_bytes().decode("latin-1") for file in out.parent.glob("*.zarr/**/*") if file.is_file()]
    assert left
    assert_public(*contents, folder=tmp_path)
    assert_public(document, *messages, caplog.text, *capsys.readouterr())
    assert_public(*(text for report in reports for text in (str(report), repr(report), report.to_dict())))


# ------------------------------------------------------------------ what is left out


@pytest.mark.processes
async def test_pages_of_tiff(api: Api, tmp_path: Path):
    pytest.importorskip("rioxarray", reason="rioxarray is not installed")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    first, *others = [image.fromarray(np.full((4, 5), number, "u1")) for number in range(3)]
    first.save(tmp_path / "a_20200101.tif", save_all=True, append_images=others)
    report = await api(api.ingest(tmp_path / "a_20200101.tif", {}, concat="time", labels="a_%Y%m%d"))
    assert [text.partition(" of ")[0] for text in report.left_out] == ["GTIFF_DIR:1", "GTIFF_DIR:2"]
    assert (
        main(["ingest", str(tmp_path / "a_20200101.tif"), str(tmp_path / "o"), "--concat", "t", "--labels", "a_%Y%m%d"])
        == 3
    )


async def test_groups_of_zarr(api: Api, tmp_path: Path):
    root = sync.create_group(tmp_path / "a.zarr")
    root.create_array("v", data=np.arange(3), dimension_names=["time"])
    root.create_array("deep/er/w", data=np.arange(3), dimension_names=["time"])
    (text,) = (await api(api.ingest([tmp_path / "a.zarr"], {}, concat="time"))).left_out
    assert "because only one group is read: 'deep/er'" in text
    report = await api(api.ingest_files(tmp_path / "a.zarr", store := {}))
    assert (report.files, report.left_out) == (1, [])
    assert sync.open_array(store, path="deep/er/w")[...].tolist() == [0, 1, 2]
