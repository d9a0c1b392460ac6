"""Upper bounds of the memory that Python objects take, computed from their encoded form before it is decoded."""

from __future__ import annotations

import numpy as np

from zarrasync._util.output_budget import check_budget
from zarrasync.codecs.spec import Buffer

__all__ = ["check_json", "check_msgpack", "text_size"]

_VALUE, _MAP, _MAP_ENTRY = 72, 240, 104
"""Bytes of a number or an empty container with its place in a list, of a dictionary, and of an entry in one."""
_NO_DATA = frozenset((0xC0, 0xC1, 0xC2, 0xC3))
_PAYLOAD = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
"""Bytes after the first one of MessagePack's numbers and small extensions."""
_LENGTH_WIDTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length of byte strings, extensions and strings."""
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9))
_COUNT_WIDTHS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Bytes of the number of entries of arrays and maps."""
_MAPS = frozenset((0xDE, 0xDF))


def text_size(utf8: Buffer) -> int:
    """Return the bytes of Python's string for UTF-8. Its characters all take 1, 2 or 4 bytes."""
    octets = np.frombuffer(utf8, np.uint8)
    largest = int(octets.max(initial=0))
    width = 1 if largest < 0xC4 else 2 if largest < 0xF0 else 4
    return width * int(np.count_nonzero((octets & 0xC0) != 0x80))


def check_json(data: bytes, budget: int) -> None:
    """Check that the objects of a JSON document fit into a budget.

    Raises:
        BudgetExceeded: If they may not.
    """
    text = text_size(data)
    strings = 4 * len(data) if b"\\u" in data else text
    maps = data.count(b"{")
    values = 1 + data.count(b",") + data.count(b"[") + data.count(b":") + maps
    check_budget(budget, text + strings + _VALUE * values + _MAP * maps)


def check_msgpack(data: bytes, budget: int) -> None:
    """Check that the objects of a MessagePack value fit into a budget.

    Raises:
        BudgetExceeded: If they do not.
        ValueError: If an array declares more elements than there are bytes.
    """
    if _MAP * len(data) <= budget:  # however many objects there are
        return
    total, position = 0, 0
    while position < len(data):
        nbytes, position = _next_object(data, position)
        total += nbytes
        check_budget(budget, total, at_least=True)


def _next_object(data: bytes, position: int) -> tuple[int, int]:
    """Return the bytes of an object without those that it contains, and the position after it or of the first of these."""
    code = data[position]
    position += 1
    if code < 0x80 or code >= 0xE0 or code in _NO_DATA:
        return _VALUE, position
    if code in _PAYLOAD:
        return _VALUE, position + _PAYLOAD[code]
    if code < 0xA0 or code in _COUNT_WIDTHS:
        count, position = (code & 15, position) if code < 0xA0 else _integer(data, position, _COUNT_WIDTHS[code])
        if count > len(data) - position:
            raise ValueError(f"an array or map of {count:,} elements in {len(data) - position:,} bytes")
        is_map = code < 0x90 or code in _MAPS
        return (_MAP + _MAP_ENTRY * count if is_map else _VALUE + 8 * count), position
    length, position = (code & 31, position) if code < 0xC0 else _integer(data, position, _LENGTH_WIDTHS[code])
    end = position + length + (code in _EXTENSIONS)
    is_text = code < 0xC0 or code >= 0xD9
    return _VALUE + (text_size(memoryview(data)[position:end]) if is_text else length), end


def _integer(data: bytes, position: int, width: int) -> tuple[int, int]:
    """Return a big-endian integer, and the position after it."""
    return int.from_bytes(data[position : position + width], "big"), position + width
