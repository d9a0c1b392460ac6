"""Coordinate transformations of OME-Zarr: their matrices, and the coordinates of elements that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrasync.metadata.conventions.meaning import Axis, Link, Reader

Matrix: TypeAlias = npt.NDArray[np.float64]
"""A matrix of shape (outputs, inputs + 1). The last column contains the offsets."""
_NEGLIGIBLE = 1e-12
"""Coefficients below this share of the largest one of a row are rounding errors, as of the cosine of 90 degrees."""
_MOST_TEXT = 160
"""The most characters of a transformation that are shown."""
_DEEPEST = 8
"""The most levels of nested transformations."""
_MOST_AXES = 32
"""The most axes of points, so that matrices of hostile documents stay small."""


@dataclass(frozen=True)
class Transformation:
    """A function from points of one coordinate system to points of another one.

    Attributes:
        matrix: The matrix, or ``None`` if the function is not linear, is stored in an array, or is invalid.
        text: The name, the type and the parameters, for users.
        links: The arrays with parameters.
    """

    matrix: Matrix | None
    text: str = ""
    links: tuple[Link, ...] = field(default=())

    @property
    def outputs(self) -> int | None:
        """The number of axes of the results; ``None`` if it is unknown."""
        return None if self.matrix is None else len(self.matrix)


def read_transformation(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Transformation:
    """Return a transformation, and report parameters that do not fit.

    Args:
        item: The JSON object.
        inputs: The number of axes of its points.
        location: The location of the object.
        reader: Collects deviations.
    """
    return _read(item, inputs, location, reader, 0)


def count_inputs(item: Any, depth: int = 0) -> int:
    """Return the number of axes of a transformation's points according to its parameters; 0 if they do not determine it."""
    if not isinstance(item, Mapping) or depth > _DEEPEST:
        return 0
    kind, value = item.get("type"), item.get(str(item.get("type")))
    parts = item.get("transformations")
    parts = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    match kind:
        case "byDimension":
            axes = [part.get("inputAxes") for part in parts]
            return len({n for numbers in axes if isinstance(numbers, list) for n in numbers if type(n) is int})
        case "sequence":
            return next(filter(None, (count_inputs(part, depth + 1) for part in parts)), 0)
        case "bijection":
            return count_inputs(item.get("forward"), depth + 1) or count_inputs(item.get("inverse"), depth + 1)
        case "affine":
            return len(value[0]) - 1 if isinstance(value, list) and value and isinstance(value[0], list) else 0
        case _:
            return len(value) if isinstance(value, list) else 0


def chain(transformations: Sequence[Transformation]) -> Transformation:
    """Return transformations that are applied one after the other as one."""
    matrix: Matrix | None = None
    for number, item in enumerate(transformations):
        if item.matrix is None or (number and matrix is None):
            matrix = None
        elif matrix is None:
            matrix = item.matrix
        elif item.matrix.shape[1] != len(matrix) + 1:
            matrix = None
        else:
            offset = np.zeros((1, matrix.shape[1]))
            offset[0, -1] = 1
            with np.errstate(all="ignore"):  # coordinates that overflow are unknown
                matrix = item.matrix @ np.vstack([matrix, offset])
    texts = ", ".join(item.text for item in transformations)
    return Transformation(matrix, texts, tuple(link for item in transformations for link in item.links))


def located_axes(axes: Sequence[Axis], matrix: Matrix | None) -> tuple[Axis, ...]:
    """Return the axes of an array whose indices a transformation maps to a coordinate system.

    An axis of the array has coordinates if it alone determines the coordinates along one axis of the system, and no others.

    Args:
        axes: The axes of the coordinate system, without coordinates.
        matrix: The matrix of the transformation; ``None`` if it is unknown.
    """
    if matrix is None or len(matrix) != len(axes):
        return tuple(axes)
    linear = matrix[:, :-1]
    limits = _NEGLIGIBLE * np.abs(linear).max(axis=1, initial=0.0, keepdims=True)
    depends = np.abs(linear) > limits
    located: dict[int, Axis] = {}
    for column in range(linear.shape[1]):
        rows = np.flatnonzero(depends[:, column])
        if len(rows) == 1 and depends[rows[0]].sum() == 1 and np.isfinite(matrix[rows[0]]).all():
            step, origin = float(linear[rows[0], column]), float(matrix[rows[0], -1])
            located[column] = replace(axes[rows[0]], step=step, origin=origin)
    names = {axis.name for axis in located.values()}
    others = [axis for axis in axes if axis.name not in names]
    left = [column for column in range(linear.shape[1]) if column not in located]
    unknown = dict(zip(left, others, strict=True)) if len(left) == len(others) else {}
    return tuple(located.get(column) or unknown.get(column) or Axis("") for column in range(linear.shape[1]))


def check_scale_first(value: Any, location: str, reader: Reader, *, is_single: bool) -> None:
    """Report the transformations of a level unless they are one scale, and then at most one translation.

    Args:
        value: The list of transformations.
        location: The location of the list.
        reader: Collects deviations.
        is_single: Whether the list must have one element, which may be an identity or a sequence, as from version 0.6 on.
    """
    if is_single and isinstance(value, list) and len(value) > 1:
        reader.error(location, f"a level has one transformation, such as a sequence; found {len(value)}")
    kinds = _kinds(value)
    allowed = [["scale"], ["scale", "translation"], *([["identity"]] if is_single else [])]
    if kinds and kinds not in allowed:
        found = ", ".join(map(str, kinds))
        reader.error(location, f"a level has one scale, and then at most one translation; found {found}")


def _kinds(value: Any, depth: int = 0) -> list[Any]:
    """Return the types of transformations, also of those in sequences."""
    kinds: list[Any] = []
    for item in value if isinstance(value, list) and depth < _DEEPEST else ():
        kind = item.get("type") if isinstance(item, Mapping) else None
        kinds += _kinds(item.get("transformations"), depth + 1) if kind == "sequence" else [kind]
    return kinds


# ------------------------------------------------------------------ types of transformations


def _read(item: Mapping[str, Any], inputs: int, location: str, reader: Reader, depth: int) -> Transformation:
    kind = item.get("type")
    name = item.get("name")
    label = f"{name!r}: {kind}" if isinstance(name, str) and name else str(kind)
    if not isinstance(kind, str):
        reader.error(f"{location}.type", "a transformation needs a type, such as 'scale'")
        return Transformation(None, "unknown transformation")
    if not inputs:  # the number of axes is unknown
        return Transformation(None, label)
    if depth > _DEEPEST or inputs > _MOST_AXES:
        limits = f"at most {_DEEPEST} levels of transformations and {_MOST_AXES} axes"
        reader.error(location, f"{limits} are supported; coordinates are unknown")
        return Transformation(None, label)
    if kind in _FIELDS:
        path = reader.path(item, "path", location)
        return Transformation(None, f"{label} {path!r}", _links(path, location))
    if kind in _NESTED:
        found = _NESTED[kind](item, inputs, location, reader, depth + 1)
        return replace(found, text=_short(f"{label} of {found.text}" if found.text else label))
    read = _PARAMETERS.get(kind)
    if read is None:
        reader.warn(location, f"the type of transformation {kind!r} is unknown; coordinates are unknown")
        return Transformation(None, label)
    if kind not in item and isinstance(item.get("path"), str):
        path = reader.path(item, "path", location)
        reader.warn(location, f"the parameters of the {kind} are in the array {path!r}; coordinates are unknown")
        return Transformation(None, f"{label} {path!r}", _links(path, location))
    matrix = read(item, inputs, location, reader)
    parameters = ", ".join(
        (f"{part} " if part != kind else "") + _plain(item[part]) for part in (kind, *_INDICES) if part in item
    )
    return Transformation(matrix, _short(f"{label} {parameters}".strip()))


def _identity(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Matrix | None:
    return np.eye(inputs, inputs + 1)


def _scale(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Matrix | None:
    numbers = reader.numbers(item.get("scale"), inputs, f"{location}.scale")
    if 0 in numbers:
        reader.error(f"{location}.scale", "a scale of 0 is not allowed")
        return None
    return np.hstack([np.diag(numbers), np.zeros((inputs, 1))]) if numbers else None


def _translation(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Matrix | None:
    numbers = reader.numbers(item.get("translation"), inputs, f"{location}.translation")
    return np.hstack([np.eye(inputs), np.array([numbers]).T]) if numbers else None


def _map_axis(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Matrix | None:
    value = item.get("mapAxis")
    if isinstance(value, list) and all(type(n) is int for n in value) and sorted(value) == [*range(inputs)]:
        return np.hstack([np.eye(inputs)[value], np.zeros((inputs, 1))])
    reader.error(f"{location}.mapAxis", f"expected each integer from 0 to {inputs - 1} once, found {_plain(value)}")
    return None


def _project_axis(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Matrix | None:
    dropped = _indices(item.get("droppedInputs", []), inputs, f"{location}.droppedInputs", reader)
    created = item.get("createdOutputs", [])
    count = inputs - len(dropped or ()) + (len(created) if isinstance(created, list) else 0)
    created = _indices(created, count, f"{location}.createdOutputs", reader)
    if not {"droppedInputs", "createdOutputs"} & item.keys():
        reader.error(location, "droppedInputs or createdOutputs must specify at least one axis")
    if dropped is None or created is None:
        return None
    matrix = np.zeros((count, inputs + 1))
    kept = [n for n in range(inputs) if n not in dropped]
    matrix[[n for n in range(count) if n not in created], kept] = 1
    return matrix


def _affine(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Matrix | None:
    return _rows(item.get("affine"), inputs + 1, f"{location}.affine", reader)


def _rotation(item: Mapping[str, Any], inputs: int, location: str, reader: Reader) -> Matrix | None:
    rows = _rows(item.get("rotation"), inputs, f"{location}.rotation", reader)
    if rows is None:
        return None
    if rows.shape != (inputs, inputs):
        reader.error(f"{location}.rotation", f"expected {inputs} rows of {inputs} numbers, found {len(rows)}")
        return None
    if not np.allclose(rows @ rows.T, np.eye(inputs), atol=1e-6) or np.linalg.det(rows) < 0:
        reader.error(
            f"{location}.rotation", "the rows of a rotation must be orthonormal, and its determinant must be 1"
        )
        return None
    return np.hstack([rows, np.zeros((inputs, 1))])


_PARAMETERS: dict[str, Callable[[Mapping[str, Any], int, str, Reader], Matrix | None]] = {
    "identity": _identity,
    "scale": _scale,
    "translation": _translation,
    "mapAxis": _map_axis,
    "projectAxis": _project_axis,
    "affine": _affine,
    "rotation": _rotation,
}
_INDICES = ("droppedInputs", "createdOutputs")
_FIELDS = ("displacements", "coordinates")
"""Transformations whose parameters are an array with a vector for each point."""


# ------------------------------------------------------------------ transformations of transformations


def _sequence(item: Mapping[str, Any], inputs: int, location: str, reader: Reader, depth: int) -> Transformation:
    parts: list[Transformation] = []
    count = inputs
    for place, part in reader.objects(item.get("transformations"), f"{location}.transformations"):
        parts.append(_read(part, count, place, reader, depth))
        count = parts[-1].outputs or count
    return chain(parts)


def _bijection(item: Mapping[str, Any], inputs: int, location: str, reader: Reader, depth: int) -> Transformation:
    """Return the forward transformation."""
    parts: dict[str, Transformation] = {}
    for name in ("forward", "inverse"):
        part = item.get(name)
        if isinstance(part, Mapping):
            count = (parts["forward"].outputs or inputs) if "forward" in parts else inputs
            parts[name] = _read(part, count, f"{location}.{name}", reader, depth)
        else:
            reader.error(f"{location}.{name}", "expected a transformation")
    links = tuple(link for part in parts.values() for link in part.links)
    return replace(parts.get("forward", Transformation(None)), links=links)


def _by_dimension(item: Mapping[str, Any], inputs: int, location: str, reader: Reader, depth: int) -> Transformation:
    """Return transformations of parts of the axes as one of all axes."""
    parts: list[tuple[list[int], list[int], Transformation]] = []
    items = reader.objects(item.get("transformations"), f"{location}.transformations")
    listed = [part.get("outputAxes") for _, part in items]
    count = sum(len(axes) for axes in listed if isinstance(axes, list))
    for place, part in items:
        sources = _indices(part.get("inputAxes"), inputs, f"{place}.inputAxes", reader)
        targets = _indices(part.get("outputAxes"), count, f"{place}.outputAxes", reader)
        inner = part.get("transformation")
        if not isinstance(inner, Mapping):
            reader.error(f"{place}.transformation", "expected a transformation")
        elif sources is not None and targets is not None:
            found = _read(inner, len(sources), f"{place}.transformation", reader, depth)
            if found.outputs not in (None, len(targets)):
                message = f"the transformation has {found.outputs} outputs, but there are {len(targets)} outputAxes"
                reader.error(f"{place}.outputAxes", message)
                found = replace(found, matrix=None)
            parts.append((sources, targets, found))
    are_complete = sorted(n for _, targets, _ in parts for n in targets) == [*range(count)]
    if len(parts) == len(items) and not are_complete:
        reader.error(f"{location}.transformations", "each axis of the output must be in outputAxes exactly once")
    texts = ", ".join(f"{found.text} ({_plain(sources)} to {_plain(targets)})" for sources, targets, found in parts)
    links = tuple(link for _, _, found in parts for link in found.links)
    if not are_complete or len(parts) < len(items):
        return Transformation(None, texts, links)
    matrix = np.zeros((count, inputs + 1))
    for sources, targets, found in parts:
        if found.matrix is None:  # these axes are unknown, the others are not
            matrix[np.ix_(targets, sources)] = np.nan
        else:
            matrix[np.ix_(targets, [*sources, -1])] = found.matrix
    return Transformation(matrix, texts, links)


_NESTED: dict[str, Callable[[Mapping[str, Any], int, str, Reader, int], Transformation]] = {
    "sequence": _sequence,
    "bijection": _bijection,
    "byDimension": _by_dimension,
}


# ------------------------------------------------------------------ values


def _rows(value: Any, columns: int, location: str, reader: Reader) -> Matrix | None:
    """Return the rows of a matrix."""
    if not isinstance(value, list) or not value:
        reader.error(location, f"expected rows of {columns} numbers, found {_plain(value)}")
        return None
    rows = [reader.numbers(row, columns, f"{location}[{number}]") for number, row in enumerate(value)]
    return np.array(rows, np.float64) if all(rows) else None


def _indices(value: Any, count: int, location: str, reader: Reader) -> list[int] | None:
    """Return different numbers of axes."""
    is_list = isinstance(value, list) and all(type(n) is int and 0 <= n < count for n in value)
    if is_list and len({*value}) == len(value):
        return [*value]
    reader.error(location, f"expected different numbers of axes from 0 to {count - 1}, found {_plain(value)}")
    return None


def _links(path: str, location: str) -> tuple[Link, ...]:
    return (Link(path, "array of a transformation", f"{location}.path"),) if path else ()


def _plain(value: Any) -> str:
    """Return numbers and lists as short text."""
    if isinstance(value, list):
        return _short(f"[{', '.join(map(_plain, value[:20]))}]")
    if value is None:
        return "nothing"
    return f"{value:g}" if isinstance(value, float) else _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
