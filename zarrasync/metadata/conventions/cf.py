"""Attributes of xarray and of the climate and forecast conventions (CF): dimensions, quantities, packing and times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarrasync.metadata.conventions.cf_attributes import FILL, OFFSET, SCALE
from zarrasync.metadata.conventions.cf_times import CALENDAR, CALENDARS, UNITS
from zarrasync.metadata.conventions.meaning import CRS, Link, Meaning
from zarrasync.metadata.conventions.reader import Reader, is_number

__all__ = ["ATTRIBUTES", "interpret_cf"]

ATTRIBUTES = (
    *("Conventions", "standard_name", "long_name", UNITS, CALENDAR, SCALE, OFFSET, FILL),
    *("grid_mapping", "grid_mapping_name", "coordinates", "crs_wkt", "spatial_ref"),
)
"""Attributes of which an array or group with a meaning to CF has at least one."""


def interpret_cf(attributes: Mapping[str, Any]) -> Meaning | None:
    """Return the meaning of the attributes of an array or a group."""
    reader = Reader()
    conventions = attributes.get("Conventions")
    facts = {
        "Quantity": _quantity(attributes, reader),
        "Times": _times(attributes, reader),
        "Packing": _packing(attributes, reader),
    }
    wkt = next((attributes[name] for name in ("crs_wkt", "spatial_ref") if isinstance(attributes.get(name), str)), "")
    units = attributes.get("units")
    return Meaning(
        titles=(conventions,) if isinstance(conventions, str) and conventions else (),
        crs=CRS(wkt=wkt) if wkt else None,
        unit=units if isinstance(units, str) and " since " not in units else "",
        links=_links(attributes),
        facts={label: text for label, text in facts.items() if text},
        violations=tuple(reader.violations),
    )


def _quantity(attributes: Mapping[str, Any], reader: Reader) -> str:
    """Return the quantity and its unit: ``air_temperature [K]``; an empty string if the quantity has no name."""
    texts = {name: attributes[name] for name in ("standard_name", "long_name", "units") if name in attributes}
    for name, text in texts.items():
        if not isinstance(text, str):
            reader.warn(name, f"expected a string, found {text!r}")
    name, units = texts.get("standard_name") or texts.get("long_name") or "", texts.get("units", "")
    if isinstance(units, str) and " since " in units:
        units = ""
    return f"{name} [{units}]" if name and units else str(name)


def _times(attributes: Mapping[str, Any], reader: Reader) -> str:
    units, calendar = attributes.get("units"), attributes.get(CALENDAR, "standard")
    if calendar not in CALENDARS:
        reader.warn(CALENDAR, f"{calendar!r} is not a calendar of CF: {', '.join(CALENDARS)}")
    return f"{units}, {calendar} calendar" if isinstance(units, str) and " since " in units else ""


def _packing(attributes: Mapping[str, Any], reader: Reader) -> str:
    """Return how values follow from stored ones: ``stored value × 0.01 + 273.15``."""
    numbers = {name: attributes[name] for name in (SCALE, OFFSET) if name in attributes}
    for name, number in numbers.items():
        if not is_number(number):
            reader.error(name, f"expected a number, found {number!r}")
    scale, offset = numbers.get(SCALE, 1), numbers.get(OFFSET, 0)
    if not numbers or not (is_number(scale) and is_number(offset)):
        return ""
    return "stored value" + (f" × {scale:g}" if scale != 1 else "") + (f" + {offset:g}" if offset else "")


def _links(attributes: Mapping[str, Any]) -> tuple[Link, ...]:
    """Return the references to coordinates and grid mappings in the group of an array."""
    links = []
    for name, kind in (("coordinates", "coordinate"), ("grid_mapping", "grid mapping")):
        text = attributes.get(name)
        names = text.replace(":", " ").split() if isinstance(text, str) else ()
        links += [Link(item, kind, name, is_required=False) for item in names]
    return tuple(links)
