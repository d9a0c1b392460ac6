"""The command ingest, which writes the contents of files into arrays, and the arguments that ``ingest plan`` has as well."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarrasync import sync
from zarrasync._concurrency.bridge import run as run_blocking
from zarrasync.cli.arguments import (
    FORMATS,
    Commands,
    add_destination,
    add_layout,
    add_monitoring,
    add_processes,
    add_several,
    destination,
    monitored,
    options,
    seconds,
)
from zarrasync.cli.console import Console, show_log
from zarrasync.display.progress import ProgressLike
from zarrasync.display.report import JobReport
from zarrasync.errors import ZarrError

if TYPE_CHECKING:
    from zarrasync.bulk.files.parameters import Parameters

_FOR_FILES = (
    "concat",
    "preprocess",
    "optional",
    "labels",
    "append",
    "region",
    "reserve",
    "encoding",
    "decode",
    "dims",
    "engine",
    "engine_option",
)
"""Arguments with which a single file also becomes a dataset."""
_POLICIES = (
    ("--on-duplicate", ("error", "skip", "replace"), "for repeated labels"),
    ("--on-gap", ("report", "error", "ignore"), "for gaps in the labels"),
    ("--on-late", ("report", "insert", "error"), "for rows before existing ones"),
    ("--on-bad-file", ("error", "skip"), "for files that cannot be read or do not fit"),
)
"""What to do with files and rows: options, their choices, the first of which is the default, and descriptions."""
PLANS = """plans, whose tasks run anywhere:
  zarrasync ingest plan FILES… DEST --concat DIM
  zarrasync ingest run DEST --task N
  zarrasync ingest finish DEST
  zarrasync ingest abandon DEST
"""


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
    ingest.epilog = f"{ingest.epilog}\n\n{PLANS}"
    add_arguments(ingest)
    add_output(ingest)
    add_monitoring(ingest)


def _ingest(args: argparse.Namespace, console: Console) -> int:
    check_mode(args)
    source = None if _are_many(args) else _node(args)
    if source is None:
        return _run(args, console)
    _refuse_options(args)
    with monitored(args) as watch, destination(args) as dest:
        write: Any = _copy_group if isinstance(source, sync.Group) else _ingest_array
        report = watch.report = write(args, source, dest, watch.progress)
    return console.report(report)


def _node(args: argparse.Namespace) -> str | sync.Array | sync.Group | None:
    """Return the file of NumPy or the Zarr node that the arguments name, or ``None`` for other files."""
    from zarrasync.bulk.files.sources.identify import source_name

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
        **_layout_of(args),
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
        **_layout_of(args),
    )


# ------------------------------------------------------------------ many files


def add_output(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the destination and its layout."""
    add_destination(command)
    add_layout(command, "keep", "3")
    command.set_defaults(compressor="auto")


def add_arguments(command: argparse.ArgumentParser, verb: str = "write") -> None:
    """Add the arguments for many files.

    Args:
        command: The parser of a command.
        verb: What the command does with variables.
    """
    url = next(action for action in command._actions if action.dest == "url")  # noqa: SLF001  # no public list
    url.nargs, url.metavar = "+", "FILE"
    url.help = "the files: paths, URLs or patterns in quotes; ./plan for a file with the name of a plan's command"
    command.add_argument("--resume", action="store_true", help="complete an interrupted job, which is the default")
    add_several(command, "--variable", "NAME", f"{verb} only this variable (may be repeated)")
    group = command.add_argument_group("many files")
    group.add_argument("--concat", metavar="DIM", help="join files along this dimension")
    group.add_argument(
        "--labels",
        metavar="PATTERN",
        help="the pattern of names with labels, such as 'ndvi_%%Y%%m%%d' or 'member_{int}'; none: stack the files in order",
    )
    group.add_argument("--preprocess", metavar="MODULE:FUNCTION", help="a function that changes each opened dataset")
    group.add_argument(
        "--coordinate-tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="the largest difference of equal coordinates",
    )
    add_several(group, "--optional", "NAME", "a variable that files may lack (may be repeated)")
    group.add_argument("--append", action="store_true", help="add rows to an existing dataset, or create it")
    group.add_argument(
        "--region", type=_region, metavar="auto|A:B", help="write existing rows again: auto finds them by their labels"
    )
    for name, choices, text in _POLICIES:
        group.add_argument(name, choices=choices, default=choices[0], help=text)
    group.add_argument(
        "--reserve", metavar="A/B/STEP", help="lay out rows beforehand, such as 2024-01-01/2024-12-31/6h"
    )
    add_several(group, "--ignore-attribute", "NAME", "an attribute that may differ between files")
    group.add_argument("--encoding", metavar="FILE", help="a JSON file with parameters of arrays by variable")
    group.add_argument("--decode", action="store_true", help="unpack scale_factor and add_offset")
    group.add_argument("--dims", metavar="DIM,…", help="the names of axes of .npy, .npz and HDF5 arrays without names")
    group.add_argument("--engine", help="xarray's engine for the files")
    add_several(group, "--engine-option", "NAME=VALUE", "an argument of xarray's engine")
    add_processes(group, verb)
    group.add_argument("--wait", type=seconds, metavar="SECONDS", help="wait for another job (default: 10 minutes)")


def _are_many(args: argparse.Namespace) -> bool:
    """Return whether the arguments name several files, or options for files. Otherwise the source is one array or file."""
    return _has_several(args) or any(getattr(args, name) for name in _FOR_FILES)


def _has_several(args: argparse.Namespace) -> bool:
    from zarrasync.bulk.files.sources.identify import is_pattern

    return len(args.url) > 1 or is_pattern(args.url[0], options(args.option) or {})


def check_mode(args: argparse.Namespace) -> None:
    """Exit if options contradict each other."""
    if args.resume and args.overwrite:
        args.parser.error("pass --resume or --overwrite, not both: --overwrite replaces the stored values")


def _refuse_options(args: argparse.Namespace) -> None:
    """Exit if options for files are used with a single array, for which they have no effect."""
    if args.variable or (args.path and args.url[0].endswith(".npy")):
        name = "variable" if args.variable else "path"
        args.parser.error(f"--{name} needs a file with several arrays, but {args.url[0]} is one array")
    _refuse_without_concat(args, "on_duplicate", "on_gap", "on_late", "on_bad_file", "processes")


def _refuse_without_concat(args: argparse.Namespace, *names: str) -> None:
    """Exit if options are used that need ``--concat``."""
    for name in names:
        if getattr(args, name) != args.parser.get_default(name):
            args.parser.error(f"--{name.replace('_', '-')} needs --concat DIM, the dimension to join files along")


def _run(args: argparse.Namespace, console: Console) -> int:
    """Run the command for many files."""
    from zarrasync.bulk.files.ingestion import run_ingestion

    if args.concat is None:
        _refuse_without_concat(args, "labels", "append", "region", "reserve", "on_duplicate", "on_gap", "on_late")
        if _has_several(args):
            args.parser.error(
                f"{' '.join(args.url)}: several files need --concat DIM, the dimension to join them along (the destination "
                f"is the last argument, {args.dest!r})"
            )
    with monitored(args) as watch, destination(args) as dest, show_log("zarrasync.bulk"):
        parameters = files_parameters(args, dest, progress=watch.progress)
        report = run_blocking(run_ingestion(parameters), blocking=True)
        watch.report = report
    return console.report(report)


def _layout_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of ``create_array`` that the arguments name."""
    layout = {name: value for name, value in (("chunks", args.chunks), ("shards", args.shards)) if value != "keep"}
    if args.zarr_format:
        layout["zarr_format"] = FORMATS[args.zarr_format]
    if args.compressor != "auto":
        layout["compressors"] = args.compressor
    return layout


def files_parameters(args: argparse.Namespace, dest: Any, **others: Any) -> Parameters:
    """Return the parameters of ``ingest_files``."""
    from zarrasync.bulk.files.parameters import parameters_of

    same = ["concat", "preprocess", "coordinate_tolerance", "optional", "append", "on_duplicate", "on_gap", "on_late"]
    same += ["on_bad_file", "reserve", "decode", "dims", "engine", "verify"]
    return parameters_of(
        files=list(args.url),
        store=dest,
        labels=None if args.labels == "none" else args.labels or "",
        path=args.dest_path,
        mode="w" if args.overwrite else "a",
        region={args.concat: args.region} if isinstance(args.region, slice) else args.region,
        variables=args.variable,
        ignore_attributes=args.ignore_attribute,
        encoding={} if args.encoding is None else _load_json(args.encoding),
        engine_options=options(args.engine_option),
        group=args.path,
        source_options=options(args.option),
        storage_options=options(args.dest_option),
        executor=args.processes or None,
        **{name: getattr(args, name) for name in same},
        **({} if args.wait is None else {"wait": args.wait}),
        **_layout_of(args),
        **others,
    )


def _region(text: str) -> str | slice:
    """Parse ``auto`` as itself, and ``A:B`` as a slice."""
    start, colon, stop = text.partition(":")
    if text == "auto":
        return text
    if not (colon and start.isdigit() and stop.isdigit()):
        raise argparse.ArgumentTypeError(f"expected auto or A:B, found {text!r}")
    return slice(int(start), int(stop))


def _load_json(path: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ValueError: If the file cannot be read, or contains something else.
    """
    try:
        value = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must contain a JSON object, found {type(value).__name__}")
    return value
