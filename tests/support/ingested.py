"""Ingesting files into many tasks, and journals of datasets with many files."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from zarrasync import sync
from zarrasync._concurrency.bridge import run
from zarrasync.bulk.files.functions import FilesRequest, ingest_files
from zarrasync.bulk.files.records.journal import ATTRIBUTE, Journal
from zarrasync.bulk.files.running.report import FilesReport

_ARGUMENTS = {item.name for item in fields(FilesRequest)}


def ingest_in_tasks(sources: Any, store: Any, *, concat: str = "time", **arguments: Any) -> FilesReport:
    """Ingest files like ``sync.ingest``, in as many tasks as possible."""
    options = {name: arguments.pop(name) for name in arguments.keys() - _ARGUMENTS}
    request = FilesRequest(sources, store, concat, tasks=1 << 20, options=options, **arguments)
    return run(ingest_files(request), blocking=True)


def forget_names(store: Any, most: int) -> None:
    """Keep only digests of all but the last files of a dataset, as the journals of datasets with many files do.

    Args:
        store: The store of the dataset.
        most: The number of files whose names remain.
    """
    group = sync.open_group(store, mode="r+")
    journal = Journal.of(group.attrs)
    group.attrs[ATTRIBUTE] = journal.with_files(journal.dim, journal.parameters, (), (), most_files=most).to_json()
