"""Registration of codecs, data types and storage transformers of other packages.

Packages can also provide them as entry points of the groups ``zarrasync.codecs`` (a class), ``zarrasync.data_types`` and
``zarrasync.storage_transformers`` (functions of the configuration). Entry points are loaded when a document contains an
unknown name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zarrasync import codecs
from zarrasync.codecs import Codec
from zarrasync.model import dtypes, storage_transformers
from zarrasync.model.dtypes import DataType
from zarrasync.model.storage_transformers import StorageTransformer


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
        make: A function that returns the storage transformer for a configuration.
    """
    storage_transformers.register(name, make)
