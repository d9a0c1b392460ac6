"""Write and check the 2022 dialect of the draft with zarr-python 2.18, which newer releases cannot read.

    zarr2_oracle.py write DIR           create stores DIR/<case> and their descriptions DIR/<case>.json
    zarr2_oracle.py check STORE SPEC    compare a store with a description; prints "OK", or differences and exits with 1

A description is {"arrays": {path: entry}, "attrs": {path: {...}}, "groups": [path], "implicit": [path],
"consolidated": [key]}; all except the first are optional, and "" is the root. An entry is the name of a .npy
file in the folder of the description, or {"npy": name, "shape": [...], "dtype": ...}; the dtype "|O" means that the
fixed-length strings of the file stand for objects. "implicit" lists the groups without a document, and
"consolidated" lists the keys of consolidated metadata.

Run it in a separate environment of Python 3.11 to 3.13, with zarr==2.18.7, numcodecs==0.15.2,
numpy==2.2.6 and pytest, which zarr imports to open any array that has storage transformers.
"""

import json
import os
import sys
import warnings
from pathlib import Path

os.environ.update(ZARR_V3_EXPERIMENTAL_API="1", ZARR_V3_SHARDING="1")  # read while zarr is imported

import numcodecs as nc
import numpy as np
import zarr
from zarr._storage.v3 import ConsolidatedMetadataStoreV3, DirectoryStoreV3
from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

STRUCT = np.dtype([("id", "<i4"), ("tag", "S3"), ("at", [("x", "<f4"), ("y", ">f8")]), ("v", "<i2", (2,))])
COMPRESSORS = {
    "none": None,
    "gzip": nc.GZip(6),
    "zlib": nc.Zlib(1),
    "bz2": nc.BZ2(9),
    "lz4": nc.LZ4(),
    "lzma": nc.LZMA(),
    "zstd": nc.Zstd(3),
    "zstd-checksum": nc.Zstd(-1, checksum=True),
    "blosc": nc.Blosc(),
    "blosc-auto": nc.Blosc("blosclz", 1, nc.Blosc.AUTOSHUFFLE),
    "blosc-bit": nc.Blosc("zstd", 5, nc.Blosc.BITSHUFFLE, blocksize=64),
    "blosc-none": nc.Blosc("zlib", 9, nc.Blosc.NOSHUFFLE),
}
FILTERS = {  # of 16-bit integers
    "delta": [nc.Delta("<i2")],
    "delta-wider": [nc.Delta("<i2", astype="<i4")],
    "chain": [nc.Delta("<i2"), nc.Shuffle(2), nc.CRC32()],
    "checksums": [nc.Adler32(), nc.Fletcher32()],
    "offset": [nc.FixedScaleOffset(offset=-5, scale=1, dtype="<i2", astype="<i8")],
}
UNICODE = {"ключ": "значение", "☃": ["😀", None, {"ß": 1.5}], "n": 2**53, "yes": True}


def sample(dtype, shape):
    """Return values of any data type, beginning with its extremes."""
    dtype, size = np.dtype(dtype), int(np.prod(shape))
    count, first = np.arange(size), []
    if dtype.names:
        values = np.zeros(size, dtype)
        for name in dtype.names:
            values[name] = sample(values[name].dtype, values[name].shape)
    elif dtype.kind == "c":
        parts = sample(f"f{dtype.itemsize // 2}", (size,))
        values = np.empty(size, dtype)
        values.real, values.imag = parts, np.roll(parts, 2)
    elif dtype.kind == "V":
        values = np.frombuffer(bytes(i % 251 for i in range(size * dtype.itemsize)), dtype)
    elif dtype.kind in "SU":
        values = np.array([f"{i}{'é☃😀'[i % 3] if dtype.kind == 'U' else '~'}" for i in count], dtype)
        first = [""]
    else:
        values = (count * 7 - size).astype("i8").astype(dtype)
        if dtype.kind in "iu":
            first = [np.iinfo(dtype).max, np.iinfo(dtype).min]
        elif dtype.kind == "f":
            values, first = values / 8, [np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).tiny]
        elif dtype.kind in "mM":
            first = ["NaT"]
        else:
            values = count % 3 == 0
    values = values.astype(dtype)
    values[: len(first)] = first[:size]
    return values.reshape(shape)


class Case:
    """A store that is being written, and its description."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.store = DirectoryStoreV3(str(folder / name))
        self.spec = {"arrays": {}, "attrs": {}, "groups": [], "implicit": [], "consolidated": []}

    def group(self, path="", **attrs):
        zarr.open_group(self.store, mode="a", path=path, zarr_version=3).attrs.update(attrs)
        self.spec["groups"].append(path)
        self.spec["attrs"][path] = attrs

    def array(self, path, values, chunks, at=..., then=(), attrs=None, shard=None, fill_value=0, **options):
        """Write ``values`` at ``at`` (nowhere for None), and then the changes in ``then``."""
        options.setdefault("compressor", nc.Zlib(1))
        if shard is not None:
            options["storage_transformers"] = [ShardingStorageTransformer("indexed", shard)]
        array = zarr.create(values.shape, chunks, values.dtype, fill_value=fill_value, store=self.store, path=path,
                            zarr_version=3, **options)  # fmt: skip
        expected = np.zeros(values.shape, values.dtype)
        if not (fill_value is None or (isinstance(fill_value, int) and fill_value == 0)):
            expected[...] = np.array(fill_value, values.dtype)
        for selection, new in [*([] if at is None else [(at, values[at])]), *then]:
            array[selection] = expected[selection] = new
        if attrs:
            array.attrs.update(attrs)
        self.expect(path, expected)
        self.spec["attrs"][path] = attrs or {}
        parents = [path[:i] for i, letter in enumerate(path) if letter == "/"] + [""] * bool(path)
        for parent in sorted(set(parents).difference(self.spec["groups"])):
            self.spec["groups"].append(parent)
            self.spec["implicit"].append(parent)
        return array

    def expect(self, path, values):
        number = [*dict.fromkeys([*self.spec["arrays"], path])].index(path)
        entry = {"npy": f"{self.name}.{number}.npy", "shape": values.shape}
        entry["dtype"] = np.lib.format.dtype_to_descr(values.dtype)
        if values.dtype == object:
            values = np.array(values.tolist())
        np.save(self.folder / entry["npy"], values)
        self.spec["arrays"][path] = entry


def numeric(case):
    for code in ["?", "i1", "u1", *(f"{order}{kind}{size}" for order in "<>" for kind in "iuf" for size in (2, 4, 8))]:
        name = np.dtype(code).str.translate({ord("<"): "le-", ord(">"): "be-", ord("|"): None})
        case.array(name, sample(code, (5, 3)), (2, 2))


def complexes(case):
    for code in ("<c8", ">c8", "<c16", ">c16"):
        values = sample(code, (5, 3))
        case.array(("be-" if code[0] == ">" else "le-") + code[1:], values, (2, 2), np.s_[:2], fill_value=1.5 - 2j)
    case.array("nan", sample("c8", (4,)), 2, np.s_[:2], fill_value=complex(np.nan, 1))
    case.array("infinite", sample("c16", (4,)), 2, np.s_[:2], fill_value=complex(-np.inf, 0))


def times(case):
    for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"):
        case.array(f"M8-{unit}", sample(f"<M8[{unit}]", (5,)), 2)
        case.array(f"m8-{unit}", sample(f"<m8[{unit}]", (5,)), 2)
    for code, fill in {">M8[us]": np.datetime64("NaT"), "<M8[ns]": np.datetime64(7, "ns")}.items():
        case.array(f"fill-{code[4:6]}", sample(code, (5,)), 2, np.s_[:2], fill_value=fill)
    case.array("fill-delta", sample(">m8[s]", (5,)), 2, np.s_[:2], fill_value=np.timedelta64(-3, "s"))


def strings(case):
    case.array("bytes", sample("S5", (5, 3)), (2, 2), np.s_[:2], fill_value=b"ab")
    case.array("bytes-zero", sample("S5", (5,)), 2, np.s_[:2])
    case.array("unicode", sample("<U5", (5, 3)), (2, 2), np.s_[:2], fill_value="né☃")
    case.array("unicode-big", sample(">U5", (5,)), 2, np.s_[:2], fill_value="")


def structured(case):
    case.array("plain", sample([("a", "u1"), ("b", "<f8")], (5, 3)), (2, 2), np.s_[:2], fill_value=(7, -0.5))
    case.array("nested", sample(STRUCT, (5,)), 2, np.s_[:2])
    case.array("raw", sample([("f0", "V4")], (3,)), 2, np.s_[:2], fill_value=(b"abcd",))


def objects(case):
    texts = np.array(["", "a", "né☃", "x" * 300, "😀"], object)
    case.array("text", texts, 2, np.s_[:2], object_codec=nc.VLenUTF8(), fill_value="?", attrs=UNICODE)
    case.array("text-zero", texts, 2, object_codec=nc.VLenUTF8())
    case.array("bytes", np.array([b"", b"\0a", b"b" * 300], object), 2, object_codec=nc.VLenBytes(), fill_value=None)
    case.array("text-2d", texts[:4].reshape(2, 2), (2, 1), object_codec=nc.VLenUTF8(), fill_value=None, order="F")


def objects_json2(case):
    case.array("text", np.array(["", "a", "né☃"], object), 2, object_codec=nc.JSON(), fill_value="")


def compressors(case):
    for name, compressor in COMPRESSORS.items():
        case.array(name, sample("<f4", (30, 20)), (16, 16), compressor=compressor)


def filters(case):
    for name, codecs in FILTERS.items():
        values = np.arange(-20, 40, dtype="<i2").reshape(10, 6)
        case.array(name, values, (4, 4), filters=codecs, attrs={"units": "m"})
    case.array("packed", sample("?", (10, 6)), (4, 4), filters=[nc.PackBits()], compressor=None)
    case.array("sharded", values, (4, 4), filters=[nc.Delta("<i2")], shard=(2, 1), order="F")


def layouts(case):
    for order in "CF":
        for name, separator in {"dot": ".", "slash": "/", "default": None}.items():
            values = sample("<i4", (5, 12, 2))
            case.array(f"{order}-{name}", values, (2, 1, 2), order=order, dimension_separator=separator)


def scalars(case):
    case.array("number", np.array(42.5), ())
    case.array("text", np.array("né"), (), fill_value="")
    case.array("missing", np.array(-7, ">i4"), (), at=None, fill_value=-7)
    case.array("sharded", np.array(9, "u1"), (), shard=())


def root_array(case):
    case.array("", sample("<i4", (5, 3)), (2, 2), attrs=UNICODE)


def root_array_sharded(case):
    case.array("", sample("<i4", (5, 3)), (1, 1), np.s_[:3], shard=(2, 2), dimension_separator=".")


def groups(case):
    case.group(title="root", **UNICODE)
    case.group("a")
    case.group("a/b/c", deep=[1, [2]])
    case.spec["groups"].append("a/b")
    case.spec["implicit"].append("a/b")
    case.array("a/b/c/x", sample("u1", (3,)), 2, attrs=UNICODE)
    case.array("p/q/y", sample("u1", (3,)), 2)


def names(case):
    for path in ("c0", "c", "root", "a.b", "x.array", "x.group", "7", "A-b_C", "c0.0/c1/array.json"):
        case.array(path, sample("u1", (3,)), 2)


def fills(case):
    table = {"zero": 0, "nan": np.nan, "infinity": np.inf, "minus-infinity": -np.inf, "tenth": 0.1, "null": None}
    for name, fill in table.items():
        case.array(name, sample("<f4", (5,)), 2, ... if fill is None else np.s_[:2], fill_value=fill)
    for code, fill in {"i8": -(2**63), "u8": 2**64 - 1, "u1": 255, "?": True, "f2": -np.inf, "f8": 1e300}.items():
        case.array("of-" + np.dtype(code).name, sample(code, (5,)), 2, np.s_[:2], fill_value=fill)
    for code in ("?", "i4", "S3", "U3", "M8[s]", "c8"):
        case.array("null-" + np.dtype(code).kind, sample(code, (5,)), 2, fill_value=None)


def missing(case):
    case.array("some", sample("<i4", (6, 6)), (2, 2), np.s_[2:4, 1:3], fill_value=-1)
    case.array("all", sample("<i4", (6, 6)), (2, 2), None, fill_value=-1)
    case.array("erased", sample("<i4", (6,)), 2, then=[(np.s_[2:4], 0)], write_empty_chunks=False)
    case.array("no-rows", sample("<i4", (0, 6)), (2, 2))
    case.array("resized", sample("<i4", (6, 6)), (2, 2), dimension_separator=".").resize(3, 8)
    case.expect("resized", np.pad(sample("<i4", (6, 6))[:3], [(0, 0), (0, 2)]))


def sharding(case):
    values, small = sample("<i4", (9, 10)), {"shard": (2, 3), "compressor": None, "fill_value": -1}
    case.array("full", values, (2, 2), **small)
    case.array("holes", values, (2, 2), np.s_[2:5, 1:3], **small)
    case.array("erased", values, (2, 2), then=[(np.s_[:2, :2], -1)], write_empty_chunks=False, **small)
    case.array("rewritten", values, (2, 2), then=[(np.s_[3], 5), (np.s_[:, 4], 6)], **small)
    case.array("dot-order-F", values, (2, 2), shard=(3, 2), dimension_separator=".", order="F")
    case.array("gzip", values, (2, 2), shard=(2, 2), compressor=nc.GZip(1), attrs=UNICODE)
    case.array("line", sample(">f8", (23,)), 2, np.s_[:17], shard=3, fill_value=np.nan)
    case.array("fewer-numbers-than-axes", sample("u1", (4, 4, 4)), (2, 2, 2), shard=2)
    case.array("text", np.array(list("abcdé"), object), 1, object_codec=nc.VLenUTF8(), shard=2, fill_value="")


def consolidated(case):
    groups(case)
    case.array("a/sharded", sample("<f8", (4, 4)), (2, 2), shard=(2, 2))
    for key in (".zmetadata", "meta/root/everything.json"):
        zarr.consolidate_metadata(case.store, metadata_key=key)
        case.spec["consolidated"].append(key if "/" in key else f"meta/root/consolidated/{key}")
    case.spec["groups"].append("consolidated")
    case.spec["attrs"]["consolidated"] = {}


CASES = (numeric, complexes, times, strings, structured, objects, objects_json2, compressors, filters, layouts, scalars,
         root_array, root_array_sharded, groups, names, fills, missing, sharding, consolidated)  # fmt: skip


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for make in CASES:
        case = Case(folder, make.__name__.replace("_", "-"))
        make(case)
        (folder / f"{case.name}.json").write_text(json.dumps(case.spec, indent=1))


def same(left, right):
    """Return which elements are equal; NaN and NaT equal themselves, and -0.0 differs from 0.0."""
    if left.dtype.names:
        parts = [same(left[name], right[name]) for name in left.dtype.names]
        return np.all([p.reshape(*left.shape, -1).all(axis=-1) for p in parts], axis=0)
    if left.dtype.kind == "c":
        return same(left.real, right.real) & same(left.imag, right.imag)
    if left.dtype.kind == "f":
        return np.where(np.isnan(left), np.isnan(right), (left == right) & (np.signbit(left) == np.signbit(right)))
    if left.dtype.kind in "mM":
        return left.astype("i8") == right.astype("i8")
    return np.asarray(left == right, bool)


def compare_array(array, entry, folder):
    entry = {"npy": entry} if isinstance(entry, str) else entry
    expected = np.load(folder / entry["npy"])
    if entry.get("dtype", array.dtype.str) == "|O":
        expected = expected.astype(object)
    if (array.dtype, array.shape) != (expected.dtype, expected.shape):
        yield f"is {array.dtype} {array.shape}, not {expected.dtype} {expected.shape}"
        return
    found = np.asarray(array[...])
    wrong = np.argwhere(~same(found, expected))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        yield f"{len(wrong)} of {found.size} values differ, the first at {at}: {found[at]!r}, not {expected[at]!r}"


def compare_node(store, chunks, path, spec, folder):
    parent, _, name = path.rpartition("/")
    above = zarr.Group(store, parent, read_only=True, zarr_version=3) if path else None
    if path in spec["arrays"]:
        node = zarr.open_array(store, mode="r", path=path or "/", chunk_store=chunks, zarr_version=3)
        yield from compare_array(node, spec["arrays"][path], folder)
        if path and name not in above.array_keys():
            yield "is not listed among the arrays of its group"
    else:
        node = zarr.Group(store, path, read_only=True, zarr_version=3)
        if path and name not in above.group_keys():
            yield "is not listed among the groups of its group"
    found, expected = node.attrs.asdict(), spec.get("attrs", {}).get(path)
    if expected is not None and {**found, "filters": 0} != {
        **expected,
        "filters": 0,
    }:  # zarr stores filters as an attribute
        yield f"has the attributes {found}, not {expected}"


def check(folder, description):
    """Yield one line for each difference."""
    if not (folder / "zarr.json").is_file():  # zarr would create it even when it only reads
        yield f"{folder} has no zarr.json"
        return
    spec, plain = json.loads(description.read_text()), DirectoryStoreV3(str(folder))
    paths = dict.fromkeys([*spec["arrays"], *spec.get("groups", []), *spec.get("attrs", {})])
    for key in [None, *spec.get("consolidated", [])]:
        where = f" through {key}" if key else ""
        for path in paths:
            try:
                store = ConsolidatedMetadataStoreV3(plain, key) if key else plain
                for problem in compare_node(store, plain, path, spec, description.parent):
                    yield f"/{path}{where} {problem}"
            except Exception as e:
                yield f"/{path}{where} failed with {type(e).__name__}: {e}"


def main(arguments):
    match arguments:
        case ["write", folder]:
            write(Path(folder))
            return 0
        case ["check", folder, description]:
            problems = list(check(Path(folder), Path(description)))
            print("\n".join(problems) or "OK")
            return int(bool(problems))
    return __doc__


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)  # zarr warns that the format is experimental
    sys.exit(main(sys.argv[1:]))
