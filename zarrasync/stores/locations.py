"""Locations: what the parts of a URL pipeline denote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from zarrasync._util.redact import redact
from zarrasync.model.paths import normalize_path
from zarrasync.stores.base import Store
from zarrasync.stores.wrappers import PrefixStore


@dataclass(frozen=True)
class Location:
    """What a part of a pipeline denotes: a value of a store, or a directory with the values of another one.

    Attributes:
        url: The part of the pipeline.
        open_directory: Returns the store of the values below.
        open_value: Returns a store and the key of the value in it.
        local_path: The path, for a local file or directory.
        storage_options: Options of the URL at the beginning of the pipeline, if nothing follows it yet.
        zarr_format: The format of the nodes, if the pipeline names it.
    """

    url: str
    open_directory: Callable[[], Store]
    open_value: Callable[[], tuple[Store, str]]
    local_path: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    zarr_format: int | None = None

    def inside(self, store: Store, path: str = "") -> Location:
        """Return the location of a path in a store that an adapter made from this location.

        Args:
            store: The store.
            path: The path, with percent-encoding as in a URL.
        """
        path = normalize_path(unquote(path))

        def open_directory() -> Store:
            return PrefixStore(store, f"{path}/") if path else store

        def open_value() -> tuple[Store, str]:
            if not path:
                raise ValueError(f"{redact(self.url)!r} is not a single value: add the path of one")
            return store, path

        return Location(self.url, open_directory, open_value, zarr_format=self.zarr_format)
