"""A server of the XML interface of Google Cloud Storage: objects with generations, conditions, ranges, listings.

Available emulators implement only the JSON interface; obstore and readers of public data use the XML one.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000


class Google:
    """A service in which every bucket exists, except for one named ``nobodys``.

    Attributes:
        url: The address of the service.
        objects: Data and generation by bucket and name.
        metadata: User metadata of objects by bucket and name.
        requests: Method, bucket and name, and headers of all requests.
    """

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.lock = threading.Lock()
        self._generation = 1_700_000_000_000_000

    def options(self, **more: Any) -> dict[str, Any]:
        """Return storage options with all permissions."""
        account = {"gcs_base_url": self.url, "disable_oauth": True}
        nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
        account_key = {"google_service_account_key": json.dumps({**account, **nobody})}
        return {**account_key, "client_options": {"allow_http": True}, **more}

    def anonymous(self) -> dict[str, Any]:
        """Return storage options of an anonymous reader."""
        return {"token": "anon", "endpoint_url": self.url}

    def put(self, name: str, data: bytes, headers: Message) -> int:
        """Store an object. Return its generation, or 0 if the condition does not hold."""
        expected = headers.get("x-goog-if-generation-match")
        with self.lock:
            _, generation = self.objects.get(name, (b"", 0))
            if expected not in (None, str(generation)):
                return 0
            self._generation += 1
            self.objects[name] = data, self._generation
            self.metadata[name] = {n: v for n, v in headers.items() if n.lower().startswith("x-goog-meta-")}
            return self._generation

    def page(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """Return a page of a listing."""
        prefix, delimiter, after = (query.get(name, [""])[0] for name in ("prefix", "delimiter", "continuation-token"))
        entries: dict[str, str] = {}
        with self.lock:
            objects = sorted(self.objects.items())
        for full, (data, generation) in objects:
            owner, _, name = full.partition("/")
            if owner != bucket or not name.startswith(prefix):
                continue
            end = name.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                below = name[: end + len(delimiter)]
                entries[below] = f"<CommonPrefixes><Prefix>{escape(below)}</Prefix></CommonPrefixes>"
                continue
            entries[name] = (
                f"<Contents><Key>{escape(name)}</Key><Generation>{generation}</Generation><ETag>{_tag(data)}</ETag>"
                f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>{len(data)}</Size></Contents>"
            )
        names = [name for name in entries if name > after]
        more, names = len(names) > PAGE, names[:PAGE]
        token = f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>" if more else ""
        listed = "".join(entries[name] for name in names)
        return f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{listed}</ListBucketResult>".encode()


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    google: Google

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode(), Content_Type="application/xml")

    def do(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        name, query = unquote(url.path[1:]), parse_qs(url.query)
        bucket, _, key = name.partition("/")
        self.google.requests.append((self.command, name, dict(self.headers)))
        if bucket == "nobodys":
            self.refuse(404, "NoSuchBucket")
        elif not key:
            self.answer(200, self.google.page(bucket, query), Content_Type="application/xml")
        elif self.command == "PUT":
            generation = self.google.put(name, data, self.headers)
            if generation:
                self.answer(200, ETag=_tag(data), x_goog_generation=generation)
            else:
                self.refuse(412, "PreconditionFailed")
        elif self.command == "DELETE":
            with self.google.lock:
                removed = self.google.objects.pop(name, None)
            self.refuse(404, "NoSuchKey") if removed is None else self.answer(204)
        else:
            self.read(name)

    do_GET = do_HEAD = do_PUT = do_DELETE = do  # noqa: N815  # as its base calls them

    def read(self, name: str) -> None:
        stored = self.google.objects.get(name)
        if stored is None:
            self.refuse(404, "NoSuchKey")
            return
        data, generation = stored
        headers = {
            "ETag": _tag(data),
            "x_goog_generation": generation,
            "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            **self.google.metadata[name],
        }
        byte_range = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if byte_range is None or self.command == "HEAD":
            self.answer(200, data, **headers)
            return
        first, last = byte_range.groups()
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(len(data), int(last) + 1) if first and last else len(data)
        if start >= stop:
            self.refuse(416, "InvalidRange")
        else:
            self.answer(206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **headers)


@contextmanager
def google_storage() -> Iterator[Google]:
    """Run the service for the duration of a block."""
    google = Google()
    handler = type("Handler", (_Handler,), {"google": google})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    google.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield google
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
