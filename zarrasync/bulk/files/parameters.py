"""``Parameters``: what a job does with its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from zarrasync.bulk.files.options import FileOptions, Layout
from zarrasync.bulk.files.sources.headers import SMALL_BYTES, ReaderOptions
from zarrasync.bulk.files.sources.name_labels import parse_pattern
from zarrasync.bulk.jobs.claim import WAIT_SECONDS
from zarrasync.display.progress import ProgressLike
from zarrasync.metadata.create import check_options

OnDuplicate = Literal["error", "skip", "replace"]
"""What happens to a row whose label exists already."""
_CHOICES = {
    "on_duplicate": ("error", "skip", "replace"),
    "on_gap": ("report", "error", "ignore"),
    "on_late": ("report", "insert", "error"),
    "on_bad_file": ("error", "skip"),
    "mode": ("a", "w", "w-", "r+"),
}
_TIMES = "such as '2024-01-01/2024-12-31/6h'"


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of ``ingest_files``, ``plan_ingest`` and their jobs.

    Attributes:
        region: The rows of an existing dataset to write: a slice, or ``"auto"`` for those with the files' labels.
        preprocess: As users pass it; in a job the name and the digest of the function, see ``register_preprocess``.
        tasks: The number of tasks; 0 for a default.
        wait: Seconds to wait for another job that writes the same dataset.
        small_bytes: The largest size of values that are read with the headers.
        inserts: Whether this job can insert rows.
        is_one_group: Whether other groups of a file are left out, rather than ingested by other jobs.

    Raises:
        TypeError: If the type of an argument is wrong.
        ValueError: If arguments are invalid, or contradict each other.
    """

    files: Any
    store: Any
    concat: str | None = None
    path: str = ""
    mode: str = "a"
    append: bool = False
    region: Any = None
    on_duplicate: OnDuplicate = "error"
    on_gap: Literal["report", "error", "ignore"] = "report"
    on_late: Literal["report", "insert", "error"] = "report"
    on_bad_file: Literal["error", "skip"] = "error"
    reserve: str | None = None
    preprocess: Any = None
    source: FileOptions = field(default_factory=FileOptions)
    layout: Layout = field(default_factory=Layout)
    verify: bool = False
    executor: Any = None
    progress: ProgressLike = False
    storage_options: Mapping[str, Any] | None = None
    config: Any = None
    tasks: int = 0
    wait: float = WAIT_SECONDS
    small_bytes: int = SMALL_BYTES
    inserts: bool = True
    is_one_group: bool = True

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; found {value!r}")
        for name, what in (("concat", "the name of a dimension"), ("reserve", f"a range {_TIMES}")):
            if not isinstance(value := getattr(self, name), str | None):
                raise TypeError(f"{name} must be {what}, found {value!r}")
        if self.reserve == "":
            raise ValueError(f"reserve must be a range {_TIMES}, or None; found ''")
        source, is_change = self.source, self.append or self.region is not None
        if self.append and self.region is not None:
            raise ValueError(
                "append and region exclude each other: append adds rows, region writes existing rows again"
            )
        if is_change and self.mode in ("w", "w-"):
            raise ValueError(f"mode={self.mode!r} creates a dataset, but append and region change an existing one")
        needs = {"append and region need": is_change, "reserve needs": self.reserve, "labels need": source.labels != ""}
        for what in (what for what, is_given in needs.items() if is_given and not self.concat):
            raise ValueError(f"{what} the name of the dimension along which files are joined; pass concat='time'")
        if source.labels:
            parse_pattern(source.labels)
        vars(self)["region"] = _rows(self.region, self.concat)

    @property
    def dim(self) -> str:
        """The dimension along which files are joined; empty for a single file."""
        return self.concat or ""

    @cached_property
    def reader(self) -> ReaderOptions:
        """How the files are opened."""
        source: dict[str, Any] = vars(self.source)
        return ReaderOptions(**source, dim=self.dim, small_bytes=self.small_bytes, preprocess=self.preprocess or "")

    @property
    def confidential(self) -> list[Mapping[str, Any] | None]:
        """The arguments that may contain credentials."""
        places = {"files": self.files, "store": self.store}
        return [self.source.storage_options, self.source.engine_options, self.storage_options, places]

    @property
    def digest(self) -> str:
        """A digest of the parameters that determine the stored values of a new dataset."""
        source, layout = self.source, self.layout
        rarer = [*([source.engine_options] * bool(source.engine_options)), *([source.labels] * (source.labels != ""))]
        reader = [source.group, source.decode, source.dims, *rarer]
        options = {name: value for name, value in layout.options.items() if name != "zarr_format"}
        values = [self.dim, sorted(source.variables), options, layout.encoding, reader]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=repr).encode()).hexdigest()[:16]
        return digest + (f"-{self.preprocess}" if self.preprocess else "")


def parameters_of(**arguments: Any) -> Parameters:
    """Return parameters, whose groups are given one by one: ``source_options`` are the ``storage_options`` of the files.

    Raises:
        TypeError: If an argument is unknown.
    """
    if "source_options" in arguments:
        arguments["source"] = FileOptions(storage_options=arguments.pop("source_options"))
    groups: dict[str, Any] = {"source": arguments.pop("source", FileOptions()), "layout": Layout()}
    for name, group in groups.items():
        names = {item.name for item in fields(group)} - {"storage_options"}
        own = {key: arguments.pop(key) for key in names & arguments.keys()}
        groups[name] = replace(group, **own)
    if unknown := sorted(arguments.keys() - {item.name for item in fields(Parameters)}):
        check_options(unknown)
        raise TypeError(
            f"{unknown[0]} applies to single variables; pass it with encoding=…, below the name of each variable"
        )
    return Parameters(**arguments, **groups)


def _rows(region: Any, dim: str | None) -> Any:
    if region is None or region == "auto" or isinstance(region, slice):
        return region
    if isinstance(region, Mapping) and set(region) == {dim}:
        return _rows(region[dim], dim)
    if isinstance(region, tuple | list) and len(region) == 1:
        return _rows(region[0], dim)
    raise ValueError(f"the region must be 'auto' or {{{dim!r}: slice(start, stop)}}, found {region!r}")
