"""Codecs that reorder or group axes: ``transpose`` and ``reshape``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from zarrasync.codecs.base import ArrayArrayCodec, Codec, check_members
from zarrasync.codecs.spec import Array, ArraySpec
from zarrasync.errors import MetadataError


@dataclass(frozen=True)
class TransposeCodec(ArrayArrayCodec):
    """``transpose``: the axes in another order.

    See "transpose" in the Zarr v3 codec specifications.

    Attributes:
        order: Axis ``order[i]`` of the chunk is axis ``i`` of the stored array.
    """

    name = "transpose"
    brief = True
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        order = tuple(self.order)
        if not all(type(n) is int for n in order) or sorted(order) != list(range(len(order))):
            raise ValueError(f"order must be a permutation of the axes, found {list(order)}")
        object.__setattr__(self, "order", order)

    def configuration(self) -> dict[str, Any]:
        return {"order": list(self.order)}

    @property
    def permutation(self) -> tuple[int, ...]:
        return self.order

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        if len(self.order) != len(spec.shape):
            raise MetadataError(
                f"codec 'transpose' has an order of {len(self.order)} axes, the array has {len(spec.shape)}"
            )
        return spec.replace(shape=tuple(spec.shape[axis] for axis in self.order))

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return array.transpose(self.order)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return array.transpose(inverse)


@dataclass(frozen=True)
class ReshapeCodec(ArrayArrayCodec):
    """``reshape``: the elements in C order with another shape.

    See "reshape" in zarr-extensions.

    Attributes:
        shape: For each axis of the stored array its size, or the axes of the chunk whose product is its size, or (at
            most once) -1 for the remaining size.
    """

    name = "reshape"
    shape: tuple[int | tuple[int, ...], ...]

    def __post_init__(self) -> None:
        entries = tuple(tuple(item) if isinstance(item, list | tuple) else item for item in self.shape)
        for item in entries:
            numbers, least = (item, 0) if isinstance(item, tuple) else ((item,), -1)
            if not all(type(n) is int and n >= least for n in numbers) or item == 0:
                raise ValueError(f"shape may contain sizes, lists of axes and at most one -1; found {item!r}")
        if sum(item == -1 for item in entries) > 1:
            raise ValueError("shape contains more than one -1")
        object.__setattr__(self, "shape", entries)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Codec:
        check_members(configuration, "shape")
        if not isinstance(configuration["shape"], list):
            raise ValueError(f"shape must be a list, found {configuration['shape']!r}")
        return cls(tuple(configuration["shape"]))

    def configuration(self) -> dict[str, Any]:
        return {"shape": [list(item) if isinstance(item, tuple) else item for item in self.shape]}

    def encoded_spec(self, spec: ArraySpec) -> ArraySpec:
        source = spec.shape
        axes = [axis for item in self.shape if isinstance(item, tuple) for axis in item]
        if any(axis >= len(source) for axis in axes) or any(b <= a for a, b in pairwise(axes)):
            raise MetadataError(f"codec 'reshape': axes {axes} must be in order and axes of shape {source}")
        sizes = [math.prod(source[axis] for axis in item) if isinstance(item, tuple) else item for item in self.shape]
        fixed_size = math.prod(size for size in sizes if size != -1)
        if -1 in sizes and fixed_size and math.prod(source) % fixed_size == 0:
            sizes[sizes.index(-1)] = math.prod(source) // fixed_size
        if math.prod(sizes) != math.prod(source) or -1 in sizes:
            raise MetadataError(f"codec 'reshape' cannot turn shape {source} into {list(self.shape)}")
        for number, item in enumerate(self.shape):
            if not isinstance(item, tuple) or not item:
                continue
            before, after = math.prod(source[: item[0]]), math.prod(source[item[-1] + 1 :])
            if math.prod(sizes[:number]) != before or math.prod(sizes[number + 1 :]) != after:
                raise MetadataError(
                    f"codec 'reshape': axes {list(item)} of {source} do not keep their place in {sizes}"
                )
        return spec.replace(shape=tuple(sizes))

    def encode(self, array: Array, spec: ArraySpec) -> Array:
        return np.ascontiguousarray(array).reshape(self.encoded_spec(spec).shape)

    def decode(self, array: Array, spec: ArraySpec) -> Array:
        return np.ascontiguousarray(array).reshape(spec.shape)
