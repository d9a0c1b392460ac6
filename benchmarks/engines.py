"""The libraries that are measured, each with its fastest documented configuration for whole arrays."""

from __future__ import annotations

import asyncio
import os
import shutil
import warnings
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from engine import Box, Engine, last_element
from floor import Floor
from workloads import Workload


def _options(workload: Workload) -> dict[str, Any]:
    options: dict[str, Any] = {"shape": workload.shape, "chunks": workload.chunks, "zarr_format": workload.zarr_format}
    if workload.shards is not None:
        options["shards"] = workload.shards
    return options


class Zarrasync(Engine):
    """zarrasync with the compiled kernel."""

    package = "zarrasync"
    environment: ClassVar[dict[str, str]] = {"ZARRASYNC_NATIVE": "require"}

    def __init__(self) -> None:
        from zarrasync import sync

        self.sync = sync

    def open(self, path: Path, workload: Workload) -> Any:
        return self.sync.open_array(path)

    def open_for_changes(self, path: Path, workload: Workload) -> Any:
        return self.sync.open_array(path, mode="r+")

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
            dtype=workload.dtype,
            compressors=workload.codec,
            filters=workload.filters,
            order=workload.order,
            **_options(workload),
        )
        array[...] = data
        return array

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self._create(path, workload, data)

    def round_trip(self, source: Path, target: Path, workload: Workload) -> None:
        layout = {"compressors": workload.codec, "filters": workload.filters, "order": workload.order}
        options = {name: value for name, value in _options(workload).items() if name != "shape"}
        self.sync.ingest(self.sync.open_array(source), target, **layout, **options)


class ZarrasyncPure(Zarrasync):
    """zarrasync without the compiled kernel."""

    environment: ClassVar[dict[str, str]] = {"ZARRASYNC_NATIVE": "off"}


class ZarrPython(Engine):
    package = "zarr"
    pipeline: str | None = None

    def __init__(self) -> None:
        import zarr.api.asynchronous
        import zarr.storage

        self.zarr = zarr
        if self.pipeline is not None:
            zarr.config.set({"codec_pipeline.path": self.pipeline})

    def open(self, path: Path, workload: Workload) -> Any:
        return self.zarr.open_array(str(path), mode="r")

    def open_for_changes(self, path: Path, workload: Workload) -> Any:
        return self.zarr.open_array(str(path), mode="r+")

    def in_memory(self, workload: Workload) -> Any:
        return self._create(self.zarr.storage.MemoryStore(), workload, workload.data())

    def concurrent(self, path: Path, workload: Workload, boxes: Sequence[Box]) -> Any:
        async def read() -> list[Any]:
            array = await self.zarr.api.asynchronous.open_array(store=str(path), mode="r")
            return await asyncio.gather(*(array.getitem(box) for box in boxes))

        return asyncio.run(read())

    def _create(self, store: Any, workload: Workload, data: np.ndarray) -> Any:
        compressor: Any = workload.codec
        filters: Any = None
        if workload.zarr_format == 2:
            import numcodecs

            compressor = numcodecs.get_codec(dict(workload.codec or {}))
            filters = [numcodecs.get_codec(dict(item)) for item in workload.filters] or None
        array = self.zarr.create_array(
            store,
            dtype=workload.dtype,
            compressors=compressor,
            filters=filters,
            order=workload.order,
            **_options(workload),
        )
        array[...] = data
        return array

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self._create(str(path), workload, data)

    def round_trip(self, source: Path, target: Path, workload: Workload) -> None:
        self.zarr.from_array(str(target), data=self.open(source, workload))


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


class ZarrasyncPipeline(ZarrPython):
    pipeline = "zarrasync.integrations.zarr.CodecPipeline"

    def __init__(self) -> None:
        import zarrasync.integrations.zarr  # noqa: F401  # registers the pipeline

        super().__init__()

    @property
    def version(self) -> str:
        return version("zarrasync")


class Zarrista(Engine):
    package = "zarrista"

    def __init__(self) -> None:
        import zarrista

        self.zarrista = zarrista

    def open(self, path: Path, workload: Workload) -> Any:
        return self.zarrista.Array.open(self.zarrista.store.FilesystemStore(str(path)), "/")

    open_for_changes = open

    def change(self, array: Any, box: Box, values: np.ndarray) -> None:
        array.store_array_subset(box, values)

    def get(self, array: Any, box: Box) -> Any:
        if any(part.step not in (None, 1) for part in box):
            raise NotImplementedError("it has no steps")
        return np.asarray(array.retrieve_array_subset(box))

    def element(self, array: Any, index: tuple[int, ...]) -> Any:
        return self.get(array, tuple(slice(i, i + 1) for i in index)).reshape(())[()]

    def points(self, array: Any, where: Any) -> Any:
        raise NotImplementedError("it has no points")

    mask = orthogonal = points

    def _create(self, path: Path, workload: Workload) -> Any:
        from zarrasync import sync

        sync.create_array(
            path,
            dtype=workload.dtype,
            compressors=workload.codec,
            filters=workload.filters,
            order=workload.order,
            **_options(workload),
        )
        return self.open(path, workload)

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self._create(path, workload).store_array_subset(workload.whole, data)

    def round_trip(self, source: Path, target: Path, workload: Workload) -> None:
        old, new = self.open(source, workload), self._create(target, workload)

        def one(number: tuple[int, ...]) -> None:
            new.store_chunk(list(number), np.asarray(old.retrieve_chunk(list(number))))

        with ThreadPoolExecutor(os.cpu_count()) as crew:
            list(crew.map(one, np.ndindex(*old.chunk_grid_shape)))


class TensorStore(Engine):
    package = "tensorstore"

    def __init__(self) -> None:
        import tensorstore

        self.ts = tensorstore

    def _spec(self, path: Path, workload: Workload) -> dict[str, Any]:
        driver = "zarr" if workload.zarr_format == 2 else "zarr3"
        # Unlike the others, it syncs files to the disk by default.
        return {"driver": driver, "kvstore": {"driver": "file", "path": str(path), "file_io_sync": False}}

    def open(self, path: Path, workload: Workload) -> Any:
        return self.ts.open(self._spec(path, workload), read=True).result()

    def open_for_changes(self, path: Path, workload: Workload) -> Any:
        return self.ts.open(self._spec(path, workload), read=True, write=True).result()

    def change(self, array: Any, box: Box, values: np.ndarray) -> None:
        array[box].write(values).result()

    def in_memory(self, workload: Workload) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": self._metadata(workload)}
        array = self.ts.open(spec, create=True).result()
        array.write(workload.data()).result()
        return array

    def get(self, array: Any, box: Box) -> Any:
        return array[box].read().result()

    def element(self, array: Any, index: tuple[int, ...]) -> Any:
        return array[index].read().result()

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
        codec = workload.codec or {}
        if workload.filters or codec.get("name", "").startswith("numcodecs."):
            raise NotImplementedError("it does not have the codec")
        if workload.zarr_format == 2:
            return {
                "shape": list(workload.shape),
                "dtype": np.dtype(workload.dtype).str,
                "chunks": list(workload.chunks),
                "compressor": codec or None,
                "order": workload.order,
            }
        grid = {"name": "regular", "configuration": {"chunk_shape": list(workload.shards or workload.chunks)}}
        return {
            "shape": list(workload.shape),
            "data_type": np.dtype(workload.dtype).name,
            "chunk_grid": grid,
            "codecs": workload.codecs(),
        }

    def _create(self, path: Path, workload: Workload) -> Any:
        spec = {**self._spec(path, workload), "metadata": self._metadata(workload)}
        return self.ts.open(spec, create=True).result()

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        self._create(path, workload).write(data).result()

    def round_trip(self, source: Path, target: Path, workload: Workload) -> None:
        self._create(target, workload).write(self.open(source, workload)).result()

    def each(self, array: Any, boxes: Sequence[Box], at_once: int) -> list[Any]:
        results, futures = [], deque(array[box].read() for box in boxes[:at_once])
        for box in [*boxes[at_once:], *[None] * len(futures)]:
            results.append(last_element(futures.popleft().result()))
            if box is not None:
                futures.append(array[box].read())
        return results


ENGINES: dict[str, type[Engine]] = {
    "zarrasync": Zarrasync,
    "zarrasync without kernel": ZarrasyncPure,
    "zarr-python": ZarrPython,
    "zarr-python fused": ZarrPythonFused,
    "zarrs-python": Zarrs,
    "zarrista": Zarrista,
    "tensorstore": TensorStore,
    "floor": Floor,
}
SLOWEST = "zarr-python"
"""The engine that takes more time for some rows than all others together."""

PIPELINES: dict[str, type[Engine]] = {
    "zarr-python": ZarrPython,
    "zarr-python fused": ZarrPythonFused,
    "zarrs-python": Zarrs,
    "zarrasync pipeline": ZarrasyncPipeline,
}
"""zarr-python with each codec pipeline."""


ALL = {**ENGINES, **PIPELINES}


def make(name: str) -> Engine:
    """The engine of a name.

    Raises:
        ImportError: If it is not installed.
    """
    warnings.simplefilter("ignore")
    return ALL[name]()


def fresh(path: Path) -> Path:
    """The path, with nothing there."""
    shutil.rmtree(path, ignore_errors=True)
    return path
