"""Files of which each array was ingested on its own, such as by the command line: as the files of a dataset. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zarrasync.bulk.files.records.file_records import find_file
from zarrasync.bulk.files.records.file_rows import Rows
from zarrasync.bulk.files.records.journal import digest_rows, journal_places
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.sources.headers import FileHeader, SourceFile
from zarrasync.display.text import listed
from zarrasync.errors import NodeExistsError

__all__ = ["adopt_records", "check_adopted"]


def adopt_records(target: Target, files: Sequence[SourceFile], dim: str, group: str) -> SourceFile | None:
    """Add the file of the arrays of a destination without a journal to its journal. Return it if it is one of the job.

    Args:
        target: The destination.
        files: The files of the job.
        dim: The dimension along which they are joined.
        group: The group inside the files.

    Raises:
        NodeExistsError: If the arrays come from different files, or do not have all values of their file.
    """
    own = {name: record for name, record in target.records.items() if not dim or dim in target.dims[name]}
    known = {find_file(record.file, files, group) or record.file for record in own.values()}
    if not known or (not dim and known.isdisjoint(files)):
        return None
    names = listed([file.short_name for file in known])
    if len(known) > 1:
        raise _refusal(
            f"values of {names} in different arrays, so it cannot be told which rows belong to a file", target
        )
    if not all(record.is_complete for record in own.values()):
        raise _refusal(
            f"only some values of {names}, because an ingestion was interrupted; repeat it, to complete it", target
        )
    (file,) = known
    length, labels = target.length(dim), target.labels
    rows = Rows(0, length, "" if labels is None else digest_rows(labels, 0, length))
    target.place = journal_places(target.arrays, dim)[0]
    target.journal = replace(target.journal, dim=dim, files={file.recorded: rows})
    return file if file in files else None


def check_adopted(target: Target, header: FileHeader, names: Sequence[str]) -> None:
    """Check that a destination has all chosen variables of a file, whose arrays were ingested one by one.

    Args:
        target: The destination.
        header: The header of the file.
        names: The names of the variables that the job would write.

    Raises:
        NodeExistsError: If it does not.
    """
    for name in names:
        variable, array = header.variables[name], target.arrays.get(name)
        if array is None:
            raise _refusal(f"{header.file.short_name} without {name!r}", target)
        is_text = variable.dtype == "str" or array.dtype.kind in "OTU"
        if tuple(variable.shape) != array.shape or (not is_text and np.dtype(variable.dtype) != array.dtype):
            raise _refusal(
                f"{header.file.short_name} with other parameters: {name!r} is {array.dtype} of the shape {array.shape}, not "
                f"{variable.dtype} of the shape {tuple(variable.shape)}",
                target,
            )


def _refusal(reason: str, target: Target) -> NodeExistsError:
    place = f"{target.handle.name} in {target.handle.store!r}"
    return NodeExistsError(
        f"{place} contains {reason}; pass mode='w' to replace the dataset, or write to another path",
        path=target.handle.path,
        store=repr(target.handle.store),
    )
