"""Plans for writing variables: which values are stored, and in which array. Planning does not touch the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends.zarr import FillValueCoder, encode_zarr_attr_value

from zarrasync.errors import NodeNotFoundError, ShapeError
from zarrasync.formats import Format
from zarrasync.integrations.xarray.encode import (
    applicable_encoding,
    are_lossless,
    encode_like,
    encode_new,
    inherit_encoding,
)
from zarrasync.integrations.xarray.read import FILTERS, Version2Codec
from zarrasync.metadata.conventions import DIMENSIONS
from zarrasync.metadata.conventions.cf_attributes import FILL, without_nan
from zarrasync.metadata.conventions.cf_encode import Lossy
from zarrasync.metadata.create import plan_array

_CREATION = ("chunks", "shards", "compressors", "filters", "serializer", "fill_value", "order", "chunk_key_encoding")
"""Encodings that are parameters of ``create_array``."""
_ENCODINGS = frozenset(
    {
        *_CREATION,
        "compressor",
        FILTERS,
        "write_empty_chunks",
        "dtype",
        "preferred_chunks",
        "coordinates",
        "grid_mapping",
        "dimension_names",
    }
)
"""Valid encodings in addition to the ones that xarray's coders consume."""


@dataclass(frozen=True)
class VariablePlan:
    """The values of a variable to write, and their array.

    Attributes:
        name: The name of the variable.
        encoded: The variable as it is stored.
        options: Parameters of ``create_array`` for a new array.
        updates: Whether the values are written to an existing array. Otherwise a new array is created.
        rows_before: The length of the existing array along the appended dimension; ``None`` without such a dimension.
        write_empty_chunks: Whether to store chunks that contain only the fill value; ``None`` for the default.
    """

    name: str
    encoded: Variable
    options: dict[str, Any]
    updates: bool
    rows_before: int | None
    write_empty_chunks: bool | None


@dataclass(frozen=True)
class Planner:
    """Rules for the variables of one write.

    Attributes:
        format: The format of the group.
        append_dim: The dimension that is extended.
        region: The slices that are written, by dimension. Empty to write all values of existing arrays.
        lossy: What to do with values that an encoding cannot represent.
    """

    format: Format
    append_dim: str | None
    region: Mapping[str, slice] | None
    lossy: Lossy = "error"

    def plan(
        self, name: str, variable: Variable, encoding: Mapping[str, Any] | None, stored: Variable | None
    ) -> VariablePlan:
        """Return the plan for a variable.

        Args:
            name: The name of the variable.
            variable: The variable.
            encoding: The encoding that the caller passed for it; ``None`` for the variable's own.
            stored: The variable of this name in the store.

        Raises:
            ShapeError: If it does not fit the stored variable.
            NodeNotFoundError: If values of existing arrays are written and the variable does not exist.
            ValueError: If the encoding is unknown or cannot be chosen, or the variable has no dimension of the region.
            EncodingError: If an encoding cannot represent a value.
        """
        appends = self.append_dim is not None
        if self.region is not None:
            self._check_region(name, variable, stored)
        if stored is not None and encoding:
            raise ValueError(
                f"{name} is encoded like the existing values; its encoding {dict(encoding)} cannot be chosen; mode='w' "
                "replaces the whole group"
            )
        if stored is None or not (appends or self.region is not None):
            return self._plan_creation(name, variable, encoding, stored)
        return self._plan_update(name, variable, stored)

    # -------------------------------------------------------------- existing arrays

    def _plan_update(self, name: str, variable: Variable, stored: Variable) -> VariablePlan:
        if sorted(map(str, variable.dims)) != sorted(map(str, stored.dims)):
            raise ShapeError(f"{name} has the dimensions {stored.dims} in the store, not {variable.dims}")
        variable = variable.transpose(*stored.dims)
        encoded = encode_like(name, variable, stored, self.lossy)
        if self.region is not None:
            self._check_region_shape(name, encoded, stored, self.region)
        else:
            self._check_append_shape(name, encoded, stored)
        rows_before = stored.sizes.get(self.append_dim)
        return VariablePlan(name, encoded, {}, True, rows_before, None)

    def _check_region(self, name: str, variable: Variable, stored: Variable | None) -> None:
        if stored is None:
            raise NodeNotFoundError(
                f"cannot write into existing arrays: the array {name} does not exist; mode='a' without a region adds "
                "variables"
            )
        if self.region and not set(self.region) & set(map(str, variable.dims)):
            raise ValueError(
                f"{name} has none of the region's dimensions {sorted(self.region)}; drop it before writing"
            )

    def _check_region_shape(self, name: str, encoded: Variable, stored: Variable, region: Mapping[str, slice]) -> None:
        sizes = zip(stored.dims, stored.shape, strict=True)
        shape = tuple(len(range(*region.get(str(dim), slice(None)).indices(n))) for dim, n in sizes)
        if encoded.shape != shape:
            message = (
                f"{name} has shape {encoded.shape}, the region {shape}"
                if region
                else f"{name} has shape {stored.shape} in the store, not {encoded.shape}, and mode='r+' changes no sizes; "
                "append_dim extends a dimension, region writes a part, and mode='w' replaces all variables"
            )
            raise ShapeError(message, found=encoded.shape, wanted=shape)

    def _check_append_shape(self, name: str, encoded: Variable, stored: Variable) -> None:
        sizes = zip(stored.dims, stored.shape, encoded.shape, strict=True)
        if any(dim != self.append_dim and stored_size != size for dim, stored_size, size in sizes):
            action = f"appended along {self.append_dim!r}" if self.append_dim in stored.dims else "written to it"
            raise ShapeError(
                f"{name} has shape {stored.shape}; {encoded.shape} cannot be {action}",
                found=encoded.shape,
                wanted=stored.shape,
            )

    # -------------------------------------------------------------- new arrays

    def _plan_creation(
        self, name: str, variable: Variable, encoding: Mapping[str, Any] | None, stored: Variable | None
    ) -> VariablePlan:
        if stored is not None:
            _check_same_sizes(name, variable, stored)
        variable = variable.copy(deep=False)
        if encoding is not None:
            variable.encoding = dict(encoding)
        elif stored is not None:
            variable.encoding = inherit_encoding(name, variable, stored)
        else:
            variable.encoding = applicable_encoding(variable)
        encoded = encode_new(name, variable, self.lossy)
        _check_known(name, encoding or {}, encoded)
        if self.format.has_undefined_fill and encoding and encoding.get("fill_value") is not None:
            raise ValueError(
                f"the encoding of {name} specifies fill_value, which means missing in Zarr format "
                f"{self.format.zarr_format}; pass it as {FILL}"
            )
        layout = self._layout_options(variable, encoded, is_explicit=bool(encoding))
        options = layout | self._array_options(encoded)
        plan_array(self.format, shape=encoded.shape, **options)  # raises before anything is replaced
        keeps_empty = variable.encoding.get("write_empty_chunks")
        return VariablePlan(name, encoded, options, False, None, None if keeps_empty is None else bool(keeps_empty))

    def _layout_options(self, variable: Variable, encoded: Variable, *, is_explicit: bool) -> dict[str, Any]:
        """Return the parameters of ``create_array`` that a variable's encoding specifies.

        Args:
            variable: The variable with its encoding.
            encoded: The variable as it is stored.
            is_explicit: Whether the caller passed the encoding. Otherwise codecs of format 2 are used only if they
                are lossless, as the values may have changed since they were read.
        """
        encoding = variable.encoding
        options = {key: encoding[key] for key in _CREATION if encoding.get(key) is not None}
        if self.format.has_undefined_fill and not is_explicit and _is_rectilinear(options.get("chunks")):
            del options["chunks"]  # format 2 has chunks of one shape only
        if any(isinstance(codec, Version2Codec) for codec in encoding.get("compressors") or ()):
            options.pop("compressors")  # see below
        elif "compressors" in encoding:  # None for no compression
            options["compressors"] = encoding["compressors"]
        is_v2, compressor = self.format.has_undefined_fill, encoding.get("compressor", ())
        if compressor != () and (is_explicit or (is_v2 and are_lossless(compressor or (), variable.dtype))):
            options["compressors"] = compressor
        filters = encoding.get(FILTERS) if is_v2 and "filters" not in encoding else None
        if filters is not None and are_lossless(filters, encoded.dtype):
            options["filters"] = filters
        blocks = getattr(encoded, "chunks", None)
        if blocks and not options.get("shards"):  # of dask
            options.setdefault("chunks", tuple(max(1, *sizes) for sizes in blocks))
        if not is_v2 and encoded.dtype.kind == "f":  # absent values are missing ones, as in xarray's own engine
            options.setdefault("fill_value", np.nan)
        return options

    def _array_options(self, encoded: Variable) -> dict[str, Any]:
        """Return the parameters of ``create_array`` that follow from values, attributes and dimensions."""
        attributes = json_attributes(without_nan(encoded.attrs))
        fill, dims = encoded.attrs.get(FILL), list(map(str, encoded.dims))
        attributes.pop(FILL, None)
        is_string = encoded.dtype.kind in "OT"
        options: dict[str, Any] = {"dtype": str if is_string else encoded.dtype, "attributes": attributes}
        if self.format.has_undefined_fill:  # there the fill value means missing
            options["fill_value"] = fill
        elif fill is not None:  # xarray cannot encode strings
            is_text = is_string and isinstance(fill, str)
            attributes[FILL] = str(fill) if is_text else FillValueCoder.encode(fill, encoded.dtype)
        if self.format.has_dimension_names:
            options["dimension_names"] = tuple(dims)
        else:
            attributes[DIMENSIONS] = dims
        return options


def _check_same_sizes(name: str, variable: Variable, stored: Variable) -> None:
    """Check that a variable has the dimensions and sizes of the one that it replaces.

    Raises:
        ShapeError: If it does not. The other variables of the store would have to change as well.
    """
    if dict(variable.sizes) != dict(stored.sizes):
        raise ShapeError(
            f"{name} has the sizes {dict(stored.sizes)} in the store, not {dict(variable.sizes)}; append_dim extends "
            "a dimension, region writes a part, and mode='w' replaces all variables",
            found=variable.shape,
            wanted=stored.shape,
        )


def _is_rectilinear(chunks: Any) -> bool:
    return isinstance(chunks, tuple | list) and any(isinstance(sizes, tuple | list) for sizes in chunks)


def _check_known(name: str, encoding: Mapping[str, Any], encoded: Variable) -> None:
    """Check that xarray or ``create_array`` know all encodings that the caller passed."""
    remaining = {key for key, value in encoded.encoding.items() if key != FILL or value is not None}
    if unknown := sorted(set(encoding) & remaining - _ENCODINGS):
        raise ValueError(
            f"{name} has the unknown encoding {unknown[0]!r}; known encodings: {', '.join(sorted(_ENCODINGS))}"
        )


def json_attributes(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Return attributes as JSON values."""
    encode: Any = encode_zarr_attr_value  # untyped
    return {str(name): encode(value) for name, value in attributes.items()}


# ------------------------------------------------------------------ all variables together


def check_append_dim(stored: Mapping[str, Variable], append_dim: str | None) -> None:
    """Check that a dimension to append along exists in a store with variables.

    Raises:
        ValueError: If it does not.
    """
    dims = {str(dim) for variable in stored.values() for dim in variable.dims}
    if stored and append_dim is not None and append_dim not in dims:
        raise ValueError(
            f"append_dim={append_dim!r} is not a dimension of the stored variables; these are {', '.join(sorted(dims))}"
        )


def check_sizes(plans: Sequence[VariablePlan], stored: Mapping[str, Variable], append_dim: str | None) -> None:
    """Check that new arrays have the sizes of those that remain, and that all variables grow to the same length.

    Raises:
        ShapeError: If one does not, so that the dataset could not be opened.
    """
    replaced = {plan.name for plan in plans if not plan.updates}
    rows = {plan.name: plan.encoded.sizes[append_dim] for plan in plans if plan.rows_before is not None}
    after = {
        name: {dim: n + (rows.get(name, 0) if dim == append_dim else 0) for dim, n in variable.sizes.items()}
        for name, variable in stored.items()
        if name not in replaced
    }
    known = {dim: (n, name) for name, sizes in after.items() for dim, n in sizes.items()}
    for plan in plans:
        for dim, n in () if plan.updates else plan.encoded.sizes.items():
            size, other = known.get(dim, (n, ""))
            if size != n:
                raise ShapeError(
                    f"{plan.name} has {n} elements along {dim!r}, but {other} has {size} in the store"
                    f"{' after the append' if dim == append_dim else ''}; mode='w' replaces all variables",
                    found=(n,),
                    wanted=(size,),
                )
    lengths = {name: sizes[append_dim] for name, sizes in after.items() if append_dim in sizes}
    others = sorted(lengths.keys() - rows.keys())
    if rows and others and len(set(lengths.values())) > 1:
        raise ShapeError(
            f"{', '.join(others)} would stay shorter along {append_dim!r} than {', '.join(sorted(rows))}, and the dataset "
            "could not be read; append to all of its variables at once"
        )
