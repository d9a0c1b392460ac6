"""Validation of conventions: attributes, and the nodes that they refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from zarrasync.bulk.reports import Severity
from zarrasync.bulk.validate.hierarchy import Validation
from zarrasync.bulk.validate.libraries import library_violations
from zarrasync.metadata import ArrayMetadata, NodeMetadata
from zarrasync.metadata.conventions import Axis, Level, Meaning, Violation, axes_of, axis_names, meaning_of
from zarrasync.model.paths import join

_TOLERANCE = 0.25
"""How much the extents of levels may differ, because sizes of levels are rounded."""


def check_conventions(validation: Validation) -> None:
    """Report deviations from the conventions that nodes follow."""
    meanings = {path: meaning_of(node.metadata) for path, node in validation.nodes.items()}
    for path, meaning in meanings.items():
        _NodeCheck(validation, path, meaning).run(meanings)


class _NodeCheck:
    """The check of one node.

    Args:
        validation: The validation.
        path: The path of the node.
        meaning: The meaning of its attributes.
    """

    def __init__(self, validation: Validation, path: str, meaning: Meaning) -> None:
        self.validation, self.path, self.meaning = validation, path, meaning
        self.metadata: NodeMetadata = validation.nodes[path].metadata
        self._key, self._prefix = _place_of_attributes(self.metadata, validation.root.format.document_keys(path)[0])

    def add(self, severity: Severity, location: str, message: str) -> None:
        """Add a problem at a location of the attributes."""
        self.validation.add(severity, self._key, message, f"{self._prefix}{location}" if location else "")

    def run(self, meanings: Mapping[str, Meaning]) -> None:
        """Report the deviations of the node."""
        own = self.meaning.violations
        for violation in (*own, *_new(library_violations(self.metadata, self.meaning), own)):
            self.add(violation.severity, violation.location, violation.message)
        if isinstance(self.metadata, ArrayMetadata):
            parent = meanings.get(self.path.rpartition("/")[0]) if self.path else None
            context = (
                parent.for_member(self.path.rpartition("/")[2], self.meaning, is_array=True) if parent else self.meaning
            )
            self._check_array(self.metadata, context.axes)
        if self.validation.is_complete:
            self._check_links(meanings)
            self._check_levels()

    # -------------------------------------------------------------- arrays

    def _check_array(self, metadata: ArrayMetadata, axes: tuple[Axis, ...]) -> None:
        """Report axes of the attributes that the array does not have, or that have another size."""
        listed = self.meaning.axes
        names = axis_names(metadata) or ()
        missing = [axis.name for axis in listed if axis.name and axis.name not in names]
        if missing:
            self.add(
                "error", "", f"no axis of the array has the name {', '.join(map(repr, missing))}: {_shape(metadata)}"
            )
        for axis, size in zip(axes_of(metadata, axes), metadata.shape, strict=True):
            if axis.size not in (None, size):
                message = (
                    f"the attributes specify {axis.size:,} elements along {axis.name!r}, but the array has {size:,}"
                )
                self.add("error", "", message)

    # -------------------------------------------------------------- related nodes

    def _check_links(self, meanings: Mapping[str, Meaning]) -> None:
        """Report references to nodes, or to coordinate systems of nodes, that do not exist."""
        parent = self.path.rpartition("/")[0] if isinstance(self.metadata, ArrayMetadata) else self.path
        for link in self.meaning.links:
            path = join(parent, link.path)
            if path not in self.validation.nodes and path not in self.validation.unreadable:
                severity: Severity = "error" if link.is_required else "note"
                self.add(severity, link.location, f"the {link.kind} /{path} does not exist")
            elif path in meanings and link.system and link.system not in meanings[path].systems:
                known = ", ".join(meanings[path].systems) or "none"
                message = f"the {link.kind} /{path} has no coordinate system {link.system!r}; known: {known}"
                self.add("error", link.location, message)

    def _check_levels(self) -> None:
        """Report levels that do not exist, do not fit the axes, or do not become smaller."""
        arrays: list[tuple[Level, ArrayMetadata]] = []
        for level in self.meaning.levels:
            path = join(self.path, level.path)
            node = self.validation.nodes.get(path)
            if node is None and path not in self.validation.unreadable:
                self.add("error", level.location, f"the level /{path} does not exist")
            elif node is not None and isinstance(node.metadata, ArrayMetadata):
                arrays.append((level, node.metadata))
                self._check_level(level, node.metadata)
        for (finer, before), (level, metadata) in pairwise(arrays):
            if metadata.ndim != before.ndim:
                continue
            if metadata.dtype != before.dtype:
                types = f"{metadata.dtype.name} and {before.dtype.name}"
                self.add(
                    "error", level.location, f"the levels {finer.path} and {level.path} have the data types {types}"
                )
            self._check_sizes((finer, before), (level, metadata))

    def _check_level(self, level: Level, metadata: ArrayMetadata) -> None:
        names, expected = axis_names(metadata), [axis.name for axis in level.axes]
        if self.meaning.is_ordered and expected and len(expected) != metadata.ndim:
            message = f"there are {len(expected)} axes ({', '.join(expected)}), but the level has {_shape(metadata)}"
            self.add("error", level.location, message)
        elif self.meaning.is_ordered and names is not None and names != expected:
            message = f"the axes are {', '.join(expected)}, but the dimension names of the level {_texts(names)}"
            self.add("error", level.location, message)
        elif self.meaning.is_ordered and names is None and self.validation.root.format.has_dimension_names:
            message = f"the level has no dimension names; expected {', '.join(expected)}"
            self.add("warning", level.location, message)
        separator = self.meaning.key_separator
        if separator and metadata.keys.separator != separator:
            message = f"chunk keys must have the separator {separator!r}, found {metadata.keys.separator!r}"
            self.add("error", level.location, message)
        if self.meaning.dtype_kinds and metadata.dtype.numpy.kind not in self.meaning.dtype_kinds:
            self.add("error", level.location, f"labels must be integers, but the level has {metadata.dtype.name}")

    def _check_sizes(self, finer: tuple[Level, ArrayMetadata], coarser: tuple[Level, ArrayMetadata]) -> None:
        """Report a level that is larger than the one before it, or covers another extent."""
        (before, large), (level, small) = finer, coarser
        if self.meaning.is_ordered and any(size > limit for size, limit in zip(small.shape, large.shape, strict=True)):
            message = f"levels must become smaller, but {level.path} has {_shape(small)} after {_shape(large)}"
            self.add("error", level.location, message)
            return
        axes = zip(axes_of(large, before.axes), axes_of(small, level.axes), large.shape, small.shape, strict=True)
        for axis, coarse, size, coarse_size in axes:
            if axis.step is None or coarse.step is None:
                continue
            extent, coarse_extent = abs(axis.step) * size, abs(coarse.step) * coarse_size
            slack = max(_TOLERANCE * extent, 2 * max(abs(axis.step), abs(coarse.step)))
            if abs(extent - coarse_extent) > slack:
                extents = f"{coarse_extent:g}, but {extent:g} in the level {before.path}"
                message = f"step × size is {extents}: the step along {axis.name or 'an axis'!r} does not fit the size"
                self.add("warning", level.location, message)


def _new(violations: Sequence[Violation], known: Sequence[Violation]) -> list[Violation]:
    """Return the violations that are not at, above or below the location of a known one."""
    locations = [violation.location for violation in known]
    return [
        violation
        for violation in violations
        if not any(violation.location.startswith(place) or place.startswith(violation.location) for place in locations)
    ]


def _place_of_attributes(metadata: NodeMetadata, key: str) -> tuple[str, str]:
    """Return the key of the document that contains the attributes, and the location of the attributes in it."""
    for name, document in (metadata.source.documents if metadata.source is not None else {}).items():
        if document == metadata.attributes:
            return name, "$."
        if document.get("attributes") == metadata.attributes:
            return name, "$.attributes."
    return key, "$."


def _shape(metadata: ArrayMetadata) -> str:
    return f"shape {metadata.shape}"


def _texts(names: Sequence[str | None]) -> str:
    return "are " + ", ".join(str(name) for name in names)
