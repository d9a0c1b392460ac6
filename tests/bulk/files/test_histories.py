"""Histories of an archive: files arrive in any order, late, twice, changed and broken; jobs are killed while readers look on.

The slow tests draw 2,000 of them. ``ZARRASYNC_EXAMPLES=2000`` draws others each time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

zarr = pytest.importorskip("zarr", minversion="3", reason="reads the archive")
from tests.bulk.files.history_model import ROWS, UNIT, Archive, File, is_between, labels_of, values_of
from tests.support.dying import dying_store
from zarrasync import FileOptions, Layout, sync

pytestmark = [
    pytest.mark.random,
    pytest.mark.skipif(sys.platform == "win32", reason="forks and kills processes"),
]
LONG = os.environ.get("ZARRASYNC_EXAMPLES")
FILES = 6
SOURCE = FileOptions(dims="time")


@dataclass(frozen=True)
class Step:
    """Deliveries, and a job with all files that exist.

    Attributes:
        delivered: For each file that arrives, what happens to it: ``"new"`` contents, the ``"same"`` ones with another time
            of change, or a ``"broken"`` file.
        replaces: Whether rows of changed files replace the earlier ones.
        inserts: Whether late files are inserted at any cost.
        way: ``"append"``, ``"plan"``, or ``"region"`` for the files whose rows exist.
        puts: The number of values that are stored before the process is killed; ``None`` if it is not.
    """

    delivered: dict[int, str]
    replaces: bool
    inserts: bool
    way: str
    puts: int | None


STEPS = st.builds(
    Step,
    st.dictionaries(
        st.integers(0, FILES - 1), st.sampled_from(["new", "new", "same", "broken"]), min_size=1, max_size=3
    ),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["append", "append", "append", "plan", "region"]),
    st.one_of(st.none(), st.integers(0, 70)),
)


def run_histories(count: int, number: int | None) -> None:
    """Run histories: those that a number stands for, or others each time."""

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.lists(STEPS, min_size=1, max_size=5), st.booleans())
    def run(steps: list[Step], is_reserved: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            history = History(Path(folder), is_reserved=is_reserved)
            for step in steps:
                history.run(step)
            history.repair()

    (run if number is None else seed(number)(run))()


def test_histories():
    run_histories(int(LONG or 50), None if LONG else 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 41))
def test_more_histories(number: int):
    run_histories(50, number)


class History:
    """An archive and the files that were delivered.

    Args:
        folder: An empty folder.
        is_reserved: Whether the first job lays out all rows.
    """

    def __init__(self, folder: Path, *, is_reserved: bool) -> None:
        self.folder, self.out, self.is_reserved = folder, folder / "out.zarr", is_reserved
        self.files: dict[int, File] = {}
        self.archive = Archive()
        self.clock = 0

    def run(self, step: Step) -> None:
        for number, what in step.delivered.items():
            self.deliver(number, what)
        before, after = self.archive, self.archive.copy()
        if step.way == "region":
            self.replace_rows(step)
            return
        present = [self.files[number] for number in sorted(self.files)]
        known = {file.number for file in present if after.files.get(file.number) == file.version}
        readable = [file for file in present if file.number not in known and not file.is_broken]
        if self.is_reserved and readable:
            after.reserve(FILES)
        is_plan = step.way == "plan" and step.puts is None
        broken, late = after.deliver(present, replaces=step.replaces, inserts=step.inserts, is_plan=is_plan)
        if not after.rows:  # no file can be read
            assert len(self.ingest(step).left_out) == len(broken)
            assert self.read() is None
            return
        if step.puts is not None:
            self.kill(step, before, after)
        report = self.ingest(step)
        self.archive = after
        self.check()
        are_late = ["rows come before" in text for text in report.left_out]
        for expected, is_late in ((broken, False), (late, True)):
            texts = [text for text, own in zip(report.left_out, are_late, strict=True) if own == is_late]
            assert {int(Path(text.partition(": ")[0]).stem) for text in texts} == expected
        again = self.ingest(step)
        assert again.files == len([n for n in self.skipped(present) if not step.replaces])
        self.check()

    def skipped(self, present: list[File]) -> list[int]:
        """Return the numbers of changed files whose rows are not replaced, which are compared each time."""
        return [
            file.number
            for file in present
            if not file.is_broken and self.archive.files.get(file.number, file.version) != file.version
        ]

    # -------------------------------------------------------------- files

    def path(self, number: int) -> Path:
        return self.folder / f"{number:02}.npz"

    def deliver(self, number: int, what: str) -> None:
        """Write a file, with another time of change than before."""
        self.clock += 1
        before = self.files.get(number, File(number, -1))
        version = before.version if what == "same" and not before.is_broken and before.version >= 0 else self.clock
        file = File(number, version, what == "broken")
        np.savez(self.path(number), v=values_of(file), time=labels_of(number))
        if file.is_broken:
            data = self.path(number).read_bytes()
            self.path(number).write_bytes(data[: len(data) // 2])
        os.utime(self.path(number), (0, before.version if version == before.version else self.clock))
        self.files[number] = file

    # -------------------------------------------------------------- jobs

    def ingest(self, step: Step, store: Any = None) -> Any:
        options: dict[str, Any] = {
            "concat": "time",
            "append": True,
            "on_duplicate": "replace" if step.replaces else "skip",
            "on_late": "insert" if step.inserts else "report",
            "on_bad_file": "skip",
            "reserve": f"0/{ROWS * FILES - 1}/1" if self.is_reserved else None,
            "source": SOURCE,
            "layout": Layout(chunks={"time": UNIT}, encoding={"time": {"chunks": (2 * UNIT,)}}),
        }
        paths = [self.path(number) for number in sorted(self.files)]
        if step.way == "plan" and step.puts is None:
            plan = sync.plan_ingest(paths, self.out, **options)
            plan.run()
            return plan.finish()
        return sync.ingest_files(paths, self.out if store is None else store, **options)

    def replace_rows(self, step: Step) -> None:
        """Write the rows of files again that the archive contains."""
        known = [file for file in self.files.values() if file.number in self.archive.files and not file.is_broken]
        if not known:
            return
        paths = [self.path(file.number) for file in known]
        sync.ingest_files(paths, self.out, concat="time", region="auto", source=SOURCE)
        self.archive.deliver(known, replaces=True, inserts=False)
        self.check()

    def kill(self, step: Step, before: Archive, after: Archive) -> None:
        """Run the job in a process that is killed, while this one reads."""
        process = multiprocessing.get_context("fork").Process(
            target=lambda: self.ingest(step, dying_store(self.out, step.puts or 0))
        )
        process.start()
        while process.is_alive():
            self.look(before, after)
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        self.look(before, after)

    # -------------------------------------------------------------- readers

    def read(self) -> tuple[Any, Any] | None:
        try:
            group = zarr.open_group(self.out, mode="r")
        except FileNotFoundError:
            return None
        return group["time"][...], group["v"][...]

    def look(self, before: Archive, after: Archive) -> None:
        """Check that a reader sees rows of before or after a job under their labels, and not fewer than without late rows."""
        if (found := self.read()) is not None:
            labels, values = found
            assert len(labels) == len(values)
            assert (np.diff(labels) > 0).all()
            assert is_between(dict(zip(labels.tolist(), values.tolist(), strict=True)), before, after)

    def check(self) -> None:
        found, expected = self.read(), self.archive.arrays()
        assert found is not None
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        assert not (self.out / ".ingest").exists()

    def repair(self) -> None:
        """Bring all files in with one documented call: no history ends in a state that none can leave."""
        for number in range(FILES):
            if number not in self.files or self.files[number].is_broken:
                self.deliver(number, "new")
        step = Step({}, replaces=True, inserts=True, way="append", puts=None)
        report = self.ingest(step)
        assert report.left_out == []
        for file in self.files.values():
            self.archive.rows.update(zip(labels_of(file.number).tolist(), values_of(file).tolist(), strict=True))
        self.check()
        assert self.ingest(step).known == FILES


def test_at_least_a_third_of_the_histories_have_a_kill():
    """A step has one in half of the cases, so a history of one step at least."""
    found: list[bool] = []

    @given(st.lists(STEPS, min_size=1, max_size=5))
    @settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
    def draw(steps: list[Step]) -> None:
        found.append(any(step.puts is not None and step.way != "region" for step in steps))

    draw()
    assert sum(found) > len(found) / 3
