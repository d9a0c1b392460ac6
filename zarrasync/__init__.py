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
_HOME_MODULES = {
    "AsyncArray": "nodes.array",
    "AsyncDecodedArray": "nodes.decoded",
    "AsyncGroup": "nodes.group",
    "AsyncJobPlan": "bulk.jobs.plan",
    "AsyncSelection": "nodes.selection",
    "Config": "config",
    "FileOptions": "bulk.files.options",
    "Layout": "bulk.files.options",
    "PyramidAxes": "bulk.pyramid",
    "ZarrError": "errors",
    "copy": "bulk.copy",
    "ingest": "bulk.ingest",
    "ingest_files": "bulk.ingest_files",
    "manifest": "bulk.manifest",
    "open_plan": "bulk.plans",
    "plan_copy": "bulk.copy",
    "plan_ingest": "bulk.ingest_files",
    "plan_pyramid": "bulk.pyramid",
    "pyramid": "bulk.pyramid",
    "register_codec": "metadata.extensions",
    "register_data_type": "metadata.extensions",
    "register_storage_transformer": "metadata.extensions",
    "validate": "bulk.validate",
}
_SUBMODULES = ("codecs", "config", "errors", "stores", "sync")


def __getattr__(name: str) -> Any:
    if name not in (*__all__, *_SUBMODULES):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_MODULES.get(name, 'nodes.functions')}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
