"""Tests for chunks that hold only the fill value, bit for bit: -0.0 differs from 0.0, and NaN equals the same NaN."""

from __future__ import annotations

from operator import eq
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.codecs.spec import Array, as_bytes_view

__all__ = ["fill_word", "is_fill", "rows_with_only"]

_STEP_ELEMENTS = 1 << 16
"""Elements compared in one step."""
_WORD_SIZES = (1, 2, 4, 8)
"""Element sizes in bytes that are compared as one unsigned integer."""


def fill_word(fill: Array) -> Any:
    """Return a fill value as an unsigned integer of its width, or ``None`` if no integer type has this width."""
    if fill.dtype.kind in "biufcmM" and fill.dtype.itemsize in _WORD_SIZES:
        return fill.reshape(1).view(f"u{fill.dtype.itemsize}")[0]
    return None


def is_fill(array: Array, fill_value: Any, word: Any = None) -> bool:
    """Return whether every element is the fill value.

    Args:
        array: The elements.
        fill_value: The fill value.
        word: ``fill_word`` of the fill value, which makes the comparison faster.
    """
    if not array.size:
        return True
    if word is not None and array.dtype.isnative:
        words = array.view(word.dtype)
        if words[(0,) * words.ndim] != word or words[(-1,) * words.ndim] != word:
            return False
        return _all_equal(words, word) if words.ndim else True
    if array.dtype.kind in "TO":
        # Objects define their own equality, so compare types as well.
        kind = type(fill_value)
        equal = np.array_equal if kind is np.ndarray else eq
        return all(type(value) is kind and equal(value, fill_value) for value in array.reshape(-1).tolist())
    contiguous = np.ascontiguousarray(array)
    fill = np.asarray(fill_value, array.dtype)
    if not fill.dtype.itemsize:
        return True
    rows = as_bytes_view(contiguous).reshape(-1, fill.dtype.itemsize)
    return bool((rows == np.frombuffer(fill.tobytes(), np.uint8)).all())


def rows_with_only(rows: npt.NDArray[np.uint8], element: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return for each row of bytes whether it is just repetitions of the bytes of an element."""
    width = len(element) if len(element) in _WORD_SIZES else 1
    word = element.view(f"u{width}")
    words = rows.view(word.dtype).reshape(len(rows), -1, len(word))
    # The first or last element rules out nearly all rows.
    matches: npt.NDArray[np.bool_] = (words[:, [0, -1]] == word).all(axis=(1, 2))
    for number in np.flatnonzero(matches):
        matches[number] = _all_equal(words[number], word) if len(word) > 1 else _all_equal(words[number, :, 0], word[0])
    return matches


def _all_equal(words: Array, word: Any) -> bool:
    """Return whether all words equal one.

    The comparison goes step by step: most chunks with data differ early, and each step stays in the CPU cache.
    """
    words, word = _widen(words, word)
    step = max(1, _STEP_ELEMENTS * len(words) // words.size)
    return all(bool((words[start : start + step] == word).all()) for start in range(0, len(words), step))


def _widen(words: Array, word: Any) -> tuple[Array, Any]:
    """View words as the longest integers that divide their rows, so that fewer have to be compared."""
    size = words.itemsize
    if not word.ndim and words.strides[-1] == size:
        for width in _WORD_SIZES[:0:-1]:
            if width > size and words.shape[-1] * size % width == 0:
                return words.view(f"u{width}"), np.full(width // size, word, words.dtype).view(f"u{width}")[0]
    return words, word
