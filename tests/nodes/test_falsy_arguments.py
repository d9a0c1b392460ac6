"""Falsy arguments are not taken for absent ones: a name of ``0`` must not mean the root."""

from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync.errors import InvalidKeyError, MetadataError, ShapeError

FALSY = [0, 0.0, False, b"", (), [], {}, np.int64(0), np.array([])]


async def group_with_array(api: Api) -> tuple[dict[str, bytes], Any]:
    store: dict[str, bytes] = {}
    group = await api(api.create_group(store))
    await api(group.create_array("precious", data=[1, 2, 3]))
    return store, group


@pytest.mark.parametrize("value", FALSY, ids=repr)
async def test_falsy_names_are_not_the_root(api: Api, value: Any):
    store, group = await group_with_array(api)
    before = dict(store)
    for attempt in (
        lambda: api.create_array(store, name=value, data=[1], overwrite=True),
        lambda: api.create_array(store, path=value, data=[1], overwrite=True),
        lambda: api.create_group(store, path=value, overwrite=True),
        lambda: api.open_group(store, path=value, mode="w"),
        lambda: api.open(store, path=value),
        lambda: group.create_array(value, data=[1], overwrite=True),
        lambda: group.require_group(value),
        lambda: group.delete(value),
        lambda: group.move("precious", value),
        lambda: group.move(value, "other"),
    ):
        with pytest.raises((TypeError, InvalidKeyError)):
            await api(attempt())
    assert store == before


async def test_an_empty_member_name_is_refused(api: Api):
    store, group = await group_with_array(api)
    before = dict(store)
    for attempt in (
        lambda: group.create_array("", data=[1], overwrite=True),
        lambda: group.create_group("/", overwrite=True),
        lambda: group.delete(""),
    ):
        with pytest.raises(InvalidKeyError):
            await api(attempt())
    assert store == before


@pytest.mark.parametrize("parameter", ["config", "storage_options"])
@pytest.mark.parametrize("value", [0, False, "", ()], ids=repr)
async def test_falsy_settings_are_refused(api: Api, parameter: str, value: Any):
    with pytest.raises(TypeError, match="mapping"):
        await api(api.create_array({}, shape=1, **{parameter: value}))


async def test_an_empty_string_is_not_the_current_directory(api: Api):
    with pytest.raises(ValueError, match="for the current directory"):
        await api(api.create_group("", overwrite=True))


async def test_sizes_of_zero_are_refused(api: Api):
    for options in ({"shards": 0}, {"chunks": 0}, {"shards": ()}, {"chunks": 2, "shards": np.array([])}):
        with pytest.raises(ShapeError):
            await api(api.create_array({}, shape=8, **options))
    with pytest.raises(MetadataError, match="dimension_names"):
        await api(api.create_array({}, shape=8, dimension_names=0))


async def test_falsy_fill_values_are_kept(api: Api):
    for dtype, fill in (("i4", 0), ("f4", 0.0), ("?", False), (str, ""), ("S4", b"")):
        array = await api(api.create_array({}, shape=2, dtype=dtype, fill_value=fill))
        assert array.fill_value == fill
        assert (await api(array.view.read())).tolist() == [fill, fill]
