"""What lazy values are made of: nothing may be erased that is still to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import AsyncGeneratorType, FunctionType, GeneratorType, ModuleType
from typing import Any

from zarrasync.array import AsyncArray
from zarrasync.errors import NodeExistsError
from zarrasync.selection import AsyncSelection
from zarrasync.stores import Store, resolve

__all__ = ["place_of", "refuse_own_source"]

_WITHIN = (
    "_async",  # the synchronous API
    *("variable", "_data", "array", "_array"),  # xarray's arrays, variables and what they wrap
    *("args", "kwargs", "value"),  # dask's tasks
    *("keywords", "__wrapped__", "__self__"),  # functools' functions, and methods
)
"""Where lazy values keep what they are made of."""


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
        if store == its_store and (own.startswith(target) or target.startswith(own)):
            raise NodeExistsError(
                f"/{path} in {at!r} can not be replaced by what is read from it, as it is erased before; "
                "read the values first, or write elsewhere",
                path=path,
                store=repr(at),
            )


def _read_by(sources: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Where the stored arrays lie that sources read."""
    waiting, seen = list(sources), dict[int, Any]()  # what has been seen stays, so that nothing else gets its id
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, str | bytes | int | float):
            continue
        seen[id(found)] = found
        if isinstance(found, AsyncArray):
            yield place_of(found.store, found.path)
        elif isinstance(found, AsyncSelection):
            waiting.append(found.array)
        elif (theirs := _part(found, "store_path")) is not None:  # an array of zarr-python
            yield place_of(resolve(theirs.store), theirs.path)
        elif isinstance(found, Mapping):
            waiting.extend(found.values())
        elif isinstance(found, list | tuple):
            waiting.extend(found)
        elif isinstance(found, FunctionType):
            waiting.extend(_used_by(found))
        elif isinstance(found, GeneratorType | AsyncGeneratorType):
            frame = found.gi_frame if isinstance(found, GeneratorType) else found.ag_frame
            waiting.extend(frame.f_locals.values() if frame is not None else ())
        elif hasattr(type(found), "__dask_graph__") and (graph := found.__dask_graph__()) is not None:
            waiting.extend(_roots(graph))
        else:
            waiting.extend(part for name in _WITHIN if (part := _part(found, name)) is not None)


def _used_by(function: FunctionType) -> Iterator[Any]:
    """What a function may read from: what it was made beside, and what it names."""
    code, around = function.__code__, function.__globals__
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing is in there yet
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    named = (around[name] for name in code.co_names if name in around)
    yield from (value for value in named if not isinstance(value, ModuleType | type))


def _part(found: Any, name: str) -> Any:
    try:
        return getattr(found, name, None)
    except Exception:  # some properties compute, and fail
        return None


def _roots(graph: Any) -> Iterator[Any]:
    """What the tasks of a dask graph begin with, without making all tasks where there may be millions."""
    layers: Mapping[str, Any] = getattr(graph, "layers", {"": graph})
    above = getattr(graph, "dependencies", {})
    for name, layer in layers.items():
        indices = getattr(layer, "indices", None)
        if indices is not None:  # tasks that are alike but for where they look
            yield from (argument for argument, _ in indices)
            yield getattr(layer, "task", None)
        elif not above.get(name):
            yield from layer.values()
