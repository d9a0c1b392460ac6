"""The levels of a pyramid, and the reduction of values: cells of several elements become one element. No IO."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.errors import UnsupportedOperation
from zarrasync.metadata.conventions import Axis
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.pyramids import METHODS, Method, PyramidLevel

Values: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
_KINDS: dict[str, str] = {"mean": "biufcmM", "max": "biufmM", "min": "biufmM", "mode": "biufmMSUT", "nearest": ""}
"""NumPy's kinds of data types that a method supports; an empty string for all."""
_OPPOSITES: dict[str, Method] = {"max": "min", "min": "max"}
"""The methods for numbers that become larger where values become smaller."""
_FLOATS = ("bfloat16", "float8")
"""Beginnings of the names of small floating-point types, whose kind in NumPy is "V"."""


def coarser_shape(shape: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    """Return the shape after a reduction. The last cell along an axis may have fewer elements than the others."""
    return tuple(-(-n // factor) for n, factor in zip(shape, factors, strict=True))


def check_method(method: str, encoding: CFEncoding) -> None:
    """Check that a method can reduce numbers with a meaning.

    Raises:
        ValueError: If the method is unknown.
        UnsupportedOperation: If it does not support the data type, or the numbers are codes and it computes new ones.
    """
    dtype = encoding.dtype
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; found {method!r}")
    if _KINDS[method] and dtype.kind not in _KINDS[method] and not _is_small_float(dtype):
        raise UnsupportedOperation(f"the method {method!r} cannot reduce {dtype} elements; use 'nearest'")
    if method == "mean" and encoding.flags is not None:
        raise UnsupportedOperation(
            "the method 'mean' cannot reduce flags: a mean of codes is another code; use 'mode' or 'nearest'"
        )
    if method == "mean" and encoding.is_direction:
        raise UnsupportedOperation(
            "the method 'mean' cannot reduce directions: that of 359 and 1 degrees would be 180; use 'nearest'"
        )


def downsample(values: Values, factors: Sequence[int], method: Method, encoding: CFEncoding | None = None) -> Values:
    """Reduce cells of neighbouring elements to one element each.

    Missing elements are left out. A cell without others becomes the number for missing values of the encoding, or stays
    its first element. Means are rounded to the nearest number of the data type, and halves upwards. A mean that is a
    number for missing values becomes the next valid number. If several numbers are the most frequent ones, ``"mode"``
    returns the largest. ``"nearest"`` returns the element nearest to the centre of the cell, or the first of them.

    Args:
        values: The stored numbers.
        factors: The number of elements of a cell along each axis.
        method: The method. ``max`` and ``min`` compare the values that the numbers stand for.
        encoding: The meaning of the numbers; by default only NaN and NaT are missing.

    Returns:
        An array of the same data type, whose shape is ``coarser_shape(values.shape, factors)``.
    """
    if method == "nearest":
        return _nearest(values, factors)
    encoding = encoding or CFEncoding.from_attributes({}, values.dtype)
    if method in _OPPOSITES and encoding.scale is not None and encoding.scale < 0:
        method = _OPPOSITES[method]
    result = np.empty(coarser_shape(values.shape, factors), values.dtype)
    for source, target, sizes in _whole_cells(values.shape, factors):
        offsets = product(*([slice(first, None, size) for first in range(size)] for size in sizes))
        cells = [values[source][offset] for offset in offsets]
        result[target] = _reduced(cells, method, encoding)
    return result


def _reduced(cells: Sequence[Values], method: Method, encoding: CFEncoding) -> Values:
    """Return the reduced elements of cells, the first of which are in the first array, and so on."""
    numbers = [_numbers(cell, encoding) for cell in cells]
    found = [_is_missing(*pair, encoding) for pair in zip(cells, numbers, strict=True)]
    masks = found if any(mask.any() for mask in found) else None
    reduced = numbers[0] if len(cells) == 1 else _REDUCERS[method](numbers, masks)
    result = _stored(reduced, cells[0].dtype)
    is_empty = np.logical_and.reduce(masks) if masks is not None else None
    if method == "mean" and encoding.may_be_missing and numbers[0].dtype.kind in "iuf":
        is_marked = encoding.is_missing(result) & (result == result)  # means of infinities are NaN
        if is_empty is not None:
            is_marked &= ~is_empty
        if is_marked.any():
            part = [cell[is_marked] for cell in numbers], [mask[is_marked] for mask in masks or ()]
            result[is_marked] = _next_valid(result[is_marked], *part, encoding)
    if is_empty is None:
        return result
    marker = encoding.missing_number
    if marker is None or encoding.is_boolean:
        return np.where(is_empty, cells[0], result)
    empty = np.asarray(marker, encoding.number_dtype.newbyteorder("=")).view(result.dtype)
    return np.where(is_empty, empty, result)


def _numbers(values: Values, encoding: CFEncoding) -> Values:
    """Return stored numbers as numbers that NumPy can add and compare."""
    if values.dtype.kind in "mM":
        return values.view(f"{values.dtype.str[0]}i8")
    if _is_small_float(values.dtype):
        return values.astype(np.float32)
    return values != 0 if encoding.is_boolean else encoding.numbers(values)


def _stored(numbers: Values, dtype: np.dtype[Any]) -> Values:
    """Return numbers in the data type in which they are stored, in native byte order."""
    native = dtype if dtype.kind in "VSUT" else dtype.newbyteorder("=")
    if numbers.dtype.kind in "iufc" and numbers.dtype.itemsize == dtype.itemsize:
        return numbers.astype(numbers.dtype.newbyteorder("="), copy=False).view(native)
    return numbers.astype(native, copy=False)


def _is_missing(values: Values, numbers: Values, encoding: CFEncoding) -> Mask:
    if encoding.is_boolean:
        return np.zeros(values.shape, np.bool_)
    return np.isnan(numbers) if values.dtype.kind == "V" else encoding.is_missing(values)


def _next_valid(means: Values, cells: Sequence[Values], masks: Sequence[Mask], encoding: CFEncoding) -> Values:
    """Return the valid numbers that are next to means that stand for missing values.

    A mean is between two valid numbers, and only the missing numbers can be between it and the next valid one.

    Args:
        means: The rounded means.
        cells: The elements that they are means of.
        masks: Which of them are missing; empty if none is.
        encoding: The meaning of the stored numbers.
    """
    numbers = encoding.numbers(means)
    rests = np.zeros(means.shape)
    for cell, mask in zip(cells, masks or [np.zeros(means.shape, bool)] * len(cells), strict=True):
        rests += np.where(mask, 0.0, cell.astype(np.float64) - numbers)
    found, is_found = numbers.copy(), np.zeros(means.shape, bool)
    above = below = numbers
    for _ in range(len(encoding.missing) + 1):
        above, below = _next(above, 1), _next(below, -1)
        for is_first in (True, False):
            candidates = np.where((rests >= 0) == is_first, above, below)
            is_new = ~is_found & ~encoding.is_missing(candidates.view(means.dtype))
            found[is_new], is_found = candidates[is_new], is_found | is_new
    return found.view(means.dtype)


def _next(numbers: Values, step: int) -> Values:
    one = numbers.dtype.type(1)
    if numbers.dtype.kind == "f":
        return np.asarray(np.nextafter(numbers, one * np.inf * step))
    return np.asarray(numbers + one if step > 0 else numbers - one)


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


def _count(masks: Sequence[Mask]) -> npt.NDArray[np.int32]:
    """Return the number of elements of each cell that are not left out."""
    return np.asarray(len(masks) - sum(mask.astype(np.int32) for mask in masks))


# ------------------------------------------------------------------ methods


def _mean(cells: Sequence[Values], masks: Sequence[Mask] | None) -> Values:
    dtype = cells[0].dtype
    if dtype.kind == "b":
        return _mean([cell.astype(np.uint8) for cell in cells], masks).astype(bool)
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
    return np.floor(sums / np.maximum(counts, 1) + 0.5).astype(dtype)


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
        return total


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
    return whole


def _extreme(choose: Callable[..., Values]) -> Callable[..., Values]:
    """Return the method that chooses between two elements with a function such as ``numpy.maximum``."""

    def reduce(cells: Sequence[Values], masks: Sequence[Mask] | None) -> Values:
        if masks is None:
            return functools.reduce(choose, cells)
        result, is_empty = cells[0], masks[0].copy()
        for cell, mask in zip(cells[1:], masks[1:], strict=True):
            result = np.where(mask, result, np.where(is_empty, cell, choose(result, cell)))
            is_empty &= mask
        return result

    return reduce


def _mode(cells: Sequence[Values], masks: Sequence[Mask] | None) -> Values:
    is_mixed = np.logical_or.reduce([cell != cells[0] for cell in cells[1:]])
    result = cells[0].copy()
    if is_mixed.any():
        left_out = None if masks is None else np.stack([mask[is_mixed] for mask in masks], axis=-1)
        result[is_mixed] = _most_frequent(np.stack([cell[is_mixed] for cell in cells], axis=-1), left_out)
    return result


def _most_frequent(values: Values, left_out: Mask | None) -> Values:
    """Return the most frequent value of each row. In sorted rows, equal values are runs, whose lengths are counted."""
    if left_out is None:
        values, weights = np.sort(values, axis=-1), np.ones(values.shape, np.int32)
    else:
        order = np.argsort(values, axis=-1)
        values = np.take_along_axis(values, order, axis=-1)
        weights = (~np.take_along_axis(left_out, order, axis=-1)).astype(np.int32)
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


_REDUCERS: dict[str, Callable[[Sequence[Values], Sequence[Mask] | None], Values]] = {
    "mean": _mean,
    "max": _extreme(np.maximum),
    "min": _extreme(np.minimum),
    "mode": _mode,
}


# ------------------------------------------------------------------ levels


LevelFactors: TypeAlias = int | Mapping[str, int]
"""The factor of all spatial axes, or factors by the names of axes."""
Factors: TypeAlias = LevelFactors | Sequence[LevelFactors] | None
"""The same factors for all levels, or those from each level to the next; ``None``: 2 along axes with small steps."""
_SMALLEST = 256
"""The extent along each axis below which no more levels are added: one tile of a viewer."""
_ANISOTROPY = 1.5
"""An axis becomes coarser if its step is at most this many times the smallest one."""
_MOST_LEVELS = 64


def plan_levels(
    path: str,
    shape: tuple[int, ...],
    axes: Sequence[Axis],
    count: int | Literal["auto"],
    factors: Factors,
    method: Method,
) -> list[PyramidLevel]:
    """Return the levels of a pyramid, from the finest one on.

    Args:
        path: The path of the finest array in the group of the pyramid.
        shape: Its shape.
        axes: Its axes with their coordinates.
        count: The number of levels, with the finest one; ``"auto"``: until the plane has at most 256 x 256 elements.
        factors: The factors between levels.
        method: The method of the reduction.

    Raises:
        ValueError: If the number of levels or a factor is invalid.
    """
    if count != "auto" and (type(count) is not int or not 1 <= count <= _MOST_LEVELS):
        raise ValueError(f"levels must be 'auto' or a number from 1 to {_MOST_LEVELS}, found {count!r}")
    is_listed = isinstance(factors, Sequence) and not isinstance(factors, str)
    items: Any = factors if is_listed else [factors]
    each = [check_factors(item, axes) for item in items]
    if is_listed and (not each or count not in ("auto", len(each) + 1)):
        raise ValueError(f"levels is {count!r}, but factors lists those of {len(each)} levels after the finest one")
    ones, zeros = (1,) * len(shape), (0.0,) * len(shape)
    levels = [PyramidLevel(path, shape, ones, ones, zeros)]
    while len(levels) < (len(each) + 1 if is_listed else _MOST_LEVELS if count == "auto" else count):
        last, requested = levels[-1], each[len(levels) - 1 if is_listed else 0]
        if count == "auto" and not is_listed and _is_small(last.shape, requested):
            break
        step = _next_factors(last, axes, requested, is_even=factors is None)
        if step == ones and is_listed:
            raise ValueError(
                f"factors[{len(levels) - 1}] would repeat the level of the shape {last.shape}: no axis with a factor above "
                "1 has more than one element; list fewer levels"
            )
        if step == ones:
            break
        levels.append(_coarser(last, step, _path_of(path, len(levels)), method))
    return levels


def check_factors(factors: LevelFactors | None, axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the factor of each axis from one level to the next.

    Raises:
        ValueError: If a factor is not a number of at least 1, or no axis has the name.
    """
    names = [axis.name for axis in axes]
    if isinstance(factors, Mapping):
        unknown = [name for name in factors if name not in names]
        if unknown:
            raise ValueError(f"factors: no axis has the name {unknown[0]!r}; the axes are {', '.join(names)}")
    values: Any = factors.values() if isinstance(factors, Mapping) else [2 if factors is None else factors]
    if not all(type(n) is int and n >= 1 for n in values):
        raise ValueError(
            f"factors must be numbers of at least 1, or a list with those of each level, found {factors!r}"
        )
    if isinstance(factors, Mapping):
        return tuple(factors.get(name, 1) for name in names)
    default = 2 if factors is None else factors
    is_spatial = [axis.kind == "space" for axis in axes]
    if not any(is_spatial):  # the last two axes are the plane
        is_spatial = [number >= len(axes) - 2 for number in range(len(axes))]
    return tuple(default if is_reducible else 1 for is_reducible in is_spatial)


def _is_small(shape: Sequence[int], factors: Sequence[int]) -> bool:
    return all(n <= _SMALLEST for n, factor in zip(shape, factors, strict=True) if factor > 1)


def _next_factors(
    last: PyramidLevel, axes: Sequence[Axis], requested: Sequence[int], *, is_even: bool
) -> tuple[int, ...]:
    """Return the factors to the next level. Axes with one element stay.

    Args:
        last: The level before.
        axes: The axes with the coordinates of the finest level.
        requested: The factor of each axis.
        is_even: Whether axes stay with larger steps than other axes.
    """
    steps = [abs(axis.step or 1.0) for axis in last.axes(axes)]
    active = [factor > 1 and n > 1 for factor, n in zip(requested, last.shape, strict=True)]
    least = min((step for step, is_active in zip(steps, active, strict=True) if is_active), default=1.0)
    limit = _ANISOTROPY * least if is_even else float("inf")
    pairs = zip(requested, steps, active, strict=True)
    return tuple(factor if is_active and step <= limit else 1 for factor, step, is_active in pairs)


def _coarser(last: PyramidLevel, factors: tuple[int, ...], path: str, method: Method) -> PyramidLevel:
    def offset(factor: int) -> float:
        """Return the place of the new element in its cell: the centre, or the element that is kept."""
        return (factor - 1) // 2 if method == "nearest" else (factor - 1) / 2

    shifts = zip(last.shift, last.total, factors, strict=True)
    return PyramidLevel(
        path,
        coarser_shape(last.shape, factors),
        factors,
        tuple(total * factor for total, factor in zip(last.total, factors, strict=True)),
        tuple(shift + total * offset(factor) for shift, total, factor in shifts),
    )


def _path_of(finest: str, number: int) -> str:
    """Return the path of a level: a 0 at the end of a name in the finest one is replaced, or a number is added."""
    parts = re.fullmatch(r"(.*(?<!\d))?0((?:/\D*)?)", finest, re.DOTALL)
    return f"{parts[1] or ''}{number}{parts[2]}" if parts is not None else f"{finest}_{number}"
