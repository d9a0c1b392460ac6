"""Every way of indexing against NumPy, on memory and local stores, through both APIs."""

from __future__ import annotations

import asyncio
import io
import math
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import zarrasync as za
from tests.support.covering import covering
from zarrasync import sync
from zarrasync.display.values import npy_bytes
from zarrasync.errors import CodecError, SelectionError, ShapeError
from zarrasync.indexing.projection import in_c_order

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, dict]:
    """Draw an array and creation parameters with random chunks, shards, order and codecs."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9))
    data = np.arange(int(np.prod(shape)), dtype="i4").reshape(shape)
    inner = tuple(draw(st.integers(1, 4)) for _ in shape)
    options: dict[str, Any] = {
        "chunks": inner,
        "compressors": draw(st.sampled_from([None, "auto", "gzip"])),
        "order": draw(st.sampled_from("CF")),
    }
    if draw(st.booleans()):
        options["shards"] = tuple(c * draw(st.integers(1, 3)) for c in inner)
    elif draw(st.booleans()):
        options["zarr_format"] = 2
    return data, options


def slices(size: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(-4, 4).filter(bool))


@st.composite
def basic_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple:
    key: list[Any] = []
    for size in shape:
        choices: list[st.SearchStrategy[Any]] = [slices(size)]
        if size:
            choices.append(st.integers(-size, size - 1))
        key.append(draw(st.one_of(choices)))
    start = draw(st.integers(0, len(shape)))
    stop = draw(st.integers(start, len(shape)))
    if draw(st.booleans()):
        key[start:stop] = [Ellipsis]
    elif draw(st.booleans()):
        del key[start:]
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


@st.composite
def index_lists(draw: st.DrawFn, size: int) -> list[int] | np.ndarray:
    if draw(st.booleans()):
        return draw(hnp.arrays(bool, size))
    return draw(st.lists(st.integers(-size, size - 1), max_size=6)) if size else []


@st.composite
def orthogonal_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple:
    key: list[Any] = []
    for size in shape:
        choices: list[st.SearchStrategy[Any]] = [slices(size), index_lists(size)]
        if size:
            choices.append(st.integers(-size, size - 1))
        key.append(draw(st.one_of(choices)))
    return tuple(key)


@st.composite
def advanced_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple:
    """Draw keys that mix index arrays of one broadcast shape with slices and integers."""
    over = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=4))
    key: list[Any] = []
    for size in shape:
        choices: list[st.SearchStrategy[Any]] = [slices(size)]
        if size:
            choices.append(st.integers(-size, size - 1))
            choices.append(hnp.arrays("i8", over, elements=st.integers(-size, size - 1)))
        key.append(draw(st.one_of(choices)))
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


def stored(data: np.ndarray, options: dict, where: str):
    """Store the data in a new array, in memory or in local files."""
    place = {} if where == "memory" else tempfile.mkdtemp(dir=where)
    array = sync.create_array(place, shape=data.shape, dtype=data.dtype, **options)
    if data.ndim:
        array[...] = data
    else:
        array[()] = data
    return array


def check_read(array, key, want: np.ndarray, *, mode: str = "basic") -> None:
    """Assert that both APIs and the lazy view return the same values as NumPy."""

    async def asynchronous():
        source = array.async_
        accessor = {"basic": source, "orthogonal": source.oindex, "coordinate": source.vindex}[mode]
        lazy = accessor[key]
        assert lazy.shape == want.shape
        into = np.empty(want.shape, want.dtype)
        assert await lazy.read(out=into) is into
        return await lazy, into

    blocking = {"basic": array, "orthogonal": array.oindex, "coordinate": array.vindex}[mode][key]
    for got in (blocking, *asyncio.run(asynchronous())):
        assert np.shape(got) == want.shape
        assert np.asarray(got).dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.fixture(params=["memory", "local"])
def where(request, tmp_path):
    return "memory" if request.param == "memory" else str(tmp_path)


@given(case=cases(), draw=st.data())
@settings(EXAMPLES, suppress_health_check=[*HealthCheck])
def test_basic(where, case, draw):
    data, options = case
    array = stored(data, options, where)
    key = draw.draw(basic_keys(data.shape))
    want = np.asarray(data[key])
    check_read(array, key, want)
    np.testing.assert_array_equal(array.get_basic_selection(key), want)


@given(case=cases(), draw=st.data())
@settings(EXAMPLES, suppress_health_check=[*HealthCheck])
def test_orthogonal(where, case, draw):
    data, options = case
    array = stored(data, options, where)
    key = draw.draw(orthogonal_keys(data.shape))
    want = orthogonal(data, key)
    check_read(array, key, want, mode="orthogonal")


def orthogonal(data: np.ndarray, key: tuple) -> np.ndarray:
    """Index a NumPy array orthogonally, one axis at a time."""
    for axis, item in reversed(list(enumerate(key))):
        selector = np.asarray(item, "i8") if isinstance(item, list) else item
        data = np.asarray(data)[(slice(None),) * axis + (selector,)]
    return np.asarray(data)


@given(case=cases(), draw=st.data())
@settings(EXAMPLES, suppress_health_check=[*HealthCheck])
def test_advanced_as_numpy_means_it(where, case, draw):
    data, options = case
    array = stored(data, options, where)
    key = draw.draw(advanced_keys(data.shape))
    check_read(array, key, np.asarray(data[key]))


@given(case=cases(), draw=st.data())
@settings(EXAMPLES, suppress_health_check=[*HealthCheck])
def test_coordinates_and_masks(where, case, draw):
    data, options = case
    array = stored(data, options, where)
    mask = draw.draw(hnp.arrays(bool, data.shape))
    np.testing.assert_array_equal(array.get_mask_selection(mask), data[mask])
    if not data.size or not data.ndim:
        return
    check_read(array, mask, data[mask])
    over = draw.draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5))
    points = tuple(draw.draw(hnp.arrays("i8", over, elements=st.integers(-n, n - 1))) for n in data.shape)
    check_read(array, points, data[points], mode="coordinate")
    np.testing.assert_array_equal(array.get_coordinate_selection(points), data[points])


@given(case=cases(), draw=st.data())
@settings(EXAMPLES, suppress_health_check=[*HealthCheck])
def test_writing(where, case, draw):
    """Two successive writes of any selection give the same values as in NumPy, also in partly covered chunks."""
    data, options = case
    array, data = stored(data, options, where), data.copy()
    for number in range(2):
        key = draw.draw(st.one_of(basic_keys(data.shape), advanced_keys(data.shape)))
        shape = np.asarray(data[key]).shape
        values = -np.arange(int(np.prod(shape)), dtype="i4").reshape(shape) - 1 - 1000 * number
        if len(set(np.asarray(np.arange(data.size).reshape(data.shape)[key]).ravel().tolist())) != values.size:
            values = np.full(shape, -7, "i4")  # repeated indices: which value wins is not defined
        if number:
            asyncio.run(_write(array.async_[key], values))
        else:
            array[key] = values
        data[key] = values
        np.testing.assert_array_equal(array[...] if data.ndim else array[()], data)
    fresh = array.async_
    np.testing.assert_array_equal(asyncio.run(fresh.getitem(Ellipsis)), data)


async def _write(selection, values):
    await selection.write(values)


@given(case=cases(), draw=st.data())
@settings(EXAMPLES, suppress_health_check=[*HealthCheck])
def test_writing_orthogonally(where, case, draw):
    data, options = case
    array, data = stored(data, options, where), data.copy()
    key = draw.draw(orthogonal_keys(data.shape))
    chosen = orthogonal(np.arange(data.size).reshape(data.shape), key)
    array.oindex[key] = -3
    flat = data.reshape(-1)
    flat[chosen.reshape(-1)] = -3
    np.testing.assert_array_equal(array[...] if data.ndim else array[()], data)


@given(case=cases(), draw=st.data())
@settings(EXAMPLES, suppress_health_check=[*HealthCheck])
def test_views_compose(case, draw):
    """Nested views select the same elements as in NumPy."""
    data, options = case
    array = stored(data, options, "memory")
    view, want = array.view, data
    for _ in range(3):
        shape = np.shape(want)
        key = draw.draw(st.one_of(basic_keys(shape), advanced_keys(shape)))
        view, want = view[key], np.asarray(want[key])
        assert view.shape == want.shape
    np.testing.assert_array_equal(np.asarray(view), want)
    if view.shape and view.shape[0]:
        np.testing.assert_array_equal(view.oindex[[0, -1]].read(), want[[0, -1]])


def test_blocks():
    data = np.arange(70).reshape(10, 7)
    layouts: list[dict[str, Any]] = [{"chunks": (4, 3)}, {"chunks": (2, 1), "shards": (4, 3)}]
    for options in layouts:
        array = sync.create_array({}, data=data, **options)
        np.testing.assert_array_equal(array.blocks[1, 2], data[4:8, 6:])
        np.testing.assert_array_equal(array.blocks[-1], data[8:])
        np.testing.assert_array_equal(array.get_block_selection((slice(0, 2), 1)), data[:8, 3:6])
        array.blocks[0, 0] = -1
        assert (array[:4, :3] == -1).all()
        assert (array[4:] == data[4:]).all()
        with pytest.raises(SelectionError, match="index 3 is out of range for axis 0 with size 3"):
            array.blocks[3]
        with pytest.raises(SelectionError, match="step 1"):
            array.blocks[::2]
        with pytest.raises(SelectionError, match="integers and slices"):
            array.blocks[[0, 1]]


def test_structured_fields():
    dtype = np.dtype([("x", "f4"), ("y", "i2"), ("z", "S3")])
    data = np.zeros((5, 4), dtype)
    data["x"] = np.arange(20).reshape(5, 4)
    data["z"] = b"ab"
    for zarr_format in (2, 3):
        array = sync.create_array({}, data=data, chunks=(2, 3), zarr_format=zarr_format)
        np.testing.assert_array_equal(array["x"], data["x"])
        np.testing.assert_array_equal(array["x", 1:3], data["x"][1:3])
        np.testing.assert_array_equal(array[["x", "y"]], data[["x", "y"]])
        np.testing.assert_array_equal(array.view[1:]["z"].read(), data["z"][1:])
        array["y", 2:] = 9
        data["y"][2:] = 9
        np.testing.assert_array_equal(array[...], data)
        array.set_basic_selection((0, slice(0, 2)), 5, fields="x")
        data["x"][0, :2] = 5
        np.testing.assert_array_equal(array[...], data)
        data["y"][2:] = 0
        array["y"] = data["y"]
        with pytest.raises(SelectionError, match="no field 'w'"):
            array["w"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (10, r"index 10 is out of range for axis 0 with size 10"),
        (-11, r"index -11 is out of range"),
        ((0, 0, 0), r"too many indices: the array has 2 dimensions \(shape \(10, 7\)\), the selection has 3"),
        ((..., ...), r"only one"),
        ([0, 10], r"index 10 is out of range for axis 0"),
        ([0, -11], r"index -11 is out of range"),
        (np.zeros(9, bool), r"boolean index of shape \(9,\) does not match"),
        (1.5, r"float 1.5 is not an index"),
        (np.timedelta64(1, "s"), r"is not an index|integers or booleans"),
        ("x", r"no field 'x'"),
        ({"x": 1}, r"is not an index"),
        (([0, 1], [0, 1, 2]), r"do not broadcast together"),
        (np.array([0.5]), r"integers or booleans, found float64"),
        (slice(0, 5, 0), r"invalid slice"),
        (slice("a", None), r"invalid slice"),
    ],
)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_bad_selections_name_the_problem(api, key, message):
    array = await api(api.create_array({}, shape=(10, 7), dtype="i4"))
    with pytest.raises(SelectionError, match=message):
        await api(array[key])
    with pytest.raises(IndexError):
        await api(array[key])


async def test_bad_selections_of_other_kinds(api):
    array = await api(api.create_array({}, shape=(10, 7), dtype="i4"))
    with pytest.raises(SelectionError, match="use oindex or vindex"):
        await api(array.get_basic_selection([1, 2]))
    with pytest.raises(SelectionError, match=r"one-dimensional index arrays, found shape \(1, 2\)"):
        await api(array.get_orthogonal_selection(([[1, 2]],)))
    with pytest.raises(SelectionError, match=r"boolean array of shape \(10, 7\), found int64 of shape \(2,\)"):
        await api(array.get_mask_selection(np.array([1, 2])))
    with pytest.raises(SelectionError, match="does not accept newaxis"):
        await api(array.get_coordinate_selection((None, [1])))


async def test_shape_mismatches_say_both_shapes(api):
    array = await api(api.create_array({}, shape=(10, 7), dtype="i4"))
    with pytest.raises(ShapeError, match=r"values of shape \(3,\) do not fit a selection of shape \(2, 7\)") as error:
        await api.write(array, slice(0, 2), [1, 2, 3])
    assert (error.value.found, error.value.wanted) == ((3,), (2, 7))
    with pytest.raises(ShapeError, match=r"out has shape \(2,\) and dtype float64"):
        await api(array.get_basic_selection(slice(0, 2), out=np.empty(2)))
    with pytest.raises(CodecError, match=r"\['a', 'b'\] cannot be stored as int32: invalid literal"):
        await api.write(array, slice(0, 2), ["a", "b"])
    await api.write(array, slice(0, 2), np.ones((1, 1, 1, 7)))  # NumPy drops leading axes of size 1
    assert (await api(array[0:2]) == 1).all()


@pytest.mark.parametrize("compressors", [None, "zstd", "gzip", "blosc"])
async def test_read_only_memory_is_refused(api, compressors):
    data = np.arange(1 << 16, dtype="i4").reshape(4, -1)
    array = await api(api.create_array({}, data=data, chunks=(1, 1 << 14), compressors=compressors))
    kept = bytes(data.nbytes)
    with pytest.raises(ShapeError, match="out cannot be written to"):
        await api(array.get_basic_selection(..., out=np.frombuffer(kept, "i4").reshape(4, -1)))
    assert kept == bytes(data.nbytes)


async def test_scalars_are_numpys(api):
    array = await api(api.create_array({}, data=np.arange(6.0).reshape(2, 3)))
    got = await api(array[1, 2])
    assert type(got) is np.float64
    assert got == 5
    assert isinstance(await api(array[1, 2, ...]), np.ndarray)
    zero = await api(api.create_array({}, data=np.float32(4)))
    assert await api(zero[()]) == 4
    assert isinstance(await api(zero[...]), np.ndarray)


@pytest.mark.parametrize(
    ("dtype", "compressors", "order", "far"),
    covering(
        ["i2", ">f4", "c8", "M8[s]", "S3", "U2", "str", [("x", ">u2"), ("y", ">f8")]],
        [None, "zstd"],
        "CF",
        [False, True],
    ),
)
async def test_results_of_one_chunk_are_writeable_copies(api, dtype, compressors, order, far):
    data = np.arange(48).astype("i8").reshape(6, 8).astype("O" if dtype == "str" else np.dtype(dtype))
    if dtype == "str":
        data = np.array([[str(number) for number in row] for row in data.tolist()], "O")
    store = za.stores.MemoryStore()
    target = za.testing.LatencyStore(store, 0.0) if far else store
    array = await api(
        api.create_array(target, shape=(6, 8), chunks=(3, 4), dtype=dtype, compressors=compressors, order=order)
    )
    await api.write(array, ..., data)
    before = {key: bytes(value) for key, value in store.values.items()}
    keys: list[Any] = [
        np.s_[:3, 4:], np.s_[3:6:2, 1:4], np.s_[-1, 5], np.s_[4, 4:8:3], np.s_[1:2, -1], np.s_[2, 3, ...], np.s_[3:5],
    ]  # fmt: skip
    for key in keys:
        got = await api(array[key])
        assert np.asarray(got).tolist() == np.asarray(data[key]).tolist(), key
        assert np.asarray(got).dtype.isnative
        if isinstance(got, np.ndarray):
            got[...] = got.reshape(-1)[-1]
    assert {key: bytes(value) for key, value in store.values.items()} == before
    corner = await api(array[:3, :4])
    assert corner.flags.f_contiguous if order == "F" and dtype != "str" else corner.flags.c_contiguous


@pytest.mark.parametrize("far", [False, True])
async def test_one_absent_or_damaged_chunk(api, far):
    store = za.stores.MemoryStore()
    target = za.testing.LatencyStore(store, 0.0) if far else store
    array = await api(api.create_array(target, shape=(6, 8), chunks=(3, 4), dtype=">i2", fill_value=7, order="F"))
    got = await api(array[1:3, 5])
    assert (got.tolist(), got.dtype, got.flags.writeable) == ([7, 7], np.dtype("i2"), True)
    assert await api(array[4, 4]) == 7
    with pytest.raises(za.errors.MissingChunkError, match="1 of the chunks") as error:
        await api(array.view[4, 4].read(missing="error"))
    assert (error.value.keys, error.value.count) == (("c/1/1",), 1)
    store.values["c/1/1"] = b"no zstd"
    with pytest.raises(CodecError, match="c/1/1"):
        await api(array[4, 4])


@pytest.mark.parametrize(
    ("order", "compressors", "shards"),
    covering([(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)], [None, "zstd", "gzip"], [None, (4, 6, 8)]),
)
async def test_elements_lie_in_memory_as_in_chunks(api, order, compressors, shards):
    data = np.arange(7 * 9 * 10, dtype="i4").reshape(7, 9, 10)
    turn = [{"name": "transpose", "configuration": {"order": list(order)}}]
    options = {"chunks": (2, 3, 4), "shards": shards, "filters": turn, "compressors": compressors}
    array = await api(api.create_array({}, data=data, **options))
    keys: list[Any] = [
        ...,
        (slice(1, None, 3), slice(None), slice(None, None, -2)),
        (slice(None), np.array([4, 0]), slice(9)),
    ]
    for key in keys:
        got = await api(array[key])
        np.testing.assert_array_equal(got, data[key])
        assert got.transpose(order).flags.c_contiguous
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs = {"codecs": [*turn, little], "index_codecs": [little, "crc32c"]}
    inner = {"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1, 2], **codecs}}
    plain = {"shape": data.shape, "dtype": "i4", "chunks": (2, 2, 2), "compressors": None}
    twice = await api(
        api.create_array({}, filters=turn, serializer=inner, **plain)
    )  # whole shards are transposed as well
    await api.write(twice, ..., data)
    got = await api(twice[...])
    np.testing.assert_array_equal(got, data)
    assert got.transpose([order[axis] for axis in order]).flags.c_contiguous
    into = np.empty_like(data)
    assert await api(array.get_basic_selection(..., out=into)) is into
    np.testing.assert_array_equal(into, data)
    where = np.nonzero(data % 7 == 0)
    np.testing.assert_array_equal(await api(array.vindex[where]), data[where])
    assert (await api(array[3, :, 5])).tolist() == data[3, :, 5].tolist()


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (512, 600), (64, 33, 128)])
def test_turning_values_around(shape):
    for values in (
        np.arange(math.prod(shape), dtype="f4").reshape(shape),
        np.ones(shape, "S3"),
        np.ones(shape, "i4,f8"),
    ):
        found = in_c_order(np.array(values, order="F"))
        assert found.flags.c_contiguous
        assert found.shape == shape
        np.testing.assert_array_equal(found, values)
        assert in_c_order(values) is values
        assert b"'fortran_order': False" in npy_bytes(np.array(values, order="F"))[:128]
        np.testing.assert_array_equal(np.load(io.BytesIO(npy_bytes(np.array(values, order="F")))), values)


@pytest.mark.parametrize("order", ["C", "F"])
async def test_the_order_of_format_2_is_that_of_results(api, order):
    data = np.arange(60.0).reshape(6, 10)
    array = await api(api.create_array({}, data=data, chunks=(4, 4), order=order, zarr_format=2))
    got = await api(array[...])
    np.testing.assert_array_equal(got, data)
    assert got.flags[f"{order}_CONTIGUOUS"]


async def test_reading_into_memory_that_is_not_contiguous(api):
    data = np.arange(60).reshape(6, 10)
    array = await api(api.create_array({}, data=data, chunks=(2, 3)))
    memory = np.zeros((12, 10), data.dtype)
    await api(array.get_basic_selection(..., out=memory[::2]))
    np.testing.assert_array_equal(memory[::2], data)
    assert not memory[1::2].any()
    turned = np.zeros((10, 6), data.dtype).T
    await api(array.get_basic_selection(..., out=turned))
    np.testing.assert_array_equal(turned, data)
    pairs = np.zeros((2, 2), data.dtype)
    await api(array.get_coordinate_selection(([[0, 1], [2, 3]], [[4, 5], [6, 7]]), out=pairs.T))
    np.testing.assert_array_equal(pairs.T, data[[[0, 1], [2, 3]], [[4, 5], [6, 7]]])


@pytest.mark.parametrize(
    ("dtype", "shape"),
    covering(["u1", "i2", ">f4", "f8", "c16"], [(512, 600), (2048, 70), (64, 33, 128), (1, 512, 512)], strength=1),
)
def test_chunks_in_another_order_of_axes_are_placed_strip_by_strip(dtype, shape):
    data = np.random.default_rng(1).integers(0, 200, [n + 3 for n in shape]).astype(dtype)
    for order in (tuple(range(len(shape)))[::-1], (*range(1, len(shape)), 0)):
        transposed = {"name": "transpose", "configuration": {"order": order}}
        a = sync.create_array({}, data=data, chunks=shape, filters=[transposed], compressors=None)
        np.testing.assert_array_equal(a[...], data)
        np.testing.assert_array_equal(a[1:-1, 2:], data[1:-1, 2:])
        a[:, ::2] = data[:, ::2][::-1]
        changed = data.copy()
        changed[:, ::2] = data[:, ::2][::-1]
        np.testing.assert_array_equal(a[...], changed)


async def test_selections_without_elements_do_no_io():
    from zarrasync import stores

    store = stores.CountingStore(stores.MemoryStore())
    array = await za.create_array(store, shape=(4, 4), dtype="i4")
    store.reset()
    assert (await array[0:0]).shape == (0, 4)
    await array[0:0].write(np.empty((0, 4)))
    assert (await array[[]]).shape == (0, 4)
    assert store.counts.requests == 0


async def test_explain():
    array = await za.create_array({}, shape=(100, 100), dtype="f4", chunks=(10, 10), shards=(50, 50))
    plan = array[0:10, 0:60].explain()
    assert (plan.chunks, plan.shards, plan.requests) == (6, 2, 4)
    assert (plan.decoded_bytes, plan.result_bytes) == (2400, 2400)
    assert "6 chunks in 2 shards" in str(plan)


async def test_chunks_stream_a_selection(api):
    data = np.arange(1000).reshape(50, 20)
    array = await api(api.create_array({}, data=data, chunks=(8, 7)))
    view = array.view[5:45, ::2]
    got = np.zeros(view.shape, data.dtype)
    count = 0
    if api.name == "async":
        async for region, block in view.chunks():
            got[region] = block
            count += 1
    else:
        for region, block in view.chunks():
            got[region] = block
            count += 1
    np.testing.assert_array_equal(got, data[5:45, ::2])
    assert count == 10
    with pytest.raises(SelectionError, match="positive size for each axis"):
        [_ async for _ in array.async_.view.chunks(unit=(1,))] if api.name == "sync" else [
            _ async for _ in array.view.chunks(unit=(1,))
        ]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("zarr_format", [2, 3])
async def test_indices_of_axes_in_any_order_of_elements_and_axes(api, tmp_path, order, zarr_format):
    rng = np.random.default_rng(8)
    data = rng.integers(0, 1000, (30, 40, 7)).astype(">i4")
    options = {"chunks": (8, 9, 4), "order": order, "zarr_format": zarr_format}
    array = await api(api.create_array(tmp_path, data=data, **options))
    rows, columns = rng.integers(0, 30, 50), rng.integers(0, 40, 3)  # unsorted, with duplicates
    np.testing.assert_array_equal(await api(array.oindex[rows, columns]), data[np.ix_(rows, columns)])
    np.testing.assert_array_equal(await api(array.oindex[rows, ::-3, [5, 0]]), data[rows][:, ::-3][..., [5, 0]])
    np.testing.assert_array_equal(await api(array.oindex[3, columns, 1::4]), data[3][columns][:, 1::4])
    np.testing.assert_array_equal(await api(array.oindex[[-1], [0], [-2]]), data[-1:, :1, -2:-1])


async def test_indices_of_axes_of_one_field(api, tmp_path):
    data = np.zeros((9, 8), [("x", "f4"), ("y", "i2"), ("z", "S3")])
    data["y"] = np.arange(72).reshape(9, 8)
    data["z"] = data["y"].astype("S3")
    array = await api(api.create_array(tmp_path, data=data, chunks=(2, 3)))
    rows, columns = [7, 0, 0, 3], [5, 1, 6]
    for fields in ("y", "z", ["x", "z"]):
        got = await api(array.get_orthogonal_selection((rows, columns), fields=fields))
        np.testing.assert_array_equal(got, data[fields][np.ix_(rows, columns)])


async def test_indices_that_pick_elements_of_one_chunk_again_and_again(api, tmp_path):
    data = np.arange(6, dtype="u1").reshape(2, 3)
    array = await api(api.create_array(tmp_path, data=data, chunks=(1, 2)))
    rows, columns = np.repeat([1, 0], 1000), np.repeat([2, 0, 1], 500)
    np.testing.assert_array_equal(await api(array.oindex[rows, columns]), data[np.ix_(rows, columns)])


@pytest.mark.parametrize("compressors", [None, "zstd", "gzip", {"name": "blosc", "configuration": {"cname": "lz4"}}])
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((1 << 20,), (1 << 17,)), ((1 << 20,), (100_000,)), ((512, 2048), (64, 2048)), ((8, 1, 1 << 17), (3, 1, 1 << 17))],
)
async def test_chunks_that_lie_in_one_piece_in_the_result(api, tmp_path, compressors, shape, chunks):
    data = np.arange(1 << 20, dtype="f4").reshape(shape)
    array = await api(api.create_array(tmp_path, data=data, chunks=chunks, compressors=compressors))
    got = await api(array[...])
    np.testing.assert_array_equal(got, data)
    assert got.flags.c_contiguous
    assert got.flags.writeable
    room = np.zeros(data.nbytes + 8192, np.uint8)
    for offset in (0, 4, 16, 64):  # pages are copied slowly to some of them
        start = offset + -room.ctypes.data % 4096
        out = room[start : start + data.nbytes].view("f4").reshape(shape)
        out[...] = 0
        await api(array.get_basic_selection(..., out=out))
        np.testing.assert_array_equal(out, data)
