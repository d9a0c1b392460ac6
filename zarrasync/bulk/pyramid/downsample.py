"""Reduction of values to a coarser grid: cells of several elements become one element. No IO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from zarrasync.errors import UnsupportedOperation

__all__ = ["METHODS", "Method", "check_method", "coarser_shape", "downsample"]

Method: TypeAlias = Literal["mean", "mode", "nearest", "max", "min"]
Values: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
METHODS: tuple[Method, ...] = get_args(Method)
_KINDS: dict[str, str] = {"mean": "biufc", "max": "biufmM", "min": "biufmM", "mode": "biufmMSUT", "nearest": ""}
"""NumPy's kinds of data types that a method supports; an empty string for all."""
_FLOATS = ("bfloat16", "float8")
"""Beginnings of the names of small floating-point types, whose kind in NumPy is "V"."""


def coarser_shape(shape: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    """Return the shape after a reduction. The last cell along an axis may have fewer elements than the others."""
    return tuple(-(-n // factor) for n, factor in zip(shape, factors, strict=True))


def check_method(method: str, dtype: np.dtype[Any]) -> None:
    """Check that a method can reduce a data type.

    Raises:
        ValueError: If the method is unknown.
        UnsupportedOperation: If it does not support the data type.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; found {method!r}")
    if _KINDS[method] and dtype.kind not in _KINDS[method] and not _is_small_float(dtype):
        raise UnsupportedOperation(f"the method {method!r} cannot reduce {dtype} elements; use 'nearest'")


def downsample(values: Values, factors: Sequence[int], method: Method, missing: Any = None) -> Values:
    """Reduce cells of neighbouring elements to one element each.

    NaN and missing values are left out. A cell without other values becomes one of them. Means of integers are rounded to
    the nearest integer, and halves upwards. If several values are the most frequent ones, ``"mode"`` returns the largest.
    ``"nearest"`` returns the element nearest to the centre of the cell, or the first of them.

    Args:
        values: The values.
        factors: The number of elements of a cell along each axis.
        method: The method.
        missing: The value of missing elements; ``None`` if all elements have values.

    Returns:
        An array of the same data type, whose shape is ``coarser_shape(values.shape, factors)``.
    """
    if method == "nearest":
        return _nearest(values, factors)
    if _is_small_float(values.dtype):
        wide = downsample(values.astype(np.float32), factors, method, None if missing is None else np.float32(missing))
        return wide.astype(values.dtype)
    result = np.empty(coarser_shape(values.shape, factors), values.dtype)
    for source, target, sizes in _whole_cells(values.shape, factors):
        part = values[source]
        cells = [part[offset] for offset in product(*(_offsets(size) for size in sizes))]
        result[target] = cells[0] if len(cells) == 1 else _REDUCERS[method](cells, missing)
    return result


def _nearest(values: Values, factors: Sequence[int]) -> Values:
    for axis, (n, factor) in enumerate(zip(values.shape, factors, strict=True)):
        if factor > 1:
            places = np.arange(-(-n // factor)) * factor + (factor - 1) // 2
            values = values.take(np.minimum(places, n - 1), axis)
    return values


def _whole_cells(
    shape: Sequence[int], factors: Sequence[int]
) -> list[tuple[tuple[slice, ...], tuple[slice, ...], tuple[int, ...]]]:
    """Return the parts of an array in which all cells have the same size: source, target, and size of cells."""
    axes = []
    for n, factor in zip(shape, factors, strict=True):
        whole = n // factor
        parts = [(slice(0, whole * factor), slice(0, whole), factor)] if whole else []
        if n % factor:
            parts.append((slice(whole * factor, n), slice(whole, whole + 1), n % factor))
        axes.append(parts)
    return [
        (tuple(part[0] for part in parts), tuple(part[1] for part in parts), tuple(part[2] for part in parts))
        for parts in product(*axes)
    ]


def _offsets(size: int) -> list[slice]:
    return [slice(offset, None, size) for offset in range(size)]


def _left_out(cells: Sequence[Values], missing: Any) -> list[Mask] | None:
    """Return which elements are missing or NaN, or ``None`` if no element is."""
    masks = [mask for cell in cells if (mask := _is_left_out(cell, missing)) is not None]
    return masks if any(mask.any() for mask in masks) else None


def _is_left_out(values: Values, missing: Any) -> Mask | None:
    """Return which elements are missing or NaN, or ``None`` if no element can be."""
    mask: Mask | None = None
    if values.dtype.kind in "fcmM":
        mask = np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values)
    if missing is None or missing != missing:  # noqa: PLR0124  NaN
        return mask
    is_equal: Mask = values == missing
    return is_equal if mask is None else mask | is_equal


def _count(masks: Sequence[Mask]) -> npt.NDArray[np.int32]:
    """Return the number of elements of each cell that are not left out."""
    counts = np.full(masks[0].shape, len(masks), np.int32)
    for mask in masks:
        counts -= mask
    return counts


# ------------------------------------------------------------------ methods


def _mean(cells: Sequence[Values], missing: Any) -> Values:
    dtype = cells[0].dtype
    if dtype.kind == "b":
        return _mean([cell.astype(np.uint8) for cell in cells], missing).astype(bool)
    masks = _left_out(cells, missing)
    if dtype.kind in "fc":
        return _mean_of_floats(cells, masks)
    if masks is None and (wide := _wide_type(cells)) is not None:
        total = np.add(cells[0], cells[1], dtype=wide)
        for cell in cells[2:]:
            np.add(total, cell, out=total, casting="unsafe")
        total += wide.type(len(cells) // 2)
        means: Values = (total // wide.type(len(cells))).astype(dtype)
        return means
    if dtype.itemsize == 8:
        return _mean_of_long_integers(cells, masks or [np.zeros(cells[0].shape, bool)] * len(cells))
    assert masks is not None
    counts, sums = _count(masks), np.zeros(cells[0].shape, np.float64)  # exact, as sums have less than 53 bits
    for cell, mask in zip(cells, masks, strict=True):
        sums += np.where(mask, 0, cell)
    means = np.floor(sums / np.maximum(counts, 1) + 0.5).astype(dtype)
    return np.where(counts > 0, means, cells[0])


def _wide_type(cells: Sequence[Values]) -> np.dtype[Any] | None:
    """Return a data type for sums of integers, or ``None`` if they may not fit 64 bits."""
    dtype, count = cells[0].dtype, len(cells)
    if dtype.itemsize < 8:
        return np.dtype(f"{dtype.kind}{2 * dtype.itemsize if count < 1 << 4 * dtype.itemsize else 8}")
    limit = int(np.iinfo(dtype).max) // (count + 1)
    fits = all(int(cell.max()) <= limit and int(cell.min()) >= -limit for cell in cells)
    return dtype.newbyteorder("=") if fits else None


def _mean_of_floats(cells: Sequence[Values], masks: Sequence[Mask] | None) -> Values:
    dtype = cells[0].dtype
    weight = dtype.type(1 / len(cells))
    with np.errstate(all="ignore"):
        if masks is None:
            total = np.add(cells[0], cells[1])
            for cell in cells[2:]:
                np.add(total, cell, out=total)
            total *= weight
            if np.isfinite(total).all():
                return total
            parts = [cell * weight for cell in cells]  # the sum may overflow although the mean does not
            return np.asarray(sum(parts[1:], parts[0]), dtype)
        counts = _count(masks)
        shares, total = np.maximum(counts, 1).astype(dtype), np.zeros(cells[0].shape, dtype)
        for cell, mask in zip(cells, masks, strict=True):
            total += np.where(mask, 0, cell) / shares
        return np.where(counts > 0, total, cells[0])


def _mean_of_long_integers(cells: Sequence[Values], masks: Sequence[Mask]) -> Values:
    """Return means of 64-bit integers without overflow, from quotients and remainders."""
    dtype, counts = cells[0].dtype.newbyteorder("="), _count(masks)
    divisor = np.maximum(counts, 1).astype(dtype)
    whole, rest = np.zeros(cells[0].shape, dtype), np.zeros(cells[0].shape, dtype)
    for cell, mask in zip(cells, masks, strict=True):
        quotient, remainder = np.divmod(cell, divisor)
        whole += np.where(mask, dtype.type(0), quotient)
        rest += np.where(mask, dtype.type(0), remainder)
    whole += (rest + divisor // dtype.type(2)) // divisor
    return np.where(counts > 0, whole, cells[0])


def _extreme(choose: Callable[..., Values]) -> Callable[..., Values]:
    """Return the method that chooses between two elements with a function such as ``numpy.maximum``."""

    def reduce(cells: Sequence[Values], missing: Any) -> Values:
        masks = _left_out(cells, missing)
        result = cells[0].copy()
        if masks is None:
            for cell in cells[1:]:
                choose(result, cell, out=result)
            return result
        is_empty = masks[0].copy()
        for cell, mask in zip(cells[1:], masks[1:], strict=True):
            result = np.where(mask, result, np.where(is_empty, cell, choose(result, cell)))
            is_empty &= mask
        return result

    return reduce


def _mode(cells: Sequence[Values], missing: Any) -> Values:
    is_mixed = np.zeros(cells[0].shape, bool)
    for cell in cells[1:]:
        is_mixed |= cell != cells[0]
    result = cells[0].copy()
    if is_mixed.any():
        result[is_mixed] = _most_frequent(np.stack([cell[is_mixed] for cell in cells], axis=-1), missing)
    return result


def _most_frequent(values: Values, missing: Any) -> Values:
    """Return the most frequent value of each row. In sorted rows, equal values are runs, whose lengths are counted."""
    values = np.sort(values, axis=-1)
    left_out = _is_left_out(values, missing)
    weights = np.ones(values.shape, np.int32) if left_out is None else (~left_out).astype(np.int32)
    best, run = values[:, 0].copy(), weights[:, 0]
    most = run
    for number in range(1, values.shape[1]):
        run = (np.where(values[:, number] == values[:, number - 1], run, 0) + 1) * weights[:, number]
        is_more = run >= np.maximum(most, 1)
        best = np.where(is_more, values[:, number], best)
        most = np.where(is_more, run, most)
    return best


def _is_small_float(dtype: np.dtype[Any]) -> bool:
    return dtype.name.startswith(_FLOATS) or dtype == np.float16


_REDUCERS: dict[str, Callable[[Sequence[Values], Any], Values]] = {
    "mean": _mean,
    "max": _extreme(np.maximum),
    "min": _extreme(np.minimum),
    "mode": _mode,
}
