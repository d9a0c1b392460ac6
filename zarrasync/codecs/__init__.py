"""Codecs, their registry, and the parsers of what names them.

>>> from zarrasync.codecs import ZstdCodec
>>> ZstdCodec(level=3).to_json()
{'name': 'zstd', 'configuration': {'level': 3, 'checksum': False}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from zarrasync._util import plugins
from zarrasync.codecs._functions import numcodecs_module
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec, Codec
from zarrasync.codecs.bound_chain import BoundChain
from zarrasync.codecs.bytes import BytesCodec, TransposeCodec
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.compressors import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarrasync.codecs.numcodecs import NumcodecsArray, NumcodecsBytes, adapt
from zarrasync.codecs.objects import OBJECT_CODECS, ObjectCodec
from zarrasync.codecs.packing import ConditionalCodec, N5Codec, PackbitsCodec, ZfpCodec
from zarrasync.codecs.partial import Piece, Range
from zarrasync.codecs.sharding import ShardingCodec
from zarrasync.codecs.spec import ArraySpec, Buffer
from zarrasync.codecs.values import BitroundCodec, CastValueCodec, ReshapeCodec, ScaleOffsetCodec
from zarrasync.codecs.vlen import VlenBytesCodec, VlenUtf8Codec
from zarrasync.errors import MetadataError, Problem, UnknownCodecError

__all__ = [
    "OBJECT_CODECS",
    "ArrayArrayCodec",
    "ArrayBytesCodec",
    "ArraySpec",
    "BitroundCodec",
    "BloscCodec",
    "BoundChain",
    "Buffer",
    "BytesBytesCodec",
    "BytesCodec",
    "CastValueCodec",
    "Codec",
    "CodecChain",
    "ConditionalCodec",
    "Crc32cCodec",
    "GzipCodec",
    "N5Codec",
    "NumcodecsArray",
    "NumcodecsBytes",
    "ObjectCodec",
    "PackbitsCodec",
    "Piece",
    "Range",
    "ReshapeCodec",
    "ScaleOffsetCodec",
    "ShardingCodec",
    "TransposeCodec",
    "VlenBytesCodec",
    "VlenUtf8Codec",
    "ZfpCodec",
    "ZstdCodec",
    "adapt",
    "as_codec",
    "chain_of",
    "default_array_bytes",
    "from_numcodecs",
    "parse_codec",
    "parse_codecs",
    "register",
    "registered",
]

_PARSERS: dict[str, Callable[[Mapping[str, Any]], Codec]] = {
    "bytes": BytesCodec.from_configuration,
    "endian": BytesCodec.from_configuration,
    "transpose": TransposeCodec.from_configuration,
    "gzip": GzipCodec.from_configuration,
    "zstd": ZstdCodec.from_configuration,
    "blosc": BloscCodec.from_configuration,
    "crc32c": Crc32cCodec.from_configuration,
    "vlen-utf8": VlenUtf8Codec.from_configuration,
    "vlen-bytes": VlenBytesCodec.from_configuration,
    "packbits": PackbitsCodec.from_configuration,
    "bitround": BitroundCodec.from_configuration,
    "cast_value": CastValueCodec.from_configuration,
    "scale_offset": ScaleOffsetCodec.from_configuration,
    "reshape": ReshapeCodec.from_configuration,
    "zfp": ZfpCodec.from_configuration,
    "n5_default": lambda configuration: N5Codec.parse(configuration, parse_codecs),
    "conditional": lambda configuration: ConditionalCodec.parse(configuration, parse_codec),
    "sharding_indexed": lambda configuration: ShardingCodec.parse(configuration, parse_codecs),
}


_registered: dict[str, type[Codec]] = {}


def register(codec: type[Codec]) -> None:
    """Make a codec known under the name of its class.

    Args:
        codec: A frozen dataclass derived from ``ArrayArrayCodec``, ``ArrayBytesCodec`` or ``BytesBytesCodec``.

    Raises:
        ValueError: If there is no name, or it is that of a codec of this package.
        TypeError: If it is no such class.
    """
    if not isinstance(codec, type) or not issubclass(codec, Codec):
        raise TypeError(f"{codec!r} is no class of codecs")
    name = codec.name
    if not name or name in _PARSERS:
        raise ValueError(f"there is a codec {name!r} already" if name else f"{codec.__name__} has no name")
    _registered[name] = codec
    plugins.registered()


def registered(name: str) -> type[Codec] | None:
    """The codec of another package that has a name."""
    found: type[Codec] | None = _registered.get(name) or plugins.find(plugins.CODECS, name)
    return found


def parse_codec(value: Any, location: str = "$", key: str = "") -> Codec | None:
    """One entry of a v3 ``codecs`` list: an object with a name, or a bare name.

    Args:
        value: The entry.
        location: Where it stands in the document.
        key: The document's key.

    Returns:
        The codec, or ``None`` for an unknown one with ``must_understand: false``.

    Raises:
        UnknownCodecError: If there is no such codec.
        MetadataError: If the entry or its configuration is wrong.
    """
    entry = {"name": value} if isinstance(value, str) else value
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise _problem(key, location, f"a codec is an object with a name, found {value!r}")
    name, configuration = entry["name"], entry.get("configuration")
    configuration = {} if configuration is None else configuration
    if not isinstance(configuration, Mapping):
        raise _problem(key, f"{location}.configuration", f"expected an object, found {configuration!r}")
    try:
        if name in _PARSERS:
            return _PARSERS[name](configuration)
        foreign = registered(name)
        if foreign is not None:
            return foreign.from_configuration(configuration)
        if name.startswith("numcodecs."):
            return adapt({"id": name.removeprefix("numcodecs."), **configuration}, arrays=True)
    except UnknownCodecError as error:
        raise UnknownCodecError(
            f"{key or 'metadata'}: {location}: {error}", codec=error.codec, problems=error.problems
        ) from error
    except MetadataError:
        raise
    except (TypeError, ValueError, KeyError) as error:
        detail = f"missing member {error}" if isinstance(error, KeyError) else str(error).replace("__init__() ", "")
        raise _problem(key, f"{location}.configuration", f"codec {name!r}: {detail}") from error
    if entry.get("must_understand") is False:
        return None
    problem = Problem(key, f"{location}.name", f"unknown codec {name!r}; {_meant(name)}")
    raise UnknownCodecError(str(problem), codec=name, problems=[problem])


def _meant(name: str) -> str:
    """What to say about a name that nobody knows."""
    codec_registry = numcodecs_module("registry").codec_registry
    if name in codec_registry:
        return f"numcodecs has one: 'numcodecs.{name}'"
    known = sorted({*_PARSERS, *_registered})
    close = get_close_matches(name, [*known, *codec_registry], 1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}, and numcodecs.*"


def parse_codecs(value: Any, location: str = "$.codecs", key: str = "") -> CodecChain:
    """A v3 ``codecs`` list.

    Raises:
        MetadataError: If an entry is wrong or the order makes no chain.
    """
    if not isinstance(value, list):
        raise _problem(key, location, f"expected a list of codecs, found {value!r}")
    found = [parse_codec(item, f"{location}[{number}]", key) for number, item in enumerate(value)]
    try:
        return CodecChain.of(codec for codec in found if codec is not None)
    except MetadataError as error:
        raise _problem(key, location, str(error)) from error


def _problem(key: str, location: str, message: str) -> MetadataError:
    return MetadataError.from_problems([Problem(key, location, message)])


def as_codec(value: Any) -> Codec:
    """A codec as users give it: one of ours or zarr-python's, a v3 entry or name, a numcodecs codec or configuration.

    Raises:
        MetadataError: If it is none of these.
    """
    if isinstance(value, Codec):
        return value
    if hasattr(value, "to_dict"):  # zarr-python's codecs
        value = value.to_dict()
    if isinstance(value, str) or (isinstance(value, Mapping) and "name" in value):
        found = parse_codec(value)
        assert found is not None or isinstance(value, Mapping)
        if found is not None:
            return found
    get_config = getattr(value, "get_config", None)
    config = value if get_config is None else get_config()
    if isinstance(config, Mapping) and "id" in config:
        return from_numcodecs(config)
    raise MetadataError(f"{value!r} is not a codec: give a codec, a name, a v3 entry or a numcodecs configuration")


_BLOSC_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle", -1: None}


def from_numcodecs(config: Mapping[str, Any], **options: Any) -> Codec:
    """A numcodecs configuration as the codec that says the same in v3, or else by adaptor.

    Raises:
        MetadataError: If numcodecs does not know it or refuses it.
    """
    own = {name: value for name, value in config.items() if name != "id"}
    kind = config.get("id")
    try:
        if kind == "blosc":
            shuffle = own.pop("shuffle", 1)
            own.pop("typesize", None)
            return BloscCodec(shuffle=_BLOSC_SHUFFLES[shuffle], **own)
        if kind in ("gzip", "zstd"):
            return GzipCodec(**own) if kind == "gzip" else ZstdCodec(**own)
    except (TypeError, ValueError, KeyError) as error:
        raise MetadataError(f"codec {kind!r}: bad configuration {own}: {error}") from error
    return adapt(config, **options)


def default_array_bytes(spec: ArraySpec) -> ArrayBytesCodec:
    """The array -> bytes codec that suits a data type."""
    if spec.dtype.name == "object":
        raise MetadataError(
            "data type object says nothing about what is stored: use str for text or bytes for byte strings, or in "
            "Zarr format 2 a filter that stores objects, such as numcodecs.JSON()"
        )
    if spec.dtype.name == "string":
        return VlenUtf8Codec()
    return VlenBytesCodec() if spec.dtype.name == "bytes" else BytesCodec()


def chain_of(codecs: Iterable[Any], spec: ArraySpec) -> CodecChain:
    """Codecs as users give them, as a chain; an array -> bytes codec is put in where none is given.

    Raises:
        MetadataError: If they make no chain.
    """
    found = [as_codec(codec) for codec in codecs]
    if not any(isinstance(codec, ArrayBytesCodec) for codec in found):
        where = sum(isinstance(codec, ArrayArrayCodec) for codec in found)
        found.insert(where, default_array_bytes(spec))
    return CodecChain.of(found).settle(spec)
