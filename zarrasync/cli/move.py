"""The command mv, which moves nodes inside a store."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

from zarrasync import config, sync
from zarrasync._concurrency.bridge import run
from zarrasync._util.redact import redact
from zarrasync.cli.arguments import Commands, hierarchy_of, open_group, options, split_url
from zarrasync.cli.console import Console
from zarrasync.errors import NodeExistsError, ZarrError
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.move import move_values
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import LocalStore, resolve
from zarrasync.stores.pipelines import is_pipeline


def add(commands: Commands) -> None:
    """Add the command."""
    move = commands(
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
