"""Ingesting files into many tasks, and journals of datasets with many files."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from zarrasync._concurrency.bridge import run
from zarrasync.bulk.files.request import FilesRequest, run_request
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.stores import resolve

_ARGUMENTS = {item.name for item in fields(FilesRequest)}


def ingest_in_tasks(sources: Any, store: Any, *, concat: str = "time", **arguments: Any) -> FilesReport:
    """Ingest files like ``sync.ingest``, in as many tasks as possible."""
    options = {name: arguments.pop(name) for name in arguments.keys() - _ARGUMENTS}
    request = FilesRequest(sources, store, concat, tasks=1 << 20, options=options, **arguments)
    return run(run_request(request), blocking=True)


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
