"""Google Cloud Storage: public objects, credentials, compressed objects."""

from __future__ import annotations

import asyncio
import gzip
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.api import Api
from tests.support.google_server import Google
from tests.support.s3_server import VALUES, Bucket
from zarrasync import stores, sync
from zarrasync.errors import StoreError


async def test_public_google_objects_use_the_lean_client(api: Api, google: Google):
    """Anonymous readers use the lean client, writers use obstore; both see the same versions."""
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
    with pytest.raises(StoreError, match="the bucket does not exist"):
        await api(api.open_array("gs://nobodys/x", storage_options=google.anonymous()))


class Tokens:
    """A service that issues a new access token, valid for an hour, for each signed request."""

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
        """The forms in which users pass credentials."""
        from google.oauth2.service_account import Credentials

        account = {**self.account, "token_uri": url}
        (self.folder / "account.json").write_text(json.dumps(account))
        scoped = Credentials.from_service_account_info(account, scopes=["https://example.org"])
        return {"a file": str(self.folder / "account.json"), "a dictionary": account, "credentials": scoped}


@pytest.mark.parametrize("form", ["a file", "a dictionary", "credentials"])
async def test_googles_credentials_in_gcsfs_words(api: Api, google: Google, form: str, tmp_path: Path):
    """Requests go through obstore, which supports conditional writes; the token is requested once."""
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


async def test_googles_credentials_that_lead_nowhere(api: Api, google: Google, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("gcsfs")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # gcsfs sends strings that are not paths of files to Google
    for token in ({"type": "service_account"}, "/nowhere/that-is-a-secret"):
        options = {"token": token, "endpoint_url": google.url}
        with pytest.raises(StoreError, match="credential") as found:
            await api(api.open_array("gs://bucket/x", storage_options=options, config={"retries": 0}))
        assert "secret" not in str(found.value)
    assert google.requests == []


@contextmanager
def giving(answer: Callable[[], bytes]) -> Iterator[str]:
    """A server that answers every POST with the same response."""

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
def test_objects_with_content_encoding_are_returned_as_stored(bucket: Bucket, truly: bool):
    """``Content-Encoding`` is a hint for browsers; obstore returns the stored bytes."""
    key, value = "c/0/0", bucket.values["c/0/0"]
    bucket.values[key] = gzip.compress(value) if truly else value
    bucket.content_encoding = "gzip"
    store = stores.resolve("s3://bucket", bucket.options())
    (found,) = asyncio.run(store.fetch([stores.Request(key)]))
    assert found is not None
    assert bytes(found.data) == bucket.values[key]
    (found,) = asyncio.run(store.fetch([stores.Request(key, 5, 20)]))
    assert bytes(found.data) == bucket.values[key][5:25]
    if not truly:
        np.testing.assert_array_equal(sync.open_array(store)[33:35, ::7], VALUES[33:35, ::7])
