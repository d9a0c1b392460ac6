"""Base classes of the synchronous API: Python's and NumPy's protocols.

Everything else in ``sync`` is generated from the asynchronous classes by ``_util.generate_sync``.
"""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from zarrasync._concurrency.bridge import iterate, run
from zarrasync.indexing.regions import Region
from zarrasync.nodes.access import replace_attributes, store_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.decoded import AsyncDecodedArray
from zarrasync.nodes.group import AsyncGroup
from zarrasync.nodes.like_numpy import missing_attribute, without_arithmetic
from zarrasync.nodes.selection import Accessor, AsyncBlocks, AsyncSelection, select
from zarrasync.stores.local import LocalStore

if TYPE_CHECKING:
    from zarrasync.bulk.jobs.plan import AsyncJobPlan

T = TypeVar("T")
Member_co = TypeVar("Member_co", covariant=True)

_FACADES: dict[tuple[str, str], Callable[[Any], Any]] = {}


def register(module: str, name: str, facade: Callable[[Any], Any]) -> None:
    """Register the synchronous class for an asynchronous one, whose module may not be imported yet."""
    _FACADES[module, name] = facade


def to_sync(value: Any) -> Any:
    """Replace asynchronous objects with synchronous ones, also inside tuples and dicts."""
    cls = type(value)
    facade = _FACADES.get((cls.__module__, cls.__name__))
    if facade is not None:
        return facade(value)
    if type(value) is tuple:
        return tuple(map(to_sync, value))
    if type(value) is dict:
        return {key: to_sync(item) for key, item in value.items()}
    return value


def call(function: Callable[..., Coroutine[Any, Any, Any]], arguments: dict[str, Any], **stores: Any) -> Any:
    """Call a function of the asynchronous API, and return its result with synchronous objects.

    Args:
        function: The function.
        arguments: Its arguments by name.
        **stores: The stores or nodes that arguments stand for, to know whether they are blocking. Functions without any
            need the names of stores, and resolve them themselves.
    """
    options = [f"{name}_options" if f"{name}_options" in arguments else "storage_options" for name in stores]
    blocking = bool(stores) and all(store_of(store).blocking for store in stores.values())
    return to_sync(run(function(**arguments | dict.fromkeys(options) | stores), blocking=blocking))


class _LastIteration(threading.local):
    """The iteration over the names of a group that this thread started last, until it calls another method.

    Attributes:
        names: A weak reference to the iterator, or a function that returns ``None``.
    """

    def __init__(self) -> None:
        self.names: Callable[[], _Names | None] = _no_names


def _no_names() -> None:
    """Return ``None``, like a dead weak reference."""


_last_iteration = _LastIteration()


class Facade:
    """A synchronous object that wraps an asynchronous one and has no other state."""

    __slots__ = ("_async",)
    _async: Any

    def __init__(self, async_: Any) -> None:
        self._async = async_

    @property
    @abstractmethod
    def _blocking(self) -> bool:
        """Whether the store is blocking."""

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        _last_iteration.names = _no_names  # the call may change the members
        return run(coroutine, blocking=self._blocking)

    def __eq__(self, other: object) -> Any:
        return self._async == other._async if isinstance(other, Facade) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the asynchronous object changes

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    def _repr_html_(self) -> str:
        text: str = self._async._repr_html_()
        return text


class PropertiesBase(Facade):
    """Base class of nodes and decoded arrays, which have a store to close."""

    __slots__ = ()

    @property
    def _blocking(self) -> bool:
        blocking: bool = self._async._cell.handle.store.blocking  # without the calls of two properties
        return blocking

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._async.close())


class NodeBase(PropertiesBase):
    """Base class of arrays and groups."""

    __slots__ = ()

    @property
    def attrs(self) -> Attributes:
        """The attributes. Each change is stored immediately.

        Example:
            >>> group = sync.create_group({})
            >>> group.attrs["title"] = "test"
            >>> group.attrs
            {'title': 'test'}
        """
        return Attributes(self)


class Attributes(MutableMapping[str, Any]):
    """The attributes of a node. Each change is stored before the call returns."""

    def __init__(self, facade: NodeBase) -> None:
        self._facade = facade

    def __getitem__(self, name: str) -> Any:
        return self._facade._async.attrs[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        attributes = dict(self)
        del attributes[name]
        self.put(attributes)

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
        """Return a copy as a dict."""
        return dict(self)


class Indexer:
    """A kind of indexing, such as ``array.oindex[...]``. It reads and writes immediately."""

    def __init__(self, accessor: Accessor, run_: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._accessor, self._run = accessor, run_

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self._run(self._accessor[key].read())
        return values

    def __setitem__(self, key: Any, value: npt.ArrayLike) -> None:
        self._run(self._accessor[key].write(value))


class LazyIndexer:
    """A kind of indexing of a lazy selection. It returns a lazy selection."""

    def __init__(self, accessor: Accessor) -> None:
        self._accessor = accessor

    def __getitem__(self, key: Any) -> Any:
        return to_sync(self._accessor[key])


@without_arithmetic("np.asarray(array) or array[...]", lambda other: isinstance(other, Facade | Number | str | bytes))
class ValuesBase(Facade):
    """Base class of arrays and selections: what Python and NumPy do with a sequence of values. It reads them."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> Never:
            raise missing_attribute(self, name, "array[...]" if isinstance(self, NodeBase) else "np.asarray(array)")

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("copy") is False:
            raise BufferError("cannot export without a copy, because the values are read: omit copy=False")
        return np.asarray(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.empty(0).__dlpack_device__()

    def __len__(self) -> int:
        return len(self._async)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("cannot convert without a copy, because the values are read: omit copy=False")
        values: npt.NDArray[Any] = self._run(self._view[...].read())
        return values if dtype is None else values.astype(dtype, copy=False)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the elements along the first axis. Each chunk is read once."""
        if len(self):
            axis = self._view._block_axes("auto")[0]
            for number in range(axis.nchunks):
                start = axis.start(number)
                yield from self._run(self._view[start : start + axis.size(number)].read())

    @property
    def _view(self) -> AsyncSelection:
        """The selection of all values."""
        return self._async if isinstance(self._async, AsyncSelection) else self._async.view


class SelectedArrayBase(ValuesBase, PropertiesBase):
    """Base class of arrays of stored numbers and of decoded values. Indexing reads and writes immediately."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        selection = select(self._async, key)
        values = selection._read_at_once()
        return self._run(selection.read()) if values is None else values

    def __setitem__(self, key: Any, value: npt.ArrayLike) -> None:
        self._run(select(self._async, key).write(value))

    @property
    def oindex(self) -> Indexer:
        """Orthogonal indexing: an integer, slice, list of integers or mask for each axis independently."""
        return Indexer(self._async.oindex, self._run)

    @property
    def vindex(self) -> Indexer:
        """Coordinate indexing: points, as an integer array per axis, or a mask of the array's shape."""
        return Indexer(self._async.vindex, self._run)


class ArrayBase(SelectedArrayBase, NodeBase):
    """An N-dimensional array of chunks in a store.

    Indexing reads and writes immediately, as in NumPy; ``view`` is a lazy selection. Arrays are returned by
    ``open_array``, ``create_array`` and the methods of groups. ``resize``, ``append`` and ``attrs`` change an array in
    place.

    Example:
        >>> array = sync.create_array({}, shape=(4, 4), dtype="i4", chunks=(2, 2))
        >>> array[1:3] = 7
        >>> array[:, 0]
        array([0, 7, 7, 0], dtype=int32)
    """

    __slots__ = ()
    _async: AsyncArray

    @property
    def async_(self) -> AsyncArray:
        """The asynchronous object for the same node."""
        return self._async

    def __dask_tokenize__(self) -> Any:
        """Return a token for dask: the location, the metadata, and the versions of the documents, if known."""
        metadata = self._async.metadata
        versions = metadata.source.versions if metadata.source is not None else {}
        node = (repr(self._async.store), self._async.path, repr(metadata), dict(metadata.attributes))
        return (type(self).__name__, node, sorted((key, repr(version)) for key, version in versions.items()))

    def __fspath__(self) -> str:
        """Return the directory of an array in local files, by which functions such as ``dask.array.from_zarr`` open it.

        Raises:
            TypeError: If the array is in another store.
        """
        store = self._async.store
        if not isinstance(store, LocalStore):
            raise TypeError(
                f"{self._async.name} in {store!r} is not a local file; pass values, or for dask use "
                "zarrasync.integrations.dask.from_zarr(array)"
            )
        return str(store.root / self._async.path)

    @property
    def blocks(self) -> Indexer:
        """Block indexing: whole shards (chunks if the array is not sharded) by their grid coordinates."""
        return Indexer(self._async.blocks, self._run)


class DecodedArrayBase(SelectedArrayBase):
    """The physical values of an array: with scale and offset, missing ones as NaN, encoded times as dates.

    Attributes specify what stored numbers mean, by the conventions of CF: ``scale_factor``, ``add_offset``, ``_FillValue``,
    ``missing_value``, ``valid_range``, ``units`` and ``calendar`` of times, flags. ``array.decoded`` and
    ``open_array(decode=True)`` return decoded arrays. Indexing reads values and writes them, encoded, as in NumPy;
    ``view`` is a lazy selection. A read takes the same requests as one of stored numbers. An error names the first value
    that cannot be represented.

    Times are ``datetime64`` in a unit that can represent them, and objects of cftime in other calendars than the Gregorian
    one.

    Example:
        >>> attributes = {"scale_factor": 0.5, "_FillValue": -1, "units": "K"}
        >>> array = sync.create_array({}, data=np.array([546, -1], "i2"), attributes=attributes)
        >>> array.decoded[:]
        array([273.,  nan])
    """

    __slots__ = ()
    _async: AsyncDecodedArray

    @property
    def async_(self) -> AsyncDecodedArray:
        """The asynchronous object for the same values."""
        return self._async

    @property
    def stored(self) -> Any:
        """The array of stored numbers."""
        return to_sync(self._async.stored)


class JobPlanBase(Facade):
    """A job that is divided into tasks, which run anywhere: in this process, in others, or by a scheduler.

    ``run`` each task, in any order and at the same time, then ``finish``: readers see the result only then. Until a plan is
    finished or abandoned, other jobs cannot change its destination. A plan is a JSON document that lies at
    ``.ingest/plan.json`` in the destination, or at the place that ``plan`` names; ``open_plan`` opens it on other machines.
    It contains no credentials. Plans of data without a name, such as arrays in memory, have no document, but can be pickled.

    Example:
        >>> source, dest = {}, {}
        >>> _ = sync.create_array(source, data=np.arange(4), chunks=(2,))
        >>> plan = sync.plan_copy(source, dest, chunks=(1,), tasks=2)
        >>> reports = list(map(plan.run, range(len(plan.tasks))))
        >>> report = plan.finish()
        >>> sync.load(dest)
        array([0, 1, 2, 3])
    """

    __slots__ = ()
    _async: AsyncJobPlan

    @property
    def _blocking(self) -> bool:
        return True  # it waits for its stores itself


class SelectionBase(ValuesBase):
    """A part of an array that has not been read yet.

    Indexing a selection again returns a smaller selection. ``read`` and ``np.asarray`` read it.

    Example:
        >>> array = sync.create_array({}, data=np.arange(8))
        >>> part = array.view[2:8][::2]
        >>> part.read()
        array([2, 4, 6])
    """

    __slots__ = ()
    _async: AsyncSelection

    @property
    def _blocking(self) -> bool:
        return self._async.array.store.blocking

    @property
    def async_(self) -> AsyncSelection:
        """The asynchronous object for the same selection."""
        return self._async

    def __setitem__(self, key: Any, value: npt.ArrayLike) -> None:
        self._run(self._async[key].write(value))

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == other

    def __ne__(self, other: object) -> Any:
        return np.asarray(self) != other

    def __contains__(self, value: object) -> Never:
        raise TypeError("a selection that is not read cannot be searched; use value in selection.read()")

    def __bool__(self) -> bool:
        size: int = self._async.size
        if size != 1:
            raise ValueError(
                f"a selection of {size:,} values is neither true nor false; use np.any(selection) or np.all(selection)"
            )
        return bool(np.asarray(self))

    __hash__ = None  # type: ignore[assignment]  # like NumPy's arrays

    def chunks(self, unit: tuple[int, ...] | Literal["auto"] = "auto") -> Blocks:
        """Read the selection block by block. The next block is read while the caller processes the current one.

        Args:
            unit: The shape of a block. Blocks at the edges are smaller. ``"auto"``: the shape of a shard (or chunk),
                reduced to at most an eighth of ``config.memory_budget``.

        Returns:
            An iterator over pairs: the location of a block in the selection, as a tuple of slices, and its values. Its
            length is the number of blocks.

        Raises:
            SelectionError: If ``unit`` does not have a positive size for each axis.
            CodecError: If a chunk is damaged.
            StoreError: If the store failed.

        Example:
            >>> array = sync.create_array({}, data=np.arange(4), chunks=(2,))
            >>> len(array.view.chunks())
            2
            >>> for region, block in array.view.chunks():
            ...     print(region[0].start, block.sum())
            0 1
            2 5
        """
        return Blocks(self._async.chunks(unit), blocking=self._blocking)

    @property
    def array(self) -> Any:
        """The array that the selection is a part of."""
        return to_sync(self._async.array)

    @property
    def oindex(self) -> LazyIndexer:
        """Orthogonal indexing: an integer, slice, list of integers or mask for each dimension independently."""
        return LazyIndexer(self._async.oindex)

    @property
    def vindex(self) -> LazyIndexer:
        """Coordinate indexing: points, as an integer array per dimension, or a mask of the selection's shape."""
        return LazyIndexer(self._async.vindex)


class Blocks(Iterator[tuple[Region, npt.NDArray[Any]]]):
    """The blocks of a selection, which are read one after the other. Their number is the length.

    Args:
        blocks: The blocks.
        blocking: Whether they are in a blocking store.
    """

    def __init__(self, blocks: AsyncBlocks, *, blocking: bool) -> None:
        self._count, self._source = len(blocks), iterate(blocks, blocking=blocking)

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> tuple[Region, npt.NDArray[Any]]:
        return next(self._source)

    def close(self) -> None:
        """Stop reading."""
        self._source.close()


class _Names(Iterator[str]):
    """An iterator over the names of a group's members.

    ``list`` and ``sorted`` ask a group for its length when they start to iterate over it. This class avoids a second
    listing for that.

    Attributes:
        group: The group.
        count: The number of names.
        has_started: Whether a name has been returned.
    """

    def __init__(self, group: GroupBase[Any], names: Sequence[str]) -> None:
        self.group, self.count, self.has_started = group, len(names), False
        self._names = iter(names)
        _last_iteration.names = weakref.ref(self)

    def __next__(self) -> str:
        self.has_started = True
        return next(self._names)


class GroupBase(NodeBase, Mapping[str, Member_co]):
    """A group: a mapping from names to arrays and groups.

    Groups are returned by ``open_group``, ``create_group`` and the methods of other groups.

    Example:
        >>> group = sync.create_group({})
        >>> group["t2m"] = np.zeros((4, 4), "f4")
        >>> list(group)
        ['t2m']
        >>> group["t2m"].shape
        (4, 4)
    """

    __slots__ = ()
    _async: AsyncGroup

    @property
    def async_(self) -> AsyncGroup:
        """The asynchronous object for the same node."""
        return self._async

    def __getitem__(self, name: str) -> Member_co:
        member: Member_co = to_sync(self._run(self._async.getitem(name)))
        return member

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
        names = _last_iteration.names()
        if names is not None and names.group is self and not names.has_started:
            return names.count
        return self._run(self._async.nmembers())

    def __bool__(self) -> bool:
        return True  # also an empty group, so that no listing is needed

    def __eq__(self, other: object) -> Any:
        return Facade.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]  # as in Facade

    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the members, sorted."""
        return self._run(self._async.keys())

    def items(self) -> tuple[tuple[str, Member_co], ...]:  # type: ignore[override]  # no view, so that one listing suffices
        """Return pairs of name and member, sorted by name. Takes one listing and one batch of requests."""
        pairs: tuple[tuple[str, Member_co], ...] = to_sync(self._run(self._async.members()))
        return pairs

    def values(self) -> tuple[Member_co, ...]:  # type: ignore[override]
        """Return the members, sorted by name."""
        return tuple(node for _, node in self.items())

    @overload
    def get(self, name: str) -> Member_co | None: ...

    @overload
    def get(self, name: str, default: T) -> Member_co | T: ...

    def get(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Open a member, or return the default if it does not exist."""
        return to_sync(self._run(self._async.get(name, default)))
