"""An S3 server in a process of its own, for tests in which several processes write."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["BUCKET", "s3_client", "serve_s3"]

BUCKET = "strict"
_CODE = """
    import sys
    from werkzeug.serving import make_server
    from moto.server import DomainDispatcherApplication, create_backend_app
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
    print(server.server_port, flush=True)
    server.serve_forever()
    """


@contextmanager
def serve_s3(folder: Path) -> Iterator[dict[str, Any]]:
    """Run a server with an empty bucket. It handles one request at a time, because moto compares and writes in two steps.

    Args:
        folder: The folder for its log.

    Yields:
        Storage options.
    """
    pytest.importorskip("moto.server", reason="moto is not installed")
    with (folder / "s3.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_CODE)], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
            options = {"key": "test", "secret": "test", "endpoint_url": endpoint}
            client = s3_client(options)
            client.create_bucket(Bucket=BUCKET)
            client.close()
            yield options
        finally:
            server.kill()
            server.communicate()


def s3_client(options: dict[str, Any]) -> Any:
    """Return a client of boto3."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=options["endpoint_url"],
        region_name="us-east-1",
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
    )
