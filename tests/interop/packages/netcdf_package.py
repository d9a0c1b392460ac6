import netCDF4
import numpy as np

PACKAGES = ["netCDF4"]


def url(path):
    return f"file://{path}#mode=nczarr,file"


def write(path, zarr_format):
    with netCDF4.Dataset(url(path), "w") as file:
        file.title = "t"
        file.createDimension("y", 6)
        file.createDimension("x", 10)
        for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"):
            for zlib in (False, True):
                options = {"zlib": zlib, "chunksizes": (3, 4)}
                variable = file.createVariable(f"{dtype}{'z' if zlib else ''}", dtype, ("y", "x"), **options)
                variable.units = "K"
                variable[:] = np.arange(60).reshape(6, 10).astype(dtype)
        group = file.createGroup("deep")
        group.createVariable("filled", "f4", ("y",), fill_value=-1.0)[:3] = 5


def read(path):
    found = {}
    with netCDF4.Dataset(url(path)) as file:
        file.set_auto_mask(False)
        for prefix, group in (("", file), ("deep/", file["deep"])):
            for name, variable in group.variables.items():
                found[prefix + name] = np.asarray(variable[...])
    return found
