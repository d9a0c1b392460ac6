"""Running a job, killing its processes, running it again, and checking the result."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.bulk.kills.cases import Case, Point
from tests.bulk.kills.checks import check_dataset, check_same_values
from tests.bulk.kills.launcher import Launcher, Running, group_members
from tests.bulk.kills.places import FolderPlace, Place
from tests.support.netcdf import joined, write_days
from zarrasync import sync

__all__ = ["Harness", "Outcome"]

_FILES = 6
_ENOUGH = 120.0
_PATIENCE = 20.0
"""Seconds in which a cluster replaces its workers."""
_CLUSTERS = 5
"""The number of clusters that are started for one job, if their workers do not appear."""


@dataclass
class Outcome:
    """What happened.

    Attributes:
        killed: The number of processes that were killed.
        reruns: How often a command was started again.
        seconds: The duration.
        reads: What the reader reported.
    """

    killed: int = 0
    reruns: int = 0
    seconds: float = 0.0
    reads: str = ""


@dataclass
class _Baseline:
    """An undisturbed job: its duration, the number of names that appear, and its result."""

    seconds: float
    names: int
    before: dict[str, bytes]
    after: dict[str, bytes]


class Harness:
    """Files, processes that start commands, and the results of undisturbed jobs.

    Args:
        folder: A folder for all files.
        place: Returns a fresh destination; by default a folder.
    """

    def __init__(self, folder: Path, place: Callable[[str], Place] | None = None) -> None:
        self._folder = folder
        self._place = place or (lambda name: FolderPlace(str(folder / name)))
        self.paths = write_days(folder / "nc", range(_FILES))
        self.expected = joined(self.paths)
        self.launcher = Launcher(folder, self.paths[0])
        self._cluster: Running | None = None
        self._baselines: dict[Any, _Baseline] = {}
        self._count = 0

    def close(self) -> None:
        """End all processes."""
        if self._cluster is not None:
            self._cluster.kill_group()
        self.launcher.close()

    # -------------------------------------------------------------- one case

    def run(self, case: Case) -> Outcome:
        """Kill a job, run it again, and check the result.

        Raises:
            AssertionError: If the result is wrong.
        """
        target = self._place("none")
        if case.zarr_format not in target.formats:
            case = replace(case, zarr_format=3)
        case = replace(case, spawns=case.spawns or not target.forks)
        baseline = self._baseline(case)
        begin, outcome = time.monotonic(), Outcome()
        place = self._fresh_place(baseline.before)
        try:
            with self._reader(place, outcome):
                self._execute(case, place, outcome, _Watch(place, case.point, baseline))
            self._check(case, place, baseline)
        except BaseException as error:
            error.add_note(str(case))
            raise
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _check(self, case: Case, place: Place, baseline: _Baseline) -> None:
        check_dataset(place, self.paths, self.expected)
        check_same_values(place.contents(), baseline.after)
        again: Any = sync.ingest(
            self.paths, place.url, append=case.append, storage_options=place.options or None, **_layout(case)
        )
        assert (again.known, again.files, again.blocks) == (_FILES, 0, 0)
        check_same_values(place.contents(), baseline.after)

    def _baseline(self, case: Case) -> _Baseline:
        key = (case.kind, *case.layout)
        if key not in self._baselines:
            before: dict[str, bytes] = {}
            if case.append:
                first = self._fresh_place({})
                sync.ingest(
                    self.paths[: _FILES // 2], first.url, storage_options=first.options or None, **_layout(case)
                )
                before = first.contents()
            place = self._fresh_place(before)
            begin, watch = time.monotonic(), _Watch(place)
            self._execute(case, place, Outcome(), watch)
            watch.look()
            seconds = time.monotonic() - begin
            check_dataset(place, self.paths, self.expected)
            self._baselines[key] = _Baseline(seconds, len(watch.seen), before, place.contents())
        return self._baselines[key]

    def _fresh_place(self, values: dict[str, bytes]) -> Place:
        self._count += 1
        place = self._place(f"{self._count}.zarr")
        place.fill(values)
        return place

    @contextmanager
    def _reader(self, place: Place, outcome: Outcome) -> Iterator[None]:
        stop = self._folder / f"stop-{self._count}"
        reader = self.launcher.start(place.url, stop, json.dumps(place.options), function="read")
        try:
            yield
        finally:
            stop.touch()
            code = reader.wait()
            outcome.reads = reader.output().strip().rpartition("\n")[2]
        assert code == 0, reader.output()

    # -------------------------------------------------------------- the job

    def _execute(self, case: Case, place: Place, outcome: Outcome, watch: _Watch) -> None:
        if case.kind == "tasks":
            self._execute_tasks(case, place, outcome, watch)
            return
        while True:
            cluster = self._running_cluster() if case.kind == "dask" else None
            job, limit = self._start_job(case, place, cluster), _Limit()
            while (code := job.poll()) is None:
                limit.check([job, *([cluster] if cluster else [])])
                if watch.is_due():
                    outcome.killed += self._kill(case, job, cluster)
                time.sleep(place.pause)
            _wait_for(lambda: not group_members(job.pid))
            if code == 0:
                return
            assert outcome.killed, f"the job failed: {job.output()}"
            if outcome.reruns:
                raise AssertionError(f"the rerun failed: {job.output()}")
            outcome.reruns += 1

    def _start_job(self, case: Case, place: Place, cluster: Running | None) -> Running:
        layout = _layout(case)
        if cluster is not None:
            arguments = {"source": [str(path) for path in self.paths], "append": case.append, **layout}
            address = self._address_file().read_text()
            return self.launcher.start(address, place.url, json.dumps(arguments), function="ingest_with_dask")
        return self.launcher.start("ingest", *self._words(case, place), "--processes", 2, spawns=case.spawns)

    def _words(self, case: Case, place: Place) -> list[Any]:
        words = [*self.paths, place.url, "--concat", "time", "--to", case.zarr_format]
        for name in ("chunks", "shards"):
            if sizes := _layout(case).get(name):
                words += [f"--{name}", ",".join(f"{dim}={size}" for dim, size in sizes.items())]
        for name, value in place.options.items():
            words += ["--dest-option", f"{name}={value}"]
        return [*words, "--append"] if case.append else words

    def _kill(self, case: Case, job: Running, cluster: Running | None) -> int:
        """Kill the processes that a case names. Return their number."""
        owner = job if cluster is None else cluster
        workers = owner.workers()
        if case.victim == "cluster":
            assert cluster is not None
            cluster.kill_group()
            job.kill_group()
            self._cluster = None
            return 2
        chosen = {
            "main": [job.pid],
            "worker": workers[int(case.choice * len(workers)) :][:1],
            "workers": workers,
            "group": [job.pid, *workers],
        }[case.victim]
        killed = 0
        for pid in chosen:
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
        return killed

    # -------------------------------------------------------------- a cluster

    def _address_file(self) -> Path:
        return self._folder / "address"

    def _running_cluster(self) -> Running:
        """Return a cluster with two workers. One whose workers were killed too often is replaced."""
        for _ in range(_CLUSTERS):
            if self._cluster is None or self._cluster.poll() is not None:
                self._address_file().unlink(missing_ok=True)
                self._cluster = self.launcher.start(self._address_file(), function="cluster")
                _wait_for(self._address_file().exists)
            end = time.monotonic() + _PATIENCE
            while time.monotonic() < end:
                if len(self._cluster.workers()) == 2:
                    return self._cluster
                time.sleep(0.01)
            self._cluster.kill_group()
            _wait_for(lambda: self._cluster is None or self._cluster.poll() is not None)
        raise AssertionError(f"none of {_CLUSTERS} clusters had two workers")

    # -------------------------------------------------------------- independent tasks

    def _execute_tasks(self, case: Case, place: Place, outcome: Outcome, watch: _Watch) -> None:
        """Run the commands of a plan, two tasks at a time. Commands that are killed are started again."""
        plan = self._folder / f"{self._count}.plan"
        kill = _KillOnce(case, outcome, watch)
        words = ["ingest", "plan", *self._words(case, place), "--tasks", 4, "--plan", plan]
        self._run_command(kill, words, place)
        tasks = len(json.loads(plan.read_text())["parts"])
        more = [part for name, value in place.options.items() for part in ("--dest-option", f"{name}={value}")]
        waiting, running, limit = list(range(tasks)), dict[int, Running](), _Limit()
        while waiting or running:
            limit.check(list(running.values()))
            while waiting and len(running) < 2:
                number = waiting.pop(0)
                running[number] = self.launcher.start("ingest", "run", plan, "--task", number, *more)
            for number, command in list(running.items()):
                if (code := command.poll()) is not None:
                    del running[number]
                    if code:
                        kill.allow(command)
                        waiting.append(number)
            kill.perhaps(list(running.values()))
            time.sleep(place.pause)
        self._run_command(kill, ["ingest", "finish", plan, *more], place)

    def _run_command(self, kill: _KillOnce, words: list[Any], place: Place) -> None:
        while True:
            command, limit = self.launcher.start(*words), _Limit()
            while (code := command.poll()) is None:
                limit.check([command])
                kill.perhaps([command])
                time.sleep(place.pause)
            if code == 0:
                return
            kill.allow(command)


class _Limit:
    """The time in which commands must end."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _ENOUGH

    def check(self, running: list[Running]) -> None:
        """Kill the commands that run, and raise an error, if the time is over."""
        if time.monotonic() > self._end:
            outputs = "; ".join(f"{command.output()}\n{command.stacks()}" for command in running)
            for command in running:
                command.kill_group()
            raise AssertionError(f"commands did not end within {_ENOUGH:.0f} s: {outputs}")


@dataclass
class _KillOnce:
    """Kills commands of a plan once."""

    case: Case
    outcome: Outcome
    watch: _Watch

    def perhaps(self, running: list[Running]) -> None:
        """Kill a command, or all of them, if the moment has come."""
        if running and self.watch.is_due():
            chosen = running if self.case.victim == "group" else [running[int(self.case.choice * len(running))]]
            for command in chosen:
                command.kill_group()
            self.outcome.killed += len(chosen)

    def allow(self, command: Running) -> None:
        """Count a command that is started again. It must have been killed."""
        self.outcome.reruns += 1
        assert self.outcome.reruns <= self.outcome.killed, f"a command failed: {command.output()}"


class _Watch:
    """Waits for a moment.

    Args:
        place: The destination.
        point: The moment; ``None`` for never.
        baseline: An undisturbed job.
    """

    def __init__(self, place: Place, point: Point | None = None, baseline: _Baseline | None = None) -> None:
        self._place, self._point, self._baseline = place, point, baseline
        self._begin, self._is_over, self._known = time.monotonic(), False, False
        self._first = place.names()
        self.seen: set[str] = set()

    def look(self) -> set[str]:
        """Return the names in the destination, and remember those that are new."""
        names = self._place.names()
        self.seen |= {name for name in names - self._first if ".zarrasync-partial" not in name}
        return names

    def is_due(self) -> bool:
        """Return whether the moment has come. It comes once."""
        if self._is_over:
            return False
        names = self.look()
        if self._point is not None and self._has_come(self._point, names):
            self._is_over = True
            return True
        return False

    def _has_come(self, point: Point, names: set[str]) -> bool:
        assert self._baseline is not None
        if point.after == "names":
            return len(self.seen) > point.fraction * self._baseline.names
        if point.after == "time":
            return time.monotonic() - self._begin > point.fraction * self._baseline.seconds
        is_there = any(
            _matches(name, point.key) for name in names if name not in self._first or "document" in point.key
        )
        if point.after == "key":
            return is_there and (point.key != "document" or bool(names & self.seen))
        self._known = self._known or is_there
        return self._known and not is_there


def _matches(name: str, key: str) -> bool:
    folder, _, own = name.rpartition("/")
    if key == "document":
        return not folder and own in ("zarr.json", ".zgroup")
    if key == "t2m/document":
        return folder == "t2m" and own in ("zarr.json", ".zarray")
    start, _, number = key.partition("-")
    return ".ingest" in name and own.startswith(start) and own.endswith(number) and ".zarrasync" not in own


def _layout(case: Case) -> dict[str, Any]:
    layout: dict[str, Any] = {"concat": "time", "chunks": {"time": 10, "lat": 4}, "zarr_format": case.zarr_format}
    if case.shards:
        layout["shards"] = {"time": 20}
    return layout


def _wait_for(condition: Callable[[], bool], seconds: float = _ENOUGH) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)
