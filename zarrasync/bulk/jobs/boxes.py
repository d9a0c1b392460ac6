"""``Box``: a part of one array that a task writes."""

from __future__ import annotations

from typing import NamedTuple

from zarrasync.indexing.regions import Region

__all__ = ["Box", "Sizes"]


class Box(NamedTuple):
    """A part of one array.

    Attributes:
        array: The path of the array, relative to the node of the plan.
        start: The first index along each axis.
        stop: The index after the last one along each axis.
    """

    array: str
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def region(self) -> Region:
        """The part as slices."""
        return tuple(map(slice, self.start, self.stop))

    def __str__(self) -> str:
        bounds = ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))
        return f"/{self.array}[{bounds}]"


class Sizes(NamedTuple):
    """What a task reads and writes.

    Attributes:
        read: The decoded size of the values that it reads, in bytes.
        written: The decoded size of the values that it writes, in bytes.
        requests: About how many requests it makes.
    """

    read: int
    written: int
    requests: int
