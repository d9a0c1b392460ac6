"""``LostWork``: a plan whose document is lost, so that it can only be abandoned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never

from zarrasync import config as settings
from zarrasync import formats
from zarrasync._concurrency import bridge
from zarrasync.bulk.jobs.boxes import Sizes
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.plan import Credentials, PlannedWork, Task
from zarrasync.bulk.jobs.plan_place import NodePlace
from zarrasync.display.progress import ProgressLike
from zarrasync.errors import NodeNotFoundError, WriteConflictError
from zarrasync.model.paths import join
from zarrasync.nodes.find import find_all
from zarrasync.nodes.node import NodeHandle


@dataclass(frozen=True)
class LostWork(PlannedWork):
    """A plan whose document is lost. Other jobs are kept away from its destination until it is abandoned.

    Attributes:
        dest: The destination.
        identity: The digest of the plan.
    """

    dest: NodePlace
    identity: str
    kind = "lost"
    notes: Sequence[str] = ("the document of the plan is lost, so that it can only be abandoned",)
    left_out: Sequence[str] = ()
    sizes: Sequence[Sizes] = ()

    @property
    def digest(self) -> str:
        return self.identity

    @property
    def tasks(self) -> Sequence[Task]:
        return ()

    def to_json(self, root: str | None = None) -> dict[str, Any]:
        raise self._error()

    def opened(self, credentials: Credentials) -> LostWork:
        return LostWork(self.dest.opened(credentials.storage_options), self.identity)

    def run(self, numbers: Sequence[int], *, executor: Any, verify: bool, progress: ProgressLike) -> Never:
        raise self._error()

    def finish(self, *, verify: bool) -> Never:
        raise self._error()

    def _error(self) -> NodeNotFoundError:
        return NodeNotFoundError(
            f"the document of the plan for /{self.dest.path} in {self.dest.store!r} is lost; abandon the plan, and make it again",
            path=self.dest.path,
        )

    def abandon(self) -> None:
        store = self.dest.store
        with Claim(store.notes, self.dest.path).of_plan(self.identity) as claim:
            if claim.is_publishing or claim.is_committed:
                raise WriteConflictError(
                    f"the plan for {claim.folder.dataset} cannot be abandoned, because its result is being published",
                    key=self.dest.path,
                )
            claim.folder.forget_tasks()
            if claim.found.get("is_new") and not store.bounded:
                bridge.run(self._erase(claim.found), blocking=store.blocking)

    async def _erase(self, found: Mapping[str, Any]) -> None:
        """Erase the values of arrays whose documents are not stored."""
        store, format_ = self.dest.store, formats.by_name(found.get("zarr_format", 3))
        handle = NodeHandle(store, self.dest.path, format_, settings.get())
        paths = [join(self.dest.path, str(name)) for name in found.get("arrays", ()) if name]
        for path, node in zip(paths, await find_all(handle, paths, (format_,), strict=False), strict=True):
            for prefix in format_.erase_prefixes(path) if node is None else ():
                await store.erase_prefix(prefix)
