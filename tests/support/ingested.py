"""Ingesting files into many tasks, and journals of datasets with many files."""

from __future__ import annotations

import json
from typing import Any

from zarrasync import config
from zarrasync._concurrency.bridge import run
from zarrasync.bulk.files.ingestion import run_ingestion
from zarrasync.bulk.files.parameters import parameters_of
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.planned_job import FilesWork
from zarrasync.bulk.jobs.plan_location import NodeLocation
from zarrasync.bulk.reports import FilesReport
from zarrasync.stores import resolve


def ingest_in_tasks(sources: Any, store: Any, *, concat: str = "time", **arguments: Any) -> FilesReport:
    """Ingest files like ``sync.ingest``, in as many tasks as possible."""
    parameters = parameters_of(files=sources, store=store, concat=concat, tasks=1 << 20, **arguments)
    return run(run_ingestion(parameters), blocking=True)


def work_of(plan: FilesPlan, store: Any) -> FilesWork:
    """Return the commands of a plan, as another process opens them."""
    return FilesWork(plan, NodeLocation(resolve(store), plan.path), config.get())


def run_all(work: FilesWork, *, verify: bool = False) -> None:
    """Run all tasks of a plan in this process."""
    work.run(range(len(work.tasks)), executor=None, verify=verify, progress=False)


def journal_key(store: Any) -> str:
    """Return the key of the journal of a dataset, which lies beside its labels or its values."""
    keys = run(resolve(store).list_prefix(""), blocking=True)
    (key,) = (key for key in keys if key.endswith("/.sources"))
    return key


def read_journal(store: Any) -> dict[str, Any]:
    """Return the journal of a dataset as JSON values."""
    value: dict[str, dict[str, Any]] = json.loads(run(resolve(store).get(journal_key(store)), blocking=True) or b"")
    return value["journal"]


def put_journal(store: Any, journal: dict[str, Any], key: str) -> None:
    """Replace the journal of a dataset."""
    run(resolve(store).put(key, json.dumps({"journal": journal}).encode()), blocking=True)
