"""Zarr formats: the doors through which documents become the model and back."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

from zarrasync._concurrency.fork import thread_lock
from zarrasync._util import json as _json
from zarrasync._util import plugins
from zarrasync.codecs import (
    BloscCodec,
    BytesCodec,
    CodecChain,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VlenBytesCodec,
    VlenUtf8Codec,
    ZstdCodec,
)
from zarrasync.errors import MetadataError
from zarrasync.formats.draft import SEED, Y2022, Draft, parse_entry_point
from zarrasync.formats.v2 import V2
from zarrasync.formats.v3 import V3, EntryPointFound
from zarrasync.metadata.format import Documents, Format, Kind, RequestedCodecs
from zarrasync.metadata.types import ArrayMetadata, GroupMetadata, Source

__all__ = [
    "CANDIDATES",
    "Documents",
    "EntryPointFound",
    "Format",
    "Kind",
    "RequestedCodecs",
    "by_name",
    "detect",
    "is_document",
    "may_be_zarr",
    "parse",
    "parse_entry_point",
]

CANDIDATES: tuple[Format, ...] = (V3(), V2(), Draft(SEED), Draft(Y2022))
"""The formats that are looked for when nothing is known, the preferred one first.

Those with an ``unread_entry_point`` are looked for last, with another round of requests.
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


def is_document(key: str) -> bool:
    """Whether a key looks like one of a document, in any format."""
    return f"/{key}".endswith(_endings())


def may_be_zarr(key: str) -> bool:
    """Whether a key looks like one of a document or of a chunk, in any format."""
    return is_document(key) or _CHUNK.fullmatch(key) is not None


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


_MOST, _LARGE = 256, 1 << 14
"""Nodes that are remembered, and bytes of documents that are not."""
_PLAIN = (
    BytesCodec, TransposeCodec, VlenUtf8Codec, VlenBytesCodec, GzipCodec, ZstdCodec, BloscCodec, Crc32cCodec
)  # fmt: skip
"""Codecs that are nothing but numbers and words, which arrays may have in common."""


def parse(format_: Format, path: str, documents: Documents) -> ArrayMetadata | GroupMetadata | None:
    """The node that documents tell of, in a format; ``None`` if they tell of none.

    What an array's documents meant the last time is remembered, as one is often opened again and again, or many are
    alike. Nothing that can be changed, or knows what it was used for, is shared.

    Raises:
        MetadataError: If they are not what the format asks for.
    """
    keys = format_.document_keys(path)
    given = tuple(None if (data := documents.get(key)) is None else bytes(data) for key in keys)
    # A draft looks at more than the documents: its entry point, and names.
    if format_.entry_point is not None or sum(len(data) for data in given if data is not None) > _LARGE:
        return format_.parse(path, documents)
    known_as = format_, given, plugins.generation()
    with _lock:
        known = _remembered.pop(known_as, None)
        if known is not None:
            _remembered[known_as] = known  # the last one
    if known is None:
        node = format_.parse(path, documents)
        if isinstance(node, ArrayMetadata) and _may_be_shared(node, given):
            with _lock:
                _remembered[known_as] = node.from_source(None)
                if len(_remembered) > _MOST:
                    del _remembered[next(iter(_remembered))]
        return node
    said = {key: _json.load(data, key) for key, data in zip(keys, given, strict=True) if data is not None}
    return known.from_source(Source(format_.zarr_format, said))


_Given: TypeAlias = tuple[bytes | None, ...]
_remembered: dict[tuple[Format, _Given, int], ArrayMetadata] = {}
"""Arrays without what they were read from, the one that was asked for last at the end."""
_lock = thread_lock()


def _may_be_shared(node: ArrayMetadata, given: _Given) -> bool:
    plain = node.edges is None and not node.transformers and _is_plain(node.codecs)
    return plain and node.source is not None and len(node.source.documents) == len(given) - given.count(None)


def _is_plain(chain: CodecChain) -> bool:
    return all(
        _is_plain(codec.codecs) and _is_plain(codec.index_codecs)
        if type(codec) is ShardingCodec
        else type(codec) in _PLAIN
        for codec in chain.codecs
    )


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
