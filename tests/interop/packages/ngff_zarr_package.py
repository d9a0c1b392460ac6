import ngff_zarr
import numpy as np

PACKAGES = ["ngff-zarr"]


def write(path, zarr_format):
    version = "0.4" if zarr_format == 2 else "0.5"
    values = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    image = ngff_zarr.to_ngff_image(values, dims=["y", "x"], scale={"y": 0.5, "x": 0.5})
    ngff_zarr.to_ngff_zarr(str(path), ngff_zarr.to_multiscales(image, scale_factors=[2], chunks=32), version=version)


def read(path):
    levels = ngff_zarr.from_ngff_zarr(str(path))
    paths = [dataset.path for dataset in levels.metadata.datasets]
    return {name: np.asarray(image.data) for name, image in zip(paths, levels.images, strict=True)}
