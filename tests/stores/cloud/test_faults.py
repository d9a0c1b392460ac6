"""S3 that is overloaded, breaks connections, refuses, or is not there: what is read is right, or an error says why."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.google_server import Google
from tests.support.s3_server import VALUES, Answer, Bucket, Fault
from zarrasync import config, stores, sync
from zarrasync.errors import NodeNotFoundError, StoreError, WriteConflictError

BACKENDS = ["obstore", "fsspec"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["503", "reset", "cut"])
def test_what_passes_is_not_noticed(bucket: Bucket, backend: str, kind: str):
    """One request in six fails."""
    chance = random.Random(3)
    slow_down = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"

    def fault(key: str, data: bytes | None) -> Answer | str | None:
        if chance.random() > 1 / 6:
            return None
        return (503, {"Content-Type": "application/xml"}, slow_down) if kind == "503" else kind

    bucket.fault = fault
    array = sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend))
    np.testing.assert_array_equal(array[...], VALUES)
    np.testing.assert_array_equal(array[33:35, ::7], VALUES[33:35, ::7])


@pytest.mark.parametrize("backend", BACKENDS)
def test_refusals_are_errors_or_absence_as_told(bucket: Bucket, backend: str):
    """Expired credentials must not read as fill values; a bucket that answers 403 for absent keys may be told of."""
    denied = (403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
    array = sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend))
    bucket.fault = lambda key, data: denied
    with pytest.raises(StoreError, match=r"could not read 'c/[01]/[01]'"):
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
    with pytest.raises(ValueError, match="missing takes"):
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
def test_refused_credentials_are_never_absence(bucket: Bucket, backend: str, code: str, message: str):
    """Nor where somebody says that 403 means that."""
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
def test_a_bucket_of_another_region_says_which(bucket: Bucket, backend: str, kind: str):
    """As S3 answers: to a signature for the wrong region, and at the wrong region's address."""
    wrong = b"the region 'us-east-1' is wrong; expecting 'eu-central-1'"
    error = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>" + wrong + b"</Message></Error>"
    moved = b"<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"
    xml = {"Content-Type": "application/xml"}
    bucket.fault = lambda key, data: (400, xml, error) if kind == "signed" else (301, xml, moved)
    with pytest.raises(StoreError, match="lies in another region: pass storage_options") as found:
        sync.open_array("s3://bucket", storage_options=bucket.options(backend=backend), config={"retries": 1})
    if kind == "signed":
        assert "'region_name': 'eu-central-1'" in str(found.value)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
async def test_a_bucket_that_is_not_there_is_no_absence(s3: tuple[str, dict[str, Any]], backend: str):
    options = {**s3[1], "backend": backend}
    store = stores.resolve("s3://no-bucket-of-anybody/below", options)
    attempts: dict[str, Callable[[], Any]] = {
        "read": lambda: store.get("key"),
        "write": lambda: store.put("key", b"value"),
        "list": lambda: store.list_prefix(""),
        "erase": lambda: store.erase_values(["key"]),
    }
    for verb, attempt in attempts.items():
        with pytest.raises(StoreError, match=rf"(?s)^could not {verb} '\w*' in .*there is no such bucket") as found:
            await attempt()
        assert str(found.value).count("could not") == 1
    await store.close()
    with pytest.raises(StoreError, match="there is no such bucket"):
        sync.open_array("s3://no-bucket-of-anybody/below", storage_options=options)


@pytest.mark.parametrize("backend", ["obstore", "fsspec"])
@pytest.mark.parametrize("service", ["s3", "gcs", "azure"])
async def test_keys_are_not_taken_for_what_services_say(request: pytest.FixtureRequest, service: str, backend: str):
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


def test_a_bucket_that_goes_leaves_no_fill_values(bucket: Bucket):
    array = sync.open_array("s3://bucket", storage_options=bucket.options())
    gone = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
    bucket.fault = lambda key, data: (404, {"Content-Type": "application/xml"}, gone)
    with pytest.raises(StoreError, match="there is no such bucket"):
        array[...]
    bucket.fault = lambda key, data: None
    assert clients_of(bucket, array.store, path=array.path) == {LEAN}


LEAN, OBSTORE = ("zarrasync", True), ("object_store", False)


def clients_of(bucket: Bucket, store: Any, **options: Any) -> set[tuple[str, bool]]:
    """Who asks, if all is read."""
    bucket.clients.clear()
    np.testing.assert_array_equal(sync.open_array(store, **options)[...], VALUES)
    return set(bucket.clients)


@pytest.mark.parametrize(
    ("options", "client"),
    [
        ({}, LEAN),
        ({"token": "t"}, LEAN),
        ({"key": None, "secret": None, "anon": True}, ("zarrasync", False)),
        ({"requester_pays": True}, OBSTORE),
        ({"client_options": {"user_agent": "object_store/mine"}}, OBSTORE),
    ],
)
def test_who_asks_for_objects(bucket: Bucket, options: dict[str, Any], client: tuple[str, bool]):
    """URLs are signed where that is all that was asked for."""
    options = {name: value for name, value in bucket.options(**options).items() if value is not None}
    assert clients_of(bucket, "s3://bucket", storage_options=options) == {client}


def test_keys_that_lapse_are_renewed(bucket: Bucket):
    """A program's own provider of keys, asked again when they are about to lapse, and never by each request."""
    obstore = pytest.importorskip("obstore")
    given: list[str] = []

    def renewed() -> dict[str, Any]:
        given.append(f"key{len(given)}")
        until = datetime.now(UTC) + timedelta(seconds=60)
        return {"access_key_id": given[-1], "secret_access_key": "s", "token": "t", "expires_at": until}

    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    store = obstore.store.S3Store("bucket", credential_provider=renewed, **where)
    array = sync.open_array(store)
    while len(set(bucket.keys)) < 4:
        np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.clients) == {LEAN}
    assert set(bucket.keys) <= set(given)


async def test_nobody_waits_for_keys_of_others(bucket: Bucket):
    """A provider that takes its time is no business of what else runs on the loop."""
    obstore = pytest.importorskip("obstore")
    ticks, went_on = 0, list[bool]()

    def slow() -> dict[str, Any]:
        before, end = ticks, time.monotonic() + 10
        while ticks < before + 3 and time.monotonic() < end:
            time.sleep(0.01)
        went_on.append(ticks >= before + 3)
        until = datetime.now(UTC) + timedelta(seconds=60)
        return {"access_key_id": "k", "secret_access_key": "s", "token": "t", "expires_at": until}

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    array = await za.open_array(obstore.store.S3Store("bucket", credential_provider=slow, **where))
    for _ in range(4):
        await array[:50]
        await asyncio.sleep(0.06)
    ticking.cancel()
    assert went_on
    assert all(went_on)


@pytest.mark.parametrize("anonymous", ["1", "yes", "TRUE", "true"])
def test_who_is_to_be_nobody_has_no_keys(bucket: Bucket, anonymous: str, monkeypatch: pytest.MonkeyPatch):
    """However that is written."""
    obstore = pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    for store in (
        obstore.store.S3Store("bucket", skip_signature=anonymous, **where),
        stores.resolve("s3://bucket", {"endpoint_url": bucket.url, "aws_skip_signature": anonymous}),
    ):
        clients_of(bucket, store)
    assert not bucket.keys


@pytest.mark.parametrize("signed", [True, False])
def test_a_provider_of_keys_that_fails_is_no_absence(bucket: Bucket, signed: bool, monkeypatch: pytest.MonkeyPatch):
    obstore = pytest.importorskip("obstore")

    def failing() -> dict[str, Any]:
        raise ValueError("log in again")

    if not signed:
        monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    store = obstore.store.S3Store("bucket", credential_provider=failing, **where)
    with pytest.raises(StoreError, match=r"could not read '.*log in again"):
        sync.open_array(stores.ObjectStore(store, missing=(401,)))
    assert not bucket.asked


def test_keys_of_the_environment_are_those_of_the_store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    obstore = pytest.importorskip("obstore")
    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    store = obstore.store.S3Store("bucket", **where)
    assert clients_of(bucket, store) == {LEAN}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another, set after the store was made")
    assert clients_of(bucket, store) == {LEAN}
    assert set(bucket.keys) == {"k"}


def test_keys_of_a_container(bucket: Bucket, nobody: Path, monkeypatch: pytest.MonkeyPatch):
    """As programs in Kubernetes and on virtual machines have them: a service tells, and they lapse."""
    lapse = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"AccessKeyId": "fromthere", "SecretAccessKey": "s", "Token": "t", "Expiration": lapse}
    bucket.values["keys"] = json.dumps(told).encode()
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{bucket.url}/bucket/keys")
    (nobody / "token").write_text("let me in")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(nobody / "token"))
    options = {"endpoint_url": bucket.url}
    array = sync.open_array("s3://bucket", storage_options=options)
    np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.keys) == {"fromthere"}
    assert bucket.asked.count("keys") == 1
    assert {client for key, client in zip(bucket.asked, bucket.clients, strict=True) if key != "keys"} == {LEAN}


def test_obstore_panics_as_any_other_error(bucket: Bucket, nobody: Path, monkeypatch: pytest.MonkeyPatch):
    """It does so if a token ends with a line break."""
    (nobody / "token").write_text("let me in\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{bucket.url}/bucket/keys")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(nobody / "token"))
    with pytest.raises(StoreError, match="could not read"):
        sync.open_array("s3://bucket", storage_options={"endpoint_url": bucket.url})


@pytest.mark.parametrize("named", [True, False])
def test_keys_that_a_program_fetches(bucket: Bucket, nobody: Path, named: bool, monkeypatch: pytest.MonkeyPatch):
    """A profile as single sign-on and roles have it, by name or by the environment; the keys survive pickling."""
    keys = {"Version": 1, "AccessKeyId": "fetched", "SecretAccessKey": "s", "SessionToken": "t"}
    (nobody / "keys.json").write_text(json.dumps(keys))
    section = f"[profile mine]\ncredential_process = cat {nobody / 'keys.json'}\nendpoint_url = {bucket.url}\n"
    (nobody / "config").write_text(section)
    options = {"profile": "mine"} if named else {}
    if named:  # what is named comes before what lies around
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    else:
        monkeypatch.setenv("AWS_PROFILE", "mine")
    store = stores.resolve("s3://bucket", options)
    assert clients_of(bucket, store) == {LEAN}
    assert clients_of(bucket, pickle.loads(pickle.dumps(store))) == {LEAN}
    assert set(bucket.keys) == {"fetched"}
    (nobody / "config").write_text(section.replace("keys.json", "others.json"))
    (nobody / "others.json").write_text(json.dumps({**keys, "AccessKeyId": "afterwards"}))
    bucket.keys.clear()
    assert clients_of(bucket, "s3://bucket", storage_options=options) == {LEAN}
    assert set(bucket.keys) == {"afterwards"}


@pytest.mark.parametrize(
    ("profile", "message"),
    [("absent", "profile .*absent.* could not be found"), ("broken", "Error when retrieving credentials")],
)
def test_profiles_that_lead_to_no_keys(bucket: Bucket, nobody: Path, profile: str, message: str):
    (nobody / "config").write_text(f"[profile broken]\ncredential_process = cat {nobody / 'absent'}\n")
    with pytest.raises(StoreError, match=message):
        sync.open_array("s3://bucket", storage_options={"profile": profile, "endpoint_url": bucket.url})
    assert not bucket.asked


def test_proxies_are_obstores_to_use(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert clients_of(bucket, "s3://bucket", storage_options=bucket.options()) == {OBSTORE}


@pytest.mark.parametrize("status", [400, 403, 301])
def test_a_service_that_refuses_signed_urls_is_not_asked_with_them_again(bucket: Bucket, status: int):
    refusal = (status, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
    bucket.fault = lambda key, data: refusal if bucket.clients[-1] == LEAN else None
    array = sync.open_array("s3://bucket", storage_options=bucket.options())
    assert set(bucket.clients) == {LEAN, OBSTORE}
    bucket.clients.clear()
    np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.clients) == {OBSTORE}


# ------------------------------------------------------------------ writing


UNSIGNED = {"aws_unsigned_payload": True}  # as it is over TLS


def written(bucket: Bucket, values: np.ndarray, fault: Fault | None = None, **options: Any) -> set[tuple[str, bool]]:
    """Who stores the chunks of a new array."""
    bucket.values.clear()
    chunks = (50, values.shape[1])
    made = {"shape": values.shape, "dtype": values.dtype, "chunks": chunks}
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
def test_who_stores_objects(
    bucket: Bucket, options: dict[str, Any], environment: dict[str, str], client: tuple[str, bool],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert written(bucket, VALUES, **options) == {client}


def test_large_and_compared_values_are_obstores_to_store(bucket: Bucket):
    large = np.random.default_rng(0).random((50, 3000))  # 1.2 MB
    assert written(bucket, large, **UNSIGNED) == {OBSTORE}
    store = stores.resolve("s3://bucket", bucket.options(**UNSIGNED))
    bucket.clients.clear()
    asyncio.run(store.put("compared", b"x", if_version=stores.ABSENT))
    assert bucket.clients == [OBSTORE]


@pytest.mark.parametrize("kind", ["503", "reset", "cut"])
def test_writes_outlast_what_passes(bucket: Bucket, kind: str):
    """One request in four fails, also after it was stored."""
    chance = random.Random(5)
    slow_down = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"

    def fault(key: str, data: bytes | None) -> Answer | str | None:
        if chance.random() > 1 / 4:
            return None
        return (503, {"Content-Type": "application/xml"}, slow_down) if kind == "503" else kind

    values = np.arange(800_000, dtype="i4").reshape(4000, 200)
    assert written(bucket, values, fault, **UNSIGNED) == {LEAN}


async def test_requests_that_were_made_again_are_counted(api: Api, bucket: Bucket):
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


def test_a_write_that_fails_says_so(bucket: Bucket):
    with config.set(retries=2, total_timeout=20.0):
        array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(**UNSIGNED))
        bucket.fault = lambda key, data: (500, {}, b"<Error><Code>InternalError</Code></Error>")
        with pytest.raises(StoreError, match=r"could not write 'c/\d/\d' in ObjectStore.*500") as found:
            array[:100, :100] = 1
    assert found.value.attempts == 3
    np.testing.assert_array_equal(sync.open_array(bucket.values)[...], VALUES)


def test_who_may_not_write_reads_as_before(bucket: Bucket):
    array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(**UNSIGNED))
    refusal = (403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
    bucket.fault = lambda key, data: refusal if key.startswith("c/") else None
    for _ in range(2):
        bucket.clients.clear()
        with pytest.raises(StoreError, match="could not write 'c/0/0'.*PermissionDenied"):
            array[:100, :100] = 7
        assert bucket.clients[-1] == OBSTORE
    assert bucket.clients == [OBSTORE]  # a signed URL was refused once
    bucket.fault = lambda key, data: None
    bucket.clients.clear()
    np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.clients) == {LEAN}


async def test_googles_public_objects_come_through_the_lean_client(api: Api, google: Google):
    """Who may write asks obstore for all; both call versions the same."""
    url = "gs://bucket/über all/x y.zarr"
    array = await api(
        api.create_array(url, data=VALUES, chunks=(20, 20), shards=(100, 100), storage_options=google.options())
    )
    google.requests.clear()
    opened = await api(api.open_array(url, storage_options=google.anonymous()))
    np.testing.assert_array_equal(await api(opened.view[...].read()), VALUES)
    np.testing.assert_array_equal(await api(opened.view[5:7, 30:90].read()), VALUES[5:7, 30:90])
    assert {headers.get("User-Agent") for _, _, headers in google.requests} == {"zarrasync"}
    public, own = opened.store, array.store
    for request in (stores.Request("c/0/0"), stores.Request("c/0/0", 0, 10), stores.Request("c/0/0", 0, 10, True)):
        (seen,), (known,) = await public.fetch([request], versions=True), await own.fetch([request], versions=True)
        assert (bytes(seen.data), seen.version, seen.size) == (bytes(known.data), known.version, known.size)
        assert seen.version is not None
    assert await public.get("c/9/9") is None
    await api.write(await api(api.open_array(url, mode="r+", storage_options=google.options())), (3, 3), -1)
    changed = VALUES.copy()
    changed[3, 3] = -1
    np.testing.assert_array_equal(await api(opened.view[...].read()), changed)
    np.testing.assert_array_equal(await api(opened.view[:4, :4].read()), changed[:4, :4])
    with pytest.raises(StoreError, match="there is no such bucket"):
        await api(api.open_array("gs://nobodys/x", storage_options=google.anonymous()))


class Tokens:
    """A service that gives tokens to whoever has the key of an account: a new one each time, which holds for an hour."""

    def __init__(self, folder: Path) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(*form).decode()
        self.given: list[str] = []
        self.folder = folder
        self.account = {"type": "service_account", "client_email": "me@example.org", "private_key": key}

    def give(self) -> bytes:
        self.given.append(f"token-{len(self.given)}")
        return json.dumps({"access_token": self.given[-1], "expires_in": 3600, "token_type": "Bearer"}).encode()

    def forms(self, url: str) -> dict[str, Any]:
        """What users give."""
        from google.oauth2.service_account import Credentials

        account = {**self.account, "token_uri": url}
        (self.folder / "account.json").write_text(json.dumps(account))
        scoped = Credentials.from_service_account_info(account, scopes=["https://example.org"])
        return {"a file": str(self.folder / "account.json"), "a dictionary": account, "credentials": scoped}


@pytest.mark.parametrize("form", ["a file", "a dictionary", "credentials"])
async def test_googles_credentials_in_gcsfs_words(api: Api, google: Google, form: str, tmp_path: Path):
    """They come through obstore, which can compare; a token is asked for once."""
    pytest.importorskip("gcsfs")
    tokens = Tokens(tmp_path)
    with giving(tokens.give) as url:
        options = {"token": tokens.forms(url)[form], "project": "p", "access": "read_write", "endpoint_url": google.url}
        array = await api(api.create_array("gs://bucket/x", data=np.arange(10), chunks=4, storage_options=options))
        assert type(array.store) is stores.ObjectStore
        await api.write(array, slice(3, 7), 5)
        await api(array.append([1, 2]))
        again = await api(api.open_array("gs://bucket/x", storage_options=options))
        np.testing.assert_array_equal(await api(again.view.read()), [0, 1, 2, 5, 5, 5, 5, 7, 8, 9, 1, 2])
        if form != "credentials":
            sent = pickle.loads(pickle.dumps(again))
            assert sent.store == again.store
    seen = {
        value for _, _, headers in google.requests for name, value in headers.items() if name.lower() == "authorization"
    }
    assert seen == {"Bearer token-0"}
    assert tokens.given == ["token-0"]


def test_what_errors_show_of_urls():
    from zarrasync.stores.errors import without_queries

    assert (
        without_queries("GET http://h/a(1)?sig=secret) and /b?x=y, why? 'c?d'")
        == "GET http://h/a(1)?…) and /b?… why? 'c?d'"
    )
    long = "/a" * 100_000  # which a search that goes back at each slash does not come to the end of
    assert without_queries(f"{long} {'http://h/x?y=1 ' * 10_000}") == f"{long} {'http://h/x?… ' * 10_000}"


async def test_googles_credentials_that_lead_nowhere(api: Api, google: Google, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("gcsfs")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # gcsfs asks Google of what is no file
    for token in ({"type": "service_account"}, "/nowhere/that-is-a-secret"):
        options = {"token": token, "endpoint_url": google.url}
        with pytest.raises(StoreError, match="credential") as found:
            await api(api.open_array("gs://bucket/x", storage_options=options, config={"retries": 0}))
        assert "secret" not in str(found.value)
    assert google.requests == []


@contextmanager
def giving(answer: Callable[[], bytes]) -> Iterator[str]:
    """A server that answers so to all that is posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = answer()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("truly", [True, False])
def test_objects_that_are_called_compressed_are_as_they_are_stored(bucket: Bucket, truly: bool):
    """A label of S3's, which says how a browser shall show it; obstore gives the stored bytes."""
    key, value = "c/0/0", bucket.values["c/0/0"]
    bucket.values[key] = gzip.compress(value) if truly else value
    bucket.label = "gzip"
    store = stores.resolve("s3://bucket", bucket.options())
    (found,) = asyncio.run(store.fetch([stores.Request(key)]))
    assert found is not None
    assert bytes(found.data) == bucket.values[key]
    (found,) = asyncio.run(store.fetch([stores.Request(key, 5, 20)]))
    assert bytes(found.data) == bucket.values[key][5:25]
    if not truly:
        np.testing.assert_array_equal(sync.open_array(store)[33:35, ::7], VALUES[33:35, ::7])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_does_not_pass_says_so(bucket: Bucket, backend: str):
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
        except NodeNotFoundError:  # pragma: no cover  # what it must not be
            pytest.fail("a host that is not there has no nodes")


def test_a_shard_that_is_replaced_between_index_and_chunk(bucket: Bucket):
    """The index of an old shard is never used with bytes of a new one."""
    other: dict[str, bytes] = {}
    sync.create_array(other, data=VALUES[::-1] * 3, chunks=(20, 20), shards=(100, 100), fill_value=-1)
    array = sync.open_array("s3://bucket", storage_options=bucket.options())
    assert array[3, 3] == VALUES[3, 3]  # the index is known now
    bucket.values.update(other)
    np.testing.assert_array_equal(array[3:9, 30:40], (VALUES[::-1] * 3)[3:9, 30:40])


def test_weak_tags_are_compared_as_they_are(bucket: Bucket):
    """obstore sends them; what a store compares must not be a guess of ours."""
    bucket.weak = True
    array = sync.open_array("s3://bucket", mode="r+", storage_options=bucket.options(**UNSIGNED))
    bucket.matched.clear()
    array[:10, :10] = 1
    array.attrs["a"] = 1
    assert len(bucket.matched) == 2
    assert all(tag and tag.startswith('W/"') for tag in bucket.matched)


def test_waiting_for_ones_turn_is_no_time_of_a_request(bucket: Bucket):
    def fault(key: str, data: bytes | None) -> None:
        time.sleep(0.05)

    with config.set(concurrency=2, total_timeout=1.0):
        store = stores.resolve("s3://bucket", bucket.options())
    bucket.fault = fault
    found = asyncio.run(store.fetch([stores.Request("zarr.json")] * 60))
    assert all(value is not None for value in found)


# ------------------------------------------------------------------ the same over the web


def test_what_a_cache_on_disk_calls_absent_is_so_for_who_asks(bucket: Bucket, tmp_path: Path):
    """A 403 is absence for those alone who were told so."""
    denied = (403, {}, b"")
    bucket.fault = lambda key, data: denied if data is None else None
    del bucket.values["c/1/1"]

    def read(**options: Any) -> np.ndarray:
        store = stores.HTTPStore(f"{bucket.url}/bucket", **options)
        return np.asarray(sync.open_array(stores.DiskCachingStore(store, tmp_path), zarr_format=3)[...])

    assert (read(missing=(403, 404))[100:, 100:] == -1).all()
    with pytest.raises(StoreError, match="403"):
        read()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec's files
@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
@pytest.mark.parametrize("status", [200, 403, 503])
def test_caches_of_fsspec_call_nothing_absent_that_is_not(bucket: Bucket, cache: str, status: int, tmp_path: Path):
    """They do if a web server refuses, or shows no directories."""
    plain: dict[str, bytes] = {}
    sync.create_array(plain, data=VALUES, chunks=100, fill_value=-1)
    bucket.values.update({f"plain/{key}": value for key, value in plain.items()})
    bucket.fault = lambda key, data: (status, {}, b"") if status != 200 and "c/0" in key else None
    options = {cache: {"cache_storage": str(tmp_path)}}
    for path in ("", "/plain"):
        url = f"{cache}::{bucket.url}/bucket{path}"
        array = sync.open_array(url, zarr_format=3, storage_options=options, config={"retries": 2})
        for missing in ("fill", "error"):
            if status == 200:
                np.testing.assert_array_equal(array.view[:60, 30:90].read(missing=missing), VALUES[:60, 30:90])
            else:
                with pytest.raises(StoreError, match=str(status)):
                    array.view[:60, 30:90].read(missing=missing)


def test_fsspec_asks_again(bucket: Bucket):
    chance = random.Random(7)
    bucket.fault = lambda key, data: (503, {}, b"") if chance.random() < 1 / 3 else None
    url, options = f"{bucket.url}/bucket", {"backend": "fsspec"}
    with config.set(retries=20):
        array = sync.open_array(url, zarr_format=3, storage_options=options)
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize("backend", ["auto", "fsspec"])
def test_no_attempt_lasts_longer_than_all_may(bucket: Bucket, backend: str):
    stalled = threading.Event()

    def fault(key: str, data: bytes | None) -> Answer | None:
        stalled.wait(20)
        return None

    array = sync.open_array(
        f"{bucket.url}/bucket", zarr_format=3, storage_options={"backend": backend},
        config={"total_timeout": 0.3, "request_timeout": 15.0},
    )  # fmt: skip
    bucket.fault = fault
    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"no answer within 0\.(3|29\d*) s"):
        array[...]
    assert time.monotonic() - begin < 10
    stalled.set()


def test_settings_of_a_call_reach_the_store_that_it_makes(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bucket.fault = lambda key, data: (503, {}, b"")
    with pytest.raises(StoreError, match="attempt 1,"):
        sync.open_array(f"{bucket.url}/bucket", zarr_format=3, config={"retries": 0})
    with pytest.raises(StoreError, match="attempt 2,"):
        asyncio.run(za.open_array(f"{bucket.url}/bucket", zarr_format=3, config={"retries": 1}))
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), fsync(handle)))
    for write in (
        lambda where: sync.create_array(where, data=VALUES, config={"fsync": True}),
        lambda where: asyncio.run(za.ingest(VALUES, where, config={"fsync": True})),
        lambda where: sync.ingest(VALUES, where, config={"fsync": True}),
    ):
        synced.clear()
        write(tmp_path / str(len(list(tmp_path.iterdir()))))
        assert len(synced) > 1
    store = stores.resolve(bucket.url, config={"concurrency": 3})
    assert (store.concurrency, stores.resolve(bucket.url).concurrency > 3) == (3, True)


@pytest.mark.parametrize(("age", "asked"), [(0, 2), (3600, 1)])
def test_a_time_tells_versions_apart_that_are_a_second_old(tmp_path: Path, age: int, asked: int):
    """Python's server knows times alone: a shard that is replaced within a second has the same one."""
    requests: list[str] = []

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def do_GET(self) -> None:
            requests.append(self.path)
            data = (tmp_path / self.path[1:]).read_bytes() if (tmp_path / self.path[1:]).is_file() else None
            if data is None or "Range" not in self.headers:
                super().do_GET()
                return
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            part = data[start : int(last) + 1 if first and last else len(data)]
            self.send_response(206)
            modified = (tmp_path / self.path[1:]).stat().st_mtime
            self.send_header("Last-Modified", self.date_time_string(int(modified)))
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *args: Any) -> None:
            pass

    array = sync.create_array(tmp_path, shape=20_000, dtype="i4", chunks=10_000, shards=20_000, compressors=None)
    shard, when = tmp_path / "c" / "0", time.time() + (-age or 60)  # as if it were a moment ago for a minute
    array[10_000:] = 1
    os.utime(shard, (when, when))
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = sync.open_array(f"http://127.0.0.1:{server.server_port}", zarr_format=3)
        assert found[10_000:10_003].tolist() == [1, 1, 1]
        requests.clear()
        assert found[10_003:10_005].tolist() == [1, 1]
        assert len(requests) == asked
        if not age:
            array[...] = np.repeat([2, 3], 10_000)
            os.utime(shard, (when, when))
            assert found[10_000:10_003].tolist() == [3, 3, 3]
        server.shutdown()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["lost", "reset", 429, 503, "done, then 503", 409])
@pytest.mark.parametrize("bare", [False, True])
async def test_a_compared_write_whose_answer_is_lost_takes_effect_once(
    api: Api, bucket: Bucket, backend: str, kind: str | int, bare: bool
):
    """Made again it would find what it has stored, and take it for somebody else's: rows were appended twice."""
    bucket.bare = bare
    array = await api(api.open_array("s3://bucket", mode="r+", storage_options=bucket.options(backend=backend)))
    failed: list[str] = []

    def fault(key: str, data: bytes | None) -> Answer | str | None:
        """The first write of each key."""
        if not bucket.writing or key in failed:
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
    """What they refuse although nothing has changed is asked for in their way, from then on at once."""
    bucket.bare = True
    options = bucket.options(backend=backend)
    array = await api(api.open_array("s3://bucket", mode="r+", storage_options=options))
    await api.write(array, (3, 3), -7)
    asked = len(bucket.asked)
    await api.write(array, (3, 4), -8)
    assert bucket.asked[asked:] == ["c/0/0"] * 2
    other = await api(api.open_array("s3://bucket", mode="r+", storage_options=options))
    await api(other.update_attributes({"a": 1}))
    with pytest.raises(WriteConflictError):  # one that has changed
        await api(array.store.put("zarr.json", b"{}", if_version='"0"'))
    found = sync.open_array(bucket.values)
    assert (found[3, 3:5].tolist(), found.attrs["a"]) == ([-7, -8], 1)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_compared_write_of_which_nothing_can_be_known(api: Api, bucket: Bucket, backend: str):
    """Somebody else has written meanwhile: what was there before tells nothing any more."""
    array = await api(api.open_array("s3://bucket", mode="r+", storage_options=bucket.options(backend=backend)))

    def fault(key: str, data: bytes | None) -> str | None:
        if not bucket.writing or key != "zarr.json":
            return None
        bucket.values[key] = data.replace(b"200", b"100", 1)
        return "reset"

    bucket.fault = fault
    with pytest.raises(StoreError, match="could not write 'zarr.json'") as failure:
        await api(array.append(VALUES[:50]))
    assert not isinstance(failure.value, WriteConflictError)
