import icechunk
import zarr
import zarr_python

PACKAGES = ["icechunk", "zarr"]


def write(path, zarr_format):
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    group = zarr.create_group(session.store)
    for name in ("i2", "f8", "bool"):
        group.create_array(name, data=zarr_python.VALUES[name], chunks=(3, 5))
    session.commit("values")


def read(path):
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    return {name: array[...] for name, array in group.arrays()}
