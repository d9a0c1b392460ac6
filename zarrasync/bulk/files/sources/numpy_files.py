"""Reading files of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.files.sources.headers import FileHeader, ReaderOptions, SourceFile, VariableHeader, dtype_text
from zarrasync.indexing.regions import Region


class NumpyReader:
    """An open ``.npy`` or ``.npz`` file.

    Args:
        path: The path of the file.
        options: The names of axes.
    """

    def __init__(self, path: str, options: ReaderOptions) -> None:
        if path.lower().endswith(".npz"):
            with open(path, "rb") as file, np.load(file) as archive:  # NumPy leaves damaged files open
                members = {name: archive[name] for name in archive.files}  # others than arrays are bytes
                self._arrays = {name: array for name, array in members.items() if isinstance(array, np.ndarray)}
        else:
            self._arrays = {"values": np.load(path, mmap_mode="r")}
        self._options = options

    def header(self, file: SourceFile) -> FileHeader:
        """Return the header of the file."""
        variables, options = {}, self._options
        sizes: dict[int, set[int]] = {}
        for array in self._arrays.values():
            for axis, n in enumerate(array.shape):
                sizes.setdefault(axis, set()).add(n)
        for name, array in self._arrays.items():
            if array.dtype.names:
                problem = (
                    f"it has the fields {', '.join(array.dtype.names)}; store such an array with ingest(values, store)"
                )
                variables[name] = VariableHeader((), (), "V", {}, problem=problem)
                continue
            unnamed = tuple(f"dim_{n}" if len(sizes[n]) == 1 else f"{name}_dim_{n}" for n in range(array.ndim))
            dims = unnamed if len(options.dims or ()) != array.ndim else tuple(options.dims or ())
            values = np.array(array) if options.reads_values(name, dims, array.shape, array.dtype.itemsize) else None
            variables[name] = VariableHeader(dims, array.shape, dtype_text(array.dtype), {}, values=values)
        return FileHeader(file, variables, {})

    def read(self, name: str, region: Region) -> npt.NDArray[Any]:
        """Return a region of an array."""
        return np.asarray(self._arrays[name][region])

    def close(self) -> None:
        """Do nothing: another thread may be reading. NumPy closes the file when the last one has ended."""
