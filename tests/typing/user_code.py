"""A program with the types that mypy and pyright must infer for it. ``make type`` checks it, and ``test_user_code`` runs it.

An expected error has a comment that ignores it; both checkers report a comment that is not needed.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from contextlib import suppress
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import zarrasync as za
from zarrasync import sync

Values = npt.NDArray[Any]


def blocking() -> None:
    """Use the synchronous API."""
    group = sync.create_group({})
    assert_type(group, sync.Group)
    array = group.create_array("x", data=np.arange(12).reshape(3, 4), chunks=(2, 2))
    assert_type(array, sync.Array)
    assert_type(array[0], Values)
    assert_type(array[1:, ::2] + 1, Values)
    assert_type(array.oindex[[0, 2], 1:3], Values)
    assert_type(array.vindex[[0, 2], [1, 1]], Values)
    assert_type(array.get_basic_selection(0), Values)
    assert_type(array.decoded[0], Values)
    assert_type(array.view[1:], sync.Selection)
    assert_type(array.view[1:][0].read(), Values)
    out = np.empty(4, array.dtype)
    assert array.view[0].read(out=out) is out
    assert_type([block for _, block in array.view.chunks()], list[Values])
    assert_type(array.shape, tuple[int, ...])

    assert_type(group["x"], sync.Array | sync.Group)
    assert_type(group.get_array("x"), sync.Array)
    assert_type(group.create_group("g"), sync.Group)
    assert_type(group.get_group("g"), sync.Group)
    assert_type(group.get("y"), sync.Array | sync.Group | None)
    assert_type(group.get("y", 0), sync.Array | sync.Group | int)
    assert_type(group.arrays(), tuple[tuple[str, sync.Array], ...])
    assert_type([node.path for node in group.values()], list[str])
    assert_type(list(group), list[str])
    member = group["x"]
    if isinstance(member, sync.Array):
        assert_type(member[0], Values)
    assert_type(sync.open(group.store, path="x"), sync.Array | sync.Group)
    assert_type(sync.open_array(group.store, path="x"), sync.Array)
    assert_type(sync.open_array(group.store, path="x", decode=True), sync.DecodedArray)
    assert_type(sync.open_group(group.store), sync.Group)
    with suppress(ValueError):
        sync.open_array(group.store, path="x", mode="x")  # type: ignore[call-overload]  # no such mode


async def asynchronous() -> None:
    """Use the asynchronous API."""
    group = await za.create_group({})
    assert_type(group, za.AsyncGroup)
    array = await group.create_array("x", data=np.arange(12).reshape(3, 4), chunks=(2, 2))
    assert_type(array, za.AsyncArray)
    assert_type(array[0], za.AsyncSelection)
    assert_type(await array[0], Values)
    assert_type(await array[0].read(), Values)
    assert_type(await array.getitem(0), Values)
    assert_type(await array.oindex[[0, 2], 1:3], Values)
    assert_type(await group["x"], za.AsyncArray | za.AsyncGroup)
    assert_type(await group.get_array("x"), za.AsyncArray)
    assert_type(await group.get("y"), za.AsyncArray | za.AsyncGroup | None)
    assert_type(await group.members(), tuple[tuple[str, za.AsyncArray | za.AsyncGroup], ...])
    async for _, block in array.view.chunks():
        assert_type(block, Values)
    assert_type(await za.open_array(group.store, path="x"), za.AsyncArray)
    assert_type(await za.open_array(group.store, path="x", decode=True), za.AsyncDecodedArray)
