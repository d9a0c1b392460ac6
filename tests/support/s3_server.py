"""A server of the object operations of S3, whose responses can be replaced with faults."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from zarrasync import sync

VALUES = np.arange(40_000, dtype="i4").reshape(200, 200)
"""The values of the array in a new bucket."""
Answer = tuple[int, dict[str, str], bytes]
Fault = Callable[[str, bytes | None], Answer | str | None]


class Bucket:
    """An S3 server with one bucket, whose responses a test can replace.

    Attributes:
        values: The stored objects by key.
        fault: Called with the key and its value before each response. Returns another response, ``"reset"``, ``"cut"``,
            ``"lost"``, ``"done, then 503"`` or ``"done twice"`` (the value is stored), or ``None`` for the right response.
        requested_keys: The keys of all requests.
        clients: The user agent of each request, and whether its URL was signed.
        access_keys: The access keys that signed requests.
        weak_tags: Whether entity tags are weak.
        if_match: The ``If-Match`` header of each write, or ``None``.
        conditional: Whether the server supports conditional writes.
        unquoted_tags: Whether conditions must name tags without quotes, as in old Ceph gateways.
        refusal: Status and code for conditional writes, if they are not supported.
        user_metadata: The user metadata of objects by key.
        is_writing: Whether the current request would change a value.
        content_encoding: A header that every response has, if it is not empty.
        url: The address of the server.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.fault: Fault = lambda key, data: None
        self.requested_keys: list[str] = []
        self.clients: list[tuple[str, bool]] = []
        self.access_keys: list[str] = []
        self.weak_tags = False
        self.if_match: list[str | None] = []
        self.conditional, self.unquoted_tags = True, False
        self.refusal = (501, "NotImplemented")
        self.user_metadata: dict[str, dict[str, str]] = {}
        self.is_writing = False
        self.url = self.content_encoding = ""

    def tag(self, data: bytes) -> str:
        return f'{"W/" * self.weak_tags}"{hash(data)}"'

    def options(self, **more: Any) -> dict[str, Any]:
        return {"key": "k", "secret": "s", "endpoint_url": self.url, **more}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self._respond(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        """Erase several objects, the only POST request that the stores make."""
        bucket: Bucket = self.server.bucket  # type: ignore[attr-defined]  # the fixture sets it
        keys = re.findall("<Key>([^<]*)</Key>", self.rfile.read(int(self.headers["Content-Length"])).decode())
        bucket.requested_keys.append("?delete")
        bucket.is_writing = True
        bucket.fault("?delete", None)
        for key in keys:
            bucket.values.pop(key, None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._send(200, {"Content-Type": "application/xml"}, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _respond(self, value: bytes | None) -> None:
        bucket: Bucket = self.server.bucket  # type: ignore[attr-defined]  # the fixture sets it
        key = self.path.split("?")[0].removeprefix("/bucket/")
        data = bucket.values.get(key)
        bucket.requested_keys.append(key)
        bucket.clients.append((self.headers["User-Agent"].partition("/")[0], "X-Amz-Signature=" in self.path))
        bucket.access_keys += re.findall("Credential=([^/%]*)", self.path + self.headers.get("Authorization", ""))
        bucket.is_writing = value is not None
        fault = bucket.fault(key, data)
        if fault == "reset":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, tuple):
            self._send(*fault)
            return
        condition = self.headers.get("If-Match") or self.headers.get("If-None-Match")
        if value is not None and condition and not bucket.conditional:
            status, code = bucket.refusal
            self._send(status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())
            return
        if value is not None and condition:
            present = None if data is None else bucket.tag(data).strip('"' * bucket.unquoted_tags)
            if present != (None if condition == "*" else condition):
                self._send(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
        if value is not None:
            bucket.values[key] = value
            bucket.user_metadata[key] = {n: v for n, v in self.headers.items() if n.lower().startswith("x-amz-meta-")}
            bucket.if_match.append(self.headers.get("If-Match"))
            if fault == "lost":
                self.close_connection = True
                self.connection.close()
                return
            if fault == "done, then 503":
                self._send(503, {}, b"<Error><Code>ServiceUnavailable</Code></Error>")
                return
            if fault == "done twice":  # the response to the second time
                self._send(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            self._send(200, {"ETag": bucket.tag(value)}, b"", cut=fault == "cut")
            return
        if data is None:
            self._send(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        byte_range = self.headers.get("Range")
        status, headers, part = 200, {"ETag": bucket.tag(data), **bucket.user_metadata.get(key, {})}, data
        if byte_range:
            first, _, last = byte_range.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            stop = min(int(last) + 1 if first and last else len(data), len(data))
            status, part = 206, data[start:stop]
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        if bucket.content_encoding:
            headers["Content-Encoding"] = bucket.content_encoding
        self._send(status, headers, part, cut=fault == "cut")

    def _send(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


@contextmanager
def s3_bucket() -> Iterator[Bucket]:
    """Run the server for the duration of a block."""
    bucket = Bucket()
    server = Server(("127.0.0.1", 0), Handler)
    server.bucket = bucket  # type: ignore[attr-defined]  # for the handler
    bucket.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    sync.create_array(bucket.values, data=VALUES, chunks=(20, 20), shards=(100, 100), fill_value=-1)
    yield bucket
    server.shutdown()
    thread.join()
    server.server_close()
