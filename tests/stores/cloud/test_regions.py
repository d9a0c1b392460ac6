"""Buckets in other regions: as S3 refuses requests for them, with each backend, and without credentials for others."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import obstore.store
import pytest

from tests.support.api import Api
from tests.support.regional_s3 import REGION, Regional, regional_s3
from tests.support.s3_clients import BACKENDS
from zarrasync import stores, sync
from zarrasync.errors import StoreError, WriteConflictError
from zarrasync.stores import ABSENT, Request
from zarrasync.stores.cloud import buckets

pytestmark = pytest.mark.servers
REFUSALS = ["malformed", "permanent", "silent", "temporary"]


@pytest.fixture(params=REFUSALS)
def regional(request: pytest.FixtureRequest, s3_endpoint: str) -> Iterator[Regional]:
    with regional_s3(s3_endpoint) as server:
        server.refusal = request.param
        yield server


def skip_if_followed(regional: Regional, backend: str) -> None:
    if backend == "fsspec" and regional.refusal == "temporary":
        pytest.skip("the HTTP client below s3fs follows such redirects itself, without a signature")


@pytest.mark.parametrize("region", ["", "us-west-2"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_arrays_in_another_region(api: Api, regional: Regional, s3: tuple[str, Any], backend: str, region: str):
    """Also if the user has passed another region, as with boto3."""
    skip_if_followed(regional, backend)
    url, options = s3[0], regional.options(backend=backend)
    if region:
        options["client_kwargs"] = {"region_name": region}
    values = np.arange(400).reshape(20, 20)
    await api(api.create_array(url, data=values, chunks=(5, 5), storage_options=options))
    array = await api(api.open_array(url, mode="r+", storage_options=options))
    await api(array.append(np.ones((20, 20), "i8")))
    again = await api(api.open_array(url, storage_options=options))
    np.testing.assert_array_equal(await api(again[...]), np.vstack([values, np.ones((20, 20), "i8")]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "operation", ["read", "range", "write", "create", "replace", "large", "erase", "list", "few", "dir"]
)
async def test_the_first_request_may_be_any(regional: Regional, s3: tuple[str, Any], backend: str, operation: str):
    skip_if_followed(regional, backend)
    url, options = s3
    direct = stores.resolve(url, {**options, "backend": backend})
    await direct.put("a/k", b"values")
    (value,) = await direct.fetch([Request("a/k")], versions=True)
    store = stores.resolve(url, regional.options(backend=backend))
    assert value is not None
    if operation == "read":
        assert await store.get("a/k") == b"values"
        assert await store.get("absent") is None
    elif operation == "range":
        (part,) = await store.fetch([Request("a/k", 2, 3)])
        assert part is not None
        assert bytes(part.data) == b"lue"
    elif operation == "write":
        await store.put("new", b"1")
        assert await direct.get("new") == b"1"
    elif operation == "large":
        await store.put("new", bytes(3 << 19))
        assert await direct.get("new") == bytes(3 << 19)
    elif operation == "create":
        await store.put("new", b"1", if_version=ABSENT)
        with pytest.raises(WriteConflictError):
            await store.put("new", b"2", if_version=ABSENT)
        assert await direct.get("new") == b"1"
    elif operation == "replace":
        version = await store.put("a/k", b"2", if_version=value.version)
        with pytest.raises(WriteConflictError):
            await store.put("a/k", b"3", if_version=value.version)
        await store.put("a/k", b"4", if_version=version)
    elif operation == "erase":
        await store.erase_values(["a/k"])
        assert await direct.get("a/k") is None
    elif operation == "list":
        assert await store.list_prefix("") == ["a/k"]
    elif operation == "few":
        assert await store.list_few("", 5) in (["a/k"], None)
    else:
        assert (await store.list_dir("")).prefixes == ("a/",)
    await store.close()
    await direct.close()


async def test_the_region_is_remembered(regional: Regional, s3: tuple[str, Any]):
    store = stores.resolve(s3[0], regional.options())
    await store.put("k", b"1", if_version=ABSENT)
    assert await store.get("k") == b"1"
    regional.refused.clear()
    assert await store.get("k") == b"1"
    await store.put("k", b"2")
    assert await pickle.loads(pickle.dumps(store)).get("k") == b"2"
    assert await stores.resolve(s3[0], regional.options()).get("k") == b"2"
    assert not regional.refused
    await store.close()


async def test_many_requests_at_the_same_time(regional: Regional, s3: tuple[str, Any]):
    writer = stores.resolve(*s3)
    for number in range(40):
        await writer.put(f"k{number}", b"1")
    store = stores.resolve(s3[0], regional.options())
    values = await store.fetch([Request(f"k{number}") for number in range(40)])
    assert [bytes(value.data) for value in values if value is not None] == [b"1"] * 40
    await store.close()
    await writer.close()


async def test_credentials_stay_at_the_endpoint(s3_endpoint: str, s3: tuple[str, Any]):
    """Requests of the lean client are not repeated at the address of a redirect, and writes are not sent there."""
    with regional_s3(s3_endpoint) as regional:
        regional.refusal = "temporary"
        store = stores.resolve(s3[0], regional.options(token="the-token"))
        await store.put("k", b"1")
        assert await store.get("k") == b"1"
        assert not regional.seen_elsewhere
        await store.close()


@pytest.mark.parametrize("operation", ["list", "read"])
async def test_a_redirect_that_obstore_follows_has_no_signature(
    s3_endpoint: str, s3: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, operation: str
):
    with regional_s3(s3_endpoint) as regional:
        regional.refusal = "temporary"
        monkeypatch.setenv("AWS_REQUEST_PAYER", "true")  # with which obstore makes all requests
        writer = stores.resolve(*s3)
        await writer.put("k", b"1")
        await writer.close()
        store = stores.resolve(s3[0], regional.options(missing=(403,)))
        if operation == "list":
            assert await store.list_prefix("") == ["k"]
        else:  # status 403 of the other address does not mean that the key is absent
            assert await store.get("k") == b"1"
        for request in regional.seen_elsewhere:
            assert "test-secret" not in request
            assert "Signature" not in request
            assert "Authorization" not in request
        await store.close()


@pytest.mark.parametrize("refusal", ["malformed", "permanent"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_each_request_is_repeated_once(s3_endpoint: str, s3: tuple[str, Any], backend: str, refusal: str):
    """A service that also refuses requests for the region that it has stated."""
    with regional_s3(s3_endpoint) as regional:
        regional.refusal, regional.refuses_all = refusal, True
        store = stores.resolve(s3[0], regional.options(backend=backend))
        with pytest.raises(StoreError, match="lies in another region: pass the storage options"):
            await store.get("k")
        assert len([request for request in regional.refused if request.endswith("/k")]) == 2
        with pytest.raises(StoreError, match="lies in another region: pass the storage options"):
            await store.put("k", b"1", if_version=ABSENT)
        assert len([request for request in regional.refused if request.endswith("/k")]) <= 5
        await store.close()


@pytest.mark.parametrize("region", ["evil.example.com/", "a@b", "eu_1", "EU", "x" * 10 + "."])
def test_only_names_of_regions_are_taken_from_responses(s3_endpoint: str, s3: tuple[str, Any], region: str):
    with regional_s3(s3_endpoint) as regional:
        regional.refusal, regional.region = "permanent", region
        with pytest.raises(StoreError):
            sync.open_array(s3[0], storage_options=regional.options())


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, f"https://s3.{REGION}.amazonaws.com/bucket/k"),
        ({"endpoint": "https://s3.us-east-1.amazonaws.com"}, f"https://s3.{REGION}.amazonaws.com/bucket/k"),
        ({"endpoint": "https://minio.example.org:9000"}, "https://minio.example.org:9000/bucket/k"),
    ],
)
def test_the_address_in_another_region(settings: dict[str, str], address: str):
    """A host of AWS changes with the region; an endpoint of the user does not."""
    keys = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
    config: Any = {**keys, **settings}
    moved = buckets.in_region(obstore.store.S3Store("bucket", config=config), REGION)
    url = obstore.sign(moved, "GET", ["k"], timedelta(minutes=1))[0]
    assert url.partition("?")[0] == address
    assert f"%2F{REGION}%2F" in url
