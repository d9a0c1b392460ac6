"""``open_plan``: a plan that another process has made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from zarrasync import config as settings
from zarrasync._util.redact import redacted_errors
from zarrasync.bulk.copy.planned import CopyWork
from zarrasync.bulk.files.planned_work import FilesWork
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.lost_work import LostWork
from zarrasync.bulk.jobs.plan import VERSION, AsyncJobPlan, PlannedWork, name_of, run_blocking
from zarrasync.bulk.jobs.plan_place import NodePlace, PlanPlace, place_of
from zarrasync.bulk.pyramid.planned import PyramidWork
from zarrasync.errors import MetadataError, NodeNotFoundError
from zarrasync.model.paths import normalize_path
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import resolve

_Parse = Callable[[Mapping[str, Any], NodePlace, str, settings.Config], PlannedWork]
_KINDS: dict[str, _Parse] = {
    "copy": CopyWork.from_json,
    "ingest": FilesWork.from_json,
    "pyramid": PyramidWork.from_json,
}
"""The work of each kind of job, from its description."""


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
        return await run_blocking(partial(_open, plan, normalize_path(path), source_root, storage_options, values))


def _open(plan: Any, path: str, root: Any, options: Mapping[str, Any] | None, config: settings.Config) -> AsyncJobPlan:
    root, own_options = os.path.abspath(root), options
    if isinstance(plan, str | os.PathLike) and "://" not in os.fspath(plan):
        own_options = None  # they are for the destination, which the document names
    try:
        place, document = _find(plan, path, own_options, config)
    except NodeNotFoundError:
        dest = NodePlace(resolve(plan, own_options, config), path, name_of(plan))
        if digest := Claim(dest.store.notes, path).planned():
            return AsyncJobPlan(LostWork(dest, digest), None)
        raise
    if document.get("version") != VERSION:
        raise MetadataError(f"{place.name or plan!r} is not a plan of version {VERSION}")
    if (parse := _KINDS.get(document.get("kind", ""))) is None:
        raise MetadataError(f"the plan {place.name} is of an unknown kind: {document.get('kind')!r}")
    try:
        own = normalize_path(document["dest"]["path"])
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"the plan {place.name} is damaged: it names no destination") from error
    if not place.is_inside:
        dest = NodePlace.of(document["dest"], root, options, config)
    elif own == path:
        dest = NodePlace(place.store, path, name_of(plan))
    elif not path and name_of(plan).endswith(f"/{own}"):  # the store is opened as it was when the plan was made
        name = name_of(plan).removesuffix(f"/{own}")
        dest = NodePlace(resolve(name, own_options, config), own, name)
    else:
        raise MetadataError(f"the plan {place.name} is of /{own}, not of /{path}")
    return AsyncJobPlan(parse(document, dest, root, config), place)


def _find(
    plan: Any, path: str, options: Mapping[str, Any] | None, config: settings.Config
) -> tuple[PlanPlace, dict[str, Any]]:
    """Return the place and the document of a plan, in a destination or elsewhere.

    Raises:
        NodeNotFoundError: If no plan exists.
    """
    if not (isinstance(plan, str | os.PathLike) and os.path.isfile(plan)):
        store = resolve(plan, options, config)
        place = PlanPlace.of(None, NodePlace(store, path, name_of(plan)), options, config)
        if (document := place.load()) is not None:
            return place, _unfinished(document, place)
    if isinstance(plan, str | os.PathLike):
        place = place_of(plan, options, config)
        if (document := place.load()) is not None:
            return place, _unfinished(document, place)
    raise NodeNotFoundError(
        f"there is no plan at {name_of(plan) or plan!r}: it was finished or abandoned, or never made"
    )


def _unfinished(document: dict[str, Any], place: PlanPlace) -> dict[str, Any]:
    if document.get("finished"):
        raise NodeNotFoundError(f"the plan {place.name} was finished or abandoned")
    return document
