"""Commands that write: convert, copy, ingest, consolidate, rm."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from zipfile import ZipFile

from zarrasync import stores, sync
from zarrasync._bridge import run
from zarrasync.cli.arguments import FORMATS, Commands, add_destination, codec, open_node, options, shape
from zarrasync.cli.console import Console
from zarrasync.creation import check_axes
from zarrasync.errors import NodeNotFoundError, NodeTypeError, ZarrError
from zarrasync.formats import may_be_zarr
from zarrasync.info import counted, size_text
from zarrasync.ingesting import creation_of
from zarrasync.keys import normalize_path
from zarrasync.lineage import refuse_own_source
from zarrasync.node import on_store
from zarrasync.sources import source_of

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
    _add_layout(convert, "keep", "that of the source")
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
    ingest = command(
        "ingest",
        "write an array file into an array or group; goes on if it was interrupted",
        _ingest,
        examples=[
            "ingest field.npy s3://bucket/field.zarr --chunks 512,512 --shards 4096,4096",
            "ingest ocean.nc ocean.zarr --verify",
        ],
    )
    add_destination(ingest)
    _add_layout(ingest, "auto", "3")
    ingest.set_defaults(shards=None)
    ingest.add_argument("--variable", action="append", default=[], help="only this one (may be repeated)")
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


def _add_layout(command: argparse.ArgumentParser, default: str, to: str) -> None:
    command.add_argument("--to", choices=FORMATS, help=f"the Zarr format to write (default: {to})")
    command.add_argument("--chunks", type=shape, default=default, metavar="N,N,…", help="the shape of chunks")
    command.add_argument("--shards", type=shape, default=default, metavar="N,N,…", help="the shape of shards, or none")
    command.add_argument("--compressor", type=codec, default=default, help="a codec's name or JSON entry, or none")


@contextmanager
def _destination(given: argparse.Namespace) -> Iterator[Any]:
    """Where to write: what was named, or an archive that is there, or made, under the name of one."""
    path = given.dest
    if not path.endswith(".zip") or "://" in path or os.path.isdir(path):
        yield path
        return
    there = os.path.exists(path)
    store = stores.ZipStore(path, mode="a" if there else "w")
    try:
        yield store
    finally:
        run(store.close(), blocking=True)
        if not there and os.path.exists(path) and not ZipFile(path).namelist():  # nothing came of it
            os.remove(path)


def _shows_bar(given: argparse.Namespace) -> bool:
    """Whether somebody sees a bar, and there is what draws it."""
    return sys.stderr.isatty() and not given.quiet and find_spec("tqdm") is not None


def _copy(given: argparse.Namespace, console: Console) -> int:
    with _destination(given) as place:
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
        progress=_shows_bar(given),
        source_options=options(given.option),
        dest_options=options(given.dest_option),
    )
    if console.as_json:
        console.data(vars(report))
    else:
        console.text(report)
    return 0


def _ingest(given: argparse.Namespace, console: Console) -> int:
    with _destination(given) as place:
        return _ingest_to(place, given, console)


def _ingest_to(place: Any, given: argparse.Namespace, console: Console) -> int:
    arrays, attributes = _arrays(given)
    single = set(arrays) == {""}
    for what, wanted in (("chunks", given.chunks), ("shards", given.shards)):
        check_axes(what, wanted, (len(source.shape) for source in arrays.values()))
    written = FORMATS[given.to] if given.to else _format_of(place, given)
    layouts = {name: _layout(given, source, arrays.values(), written) for name, source in arrays.items()}
    if not single:
        _make_groups(place, given, arrays, layouts, attributes)
    reports = {}
    for name, source in arrays.items():
        reports[name] = sync.ingest(
            source,
            place,
            path="/".join(part for part in (given.dest_path, name) if part),
            mode="w" if given.overwrite and single else "a",
            verify=given.verify,
            progress=_shows_bar(given),
            storage_options=options(given.dest_option),
            **layouts[name],
        )
        if not console.as_json:
            console.text(f"{name}: {reports[name]}" if name else reports[name])
    if console.as_json:
        console.data({name: vars(report) for name, report in reports.items()})
    return 0


def _make_groups(
    place: Any,
    given: argparse.Namespace,
    arrays: dict[str, Any],
    layouts: dict[str, dict[str, Any]],
    attributes: dict[str, dict[str, Any]],
) -> None:
    """The groups that arrays go to, once it is known that they can be made, in the place of what is there if so wanted."""
    there = {"path": given.dest_path, "storage_options": options(given.dest_option)}
    for name, layout in layouts.items():
        try:
            sync.create_array({}, **creation_of(source_of(arrays[name], {}), layout))
        except ZarrError as error:
            if given.overwrite or not _is_there(place, name, there):
                error.add_note(f"that is {name!r} of {given.url}; nothing was written")
                raise
    if given.overwrite:
        at = stores.resolve(place, options(given.dest_option))
        refuse_own_source(at, normalize_path(given.dest_path), *arrays.values())
    group = sync.open_group(
        place, mode="w" if given.overwrite else "a", zarr_format=FORMATS[given.to] if given.to else None, **there
    )
    for name, own in attributes.items():
        below = group if not name else group.require_group(name)
        below.update_attributes(own)


def _is_there(place: Any, name: str, where: dict[str, Any]) -> bool:
    try:
        return name in sync.open_group(place, **where)
    except NodeNotFoundError:
        return False


def _format_of(place: Any, given: argparse.Namespace) -> Any:
    """The format of the group that arrays go into, if there is one that stays."""
    if given.overwrite:
        return None
    try:
        return sync.open_group(place, path=given.dest_path, storage_options=options(given.dest_option)).zarr_format
    except (NodeNotFoundError, NodeTypeError):
        return None


def _layout(given: argparse.Namespace, source: Any, others: Iterable[Any], written: Any) -> dict[str, Any]:
    """How the array of a source is to be stored."""
    return {
        "chunks": _fitting(given.chunks, source, "auto"),
        "shards": _fitting(given.shards, source, None),
        "compressors": given.compressor,
        "zarr_format": written,
        **_named(source, others),
    }


def _named(source: Any, others: Iterable[Any]) -> dict[str, Any]:
    """What says of an array without axes that it belongs to others, whose axes have names."""
    scalar = not source.shape and getattr(source, "dimension_names", ...) is None
    named = scalar and any(getattr(other, "dimension_names", None) for other in others)
    return {"dimension_names": ()} if named else {}


def _fitting(shape: Any, source: Any, otherwise: Any) -> Any:
    """A shape of chunks, for sources that have as many axes."""
    return otherwise if isinstance(shape, tuple) and len(shape) != len(source.shape) else shape


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
    place = node.async_._node
    prefixes = place.format.erase_prefixes(node.path)

    async def sizes() -> dict[str, int]:
        listed = [await node.store.list_sizes(prefix) for prefix in prefixes]
        return {key: size for own in listed for key, size in own.items()}

    found = run(on_store(sizes, node.store), blocking=node.store.blocking)
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
        run(on_store(node.async_._node.erase, node.store), blocking=node.store.blocking)


def _agreed(question: str) -> bool:
    """Whether somebody at the terminal says yes. Nobody there has not."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _arrays(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What a file holds, by name (one array alone has none), and the attributes of its groups."""
    import numpy as np

    found: dict[str, Any]
    attributes: dict[str, dict[str, Any]] = {}
    if given.path and given.url.endswith((".npy", ".npz")):
        raise ValueError(f"{given.url} has no groups, and nothing at {given.path!r}; --dest-path says where to write")
    if given.url.endswith(".npy"):
        try:
            found = {"": np.load(given.url, mmap_mode="r")}
        except ValueError as error:
            raise ValueError(f"{given.url}: {error}") from error
    elif given.url.endswith(".npz"):
        found = dict(np.load(given.url))
    else:
        found, attributes = _zarr_arrays(given) or _xarray_arrays(given)
    if given.variable:
        missing = [name for name in given.variable if name not in found]
        if missing:
            raise ValueError(f"{given.url} has no {missing[0]!r}; it has {', '.join(found) or 'one array alone'}")
        found = {name: found[name] for name in given.variable}
        attributes = {name: own for name, own in attributes.items() if _holds(name, found)}
    return found, attributes


def _holds(group: str, names: Iterable[str]) -> bool:
    """Whether some of the names lie below a group."""
    return not group or any(name.startswith(f"{group}/") for name in names)


def _zarr_arrays(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, dict[str, Any]]] | None:
    try:
        node = open_node(given)
    except ZarrError:
        if given.url.rstrip("/").endswith(".zarr"):
            raise
        return None
    if isinstance(node, sync.Array):
        return {"": node}, {}
    members = dict(node.members(max_depth=None))
    arrays = {name: member for name, member in members.items() if isinstance(member, sync.Array)}
    groups = {name: dict(member.attrs) for name, member in members.items() if isinstance(member, sync.Group)}
    return arrays, {"": dict(node.attrs), **groups}


_AS_STORED: dict[str, Any] = dict.fromkeys(
    ("mask_and_scale", "decode_times", "decode_timedelta", "concat_characters", "decode_coords"), False
)
"""Nothing is to be decoded; of groups xarray decodes all the same if told so by ``decode_cf``."""


def _xarray_arrays(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The variables of what xarray can open, as they are stored."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("files of other formats are read by xarray: pip install 'zarrasync[xarray]'") from error
    from zarrasync.integrations.xarray import stored_variables

    try:
        groups = xarray.open_groups(given.url, chunks=None, **_AS_STORED)  # open until the process ends
    except (NotImplementedError, ValueError):  # a format, or a library, without groups
        groups = {"/": xarray.open_dataset(given.url, chunks=None, **_AS_STORED)}
    top = f"/{normalize_path(given.path)}".rstrip("/")
    below = {name.removeprefix(top).strip("/"): own for name, own in groups.items() if f"{name}/".startswith(f"{top}/")}
    if not below:
        raise NodeNotFoundError(f"{given.url} has no group {given.path!r}; it has {', '.join(sorted(groups))}")
    arrays = {
        "/".join(part for part in (group, name) if part): variable
        for group, dataset in below.items()
        for name, variable in stored_variables(dataset).items()
    }
    return arrays, {group: dict(dataset.attrs) for group, dataset in below.items()}
