"""``ingest_files`` and ``plan_ingest``: many files become the variables of one dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.advice import in_terms_of
from zarrasync.bulk.files.ingestion import plan_ingestion, run_ingestion
from zarrasync.bulk.files.options import FileOptions, Layout
from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.jobs.plan import AsyncJobPlan
from zarrasync.bulk.reports import FilesReport
from zarrasync.display.progress import ProgressLike
from zarrasync.nodes.open_nodes import ConfigLike, Mode
from zarrasync.stores import StoreLike

_TERMS = (
    (
        re.compile(
            r"\b(decode|engine|engine_options|group|labels|variables)=(True|None|…|\[[^\]]*\]|'[^']*'|\{.*?\}\})"
        ),
        r"source=FileOptions(\1=\2)",
    ),
    (re.compile(r"\bencoding=(\{.*?\}\})"), r"layout=Layout(encoding=\1)"),
)
"""Parameters of ``ingest`` in messages, and the parameters of ``ingest_files`` that replace them."""


async def ingest_files(
    files: Any,
    store: StoreLike,
    *,
    concat: str | None = None,
    path: str = "",
    mode: Mode = "a",
    append: bool = False,
    region: Mapping[str, slice] | Literal["auto"] | None = None,
    on_duplicate: Literal["error", "skip", "replace"] = "error",
    on_gap: Literal["report", "error", "ignore"] = "report",
    on_late: Literal["report", "insert", "error"] = "report",
    on_bad_file: Literal["error", "skip"] = "error",
    reserve: str | None = None,
    preprocess: Any = None,
    source: FileOptions | None = None,
    layout: Layout | None = None,
    verify: bool = False,
    executor: Any = None,
    progress: ProgressLike = False,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> FilesReport:
    """Write files into a dataset: the rows of all files along one dimension become arrays of one group.

    Rows are put in order, times get one unit, and the new rows become visible in one step at the end. A value in the store
    records the files, so that none is ingested twice, and none is left out silently. After an interruption, the same call
    resumes. It plans the job, runs its tasks, and finishes it; ``plan_ingest`` does only the first.

    Args:
        files: A path, a URL, a pattern such as ``"nc/*.nc"``, or a list of them. NumPy reads ``.npy`` and ``.npz`` files;
            xarray reads netCDF, HDF5, GRIB, GeoTIFF, Zarr and others, if their package is installed. Remote files are copied
            to the temporary directory while they are read; Zarr is read from its store.
        store: A store, path, URL, mapping, or fsspec filesystem or mapper.
        concat: The dimension along which files are joined. Files without it are one row each. A single file needs none.
        path: The path of the group in the store.
        mode: ``"a"``: create, or resume the same job; ``"w"``: replace; ``"w-"``: create, and fail if a node exists;
            ``"r+"``: change an existing dataset.
        append: Add rows to an existing dataset, or create it. Files that were ingested before are not read again.
        region: The existing rows to write again: ``"auto"`` for the rows with the labels of the files, or
            ``{"time": slice(0, 24)}``.
        on_duplicate: What happens if the label of a row, such as its time, exists already: ``"error"``, ``"skip"`` the row,
            or let it ``"replace"`` the earlier one. Rows without labels are known by their files: the choice applies to the
            rows of files that have changed.
        on_gap: Whether a gap in the labels is part of the report, an ``"error"``, or ignored. A gap is looked at when rows next
            to it are added, or when the step between rows becomes known.
        on_late: What happens if rows of a file come before existing rows. ``"insert"``: the existing rows after them are written
            again, and readers see a shorter dataset meanwhile. ``"report"``: the same if these rows fit into one stored chunk or
            shard; otherwise the file is left out, and the report names it with the cost. ``"error"``: nothing is written.
        on_bad_file: What happens if a file cannot be read, or does not fit the others: an ``"error"`` that names all such files,
            or ``"skip"`` them, and name them in the report.
        reserve: The labels of rows to lay out before their files exist, such as ``"2024-01-01/2024-12-31/6h"``: the first one, the
            last one and the step. A file finds its rows whenever it comes. Rows without a file contain the fill value.
        preprocess: A function that gets each opened dataset of xarray, without decoded times, and returns a changed one; or its
            name, as ``"module:function"``, which other processes can import. The plan contains its name and a digest.
        source: How files are opened, and the parts to store.
        layout: How new arrays are stored.
        verify: Read all values back and compare them with the files.
        executor: Where tasks run: a number of processes of this machine, which share the threads of the settings and may
            each use ``config.memory_budget`` (a script that uses them must start below ``if __name__ == "__main__"``); a
            ``concurrent.futures.Executor`` or another object with ``submit``, a client of dask.distributed, the module
            ``ray``, a ``FunctionExecutor`` of Lithops, or a function ``map(function, items)``. Default: this process.
        progress: ``True`` to show a progress bar, a function that is called with the number of bytes written since its last
            call, or a ``Monitor``.
        storage_options: Options of the filesystem or object store of a URL.
        config: Settings for this call.

    Returns:
        A report of bytes, requests, files and rows, with notes about repeated rows and gaps, and in ``left_out`` the parts
        that are not stored although no argument excludes them.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If an argument is invalid.
        SourceFilesError: If files cannot be read, or several do not fit the others.
        ShapeError: If the files do not fit together, or do not fit the dataset.
        NodeExistsError: If a dataset exists that contains other files, and ``append`` and ``region`` are not given.
        NodeNotFoundError: If no dataset exists that could be changed.
        NodeTypeError: If an array exists at the path, or an array's data type cannot represent the values.
        EncodingError: If the encoding of an array cannot represent values.
        ChecksumError: If ``verify`` is set and values read back differ.
        WriteConflictError: If another job writes the dataset, or a plan for it is not finished.
        StoreError: If the store failed.

    Example:
        >>> for day in range(2):
        ...     np.save(f"{day}.npy", np.full((3, 4), day))
        >>> source = za.FileOptions(dims="y,x")
        >>> report = await za.ingest_files(["0.npy", "1.npy"], "out.zarr", concat="time", source=source)
        >>> report.files, report.rows
        (2, 2)
    """
    with in_terms_of(*_TERMS):
        parameters = Parameters(
            files=files, store=store, concat=concat, path=path, mode=mode, append=append, region=region,
            on_duplicate=on_duplicate, on_gap=on_gap, on_late=on_late, on_bad_file=on_bad_file, reserve=reserve,
            preprocess=preprocess, source=source or FileOptions(), layout=layout or Layout(), verify=verify,
            executor=executor, progress=progress, storage_options=storage_options, config=config,
        )  # fmt: skip
        return await run_ingestion(parameters)


async def plan_ingest(
    files: Any,
    store: Any,
    *,
    concat: str | None = None,
    path: str = "",
    mode: Mode = "a",
    append: bool = False,
    region: Mapping[str, slice] | Literal["auto"] | None = None,
    on_duplicate: Literal["error", "skip", "replace"] = "error",
    on_gap: Literal["report", "error", "ignore"] = "report",
    on_late: Literal["report", "insert", "error"] = "report",
    on_bad_file: Literal["error", "skip"] = "error",
    reserve: str | None = None,
    preprocess: Any = None,
    source: FileOptions | None = None,
    layout: Layout | None = None,
    plan: Any = None,
    tasks: int = 0,
    executor: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncJobPlan:
    """Plan an ingestion of files whose tasks run anywhere; see ``ingest_files``, and ``AsyncJobPlan`` for plans.

    The headers of all files are read and compared. If all files were ingested before, the plan has no tasks.

    Args:
        files: As for ``ingest_files``.
        store: As for ``ingest_files``.
        concat: As for ``ingest_files``.
        path: As for ``ingest_files``.
        mode: As for ``ingest_files``. With ``"w"``, the dataset is erased now.
        append: As for ``ingest_files``.
        region: As for ``ingest_files``.
        on_duplicate: As for ``ingest_files``.
        on_gap: As for ``ingest_files``.
        on_late: As for ``ingest_files``, but rows are not inserted by tasks that run anywhere: ``"insert"`` leaves the file out.
        on_bad_file: As for ``ingest_files``. Files whose values cannot be read are an error of the tasks.
        reserve: As for ``ingest_files``.
        preprocess: As for ``ingest_files``.
        source: As for ``ingest_files``.
        layout: As for ``ingest_files``.
        plan: The path or the URL of the document of the plan. Default: ``.ingest/plan.json`` in the destination.
        tasks: About how many tasks to make. Default: a number that suits the size.
        executor: Where headers are read, as for ``ingest_files``.
        storage_options: As for ``ingest_files``, also for the URL of the document. They are not part of it.
        config: As for ``ingest_files``. The settings are not part of the document.

    Returns:
        The plan.

    Raises:
        FileExistsError: If ``plan`` is an existing file, and not a plan for the same destination.
        UnsupportedOperation: If ``plan`` is given and the destination is not a path or a URL, or no plan can be made for the
            destination, such as an archive.
        WriteConflictError: If another job writes the dataset, or another plan for it is not finished.
        StoreError: If a store failed. Nothing is kept then.

    ``ingest_files`` lists other errors.

    Example:
        >>> np.save("c.npy", np.zeros((100, 100)))
        >>> source, layout = za.FileOptions(dims="y,x"), za.Layout(chunks=(1, 50, 50))
        >>> plan = await za.plan_ingest("c.npy", "c.zarr", concat="time", source=source, layout=layout)
        >>> for task in plan.tasks:
        ...     report = await plan.run(task.number)  # or on another machine
        >>> report = await plan.finish()
        >>> report.rows
        1
    """
    with in_terms_of(*_TERMS):
        parameters = Parameters(
            files=files, store=store, concat=concat, path=path, mode=mode, append=append, region=region,
            on_duplicate=on_duplicate, on_gap=on_gap, on_late=on_late, on_bad_file=on_bad_file, reserve=reserve,
            preprocess=preprocess, source=source or FileOptions(), layout=layout or Layout(), executor=executor,
            tasks=tasks, storage_options=storage_options, config=config,
        )  # fmt: skip
        return await run_in_new_thread(partial(plan_ingestion, parameters, plan))
