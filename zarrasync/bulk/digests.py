"""``Manifest``: the digests of all files of a hierarchy, and one digest of the whole.

The digest of a directory is the MD5 of a JSON document with the names, sizes and digests of its content, followed by the
number and the size of all files below. The package ``zarr_checksum`` of the DANDI archive defines it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from zarrasync._concurrency.cancel import cancel_flag
from zarrasync._concurrency.drive import drive
from zarrasync._concurrency.gather import for_each
from zarrasync._concurrency.offload import compute
from zarrasync._concurrency.semaphores import Held, byte_budget
from zarrasync.bulk.reports import Finding, Report
from zarrasync.config import Config
from zarrasync.errors import StoreError, ZarrError
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import Request, Store, Value
from zarrasync.transfer.threads import run_jobs

_KIND = "zarrasync manifest"
_VERSION = 1
_MD5 = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class FileDigest:
    """The digest of one file.

    Attributes:
        md5: The MD5 of its bytes, as 32 hexadecimal digits.
        size: Its size in bytes.
    """

    md5: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The digests of all files below a path of a store.

    MD5 detects accidental changes. It does not detect changes by somebody who wants to hide them.

    Attributes:
        files: The digests by key, relative to the path.
    """

    files: Mapping[str, FileDigest]

    @cached_property
    def digest(self) -> str:
        """The digest of the whole, equal to the result of ``zarr_checksum``."""
        top: dict[str, Any] = {}
        for key, file in self.files.items():
            *above, name = key.split("/")
            directory = top
            for part in above:
                directory = directory.setdefault(f"{part}/", {})
            directory[name] = file
        return _digest_directory(top)[0]

    def dumps(self) -> str:
        """Return the manifest as a JSON document with one file a line."""
        head = {"kind": _KIND, "version": _VERSION, "digest": self.digest}
        files = (f"{json.dumps(key)}: {json.dumps([file.md5, file.size])}" for key, file in sorted(self.files.items()))
        return json.dumps(head)[:-1] + ', "files": {\n' + ",\n".join(files) + "\n}}\n"

    @classmethod
    def loads(cls, text: str | bytes) -> Manifest:
        """Return the manifest that ``dumps`` wrote.

        Raises:
            ValueError: If the document is not a manifest, or was changed.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the manifest is not valid JSON: {error}") from error
        if not isinstance(document, dict) or document.get("kind") != _KIND or document.get("version") != _VERSION:
            raise ValueError(f"the document is not a {_KIND} of version {_VERSION}")
        files = document.get("files")
        if not isinstance(files, dict):
            raise ValueError("the manifest has no object 'files'")
        manifest = cls({key: _parse_file(key, value) for key, value in files.items()})
        if manifest.digest != document.get("digest"):
            raise ValueError("the manifest is damaged: its digest does not match its list of files")
        return manifest


def _parse_file(key: str, value: Any) -> FileDigest:
    if isinstance(value, list) and len(value) == 2:
        md5, size = value
        if isinstance(md5, str) and _MD5.fullmatch(md5) and type(size) is int and size >= 0:
            return FileDigest(md5, size)
    raise ValueError(f"the entry of {key!r} in the manifest must be an MD5 and a size, found {value!r}")


def _digest_directory(directory: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return the digest of a directory, the size of the files below in bytes, and their number.

    Args:
        directory: Digests of files by name, and directories by name with a slash.
    """
    size, count = 0, 0
    content: dict[str, list[dict[str, Any]]] = {"directories": [], "files": []}
    for name, item in sorted(directory.items(), key=lambda pair: pair[0].removesuffix("/")):
        is_file = isinstance(item, FileDigest)
        digest, nbytes, files = (item.md5, item.size, 1) if is_file else _digest_directory(item)
        entry = {"digest": digest, "name": name.removesuffix("/"), "size": nbytes}
        content["files" if is_file else "directories"].append(entry)
        size, count = size + nbytes, count + files
    text = json.dumps(content, separators=(",", ":"))
    md5 = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return f"{md5}-{count}--{size}", size, count


# ------------------------------------------------------------------ files


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
        async with Held(byte_budget(values), _PART_BYTES):
            (part,) = await store.fetch([Request(key, size, _PART_BYTES)], versions=True)
            if part is None or (first is not None and part.version != first.version):
                raise StoreError(f"{key!r} in {store!r} was changed while it was read", key=key)
            first = part if first is None else first
            await compute(partial(md5.update, part.data))
        size += len(part.data)
        if len(part.data) < _PART_BYTES or size == part.size:
            return FileDigest(md5.hexdigest(), size)
