"""Hostile stores: every call soon returns or raises a ``ZarrError``, without using gigabytes of memory.

Each case depends only on its number: a small valid store is damaged, then read in many ways. Cases run in child
processes with limited memory, so that crashes and hangs are found as well. ``ZARRASYNC_FUZZ=100000`` makes a long run;
``python -m tests.property.test_fuzz FIRST COUNT [TARGET]`` runs cases without pytest.
"""

from __future__ import annotations

import faulthandler
import io
import itertools
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from tests.support import ROOT
from tests.support.codec_documents import LITTLE, entry
from tests.support.damaged_stores import (
    DOCUMENT,
    ENTRIES,
    FORMATS,
    NAMES,
    SEALED,
    SHAPE,
    WORDS,
    alter,
    garble,
    parts,
    samples,
)
from zarrasync import stores, sync
from zarrasync.errors import ZarrError

pytestmark = pytest.mark.random

MEMORY, PEAK, SLOW = 5 << 29, 256 << 20, 5.0  # bytes for a child process, bytes for a call, and seconds for a call


def used(name):
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10


class Watch(dict):
    """Makes calls, and records results that are faults."""

    def __call__(self, what, function, *arguments, **options):
        """Make a call. Return its result, or ``None`` if it raised or an earlier call took too long."""
        if any(kind.endswith("too long") for kind in self):
            return None
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        before = used("VmRSS")
        signal.setitimer(signal.ITIMER_REAL, SLOW)
        try:
            return function(*arguments, **options)
        except BaseException as error:
            inside = [f for f in traceback.extract_tb(error.__traceback__) if "/zarrasync/" in f.filename]
            names = [f"{Path(f.filename).name}:{f.name}" for f in inside] or ["outside"]
            where = max(names, key=names.count) if isinstance(error, RecursionError) else names[-1]
            chain = [error]
            while chain[-1].__context__ is not None:
                chain.append(chain[-1].__context__)
            text = f"{what}: " + "".join(traceback.format_exception(error))[-2500:]
            if isinstance(error, KeyboardInterrupt):
                self[f"{what} takes too long"] = text
            elif not isinstance(error, ZarrError):
                self.setdefault(f"{type(error).__name__} from {where}", text)
            elif any(isinstance(one, MemoryError) for one in chain):
                self.setdefault(f"much memory asked for in {where}", text)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if (more := used("VmHWM") - before) > PEAK:
                self.setdefault(f"much memory for {what}", f"{what}: {more >> 20} MiB")
        return None


def same(one, other):
    if one is None or other is None or one.dtype.kind in "TO":
        return one is not None and other is not None and repr(one.tolist()) == repr(other.tolist())
    return one.shape == other.shape and one.tobytes() == other.tobytes()


class Elsewhere(stores.MemoryStore):
    """A store that is served by the event loop."""

    blocking = False


def look(watch, store):
    """Make all kinds of calls on a store."""
    watch("validate", lambda: str(sync.validate(store, data=True)))
    nodes = []
    for consolidated in (None, True, False):
        root = watch("open", sync.open, store, use_consolidated=consolidated)
        nodes += [] if root is None else [root]
        if isinstance(root, sync.Group):
            watch("tree", lambda root=root: str(root.tree()))
            nodes += [node for _, node in watch("members", root.members, max_depth=None) or ()]
    small = [not isinstance(node, sync.Array) or (node.size < 10_000 and node.nbytes < 1 << 20) for node in nodes]
    for node, little in zip(nodes, small, strict=True):
        watch("info", lambda node=node: f"{node.info} {node!r} {dict(node.attrs)!r:.99}")
        if isinstance(node, sync.Array) and node.dtype.itemsize < 1 << 20:
            some = tuple(slice(0, 3 if axis < 3 else 1) for axis in range(node.ndim))
            watch("explain", lambda node=node, some=some: str(node.view[some].explain()))
            for box in (some, ...) if little else (some,):
                watch("read", node.__getitem__, box)
    for zarr_format in FORMATS if nodes and all(small) else ():
        watch("copy", sync.copy, store, {}, zarr_format=zarr_format, progress=False)


def documents(rng, watch, folder):
    label, values, *_ = rng.choice(samples()[-4:] if rng.random() < 0.25 else samples())  # the last ones are groups
    values = dict(values)
    key, deed = rng.choice([key for key in values if DOCUMENT.match(key)]), rng.random()
    if deed < 0.1:
        values[key] = garble(rng, values[key])[1]
    elif deed < 0.2:
        values[key.replace("zarr.json", "") + rng.choice(NAMES) + rng.choice(("/", "")) + rng.choice([*values])] = (
            values[key]
        )
    else:
        document = json.loads(values[key])
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            alter(rng, document)
        values[key] = json.dumps(document).encode()
    look(watch, Elsewhere(values) if rng.random() < 0.1 else values)
    return label


def chunks(rng, watch, folder):
    label, values, expect, _ = rng.choice([one for one in samples() if one[2] is not None])
    key = rng.choice([key for key in values if not DOCUMENT.match(key)])
    kind, new = garble(rng, values[key], label)
    array = watch("open", sync.open, rng.choice((dict, Elsewhere))({**values, key: new}))
    found = watch("read", array.__getitem__, ...)
    watch("read", array.__getitem__, (2, slice(1, 2)))
    if (
        found is not None
        and not same(found, expect)
        and (kind in ("cut", "empty") or (label in SEALED and kind != "other"))
    ):
        watch[f"{label} takes {kind}"] = f"{values[key]!r:.600} -> {new!r:.600}: {found!r:.600}"
    return label


def entries(rng, data, where, count, checksum):
    """Change an entry of a shard index and its checksum. Return the number of the inner chunk."""
    start, number = 0 if where == "start" else len(data) - 16 * count - 4 * checksum, rng.randrange(2 * count)
    table = np.frombuffer(data[start : start + 16 * count], "<u8").copy()
    near = [int(table[number]) + step for step in (-1, 1, 4)]
    table[number] = rng.choice([*near, len(data), len(data) - 1, *ENTRIES]) % 2**64
    new = table.tobytes() + crc32c(table.tobytes()).to_bytes(4, "little")[: 4 * checksum]
    return number // 2, data[:start] + new + data[start + len(new) :]


def shards(rng, watch, folder):
    label, values, expect, index = rng.choice([one for one in samples() if one[3] is not None])
    (key,) = [key for key in values if not DOCUMENT.match(key)]
    hit, new = entries(rng, values[key], *index) if rng.random() < 0.6 else (None, garble(rng, values[key])[1])
    array = watch("open", sync.open, rng.choice((dict, Elsewhere))({**values, key: new}), mode="r+")
    spans = [[slice(at, at + c) for at in range(0, n, c)] for n, c in zip(SHAPE, array.chunks, strict=True)]
    boxes = list(itertools.product(*spans))
    before = [watch("read", array.__getitem__, box) if rng.random() < 0.8 else None for box in boxes]
    whole = watch("read", array.__getitem__, ...)
    for number, box in enumerate(boxes):
        got = [part for part in (before[number], None if whole is None else whole[box]) if part is not None]
        if hit not in (None, number) and len(boxes) == index[1] and not all(same(part, expect[box]) for part in got):
            watch["entries harm neighbours"] = f"entry {hit} is damaged, {number} reads {got}"
    number = rng.randrange(len(boxes))
    box = boxes[number] if rng.random() < 0.5 else tuple(slice(span.stop - 1, span.stop) for span in boxes[number])
    fresh = -np.ones_like(expect[box])
    if watch("write", lambda: array.__setitem__(box, fresh) or True):
        if not same(watch("read", array.__getitem__, box), fresh):
            watch["a write is lost"] = f"{box} of {new!r:.900}"
        for other, old in enumerate(before):
            if other != number and old is not None and not same(watch("read", array.__getitem__, boxes[other]), old):
                watch["writes harm neighbours"] = f"to {box}, at {boxes[other]}: {new!r:.900}"
    return label


def archives(rng, watch, folder):
    (label, values, *_), file = rng.choice(samples()), io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((0, 8, 12, 14))) as archive:
        for key, value in values.items():
            odd = rng.choice([name for name in NAMES if name.isprintable()]) if rng.random() < 0.05 else ""
            archive.writestr(odd + key if rng.random() < 0.5 else key + odd, value)
    data = bytearray(file.getvalue())
    marks = [found.start() for found in re.finditer(b"PK\1\2|PK\5\6|PK\3\4", data)]
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.choice(marks) + rng.randrange(46)
        new = rng.choice((rng.randbytes(1), rng.choice(WORDS).to_bytes(8, "little")[: rng.choice((2, 4))]))
        data[at : at + len(new)] = new
    path = Path(folder) / "a.zip"
    path.write_bytes(bytes(data) if rng.random() < 0.9 else garble(rng, bytes(data))[1])
    look(watch, stores.ZipStore(io.BytesIO(path.read_bytes()) if rng.random() < 0.5 else path))
    return label


TARGETS = {"documents": documents, "chunks": chunks, "shards": shards, "archives": archives}


def child(first, count, target):
    """Run cases, and print one line for each start of a case and for each finding."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    warnings.simplefilter("ignore")
    parts()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in range(first, first + count):
        faulthandler.dump_traceback_later(10 * SLOW, exit=True)
        print(number, flush=True)
        rng, watch = random.Random(number), Watch()
        what = target or rng.choices(list(TARGETS), (5, 5, 2, 2))[0]
        with tempfile.TemporaryDirectory() as folder:
            label = TARGETS[what](rng, watch, folder)
        for kind, text in watch.items():
            print(json.dumps([number, kind, f"{what} {label}, {text}"]), flush=True)


def run(first, count, target=""):
    """Run many cases. Return a report with the first case, the text and the count of each kind of finding."""
    found, number, end = {}, first - 1, first + count
    while number + 1 < end:
        begun, said = number, tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed below
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.property.test_fuzz",
            "child",
            str(number + 1),
            str(end - number - 1),
            target,
        ]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # its threads would use much address space
        with (
            said,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment, cwd=ROOT
            ) as process,
        ):
            for line in process.stdout:
                if line.startswith("["):
                    at, kind, text = json.loads(line)
                    found.setdefault(kind, [at, text, 0])[2] += 1
                else:
                    number = int(line)
            if process.wait():
                said.seek(0)
                text = said.read()
                assert number > begun, text  # the process ended before its first case
                frame = re.search(r'/zarrasync/(.+\.py)", line \d+ in (\w+)', text)
                kind = f"the process ended with {process.returncode} in {':'.join(frame.groups()) if frame else '?'}"
                found.setdefault(kind, [number, text[-2500:], 0])[2] += 1
    return "\n".join(f"### case {at} ({times} times): {kind}\n{text}\n" for kind, (at, text, times) in found.items())


GROUP = {"zarr_format": 3, "node_type": "group"}


def array(value=None, chunk=4, **members):
    """Return a store with one array of four integers and one stored value."""
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int32", "fill_value": 0, "codecs": [LITTLE],
        "chunk_grid": entry("regular", chunk_shape=[chunk]), "chunk_key_encoding": {"name": "default"}, **members,
    }  # fmt: skip
    return {"zarr.json": json.dumps(document).encode(), **({} if value is None else {"c/0": value})}


def objects(value, kind, **more):
    document = {
        "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|O", "compressor": None, "fill_value": None, "order": "C",
        "filters": [{"id": kind, **more}],
    }  # fmt: skip
    return {".zarray": json.dumps(document).encode(), "0": value}


def lzma_codec(**more):
    return [LITTLE, entry("numcodecs.lzma", **more)]


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (objects(b'[1, "|O", [[0], 150000000]]', "json2"), r"has \[\[0\], 150000000\] elements"),
        (objects(b'[1, "|O", ["x", 900000000]]', "json2"), r"has \['x', 900000000\] elements"),
        (array(b"x" * 16, 2**28, codecs=[entry("zfp", mode="reversible")]), "cut short"),
        (array(b"x" * 16, 2**61), "larger than any memory"),
        (array(b"x" * 16, 2**62, codecs=[entry("sharding_indexed", chunk_shape=[1], codecs=[LITTLE], index_codecs=[LITTLE])]), "any memory"),
        (array(b"x" * 16, 2**45, codecs=[entry("sharding_indexed", chunk_shape=[1], codecs=[LITTLE], index_codecs=[LITTLE])]), r"zarr\.json: .*index of 35,184,372,088,832 inner chunks .* larger than any memory"),
        (array(b"\2\1\1\4" + b"\0\0\0\x80\0\1\0\0\x14\0\0\0xxxx", 2**29, codecs=[LITTLE, entry("numcodecs.blosc")]), "blosc"),
        (objects(b"\1\2\3\0", "categorize", labels=["a", "b"], dtype="|O", astype="|u1"), "label 3, but only 2 labels"),
        (array(b"x" * 16, codecs=lzma_codec(format=3, filters=[{"id": "x"}])), "lzma"),
        (array(b"x" * 16, codecs=lzma_codec(format=3, filters=["x"])), "lzma"),
        (array(b"x" * 16, codecs=lzma_codec(format=3, filters=5)), "lzma"),
        (array(b"x" * 16, codecs=lzma_codec(format=2**40, filters=[{"id": 33}])), "lzma"),
        (array(b"]" + b"\xff" * 12 + b"x" * 20, codecs=lzma_codec()), "lzma"),
        (array(shape=[1] * 65, chunk_grid=entry("regular", chunk_shape=[1] * 65)), "65 axes are not supported"),
        (array(bytes(16), codecs=[entry("reshape", shape=[True, -1]), LITTLE]), "shape may contain sizes"),
    ],
)  # fmt: skip
def test_senseless_values_and_documents(store, message):
    for opened in (stores.MemoryStore(store), Elsewhere(store)):
        with pytest.raises(ZarrError, match=message) as caught:
            sync.open_array(opened)[...]
        assert caught.value.__cause__ is not caught.value


@pytest.mark.parametrize("key", ["/a/zarr.json", "a//b/zarr.json", "//zarr.json", "a/b//zarr.json", "a/../zarr.json"])
def test_keys_of_no_node(key):
    group = json.dumps(GROUP).encode()
    values = {"zarr.json": group, "a/zarr.json": group, "a/b/zarr.json": group, key: group}
    copies = {"kind": "inline", "must_understand": False, "metadata": {"a": GROUP, "a/b": GROUP, key[:-10]: GROUP}}
    consolidated = {**values, "zarr.json": json.dumps({**GROUP, "consolidated_metadata": copies}).encode()}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        for name, value in values.items():
            made.writestr(name, value)
    for store in (values, consolidated, stores.ZipStore(archive)):
        assert [path for path, _ in sync.open_group(store).members(max_depth=None)] == ["a", "a/b"]
        sync.validate(store)
        copied = {}
        sync.copy(store, copied, progress=False)
        assert set(copied) == {"zarr.json", "a/zarr.json", "a/b/zarr.json"}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured through Linux's /proc")
def test_hostile_stores():
    found = run(0, int(os.environ.get("ZARRASYNC_FUZZ", "700")))
    assert not found, found


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        print(run(int(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:])))
