"""The command that writes what a file holds into arrays."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from zipfile import BadZipFile, ZipFile

import zarrasync
from zarrasync import sync
from zarrasync._concurrency.bridge import run
from zarrasync._concurrency.gather import for_each
from zarrasync.bulk.ingest import creation_options
from zarrasync.bulk.overwrite_guard import refuse_self_overwrite
from zarrasync.bulk.sources import source_of
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
from zarrasync.display.progress import IngestReport, report_progress
from zarrasync.errors import NodeNotFoundError, NodeTypeError, ZarrError
from zarrasync.metadata.create import check_axis_count
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.create_hierarchy import check_array_paths
from zarrasync.nodes.open_nodes import resolve_node
from zarrasync.stores import Store, resolve
from zarrasync.stores.local import local_path

__all__ = ["add"]

_AT_ONCE = 16
"""Small arrays that are written side by side to a store behind a network."""


def add(command: Commands) -> None:
    """Make the command."""
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
    add_layout(ingest, "keep", "3")
    ingest.set_defaults(compressor="auto")
    ingest.add_argument("--variable", action="append", default=[], help="only this one (may be repeated)")


def _ingest(given: argparse.Namespace, console: Console) -> int:
    with destination(given) as place:
        store = resolve(place, options(given.dest_option))
        arrays, attributes = _arrays(given)
        layouts = _layouts(given, store, arrays)
        if set(arrays) != {""}:
            spoken = _make_groups(store, given, arrays, layouts, attributes)
            layouts = {name: {**layout, "zarr_format": spoken} for name, layout in layouts.items()}
        reports: dict[str, IngestReport] = {}
        try:
            run(_write(given, store, arrays, layouts, reports), blocking=store.blocking)
        finally:
            if not console.as_json:
                for name in filter(reports.__contains__, arrays):
                    console.text(f"{name}: {reports[name]}" if name else reports[name])
    if console.as_json:
        console.data({name: vars(reports[name]) for name in arrays})
    return 0


async def _write(
    given: argparse.Namespace,
    store: Store,
    arrays: dict[str, Any],
    layouts: dict[str, dict[str, Any]],
    reports: dict[str, IngestReport],
) -> None:
    """Write all arrays, small ones side by side where each waits for a network."""
    sizes = {name: math.prod(array.shape) * max(array.dtype.itemsize, 1) for name, array in arrays.items()}
    alone = arrays.get("")
    rows = alone.shape[0] if alone is not None and alone.shape else 0
    with report_progress(shows_bar(given), sum(sizes.values()), f"ingest {given.url}", rows) as tell:

        async def write(name: str) -> None:
            array = arrays[name]
            try:
                reports[name] = await zarrasync.ingest(
                    array.load() if isinstance(array, _Member) else array,
                    store,
                    path=join(normalize_path(given.dest_path), name),
                    mode="w" if given.overwrite and not name else "a",
                    verify=given.verify,
                    progress=tell or False,
                    **layouts[name],
                )
            except Exception as error:
                if name:
                    error.add_note(f"that is {name!r} of {given.url}")
                raise

        limit = zarrasync.config.get().memory_budget // (2 * _AT_ONCE)
        small = [name for name in arrays if sizes[name] <= limit]
        await for_each(write, small, 1 if store.blocking else _AT_ONCE)
        await for_each(write, [name for name in arrays if sizes[name] > limit], 1)


def _layouts(given: argparse.Namespace, store: Store, arrays: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """How the arrays are to be stored."""
    shapes = {"chunks": given.chunks, "shards": given.shards}
    for what, wanted in shapes.items():
        check_axis_count(what, wanted, (len(array.shape) for array in arrays.values()))
    written = FORMATS[given.to] if given.to else _format_of(store, given)

    def layout(array: Any) -> dict[str, Any]:
        fitting = {what: shape for what, shape in shapes.items() if _is_for(shape, array)}
        return {**fitting, "compressors": given.compressor, "zarr_format": written, **_named(array, arrays.values())}

    return {name: layout(array) for name, array in arrays.items()}


def _is_for(shape: Any, array: Any) -> bool:
    """Whether a shape of chunks is for this array: it has as many axes, or it is in words."""
    return len(shape) == len(array.shape) if isinstance(shape, tuple) else shape != "keep"


def _named(source: Any, others: Iterable[Any]) -> dict[str, Any]:
    """What says of an array without axes that it belongs to others, whose axes have names."""
    scalar = not source.shape and getattr(source, "dimension_names", ...) is None
    named = scalar and any(getattr(other, "dimension_names", None) for other in others)
    return {"dimension_names": ()} if named else {}


def _format_of(store: Store, given: argparse.Namespace) -> Any:
    """The format of the group that arrays go into, if there is one that stays."""
    if given.overwrite:
        return None
    try:
        return sync.open_group(store, path=given.dest_path).zarr_format
    except (NodeNotFoundError, NodeTypeError):
        return None


def _make_groups(
    store: Store,
    given: argparse.Namespace,
    arrays: dict[str, Any],
    layouts: dict[str, dict[str, Any]],
    attributes: dict[str, dict[str, Any]],
) -> int | str:
    """Make the groups that arrays go to, once it is known that these can be made, in the place of what is there if so wanted.

    Returns:
        Their format.
    """
    zarr_format = FORMATS[given.to] if given.to else None
    check_array_paths(resolve_node(store, given.dest_path, zarr_format, None, None)[0], arrays)
    for name, layout in layouts.items():
        try:
            sync.create_array({}, **creation_options(source_of(arrays[name], {}), layout))
        except ZarrError as error:
            if given.overwrite or not _is_there(store, join(normalize_path(given.dest_path), name)):
                error.add_note(f"that is {name!r} of {given.url}; nothing was written")
                raise
    if given.overwrite:
        refuse_self_overwrite(store, normalize_path(given.dest_path), *arrays.values())
    group = sync.open_group(
        store,
        path=given.dest_path,
        mode="w" if given.overwrite else "a",
        zarr_format=zarr_format,
    )
    for name, own in attributes.items():
        below = group if not name else group.require_group(name)
        below.update_attributes(own)
    return group.zarr_format


def _is_there(store: Store, path: str) -> bool:
    try:
        sync.open(store, path=path)
    except NodeNotFoundError:
        return False
    return True


def _arrays(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What a file holds, by name (one array alone has none), and the attributes of its groups."""
    import numpy as np

    found: dict[str, Any]
    attributes: dict[str, dict[str, Any]] = {}
    file = local_path(given.url) if given.url.startswith("file://") else given.url
    if given.path and file.endswith((".npy", ".npz")):
        raise ValueError(f"{given.url} has no groups, and nothing at {given.path!r}; --dest-path says where to write")
    if file.endswith(".npy"):
        with _named_errors(file):
            found = {"": np.load(file, mmap_mode="r")}
    elif file.endswith(".npz"):
        with _named_errors(file), ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        found = {name: _Member(file, name) for name in names}
    else:
        found, attributes = _zarr_arrays(given) or _xarray_arrays(file, given.path)
    if given.variable:
        missing = [name for name in given.variable if name not in found]
        if missing:
            raise ValueError(f"{given.url} has no {missing[0]!r}; it has {', '.join(found) or 'one array alone'}")
        found = {name: found[name] for name in given.variable}
        attributes = {name: own for name, own in attributes.items() if _holds(name, found)}
    return found, attributes


@contextmanager
def _named_errors(file: str) -> Iterator[None]:
    """What NumPy says of a file that it can not read does not name it."""
    try:
        yield
    except (ValueError, EOFError, KeyError, BadZipFile) as error:
        raise ValueError(f"{file} can not be read: {error}") from error


class _Member:
    """An array of an .npz file, which is read when its turn has come.

    Attributes:
        shape: Its shape.
        dtype: Its type.
    """

    def __init__(self, file: str, name: str) -> None:
        from numpy.lib import format as npy

        self._file, self._name = file, name
        with _named_errors(f"{name!r} in {file}"), ZipFile(file) as archive, archive.open(f"{name}.npy") as member:
            version = npy.read_magic(member)
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            self.shape, _, self.dtype = read_header(member)

    def load(self) -> Any:
        """All of it."""
        import numpy as np

        with _named_errors(f"{self._name!r} in {self._file}"), np.load(self._file) as archive:
            return archive[self._name]

    def __getitem__(self, key: Any) -> Any:
        return self.load()[key]


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


def _xarray_arrays(file: str, path: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The variables of what xarray can open, as they are stored."""
    try:
        from zarrasync.integrations.xarray import stored_variables
    except ImportError as error:
        raise ImportError("files of other formats are read by xarray: pip install 'zarrasync[xarray]'") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*phony_dims", UserWarning)  # axes without names get some
        try:
            groups = _xarray_groups(file)
        except (
            KeyError,
            TypeError,
            AttributeError,
            RuntimeError,
        ) as error:  # of a library that met what it does not know
            raise ValueError(f"{file} can not be read by xarray ({type(error).__name__}: {error})") from error
    top = f"/{normalize_path(path)}".rstrip("/")
    below = {name.removeprefix(top).strip("/"): own for name, own in groups.items() if f"{name}/".startswith(f"{top}/")}
    if not below:
        raise NodeNotFoundError(f"{file} has no group {path!r}; it has {', '.join(sorted(groups))}")
    arrays = {
        "/".join(part for part in (group, name) if part): variable
        for group, dataset in below.items()
        for name, variable in stored_variables(dataset).items()
    }
    return arrays, {group: dict(dataset.attrs) for group, dataset in below.items()}


def _xarray_groups(file: str) -> Mapping[str, Any]:
    """The datasets of a file by their groups' names, open until the process ends."""
    import xarray

    try:
        return xarray.open_groups(file, chunks=None, **_AS_STORED)
    except (NotImplementedError, ValueError):  # a format, or a library, without groups
        return {"/": xarray.open_dataset(file, chunks=None, **_AS_STORED)}
