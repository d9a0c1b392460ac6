import numpy as np
from hdmf.common import DynamicTable, VectorData, get_manager
from hdmf_zarr.backend import ZarrIO

PACKAGES = ["hdmf-zarr"]
COLUMNS = {"number": np.arange(5), "value": np.linspace(0, 1, 5), "id": np.arange(5)}


def write(path, zarr_format):
    columns = [VectorData(name=name, description="d", data=COLUMNS[name]) for name in ("number", "value")]
    table = DynamicTable(name="table", description="d", columns=columns)
    with ZarrIO(str(path), manager=get_manager(), mode="w") as io:
        io.write(table)


def read(path):
    with ZarrIO(str(path), manager=get_manager(), mode="r") as io:
        table = io.read()
        return {name: np.asarray(table[name].data[:]) for name in ("number", "value")} | {"id": np.asarray(table.id[:])}
