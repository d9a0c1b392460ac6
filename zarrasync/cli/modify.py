"""Commands that change stores: convert, copy, consolidate, rm."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from zarrasync import sync
from zarrasync._concurrency.bridge import run
from zarrasync.cli.arguments import (
    FORMATS,
    Commands,
    add_destination,
    add_executor,
    add_layout,
    destination,
    executor_of,
    open_in_hierarchy,
    options,
)
from zarrasync.cli.console import Console
from zarrasync.cli.monitoring import add_monitoring, monitored
from zarrasync.display.text import counted, size_text
from zarrasync.errors import ZarrError
from zarrasync.formats import may_be_zarr
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.node import run_on_store


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
    command(
        "consolidate",
        "write the metadata of all nodes to one document",
        _consolidate,
        examples=["consolidate data.zarr"],
    )
    remove = command(
        "rm", "erase an array, or a group with all nodes below it", _rm, examples=["rm data.zarr --path raw/u"]
    )
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    remove.add_argument("--dry-run", action="store_true", help="print what would be erased")
    remove.add_argument("--all", action="store_true", help="also erase files that are not part of the Zarr hierarchy")


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
    console.report(watch.report)
    return 0


def _consolidate(args: argparse.Namespace, console: Console) -> int:
    group = sync.consolidate_metadata(args.url, path=args.path, storage_options=options(args.option))
    count = len(group.members(max_depth=None))
    if console.as_json:
        console.data({"name": group.name, "nodes": count})
    else:
        console.text(f"{group.name}: consolidated the metadata of {counted(count, 'node')}")
    return 0


def _rm(args: argparse.Namespace, console: Console) -> int:
    node = open_in_hierarchy(args)
    nodes = 1 + (len(node.members(None)) if isinstance(node, sync.Group) else 0)
    sizes = _sizes(node)
    other_files = sorted(key for key in sizes if not may_be_zarr(key))
    erased = sizes if args.all else {key: size for key, size in sizes.items() if may_be_zarr(key)}
    nbytes = sum(erased.values())
    report: dict[str, Any] = {
        "name": node.name,
        "nodes": nodes,
        "values": len(erased),
        "bytes": nbytes,
        "other_files": other_files,
        "erased": not args.dry_run,
    }
    text = f"{counted(nodes, 'node')}, {counted(len(erased), 'value')}, {size_text(nbytes)}"
    if other_files and args.all:
        text += f", with {_other_files(other_files)}"
    if not args.dry_run and not args.yes and not _confirm(f"Erase {node.name} in {node.store!r} ({text})?"):
        raise ZarrError("nothing was erased; pass -y to erase without confirmation")
    if not args.dry_run:
        _erase(node, all_files=args.all)
    if console.as_json:
        console.data(report)
        return 0
    console.text(f"{node.name}: {text} {'would be erased' if args.dry_run else 'erased'}")
    if other_files and not args.all:
        console.text(
            f"{_other_files(other_files)} {'would be kept' if args.dry_run else 'kept'}; --all also erases them"
        )
    return 0


def _other_files(keys: list[str]) -> str:
    """Return the number and the first names of files that are not Zarr's."""
    return f"{counted(len(keys), 'other file')} ({', '.join(keys[:3])}{', …' * (len(keys) > 3)})"


def _sizes(node: sync.Array | sync.Group) -> dict[str, int]:
    """Return the bytes of all values that erasing a node would erase, by key."""
    prefixes = handle_of(node.async_).format.erase_prefixes(node.path)

    async def list_sizes() -> dict[str, int]:
        listed = [await node.store.list_sizes(prefix) for prefix in prefixes]
        return {key: size for sizes in listed for key, size in sizes.items()}

    return run(run_on_store(list_sizes, node.store), blocking=node.store.blocking)


def _erase(node: sync.Array | sync.Group, *, all_files: bool) -> None:
    erase = partial(erase_node, handle_of(node.async_), all_files=all_files)
    run(run_on_store(erase, node.store), blocking=node.store.blocking)


def _confirm(question: str) -> bool:
    """Ask a question on the terminal. Return ``False`` without a terminal."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
