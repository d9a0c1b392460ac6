"""``cast_value`` (zarr-extensions): numbers stored as another data type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec, Codec
from zarrasync.codecs.configuration import check_members
from zarrasync.codecs.elements import is_real_number, transform_elements
from zarrasync.codecs.rounding import MODES, cast
from zarrasync.codecs.spec import Array, ArraySpec
from zarrasync.errors import MetadataError
from zarrasync.model.dtypes import DataType, from_json, to_json
from zarrasync.model.fill_values import fill_from_json, is_float

__all__ = ["CastValueCodec"]

_ScalarMap: TypeAlias = tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class CastValueCodec(ArrayArrayCodec):
    """``cast_value``: numbers converted to another data type.

    See "cast_value" in zarr-extensions.

    Attributes:
        data_type: The data type that is stored.
        rounding: ``"nearest-even"``, ``"towards-zero"``, ``"towards-positive"``, ``"towards-negative"`` or
            ``"nearest-away"``.
        out_of_range: ``"clamp"``, ``"wrap"``, or ``None`` to raise an error for values beyond the range of the type.
        encode_map: Pairs of values that are converted to each other, as in documents.
        decode_map: The same for decoding.
    """

    name = "cast_value"
    data_type: DataType
    rounding: str = "nearest-even"
    out_of_range: str | None = None
    encode_map: _ScalarMap = field(default=(), hash=False)
    decode_map: _ScalarMap = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if self.rounding not in MODES:
            raise ValueError(f"rounding must be one of {', '.join(MODES)}; found {self.rounding!r}")
        if self.out_of_range not in (None, "clamp", "wrap"):
            raise ValueError(f"out_of_range must be 'clamp' or 'wrap', found {self.out_of_range!r}")
        if not is_real_number(self.data_type):
            raise ValueError(f"numbers cannot be stored as data type {self.data_type.name!r}")
        if self.out_of_range == "wrap" and is_float(self.data_type.numpy):
            raise ValueError("floating-point numbers do not wrap; out_of_range may be 'clamp'")

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        check_members(configuration, "data_type", "rounding", "out_of_range", "scalar_map")
        maps = configuration.get("scalar_map", {})
        check_members(maps, "encode", "decode")
        return cls(
            from_json(configuration["data_type"]),
            configuration.get("rounding", "nearest-even"),
            configuration.get("out_of_range"),
            tuple((a, b) for a, b in maps.get("encode", ())),
            tuple((a, b) for a, b in maps.get("decode", ())),
        )

    def configuration(self) -> dict[str, Any]:
        members: dict[str, Any] = {"data_type": to_json(self.data_type)}
        if self.rounding != "nearest-even":
            members["rounding"] = self.rounding
        if self.out_of_range is not None:
            members["out_of_range"] = self.out_of_range
        maps = {"encode": self.encode_map, "decode": self.decode_map}
        if any(maps.values()):
            members["scalar_map"] = {name: [list(pair) for pair in pairs] for name, pairs in maps.items() if pairs}
        return members

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if not is_real_number(spec.dtype):
            raise MetadataError(f"codec 'cast_value' takes real numbers, not data type {spec.dtype.name!r}")
        _parse_map(self.encode_map, spec.dtype, self.data_type)
        _parse_map(self.decode_map, self.data_type, spec.dtype)
        fill = np.array([spec.fill_value], spec.dtype.numpy)
        try:
            stored = self._convert(self.encode_map, spec.dtype, self.data_type, fill)
            decoded = self._convert(self.decode_map, self.data_type, spec.dtype, stored)
        except ValueError as error:
            raise MetadataError(
                f"codec 'cast_value' cannot store the fill value {spec.fill_value!r}: {error}"
            ) from error
        if not (decoded[0] == fill[0] or (np.isnan(decoded[0]) and np.isnan(fill[0]))):
            raise MetadataError(f"codec 'cast_value' changes the fill value {spec.fill_value!r} to {decoded[0]!r}")
        return spec.replace(dtype=self.data_type, fill_value=stored[0])

    def _convert(self, scalar_map: _ScalarMap, source: DataType, target: DataType, flat: Array) -> Array:
        is_mapped = np.zeros(flat.shape, bool)
        replacements: list[tuple[Array, Any]] = []
        for key, value in _parse_map(scalar_map, source, target):
            matches = (np.isnan(flat) if np.isnan(key) else flat == key) & ~is_mapped
            is_mapped |= matches
            replacements.append((matches, value))
        # "wrap" concerns integers. On the way back to floats, only rounding can leave their range.
        out_of_range = self.out_of_range
        if is_float(target.numpy) and out_of_range == "wrap":
            out_of_range = "clamp"
        converted = np.zeros(flat.shape, target.numpy)
        converted[~is_mapped] = cast(flat[~is_mapped], source, target, self.rounding, out_of_range)
        for matches, value in replacements:
            converted[matches] = value
        return converted

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        convert = partial(self._convert, self.encode_map, spec.dtype, self.data_type)
        return transform_elements(self, "encode", convert, array, spec.dtype.numpy)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        convert = partial(self._convert, self.decode_map, self.data_type, spec.dtype)
        return transform_elements(self, "decode", convert, array, self.data_type.numpy)


def _parse_map(scalar_map: _ScalarMap, source: DataType, target: DataType) -> list[tuple[Any, Any]]:
    """Return the pairs of a scalar map as values of the data types."""
    aliases = {"+Infinity": "Infinity"}  # used in the specification's example
    return [
        (
            fill_from_json(source, aliases.get(a, a) if isinstance(a, str) else a),
            fill_from_json(target, aliases.get(b, b) if isinstance(b, str) else b),
        )
        for a, b in scalar_map
    ]
