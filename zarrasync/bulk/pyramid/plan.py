"""The levels of a pyramid: their shapes, the axes that become coarser, and their paths. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from zarrasync.bulk.pyramid.downsample import Method, coarser_shape
from zarrasync.metadata.conventions import Axis
from zarrasync.metadata.conventions.pyramids import PyramidLevel

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
    return tuple(default if is_reducible else 1 for is_reducible in _reducible(axes))


def _reducible(axes: Sequence[Axis]) -> list[bool]:
    """Return whether each axis is spatial. If no axis is known to be, the last two axes are."""
    is_spatial = [axis.kind == "space" for axis in axes]
    return is_spatial if any(is_spatial) else [number >= len(axes) - 2 for number in range(len(axes))]


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
