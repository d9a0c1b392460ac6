"""Listing a hierarchy up to a depth: neither arrays nor groups below it are listed."""

from __future__ import annotations

import pytest

from zarrasync import stores, sync
from zarrasync.stores.counting import Event


@pytest.mark.parametrize("depth", [0, 1])
async def test_only_groups_above_the_depth_are_listed(api, s3, depth):
    url, options = s3
    sync.create_hierarchy(
        url,
        {
            "a": {"shape": 100, "chunks": 10, "dtype": "i4"},
            "g/b": {"shape": 100, "chunks": 10, "dtype": "i4"},
            "g/h/c": None,
            "g/h/d/e": None,
        },
        storage_options=options,
    )
    sync.open_array(url, path="a", mode="r+", storage_options=options)[:] = 1
    events: list[Event] = []
    store = stores.TracingStore(stores.resolve(url, options), on_event=events.append)
    group = await api(api.open_group(store))
    levels = [["a", "g"], ["a", "g", "g/b", "g/h"]][depth]
    assert [path for path, _ in await api(group.members(max_depth=depth))] == levels
    assert len(str(await api(group.tree(depth))).splitlines()) == 1 + len(levels)
    listed = {event.keys[0] for event in events if event.operation == "list"}
    assert listed <= ({""}, {"", "g/"})[depth]  # one bounded listing may replace those of groups
