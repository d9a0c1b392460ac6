"""Storage transformers: an array's metadata names them, and each wraps the store of the array's chunks.

Other packages offer them with ``register`` or by an entry point. Sharding, which is a storage transformer in the draft of
format 3, is a codec here. Wrappers that do not change stored values (caches, counters) are not in metadata: users open
a wrapped store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from zarrasync._util import plugins
from zarrasync.errors import MetadataError

__all__ = ["StorageTransformer", "parse", "register"]


class StorageTransformer(Protocol):
    """Transformer between an array and its store.

    See "Storage transformers" in the Zarr v3 core specification.

    Attributes:
        name: Its name in documents of format 3, or its URI in documents of the draft.
    """

    name: str

    def configuration(self) -> Mapping[str, Any]:
        """Return the ``configuration`` member of documents."""
        ...

    def wrap(self, store: Any) -> Any:
        """Return a store that keeps its values, transformed, in ``store``. Keys are relative to the array."""
        ...


_registered: dict[str, Callable[[Mapping[str, Any]], StorageTransformer]] = {}


def register(name: str, make: Callable[[Mapping[str, Any]], StorageTransformer]) -> None:
    """Register a storage transformer.

    Args:
        name: The name, or URI, in documents.
        make: Returns the transformer of a configuration. It may raise ``ValueError``, ``TypeError`` and ``KeyError``
            for an invalid one.
    """
    _registered[name] = make
    plugins.count_registration()


def parse(name: str, configuration: Mapping[str, Any]) -> StorageTransformer:
    """Return the storage transformer of a name and configuration in a document.

    Raises:
        MetadataError: If it is not registered, or the configuration is invalid.
    """
    make = _registered.get(name) or plugins.find(plugins.TRANSFORMERS, name)
    if make is None:
        names = ", ".join(map(repr, _registered)) or "none"
        raise MetadataError(f"unknown storage transformer {name!r}; registered are {names}")
    try:
        transformer: StorageTransformer = make(configuration)
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(
            f"storage transformer {name!r}: bad configuration {dict(configuration)!r}: {error}"
        ) from error
    return transformer
