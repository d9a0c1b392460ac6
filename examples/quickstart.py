"""Write the world's land mask to S3 and read it back.

The source is the global land mask at 30 arc-seconds: 21,600 x 43,200 booleans from the package
``global-land-mask``. It is ingested into an S3 server as a sharded, compressed Zarr v3 array, with
coordinates and a coarser pyramid level. Regions are read through the asynchronous and the synchronous
API and compared with the source, and a map is drawn.

    python examples/quickstart.py [--out DIRECTORY]

The S3 server is moto's. It runs on a free port of this machine, and needs no network.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import zarrasync as za
from zarrasync import stores, sync

BUCKET = "earth"
CHUNKS, SHARDS = (300, 300), (3600, 3600)  # 2.5 and 30 degrees
COARSER = 8
SOURCE = "global-land-mask (PyPI)"
OME = {  # declares the two arrays as one picture in two resolutions, for the viewer and other tools
    "version": "0.5",
    "multiscales": [
        {
            "axes": [{"name": name, "type": "space", "unit": "degree"} for name in ("latitude", "longitude")],
            "datasets": [
                {"path": "land", "coordinateTransformations": [{"type": "scale", "scale": [1 / 120, 1 / 120]}]},
                {"path": "pyramid/land", "coordinateTransformations": [{"type": "scale", "scale": [1 / 15, 1 / 15]}]},
            ],
        }
    ],
}
REGIONS = {
    "Mediterranean": (slice(30.0, 47.0), slice(-7.0, 37.0)),
    "Japan": (slice(30.0, 46.0), slice(128.0, 147.0)),
    "Caribbean": (slice(8.0, 28.0), slice(-90.0, -58.0)),
}


def load_source() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The land mask (true on land), latitudes from south to north, longitudes; read from the package's own file."""
    spec = importlib.util.find_spec("global_land_mask")
    if spec is None or spec.origin is None:
        raise SystemExit("this example needs its data: pip install 'zarrasync[demo]'")
    with np.load(Path(spec.origin).with_name("globe_combined_mask_compressed.npz")) as archive:
        ocean, latitude, longitude = archive["mask"], archive["lat"], archive["lon"]
    if latitude[0] > latitude[-1]:
        ocean, latitude = ocean[::-1], latitude[::-1]
    return np.ascontiguousarray(~ocean), latitude.astype("f8"), longitude.astype("f8")


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """An S3 server on a free port with an empty bucket; gives the storage options for it."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "demo")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "demo")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        raise SystemExit("this example needs an S3 server: pip install 'zarrasync[demo]'") from error
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    try:
        yield {"key": "demo", "secret": "demo", "endpoint_url": endpoint}
    finally:
        server.stop()


@contextmanager
def step(title: str, store: stores.CountingStore) -> Iterator[None]:
    """Report the time, requests and bytes of a step."""
    store.reset()
    start = time.perf_counter()
    yield
    seconds, counts = time.perf_counter() - start, store.reset()
    print(
        f"  {title:<58} {seconds:6.2f} s  {counts.requests:5} requests  "
        f"{counts.bytes_read / 1e6:7.2f} MB in  {counts.bytes_written / 1e6:6.2f} MB out"
    )


async def ingest(store: stores.Store, mask: np.ndarray, latitude: np.ndarray, longitude: np.ndarray) -> None:
    """Create the hierarchy and write everything."""
    layout = {"chunks": CHUNKS, "shards": SHARDS, "compressors": za.codecs.BloscCodec("zstd", 5, "bitshuffle")}
    named = {"dimension_names": ("latitude", "longitude"), "dtype": "bool"}
    small = tuple(n // COARSER for n in mask.shape)
    nodes = await za.create_hierarchy(
        store,
        {
            "": {"attributes": {"title": "Global land mask, 30 arc-seconds", "source": SOURCE, "ome": OME}},
            "latitude": {"data": latitude, "dimension_names": ("latitude",), "attributes": {"units": "degrees_north"}},
            "longitude": {
                "data": longitude,
                "dimension_names": ("longitude",),
                "attributes": {"units": "degrees_east"},
            },
            "land": {"shape": mask.shape, "attributes": {"long_name": "is land"}, **named, **layout},
            "pyramid/land": {
                "shape": small,
                "dtype": "f4",
                "fill_value": 0,
                "chunks": (300, 300),
                "shards": (1800, 1800),
                "dimension_names": ("latitude", "longitude"),
                "attributes": {"long_name": f"fraction of land in {COARSER} x {COARSER} cells"},
            },
        },
    )
    await nodes["land"][...].write(mask, progress=True)
    blocks = mask.reshape(small[0], COARSER, small[1], COARSER)
    await nodes["pyramid/land"][...].write(blocks.mean(axis=(1, 3), dtype="f4"))


def window(axis: np.ndarray, bounds: slice) -> slice:
    """The index range of an axis between two coordinates."""
    return slice(int(np.searchsorted(axis, bounds.start)), int(np.searchsorted(axis, bounds.stop)))


async def read_back(store: stores.CountingStore, mask: np.ndarray) -> None:
    """Read regions asynchronously, all at once, and compare them with the source."""
    with step("open the group, two coordinates and the mask", store):
        root = await za.open_group(store)
        latitude, longitude, land = await asyncio.gather(root["latitude"], root["longitude"], root["land"])
        lat, lon = await asyncio.gather(latitude[...].read(), longitude[...].read())
    boxes = {name: (window(lat, south), window(lon, west)) for name, (south, west) in REGIONS.items()}
    print(f"    {land[boxes['Japan']].explain()}")
    with step(f"read {len(boxes)} regions at once, full resolution", store):
        found = await asyncio.gather(*(land[box].read() for box in boxes.values()))
    for (name, box), values in zip(boxes.items(), found, strict=True):
        if not np.array_equal(values, mask[box]):
            raise SystemExit(f"{name}: the values read differ from the source")
        print(f"    {name:<15}{values.shape!s:>14}  {values.mean():6.1%} land  as in the source")
    with step("one point, cold", store):
        point = await land[window(lat, slice(47.0, 90.0)).start, window(lon, slice(8.5, 180.0)).start]
    print(f"    47.0 N, 8.5 E is {'land' if point else 'sea'}")


def read_back_blocking(store: stores.CountingStore, mask: np.ndarray) -> None:
    """The same through the synchronous API."""
    land = sync.open_array(store, path="land")
    with step("sync: every 60th cell of the northern half", store):
        found = land[10800::60, ::60]
    np.testing.assert_array_equal(found, mask[10800::60, ::60])
    rng = np.random.default_rng(1)
    rows, columns = rng.integers(0, mask.shape[0], 2000), rng.integers(0, mask.shape[1], 2000)
    with step("sync: 2,000 random points (vindex)", store):
        points = land.vindex[rows, columns]
    np.testing.assert_array_equal(points, mask[rows, columns])
    print(f"    {points.mean():.1%} of random cells are land; all as in the source")


def draw(store: stores.Store, target: Path) -> None:
    """Draw the pyramid level of the world and one region at full resolution."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    group = sync.open_group(store)
    lat, lon = group["latitude"][...], group["longitude"][...]
    box = tuple(window(axis, bounds) for axis, bounds in zip((lat, lon), REGIONS["Mediterranean"], strict=True))
    colours = LinearSegmentedColormap.from_list("earth", ["#dcebf5", "#31572c"])
    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 9.2), height_ratios=[1.15, 1], layout="constrained")
    above.imshow(group["pyramid/land"][...], origin="lower", extent=(-180, 180, -90, 90), cmap=colours)
    south, west = REGIONS["Mediterranean"]
    extent = (west.start, west.stop, south.start, south.stop)
    below.imshow(
        group["land"][box], origin="lower", extent=extent, cmap=colours, aspect="auto", interpolation="nearest"
    )
    above.add_patch(
        plt.Rectangle(
            (west.start, south.start),
            west.stop - west.start,
            south.stop - south.start,
            fill=False,
            color="#d1495b",
            lw=1.5,
        )
    )
    above.set_title("The world from the pyramid level (1/15 degree)", loc="left")
    below.set_title("The Mediterranean at full resolution (30 arc-seconds)", loc="left")
    for axes in (above, below):
        axes.set_xlabel("longitude, degrees east")
        axes.set_ylabel("latitude, degrees north")
    figure.savefig(target, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run the whole example."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where the map goes")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()

    print("Loading the land mask")
    mask, latitude, longitude = load_source()
    print(f"  {mask.shape[0]:,} x {mask.shape[1]:,} booleans, {mask.nbytes / 1e6:,.0f} MB, {mask.mean():.1%} land")
    with s3_server() as options:
        url = f"s3://{BUCKET}/land.zarr"
        store = stores.CountingStore(stores.resolve(url, options))
        print(f"Ingesting into {url} (moto at {options['endpoint_url']})")
        with step("write mask, coordinates and pyramid", store):
            asyncio.run(ingest(store, mask, latitude, longitude))
        print("Stored hierarchy")
        print("  " + sync.open_group(store).tree().replace("\n", "\n  "))
        land = sync.open_array(store, path="land")
        print(
            f"  land: {land.nchunks:,} chunks in {land.nchunks_initialized()} stored shards of {np.prod(land.metadata.grid.shape)}"
        )
        print("Reading back")
        asyncio.run(read_back(store, mask))
        read_back_blocking(store, mask)
        target = arguments.out / "land.png"
        with step("map of the world and of the Mediterranean", store):
            draw(store, target)
        sync.open_group(store).close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"Done in {time.perf_counter() - begin:.1f} s, peak memory {peak:,.0f} MiB; the map is {target}")


if __name__ == "__main__":
    main()
