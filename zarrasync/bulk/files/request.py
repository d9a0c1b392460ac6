"""``ingest`` for many files: from the arguments of users to a ``Job``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from zarrasync import config as settings
from zarrasync._concurrency.drive import driven
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.redact import redacted_errors
from zarrasync.bulk.files.job import Job
from zarrasync.bulk.files.planned_work import FilesWork, missing_credentials
from zarrasync.bulk.files.planning.compare import is_equal
from zarrasync.bulk.files.planning.parameters import Parameters
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.pool import FileWorkers
from zarrasync.bulk.files.running.report import CheckReport, FilesReport
from zarrasync.bulk.files.sources.headers import SMALL_BYTES, ReaderOptions, SourceFile
from zarrasync.bulk.files.sources.identify import find_files
from zarrasync.bulk.files.sources.name_labels import check_pattern
from zarrasync.bulk.files.sources.preprocess import register_preprocess
from zarrasync.bulk.jobs.plan import AsyncJobPlan, name_of
from zarrasync.bulk.jobs.plan_place import NodePlace, PlanPlace, job_name
from zarrasync.bulk.reports import add_reports
from zarrasync.display.progress import ProgressLike, report_progress
from zarrasync.errors import UnsupportedByFormat
from zarrasync.metadata.conventions.cf_times import UNITS
from zarrasync.metadata.create import check_options
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.open_nodes import resolve_node
from zarrasync.stores import CountingStore, MemoryStore, resolve

__all__ = ["FilesRequest", "check_request", "make_job", "plan_request", "run_request"]

_ON_DUPLICATE = ("error", "skip", "replace")
_ON_GAP = ("report", "error", "ignore")
_ON_LATE = ("report", "insert", "error")
_ON_BAD_FILE = ("error", "skip")


@dataclass
class FilesRequest:
    """The arguments of ``ingest`` for files.

    Attributes:
        sources: A pattern, a path, or a list of them.
        store: The destination, as users pass it.
        options: ``chunks``, ``shards`` and other parameters of new arrays.
        tasks: The number of tasks of a plan; 0 for a default.
        small_bytes: The largest size of values that are read with the headers.
        start_method: How processes start; see ``engine_of``.

    The other attributes are arguments of ``ingest``.
    """

    sources: Any
    store: Any
    concat: str | None = None
    labels: str | None = ""
    preprocess: Any = None
    coordinate_tolerance: float = 0.0
    path: str = ""
    mode: str = "a"
    append: bool = False
    region: Any = None
    on_duplicate: Any = "error"
    on_gap: Any = "report"
    on_late: Any = "report"
    on_bad_file: Any = "error"
    reserve: str | None = None
    variables: Any = None
    ignore_attributes: Any = ()
    optional: Any = ()
    encoding: Mapping[str, Mapping[str, Any]] | None = None
    decode: bool = False
    dims: Any = None
    engine: str | None = None
    engine_options: Mapping[str, Any] | None = None
    group: str = ""
    source_options: Mapping[str, Any] | None = None
    storage_options: Mapping[str, Any] | None = None
    executor: Any = None
    tasks: int = 0
    wait: float = 600.0
    verify: bool = False
    unaligned: Any = None
    progress: ProgressLike = False
    config: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    small_bytes: int = SMALL_BYTES
    start_method: str = "spawn"


async def run_request(request: FilesRequest) -> FilesReport:
    """Ingest files; see ``ingest``."""
    return _ingest(request) if driven() else await run_in_new_thread(partial(_ingest, request))


def _ingest(request: FilesRequest) -> FilesReport:
    with redacted_errors(*_confidential(request)):
        return _ingest_into(request)


def _confidential(request: FilesRequest) -> list[Mapping[str, Any] | None]:
    """Return the arguments of a request that may contain credentials."""
    places = {"sources": request.sources, "store": request.store}
    return [request.source_options, request.engine_options, request.storage_options, places]


def _ingest_into(request: FilesRequest) -> FilesReport:
    store = resolve(request.store, request.storage_options, request.config)
    transaction = None if store.transactions is None else store.transactions.begin()
    if transaction is None:
        return _run(replace(request, store=store, storage_options=None))
    report = _run(replace(request, store=transaction.store, storage_options=None))
    transaction.commit(f"zarrasync ingest: {report.contents()}", normalize_path(request.path))
    return report


def _run(request: FilesRequest) -> FilesReport:
    """Ingest files. All groups of a single file become groups, unless files are joined or variables were chosen."""
    reports = list[FilesReport]()
    with closing(FileWorkers(request.executor, request.start_method)) as workers:
        for path, has_variables in make_job(request, is_one_group=False).groups(workers).items():
            group, place = join(normalize_path(request.group), path), join(normalize_path(request.path), path)
            own = replace(request, group=group, path=place) if path else request
            reports.append(_run_group(own, workers, has_variables=has_variables))
    total, *others = reports
    for report in others:
        add_reports(total, report)
        total.rows, total.seconds = total.rows + report.rows, total.seconds + report.seconds
        total.files, total.known = max(total.files, report.files), max(total.known, report.known)
        total.notes, total.left_out = total.notes + report.notes, total.left_out + report.left_out
    if others and total.files:
        total.known = 0  # one file was ingested in part before
    return total


def _run_group(request: FilesRequest, workers: FileWorkers, *, has_variables: bool) -> FilesReport:
    job = make_job(request, is_one_group=bool(request.concat))
    counting = job.handle.store
    assert isinstance(counting, CountingStore)
    workers.check_stores(counting)
    name = f"ingest {job_name(job.handle.store, job.handle.path)}"
    with job, report_progress(request.progress, 0, name) as progress:
        if not has_variables:
            return job.store_empty_group(workers)
        report = job.run(
            workers,
            verify=request.verify,
            unaligned=request.unaligned or job.handle.config.unaligned,
            progress=progress,
        )
    if workers.is_local:
        report.requests = counting.reset().requests
    return report


def plan_request(request: FilesRequest, plan: Any = None) -> AsyncJobPlan:
    """Return a plan for files, after its document was stored and other jobs are kept away from the destination.

    Args:
        request: The arguments of ``ingest``.
        plan: The path or the URL of the document; ``None`` for one in the destination.

    Raises:
        UnsupportedOperation: If the destination is not a path or URL, and ``plan`` is one; or if
            other processes cannot write to it.
    """
    with redacted_errors(*_confidential(request)), closing(FileWorkers(request.executor)) as workers:
        store = resolve(request.store, request.storage_options, request.config)
        transaction = None if store.transactions is None else store.transactions.detach()
        own = store if transaction is None else transaction.store
        job = make_job(replace(request, store=own, storage_options=None), is_planned=True)
        dest = NodePlace(store, job.handle.path, name_of(request.store))
        place = PlanPlace.of(plan, dest, request.storage_options, request.config)

        def planned(files: FilesPlan | None, report: FilesReport) -> AsyncJobPlan:
            notes = (*report.notes, *(() if files is None else missing_credentials(files)))
            work = FilesWork(files, dest, job.handle.config, report.known, notes, tuple(report.left_out))
            return AsyncJobPlan(work, place if dest.name else None)

        with place.saving() as save_document:

            def save(files: FilesPlan | None, report: FilesReport) -> None:
                if dest.name:
                    save_document(planned(files, report).to_json())

            files, report = job.plan_only(workers, save, transaction)
            if files is None:
                save(files, report)
        return planned(files, report)


def check_request(request: FilesRequest) -> CheckReport:
    """Return all problems of files, without a destination. Without ``concat``, the dimension is that along which they differ."""
    options = dict(request.source_options or {})
    with redacted_errors(*_confidential(request)), closing(FileWorkers(request.executor)) as workers:
        request = replace(request, on_bad_file="skip")
        files = find_files(request.sources, options, {})
        if request.concat is None and len(files) > 1:
            request = replace(request, concat=_differing_dimension(request, files, workers))
        return make_job(replace(request, store=MemoryStore()), is_one_group=False).check(workers)


def _differing_dimension(request: FilesRequest, files: Sequence[SourceFile], workers: FileWorkers) -> str:
    """Return the first dimension along which the labels or the sizes of two files differ."""
    reader = make_job(replace(request, sources=[files[0].url], store=MemoryStore())).reader
    own = workers.local_files(reader, settings.get())
    headers = (header for file in files for header in own.headers([file]) if header.error is None)
    first, *others = islice(headers, 2)
    for other in others:
        for variable in first.variables.values():
            for dim in variable.dims:
                one, two = (
                    None
                    if (found := header.variables.get(dim)) is None
                    else (found.values, found.attributes.get(UNITS))
                    for header in (first, other)
                )
                if (one and two and not (is_equal(one[0], two[0]) and one[1] == two[1])) or first.row_count(
                    dim
                ) != other.row_count(dim):
                    return dim
    raise ValueError(
        "the files have the same labels along all dimensions; pass concat='time' with the name of another one"
    )


def make_job(request: FilesRequest, *, is_one_group: bool = True, is_planned: bool = False) -> Job:
    """Return the job for a request.

    Args:
        request: The request.
        is_one_group: Whether other groups of a file are left out, rather than ingested by other jobs.
        is_planned: Whether other processes may run the tasks, because this one makes a plan.

    Raises:
        ValueError: If an argument is invalid.
        ShapeError: If the name of a file does not match ``labels``.
        TypeError: If a parameter of new arrays is unknown.
        FileNotFoundError: If a file does not exist.
    """
    options = dict(request.options)
    zarr_format = options.pop("zarr_format", None)
    check_options(options)
    for name, value, known in (
        ("on_duplicate", request.on_duplicate, _ON_DUPLICATE),
        ("on_gap", request.on_gap, _ON_GAP),
        ("on_late", request.on_late, _ON_LATE),
        ("on_bad_file", request.on_bad_file, _ON_BAD_FILE),
        ("mode", request.mode, ("a", "w", "w-", "r+")),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; found {value!r}")
    if request.concat is not None and not isinstance(request.concat, str):
        raise TypeError(f"concat must be the name of a dimension, found {request.concat!r}")
    if request.labels is not None and not isinstance(request.labels, str):
        raise TypeError(f"labels must be a pattern of names, such as 'ndvi_%Y%m%d'; found {request.labels!r}")
    if request.reserve is not None and not isinstance(request.reserve, str):
        raise TypeError(f"reserve must be a range such as '2024-01-01/2024-12-31/6h'; found {request.reserve!r}")
    if request.reserve == "":
        raise ValueError("reserve must be a range such as '2024-01-01/2024-12-31/6h', or None; found ''")
    if request.reserve and request.concat is None:
        raise ValueError("reserve needs the name of the dimension along which files are joined; pass concat='time'")
    if request.append and request.region is not None:
        raise ValueError("append and region exclude each other: append adds rows, region writes existing rows again")
    if (request.append or request.region is not None) and request.mode in ("w", "w-"):
        raise ValueError(f"mode={request.mode!r} creates a dataset, but append and region change an existing one")
    if (request.append or request.region is not None) and request.concat is None:
        raise ValueError(
            "append and region need the name of the dimension along which files are joined; pass concat='time'"
        )
    if not isinstance(request.encoding or {}, Mapping):
        raise TypeError(f"the encoding must be a mapping of variables to their parameters, found {request.encoding!r}")
    for name, own in (request.encoding or {}).items():
        if not isinstance(own, Mapping):
            raise TypeError(f"the encoding of {name!r} must be a mapping, found {own!r}")
        check_options(own)
    handle, _ = resolve_node(request.store, request.path, zarr_format, request.storage_options, request.config)
    format_ = handle.format
    if not isinstance(format_.zarr_format, int):
        raise UnsupportedByFormat(
            f"files can be ingested into Zarr format 2 or 3, not {format_.zarr_format!r}",
            zarr_format=format_.zarr_format,
            feature="dimension names",
        )
    counting = handle.store if isinstance(handle.store, CountingStore) else CountingStore(handle.store)
    handle = type(handle)(counting, handle.path, format_, handle.config, handle.is_format_known)
    source_options = dict(request.source_options or {})
    missing: dict[str, str] | None = {} if request.on_bad_file == "skip" else None
    files = find_files(request.sources, source_options, missing)
    concat, labels = request.concat, request.labels
    if labels != "" and not concat:
        raise ValueError("labels need the name of the dimension along which files are joined; pass concat='time'")
    if labels:
        check_pattern(labels)
    tolerance = request.coordinate_tolerance
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise ValueError(f"coordinate_tolerance must be a number of at least 0, found {tolerance!r}")
    preprocess = request.preprocess
    if preprocess is not None:
        preprocess = register_preprocess(preprocess, is_local=not is_planned and request.executor in (None, 1))
    if concat is None:
        if len(files) > 1:
            raise ValueError(
                f"{len(files):,} files need the name of a dimension to join them along; pass concat='time'"
            )
        concat = ""
    dims = tuple(request.dims.split(",")) if isinstance(request.dims, str) else request.dims
    reader = ReaderOptions(
        request.engine,
        request.group,
        request.decode,
        None if dims is None else tuple(dims),
        source_options,
        dict(request.engine_options or {}),
        concat,
        labels,
        request.small_bytes,
        preprocess or "",
        float(tolerance),
    )
    variables = (request.variables,) if isinstance(request.variables, str) else tuple(request.variables or ())
    parameters = Parameters(
        concat,
        request.append,
        _region(request.region, concat),
        request.on_duplicate,
        request.on_gap,
        request.on_late,
        request.on_bad_file,
        request.reserve or "",
        handle.store.conditional and handle.store.writeable and not handle.store.bounded,
        variables,
        (request.ignore_attributes,)
        if isinstance(request.ignore_attributes, str)
        else tuple(request.ignore_attributes),
        (request.optional,) if isinstance(request.optional, str) else tuple(request.optional),
        options,
        dict(request.encoding or {}),
        reader,
        request.tasks,
        is_one_group,
    )
    return Job(files, handle, parameters, request.mode, request.wait, missing or {})


def _region(region: Any, dim: str) -> Any:
    """Return the region as a slice, ``"auto"`` or ``None``.

    Raises:
        ValueError: If it is something else.
    """
    if region is None or region == "auto" or isinstance(region, slice):
        return region
    if isinstance(region, Mapping) and set(region) == {dim}:
        return _region(region[dim], dim)
    if isinstance(region, tuple | list) and len(region) == 1:
        return _region(region[0], dim)
    raise ValueError(f"the region must be 'auto' or {{{dim!r}: slice(start, stop)}}, found {region!r}")
