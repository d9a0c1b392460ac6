"""Codecs and data types as metadata documents of format 3 specify them."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrasync.codecs import ArraySpec, parse_codecs
from zarrasync.model import dtypes, fill_values


def bound(data_type: Any, shape: tuple[int, ...], *entries: Any, fill: Any = None) -> Any:
    """Bind codecs to a chunk."""
    found = dtypes.from_numpy(data_type)
    value = found.default_fill() if fill is None else fill_values.fill_from_json(found, fill)
    spec = ArraySpec(shape, found, value)
    return parse_codecs([*entries]).settle(spec).bind(spec)


def entry(name: str, **configuration: Any) -> dict[str, Any]:
    """Return a codec, data type or chunk grid as it stands in a metadata document."""
    return {"name": name, "configuration": configuration}


def both_ways(chain: Any, values: np.ndarray, encoded: str) -> None:
    """Assert that values are encoded to these bytes, and decoded from them."""
    assert bytes(chain.encode(values)).hex() == encoded
    found = chain.decode(bytes.fromhex(encoded))
    assert found.shape == values.shape
    np.testing.assert_array_equal(np.asarray(found).astype(values.dtype), values)


LITTLE, BIG = entry("bytes", endian="little"), entry("bytes", endian="big")
