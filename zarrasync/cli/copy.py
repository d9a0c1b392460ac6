"""Commands that write copies: convert, copy, and pyramid, which computes coarser levels of an array."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

from zarrasync import sync
from zarrasync.cli.arguments import (
    FORMATS,
    Commands,
    add_destination,
    add_executor,
    add_layout,
    add_monitoring,
    add_several,
    add_shapes,
    count,
    destination,
    executor_of,
    levels,
    monitored,
    options,
)
from zarrasync.cli.console import Console
from zarrasync.metadata.conventions.pyramids import METHODS


def add(command: Commands) -> None:
    """Add the commands."""
    convert = command(
        "convert",
        "copy an array, or a group with all nodes below it, into another format or layout",
        _copy,
        examples=["convert old.zarr new.zarr --zarr-format 3 --shards 1024,1024 --verify"],
    )
    add_destination(convert)
    add_layout(convert, "keep", "as in the source")
    copy = command(
        "copy",
        "copy an array, or a group with all nodes below it, unchanged",
        _copy,
        examples=["copy s3://bucket/a.zarr a.zarr -o anon=true --resume"],
    )
    add_destination(copy)
    copy.set_defaults(zarr_format=None, chunks="keep", shards="keep", compressor="keep")
    for parser in (convert, copy):
        add_monitoring(parser)
        parser.add_argument("--resume", action="store_true", help="resume an interrupted copy")
        parser.add_argument(
            "--all", action="store_true", help="also copy files that are not part of the Zarr hierarchy"
        )
        add_executor(parser, "copy")
    _add_pyramid(command)


def _copy(args: argparse.Namespace, console: Console) -> int:
    with monitored(args) as watch, destination(args) as dest, executor_of(args) as executor:
        source_options = options(args.option)
        watch.report = sync.copy(
            sync.open(args.url, path=args.path, storage_options=source_options) if args.path else args.url,
            dest,
            dest_path=args.dest_path,
            zarr_format=FORMATS[args.zarr_format] if args.zarr_format else None,
            chunks=args.chunks,
            shards=args.shards,
            compressors=args.compressor,
            overwrite=args.overwrite,
            resume=args.resume,
            verify=args.verify,
            all_files=args.all,
            executor=executor,
            progress=watch.progress,
            source_options=None if args.path else source_options,
            dest_options=options(args.dest_option),
        )
    return console.report(watch.report)


# ------------------------------------------------------------------ pyramid


def _add_pyramid(command: Commands) -> None:
    pyramid = command(
        "pyramid",
        "compute coarser levels of an array, in OME-Zarr or zarr-conventions; resumes after interruption",
        _pyramid,
        examples=[
            "pyramid cells.zarr --path 0 --scale y=0.65,x=0.65 --units y=micrometer,x=micrometer",
            "pyramid era5.zarr t2m.zarr --path t2m --method max --processes 8",
        ],
    )
    pyramid.add_argument(
        "dest", nargs="?", help="a path or URL to copy the array to (default: add levels to its group)"
    )
    pyramid.add_argument("--dest-path", default="", help="the path of the new group in the destination")
    add_several(pyramid, "--dest-option", "NAME=VALUE", "its storage options")
    pyramid.add_argument(
        "--levels", type=_levels, default="auto", help="the number of levels, with the finest one (default: auto)"
    )
    pyramid.add_argument("--method", choices=("auto", *METHODS), default="auto", help="how elements become one")
    pyramid.add_argument(
        "--factors",
        type=_factors,
        action="append",
        metavar="N | y=N,x=N | N,N,…",
        help="the factors from each level to the next; the factors of each level if there are several numbers, or if the "
        "option is repeated",
    )
    pyramid.add_argument(
        "--missing", type=_missing, default="auto", help="the stored number of missing elements, or none"
    )
    pyramid.add_argument(
        "--axes", type=_names, metavar="NAMES", help="the names of all axes, such as czyx or time,lat,lon"
    )
    pyramid.add_argument("--scale", type=_numbers, metavar="y=N,x=N", help="the distances between elements")
    pyramid.add_argument("--units", type=_pairs, metavar="y=UNIT,x=UNIT", help="the units of axes")
    pyramid.add_argument(
        "--convention", choices=("auto", "ome", "zarr-conventions"), default="auto", help="the metadata to write"
    )
    pyramid.add_argument("--version", dest="ome_version", choices=("0.4", "0.5", "0.6"), help="the version of OME-Zarr")
    add_shapes(pyramid, "keep")
    pyramid.add_argument("--overwrite", action="store_true", help="replace existing levels")
    add_executor(pyramid, "compute")
    add_monitoring(pyramid)


def _pyramid(args: argparse.Namespace, console: Console) -> int:
    from zarrasync import Layout, PyramidAxes

    with (
        monitored(args) as watch,
        destination(args) if args.dest else nullcontext() as dest,
        executor_of(args) as executor,
    ):
        report = sync.pyramid(
            args.url,
            path=args.path,
            dest=dest,
            dest_path=args.dest_path,
            levels=args.levels,
            method=args.method,
            missing=args.missing,
            axes=PyramidAxes(
                names=args.axes, scale=args.scale, units=args.units, factors=_factors_of_levels(args.factors)
            ),
            convention=_convention(args),
            layout=Layout(chunks=args.chunks, shards=args.shards, compressors=args.compressor),
            overwrite=args.overwrite,
            executor=executor,
            progress=watch.progress,
            storage_options=options(args.option),
            dest_options=options(args.dest_option),
        )
        watch.report = report
    return console.report(report)


def _convention(args: argparse.Namespace) -> Any:
    """Return the convention with the version.

    Raises:
        ValueError: If they contradict each other.
    """
    if args.ome_version and args.convention == "zarr-conventions":
        raise ValueError("--version is the version of OME-Zarr; omit it, or pass --convention ome")
    return f"ome-{args.ome_version}" if args.ome_version else args.convention


def _levels(text: str) -> Any:
    return text if text == "auto" else levels(text)


def _names(text: str) -> list[str]:
    return text.split(",") if "," in text else list(text)


def _missing(text: str) -> Any:
    """Parse a number, ``none`` as ``None``, and ``auto`` as itself."""
    if text in ("auto", "none"):
        return None if text == "none" else text
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, none or auto, found {text!r}") from None


def _pairs(text: str) -> dict[str, str]:
    """Parse ``y=a,x=b``."""
    pairs = [item.partition("=") for item in text.split(",")]
    if not all(name and value for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,…, found {text!r}")
    return {name: value for name, _, value in pairs}


def _numbers(text: str) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in _pairs(text).items()}
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER,…, found {text!r}") from None


def _factors(text: str) -> list[Any]:
    """Parse the factors of one level, such as ``y=2,x=2``, or the numbers of several."""
    if "=" in text:
        return [{name: count(value) for name, value in _pairs(text).items()}]
    return [count(value) for value in text.split(",")]


def _factors_of_levels(options: list[list[Any]] | None) -> Any:
    """Return the same factors for all levels, or a list with the factors of each level."""
    items = [item for option in options or () for item in option]
    return items if len(items) > 1 else items[0] if items else None
