"""Metadata of arrays and groups, and the interface of formats, which convert documents to metadata and back. No IO."""

from __future__ import annotations

from zarrasync.metadata.node_metadata import ArrayMetadata, GroupMetadata, NodeMetadata, SourceDocuments

__all__ = ["ArrayMetadata", "GroupMetadata", "NodeMetadata", "SourceDocuments"]
