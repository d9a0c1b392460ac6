"""Datasets whose documents and coordinates were fetched before xarray opens them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from zarrasync.integrations.xarray.read import GroupDataStore
from zarrasync.stores import StoreLike

__all__ = ["PreparedDataset"]


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """A dataset that xarray opens without requests, in place of the store that the user passed.

    Equal to the path that the user passed, because xarray looks up paths in lists.

    Attributes:
        path: The store as the user passed it. xarray takes a path for the source of the dataset.
        outcome: The arrays, or the error of opening them.
    """

    path: StoreLike
    outcome: GroupDataStore | Exception

    def result(self) -> GroupDataStore:
        """Return the arrays, or raise the error of opening them."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, str) and other == str(self))

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return os.fspath(self.path) if isinstance(self.path, str | os.PathLike) else repr(self.path)

    def __dask_tokenize__(self) -> Any:
        return [array.__dask_tokenize__() for array in self.result().content.arrays.values()]
