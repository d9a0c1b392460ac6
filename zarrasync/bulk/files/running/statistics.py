"""Statistics of the values in files and of the stored values, decoded in the same way and compared by variable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import formats, transfer
from zarrasync._concurrency import bridge
from zarrasync.bulk.block_plan import BlockPlan
from zarrasync.bulk.blocks import ignore_progress
from zarrasync.bulk.checksum import checksum
from zarrasync.bulk.files.records.plan import ArrayPlan, JobPlan, Part
from zarrasync.bulk.files.records.target import stored_attributes
from zarrasync.bulk.files.running.publish import inline_parts
from zarrasync.bulk.files.running.tasks import TaskRunner, planned_array
from zarrasync.bulk.statistics import Summary, number_text
from zarrasync.config import Config
from zarrasync.display.text import Table, counted
from zarrasync.errors import ChecksumError
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import Store

__all__ = [
    "VariableStatistics",
    "check_statistics",
    "inline_statistics",
    "merge_statistics",
    "part_statistics",
    "table_of",
    "way_to_write_again",
]

_FACTS = {"values": "count", "missing": "invalid", "infinite": "infinite", "min": "minimum", "max": "maximum"}
"""Names of exact statistics for users, and in summaries."""
_NUMBERS = "biufmM"
"""Kinds of data types whose values have a minimum, a maximum and a mean. Checksums of others are compared."""
_PRECISION = 1e-9
"""Relative difference of means that come from the same values in another order."""


@dataclass
class VariableStatistics:
    """The statistics of a variable.

    Attributes:
        name: The name of the variable.
        files: Statistics of the decoded values in the files.
        stored: The same of the stored values. ``invalid`` is the number of missing values.
        checksums: For values without a mean, such as strings: the sums of the checksums of all blocks, in the files and as
            stored.
    """

    name: str
    files: Summary = field(default_factory=Summary)
    stored: Summary = field(default_factory=Summary)
    checksums: tuple[int, int] | None = None

    @property
    def differences(self) -> list[str]:
        """The statistics that differ, as messages."""
        pairs = [(name, getattr(self.files, key), getattr(self.stored, key)) for name, key in _FACTS.items()]
        found = [(name, own, stored) for name, own, stored in pairs if own != stored]
        own, stored = self.files.mean, self.stored.mean
        if (own is None) != (stored is None) or not math.isclose(own or 0, stored or 0, rel_tol=_PRECISION):
            found.append(("mean", own, stored))
        texts = [(name, _text(own), _text(stored)) for name, own, stored in found]
        if self.checksums is not None and self.checksums[0] != self.checksums[1]:
            texts.append(("checksum", f"{self.checksums[0]:x}", f"{self.checksums[1]:x}"))
        return [f"{name} {own} in the files, {stored} stored" for name, own, stored in texts]

    def merge(self, other: VariableStatistics) -> None:
        """Include the statistics of other values."""
        self.files.merge(other.files)
        self.stored.merge(other.stored)
        if other.checksums is not None:
            files, stored = self.checksums or (0, 0)
            self.checksums = files + other.checksums[0], stored + other.checksums[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        keys = [*_FACTS.items(), ("mean", "mean")]
        sides = {side: {name: getattr(getattr(self, side), key) for name, key in keys} for side in ("files", "stored")}
        if self.checksums is not None:
            for side, value in zip(sides.values(), self.checksums, strict=True):
                side["checksum"] = f"{value:x}"
        return {"name": self.name, **sides, "differences": self.differences}


def _text(value: float | None) -> str:
    """Return a statistic with all digits, because two of them may differ in the last one."""
    return "none" if value is None else f"{value!r}".removesuffix(".0")


def table_of(statistics: Sequence[VariableStatistics]) -> Table:
    """Return statistics as a table for users."""
    rows = [
        (
            item.name,
            f"{item.files.count:,}",
            f"{item.files.invalid:,}",
            *(number_text(value) for value in (item.files.minimum, item.files.maximum, item.files.mean)),
            "; ".join(item.differences) or "equal",
        )
        for item in statistics
    ]
    return Table(("variable", ">values", ">missing", ">min", ">max", ">mean", "stored values"), rows)


def check_statistics(statistics: Iterable[VariableStatistics], name: str, store: Store, hint: str) -> None:
    """Check that no variable differs.

    Args:
        statistics: The statistics.
        name: The name of the dataset.
        store: Its store.
        hint: What to do if one differs.

    Raises:
        ChecksumError: If one does.
    """
    wrong = [f"{item.name}: {', '.join(item.differences)}" for item in statistics if item.differences]
    if wrong:
        raise ChecksumError(
            f"the statistics of {name} in {store!r} differ from the files: {'; '.join(wrong)}. Another writer may have changed "
            f"the rows; {hint}"
        )


def way_to_write_again(plan: JobPlan) -> str:
    """Return how to write the rows of a plan again, without replacing rows of other files."""
    files = counted(len(plan.files), "file") if len(plan.files) > 1 else plan.files[0].name
    if not plan.dim:
        return f"write {files} again with mode='w'"
    if plan.duplicates:
        return (
            f"other files have some of the labels of {files}, so writing all of its rows again would replace theirs: "
            "compare the values, or ingest all files into a new dataset"
        )
    if any(digest for _, _, digest in plan.journal):
        return f"write the rows of only {files} again with region='auto'"
    if len(plan.files) > 1:
        return f"write the rows of single files again with region={{{plan.dim!r}: slice(…)}}"
    ((start, stop, _),) = plan.journal
    return f"write the rows of {files} again with region={{{plan.dim!r}: slice({start}, {stop})}}"


def merge_statistics(parts: Iterable[Iterable[VariableStatistics]]) -> list[VariableStatistics]:
    """Return the statistics of all parts together, by variable."""
    merged: dict[str, VariableStatistics] = {}
    for part in parts:
        for item in part:
            merged.setdefault(item.name, VariableStatistics(item.name)).merge(item)
    return list(merged.values())


def part_statistics(runner: TaskRunner, part: Part) -> list[VariableStatistics]:
    """Return the statistics of the variables that a task writes."""
    statistics = []
    with runner.prepared(part):
        for array in runner.arrays_of(part):
            source, target, region = runner.source_of(array, part)
            assert source.read is not None
            plan = BlockPlan(source, target, region)
            blocks = plan.regions(1, ignore_progress)
            read = source.read
            statistics.append(
                _compare(array, target, ((block, partial(read, plan.to_source(block))) for block in blocks))
            )
    return statistics


def inline_statistics(plan: JobPlan, store: Store, config: Config) -> list[VariableStatistics]:
    """Return the statistics of the variables whose values are part of a plan."""
    statistics = []
    for array in plan.arrays:
        if array.kind == "inline":
            target = planned_array(plan, array, store, config)
            parts = ((region, partial(_same, values)) for region, values in inline_parts(plan, array, target.dtype))
            statistics.append(_compare(array, target, parts))
    return statistics


def _same(values: Any) -> Any:
    return values


def _compare(
    array: ArrayPlan, target: AsyncArray, blocks: Iterable[tuple[Region, Callable[[], Any]]]
) -> VariableStatistics:
    """Return the statistics of an array.

    Args:
        array: The plan of the array.
        target: The array.
        blocks: Regions of the array, and functions that return their values in the files.
    """
    result, fill = VariableStatistics(array.name), target.metadata.spec.fill_value
    attributes = stored_attributes(target.metadata, formats.by_name(target.zarr_format))
    for region, read in blocks:
        values = transfer.cast(transfer.as_array(read(), target.dtype, fill), target.dtype)
        found = bridge.run(target.view[region].read(), blocking=target.store.blocking)
        stored = transfer.as_array(found, target.dtype, fill)
        result.merge(VariableStatistics(array.name, _summary(values, attributes), _summary(stored, attributes)))
        if values.dtype.kind not in _NUMBERS:
            result.merge(VariableStatistics(array.name, checksums=(checksum(values), checksum(stored))))
    return result


def _summary(values: npt.NDArray[Any], attributes: Mapping[str, Any]) -> Summary:
    """Return the statistics of values, without packing and without missing values."""
    if values.dtype.kind not in _NUMBERS:
        return Summary(values.size)
    summary, encoding = Summary(), CFEncoding.from_attributes(attributes, values.dtype)
    numbers = encoding.unpack(values)
    numbers = numbers.astype("i8") if numbers.dtype.kind in "mM" else numbers
    summary.add(np.ma.masked_array(numbers, encoding.is_missing(values)))
    return summary
