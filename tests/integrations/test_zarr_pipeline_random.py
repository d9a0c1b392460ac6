"""Random arrays and random selections: our codec pipeline and zarr-python's own one store and return the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3.4")  # earlier ones do not tell zeros of different signs apart

import numcodecs
from zarr import codecs
from zarr.storage import LocalStore, MemoryStore

import zarrasync.integrations.zarr  # noqa: F401  # registers the pipeline

pytestmark = pytest.mark.random

OURS = "zarrasync.integrations.zarr.CodecPipeline"
THEIRS = "zarr.core.codec_pipeline.BatchedCodecPipeline"
DTYPES = ("bool", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "U3", "S2", "M8[s]", "str", ">f4", "i2,f8")


class Values:
    """Stored values in memory."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def store(self) -> Any:
        return MemoryStore(self._values)

    def content(self) -> dict[str, bytes]:
        return {key: value.to_bytes() for key, value in self._values.items()}


class Files(Values):
    """Stored values as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self) -> Any:
        return LocalStore(self._folder)

    def content(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self._folder)): path.read_bytes() for path in self._folder.rglob("*") if path.is_file()
        }


class Case:
    """A random array, which is created in one store per pipeline.

    Attributes:
        same_bytes: Whether both pipelines use the same compressor, so that they must store the same bytes.
    """

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.dtype = rng.choice(DTYPES)
        self.zarr_format = rng.choice((2, 3, 3))
        self.numpy = np.dtypes.StringDType() if self.dtype == "str" else np.dtype(self.dtype)
        self.shape = tuple(rng.choice((1, 2, 5, 9, 17)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))
        self.options: dict[str, Any] = {
            "shape": self.shape,
            "dtype": str if self.dtype == "str" else self.numpy,
            "zarr_format": self.zarr_format,
            "config": {"write_empty_chunks": rng.random() < 0.4, "order": rng.choice("CF")},
        }
        chunks = tuple(rng.randint(1, size + 1) for size in self.shape)
        self.options["chunks"] = chunks
        self.same_bytes = True
        (self._v2 if self.zarr_format == 2 else self._v3)(chunks)
        if self.numpy.kind in "iufc" and rng.random() < 0.6:
            # zarr-python does not tell complex zeros of different signs apart.
            zero = 0.0 if self.numpy.kind == "c" else -0.0
            self.options["fill_value"] = rng.choice((1, 7, 0) if self.numpy.kind in "iu" else (np.nan, zero, 1.5))
        self.sources = [self.values(self.shape) for _ in range(2)]

    def _v2(self, chunks: tuple[int, ...]) -> None:
        rng = self.random
        self.options["order"] = rng.choice("CF")
        self.options["compressors"] = rng.choice(
            (None, numcodecs.Blosc("lz4"), numcodecs.Zlib(1), numcodecs.Zstd(1), numcodecs.LZ4())
        )
        self.same_bytes = not isinstance(self.options["compressors"], numcodecs.Zlib | numcodecs.Zstd)
        if self.numpy.kind in "iu" and rng.random() < 0.5:
            size = self.numpy.itemsize
            self.options["filters"] = [rng.choice((numcodecs.Delta(self.numpy.str), numcodecs.Shuffle(size)))]
            # Blosc notes the size of elements, which depends on what the filter returns.
            self.same_bytes &= not isinstance(self.options["compressors"], numcodecs.Blosc)

    def _v3(self, chunks: tuple[int, ...]) -> None:
        rng = self.random
        compressor = rng.choice(
            (None, codecs.ZstdCodec(level=1), codecs.GzipCodec(level=1), codecs.BloscCodec(), codecs.Crc32cCodec())
        )
        self.options["compressors"] = compressor
        self.same_bytes = not isinstance(compressor, codecs.ZstdCodec | codecs.GzipCodec)
        if len(chunks) > 1 and rng.random() < 0.4:
            self.options["filters"] = codecs.TransposeCodec(order=rng.sample(range(len(chunks)), len(chunks)))
        if chunks and rng.random() < 0.5:
            location = rng.choice(("start", "end"))
            shards = tuple(size * rng.randint(1, 4) for size in chunks)
            self.options["shards"] = {"shape": shards, "index_location": location}

    def values(self, shape: tuple[int, ...]) -> Any:
        """Return values, of which about half are the fill value, in stretches."""
        generator = np.random.default_rng(self.random.getrandbits(30))
        numbers = generator.integers(0, 100, shape) * (generator.random(shape) < 0.5)
        if self.random.random() < 0.3:
            numbers = numbers * 0
        if self.numpy.names:
            values = np.zeros(shape, self.numpy)
            for name in self.numpy.names:
                values[name] = numbers
            return values
        if self.numpy.kind in "TUS":
            text = np.where(numbers == 0, "", numbers.astype("U3"))
            return text.astype(self.numpy)
        return numbers.astype(self.numpy)

    def create(self, pipeline: str, folder: Path | None) -> tuple[Values, Any]:
        """Create the array in memory, or in a folder."""
        values = Values() if folder is None else Files(folder / pipeline.rpartition(".")[2])
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            return values, zarr.create_array(values.store(), **self.options)

    # -------------------------------------------------------------- selections

    def basic(self) -> tuple[str, Any]:
        key: list[Any] = []
        for size in self.shape:
            if self.random.random() < 0.3:
                key.append(self.random.randrange(size))
            else:
                start = self.random.randrange(size)
                key.append(slice(start, self.random.randint(start, size + 2), self.random.choice((None, 1, 2, 3))))
        return "basic", tuple(key)

    def orthogonal(self) -> tuple[str, Any]:
        key: list[Any] = []
        for size in self.shape:
            kind = self.random.choice(("array", "slice", "mask", "index"))
            if kind == "array":
                key.append(self.indices(size))
            elif kind == "mask":
                key.append(np.array([self.random.random() < 0.5 for _ in range(size)]))
            else:
                key.append(slice(self.random.randrange(size), None) if kind == "slice" else self.random.randrange(size))
        return "orthogonal", tuple(key)

    def coordinates(self) -> tuple[str, Any]:
        numbers = self.indices(math.prod(self.shape))
        return "coordinate", tuple(axis.tolist() for axis in np.unravel_index(numbers, self.shape))

    def indices(self, size: int) -> list[int]:
        """Return different indices: the result of writing several values to one element is undefined."""
        return self.random.sample(range(size), self.random.randint(1, min(size, 9)))

    def selection(self) -> tuple[str, Any]:
        kinds: tuple[Callable[[], tuple[str, Any]], ...] = (self.basic, self.basic, self.orthogonal, self.coordinates)
        return (self.random.choice(kinds) if self.shape else self.basic)()


def run(case: Case, folder: Path | None) -> None:
    (our_values, ours), (their_values, theirs) = case.create(OURS, folder), case.create(THEIRS, folder)
    for step in range(6):
        kind, key = case.selection()
        read = f"get_{kind}_selection"
        write = f"set_{kind}_selection"
        expected = getattr(theirs, read)(key)
        _assert_same(getattr(ours, read)(key), expected)
        whole = step in (0, 4) and case.random.random() < 0.7
        if whole:
            values = case.sources[step // 4]
            ours[...] = values
            theirs[...] = values
        else:
            shape = np.shape(expected)
            values = case.values(shape) if case.random.random() < 0.7 else case.values((1,))[0]
            getattr(ours, write)(key, values)
            getattr(theirs, write)(key, values)
        our_content, their_content = our_values.content(), their_values.content()
        assert set(our_content) == set(their_content)
        _assert_same(ours[...], theirs[...])
        if case.same_bytes:
            assert our_content == their_content
        else:  # each reads what the other one has stored
            stored = _opened(THEIRS, their_values)
            _assert_same(_opened(OURS, their_values), stored)
            _assert_same(_opened(THEIRS, our_values), stored)


def _opened(pipeline: str, values: Values) -> Any:
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        return zarr.open_array(values.store())[...]


def _assert_same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if found.dtype.kind in "TO":
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore")  # of zarr-python: data types and codecs that are not in the specification
@pytest.mark.parametrize("part", range(4))
def test_random_arrays(part: int):
    for seed in range(part * 15, part * 15 + 15):
        _run_seed(seed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_random_files(part: int, tmp_path: Path):
    for seed in range(100 + part * 15, 100 + part * 15 + 15):
        _run_seed(seed, tmp_path / str(seed))


def _run_seed(seed: int, folder: Path | None = None) -> None:
    case = Case(seed)
    try:
        run(case, folder)
    except Exception as error:
        error.add_note(f"seed {seed}: {case.options}")
        raise
