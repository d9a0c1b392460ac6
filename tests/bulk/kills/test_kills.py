"""A sample of the kills; ``python -m tests.bulk.kills`` runs others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
pytest.importorskip("distributed", reason="dask.distributed is not installed")
zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")
if not hasattr(zarr, "open_group") or zarr.__version__.startswith("2."):
    pytest.skip("zarr-python 2 does not read format 3", allow_module_level=True)
if not sys.platform.startswith("linux"):
    pytest.skip("the processes of a job are found in /proc", allow_module_level=True)

from tests.bulk.kills.cases import KINDS, Case, Kind, Point, draw
from tests.bulk.kills.harness import Harness
from tests.bulk.kills.places import BucketPlace, RepositoryPlace
from tests.support.strict_s3 import BUCKET, s3_client, serve_s3

pytestmark = pytest.mark.processes

SEEDS = 100


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    started = Harness(tmp_path_factory.mktemp("kills"))
    yield started
    started.close()


def kill(harness: Harness, kind: Kind, victim: str, point: Point, *, append: bool) -> None:
    """Run a case. It is repeated if the job ended before the moment was noticed."""
    case = Case(0, kind, 3, append=append, shards=False, victim=victim, point=point, choice=0.0, spawns=False)
    assert any(harness.run(case).killed for _ in range(5)), f"nothing was killed: {case}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_all_seeds(harness: Harness, kind: Kind):
    outcomes = [harness.run(draw(kind, seed)) for seed in range(SEEDS)]
    assert sum(outcome.killed > 0 for outcome in outcomes) > 0.8 * SEEDS


@pytest.mark.parametrize(
    ("kind", "victim", "point"),
    [
        ("processes", "main", Point("names", 0.5)),
        ("processes", "worker", Point("key", key="task-0")),
        ("tasks", "main", Point("key", key="record")),
        ("tasks", "group", Point("names", 0.7)),
    ],
)
def test_some_kills(harness: Harness, kind: Kind, victim: str, point: Point):
    kill(harness, kind, victim, point, append=True)


@pytest.mark.slow
def test_a_client_and_a_worker_of_dask(harness: Harness):
    for victim in ("main", "worker"):
        kill(harness, "dask", victim, Point("key", key="task-0"), append=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_repository_of_icechunk(tmp_path: Path, kind: Kind):
    pytest.importorskip("icechunk", minversion="2", reason="icechunk 1 forks only sessions without changes")
    harness = Harness(tmp_path, lambda name: RepositoryPlace(str(tmp_path / name)))
    try:
        outcomes = [harness.run(draw(kind, seed)) for seed in range(3)]
        assert any(outcome.killed for outcome in outcomes), "nothing was killed"
    finally:
        harness.close()


@pytest.mark.slow
def test_an_s3_bucket(tmp_path: Path):
    with serve_s3(tmp_path) as options:
        client = s3_client(options)
        harness = Harness(tmp_path, lambda name: BucketPlace(client, BUCKET, name, options))
        try:
            kinds: tuple[Kind, ...] = ("processes", "tasks")
            for kind in kinds:
                outcomes = [harness.run(draw(kind, seed)) for seed in range(3)]
                assert any(outcome.killed for outcome in outcomes), f"nothing was killed: {kind}"
        finally:
            harness.close()
            client.close()
