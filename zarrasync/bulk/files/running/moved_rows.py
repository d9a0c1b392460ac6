"""Existing rows that move, because rows of late files are inserted before them.

They are copied into the folder of the job, then the dataset is cut before them, and the tasks write them to their new places
with the rows of the files. Readers see the shorter dataset meanwhile. If the process ends, the next job writes the copied
rows back to their old places first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

from zarrasync._concurrency import bridge, clock
from zarrasync.bulk.files.records.plan import STORED, ArrayPlan, FilesPlan, Part, Segment
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.running.publish import publish_arrays, publish_group
from zarrasync.bulk.files.running.tasks import TaskRunner, kept_array
from zarrasync.bulk.files.sources.readers import OpenFiles
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.claim_folder import KEPT
from zarrasync.metadata import ArrayMetadata
from zarrasync.model.paths import join
from zarrasync.nodes.node import NodeHandle

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
    handle, blocking = target.handle, target.handle.store.blocking
    folder = f"{claim.folder.path}/{KEPT}"
    arrays = [array for array in plan.arrays if array.shape is not None and array.axis is not None]
    length = target.length(plan.dim)
    back = replace(
        plan,
        length=length,
        files=(),
        arrays=[_with_shape(array, target, plan, array.shape) for array in arrays],
        segments=[Segment(plan.moved or 0, length, STORED, plan.moved or 0)],
        parts=[Part(start, stop) for start, stop in _blocks(plan, arrays, length)],
        journal=(),
        notes=(),
        left_out=(),
        moved_files=(),
        empty=target.journal.reserved,
    )
    cut = replace(back, arrays=[_cut(array, plan) for array in back.arrays], length=plan.moved or 0)

    async def copy() -> None:
        await handle.store.erase_prefix(f"{folder}/")
        for array in arrays:
            source, kept = target.arrays[array.name], kept_array(plan, array, handle.store, handle.config)
            for part in back.parts:
                rows = slice(part.start, part.stop)
                moved = slice(rows.start - (plan.moved or 0), rows.stop - (plan.moved or 0))
                inner = (slice(None),) * (array.axis or 0)
                await kept.view[(*inner, moved)].write(await source.view[(*inner, rows)].read())
        await handle.store.put(f"{folder}/plan", json.dumps(back.to_json()).encode())

    bridge.run(copy(), blocking=blocking)
    claim.update(cut=True)
    claim.found = {**claim.found, "cut": True}
    bridge.run(publish_arrays(cut, handle), blocking=blocking)
    bridge.run(publish_group(cut, handle, is_complete=False), blocking=blocking)
    claim.check()
    clock.sleep_blocking(_GRACE_SECONDS)


def _with_shape(array: ArrayPlan, target: Target, plan: FilesPlan, shape: tuple[int, ...] | None) -> ArrayPlan:
    """Return the plan of an array as it was before the job, from a shape."""
    documents = _documents(target.arrays[array.name].metadata, array, plan)
    return replace(array, kind="rows", documents=documents, shape=shape, data="", data_shape=(), rows=())


def _documents(metadata: ArrayMetadata, array: ArrayPlan, plan: FilesPlan) -> Mapping[str, str]:
    documents = plan.format.render(join(plan.path, array.name), metadata)
    return {key: data.decode() for key, data in documents.items()}


def _cut(array: ArrayPlan, plan: FilesPlan) -> ArrayPlan:
    """Return the plan of an array that loses the rows that move."""
    metadata = plan.metadata(array)
    assert array.shape is not None
    documents = _documents(metadata.with_shape(array.shape), array, plan)
    return replace(array, documents=documents, shape=metadata.shape)


def _blocks(plan: FilesPlan, arrays: list[ArrayPlan], length: int) -> list[tuple[int, int]]:
    """Return the rows to copy at a time."""
    step = max(1, _BLOCK_BYTES // max(max((array.row_bytes for array in arrays), default=1), 1))
    sizes = [max(plan.metadata(array).write_chunks[array.axis or 0], 1) for array in arrays]
    step = max(step // math.lcm(*sizes), 1) * math.lcm(*sizes) if math.lcm(*sizes) <= step else step
    starts = range(plan.moved or 0, length, step)
    return [(start, min(start + step, length)) for start in starts]


def restore_moved(claim: Claim, handle: NodeHandle) -> None:
    """Write rows that an interrupted job has copied back to their places, if it had cut the dataset.

    Raises:
        ShapeError: If another writer has changed the dataset since.
    """
    store, folder = handle.store, f"{claim.folder.path}/{KEPT}"
    data = bridge.run(store.get(f"{folder}/plan"), blocking=store.blocking)
    if data is None:  # an earlier call has restored them
        drop_kept(claim, handle)
        return
    plan = FilesPlan.from_json(json.loads(bytes(data)))
    runner = TaskRunner(plan, store, handle.config, OpenFiles(plan.reader, handle.config))
    for part in plan.parts:
        runner.run(part)
        claim.check()
    place = NodeHandle(store, plan.path, plan.format, handle.config, is_format_known=True)
    bridge.run(publish_arrays(plan, place), blocking=store.blocking)
    bridge.run(publish_group(plan, place, is_complete=False), blocking=store.blocking)
    drop_kept(claim, handle)


def drop_kept(claim: Claim, handle: NodeHandle) -> None:
    """Erase the copied rows, which are in their places."""
    folder, store = f"{claim.folder.path}/{KEPT}", handle.store
    bridge.run(
        store.erase_values([f"{folder}/plan"]), blocking=store.blocking
    )  # first, so that no other rows are restored
    bridge.run(store.erase_prefix(f"{folder}/"), blocking=store.blocking)
    claim.update(cut=False)
    claim.found = {**claim.found, "cut": False}
    claim.folder.forget_tasks()
