"""The entry point of the draft of format 3, which selects the dialect and the keys of all documents, and members of documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from zarrasync.metadata.document import DocumentChecker
from zarrasync.model.paths import is_key


def refuse_unknown_members(checker: DocumentChecker, members: Iterable[str]) -> None:
    """Add a problem for each member that the specification does not define."""
    for name in checker.document:
        if name not in members:
            checker.add(name, "this version of the specification does not define this member")


def list_member(checker: DocumentChecker, member: str, *, strict: bool) -> list[Any]:
    """Return an optional member that is a list. Without ``strict``, it may also be ``null``."""
    value = checker.document.get(member, [])
    if isinstance(value, list):
        return value
    if value is not None or strict:
        checker.add(member, f"expected a list, found {value!r}")
    return []


def check_extensions(checker: DocumentChecker, *, strict: bool) -> None:
    """Add a problem for each extension that must be understood, because zarrasync supports none."""
    for number, item in enumerate(list_member(checker, "extensions", strict=strict)):
        if not isinstance(item, Mapping) or not isinstance(item.get("extension"), str):
            checker.add(f"extensions[{number}]", f"expected an object with an 'extension', found {item!r}")
        elif item.get("must_understand") is not False:
            checker.add(f"extensions[{number}]", f"the required extension {item['extension']!r} is not supported")


def parse_attributes(checker: DocumentChecker, *, strict: bool) -> dict[str, Any]:
    """Return the attributes. Without ``strict``, they may be missing."""
    value = checker.document.get("attributes")
    return {} if value is None and not strict else dict(checker.attributes(value))


def take_filters(attributes: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Remove the filters that zarr-python stores in an attribute, and return them."""
    filters = attributes.get("filters")
    if not isinstance(filters, list) or not filters:
        return ()
    if not all(isinstance(item, Mapping) and "id" in item for item in filters):
        return ()
    del attributes["filters"]
    return tuple(filters)


SEED = "3-draft"
"""The dialect that the specification defines."""
Y2022 = "3-draft-2022"
"""The older dialect of zarr-python 2, with all keys below ``meta/root`` and ``data/root``."""
ENTRY_POINT_KEY = "zarr.json"
SPECIFICATION = "https://purl.org/zarr/spec/"
_VERSION_URI = re.compile(r"https?://purl\.org/zarr/spec/(?:protocol/)?core/(\d+)\.(\d+)/?")


class EntryPoint(NamedTuple):
    """The content of an entry point document.

    Attributes:
        dialect: ``SEED`` or ``Y2022``.
        suffix: The suffix of the keys of documents.
        document: The parsed document.
    """

    dialect: str
    suffix: str
    document: Mapping[str, Any]


def new_entry_point(dialect: str, suffix: str) -> dict[str, Any]:
    """Return the entry point document of a new store."""
    suffix_member = {"metadata_key_suffix": suffix}
    if dialect == SEED:
        encoding = {"type": "json", **suffix_member}
        return {"zarr_format": f"{SPECIFICATION}core/3.0", "metadata_encoding": encoding, "extensions": []}
    uri = f"{SPECIFICATION}protocol/core/3.0"
    return {"zarr_format": uri, "metadata_encoding": uri, **suffix_member, "extensions": []}


def read_entry_point(data: bytes) -> EntryPoint | None:
    """Parse an entry point document. Return ``None`` for a document of another kind.

    Raises:
        MetadataError: If the document specifies an unsupported version or encoding.
    """
    checker = DocumentChecker(data, ENTRY_POINT_KEY)
    document = checker.document
    uri, encoding = document.get("zarr_format"), document.get("metadata_encoding")
    if not isinstance(uri, str) or "node_type" in document:
        return None
    version = _VERSION_URI.fullmatch(uri)
    if version is None or version[1] != "3":
        checker.add("zarr_format", f"expected the URI of version 3 ({SPECIFICATION}core/3.0), found {uri!r}")
        checker.raise_problems()
        raise AssertionError
    if isinstance(encoding, str):
        dialect = Y2022
        suffix: Any = document.get("metadata_key_suffix", "")
    else:
        dialect = SEED
        suffix = encoding.get("metadata_key_suffix") if isinstance(encoding, Mapping) else None
        if not isinstance(encoding, Mapping) or encoding.get("type") != "json" or "extension" in encoding:
            checker.add("metadata_encoding", f"expected JSON, found {encoding!r}")
        if version[2] == "0":
            checker.require("extensions")
            refuse_unknown_members(checker, ("zarr_format", "metadata_encoding", "extensions"))
    if not isinstance(suffix, str) or not is_key(f"x{suffix}") or "/" in suffix:
        checker.add("metadata_encoding.metadata_key_suffix", f"expected a string such as '.json', found {suffix!r}")
    check_extensions(checker, strict=dialect == SEED)
    checker.raise_problems()
    return EntryPoint(dialect, suffix, document)
