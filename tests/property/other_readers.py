"""zarr-python as a second reader of what the state machines wrote."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import cpu
from zarr.storage import MemoryStore

from tests.property.strategies import same
from zarrasync.model import dtypes

_UNKNOWN_TYPES = (*dtypes.SMALL_FLOATS, "int2", "int4", "uint2", "uint4")


def zarr_python_store(values: Mapping[str, bytes]) -> MemoryStore:
    """Return a store of zarr-python with the same values."""
    return MemoryStore({key: cpu.Buffer.from_bytes(value) for key, value in values.items()}, read_only=True)


def zarr_python_reads(
    values: Mapping[str, bytes], options: Mapping[str, Any], model: np.ndarray, attributes: Any
) -> None:
    """Assert that zarr-python reads an array as it is in the model, if it supports its format, data type and codecs."""
    name = options["dtype"]
    unknown = isinstance(name, str) and (name in _UNKNOWN_TYPES or name.startswith("complex_"))
    unknown |= name == "r24" and options["zarr_format"] == 3
    if options["zarr_format"] not in (2, 3) or unknown or options.get("serializer") == "packbits":
        return
    with warnings.catch_warnings(), zarr.config.set({"array.rectilinear_chunks": True}):
        warnings.simplefilter("ignore")  # of unstable specifications
        array = zarr.open_array(zarr_python_store(values), mode="r", zarr_format=options["zarr_format"])
        found = np.asarray(array[...])
    assert array.attrs.asdict() == attributes
    assert same(found.astype(model.dtype), model)


def zarr_python_lists(
    values: Mapping[str, bytes], zarr_format: Any, nodes: Mapping[str, Any], *, use_consolidated: bool
) -> None:
    """Assert that zarr-python finds the nodes of a model, with their attributes and values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of consolidated metadata in format 3
        for use in {False, use_consolidated}:
            root = zarr.open_group(zarr_python_store(values), mode="r", zarr_format=zarr_format, use_consolidated=use)
            members: dict[str, Any] = {"": root, **dict(root.members(max_depth=None))}
            assert sorted(members) == sorted(nodes)
            for path, node in nodes.items():
                assert members[path].attrs.asdict() == node.attributes
                if node.values is not None:
                    assert same(members[path][...], node.values)
