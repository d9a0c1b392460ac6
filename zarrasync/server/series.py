"""Values along one axis, with few enough points for a chart. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.display.presentation import Presentation
from zarrasync.display.values import strict
from zarrasync.errors import SelectionError


@dataclass(frozen=True)
class Curve:
    """Values of one line of a chart.

    Attributes:
        name: The part of complex numbers; empty for real ones.
        low: The least value of each point, masked if all of its values are missing. Integers stay exact.
        high: The greatest value of each point.
    """

    name: str
    low: npt.NDArray[Any]
    high: npt.NDArray[Any]


def curves_of(presentation: Presentation, width: int, stored: npt.NDArray[Any]) -> list[Curve]:
    """Return the curves of stored numbers, with one point for every ``width`` numbers.

    Args:
        presentation: How stored numbers are shown.
        width: The number of elements of a point. The last point may have fewer.
        stored: Stored numbers along one axis.

    Raises:
        SelectionError: If they are not numbers.
    """
    if stored.dtype.kind not in "biufc":
        raise SelectionError(f"a chart needs numbers, found {stored.dtype}", shape=stored.shape)
    values = presentation.numbers(stored)
    if values.dtype.kind != "c":
        return [_curve("", values, width)]
    return [_curve("real part", np.real(values), width), _curve("imaginary part", np.imag(values), width)]


def _curve(name: str, values: npt.NDArray[Any], width: int) -> Curve:
    values = values.astype(np.uint8) if values.dtype.kind == "b" else values
    numbers: Any = np.ma.masked_where(np.isnan(values), values)
    padded: Any = np.ma.masked_array(np.zeros(-(-len(numbers) // width) * width, numbers.dtype), mask=True)
    padded[: len(numbers)] = numbers
    points = padded.reshape(-1, width)
    return Curve(name, points.min(axis=1), points.max(axis=1))


def series_facts(curves: list[Curve], width: int) -> list[dict[str, Any]]:
    """Return curves as JSON: their values, or the least and the greatest value of each point."""
    return [
        {"name": curve.name, "values": strict(curve.low.tolist())}
        if width == 1
        else {"name": curve.name, "low": strict(curve.low.tolist()), "high": strict(curve.high.tolist())}
        for curve in curves
    ]
