"""Commands that change stores: convert, copy, mv, consolidate, rm."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import Any, NamedTuple

from zarrasync import config, sync
from zarrasync._concurrency.bridge import run
from zarrasync._util.redact import redact
from zarrasync.cli.arguments import (
    FORMATS,
    Commands,
    add_destination,
    add_executor,
    add_layout,
    destination,
    executor_of,
    hierarchy_of,
    open_group,
    open_in_hierarchy,
    options,
    split_url,
)
from zarrasync.cli.console import Console
from zarrasync.cli.monitoring import add_monitoring, monitored
from zarrasync.display.text import counted, size_text
from zarrasync.errors import NodeExistsError, ZarrError
from zarrasync.formats import may_be_zarr
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import handle_of
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.move import move_values
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import LocalStore, resolve
from zarrasync.stores.pipelines import is_pipeline


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
    _add_move(command)
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


# ------------------------------------------------------------------ mv


def _add_move(command: Commands) -> None:
    move = command(
        "mv",
        "move or rename an array, or a group with all nodes below it, inside a store",
        _mv,
        examples=["mv data.zarr/raw/u data.zarr/archive/u", "mv s3://bucket/a.zarr s3://bucket/b.zarr"],
    )
    move.add_argument("dest", help="the new path or URL, in the same store")
    move.add_argument("--dest-path", default="", help="the node's new path below DEST")


def _mv(args: argparse.Namespace, console: Console) -> int:
    place = _places(args)
    storage_options = options(args.option)
    sync.open(args.url, path=args.path, storage_options=storage_options).close()  # raises if it does not exist
    group = open_group(place.url, storage_options)
    if group is None:
        _move_hierarchy(args, place, storage_options)
        source, dest = args.url, args.dest
    else:
        root, below = hierarchy_of(place.url, storage_options)
        group = open_group(root, storage_options) or group
        source, dest = join(below, place.source), join(below, place.dest)
        group.move(source, dest)
        source, dest = f"/{source}", f"/{dest}"
    if console.as_json:
        console.data({"source": redact(source), "dest": redact(dest)})
    else:
        console.text(redact(f"{source} is now {dest}"))
    return 0


class _Places(NamedTuple):
    """The longest URL that both places have in common, and the paths of the old and the new place below it."""

    url: str
    source: str
    dest: str


def _places(args: argparse.Namespace) -> _Places:
    """Return the common location of both places.

    Raises:
        ZarrError: If they are in different stores.
    """
    source_path, dest_path = normalize_path(args.path), normalize_path(args.dest_path)
    if args.url == args.dest:
        url, parts = args.url, (source_path.split("/"), dest_path.split("/"))
        if not source_path or not dest_path:
            raise ZarrError("the node has that place already; pass --path and --dest-path, or another DEST")
        return _Places(url, "/".join(parts[0]), "/".join(parts[1]))
    if is_pipeline(args.url) or is_pipeline(args.dest):
        raise ZarrError("nodes of a URL pipeline are moved with --path and --dest-path, and the same URL twice")
    (source_top, source), (dest_top, dest) = map(split_url, (args.url, args.dest))
    source += source_path.split("/") if source_path else []
    dest += dest_path.split("/") if dest_path else []
    if source_top != dest_top:
        raise ZarrError(
            f"{args.url} and {args.dest} are in different stores; use `zarrasync copy`, then `zarrasync rm`"
        )
    pairs = zip(source, dest, strict=False)
    common = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(source), len(dest)))
    if common in (len(source), len(dest)):
        raise NodeExistsError(f"cannot move {args.url} to {args.dest}: one contains the other", path="/".join(dest))
    url = source_top + "/".join(source[:common])
    return _Places(url, "/".join(source[common:]), "/".join(dest[common:]))


def _move_hierarchy(args: argparse.Namespace, place: _Places, storage_options: dict[str, object] | None) -> None:
    """Rename a whole hierarchy.

    Raises:
        NodeExistsError: If something exists at the new place.
    """
    store = resolve(place.url, storage_options)
    if isinstance(store, LocalStore):
        old, new = (os.path.join(store.root, path) for path in (place.source, place.dest))
        if os.path.lexists(new):
            raise NodeExistsError(f"cannot move {args.url} to {args.dest}, which exists; erase it first", path=new)
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.rename(old, new)
        return

    async def move() -> None:
        listing = await store.list_dir(f"{place.dest}/")
        if listing.keys or listing.prefixes:
            raise NodeExistsError(f"cannot move {args.url} to {args.dest}, which exists; erase it first")
        await move_values(store, f"{place.source}/", f"{place.dest}/", config.get())

    run(run_on_store(move, store), blocking=store.blocking)
