"""Label images of OME-Zarr: the colours and the properties of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zarrasync.metadata.conventions.meaning import RGBA, Labels, Meaning
from zarrasync.metadata.conventions.reader import Reader, short

_VALUE = "label-value"
_MOST_SHOWN = 8
"""Number of labels that a fact lists."""
_MOST_TEXT = 200
"""The most characters of the properties of a label."""


def interpret_image_label(value: Any, location: str, reader: Reader) -> Meaning:
    """Return what the object ``image-label`` specifies, and report labels without a value or with an invalid colour."""
    if not isinstance(value, Mapping):
        reader.error(location, f"expected an object, found {short(value)}")
        value = {}
    colours = {
        label: rgba
        for label, place, item in _items(value, "colors", location, reader)
        if (rgba := _colour(item, place, reader)) is not None
    }
    properties = _items(value, "properties", location, reader)
    texts = {
        label: _short(", ".join(f"{name} {_text(item[name])}" for name in item if name != _VALUE))
        for label, _, item in properties
        if len(item) > 1
    }
    facts = {
        "Label colours": _listed(f"{label}: {_hexadecimal(rgba)}" for label, rgba in colours.items()),
        "Label properties": _listed((f"{label}: {text}" for label, text in texts.items()), "; "),
    }
    return Meaning(
        titles=("label image",),
        variable="labels",
        dtype_kinds="iu",
        facts={name: text for name, text in facts.items() if text},
        labels=Labels(colours, texts),
    )


def _items(
    value: Mapping[str, Any], part: str, location: str, reader: Reader
) -> list[tuple[int, str, Mapping[str, Any]]]:
    """Return the labels of a list with the locations and the objects that describe them."""
    if part not in value:
        return []
    found: dict[int, tuple[int, str, Mapping[str, Any]]] = {}
    repeated = []
    for place, item in reader.objects(value[part], f"{location}.{part}"):
        label = item.get(_VALUE)
        if isinstance(label, float) and label.is_integer():  # 1.0 and 1 are the same number in JSON
            label = int(label)
        if _VALUE not in item:
            reader.error(f"{place}.{_VALUE}", "the value of the label is missing")
        elif type(label) is not int:
            reader.error(f"{place}.{_VALUE}", f"expected an integer, found {short(label)}")
        elif label in found:
            repeated.append(str(label))
        else:
            found[label] = (label, place, item)
    if repeated:
        reader.error(f"{location}.{part}", f"{', '.join(repeated[:_MOST_SHOWN])} must occur only once")
    return [*found.values()]


def _colour(item: Mapping[str, Any], place: str, reader: Reader) -> RGBA | None:
    value = item.get("rgba")
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 4 and all(type(n) is int and 0 <= n <= 255 for n in value):
        red, green, blue, alpha = value
        return red, green, blue, alpha
    reader.error(f"{place}.rgba", f"expected four integers from 0 to 255, found {short(value)}")
    return None


def _hexadecimal(rgba: RGBA) -> str:
    """Return a colour as ``#rrggbb``, with the opacity if it is not full."""
    return "#" + "".join(f"{part:02x}" for part in (rgba if rgba[3] < 255 else rgba[:3]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else short(value)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _listed(texts: Iterable[str], separator: str = ", ") -> str:
    items = list(texts)
    more = f"{separator}… {len(items) - _MOST_SHOWN:,} more" if len(items) > _MOST_SHOWN else ""
    return separator.join(items[:_MOST_SHOWN]) + more
