"""Registration of codecs, data types and storage transformers of other packages.

Packages can also offer them by entry points of the groups ``zarrasync.codecs`` (a class), ``zarrasync.data_types`` and
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

__all__ = ["register_codec", "register_data_type", "register_storage_transformer"]


def register_codec(codec: type[Codec]) -> None:
    """Register a codec for documents and for ``create_array``.

    See "Codecs" in the Zarr v3 core specification.

    Args:
        codec: A frozen dataclass derived from ``codecs.ArrayArrayCodec``, ``ArrayBytesCodec`` or
            ``BytesBytesCodec``. Its ``name`` is that in documents; its fields are the parameters that
            ``configuration()`` returns.

    Raises:
        ValueError: If it has no name, or the name of a codec of this package.
        TypeError: If it is not such a class.
    """
    codecs.register(codec)


def register_data_type(name: str, parse: Callable[[Mapping[str, Any]], DataType]) -> None:
    """Register a data type.

    See "Data types" in the Zarr v3 core specification.

    Args:
        name: The name in documents.
        parse: Returns the ``DataType`` (which contains the NumPy dtype of values in memory) of a configuration,
            which is empty if the document only contains the name.

    Raises:
        ValueError: If it is the name of a data type of this package.
    """
    dtypes.register(name, parse)


def register_storage_transformer(name: str, make: Callable[[Mapping[str, Any]], StorageTransformer]) -> None:
    """Register a storage transformer.

    See "Storage transformers" in the Zarr v3 core specification.

    Args:
        name: The name in documents, or the URI in documents of the draft of format 3.
        make: Returns the storage transformer of a configuration.
    """
    storage_transformers.register(name, make)
