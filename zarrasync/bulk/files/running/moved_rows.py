"""Existing rows that move, because rows of late files are inserted before them.

They are copied into the folder of the job, then the dataset is cut before them, and the tasks write them to their new places
with the rows of the files. Readers see the shorter dataset meanwhile. If the process ends, the next job writes the copied
rows back to their old places first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from zarrasync._concurrency import clock
from zarrasync.bulk.files.records.plan import STORED, ArrayPlan, FilesPlan, Segment, split_rows
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.running.publish import publish_arrays, publish_group
from zarrasync.bulk.files.running.tasks import TaskRunner, kept_array
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.claim_folder import KEPT
from zarrasync.metadata import ArrayMetadata
from zarrasync.nodes.node import NodeHandle, run_blocking

_BLOCK_BYTES = 64 << 20
_GRACE_SECONDS = 0.5
"""Seconds between the cut and the first moved row, in which readers of the longer dataset complete their reads."""


def cut_before_moved(plan: FilesPlan, target: Target, claim: Claim) -> None:
    """Copy the rows that move, and cut the dataset before them.

    Args:
        plan: The plan of the job.
        target: The destination before the job.
        claim: The claim, which the process has.
    """
    handle = target.handle
    folder, moved, length = f"{claim.folder.path}/{KEPT}", plan.moved or 0, target.length(plan.dim)
    arrays = [array for array in plan.arrays if array.shape is not None and array.axis is not None]
    before = {array.name: target.arrays[array.name].metadata for array in arrays}
    after = {array.name: before[array.name].with_shape(array.shape or ()) for array in arrays}
    segments = [Segment(moved, length, STORED, moved)]
    grids = [before[array.name].grid.axes[array.axis or 0] for array in arrays]
    size = max(1, _BLOCK_BYTES // max([1, *(array.row_bytes for array in arrays)]))
    back = replace(
        plan.without_records(),
        length=length,
        files=(),
        arrays=[_changed(plan, array, after, before) for array in arrays],
        segments=segments,
        parts=split_rows(segments, grids, size),
        empty=target.journal.reserved,
    )
    cut = replace(back, arrays=[_changed(plan, array, before, after) for array in arrays], length=moved)

    async def copy() -> None:
        await handle.store.erase_prefix(f"{folder}/")
        for array in arrays:
            source, kept = target.arrays[array.name], kept_array(plan, array, handle.store, handle.config)
            step, chunk = _BLOCK_BYTES // max(array.row_bytes, 1), before[array.name].write_chunks[array.axis or 0]
            step = max(step - step % chunk if step > chunk else step, 1)
            for start in range(moved, length, step):
                stop, inner = min(start + step, length), (slice(None),) * (array.axis or 0)
                values = await source.view[(*inner, slice(start, stop))].read()
                await kept.view[(*inner, slice(start - moved, stop - moved))].write(values)
        await handle.store.put(f"{folder}/plan", json.dumps(back.to_json()).encode())

    run_blocking(handle.store, copy())
    claim.update(cut=True)
    claim.found = {**claim.found, "cut": True}
    run_blocking(handle.store, publish_arrays(cut, handle))
    run_blocking(handle.store, publish_group(cut, handle, is_complete=False))
    claim.check()
    clock.current().sleep_blocking(_GRACE_SECONDS)


def _changed(
    plan: FilesPlan, array: ArrayPlan, before: Mapping[str, ArrayMetadata], after: Mapping[str, ArrayMetadata]
) -> ArrayPlan:
    """Return the plan of an array whose metadata change from one state to another."""
    documents, shape = plan.documents(array.name, after[array.name]), before[array.name].shape
    return replace(array, kind="rows", documents=documents, shape=shape, data="", data_shape=(), rows=())


def restore_moved(claim: Claim, handle: NodeHandle) -> None:
    """Write rows that an interrupted job has copied back to their places, if it had cut the dataset.

    Raises:
        ShapeError: If another writer has changed the dataset since.
    """
    store, folder = handle.store, f"{claim.folder.path}/{KEPT}"
    data = run_blocking(store, store.get(f"{folder}/plan"))
    if data is None:  # an earlier call has restored them
        drop_kept(claim, handle)
        return
    plan = FilesPlan.from_json(json.loads(bytes(data)))
    runner = TaskRunner(plan, store, handle.config, OpenFiles(plan.reader, handle.config))
    for part in plan.parts:
        runner.run(part)
        claim.check()
    place = plan.handle(store, handle.config)
    run_blocking(store, publish_arrays(plan, place))
    run_blocking(store, publish_group(plan, place, is_complete=False))
    drop_kept(claim, handle)


def drop_kept(claim: Claim, handle: NodeHandle) -> None:
    """Erase the copied rows, which are in their places."""
    folder, store = f"{claim.folder.path}/{KEPT}", handle.store
    run_blocking(store, store.erase_values([f"{folder}/plan"]))  # first: no other rows are restored then
    run_blocking(store, store.erase_prefix(f"{folder}/"))
    claim.update(cut=False)
    claim.found = {**claim.found, "cut": False}
    claim.folder.forget_tasks()
