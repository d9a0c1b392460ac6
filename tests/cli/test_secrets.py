"""No command prints a secret of a URL or an option, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import zarrasync as za
from tests.support.servers import http_server
from zarrasync import sync
from zarrasync.cli import main

SECRET, OTHER = "hunter2xyz", "T0PSECRETT"
NOWHERE = "127.0.0.1:1"
URLS = [
    f"ftp://user:{SECRET}@{NOWHERE}/x.zarr",
    f"ftp://user:{SECRET}/{OTHER}@{NOWHERE}/x.zarr",
    f"ftp://user:{SECRET}?{OTHER}@{NOWHERE}/x.zarr",
    f"http://user:{SECRET}/{OTHER}@{NOWHERE}/x.zarr",
    f"http://{NOWHERE}/x.zarr?token={SECRET}",
    f"http://{NOWHERE}/x.zarr#{SECRET}",
    f"http://{NOWHERE}/x.zip?sig={SECRET}|zip:",
    f"s3://key:{SECRET}/{OTHER}@bucket/x.zarr",
    f"simplecache::http://user:{SECRET}/{OTHER}@{NOWHERE}/x.zarr",
    f"bogus://user:{SECRET}/{OTHER}@host/x",
]
SOURCES = [
    "info",
    "tree",
    "ls",
    "cat",
    "head",
    "stats",
    "validate",
    "manifest",
    "consolidate",
    "rm -y",
    "attrs get",
    "bench",
]
PAIRS = ["copy", "convert", "mv", "pyramid", "ingest", "ingest --concat time", "ingest --json"]
OPTIONS = [
    f"secret={SECRET}",
    f"password={SECRET}",
    SECRET,
    f'token={{"{SECRET}',
    f'headers={{"Authorization": "{SECRET}"}}',
    f"endpoint_url={SECRET}",
    f"endpoint_url=http://user:{SECRET}/{OTHER}@{NOWHERE}",
    f"sekret={SECRET}",
    f"account_key={SECRET}",
    f"connection_string=AccountName=a;AccountKey={SECRET};x",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    sync.create_group("x.zarr").create_array("t", data=np.arange(12.0).reshape(3, 4), dimension_names=("y", "x"))
    np.save("a.npy", np.ones(3))
    Path("a.bin").write_bytes(b"of no format")
    with za.config.set(retries=0, total_timeout=3.0, request_timeout=2.0):
        yield tmp_path


def fails(capfd: pytest.CaptureFixture[str], *words: str) -> None:
    """Check that a command fails, and prints no secret."""
    try:
        code = main(words)
    except SystemExit as error:
        code = int(error.code or 0)
    printed = "".join(capfd.readouterr())
    assert code != 0, words
    assert printed, words
    assert SECRET not in printed, words
    assert OTHER not in printed, words


@pytest.mark.servers
@pytest.mark.parametrize("url", URLS)
def test_urls(capfd: pytest.CaptureFixture[str], url: str):
    for command in SOURCES:
        fails(capfd, *command.split(), url)
    for command in PAIRS:
        fails(capfd, *command.split(), url, "out.zarr")
        fails(capfd, *command.split(), "a.npy" if "ingest" in command else "x.zarr", url)
    for words in (
        ["attrs", "set", url, "a=1"],
        ["ingest", "a.npy", "a.npy", url],
        ["ingest", url, url, "out.zarr", "--concat", "time"],
        ["ingest", "plan", url, "out.zarr", "--concat", "time", "--plan", "plan.json"],
        ["ingest", "plan", "a.npy", url, "--concat", "time", "--plan", "plan.json", "--dims", "x"],
        ["ingest", "plan", "a.npy", "out.zarr", "--concat", "time", "--plan", url, "--dims", "x"],
        ["ingest", "run", url],
        ["ingest", "finish", url],
        ["ingest", "abandon", url],
        ["ingest", "a.npy", "out.zarr", "--concat", "time", "--encoding", url],
        ["ingest", "a.bin", "out.zarr", "--concat", "time", "--engine", url],
        ["ingest", "a.npy", "out.zarr", "--chunks", url],
        ["serve", url, "--port", "0"],
        ["info", "x.zarr", "--path", url],
        ["cat", "x.zarr", url],
        [url],
    ):
        fails(capfd, *words)


@pytest.mark.servers
@pytest.mark.parametrize("option", OPTIONS)
def test_options(capfd: pytest.CaptureFixture[str], option: str):
    for url in (f"http://{NOWHERE}/x.zarr", f"ftp://{NOWHERE}/x.zarr", "x.zarr"):
        fails(capfd, "info", url, "-o", option)
        fails(capfd, "ls", url, "-o", option, "--json")
        fails(capfd, "copy", url, "out.zarr", "-o", option)
        fails(capfd, "copy", "x.zarr", url.replace("x.zarr", "y.zarr"), "--dest-option", option)
        fails(capfd, "serve", url, "-o", option, "--port", "0")


@pytest.mark.servers
def test_commands_that_succeed(capfd: pytest.CaptureFixture[str], folder: Path):
    with http_server(folder, show_index=True) as address:
        url = f"http://user:{SECRET}@{address.removeprefix('http://')}/x.zarr?token={OTHER}"
        sync.consolidate_metadata("x.zarr")
        for command in (
            "info",
            "info --json",
            "tree",
            "ls",
            "ls --json",
            "stats",
            "validate",
            "validate --json",
            "manifest",
        ):
            assert main([*command.split(), url]) == 0
        assert main(["copy", url, "copy.zarr", "--verify"]) == 0
        assert main(["ingest", url, "ingested.zarr", "--json"]) == 0
        printed = "".join(capfd.readouterr())
        assert printed
        assert SECRET not in printed
        assert OTHER not in printed
        for path in filter(Path.is_file, folder.rglob("*")):
            data = path.read_bytes()
            assert SECRET.encode() not in data
            assert OTHER.encode() not in data


def test_common_options_are_named(capfd: pytest.CaptureFixture[str]):
    assert main(["info", "s3://bucket/x.zarr", "-o", "anon"]) == 1
    assert "must be NAME=VALUE, found 'anon'" in capfd.readouterr().err
