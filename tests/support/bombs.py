"""Small stored values that expand to much more than a chunk or document may have.

``python -m tests.support.bombs KIND API FOLDER`` opens each array below a folder through one kind of store and one API,
with limited memory, and prints what happened as lines of JSON.
"""

from __future__ import annotations

import asyncio
import bz2
import gzip
import json
import lzma
import re
import resource
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zstandard

from tests.support.servers import http_server
from zarrasync import stores, sync

LIMIT = 1 << 20
"""``max_chunk_bytes``, ``max_read_bytes`` and ``max_document_bytes`` in bytes."""
MARGIN = 256 << 20
"""Bytes beyond the limit that a call may take."""
SIZE = 320 << 20
"""Bytes that a bomb expands to."""
_PART = 8 << 20
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


# ---------------------------------------------------------------- documents


def v3(codecs: list[Any], data_type: str = "string", count: int = 1, chunk: int = 0, **members: Any) -> bytes:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [count],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk or count]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": "" if data_type == "string" else 0,
        "codecs": codecs,
    }
    return json.dumps({**document, **members}).encode()


def v2(filters: list[Any] | None, compressor: Any, dtype: str = "|O", count: int = 1) -> bytes:
    document = {
        "zarr_format": 2,
        "shape": [count],
        "chunks": [count],
        "dtype": dtype,
        "fill_value": None,
        "order": "C",
        "filters": filters,
        "compressor": compressor,
    }
    return json.dumps(document).encode()


def one_string(size: int = SIZE) -> bytes:
    """Return a chunk of one string, for ``vlen-utf8``."""
    return struct.pack("<II", 1, size) + b"a" * size


def streamed(raw: bytes) -> bytes:
    """Return a zstd frame that does not declare its content size."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(raw) + compressor.flush()


def members(compress: Callable[[bytes], bytes]) -> bytes:
    """Return the members of a stream, one after the other, that begin with a chunk of one string."""
    first = struct.pack("<II", 1, SIZE) + b"a" * (_PART - 8)
    return compress(first) + compress(b"a" * _PART) * (SIZE // _PART)


# ---------------------------------------------------------------- the table


def variable_length_bombs() -> dict[str, dict[str, bytes]]:
    """Return arrays of strings, bytes and objects by name."""
    raw, vlen = one_string(), {"name": "vlen-utf8"}
    text, objects = [{"id": "vlen-utf8"}], {"zlib": {"id": "zlib", "level": 1}}
    zeros = zlib.compress(bytes(SIZE), 1)
    nested = b"[[" + b",".join([b"[]"] * 300_000) + b'],"|O",[1]]'
    maps = b"\x93\xdd" + struct.pack(">I", 900_000) + b"\x80" * 900_000 + b"\xa2|O\x91\x01"
    counts = b"\xdd\xff\xff\xff\xff" * 900
    wide = struct.pack("<II", 1, 900_004) + b"a" * 900_000 + "😀".encode()
    shard = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [1],
            "codecs": [vlen, ZSTD],
            "index_codecs": [LITTLE],
            "index_location": "start",
        },
    }
    value = zstandard.compress(raw)
    return {
        "zstd": {"zarr.json": v3([vlen, ZSTD]), "c/0": value},
        "zstd without a size": {"zarr.json": v3([vlen, ZSTD]), "c/0": streamed(raw)},
        "vlen-bytes": {"zarr.json": v3([{"name": "vlen-bytes"}, ZSTD], "bytes", fill_value=""), "c/0": value},
        "gzip": {
            "zarr.json": v3([vlen, {"name": "gzip", "configuration": {"level": 1}}]),
            "c/0": gzip.compress(raw, 1),
        },
        "gzip members": {
            "zarr.json": v3([vlen, {"name": "gzip", "configuration": {"level": 1}}]),
            "c/0": members(gzip.compress),
        },
        "empty gzip members": {
            "zarr.json": v3([vlen, {"name": "gzip", "configuration": {"level": 1}}]),
            "c/0": gzip.compress(b"") * 150_000,
        },
        "blosc": {".zarray": v2(text, {"id": "blosc"}), "0": bytes(numcodecs.Blosc("lz4").encode(raw))},
        "lz4": {".zarray": v2(text, {"id": "lz4"}), "0": bytes(numcodecs.LZ4().encode(raw))},
        "zlib": {".zarray": v2(text, objects["zlib"]), "0": zlib.compress(raw, 1)},
        "bz2": {".zarray": v2(text, {"id": "bz2"}), "0": members(bz2.compress)},
        "xz": {".zarray": v2(text, {"id": "lzma"}), "0": members(lzma.compress)},
        "wide characters": {"zarr.json": v3([vlen]), "c/0": wide},
        "many elements": {
            "zarr.json": v3([vlen, ZSTD], count=1 << 26),
            "c/0": zstandard.compress(struct.pack("<I", 1 << 26) + bytes(4 << 26)),
        },
        "inner chunk": {"zarr.json": v3([shard]), "c/0": struct.pack("<QQ", 16, len(value)) + value},
        "JSON": {".zarray": v2([{"id": "json2"}], None), "0": nested},
        "compressed JSON": {".zarray": v2([{"id": "json2"}], objects["zlib"]), "0": zeros},
        "MessagePack": {".zarray": v2([{"id": "msgpack2"}], None), "0": maps},
        "MessagePack counts": {".zarray": v2([{"id": "msgpack2"}], None), "0": counts},
        "vlen-array": {".zarray": v2([{"id": "vlen-array", "dtype": "<i4"}], objects["zlib"]), "0": zeros},
    }


def fixed_size_bombs() -> dict[str, dict[str, bytes]]:
    """Return arrays of 4 numbers by name."""
    zeros, gzipped = bytes(SIZE), {"name": "gzip", "configuration": {"level": 1}}
    numbers = np.zeros(SIZE // 8)
    large = {"id": "astype", "encode_dtype": "|u1", "decode_dtype": f"<U{SIZE // 4}"}
    xz = {
        "id": "lzma",
        "format": 3,
        "check": -1,
        "preset": None,
        "filters": [{"id": lzma.FILTER_LZMA2, "dict_size": 3 << 29}],
    }
    two_steps = gzip.compress(gzip.compress(zeros, 1), 1)
    n5_block = struct.pack(">HHI", 0, 1, 1 << 30) + bytes(100)
    n5 = {
        "name": "n5_default",
        "configuration": {
            "codecs": [
                {"name": "transpose", "configuration": {"order": [0]}},
                {"name": "bytes", "configuration": {"endian": "big"}},
            ]
        },
    }
    return {
        "raw": {"zarr.json": v3([LITTLE], "int32", 4), "c/0": zeros},
        "numbers in zstd": {"zarr.json": v3([LITTLE, ZSTD], "int32", 4), "c/0": zstandard.compress(zeros)},
        "numbers in zstd without a size": {"zarr.json": v3([LITTLE, ZSTD], "int32", 4), "c/0": streamed(zeros)},
        "numbers in gzip": {"zarr.json": v3([LITTLE, gzipped], "int32", 4), "c/0": gzip.compress(zeros, 1)},
        "numbers in two gzips": {"zarr.json": v3([LITTLE, gzipped, gzipped], "int32", 4), "c/0": two_steps},
        "pcodec": {
            "zarr.json": v3([{"name": "numcodecs.pcodec", "configuration": {}}], "float64", 4),
            "c/0": bytes(numcodecs.PCodec().encode(numbers)),
        },
        "pcodec of format 2": {
            ".zarray": v2([{"id": "pcodec"}], None, "<f8", 4),
            "0": bytes(numcodecs.PCodec().encode(numbers)),
        },
        "astype": {".zarray": v2([large], None, "<i4", 4), "0": bytes(4)},
        "numcodecs.astype": {
            "zarr.json": v3(
                [
                    {
                        "name": "numcodecs.astype",
                        "configuration": {key: large[key] for key in ("encode_dtype", "decode_dtype")},
                    },
                    {"name": "bytes"},
                ],
                "int32",
                4,
            ),
            "c/0": bytes(4),
        },
        "large dictionary": {".zarray": v2(None, xz, "<i4", 4), "0": bytes(100)},
        "N5 block": {"zarr.json": v3([n5], "int32", 4), "c/0": n5_block},
        "large chunk": {"zarr.json": v3([LITTLE, ZSTD], "int32", 4, 1 << 28), "c/0": zstandard.compress(zeros)},
        "document": {"zarr.json": v3([LITTLE], "int32", 4) + b" " * SIZE},
    }


def write(folder: Path) -> list[str]:
    """Write the bombs below a folder, and return their names."""
    table = {**variable_length_bombs(), **fixed_size_bombs()}
    for name, values in table.items():
        for key, data in values.items():
            path = folder / name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return list(table)


# ---------------------------------------------------------------- reading them


def memory_of_process(field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10


def report(name: str, read: Callable[[], Any]) -> None:
    """Print the outcome of a read, and how many bytes of memory it took at most."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before, hard = memory_of_process("VmRSS"), resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (memory_of_process("VmSize") + LIMIT + 2 * MARGIN, hard))
    try:
        read()
        kinds, message = [], ""
    except Exception as error:
        kinds, message = [kind.__name__ for kind in type(error).__mro__], str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    peak = memory_of_process("VmHWM") - before
    sys.stdout.write(json.dumps({"name": name, "kinds": kinds, "message": message, "peak": peak}) + "\n")


def reader(api: str, config: dict[str, int]) -> Callable[[Any, str], Any]:
    """Return a function that opens and reads an array of a store."""

    async def read_async(store: Any, name: str) -> Any:
        import zarrasync as za

        array = await za.open_array(store, path=name, config=config)
        return await array[...].read()

    def read(store: Any, name: str) -> Any:
        if api == "async":
            return asyncio.run(read_async(store, name))
        return sync.open_array(store, path=name, config=config)[...]

    return read


def main(kind: str, api: str, folder: Path, limit: int) -> None:
    names = sorted(path.name for path in folder.iterdir())
    config = dict.fromkeys(("max_chunk_bytes", "max_read_bytes", "max_document_bytes"), limit) if limit else {}
    read = reader(api, config)
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    if kind == "http":
        with http_server(folder) as url:
            for name in names:
                report(name, partial(read, url, name))
        return
    for name in names:
        mine = {key: path for key, path in files.items() if key.startswith(f"{name}/")}
        store: Any = str(folder)
        if kind == "memory":
            store = {key: path.read_bytes() for key, path in mine.items()}
        elif kind.startswith("zip"):
            archive = folder.parent / f"{kind}-{api}.zip"
            with zipfile.ZipFile(archive, "w", getattr(zipfile, f"ZIP_{kind[3:].upper()}")) as file:
                for key, path in mine.items():
                    file.write(path, key)
            store = stores.ZipStore(archive)
        report(name, partial(read, store, name))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
