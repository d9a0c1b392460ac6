"""What users of NumPy try with arrays that are not in memory: it works, or a hint names what to use."""

from __future__ import annotations

import array as arrays
import copy
import mmap
import pickle
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from zarrasync import sync
from zarrasync.errors import ShapeError

VALUES = np.arange(6.0).reshape(2, 3)


class Tensor:
    """An array of another library, which exports its memory by DLPack."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class OnGPU(Tensor):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("the tensor is on a GPU")


class OldTensor(Tensor):
    """It knows only the version of DLPack whose arrays are read-only to NumPy, but also ``__array__``."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


class Flattening(np.ndarray):
    """A subclass with another meaning of indices, as that of matrices."""

    def __getitem__(self, key: Any) -> Any:
        return self.view(np.ndarray).ravel()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.view(np.ndarray).ravel()[key] = value


@pytest.mark.parametrize("packed", [False, True])
async def test_memory_to_read_into(api: Api, packed: bool):
    attributes = {"scale_factor": 0.5} if packed else {}
    array = await api(api.create_array({}, data=VALUES, attributes=attributes))
    source, want = (array.decoded, VALUES / 2) if packed else (array, VALUES)
    flat = arrays.array("d", [0.0] * 3)
    mapped = mmap.mmap(-1, 48)
    memory = memoryview(bytearray(48)).cast("d", (2, 3))
    for out in (
        Tensor(np.empty((2, 3))),
        OldTensor(np.empty((2, 3))),
        memory,
        memoryview(mapped).cast("B").cast("d", (2, 3)),
    ):
        assert await api(source.view.read(out=out)) is out
        np.testing.assert_array_equal(getattr(out, "values", out), want)
    assert await api(source.view[1].read(out=flat)) is flat
    assert flat.tolist() == want[1].tolist()
    flattening = np.empty((2, 3)).view(Flattening)
    assert await api(source.view.read(out=flattening)) is flattening
    np.testing.assert_array_equal(flattening.view(np.ndarray), want)
    for wrong, error, message in (
        (bytes(48), ShapeError, "uint8"),
        (memoryview(bytes(48)).cast("d", (2, 3)), ShapeError, "cannot be written|read-only"),
        ([1], TypeError, "or support DLPack or the buffer protocol .* found list"),
        (OnGPU(VALUES.copy()), TypeError, r"memory of the CPU; found tests\.nodes"),
        (array, TypeError, "out must be in memory"),
        (array.view, TypeError, "out must be in memory"),
    ):
        with pytest.raises(error, match=message):
            await api(source.view.read(out=wrong))


def test_other_libraries_take_the_values():
    array = sync.create_array({}, data=VALUES, chunks=(1, 3), attributes={"scale_factor": 0.5})
    np.testing.assert_array_equal(np.from_dlpack(array), VALUES)
    np.testing.assert_array_equal(np.from_dlpack(array.decoded.view[1]), VALUES[1] / 2)
    np.testing.assert_array_equal(array + np.ones(3), VALUES + 1)
    np.testing.assert_array_equal(np.float64(2) * array.view[0], 2 * VALUES[0])  # type: ignore[operator]
    np.testing.assert_array_equal(array > np.ones(3), VALUES > 1)
    with pytest.raises(BufferError, match="without a copy"):
        np.from_dlpack(array, copy=False)
    with pytest.raises(BufferError, match="DLPack only supports"):
        np.from_dlpack(sync.create_array({}, data=np.array(["a"])))
    for again in (copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
        assert again[1, 1] == 4


@pytest.mark.parametrize("lazy", ["stored", "decoded"])
async def test_truth(api: Api, lazy: str):
    """Not that of a sequence, which is its length."""
    array = await api(api.create_array({}, data=[[0, 0], [0, 3]], attributes={"scale_factor": 0.5}))
    view = array.view if lazy == "stored" else array.decoded.view
    if api.name == "async":
        with pytest.raises(TypeError, match=r"neither true nor false; use .*await"):
            bool(view[0])
        return
    assert [bool(view[0, 0]), bool(view[1, 1]), bool(view[:1, 0]), bool(view[1:, 1:])] == [False, True, False, True]
    for part in (view, view[0], view[:0]):
        with pytest.raises(ValueError, match=r"a selection of [024] values is neither true nor false"):
            bool(part)


async def test_hints(api: Api):
    array = await api(api.create_array({}, data=VALUES))
    for lazy in (array, array.view, array.decoded):
        for name in ("T", "astype", "mean", "reshape"):
            assert not hasattr(lazy, name)
            with pytest.raises(AttributeError, match=rf"array(\[\.\.\.\])?\)?\.{name}.*zarrasync\.integrations\.dask"):
                getattr(lazy, name)
        with pytest.raises(AttributeError, match=r"has no attribute 'atrs'$"):
            _ = lazy.atrs
        for compute in (
            lambda x: x + 1,
            lambda x: 2.0 * x,
            lambda x: x - x,
            lambda x: -x,
            abs,
            lambda x: x @ x,
            lambda x: x > 1,
        ):
            with pytest.raises(TypeError, match=r"does not compute.*array\[\.\.\.\].*dask"):
                compute(lazy)
    if api.name == "async":
        with pytest.raises(TypeError, match=r"np\.from_dlpack\(await"):
            np.from_dlpack(array)


async def test_the_number_of_blocks(api: Api):
    array = await api(api.create_array({}, data=np.arange(10), chunks=(4,)))
    for view, unit, count in ((array.view, "auto", 3), (array.view[:4], (3,), 2), (array.view[:0], "auto", 0)):
        blocks = view.chunks(unit)
        assert len(blocks) == count
        pairs = [pair async for pair in blocks] if api.name == "async" else list(blocks)
        assert len(pairs) == count
    blocks = array.view.chunks()
    assert (await anext(blocks) if api.name == "async" else next(blocks))[1].tolist() == [0, 1, 2, 3]
    await api(blocks.aclose() if api.name == "async" else blocks.close())
    with pytest.raises(za.errors.SelectionError, match="unit must have"):
        array.view.chunks((0,))
