"""Reads from S3 that is overloaded, breaks connections or refuses: the values are right, or an error says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.s3_clients import BACKENDS, failing
from tests.support.s3_server import VALUES, Bucket
from zarrasync import config, stores, sync
from zarrasync.errors import NodeNotFoundError, StoreError

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["503", "reset", "cut"])
def test_transient_failures_are_retried(bucket: Bucket, backend: str, kind: str):
    """One request in six fails."""
    bucket.fault = failing(kind, 1 / 6, seed=3)
    array = sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend))
    np.testing.assert_array_equal(array[...], VALUES)
    np.testing.assert_array_equal(array[33:35, ::7], VALUES[33:35, ::7])


@pytest.mark.parametrize("backend", BACKENDS)
def test_status_403_is_an_error_unless_configured(bucket: Bucket, backend: str):
    """Expired credentials must not read as fill values, unless status 403 is configured to mean a missing key."""
    denied = (403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
    array = sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend))
    bucket.fault = lambda key, data: denied
    with pytest.raises(StoreError, match=r"could not read 'c/[01]/[01]' in .*bucket.*credentials in use .*anon=True"):
        array[...]
    with pytest.raises(StoreError):
        sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend))
    bucket.fault = lambda key, data: denied if data is None else None
    del bucket.values["c/1/1"]
    with pytest.raises(StoreError):
        array[...]
    lenient = sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend, missing=(403,)))
    expected = VALUES.copy()
    expected[100:, 100:] = -1
    np.testing.assert_array_equal(lenient[...], expected)
    with pytest.raises(ValueError, match="missing must contain"):
        stores.resolve("s3://bucket", bucket.options(backend=backend, missing=(500,)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ExpiredToken", "The provided token has expired."),
        ("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
        ("SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided."),
        ("RequestTimeTooSkewed", "The difference between the request time and the current time is too large."),
    ],
)
def test_refused_credentials_always_raise(bucket: Bucket, backend: str, code: str, message: str):
    """Also if status 403 is configured to mean a missing key."""
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    told = bucket.options(backend=backend, missing=(403,))
    array = sync.open_array("s3://bucket", storage_options=told)
    by_web = sync.open_array(stores.HTTPStore(f"{bucket.url}/bucket", missing=(403, 404)))
    bucket.fault = lambda key, data: (403, {"Content-Type": "application/xml"}, error)
    for one in (array, by_web):
        with pytest.raises(StoreError, match=r"could not read 'c/[01]/[01]'"):
            one[...]
    with pytest.raises(StoreError, match="could not read"):
        sync.open_array("s3://bucket", storage_options=told)


@pytest.mark.parametrize(
    ("backend", "kind"), [("obstore", "signed"), ("fsspec", "signed"), ("obstore", "redirect")]
)  # botocore follows redirects
def test_a_bucket_of_another_region_is_an_error_that_names_the_region(bucket: Bucket, backend: str, kind: str):
    """As S3 answers to a signature for the wrong region, and at the address of the wrong region."""
    wrong = b"the region 'us-east-1' is wrong; expecting 'eu-central-1'"
    error = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>" + wrong + b"</Message></Error>"
    moved = b"<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"
    xml = {"Content-Type": "application/xml"}
    bucket.fault = lambda key, data: (400, xml, error) if kind == "signed" else (301, xml, moved)
    with pytest.raises(StoreError, match="lies in another region: pass the storage options") as found:
        sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend), config={"retries": 1})
    if kind == "signed":
        assert "'region_name': 'eu-central-1'" in str(found.value)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
async def test_a_missing_bucket_is_not_a_missing_key(s3: tuple[str, dict[str, Any]], backend: str):
    options = {**s3[1], "backend": backend}
    store = stores.resolve("s3://no-bucket-of-anybody/below", options)
    attempts: dict[str, Callable[[], Any]] = {
        "read": lambda: store.get("key"),
        "write": lambda: store.put("key", b"value"),
        "list": lambda: store.list_prefix(""),
        "erase": lambda: store.erase_values(["key"]),
    }
    for verb, attempt in attempts.items():
        with pytest.raises(StoreError, match=rf"(?s)^could not {verb} '\w*' in .*the bucket does not exist") as found:
            await attempt()
        assert str(found.value).count("could not") == 1
        assert "<Error>" not in str(found.value)
    await store.close()
    with pytest.raises(StoreError, match="the bucket does not exist"):
        sync.open_array("s3://no-bucket-of-anybody/below", storage_options=options)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("service", ["s3", "gcs", "azure"])
async def test_keys_are_not_mistaken_for_error_codes(request: pytest.FixtureRequest, service: str, backend: str):
    if (service, backend) == ("gcs", "obstore"):
        google = request.getfixturevalue("google")
        url, options = "gs://some-bucket/below", google.options()
    else:
        url, options = request.getfixturevalue(service)
    array = await za.create_array(
        url, path="NoSuchBucket/ContainerNotFound", shape=4, dtype="i4", storage_options={**options, "backend": backend}
    )
    assert (await array[...]).tolist() == [0] * 4
    with pytest.raises(NodeNotFoundError):
        await za.open_array(array.store, path="NoSuchBucket/other")


@pytest.mark.parametrize("backend", BACKENDS)
def test_permanent_failures_raise(bucket: Bucket, backend: str):
    with config.set(retries=2, total_timeout=20.0):
        options = bucket.options(
            backend=backend, **({"config_kwargs": {"retries": {"max_attempts": 2}}} if backend == "fsspec" else {})
        )
        array = sync.open_array("s3://bucket", storage_options=options)
        if backend == "obstore":
            bucket.fault = lambda key, data: (500, {}, b"<Error><Code>InternalError</Code></Error>")
            with pytest.raises(StoreError, match=r"could not read 'c/\d/\d' in ObjectStore.*500"):
                array[...]
    with pytest.raises(StoreError, match="could not read"), config.set(retries=1, total_timeout=5.0):
        gone = {"key": "k", "secret": "s", "endpoint_url": "http://no-such-host.invalid:9", "backend": backend}
        try:
            sync.open_array("s3://bucket", storage_options=gone)
        except NodeNotFoundError:  # pragma: no cover  # the wrong error
            pytest.fail("a host that is not there has no nodes")


def test_a_shard_that_is_replaced_between_index_and_chunk(bucket: Bucket):
    """The index of an old shard is never combined with bytes of a new one."""
    other: dict[str, bytes] = {}
    sync.create_array(other, data=VALUES[::-1] * 3, chunks=(20, 20), shards=(100, 100), fill_value=-1)
    array = sync.open_array("s3://bucket", storage_options=bucket.options())
    assert array[3, 3] == VALUES[3, 3]  # the index is cached now
    bucket.values.update(other)
    np.testing.assert_array_equal(array[3:9, 30:40], (VALUES[::-1] * 3)[3:9, 30:40])


def test_waiting_for_the_limiter_does_not_count_as_request_time(bucket: Bucket):
    def fault(key: str, data: bytes | None) -> None:
        time.sleep(0.05)

    with config.set(concurrency=2, total_timeout=1.0):
        store = stores.resolve("s3://bucket", bucket.options())
    bucket.fault = fault
    found = asyncio.run(store.fetch([stores.Request("zarr.json")] * 60))
    assert all(value is not None for value in found)
