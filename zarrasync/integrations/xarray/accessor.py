"""``dataset.zarrasync``: the stored arrays of lazy variables, and what reading them takes."""

from __future__ import annotations

from typing import Any

import xarray as xr
from xarray.core import indexing

from zarrasync import sync
from zarrasync.display.explanation import Explanation
from zarrasync.integrations.xarray.read import LazyArray
from zarrasync.stores import Store


def _selection(variable: xr.Variable) -> sync.Selection | None:
    """Return the stored elements of a lazy variable; ``None`` if its values are in memory, or in a dask graph."""
    data: Any = variable._data  # noqa: SLF001  # `data` would read it
    key: Any = None
    while data is not None and not isinstance(data, LazyArray):
        if isinstance(data, indexing.LazilyIndexedArray | indexing.LazilyVectorizedIndexedArray):
            if key is not None:
                return None  # indexed around a coder that xarray does not index through
            key = data.key
        data = getattr(data, "array", None)
    if data is None or data.values is not None:
        return None
    view: sync.Selection = data.stored.view if key is None else data.view(key)[key.tuple]
    return view


@xr.register_dataset_accessor("zarrasync")  # type: ignore[no-untyped-call]
class DatasetAccessor:
    """The stored arrays of a dataset that the engine ``"zarrasync"`` opened.

    Variables in memory, such as coordinates, and those with dask chunks are left out.

    Example:
        >>> import xarray as xr
        >>> store = sync.create_group({}).store
        >>> _ = sync.create_array(store, path="t2m", data=np.zeros((8, 8)), chunks=(4, 4), dimension_names=["y", "x"])
        >>> dataset = xr.open_dataset(store, engine="zarrasync")
        >>> dataset.isel(y=0).zarrasync.explain()
        {'t2m': /t2m (8,) float64: 2 chunks, 2 requests, 256 B decoded for 64 B (25%)}
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    @property
    def selections(self) -> dict[str, sync.Selection]:
        """The stored elements of each lazy variable, as lazy selections of stored numbers."""
        found = {str(name): _selection(variable) for name, variable in self._dataset.variables.items()}
        return {name: selection for name, selection in found.items() if selection is not None}

    @property
    def store(self) -> Store:
        """The store of the variables.

        Raises:
            ValueError: If no variable is lazy, or they are in several stores.
        """
        found: list[Store] = [selection.array.store for selection in self.selections.values()]
        stores = {store.identity: store for store in found}
        if len(stores) != 1:
            raise ValueError(
                f"expected lazy variables in one store, found {len(stores)} stores; open the dataset again"
            )
        return next(iter(stores.values()))

    @property
    def chunks(self) -> dict[str, tuple[int, ...]]:
        """The shape of the stored chunks of each lazy variable (inner chunks if its array is sharded)."""
        return {name: selection.array.chunks for name, selection in self.selections.items()}

    def explain(self) -> dict[str, Explanation]:
        """Count the chunks, requests and bytes that loading each lazy variable takes. Makes no requests."""
        return {name: selection.explain() for name, selection in self.selections.items()}


@xr.register_dataarray_accessor("zarrasync")  # type: ignore[no-untyped-call]
class DataArrayAccessor:
    """The stored array of a variable that the engine ``"zarrasync"`` opened."""

    def __init__(self, array: xr.DataArray) -> None:
        self._array = array

    @property
    def selection(self) -> sync.Selection:
        """The stored elements, as a lazy selection of stored numbers.

        Raises:
            ValueError: If the values are in memory or in a dask graph.
        """
        selection = _selection(self._array.variable)
        if selection is None:
            raise ValueError(f"{self._array.name!r} is not lazy: its values are in memory or in a dask graph")
        return selection

    @property
    def store(self) -> Store:
        """The store of the array."""
        store: Store = self.selection.array.store
        return store

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of the stored chunks (inner chunks if the array is sharded)."""
        chunks: tuple[int, ...] = self.selection.array.chunks
        return chunks

    def explain(self) -> Explanation:
        """Count the chunks, requests and bytes that loading the values takes. Makes no requests."""
        return self.selection.explain()
