"""Commands that write: convert, copy, consolidate, rm."""

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
    add_layout,
    destination,
    open_node,
    options,
    shows_bar,
)
from zarrasync.cli.console import Console
from zarrasync.display.text import counted, size_text
from zarrasync.errors import NodeNotFoundError, ZarrError
from zarrasync.formats import may_be_zarr
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.node import run_on_store

__all__ = ["add"]


def add(command: Commands) -> None:
    """Make the commands."""
    convert = command(
        "convert",
        "copy an array, or a group with all below it, into another format or layout",
        _copy,
        examples=["convert old.zarr new.zarr --to 3 --shards 1024,1024 --verify"],
    )
    add_destination(convert)
    add_layout(convert, "keep", "that of the source")
    copy = command(
        "copy",
        "copy an array, or a group with all below it, as it is",
        _copy,
        examples=["copy s3://bucket/a.zarr a.zarr -o anon=true --resume"],
    )
    add_destination(copy)
    copy.set_defaults(to=None, chunks="keep", shards="keep", compressor="keep")
    for own in (convert, copy):
        own.add_argument("--resume", action="store_true", help="go on with a copy that was interrupted")
    command(
        "consolidate",
        "gather the metadata of all nodes in one document",
        _consolidate,
        examples=["consolidate data.zarr"],
    )
    remove = command("rm", "erase an array, or a group with all below it", _rm, examples=["rm data.zarr --path raw/u"])
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask")
    remove.add_argument("--dry-run", action="store_true", help="say what would be erased")
    remove.add_argument("--all", action="store_true", help="erase also what lies there and is no Zarr")


def _copy(given: argparse.Namespace, console: Console) -> int:
    with destination(given) as place:
        return _copy_to(place, given, console)


def _copy_to(place: Any, given: argparse.Namespace, console: Console) -> int:
    report = sync.copy(
        given.url,
        place,
        source_path=given.path,
        dest_path=given.dest_path,
        zarr_format=FORMATS[given.to] if given.to else None,
        chunks=given.chunks,
        shards=given.shards,
        compressors=given.compressor,
        overwrite=given.overwrite,
        resume=given.resume,
        verify=given.verify,
        progress=shows_bar(given),
        source_options=options(given.option),
        dest_options=options(given.dest_option),
    )
    if console.as_json:
        console.data(vars(report))
    else:
        console.text(report)
    return 0


def _consolidate(given: argparse.Namespace, console: Console) -> int:
    group = sync.consolidate_metadata(given.url, path=given.path, storage_options=options(given.option))
    count = len(group.members(max_depth=None))
    if console.as_json:
        console.data({"name": group.name, "nodes": count})
    else:
        console.text(f"{group.name}: the metadata of {counted(count, 'node')} below is in one document now")
    return 0


def _rm(given: argparse.Namespace, console: Console) -> int:
    node = open_node(given, mode="r+")
    nodes = 1 + (len(node.members(None)) if isinstance(node, sync.Group) else 0)
    place = handle_of(node.async_)
    prefixes = place.format.erase_prefixes(node.path)

    async def sizes() -> dict[str, int]:
        listed = [await node.store.list_sizes(prefix) for prefix in prefixes]
        return {key: size for own in listed for key, size in own.items()}

    found = run(run_on_store(sizes, node.store), blocking=node.store.blocking)
    foreign = sorted(key for key in found if not may_be_zarr(key))
    nbytes = sum(found.values())
    told: dict[str, Any] = {
        "name": node.name,
        "nodes": nodes,
        "values": len(found),
        "bytes": nbytes,
        "foreign": foreign,
        "erased": not given.dry_run,
    }
    text = f"{counted(nodes, 'node')}, {counted(len(found), 'value')}, {size_text(nbytes)}"
    if foreign:
        shown = f"{counted(len(foreign), 'value')} besides Zarr's: {', '.join(foreign[:3])}"
        text += f", among them {shown}"
        if not given.all and not given.dry_run:
            raise ZarrError(f"{node.name} in {node.store!r} holds {shown}; nothing was erased; --all erases them, too")
    if not given.dry_run and not given.yes and not _agreed(f"Erase {node.name} in {node.store!r} ({text})?"):
        raise ZarrError("nothing was erased; -y erases without a question")
    if not given.dry_run:
        _erase(given, node)
    if console.as_json:
        console.data(told)
    else:
        console.text(f"{node.name}: {text} {'would be erased' if given.dry_run else 'erased'}")
    return 0


def _erase(given: argparse.Namespace, node: sync.Array | sync.Group) -> None:
    """Erase a node; through the group at the top if there is one, which may hold copies of its metadata."""
    try:
        top = sync.open(node.store, mode="r+")
    except NodeNotFoundError:
        top = None
    if isinstance(top, sync.Group) and node.path:
        del top[node.path]
    else:
        run(run_on_store(partial(erase_node, handle_of(node.async_)), node.store), blocking=node.store.blocking)


def _agreed(question: str) -> bool:
    """Whether somebody at the terminal says yes. Nobody there has not."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
