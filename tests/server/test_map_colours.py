"""Own colours of maps: of values, of intervals and of whole colour maps; and images of red, green and blue."""

from __future__ import annotations

import json
from urllib.parse import quote

import numpy as np
import pytest

pytest.importorskip("cmap", reason="the server's extra is not installed")

from tests.server.test_tiles import decoded
from tests.support.server_client import serving
from zarrasync import sync

pytestmark = pytest.mark.servers
ALL = "/bbox/0,-90,360,90/36x18.png?variable=v&resampling=nearest"


def globe(values: np.ndarray, dims: tuple[str, ...]) -> dict[str, bytes]:
    """Return a store with a variable on a globe of 10 degrees."""
    root = sync.create_group(store := {})
    root.create_array("v", data=values, dimension_names=dims)
    root.create_array(
        "lat", data=85 - 10.0 * np.arange(18), dimension_names=["lat"], attributes={"units": "degrees_north"}
    )
    root.create_array(
        "lon", data=5 + 10.0 * np.arange(36), dimension_names=["lon"], attributes={"units": "degrees_east"}
    )
    return store


def as_json(table: object) -> str:
    """Return JSON for an address; all colours of a map fit in 8 KiB."""
    return quote(json.dumps(table, separators=(",", ":")), safe="{}[]:,")


async def test_colours_of_values_intervals_and_whole_maps():
    values = np.tile(np.arange(36.0), (18, 1)).astype("f4")
    values[0] = np.nan
    single = {"3": "#ff0000", "7.0": [0, 255, 0], "9": [0, 0, 255, 128]}
    intervals = [[[0, 5], [10, 20, 30, 255]], [[5, 12.5], "#ffffff80"], [[20, 30], [1, 2, 3]]]
    ramp = {str(n): [n, 255 - n, 7] for n in range(256)}
    async with serving(globe(values, ("lat", "lon"))) as client:

        async def row(table: object, more: str = "") -> np.ndarray:
            status, body, _ = await client.get(f"{ALL}&colormap={as_json(table)}{more}")
            assert status == 200
            pixels = decoded(body)
            assert (pixels[0, :, 3] == 0).all()  # missing values
            return pixels[5]

        found = await row(single)
        expected = np.zeros((36, 4), int)
        expected[3], expected[7], expected[9] = (255, 0, 0, 255), (0, 255, 0, 255), (0, 0, 255, 128)
        visible = expected[:, 3] > 0
        np.testing.assert_array_equal(found[visible], expected[visible])
        np.testing.assert_array_equal(found[:, 3] > 0, visible)
        found = await row(intervals)
        assert (found[:5] == [10, 20, 30, 255]).all()
        assert (found[5:13] == [255, 255, 255, 128]).all()
        assert (found[13:20, 3] == 0).all()
        assert (found[20:30] == [1, 2, 3, 255]).all()
        found = await row(ramp, "&rescale=0,35")
        np.testing.assert_allclose(found[:, 0], np.arange(36) / 35 * 255, atol=2)
        np.testing.assert_array_equal(found[:, 1], 255 - found[:, 0])
        legend = await client.json(f"/legend.json?variable=v&colormap={quote(json.dumps(intervals))}")
        assert legend["intervals"][1] == {"low": 5, "high": 12.5, "colour": "#ffffff80"}
        for table, more, message in (
            ("{", "", "must be JSON"),
            ('{"a": "red"}', "", "must be JSON"),
            ('{"1": "nothing"}', "", "must be JSON"),
            ('{"1": [1, 2]}', "", "must be JSON"),
            ("[[[0, 1], [300, 0, 0]]]", "", "must be JSON"),
            ("[[0, 1]]", "", "must be JSON"),
            ("3", "", "must be JSON"),
            ("{}", "", "at least one"),
            ('{"NaN": "red"}', "", "finite"),
            (json.dumps(single), "&rescale=0,1", "have no range"),
            (json.dumps(single), "&colormap_name=gray", "exclude each other"),
        ):
            told = await client.json(f"{ALL}&colormap={quote(table)}{more}", 400)
            assert (told["error"], message in told["message"]) == ("BadQuery", True), told


@pytest.mark.parametrize("dims", [("lat", "lon", "rgb"), ("band", "lat", "lon")])
async def test_images_of_red_green_and_blue(dims):
    colours = np.random.default_rng(1).integers(0, 256, (18, 36, 3)).astype("u1")
    values = colours if dims[-1] == "rgb" else np.moveaxis(colours, -1, 0)
    async with serving(globe(values, dims)) as client:
        # Bands are bytes of colours only if that is requested.
        more = "" if dims[-1] == "rgb" else "&colormap_name=rgb&rescale=0,255"
        _, body, _ = await client.get(f"{ALL}{more}")
        np.testing.assert_array_equal(decoded(body)[..., :3], colours)
        _, body, _ = await client.get(f"/bbox/0,-90,360,90/9x9.png?variable=v&resampling=average{more}")
        blocks = colours.reshape(9, 2, 9, 4, 3).mean((1, 3))
        np.testing.assert_allclose(decoded(body)[..., :3], blocks, atol=0.501)
        _, body, _ = await client.get(f"/tiles/WebMercatorQuad/0/0/0.png?variable=v{more}")
        assert (decoded(body)[..., 3] == 255).all()
