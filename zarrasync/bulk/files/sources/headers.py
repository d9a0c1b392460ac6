"""Headers of source files: the variables, their metadata, and the values of small variables."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync._util.redact import public_url
from zarrasync.bulk.checksum import slabs, value_checksum
from zarrasync.bulk.files.options import FileOptions
from zarrasync.indexing.regions import Region
from zarrasync.metadata.conventions.cf_attributes import MISSING_VALUE, inherited_attributes, parents_of_bounds

SMALL_BYTES = 64 * 1024
"""Values of variables up to this size are read with the headers. Larger ones without rows are compared by digests."""

LARGE_BYTES = 256 << 20
"""The same if they are compared with a tolerance."""

NEEDED = ("coordinates", "bounds", "climatology", "grid_mapping", "formula_terms")
"""Attributes of CF that refer to variables without which the numbers or places of a variable have no meaning."""
RELATED = ("ancillary_variables", "cell_measures")
"""Attributes of CF that refer to other variables about a variable."""

PHONY = "phony_dim_"
"""How the libraries of HDF5 name axes without a name begin."""

_SIGNATURE = re.compile(
    r"(x-amz-|x-goog-|awsaccesskeyid=|googleaccessid=|signature=|expires=|key-pair-id=|policy=|(access_?)?token=|"
    r"(sig|se|st|sp|sv|sr|spr|skoid|sktid|skt|ske|sks|skv)=)",
    re.IGNORECASE,
)
"""Parameters of presigned URLs of S3, Google Cloud Storage, CloudFront and Azure."""

_RECORDED = re.compile(r"[^/\\]*#[0-9a-f]{24}")
"""The name of a file and a digest of its path or URL."""


def is_small(shape: Sequence[int], itemsize: int, small_bytes: int) -> bool:
    """Return whether the values of a variable or array are read together with its metadata. Scalars are always read.

    Args:
        shape: The shape.
        itemsize: The size of an element in bytes; 0 if it varies.
        small_bytes: The largest size of such values.
    """
    return not shape or math.prod(shape) * max(itemsize, 1) <= small_bytes


def references(attributes: Mapping[str, Any], kinds: Iterable[str] = NEEDED) -> set[str]:
    """Return the names of the variables to which attributes of CF refer.

    Args:
        attributes: The attributes of a variable.
        kinds: The names of the attributes that count.
    """
    texts = {kind: attributes.get(kind) for kind in kinds}
    words = [(kind, word) for kind, text in texts.items() if isinstance(text, str) for word in text.split()]
    # The words before colons are terms of formulas and kinds of measures, but grid mappings themselves.
    return {word.rstrip(":") for kind, word in words if kind == "grid_mapping" or not word.endswith(":")}


@dataclass(frozen=True)
class SourceFile:
    """The identity of a source file.

    Attributes:
        url: The absolute path or the URL.
        size: The size in bytes, or ``None`` if it is unknown.
        stamp: The ETag, or the time of the last change. Empty if neither is known.
        identity: By what datasets know the file, if it differs from ``url``: the path without symbolic links, or the recorded
            ``url`` if this process finds the file at another path than the one that made the plan. It does not count in
            comparisons.
    """

    url: str
    size: int | None = None
    stamp: str = ""
    identity: str = field(default="", compare=False)

    def to_json(self) -> list[Any]:
        """Return the identity as JSON values."""
        return [self.url, self.size, self.stamp, *([self.identity] * bool(self.identity))]

    def public(self, root: str | None) -> SourceFile:
        """Return the file without credentials in its URL.

        Args:
            root: The directory from which the path of a local file becomes relative; ``None`` if it stays absolute.
        """
        is_moved = root is not None and "://" not in self.url
        url = os.path.relpath(self.url, root) if is_moved else self.name
        return self if url == self.url else replace(self, url=url, identity=self.recorded.url)

    def under(self, root: str) -> SourceFile:
        """Return the file with an absolute path, if its path is relative to a directory."""
        if "://" in self.url or os.path.isabs(self.url):
            return self
        return replace(self, url=os.path.normpath(os.path.join(root, self.url)))

    @property
    def name(self) -> str:
        """The path, or the URL without its user, password and query, for messages."""
        return public_url(self.url)

    @property
    def short_name(self) -> str:
        """The last part of the name, also of a recorded file."""
        return _base_name(self.url.rpartition("#")[0] if _RECORDED.fullmatch(self.url) else self.url)

    @cached_property
    def recorded(self) -> SourceFile:
        """The identity as it is recorded in a dataset: with a digest of the path or URL, because datasets are published.

        The digest does not depend on signatures, which differ each time, nor on the user and the password.
        """
        known = self.identity or self.url
        return SourceFile(known if _RECORDED.fullmatch(known) else _recorded(known), self.size, self.stamp)


def _recorded(url: str) -> str:
    path, _, query = url.partition("?") if "://" in url else (url, "", "")
    kept = [item for item in query.split("&") if not _SIGNATURE.match(item)]
    identity = "?".join([public_url(path), "&".join(kept)])
    return f"{_base_name(path)}#{hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()}"


def _base_name(url: str) -> str:
    public = public_url(url)
    first = public.partition("::")[0]  # the file in an archive, or a cache, whose file is the last part
    return re.split(r"[/\\]", (first if "://" in first else public).rstrip("/\\"))[-1]


@dataclass(frozen=True, kw_only=True)
class ReaderOptions(FileOptions):
    """How a job opens its files.

    Attributes:
        dim: The dimension along which files are joined. Large variables without it get a digest.
        small_bytes: The largest size of values that are read with the headers.
        preprocess: The name and the digest of a function that changes each file; see ``register_preprocess``.

    The other attributes are inherited from ``FileOptions``. Coordinates with a tolerance are compared by their values.
    """

    dim: str = ""
    small_bytes: int = SMALL_BYTES
    preprocess: str = ""

    def reads_values(self, name: str, dims: Sequence[str], shape: Sequence[int], itemsize: int) -> bool:
        """Return whether the values of a variable are read with the headers: of small ones, and of all labels of rows.

        Args:
            name: The name of the variable.
            dims: The names of its dimensions.
            shape: Its shape.
            itemsize: The size of an element in bytes; 0 if it varies.
        """
        is_label = bool(self.dim) and name == self.dim and tuple(dims) == (self.dim,)
        is_compared = self.coordinate_tolerance > 0 and self.dim not in dims
        return is_label or is_small(shape, itemsize, LARGE_BYTES if is_compared else self.small_bytes)


@dataclass(frozen=True, eq=False)
class VariableHeader:
    """The metadata of a variable in a file.

    Attributes:
        dims: The names of the dimensions.
        shape: The shape.
        dtype: The data type, as ``numpy.dtype.str`` or ``"str"``.
        attributes: The attributes as JSON values.
        chunks: The shape of chunks in the file, or ``None``.
        is_coordinate: Whether the variable is a coordinate.
        values: The values of a small variable; ``None`` for others.
        digest: A digest of the values of a large variable that must be equal in all files; ``None`` for others. It does
            not depend on the order of the dimensions.
        problem: Why the variable cannot be stored; empty if it can.
        is_absent: Whether the file lacks the variable, so that its rows contain the fill value.
        gap: Which of its values the file does not contain, so that they are stored as missing; empty if it has all.
        place: The name of the file or of the destination, for messages.
        is_stored: Whether the variable is an array of the destination.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Any]
    chunks: tuple[int, ...] | None = None
    is_coordinate: bool = False
    values: npt.NDArray[Any] | None = None
    digest: int | None = None
    problem: str = ""
    gap: str = ""
    is_absent: bool = False
    place: str = ""
    is_stored: bool = False

    def order_of(self, dims: Sequence[str | None]) -> tuple[int, ...] | None:
        """Return the axes in the order of some dimensions; ``None`` if these are not a permutation of the variable's own."""
        is_other = len(set(self.dims)) < len(self.dims) or len(dims) != len(self.dims) or set(dims) != set(self.dims)
        return None if is_other else tuple(self.dims.index(str(dim)) for dim in dims)

    def transpose(self, axes: Sequence[int]) -> VariableHeader:
        """Return the variable with its axes in another order. The digest does not depend on it."""
        return replace(
            self,
            dims=tuple(self.dims[axis] for axis in axes),
            shape=tuple(self.shape[axis] for axis in axes),
            chunks=None if self.chunks is None else tuple(self.chunks[axis] for axis in axes),
            values=None if self.values is None else self.values.transpose(axes),
        )


@dataclass(frozen=True, eq=False)
class FileHeader:
    """The metadata of a file.

    Attributes:
        file: The identity of the file.
        variables: The variables by name.
        attributes: The attributes of the dataset as JSON values.
        groups: The groups with variables inside of the one that is read. They are known of the first file only.
        skipped: Variables that the engine has left out because its options allow that, by name, with the reason.
        unread: Further parts of the file that the engine has left out, by name, with the reason.
        error: Why the file cannot be read; ``None`` if it can. It has no variables then.
    """

    file: SourceFile
    variables: Mapping[str, VariableHeader]
    attributes: Mapping[str, Any]
    groups: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    error: Exception | None = None

    @cached_property
    def parents(self) -> Mapping[str, str]:
        """The coordinate of each variable with bounds, by name."""
        return parents_of_bounds({name: variable.attributes for name, variable in self.variables.items()})

    def time_attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of a variable. Bounds inherit the units and the calendar of their coordinate."""
        parent = self.variables.get(self.parents.get(name, ""))
        return inherited_attributes(self.variables[name].attributes, None if parent is None else parent.attributes)

    def row_count(self, dim: str) -> int | None:
        """Return the number of rows along a dimension, or ``None`` if no variable has it."""
        variables = (variable for variable in self.variables.values() if dim in variable.dims)
        return next((variable.shape[variable.dims.index(dim)] for variable in variables), None)

    def linked(self, names: Iterable[str]) -> set[str]:
        """Return the names of the variables that some variables need, and of those that these need, in turn.

        A variable needs the coordinates of its dimensions, and those to which its attributes refer: further coordinates,
        bounds, grid mappings, and terms of formulas.
        """
        found, new = set[str](), {name for name in names if name in self.variables}
        while new:
            variables = [self.variables[name] for name in new]
            found |= new
            needed = {name for own in variables for name in (*own.dims, *references(own.attributes))}
            new = (needed & self.variables.keys()) - found
        return found


# ------------------------------------------------------------------ attributes and data types


def code_attributes(dtype: Any) -> dict[str, Any]:
    """Return the attributes of CF that specify the meaning of an enumeration of netCDF-4; none for other data types."""
    members = (getattr(dtype, "metadata", None) or {}).get("enum")
    if not isinstance(members, Mapping):
        return {}
    names = [re.sub(r"\s+", "_", str(name)) for name in members]
    return {"flag_values": [int(value) for value in members.values()], "flag_meanings": " ".join(names)}


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a data type as headers contain it: ``"str"`` for strings."""
    return "str" if dtype.kind in "OT" else dtype.newbyteorder("=").str


def plain_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as JSON values, without NaN as a missing value: NaN is always missing."""
    values = {str(name): _plain(value) for name, value in attributes.items()}
    if isinstance(missing := values.get(MISSING_VALUE), float) and math.isnan(missing):
        del values[MISSING_VALUE]
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
        return _plain(value[0]) if isinstance(value, list) and len(value) == 1 else _plain(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value


# ------------------------------------------------------------------ digests of large variables


def add_digests(
    header: FileHeader, names: Collection[str], dim: str, read: Callable[[str, Region], npt.NDArray[np.generic]]
) -> FileHeader:
    """Return a header in which large variables without rows have digests.

    Args:
        header: The header.
        names: The names of the variables to compare with other files. Others get no digest.
        dim: The dimension along which files are joined; empty for a single file.
        read: Returns a region of a variable, by its name.
    """
    has_rows = any(dim in variable.dims for variable in header.variables.values())
    large = {name: own for name, own in header.variables.items() if name in names and own.values is None and dim}
    with_digests = {
        name: replace(variable, digest=_digest(name, variable, read))
        for name, variable in large.items()
        if dim not in variable.dims and (has_rows or variable.is_coordinate)
    }
    return replace(header, variables={**header.variables, **with_digests})


def _digest(name: str, header: VariableHeader, read: Callable[[str, Region], npt.NDArray[np.generic]]) -> int:
    digest, itemsize = 0, np.dtype(object if header.dtype == "str" else header.dtype).itemsize
    for region, axes in slabs(header.dims, header.shape, itemsize, header.chunks):
        digest = value_checksum(read(name, region).transpose(axes), digest)
    return digest
