"""Writing a selection: check, convert, plan, run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy.typing as npt

from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import run_in_worker
from zarrasync.codecs.spec import Array
from zarrasync.errors import CodecError, ConditionsUnsupported
from zarrasync.indexing.chunk_runs import ChunkRun
from zarrasync.indexing.transform import Transform
from zarrasync.transfer.chunks import Chunks, Fields, dtype_of
from zarrasync.transfer.convert_values import fit, run_conversion
from zarrasync.transfer.kernel.write import KernelWrite
from zarrasync.transfer.plan import WritePlan, plan_write
from zarrasync.transfer.threads import Progress
from zarrasync.transfer.write_chunks import ChunkWriter, WriteOptions


async def write(
    chunks: Chunks,
    transform: Transform,
    values: npt.ArrayLike,
    *,
    fields: Fields = None,
    progress: Progress | None = None,
    all_absent: bool = False,
    only_present: bool = False,
    check: Callable[[], None] | None = None,
) -> None:
    """Write a selection.

    Chunks that contain only the fill value afterwards are erased rather than stored, unless
    ``config.write_empty_chunks`` is set.

    Args:
        chunks: The array's chunks.
        transform: The selection.
        values: The values, which are broadcast to the selection's shape and cast to the array's data type. Masked
            elements become the fill value.
        fields: The structured fields to write; all if ``None``.
        progress: Called with the number of bytes done since the last call.
        all_absent: Whether no chunk of the selection is stored, so that none has to be erased.
        only_present: Whether to skip absent chunks, as when clearing.
        check: Raises if chunks are changed in part although that is not allowed. Called again if the store turns out
            not to support conditional writes.

    Raises:
        ShapeError: If the values do not broadcast to the selection, or ``check`` raises it.
        CodecError: If values cannot be encoded, or a chunk that is changed in part does not decode.
        StoreError: If a value could not be read or stored.
    """
    compares = chunks.store.conditional
    if check is not None:
        check()
    dtype, fill = dtype_of(chunks, fields), chunks.metadata.chain.spec.fill_value
    fill = fill if fields is None else fill[fields]
    convert = partial(fit, values, transform.shape, dtype, fill, chunks.metadata.dtype)
    try:
        values = await run_conversion(convert, values, dtype, casts_numbers=True)
    except CodecError as error:
        error.at(f"/{chunks.prefix}".rstrip("/") or "/", repr(chunks.origin or chunks.store))
        raise
    if not transform.size:
        return
    plan = plan_write(chunks, transform, values)
    reporter = None if progress is None or chunks.store.blocking else _Reporter(progress)
    options = WriteOptions(fields, reporter or progress, all_absent, only_present)
    run = _run_blocking if chunks.store.blocking else _run_async
    while True:
        try:
            await run(plan, options)
            return
        except ConditionsUnsupported:
            if chunks.store.conditional:
                raise
        finally:  # also if it failed, because some chunks may have changed
            chunks.changes.add()
        if reporter is not None:
            reporter.restart()
        if check is not None and compares:
            check()
            compares = False


async def _run_blocking(plan: WritePlan, options: WriteOptions) -> None:
    """Carry out a plan on a blocking store: on this thread if the call is driven, else on a worker."""

    async def run() -> None:
        replaces = options.fields is None and not options.only_present
        kernel_write = KernelWrite.of(plan.chunks, plan.projection, plan.values) if replaces else None
        if kernel_write is not None:
            await _write_runs(plan.chunks, plan.values, (), options, kernel_write)
            return
        for chunks, runs in plan.groups():
            if replaces and chunks.shape is not None:
                await write_listed_runs(chunks, plan.values, runs, options)
            else:
                await ChunkWriter(chunks, plan.values, options).write_blocking(runs)

    await run_in_worker(run, computing=plan.chunks.store.is_local)


async def write_listed_runs(chunks: Chunks, values: Array, runs: Sequence[ChunkRun], options: WriteOptions) -> None:
    """Replace whole chunks, and change others, on a blocking store.

    Args:
        chunks: The chunks, all of one shape.
        values: The values of the whole write.
        runs: The elements of each chunk, and where the values are.
        options: How to write them.
    """
    await _write_runs(chunks, values, runs, options, KernelWrite.listed(chunks, runs, values))


async def _write_runs(
    chunks: Chunks, values: Array, runs: Sequence[ChunkRun], options: WriteOptions, kernel_write: KernelWrite | None
) -> None:
    """Write with the kernel, if there is one, and the remaining runs in Python."""
    empty: Sequence[str] = ()
    if kernel_write is not None:
        await kernel_write.run(cancel_flag(), options.progress)
        runs, empty = kernel_write.left, [] if options.all_absent else kernel_write.empty
    if runs or empty:
        await ChunkWriter(chunks, values, options).write_blocking(runs, empty)


async def _run_async(plan: WritePlan, options: WriteOptions) -> None:
    """Carry out a plan on an asynchronous store, with bounded concurrency."""

    async def run(group: tuple[Chunks, Sequence[ChunkRun]]) -> None:
        chunks, parts = group
        await ChunkWriter(chunks, plan.values, options).write_async(parts)

    await for_each(run, plan.groups(), plan.chunks.concurrency)


class _Reporter:
    """Reports progress on an event loop. If the write starts again, it reports no byte twice."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done, self._reported = progress, 0, 0

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        if self._done > self._reported:
            more, self._reported = self._done - self._reported, self._done
            self._progress(more)

    def restart(self) -> None:
        self._done = 0
