import numpy as np
import zarr
from ome_zarr.format import FormatV04, FormatV05
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader
from ome_zarr.writer import write_image, write_labels

PACKAGES = ["ome-zarr"]


def write(path, zarr_format):
    fmt = FormatV04() if zarr_format == 2 else FormatV05()
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    values = np.arange(2 * 64 * 64, dtype="u2").reshape(2, 64, 64)
    write_image(values, group, axes="cyx", fmt=fmt)
    write_labels((values[0] % 4).astype("u1"), group, "cells", axes="yx", fmt=fmt)


def read(path):
    found = {}
    for prefix in ("", "labels/cells/"):
        node = next(iter(Reader(parse_url(str(path / prefix)))()))
        attributes = zarr.open_group(str(path / prefix), mode="r").attrs.asdict()
        datasets = attributes.get("ome", attributes)["multiscales"][0]["datasets"]
        found |= {prefix + item["path"]: np.asarray(level) for item, level in zip(datasets, node.data, strict=True)}
    return found
