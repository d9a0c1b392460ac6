import geopandas
import numpy as np
import pandas as pd
import spatialdata
from shapely import Point
from spatialdata.models import Image2DModel, Labels2DModel, PointsModel, ShapesModel

PACKAGES = ["spatialdata"]


def write(path, zarr_format):
    image = np.arange(3 * 32 * 32, dtype="u2").reshape(3, 32, 32)
    data = spatialdata.SpatialData(
        images={"image": Image2DModel.parse(image, dims=("c", "y", "x"), scale_factors=[2])},
        labels={"cells": Labels2DModel.parse((image[0] % 5).astype("u4"), dims=("y", "x"))},
        points={"points": PointsModel.parse(pd.DataFrame({"x": [1.0, 2], "y": [3.0, 4]}))},
        shapes={"circles": ShapesModel.parse(geopandas.GeoDataFrame({"geometry": [Point(1, 2)], "radius": [3.0]}))},
    )
    data.write(path)


def read(path):
    data = spatialdata.read_zarr(path)
    assert data.points["points"].compute().shape == (2, 2)
    assert data.shapes["circles"].shape == (1, 2)
    levels = sorted(data.images["image"].children)
    found = {f"images/image/{name}": np.asarray(data.images["image"][name]["image"]) for name in levels}
    names = {"0" if "images/image/0" in found else f"s{number}": number for number in range(1)}
    found["labels/cells/" + next(iter(names))] = np.asarray(data.labels["cells"])
    return renamed(path, found)


def renamed(path, found):
    """Return values by the path of their array: scale0 is the first dataset of an image."""
    import json

    result = {}
    for name, values in found.items():
        folder, _, level = name.rpartition("/")
        document = json.loads((path / folder / "zarr.json").read_text())["attributes"]["ome"]
        number = int("".join(filter(str.isdigit, level)) or 0)
        result[f"{folder}/{document['multiscales'][0]['datasets'][number]['path']}"] = values
    return result
