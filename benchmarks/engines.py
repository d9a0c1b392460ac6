"""The libraries that are measured, each at its best documented setting for whole arrays.

Every engine opens an array once and then reads or writes all of it, or reads one element.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from workloads import Workload


class Engine:
    """A library.

    Attributes:
        package: Its distribution's name, for the version.
    """

    package = ""

    def __init__(self) -> None:
        """Import the library; raises ImportError if it is not there."""

    @property
    def version(self) -> str:
        return version(self.package)

    def open(self, path: Path) -> Any:
        """Open an array for reading."""
        raise NotImplementedError

    def read(self, array: Any) -> np.ndarray:
        """Read all of it."""
        raise NotImplementedError

    def element(self, array: Any) -> Any:
        """Read one element."""
        raise NotImplementedError

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        """Create the array and write all of it."""
        raise NotImplementedError


class Zarrasync(Engine):
    package = "zarrasync"

    def __init__(self) -> None:
        from zarrasync import sync

        self.sync = sync

    def open(self, path: Path) -> Any:
        return self.sync.open_array(path)

    def read(self, array: Any) -> np.ndarray:
        return array[...]

    def element(self, array: Any) -> Any:
        return array[7, 11]

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        array = self.sync.create_array(
            path,
            shape=workload.shape,
            dtype="f4",
            chunks=workload.chunks,
            shards=workload.shards,
            compressors=workload.codec,
        )
        array[...] = data


class ZarrPython(Engine):
    package = "zarr"
    pipeline: str | None = None

    def __init__(self) -> None:
        import zarr

        self.zarr = zarr
        if self.pipeline is not None:
            zarr.config.set({"codec_pipeline.path": self.pipeline})

    def open(self, path: Path) -> Any:
        return self.zarr.open_array(str(path), mode="r")

    def read(self, array: Any) -> np.ndarray:
        return array[...]

    def element(self, array: Any) -> Any:
        return array[7, 11]

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        array = self.zarr.create_array(
            str(path),
            shape=workload.shape,
            dtype="f4",
            chunks=workload.chunks,
            shards=workload.shards,
            compressors=workload.codec,
        )
        array[...] = data


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

    def open(self, path: Path) -> Any:
        return self.zarrista.Array.open(self.zarrista.store.FilesystemStore(str(path)), "/")

    def read(self, array: Any) -> np.ndarray:
        return np.asarray(array.retrieve_array_subset(tuple(slice(0, n) for n in array.shape)))

    def element(self, array: Any) -> Any:
        return np.asarray(array.retrieve_array_subset((slice(7, 8), slice(11, 12))))[0, 0]

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        from zarrasync import sync

        sync.create_array(
            path,
            shape=workload.shape,
            dtype="f4",
            chunks=workload.chunks,
            shards=workload.shards,
            compressors=workload.codec,
        )
        array = self.open(path)
        array.store_array_subset(tuple(slice(0, n) for n in workload.shape), data)


class TensorStore(Engine):
    package = "tensorstore"

    def __init__(self) -> None:
        import tensorstore

        self.ts = tensorstore

    def _spec(self, path: Path) -> dict[str, Any]:
        return {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}

    def open(self, path: Path) -> Any:
        return self.ts.open(self._spec(path), read=True).result()

    def read(self, array: Any) -> np.ndarray:
        return array.read().result()

    def element(self, array: Any) -> Any:
        return array[7, 11].read().result()

    def write(self, path: Path, workload: Workload, data: np.ndarray) -> None:
        grid = {"name": "regular", "configuration": {"chunk_shape": list(workload.shards or workload.chunks)}}
        metadata = {
            "shape": list(workload.shape),
            "data_type": "float32",
            "chunk_grid": grid,
            "codecs": workload.codecs(),
        }
        # Its files are synced to the disk by default; nobody else's are.
        spec = {**self._spec(path), "metadata": metadata}
        spec["kvstore"]["file_io_sync"] = False
        self.ts.open(spec, create=True).result().write(data).result()


ENGINES: dict[str, Callable[[], Engine]] = {
    "zarrasync": Zarrasync,
    "zarr-python": ZarrPython,
    "zarr-python fused": ZarrPythonFused,
    "zarrs-python": Zarrs,
    "zarrista": Zarrista,
    "tensorstore": TensorStore,
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
