"""The command ingest, which writes the contents of a file into arrays."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import zarrasync
from zarrasync import sync
from zarrasync._concurrency.bridge import run
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.files.running.report import FilesReport
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.bulk.ingest_array import ingest_array
from zarrasync.bulk.new_arrays import creation_options
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.reports import WriteReport
from zarrasync.bulk.source_records import check_records, identify_source
from zarrasync.bulk.sources import source_of
from zarrasync.cli import ingest_files as files
from zarrasync.cli.arguments import (
    FORMATS,
    Commands,
    add_destination,
    add_layout,
    destination,
    options,
)
from zarrasync.cli.console import Console
from zarrasync.cli.files import NpzMember, open_file
from zarrasync.cli.monitoring import add_monitoring, monitored
from zarrasync.display.progress import IngestReport, ProgressLike, report_progress
from zarrasync.errors import ChecksumError, NodeExistsError, NodeNotFoundError, NodeTypeError, ZarrError
from zarrasync.metadata.create import check_axis_count
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.create_hierarchy import check_array_paths
from zarrasync.nodes.node import run_on_store
from zarrasync.nodes.open_nodes import resolve_node
from zarrasync.stores import Store, resolve

__all__ = ["add"]

_CONCURRENT_ARRAYS = 16
"""Maximum number of small arrays that are written concurrently to an asynchronous store."""

Arrays = dict[str, Any]
"""Arrays by their paths below the destination; a single array has the path ""."""
Layouts = dict[str, dict[str, Any]]
"""Parameters of ``create_array`` by path."""


def add(command: Commands) -> None:
    """Add the command."""
    ingest = command(
        "ingest",
        "write files into an array or group; resumes after interruption",
        _ingest,
        examples=[
            "ingest field.npy s3://bucket/field.zarr --chunks 512,512 --shards 4096,4096",
            "ingest ocean.nc ocean.zarr --verify",
            "ingest 'nc/*.nc' out.zarr --concat time --chunks time=24,lat=90 --processes 8",
            "ingest 'nc/*.nc' out.zarr --concat time --append --on-duplicate skip",
            "ingest 'tif/*.tif' out.zarr --concat time --labels 'ndvi_%Y%m%d'",
            "ingest plan --help    (the same on several machines)",
        ],
    )
    ingest.epilog = f"{ingest.epilog}\n\n{files.PLANS}"
    files.add_arguments(ingest)
    add_destination(ingest)
    add_layout(ingest, "keep", "3")
    add_monitoring(ingest)
    ingest.set_defaults(compressor="auto")
    ingest.add_argument("--variable", action="append", default=[], help="write only this variable (may be repeated)")


def _ingest(args: argparse.Namespace, console: Console) -> int:
    files.check_mode(args)
    if files.are_many(args):
        return files.run(args, console)
    files.refuse_options(args)
    (args.url,) = args.url
    with monitored(args) as watch, destination(args) as dest:
        store = resolve(dest, options(args.dest_option))
        arrays, attributes = open_file(args)
        layouts = _layouts(args, store, arrays)
        file = identify_source(args.url, args.path)
        existing, is_known = run(_existing(args, store, arrays, file), blocking=store.blocking)
        if is_known and len(existing) == len(arrays) and not args.verify:
            return console.report(FilesReport(known=1))
        if set(arrays) != {""}:
            zarr_format = _create_groups(args, store, arrays, layouts, attributes)
            layouts = {path: {**layout, "zarr_format": zarr_format} for path, layout in layouts.items()}
        reports: dict[str, IngestReport] = {}
        try:
            run(_write(args, store, arrays, layouts, file, existing, reports, watch.progress), blocking=store.blocking)
        finally:
            watch.report = WriteReport({path: reports[path] for path in arrays if path in reports})
            if not console.as_json:
                for path in filter(reports.__contains__, arrays):
                    console.text(f"{path}: {reports[path]}" if path else reports[path])
    if console.as_json:
        console.data({path: reports[path].to_dict() for path in arrays})
    return 0


async def _write(
    args: argparse.Namespace,
    store: Store,
    arrays: Arrays,
    layouts: Layouts,
    file: SourceFile,
    existing: Collection[str],
    reports: dict[str, IngestReport],
    progress: ProgressLike,
) -> None:
    """Write all arrays, small ones concurrently if the store is asynchronous."""
    sizes = {path: math.prod(array.shape) * max(array.dtype.itemsize, 1) for path, array in arrays.items()}
    single = arrays.get("")
    rows = single.shape[0] if single is not None and single.shape else 0
    with report_progress(progress, sum(sizes.values()), f"ingest {file.name}", rows) as callback:

        async def write(path: str) -> None:
            array, place, existed = arrays[path], _place(args, path), path in existing
            try:
                values = array.load() if isinstance(array, NpzMember) else array
                reports[path] = await ingest_array(
                    values,
                    store,
                    file,
                    path=place,
                    mode="w" if args.overwrite and not path else "a",
                    options=layouts[path],
                    verify=args.verify or existed,  # stored blocks may come from another file
                    progress=callback or False,
                )
            except ChecksumError as error:
                if existed:
                    raise NodeExistsError(
                        f"/{place} in {store!r} contains other values than {args.url}; pass overwrite=True to replace them, "
                        "or --dest-path to write to another path, or --concat to join files along a dimension",
                        path=place,
                    ) from error
                raise
            except Exception as error:
                if path:
                    error.add_note(f"while writing {path!r} of {args.url}")
                raise

        limit = zarrasync.config.get().memory_budget // (2 * _CONCURRENT_ARRAYS)
        small = [path for path in arrays if sizes[path] <= limit]
        await for_each(write, small, 1 if store.blocking else _CONCURRENT_ARRAYS)
        await for_each(write, [path for path in arrays if sizes[path] > limit], 1)


def _place(args: argparse.Namespace, path: str) -> str:
    return join(normalize_path(args.dest_path), path)


async def _existing(
    args: argparse.Namespace, store: Store, arrays: Arrays, file: SourceFile
) -> tuple[Collection[str], bool]:
    """Return the paths of the arrays that exist and are not replaced, none of which comes from another file.

    Also return whether they are a dataset that contains the file.
    """
    if args.overwrite:
        return (), False
    found: list[str] = []

    async def find(path: str) -> None:
        with suppress(NodeNotFoundError, NodeTypeError):
            await run_on_store(partial(zarrasync.open_array, store, path=_place(args, path)), store)
            found.append(path)

    await for_each(find, arrays, 1 if store.blocking else _CONCURRENT_ARRAYS)
    return found, await check_records(store, [_place(args, path) for path in found], file)


# ------------------------------------------------------------------ layouts


def _layouts(args: argparse.Namespace, store: Store, arrays: Arrays) -> Layouts:
    """Return the parameters of ``create_array`` for all arrays."""
    shapes = {"chunks": args.chunks, "shards": args.shards}
    for name, shape in shapes.items():
        check_axis_count(name, shape, (len(array.shape) for array in arrays.values()))
    zarr_format = FORMATS[args.to] if args.to else _existing_format(args, store)

    def layout(array: Any) -> dict[str, Any]:
        applicable = {name: shape for name, shape in shapes.items() if _applies(shape, array)}
        names = _dimension_names(array, arrays.values())
        return {**applicable, "compressors": args.compressor, "zarr_format": zarr_format, **names}

    return {path: layout(array) for path, array in arrays.items()}


def _applies(shape: Any, array: Any) -> bool:
    """Return whether a shape of chunks applies to an array: if it has as many axes, or is ``None`` or ``"auto"``."""
    return len(shape) == len(array.shape) if isinstance(shape, tuple) else shape != "keep"


def _dimension_names(source: Any, others: Iterable[Any]) -> dict[str, Any]:
    """Return empty dimension names for an array without axes if other arrays of the dataset have names."""
    is_unnamed_scalar = not source.shape and getattr(source, "dimension_names", ...) is None
    has_named = is_unnamed_scalar and any(getattr(other, "dimension_names", None) for other in others)
    return {"dimension_names": ()} if has_named else {}


def _existing_format(args: argparse.Namespace, store: Store) -> Any:
    """Return the format of an existing group that arrays are added to; ``None`` without one."""
    if args.overwrite:
        return None
    try:
        return sync.open_group(store, path=args.dest_path).zarr_format
    except (NodeNotFoundError, NodeTypeError):
        return None


# ------------------------------------------------------------------ groups


def _create_groups(
    args: argparse.Namespace,
    store: Store,
    arrays: Arrays,
    layouts: Layouts,
    attributes: dict[str, dict[str, Any]],
) -> int | str:
    """Create the groups of the arrays, or replace existing ones, after checking that all arrays can be created.

    Returns:
        The format of the groups.
    """
    zarr_format = FORMATS[args.to] if args.to else None
    check_array_paths(resolve_node(store, args.dest_path, zarr_format, None, None)[0], arrays)
    _check_creation(args, store, arrays, layouts)
    if args.overwrite:
        refuse_self_overwrite(store, normalize_path(args.dest_path), *arrays.values())
    group = sync.open_group(store, path=args.dest_path, mode="w" if args.overwrite else "a", zarr_format=zarr_format)
    for path, values in attributes.items():
        member = group if not path else group.require_group(path)
        member.update_attributes(values)
    return group.zarr_format


def _check_creation(args: argparse.Namespace, store: Store, arrays: Arrays, layouts: Layouts) -> None:
    """Check that all arrays can be created, by creating them in memory."""
    for path, layout in layouts.items():
        try:
            sync.create_array({}, **creation_options(source_of(arrays[path], {}), layout))
        except ZarrError as error:
            if args.overwrite or not _exists(store, join(normalize_path(args.dest_path), path)):
                error.add_note(f"while checking {path!r} of {args.url}; nothing was written")
                raise


def _exists(store: Store, path: str) -> bool:
    try:
        sync.open(store, path=path)
    except NodeNotFoundError:
        return False
    return True
