"""A loop without a library, as a lower bound: file operations, the codec's C function and one copy, without checks.

It uses all cores, or one if chunks are so small that handing over the interpreter takes longer.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from engine import Box, Engine, last_element
from workloads import Workload

Cut = tuple[int, Any, Any]
"""A chunk's number along an axis, the part of it to read, and the position of that part in the result."""


class Floor(Engine):
    """The loop, for arrays of format 3."""

    package = "numpy"

    def open(self, path: Path, workload: Workload) -> Any:
        if workload.zarr_format == 2:
            raise NotImplementedError("it is for format 3")
        json.loads((path / "zarr.json").read_bytes())
        return _Values(path, workload)

    def touch(self, array: Any, workload: Workload) -> None:
        pass

    def get(self, array: Any, box: Box, *, crew: int = 0) -> Any:
        spans = [range(*part.indices(n)) for part, n in zip(box, array.workload.shape, strict=True)]
        out = np.empty([len(span) for span in spans], array.workload.dtype)
        cuts = [list(_cut(span, n)) for span, n in zip(spans, array.outer, strict=True)]

        def one(parts: tuple[Cut, ...]) -> None:
            coords, inside, place = zip(*parts, strict=True)
            array.read(coords, inside, out[place])

        _everywhere(one, list(product(*cuts)), array.workload, crew)
        return out

    def element(self, array: Any, index: tuple[int, ...]) -> Any:
        return self.get(array, tuple(slice(i, i + 1) for i in index)).item()

    def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        steps = array.workload.chunks
        counts = [n // c for n, c in zip(array.workload.shape, steps, strict=True)]
        ids: Any = np.ravel_multi_index([indices // step for indices, step in zip(where, steps, strict=True)], counts)
        order = np.argsort(ids.astype("u2"), kind="stable")
        local = [(indices % step)[order] for indices, step in zip(where, steps, strict=True)]
        ids, out = ids[order], np.empty(len(order), array.workload.dtype)
        edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]

        def one(span: tuple[int, int]) -> None:
            coords = np.unravel_index(int(ids[span[0]]), counts)
            chunk = array.chunk(coords)
            out[order[slice(*span)]] = chunk[tuple(indices[slice(*span)] for indices in local)]

        _everywhere(one, list(pairwise(edges)), array.workload)
        return out

    def mask(self, array: Any, where: np.ndarray) -> Any:
        return self.points(array, np.unravel_index(np.flatnonzero(where), where.shape))

    def orthogonal(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        out = np.empty([len(indices) for indices in where], array.workload.dtype)
        cuts = [list(_cut_sorted(indices, n)) for indices, n in zip(where, array.workload.chunks, strict=True)]

        def one(parts: tuple[Cut, ...]) -> None:
            coords, inside, place = zip(*parts, strict=True)
            out[place] = array.chunk(coords)[np.ix_(*inside)]

        _everywhere(one, list(product(*cuts)), array.workload)
        return out

    def concurrent(self, path: Path, workload: Workload, boxes: Sequence[Box]) -> Any:
        array = self.open(path, workload)
        with ThreadPoolExecutor(os.cpu_count()) as crew:
            return list(crew.map(lambda box: self.get(array, box, crew=1), boxes))

    def each(self, array: Any, boxes: Sequence[Box], at_once: int) -> list[Any]:
        with ThreadPoolExecutor(os.cpu_count()) as crew:
            return list(crew.map(lambda box: last_element(self.get(array, box, crew=1)), boxes))

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self._store(path, workload, lambda box: data[box])

    def round_trip(self, source: Path, target: Path, workload: Workload) -> None:
        array = self.open(source, workload)
        self._store(target, workload, lambda box: self.get(array, box, crew=1))
        shutil.copy(source / "zarr.json", target)

    def _store(self, path: Path, workload: Workload, values_of: Callable[[Box], np.ndarray]) -> None:
        if workload.zarr_format == 2:
            raise NotImplementedError("it is for format 3")
        encode, outer = _encoder(workload.codec), workload.shards or workload.chunks

        def bytes_of(block: np.ndarray) -> Any:
            return encode(np.ascontiguousarray(block).reshape(-1).view("u1"))

        def one(coords: tuple[int, ...]) -> None:
            block = values_of(tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, outer, strict=True)))
            name = "/".join(map(str, (path, "c", *coords)))
            values = [bytes_of(block)] if workload.shards is None else _shard(block, workload.chunks, bytes_of)
            with open(f"{name}.part", "xb", buffering=0) as file:
                for value in map(memoryview, values):
                    while value:
                        value = value[file.write(value) :]
            os.replace(f"{name}.part", name)

        counts = [range(n // c) for n, c in zip(workload.shape, outer, strict=True)]
        for folder in product(*counts[:-1]):
            os.makedirs("/".join(map(str, (path, "c", *folder))))
        _everywhere(one, list(product(*counts)), workload)


class _Values:
    """The stored values of an array."""

    def __init__(self, path: Path, workload: Workload) -> None:
        self.path, self.workload = path, workload
        self.outer = workload.shards or workload.chunks
        self._decode = _decoder(workload.codec)
        self._local = threading.local()

    def read(self, coords: tuple[int, ...], inside: tuple[slice, ...], target: np.ndarray) -> None:
        """Read a part of a stored value into an array."""
        if self.workload.shards is None:
            target[...] = self.chunk(coords)[inside]
            return
        counts = [n // c for n, c in zip(self.outer, self.workload.chunks, strict=True)]
        total = int(np.prod(counts))
        spans = [range(part.start, part.stop, part.step) for part in inside]
        cuts = list(product(*(_cut(span, n) for span, n in zip(spans, self.workload.chunks, strict=True))))
        handle = os.open(self._name(coords), os.O_RDONLY)
        size = os.fstat(handle).st_size
        if 2 * len(cuts) >= total:
            data = self._memory(size)
            os.readv(handle, [data])
        else:
            data = None
        tail = 16 * total + 4
        index = (os.pread(handle, tail, size - tail) if data is None else data[-tail:].tobytes())[:-4]
        entries = np.frombuffer(index, "<u8").reshape(*counts, 2)
        entries = entries if data is None else entries.tolist()
        for parts in cuts:
            numbers, inner, positions = zip(*parts, strict=True)
            entry = entries
            for number in numbers:
                entry = entry[number]
            start, length = map(int, entry)
            value = self._memory(length) if data is None else data[start : start + length]
            if data is None:
                os.preadv(handle, [value], start)
            target[positions] = self._decode(value, self._chunk())[inner]
        os.close(handle)

    def chunk(self, coords: Sequence[int]) -> np.ndarray:
        """Return a chunk in memory that the next one overwrites."""
        if self.workload.shards is not None:
            raise NotImplementedError("no shards")
        handle = os.open(self._name(coords), os.O_RDONLY)
        memory = self._memory(int(np.prod(self.outer)) * self.workload.itemsize * 5 // 4 + 4096)
        count = os.readv(handle, [memory])
        os.close(handle)
        return self._decode(memory[:count], self._chunk())

    def _name(self, coords: Sequence[int]) -> str:
        return "/".join(map(str, (self.path, "c", *coords)))

    def _memory(self, size: int) -> np.ndarray:
        memory = getattr(self._local, "memory", None)
        if memory is None or len(memory) < size:
            # Copies out of the page cache to the first bytes of a page are slow, and malloc's blocks begin there.
            block = np.empty(size * 5 // 4 + 4096, "u1")
            memory = self._local.memory = block[(64 - block.ctypes.data) % 4096 :]
        return memory[:size]

    def _chunk(self) -> np.ndarray:
        if not hasattr(self._local, "chunk"):
            self._local.chunk = np.empty(self.workload.chunks, self.workload.dtype)
        return self._local.chunk


def _cut(span: range, size: int) -> Iterator[Cut]:
    """Split a range of indices along an axis by chunks."""
    done = 0
    while done < len(span):
        first = span[done]
        number = first // size
        end = min(len(span), done + -(-((number + 1) * size - first) // span.step))
        inside = slice(first - number * size, span[end - 1] - number * size + 1, span.step)
        yield number, inside, slice(done, end)
        done = end


def _cut_sorted(indices: np.ndarray, size: int) -> Iterator[Cut]:
    """Split sorted indices along an axis by chunks."""
    numbers = indices // size
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(indices)]):
        number = int(numbers[start])
        yield number, indices[start:end] - number * size, slice(start, end)


def _shard(block: np.ndarray, chunks: tuple[int, ...], encode: Callable[[np.ndarray], Any]) -> list[Any]:
    """Return the inner chunks of a shard and its index."""
    import crc32c

    counts = [n // c for n, c in zip(block.shape, chunks, strict=True)]
    values, index, start = [], np.empty((*counts, 2), "<u8"), 0
    for coords in np.ndindex(*counts):
        values.append(encode(block[tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunks, strict=True))]))
        index[coords] = start, len(values[-1])
        start += len(values[-1])
    tail = index.tobytes()
    return [*values, tail, crc32c.crc32c(tail).to_bytes(4, "little")]


def _everywhere(work: Callable[[Any], None], items: list[Any], workload: Workload, crew: int = 0) -> None:
    """Work on all items, each thread on a contiguous part of them."""
    alone = workload.chunk_nbytes < 32768 and (workload.shards is None or workload.codec is not None)
    crew = min(crew or (1 if alone else os.cpu_count() or 1), len(items))
    shares = [items[k * len(items) // crew : (k + 1) * len(items) // crew] for k in range(crew)]
    errors: list[BaseException] = []

    def run(share: list[Any]) -> None:
        try:
            for item in share:
                work(item)
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=run, args=(share,)) for share in shares[1:]]
    for helper in helpers:
        helper.start()
    for share in shares[:1]:
        run(share)
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]


def _decoder(codec: dict[str, Any] | None) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the C function that decodes a chunk."""
    if codec is None:
        return lambda data, chunk: data.view(chunk.dtype).reshape(chunk.shape)
    import numcodecs.blosc
    import numcodecs.lz4
    import numcodecs.zstd
    from isal import isal_zlib

    numcodecs.blosc.use_threads = False
    if codec["name"] == "gzip":
        return lambda data, chunk: np.frombuffer(isal_zlib.decompress(data, 31), chunk.dtype).reshape(chunk.shape)
    function = getattr(numcodecs, codec["name"].removeprefix("numcodecs.")).decompress

    def decode(data: np.ndarray, chunk: np.ndarray) -> np.ndarray:
        function(data, chunk)
        return chunk

    return decode


def _encoder(codec: dict[str, Any] | None) -> Callable[[np.ndarray], Any]:
    """Return the C function that encodes a chunk."""
    if codec is None:
        return lambda data: data
    import numcodecs.blosc
    import numcodecs.lz4
    import numcodecs.zstd
    from zlib_ng import zlib_ng

    numcodecs.blosc.use_threads = False
    options = codec["configuration"]
    if codec["name"] == "gzip":
        return lambda data: zlib_ng.compress(data, options["level"], 31)
    if codec["name"] == "blosc":
        name = options["cname"].encode()
        return lambda data: numcodecs.blosc.compress(data, name, options["clevel"], 1, 0, 4)
    if codec["name"] == "zstd":
        return lambda data: numcodecs.zstd.compress(data, options["level"])
    return lambda data: numcodecs.lz4.compress(data, options["acceleration"])
