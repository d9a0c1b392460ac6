"""Bulk ingestion: writing a source into an array block by block, concurrently and within the memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.short_tracebacks import short_tracebacks
from zarrasync.bulk.files.request import FilesRequest, run_request
from zarrasync.bulk.files.sources.identify import has_magic, means_files, source_name
from zarrasync.bulk.ingest_array import ingest_array
from zarrasync.bulk.source_records import identify_source
from zarrasync.bulk.sources import open_source
from zarrasync.display.progress import IngestReport, ProgressLike
from zarrasync.nodes.open_nodes import ConfigLike, Mode
from zarrasync.stores import StoreLike
from zarrasync.transfer.unaligned import Unaligned, check_unaligned

__all__ = ["ingest"]


@short_tracebacks
async def ingest(
    source: Any,
    store: StoreLike,
    *,
    path: str = "",
    mode: Mode = "a",
    region: tuple[slice, ...] | Mapping[str, slice] | Literal["auto"] | None = None,
    unaligned: Unaligned | None = None,
    verify: bool = False,
    concurrency: int = 0,
    threads: bool = True,
    concat: str | None = None,
    labels: str | None = None,
    append: bool = False,
    on_duplicate: Literal["error", "skip", "replace"] = "error",
    on_gap: Literal["report", "error", "ignore"] = "report",
    variables: Sequence[str] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    decode: bool = False,
    dims: Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    source_group: str = "",
    source_options: Mapping[str, Any] | None = None,
    executor: Any = None,
    wait: float = 600.0,
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

    Files become the variables of one group. The rows of all files along the dimension ``concat`` are put in order, times
    get one unit, and the new rows become visible in one step at the end. A value in the store records the files, so that
    none is ingested twice, and none is left out silently.

    Args:
        source: The values to write, one of:

            - an object with ``shape``, ``dtype`` and indexing: an array of NumPy, h5py, dask, zarrasync or zarr-python,
              or a variable of xarray. Dask recomputes shared intermediate results for each block; see
              ``integrations.dask.store`` to compute them once.
            - the path of an ``.npy`` file, or the path or URL of a Zarr array.
            - with ``concat``: a path, a URL, a pattern such as ``"nc/*.nc"``, or a list of them. NumPy reads ``.npy`` and
              ``.npz`` files. xarray reads netCDF, HDF5, GRIB, GeoTIFF, Zarr and others, if their package is installed.
              Remote files are copied to the temporary directory while they are read; Zarr is read from its store.
              If h5py is installed, several threads read the chunks of netCDF-4 and HDF5 files.
            - a function that returns the values of a region (a tuple of slices). Several threads call it at a time,
              unless ``threads`` is false.
            - an iterable of pairs of a region and its values, for all of the array or region. It may reuse the memory of
              the values.

            Functions and iterables may be asynchronous. They require the options ``shape`` and ``dtype``.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        path: The path of the array in the store.
        mode: ``"a"``: resume or create; ``"w"``: replace; ``"w-"``: create, and fail if a node exists; ``"r+"``: write
            all blocks into an existing array.
        region: The part of the array to write, as a tuple of slices. Default: the whole array. For files, the existing
            rows to write again: ``"auto"`` for the rows with the labels of the files, or ``{"time": slice(0, 24)}``.
        unaligned: Whether the region may cut chunks, which another process may be writing: ``"safe"``: if the store
            supports conditional writes; ``"error"``: never; ``"allow"``: always. Default: ``config.unaligned``.
        verify: Read all values back and compare them. A value that the array's data type cannot represent is an error,
            unless the source has a data type and the options specify another one.
        concurrency: The number of blocks at a time; 0 for a default that suits the store.
        threads: Whether a function may be called on several threads at a time. Libraries such as netCDF4 and h5py do not
            allow that.
        concat: For files: the dimension along which they are joined. Files without this dimension are one row each.
        labels: For files with one row each and without labels, such as GeoTIFF and ``.npy`` files: a pattern of their names
            with codes of ``strptime``, such as ``"ndvi_%Y%m%d"``. The times in the names become the labels. The pattern may
            match a part of the name, and contain ``*`` and ``?``. With slashes, it also matches names of folders.
        append: For files: add their rows to an existing dataset, or create it. Files that were ingested before are not
            read again.
        on_duplicate: For files: what happens if the label of a row, such as its time, exists already: ``"error"``,
            ``"skip"`` the row, or let it ``"replace"`` the earlier one. Rows without labels are known by their files:
            the choice applies to the rows of files that have changed.
        on_gap: For files: whether a gap in the labels is an error, part of the report, or ignored.
        variables: For files: the variables to write. The coordinates, bounds, grid mappings and terms of formulas that they
            need are added. Default: all. A variable that cannot be read completely is an error, unless others are chosen.
        encoding: For files: parameters of ``create_array`` by variable, such as ``{"t2m": {"dtype": "f4"}}``.
        decode: For files: unpack values with ``scale_factor``, ``add_offset`` and ``_FillValue``. By default they are
            stored as in the files, with these attributes.
        dims: For files: the names of the axes of arrays that have none, in ``.npy``, ``.npz`` and HDF5 files.
        engine: For files: the engine of xarray. Default: the one that recognises the file.
        engine_options: For files: arguments of ``xarray.open_dataset``, such as
            ``{"filter_by_keys": {"typeOfLevel": "surface"}}`` for GRIB.
        source_group: For files: the group inside the files. Coordinates of its dimensions may be in a group above.
        source_options: For files: options of the filesystem of URLs.
        executor: For files: where tasks run. A number of processes of this machine, which share the threads of the settings
            and may each use ``config.memory_budget``; a script that uses them must start below
            ``if __name__ == "__main__"``. A ``concurrent.futures.Executor`` or another object with ``submit``, a client of
            dask.distributed, the module ``ray``, a ``FunctionExecutor`` of Lithops, or a function
            ``map(function, items)``. Default: this process.
        wait: For files: seconds to wait for another job that writes the same dataset.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since
            its last call, or a ``Monitor``.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.
        **options: Parameters of ``create_array``. For files, ``chunks`` and ``shards`` may be mappings such as
            ``{"time": 24, "lat": 90}``; dimensions that they do not contain are not divided. The defaults for the shape, data type, dimension names and attributes
            come from the source. A Zarr array is also the default for chunks and shards.

    Returns:
        A report of the written blocks, with bytes and requests. For files also with counts of files and rows, notes about
        repeated rows and gaps, and in ``left_out`` the parts that are not stored although no argument excludes them.

    Raises:
        ValueError: If ``mode``, ``unaligned`` or ``concurrency`` is invalid.
        ShapeError: If the source does not fit the array or the region, an iterable left out chunks, or the region cuts
            chunks and ``unaligned`` does not allow that.
        NodeNotFoundError: If the array does not exist and the mode is ``"r+"`` or a region is given.
        NodeExistsError: If a node exists and the mode is ``"w-"``, or if a dataset exists that contains other files.
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
    are_files = concat is not None or labels is not None or engine is not None
    if are_files or await _means_files(source, source_options):
        request = FilesRequest(
            source,
            store,
            concat,
            labels=labels,
            path=path,
            mode=mode,
            append=append,
            region=region,
            on_duplicate=on_duplicate,
            on_gap=on_gap,
            variables=variables,
            encoding=encoding,
            decode=decode,
            dims=dims,
            engine=engine,
            engine_options=engine_options,
            group=source_group,
            source_options=source_options,
            storage_options=storage_options,
            executor=executor,
            wait=wait,
            verify=verify,
            unaligned=unaligned,
            progress=progress,
            config=config,
            options=options,
        )
        return await run_request(request)
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
