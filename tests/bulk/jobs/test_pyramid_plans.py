"""Plans of pyramids, whose tasks wait for the levels before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from zarrasync import Layout, stores, sync
from zarrasync.errors import MetadataError, NodeNotFoundError, StoreError, UnsupportedOperation, WriteConflictError
from zarrasync.testing import FaultyStore

UNSHARDED = Layout(shards=None)
VALUES = np.random.default_rng(0).normal(size=(3, 96, 160)).astype("f4")
RUN = "import sys; from zarrasync import sync; sync.open_plan(sys.argv[1]).run(int(sys.argv[2]))"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.zarr"
    names = ("c", "y", "x")
    sync.create_array(path, path="0", data=VALUES, chunks=(1, 16, 16), dimension_names=names)
    return path


def levels_of(place: Any, **options: Any) -> list[np.ndarray]:
    return [sync.open_array(place, path=str(number), **options)[...] for number in range(3)]


async def test_tasks_equal_one_call(api: Api, image: Path, tmp_path: Path):
    expected = tmp_path / "expected.zarr"
    sync.pyramid(image, dest=expected, levels=3, layout=UNSHARDED)
    plan = await api(api.plan_pyramid(image, levels=3, tasks=6, layout=UNSHARDED))
    assert sorted({task.stage for task in plan.tasks}) == [1, 2]
    assert [task.stage for task in plan.tasks] == sorted(task.stage for task in plan.tasks)
    assert len(plan.tasks) >= 4
    for task in plan.tasks:
        assert "multiscales" not in str(sync.open_group(image).attrs)
        done = await api((await api(api.open_plan(image))).run(task.number, verify=True))
        assert done.verified == done.blocks > 0
    report = await api(plan.finish())
    assert report.convention == "ome"
    for one, other in zip(levels_of(image), levels_of(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    assert dict(sync.open_group(image).attrs) == dict(sync.open_group(expected).attrs)
    assert not (image / ".ingest").exists()
    again = await api(api.plan_pyramid(image, levels=3, layout=UNSHARDED))
    await api(again.abandon())  # the levels of the earlier plan stay
    np.testing.assert_array_equal(levels_of(image)[2], levels_of(expected)[2])


@pytest.mark.parametrize(
    ("convention", "is_copied"), [("ome", False), ("ome", True), ("zarr-conventions", True)], ids=str
)
async def test_replaced_levels_are_not_described(
    api: Api, image: Path, tmp_path: Path, convention: Any, is_copied: bool
):
    """Readers of the description find no level that a plan has erased, and that reads as the fill value, even after ``abandon``."""
    options = {"levels": 3, "convention": convention, **({"dest": tmp_path / "dest.zarr"} if is_copied else {})}
    place = options.get("dest", image)
    sync.pyramid(image, **options)
    before, rest = dict(sync.open_group(place).attrs), [] if is_copied else ["0"]

    def described() -> list[str]:
        attributes = sync.open_group(place).attrs
        if convention == "ome":
            return [item["path"] for item in attributes["ome"]["multiscales"][0]["datasets"]]
        return [item["asset"] for item in attributes["multiscales"]["layout"]]

    assert described() == ["0", "1", "2"]
    plan = await api(api.plan_pyramid(image, overwrite=True, **options))
    assert described() == rest
    await api(plan.run())
    assert described() == rest
    await api(plan.abandon())
    assert described() == sorted(sync.open_group(place).array_keys()) == rest
    plan = await api(api.plan_pyramid(image, overwrite=True, **options))
    await api(plan.run())
    await api(plan.finish())
    assert dict(sync.open_group(place).attrs) == before


@pytest.mark.processes
def test_all_tasks_at_once(image: Path, tmp_path: Path):
    """Tasks of a coarse level wait for those of the level before, also in a copy with other chunks."""
    expected, dest = tmp_path / "expected.zarr", tmp_path / "dest.zarr"
    sync.pyramid(image, dest=expected, levels=3, layout=Layout(chunks=(1, 8, 40)))
    layout = Layout(chunks=(1, 8, 40))
    plan = sync.plan_pyramid(image, dest=dest, levels=3, tasks=4, layout=layout, plan=tmp_path / "plan")
    assert sorted({task.stage for task in plan.tasks}) == [0, 1, 2]
    started = [
        subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path / "plan"), str(task.number)])
        for task in reversed(plan.tasks)
    ]
    assert [process.wait() for process in started] == [0] * len(started)
    sync.open_plan(tmp_path / "plan").finish()
    for one, other in zip(levels_of(dest), levels_of(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    assert dict(sync.open_group(dest).attrs) == dict(sync.open_group(expected).attrs)


@pytest.mark.processes
def test_tasks_on_an_executor(image: Path, tmp_path: Path):
    expected = tmp_path / "expected.zarr"
    sync.pyramid(image, dest=expected, levels=3, layout=UNSHARDED)
    plan = sync.plan_pyramid(image, levels=3, tasks=8, layout=UNSHARDED)
    plan.run(executor=2)
    plan.finish()
    np.testing.assert_array_equal(levels_of(image)[2], levels_of(expected)[2])


async def test_a_plan_that_is_abandoned(api: Api, image: Path):
    plan = await api(api.plan_pyramid(image, levels=3))
    await api(plan.run(0))
    with pytest.raises(NodeNotFoundError, match="1 task of 2"):
        await api(plan.finish())
    await api(plan.abandon())
    assert sorted(path.name for path in image.iterdir()) == ["0", "zarr.json"]


async def test_plans_that_differ_in_the_layout(api: Api, image: Path):
    plan = await api(api.plan_pyramid(image, levels=3))
    with pytest.raises(WriteConflictError, match="not finished"):
        await api(api.plan_pyramid(image, levels=3, layout=Layout(compressors=None)))
    again = await api(api.plan_pyramid(image, levels=3))
    assert again.to_json() == plan.to_json()
    await api(again.abandon())


async def test_damaged_documents(api: Api, image: Path):
    plan = await api(api.plan_pyramid(image, levels=2))
    file = image / ".ingest" / "plan.json"
    document = json.loads(file.read_text())
    for change in ({"request": {"axes": {}, "levels": 2, "color": 1}}, {"boxes": [[1]]}, {"levels": 3}):
        file.write_text(json.dumps({**document, **change}))
        with pytest.raises(MetadataError, match="damaged"):
            await api(api.open_plan(image))
    file.write_text(json.dumps(document))
    await api(plan.abandon())


async def test_stores_without_marks(api: Api, image: Path):
    class Plain(stores.WrapperStore):
        conditional = False

    store = Plain(stores.LocalStore(image))
    with pytest.raises(UnsupportedOperation, match="no plan can be made"):
        await api(api.plan_pyramid(store, levels=3))


async def test_a_lost_plan_keeps_the_finest_level(api: Api, image: Path):
    plan = await api(api.plan_pyramid(image, levels=3))
    await api(plan.run())
    (image / ".ingest/plan.json").unlink()
    (image / "0/zarr.json").unlink()  # so that nothing but the plan tells whose values these are
    await api((await api(api.open_plan(image))).abandon())
    assert len(list((image / "0/c").rglob("*"))) > 60


@pytest.mark.parametrize("convention", ["ome", "zarr-conventions"])
@pytest.mark.parametrize("is_planned", [False, True])
async def test_levels_whose_description_is_withdrawn_are_erased_later(api: Api, convention: Any, is_planned: bool):
    """A call that was interrupted between the two, and is repeated, erases the levels of the earlier pyramid."""
    memory, is_down = stores.MemoryStore(), False
    sync.create_array(memory, path="0", data=VALUES[0], chunks=(16, 16), dimension_names=("y", "x"))
    dest = FaultyStore(memory, fails=lambda operation, key: is_down and operation in ("list", "erase"))
    await api(api.pyramid(dest, levels=4, convention=convention))
    before = dict(sync.open_group(memory).attrs)
    assert sorted(sync.open_group(memory).array_keys()) == ["0", "1", "2", "3"]

    async def repeat() -> None:
        if is_planned:
            plan = await api(api.plan_pyramid(dest, path="0", levels=2, convention=convention, overwrite=True))
            await api(plan.run())
            await api(plan.finish())
        else:
            await api(api.pyramid(dest, path="0", levels=2, convention=convention, overwrite=True))

    is_down = True
    with pytest.raises(StoreError):
        await repeat()
    is_down = False
    assert sorted(sync.open_group(memory).array_keys()) == ["0", "1", "2", "3"]
    await repeat()
    assert sorted(sync.open_group(memory).array_keys()) == ["0", "1"]
    await api(api.pyramid(dest, path="0", levels=4, convention=convention, overwrite=True))
    assert dict(sync.open_group(memory).attrs) == before


async def test_an_abandoned_plan_forgets_the_levels_to_erase(api: Api, image: Path):
    await api(api.pyramid(image, levels=4))
    plan = await api(api.plan_pyramid(image, levels=2, overwrite=True))
    assert sync.open_group(image).attrs["downsampling"] == {"erased": ["2", "3"]}
    await api(plan.abandon())
    assert "downsampling" not in sync.open_group(image).attrs
    assert sorted(sync.open_group(image).array_keys()) == ["0"]


async def test_a_level_that_was_removed_since_it_was_planned(api: Api, image: Path):
    """It is not described, because its chunks would have no document."""
    plan = await api(api.plan_pyramid(image, levels=3))
    await api(plan.run())
    sync.open_group(image, mode="r+").delete("1")
    with pytest.raises(NodeNotFoundError, match=r"the level /1 .* is not the planned array any more"):
        await api(plan.finish())
    assert "ome" not in sync.open_group(image).attrs
    await api(plan.abandon())
    await api(api.pyramid(image, levels=3))


async def test_one_call_makes_few_requests(api: Api, image: Path):
    """The call that plans a pyramid knows its levels, and opens none of them again."""
    memory, requests = stores.MemoryStore(), list[tuple[str, str]]()
    sync.copy(image, memory)

    def note(operation: str, key: str) -> bool:
        requests.append((operation, key))
        return False

    await api(api.pyramid(FaultyStore(memory, fails=note), levels=3))
    for level in ("1", "2"):
        assert requests.count(("fetch", f"{level}/zarr.json")) <= 2
        assert requests.count(("put", f"{level}/zarr.json")) == 1
