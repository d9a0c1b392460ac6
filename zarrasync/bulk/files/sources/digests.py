"""Digests of large variables that must have the same values in all files, which are compared instead of the values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from zarrasync.bulk.checksum import slabs, value_checksum
from zarrasync.bulk.files.sources.headers import FileHeader, VariableHeader
from zarrasync.indexing.regions import Region


def add_digests(
    header: FileHeader, names: Collection[str], dim: str, read: Callable[[str, Region], npt.NDArray[np.generic]]
) -> FileHeader:
    """Return a header in which large variables without rows have digests.

    Args:
        header: The header.
        names: The names of the variables to compare with other files. Others get no digest.
        dim: The dimension along which files are joined; empty for a single file.
        read: Returns a region of a variable, by its name.
    """
    has_rows = any(dim in variable.dims for variable in header.variables.values())
    with_digests = {
        name: replace(variable, digest=_digest(name, variable, read))
        for name, variable in header.variables.items()
        if name in names
        and variable.values is None
        and dim
        and dim not in variable.dims
        and (has_rows or variable.is_coordinate)
    }
    return replace(header, variables={**header.variables, **with_digests})


def _digest(name: str, header: VariableHeader, read: Callable[[str, Region], npt.NDArray[np.generic]]) -> int:
    digest, itemsize = 0, np.dtype(object if header.dtype == "str" else header.dtype).itemsize
    for region, axes in slabs(header.dims, header.shape, itemsize, header.chunks):
        digest = value_checksum(read(name, region).transpose(axes), digest)
    return digest
