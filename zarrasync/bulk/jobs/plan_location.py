"""The locations of a plan: of the nodes that it reads and writes, and of its document."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zarrasync._concurrency.cancel import ignore_cancellation
from zarrasync._util.redact import public_url
from zarrasync.bulk.jobs.claim_folder import ClaimFolder
from zarrasync.display.values import strict
from zarrasync.errors import MetadataError, ReadOnlyError, StoreError, UnsupportedOperation
from zarrasync.model.paths import join
from zarrasync.nodes.erase import JOB_PLAN
from zarrasync.nodes.node import JOB_FOLDER, run_blocking
from zarrasync.nodes.open_nodes import ConfigLike
from zarrasync.stores import Request, Store, resolve
from zarrasync.stores.leases import FINISHED


@dataclass(frozen=True)
class NodeLocation:
    """A node in a store, with the name by which other processes open the store.

    Attributes:
        store: The store.
        path: The path of the node.
        name: The path or the public URL of the store; empty if it has none.
    """

    store: Store
    path: str
    name: str = ""

    def __str__(self) -> str:
        return join(self.name, self.path) if self.name else f"/{self.path} in {self.store!r}"

    @classmethod
    def of(
        cls, value: Mapping[str, Any], root: str, options: Mapping[str, Any] | None, config: ConfigLike
    ) -> NodeLocation:
        """Return the location that ``to_json`` has described.

        Args:
            value: The description.
            root: The directory from which relative paths start.
            options: Options of the filesystem or object store of a URL.
            config: Settings of the store.
        """
        name = str(value["store"])
        name = name if "://" in name else os.path.normpath(os.path.join(root, name))
        return cls(resolve(name, options, config), str(value["path"]), name)

    def opened(self, options: Mapping[str, Any] | None) -> NodeLocation:
        """Return the location, opened with some options.

        Raises:
            UnsupportedOperation: If the store has no name.
        """
        if not options:
            return self
        if not self.name:
            raise UnsupportedOperation(f"{self.store!r} was not opened by a URL, so it cannot be opened with options")
        return replace(self, store=resolve(self.name, options))

    def to_json(self, what: str, root: str | None) -> dict[str, str]:
        """Return the location as JSON values.

        Args:
            what: The role of the location, for messages.
            root: The directory from which paths become relative; ``None`` if they stay absolute.

        Raises:
            UnsupportedOperation: If the store has no name.
        """
        if not self.name:
            raise UnsupportedOperation(
                f"the {what} {self.store!r} has no name by which other processes can open it; pass a path or a URL, or send "
                "the plan itself to them, which can be pickled"
            )
        is_moved = root is not None and "://" not in self.name
        return {"store": os.path.relpath(self.name, root) if is_moved else self.name, "path": self.path}


@dataclass(frozen=True)
class PlanLocation:
    """The location of the document of a plan.

    Attributes:
        store: The store with the document.
        key: Its key.
        name: The location as users name it, for messages and commands.
        is_inside: Whether it lies in the destination of the plan.
    """

    store: Store
    key: str
    name: str
    is_inside: bool

    @contextmanager
    def saving(self) -> Iterator[Callable[[Mapping[str, Any] | None], None]]:
        """Yield a function that stores the document, if there is one. If the block fails afterwards, one outside is erased.

        One inside belongs to the claim of the destination.
        """
        is_saved = False

        def save(document: Mapping[str, Any] | None) -> None:
            nonlocal is_saved
            if document is not None:
                if not self.is_inside:
                    self._check_free(document)
                is_saved = True  # before it is stored, as an error does not show whether it was
                text = json.dumps(strict(document), allow_nan=False)
                run_blocking(self.store, self.store.put(self.key, text.encode()))

        try:
            yield save
        except BaseException:
            if is_saved and not self.is_inside:
                with ignore_cancellation():
                    self.erase()
            raise

    @classmethod
    def of(cls, plan: Any, dest: NodeLocation, options: Mapping[str, Any] | None, config: ConfigLike) -> PlanLocation:
        """Return the location of a plan.

        Args:
            plan: The path or the URL of the document; ``None`` for one in the destination.
            dest: The destination.
            options: Options of the filesystem or object store of the URL.
            config: Settings of the store.

        Raises:
            ValueError: If the argument is not the path or the URL of a file.
            ReadOnlyError: If the destination is read-only.
            UnsupportedOperation: If the destination is an archive, takes no such document, or has no name that the document
                could contain.
        """
        store = dest.store
        if store.lasting_identity and not store.shareable:
            raise UnsupportedOperation(
                f"no plan can be made for {store!r}, because only one process can write an archive; write it in one call"
            )
        if not store.writeable and store.notes is store:  # others are written by transactions
            raise ReadOnlyError(f"no plan can be made for {store!r}: {store.why_read_only()}")
        if plan is not None:
            if not dest.name:
                raise UnsupportedOperation(
                    f"{store!r} was not opened by a path or URL, so that a document elsewhere cannot name it; omit plan"
                )
            return location_of(plan, options, config)
        if store.notes is not store:
            raise UnsupportedOperation(
                f"{store!r} takes no files that are not part of a Zarr node, such as the document of a plan; pass plan, the path or "
                "the URL of a file for it"
            )
        return cls(store, f"{join(dest.path, JOB_FOLDER)}/{JOB_PLAN}", str(dest) if dest.name else "", is_inside=True)

    @property
    def is_local(self) -> bool:
        """Whether the document lies on this machine."""
        return self.store.blocking

    def _check_free(self, document: Mapping[str, Any]) -> None:
        """Check that a document replaces no file of users, and no plan for another destination.

        Raises:
            FileExistsError: If it would.
            StoreError: If the store failed.
        """
        (head,) = run_blocking(self.store, self.store.fetch([Request(self.key, length=1)]))
        if head is None or not (first := bytes(head.data)):
            return
        found: Mapping[str, Any] = {}
        if first == b"{":  # other files may be large
            with suppress(MetadataError):
                found = self.load() or {}
        if not (found.get("finished") or found.get("dest") == document["dest"]):
            raise FileExistsError(
                f"the plan cannot be stored as {self.name}: the file exists, and is not a plan for the same destination; choose "
                "another name"
            )

    def load(self) -> dict[str, Any] | None:
        """Return the document; ``None`` if it does not exist.

        Raises:
            MetadataError: If it is not a plan.
            StoreError: If the store failed.
        """
        data = run_blocking(self.store, self.store.get(self.key))
        if data is None:
            return None
        try:
            document = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise MetadataError(f"the plan {self.name} cannot be read as JSON: {error}") from error
        if not isinstance(document, dict):
            raise MetadataError(f"the plan {self.name} must contain a JSON object, found {type(document).__name__}")
        return document

    def erase(self, digest: str = "") -> None:
        """Erase the document of a plan that has ended. If the store does not allow that, mark it as finished.

        The document of a later plan stays: one next to a claim in the destination, or with another digest.

        Args:
            digest: The digest of the plan; empty if the document is known to belong to it.
        """
        if self.is_inside:
            folder = ClaimFolder(self.store, self.key.removesuffix(f"{JOB_FOLDER}/{JOB_PLAN}").rstrip("/"))
            if folder.claim():
                return
            folder.erase([self.key])
            folder.remove()
            return
        if digest and (self.load() or {}).get("digest") != digest:
            return
        try:
            run_blocking(self.store, self.store.erase(self.key))
        except (StoreError, PermissionError):
            if self.load() is not None:
                run_blocking(self.store, self.store.put(self.key, FINISHED))


def location_of(plan: Any, options: Mapping[str, Any] | None, config: ConfigLike) -> PlanLocation:
    """Return the location of a plan at a path or URL.

    Args:
        plan: The path or the URL of the document.
        options: Options of the filesystem or object store of a URL.
        config: Settings of the store.

    Raises:
        ValueError: If it is not the path or the URL of a file.
    """
    text = os.fspath(plan)
    is_url = "://" in text
    folder, slash, name = text.rpartition("/") if is_url else (str(Path(text).absolute().parent), "/", Path(text).name)
    if not name or not slash or folder.endswith("/") or set(name) & set("?#|"):
        raise ValueError(
            f"the plan {public_url(text)!r} must be the path or the URL of a file, such as 's3://bucket/plan.json'"
        )
    own = options if is_url else None  # the destination may need other options
    return PlanLocation(resolve(folder, own, config), name, public_url(text), is_inside=False)


def job_name(store: Store, path: str) -> str:
    """Return a short name of a node for progress and metrics: the end of its location, or its path in the store."""
    location = store.location(path)
    last = location[-1] if isinstance(location, tuple) else ""
    name = last.rstrip("/").rpartition("/")[2] if isinstance(last, str) else ""
    return name or f"/{path}"
