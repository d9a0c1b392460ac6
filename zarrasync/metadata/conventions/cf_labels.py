"""Coordinates as labels of a dimension: the positions that labels of users select. No IO."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.errors import LabelError
from zarrasync.indexing.labels import CyclicLabels, Interval, Labels, Position, is_global
from zarrasync.metadata.conventions.cf_dates import TimeAxis, is_missing_time
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.meaning import CIRCLE, is_longitude


@dataclass(frozen=True)
class Query:
    """What a user selects along a dimension.

    Attributes:
        label: A label, several ones, a mask, or a slice of labels.
        method: How labels are found that do not exist; ``None`` if they must exist. Slices and strings ignore it.
        tolerance: The largest distance of labels; ``None`` for no limit.
        points: The set of points whose labels these are, in any shape; ``None`` if the dimension is selected on its own.
    """

    label: Any
    method: str | None = None
    tolerance: Any = None
    points: Hashable = None


@dataclass(frozen=True, eq=False)
class Coordinate:
    """The labels of a dimension.

    Attributes:
        name: The name of the coordinate.
        labels: The labels as numbers or strings.
        times: The times that these numbers stand for; ``None`` for other coordinates.
    """

    name: str
    labels: Labels
    times: TimeAxis | None = None

    @classmethod
    def of(cls, name: str, encoding: CFEncoding, stored: npt.NDArray[Any]) -> Coordinate:
        """Return the coordinate that stored numbers or strings stand for.

        Raises:
            CodecError: If times cannot be decoded.
            LabelError: If its elements are neither numbers nor strings.
        """
        if encoding.times is not None or stored.dtype.kind in "mM":
            times = TimeAxis.of(encoding, stored, name)
            return cls(name, Labels(times.values, name, times.missing, times.show), times)
        values = encoding.decode(stored)
        if values.dtype.kind == "b":
            values = values.astype(np.uint8)
        if values.dtype.kind in "OSU":
            values = _as_strings(name, values)
        if values.dtype.kind not in "iufT":
            raise LabelError(
                f"the coordinate {name!r} of {values.dtype} contains neither numbers nor strings", name=name
            )
        labels = Labels(values, name)
        if is_longitude(encoding.unit, {}) and is_global(labels, CIRCLE):
            labels = CyclicLabels(values, name)
        return cls(name, labels)

    def locate(self, query: Query) -> Position:
        """Return the positions that a query selects, in the shape of labels of points.

        Raises:
            LabelError: If a label does not exist, or has another type than the coordinate.
            ValueError: If there is a tolerance without a method.
        """
        if query.points is not None:
            found = self.locate(replace(query, label=query.label.ravel(), points=None))
            return np.asarray(found).reshape(query.label.shape)
        label = _element(query.label)
        if isinstance(label, slice):
            return self._slice(label)
        if self.labels.values.dtype.kind == "T":  # strings are not near others
            query = Query(label)
        if query.tolerance is not None and query.method is None:
            raise ValueError(f"the tolerance of {self.name!r} needs a method, such as method='nearest'")
        tolerance = None if query.tolerance is None else self._tolerance(query.tolerance)
        if np.ndim(label) == 0 or isinstance(label, str):
            return self._scalar(label, query.method, tolerance)
        items = (
            np.asarray(label)
            if self.times is None or np.asarray(label).dtype.kind in "bmM"
            else np.array(label, object)
        )
        if items.ndim != 1:
            raise LabelError(
                f"labels of {self.name!r} must have at most one dimension, found {items.ndim}", name=self.name
            )
        if items.dtype.kind == "b":
            if len(items) != len(self.labels):
                raise LabelError(
                    f"a mask of {self.name!r} needs {len(self.labels):,} elements, found {len(items):,}", name=self.name
                )
            return np.flatnonzero(items)
        keys = self.times.keys(items) if self.times is not None else self._values(items)
        return self.labels.find(keys, query.method, tolerance)

    def _scalar(self, label: Any, method: str | None, tolerance: Any) -> Position:
        if method is None and self.times is not None and self.times.is_partial(label):
            return self.labels.within(self.times.interval(label))
        if method is None and self.times is not None and is_missing_time(label):
            return self.labels.exact(np.nan)
        key = self._key(label)
        if method is None:
            return self.labels.exact(key)
        return int(self.labels.find(np.array([key], self._dtype(np.asarray(key))), method, tolerance)[0])

    def _slice(self, label: slice) -> Position:
        step = label.step
        if step is not None and (isinstance(step, bool) or not isinstance(step, int | np.integer) or step == 0):
            raise LabelError(
                f"the step of a slice of {self.name!r} is a number of positions, found {step!r}", name=self.name
            )
        start, stop = label.start, label.stop
        if step is not None and step < 0:
            start, stop = stop, start
        position = self.labels.between(self._interval(start), self._interval(stop))
        if step in (None, 1):
            return position
        if not isinstance(position, slice):
            return np.asarray(position)[::step]
        if step > 0:
            return slice(position.start, position.stop, int(step))
        return np.arange(position.start, position.stop)[::step]

    def _interval(self, label: Any) -> Interval | None:
        label = _element(label)
        if label is None:
            return None
        if self.times is not None and isinstance(label, str):
            return self.times.interval(label)
        key = self._key(label)
        return key, key

    def _key(self, label: Any) -> Any:
        return self.times.key(label) if self.times is not None else self._values(np.asarray(label))[()]

    def _tolerance(self, tolerance: Any) -> Any:
        if self.times is not None:
            return self.times.tolerance(tolerance)
        if np.ndim(tolerance) or np.asarray(tolerance).dtype.kind not in "iuf":
            raise LabelError(f"the tolerance of {self.name!r} is a number, found {tolerance!r}", name=self.name)
        return tolerance

    def _values(self, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return labels in a data type that can be compared with the coordinate's, and is as exact."""
        if self.labels.values.dtype.kind == "T":
            if labels.dtype.kind == "S":
                labels = np.char.decode(labels, "utf-8", "surrogateescape")
            if labels.dtype.kind not in "OTU" or not all(isinstance(label, str) for label in labels.flat):
                raise self._wrong_type(labels, "strings")
        elif labels.dtype.kind not in "biuf":
            raise self._wrong_type(labels, "numbers")
        return labels.astype(self._dtype(labels))

    def _dtype(self, labels: npt.NDArray[Any]) -> np.dtype[Any]:
        """Return the data type of labels: floating-point ones are compared in the precision of the coordinate."""
        own = self.labels.values.dtype
        if own.kind not in "iu" or labels.dtype.kind not in "iuf":
            return own
        is_whole = labels.dtype.kind == "f" and (np.abs(labels) < 2.0**63).all() and (labels == np.floor(labels)).all()
        return (
            np.dtype(np.int64) if is_whole else labels.dtype
        )  # integers would lose digits if they were compared as floats

    def _wrong_type(self, labels: npt.NDArray[Any], expected: str) -> LabelError:
        found = labels[()] if not labels.ndim else labels.ravel()[0] if labels.size else labels.dtype
        return LabelError(
            f"the coordinate {self.name!r} contains {expected}, found the label {found!r}", name=self.name
        )


def _element(label: Any) -> Any:
    """Return the element of an array without dimensions, of NumPy or xarray. Other labels are returned as they are."""
    return np.asarray(label)[()] if hasattr(label, "__array__") and np.ndim(label) == 0 else label


def _as_strings(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "surrogateescape")
    if not all(isinstance(value, str) for value in values.flat):
        raise LabelError(f"the coordinate {name!r} contains objects that are not strings", name=name)
    return values.astype(np.dtypes.StringDType())
