"""A job on a dask cluster: daily means of an hourly array, from Zarr to Zarr, without locks.

pip install 'zarrasync[dask]' distributed
python dask_job.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster

from zarrasync import sync
from zarrasync.integrations.dask import from_zarr, to_zarr


def main(folder: Path) -> None:
    """Make hourly values, compute daily means on a cluster, check them."""
    hourly = np.random.default_rng(0).normal(280, 5, (24 * 20, 90, 180)).astype("f4")
    sync.create_array(folder / "hourly.zarr", data=hourly, chunks=(24, 45, 90), shards=(120, 90, 180))

    # Workers are processes: arrays travel to them as their configuration and metadata.
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        lazy = from_zarr(folder / "hourly.zarr")  # its blocks follow the shards
        daily = lazy.reshape(-1, 24, 90, 180).mean(axis=1).rechunk((5, 90, 180))
        to_zarr(daily, folder / "daily.zarr", shards=(5, 90, 180), chunks=(1, 90, 180), overwrite=True)

    found = sync.open_array(folder / "daily.zarr")
    np.testing.assert_allclose(found[...], hourly.reshape(-1, 24, 90, 180).mean(axis=1), rtol=1e-5)
    print(found.info)
    print(f"{found.shape[0]} days, mean {found[...].mean():.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
