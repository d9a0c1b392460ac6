"""Fixtures: both APIs, real servers, and a store of every kind."""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google_server import Google, google_storage
from s3_server import Bucket, s3_bucket

import zarrasync as za
from zarrasync import stores, sync

GOLDEN = os.environ.get("ZARRASYNC_GOLDEN", "")

# moto's server and botocore look for these.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
# gcsfs would ask the emulator for something that it does not have, and wait for a minute.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


class Api:
    """One of the two APIs, called in the same way: ``await api(result)``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.za: Any = za if name == "async" else sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self.za, name)

    async def __call__(self, result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    async def write(self, target: Any, key: Any, value: Any) -> None:
        if self.name == "async":
            await target[key].write(value)
        else:
            target[key] = value


@pytest.fixture(params=["async", "sync"])
def api(request: pytest.FixtureRequest) -> Api:
    return Api(request.param)


def load_example(name: str) -> Any:
    """A module of the examples."""
    path = Path(__file__).parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------ other implementations


@pytest.fixture(scope="session")
def zarr2(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs ``zarr2_oracle.py`` in an environment that has zarr-python 2.18."""
    python = os.environ.get("ZARRASYNC_ZARR2", "")
    if not python:
        pytest.skip("ZARRASYNC_ZARR2 does not name the Python of an environment with zarr-python 2.18")
    oracle = Path(__file__).with_name("zarr2_oracle.py")

    def run(*arguments: Any) -> str:
        done = subprocess.run([python, oracle, *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run


# ------------------------------------------------------------------ servers


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 server (moto over HTTP) with a bucket ``test-bucket``."""
    pytest.importorskip("moto.server")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="test-bucket")
    client.close()
    yield endpoint
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str) -> tuple[str, dict[str, Any]]:
    """A fresh S3 URL and its storage options."""
    options = {"key": "test", "secret": "test", "endpoint_url": s3_endpoint}
    return f"s3://test-bucket/{uuid.uuid4().hex}", options


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without keys for S3: the directory where ``credentials`` and ``config`` of AWS's tools are looked for."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for ``localhost`` that it has signed itself, and a context for its server."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(["openssl", *command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


@contextmanager
def http_server(root: Path, below: str = "/", *, show_index: bool = False) -> Iterator[str]:
    """Serve a directory over HTTP with byte ranges; yields the server's URL, below which it lies."""
    import asyncio

    from aiohttp import web

    loop = asyncio.new_event_loop()
    ready = threading.Event()
    address: list[int] = []

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_static(below, root, show_index=show_index)
        runner = web.AppRunner(app)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        address.append(listener.getsockname()[1])
        await web.SockSite(runner, listener).start()
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{address[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A URL and the directory that is served there."""
    root = tmp_path / "served"
    root.mkdir()
    with http_server(root) as url:
        yield url, root


@pytest.fixture(scope="session")
def gcs_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator of Google Cloud Storage with a bucket ``test-bucket``."""
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
    pytest.importorskip("gcsfs")
    port = free_port()
    command = ["-m", "gcp_storage_emulator", "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    with serving([sys.executable, *command, "--default-bucket=test-bucket"], port, tmp_path_factory.mktemp("gcs")):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def gcs(gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """A fresh URL of Google Cloud Storage and its storage options."""
    return f"gs://test-bucket/{uuid.uuid4().hex}", {"endpoint_url": gcs_endpoint, "token": "anon", "project": "p"}


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """A server of S3's interface that fails as it is told to."""
    with s3_bucket() as found:
        yield found


@pytest.fixture
def google() -> Iterator[Google]:
    """A server of Google Cloud Storage's XML interface, which is what obstore speaks."""
    with google_storage() as server:
        yield server


AZURE = {
    "account_name": "devstoreaccount1",
    # What every emulator has; it is no secret.
    "account_key": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
}


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator of Azure's blobs with a container ``test``."""
    program = os.environ.get("ZARRASYNC_AZURITE", "")
    if not program:
        pytest.skip("ZARRASYNC_AZURITE does not name the program azurite-blob")
    pytest.importorskip("adlfs")
    from azure.storage.blob import BlobServiceClient

    port, folder = free_port(), tmp_path_factory.mktemp("azure")
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    with serving([program, *options, "--silent"], port, folder):
        endpoint = f"http://127.0.0.1:{port}/{AZURE['account_name']}"
        with BlobServiceClient(endpoint, credential=AZURE["account_key"]) as client:
            client.create_container("test").close()
        yield endpoint


@pytest.fixture
def azure(azure_endpoint: str) -> tuple[str, dict[str, Any]]:
    """A fresh URL of Azure and its storage options."""
    protocol = "DefaultEndpointsProtocol=http;"
    connection = f"{protocol}AccountName={AZURE['account_name']};AccountKey={AZURE['account_key']};BlobEndpoint={azure_endpoint};"
    return f"az://test/{uuid.uuid4().hex}", {"connection_string": connection}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """A server in a process of its own, once it answers."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            end = time.monotonic() + 60
            while True:
                with socket.socket() as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < end, f"{command[0]} does not answer"
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()


# ------------------------------------------------------------------ stores

WRITEABLE = [
    "memory",
    "local",
    "fsspec-memory",
    "fsspec-local",
    "s3",
    "obstore",
    "zarr-python",
    "prefix",
    "counting",
    "caching",
    "caching-s3",
    "disk-caching",
    "tracing",
    "latency",
    "zip",
    "gcs",
    "gcs-obstore",
    "azure",
    "azure-obstore",
]


@pytest.fixture(params=WRITEABLE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    """A fresh store of each kind that can be written to."""
    return make_store(request.param, request, tmp_path)


def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    if kind == "memory":
        return stores.MemoryStore()
    if kind == "local":
        return stores.LocalStore(tmp_path / "local")
    if kind == "fsspec-memory":
        return stores.resolve(f"memory://{uuid.uuid4().hex}")
    if kind == "fsspec-local":
        import fsspec

        return stores.FsspecStore(fsspec.filesystem("file"), str(tmp_path / "fsspec"))
    if kind == "s3":
        url, options = request.getfixturevalue("s3")
        return stores.resolve(url, {**options, "backend": "fsspec"})
    if kind == "zarr-python":
        zarr = pytest.importorskip("zarr")
        return stores.resolve(zarr.storage.LocalStore(tmp_path / "theirs"))
    if kind == "obstore":
        pytest.importorskip("obstore")
        url, options = request.getfixturevalue("s3")
        # As it is over TLS, where values are not hashed for the signature.
        return stores.ObjectStore.from_url(url, {**options, "aws_unsigned_payload": True})
    if kind == "caching":
        return stores.CachingStore(stores.LocalStore(tmp_path / "cached"))
    if kind == "caching-s3":
        return stores.CachingStore(make_store("obstore", request, tmp_path))
    if kind == "disk-caching":
        return stores.DiskCachingStore(make_store("obstore", request, tmp_path), tmp_path / "kept")
    if kind == "tracing":
        return stores.TracingStore(stores.MemoryStore())
    if kind == "latency":
        return stores.LatencyStore(stores.MemoryStore(), 0.001)
    if kind == "zip":
        return stores.ZipStore(tmp_path / "written.zip", mode="w")
    if kind == "gcs":
        url, options = request.getfixturevalue("gcs")
        return stores.resolve(url, {**options, "backend": "fsspec"})
    if kind == "gcs-obstore":
        return stores.resolve("gs://bucket/somewhere", request.getfixturevalue("google").options())
    if kind.startswith("azure"):
        url, options = request.getfixturevalue("azure")
        return stores.resolve(url, {**options, "backend": "obstore" if kind.endswith("obstore") else "fsspec"})
    if kind == "prefix":
        return stores.PrefixStore(stores.MemoryStore(), "some/where/")
    return stores.CountingStore(stores.LocalStore(tmp_path / "counted"))
