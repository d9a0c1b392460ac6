"""Planning a copy: the nodes of the source, the place of the copy, and its layout. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zarrasync import formats
from zarrasync.bulk.copy.files import check_free, plan_files
from zarrasync.bulk.copy.nodes import Nodes, check_names, consolidated_groups, plan_copies
from zarrasync.bulk.copy.planned import CopyWork, render_texts
from zarrasync.bulk.jobs.boxes import Output, make_tasks
from zarrasync.bulk.jobs.plan import name_of
from zarrasync.bulk.jobs.plan_place import NodePlace
from zarrasync.bulk.overwrite_guard import overlap
from zarrasync.bulk.reports import CopyReport
from zarrasync.config import Config
from zarrasync.errors import NodeExistsError, UnsupportedOperation
from zarrasync.metadata import ArrayMetadata
from zarrasync.metadata.convert import LayoutChanges
from zarrasync.metadata.create import check_axis_count
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.access import SourceLike, all_members, handle_of, resolve_source, store_of
from zarrasync.nodes.array import AsyncArray
from zarrasync.nodes.create import bind_format
from zarrasync.nodes.functions import open
from zarrasync.nodes.group import AsyncGroup, make_node
from zarrasync.nodes.node import NodeHandle, run_on_store
from zarrasync.stores import StoreLike, resolve


@dataclass(frozen=True)
class CopyRequest:
    """The arguments of a copy; see ``copy``."""

    source: SourceLike
    dest: StoreLike
    source_path: str
    dest_path: str
    zarr_format: int | str | None
    changes: LayoutChanges
    overwrite: bool
    all_files: bool
    source_options: Mapping[str, Any] | None
    dest_options: Mapping[str, Any] | None
    config: Config

    async def work(self, report: CopyReport, *, resume: bool = False, tasks: int = 0) -> CopyWork:
        """Return the work of the copy. Nothing is written.

        Args:
            report: A report, to which counts, notes and the files that are left out are added.
            resume: Whether the copy completes an interrupted one.
            tasks: About how many tasks to make; 0 for a number that suits the size.
        """
        root, members = await _open_source(
            self.source, self.source_path, self.source_options, self.config, report.notes
        )
        store = resolve(self.dest, self.dest_options, self.config)
        zarr_format = store.choose_format(self.zarr_format)
        format_ = handle_of(root).format if zarr_format is None else formats.by_name(zarr_format)
        target = NodeHandle(store, normalize_path(self.dest_path), format_.for_unknown_store(), self.config)
        _check_apart(handle_of(root), target)
        target = await run_on_store(partial(bind_format, target, overwrite=self.overwrite), store)
        nodes, keys = await _list_source([("", root), *members], optional=not self.all_files)
        arrays = {path: node for path, node in nodes if isinstance(node, AsyncArray)}
        for name, shape in (("chunks", self.changes.chunks), ("shards", self.changes.shards)):
            check_axis_count(name, shape, (array.ndim for array in arrays.values()))
        check_names(self.changes, {path or array.basename: array.metadata for path, array in arrays.items()})
        files = plan_files(keys, handle_of(root), target)
        if not self.all_files:
            report.left_out, files = list(files), {}
        elif not (self.overwrite or resume):
            await check_free(target, list(files.values()))
        planned = plan_copies(nodes, target, self.changes, report)
        outputs = [
            Output(path, array.metadata, copied, (1,) * array.ndim)
            for path, array in arrays.items()
            if isinstance(copied := planned[path], ArrayMetadata)
        ]
        boxes, sizes = make_tasks([outputs], tasks)
        return CopyWork(
            source=NodePlace(nodes[0][1].store, root.path, name_of(self.source)),
            dest=NodePlace(target.store, target.path, name_of(self.dest)),
            format=target.format,
            config=target.config,
            boxes=boxes,
            sizes=sizes,
            notes=tuple(report.notes),
            left_out=tuple(report.left_out),
            documents={
                path: render_texts(target.format, join(target.path, path), metadata)
                for path, metadata in planned.items()
            },
            files=files,
            consolidated=await consolidated_groups(nodes),
            overwrite=self.overwrite,
            arrays=arrays,
        )


async def _open_source(
    source: SourceLike, path: str, options: Mapping[str, Any] | None, values: Config, notes: list[str]
) -> tuple[AsyncArray | AsyncGroup, Sequence[tuple[str, AsyncArray | AsyncGroup]]]:
    """Open the node to copy and all nodes below it.

    Consolidated metadata may be outdated, so it is used only if the store cannot list.
    """
    resolved = resolve_source(source, options, values)
    store = store_of(resolved)
    if store is not resolved:
        path = join(resolved.path, normalize_path(path))
    root = await open(store, path=path, config=values, use_consolidated=False)
    if not isinstance(root, AsyncGroup):
        return root, ()
    try:
        return root, await all_members(root)
    except UnsupportedOperation as error:
        root = await open(store, path=path, config=values)
        if not isinstance(root, AsyncGroup) or handle_of(root).consolidated is None:
            raise
        notes.append(f"{root.name}: {error}; only the nodes in the consolidated metadata were copied")
        return root, await all_members(root)


async def _list_source(nodes: Nodes, *, optional: bool) -> tuple[Nodes, list[str]]:
    """List all keys of the source. Its metadata has been read before, so that the listing contains all of its chunks.

    Args:
        nodes: The nodes to copy, starting with the root.
        optional: Return no keys if the store cannot list. Otherwise raise an error.

    Returns:
        The nodes, with a cached listing if it replaces listings of single nodes, and the keys.
    """
    (_, root), *_ = nodes
    try:
        listed = await run_on_store(handle_of(root).with_listing, root.store)
        keys = await run_on_store(listed.list_keys, root.store)
    except UnsupportedOperation:
        if not optional:
            raise
        return nodes, []
    return [
        (path, make_node(replace(handle_of(node), store=listed.store), node.metadata)) for path, node in nodes
    ], keys


def _check_apart(source: NodeHandle, dest: NodeHandle) -> None:
    """Check that a copy neither replaces its source nor contains itself.

    Raises:
        NodeExistsError: If source and destination overlap.
    """
    if overlap(source.store, source.path, dest.store, dest.path):
        raise NodeExistsError(
            f"cannot copy {source.name} in {source.store!r} to {dest.name} in {dest.store!r}: one contains the other",
            path=dest.path,
        )
