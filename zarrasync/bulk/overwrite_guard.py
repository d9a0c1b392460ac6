"""What lazy values are made of: nothing may be erased that is still to be read."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import AsyncGeneratorType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from zarrasync.errors import NodeExistsError
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.selection import AsyncSelection
from zarrasync.stores import Store, resolve

__all__ = ["place_of", "refuse_own_source"]

_WITHIN = (
    "_async",  # the synchronous API
    *("variable", "_data", "array", "_array"),  # xarray's arrays, variables and what they wrap
    *("args", "kwargs", "value"),  # dask's tasks
    *("func", "keywords", "__wrapped__"),  # functools' functions
)
"""Where lazy values keep what they are made of."""
_SIMPLE = (str, bytes, int, float, ModuleType, type)


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
        if id(found) in seen or isinstance(found, _SIMPLE):
            continue
        seen[id(found)] = found
        if isinstance(found, AsyncArray):
            yield place_of(found.store, found.path)
        elif isinstance(found, AsyncSelection):
            waiting.append(found.array)
        elif (theirs := _part(found, "store_path")) is not None:  # an array of zarr-python
            yield place_of(resolve(theirs.store), theirs.path)
        elif isinstance(found, Mapping):  # not any, as the values of one may be all objects of a bucket
            if isinstance(found, dict) or type(found).__module__.partition(".")[0] in ("xarray", "dask"):
                waiting.extend(found.values())
        elif isinstance(found, list | tuple):
            waiting.extend(part for part in found if not isinstance(part, _SIMPLE))
        elif isinstance(found, FunctionType):
            waiting.extend(_bound_to(found))
            waiting.extend(_named_by(found.__code__, found.__globals__))
        elif isinstance(found, MethodType):
            waiting.append(found.__func__)
            waiting.extend(_kept_by(found.__self__, found.__func__))
        elif isinstance(found, GeneratorType | AsyncGeneratorType):
            frame = found.gi_frame if isinstance(found, GeneratorType) else found.ag_frame
            if frame is not None:
                waiting.extend(frame.f_locals.values())
                waiting.extend(_named_by(frame.f_code, frame.f_globals))
        elif isinstance(found, map | filter | zip | enumerate):
            waiting.extend(found.__reduce__()[1])  # what it was made of
        elif hasattr(type(found), "__dask_graph__") and (graph := found.__dask_graph__()) is not None:
            waiting.extend(_roots(graph))
        else:
            waiting.extend(part for name in _WITHIN if (part := _part(found, name)) is not None)
            if isinstance(call := _part(type(found), "__call__"), FunctionType):
                waiting.append(MethodType(call, found))


def _bound_to(function: FunctionType) -> Iterator[Any]:
    """What a function was made beside."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing is in there yet
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _named_by(code: CodeType, around: Mapping[str, Any]) -> Iterator[Any]:
    """The globals that code names."""
    for part in _codes(code):
        names = {step.argval for step in dis.get_instructions(part) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        yield from (around[name] for name in names if name in around)


def _kept_by(owner: Any, method: Any) -> Iterator[Any]:
    """The attributes of an object that one of its methods names."""
    yield owner
    if (code := getattr(method, "__code__", None)) is not None:
        names = {name for part in _codes(code) for name in part.co_names}
        yield from (value for name, value in getattr(owner, "__dict__", {}).items() if name in names)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and what is defined inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


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
