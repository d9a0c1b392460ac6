"""Members that cannot be read: they are named, and their siblings are not hidden."""

from __future__ import annotations

import json
import os
import pickle
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrasync import stores, sync
from zarrasync.errors import MetadataError, StoreError, ZarrError
from zarrasync.testing import FaultyStore, LatencyStore

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs special files")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endpoint(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # paths of sockets are short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def no_rights(path: Path) -> None:
    if not os.geteuid():
        pytest.skip("root can read all files")
    path.write_bytes(b"{}")
    path.chmod(0)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def damaged(path: Path) -> None:
    path.write_bytes(b"{")


def directory(path: Path) -> None:
    path.mkdir()


FAULTS = [fifo, endpoint, loop, no_rights, device, damaged, dangling]
ABSENCES = [directory]


def hierarchy(root: Path, place: Callable[[Path], None]) -> None:
    group = sync.create_group(root)
    group.create_array("a", data=np.arange(3))
    group.create_array("z/inner", data=np.arange(4))
    (root / "m").mkdir()
    place(root / "m" / "zarr.json")
    (root / "z" / "m").mkdir()
    place(root / "z" / "m" / "zarr.json")


@pytest.mark.parametrize("place", FAULTS)
async def test_members_are_listed_without_it(api, tmp_path, place):
    hierarchy(tmp_path, place)
    group = await api(api.open_group(tmp_path))
    with pytest.warns(UserWarning, match=r"^/m cannot be read and is omitted"):
        assert [name for name, _ in await api(group.members())] == ["a", "z"]
    with pytest.warns(UserWarning, match="cannot be read") as caught:
        assert [name for name, _ in await api(group.members(None))] == ["a", "z", "z/inner"]
    assert [str(warning.message).split()[0] for warning in caught] == ["/m", "/z/m"]
    with pytest.warns(UserWarning, match="cannot be read"):
        assert await api(group.keys()) == ("a", "z")
    with pytest.warns(UserWarning, match="cannot be read"):
        assert await api(api.list_nodes(tmp_path)) == (
            ("", "group"), ("a", "array"), ("z", "group"), ("z/inner", "array"),
        )  # fmt: skip
    with pytest.raises(ZarrError):
        await api(group["m"])
    tree = await api(group.tree())
    lines = [line.strip("├└─│ ") for line in tree.splitlines()]
    assert [line.split()[0] for line in lines] == ["/", "a", "m", "z", "inner", "m"]
    assert [line.startswith("m (unreadable: ") for line in lines] == [False, False, True, False, False, True]
    assert "unreadable" in tree._repr_html_()
    assert pickle.loads(pickle.dumps(tree))._repr_html_() == tree._repr_html_()


@pytest.mark.parametrize("place", ABSENCES)
async def test_what_is_no_node_is_not_listed(api, tmp_path, place):
    hierarchy(tmp_path, place)
    group = await api(api.open_group(tmp_path))
    assert await api(group.keys()) == ("a", "z")
    assert "unreadable" not in await api(group.tree())


async def test_entries_of_a_group_are_no_obstacle(api, tmp_path):
    """Special files beside the members of a group."""
    hierarchy(tmp_path, damaged)
    (tmp_path / "m" / "zarr.json").unlink()
    (tmp_path / "z" / "m" / "zarr.json").unlink()
    fifo(tmp_path / "x")
    group = await api(api.open_group(tmp_path))
    assert [name for name, _ in await api(group.members(None))] == ["a", "z", "z/inner"]


@pytest.mark.parametrize("place", FAULTS)
async def test_nothing_is_left_out_of_data(api, tmp_path, place):
    """Copies and reads of whole groups fail, and chunks that cannot be read are no fill values."""
    hierarchy(tmp_path / "source.zarr", place)
    with pytest.raises((MetadataError, StoreError)):
        await api(api.copy(tmp_path / "source.zarr", tmp_path / "copy.zarr"))
    with pytest.raises((MetadataError, StoreError)):
        await api(api.load(tmp_path / "source.zarr"))
    array = await api(api.open_array(tmp_path / "source.zarr", path="a"))
    (tmp_path / "source.zarr" / "a" / "c" / "0").unlink()
    place(tmp_path / "source.zarr" / "a" / "c" / "0")
    with pytest.raises(ZarrError):
        await api(array[...])


async def test_a_store_that_fails_lists_nothing(api):
    """If the store as a whole fails, the result must not be an empty or shorter list."""
    values: dict[str, bytes] = {}
    root = sync.create_group(values)
    for name in ("a", "b"):
        root.create_array(name, data=np.arange(3))

    class Failing(stores.WrapperStore):
        failing = False

        async def fetch(self, requests, *, versions=False):
            if self.failing and any("a/" in request.key for request in requests):
                raise StoreError("no answer", attempts=3) from TimeoutError()
            return await super().fetch(requests, versions=versions)

    store = Failing(stores.MemoryStore(values))
    group = await api(api.open_group(store))
    store.failing = True
    with warnings.catch_warnings(), pytest.raises(StoreError, match="no answer"):
        await api(group.members())


async def test_a_remote_group_whose_only_member_is_invalid(api):
    """The store works, so the member is named, as among others."""
    values: dict[str, bytes] = {}
    sync.create_group(values)
    values["bad/zarr.json"] = b"{"
    store = LatencyStore(stores.MemoryStore(values), 0.0)
    with pytest.warns(UserWarning, match="/bad cannot be read and is omitted"):
        await api(api.consolidate_metadata(store))
    report = await api(api.validate(store))
    assert "bad" in str(report)
    root = await api(api.open_group(store, use_consolidated=False))
    with pytest.warns(UserWarning, match="/bad cannot be read"):
        assert list(await api(root.members())) == []


async def test_a_group_whose_members_cannot_be_listed(api):
    values: dict[str, bytes] = {}
    root = sync.create_group(values)
    root.create_array("a", data=np.arange(3))
    root.create_array("g/inner", data=np.arange(3))

    class Unlistable(stores.WrapperStore):
        flat_namespace = False

        async def list_dir(self, prefix):
            if prefix == "g/":
                raise StoreError("access denied")
            return await super().list_dir(prefix)

    store = Unlistable(stores.MemoryStore(values))
    group = await api(api.open_group(store))
    with pytest.warns(UserWarning, match="/g cannot be read"):
        assert [name for name, _ in await api(group.members(None))] == ["a", "g"]
    assert "g (unreadable: access denied)" in await api(group.tree())


def document(**members: Any) -> bytes:
    store: dict[str, bytes] = {}
    sync.create_array(store, data=np.arange(3))
    return json.dumps({**json.loads(store["zarr.json"]), **members}).encode()


def unknown_codec(path: Path) -> None:
    path.write_bytes(document(codecs=[{"name": "bytes"}, {"name": "nobody-has-it"}]))


def unknown_format(path: Path) -> None:
    path.write_bytes(document(zarr_format=4))


def invalid_text(path: Path) -> None:
    path.write_bytes(b'{"zarr_format": 3, "\xff": 1}')


def too_large(path: Path) -> None:
    path.write_bytes(document(attributes={"text": "x" * 20_000}))


ALL_FAULTS = [fifo, no_rights, damaged, unknown_codec, unknown_format, invalid_text, too_large]
SMALL = {"max_document_bytes": 10_000}


@pytest.mark.parametrize("place", ALL_FAULTS)
async def test_each_operation_names_it_and_keeps_its_siblings(api, tmp_path, place):
    hierarchy(tmp_path, place)
    group = await api(api.open_group(tmp_path, mode="r+", config=SMALL))
    assert await contains(api, group, "m")
    assert await contains(api, group, "z/m")
    assert not await contains(api, group, "missing")
    with pytest.warns(UserWarning, match="/m cannot be read"):
        assert await api(group.keys()) == ("a", "z")
    report = await api(api.validate(tmp_path, config=SMALL))
    assert {finding.key.removesuffix("/zarr.json") for finding in report.findings} == {"m", "z/m"}
    assert not report.ok
    assert (report.arrays, report.groups) == (2, 2)
    with pytest.warns(UserWarning, match="cannot be read and is omitted") as caught:
        await api(api.consolidate_metadata(tmp_path, config=SMALL))
    assert sorted(str(warning.message).split()[0] for warning in caught) == ["/m", "/z/m"]
    consolidated = await api(api.open_group(tmp_path, use_consolidated=True, config=SMALL))
    assert [name for name, _ in await api(consolidated.members(None))] == ["a", "z", "z/inner"]
    with pytest.raises((MetadataError, StoreError), match=r"m/zarr\.json|/m"):
        await api(api.copy(tmp_path, tmp_path.with_name("copy"), config=SMALL))
    assert not tmp_path.with_name("copy").exists()


@pytest.mark.parametrize("failing", [("a",), ("a", "b")])
async def test_requests_that_fail_for_all_nodes_of_a_remote_store_raise(api, failing):
    """Expired credentials do not look like an empty group."""
    inner = stores.MemoryStore()
    group = sync.create_group(inner)
    for name in "ab":
        group.create_array(name, data=np.arange(3))

    def fails(operation: str, key: str) -> bool:
        return operation == "fetch" and key.startswith(failing)

    store = FaultyStore(LatencyStore(inner, 0), fails=fails)
    for call in (api.list_nodes, api.consolidate_metadata):
        if len(failing) == 2:
            with pytest.raises(StoreError, match="simulated failure"):
                await api(call(store))
        else:
            with pytest.warns(UserWarning, match="/a cannot be read and is omitted"):
                await api(call(store))


async def contains(api, group, name):
    return await group.contains(name) if api.name == "async" else name in group


@pytest.mark.parametrize("place", ALL_FAULTS)
@pytest.mark.filterwarnings("ignore:.*consolidated:RuntimeWarning")
def test_xarray_opens_the_other_variables(tmp_path, place):
    xarray = pytest.importorskip("xarray")
    hierarchy(tmp_path, place)
    for dropped, names in (None, ["a"]), (["m"], ["a"]), (["a"], []):
        with pytest.warns(UserWarning, match="/m cannot be read"):
            dataset = xarray.open_dataset(tmp_path, engine="zarrasync", drop_variables=dropped, config=SMALL)
        assert list(dataset) == names
        assert all(dataset[name].values.tolist() == [0, 1, 2] for name in names)
