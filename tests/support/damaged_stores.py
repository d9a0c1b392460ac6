"""Small valid stores of every format, codec, data type and kind of shard, and ways to damage them."""

import json
import re
from functools import cache

import msgpack
import numpy as np

from zarrasync import sync
from zarrasync.model import dtypes

FORMATS, SHAPE, CHUNKS = (3, 2, "3-draft", "3-draft-2022"), (6, 6), (3, 6)
NUMBERS = 1 + np.arange(36).reshape(SHAPE) * 7 % 90
DOCUMENT = re.compile(r"(^|.*/)(zarr\.json|\.z\w+|(.*\.)?(array|group)\.json)$")
SEALED = ("lzma", "bz2", "zlib", "gzip", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "crc32c")
"""Codecs that detect every change of a stored value."""


def c(name, **configuration):
    return {"name": name, "configuration": configuration}


LITTLE, FAST = c("bytes", endian="little"), c("zstd", level=1, checksum=False)
N5 = c("n5_default", codecs=[c("transpose", order=[1, 0]), c("bytes", endian="big"), c("gzip", level=1)])
INNER = c("sharding_indexed", chunk_shape=[1, 3], codecs=[LITTLE, "gzip"], index_codecs=[c("bytes", endian="big")])
# fmt: off
CODED = [  # data types, the kind of the extra codec, and that codec
    *(("i4", "compressors", c(f"numcodecs.{name}")) for name in (*SEALED[:3], *SEALED[4:8], "lz4", "zstd", "blosc")),
    *(("i4", "compressors", one) for one in (c("gzip"), c("crc32c"), FAST, c("conditional", codecs=[FAST, "crc32c"]))),
    *(("i4", "compressors", c("blosc", cname=name, clevel=5, shuffle=how, typesize=4, blocksize=0)) for name, how in
      (("zstd", "shuffle"), ("lz4", "bitshuffle"), ("blosclz", "noshuffle"), ("zlib", "shuffle"))),
    ("i4", "compressors", c("numcodecs.lzma", format=3, filters=[{"id": 33, "preset": 1}])),
    ("i4", "compressors", c("numcodecs.shuffle", elementsize=4)), ("i4", "serializer", N5),
    ("f8", "filters", c("scale_offset", offset=1, scale=2)), ("f8", "filters", c("cast_value", data_type="int16")),
    ("f4", "filters", c("cast_value", data_type="uint8", out_of_range="clamp", scalar_map={"encode": [["NaN", 8]]})),
    ("i4", "filters", c("scale_offset", offset=1, scale=2)), ("i4", "filters", c("reshape", shape=[[0], 2, -1])),
    ("f4", "filters", c("bitround", keepbits=3)), ("i4", "filters", c("transpose", order=[1, 0])),
    ("i4", "filters", c("numcodecs.delta", dtype="<i4")), ("f4", "filters", c("numcodecs.quantize", digits=3, dtype="<f4")),
    ("f4", "filters", c("numcodecs.fixedscaleoffset", dtype="<f4", astype="<i2", scale=1, offset=0)),
    ("i4", "filters", c("numcodecs.astype", decode_dtype="<i4", encode_dtype="<i2")),
    ("f4", "filters", c("numcodecs.bitround", keepbits=3)), ("?", "filters", c("numcodecs.packbits")),
    ("f8", "serializer", c("zfp", mode="reversible")), ("f4", "serializer", c("zfp", mode="fixed_rate", rate=8)),
    ("u1", "serializer", c("zfp", mode="fixed_precision", precision=20)), ("f8", "serializer", c("numcodecs.pcodec", level=8)),
    ("f8", "serializer", c("numcodecs.zfpy", mode=4)), ("?", "serializer", c("packbits")),
    ("int4", "serializer", c("packbits", padding_encoding="first_byte")), ("S3", "serializer", LITTLE),
    *((name, "filters", None) for name in (*dtypes.CORE, *dtypes.NAMED, "r24", "M8[ns]", "m8[s]", "U4", "i4,f8", str, bytes)),
]
SHARDS = [("end", 4, True, FAST, [3, 3]), ("start", 4, False, FAST, [3, 3]), ("end", 12, False, "crc32c", [1, 3]),
          ("end", 2, True, INNER, [3, 6])]
GRID = c("rectilinear", kind="inline", chunk_shapes=[[[3, 2]], 6])
# fmt: on


def elements(dtype):
    found = dtypes.from_numpy(dtype)
    if found.numpy.kind in "TOUS":
        return (
            NUMBERS.astype("S2").astype(object) if found.numpy.kind == "O" else NUMBERS.astype(str).astype(found.numpy)
        )
    if dtypes.is_raw(found.numpy):
        return np.frombuffer(b"abc" * NUMBERS.size, found.numpy).reshape(SHAPE)
    odd = found.name in dtypes.NAMED or found.numpy.fields
    return np.ones(SHAPE, found.numpy) if odd else NUMBERS.astype(found.numpy)


def make(label, dtype="<i4", zarr_format=3, *, data=None, index=None, chunks=CHUNKS, change=(), **options):
    """Create a store with one array. Return its label, keys, values and the layout of its shard indexes."""
    values, options = {}, {"filters": None, "compressors": None, "attributes": {"a": [1]}, **options}
    sync.create_array(values, shape=SHAPE, dtype=dtype, chunks=chunks, zarr_format=zarr_format, **options)
    if change:
        values["zarr.json"] = json.dumps({**json.loads(values["zarr.json"]), **dict(change)}).encode()
    array = sync.open_array(values, mode="r+")
    array[...] = elements(dtype) if data is None else data
    return label, dict(values), array[...], index


def hierarchy(zarr_format):
    values = {}
    root = sync.create_group(values, zarr_format=zarr_format, attributes={"x": {"y": [1, "z"]}})
    for name in ("a", "g/b"):
        root.create_array(name, shape=SHAPE, dtype="i2", chunks=CHUNKS, attributes={"u": "K"})[...] = NUMBERS
    if zarr_format != "3-draft":
        sync.consolidate_metadata(values)
    return f"group {zarr_format}", values, None, None


@cache
def samples():
    """Return all valid stores; for groups only the label and the keys."""
    made = []
    for dtype, kind, one in CODED:
        raw = one is not None and "filters" in one["configuration"]  # without a checksum
        label = "raw lzma" if raw else one["name"].removeprefix("numcodecs.") if one else str(dtype)
        made.append(make(label, dtype, **{kind: one if kind == "serializer" or one is None else [one]}))
    for where, count, checksum, inner, chunk in SHARDS:
        own = {
            "index_codecs": [LITTLE, *(["crc32c"] if checksum else [])],
            "index_location": where,
            "chunk_shape": chunk,
        }
        codecs = [c("sharding_indexed", codecs=[inner] if inner is INNER else [LITTLE, inner], **own)]
        made.append(make("shards", chunks=SHAPE, change={"codecs": codecs}, index=(where, count, checksum)))
    made += [
        make("shards", zarr_format=one, chunks=(3, 3), shards=SHAPE, index=("end", 4, False)) for one in FORMATS[2:]
    ]
    made += [make(str(one), zarr_format=one, compressors="auto") for one in FORMATS[1:]]
    made += [
        make("rectilinear", change={"chunk_grid": GRID}),
        make("2 F", "<f4", 2, order="F", filters=[{"id": "shuffle"}]),
    ]
    text, lists = NUMBERS.astype(str).astype(object), np.empty(SHAPE, object)
    lists.reshape(-1)[:] = [np.arange(n % 5, dtype="i4") for n in range(lists.size)]
    for name, more in (("json2", {}), ("msgpack2", {}), ("vlen-array", {"dtype": "<i4"}),
                       ("categorize", {"labels": sorted(text.reshape(-1)), "dtype": "|O", "astype": "|u1"})):  # fmt: skip
        data = lists if name == "vlen-array" else text
        made.append(make(name, object, 2, data=data, filters=[{"id": name, **more}]))
    trap = {".zarray": made[-4][1][".zarray"].replace(b'"json2"', b'"pickle"'), "0.0": b"cos\nabort\n(tR."}
    return [*made, ("pickle", trap, None, None), *map(hierarchy, FORMATS)]  # the trap must never be unpickled


# ------------------------------------------------------------------ damage


def nested(kind, depth):
    """Return a JSON value with many levels."""
    value = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"name": value}
    return value


DEEP = [nested(kind, depth) for depth in (90, 490) for kind in ("list", "dict")]
# fmt: off
ODD = [0, -1, 1, 2, 255, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**30, 10**400, -(10**400), 0.5,
       -0.0, 1e308, 5e-324, 3.0, float("nan"), float("inf"), True, False, None, "", "x", "NaN", "\0", "\ud800", "../..", "a//b",
       "/", ".", "y" * 70_000, "|O", "<M8[ns]", "|V0", "|S0", "<i4,<i4", "(2,2)<f4", "int32", [], {}, [[]], [0], [1] * 70,
       [2**40, 2**40], [2**31], {"name": "x"}, {"name": "bytes", "configuration": []}, *DEEP]
NAMES = ["", "/", "//", "/b", "//b", "b//", ".", "..", "/..", "\0", "é", "\ud800", "\\", " ", "zarr.json", "y" * 300, "/b" * 300]
WORDS = [0, 1, 2**16 - 1, 2**20, 2**28, 2**29, 2**30, 2**31 - 1, 2**31, 2**32 - 1]
ENTRIES = [0, 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2]
# fmt: on


def spots(value):
    """Yield every location in a JSON value, as a container and a name or index."""
    for name in value if isinstance(value, dict) else range(len(value)):
        yield value, name
        if isinstance(value[name], dict | list):
            yield from spots(value[name])


@cache
def parts():
    """Return parts of all documents, to be inserted where they do not belong."""
    found = [json.loads(v) for _, values, *_ in samples() for k, v in values.items() if DOCUMENT.match(k)]
    return [where[name] for document in found for where, name in spots(document)]


def alter(rng, value):
    """Change a random part of a JSON value."""
    where, name = rng.choice(list(spots(value)) or [([0], 0)])
    old, deed = where[name], rng.randrange(9)
    if deed < 4:
        where[name] = json.loads(json.dumps(rng.choice(ODD if deed < 3 else parts())))
    elif deed == 4:
        del where[name]
    elif deed == 5:
        where[name] = rng.choice([[old], {"name": old}, {"name": "x", "configuration": old}, [old, old]])
    elif isinstance(where, list):
        where.extend(json.loads(json.dumps(where[: rng.choice([1, 3, 30])])))
    elif deed < 8:
        where[rng.choice(["", str(name)]) + rng.choice(NAMES)] = where.pop(name) if deed == 7 else old
    elif type(old) in (int, float):
        where[name] = rng.choice([old + 1, -old, old * 1000, old * 2**40, str(old)])


def garble(rng, data, label=""):
    """Damage bytes. Return the kind of damage and the bytes."""
    if label in ("json2", "msgpack2") and rng.random() < 0.6:
        content = json.loads(data) if label == "json2" else msgpack.unpackb(data)
        alter(rng, content)
        text = json.dumps(content)
        plain = json.loads(text, parse_int=lambda digits: int(digits) % 2**63)
        return "content", text.encode() if label == "json2" else msgpack.packb(plain, unicode_errors="surrogatepass")
    at, new = rng.randrange(len(data)), bytearray(data)
    whole = {"cut": data[:at], "empty": b"", "longer": data + rng.randbytes(rng.choice((1, 4, 16, 1000))), "twice": data * 2,
             "random": rng.randbytes(len(data)), "other": rng.choice([*rng.choice(samples())[1].values()])}  # fmt: skip
    kind = rng.choice((*whole, "word", "word", "flip", "flip", "long"))
    if kind == "word":
        width, at = rng.choice((1, 2, 4, 8)), rng.choice((0, 4, 8, 12, at))
        new[at : at + width] = rng.choice(WORDS).to_bytes(8, "little")[:width]
    for _ in range(rng.choice((1, 1, 3)) if kind == "flip" else 0):
        new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    return kind, bytes(whole.get(kind, new)) if kind != "long" else rng.randbytes(1 << 20)
