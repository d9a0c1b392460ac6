"""Creating arrays. All arguments are checked before anything is written or replaced."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync import transfer
from zarrasync._concurrency import bridge
from zarrasync._concurrency.drive import driven
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.create import check_options, plan_array
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import bind_format, create_node
from zarrasync.nodes.decoded import AsyncDecodedArray
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.nodes.selection import AsyncSelection

__all__ = ["create_array_at", "create_planned_array", "plan_array_at", "plan_with_data"]


async def create_array_at(handle: NodeHandle, *, overwrite: bool = False, **options: Any) -> AsyncArray:
    """Create an array and write its ``data``, if any. The data is read before anything is replaced.

    Args:
        handle: The location and the format of the new array.
        overwrite: Replace an existing node.
        **options: As for ``create_array``.
    """
    handle, metadata, data = await plan_array_at(handle, overwrite=overwrite, **options)
    return await create_planned_array(handle, metadata, data, overwrite=overwrite)


async def plan_array_at(
    handle: NodeHandle, *, overwrite: bool = False, **options: Any
) -> tuple[NodeHandle, ArrayMetadata, npt.NDArray[Any] | None]:
    """Plan an array without writing anything.

    Args:
        handle: The location and the format of the new array.
        overwrite: Whether an existing node will be replaced.
        **options: As for ``create_array``.

    Returns:
        The handle with the format that its store specifies, the metadata, and the data as it will be stored.
    """
    handle = await bind_format(handle, overwrite=overwrite)
    metadata, data = await plan_with_data(handle, options)
    return handle, metadata, data


async def plan_with_data(handle: NodeHandle, options: dict[str, Any]) -> tuple[ArrayMetadata, npt.NDArray[Any] | None]:
    """Return the metadata of an array and its data as it will be stored, or raise an error if either is invalid.

    Lazy data in ``options`` is replaced by its values.
    """
    check_options(options)
    options["data"] = data = await _read_lazy(options.get("data"))
    metadata = plan_array(handle.format, **options)
    if data is None:
        return metadata, None
    convert = partial(transfer.as_storable, data, metadata)
    return metadata, await transfer.run_conversion(convert, data, metadata.dtype.numpy, casts_numbers=True)


async def create_planned_array(
    handle: NodeHandle,
    metadata: ArrayMetadata,
    data: npt.NDArray[Any] | None,
    *,
    overwrite: bool = False,
    erase_leftovers: bool = False,
) -> AsyncArray:
    """Create an array that was planned with ``plan_array_at``, and write its data, if any.

    Args:
        handle: The location and the format of the new array.
        metadata: The metadata.
        data: The values to write, or ``None``.
        overwrite: Replace an existing node.
        erase_leftovers: Erase chunks that remain from an array if a process was killed while erasing it.
    """
    create = partial(create_node, handle, metadata, overwrite=overwrite, erase_leftovers=erase_leftovers)
    array = AsyncArray(await run_on_store(create, handle.store), metadata)
    if data is not None:
        await array.view.write(data)
    return array


async def _read_lazy(data: Any) -> Any:
    """Read lazy arrays and selections. Other data is returned unchanged."""
    lazy = getattr(data, "async_", data)  # an object of the synchronous API
    if isinstance(lazy, AsyncArray | AsyncDecodedArray | AsyncSelection):
        whole = lazy[...]
        return bridge.run(whole.read(), blocking=whole.array.store.blocking) if driven() else await whole.read()
    return np.asanyarray(data) if hasattr(data, "shape") and not isinstance(data, np.ndarray) else data
