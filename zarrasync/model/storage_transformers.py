"""Storage transformers, which wrap the store of an array's chunks. The array's metadata names them.

Other packages provide them with ``register`` or by an entry point. Sharding, which is a storage transformer in the draft
of format 3, is a codec here. Wrappers that do not change stored values (caches, counters) are not part of the metadata:
users open a wrapped store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from zarrasync._util import plugins
from zarrasync.errors import MetadataError


class StorageTransformer(Protocol):
    """A transformer between an array and its store.

    See section "Storage transformers" of the Zarr v3 core specification.

    Attributes:
        name: The name in v3 documents, or the URI in documents of the draft.
    """

    name: str

    def configuration(self) -> Mapping[str, Any]:
        """Return the ``configuration`` member of documents."""
        ...

    def wrap(self, store: Any) -> Any:
        """Return a store that keeps transformed values in ``store``. Keys are relative to the array."""
        ...


_registered: dict[str, Callable[[Mapping[str, Any]], StorageTransformer]] = {}


def register(name: str, make: Callable[[Mapping[str, Any]], StorageTransformer]) -> None:
    """Register a storage transformer.

    Args:
        name: The name or URI in documents.
        make: A function that returns the transformer for a configuration. If the configuration is invalid, the function
            raises ``ValueError``, ``TypeError`` or ``KeyError``.
    """
    _registered[name] = make
    plugins.count_registration()


def parse(name: str, configuration: Mapping[str, Any]) -> StorageTransformer:
    """Return the storage transformer for a name and a configuration in a document.

    Raises:
        MetadataError: If the transformer is not registered, or the configuration is invalid.
    """
    make = _registered.get(name) or plugins.find(plugins.TRANSFORMERS, name)
    if make is None:
        names = ", ".join(map(repr, _registered)) or "none"
        raise MetadataError(f"unknown storage transformer {name!r}; registered storage transformers: {names}")
    try:
        transformer: StorageTransformer = make(configuration)
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(
            f"storage transformer {name!r}: invalid configuration {dict(configuration)!r}: {error}"
        ) from error
    return transformer
