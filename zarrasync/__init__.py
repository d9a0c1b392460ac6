"""Read and write Zarr arrays and groups, asynchronously or synchronously.

>>> import asyncio
>>> import zarrasync as za
>>> async def main():
...     array = await za.create_array({}, shape=(4, 4), dtype="i4", chunks=(2, 2))
...     await array[1:3].write(7)
...     return await array[:, 0]
>>> asyncio.run(main())
array([0, 7, 7, 0], dtype=int32)

The synchronous API has the same names, for scripts and notebooks:

>>> from zarrasync import sync
>>> a = sync.create_array({}, shape=(4, 4), dtype="i4", chunks=(2, 2))
>>> a[1:3] = 7
>>> a[:, 0]
array([0, 7, 7, 0], dtype=int32)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zarrasync import codecs, config, errors, stores
    from zarrasync.bulk.copy import copy, plan_copy
    from zarrasync.bulk.files.options import FileOptions, Layout
    from zarrasync.bulk.ingest import ingest
    from zarrasync.bulk.ingest_files import ingest_files, plan_ingest
    from zarrasync.bulk.jobs.plan import AsyncJobPlan
    from zarrasync.bulk.manifest import manifest
    from zarrasync.bulk.plans import open_plan
    from zarrasync.bulk.pyramid import PyramidAxes, plan_pyramid, pyramid
    from zarrasync.bulk.validate import validate
    from zarrasync.config import Config
    from zarrasync.errors import ZarrError
    from zarrasync.metadata.extensions import register_codec, register_data_type, register_storage_transformer
    from zarrasync.nodes.array import AsyncArray
    from zarrasync.nodes.decoded import AsyncDecodedArray
    from zarrasync.nodes.functions import (
        consolidate_metadata,
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
    from zarrasync.nodes.group import AsyncGroup
    from zarrasync.nodes.selection import AsyncSelection

__version__ = "0.1.0"

__all__ = [
    "AsyncArray",
    "AsyncDecodedArray",
    "AsyncGroup",
    "AsyncJobPlan",
    "AsyncSelection",
    "Config",
    "FileOptions",
    "Layout",
    "PyramidAxes",
    "ZarrError",
    "__version__",
    "codecs",
    "config",
    "consolidate_metadata",
    "copy",
    "create",
    "create_array",
    "create_group",
    "create_hierarchy",
    "errors",
    "ingest",
    "ingest_files",
    "list_nodes",
    "load",
    "manifest",
    "open",
    "open_array",
    "open_group",
    "open_plan",
    "plan_copy",
    "plan_ingest",
    "plan_pyramid",
    "pyramid",
    "register_codec",
    "register_data_type",
    "register_storage_transformer",
    "save",
    "stores",
    "validate",
]

# Names are imported when they are first used, so that importing the package takes little time.
_HOMES = {
    "bulk.copy": ("copy", "plan_copy"),
    "bulk.files.options": ("FileOptions", "Layout"),
    "bulk.ingest": ("ingest",),
    "bulk.ingest_files": ("ingest_files", "plan_ingest"),
    "bulk.jobs.plan": ("AsyncJobPlan",),
    "bulk.manifest": ("manifest",),
    "bulk.plans": ("open_plan",),
    "bulk.pyramid": ("PyramidAxes", "plan_pyramid", "pyramid"),
    "bulk.validate": ("validate",),
    "config": ("Config",),
    "errors": ("ZarrError",),
    "metadata.extensions": ("register_codec", "register_data_type", "register_storage_transformer"),
    "nodes.array": ("AsyncArray",),
    "nodes.decoded": ("AsyncDecodedArray",),
    "nodes.group": ("AsyncGroup",),
    "nodes.selection": ("AsyncSelection",),
}
"""The modules of names. Others are in ``nodes.functions``."""
_SUBMODULES = ("codecs", "config", "errors", "stores", "sync")


def __getattr__(name: str) -> Any:
    if name not in (*__all__, *_SUBMODULES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    home = next((module for module, names in _HOMES.items() if name in names), "nodes.functions")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
