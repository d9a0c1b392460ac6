"""Documents of references: which places they may refer to, and malformed ones."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import zarrasync as za
from tests.support.api import Api
from tests.support.server_client import serving
from zarrasync import cli, stores, sync
from zarrasync.errors import MetadataError, StoreError, ZarrError
from zarrasync.stores import FsspecStore
from zarrasync.stores.fsspec.targets import is_public

SECRET, OPEN = b"not for the author of a document", b"beside the document, or allowed."
ARRAY = {"zarr_format": 2, "shape": [32], "chunks": [32], "dtype": "|u1", "compressor": None, "filters": None}
BASE: dict[str, Any] = {
    ".zgroup": '{"zarr_format": 2}',
    "a/.zarray": json.dumps({**ARRAY, "fill_value": 0, "order": "C"}),
}


def references(target: object, **members: Any) -> bytes:
    return json.dumps({"version": 1, "refs": {**BASE, "a/0": target}, **members}).encode()


class Web:
    """A server on an address of loopback. Values of ``files`` are contents, or URLs to redirect to."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        self.files: dict[str, bytes | str] = {}
        self.seen: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.seen.append(self.path)
                content = web.files.get(self.path)
                self.send_response(404 if content is None else 302 if isinstance(content, str) else 200)
                if isinstance(content, str):
                    self.send_header("Location", content)
                body = content if isinstance(content, bytes) else b""
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if self.command == "GET" else b"")

            do_HEAD = do_GET  # noqa: N815  # as http.server requires

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer((address, port), Handler)
        self.url = f"http://{address}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def webs() -> Iterator[Callable[..., Web]]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: Any) -> Web:
            web = Web(*arguments)
            stack.callback(web.close)
            return web

        yield start


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses of host names, for one lookup after the other; the last ones are for all further lookups."""
    found: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        addresses = found.get(host.decode() if isinstance(host, bytes) else host)
        if addresses is None:
            return real(host, *arguments, **options)
        current = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return [entry for address in current.split() for entry in real(address, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


async def value(api: Api, url: Any, **options: Any) -> bytes:
    with za.config.set(retries=0, total_timeout=5.0):
        group = await api(api.open_group(url, storage_options=options or None))
        array: Any = await api(group["a"])
        return bytes(await api(array.view[:].read()))


# ------------------------------------------------------------------ which places


@pytest.mark.servers
@pytest.mark.parametrize("chain", ["", "simplecache::"])
async def test_documents_from_elsewhere_reach_their_origin_and_no_files(
    api: Api, webs: Callable[..., Web], tmp_path: Path, chain: str
):
    """The document is behind a URL, an option, an object of fsspec, a cache, or a redirect."""
    own, inner = webs(), webs()
    (tmp_path / "secret").write_bytes(SECRET)
    own.files |= {"/open": OPEN, "/away": f"{inner.url}/secret", "/here": "/open"}
    inner.files["/secret"] = SECRET
    url = f"reference::{chain}{own.url}/r.json"
    for path in ("/open", "/here"):
        own.files["/r.json"] = references([own.url + path])
        assert await value(api, url) == OPEN
    targets = [
        *(str(tmp_path / "secret"), f"file://{tmp_path}/secret", f"local://{tmp_path}/secret", "memory://secret"),
        *(f"{inner.url}/secret", f"{own.url}/away", f"http://localhost:{inner.server.server_port}/secret"),
        *(f"simplecache::file://{tmp_path}/secret", f"http://2130706433:{inner.server.server_port}/secret"),
    ]
    for target in targets:
        own.files["/r.json"] = references([target], templates={"u": "x"})
        with pytest.raises(ZarrError):
            await value(api, url)
        if "::" not in target:  # which fsspec itself does not open
            with pytest.raises(ZarrError):
                await value(api, fsspec.get_mapper(url))
    own.files["/r.json"] = references(["{{u}}/secret", 0, 32], templates={"u": str(tmp_path)})
    with pytest.raises(StoreError, match=r"r\.json': 'a/0' refers to '.*secret', which is refused.*allow_targets"):
        await value(api, url)
    with pytest.raises(StoreError, match="refused"):
        sync.copy(url, tmp_path / "copy.zarr")
    assert inner.seen == []


@pytest.mark.servers
async def test_places_that_the_reader_allows(api: Api, webs: Callable[..., Web], tmp_path: Path):
    own, inner = webs(), webs()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "open").write_bytes(OPEN)
    (tmp_path / "data" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(SECRET)
    inner.files |= {"/data/open": OPEN, "/secret": SECRET}
    url, allowed = f"reference::{own.url}/r.json", [str(tmp_path / "data"), f"{inner.url}/data/"]
    for target in (f"{tmp_path}/data/open", f"file://{tmp_path}/data/open", f"{inner.url}/data/open"):
        own.files["/r.json"] = references([target])
        assert await value(api, url, allow_targets=allowed) == OPEN
        assert await value(api, url, allow_targets=["*"]) == OPEN
        store = FsspecStore(fsspec.filesystem("reference", fo=f"{own.url}/r.json"), allow_targets=allowed)
        assert await value(api, pickle.loads(pickle.dumps(store))) == OPEN
        arguments = [argument for place in allowed for argument in ("--allow-target", place)]
        assert cli.main(["info", url, *arguments]) == cli.main(["validate", "--data", url, *arguments]) == 0
    outside = (
        f"{tmp_path}/data/../secret",
        f"{tmp_path}/data/out",
        f"{tmp_path}/database",
        f"{inner.url}/data/../secret",
    )
    for target in (*outside, f"{inner.url}/secret"):
        own.files["/r.json"] = references([target])
        with pytest.raises(StoreError, match="refused"):
            await value(api, url, allow_targets=allowed)
    assert "/secret" not in inner.seen


@pytest.mark.servers
async def test_addresses_are_those_that_are_connected_to(
    api: Api, webs: Callable[..., Web], names: dict[str, list[str]]
):
    """A host of a private network may refer to itself, but not by a name that later means another address."""
    own = webs()
    port = own.server.server_port
    other = webs("127.0.0.2", port)
    other.files["/x"] = SECRET
    own.files |= {"/r.json": references([f"http://own.test:{port}/x"]), "/x": OPEN}
    url = f"reference::http://own.test:{port}/r.json"
    names["own.test"] = ["127.0.0.1"]
    assert await value(api, url) == OPEN
    for later in ("127.0.0.2", "127.0.0.1 127.0.0.2", "::1", "169.254.169.254"):
        names["own.test"] = ["127.0.0.1", later]
        with pytest.raises(StoreError, match=r"own\.test .*is refused: its address is not public"):
            await value(api, url)
    own.files["/r.json"] = references([f"http://other.test:{port}/x"])
    names |= {"own.test": ["127.0.0.1"], "other.test": ["127.0.0.2"]}
    with pytest.raises(StoreError, match=r"other\.test .*is refused"):
        await value(api, url)
    assert other.seen == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *((address, True) for address in ("8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1")),
        *(
            (address, False)
            for address in ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0")
        ),
        *(
            (address, False)
            for address in ("100.64.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1%eth0", "fc00::1")
        ),
        *(
            (address, False)
            for address in ("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "name")
        ),
    ],
)
def test_public_addresses(address: str, *, expected: bool):
    assert is_public(address) is expected


@pytest.mark.servers
async def test_local_documents(api: Api, webs: Callable[..., Web], tmp_path: Path):
    """They reach all files and hosts; a server hands out files of their own directory only."""
    web = webs()
    web.files["/open"] = OPEN
    (tmp_path / "own").mkdir()
    document = tmp_path / "own" / "r.json"
    for path in ("open", "own/open"):
        (tmp_path / path).write_bytes(OPEN)
    (tmp_path / "own" / "link").symlink_to(tmp_path / "open")
    targets = {
        f"{tmp_path}/own/open": 200,
        f"{web.url}/open": 200,
        f"{tmp_path}/open": 502,
        f"{tmp_path}/own/link": 502,
    }
    for target, status in targets.items():
        document.write_bytes(references([target, 0, 32] if "://" not in target else [target]))
        url = f"reference::{document}"
        assert await value(api, url) == OPEN
        wrapped = stores.CachingStore(stores.resolve(url))
        for served in (url, wrapped, f"{url}|zarr2:"):
            async with serving(served) as client:
                assert (await client.get("/raw/a/0"))[0] == status
        with serving_allowed(url, tmp_path) as store:
            async with serving(store) as client:
                assert (await client.get("/raw/a/0"))[:2] == (200, OPEN)


@contextlib.contextmanager
def serving_allowed(url: str, folder: Path) -> Iterator[Any]:
    yield stores.resolve(url, {"allow_targets": [str(folder)]})


# ------------------------------------------------------------------ malformed documents


@pytest.mark.parametrize(
    "document",
    [
        *(
            references(target)
            for target in ([], [1], ["x", 0], ["x", 0, 1, 2], ["x", -1, 3], ["x", 0, -3], 5, None, True)
        ),
        *(
            references(target)
            for target in (["x", 1 << 62, 1 << 62], ["x", 10**30, 1], ["x", 0.5, 3], ["x", "0", "3"], ["x", True, 3])
        ),
        *(
            references(["{{ w }}", 0, 48], templates=templates)
            for templates in ({"u": "x"}, {"u": 5}, {"w": "{{ u }}"}, [], "x")
        ),
        *(
            references(["{{u.__class__}}"], templates={"u": "x"}),
            references(["{{u:>99999999999}}"], templates={"u": "x"}),
        ),
        *(references("base64:!", gen=[{"key": "x", "url": "y", "dimensions": {}}]), references("base64:A")),
        *(
            b'{"version": 1, "refs": [1, 2]}',
            b'{"version": 7, "refs": {}}',
            b'{"version": "1", "refs": {}}',
            b'{"a/0": []}',
        ),
        *(b'{"version":1,"refs":' + b'{"a":' * 20000 + b"1" + b"}" * 20001, b"[]", b"", b"{", b"\xff", b"null"),
    ],
)
@pytest.mark.parametrize("api", ["sync"], indirect=True)
async def test_malformed_documents(api: Api, document: bytes, tmp_path: Path):
    (tmp_path / "r.json").write_bytes(document)
    with pytest.raises(MetadataError, match=r"r\.json"):
        await value(api, f"reference::{tmp_path}/r.json")


async def test_targets_that_cannot_be_read(api: Api, tmp_path: Path):
    """None of them is an absent chunk, whose values would be the fill value, and none is waited for."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "short").write_bytes(b"12345")
    for name, message in {
        "fifo": "named pipe",
        "dangling": "No such file",
        "nothing": "No such file",
        "": "directory",
        "/dev/zero": "device",
        "short": "ends 27 bytes before",
    }.items():
        (tmp_path / "r.json").write_bytes(references([str(tmp_path / name), 0, 32]))
        with pytest.raises(StoreError, match=message):
            await value(api, f"reference::{tmp_path}/r.json")
    for name in ("fifo", "dangling"):
        with pytest.raises(StoreError, match=name):
            await value(api, f"reference::{tmp_path}/{name}")
    with pytest.raises(StoreError, match="behind other references"):
        await value(api, f"reference::reference::{tmp_path}/r.json")


async def test_documents_are_limited_in_size(api: Api, tmp_path: Path):
    (tmp_path / "r.json").write_bytes(references(["{{u}}" * 1000], templates={"u": "x" * 1000}))
    with za.config.set(max_document_bytes=100_000), pytest.raises(MetadataError, match=r"r\.json.*max_document_bytes"):
        await value(api, f"reference::{tmp_path}/r.json")
