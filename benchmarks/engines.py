"""The libraries that are measured, each at its best documented setting for whole arrays."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from workloads import Workload

Box = tuple[slice, ...]


class Engine:
    """A library. What it can not do raises ``NotImplementedError``.

    Attributes:
        package: Its distribution's name, for the version.
    """

    package = ""

    def __init__(self) -> None:
        """Import the library; raises ImportError if it is not there."""

    @property
    def version(self) -> str:
        return version(self.package)

    def open(self, path: Path, workload: Workload) -> Any:
        """Open an array for reading."""
        raise NotImplementedError

    def in_memory(self, workload: Workload) -> Any:
        """Make an array in the library's memory store and write all of it."""
        raise NotImplementedError

    def get(self, array: Any, box: Box) -> Any:
        """Read a box."""
        return array[box]

    def touch(self, array: Any, workload: Workload) -> None:
        """Read a little, as the first access may set things up."""
        self.get(array, tuple(slice(0, 1) for _ in workload.shape))

    def element(self, array: Any, index: tuple[int, ...]) -> Any:
        """Read one element."""
        return array[index]

    def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        """Read points."""
        return array.vindex[where]

    def mask(self, array: Any, where: np.ndarray) -> Any:
        """Read where a mask is true."""
        return array.get_mask_selection(where)

    def orthogonal(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        """Read rows and columns."""
        return array.oindex[where]

    def concurrent(self, path: Path, workload: Workload, boxes: Sequence[Box]) -> Any:
        """Read many boxes at once, asynchronously."""
        raise NotImplementedError

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        """Create the array and write all of it."""
        raise NotImplementedError


def _options(workload: Workload) -> dict[str, Any]:
    options: dict[str, Any] = {"shape": workload.shape, "chunks": workload.chunks, "zarr_format": workload.zarr_format}
    if workload.shards is not None:
        options["shards"] = workload.shards
    return options


class Zarrasync(Engine):
    package = "zarrasync"

    def __init__(self) -> None:
        from zarrasync import sync

        self.sync = sync

    def open(self, path: Path, workload: Workload) -> Any:
        return self.sync.open_array(path)

    def in_memory(self, workload: Workload) -> Any:
        return self._create({}, workload, workload.data())

    def concurrent(self, path: Path, workload: Workload, boxes: Sequence[Box]) -> Any:
        import zarrasync as za

        async def read() -> list[np.ndarray]:
            array = await za.open_array(path)
            return await asyncio.gather(*(array[box].read() for box in boxes))

        return asyncio.run(read())

    def _create(self, store: Any, workload: Workload, data: np.ndarray) -> Any:
        array = self.sync.create_array(
            store,
            dtype="f4",
            compressors=workload.codec,
            filters=workload.filters,
            order=workload.order,
            **_options(workload),
        )
        array[...] = data
        return array

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self._create(path, workload, data)


class ZarrPython(Engine):
    package = "zarr"
    pipeline: str | None = None

    def __init__(self) -> None:
        import zarr

        self.zarr = zarr
        if self.pipeline is not None:
            zarr.config.set({"codec_pipeline.path": self.pipeline})

    def open(self, path: Path, workload: Workload) -> Any:
        return self.zarr.open_array(str(path), mode="r")

    def in_memory(self, workload: Workload) -> Any:
        return self._create(self.zarr.storage.MemoryStore(), workload, workload.data())

    def concurrent(self, path: Path, workload: Workload, boxes: Sequence[Box]) -> Any:
        async def read() -> list[np.ndarray]:
            array = await self.zarr.api.asynchronous.open_array(store=str(path), mode="r")
            return await asyncio.gather(*(array.getitem(box) for box in boxes))

        return asyncio.run(read())

    def _create(self, store: Any, workload: Workload, data: np.ndarray) -> Any:
        compressor = workload.codec
        filters: Any = None
        if workload.zarr_format == 2:
            import numcodecs

            compressor = numcodecs.get_codec(dict(workload.codec or {}))
            filters = [numcodecs.get_codec(dict(item)) for item in workload.filters] or None
        array = self.zarr.create_array(
            store, dtype="f4", compressors=compressor, filters=filters, order=workload.order, **_options(workload)
        )
        array[...] = data
        return array

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self._create(str(path), workload, data)


class ZarrPythonFused(ZarrPython):
    pipeline = "zarr.core.codec_pipeline.FusedCodecPipeline"

    def __init__(self) -> None:
        from zarr.core.codec_pipeline import FusedCodecPipeline  # noqa: F401  # newer releases have it

        super().__init__()


class Zarrs(ZarrPython):
    pipeline = "zarrs.ZarrsCodecPipeline"

    def __init__(self) -> None:
        import zarrs  # noqa: F401  # registers the pipeline

        super().__init__()

    @property
    def version(self) -> str:
        return version("zarrs")


class Zarrista(Engine):
    package = "zarrista"

    def __init__(self) -> None:
        import zarrista

        self.zarrista = zarrista

    def open(self, path: Path, workload: Workload) -> Any:
        return self.zarrista.Array.open(self.zarrista.store.FilesystemStore(str(path)), "/")

    def get(self, array: Any, box: Box) -> Any:
        if any(part.step not in (None, 1) for part in box):
            raise NotImplementedError("it has no steps")
        return np.asarray(array.retrieve_array_subset(box))

    def element(self, array: Any, index: tuple[int, ...]) -> Any:
        return self.get(array, tuple(slice(i, i + 1) for i in index)).reshape(())[()]

    def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        raise NotImplementedError("it has no points")

    mask = orthogonal = points

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        from zarrasync import sync

        sync.create_array(
            path,
            dtype="f4",
            compressors=workload.codec,
            filters=workload.filters,
            order=workload.order,
            **_options(workload),
        )
        array = self.open(path, workload)
        array.store_array_subset(tuple(slice(0, n) for n in workload.shape), data)


class TensorStore(Engine):
    package = "tensorstore"

    def __init__(self) -> None:
        import tensorstore

        self.ts = tensorstore

    def _spec(self, path: Path, workload: Workload) -> dict[str, Any]:
        driver = "zarr" if workload.zarr_format == 2 else "zarr3"
        return {"driver": driver, "kvstore": {"driver": "file", "path": str(path)}}

    def open(self, path: Path, workload: Workload) -> Any:
        return self.ts.open(self._spec(path, workload), read=True).result()

    def in_memory(self, workload: Workload) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": self._metadata(workload)}
        array = self.ts.open(spec, create=True).result()
        array.write(workload.data()).result()
        return array

    def get(self, array: Any, box: Box) -> Any:
        return array[box].read().result()

    element = get

    def points(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        return array.vindex[where].read().result()

    def mask(self, array: Any, where: np.ndarray) -> Any:
        return array.vindex[where].read().result()

    def orthogonal(self, array: Any, where: tuple[np.ndarray, ...]) -> Any:
        return array.oindex[where].read().result()

    def concurrent(self, path: Path, workload: Workload, boxes: Sequence[Box]) -> Any:
        array = self.open(path, workload)
        return [future.result() for future in [array[box].read() for box in boxes]]

    def _metadata(self, workload: Workload) -> dict[str, Any]:
        if workload.zarr_format == 2 or (workload.codec or {}).get("name", "").startswith("numcodecs."):
            raise NotImplementedError("not set up here")
        grid = {"name": "regular", "configuration": {"chunk_shape": list(workload.shards or workload.chunks)}}
        return {
            "shape": list(workload.shape),
            "data_type": "float32",
            "chunk_grid": grid,
            "codecs": workload.codecs(),
        }

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        # Its files are synced to the disk by default; nobody else's are.
        spec = {**self._spec(path, workload), "metadata": self._metadata(workload)}
        spec["kvstore"]["file_io_sync"] = False
        self.ts.open(spec, create=True).result().write(data).result()


class Floor(Engine):
    """No library, but what is left without one: a bare loop of file operations, the codec's C function and one copy.

    It runs on all cores, on one for chunks so small that handing over the interpreter costs more. It checks nothing.
    """

    package = "numpy"

    def open(self, path: Path, workload: Workload) -> Any:
        if workload.zarr_format == 2 or len(workload.shape) != 2:
            raise NotImplementedError("it is for two dimensions and format 3")
        return path, workload

    def touch(self, array: Any, workload: Workload) -> None:
        pass

    def get(self, array: Any, box: Box) -> Any:
        path, workload = array
        if box != tuple(slice(0, n) for n in workload.shape):
            raise NotImplementedError("whole arrays")
        out = np.empty(workload.shape, "f4")
        local = threading.local()
        outer = workload.shards or workload.chunks
        decode = _decoder(workload.codec)

        def one(i: int, j: int) -> None:
            name = f"{path}/c/{i}/{j}"
            handle = os.open(name, os.O_RDONLY)
            size = os.fstat(handle).st_size if workload.shards else int(np.prod(outer)) * 5 + 4096
            if not hasattr(local, "memory"):
                local.memory, local.chunk = np.empty(size * 5 // 4, "u1"), np.empty(workload.chunks, "f4")
            view = local.memory[: os.readv(handle, [local.memory[:size]])]
            os.close(handle)
            place = out[i * outer[0] : (i + 1) * outer[0], j * outer[1] : (j + 1) * outer[1]]
            if workload.shards is None:
                place[...] = decode(view, local.chunk)
                return
            grid = [n // c for n, c in zip(outer, workload.chunks, strict=True)]
            index = view[-4 - 16 * grid[0] * grid[1] : -4].view("<u8").reshape(*grid, 2).tolist()
            height, width = workload.chunks
            for row, entries in enumerate(index):
                for column, (start, length) in enumerate(entries):
                    part = decode(view[start : start + length], local.chunk)
                    place[row * height : (row + 1) * height, column * width : (column + 1) * width] = part

        _everywhere(one, workload)
        return out

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self.open(path, workload)
        if workload.shards is not None:
            raise NotImplementedError("no shards")
        encode = _encoder(workload.codec)
        height, width = workload.chunks

        def one(i: int, j: int) -> None:
            part = np.ascontiguousarray(data[i * height : (i + 1) * height, j * width : (j + 1) * width])
            value = memoryview(encode(part.reshape(-1).view("u1")))
            name = f"{path}/c/{i}/{j}"
            handle = os.open(f"{name}.part", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            while value:
                value = value[os.write(handle, value) :]
            os.close(handle)
            os.replace(f"{name}.part", name)

        for i in range(workload.shape[0] // height):
            os.makedirs(f"{path}/c/{i}")
        _everywhere(one, workload)


def _everywhere(work: Callable[[int, int], None], workload: Workload) -> None:
    """Work on all stored values, each thread on a part of them that lies together."""
    outer = workload.shards or workload.chunks
    counts = [n // c for n, c in zip(workload.shape, outer, strict=True)]
    places = [(i, j) for i in range(counts[0]) for j in range(counts[1])]
    crew = 1 if int(np.prod(outer)) * 4 < 32768 else os.cpu_count() or 1
    shares = [places[k * len(places) // crew : (k + 1) * len(places) // crew] for k in range(crew)]

    def share(own: list[tuple[int, int]]) -> None:
        for place in own:
            work(*place)

    helpers = [threading.Thread(target=share, args=(own,)) for own in shares[1:]]
    for helper in helpers:
        helper.start()
    share(shares[0])
    for helper in helpers:
        helper.join()


def _decoder(codec: dict[str, Any] | None) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The C function that decodes, with the array it makes."""
    if codec is None:
        return lambda data, chunk: data.view("f4").reshape(chunk.shape)
    import numcodecs.blosc
    import numcodecs.lz4
    import numcodecs.zstd
    from isal import isal_zlib

    numcodecs.blosc.use_threads = False
    if codec["name"] == "gzip":
        return lambda data, chunk: np.frombuffer(isal_zlib.decompress(data, 31), "f4").reshape(chunk.shape)
    function = getattr(numcodecs, codec["name"].removeprefix("numcodecs.")).decompress

    def decode(data: np.ndarray, chunk: np.ndarray) -> np.ndarray:
        function(data, chunk)
        return chunk

    return decode


def _encoder(codec: dict[str, Any] | None) -> Callable[[np.ndarray], Any]:
    """The C function that encodes."""
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


ENGINES: dict[str, Callable[[], Engine]] = {
    "zarrasync": Zarrasync,
    "zarr-python": ZarrPython,
    "zarr-python fused": ZarrPythonFused,
    "zarrs-python": Zarrs,
    "zarrista": Zarrista,
    "tensorstore": TensorStore,
    "floor": Floor,
}


def make(name: str) -> Engine:
    """The engine of a name.

    Raises:
        ImportError: If it is not installed.
    """
    warnings.simplefilter("ignore")
    return ENGINES[name]()


def fresh(path: Path) -> Path:
    """The path, with nothing there."""
    shutil.rmtree(path, ignore_errors=True)
    return path
