"""``open_plan``: a plan that another process has made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Never

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency.offload import run_in_new_thread
from zarrasync._util.redact import redacted_errors
from zarrasync.bulk.copy.planned import CopyWork
from zarrasync.bulk.files.running.planned_job import FilesWork
from zarrasync.bulk.jobs.boxes import Sizes
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.plan import VERSION, AsyncJobPlan, Options, PlannedWork, Task, name_of
from zarrasync.bulk.jobs.plan_location import NodeLocation, PlanLocation, location_of
from zarrasync.bulk.pyramid.planned import PyramidWork
from zarrasync.errors import MetadataError, NodeNotFoundError
from zarrasync.model.paths import join, normalize_path
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle, run_blocking
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import resolve

_WORK: tuple[type[CopyWork | FilesWork | PyramidWork], ...] = CopyWork, FilesWork, PyramidWork
_KINDS = {work.kind: work for work in _WORK}
"""The work of each kind of job."""


async def open_plan(
    plan: Any,
    *,
    path: str = "",
    source_root: Any = ".",
    storage_options: Mapping[str, Any] | None = None,
    config: ConfigLike = None,
) -> AsyncJobPlan:
    """Open a plan that ``plan_ingest``, ``plan_copy`` or ``plan_pyramid`` has made.

    Args:
        plan: The path or the URL of its document, or its destination: a path, a URL, or anything that represents a store.
        path: The path of the group or array in the destination.
        source_root: The directory from which relative paths in the document start. Only documents that were not stored on
            the machine of the plan contain any, relative to the directory in which the plan was made.
        storage_options: Options of the filesystem or object store of the URL, and of the destination.
        config: Settings for the tasks. They are not part of the document.

    Returns:
        The plan. If its document is lost, it can only be abandoned.

    Raises:
        NodeNotFoundError: If no plan exists.
        MetadataError: If the document is damaged, or another version has written it.
        StoreError: If a store failed.

    Example:
        >>> _ = await za.create_array("a.zarr", data=np.arange(4), chunks=(2,))
        >>> _ = await za.plan_copy("a.zarr", "b.zarr")
        >>> plan = await za.open_plan("b.zarr")  # on another machine
        >>> plan.kind, len(plan.tasks)
        ('copy', 1)
        >>> await plan.abandon()
    """
    with redacted_errors({"plan": plan if isinstance(plan, str) else None}, storage_options):
        values = settings.resolve(config)
        return await run_in_new_thread(partial(_open, plan, normalize_path(path), source_root, storage_options, values))


def _open(plan: Any, path: str, root: Any, options: Mapping[str, Any] | None, config: settings.Config) -> AsyncJobPlan:
    root, own_options = os.path.abspath(root), options
    if isinstance(plan, str | os.PathLike) and "://" not in os.fspath(plan):
        own_options = None  # they are for the destination, which the document names
    for location in _locations(plan, path, own_options, config):
        if (document := location.load()) is not None:
            break
    else:
        dest = NodeLocation(resolve(plan, own_options, config), path, name_of(plan))
        if digest := Claim(dest.store.notes, path).planned().get("plan"):
            return AsyncJobPlan(LostWork(dest, digest), None)
        raise NodeNotFoundError(
            f"there is no plan at {name_of(plan) or plan!r}: it was finished or abandoned, or never made"
        )
    if document.get("finished"):
        raise NodeNotFoundError(f"the plan {location.name} was finished or abandoned")
    if document.get("version") != VERSION:
        raise MetadataError(f"{location.name or plan!r} is not a plan of version {VERSION}")
    if (work := _KINDS.get(document.get("kind", ""))) is None:
        raise MetadataError(f"the plan {location.name} is of an unknown kind: {document.get('kind')!r}")
    try:
        own = normalize_path(document["dest"]["path"])
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"the plan {location.name} is damaged: it names no destination") from error
    if not location.is_inside:
        dest = NodeLocation.of(document["dest"], root, options, config)
    elif own == path:
        dest = NodeLocation(location.store, path, name_of(plan))
    elif not path and name_of(plan).endswith(f"/{own}"):  # the store is opened as it was when the plan was made
        name = name_of(plan).removesuffix(f"/{own}")
        dest = NodeLocation(resolve(name, own_options, config), own, name)
    else:
        raise MetadataError(f"the plan {location.name} is of /{own}, not of /{path}")
    return AsyncJobPlan(work.from_json(document, dest, root, config), location)


def _locations(
    plan: Any, path: str, options: Mapping[str, Any] | None, config: settings.Config
) -> Iterator[PlanLocation]:
    """Yield the locations where the document of a plan may be: in a destination, or elsewhere."""
    is_path = isinstance(plan, str | os.PathLike)
    if not (is_path and os.path.isfile(plan)):
        yield PlanLocation.of(None, NodeLocation(resolve(plan, options, config), path, name_of(plan)), options, config)
    if is_path:
        yield location_of(plan, options, config)


# ------------------------------------------------------------------ lost documents


@dataclass(frozen=True)
class LostWork(PlannedWork):
    """A plan whose document is lost. Other jobs are kept away from its destination until it is abandoned.

    Attributes:
        dest: The destination.
        digest: The digest of the plan.
    """

    dest: NodeLocation
    digest: str = ""  # pyright: ignore[reportIncompatibleMethodOverride]
    kind = "lost"
    tasks: Sequence[Task] = ()  # pyright: ignore[reportIncompatibleMethodOverride]
    notes: Sequence[str] = ("the document of the plan is lost, so that it can only be abandoned",)
    left_out: Sequence[str] = ()
    sizes: Sequence[Sizes] = ()

    def opened(self, options: Options, source_options: Options = None) -> LostWork:
        return replace(self, dest=self.dest.opened(options))

    def _refuse(self, *args: Any, **kwargs: Any) -> Never:
        raise NodeNotFoundError(
            f"the document of the plan for /{self.dest.path} in {self.dest.store!r} is lost; abandon the plan, and make it again",
            path=self.dest.path,
        )

    to_json = run = run_tasks = is_finished = complete = _refuse

    def drop(self, claim: Claim) -> None:
        run_blocking(self.store, self._erase(claim.found))

    async def _erase(self, found: Mapping[str, Any]) -> None:
        """Erase the values of arrays whose documents are not stored."""
        store, format_ = self.dest.store, formats.by_name(found.get("zarr_format", 3))
        handle = NodeHandle(store, self.dest.path, format_, settings.get())
        paths = [join(self.dest.path, str(name)) for name in found.get("arrays", ()) if name]
        for path, node in zip(paths, await find_all(handle, paths, (format_,), strict=False), strict=True):
            for prefix in format_.erase_prefixes(path) if node is None else ():
                await store.erase_prefix(prefix)
