"""The xarray backend ``engine="zarrasync"``, and ``write_dataset`` to write datasets.

Arrays are lazy and can be pickled, and ``await dataset.load_async()`` reads all variables concurrently. Dimensions come
from ``dimension_names`` or xarray's attribute ``_ARRAY_DIMENSIONS``. Fill values and encodings follow xarray's own
engine for Zarr. ``dataset.zarrasync`` explains what loading variables takes.
"""

from zarrasync.bulk.reports import WriteReport
from zarrasync.integrations.xarray.accessor import DataArrayAccessor, DatasetAccessor
from zarrasync.integrations.xarray.backend import ZarrasyncBackend, load, open_mfdataset
from zarrasync.integrations.xarray.encode import stored_variables
from zarrasync.integrations.xarray.functions import (
    plan_write_dataset,
    plan_write_dataset_async,
    write_dataset,
    write_dataset_async,
)
from zarrasync.integrations.xarray.job import WriteOptions

__all__ = [
    "DataArrayAccessor",
    "DatasetAccessor",
    "WriteOptions",
    "WriteReport",
    "ZarrasyncBackend",
    "load",
    "open_mfdataset",
    "plan_write_dataset",
    "plan_write_dataset_async",
    "stored_variables",
    "write_dataset",
    "write_dataset_async",
]
