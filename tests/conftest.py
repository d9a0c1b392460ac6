"""Fixtures: both APIs, real servers, and a store of every kind."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, tiers
from tests.support.api import Api
from tests.support.google_server import Google, google_storage
from tests.support.s3_server import Bucket, s3_bucket
from tests.support.servers import AZURE, free_port, http_server, serving
from tests.support.store_kinds import WRITEABLE, make_store
from zarrasync import stores

# moto's server and botocore need these.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
# Otherwise gcsfs requests a feature that the emulator lacks, and waits for a minute.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Choose tests by tier."""
    pluginmanager.register(tiers)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernel of a checkout again if its sources have changed."""
    builder = ROOT / "zarrasync" / "_kernel" / "build.py"
    if not hasattr(config, "workerinput") and builder.exists():
        subprocess.run([sys.executable, builder], check=True)


@pytest.fixture(params=["async", "sync"])
def api(request: pytest.FixtureRequest) -> Api:
    return Api(request.param)


# ------------------------------------------------------------------ other implementations


@pytest.fixture(scope="session")
def zarr2(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs ``zarr2_oracle.py`` in an environment with zarr-python 2.18."""
    python = os.environ.get("ZARRASYNC_ZARR2", "")
    if not python:
        pytest.skip("ZARRASYNC_ZARR2 does not name the Python of an environment with zarr-python 2.18")
    oracle = ROOT / "tests" / "support" / "zarr2_oracle.py"

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
def aws_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without S3 credentials: the directory of the AWS files ``credentials`` and ``config``."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for ``localhost``, and an SSL context for its server."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(["openssl", *command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


@pytest.fixture
def http(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A URL and the directory that it serves."""
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
    """A fresh Google Cloud Storage URL and its storage options."""
    return f"gs://test-bucket/{uuid.uuid4().hex}", {"endpoint_url": gcs_endpoint, "token": "anon", "project": "p"}


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """An S3 server whose responses a test can replace with faults."""
    with s3_bucket() as found:
        yield found


@pytest.fixture
def google() -> Iterator[Google]:
    """A server of the XML interface of Google Cloud Storage, which obstore uses."""
    with google_storage() as server:
        yield server


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator of Azure Blob Storage with a container ``test``."""
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
    """A fresh Azure URL and its storage options."""
    protocol = "DefaultEndpointsProtocol=http;"
    connection = f"{protocol}AccountName={AZURE['account_name']};AccountKey={AZURE['account_key']};BlobEndpoint={azure_endpoint};"
    return f"az://test/{uuid.uuid4().hex}", {"connection_string": connection}


# ------------------------------------------------------------------ stores


@pytest.fixture(params=WRITEABLE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    """A fresh store of each writable kind."""
    return make_store(request.param, request, tmp_path)
