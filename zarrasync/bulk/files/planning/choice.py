"""Which files of a job become rows: those that can be read, fit the others, and are not late. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from zarrasync.bulk.files.planning.axis import merge_rows
from zarrasync.bulk.files.planning.compare import PACKING, digest_of
from zarrasync.bulk.files.planning.fitting import check_destination, check_variables
from zarrasync.bulk.files.planning.layout import check_dimension
from zarrasync.bulk.files.planning.make_plan import plan_job
from zarrasync.bulk.files.planning.matching import LateFilesError, find_labels, show_label, with_dimensions
from zarrasync.bulk.files.planning.parameters import Parameters
from zarrasync.bulk.files.planning.variables import Variables
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.records.target import Target
from zarrasync.bulk.files.sources.content import bad_files_error
from zarrasync.bulk.files.sources.headers import FileHeader
from zarrasync.errors import CodecError, ShapeError, SourceFilesError

__all__ = ["Choice", "choose_files"]


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
    if good and target.group is None:
        check_dimension(headers[good[0]], parameters.dim)
    if good:
        try:
            _plan(choice, [headers[n] for n in good], target, parameters, prepare)
        except (ShapeError, CodecError) as error:
            found = _find_unfit([headers[n] for n in good], target, parameters, prepare)
            is_feed = parameters.append and target.group is not None and parameters.on_bad_file == "skip"
            if not found or (len(found) == len(good) and not is_feed):
                failure = error
            bad.update((good[n], own) for n, own in found.items() if failure is None)
    good = [n for n in good if n not in bad]
    if bad and (parameters.on_bad_file == "error" or not (good or parameters.append)):
        raise bad_files_error({headers[n].file.name: bad[n] for n in sorted(bad)}, len(headers))
    if failure is not None:
        raise failure
    choice.bad_files = {headers[n].file.name: _reason(headers[n], bad[n]) for n in sorted(bad)}
    if bad and good:
        _plan(choice, [headers[n] for n in good], target, parameters, prepare)
    return choice


def _reason(header: FileHeader, error: Exception) -> str:
    return error.files.get(header.file.name, str(error)) if isinstance(error, SourceFilesError) else str(error)


def _plan(
    choice: Choice,
    headers: Sequence[FileHeader],
    target: Target,
    parameters: Parameters,
    prepare: Callable[[FileHeader], None],
) -> None:
    """Plan the rows of files without those that are late and not inserted."""
    choice.late, rest = [], list(headers)
    while rest:
        prepare(rest[0])
        try:
            choice.plan = plan_job(rest, target, parameters)
        except LateFilesError as error:
            choice.late += error.late.values()
            if len(rest) in error.late:
                parameters = replace(parameters, reserve="")
            rest = [header for number, header in enumerate(rest) if number not in error.late]
        else:
            return


def _find_unfit(
    headers: Sequence[FileHeader], target: Target, parameters: Parameters, prepare: Callable[[FileHeader], None]
) -> dict[int, Exception]:
    """Return the files that do not fit into the destination, or the structure that most files have, with the reason."""
    own = replace(parameters, on_duplicate="skip", on_gap="ignore", region=None, reserve="")
    common: list[FileHeader] = []
    if target.group is None:
        signatures = [_signature(header, parameters.dim) for header in headers]
        (most, _), *_ = Counter(signatures).most_common(1)
        common = [headers[signatures.index(most)]]
    found: dict[int, Exception] = {}
    for number, header in enumerate(headers):
        prepare(header)
        pair, variables = [*common, header] if common != [header] else [header], None
        try:
            variables = Variables(pair, target, own)
            check_variables(variables)
            check_destination(variables)
            labels = find_labels(variables)
            if labels is not None:
                show = partial(show_label, variables)
                merge_rows(labels, [item.file.name for item in pair], target.labels, on_duplicate="skip", show=show)
        except (ShapeError, CodecError) as error:
            found[number] = error
            if variables is not None and isinstance(error, ShapeError):
                found[number] = with_dimensions(error, variables)
    return found


def _signature(header: FileHeader, dim: str) -> tuple[Any, ...]:
    """Return what files that fit together have in common."""

    def describe(name: str) -> tuple[Any, ...]:
        variable = header.variables[name]
        sizes = tuple((own, n) for own, n in zip(variable.dims, variable.shape, strict=True) if own != dim)
        numbers = tuple(repr(variable.attributes.get(key)) for key in PACKING)
        return (
            name,
            sizes,
            variable.dtype,
            numbers,
            None if dim in variable.dims else digest_of(variable),
            variable.problem,
        )

    return tuple(describe(name) for name in sorted(header.variables))
