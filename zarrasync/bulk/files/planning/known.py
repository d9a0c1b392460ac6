"""Which files of a job the destination contains already. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zarrasync.bulk.files.planning.parameters import Parameters
from zarrasync.bulk.files.records.source_values import sources_key
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.display.text import counted
from zarrasync.errors import NodeExistsError, ShapeError
from zarrasync.model.paths import join

__all__ = ["check_stored_labels", "unknown_files", "without_other_names"]


def without_other_names(files: Sequence[SourceFile], parameters: Parameters) -> tuple[list[SourceFile], list[str]]:
    """Return files without those that symbolic links name a second time, and messages for the report.

    If labels come from names, each name is another row.

    Raises:
        ShapeError: If a file has two names, and ``on_duplicate`` is ``"error"``.
    """
    if parameters.reader.labels:
        return list(files), []
    chosen: dict[str, SourceFile] = {}
    for file in files:
        other = chosen.setdefault(file.place, file)
        if other is file:
            continue
        if parameters.on_duplicate == "error":
            raise ShapeError(
                f"{other.name} and {file.name} are the same file, so its rows would be stored twice; pass on_duplicate='skip' "
                "to ingest it once, or copy the file if it stands for other rows"
            )
        if not file.real:  # links may lead to other files later
            chosen[file.place] = file
    kept = set(chosen.values())
    left_out = len(files) - len(kept)
    notes = [f"{counted(left_out, 'file')} left out: other names of the same files"] if left_out else []
    return [file for file in files if file in kept], notes


def check_stored_labels(files: Sequence[SourceFile], target: Target, dim: str) -> None:
    """Check that the rows of files that were ingested before have the labels of these files.

    They do not if the arrays were made shorter and longer again, because the rows are fill values then.

    Args:
        files: The files of a job.
        target: The destination.
        dim: The dimension along which files are joined.

    Raises:
        ShapeError: If rows have other labels.
    """
    journal, labels = target.journal, target.labels
    if labels is None:
        return
    for file in files:
        rows = journal.rows(file)
        if rows is None or not rows.digest or not rows.start < rows.stop <= len(labels):
            continue
        if not journal.contains(file, labels, len(labels)):
            raise ShapeError(
                f"the rows {rows.start}:{rows.stop} of {target.handle.name} in {target.handle.store!r} were ingested from "
                f"{file.name}, but {dim!r} has other labels there now. That happens if arrays are made shorter and longer again "
                f"with resize(), which leaves fill values. Ingest only this file with region={{{dim!r}: slice({rows.start}, "
                f"{rows.stop})}} to write its rows again, or all files with mode='w' to replace the dataset"
            )


def unknown_files(
    files: Sequence[SourceFile], target: Target, parameters: Parameters
) -> tuple[list[SourceFile], list[str]]:
    """Return the files that were not ingested before, and messages for the report.

    Rows with labels are also compared by their labels later. Rows without labels are known by their files alone, so each
    file can be added once. If it has changed, or another file was written over some of its rows, they can be replaced.

    Args:
        files: The files of the job.
        target: The destination, whose group exists.
        parameters: The parameters of the job, which does not write a region.

    Raises:
        NodeExistsError: If rows have no labels, and the journal cannot be read, or a file has changed since its
            rows were added and ``on_duplicate`` is ``"error"``.
    """
    length = target.length(parameters.dim)
    new = [file for file in files if not target.journal.contains(file, target.labels, length)]
    if target.labels is not None:
        return new, []
    if new and parameters.append and not target.journal.is_readable:
        raise _incomplete(new, target, parameters.dim)
    notes = []
    others = {file: other for file in new if (other := target.journal.other_name(file, length))}
    if others and parameters.append:
        _check_other_names(others, target, parameters)
        new = [file for file in new if file not in others]
        notes.append(f"{counted(len(others), 'file')} left out: ingested before under other names")
    spans = {file: target.journal.rows_of_any(file) for file in new}
    changed = {
        file: (rows.start, rows.stop) for file, rows in spans.items() if rows and rows.start < min(rows.stop, length)
    }
    if not changed or not parameters.append or parameters.on_duplicate == "replace":
        return new, notes
    if parameters.on_duplicate != "skip":
        raise _changed(changed, target, parameters.dim)
    note = f"{counted(len(changed), 'file')} left out: changed since its rows were added, or only some of its rows are left"
    return [file for file in new if file not in changed], [*notes, note]


def _check_other_names(others: Mapping[SourceFile, SourceFile], target: Target, parameters: Parameters) -> None:
    """Check that files may be left out, because their rows were added under other names.

    Args:
        others: The files, and each one as it was ingested before.
        target: The destination.
        parameters: The parameters of the job.
    """
    for file, other in others.items():
        is_same = target.journal.rows(other) is not None
        if parameters.on_duplicate == "error" or (parameters.on_duplicate == "replace" and not is_same):
            raise _refusal(
                f"{file.name} is the same file as {other.short_name}, whose rows were added to {target.handle.name} in "
                f"{target.handle.store!r}. The rows have no labels in {parameters.dim!r}, so they would be stored twice; pass "
                "that name instead, or on_duplicate='skip' to keep the existing rows",
                target,
            )


def _changed(changed: Mapping[SourceFile, tuple[int, int]], target: Target, dim: str) -> NodeExistsError:
    others = f", as has {len(changed) - 1:,} more" if len(changed) > 1 else ""
    first, (start, stop) = next(iter(changed.items()))
    return _refusal(
        f"{first.name} has changed since its rows were added to {target.handle.name} in {target.handle.store!r}"
        f"{others}, or only some of its rows are left. The rows have no labels in {dim!r}, so they would be added a second "
        f"time; pass on_duplicate='replace' to write them again, on_duplicate='skip' to keep the existing rows, or "
        f"region={{{dim!r}: slice({start}, {stop})}} instead of append to write only the rows of this file again",
        target,
    )


def _incomplete(new: Sequence[SourceFile], target: Target, dim: str) -> NodeExistsError:
    place = f"{target.handle.name} in {target.handle.store!r}"
    key = sources_key(target.handle.store, join(target.handle.path, target.place))
    return _refusal(
        f"cannot add {new[0].name} to {place}: the list of ingested files in {key!r} was written by another version, or is damaged, and the "
        f"rows have no labels in {dim!r}, so rows that exist would be added a second time. If none of the "
        f"{counted(len(new), 'file')} was added before, delete that value; otherwise pass region={{{dim!r}: slice(…)}} instead "
        "of append to write existing rows again, or mode='w' to replace the dataset",
        target,
    )


def _refusal(message: str, target: Target) -> NodeExistsError:
    return NodeExistsError(message, path=target.handle.path, store=repr(target.handle.store))
