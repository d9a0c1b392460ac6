import numpy as np
import zarr

PACKAGES = ["zarr"]
VALUES = {
    "i2": np.arange(60, dtype="i2").reshape(6, 10),
    "f8": np.linspace(-1, 1, 60).reshape(6, 10),
    "bool": np.eye(6, 10, dtype=bool),
    "c8": np.arange(60).reshape(6, 10).astype("c8"),
    "U3": np.array([["a", "bcd"], ["é", ""]], dtype="U3"),
    "M8": np.array(["2020-01-01", "NaT"], dtype="M8[ns]"),
}


def write(path, zarr_format):
    if zarr.__version__.startswith("2."):
        root = zarr.open_group(str(path), mode="w")
        for name, values in VALUES.items():
            root.create_dataset(f"deep/{name}", data=values, chunks=tuple(max(1, n // 2) for n in values.shape))
        return
    root = zarr.create_group(str(path), zarr_format=zarr_format, attributes={"title": "t"})
    for name, values in VALUES.items():
        root.create_array(f"deep/{name}", data=values, chunks=tuple(max(1, n // 2) for n in values.shape))
    if zarr_format == 3:
        root.create_array("sharded", data=VALUES["f8"], chunks=(2, 5), shards=(6, 10))
    root.create_array("filled", shape=(5,), dtype="f4", fill_value=np.nan)


def read(path):
    root = zarr.open_group(str(path), mode="r")
    found = {}

    def visit(group, prefix):
        for name, array in group.arrays():
            found[prefix + name] = np.asarray(array[...])
        for name, member in group.groups():
            visit(member, f"{prefix}{name}/")

    visit(root, "")
    return found
