"""A bulk job: a day of measurements after the other into one sharded array, by several processes.

    python ingestion_job.py [DIRECTORY]

Each process writes separate regions of whole shards, so no process waits for another and nothing is read. If the job was
killed, run the same command again; it writes only the missing regions.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from zarrasync import sync

DAYS, SHAPE = 32, (24, 180, 360)
WORKERS = 4


def measured(begin: int, region: tuple[slice, ...]) -> np.ndarray:
    """What an instrument measured from some hour on: here made from the hours. A function of the region is a source."""
    hours = begin + np.arange(region[0].start, region[0].stop)[:, None, None]
    rows = np.arange(region[1].start, region[1].stop)[None, :, None]
    columns = np.arange(region[2].start, region[2].stop)[None, None, :]
    return (280 + 10 * np.sin(hours / 24) + rows / 18 + columns / 36).astype("f4")


def work(url: str, number: int) -> str:
    """Write one worker's share of the days."""
    share = DAYS // WORKERS * SHAPE[0]
    hours = slice(number * share, (number + 1) * share)
    source = partial(measured, hours.start)
    region = (hours, slice(None), slice(None))
    report = sync.ingest(source, url, path="t2m", region=region, shape=(share, *SHAPE[1:]), dtype="f4")
    return f"worker {number}: {report}"


def main(folder: Path) -> None:
    """Create the array, fill it, look at it."""
    url = str(folder / "station.zarr")
    sync.create_array(
        url,
        name="t2m",
        shape=(DAYS * SHAPE[0], *SHAPE[1:]),
        dtype="f4",
        chunks=(24, 60, 60),
        shards=(96, 180, 360),  # four days: what one worker writes at a time
        dimension_names=("time", "lat", "lon"),
        attributes={"units": "K"},
        overwrite=True,
    )
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for line in pool.map(work, [url] * WORKERS, range(WORKERS)):
            print(line)
    array = sync.open_array(url, path="t2m")
    np.testing.assert_array_equal(array[100:103], measured(100, (slice(0, 3), slice(0, 180), slice(0, 360))))
    print(array.info_complete())
    print("again:", work(url, 0))  # everything is there


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
