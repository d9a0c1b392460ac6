"""Progress of jobs and their parts: lines, bars, monitors, and reports as text, pages and JSON."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import stores, sync
from zarrasync._concurrency.backoff import RetryCounts
from zarrasync.display.progress import report_progress
from zarrasync.errors import StoreError
from zarrasync.integrations.monitoring import Bars, Lines, Monitor, OpenTelemetryMonitor, PrometheusMonitor
from zarrasync.testing import FaultyStore

SHAPES = {"t2m": (12, 10), "raw/u": (6, 10)}
NBYTES = 8 * (120 + 60)


class Log(Monitor):
    """Keeps what happens to each job and part."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.done: dict[str, int] = {}
        self.skipped: dict[str, int] = {}

    def started(self, job: Any) -> None:
        self.events.append(("started", job.label))

    def advanced(self, job: Any, nbytes: int, *, skipped: bool) -> None:
        self.done[job.label], self.skipped[job.label] = job.done, job.skipped

    def ended(self, job: Any, error: BaseException | None) -> None:
        self.events.append(("ended" if error is None else type(error).__name__, job.label))


@pytest.fixture
def source() -> stores.MemoryStore:
    store = stores.MemoryStore()
    for path, shape in SHAPES.items():
        sync.create_array(store, path=path, data=np.ones(shape), chunks=(2, 10))
    return store


async def run_job(api: Api, job: str, source: Any, dest: Any, progress: Any) -> None:
    if job == "validate":
        await api(api.validate(source, data=True, progress=progress))
    elif job == "write_dataset":
        xr = pytest.importorskip("xarray")
        from zarrasync.integrations.xarray import write_dataset_async

        variables = {path: ((f"{path[:1]}y", "x"), np.ones(shape)) for path, shape in SHAPES.items()}
        dataset = xr.Dataset({name.replace("/", "_"): variable for name, variable in variables.items()})
        await write_dataset_async(dataset, dest, progress=progress)
    else:
        chunks = "keep" if job == "copy" else (3, 5)
        await api(api.copy(source, dest, chunks=chunks, progress=progress))


@pytest.mark.parametrize("job", ["copy", "convert", "validate", "write_dataset"])
async def test_a_job_has_a_part_for_each_variable(api: Api, source, job: str):
    log, steps = Log(), list[int]()
    await run_job(api, job, source, stores.MemoryStore(), [log, steps.append])
    (_, label), *parts, last = log.events
    assert last == ("ended", label)
    names = {"/t2m", "/raw_u"} if job == "write_dataset" else {"/t2m", "/raw/u"}
    assert sorted(parts) == sorted((what, name) for what in ("started", "ended") for name in names)
    assert log.done[label] == sum(log.done[name] for name in names) == sum(steps) == NBYTES


async def test_resumed_bytes_are_not_part_of_the_rate(api: Api, source):
    dest = stores.MemoryStore()
    await api(api.copy(source, dest))
    await dest.erase("t2m/c/0/0")
    log = Log()
    report = await api(api.copy(source, dest, resume=True, progress=log))
    assert (log.done["copy /"], log.skipped["copy /"]) == (NBYTES, NBYTES - 160)
    assert (report.members["/t2m"].blocks, report.members["/t2m"].skipped) == (1, 5)


async def test_failures_reach_monitors(api: Api, source):
    dest = FaultyStore(stores.MemoryStore(), fails=lambda operation, key: "raw/u/c" in key)
    log = Log()
    with pytest.raises(StoreError):
        await api(api.copy(source, dest, progress=log))
    assert log.events[-1] == ("StoreError", "copy /")
    assert ("StoreError", "/raw/u") in log.events


def test_lines_appear_while_nothing_advances():
    lines, seen = list[str](), threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            seen.set()

    outer = report_progress(Lines(write, interval=0.02), 4 << 20, "copy a.zarr", 8)
    with outer as job, report_progress(job, 2 << 20, "ingest /t2m") as part:
        part(1 << 20)
        RetryCounts.count("retries")
        assert seen.wait(20)
    assert lines[2].startswith("copy a.zarr: 25%, 1.0 MiB of 4.0 MiB, 2/8 rows, ")
    assert " left, 1 retry (/t2m 50%)" in lines[2]
    assert lines[-1].startswith("copy a.zarr: done, 1.0 MiB in ")
    assert not [thread for thread in threading.enumerate() if thread.name == "zarrasync-progress"]


def test_short_jobs_write_no_lines(source, capfd):
    sync.copy(source, {}, progress=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.processes
def test_bars_of_a_terminal(source, tmp_path):
    """On a terminal a bar remains; names cannot control it."""
    pytest.importorskip("tqdm")
    pytest.importorskip("pty", reason="pseudo-terminals are required")
    import pty

    group = sync.create_group(tmp_path / "a.zarr")
    group.create_array("esc\x1b[31m", data=np.ones(4))
    command = [sys.executable, "-m", "zarrasync", "copy", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")]
    primary, secondary = pty.openpty()
    environment = {**os.environ, "COLUMNS": "70"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=secondary, check=True, env=environment)
    os.close(secondary)
    shown = os.read(primary, 1 << 16).decode()
    os.close(primary)
    assert "copy a.zarr: 100%" in shown
    assert "| 32 B of 32 B [" in shown
    assert "\x1b[31m" not in shown
    assert done.stdout.startswith(b"1 array and 1 group")


def test_many_parts_do_not_fill_the_terminal(monkeypatch):
    tqdm: Any = pytest.importorskip("tqdm").tqdm
    monkeypatch.setenv("LINES", "10")
    made = []

    class Kept(tqdm):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "file": io.StringIO()})
            made.append(self)

    with report_progress(Bars(Kept), 100, "copy a") as job, ExitStack() as stack:
        for number in range(20):
            stack.enter_context(job.part(f"/{number}", 5).running())
    assert len(made) == 6


def test_bars_of_notebooks_disappear():
    """A saved notebook would contain an empty box for each."""
    tqdm: Any = pytest.importorskip("tqdm").tqdm
    terminal = io.StringIO()
    bar = type("Bar", (tqdm,), {"__init__": lambda self, **options: tqdm.__init__(self, **options, file=terminal)})
    with report_progress(Bars(bar, 80, keeps=False), 100, "copy a") as job:
        assert job is not None
        job(50)
        assert [line.partition(":")[0] for line in screen(terminal)] == ["copy a"]
    assert screen(terminal) == []


@pytest.mark.parametrize("first", range(3))
def test_bars_leave_no_empty_lines(first):
    """The bars of parts that still run move up when another part ends."""
    tqdm: Any = pytest.importorskip("tqdm").tqdm
    terminal = io.StringIO()

    class Shown(tqdm):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "file": terminal, "delay": 0, "mininterval": 0})

    with report_progress(Bars(Shown), 300, "copy a") as job, ExitStack() as stack:
        parts = [stack.enter_context(ExitStack()) for _ in range(3)]
        for number, part in enumerate(parts):
            part.enter_context(job.part(f"/{number}", 100).running())
        names = ["copy a", "/0", "/1", "/2"]
        assert [line.partition(":")[0] for line in screen(terminal)] == names
        for number in (first, *({0, 1, 2} - {first})):
            parts[number].close()
            names.remove(f"/{number}")
            assert [line.partition(":")[0] for line in screen(terminal)] == names
    assert [line.partition(":")[0] for line in screen(terminal)] == ["copy a"]


def test_disabled_bars():
    tqdm: Any = pytest.importorskip("tqdm").tqdm
    disabled = type(
        "Disabled", (tqdm,), {"__init__": lambda self, **options: tqdm.__init__(self, **options, disable=True)}
    )
    with report_progress(Bars(disabled), 100, "copy a") as job, ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        first.enter_context(job.part("/0", 50).running())
        stack.enter_context(job.part("/1", 50).running())
        first.close()


def screen(terminal: io.StringIO) -> list[str]:
    """Return the lines that a terminal shows, without empty ones at the end."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[A|.|\n", terminal.getvalue(), re.DOTALL):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[A":
            row -= 1
        else:
            lines[row] = f"{lines[row][:column]:{column}}{token}{lines[row][column + 1 :]}"
            column += 1
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


# ------------------------------------------------------------------ other systems


async def test_prometheus(api: Api, source, tmp_path):
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    monitor = PrometheusMonitor(registry)
    await api(api.copy(source, {}, progress=monitor))
    with pytest.raises(StoreError):
        broken = FaultyStore(stores.MemoryStore(), fails=lambda operation, key: "raw/u/c" in key)
        await api(api.copy(source, broken, progress=monitor))

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(f"zarrasync_job_{name}", labels)

    assert value("done_bytes", job="copy /", part="/t2m") == 960
    assert value("total_bytes", job="copy /", part="") == NBYTES
    assert value("running", job="copy /", part="") == 0
    assert value("failures_total", job="copy /") == 1
    assert value("last_success_timestamp_seconds", job="copy /") > 1e9
    file = tmp_path / "jobs.prom"
    await api(api.copy(source, {}, progress=PrometheusMonitor(file=file)))
    assert f'zarrasync_job_done_bytes{{job="copy /",part=""}} {NBYTES}.0' in file.read_text()
    assert os.listdir(tmp_path) == ["jobs.prom"]


async def test_spans_of_jobs_parts_and_stores(api: Api, source, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    dest = stores.TracingStore(stores.MemoryStore(), spans=True)
    await api(api.copy(source, dest, progress=OpenTelemetryMonitor()))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    job = spans["copy /"]
    assert job.attributes["zarrasync.bytes"] == NBYTES
    assert spans["/t2m"].parent.span_id == spans["zarrasync.put"].parent.span_id == job.context.span_id
    assert spans["/t2m"].attributes["zarrasync.rows"] == 12
    assert not trace.get_current_span().get_span_context().is_valid


# ------------------------------------------------------------------ reports


class Cells(HTMLParser):
    """The cells of the tables of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        self._in_cell = tag in ("th", "td")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1].append(data)


async def test_reports_of_copies(api: Api, source, tmp_path):
    report = await api(api.copy(source, {}))
    assert str(report) == "2 arrays and 2 groups: 9 parts copied, 1.4 KiB"
    assert [line.split()[:3] for line in repr(report).splitlines()[1:]] == [
        ["array", "parts", "skipped"],
        ["/raw/u", "3", "0"],
        ["/t2m", "6", "0"],
    ]
    assert json.loads(report.to_json())["members"]["/t2m"]["nbytes"] == 960
    for suffix in ("html", "json", "txt"):
        report.save(tmp_path / f"report.{suffix}")
    rows = Cells((tmp_path / "report.html").read_text()).rows
    assert [row[:4] for row in rows[1:]] == [["/raw/u", "3", "0", "480 B"], ["/t2m", "6", "0", "960 B"]]
    assert Cells(report._repr_html_()).rows == rows
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(report.to_json())
    assert (tmp_path / "report.txt").read_text() == f"{report!r}\n"
    with pytest.raises(ValueError, match=r"a report is saved as \.html, \.json, \.txt; found"):
        report.save(tmp_path / "report.pdf")


async def test_reports_of_validations(api: Api, source):
    await source.put("t2m/c/0/0", b"junk <b>")
    report = await api(api.validate(source, data=True))
    text = report._repr_html_()
    assert ["error", "t2m/c/0/0"] in [row[:2] for row in Cells(text).rows]
    assert "<b>junk" not in text
    assert json.loads(report.to_json())["ok"] is False


async def test_reports_of_ingestions(api: Api):
    report = await api(api.ingest(np.arange(10), {}))
    assert json.loads(report.to_json())["nbytes"] == 80
    assert str(report) in report._repr_html_()


@pytest.mark.parametrize("command", ["copy", "ingest", "validate"])
def test_the_command_line_saves_reports(source, tmp_path, monkeypatch, capsys, command):
    from zarrasync.cli import main

    monkeypatch.chdir(tmp_path)
    sync.copy(source, "a.zarr")
    words = [command, "a.zarr", *(["--data"] if command == "validate" else ["b.zarr"])]
    for file in ("r.html", "r.json"):
        overwrite = ["--overwrite"] if file == "r.json" and command != "validate" else []
        assert main([*words, *overwrite, "--report", file, "--metrics", "jobs.prom"]) == 0
    assert json.loads((tmp_path / "r.json").read_text())
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert f'part=""}} {NBYTES}.0' in (tmp_path / "jobs.prom").read_text()
    for mistake in (["--report", "r.pdf"], ["--metrics", "none/x.prom"], ["--metrics", "99999"]):
        with pytest.raises(SystemExit, match="2"):
            main([*words, *mistake])
