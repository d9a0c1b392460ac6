"""Requests and responses, independent of the framework that receives and sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from zarrasync.codecs.spec import Buffer
from zarrasync.server.limits import BadQuery, TooMuch

LARGE_BYTES = 4 << 20
"""Minimum size in bytes of bodies that are sent in pieces. The operating system buffers most of a smaller one."""

_PIECE_BYTES = 64 << 10
"""Bytes that a client must receive within the time limit of a request."""


Items: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of parameters, of which some may occur more than once."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        method: The method.
        path: The path below the mounted application, without percent-encoding.
        query_string: The query with percent-encoding.
        headers: Headers by their names in lower case.
        hosts: All ``Host`` headers.
        client: The address of the client.
        local: The address of this machine that the client connected to; empty for Unix sockets.
        root: The path of the application as clients see it, such as ``/data``.
        version: The version of HTTP.
        parameters: Parts of the path, by the names in a route's template.
        scheme: ``"http"`` or ``"https"``, as clients see it.
        body: The body of a POST request whose route has a document.
        receive: Returns the body, unless it has more bytes than a limit, which is an error.
        in_body: The parameters in the body.
    """

    method: str
    path: str
    query_string: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    client: str = ""
    local: str = ""
    root: str = ""
    version: tuple[int, int] = (1, 1)
    parameters: Mapping[str, str] = field(default_factory=dict)
    scheme: str = "http"
    body: bytes = b""
    receive: Callable[[int], Awaitable[bytes]] | None = None
    in_body: Items = ()

    @property
    def origin(self) -> str:
        """The scheme and the host as the client sees them: ``https://example.org``."""
        return f"{self.scheme}://{self.hosts[0] if self.hosts else 'localhost'}"

    @property
    def items(self) -> Items:
        """The parameters of the query and the body."""
        return (*_parsed(self.query_string), *self.in_body)

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query and the body by name."""
        return dict(self.items)


@lru_cache(32)  # the longest ones fill a head
def _parsed(query_string: str) -> Items:
    try:
        return tuple(parse_qsl(query_string, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise BadQuery("the query is not percent-encoded UTF-8") from None


@dataclass(slots=True)
class Response:
    """A response.

    Attributes:
        status: The status code.
        headers: Headers. ``Content-Length`` is the size of the body, unless it is specified here.
        body: The pieces of the body.
        stream: Yields the body piece by piece, instead of ``body``. Its size is unknown, unless ``Content-Length`` is in
            ``headers``.
        release: Is called as soon as the body is sent or given up.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Sequence[Buffer] = ()
    stream: AsyncIterator[Buffer] | None = None
    release: Callable[[], Any] | None = None

    @property
    def has_length(self) -> bool:
        """Whether the size of the body is known."""
        return self.stream is None or "Content-Length" in self.headers

    @property
    def length(self) -> int:
        """The bytes of the body; 0 if they are unknown."""
        announced = self.headers.get("Content-Length")
        return sum(map(len, self.body)) if announced is None else int(announced)


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class SlowClient(ConnectionResetError):
    """A client has not received a piece of a response in time."""


def check_body(size: int, most: int) -> None:
    """Check the bytes of a request's body.

    Raises:
        TooMuch: If there are too many.
    """
    if size > most:
        raise TooMuch(f"the body of the request has more than {most:,} bytes")


def coalesced(pieces: Iterable[Buffer]) -> list[bytes]:
    """Return pieces joined to fewer ones of a size that is efficient to send."""
    joined: list[bytes] = []
    waiting: list[Buffer] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            joined.append(b"".join(waiting))
            waiting, size = [], 0
    return [*joined, b"".join(waiting)] if waiting else joined


async def send_body(response: Response, send: Callable[[bytes], Awaitable[Any]], seconds: float) -> None:
    """Send a body in pieces.

    Args:
        response: The response.
        send: Sends a piece, and waits until the client has received most of the pieces before it.
        seconds: The time in which the client must receive each piece.

    Raises:
        SlowClient: If the client does not receive a piece in time.
        ConnectionResetError: If the rest of a body is not available. The status has been sent: only a broken connection
            can signal the failure.
    """
    try:
        async for buffer in _pieces(response):
            view = memoryview(buffer)
            for start in range(0, len(view), _PIECE_BYTES):
                try:
                    async with asyncio.timeout(seconds):
                        await send(bytes(view[start : start + _PIECE_BYTES]))
                except TimeoutError:
                    raise SlowClient(f"the client received nothing for {seconds:g} s") from None
    finally:
        if response.release is not None:
            response.release()


async def _pieces(response: Response) -> AsyncIterator[Buffer]:
    for piece in response.body:
        yield piece
    if response.stream is not None:
        try:
            async for piece in response.stream:
                yield piece
        except (asyncio.CancelledError, GeneratorExit, ConnectionError):
            raise
        except Exception as error:
            raise ConnectionResetError(f"the response could not be sent completely: {type(error).__name__}") from error
