"""Which files of a job become rows: those that can be read, fit the others, and are not late. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from zarrasync.bulk.files.parameters import Parameters
from zarrasync.bulk.files.planning.axis import merge_rows
from zarrasync.bulk.files.planning.comparison import PACKING, digest_of_values
from zarrasync.bulk.files.planning.consistency import check_files
from zarrasync.bulk.files.planning.make_plan import check_dimension, plan_job
from zarrasync.bulk.files.planning.matching import LateFilesError, find_labels, show_label
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.journal import sources_key
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.sources.content import bad_files_error, reason_of
from zarrasync.bulk.files.sources.headers import FileHeader, SourceFile
from zarrasync.display.text import counted
from zarrasync.errors import CodecError, NodeExistsError, ShapeError
from zarrasync.model.paths import join


@dataclass
class Choice:
    """The files of a job.

    Attributes:
        plan: The plan of those that become rows; ``None`` if none does.
        bad_files: The reason for each file that cannot be read, or does not fit, by name.
        late: Messages about late files.
    """

    plan: FilesPlan | None = None
    bad_files: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)


def choose_files(
    headers: Sequence[FileHeader],
    target: Target,
    parameters: Parameters,
    prepare: Callable[[FileHeader], None] = lambda header: None,
) -> Choice:
    """Return the plan of a job without the files that cannot be part of it.

    Args:
        headers: The headers of the files.
        target: The destination.
        parameters: The parameters of the job.
        prepare: Prepares the destination for comparing it with a file.

    Raises:
        SourceFilesError: If several files are bad, and ``on_bad_file`` is ``"error"``. It names all of them.
        ShapeError: If one file does not fit, or the files as a whole have no place in the destination.
        CodecError: If times cannot be converted to one unit.
    """
    bad = {number: header.error for number, header in enumerate(headers) if header.error is not None}
    good, failure = [n for n in range(len(headers)) if n not in bad], None
    choice = Choice()

    def plan(numbers: Sequence[int]) -> None:
        """Plan the rows of files without those that are late and not inserted."""
        choice.late, rest, own = [], [headers[n] for n in numbers], parameters
        while rest:
            prepare(rest[0])
            try:
                choice.plan = plan_job(rest, target, own)
            except LateFilesError as error:
                choice.late += error.late.values()
                if len(rest) in error.late:
                    own = replace(own, reserve=None)
                rest = [header for number, header in enumerate(rest) if number not in error.late]
            else:
                return

    if good and target.group is None:
        check_dimension(headers[good[0]], parameters.dim)
    if good:
        try:
            plan(good)
        except (ShapeError, CodecError) as error:
            unfit = _find_unfit([headers[n] for n in good], target, parameters, prepare)
            failure = None if unfit else error  # which is not about single files
            bad.update((good[n], own) for n, own in unfit.items())
    good = [n for n in good if n not in bad]
    if bad and (parameters.on_bad_file == "error" or not (good or parameters.append)):
        raise bad_files_error({headers[n].file.name: bad[n] for n in sorted(bad)}, len(headers))
    if failure is not None:
        raise failure
    choice.bad_files = {headers[n].file.name: reason_of(headers[n].file.name, bad[n]) for n in sorted(bad)}
    if bad and good:
        plan(good)
    return choice


def unread_files(headers: Sequence[FileHeader]) -> dict[str, str]:
    """Return the reason for each file whose header cannot be read, by name."""
    bad = [(header.file.name, header.error) for header in headers if header.error is not None]
    return {name: reason_of(name, error) for name, error in bad}


def _find_unfit(
    headers: Sequence[FileHeader], target: Target, parameters: Parameters, prepare: Callable[[FileHeader], None]
) -> dict[int, Exception]:
    """Return the error of each file that does not fit into the destination, or the structure that most files have.

    If a file with this structure does not fit either, the cause is common to all files, and none is returned. For an existing
    destination, all files must have the structure. A feed that skips bad files leaves them out in any case.
    """
    own = replace(parameters, on_duplicate="skip", on_gap="ignore", region=None, reserve=None)
    signatures = [_signature(header, parameters.dim) for header in headers]
    usual, count = Counter(signatures).most_common(1)[0]
    model, is_new, found = signatures.index(usual), target.group is None, dict[int, Exception]()
    for number, header in enumerate(headers):
        prepare(header)
        pair = [headers[model], header] if is_new and number != model else [header]
        try:
            variables = Variables(pair, target, own)
            check_files(variables)
            labels = find_labels(variables)
            if labels is not None:
                show = partial(show_label, variables)
                merge_rows(labels, [item.file.name for item in pair], target.labels, on_duplicate="skip", show=show)
        except (ShapeError, CodecError) as error:
            found[number] = error
    is_skipped = not is_new and parameters.append and parameters.on_bad_file == "skip"
    return {} if model in found and (is_new or count == len(found) == len(headers)) and not is_skipped else found


def _signature(header: FileHeader, dim: str) -> tuple[Any, ...]:
    """Return what files that fit together have in common."""

    def describe(name: str) -> tuple[Any, ...]:
        variable = header.variables[name]
        sizes = tuple((own, n) for own, n in zip(variable.dims, variable.shape, strict=True) if own != dim)
        numbers = tuple(repr(variable.attributes.get(key)) for key in PACKING)
        digest = None if dim in variable.dims else digest_of_values(variable)
        return name, sizes, variable.dtype, numbers, digest, variable.problem

    return tuple(describe(name) for name in sorted(header.variables))


# ------------------------------------------------------------------ files that were ingested before


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
    spans = ((file, target.journal.rows_of_any(file)) for file in new)
    changed = {file: rows[:2] for file, rows in spans if rows and rows.start < min(rows.stop, length)}
    if not changed or not parameters.append or parameters.on_duplicate == "replace":
        return new, []
    if parameters.on_duplicate != "skip":
        raise _changed(changed, target, parameters.dim)
    note = f"{counted(len(changed), 'file')} left out: changed since its rows were added, or only some of its rows are left"
    return [file for file in new if file not in changed], [note]


def _changed(changed: Mapping[SourceFile, tuple[int, int]], target: Target, dim: str) -> NodeExistsError:
    others = f", as has {len(changed) - 1:,} more" if len(changed) > 1 else ""
    first, (start, stop) = next(iter(changed.items()))
    return target.handle.exists_error(
        f"{first.name} has changed since its rows were added to {target.handle.name} in {target.handle.store!r}"
        f"{others}, or only some of its rows are left. The rows have no labels in {dim!r}, so they would be added a second "
        f"time; pass on_duplicate='replace' to write them again, on_duplicate='skip' to keep the existing rows, or "
        f"region={{{dim!r}: slice({start}, {stop})}} instead of append to write only the rows of this file again"
    )


def _incomplete(new: Sequence[SourceFile], target: Target, dim: str) -> NodeExistsError:
    place = f"{target.handle.name} in {target.handle.store!r}"
    key = sources_key(target.handle.store, join(target.handle.path, target.place))
    return target.handle.exists_error(
        f"cannot add {new[0].name} to {place}: the list of ingested files in {key!r} was written by another version, or is damaged, and the "
        f"rows have no labels in {dim!r}, so rows that exist would be added a second time. If none of the "
        f"{counted(len(new), 'file')} was added before, delete that value; otherwise pass region={{{dim!r}: slice(…)}} instead "
        "of append to write existing rows again, or mode='w' to replace the dataset"
    )
