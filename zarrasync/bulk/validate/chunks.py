"""Validation of stored values by decoding them."""

from __future__ import annotations

from itertools import product

from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.validate.hierarchy import Validation
from zarrasync.display.progress import part_of, skip_of
from zarrasync.errors import MetadataError, UnsupportedOperation, ZarrError
from zarrasync.nodes.access import chunks_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.stores import Request
from zarrasync.transfer.threads import Progress


async def check_chunks(validation: Validation, array: AsyncArray, progress: Progress, *, allow_pickle: bool) -> None:
    """Decode all stored values of an array, and report the progress in bytes of decoded values.

    Errors, keys outside the grid, absent values, and values without a checksum are reported.
    """
    chunks, metadata = chunks_of(array), array.metadata
    grid = metadata.grid
    if getattr(metadata.inner_codecs.array_bytes, "runs_code", False) and not allow_pickle:
        message = (
            "the chunks were not checked: they are pickles, and reading a pickle can run arbitrary code; set "
            "config.allow_pickle to check them"
        )
        validation.add("note", chunks.prefix or array.name, message)
        return
    try:
        chunks.check_chunk_size()
    except MetadataError as error:
        validation.add("error", chunks.prefix or array.name, str(error))
        return
    stored = unprotected = 0

    async def check(key: str) -> None:
        nonlocal stored, unprotected
        coords = metadata.keys.decode(key, metadata.ndim)
        if coords is None:
            return
        if coords not in grid:
            validation.add("warning", chunks.full_key(key), f"the chunk is outside the grid of shape {grid.shape}")
            return
        try:
            (value,) = await chunks.store.fetch([Request(key, limit=chunks.limit)])
            if value is not None:
                stored += 1
                unprotected += not metadata.codecs.has_checksum(value.data)
                metadata.chain_of(grid.chunk_shape(coords), chunks.config.max_chunk_bytes).decode(value.data)
        except Exception as error:  # any failure is a finding, and the other chunks are still checked
            text = str(error) if isinstance(error, ZarrError) else f"{type(error).__name__}: {error}"
            validation.add("error", chunks.full_key(key), text)

    try:
        keys = sorted(await chunks.store.list_prefix(""))
    except UnsupportedOperation:
        keys = [chunks.key(coords) for coords in product(*map(range, grid.shape))]
    with part_of(progress, array.name, array.nbytes) as part:
        rest = array.nbytes

        async def check_one(key: str) -> None:
            nonlocal rest
            await check(key)
            nbytes = min(metadata.chain.nbytes, rest)
            rest -= nbytes
            part(nbytes)

        await for_each(check_one, keys, 1 if chunks.store.blocking else chunks.concurrency)
        skip_of(part)(rest)  # absent values
    validation.report.chunks += stored
    if unprotected:
        message = (
            f"{unprotected:,} of {stored:,} stored values have no checksum, so that damage may read as other values"
        )
        validation.add("note", chunks.prefix or array.name, message)
    if stored < grid.size:
        message = f"{grid.size - stored:,} of {grid.size:,} stored values are absent and read as the fill value"
        validation.add("note", chunks.prefix or array.name, message)
