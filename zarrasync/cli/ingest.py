"""The command ingest, which writes the contents of files into arrays."""

from __future__ import annotations

import argparse
from typing import Any

from zarrasync import sync
from zarrasync.bulk.files.sources.identify import source_name
from zarrasync.cli import ingest_files as files
from zarrasync.cli.arguments import Commands, add_destination, add_layout, destination, options
from zarrasync.cli.console import Console
from zarrasync.cli.monitoring import add_monitoring, monitored
from zarrasync.display.progress import ProgressLike
from zarrasync.display.report import JobReport
from zarrasync.errors import ZarrError

__all__ = ["add"]


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
    source = None if files.are_many(args) else _node(args)
    if source is None:
        return files.run(args, console)
    files.refuse_options(args)
    with monitored(args) as watch, destination(args) as dest:
        write: Any = _copy_group if isinstance(source, sync.Group) else _ingest_array
        report = watch.report = write(args, source, dest, watch.progress)
    return console.report(report)


def _node(args: argparse.Namespace) -> str | sync.Array | sync.Group | None:
    """Return the file of NumPy or the Zarr node that the arguments name, or ``None`` for other files."""
    path = source_name(args.url[0])
    if path.endswith(".npy"):
        return path
    try:
        node = sync.open(args.url[0], path=args.path, storage_options=options(args.option))
    except ZarrError:
        if path.rstrip("/").endswith(".zarr"):
            raise
        return None
    if isinstance(node, sync.Group) or args.option:
        return node
    return f"{path.rstrip('/')}/{args.path}".rstrip("/")


def _ingest_array(args: argparse.Namespace, source: Any, dest: Any, progress: ProgressLike) -> JobReport:
    return sync.ingest(
        source,
        dest,
        path=args.dest_path,
        mode="w" if args.overwrite else "a",
        verify=args.verify,
        progress=progress,
        storage_options=options(args.dest_option),
        **files.layout_of(args),
    )


def _copy_group(args: argparse.Namespace, source: sync.Group, dest: Any, progress: ProgressLike) -> JobReport:
    return sync.copy(
        source,
        dest,
        dest_path=args.dest_path,
        overwrite=args.overwrite,
        resume=args.resume,
        verify=args.verify,
        progress=progress,
        dest_options=options(args.dest_option),
        **files.layout_of(args),
    )
