"""Values along one axis, with few enough points for a chart. No IO."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.display.presentation import Presentation
from zarrasync.display.values import strict
from zarrasync.errors import SelectionError


def curves_of(presentation: Presentation, width: int, stored: npt.NDArray[Any]) -> list[dict[str, Any]]:
    """Return the curves of stored numbers as JSON, with one point for every ``width`` numbers.

    Args:
        presentation: How stored numbers are shown.
        width: The number of elements of a point. The last point may have fewer.
        stored: Stored numbers along one axis.

    Returns:
        For each curve its ``name``, which is the part of complex numbers and empty for real ones, and its ``values``, or the
        least and the greatest value of each point as ``low`` and ``high``. Missing values are ``None``.

    Raises:
        SelectionError: If they are not numbers.
    """
    if stored.dtype.kind not in "biufc":
        raise SelectionError(f"a chart needs numbers, found {stored.dtype}", shape=stored.shape)
    values = presentation.numbers(stored)
    is_complex = values.dtype.kind == "c"
    parts = {"real part": np.real(values), "imaginary part": np.imag(values)} if is_complex else {"": values}
    return [{"name": name, **_points_of(part, width)} for name, part in parts.items()]


def _points_of(values: npt.NDArray[Any], width: int) -> dict[str, list[Any]]:
    values = values.astype(np.uint8) if values.dtype.kind == "b" else values
    numbers: Any = np.ma.masked_where(np.isnan(values), values)  # integers stay exact
    if width == 1:
        return {"values": strict(numbers.tolist())}
    padded: Any = np.ma.masked_array(np.zeros(-(-len(numbers) // width) * width, numbers.dtype), mask=True)
    padded[: len(numbers)] = numbers
    points = padded.reshape(-1, width)
    return {"low": strict(points.min(axis=1).tolist()), "high": strict(points.max(axis=1).tolist())}
