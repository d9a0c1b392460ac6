"""What lazy values are made of: nothing may be erased that is still to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zarrasync.array import AsyncArray
from zarrasync.errors import NodeExistsError
from zarrasync.selection import AsyncSelection
from zarrasync.stores import LocalStore, Store

__all__ = ["place_of", "refuse_own_source"]

_WITHIN = ("_async", "array", "_array", "_data", "variable", "args", "kwargs", "value")
"""Where lazy arrays (ours, xarray's, dask's tasks) keep what they are made of."""


def place_of(store: Store, path: str) -> tuple[Any, ...]:
    """Where a node of a store is; the last part is a path that ends with a slash."""
    found = store.location(path or ".")
    parts = found if isinstance(found, tuple) else (found,)
    last = str(parts[-1]).removesuffix(".")
    return (*parts[:-1], last.rstrip("/") + "/" if path else last)


def refuse_own_source(at: Store, path: str, *sources: Any) -> None:
    """Complain about values that are read from what is to be replaced by them.

    Raises:
        NodeExistsError: If one of the sources lies there, or is computed of what does.
    """
    *store, target = place_of(at, path)
    for *its_store, own in _read_by(sources):
        if store != its_store or not (own.startswith(target) or target.startswith(own)):
            continue
        raise NodeExistsError(
            f"/{path} in {at!r} can not be replaced by what is read from it, as it is erased before; "
            "read the values first, or write elsewhere",
            path=path,
            store=repr(at),
        )


def _read_by(sources: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Where the stored arrays lie that sources read."""
    waiting, seen = list(sources), set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, str | bytes | int | float):
            continue
        seen.add(id(found))
        theirs = getattr(found, "store_path", None)  # of an array of zarr-python
        if isinstance(found, AsyncArray):
            yield place_of(found.store, found.path)
        elif isinstance(found, AsyncSelection):
            waiting.append(found.array)
        elif theirs is not None and hasattr(theirs.store, "root"):
            yield place_of(LocalStore(theirs.store.root), theirs.path)
        elif isinstance(found, Mapping):
            waiting.extend(found.values())
        elif isinstance(found, list | tuple):
            waiting.extend(found)
        elif hasattr(found, "__dask_graph__"):
            waiting.append(found.__dask_graph__() or {})
        else:
            waiting.extend(getattr(found, name) for name in _WITHIN if hasattr(found, name))
