"""The supported formats, and detection of the format of documents and keys."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import cache

from zarrasync.errors import MetadataError
from zarrasync.formats.draft import Draft
from zarrasync.formats.draft_dialects import SEED, Y2022
from zarrasync.formats.parsed_cache import parse
from zarrasync.formats.v2 import V2
from zarrasync.formats.v3 import V3
from zarrasync.metadata.format import Documents, Format
from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata

CANDIDATES: tuple[Format, ...] = (V3(), V2(), Draft(SEED), Draft(Y2022))
"""The formats to look for if the format is not specified, in order of preference.

The draft is last: its hierarchy begins with the document ``zarr.json``, which takes another round of requests.
"""
SOURCES = ".sources"
"""Name of the value next to the chunks of an array that records the files from which they were ingested."""
_BY_NAME: dict[int | str, Format] = {format_.zarr_format: format_ for format_ in CANDIDATES}
_CHUNK_OF_NODE = re.compile(r"(.*?)/(?:c|c?\d+|c[./]\d+)(?:[./]\d+)*", re.DOTALL)
_CHUNK_KEY = re.compile(r"(?:.*/)?(?:c|c?\d[\d.]*|c\.[\d.]+)", re.DOTALL)


def by_name(zarr_format: int | str) -> Format:
    """Return the format with a name.

    Raises:
        ValueError: If the name is unknown.
    """
    try:
        return _BY_NAME[zarr_format]
    except (KeyError, TypeError):
        names = ", ".join(repr(name) for name in _BY_NAME)
        raise ValueError(f"zarr_format must be one of {names}; found {zarr_format!r}") from None


@cache
def _document_suffixes() -> tuple[str, ...]:
    """Return the suffixes of the keys of documents in all formats."""
    suffixes = set()
    for format_ in CANDIDATES:
        for key in (*format_.document_keys("x"), *format_.document_keys(""), format_.consolidated_key("")):
            _, is_below_node, suffix = (key or "").partition("x")
            suffixes.add(suffix if is_below_node else f"/{suffix or (key or '').rpartition('/')[2]}")
    return tuple(suffixes - {"/"})


def is_document(key: str) -> bool:
    """Return whether a key may belong to a document in any format."""
    return f"/{key}".endswith(_document_suffixes())


def may_be_zarr(key: str) -> bool:
    """Return whether a key may belong to a document or a chunk in any format, or records from which files an array comes."""
    return is_document(key) or key.rpartition("/")[2] == SOURCES or _CHUNK_KEY.fullmatch(key) is not None


def likely_node(key: str) -> str | None:
    """Return the path of the node that a document or a chunk with a key would belong to, or ``None`` for other keys.

    Only for formats that keep documents and chunks of a node below its path.
    """
    if is_document(key):
        return key.rpartition("/")[0]
    match = _CHUNK_OF_NODE.fullmatch(key)
    return None if match is None else match[1]


def detect(
    path: str, documents: Documents, candidates: Sequence[Format]
) -> tuple[Format, ArrayMetadata | GroupMetadata] | None:
    """Return the format and the metadata of the node that documents describe.

    If several formats match, the first one is used, with a warning.

    Raises:
        MetadataError: If a document is invalid.
    """
    matches: list[tuple[Format, ArrayMetadata | GroupMetadata]] = []
    for candidate in candidates:
        try:
            node = parse(candidate, path, documents)
        except MetadataError:
            if matches:
                continue  # the node of a preferred format is valid
            raise
        if node is not None:
            matches.append((candidate, node))
    if len(matches) > 1:
        names = " and ".join(str(format_.zarr_format) for format_, _ in matches)
        warnings.warn(
            f"/{path} has documents of Zarr formats {names}; format {matches[0][0].zarr_format} is used. "
            "Pass zarr_format to select another one",
            stacklevel=2,
        )
    return matches[0] if matches else None
