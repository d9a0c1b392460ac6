import numpy as np
import tensorstore as ts

PACKAGES = ["tensorstore"]
VALUES = np.arange(60, dtype="u2").reshape(6, 10)


def spec(path, name):
    driver = "zarr3" if (path / name / "zarr.json").exists() else "zarr"
    return {"driver": driver, "kvstore": {"driver": "file", "path": f"{path / name}/"}}


def write(path, zarr_format):
    kvstore = {"driver": "file", "path": f"{path}/"}
    for name in ("plain", "sharded", "u1", "f4"):
        values = VALUES.astype(name if name in ("u1", "f4") else "u2")
        metadata = {"shape": [6, 10]}
        if zarr_format == 2:
            metadata |= {"chunks": [4, 4], "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}}
        else:
            metadata |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}}
            inner = [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "gzip"}]
            if name == "sharded":
                inner = [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 4], "codecs": inner}}]
            metadata |= {"codecs": inner}
        driver = "zarr" if zarr_format == 2 else "zarr3"
        request = {"driver": driver, "kvstore": kvstore, "path": f"{name}/", "metadata": metadata}
        ts.open(request, create=True, dtype=values.dtype.name).result().write(values).result()


def read(path):
    names = sorted(place.name for place in path.iterdir() if place.is_dir())
    return {name: np.asarray(ts.open(spec(path, name), read=True).result().read().result()) for name in names}
