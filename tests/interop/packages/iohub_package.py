import numpy as np
from iohub import open_ome_zarr

PACKAGES = ["iohub"]


def write(path, zarr_format):
    version = "0.4" if zarr_format == 2 else "0.5"
    values = np.arange(2 * 3 * 2 * 8 * 8, dtype="f4").reshape(2, 3, 2, 8, 8)
    with open_ome_zarr(path, layout="hcs", mode="w", channel_names=list("abc"), version=version) as plate:
        for row, column in (("A", "1"), ("B", "2")):
            plate.create_position(row, column, "0")["0"] = values


def read(path):
    with open_ome_zarr(path, mode="r") as plate:
        return {f"{name}/0": np.asarray(position["0"][:]) for name, position in plate.positions()}
