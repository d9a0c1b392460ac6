"""Registry of codecs: parsing codecs in documents and arguments, and registering codecs of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zarrasync._util import plugins
from zarrasync._util.advice import suggest
from zarrasync._util.json import to_plain
from zarrasync.codecs.array_codecs import BitroundCodec, PackbitsCodec, ReshapeCodec, ScaleOffsetCodec, TransposeCodec
from zarrasync.codecs.base import ArrayArrayCodec, ArrayBytesCodec, Codec, rejection_of
from zarrasync.codecs.blosc import BloscCodec
from zarrasync.codecs.bytes import BytesCodec
from zarrasync.codecs.cast_value import CastValueCodec
from zarrasync.codecs.chain import CodecChain
from zarrasync.codecs.containers import ConditionalCodec, N5Codec
from zarrasync.codecs.crc32c import Crc32cCodec
from zarrasync.codecs.decompression import numcodecs_module
from zarrasync.codecs.gzip import GzipCodec
from zarrasync.codecs.numcodecs import adapt, normalize_config
from zarrasync.codecs.objects import VlenBytesCodec, VlenUtf8Codec
from zarrasync.codecs.sharding import ShardingCodec, in_order_of
from zarrasync.codecs.spec import ArraySpec
from zarrasync.codecs.third_party import from_zarr_registry
from zarrasync.codecs.zfp import ZfpCodec
from zarrasync.codecs.zstd import ZstdCodec
from zarrasync.errors import MetadataError, Problem, UnknownCodecError

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
    """Register a codec under the name of its class, so that documents may name it.

    See "Extension points" in the Zarr v3 core specification.

    Args:
        codec: A frozen dataclass derived from ``ArrayArrayCodec``, ``ArrayBytesCodec`` or ``BytesBytesCodec``.

    Raises:
        ValueError: If it has no name, or the name of a codec of this package.
        TypeError: If it is not such a class.
    """
    if not isinstance(codec, type) or not issubclass(codec, Codec):
        raise TypeError(f"{codec!r} is not a subclass of ArrayArrayCodec, ArrayBytesCodec or BytesBytesCodec")
    name = codec.name
    if not name or name in _PARSERS:
        raise ValueError(f"the codec {name!r} exists already" if name else f"{codec.__name__} has no name")
    _registered[name] = codec
    plugins.count_registration()


def registered(name: str) -> type[Codec] | None:
    """Return the codec that another package provides under a name, or ``None``.

    Args:
        name: The name in documents. Both ``register`` and the entry points ``zarrasync.codecs`` are considered.
    """
    codec: type[Codec] | None = _registered.get(name) or plugins.find(plugins.CODECS, name)
    return codec


def parse_codec(value: Any, location: str = "$", key: str = "") -> Codec | None:
    """Parse one entry of a ``codecs`` list: an object with a name, or just a name.

    See "Codecs" in the Zarr v3 core specification.

    Args:
        value: The entry.
        location: Its JSON path in the document.
        key: The document's key.

    Returns:
        The codec, or ``None`` for an unknown one with ``must_understand: false``.

    Raises:
        UnknownCodecError: If no such codec is registered.
        MetadataError: If the entry or its configuration is invalid.
    """
    entry = {"name": value} if isinstance(value, str) else value
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise _problem(key, location, f"a codec must be an object with a name, found {value!r}")
    name, configuration = entry["name"], entry.get("configuration")
    configuration = {} if configuration is None else configuration
    if not isinstance(configuration, Mapping):
        raise _problem(key, f"{location}.configuration", f"expected an object, found {configuration!r}")
    try:
        codec = _make(name, configuration)
    except UnknownCodecError as error:
        raise UnknownCodecError(
            ": ".join(filter(None, (key, location, str(error)))), codec=error.codec, problems=error.problems
        ) from error
    except MetadataError:
        raise
    except (TypeError, ValueError, KeyError) as error:
        raise _problem(key, f"{location}.configuration", f"codec {name!r}: {rejection_of(error)}") from error
    if codec is not None or entry.get("must_understand") is False:
        return codec
    place = location if isinstance(value, str) else f"{location}.name"
    problem = Problem(key, place, f"unknown codec {name!r}; {_suggestion(name)}")
    raise UnknownCodecError(str(problem), codec=name, problems=[problem])


def _make(name: str, configuration: Mapping[str, Any]) -> Codec | None:
    """Return the codec of a name and configuration, or ``None`` for an unknown name."""
    if name in _PARSERS:
        return _PARSERS[name](configuration)
    third_party = registered(name)
    if third_party is not None:
        return third_party.from_configuration(configuration)
    if name.startswith("numcodecs."):
        return adapt({"id": name.removeprefix("numcodecs."), **configuration}, arrays=True)
    return from_zarr_registry(name, configuration)


def _suggestion(name: str) -> str:
    """Return a hint for the message about an unknown name."""
    codec_registry = numcodecs_module("registry").codec_registry
    if name in codec_registry:
        return f"did you mean 'numcodecs.{name}'?"
    names = sorted({*_PARSERS, *_registered})
    return suggest(name, [*names, *codec_registry], "install the package with the codec or call register_codec")


def parse_codecs(value: Any, location: str = "$.codecs", key: str = "") -> CodecChain:
    """Parse the ``codecs`` list of a v3 document.

    Args:
        value: The list.
        location: Its JSON path in the document.
        key: The document's key.

    Raises:
        UnknownCodecError: If no such codec is registered.
        MetadataError: If an entry is invalid or the codecs are out of order.
    """
    if not isinstance(value, list):
        raise _problem(key, location, f"expected a list of codecs, found {value!r}")
    codecs = [parse_codec(item, f"{location}[{number}]", key) for number, item in enumerate(value)]
    try:
        return CodecChain.of(codec for codec in codecs if codec is not None)
    except MetadataError as error:
        raise _problem(key, location, str(error)) from error


def _problem(key: str, location: str, message: str) -> MetadataError:
    return MetadataError.from_problems([Problem(key, location, message)])


def as_codec(value: Any, parameter: str = "codec") -> Codec:
    """Return the codec for an argument.

    Args:
        value: A codec of this package or of zarr-python, a v3 entry or name, or a numcodecs codec or configuration.
        parameter: The parameter's name, for messages.

    Raises:
        MetadataError: If it is something else, or invalid.
    """
    if isinstance(value, Codec):
        return value
    if hasattr(value, "to_dict"):
        codec = as_codec(_entry_of(value), parameter)
        return in_order_of(codec, value) if isinstance(codec, ShardingCodec) else codec
    if isinstance(value, str) or (isinstance(value, Mapping) and "name" in value):
        parsed = parse_codec(to_plain(value), parameter)
        assert parsed is not None or isinstance(value, Mapping)
        if parsed is not None:
            return parsed
    get_config = getattr(value, "get_config", None)
    config = value if get_config is None else get_config()
    if isinstance(config, Mapping) and "id" in config:
        return from_numcodecs(config)
    raise MetadataError(
        f"{parameter}: {value!r} is not a codec; pass a codec, a name, a v3 entry or a numcodecs configuration"
    )


def _entry_of(codec: Any) -> Any:
    """Return the v3 entry of a codec of zarr-python, without parameters that it leaves to the array's data type."""
    entry = to_plain(codec.to_dict())
    configuration = entry.get("configuration", {})
    for name in getattr(codec, "_tunable_attrs", ()):
        configuration.pop(name, None)
    for name in ("codecs", "index_codecs"):
        if name in configuration:
            configuration[name] = [_entry_of(inner) for inner in getattr(codec, name)]
    return entry


_BLOSC_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle", -1: None}


def from_numcodecs(config: Mapping[str, Any], **options: Any) -> Codec:
    """Return the equivalent v3 codec of a numcodecs configuration, or else an adaptor.

    Args:
        config: The configuration with its ``id``.
        **options: Passed to ``adapt``.

    Raises:
        UnknownCodecError: If numcodecs has no such codec.
        MetadataError: If it rejects the configuration.
    """
    if isinstance(config.get("id"), str):
        config = normalize_config(config, options.get("dtype"))
    parameters = {name: value for name, value in config.items() if name != "id"}
    kind = config.get("id")
    try:
        if kind == "blosc":
            shuffle = parameters.pop("shuffle", 1)
            parameters.pop("typesize", None)
            return BloscCodec(shuffle=_BLOSC_SHUFFLES[shuffle], **parameters)
        if kind in ("gzip", "zstd"):
            return GzipCodec(**parameters) if kind == "gzip" else ZstdCodec(**parameters)
    except (TypeError, ValueError, KeyError) as error:
        raise MetadataError(f"codec {kind!r}: bad configuration {parameters}: {rejection_of(error)}") from error
    return adapt(config, **options)


def default_array_bytes(spec: ArraySpec) -> ArrayBytesCodec:
    """Return the default array -> bytes codec for a data type.

    Args:
        spec: The spec of the arrays to encode.

    Raises:
        MetadataError: If the data type is ``object``, which does not specify a stored form.
    """
    if spec.dtype.name == "object":
        raise MetadataError(
            "data type object does not define how elements are stored: use str or bytes, or in "
            "Zarr format 2 a filter that stores objects, such as numcodecs.JSON()"
        )
    if spec.dtype.name == "string":
        return VlenUtf8Codec()
    return VlenBytesCodec() if spec.dtype.name == "bytes" else BytesCodec()


def chain_of(codecs: Iterable[Any], spec: ArraySpec) -> CodecChain:
    """Return the chain for codecs in any form that ``as_codec`` accepts.

    Args:
        codecs: The codecs in order. If the array -> bytes codec is missing, the default one is inserted.
        spec: The spec of the arrays to encode.

    Raises:
        MetadataError: If a codec is invalid or they are out of order.
    """
    parsed = [as_codec(codec) for codec in codecs]
    if not any(isinstance(codec, ArrayBytesCodec) for codec in parsed):
        position = sum(isinstance(codec, ArrayArrayCodec) for codec in parsed)
        parsed.insert(position, default_array_bytes(spec))
    return CodecChain.of(parsed).settle(spec)
