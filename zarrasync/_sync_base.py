"""The hand-written part of the synchronous facade: what Python's own protocols ask for.

Everything else of ``sync`` is generated from the asynchronous classes (see ``_codegen``).
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy.typing as npt

from zarrasync._concurrency.bridge import run
from zarrasync.nodes.access import replace_attributes
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.selection import Accessor, AsyncSelection, select

__all__ = [
    "ArrayBase",
    "Attributes",
    "GroupBase",
    "Indexer",
    "SelectionBase",
    "register",
    "to_sync",
]

T = TypeVar("T")

_FACADES: dict[type, Callable[[Any], Any]] = {}


def register(asynchronous: type, facade: Callable[[Any], Any]) -> None:
    """Say which facade stands before an asynchronous class."""
    _FACADES[asynchronous] = facade


def to_sync(value: Any) -> Any:
    """A result with facades in the place of asynchronous objects, also inside tuples and dicts."""
    facade = _FACADES.get(type(value))
    if facade is not None:
        return facade(value)
    if type(value) is tuple:
        return tuple(map(to_sync, value))
    if type(value) is dict:
        return {key: to_sync(item) for key, item in value.items()}
    return value


def _nothing() -> None:
    """No names: what a reference to them says, too, when they are gone."""


class _Latest(threading.local):
    """The names of a group's members that this thread has begun to iterate over last, if nothing was done since."""

    def __init__(self) -> None:
        self.names: Callable[[], _Names | None] = _nothing


_latest = _Latest()


class Facade:
    """Holds an asynchronous object and nothing else."""

    __slots__ = ("_async",)
    _async: Any

    def __init__(self, async_: Any) -> None:
        self._async = async_

    @property
    @abstractmethod
    def _blocking(self) -> bool:
        """Whether the store is blocking."""

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        _latest.names = _nothing  # there may be others after this
        return run(coroutine, blocking=self._blocking)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facade) and bool(self._async == other._async)

    __hash__ = None  # type: ignore[assignment]  # what it stands for changes

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    def _repr_html_(self) -> str:
        text: str = self._async._repr_html_()
        return text


class _Closing(Facade):
    __slots__ = ()

    @property
    def _blocking(self) -> bool:
        blocking: bool = self._async.store.blocking
        return blocking

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._async.close())

    @property
    def attrs(self) -> Attributes:
        """The attributes, live: setting one stores it."""
        return Attributes(self)


class Attributes(MutableMapping[str, Any]):
    """A node's attributes. Each change is stored before it returns."""

    def __init__(self, facade: _Closing) -> None:
        self._facade = facade

    def __getitem__(self, name: str) -> Any:
        return self._facade._async.attrs[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        rest = dict(self)
        del rest[name]
        self.put(rest)

    def __iter__(self) -> Iterator[str]:
        return iter(self._facade._async.attrs)

    def __len__(self) -> int:
        return len(self._facade._async.attrs)

    def __repr__(self) -> str:
        return repr(dict(self))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several attributes with one write."""
        self._facade._run(self._facade._async.update_attributes(dict(*args, **kwargs)))

    def put(self, attributes: Mapping[str, Any]) -> None:
        """Replace all attributes with one write."""
        self._facade._run(replace_attributes(self._facade._async, attributes))

    def asdict(self) -> dict[str, Any]:
        """A copy as a dict."""
        return dict(self)


class Indexer:
    """One way of indexing, as ``array.oindex[...]``; reads and writes at once."""

    def __init__(self, accessor: Accessor, run_: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._accessor, self._run = accessor, run_

    def __getitem__(self, key: Any) -> Any:
        return self._run(self._accessor[key].read())

    def __setitem__(self, key: Any, value: npt.ArrayLike) -> None:
        self._run(self._accessor[key].write(value))


class LazyIndexer:
    """One way of indexing a lazy selection; gives a lazy selection."""

    def __init__(self, accessor: Accessor) -> None:
        self._accessor = accessor

    def __getitem__(self, key: Any) -> Any:
        return to_sync(self._accessor[key])


class ArrayBase(_Closing):
    """Arrays: NumPy's protocols."""

    __slots__ = ()
    _async: AsyncArray

    @property
    def async_(self) -> AsyncArray:
        """The asynchronous object behind this one."""
        return self._async

    def __len__(self) -> int:
        return len(self._async)

    def __getitem__(self, key: Any) -> Any:
        return self._run(select(self._async, key).read())

    def __setitem__(self, key: Any, value: npt.ArrayLike) -> None:
        self._run(select(self._async, key).write(value))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("an array in a store can not be had without a copy; leave out copy=False")
        values: npt.NDArray[Any] = self._run(self._async.view[...].read())
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dask_tokenize__(self) -> Any:
        """What tells this array from others: where it is, its metadata, and its version where that is known."""
        metadata = self._async.metadata
        versions = metadata.source.versions if metadata.source is not None else {}
        own = (repr(self._async.store), self._async.path, repr(metadata), dict(metadata.attributes))
        return (type(self).__name__, own, sorted((key, repr(version)) for key, version in versions.items()))

    def __iter__(self) -> Iterator[Any]:
        """The elements along the first axis; each chunk is read once."""
        step = self._async.metadata.write_chunks[0] if self._async.ndim else 0
        for start in range(0, len(self), max(step, 1)):
            yield from self._run(self._async.view[start : start + step].read())

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: each axis on its own, by integers, slices, integer lists or masks."""
        return Indexer(self._async.oindex, self._run)

    @property
    def vindex(self) -> Indexer:
        """Coordinate indexing: points given by an integer array per axis, or a mask."""
        return Indexer(self._async.vindex, self._run)

    @property
    def blocks(self) -> Indexer:
        """Block indexing: whole shards (chunks where there are none) by their grid coordinates."""
        return Indexer(self._async.blocks, self._run)


class SelectionBase(Facade):
    """Lazy selections: indexing, and NumPy's protocols."""

    __slots__ = ()
    _async: AsyncSelection

    @property
    def _blocking(self) -> bool:
        return self._async.array.store.blocking

    @property
    def async_(self) -> AsyncSelection:
        """The asynchronous object behind this one."""
        return self._async

    def __len__(self) -> int:
        return len(self._async)

    def __getitem__(self, key: Any) -> Any:
        return to_sync(self._async[key])

    def __setitem__(self, key: Any, value: npt.ArrayLike) -> None:
        self._run(self._async[key].write(value))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a selection can not be had without a copy; leave out copy=False")
        values: npt.NDArray[Any] = self._run(self._async[...].read())
        return values if dtype is None else values.astype(dtype, copy=False)

    @property
    def array(self) -> Any:
        """The array it is a part of."""
        return to_sync(self._async.array)

    @property
    def oindex(self) -> LazyIndexer:
        """Orthogonal indexing: each axis on its own."""
        return LazyIndexer(self._async.oindex)

    @property
    def vindex(self) -> LazyIndexer:
        """Coordinate indexing: points, or a mask."""
        return LazyIndexer(self._async.vindex)


class _Names(Iterator[str]):
    """Names of a group's members.

    ``list`` and ``sorted`` ask for the length of what they have just begun to iterate over, which is known here.
    """

    def __init__(self, group: GroupBase, names: Sequence[str]) -> None:
        self.group, self.count, self.begun = group, len(names), False
        self._rest = iter(names)
        _latest.names = weakref.ref(self)

    def __next__(self) -> str:
        self.begun = True
        return next(self._rest)


class GroupBase(_Closing, Mapping[str, Any]):
    """Groups: a mapping from names to arrays and groups."""

    __slots__ = ()
    _async: AsyncGroup

    @property
    def async_(self) -> AsyncGroup:
        """The asynchronous object behind this one."""
        return self._async

    def __getitem__(self, name: str) -> Any:
        return to_sync(self._run(self._async.getitem(name)))

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        self._run(self._async.setitem(name, value))

    def __delitem__(self, name: str) -> None:
        self._run(self._async.delete(name))

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._run(self._async.contains(name))

    def __iter__(self) -> Iterator[str]:
        return _Names(self, self._run(self._async.keys()))

    def __len__(self) -> int:
        names = _latest.names()
        if names is not None and names.group is self and not names.begun:
            return names.count
        return self._run(self._async.nmembers())

    def __bool__(self) -> bool:
        return True  # an empty group is a group, and asking must not list

    def __eq__(self, other: object) -> bool:
        return Facade.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]  # as in Facade

    def keys(self) -> Any:
        """The names of the members."""
        return self._run(self._async.keys())

    def items(self) -> Any:
        """Names and members, with one listing and one batch of documents."""
        return to_sync(self._run(self._async.members()))

    def values(self) -> Any:
        """The members."""
        return tuple(node for _, node in self.items())

    def get(self, name: str, default: Any = None) -> Any:
        """The member of a name, or the default if there is none."""
        return to_sync(self._run(self._async.get(name, default)))
