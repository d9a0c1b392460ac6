"""``LostWork``: a plan whose document is lost, so that it can only be abandoned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Never

from zarrasync import formats
from zarrasync._concurrency import bridge
from zarrasync.bulk.jobs.claim import Claim
from zarrasync.bulk.jobs.plan import Credentials, PlannedWork, Task
from zarrasync.bulk.jobs.plan_place import NodePlace
from zarrasync.display.plan_explanation import PlanExplanation
from zarrasync.display.progress import ProgressLike
from zarrasync.errors import NodeNotFoundError, WriteConflictError
from zarrasync.model.paths import join

__all__ = ["LostWork"]

_WAIT = 600.0


@dataclass(frozen=True)
class LostWork(PlannedWork):
    """A plan whose document is lost. Other jobs are kept away from its destination until it is abandoned.

    Attributes:
        dest: The destination.
        digest: The digest of the plan.
    """

    dest: NodePlace
    digest: str
    kind = "lost"
    notes: Sequence[str] = ("the document of the plan is lost, so that it can only be abandoned",)
    left_out: Sequence[str] = ()

    @property
    def tasks(self) -> Sequence[Task]:
        return ()

    def explain(self) -> PlanExplanation:
        return PlanExplanation(self.kind, self.dest.name or repr(self.dest.store), notes=self.notes)

    def to_json(self, root: str | None = None) -> dict[str, Any]:
        raise self._error()

    def opened(self, credentials: Credentials) -> LostWork:
        return LostWork(self.dest.opened(credentials.storage_options), self.digest)

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
        store, claim = self.dest.store, Claim(self.dest.store.notes, self.dest.path)
        claim.acquire(_WAIT, self.digest)
        try:
            if claim.is_publishing or claim.is_committed:
                raise WriteConflictError(
                    f"the plan for {claim.folder.dataset} cannot be abandoned, because its result is being published",
                    key=self.dest.path,
                )
            claim.folder.forget_tasks()
            if claim.found.get("is_new") and not store.bounded:
                format_ = formats.by_name(claim.found.get("zarr_format", 3))
                for name in filter(None, claim.found.get("arrays", ())):
                    for prefix in format_.erase_prefixes(join(self.dest.path, str(name))):
                        bridge.run(store.erase_prefix(prefix), blocking=store.blocking)
        except BaseException:
            claim.restore()
            raise
        claim.release()
