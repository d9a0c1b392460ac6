"""Registration of codecs, data types and storage transformers of other packages, and parsing of storage transformers.

Packages can also provide them as entry points of the groups ``zarrasync.codecs`` (a class), ``zarrasync.data_types`` and
``zarrasync.storage_transformers`` (functions of the configuration). Entry points are loaded when a document contains an
unknown name.

Storage transformers wrap the store of an array's chunks. The array's metadata names them. Sharding, which is a storage
transformer in the draft of format 3, is a codec here. Wrappers that do not change stored values (caches, counters) are not
part of the metadata: users open a wrapped store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from zarrasync import codecs
from zarrasync._util import plugins
from zarrasync.codecs import Codec
from zarrasync.errors import MetadataError
from zarrasync.model import dtypes
from zarrasync.model.dtypes import DataType


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


_transformers: dict[str, Callable[[Mapping[str, Any]], StorageTransformer]] = {}


def register_codec(codec: type[Codec]) -> None:
    """Register a codec, so that documents and ``create_array`` can use it.

    See section "Codecs" of the Zarr v3 core specification.

    Args:
        codec: A frozen dataclass derived from ``codecs.ArrayArrayCodec``, ``ArrayBytesCodec`` or
            ``BytesBytesCodec``. Its ``name`` is the codec's name in documents. Its fields are the parameters that
            ``configuration()`` returns.

    Raises:
        ValueError: If the class has no name, or the name of a codec of this package.
        TypeError: If the class is not derived from a codec class.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class NegateCodec(za.codecs.ArrayArrayCodec):
        ...     name = "example.negate"
        ...     def encode(self, array, spec):
        ...         return -array
        ...     def decode(self, array, spec):
        ...         return -array
        >>> za.register_codec(NegateCodec)
        >>> array = await za.create_array({}, data=np.arange(3), filters=NegateCodec())
        >>> await array[...]
        array([0, 1, 2])
    """
    codecs.register(codec)


def register_data_type(name: str, parse: Callable[[Mapping[str, Any]], DataType]) -> None:
    """Register a data type, so that documents and ``create_array`` can use it.

    See section "Data types" of the Zarr v3 core specification.

    Args:
        name: The name of the data type in documents.
        parse: A function that returns the ``DataType`` for a configuration. The configuration is empty if the document
            contains only the name. The ``DataType`` contains the NumPy dtype of values in memory.

    Raises:
        ValueError: If a data type of this package has the same name.
    """
    dtypes.register(name, parse)


def register_storage_transformer(name: str, make: Callable[[Mapping[str, Any]], StorageTransformer]) -> None:
    """Register a storage transformer, so that documents can use it.

    See section "Storage transformers" of the Zarr v3 core specification.

    Args:
        name: The name in documents, or the URI in documents of the v3 draft.
        make: A function that returns the storage transformer for a configuration. If the configuration is invalid, the
            function raises ``ValueError``, ``TypeError`` or ``KeyError``.
    """
    _transformers[name] = make
    plugins.count_registration()


def parse_storage_transformer(name: str, configuration: Mapping[str, Any]) -> StorageTransformer:
    """Return the storage transformer for a name and a configuration in a document.

    Raises:
        MetadataError: If the transformer is not registered, or the configuration is invalid.
    """
    make = _transformers.get(name) or plugins.find(plugins.TRANSFORMERS, name)
    if make is None:
        names = ", ".join(map(repr, _transformers)) or "none"
        raise MetadataError(f"unknown storage transformer {name!r}; registered storage transformers: {names}")
    try:
        transformer: StorageTransformer = make(configuration)
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(
            f"storage transformer {name!r}: invalid configuration {dict(configuration)!r}: {error}"
        ) from error
    return transformer
