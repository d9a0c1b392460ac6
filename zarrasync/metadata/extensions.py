"""Making codecs, data types and storage transformers known.

Packages can offer theirs without a call, by entry points of the groups ``zarrasync.codecs`` (a class),
``zarrasync.data_types`` and ``zarrasync.storage_transformers`` (a function of the configuration); they are
looked for when a document names something that is not known.
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
    """Make a codec known, to documents and to ``create_array``.

    Args:
        codec: A frozen dataclass derived from ``codecs.ArrayArrayCodec``, ``ArrayBytesCodec`` or
            ``BytesBytesCodec``. Its ``name`` is that in documents, its fields are the parameters that
            ``configuration()`` gives.

    Raises:
        ValueError: If there is no name, or it is that of a codec of this package.
        TypeError: If it is no such class.
    """
    codecs.register(codec)


def register_data_type(name: str, parse: Callable[[Mapping[str, Any]], DataType]) -> None:
    """Make a data type known under a name.

    Args:
        name: The name in documents.
        parse: Makes the ``DataType`` (which names the NumPy dtype of values in memory) of a configuration,
            which is empty for a bare name.

    Raises:
        ValueError: If it is the name of a data type of this package.
    """
    dtypes.register(name, parse)


def register_storage_transformer(name: str, make: Callable[[Mapping[str, Any]], StorageTransformer]) -> None:
    """Make a storage transformer known under a name, or under a URI for the draft of format 3.

    Args:
        name: The name, or URI, in documents.
        make: Makes one of a configuration.
    """
    storage_transformers.register(name, make)
