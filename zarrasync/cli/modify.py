"""Commands that change stores: attrs, mv, consolidate, rm."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Never, TypeVar

from zarrasync import config, sync
from zarrasync._concurrency.bridge import run
from zarrasync._util.advice import suggest
from zarrasync._util.redact import redact
from zarrasync.cli.arguments import Commands, add_several, open_node, options
from zarrasync.cli.console import Console
from zarrasync.display.text import counted, size_text
from zarrasync.errors import NodeExistsError, NodeNotFoundError, NodeTypeError, StoreError, ZarrError
from zarrasync.formats import may_be_zarr
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import handle_of, replace_attributes
from zarrasync.nodes.erase import erase_node
from zarrasync.nodes.move import move_values
from zarrasync.nodes.node import run_on_store
from zarrasync.stores import LocalStore, Store, resolve
from zarrasync.stores.local import local_path
from zarrasync.stores.pipelines import is_pipeline
from zarrasync.stores.zip_format import is_archive_name

T = TypeVar("T")


def add(command: Commands) -> None:
    """Add the commands."""
    _add_attributes(command)
    _add_move(command)
    text = "write the metadata of all nodes to one document"
    command("consolidate", text, _consolidate, examples=["consolidate data.zarr"])
    remove = command(
        "rm", "erase an array, or a group with all nodes below it", _rm, examples=["rm data.zarr --path raw/u"]
    )
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    remove.add_argument("--dry-run", action="store_true", help="print what would be erased")
    remove.add_argument("--all", action="store_true", help="also erase files that are not part of the Zarr hierarchy")


def _consolidate(args: argparse.Namespace, console: Console) -> int:
    group = sync.consolidate_metadata(args.url, path=args.path, storage_options=options(args.option))
    count = len(group.members(max_depth=None))
    text = f"{group.name}: consolidated the metadata of {counted(count, 'node')}"
    return console.result({"name": group.name, "nodes": count}, text)


def _rm(args: argparse.Namespace, console: Console) -> int:
    node = _open_in_hierarchy(args)
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
        _run_on(node.store, partial(erase_node, handle_of(node.async_), all_files=args.all))
    lines = [f"{node.name}: {text} {'would be erased' if args.dry_run else 'erased'}"]
    if other_files and not args.all:
        lines.append(
            f"{_other_files(other_files)} {'would be kept' if args.dry_run else 'kept'}; --all also erases them"
        )
    return console.result(report, *lines)


def _other_files(keys: list[str]) -> str:
    """Return the number and the first names of files that are not Zarr's."""
    return f"{counted(len(keys), 'other file')} ({', '.join(keys[:3])}{', …' * (len(keys) > 3)})"


def _sizes(node: sync.Array | sync.Group) -> dict[str, int]:
    """Return the bytes of all values that erasing a node would erase, by key."""
    prefixes = handle_of(node.async_).format.erase_prefixes(node.path)

    async def list_sizes() -> dict[str, int]:
        listed = [await node.store.list_sizes(prefix) for prefix in prefixes]
        return {key: size for sizes in listed for key, size in sizes.items()}

    return _run_on(node.store, list_sizes)


def _run_on(store: Store, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of a coroutine that uses a store."""
    return run(run_on_store(make, store), blocking=store.blocking)


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
    group = _open_group(place.url, storage_options)
    if group is None:
        _move_hierarchy(args, place, storage_options)
        source, dest = args.url, args.dest
    else:
        root, below = _hierarchy_of(place.url, storage_options)
        group = _open_group(root, storage_options) or group
        source, dest = join(below, place.source), join(below, place.dest)
        group.move(source, dest)
        source, dest = f"/{source}", f"/{dest}"
    return console.result({"source": redact(source), "dest": redact(dest)}, redact(f"{source} is now {dest}"))


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
        if not source_path or not dest_path:
            raise ZarrError("the node has that place already; pass --path and --dest-path, or another DEST")
        return _Places(args.url, source_path, dest_path)
    if is_pipeline(args.url) or is_pipeline(args.dest):
        raise ZarrError("nodes of a URL pipeline are moved with --path and --dest-path, and the same URL twice")
    (source_top, source), (dest_top, dest) = map(_split_url, (args.url, args.dest))
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

    _run_on(store, move)


# ------------------------------------------------------------------ attrs


def _add_attributes(commands: Commands) -> None:
    group = commands.group("attrs", "print or change the attributes of an array or group")
    get = group(
        "get",
        "print the attributes as JSON, or the value of one",
        _get,
        examples=["attrs get data.zarr --path t2m", "attrs get data.zarr units --path t2m --raw"],
    )
    get.add_argument("key", nargs="?", help="the attribute to print; without it all are printed")
    get.add_argument("--raw", action="store_true", help="print a string without quotes")
    set_ = group(
        "set",
        "set or remove attributes with one write",
        _set,
        examples=[
            "attrs set data.zarr --path t2m units=K 'valid_range=[180, 330]' standard_name=air_temperature",
            "attrs set data.zarr --path t2m --string version=1.0 --delete comment",
            "attrs set data.zarr --file attributes.json",
        ],
    )
    set_.add_argument("items", nargs="*", metavar="KEY=VALUE", help="VALUE is JSON; other words are strings")
    set_.add_argument("--string", action="store_true", help="take all values as strings, also 1.0 and true")
    add_several(set_, "--delete", "KEY", "remove this one (may be repeated)")
    set_.add_argument("--file", metavar="FILE", help="set the members of this file's JSON object; - for standard input")


def _get(args: argparse.Namespace, console: Console) -> int:
    attributes = dict(open_node(args).attrs)
    if args.key is None:
        console.data(attributes)
        return 0
    if args.key not in attributes:
        _refuse_unknown(args, args.key, attributes)
    value = attributes[args.key]
    if args.raw and isinstance(value, str) and not console.as_json:
        console.text(value)
    else:
        console.data(value)
    return 0


def _set(args: argparse.Namespace, console: Console) -> int:
    new = _parse(args)
    both = sorted(new.keys() & set(args.delete))
    if both:
        raise ValueError(f"the attribute {both[0]!r} is both set and deleted; name it once")
    if not new and not args.delete:
        raise ValueError("nothing to change: pass KEY=VALUE, --file or --delete")
    node = _open_in_hierarchy(args)
    if args.delete:
        remaining = dict(node.attrs)
        for key in args.delete:
            if remaining.pop(key, _ABSENT) is _ABSENT:
                _refuse_unknown(args, key, node.attrs)
        change = replace_attributes(node.async_, {**remaining, **new})
        run(change, blocking=node.store.blocking)
    else:
        node.update_attributes(new)
    done = [f"{counted(len(new), 'attribute')} set" if new else ""]
    done.append(f"{counted(len(args.delete), 'attribute')} removed" if args.delete else "")
    return console.result(dict(node.attrs), f"{node.name}: {', '.join(filter(None, done))}")


_ABSENT = object()


def _refuse_unknown(args: argparse.Namespace, key: str, known: Mapping[str, Any]) -> Never:
    where = f"{args.url} at {args.path!r}" if args.path else args.url
    names = f"its attributes: {', '.join(known)}" if known else "it has no attributes"
    raise ValueError(f"{where} has no attribute {key!r}; {suggest(key, known, names)}")


def _parse(args: argparse.Namespace) -> dict[str, Any]:
    """Return the new attributes of the command line and of a file."""
    new: dict[str, Any] = {}
    if args.file is not None:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text(encoding="utf-8")
        try:
            members = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{args.file} is not JSON: {error}") from None
        if not isinstance(members, dict):
            raise ValueError(f"{args.file} contains a JSON {_kind(members)}; attributes are a JSON object")
        new.update(members)
    for item in args.items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ValueError(f"an attribute must be KEY=VALUE, found {item!r}")
        new[key] = value if args.string else _value(key, value)
    return new


def _value(key: str, text: str) -> Any:
    """Return a value written as JSON, or a string if it does not look like JSON."""
    try:
        return json.loads(text, parse_constant=str)  # NaN and Infinity are not JSON
    except json.JSONDecodeError as error:
        if text[:1] in ("{", "[", '"'):
            raise ValueError(
                f"the value of {key!r} is not JSON: {error}. Quote it for the shell, or pass --string for a string"
            ) from None
        return text


def _kind(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


# ------------------------------------------------------------------ hierarchies


def _open_in_hierarchy(args: argparse.Namespace) -> sync.Array | sync.Group:
    """Open the node that the arguments specify for writing, through the root of its hierarchy."""
    storage_options = options(args.option)
    sync.open(args.url, path=args.path, storage_options=storage_options).close()  # raises if it does not exist
    root, below = _hierarchy_of(args.url, storage_options)
    path = join(below, normalize_path(args.path))
    return sync.open(root, path=path, mode="r+", storage_options=storage_options)


def _hierarchy_of(url: str, storage_options: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the URL of the highest group above a URL, without gaps in between, and the path from there.

    Returns:
        The URL itself and an empty path if no group exists directly above it.
    """
    if is_pipeline(url) or is_archive_name(url):
        return url, ""
    top, parts = _split_url(url)
    found = url, ""
    for count in range(len(parts) - 1, -1, -1):
        above = top + "/".join(parts[:count])
        try:
            group = _open_group(above, storage_options)
        except (StoreError, OSError):  # credentials may not include the root of a bucket
            break
        if group is None:
            break
        found = above, "/".join(parts[count:])
    return found


def _open_group(url: str, storage_options: Mapping[str, Any] | None) -> sync.Group | None:
    """Open a group for writing, without its consolidated metadata; ``None`` if it does not exist."""
    try:
        return sync.open_group(url, mode="r+", use_consolidated=False, storage_options=storage_options)
    except (NodeNotFoundError, NodeTypeError):
        return None


def _split_url(url: str) -> tuple[str, list[str]]:
    """Return the beginning of a URL up to its host or bucket, or the root of the file system, and the other parts."""
    if "://" not in url or url.startswith("file:"):
        path = os.path.abspath(local_path(url) if url.startswith("file:") else url)
        drive, rest = os.path.splitdrive(path)
        return f"{drive}{os.sep}", [part for part in rest.split(os.sep) if part]
    scheme, _, rest = url.partition("://")
    host, *parts = rest.split("/")
    return f"{scheme}://{host}/", [part for part in parts if part]
