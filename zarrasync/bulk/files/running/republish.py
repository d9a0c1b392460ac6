"""Completing the publication of a job whose process ended, unless its dataset was changed since."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from zarrasync import formats
from zarrasync._concurrency import bridge
from zarrasync._concurrency.gather import gather
from zarrasync.bulk.files.records.journal import Journal
from zarrasync.bulk.files.records.plan import ArrayPlan, FilesPlan
from zarrasync.bulk.files.records.source_values import JOURNAL, read_sources
from zarrasync.bulk.files.running.publish import is_inline_stored, publish_arrays, publish_group
from zarrasync.bulk.files.running.tasks import planned_array
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.display.text import counted
from zarrasync.errors import MetadataError
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.find import FoundNode, find_all
from zarrasync.nodes.node import NodeHandle

T = TypeVar("T")
_log = logging.getLogger(__name__)


def publication_record(plan: FilesPlan, handle: NodeHandle, *, is_independent: bool) -> dict[str, Any]:
    """Return what ``publish_again`` needs to know.

    Args:
        plan: The plan whose result is published next.
        handle: The location of the group.
        is_independent: Whether other processes have run the tasks of the plan.
    """
    was_recorded = False
    if not plan.is_new:  # the journal may contain the same files, if their rows were removed from the arrays
        was_recorded = bridge.run(_is_recorded(plan, handle), blocking=handle.store.blocking)
    return {
        "plan": plan.recorded.to_json(),
        "was_recorded": was_recorded,
        "is_independent": is_independent,
    }


def publish_again(claim: Claim, handle: NodeHandle) -> list[str]:
    """Publish what an earlier owner of the claim has begun to publish. Without a record, all is published.

    Arrays are not changed if the journal contains the files since, because all arrays were published before it.

    Args:
        claim: The claim, which this process has.
        handle: A location in the store of the destination.

    Returns:
        A message if another writer has changed the dataset so that the result does not fit any more. Nothing is changed
        then.

    Raises:
        StoreError: If the record is damaged.
    """
    record = claim.folder.record()
    if record is None:
        return []
    try:
        plan = FilesPlan.from_json(record.get("plan", {}))
    except MetadataError as error:
        raise claim.folder.damaged_record(error) from error
    place = NodeHandle(handle.store, plan.path, formats.by_name(plan.zarr_format), handle.config, is_format_known=True)

    def run(call: Coroutine[Any, Any, T]) -> T:
        return bridge.run(call, blocking=handle.store.blocking)

    paths = [plan.path, *(join(plan.path, array.name) for array in plan.arrays)]
    group, *nodes = run(find_all(place, paths, (place.format,), strict=False))
    if group is None or record.get("was_recorded", False) or not run(_is_recorded(plan, place)):
        changes = [_change(plan, array, node, place) for array, node in zip(plan.arrays, nodes, strict=True)]
        if not plan.is_new and group is None:
            changes.insert(0, "the group does not exist any more")
        if not any(changes):
            are_stored = run(gather([partial(is_inline_stored, plan, array, place) for array in plan.arrays]))
            others = [array.name for array, is_stored in zip(plan.arrays, are_stored, strict=True) if not is_stored]
            changes += [f"{name!r} has other values" for name in others]
        if found := next(filter(None, changes), ""):
            note = (
                f"{counted(len(plan.files), 'file')} of an interrupted job not added to {place.name}, because another "
                f"writer has changed it since: {found}"
            )
            _log.warning("%s", note)
            return [note]
        run(publish_arrays(plan, place))
        claim.check()
    run(publish_group(plan, place, is_independent=record.get("is_independent", False)))
    return []


async def _is_recorded(plan: FilesPlan, handle: NodeHandle) -> bool:
    """Return whether the journal contains the files of a plan. Others may have removed their rows since."""
    (value,) = await read_sources(handle.store, [join(handle.path, plan.place)])
    journal = Journal.of(value.get(JOURNAL))
    return all(row is None or journal.rows(file) == row for file, row in zip(plan.files, plan.journal, strict=True))


def _change(plan: FilesPlan, array: ArrayPlan, node: FoundNode | None, place: NodeHandle) -> str:
    """Return how an array differs from both its state before and after the publication; empty if it does not."""
    target = planned_array(plan, array, place.store, place.config)
    if node is None:
        return "" if array.shape is None else f"{array.name!r} does not exist any more"
    if not isinstance(node.metadata, ArrayMetadata):
        return f"{array.name!r} is a group"
    shapes = {target.shape} if array.shape is None else {tuple(array.shape), target.shape}
    if node.metadata.shape in shapes:
        return ""
    return f"{array.name!r} has the shape {node.metadata.shape}, not {' or '.join(map(str, sorted(shapes)))}"
