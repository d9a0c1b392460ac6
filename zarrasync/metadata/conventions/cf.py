"""Attributes of xarray and of the climate and forecast conventions (CF): dimensions, quantities, packing and times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.metadata.conventions.cf_attributes import FILL, OFFSET, SCALE, unit_of
from zarrasync.metadata.conventions.cf_times import CALENDAR, CALENDARS, UNITS, units_of
from zarrasync.metadata.conventions.meaning import CRS, Link, Meaning
from zarrasync.metadata.conventions.reader import Reader, is_number

ATTRIBUTES = (
    *("Conventions", "standard_name", "long_name", UNITS, CALENDAR, SCALE, OFFSET, FILL),
    *("grid_mapping", "grid_mapping_name", "coordinates", "crs_wkt", "spatial_ref"),
)
"""Attributes of which an array or group with a meaning to CF has at least one."""


def interpret_cf(attributes: Mapping[str, Any]) -> Meaning | None:
    """Return the meaning of the attributes of an array or a group."""
    reader = Reader()
    conventions = attributes.get("Conventions")
    quantity = _quantity(attributes, reader)
    _check_calendar(attributes, reader)
    _check_packing(attributes, reader)
    wkt = next((attributes[name] for name in ("crs_wkt", "spatial_ref") if isinstance(attributes.get(name), str)), "")
    return Meaning(
        titles=(conventions,) if isinstance(conventions, str) and conventions else (),
        crs=CRS(wkt=wkt) if wkt else None,
        unit=_unit(attributes),
        links=_links(attributes),
        facts={"Quantity": quantity} if quantity else {},
        violations=tuple(reader.violations),
    )


def _quantity(attributes: Mapping[str, Any], reader: Reader) -> str:
    """Return the quantity and its unit: ``air_temperature [K]``; an empty string if the quantity has no name."""
    texts = {name: attributes[name] for name in ("standard_name", "long_name", "units") if name in attributes}
    for name, text in texts.items():
        if not isinstance(text, str):
            reader.warn(name, f"expected a string, found {text!r}")
    name, unit = texts.get("standard_name") or texts.get("long_name") or "", _unit(attributes)
    return f"{name} [{unit}]" if name and unit else str(name)


def _unit(attributes: Mapping[str, Any]) -> str:
    """Return the unit of values; empty for times, whose units contain a date."""
    return "" if units_of(attributes) is not None else unit_of(attributes)


def _check_calendar(attributes: Mapping[str, Any], reader: Reader) -> None:
    calendar = attributes.get(CALENDAR, "standard")
    if calendar not in CALENDARS:
        reader.warn(CALENDAR, f"{calendar!r} is not a calendar of CF: {', '.join(CALENDARS)}")


def _check_packing(attributes: Mapping[str, Any], reader: Reader) -> None:
    for name in (SCALE, OFFSET):
        if name in attributes and not is_number(attributes[name]):
            reader.error(name, f"expected a number, found {attributes[name]!r}")


def _links(attributes: Mapping[str, Any]) -> tuple[Link, ...]:
    """Return the references to coordinates and grid mappings in the group of an array."""
    links = []
    for name, kind in (("coordinates", "coordinate"), ("grid_mapping", "grid mapping")):
        text = attributes.get(name)
        names = text.replace(":", " ").split() if isinstance(text, str) else ()
        links += [Link(item, kind, name, is_required=False) for item in names]
    return tuple(links)
