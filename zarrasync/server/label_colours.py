"""The colours of labels and of flags: those that conventions specify, and different ones for others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import cmap
import numpy as np
import numpy.typing as npt

from zarrasync.metadata.conventions import RGBA, Labels
from zarrasync.metadata.conventions.cf_flags import Flags

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio as a fraction of 64 bits. Its multiples are spread evenly, so hues of successive labels are far apart."""
_LIGHTNESS = np.array([0.45, 0.6, 0.7])
_SATURATION = 0.75
_NO_FLAG = (224, 224, 224, 255)
"""The colour of the flag 0, if it has no specified colour. It differs from missing values, which are transparent."""
_MOST_BITS = 10
"""The most bits of flags whose combinations get names."""


class LabelColours:
    """The colours of the labels of one image. Instances with the same specified colours are equal.

    Args:
        specified: Colours of labels. Others get a colour by their value. The label 0 is the background, which is transparent
            unless it has a specified colour.
    """

    def __init__(self, specified: Mapping[int, RGBA] | None = None) -> None:
        items = sorted((_as_int64(label), rgba) for label, rgba in (specified or {}).items())
        self._labels = np.array([label for label, _ in items], np.int64)
        self._rgba = np.array([rgba for _, rgba in items], np.uint8).reshape(-1, 4)
        self._digest = hashlib.sha256(self._labels.tobytes() + self._rgba.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelColours) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Return the colours of labels.

        Args:
            values: Labels of any shape. NaN and masked labels are transparent.

        Returns:
            Red, green, blue and opacity of each label along an additional last axis.
        """
        missing = np.ma.getmaskarray(values)
        labels = np.ma.getdata(values)
        if labels.dtype.kind == "f":
            missing = missing | np.isnan(labels)
            labels = np.nan_to_num(labels)
        present, places = np.unique(labels.astype(np.int64), return_inverse=True)
        colours = _generated(present)
        if len(self._labels):
            found = np.minimum(np.searchsorted(self._labels, present), len(self._labels) - 1)
            is_specified = self._labels[found] == present
            colours[is_specified] = self._rgba[found[is_specified]]
        pixels = colours[places.reshape(values.shape)]
        pixels[missing] = 0
        return pixels


def flag_labels(flags: Flags | None) -> Labels | None:
    """Return the colours and the names of flags: of each value, or of each combination of bits if these are few."""
    if flags is None:
        return None
    numbers = [*flags.values]
    if flags.masks:
        bits = [1 << bit for bit in range(64) if any(mask >> bit & 1 for mask in flags.masks)]
        numbers = [0]
        for bit in bits if len(bits) <= _MOST_BITS else ():
            numbers += [number | bit for number in numbers]
    generated = LabelColours()(np.array([_as_int64(number) for number in numbers], np.int64))
    colours: dict[int, RGBA] = {}
    for number, own in zip(numbers, generated.tolist(), strict=True):
        colours[number] = parsed_colour(flags.colour_of(number)) or (tuple(own) if number else _NO_FLAG)
    names = {number: ", ".join(flags.names_of(number)) for number in numbers}
    return Labels(colours, {number: text for number, text in names.items() if text})


def parsed_colour(colour: str | None) -> RGBA | None:
    """Return a colour of CSS; ``None`` for anything else."""
    if not colour:
        return None
    try:
        red, green, blue, opacity = cmap.Color(colour).rgba8
    except (ValueError, TypeError):
        return None
    return red, green, blue, round(255 * opacity)


def _as_int64(label: int) -> int:
    """Return a label in the range of signed integers, to which unsigned ones wrap."""
    return (label + (1 << 63)) % (1 << 64) - (1 << 63)


def _generated(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return opaque colours of labels by their values, and a transparent one of 0."""
    hues = (labels.astype(np.uint64) * _GOLDEN).astype(np.float64) / 2.0**64
    lightness = _LIGHTNESS[labels % 3]
    spread = _SATURATION * np.minimum(lightness, 1 - lightness)
    sectors = (np.array([0.0, 8.0, 4.0]) + 12 * hues[:, None]) % 12  # of red, green and blue
    parts = lightness[:, None] - spread[:, None] * np.clip(np.minimum(sectors - 3, 9 - sectors), -1, 1)
    colours = np.full((len(labels), 4), 255, np.uint8)
    colours[:, :3] = np.rint(255 * parts)
    colours[labels == 0] = 0
    return colours
