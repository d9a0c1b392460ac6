"""``transpose`` (Zarr v3 core codecs): axes in another order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zarrasync.codecs.base import ArrayArrayCodec
from zarrasync.codecs.spec import Array, ArraySpec
from zarrasync.errors import MetadataError

__all__ = ["TransposeCodec"]


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
