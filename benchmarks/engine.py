"""The interface of the libraries that are measured."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from workloads import Workload

Box = tuple[slice, ...]


def last_element(values: Any) -> Any:
    return np.asarray(values)[(-1,) * np.ndim(values)]


class Engine:
    """A library. Unsupported tasks raise ``NotImplementedError``.

    Attributes:
        package: The name of its distribution.
        environment: Variables of its process.
    """

    package = ""
    environment: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        """Import the library. Raises ``ImportError`` if it is not installed."""

    @property
    def version(self) -> str:
        return version(self.package)

    def open(self, path: Path, workload: Workload) -> Any:
        """Open an array for reading."""
        raise NotImplementedError

    def open_for_changes(self, path: Path, workload: Workload) -> Any:
        """Open an array for reading and writing."""
        raise NotImplementedError

    def change(self, array: Any, box: Box, values: np.ndarray) -> None:
        """Write a box."""
        array[box] = values

    def in_memory(self, workload: Workload) -> Any:
        """Create an array in the library's memory store, and write all of it."""
        raise NotImplementedError

    def get(self, array: Any, box: Box) -> Any:
        """Read a box."""
        return array[box]

    def touch(self, array: Any, workload: Workload) -> None:
        """Read one element, as the first access may initialize something."""
        self.get(array, tuple(slice(0, 1) for _ in workload.shape))

    def each(self, array: Any, boxes: Sequence[Box], at_once: int) -> list[Any]:
        """Read boxes, some at a time, and return the last element of each."""
        with ThreadPoolExecutor(at_once) as crew:
            return list(crew.map(lambda box: last_element(self.get(array, box)), boxes))

    def element(self, array: Any, index: tuple[int, ...]) -> Any:
        """Read one element."""
        return array[index]

    def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        """Read points."""
        return array.vindex[where]

    def mask(self, array: Any, where: np.ndarray) -> Any:
        """Read where a mask is true."""
        return array.get_mask_selection(where)

    def orthogonal(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        """Read rows and columns."""
        return array.oindex[where]

    def concurrent(self, path: Path, workload: Workload, boxes: Sequence[Box]) -> Any:
        """Read many boxes at once, asynchronously."""
        raise NotImplementedError

    def round_trip(self, source: Path, target: Path, workload: Workload) -> None:
        """Read an array and write it to a new one with the same chunks and codecs, decoding and encoding all of it."""
        raise NotImplementedError

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        """Create the array and write all of it."""
        raise NotImplementedError
