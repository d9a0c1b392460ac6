"""Members that array, group and entry point documents of the draft of format 3 share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zarrasync.metadata.document import DocumentChecker

__all__ = ["check_extensions", "list_member", "parse_attributes", "refuse_unknown_members", "take_filters"]


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
