"""Ingesting, planning and checking files: from the parameters of users to a ``Job``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from zarrasync import config as settings
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.redact import redacted_errors
from zarrasync.bulk.files.job import Job
from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.planned_job import FilesWork, missing_credentials
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.files.sources.datasets import register_preprocess
from zarrasync.bulk.files.sources.headers import FileHeader, SourceFile
from zarrasync.bulk.files.sources.identify import find_files
from zarrasync.bulk.jobs.plan import AsyncJobPlan, name_of, plan_with_document
from zarrasync.bulk.jobs.plan_location import NodeLocation, PlanLocation, job_name
from zarrasync.bulk.reports import CheckReport, FilesReport, add_reports
from zarrasync.display.progress import report_progress
from zarrasync.errors import UnsupportedByFormat
from zarrasync.metadata.conventions.cf_times import UNITS
from zarrasync.metadata.create import DEFAULT
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.open_nodes import resolve_node
from zarrasync.stores import CountingStore, MemoryStore, resolve
from zarrasync.stores.changes import count_change

Found: TypeAlias = tuple[list[SourceFile], dict[str, str]]
"""The files of a job, and the reasons for files that were named but do not exist."""


async def run_ingestion(parameters: Parameters) -> FilesReport:
    """Ingest files; see ``ingest_files``."""
    return await run_in_new_thread(partial(_ingest, parameters))


def _ingest(parameters: Parameters) -> FilesReport:
    with redacted_errors(*parameters.confidential):
        store = resolve(parameters.store, parameters.storage_options, parameters.config)
        transaction = None if store.transactions is None else store.transactions.begin()
        if transaction is None:
            return _run(replace(parameters, store=store, storage_options=None))
        report = _run(replace(parameters, store=transaction.store, storage_options=None))
        path = normalize_path(parameters.path)
        transaction.commit(f"zarrasync ingest: {report.contents()}", path)
        count_change(store, path, below=True)
        return report


def _run(parameters: Parameters) -> FilesReport:
    """Ingest files. All groups of a single file become groups, unless files are joined or variables were chosen."""
    reports, found = list[FilesReport](), _find(parameters)
    with closing(FileWorkers(parameters.executor)) as workers:
        for path, has_variables in make_job(parameters, found, is_one_group=False).groups(workers).items():
            source = replace(parameters.source, group=join(normalize_path(parameters.source.group), path))
            own = replace(parameters, source=source, path=join(normalize_path(parameters.path), path))
            reports.append(_run_group(own, found, workers, has_variables=has_variables))
    total, *others = reports
    for report in others:
        add_reports(total, report)
        total.rows, total.seconds = total.rows + report.rows, total.seconds + report.seconds
        total.files, total.known = max(total.files, report.files), max(total.known, report.known)
        total.notes, total.left_out = total.notes + report.notes, total.left_out + report.left_out
    if others and total.files:
        total.known = 0  # one file was ingested in part before
    return total


def _run_group(parameters: Parameters, found: Found, workers: FileWorkers, *, has_variables: bool) -> FilesReport:
    job = make_job(parameters, found, is_one_group=bool(parameters.concat))
    counting = job.handle.store
    assert isinstance(counting, CountingStore)
    workers.check_stores(counting)
    name = f"ingest {job_name(job.handle.store, job.handle.path)}"
    with job.claim, report_progress(parameters.progress, 0, name) as progress:
        if not has_variables:
            return job.store_empty_group(workers)
        report = job.run(workers, verify=parameters.verify, progress=progress)
    if workers.is_local:
        report.requests = counting.reset().requests
    return report


def plan_ingestion(parameters: Parameters, plan: Any = None) -> AsyncJobPlan:
    """Return a plan for files, after its document was stored and other jobs are kept away from the destination.

    Args:
        parameters: The parameters, as users pass them.
        plan: The path or the URL of the document; ``None`` for one in the destination.

    Raises:
        UnsupportedOperation: If the destination is not a path or URL, and ``plan`` is one; or if
            other processes cannot write to it.
    """
    with redacted_errors(*parameters.confidential), closing(FileWorkers(parameters.executor)) as workers:
        store = resolve(parameters.store, parameters.storage_options, parameters.config)
        transaction = None if store.transactions is None else store.transactions.detach()
        own = store if transaction is None else transaction.store
        job = make_job(replace(parameters, store=own, storage_options=None), is_planned=True)
        dest = NodeLocation(store, job.handle.path, name_of(parameters.store))
        location = PlanLocation.of(plan, dest, parameters.storage_options, parameters.config)

        def planned(files: FilesPlan | None, report: FilesReport) -> tuple[AsyncJobPlan, dict[str, Any] | None]:
            notes = (*report.notes, *(() if files is None else missing_credentials(files)))
            work = FilesWork(files, dest, job.handle.config, report.known, notes, tuple(report.left_out))
            return plan_with_document(work, location)

        with location.saving() as save:
            files, report = job.plan_only(workers, lambda *found: save(planned(*found)[1]), transaction)
            plan_of_job, document = planned(files, report)
            if files is None:
                save(document)
        return plan_of_job


def check_ingestion(parameters: Parameters) -> CheckReport:
    """Return all problems of files, without a destination. Without ``concat``, the dimension is that along which they differ."""
    with redacted_errors(*parameters.confidential), closing(FileWorkers(parameters.executor)) as workers:
        own = replace(parameters, store=MemoryStore(), on_bad_file="skip")
        found = _find(own)
        if own.concat is None and len(found[0]) > 1:
            opened = workers.local_files(own.reader, settings.get())
            headers = (header for file in found[0] for header in opened.headers([file]) if header.error is None)
            own = replace(own, concat=_differing_dimension([*islice(headers, 2)]))
        return make_job(own, found, is_one_group=False).check(workers)


def _differing_dimension(headers: Sequence[FileHeader]) -> str:
    """Return the first dimension along which the labels or the sizes of two files differ; any if fewer can be read."""
    dims = [dim for header in headers[:1] for variable in header.variables.values() for dim in variable.dims]
    if len(headers) < 2:
        return dims[0] if dims else "row"
    first, other = headers
    for dim in dims:
        if first.row_count(dim) != other.row_count(dim) or _labels(first, dim) != _labels(other, dim):
            return dim
    raise ValueError(
        "the files have the same labels along all dimensions; pass concat='time' with the name of another one"
    )


def _labels(header: FileHeader, dim: str) -> Any:
    found = header.variables.get(dim)
    return found and (found.attributes.get(UNITS), None if found.values is None else found.values.tolist())


def make_job(
    parameters: Parameters, found: Found | None = None, *, is_one_group: bool = True, is_planned: bool = False
) -> Job:
    """Return a job.

    Args:
        parameters: The parameters, as users pass them.
        found: The files, if they are known: finding Zarr sources lists them.
        is_one_group: Whether other groups of a file are left out, rather than ingested by other jobs.
        is_planned: Whether other processes may run the tasks, because this one makes a plan.

    Raises:
        ValueError: If an argument is invalid.
        FileNotFoundError: If a file does not exist.
        UnsupportedByFormat: If the format is a draft.
    """
    zarr_format = None if parameters.layout.zarr_format is DEFAULT else parameters.layout.zarr_format
    options = parameters.storage_options
    handle, _ = resolve_node(parameters.store, parameters.path, zarr_format, options, parameters.config)
    if not isinstance(handle.format.zarr_format, int):
        message = f"files can be ingested into Zarr format 2 or 3, not {handle.format.zarr_format!r}"
        raise UnsupportedByFormat(message, zarr_format=handle.format.zarr_format, feature="dimension names")
    store = handle.store if isinstance(handle.store, CountingStore) else CountingStore(handle.store)
    files, missing = found or _find(parameters)
    if parameters.concat is None and len(files) > 1:
        raise ValueError(f"{len(files):,} files need the name of a dimension to join them along; pass concat='time'")
    if parameters.source.labels:
        files = [replace(file, identity="") for file in files]  # links to one file have different labels
    preprocess = parameters.preprocess
    if preprocess is not None:
        preprocess = register_preprocess(preprocess, is_local=not is_planned and parameters.executor in (None, 1))
    inserts = store.conditional and store.writeable and not store.checks_bounds
    own = replace(parameters, preprocess=preprocess, inserts=inserts, is_one_group=is_one_group)
    return Job(files, replace(handle, store=store), own, missing)


def _find(parameters: Parameters) -> Found:
    missing: dict[str, str] = {}
    skips = parameters.on_bad_file == "skip"
    return find_files(parameters.files, parameters.source.storage_options, missing if skips else None), missing
