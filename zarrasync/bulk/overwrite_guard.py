"""A guard against overwriting an array with lazy values that are read from the same array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from zarrasync.errors import NodeExistsError
from zarrasync.nodes.access import array_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.stores import Store, resolve

_OPERANDS = (
    "async_",  # of synchronous arrays
    *("variable", "_data", "array", "_array", "stored"),  # of xarray's arrays, variables and array wrappers
    *("args", "kwargs", "value"),  # of dask's tasks
    *("func", "keywords"),  # of functools.partial
)
"""Attributes that contain the inputs of a lazy value."""
_SCALARS = (str, bytes, int, float, ModuleType, type)


def overlap(store: Store, path: str, other_store: Store, other_path: str) -> bool:
    """Return whether two paths, possibly in different stores, are the same location, or one contains the other."""
    lineage, other_lineage = store.lineage(path), other_store.lineage(other_path)
    return lineage[0] in other_lineage or other_lineage[0] in lineage


def contains(store: Store, path: str, other_store: Store, other_path: str) -> bool:
    """Return whether a path, possibly in another store, is the same location as this one, or below it."""
    return store.lineage(path)[0] in other_store.lineage(other_path)


def refuse_self_overwrite(store: Store, path: str, *sources: Any) -> None:
    """Check that no source reads from the node that it will replace.

    Arrays, selections, dask graphs, xarray objects and the arguments of ``functools.partial`` are followed to the
    stored arrays that they read. Reads of other callables and generators cannot be detected.

    Raises:
        NodeExistsError: If a source reads the node, or a node below or above it.
    """
    for source_store, source_path in _places(sources):
        if overlap(store, path, source_store, source_path):
            raise NodeExistsError(
                f"/{path} in {store!r} cannot be replaced with lazy values that are read from it, because it is erased "
                "first; read the values before, or write to another path",
                path=path,
                store=repr(store),
            )


def _places(sources: Iterable[Any]) -> Iterator[tuple[Store, str]]:
    """Yield the stores and the paths of the stored arrays that sources read."""
    pending, visited = list(sources), dict[int, Any]()  # visited values stay alive, so that ids remain unique
    while pending:
        value = pending.pop()
        if id(value) in visited or isinstance(value, _SCALARS):
            continue
        visited[id(value)] = value
        if isinstance(value, AsyncArray):
            yield value.store, value.path
        elif isinstance(value, AsyncSelection):
            pending.append(array_of(value))
        elif (store_path := _attribute(value, "store_path")) is not None:  # an array of zarr-python
            yield resolve(store_path.store), store_path.path
        elif isinstance(value, Mapping):  # only known mappings: the values of others may be all objects of a bucket
            if isinstance(value, dict) or type(value).__module__.partition(".")[0] in ("xarray", "dask"):
                pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(item for item in value if not isinstance(item, _SCALARS))
        elif hasattr(type(value), "__dask_graph__") and (graph := value.__dask_graph__()) is not None:
            pending.extend(_roots(graph))
        else:
            pending.extend(operand for name in _OPERANDS if (operand := _attribute(value, name)) is not None)


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # some properties compute, and fail
        return None


def _roots(graph: Any) -> Iterator[Any]:
    """Yield the inputs of a dask graph without building its tasks, which may be millions."""
    layers: Mapping[str, Any] = getattr(graph, "layers", {"": graph})
    dependencies = getattr(graph, "dependencies", {})
    for name, layer in layers.items():
        indices = getattr(layer, "indices", None)
        if indices is not None:  # a blockwise layer, whose tasks differ only in their block numbers
            yield from (argument for argument, _ in indices)
            yield getattr(layer, "task", None)
        elif not dependencies.get(name):
            yield from layer.values()
