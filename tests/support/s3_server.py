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
"""What its bucket holds, in shards."""
Answer = tuple[int, dict[str, str], bytes]
Fault = Callable[[str, bytes | None], Answer | str | None]


class Bucket:
    """An S3 server that serves values and fails as it is told to.

    Attributes:
        values: What it holds.
        fault: Asked before each answer: another answer, ``"reset"``, ``"cut"``, ``"lost"`` or ``"done, then 503"`` (what is given is stored), or
            ``None`` for the right one.
        asked: The keys that were asked for.
        clients: Who asked, and whether by a signed URL.
        keys: The keys that they signed with.
        weak: Whether its tags are weak.
        matched: What was to be compared before values were stored.
        conditional: Whether it knows conditions at all.
        bare: Whether it compares tags without their quotes, and no others, as old gateways of Ceph's do.
        marks: What was said of values beside their bytes.
        writing: Whether what is asked now would store something.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.fault: Fault = lambda key, data: None
        self.asked: list[str] = []
        self.clients: list[tuple[str, bool]] = []
        self.keys: list[str] = []
        self.weak = False
        self.matched: list[str | None] = []
        self.conditional, self.bare = True, False
        self.unable = (501, "NotImplemented")
        self.marks: dict[str, dict[str, str]] = {}
        self.writing = False
        self.url = self.label = ""

    def tag(self, data: bytes) -> str:
        return f'{"W/" * self.weak}"{hash(data)}"'

    def options(self, **more: Any) -> dict[str, Any]:
        return {"key": "k", "secret": "s", "endpoint_url": self.url, **more}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        """Erase several objects, the only POST request that the stores make."""
        bucket: Bucket = self.server.bucket  # type: ignore[attr-defined]  # the fixture sets it
        keys = re.findall("<Key>([^<]*)</Key>", self.rfile.read(int(self.headers["Content-Length"])).decode())
        bucket.asked.append("?delete")
        bucket.writing = True
        bucket.fault("?delete", None)
        for key in keys:
            bucket.values.pop(key, None)
        done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._send(200, {"Content-Type": "application/xml"}, f"<DeleteResult>{done}</DeleteResult>".encode())

    def _answer(self, given: bytes | None) -> None:
        bucket: Bucket = self.server.bucket  # type: ignore[attr-defined]  # the fixture sets it
        key = self.path.split("?")[0].removeprefix("/bucket/")
        data = bucket.values.get(key)
        bucket.asked.append(key)
        bucket.clients.append((self.headers["User-Agent"].partition("/")[0], "X-Amz-Signature=" in self.path))
        bucket.keys += re.findall("Credential=([^/%]*)", self.path + self.headers.get("Authorization", ""))
        bucket.writing = given is not None
        fault = bucket.fault(key, data)
        if fault == "reset":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, tuple):
            self._send(*fault)
            return
        condition = self.headers.get("If-Match") or self.headers.get("If-None-Match")
        if given is not None and condition and not bucket.conditional:
            status, code = bucket.unable
            self._send(status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())
            return
        if given is not None and condition:
            present = None if data is None else bucket.tag(data).strip('"' * bucket.bare)
            if present != (None if condition == "*" else condition):
                self._send(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
        if given is not None:
            bucket.values[key] = given
            bucket.marks[key] = {n: v for n, v in self.headers.items() if n.lower().startswith("x-amz-meta-")}
            bucket.matched.append(self.headers.get("If-Match"))
            if fault == "lost":
                self.close_connection = True
                self.connection.close()
                return
            if fault == "done, then 503":
                self._send(503, {}, b"<Error><Code>ServiceUnavailable</Code></Error>")
                return
            self._send(200, {"ETag": bucket.tag(given)}, b"", cut=fault == "cut")
            return
        if data is None:
            self._send(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        wanted = self.headers.get("Range")
        status, headers, part = 200, {"ETag": bucket.tag(data), **bucket.marks.get(key, {})}, data
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            stop = min(int(last) + 1 if first and last else len(data), len(data))
            status, part = 206, data[start:stop]
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        if bucket.label:
            headers["Content-Encoding"] = bucket.label
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
        """Clients may hang up."""


@contextmanager
def s3_bucket() -> Iterator[Bucket]:
    """Run the server for the duration of a block."""
    found = Bucket()
    server = Server(("127.0.0.1", 0), Handler)
    server.bucket = found  # type: ignore[attr-defined]  # for the handler
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    sync.create_array(found.values, data=VALUES, chunks=(20, 20), shards=(100, 100), fill_value=-1)
    yield found
    server.shutdown()
    thread.join()
    server.server_close()
