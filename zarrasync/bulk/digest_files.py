"""Digests of the files of a store, read concurrently and in parts, and their comparison with a manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gates import Permits, byte_budget
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute
from zarrasync.bulk.digests import FileDigest, Manifest
from zarrasync.bulk.reports import Finding, Report
from zarrasync.config import Config
from zarrasync.errors import StoreError, ZarrError
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import Request, Store, Value
from zarrasync.transfer.threads import run_jobs

_PART_BYTES = 8 << 20
"""Bytes of a file that are read at a time."""


def prefix_of(path: str) -> str:
    """Return the prefix of the keys of all files below a path."""
    normalized = normalize_path(path)
    return f"{normalized}/" if normalized else ""


async def compare_manifest(store: Store, path: str, expected: Manifest, report: Report, values: Config) -> None:
    """Add an error to a report for each file that is missing, not in a manifest, or different."""
    prefix = prefix_of(path)

    def add(key: str, message: str) -> None:
        report.findings.append(Finding("error", key, "", message))

    found = {key[len(prefix) :] for key in await run_on_store(partial(store.list_prefix, prefix), store)}
    for name in sorted(expected.files.keys() - found):
        add(prefix + name, "is missing: the manifest contains it")
    for name in sorted(found - expected.files.keys()):
        add(prefix + name, "is not in the manifest")
    keys = [prefix + name for name in sorted(expected.files.keys() & found)]
    digests = await digest_files(store, prefix, keys, values, lambda key, error: add(key, str(error)))
    for name, digest in digests.items():
        wanted = expected.files[name]
        if digest.size != wanted.size:
            add(prefix + name, f"has {digest.size:,} bytes, but {wanted.size:,} in the manifest")
        elif digest != wanted:
            add(prefix + name, f"has the MD5 {digest.md5}, but {wanted.md5} in the manifest")


async def digest_files(
    store: Store, prefix: str, keys: Sequence[str], values: Config, on_error: Callable[[str, ZarrError], None]
) -> dict[str, FileDigest]:
    """Return the digests of files by key without the prefix. Those that cannot be read are passed to ``on_error``."""
    digests: dict[str, FileDigest] = {}

    async def digest_one(key: str) -> None:
        try:
            digests[key[len(prefix) :]] = await _digest_file(store, key, values)
        except ZarrError as error:
            on_error(key, error)

    async def on_threads() -> None:
        jobs = (partial(_drive, digest_one, key) for key in keys)
        run_jobs(iter(jobs), values, cancel_flag(), values.pool_size)

    if store.blocking:
        await run_on_store(on_threads, store)
    else:
        await for_each(digest_one, keys, values.concurrency or store.concurrency)
    return digests


def _drive(work: Callable[[str], Any], key: str) -> None:
    drive(work(key))


async def _digest_file(store: Store, key: str, values: Config) -> FileDigest:
    """Return the digest of a file, which is read in parts.

    Raises:
        StoreError: If it does not exist, or is replaced meanwhile.
    """
    md5, size = hashlib.md5(usedforsecurity=False), 0
    first: Value | None = None
    while True:
        async with Permits(byte_budget(values), _PART_BYTES):
            (part,) = await store.fetch([Request(key, size, _PART_BYTES)], versions=True)
            if part is None or (first is not None and part.version != first.version):
                raise StoreError(f"{key!r} in {store!r} was changed while it was read", key=key)
            first = part if first is None else first
            await compute(partial(md5.update, part.data))
        size += len(part.data)
        if len(part.data) < _PART_BYTES or size == part.size:
            return FileDigest(md5.hexdigest(), size)
