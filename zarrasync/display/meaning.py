"""What conventions specify about a node, as facts for users. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from zarrasync.display.text import printable
from zarrasync.metadata.conventions import Meaning
from zarrasync.metadata.conventions.cf_encoding import CFEncoding
from zarrasync.metadata.conventions.cf_flags import Flags

_MOST = 12
"""Number of axes or levels that are listed."""


def meaning_facts(meaning: Meaning) -> dict[str, str]:
    """Return the facts that conventions specify about a node, by their label."""
    facts = {
        "Conventions": _listed(meaning.titles),
        "Axes": _listed(axis.label for axis in meaning.axes),
        "Levels": _listed(level.label for level in meaning.levels),
        "CRS": meaning.crs.label if meaning.crs is not None else "",
        "Unit": "" if "Quantity" in meaning.facts else meaning.unit,
        **meaning.facts,
    }
    return {printable(label): printable(text) for label, text in facts.items() if text}


def encoding_facts(encoding: CFEncoding) -> dict[str, str]:
    """Return the facts about what the stored numbers of an array stand for, by their label."""
    low, high = encoding.valid
    facts = {
        "Times": "" if encoding.times is None else _times_text(encoding.times.units, encoding.times.calendar),
        "Sign": ""
        if encoding.number_dtype == encoding.dtype
        else f"stored numbers are read as {encoding.number_dtype.name}",
        "Packing": _packing_text(encoding),
        "Missing values": _listed(f"{number}" for number in encoding.missing),
        "Valid values": f"stored numbers{f' from {low}' if low is not None else ''}{f' to {high}' if high is not None else ''}"
        * (encoding.valid != (None, None)),
        "Flags": "" if encoding.flags is None else _listed(_flag_texts(encoding.flags)),
    }
    return {label: printable(text) for label, text in facts.items() if text}


def _times_text(units: str, calendar: str) -> str:
    return f"{units}, {calendar} calendar" if calendar else f"durations in {units}"


def _packing_text(encoding: CFEncoding) -> str:
    """Return how values follow from stored ones: ``stored value × 0.01 + 273.15``."""
    scale, offset = encoding.scale, encoding.offset
    if not encoding.is_packed:
        return ""
    factor = f" × {scale:g}" if scale not in (None, 1) else ""
    return f"stored value{factor}" + (f" {'-' if offset < 0 else '+'} {abs(offset):g}" if offset else "")


def _flag_texts(flags: Flags) -> Iterable[str]:
    """Return the numbers of flags with their meanings: ``1 cloud``, ``bits 4 cloud``, ``bits 6 = 2 cloud``."""
    for place, meaning in enumerate(flags.meanings):
        value = str(flags.values[place]) if flags.values else ""
        mask = f"bits {flags.masks[place]}" if flags.masks else ""
        yield f"{' = '.join(filter(None, (mask, value)))} {meaning}"


def _listed(texts: Iterable[str]) -> str:
    items = list(texts)
    return ", ".join(items[:_MOST]) + (f", … {len(items) - _MOST:,} more" if len(items) > _MOST else "")
