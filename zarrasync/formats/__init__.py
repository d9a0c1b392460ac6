"""Zarr formats: the doors through which documents become the model and back."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import cache, lru_cache

from zarrasync._frozen import freeze
from zarrasync.errors import MetadataError
from zarrasync.formats.base import Documents, Format, Kind, Wanted
from zarrasync.formats.draft import SEED, Y2022, Draft, from_entry
from zarrasync.formats.v2 import V2
from zarrasync.formats.v3 import V3, EntryPointFound
from zarrasync.metadata import ArrayMetadata, GroupMetadata, Source

__all__ = [
    "CANDIDATES",
    "Documents",
    "EntryPointFound",
    "Format",
    "Kind",
    "Wanted",
    "by_name",
    "detect",
    "forget",
    "from_entry",
    "may_be_zarr",
    "parse",
]

CANDIDATES: tuple[Format, ...] = (V3(), V2(), Draft(SEED), Draft(Y2022))
"""The formats that are looked for when nothing is known, the preferred one first.

Those with an ``entry_key`` are looked for last, with another round of requests.
"""

_BY_NAME: dict[int | str, Format] = {format_.zarr_format: format_ for format_ in CANDIDATES}


_CHUNK = re.compile(r"(?:.*/)?(?:c|c?\d[\d.]*|c\.[\d.]+)", re.DOTALL)


@cache
def _endings() -> tuple[str, ...]:
    """How the keys of all formats' documents end."""
    found = set()
    for format_ in CANDIDATES:
        for key in (*format_.document_keys("x"), *format_.document_keys(""), format_.consolidated_key("")):
            _, below, end = (key or "").partition("x")  # behind a node's path
            found.add(end if below else f"/{end or (key or '').rpartition('/')[2]}")
    return tuple(found - {"/"})


def may_be_zarr(key: str) -> bool:
    """Whether a key looks like one of a document or of a chunk, in any format."""
    return f"/{key}".endswith(_endings()) or _CHUNK.fullmatch(key) is not None


def by_name(zarr_format: int | str) -> Format:
    """The format that users call by this name.

    Raises:
        ValueError: If there is none.
    """
    try:
        return _BY_NAME[zarr_format]
    except (KeyError, TypeError):
        known = ", ".join(repr(name) for name in _BY_NAME)
        raise ValueError(f"zarr_format {zarr_format!r} is not known; known are {known}") from None


_REMEMBERED = 1 << 14
"""Bytes of a node's documents that are kept for when others like them are met."""


def parse(format_: Format, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
    """The node that documents tell of, in a format; ``None`` if they tell of none.

    Where many arrays are opened, or one again and again, most documents are like others that were met before.

    Raises:
        MetadataError: If they are not what the format asks for.
    """
    keys = format_.document_keys(path)
    given = tuple(None if (data := documents.get(key)) is None else bytes(data) for key in keys)
    # A draft looks at more than the documents: its entry point, and names.
    if format_.entry is not None or sum(len(data) for data in given if data is not None) > _REMEMBERED:
        return format_.parse(path, documents)
    try:
        node = _remembered(format_, given)
    except MetadataError:
        return format_.parse(path, documents)  # for a message with the right keys
    if node is None or node.source is None:
        return node
    names = dict(zip(format_.document_keys(_ANYWHERE), keys, strict=True))
    found = {names[key]: document for key, document in node.source.documents.items()}
    return node.from_source(Source(node.source.zarr_format, found))


_ANYWHERE = "x"


@lru_cache(maxsize=256)
def _remembered(format_: Format, given: tuple[bytes | None, ...]) -> ArrayMetadata | GroupMetadata | None:
    node = format_.parse(_ANYWHERE, dict(zip(format_.document_keys(_ANYWHERE), given, strict=True)))
    if node is None or node.source is None:
        return node
    return node.from_source(Source(node.source.zarr_format, freeze(dict(node.source.documents))))


def forget() -> None:
    """Parse documents anew: what their names mean has changed."""
    _remembered.cache_clear()


def detect(
    path: str, documents: Documents, candidates: Sequence[Format]
) -> tuple[Format, ArrayMetadata | GroupMetadata] | None:
    """The format and the node that documents tell of; the first of several candidates wins, with a warning.

    Raises:
        MetadataError: If a document is there but wrong.
    """
    found: list[tuple[Format, ArrayMetadata | GroupMetadata]] = []
    for candidate in candidates:
        try:
            node = parse(candidate, path, documents)
        except MetadataError:
            if found:
                continue  # a complete node of the preferred format is there
            raise
        if node is not None:
            found.append((candidate, node))
    if len(found) > 1:
        names = " and ".join(str(format_.zarr_format) for format_, _ in found)
        warnings.warn(
            f"{path or 'the root'} has documents of Zarr formats {names}; "
            f"format {found[0][0].zarr_format} is used (zarr_format= chooses another)",
            stacklevel=2,
        )
    return found[0] if found else None
