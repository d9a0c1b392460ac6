"""Flags of CF: numbers or bits with a meaning, and their colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.metadata.conventions.cf_attributes import numbers_in

STRINGS = np.dtypes.StringDType()
"""The data type of names of flags."""


@dataclass(frozen=True)
class Flags:
    """The meanings of numbers.

    Attributes:
        meanings: The names, such as ``"open_water"``; empty if the attributes contradict each other, so that only the fact
            remains that numbers are codes.
        values: The number of each name. Without masks it is the whole number; empty if only masks are specified.
        masks: The bits of each name; empty for names of whole numbers.
        colours: The colour of each name, such as ``"#1f77b4"``; empty if they are not specified.
    """

    meanings: tuple[str, ...]
    values: tuple[int, ...] = ()
    masks: tuple[int, ...] = ()
    colours: tuple[str, ...] = ()

    def names_of(self, number: int) -> tuple[str, ...]:
        """Return the names that apply to a number."""
        masks = self.masks or (-1,) * len(self.meanings)
        if self.values:
            items = zip(self.meanings, masks, self.values, strict=True)
            return tuple(name for name, mask, value in items if number & mask == value)
        return tuple(name for name, mask in zip(self.meanings, masks, strict=True) if number & mask)

    def strings(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the names of numbers as strings. Several names are separated by spaces.

        A number whose meaning is not specified becomes its digits, a number without bits of any mask an empty string.
        """
        unique, places = np.unique(numbers, return_inverse=True)
        names = [" ".join(self.names_of(int(number))) or ("" if self.masks else str(number)) for number in unique]
        return np.asarray(names, STRINGS)[places.ravel()].reshape(numbers.shape)

    def colour_of(self, number: int) -> str | None:
        """Return the colour of a number; ``None`` without one."""
        names = self.names_of(number) if self.colours else ()
        return self.colours[self.meanings.index(names[0])] if names else None


def flags_of(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Flags | None:
    """Return the flags of a variable; ``None`` without any.

    Args:
        attributes: The attributes of the variable.
        dtype: The data type of its numbers.
    """
    if not any(key in attributes for key in ("flag_meanings", "flag_values", "flag_masks")):
        return None
    text = attributes.get("flag_meanings")
    meanings = tuple(text.split()) if isinstance(text, str) and dtype.kind in "iu" else ()
    values, masks = (
        tuple(int(number) for number in numbers_in(attributes.get(key), dtype)) if meanings else ()
        for key in ("flag_values", "flag_masks")
    )
    if any(len(numbers) not in (0, len(meanings)) for numbers in (values, masks)) or not (values or masks):
        return Flags(())
    colours = attributes.get("flag_colors", attributes.get("flag_colours"))
    names = tuple(colours.split()) if isinstance(colours, str) else ()
    return Flags(meanings, values, masks, names if len(names) == len(meanings) else ())
