"""The command line: what it prints, word for word, its exit codes, and how it behaves as a process."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.demo import TEMPERATURE, create_temperature
from zarrasync import sync
from zarrasync.cli import main, make_parser

TRANSCRIPTS = Path(__file__).parent / "transcripts"
COMMAND = re.compile(r"^\$ zarrasync (.*)$", re.MULTILINE)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A working directory with an example hierarchy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    root = sync.create_group("data.zarr", attributes={"title": "a demo"})
    create_temperature(root, data=TEMPERATURE, chunks=(6, 20, 30), shards=(12, 40, 60), compressors=None)
    mask = root.create_array("raw/mask", data=np.eye(40, 60, dtype=bool), chunks=(20, 30), compressors=None)
    mask[0, 0] = False
    root.create_array("name", data=np.array(["a", "né"]), compressors=None)
    sync.create_array("old.zarr", data=np.arange(12).reshape(3, 4), chunks=(2, 2), zarr_format=2, compressors=None)
    return tmp_path


def run(line: str, capsys) -> tuple[int, str]:
    """Run a command; return its exit code and its output."""
    import shlex

    code = main(shlex.split(line))
    printed = capsys.readouterr()
    return code, printed.out + printed.err


@pytest.mark.parametrize("page", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda page: page.stem)
def test_transcripts(page, workdir, capsys):
    """Every command of the transcripts prints the text below it. ``ZARRASYNC_WRITE=1`` rewrites the transcripts for review."""
    text = page.read_text()
    told = []
    for line in COMMAND.findall(text):
        code, printed = run(line, capsys)
        printed = printed.replace(str(workdir), "/home/data")
        printed = re.sub(r'"seconds": [\d.e-]+', '"seconds": 0.0', printed)
        told.append(f"$ zarrasync {line}\n{printed}" + (f"[exit code {code}]\n" if code else ""))
    made = "\n".join(told)
    if os.environ.get("ZARRASYNC_WRITE"):
        page.write_text(made)
    assert made == text


def commands_below(parser: Any, prefix: str = "") -> dict[str, Any]:
    """Return all commands by name, those of groups as ``attrs get``."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                found |= commands_below(command, f"{prefix}{name} ") or {f"{prefix}{name}": command}
    return found


def test_every_command_has_help_with_examples(capsys):
    commands = commands_below(make_parser())
    assert len(commands) == 20
    for name, own in commands.items():
        with pytest.raises(SystemExit, match="0"):
            main([*name.split(), "--help"])
        text = capsys.readouterr().out
        assert name == "completion" or f"zarrasync {name} " in text.partition("example")[2], name
        reports = "--json" in own.format_help()
        assert reports == (name not in ("serve", "completion", "manifest")), name  # a manifest is JSON


def test_wrong_arguments_are_two(capsys):
    for wrong in (["nothing"], ["info"], ["convert", "a", "b", "--chunks", "x"], ["cat", "a", "--format", "xls"]):
        with pytest.raises(SystemExit) as found:
            main(wrong)
        assert found.value.code == 2
        assert "usage: zarrasync" in capsys.readouterr().err


def test_cat_as_npy(workdir, capsysbinary):
    assert main(["cat", "data.zarr", "--path", "t2m", "-s", "time=3,lat=::-2", "--format", "npy"]) == 0
    np.testing.assert_array_equal(np.load(BytesIO(capsysbinary.readouterr().out)), TEMPERATURE[3, ::-2])
    assert main(["cat", "data.zarr", "--path", "t2m", "--format", "npy", "--output", "x.npy"]) == 0
    np.testing.assert_array_equal(np.load("x.npy"), TEMPERATURE)
    assert main(["cat", "data.zarr", "--path", "name", "--format", "npy", "--output", "n.npy"]) == 0
    assert np.load("n.npy").tolist() == ["a", "né"]


def test_cat_as_csv_and_json(workdir, capsys):
    assert main(["cat", "data.zarr", "--path", "t2m", "-s", "0", "--format", "csv", "--output", "x.csv"]) == 0
    np.testing.assert_array_equal(np.loadtxt("x.csv", delimiter=",", dtype="f4"), TEMPERATURE[0])
    assert main(["cat", "data.zarr", "--path", "t2m", "-s", "1,2", "--json"]) == 0
    np.testing.assert_array_equal(np.array(json.loads(capsys.readouterr().out), "f4"), TEMPERATURE[1, 2])


def test_stats_of_large_numbers_are_exact(tmp_path, capsys):
    values = np.array([2**53 + 1, 2**60 + 7, -(2**62) - 1])
    sync.create_array(tmp_path / "x", data=values)
    assert main(["stats", str(tmp_path / "x"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert (found["minimum"], found["maximum"]) == (values.min(), values.max())
    assert main(["stats", str(tmp_path / "x")]) == 0
    assert {str(values.min()), str(values.max())} <= set(capsys.readouterr().out.split())


def test_stats_are_numpys(workdir, capsys):
    assert main(["stats", "data.zarr", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"/t2m", "/raw/mask"}
    told = found["/t2m"]
    assert told["count"] == TEMPERATURE.size
    assert [told["minimum"], told["maximum"]] == [TEMPERATURE.min(), TEMPERATURE.max()]
    assert told["mean"] == pytest.approx(TEMPERATURE.mean(dtype="f8"), rel=1e-12)
    assert told["std"] == pytest.approx(TEMPERATURE.std(dtype="f8"), rel=1e-9)
    assert main(["stats", "data.zarr", "--path", "t2m", "-s", "0", "--histogram", "7", "--json"]) == 0
    counts, _ = np.histogram(TEMPERATURE[0], 7)
    assert json.loads(capsys.readouterr().out)["/t2m"]["histogram"] == counts.tolist()


def test_rm_asks_and_keeps_copies_of_metadata_fresh(workdir, capsys):
    sync.consolidate_metadata("data.zarr")
    assert main(["rm", "data.zarr", "--path", "raw"]) == 1
    assert "raw" in sync.open_group("data.zarr")
    assert main(["rm", "data.zarr", "--path", "raw", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["nodes"], told["erased"]) == (2, False)
    assert main(["rm", "data.zarr", "--path", "raw", "-y"]) == 0
    assert list(sync.open_group("data.zarr")) == ["name", "t2m"]
    assert sync.validate("data.zarr").findings == []
    assert main(["rm", "old.zarr", "-y"]) == 0
    assert main(["info", "old.zarr"]) == 1


@pytest.mark.processes
def test_a_closed_pipe_is_not_an_error(workdir):
    sync.create_array("long.zarr", data=np.arange(200_000).reshape(-1, 2))
    command = f"{sys.executable} -m zarrasync cat long.zarr --format csv | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0,1", "0"]
    assert done.stderr == ""


@pytest.mark.processes
def test_serve_is_a_process_that_ends_when_asked(workdir):
    pytest.importorskip("cmap")
    for number in (signal.SIGTERM, signal.SIGINT):
        command = [sys.executable, "-m", "zarrasync", "serve", "data.zarr", "--port", "0", "--log"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            url = re.search(r"http://\S+", process.stdout.readline())[0]
            with urllib.request.urlopen(f"{url}api/data?path=t2m&select=0,0,0") as answer:
                assert json.load(answer)["data"] == pytest.approx(280.0)
            process.send_signal(number)
            _, log = process.communicate(timeout=20)
        finally:
            process.kill()
        assert process.returncode in (0, 130, -number), log
        told = json.loads(log.splitlines()[0])
        assert (told["route"], told["status"], told["method"]) == ("data", 200, "GET")


@pytest.mark.processes
def test_a_terminal_gets_tables_and_colours(workdir):
    pytest.importorskip("rich")
    pytest.importorskip("pty", reason="there are no pseudo-terminals")

    def seen(command: str, **environment: str) -> str:
        done = subprocess.run(
            ["script", "-qec", f"{sys.executable} -m zarrasync {command}", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "90", **environment},
        )
        return done.stdout

    if subprocess.run(["which", "script"], capture_output=True, check=False).returncode:
        pytest.skip("there is no script(1)")
    table = seen("ls -l -r data.zarr")
    assert "\x1b[1m" in table
    assert "────" in table
    assert "6×20×30 in 12×40×60" in table
    assert "\x1b" not in seen("ls -l -r data.zarr", NO_COLOR="1")
    assert json.loads(seen("ls data.zarr --json"))[0]["path"] == "name"


def test_bench_reports(workdir, capsys):
    assert main(["bench", "data.zarr", "--seconds", "0.2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["array"] == "/t2m"
    assert told["one at a time"]["reads"] > 0
    assert told["side by side"]["bytes"] > 0
    assert main(["bench", "data.zarr", "--seconds", "0.2", "--path", "raw/mask"]) == 0
    assert "chunks/s" in capsys.readouterr().out


def test_rm_keeps_foreign_files(workdir, capsys):
    (workdir / "data.zarr" / "notes.txt").write_text("mine")
    assert main(["rm", "data.zarr", "--dry-run"]) == 0
    assert "1 other file (notes.txt) would be kept; --all also erases them" in capsys.readouterr().out
    assert main(["rm", "data.zarr", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["other_files"] == ["notes.txt"]
    assert (workdir / "data.zarr" / "zarr.json").exists()
    assert main(["rm", "data.zarr", "-y"]) == 0
    assert "1 other file (notes.txt) kept; --all also erases them" in capsys.readouterr().out
    assert [path.name for path in (workdir / "data.zarr").iterdir()] == ["notes.txt"]
    sync.create_group("data.zarr")
    assert main(["rm", "data.zarr", "-y", "--all"]) == 0
    assert not list((workdir / "data.zarr").iterdir())


@pytest.mark.processes
def test_much_is_shown_in_parts(workdir, capsys):
    """Text output reads only the edges, CSV a few rows at a time; formats that need all values at once are refused."""
    sync.create_array("huge.zarr", shape=(10**9, 10**6), chunks=(1000, 1000), dtype="f8", fill_value=1)
    assert main(["cat", "huge.zarr"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "[[1. 1. 1. ... 1. 1. 1.]"
    for kind in ("npy", "json"):
        assert main(["cat", "huge.zarr", "--format", kind, "--output", "x"]) == 1
        assert "more than the limit of" in capsys.readouterr().err
    command = f"{sys.executable} -m zarrasync cat huge.zarr -s :,:3 --format csv | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1.0,1.0,1.0", "1.0,1.0,1.0", "0"]


@pytest.mark.processes
def test_strings_as_npy_and_unusual_terminals(workdir):
    done = subprocess.run(
        [sys.executable, "-m", "zarrasync", "tree", "data.zarr"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert b"raw" in done.stdout


def test_csv_has_a_line_for_each_row_however_wide(workdir, capsys):
    wide = np.arange(2 * 600_000.0).reshape(1, 2, 600_000)
    sync.create_array("wide.zarr", data=wide, chunks=(1, 1, 100_000))
    for select, rows in (("...", wide[0]), ("0", wide[0]), ("0,1:", wide[0, 1:])):
        assert main(["cat", "wide.zarr", "-s", select, "--format", "csv"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.count(",") for line in lines] == [599_999] * len(rows)
        assert [float(line.split(",")[-1]) for line in lines] == rows[:, -1].tolist()
    assert main(["cat", "wide.zarr", "-s", "0,1", "--format", "csv"]) == 0  # one axis: one value for each line
    assert len(capsys.readouterr().out.splitlines()) == 600_000


@pytest.mark.processes
def test_an_output_file_is_replaced_only_after_a_successful_read(workdir, capsys):
    (workdir / "kept.csv").write_text("x")
    (workdir / "old.zarr" / "0.0").write_bytes(b"junk")
    for kind in ("csv", "npy", "text", "json"):
        assert main(["cat", "old.zarr", "--format", kind, "--output", "kept.csv"]) == 1
        assert (workdir / "kept.csv").read_text() == "x"
    assert main(["cat", "data.zarr", "--path", "name", "--format", "csv", "--output", "kept.csv"]) == 0
    assert (workdir / "kept.csv").read_text(encoding="utf-8") == "a\nné\n"
    assert main(["cat", "data.zarr", "--path", "name", "--output", "/dev/null"]) == 0
    (workdir / "private.csv").touch(mode=0o600)
    (workdir / "one.csv").touch()
    os.link("one.csv", "other.csv")
    for name in ("private.csv", "one.csv"):
        assert main(["cat", "data.zarr", "--path", "name", "--format", "csv", "--output", name]) == 0
    assert (workdir / "private.csv").stat().st_mode & 0o777 == 0o600
    assert (workdir / "other.csv").read_text(encoding="utf-8") == "a\nné\n"
    command = [sys.executable, "-m", "zarrasync", "cat", "data.zarr", "--path", "name", "--format", "csv", "--output"]
    done = subprocess.run([*command, "/dev/stdout"], capture_output=True, check=True)
    assert done.stdout.decode() == "a\nné\n"
    assert not list(workdir.glob("*.part"))


def test_names_cannot_control_a_terminal(workdir, capsys):
    group = sync.open_group("data.zarr", mode="r+")
    name = "esc\x1b[31mred\x07"
    group.create_array(name, data=np.arange(3))
    group.create_array("a\nb", data=np.arange(3))
    for line in ("ls data.zarr", "ls -l -r data.zarr", "tree data.zarr", f"info data.zarr --path '{name}'"):
        _, printed = run(line, capsys)
        assert "\x1b" not in printed
        assert "\x07" not in printed
        assert "\na" not in printed.replace("\na\\x0ab", "")
    assert json.loads(run("ls data.zarr --json", capsys)[1])[0]["path"] == "a\nb"


@pytest.mark.processes
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_has_all_letters_on_any_stream(workdir, encoding: str):
    texts = ["Zürich", "日本", "😀"]
    sync.create_array("texts.zarr", data=np.array(texts), attributes={"name": texts[0]})
    for command, found in ((["cat", "--json"], texts), (["info", "--json"], {"name": texts[0]})):
        done = subprocess.run(
            [sys.executable, "-m", "zarrasync", command[0], "texts.zarr", *command[1:]],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        told = json.loads(done.stdout.decode(encoding))
        assert (told if command[0] == "cat" else told["attributes"]) == found


def test_archives_are_recognized_by_their_name(workdir, capsys):
    assert main(["copy", "nothing.zarr", "a.zip"]) == 1
    assert not Path("a.zip").exists()
    assert main(["copy", "old.zarr", "a.zip"]) == 0
    assert zipfile.is_zipfile("a.zip")
    assert main(["copy", "data.zarr", "a.zip", "--dest-path", "x"]) == 1  # an array cannot have children
    assert main(["copy", "data.zarr", "a.zip"]) == 1
    assert "--overwrite" in capsys.readouterr().err
    np.testing.assert_array_equal(sync.open_array("a.zip")[...], np.arange(12).reshape(3, 4))
    assert main(["convert", "data.zarr", "a.zip", "--overwrite"]) == 0
    np.testing.assert_array_equal(sync.open_group("a.zip")["t2m"][...], TEMPERATURE)
    np.save("field.npy", TEMPERATURE)
    assert main(["ingest", "field.npy", "b.zip"]) == 0
    assert main(["ingest", "field.npy", "b.zip", "--verify"]) == 0
    np.testing.assert_array_equal(sync.open_array("b.zip")[...], TEMPERATURE)
    os.mkdir("directory.zip")
    assert main(["copy", "old.zarr", "directory.zip"]) == 0
    assert os.path.isfile("directory.zip/.zarray")


def test_progress_bars_are_optional(workdir, monkeypatch, capsys):
    """Commands work without tqdm."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["copy", "old.zarr", "new.zarr"]) == 0
    assert main(["ingest", "old.zarr", "other.zarr"]) == 0


def test_local_files_may_be_urls(workdir, capsys):
    np.save("a b.npy", TEMPERATURE)
    assert main(["ingest", f"{Path('a b.npy').absolute().as_uri()}", "urls.zarr"]) == 0
    np.testing.assert_array_equal(sync.open_array("urls.zarr")[...], TEMPERATURE)
    np.savez("members.npz", x=TEMPERATURE)
    assert main(["ingest", Path("members.npz").absolute().as_uri(), "members.zarr"]) == 0
    np.testing.assert_array_equal(sync.open_group("members.zarr")["x"][...], TEMPERATURE)
    assert main(["ingest", "a b.npy", "members.zarr"]) == 1
    said = capsys.readouterr().err
    assert "--overwrite" in said
    assert "mode=" not in said


def test_archives_with_other_files(workdir, capsys):
    np.savez("some.npz", field=TEMPERATURE)
    with zipfile.ZipFile("some.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert main(["ingest", "some.npz", "some.zarr"]) == 0
    np.testing.assert_array_equal(sync.open_group("some.zarr")["field"][...], TEMPERATURE)
    np.save("alone.npy", TEMPERATURE)
    os.rename("alone.npy", "alone.npz")
    assert main(["ingest", "alone.npz", "alone.zarr"]) == 1
    assert "cannot read the header of alone.npz" in capsys.readouterr().err


def test_hdf5_with_unreadable_datasets(workdir, capsys):
    """The unreadable dataset is named."""
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("h5netcdf")
    with h5py.File("empty.h5", "w") as file:
        file["a"], file["nothing"] = TEMPERATURE, h5py.Empty("f4")
    with h5py.File("dangling.h5", "w") as file:
        file["a"], file["away"] = TEMPERATURE, h5py.SoftLink("/not/there")
    assert main(["ingest", "empty.h5", "empty.zarr"]) == 1
    assert "'nothing' of empty.h5" in capsys.readouterr().err
    assert main(["ingest", "dangling.h5", "dangling.zarr"]) == 1
    assert "cannot read the header of dangling.h5" in capsys.readouterr().err
    assert not os.path.exists("dangling.zarr")


@pytest.mark.parametrize("there", [False, True])
def test_files_with_unsupported_arrays_change_nothing(workdir, capsys, there):
    """Nothing is written, not even supported arrays, and an existing hierarchy is kept."""
    np.savez("some.npz", field=TEMPERATURE, text=np.array(["a", "b"]))
    np.savez("numbers.npz", field=TEMPERATURE + 1)
    if there:
        assert main(["ingest", "numbers.npz", "x.zarr"]) == 0
    assert main(["ingest", "some.npz", "x.zarr", "--zarr-format", "3-draft", "--overwrite"]) == 1
    assert "files can be ingested into Zarr format 2 or 3, not '3-draft'" in capsys.readouterr().err
    assert os.path.exists("x.zarr") == there
    if there:
        np.testing.assert_array_equal(sync.open_array("x.zarr", path="field")[...], TEMPERATURE + 1)
    sync.create_group("old-group.zarr", zarr_format=2, attributes={"title": "mine"})
    assert main(["ingest", "numbers.npz", "old-group.zarr"]) == 0  # in the format of the existing group
    assert sync.open_group("old-group.zarr")["field"].zarr_format == 2
    # Existing arrays are continued unchanged.
    assert main(["ingest", "some.npz", "y.zarr"]) == 0
    assert main(["ingest", "some.npz", "y.zarr", "--verify"]) == 0


def test_damaged_files_are_named(workdir, capsys):
    np.save("cut.npy", TEMPERATURE)
    os.truncate("cut.npy", 1000)
    assert main(["ingest", "cut.npy", "x.zarr"]) == 1
    assert "cut.npy" in capsys.readouterr().err
    assert not os.path.exists("x.zarr")
    assert main(["info", "data.zarr", "--stored"]) == 1
    assert "is a group" in capsys.readouterr().err


@pytest.mark.usefixtures("aws_config")
def test_errors_name_options_of_the_command_line(monkeypatch, capsys):
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    assert main(["info", "s3://bucket/x.zarr"]) == 1
    assert "for public data pass -o anon=true, else" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", *(f"{n}.zarr" for n in range(9))], "8 unexpected arguments, the first is '1.zarr'"),
        (["info", "x.zarr", "--jsn"], "no option '--jsn'; did you mean '--json'?"),
    ],
)
def test_unknown_arguments_show_the_usage_of_the_command(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"usage: zarrasync {arguments[0]} ")
    assert message in printed


def test_an_existing_copy_is_refused_with_both_remedies(capsys, tmp_path):
    sync.create_array(tmp_path / "a", shape=3, dtype="i4")
    copying = ["copy", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(copying) == 0
    capsys.readouterr()
    assert main(copying) == 1
    printed = capsys.readouterr().err
    assert "--overwrite" in printed
    assert "--resume to complete an interrupted copy" in printed


def test_debug_shows_all_frames(tmp_path, capsys):
    assert main(["info", str(tmp_path / "none")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(KeyError) as caught:
        main(["info", str(tmp_path / "none"), "--debug"])
    assert len(caught.traceback) > 6
