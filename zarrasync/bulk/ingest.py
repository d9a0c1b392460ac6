"""Bulk ingestion: writing a source into an array block by block, concurrently and within the memory budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.advice import in_terms_of
from zarrasync.bulk.files.ingestion import run_ingestion
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.sources.identify import has_magic, means_files, source_name
from zarrasync.bulk.ingest_array import ingest_array
from zarrasync.bulk.source_records import identify_source
from zarrasync.bulk.sources import open_source
from zarrasync.display.progress import IngestReport, ProgressLike
from zarrasync.nodes.open_nodes import ConfigLike, Mode
from zarrasync.stores import StoreLike
from zarrasync.transfer.unaligned import Unaligned, check_unaligned

_FILES = frozenset(("concat", "labels", "engine"))
"""Arguments that only files have."""
_GROUPED = re.compile(r"\bsource=FileOptions\(([^()]*)\)")
"""Arguments of ``ingest_files`` in messages, whose fields are arguments of ``ingest``."""


async def ingest(
    source: Any,
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "a",
    region: Any = None,
    unaligned: Unaligned | None = None,
    verify: bool = False,
    concurrency: int = 0,
    threads: bool = True,
    progress: ProgressLike = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
    **options: Any,
) -> IngestReport:
    """Write a whole source into an array, or many files into a dataset. After an interruption, the same call resumes.

    An array is written block by block. Blocks consist of whole chunks (or shards). Several blocks are read, encoded and stored at a time, within
    ``config.memory_budget``.

    With ``mode="a"``, chunks that are already stored are skipped, because a chunk is stored completely or not at all. Do
    not resume over chunks that were written in part: by an assignment, or by a run with other regions that cut chunks.
    ``verify`` detects such chunks, and ``mode="r+"`` writes everything again. Chunks that contain only the fill value are
    not stored, so a resumed run writes them again.

    For a path or a pattern of files other than ``.npy``, or with ``concat``, this is ``ingest_files``. The fields of
    ``FileOptions`` and ``Layout`` are arguments then.

    Args:
        source: The values to write, one of:

            - an object with ``shape``, ``dtype`` and indexing: an array of NumPy, h5py, dask, zarrasync or zarr-python,
              or a variable of xarray. Dask recomputes shared intermediate results for each block; see
              ``integrations.dask.store`` to compute them once.
            - the path of an ``.npy`` file, or the path or URL of a Zarr array.
            - a function that returns the values of a region (a tuple of slices). Several threads call it at a time,
              unless ``threads`` is false.
            - an iterable of pairs of a region and its values, for all of the array or region. It may reuse the memory of
              the values.

            Functions and iterables may be asynchronous. They require the options ``shape`` and ``dtype``.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the array in the store.
        mode: ``"a"``: resume or create; ``"w"``: replace; ``"w-"``: create, and fail if a node exists; ``"r+"``: write
            all blocks into an existing array.
        region: The part of the array to write, as a tuple of slices. Default: the whole array.
        unaligned: Whether the region may cut chunks, which another process may be writing: ``"safe"``: if the store
            supports conditional writes; ``"error"``: never; ``"allow"``: always. Default: ``config.unaligned``.
        verify: Read all values back and compare them. A value that the array's data type cannot represent is an error,
            unless the source has a data type and the options specify another one.
        concurrency: The number of blocks at a time; 0 for a default that suits the store.
        threads: Whether a function may be called on several threads at a time. Libraries such as netCDF4 and h5py do not
            allow that.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since
            its last call, or a ``Monitor``.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.
        **options: Parameters of ``create_array``. The defaults for the shape, data type, dimension names and attributes
            come from the source. A Zarr array is also the default for chunks and shards.

    Returns:
        A report of the written blocks, with bytes and requests.

    Raises:
        ValueError: If ``mode``, ``unaligned`` or ``concurrency`` is invalid.
        ShapeError: If the source does not fit the array or the region, an iterable left out chunks, or the region cuts
            chunks and ``unaligned`` does not allow that.
        NodeNotFoundError: If the array does not exist and the mode is ``"r+"`` or a region is given.
        NodeExistsError: If a node exists and the mode is ``"w-"``.
        NodeTypeError: If a group exists at the path, or the array's data type cannot represent the source's values.
        ChecksumError: If ``verify`` is set and the values read back differ.
        WriteConflictError: If other writers kept changing a chunk.
        StoreError: If the store failed.

    Example:
        >>> store = {}
        >>> report = await za.ingest(np.arange(100), store, chunks=(10,))
        >>> report.nbytes
        800
        >>> array = await za.open_array(store)
        >>> await array[95:]
        array([95, 96, 97, 98, 99])
    """
    if unaligned is not None:
        check_unaligned(unaligned)
    if not _FILES.isdisjoint(options) or await _means_files(source, options.get("source_options")):
        with in_terms_of((_GROUPED, r"\1")):
            parameters = parameters_of(
                files=source, store=store, path=path, mode=mode, region=region, verify=verify,
                progress=progress, storage_options=storage_options, config=config, **options,
            )  # fmt: skip
            return await run_ingestion(parameters)
    if isinstance(region, str | Mapping):
        raise TypeError(f"the region of an array must be a tuple of slices, found {region!r}; only files have labels")
    if not isinstance(concurrency, int | np.integer) or concurrency < 0:
        raise ValueError(f"concurrency must be a number of blocks, or 0 for the default; found {concurrency!r}")
    if isinstance(source, str | Path):
        source = source_name(source)
    file = identify_source(source) if isinstance(source, str) and region is None else None
    if isinstance(source, str) and not source.endswith(".npy"):
        source = await open_source(source)
    return await ingest_array(
        source,
        store,
        file,
        path=path,
        mode=mode,
        region=region,
        unaligned=unaligned,
        verify=verify,
        concurrency=concurrency,
        threads=threads,
        progress=progress,
        storage_options=storage_options,
        config=config,
        options=options,
    )


async def _means_files(source: Any, source_options: Mapping[str, Any] | None) -> bool:
    """Return whether a source means files. For a URL that may be a pattern, that needs a request."""
    check = partial(means_files, source, source_options or {})
    is_quick = not isinstance(source, str | Path) or not has_magic(source_name(source))
    return check() if is_quick or driven() else await run_in_new_thread(check)
