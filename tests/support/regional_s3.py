"""A server that refuses requests for another region as S3 does, in front of a server without regions."""

from __future__ import annotations

import asyncio
import io
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

__all__ = ["REGION", "Regional", "regional_s3"]

REGION = "eu-central-1"
"""The region of all buckets."""
_CREDENTIAL = re.compile(r"Credential=[^/%]*(?:/|%2F)[0-9]{8}(?:/|%2F)([a-z0-9-]+)(?:/|%2F)s3(?:/|%2F)aws4_request")
_OF_CONNECTIONS = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "date", "server"}


@dataclass
class Regional:
    """A server for the buckets of one region.

    Attributes:
        refusal: How requests for another region are refused: ``"malformed"`` (400, which states the region),
            ``"permanent"`` (301 with a header), ``"silent"`` (301, only requests for the bucket have the header), or
            ``"temporary"`` (307 to another host, with the header).
        url: The address of the server.
        elsewhere: The address to which status 307 redirects.
        refused: Method and path of each request that was refused.
        seen_elsewhere: The headers and the query of each request at the other address.
        accepted: Method and path of each request that was accepted.
        region: The region that responses state.
        refuses_all: Whether requests for this region are refused as well.
    """

    refusal: str = "permanent"
    url: str = ""
    elsewhere: str = ""
    refused: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    seen_elsewhere: list[str] = field(default_factory=list)
    region: str = REGION
    refuses_all: bool = False

    def options(self, **more: Any) -> dict[str, Any]:
        return {"key": "test", "secret": "test-secret", "endpoint_url": self.url, **more}

    def refusal_of(self, request: web.Request) -> web.Response:
        """Return the response to a request for another region, as the documentation of S3 describes it."""
        self.refused.append(f"{request.method} {request.path}")
        header = {"x-amz-bucket-region": self.region, "Content-Type": "application/xml"}
        is_head, is_bucket = request.method == "HEAD", request.path.strip("/").count("/") == 0
        if self.refusal == "malformed":
            signed_url = "X-Amz-Credential" in request.query
            code = "AuthorizationQueryParametersError" if signed_url else "AuthorizationHeaderMalformed"
            message = f"the region 'us-east-1' is wrong; expecting '{self.region}'"
            body = f"<Error><Code>{code}</Code><Message>{message}</Message><Region>{self.region}</Region></Error>"
            return web.Response(status=400, body=b"" if is_head else body.encode(), headers=header if is_head else {})
        if self.refusal == "temporary":
            header["Location"] = f"{self.elsewhere}{request.path_qs}"
            return web.Response(status=307, body=b"<Error><Code>TemporaryRedirect</Code></Error>", headers=header)
        if self.refusal == "silent" and not (is_head and is_bucket):
            del header["x-amz-bucket-region"]
        body = "" if is_head else "<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"
        return web.Response(status=301, body=body.encode(), headers=header)


@contextmanager
def regional_s3(endpoint: str) -> Iterator[Regional]:
    """Run the server in front of another one.

    Args:
        endpoint: The address of the other server.
    """
    regional, loop, ready = Regional(), asyncio.new_event_loop(), threading.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        match = _CREDENTIAL.search(f"{request.headers.get('Authorization', '')} {request.rel_url.raw_query_string}")
        body = await request.read()
        if match is None and request.method == "HEAD":
            header = {"x-amz-bucket-region": regional.region}
            return web.Response(status=403, headers=header)
        if match is None or match[1] != regional.region or regional.refuses_all:
            return regional.refusal_of(request)
        regional.accepted.append(f"{request.method} {request.path}")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_CONNECTIONS}
        url = f"{endpoint}{request.raw_path}"
        from yarl import URL

        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(request.method, URL(url, encoded=True), data=io.BytesIO(body), headers=headers) as answer,
        ):
            content = await answer.read()
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_CONNECTIONS}
            if request.method == "HEAD":
                kept["x-amz-bucket-region"] = regional.region
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, body=content, headers=kept)

    async def handle_elsewhere(request: web.Request) -> web.StreamResponse:
        regional.seen_elsewhere.append(f"{request.method} {request.raw_path} {dict(request.headers)}")
        return web.Response(status=403)

    async def serve(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        runners.append(runner)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def start() -> None:
        regional.url, regional.elsewhere = await serve(handle), await serve(handle_elsewhere)

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        for runner in runners:
            loop.run_until_complete(runner.cleanup())
        loop.close()

    runners: list[web.AppRunner] = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield regional
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
