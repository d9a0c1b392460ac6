"""Tiles and their colours."""

from __future__ import annotations

import io

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")
from PIL import Image

from tests.support.server_client import FIELD, RNG, serving
from zarrasync import sync

pytestmark = pytest.mark.servers


def decoded(body: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGBA"))


def coloured(values: np.ndarray, low: float, high: float, cmap: str = "gray") -> np.ndarray:
    """Return the expected picture of values, made by matplotlib."""
    import matplotlib as mpl

    level = np.clip((values.astype("f8") - low) / (high - low), 0, 1)
    picture = (mpl.colormaps[cmap](level) * 255).round()
    picture[np.isnan(values), 3] = 0
    return picture


@pytest.mark.parametrize("cmap", ["gray", "viridis", "magma"])
async def test_tiles_show_the_values(cmap):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="f", data=FIELD, chunks=(1, 100, 128))
    async with serving(store) as client:
        told = await client.json("/api/view?path=f")
        assert (told["max_zoom"], told["min_zoom"], told["tile"]) == (1, 0, 256)
        query = f"path=f&index=0&low=-2&high=2&cmap={cmap}"
        whole = np.full((512, 512), np.nan)
        whole[:300, :420] = FIELD[0]
        for y in range(2):
            for x in range(2):
                status, body, _ = await client.get(f"/api/tiles/1/{x}/{y}.png?{query}")
                assert status == 200
                found, want = decoded(body), coloured(whole[y * 256 :, x * 256 :][:256, :256], -2, 2, cmap)
                assert found.shape == (256, 256, 4)
                np.testing.assert_array_equal(found[..., 3], want[..., 3])
                seen = want[..., 3] > 0
                assert np.abs(found[seen].astype(int) - want[seen]).max() <= 6  # 255 levels, not all
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?{query}")
        want = coloured(FIELD[0, 1::2, 1::2], -2, 2, cmap)
        found = decoded(body)[:150, :210]
        assert np.abs(found[want[..., 3] > 0].astype(int) - want[want[..., 3] > 0]).max() <= 6
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?{query}&origin=lower")
        flipped = decoded(body)[:150, :210]
        want = coloured(FIELD[0, ::-1][1::2, 1::2], -2, 2, cmap)
        assert np.abs(flipped[want[..., 3] > 0].astype(int) - want[want[..., 3] > 0]).max() <= 6


async def test_pyramids_are_read_from_the_level_that_suits():
    store: dict[str, bytes] = {}
    levels = [np.full((1000 >> n, 2000 >> n), n, "u1") for n in range(4)]
    datasets = [{"path": str(n)} for n in range(4)]
    for home in ("ome", "plain"):
        multiscales = {"multiscales": [{"datasets": datasets}]}
        group = sync.create_group(store, path=home, attributes={"ome": multiscales} if home == "ome" else multiscales)
        for n, values in enumerate(levels):
            group.create_array(str(n), data=values, chunks=(128, 128))
    async with serving(store) as client:
        for home in ("ome", "plain"):
            told = await client.json(f"/api/view?path={home}")
            assert told["max_zoom"] == 3
            assert [level["path"] for level in told["levels"]] == [f"{home}/{n}" for n in range(4)]
            for zoom in range(4):
                _, body, _ = await client.get(f"/api/tiles/{zoom}/0/0.png?path={home}&low=0&high=254&cmap=gray")
                assert set(decoded(body)[:64, :64, 0].reshape(-1).tolist()) == {3 - zoom}


async def test_tiles_have_validators_and_a_range_of_their_own():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="b", data=RNG.random((90, 90)) > 0.5)
    sync.create_array(store, name="c", data=np.full((9, 9), 5.0))
    sync.create_array(store, name="n", data=np.full((9, 9), np.nan))
    async with serving(store) as client:
        _, body, headers = await client.get("/api/tiles/0/0/0.png?path=b&cmap=gray")
        assert set(decoded(body)[:90, :90, 0].reshape(-1).tolist()) == {0, 255}
        assert (await client.get("/api/tiles/0/0/0.png?path=b&cmap=gray", If_None_Match=headers["ETag"]))[0] == 304
        for name in "cn":
            assert (await client.get(f"/api/tiles/0/0/0.png?path={name}"))[0] == 200
        assert (await client.json("/api/stats?path=n"))["mean"] is None
        _, body, _ = await client.get("/api/data?path=b&format=png&cmap=gray")
        assert decoded(body).shape == (90, 90, 4)


@pytest.mark.parametrize(
    "values",
    [
        np.full((9, 9), 9.96921e36, "f4"),
        np.full((9, 9), 300_000, "f4"),
        np.full((9, 9), 1e20),
        np.full((9, 9), 2**60),
        np.full((9, 9), 2**64 - 1, "u8"),
        np.array([[2**64 - 1, 2**64 - 2]], "u8"),
        np.array([[101325.0, 101325.01, 101325.02]], "f4"),
        np.array([[-1.7e308, 1.7e308]]),
        np.array([[np.inf, -np.inf, np.nan, 1.0]]),
    ],
    ids=lambda values: f"{values.dtype} {values.flat[0]}",
)
async def test_planes_that_are_hard_to_bin(values):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values)
    async with serving(store) as client:
        told = await client.json("/api/stats?path=a&bins=8")
        assert 0 < sum(told["histogram"]) <= np.isfinite(values.astype("f8")).sum()  # outliers are excluded
        await client.json("/api/view?path=a")
        assert (await client.get("/api/tiles/0/0/0.png?path=a"))[0] == 200


@pytest.mark.parametrize(
    ("dtype", "least"), [("i4", 2**30), ("u4", 2**31), ("f8", 2**50), ("i8", 2**60), ("u8", 2**60)]
)
async def test_small_differences_of_large_numbers_are_seen(dtype, least):
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=(np.arange(100, dtype=dtype) + np.array(least, dtype)).reshape(10, 10))
    async with serving(store) as client:
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?path=a&low={least}&high={least + 256}&cmap=gray")
        assert len(np.unique(decoded(body)[:10, :10, 0])) > 90
        if least < 2**53:  # otherwise the range is rounded to zero width
            _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray")
            assert len(np.unique(decoded(body)[:10, :10, 0])) > 90


async def test_logarithmic_colours():
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=np.arange(100.0).reshape(10, 10))
    async with serving(store) as client:
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray&scale=log&low=0&high=99")
        grey = decoded(body)[:10, :10, 0].reshape(-1).astype(int)
        want = (1 + np.log(np.arange(1, 100) / 99) / np.log(1000)) * 255  # three decades
        assert np.abs(grey[1:] - want).max() <= 3
        assert grey[0] == 0
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray&scale=log&low=99&high=0")
        assert np.abs(255 - decoded(body)[:10, :10, 0].reshape(-1)[1:] - want).max() <= 3


async def test_a_value_has_one_colour_in_all_tiles():
    values = np.full((300, 600), 10.0)
    values[0, :300], values[0, 300:] = 0.001, 1.0
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values)
    async with serving(store) as client:
        for scale in ("linear", "log"):
            found = set()
            for x in range(3):
                _, body, _ = await client.get(f"/api/tiles/2/{x}/1.png?path=a&scale={scale}&low=0&high=1000&cmap=gray")
                found |= set(decoded(body)[:40, :80, 0].reshape(-1).tolist())
            assert len(found) == 1


async def test_colours_of_the_largest_integers():
    store: dict[str, bytes] = {}
    ends = np.iinfo("i8")
    sync.create_array(store, name="a", data=np.array([[ends.min, 0, ends.max], [ends.min, 1000, 2000]]))
    async with serving(store) as client:
        _, body, _ = await client.get(f"/api/tiles/0/0/0.png?path=a&cmap=gray&low={ends.min}&high={ends.max}")
        assert decoded(body)[:2, :3, 0].tolist() == [[0, 128, 255], [0, 128, 128]]
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&cmap=gray&low=2000&high=0")
        assert decoded(body)[1, 1:3, 0].tolist() == [128, 0]


async def test_the_range_is_that_of_a_plane_with_values():
    values = np.full((3, 4, 4), np.nan)
    values[2] = np.arange(16).reshape(4, 4)
    store: dict[str, bytes] = {}
    sync.create_array(store, name="a", data=values, chunks=(1, 4, 4))
    async with serving(store) as client:
        low, high = (await client.json("/api/view?path=a"))["range"]
        assert 0 <= low < 1
        assert 14 < high <= 15
        _, body, _ = await client.get("/api/tiles/0/0/0.png?path=a&index=2&cmap=gray")
        assert len(np.unique(decoded(body)[:4, :4, 0])) > 12


async def test_pyramids_whose_leading_axes_shrink_too():
    store: dict[str, bytes] = {}
    datasets = {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}
    group = sync.create_group(store, attributes={"ome": datasets})
    planes = np.arange(8)[:, None, None] * 10 * np.ones((1, 600, 600))
    group.create_array("0", data=planes.astype("u1"), chunks=(1, 300, 300))
    group.create_array("1", data=planes[::2, ::2, ::2].astype("u1"), chunks=(1, 300, 300))
    bad = group.create_group("bad", attributes={"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]})
    bad.create_array("0", data=planes.astype("u1"))
    bad.create_array("1", data=planes[0].astype("u1"))
    async with serving(store) as client:
        for index, want in ((3, {2: 30, 1: 20, 0: 20}), (7, {2: 70, 1: 60, 0: 60})):
            for zoom, value in want.items():
                _, body, _ = await client.get(f"/api/tiles/{zoom}/0/0.png?index={index}&low=0&high=254&cmap=gray")
                assert set(decoded(body)[:100, :100, 0].reshape(-1).tolist()) == {value}
            assert (await client.json(f"/api/stats?index={index}"))["mean"] in (index * 10, want[1])
        assert (await client.json("/api/view?path=bad", 400))["error"] == "SelectionError"
