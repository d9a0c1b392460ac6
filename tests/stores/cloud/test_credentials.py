"""Credentials for S3 from options, providers, profiles and containers, and the client that uses them."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarrasync as za
from tests.support.s3_clients import LEAN, OBSTORE, clients_of
from tests.support.s3_server import VALUES, Bucket
from zarrasync import stores, sync
from zarrasync.bulk.files.sources.headers import SourceFile
from zarrasync.errors import StoreError


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
def test_the_client_that_reads_objects(bucket: Bucket, options: dict[str, Any], client: tuple[str, bool]):
    """Signed URLs are used if no other option needs obstore."""
    options = {name: value for name, value in bucket.options(**options).items() if value is not None}
    assert clients_of(bucket, "s3://bucket", storage_options=options) == {client}


def test_expiring_credentials_are_renewed(bucket: Bucket):
    """A credential provider of the program is called again shortly before expiry, not for each request."""
    obstore = pytest.importorskip("obstore")
    given: list[str] = []

    def renewed() -> dict[str, Any]:
        given.append(f"key{len(given)}")
        until = datetime.now(UTC) + timedelta(seconds=60)
        return {"access_key_id": given[-1], "secret_access_key": "s", "token": "t", "expires_at": until}

    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    store = obstore.store.S3Store("bucket", credential_provider=renewed, **where)
    array = sync.open_array(store)
    while len(set(bucket.access_keys)) < 4:
        np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.clients) == {LEAN}
    assert set(bucket.access_keys) <= set(given)


async def test_slow_credentials_do_not_block_the_event_loop(bucket: Bucket):
    """A slow credential provider does not block the event loop."""
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
def test_anonymous_access_uses_no_credentials(bucket: Bucket, anonymous: str, monkeypatch: pytest.MonkeyPatch):
    """Every spelling of true is accepted."""
    obstore = pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    for store in (
        obstore.store.S3Store("bucket", skip_signature=anonymous, **where),
        stores.resolve("s3://bucket", {"endpoint_url": bucket.url, "aws_skip_signature": anonymous}),
    ):
        clients_of(bucket, store)
    assert not bucket.access_keys


@pytest.mark.parametrize("signed", [True, False])
def test_a_failing_credential_provider_is_an_error(bucket: Bucket, signed: bool, monkeypatch: pytest.MonkeyPatch):
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
    assert not bucket.requested_keys


def test_credentials_are_read_when_the_store_is_made(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    obstore = pytest.importorskip("obstore")
    where = {"endpoint": bucket.url, "region": "us-east-1", "client_options": {"allow_http": True}}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    store = obstore.store.S3Store("bucket", **where)
    assert clients_of(bucket, store) == {LEAN}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another, set after the store was made")
    assert clients_of(bucket, store) == {LEAN}
    assert set(bucket.access_keys) == {"k"}


def test_credentials_of_a_container(bucket: Bucket, aws_config: Path, monkeypatch: pytest.MonkeyPatch):
    """Credentials in Kubernetes and on virtual machines come from a service, and expire."""
    lapse = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = {"AccessKeyId": "fromthere", "SecretAccessKey": "s", "Token": "t", "Expiration": lapse}
    bucket.values["keys"] = json.dumps(told).encode()
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{bucket.url}/bucket/keys")
    (aws_config / "token").write_text("let me in")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(aws_config / "token"))
    options = {"endpoint_url": bucket.url}
    array = sync.open_array("s3://bucket", storage_options=options)
    np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.access_keys) == {"fromthere"}
    assert bucket.requested_keys.count("keys") == 1
    assert {client for key, client in zip(bucket.requested_keys, bucket.clients, strict=True) if key != "keys"} == {
        LEAN
    }


def test_panics_of_obstore_become_store_errors(bucket: Bucket, aws_config: Path, monkeypatch: pytest.MonkeyPatch):
    """obstore panics if a token ends with a line break."""
    (aws_config / "token").write_text("let me in\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{bucket.url}/bucket/keys")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(aws_config / "token"))
    with pytest.raises(StoreError, match="could not read"):
        sync.open_array("s3://bucket", storage_options={"endpoint_url": bucket.url})


@pytest.mark.parametrize("named", [True, False])
def test_credentials_from_a_process(bucket: Bucket, aws_config: Path, named: bool, monkeypatch: pytest.MonkeyPatch):
    """A profile with ``credential_process``, by option or environment variable; it survives pickling."""
    keys = {"Version": 1, "AccessKeyId": "fetched", "SecretAccessKey": "s", "SessionToken": "t"}
    (aws_config / "keys.json").write_text(json.dumps(keys))
    section = f"[profile mine]\ncredential_process = cat {aws_config / 'keys.json'}\nendpoint_url = {bucket.url}\n"
    (aws_config / "config").write_text(section)
    options = {"profile": "mine"} if named else {}
    if named:  # options take precedence over the environment
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    else:
        monkeypatch.setenv("AWS_PROFILE", "mine")
    store = stores.resolve("s3://bucket", options)
    assert clients_of(bucket, store) == {LEAN}
    assert clients_of(bucket, pickle.loads(pickle.dumps(store))) == {LEAN}
    assert set(bucket.access_keys) == {"fetched"}
    (aws_config / "config").write_text(section.replace("keys.json", "others.json"))
    (aws_config / "others.json").write_text(json.dumps({**keys, "AccessKeyId": "afterwards"}))
    bucket.access_keys.clear()
    assert clients_of(bucket, "s3://bucket", storage_options=options) == {LEAN}
    assert set(bucket.access_keys) == {"afterwards"}


@pytest.mark.parametrize(
    ("profile", "message"),
    [("absent", "profile .*absent.* could not be found"), ("broken", "Error when retrieving credentials")],
)
def test_profiles_without_credentials(bucket: Bucket, aws_config: Path, profile: str, message: str):
    (aws_config / "config").write_text(f"[profile broken]\ncredential_process = cat {aws_config / 'absent'}\n")
    with pytest.raises(StoreError, match=message):
        sync.open_array("s3://bucket", storage_options={"profile": profile, "endpoint_url": bucket.url})
    assert not bucket.requested_keys


def test_proxies_need_obstore(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert clients_of(bucket, "s3://bucket", storage_options=bucket.options()) == {OBSTORE}


@pytest.mark.parametrize("status", [400, 403, 301])
def test_refused_signed_urls_are_not_used_again(bucket: Bucket, status: int):
    refusal = (status, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
    bucket.fault = lambda key, data: refusal if bucket.clients[-1] == LEAN else None
    array = sync.open_array("s3://bucket", storage_options=bucket.options())
    assert set(bucket.clients) == {LEAN, OBSTORE}
    bucket.clients.clear()
    np.testing.assert_array_equal(array[...], VALUES)
    assert set(bucket.clients) == {OBSTORE}


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("ftp://user:pa/ss@host/x", "ftp://host/x"),
        ("ftp://user:pa?ss@host/x", "ftp://host/x"),
        ("ftp://user:pa#s/s@host/x", "ftp://host/x"),
        ("ftp://user:pa'ss@host/x", "ftp://host/x"),
        ("https://me:p@ss@host/x", "https://host/x"),
        ("S3://key:s/e+c@bucket/x", "S3://bucket/x"),
        ("simplecache::ftp://u:p/q@h/x", "simplecache::ftp://h/x"),
        ("zip://a:b.nc::ftp://u:p/q@h/x.zip", "zip://a:b.nc::ftp://h/x.zip"),
        ("github://user:ghp_token@repo/x", "github://repo/x"),
        ("github://user:name@main/x", "github://user:name@main/x"),  # owner and repository
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("http://host:8080/a@b.nc", "http://host:8080/a@b.nc"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("ftp://user:pw@host/a@b.nc", "ftp://host/a@b.nc"),
        ("s3://bucket/a@b:c@d", "s3://bucket/a@b:c@d"),
        ("file://C:/dir/a@b", "file://C:/dir/a@b"),
    ],
)
def test_users_and_passwords_of_urls(url: str, public: str):
    from zarrasync._util.redact import public_url, redact

    assert redact(f"cannot open '{url}': no") == f"cannot open '{public}': no"
    if "::1" not in url:
        assert public_url(url) == public


def test_files_of_different_containers_and_repositories_differ():
    """Their names in records contain a digest of the URL without secrets."""
    for urls in (
        ["abfs://a@account.dfs.core.windows.net/x.nc", "abfs://b@account.dfs.core.windows.net/x.nc"],
        ["github://user:a@main/x.nc", "github://user:b@main/x.nc"],
    ):
        assert len({SourceFile(url).recorded.url for url in urls}) == 2
    secrets = ["ftp://user:a/b@host/x.nc", "ftp://user:c@host/x.nc"]
    assert len({SourceFile(url).recorded.url for url in secrets}) == 1


def test_parts_of_urls_that_libraries_quote():
    from zarrasync._util.redact import redact

    url = "ftp://user:pass/word@host/x?signature=0123456789"
    message = "Port could not be cast to integer value as 'pass' of word@host, signature 0123456789"
    assert redact(message, {"url": url}) == "Port could not be cast to integer value as '…' of …@host, signature …"
    assert redact(f"cannot open {url}", {"url": url}) == "cannot open ftp://host/x?…"


def test_messages_with_many_urls():
    """No regular expression backtracks."""
    from zarrasync._util.redact import redact

    for message in ("@ " + "://a:" * 40_000, "@ " + "x://a:b" * 40_000, "@ " + "a+" * 100_000, "a:" * 100_000 + "@"):
        assert redact(message)


def test_errors_hide_secrets_of_urls():
    from zarrasync._util.redact import redact

    assert redact("'http://u:p@h/a#token=secret' or s3://b/a#1") == "'http://h/a#…' or s3://b/a#1"
    assert redact("GET http://h/a(1)?sig=secret) and /b?x=y, why? 'c?d'") == "GET http://h/a(1)?…) and /b?… why? 'c?d'"
    long = "/a" * 100_000  # a regular expression that backtracks at each slash would not finish
    assert redact(f"{long} {'http://h/x?y=1 ' * 10_000}") == f"{long} {'http://h/x?… ' * 10_000}"


@pytest.mark.servers
def test_the_time_limit_includes_looking_for_credentials(monkeypatch: pytest.MonkeyPatch):
    """A service for credentials that accepts connections and never answers."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = {"endpoint_url": url, "aws_metadata_endpoint": url}
        with za.config.set(total_timeout=0.5):
            store = stores.resolve("s3://bucket", options)
        for operation in (
            lambda: store.get("k"),
            lambda: store.set("k", b"v"),
            lambda: store.put("k", b"v", if_version=stores.ABSENT),
            lambda: store.erase("k"),
            lambda: store.list_prefix(""),
            lambda: store.list_dir(""),
        ):
            begin = time.monotonic()
            with pytest.raises(StoreError, match=r"no answer within 0\.5 s"):
                asyncio.run(operation())
            assert time.monotonic() - begin < 4
