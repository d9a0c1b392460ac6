"""Local files without links that lead out of their directory, and references that lead to no other local files."""

from __future__ import annotations

import builtins
import copy
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from zarrasync.codecs.spec import Buffer
from zarrasync.server.limits import Forbidden
from zarrasync.stores import FsspecStore, LocalStore, Store, WrapperStore
from zarrasync.stores.base import DirectFiles
from zarrasync.stores.wrappers import HookedStore

T = TypeVar("T")


def confined(store: Store, *, follow_links: bool) -> Store:
    """Return a store without local files that its owner has not chosen to serve, also behind wrappers.

    Args:
        store: The store.
        follow_links: Whether symbolic links may lead out of a directory.
    """
    if isinstance(store, LocalStore):
        return store if follow_links else ConfinedStore(store)
    if isinstance(store, FsspecStore):
        return store.confined()
    if (
        isinstance(store, WrapperStore)
        and (inner := confined(store.inner, follow_links=follow_links)) is not store.inner
    ):
        store = copy.copy(store)
        store.inner = inner
    return store


class ConfinedStore(HookedStore):
    """A read-only store of local files that reads no file outside of its directory.

    A key that leads out of it is an error, not absent: an absent chunk would be read as fill values.

    Args:
        inner: The store.
    """

    inner: LocalStore
    _is_shown = False

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self.writeable = False

    @property
    def direct_files(self) -> DirectFiles | None:
        """The files that compiled code reads if no link on the way leads out; it leaves the others to this class."""
        files = self.inner.direct_files
        return None if files is None else files._replace(root=len(files.directory))

    async def _operate(
        self, operation: str, keys: Sequence[str], call: Callable[[], Awaitable[T]], nbytes: int = 0
    ) -> T:
        self._check(*keys)
        return await call()

    async def fetch_values(
        self, keys: Sequence[str], spaces: Sequence[Buffer | None], limit: int | None = None
    ) -> builtins.list[Buffer | None]:
        self._check(*keys)
        return await self.inner.fetch_values(keys, spaces, limit)

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return self._inside(await super().list_prefix(prefix))

    async def list_few(self, prefix: str, limit: int) -> builtins.list[str] | None:
        keys = await super().list_few(prefix, limit)
        if keys is None or len(keys) >= limit:
            return None  # fewer may be inside
        return self._inside(keys)

    async def list_sizes(self, prefix: str) -> dict[str, int]:
        sizes = await super().list_sizes(prefix)
        return {key: sizes[key] for key in self._inside([*sizes])}

    def _check(self, *keys: str) -> None:
        inside = self._inside(keys)
        for key in keys if len(inside) < len(keys) else ():
            if key not in inside:
                raise Forbidden(f"{key!r} is a link that leads out of the served directory", key=key)

    def _inside(self, keys: Sequence[str]) -> builtins.list[str]:
        """Return the keys that lead to places inside of the directory. Looks at each directory of the keys once."""
        no_links = {os.fspath(self.inner.root)}
        return [key for key in keys if self._is_inside(key, no_links)]

    def _is_inside(self, key: str, no_links: set[str]) -> bool:
        place = f"{self.inner.root}/{key}"
        walked: builtins.list[str] = []
        while os.sep == "/" and ".." not in key:  # other systems and keys need realpath, which takes ten times as long
            if place in no_links:
                no_links.update(walked)
                return True
            if os.path.islink(place):
                break
            walked.append(place)
            place = place[: place.rindex("/")] or "/"
        root = os.path.realpath(self.inner.root)  # which another directory may have replaced
        place = os.path.realpath(f"{root}/{key}")
        return place == root or place.startswith(root.rstrip("/") + "/")
