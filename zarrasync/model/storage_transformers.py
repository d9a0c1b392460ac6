"""Storage transformers: stores around the store of an array's chunks, named in its metadata.

The one that the draft of format 3 knows by itself, sharding, is not among them: it is a codec here. Others are
made known with ``register`` or by an entry point. Wrappers that change nothing that is stored (caches,
counters) need no name in metadata: they are stores around the store that is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from zarrasync._util import plugins
from zarrasync.errors import MetadataError

__all__ = ["StorageTransformer", "parse", "register"]


class StorageTransformer(Protocol):
    """What stands between an array and its store.

    Attributes:
        name: Its name in documents of format 3; its URI in those of the draft.
    """

    name: str

    def configuration(self) -> Mapping[str, Any]:
        """Its parameters, as documents have them."""
        ...

    def wrap(self, store: Any) -> Any:
        """A store that keeps its values, transformed, in ``store``. Its keys are relative to the array."""
        ...


_known: dict[str, Callable[[Mapping[str, Any]], StorageTransformer]] = {}


def register(name: str, make: Callable[[Mapping[str, Any]], StorageTransformer]) -> None:
    """Make a storage transformer known under a name.

    Args:
        name: The name, or URI, in documents.
        make: Makes one of a configuration. May raise ``ValueError``, ``TypeError`` and ``KeyError`` for one
            that does not fit.
    """
    _known[name] = make
    plugins.registered()


def parse(name: str, configuration: Mapping[str, Any]) -> StorageTransformer:
    """The transformer of a document.

    Raises:
        MetadataError: If it is not known, or its configuration wrong.
    """
    make = _known.get(name) or plugins.find(plugins.TRANSFORMERS, name)
    if make is None:
        known = ", ".join(map(repr, _known)) or "none"
        raise MetadataError(f"unknown storage transformer {name!r}; registered are {known}")
    try:
        found: StorageTransformer = make(configuration)
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(
            f"storage transformer {name!r}: bad configuration {dict(configuration)!r}: {error}"
        ) from error
    return found
