"""``Manifest``: the digests of all files of a hierarchy, and one digest of the whole.

The digest of a directory is the MD5 of a JSON document with the names, sizes and digests of its content, followed by the
number and the size of all files below. The package ``zarr_checksum`` of the DANDI archive defines it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
        directories: dict[str, tuple[list[_Entry], list[_Entry]]] = {"": ([], [])}
        for key, file in self.files.items():
            path, _, name = key.rpartition("/")
            _directory(directories, path)[1].append(_Entry(file.md5, name, file.size, 1))
        for path in sorted(filter(None, directories), key=_depth, reverse=True):  # each after all below it
            parent, _, name = path.rpartition("/")
            directories[parent][0].append(_digest_directory(name, *directories[path]))
        return _digest_directory("", *directories[""]).digest

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


@dataclass(frozen=True)
class _Entry:
    """A file or directory, as a directory contains it."""

    digest: str
    name: str
    size: int
    count: int

    def to_json(self) -> dict[str, Any]:
        return {"digest": self.digest, "name": self.name, "size": self.size}


def _directory(
    directories: dict[str, tuple[list[_Entry], list[_Entry]]], path: str
) -> tuple[list[_Entry], list[_Entry]]:
    """Return the directories and files of a directory. It is added with those above it if it is new."""
    above = path
    while above not in directories:
        directories[above] = ([], [])
        above = above.rpartition("/")[0]
    return directories[path]


def _depth(path: str) -> int:
    return path.count("/") + bool(path)


def _digest_directory(name: str, directories: list[_Entry], files: list[_Entry]) -> _Entry:
    content = {
        "directories": [entry.to_json() for entry in sorted(directories, key=lambda entry: entry.name)],
        "files": [entry.to_json() for entry in sorted(files, key=lambda entry: entry.name)],
    }
    text = json.dumps(content, separators=(",", ":"))
    size = sum(entry.size for entry in (*directories, *files))
    count = sum(entry.count for entry in (*directories, *files))
    md5 = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return _Entry(f"{md5}-{count}--{size}", name, size, count)
