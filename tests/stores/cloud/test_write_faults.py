"""Writes to S3 that fail, are made again or are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.s3_clients import BACKENDS, LEAN, OBSTORE, failing
from tests.support.s3_server import VALUES, Answer, Bucket, Fault
from zarrasync import config, stores, sync
from zarrasync.errors import StoreError, WriteConflictError

UNSIGNED: dict[str, Any] = {"aws_unsigned_payload": True}  # the default over TLS


def written(bucket: Bucket, values: np.ndarray, fault: Fault | None = None, **options: Any) -> set[tuple[str, bool]]:
    """Write a new array. Return the clients that stored its chunks."""
    bucket.values.clear()
    chunks = (50, values.shape[1])
    made: dict[str, Any] = {"shape": values.shape, "dtype": values.dtype, "chunks": chunks}
    array = sync.create_array("s3://bucket", **made, storage_options=bucket.options(**options))
    bucket.clients.clear()
    bucket.fault = fault or bucket.fault
    array[...] = values
    np.testing.assert_array_equal(sync.open_array(bucket.values)[...], values)
    return set(bucket.clients)


@pytest.mark.parametrize(
    ("options", "environment", "client"),
    [
        (UNSIGNED, {}, LEAN),
        ({**UNSIGNED, "token": "t"}, {}, LEAN),
        ({}, {}, OBSTORE),
        ({**UNSIGNED, "aws_checksum_algorithm": "sha256"}, {}, OBSTORE),
        (UNSIGNED, {"AWS_SERVER_SIDE_ENCRYPTION": "AES256"}, OBSTORE),
        ({**UNSIGNED, "aws_server_side_encryption": "AES256"}, {}, OBSTORE),
    ],
)
def test_the_client_that_stores_objects(
    bucket: Bucket, options: dict[str, Any], environment: dict[str, str], client: tuple[str, bool],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert written(bucket, VALUES, **options) == {client}


def test_large_and_conditional_writes_use_obstore(bucket: Bucket):
    large = np.random.default_rng(0).random((50, 3000))  # 1.2 MB
    assert written(bucket, large, **UNSIGNED) == {OBSTORE}
    store = stores.resolve("s3://bucket", bucket.options(**UNSIGNED))
    bucket.clients.clear()
    asyncio.run(store.put("compared", b"x", if_version=stores.ABSENT))
    assert bucket.clients == [OBSTORE]


@pytest.mark.parametrize("kind", ["503", "reset", "cut"])
def test_writes_outlast_transient_failures(bucket: Bucket, kind: str):
    """One request in four fails, before or after the value is stored."""
    values = np.arange(800_000, dtype="i4").reshape(4000, 200)
    assert written(bucket, values, failing(kind, 1 / 4, seed=5), **UNSIGNED) == {LEAN}


async def test_retries_are_counted(api: Api, bucket: Bucket):
    failed = set[str]()

    def fault(key: str, data: bytes | None) -> Answer | str | None:
        if not key.startswith("c/") or key in failed:
            return None
        failed.add(key)
        return (503, {"Content-Type": "application/xml"}, b"<Error><Code>SlowDown</Code></Error>")

    bucket.fault = fault
    options = bucket.options(**UNSIGNED)
    report = await api(api.ingest(VALUES + 1, "s3://bucket", mode="r+", storage_options=options))
    assert (report.retries, report.conflicts, len(failed)) == (4, 0, 4)
    assert "4 retried" in str(report)
    np.testing.assert_array_equal(sync.open_array(bucket.values)[...], VALUES + 1)


def test_a_failed_write_names_key_and_status(bucket: Bucket):
    with config.set(retries=2, total_timeout=20.0):
        array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(**UNSIGNED))
        bucket.fault = lambda key, data: (500, {}, b"<Error><Code>InternalError</Code></Error>")
        with pytest.raises(StoreError, match=r"could not write 'c/\d/\d' in ObjectStore.*500") as found:
            array[:100, :100] = 1
    assert found.value.attempts == 3
    np.testing.assert_array_equal(sync.open_array(bucket.values)[...], VALUES)


def test_a_refused_write_does_not_affect_reads(bucket: Bucket):
    array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(**UNSIGNED))
    refusal = (403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
    bucket.fault = lambda key, data: refusal if key.startswith("c/") else None
    unsigned = ("Python", False)  # asks for the region of the bucket once
    for clients in ([LEAN, OBSTORE, unsigned], [OBSTORE]):  # a signed URL was refused once
        bucket.clients.clear()
        with pytest.raises(StoreError, match=r"could not write 'c/0/0'.*PermissionDenied"):
            array[:100, :100] = 7
        assert bucket.clients == clients
    bucket.fault = lambda key, data: None
    bucket.clients.clear()
    np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.clients) == {LEAN}


def test_weak_tags_are_compared_as_they_are(bucket: Bucket):
    """Weak tags are sent unchanged, because only the service can compare them."""
    bucket.weak_tags = True
    array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(**UNSIGNED))
    bucket.if_match.clear()
    array[:10, :10] = 1
    array.attrs["a"] = 1
    assert len(bucket.if_match) == 2
    assert all(tag and tag.startswith('W/"') for tag in bucket.if_match)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["lost", "reset", 429, 503, "done, then 503", "done twice", 409])
@pytest.mark.parametrize("bare", [False, True])
async def test_a_conditional_write_with_a_lost_response_takes_effect_once(
    api: Api, bucket: Bucket, backend: str, kind: str | int, bare: bool
):
    """A retry must recognize its own value; otherwise rows would be appended twice."""
    bucket.unquoted_tags = bare
    array = await api(api.open_array("s3://bucket", mode="r+", storage_options=bucket.options(backend=backend)))
    failed: list[str] = []

    def fault(key: str, data: bytes | None) -> Answer | str | None:
        """Fail the first write of each key."""
        if not bucket.is_writing or key in failed:
            return None
        failed.append(key)
        return kind if isinstance(kind, str) else (kind, {}, b"<Error><Code>Other</Code></Error>")

    bucket.fault = fault
    changes = [
        (lambda: array.append(VALUES[:50]), {"zarr.json", "c/2/0", "c/2/1"}),
        (lambda: array.update_attributes({"a": 1}), {"zarr.json"}),
        (lambda: api.write(array, (slice(3, 5), 7), -7), {"c/0/0"}),
        (lambda: array.resize((260, 200)), {"zarr.json"}),
    ]
    for change, keys in changes:
        failed.clear()
        await api(change())
        assert set(failed) == keys
    bucket.fault = lambda key, data: None
    found = sync.open_array(bucket.values)
    expected = np.concatenate([VALUES, VALUES[:50], np.full((10, 200), -1, "i4")])
    expected[3:5, 7] = -7
    np.testing.assert_array_equal(found[...], expected)
    assert dict(found.attrs) == {"a": 1}


@pytest.mark.parametrize("backend", BACKENDS)
async def test_services_that_compare_tags_without_quotes(api: Api, bucket: Bucket, backend: str):
    """A refusal without a change makes the store send unquoted tags, now and for later writes."""
    bucket.unquoted_tags = True
    options = bucket.options(backend=backend)
    array = await api(api.open_array("s3://bucket", mode="r+", storage_options=options))
    await api.write(array, (3, 3), -7)
    asked = len(bucket.requested_keys)
    await api.write(array, (3, 4), -8)
    assert bucket.requested_keys[asked:] == ["c/0/0"] * 2
    other = await api(api.open_array("s3://bucket", mode="r+", storage_options=options))
    await api(other.update_attributes({"a": 1}))
    with pytest.raises(WriteConflictError):  # a tag that has changed
        await api(array.store.put("zarr.json", b"{}", if_version='"0"'))
    found = sync.open_array(bucket.values)
    assert (found[3, 3:5].tolist(), found.attrs["a"]) == ([-7, -8], 1)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_conditional_write_with_an_unknown_outcome(api: Api, bucket: Bucket, backend: str):
    """Another writer replaced the value, so the outcome of the lost write is unknown."""
    array = await api(api.open_array("s3://bucket", mode="r+", storage_options=bucket.options(backend=backend)))

    def fault(key: str, data: bytes | None) -> str | None:
        if not bucket.is_writing or key != "zarr.json":
            return None
        bucket.values[key] = data.replace(b"200", b"100", 1)
        return "reset"

    bucket.fault = fault
    with pytest.raises(StoreError, match=r"could not write 'zarr.json'") as failure:
        await api(array.append(VALUES[:50]))
    assert not isinstance(failure.value, WriteConflictError)
