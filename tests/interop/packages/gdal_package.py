import numpy as np
import rasterio

PACKAGES = ["rasterio"]
CODECS = {"zstd": "u1", "blosc": "i2", "gzip": "f4", "none": "f8", "zlib": "u2", "lzma": "i4"}
COMMON = ("zstd", "blosc", "gzip", "none")


def write(path, zarr_format):
    path.mkdir()
    for codec in CODECS if zarr_format == 2 else COMMON:
        dtype = np.dtype(CODECS[codec]).name
        values = (np.arange(40 * 30).reshape(40, 30) % 200).astype(dtype)
        options = {"FORMAT": f"ZARR_V{zarr_format}", "BLOCKSIZE": "16,16", "COMPRESS": codec.upper()}
        options |= {"crs": "EPSG:4326", "transform": rasterio.Affine(0.5, 0, 10, 0, -0.5, 60)}
        options |= {"dtype": dtype, "nodata": None if codec == "none" else 7}
        place = str(path / f"{codec}.zarr")
        with rasterio.open(place, "w", driver="Zarr", width=30, height=40, count=1, **options) as file:
            file.write(values, 1)


def read(path):
    found = {}
    for folder in sorted(path.glob("*.zarr")):
        with rasterio.open(folder) as file:
            assert file.transform.a == 0.5
            found[f"{folder.name}/{folder.stem}"] = file.read(1)
    return found
