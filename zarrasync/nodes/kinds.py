"""The two kinds of nodes, arrays and groups: their names and the error for a node of the wrong kind."""

from __future__ import annotations

from typing import Literal, TypeAlias

from zarrasync.errors import NodeTypeError
from zarrasync.metadata import ArrayMetadata, GroupMetadata

__all__ = ["KindName", "Metadata", "kind_name", "wrong_kind"]

Metadata: TypeAlias = ArrayMetadata | GroupMetadata
"""The metadata of a node of either kind."""
KindName: TypeAlias = Literal["array", "group"]


def kind_name(metadata: Metadata) -> KindName:
    """Return the name of a node's kind."""
    return "array" if isinstance(metadata, ArrayMetadata) else "group"


def wrong_kind(subject: str, path: str, metadata: Metadata, hint: str = "") -> NodeTypeError:
    """Return the error for an array where a group is expected, or the other way round.

    Args:
        subject: The node as the message names it.
        path: The path of the node.
        metadata: The metadata of the node.
        hint: The end of the message, after "/a is an array".
    """
    kind: KindName = kind_name(metadata)
    article, expected = ("an", "group") if kind == "array" else ("a", "array")
    return NodeTypeError(f"{subject} is {article} {kind}{hint}", path=path, found=kind, wanted=expected)
