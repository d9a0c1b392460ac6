"""Reading attributes of unknown structure: values of the expected type, and the location of those that are not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from zarrasync.metadata.conventions.meaning import Violation

_LARGEST = 1 << 1000
"""A limit for integers, which JSON allows to exceed the range of floats."""


class Reader:
    """Reads values of attributes, and collects deviations with their locations.

    Attributes:
        violations: The deviations so far.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def error(self, location: str, message: str) -> None:
        """Add a deviation from what the convention requires."""
        self.violations.append(Violation("error", location, message))

    def warn(self, location: str, message: str) -> None:
        """Add a deviation from what the convention recommends."""
        self.violations.append(Violation("warning", location, message))

    def objects(self, value: Any, location: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the objects of a list that must not be empty, with their locations."""
        if not isinstance(value, list) or not value:
            self.error(location, f"expected a list with at least one object, found {short(value)}")
            return []
        items = [(f"{location}[{number}]", item) for number, item in enumerate(value)]
        for place, item in items:
            if not isinstance(item, Mapping):
                self.error(place, f"expected an object, found {short(item)}")
        return [(place, item) for place, item in items if isinstance(item, Mapping)]

    def string(self, item: Mapping[str, Any], name: str, location: str) -> str:
        """Return a string that is required and not empty; an empty string if it is missing."""
        value = item.get(name)
        if isinstance(value, str) and value:
            return value
        self.error(f"{location}.{name}", f"expected a string that is not empty, found {short(value)}")
        return ""

    def path(self, item: Mapping[str, Any], name: str, location: str) -> str:
        """Return a relative path that is required."""
        return self.relative(self.string(item, name, location), f"{location}.{name}")

    def relative(self, path: str, location: str) -> str:
        """Return a path that must be relative; an empty string if it is not."""
        if path.startswith("/") or ".." in path.split("/"):
            self.error(location, f"the path {short(path)} must be relative to the group and stay inside it")
            return ""
        return path.removeprefix("./").strip("/")

    def check_differ(self, names: Sequence[str], location: str) -> None:
        """Report names that occur more than once."""
        repeated = [name for name, count in Counter(names).items() if name and count > 1]
        if repeated:
            self.error(location, f"{', '.join(repeated)} must occur only once")

    def numbers(self, value: Any, count: int, location: str) -> list[float]:
        """Return a list of finite numbers of a required length; an empty list if it is not one."""
        if isinstance(value, list) and len(value) == count and all(is_number(item) for item in value):
            return [float(item) for item in value]
        self.error(location, f"expected {count} numbers, found {short(value)}")
        return []


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number that a float can represent."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < _LARGEST


def short(value: Any) -> str:
    """Return a value as short text for a message."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
