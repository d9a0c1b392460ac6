"""A store whose reads wait until a test lets them go on."""

from __future__ import annotations

import asyncio

from zarrasync.stores import Store, WrapperStore


class GatedStore(WrapperStore):
    """An asynchronous store whose reads wait while ``open`` is false. Counts requests."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.blocking = False
        self.concurrency = 8
        self.open = True
        self.waiting = 0
        self.most = 0
        self.cancelled = 0

    async def fetch(self, requests, *, versions=False):
        self.waiting += len(requests)
        self.most = max(self.most, self.waiting)
        try:
            await asyncio.sleep(0)
            while not self.open:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += len(requests)
            raise
        finally:
            self.waiting -= len(requests)
        return await self.inner.fetch(requests, versions=versions)

    async def put(self, key, data, *, if_version=None):
        await asyncio.sleep(0)
        return await self.inner.put(key, data, if_version=if_version)
