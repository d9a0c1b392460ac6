"""Validation of conventions: attributes, the nodes that they refer to, and arrays that share dimensions.

Libraries of conventions, ome-zarr-models and zarr-cm, check the attributes as well if they are installed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal

from zarrasync._util.json import to_plain
from zarrasync.bulk.reports import Severity
from zarrasync.bulk.validate.hierarchy import Validation
from zarrasync.metadata import ArrayMetadata, GroupMetadata, NodeMetadata
from zarrasync.metadata.conventions import Axis, Level, Meaning, Violation, axes_of, axis_names, meaning_of
from zarrasync.model.chunk_keys import ChunkKeyEncoding
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
            above, _, name = self.path.rpartition("/")
            parent = meanings.get(above) if self.path else None
            context = parent.for_member(name, self.meaning, is_array=True) if parent else self.meaning
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
            unknown = ", ".join(map(repr, missing))
            self.add("error", "", f"no axis of the array has the name {unknown}: {_shape(metadata)}")
        for axis, size in zip(axes_of(metadata, axes), metadata.shape, strict=True):
            if axis.size not in (None, size):
                given = f"the attributes specify {axis.size:,} elements along {axis.name!r}"
                self.add("error", "", f"{given}, but the array has {size:,}")

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
                paths, types = f"{finer.path} and {level.path}", f"{metadata.dtype.name} and {before.dtype.name}"
                self.add("error", level.location, f"the levels {paths} have the data types {types}")
            self._check_sizes((finer, before), (level, metadata))

    def _check_level(self, level: Level, metadata: ArrayMetadata) -> None:
        names, expected = axis_names(metadata), [axis.name for axis in level.axes]
        if self.meaning.is_ordered and expected and len(expected) != metadata.ndim:
            message = f"there are {len(expected)} axes ({', '.join(expected)}), but the level has {_shape(metadata)}"
            self.add("error", level.location, message)
        elif self.meaning.is_ordered and names is not None and names != expected:
            message = f"the axes are {', '.join(expected)}, but the dimension names of the level are {', '.join(map(str, names))}"
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

    def is_known(location: str) -> bool:
        return any(location.startswith(place) or place.startswith(location) for place in locations)

    return [violation for violation in violations if not is_known(violation.location)]


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


# ------------------------------------------------------------------ dimensions


_LOOKUPS = 1000
"""Chunks that are looked up one by one, from the last one."""


def check_lengths(validation: Validation) -> None:
    """Report dimensions whose size differs between arrays of a group, as after an interrupted append."""
    lengths: dict[tuple[str, str], dict[int, list[str]]] = {}
    meanings = {path: meaning_of(node.metadata) for path, node in validation.nodes.items()}
    levels = {path: {level.path for level in meaning.levels} for path, meaning in meanings.items()}
    for path, node in validation.nodes.items():
        group, _, name = path.rpartition("/")
        if not isinstance(node.metadata, ArrayMetadata) or not path or group not in validation.nodes:
            continue
        if name in levels[group]:
            continue
        for dim, length in zip(axis_names(node.metadata) or (), node.metadata.shape, strict=False):
            if dim is not None:
                lengths.setdefault((group, dim), {}).setdefault(length, []).append(name)
    for (group, dim), arrays in lengths.items():
        if len(arrays) > 1:
            parts = (f"{length:,} in {', '.join(sorted(names)[:3])}" for length, names in sorted(arrays.items()))
            message = f"arrays have different sizes along {dim!r} ({'; '.join(parts)}); xarray cannot open the group. "
            message += "If an append was interrupted, shrink the longer arrays with resize()"
            validation.add("note", validation.root.format.document_keys(group, GroupMetadata)[0], message)


def check_coordinates(validation: Validation, keys: Collection[str]) -> None:
    """Report coordinates whose last chunks are not stored, as after an interrupted append to a dataset.

    Other arrays may be sparse. But the values of a coordinate differ, so that only one of its chunks can contain nothing
    but the fill value.
    """
    format_, stored = validation.root.format, set(keys)
    for path, node in validation.nodes.items():
        metadata, (_, _, name) = node.metadata, path.rpartition("/")
        if not isinstance(metadata, ArrayMetadata) or metadata.edges is not None or axis_names(metadata) != [name]:
            continue
        prefix, count = format_.chunk_prefix(path), metadata.grid.shape[0]
        present = _stored_chunks(stored, prefix, metadata.keys, count)
        missing = metadata.shape[0] - present * metadata.write_chunks[0]
        if present and missing > 1:
            message = f"the last {missing:,} values of the coordinate are not stored. If an append was interrupted, "
            message += f"write its rows, or remove them: shrink the arrays along {name!r} with resize()"
            validation.add("note", format_.document_keys(path, ArrayMetadata)[0], message)


def _stored_chunks(stored: Collection[str], prefix: str, encoding: ChunkKeyEncoding, count: int) -> int:
    """Return the number of the last stored chunk along one axis, counted from 1; 0 if none is stored."""
    for present in range(count, max(count - _LOOKUPS, 0), -1):
        if prefix + encoding.encode((present - 1,)) in stored:
            return present
    # The size of an array that is not trusted may be any number.
    found = [encoding.decode(key[len(prefix) :], 1) for key in stored if key.startswith(prefix)]
    return max((coords[0] + 1 for coords in found if coords is not None and coords[0] < count), default=0)


# ------------------------------------------------------------------ libraries


_OME_MODELS = {
    "plate": "hcs.HCSAttrs",
    "multiscales": "image.ImageAttrs",
    "well": "well.WellAttrs",
    "labels": "labels.LabelsAttrs",
}
"""The class of ome-zarr-models that validates an object of OME-Zarr metadata."""
_OME_VERSION = re.compile(r"(0\.[4-9])(rc\d+|\.?dev\d+)?")


def library_violations(metadata: NodeMetadata, meaning: Meaning) -> list[Violation]:
    """Return the deviations that the libraries of conventions report.

    Args:
        metadata: The metadata of a node.
        meaning: What conventions specify about the node.
    """
    attributes = metadata.attributes
    violations = []
    if isinstance(attributes.get("zarr_conventions"), list) and _is_installed("zarr_cm"):
        violations += _validate_zarr_conventions(attributes)
    ome = attributes.get("ome")
    holder = ome if isinstance(ome, Mapping) else attributes
    if any(title.startswith("OME-Zarr") for title in meaning.titles) and _is_installed("ome_zarr_models"):
        violations += _validate_ome(holder, "ome." if holder is ome else "")
    return violations


@cache
def _is_installed(name: str) -> bool:
    return find_spec(name) is not None


def _validate_zarr_conventions(attributes: Mapping[str, Any]) -> list[Violation]:
    """Return what zarr-cm reports: the first problem of each convention."""
    zarr_cm = import_module("zarr_cm")
    try:
        revisions = zarr_cm.detect_revisions(attributes)
    except Exception as error:  # its errors have several types
        return [Violation("error", "zarr_conventions", f"{error} (zarr-cm)")]
    violations = []
    for name, revision in revisions.items():
        try:
            zarr_cm.validate_many(attributes, [name])
        except Exception as error:
            words = re.findall(r"'([^']+)'", str(error))
            location = next((word for word in words if word in attributes), "zarr_conventions")
            severity: Literal["error", "warning"] = "warning" if revision is None else "error"
            violations.append(Violation(severity, location, f"{error} (zarr-cm)"))
    return violations


def _validate_ome(ome: Mapping[str, Any], prefix: str) -> list[Violation]:
    """Return what ome-zarr-models reports."""
    version = _OME_VERSION.fullmatch(str(ome.get("version")) if prefix else "0.4")
    if version is None:
        return []
    plain = {**to_plain(ome), "version": version[1]} if prefix else to_plain(ome)
    violations = []
    for name in _OME_MODELS.keys() & ome.keys():
        validate = _ome_validator(version[1], name)
        violations += _problems(validate, plain, prefix) if validate is not None else []
    return violations


@cache
def _ome_validator(version: str, name: str) -> Callable[[Any], Any] | None:
    """Return the function that validates an object of OME-Zarr, or ``None`` if the library does not support it."""
    module, _, model = _OME_MODELS[name].partition(".")
    try:
        found: Any = import_module(f"ome_zarr_models.v{version.replace('.', '')}.{module}")
        return getattr(found, model).model_validate  # type: ignore[no-any-return]  # of an optional package
    except (ImportError, AttributeError):
        return None


def _problems(validate: Callable[[Any], Any], ome: Mapping[str, Any], prefix: str) -> list[Violation]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            validate(ome)
        except Exception as error:
            errors = getattr(error, "errors", None)  # of pydantic
            details: Any = [{"loc": (), "msg": str(error)}] if errors is None else errors()
            found = [(_location(prefix, item["loc"]), item["msg"]) for item in details]
            return [Violation("error", location, f"{text} (ome-zarr-models)") for location, text in found]
    return [Violation("warning", prefix.rstrip("."), f"{item.message} (ome-zarr-models)") for item in caught]


def _location(prefix: str, parts: tuple[Any, ...]) -> str:
    """Return the location of a problem in JSON path notation."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return f"{prefix}{text.lstrip('.')}".rstrip(".")
