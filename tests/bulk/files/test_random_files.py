"""Random sets of files, ingested with random parameters, give the rows that NumPy, cftime and xarray expect.

``ZARRASYNC_EXAMPLES=1000`` makes a longer run, which draws other examples each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

for _package in ("cftime", "h5netcdf", "h5py", "netCDF4", "xarray", "zarr"):
    pytest.importorskip(_package, reason="writes the files, or reads the result")
import xarray as xr

from tests.bulk.files.random_files import Field, meaning
from tests.bulk.files.random_jobs import Job, jobs
from tests.bulk.files.random_model import Model, Refused, Source
from tests.property.other_readers import zarr_python_store
from tests.support.ingested import work_of
from zarrasync import sync
from zarrasync._concurrency.bridge import run
from zarrasync.bulk.files.ingestion import make_job, run_ingestion
from zarrasync.bulk.files.parameters import Parameters, parameters_of
from zarrasync.bulk.files.records.plan import FilesPlan
from zarrasync.bulk.files.running.tasks import FileWorkers
from zarrasync.bulk.files.sources.headers import SMALL_BYTES
from zarrasync.errors import ZarrError

pytestmark = pytest.mark.random

LONG = os.environ.get("ZARRASYNC_EXAMPLES")


@given(jobs())
@settings(
    max_examples=int(LONG or 50),
    derandomize=LONG is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
def test_random_files(job: Job):
    with tempfile.TemporaryDirectory() as folder:
        _Run(job, Path(folder)).run()


class _Run:
    """The calls for a job, whose results are compared with the model.

    Args:
        job: The job.
        folder: An empty folder.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.sources = [Source(job, file, folder) for file in job.files]
        self.model = Model(job.labels)
        self.store: Any = folder / "out.zarr" if job.is_planned else {}
        self.form = self.sources[0]
        """The file from which the dataset has its metadata."""

    def run(self) -> None:
        job = self.job
        first, options = self.sources[: job.first], dict(job.options)
        if self.call(first, options, is_planned=job.is_planned):
            self.check()
            self.repeat(first, options)
            if self.call(self.sources, {**options, **job.appended}, append=True):
                self.check()
                self.repeat(self.sources, {**options, **job.appended}, append=True)
                if job.updates is not None and not job.fault:
                    self.update(self.sources[job.updates])
        elif job.fault and not values_of(self.store).keys():
            self.recover(options)

    # -------------------------------------------------------------- calls

    def call(
        self, sources: Sequence[Source], options: dict[str, Any], *, is_planned: bool = False, **more: Any
    ) -> bool:
        """Ingest files, and return whether they were ingested. If not, nothing may have changed."""
        before, model = values_of(self.store), Model(self.job.labels)
        model.rows, model.known = list(self.model.rows), set(self.model.known)
        try:
            model.add(sources, options["on_duplicate"])
            expected = ""
        except Refused as error:
            expected = str(error)
        failure: Exception | None = None
        try:
            self.ingest(sources, options, is_planned=is_planned, **more)
        except (ZarrError, ValueError, TypeError) as error:
            if not (expected or self.may_fail(error, options)):
                raise
            failure = error
        if failure is not None:
            assert len(str(failure)) > 20
            assert values_of(self.store) == before
            return False
        assert not expected
        assert not self.must_fail(sources, options)
        self.model = model
        return True

    def ingest(
        self, sources: Sequence[Source], options: dict[str, Any], *, is_planned: bool = False, **more: Any
    ) -> Any:
        arguments = {**options, **more}
        if self.job.small != SMALL_BYTES:
            arguments |= {"small_bytes": self.job.small, "tasks": 1 << 20}
        files = [source.path for source in sources]
        request = parameters_of(files=files, store=self.store, concat="row", **arguments)
        if is_planned:
            return self.plan(request)
        if self.job.is_async:
            return asyncio.run(run_ingestion(request))
        return run(run_ingestion(request), blocking=True)

    def plan(self, request: Parameters) -> None:
        with closing(FileWorkers()) as workers:
            made, _ = make_job(request).plan_only(workers)
            assert made is not None
            plan = FilesPlan.from_json(json.loads(json.dumps(made.to_json())))
            for number in range(len(plan.parts)):
                work_of(plan, self.store).run([number], executor=None, verify=request.verify, progress=False)
        work_of(plan, self.store).finish(verify=request.verify)

    def repeat(self, sources: Sequence[Source], options: dict[str, Any], **more: Any) -> None:
        """Ingest the same files again, which changes nothing."""
        before = values_of(self.store)
        report = self.ingest(sources, options, **more)
        assert values_of(self.store) == before
        assert (report.known, report.files, report.nbytes) == (len(sources), 0, 0)

    def update(self, source: Source) -> None:
        """Change the values of a file, and write its rows again."""
        changed = Source(self.job, replace(source.file, seed=source.file.seed + 100), self.folder)
        options = {key: value for key, value in self.job.options.items() if key != "on_duplicate"}
        places = [
            n for n, row in enumerate(self.model.rows) if row.label in source.labels or row.file == source.file.number
        ]
        is_whole = [self.model.rows[n].label for n in places] == source.labels
        if is_whole and places and places == [*range(places[0], places[-1] + 1)] and source.file.seed % 2:
            options |= {"region": {"row": slice(places[0], places[-1] + 1)}}
        elif self.job.labels.kind == "none":
            options |= {"append": True, "on_duplicate": "replace"}
        else:
            options |= {"region": "auto"}
        before = values_of(self.store)
        try:
            self.ingest([changed], options)
        except ZarrError as error:  # the rows of a file may not have been stored before, and not fit
            if not self.may_fail(error, options):
                raise
            assert values_of(self.store) == before
            return
        self.model.replace(changed)
        self.sources[self.sources.index(source)] = changed
        self.check()

    def recover(self, options: dict[str, Any]) -> None:
        """Ingest the files that have no fault."""
        others = [source for source in self.sources if not source.file.changes and source.file.calendar != "noleap"]
        self.job = replace(self.job, fault="")
        if others:
            self.form = others[0]
            if self.call(others, options):
                self.check()

    # -------------------------------------------------------------- refused files

    def may_fail(self, error: Exception, options: Mapping[str, Any]) -> bool:
        """Return whether files without repeated labels can be refused for this reason."""
        if self.job.fault:
            return True
        text, kinds = str(error), {source.file.format.startswith("zarr") for source in self.sources}
        lengths = {source.file.length for source in self.sources}
        have_char = any(own.kind == "char" for own in self.job.fields) or self.sources[0].file.format == "npz"
        if have_char and len(lengths) > 1 and "has a string of" in text:
            return True  # the array has shorter strings
        if any(source.file.label_dtype for source in self.sources) and "'row' has the data type" in text:
            return True
        # Zarr does not keep the data type of scale_factor, which determines the data type of decoded values.
        if bool(options.get("decode")) and len(kinds) > 1 and "has the data type" in text:
            return True
        narrow = [own for own in options.get("encoding", {}).values() if own.get("dtype") in ("i1", "i2")]
        return bool(narrow) and "do not fit the data type" in text

    def must_fail(self, sources: Sequence[Source], options: Mapping[str, Any]) -> bool:
        """Return whether the fault of the job makes the values of some files wrong."""
        job = self.job
        faulty = [source for source in sources if source.file.changes]
        if not faulty or len(sources) < 2 or job.fault not in ("absent", "constant", "axes", "packing"):
            return False
        (own,) = faulty
        if job.fault == "absent":  # the destination may have a variable without rows, which files need not repeat
            return any(field.name in own.file.changes and "row" in field.dims for field in job.fields)
        other = next(source for source in sources if source is not own)
        if job.fault == "packing":
            (name,) = own.file.changes
            return not options.get("decode") and other.stored[name].attrs.get("scale_factor") != 0.125
        names = [name for name, item in own.stored.items() if "row" not in item.dims and name in other.stored]
        return any(not np.array_equal(own.stored[name].values, other.stored[name].values) for name in names)

    # -------------------------------------------------------------- results

    def check(self) -> None:
        """Compare the dataset with the model."""
        job, group = self.job, sync.open_group(self.store)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of attributes that xarray does not like
            options: dict[str, Any] = {"decode_times": False, "decode_timedelta": False}
            decoded = xr.open_zarr(zarr_python_store(values_of(self.store)), chunks=None, **options).load()
            own = xr.open_dataset(self.store, engine="zarrasync", **options).load()
            raw = xr.open_dataset(self.store, engine="zarrasync", mask_and_scale=False, **options)
        xr.testing.assert_identical(decoded, own)
        assert set(group.array_keys()) == self.names() == set(decoded.variables)
        assert sync.validate(self.store, data=True).ok
        for key, value in self.form.file.attributes.items():
            assert plain(group.attrs[key]) == plain(value)
        self.check_labels(group)
        for field in job.fields:
            if field.name in self.names():
                attributes = raw["row" if field.kind == "bounds" else field.name].attrs
                self.check_field(field, group[field.name], decoded[field.name], attributes)

    def names(self) -> set[str]:
        """Return the names of the arrays: all, or the chosen ones with their coordinates and the bounds of these."""
        present, chosen = {*self.form.stored}, {*self.job.chosen}
        linked = [own.attributes.get("coordinates") for own in self.job.fields if own.name in chosen]
        chosen |= {name for name in linked if name is not None}
        dims = {dim for own in self.job.fields if own.name in chosen for dim in own.dims} | {"row"}
        return present & (chosen | dims | {"row_bnds"}) if chosen else present

    def check_labels(self, group: Any) -> None:
        labels = self.job.labels
        for dim in self.job.sizes.keys() & self.names():
            np.testing.assert_array_equal(group[dim][...], self.form.stored[dim].values)
        if labels.kind == "none":
            return
        array = group["row"]
        found, expected = array[...], [labels.values[row.label] for row in self.model.rows]
        if labels.kind == "time":
            np.testing.assert_allclose(meaning("time", found, array.attrs), np.array(expected, "f8"), atol=1e-3)
        else:
            assert found.tolist() == expected
        if labels.kind != "string":
            assert array.dtype == np.dtype(self.form.file.label_dtype or labels.dtype)

    def check_field(self, field: Field, array: Any, decoded: xr.DataArray, attributes: Mapping[str, Any]) -> None:
        dims = self.dims_of(field)
        assert decoded.dims == dims
        is_decoded = bool(self.job.options.get("decode")) and field.kind in ("number", "time", "duration")
        found = meaning(field.kind, np.asarray(array[...]), attributes)
        expected = self.joined(
            field, lambda source: (source.decoded if is_decoded else source.stored)[field.name], dims
        )
        assert found.shape == expected.shape
        if field.kind in ("time", "duration", "bounds"):
            np.testing.assert_allclose(found, expected, atol=1e-3)
            return
        np.testing.assert_array_equal(found, expected)
        if field.kind == "number":
            meant = self.joined(field, lambda source: source.decoded[field.name], dims)
            kind = "c16" if decoded.dtype.kind == "c" else "f8"
            np.testing.assert_allclose(decoded.values.astype(kind), meant.astype(kind), rtol=1e-6)
            encoding = self.job.options.get("encoding", {}).get(field.name, {})
            like = (self.form.decoded if is_decoded else self.form.stored)[field.name]
            assert array.dtype == np.dtype(encoding.get("dtype", like.dtype.newbyteorder("=")))
            self.check_attributes(like, array)
        elif field.kind == "string":
            # xarray takes the fill value of format 2 for missing values.
            values = ["" if value != value else value for value in decoded.values.reshape(-1).tolist()]  # NaN
            assert values == expected.reshape(-1).tolist()

    def check_attributes(self, like: xr.Variable, array: Any) -> None:
        for key, value in like.attrs.items():
            if key not in ("_FillValue", "missing_value") or (key == "missing_value" and np.isfinite(value).all()):
                assert plain(array.attrs[key]) == plain(value), key

    def dims_of(self, field: Field) -> tuple[str, ...]:
        dims = self.form.file.orders.get(field.name, field.dims)
        if not self.form.file.is_row:
            return dims
        return ("row", *(dim for dim in dims if dim != "row"))

    def joined(self, field: Field, variable_of: Callable[[Source], xr.Variable], dims: tuple[str, ...]) -> Any:
        """Return the values of all rows of a variable."""
        if "row" not in dims:
            return meaning(field.kind, variable_of(self.form).values, variable_of(self.form).attrs)
        by_number = {source.file.number: source for source in self.sources}
        inner = [dim for dim in dims if dim != "row"]
        rows = []
        for row in self.model.rows:
            variable = variable_of(by_number[row.file])
            one = variable.isel(row=row.place) if "row" in variable.dims else variable
            like = by_number[row.file].stored["row"] if field.kind == "bounds" else variable
            rows.append(meaning(field.kind, one.transpose(*inner).values, like.attrs))
        if not rows:
            like = variable_of(self.form)
            shape = [self.job.sizes[dim] for dim in inner]
            return np.empty([*shape[: dims.index("row")], 0, *shape[dims.index("row") :]], like.dtype)
        return np.stack(rows, axis=dims.index("row"))


def values_of(store: Any) -> dict[str, bytes]:
    """Return all values of a store."""
    if isinstance(store, dict):
        return {key: bytes(value) for key, value in store.items()}
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def plain(value: Any) -> Any:
    """Return an attribute as JSON contains it."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return value[0] if isinstance(value, list) and len(value) == 1 else value
