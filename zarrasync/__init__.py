"""Read and write Zarr, async-first.

>>> import asyncio
>>> import zarrasync as za
>>> async def main():
...     array = await za.create_array({}, shape=(4, 4), dtype="i4", chunks=(2, 2))
...     await array[1:3].write(7)
...     return await array[:, 0]
>>> asyncio.run(main())
array([0, 7, 7, 0], dtype=int32)

The same names that block, for scripts and notebooks:

>>> from zarrasync import sync
>>> a = sync.create_array({}, shape=(4, 4), dtype="i4", chunks=(2, 2))
>>> a[1:3] = 7
>>> a[:, 0]
array([0, 7, 7, 0], dtype=int32)
"""

from __future__ import annotations

import logging

from zarrasync import codecs, config, errors, stores
from zarrasync.array import AsyncArray
from zarrasync.config import Config
from zarrasync.errors import ZarrError
from zarrasync.group import AsyncGroup
from zarrasync.hierarchy import (
    create,
    create_array,
    create_group,
    create_hierarchy,
    list_nodes,
    load,
    open,
    open_array,
    open_group,
    save,
)
from zarrasync.selection import AsyncSelection

__version__ = "0.1.0"

__all__ = [
    "AsyncArray",
    "AsyncGroup",
    "AsyncSelection",
    "Config",
    "ZarrError",
    "__version__",
    "codecs",
    "config",
    "create",
    "create_array",
    "create_group",
    "create_hierarchy",
    "errors",
    "list_nodes",
    "load",
    "open",
    "open_array",
    "open_group",
    "save",
    "stores",
]

logging.getLogger("zarrasync").addHandler(logging.NullHandler())
