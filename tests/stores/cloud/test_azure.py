"""Azure Blob Storage against an emulator: the requesting client, refusals, ranges from the end of values."""

from __future__ import annotations

import http.client
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.servers import AZURE
from zarrasync import stores, sync
from zarrasync.errors import StoreError

VALUES = np.arange(40_000, dtype="i4").reshape(200, 200)
LAYOUT: dict[str, Any] = {"chunks": (20, 20), "shards": (100, 100), "fill_value": -1}
ACCOUNT, KEY = AZURE["account_name"], AZURE["account_key"]


class Between(ThreadingHTTPServer):
    """A proxy that passes requests on to the emulator and records them.

    Attributes:
        url: The URL of the account.
        asked: Method, user agent and headers (with lower-case names) of each request.
        before: Called with the range of a request before it is passed on.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.upstream = urlsplit(endpoint).netloc
        self.url = f"http://127.0.0.1:{self.server_port}/{ACCOUNT}"
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.before: Callable[[str], None] = lambda wanted: None

    def clients(self, method: str) -> set[str]:
        return {client for verb, client, _ in self.asked if verb == method}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Between

    def handle_one(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, headers.get("user-agent", "").partition("/")[0], headers))
        self.server.before(headers.get("range", ""))
        body = self.rfile.read(int(headers.get("content-length") or 0))
        with closing(http.client.HTTPConnection(self.server.upstream)) as there:
            there.request(self.command, self.path, body, headers)
            answer = there.getresponse()
            data = answer.read()
        self.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one  # noqa: N815  # as its base calls them

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def between(azure_endpoint: str) -> Iterator[Between]:
    server = Between(azure_endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def container(azure_endpoint: str) -> str:
    """A new public container."""
    from azure.storage.blob import BlobServiceClient

    name = f"c{uuid.uuid4().hex}"
    with BlobServiceClient(azure_endpoint, credential=KEY) as client:
        client.create_container(name, public_access="container").close()
    return name


def signature(container: str, permission: str = "rwlcd") -> str:
    from azure.storage.blob import generate_container_sas

    return str(
        generate_container_sas(
            ACCOUNT, container, account_key=KEY, permission=permission, expiry=datetime.now(UTC) + timedelta(hours=1)
        )
    )


def options(between: Between, container: str, who: str) -> dict[str, Any]:
    known = {"account_name": ACCOUNT, "azure_endpoint": between.url}
    match who:
        case "key":
            return {**known, "account_key": KEY}
        case "signature":
            return {**known, "sas_token": f"?{signature(container)}"}
        case "plain signature":
            return {**known, "sas_token": unquote(signature(container))}
        case _:
            return {**known, "anon": True}


@pytest.mark.parametrize("who", ["key", "signature", "plain signature", "everybody"])
async def test_blobs_come_through_the_lean_client(api: Api, between: Between, container: str, who: str):
    url = f"az://{container}/über all/x y.zarr"
    writing = options(between, container, "key" if who == "everybody" else who)
    array = await api(api.create_array(url, data=VALUES, **LAYOUT, storage_options=writing))
    assert "zarrasync" in between.clients("PUT")  # conditional writes go through obstore
    between.asked.clear()
    opened = await api(api.open_array(url, storage_options=options(between, container, who)))
    np.testing.assert_array_equal(await api(opened.view[...].read()), VALUES)
    np.testing.assert_array_equal(await api(opened.view[5:7, 30:90].read()), VALUES[5:7, 30:90])
    assert between.clients("GET") == {"zarrasync"}
    assert between.clients("HEAD") == set()
    assert all(headers["x-ms-version"] == "2023-11-03" for _, _, headers in between.asked)
    for request in (
        stores.Request("c/0/0"),
        stores.Request("c/0/0", 7, 10),
        stores.Request("c/0/0", 10),
        stores.Request("c/0/0", 0, 404, True),
        stores.Request("c/0/0", 0, 10**6, True),
        stores.Request("c/9/9", 0, 10, True),
    ):
        (seen,) = await opened.store.fetch([request], versions=True)
        (known,) = await array.store.fetch([request], versions=True)
        assert seen == known
        if seen is not None:
            assert seen.version is not None
    # Versions of reads by URL are valid for conditional writes of obstore.
    await api.write(await api(api.open_array(url, mode="r+", storage_options=writing)), (3, 3), -1)
    changed = VALUES.copy()
    changed[3, 3] = -1
    np.testing.assert_array_equal(await api(opened.view[:4, :4].read()), changed[:4, :4])


@pytest.mark.parametrize("missing", [(), (403,)])
def test_refused_credentials_are_an_error(between: Between, missing: tuple[int, ...]):
    """Wrong credentials are an error, also if status 403 is configured to mean a missing key."""
    url, right = f"az://test/{uuid.uuid4().hex}", options(between, "test", "key")
    sync.create_array(url, data=VALUES, **LAYOUT, storage_options=right)
    wrong = {**right, "missing": missing}
    for more in ({"account_key": KEY[:20] + "AAAA" + KEY[24:]}, {"account_key": None, "sas_token": "sv=2023&sig=x"}):
        with pytest.raises(StoreError, match=r"(?s)could not read '.*failed to authenticate"):
            sync.open_array(url, storage_options={**wrong, **more})


def test_a_missing_container_is_not_a_missing_key(between: Between):
    with pytest.raises(StoreError, match="the bucket does not exist"):
        sync.open_array("az://no-such-container/x", storage_options=options(between, "", "key"))


def test_ends_of_values_that_are_replaced_meanwhile(between: Between, container: str):
    """Reading the end takes two requests; the second is conditional on the version of the first."""
    url = f"az://{container}/x"
    told = options(between, container, "key")
    array = sync.create_array(url, data=VALUES, **LAYOUT, storage_options=told)
    longer = np.random.default_rng(1).integers(0, 10**9, (100, 100), "i4")
    opened, times = sync.open_array(url, storage_options=told), itertools.count()

    def before(wanted: str) -> None:
        if wanted not in ("bytes=0-0", "") and not next(times):
            array[:100, :100] = longer

    between.before = before
    np.testing.assert_array_equal(opened[30:50, 30:50], longer[30:50, 30:50])
    assert next(times) > 1


def test_other_settings_are_for_obstore(between: Between, container: str, monkeypatch: pytest.MonkeyPatch):
    url, told = f"az://{container}/x", options(between, container, "everybody")
    sync.create_array(url, data=VALUES, **LAYOUT, storage_options=options(between, container, "key"))
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", between.url)
    between.asked.clear()
    np.testing.assert_array_equal(sync.open_array(url, storage_options=told)[...], VALUES)
    assert between.clients("GET") == {"object_store"}
