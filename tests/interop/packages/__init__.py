"""Scripts that write and read Zarr with one other package each. They run in an environment of their own, see ``run.py``."""
