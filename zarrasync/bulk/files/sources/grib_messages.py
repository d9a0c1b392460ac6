"""Messages of GRIB files that cfgrib would leave out, or place wrongly, without an error.

cfgrib makes one variable of all messages of a parameter. Keys such as the level and the step become dimensions. Of messages
that differ only in other keys, such as the beginning of an accumulation, it keeps one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from operator import ne
from typing import Any, TypeAlias

import numpy as np

_NAMESPACES = ("mars", "ls", "time", "vertical", "parameter", "geography")
"""Groups of keys that identify a message."""
_FURTHER_KEYS = [
    "stepRange",
    "stepType",
    "topLevel",
    "bottomLevel",
    "perturbationNumber",
    "percentileValue",
    "probabilityTypeName",
    "lowerLimit",
    "upperLimit",
    "typeOfStatisticalProcessing",
    "lengthOfTimeRange",
    "hoursAfterDataCutoff",
    "constituentType",
    "typeOfGeneratingProcess",
    "generatingProcessIdentifier",
    "backgroundProcess",
    "derivedForecast",
    "tileIdentification",
    "centralWaveNumber",
    "satelliteNumber",
    "instrumentType",
    "subCentre",
    "expver",
    "experimentVersionNumber",
    "modelName",
]
"""Keys outside of these namespaces in which messages of one parameter differ."""
_MOST_VALUES = 4
"""The number of keys, and of values of a key, that messages contain."""
_MOST_COMPARED = 20
"""The number of similar messages to which a message that is left out is compared."""

_Number: TypeAlias = Any
"""The offset of a message in its file, or a pair of it and the number of a field in the message."""
_Message: TypeAlias = tuple[Sequence[Any], _Number]
"""A message: the values of the keys that cfgrib compares, and its number."""


def message_problem(variable: Any) -> str:
    """Return why a variable does not represent all messages of its parameter; an empty string if it does.

    Args:
        variable: A variable of xarray. Those that cfgrib did not read have no problem.
    """
    array = _array_on_disk(variable)
    if array is None:
        return ""
    index = array.index
    if len(grids := index["md5GridSection"]) > 1 and not _are_equal_grids(index, grids):
        return (
            f"its messages have {len(grids)} grids, and cfgrib would give all of them the coordinates of one; "
            f"{_choice('md5GridSection', grids)}"
        )
    lost = list(_lost_messages(index, {ids[0] for ids in array.field_id_index.values()}))
    return _text_of_lost(index, lost) if lost else _scanning_problem(variable)


def missing_messages(variable: Any, coordinates: Mapping[str, Any]) -> str:
    """Return which messages of a variable the file does not contain; an empty string if it contains all.

    cfgrib fills their elements with NaN.

    Args:
        variable: A variable of xarray.
        coordinates: The variables of its dataset by name.
    """
    array = _array_on_disk(variable)
    if array is None:
        return ""
    sizes = array.shape[: len(array.shape) - array.geo_ndim]
    missing = [place for place in np.ndindex(*sizes) if place not in array.field_id_index]
    if not missing:
        return ""

    def label(dim: str, number: int) -> str:
        return f"{dim} {coordinates[dim].values[number] if dim in coordinates else number}"

    places = [" and ".join(map(label, variable.dims, place)) for place in missing[:_MOST_VALUES]]
    more = f" and {len(missing) - _MOST_VALUES:,} more" if len(missing) > _MOST_VALUES else ""
    return (
        f"the file has no messages for {len(missing):,} of {math.prod(sizes):,} combinations of {', '.join(variable.dims[: len(sizes)])}, "
        f"whose values are stored as missing: {'; '.join(places)}{more}"
    )


def damaged_messages(path: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the damaged messages that cfgrib leaves out because its option ``errors`` allows that, with the reason.

    Args:
        path: The path of a GRIB file.
        options: The options of cfgrib.
    """
    if options.get("errors", "raise") == "raise":
        return {}
    from cfgrib.messages import FileStream  # pyright: ignore[reportMissingImports]  # optional

    found: dict[str, str] = {}
    stream, number = FileStream(path, errors="raise"), 0
    with open(path, "rb") as file:
        while True:
            begin = file.tell()
            try:
                stream.message_from_file(file, errors="raise")
            except EOFError:
                return found
            except Exception as error:  # of several classes of eccodes
                found[f"message {number}"] = (
                    f"it is damaged ({type(error).__name__}), and the option errors of cfgrib allows that"
                )
                if file.tell() == begin:
                    return found
            number += 1


def skipped_parameters(dataset: Any, path: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters that cfgrib left out of a dataset, by name, with the reason.

    It leaves parameters out if its option ``errors`` allows that, because their coordinates differ from the coordinates of others.

    Args:
        dataset: A dataset that cfgrib opened.
        path: The path of the file.
        options: The options of cfgrib.
    """
    if options.get("errors", "raise") == "raise" or "GRIB_edition" not in dataset.attrs:
        return {}
    from cfgrib.dataset import open_fileindex  # pyright: ignore[reportMissingImports]  # optional
    from cfgrib.messages import FileStream  # pyright: ignore[reportMissingImports]

    filters = dict(options.get("filter_by_keys", {}))
    index = open_fileindex(FileStream(path, errors="ignore"), "", ["paramId", "shortName"], filter_by_keys=filters)
    present = {variable.attrs.get("GRIB_paramId") for variable in dataset.variables.values()}
    names = {number: index.subindex(paramId=number)["shortName"][0] for number in index["paramId"]}
    reason = "its coordinates differ from those of other variables, and the option errors of cfgrib allows that"
    return {str(name): reason for number, name in names.items() if number not in present}


def _array_on_disk(variable: Any) -> Any:
    """Return the messages behind a variable, or ``None`` for variables in memory and of other libraries."""
    data = variable._data  # noqa: SLF001  # other access would read the values
    while data is not None and not hasattr(data, "field_id_index"):
        data = getattr(data, "array", None)
    return data


# ------------------------------------------------------------------ messages that are left out


def _lost_messages(index: Any, kept: set[_Number]) -> Iterator[_Message]:
    """Yield messages that the variable does not contain. Repetitions with the same bytes do not count."""
    for values, numbers in index.iter_index():
        first = numbers[0]
        for number in numbers:
            is_repeated = number != first and first in kept and _bytes_of(index, number) == _bytes_of(index, first)
            if number not in kept and not is_repeated:
                yield values, number


def _bytes_of(index: Any, number: _Number) -> tuple[bytes, int]:
    """Return the bytes of a message, and the number of the field in it."""
    offset, field = number if isinstance(number, tuple) else (number, 0)
    length = int(index.fieldset[number]["totalLength"])
    with open(os.fspath(index.fieldset.path), "rb") as file:
        file.seek(offset)
        return file.read(length), field


def _text_of_lost(index: Any, lost: Sequence[_Message]) -> str:
    """Describe messages that are left out, with the keys in which they differ from the most similar ones."""
    messages = [(values, number) for values, numbers in index.iter_index() for number in numbers]
    values, number = lost[0]
    others = [(sum(map(ne, values, own)), other) for own, other in messages if other != number]
    least = min(distance for distance, _ in others)
    rivals = [other for distance, other in others if distance == least][:_MOST_COMPARED]
    keys = [_identity(index.fieldset[other]) for other in (*rivals, number)]
    found = {name: [own.get(name, "") for own in keys] for name in keys[-1]}
    differing = {name: texts for name, texts in found.items() if len(set(texts)) > 1}
    many = f"cfgrib would leave out {len(lost)} of its {len(messages)} messages, because they"
    if not differing:
        return f"{many} have the same keys as others, but other values; remove repeated messages from the file"
    text = ", ".join(f"{name} ({_values(texts)})" for name, texts in list(differing.items())[:_MOST_VALUES])
    name = next(iter(differing))
    choice = _choice(name, [index.fieldset[rivals[0]][name]])  # with the type by which cfgrib compares it
    return f"{many} differ from others only in {text}, which becomes no dimension; {choice}"


def _identity(message: Any) -> dict[str, str]:
    """Return the keys of a message by which it can be identified, as strings."""
    import eccodes  # pyright: ignore[reportMissingImports]

    found: dict[str, str] = {}
    for namespace in _NAMESPACES:
        iterator = eccodes.codes_keys_iterator_new(message.codes_id, namespace)
        try:
            while eccodes.codes_keys_iterator_next(iterator):
                found.update(_key(message, eccodes.codes_keys_iterator_get_name(iterator)))
        finally:
            eccodes.codes_keys_iterator_delete(iterator)
    for name in _FURTHER_KEYS:
        found.update(_key(message, name))
    order = {name: number for number, name in enumerate(_FURTHER_KEYS)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


def _key(message: Any, name: str) -> Iterator[tuple[str, str]]:
    import eccodes  # pyright: ignore[reportMissingImports]

    try:
        yield name, str(eccodes.codes_get_string(message.codes_id, name))
    except eccodes.CodesInternalError:  # the message has no such key
        return


def _values(values: Sequence[Any]) -> str:
    different = list(dict.fromkeys(values))
    return ", ".join(map(str, different[:_MOST_VALUES])) + (", …" if len(different) > _MOST_VALUES else "")


def _choice(name: str, values: Sequence[Any]) -> str:
    return (
        f"choose messages that fit together with engine_options={{'filter_by_keys': {{{name!r}: {values[0]!r}}}}}, "
        "and write the others to another group"
    )


# ------------------------------------------------------------------ grids


def _are_equal_grids(index: Any, grids: Sequence[Any]) -> bool:
    """Return whether the elements of messages on several grids are at the same places, in the same order."""
    first, *others = (_places(index.subindex(md5GridSection=grid).first()) for grid in grids)
    return all(np.array_equal(first, other) for other in others)


def _places(message: Any) -> Any:
    return np.stack([np.asarray(message["latitudes"]), np.asarray(message["longitudes"])])


def _scanning_problem(variable: Any) -> str:
    """Return why the elements of a message are not in the order of the coordinates; an empty string if they are."""
    if not {"latitude", "longitude"} <= set(variable.dims):
        return ""
    if variable.attrs.get("GRIB_jPointsAreConsecutive"):
        return "its messages contain the elements of a column after each other, which cfgrib takes for those of a row"
    if variable.attrs.get("GRIB_iScansNegatively"):
        return "its messages contain rows from east to west, and cfgrib gives them longitudes from west to east"
    return ""
