"""Files behind a web server, on aiohttp: byte ranges, connections that are used again, no listing but where it is offered."""

from __future__ import annotations

import asyncio
import builtins
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from zarrasync import config
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import request_limiter
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync.errors import StoreError, UnsupportedOperation
from zarrasync.model.paths import check_prefix
from zarrasync.stores.base import Listing, Request, Value, clip, statuses
from zarrasync.stores.errors import tells_of_key, without_queries
from zarrasync.stores.http import client as http1
from zarrasync.stores.http.client import Answer
from zarrasync.stores.http.responses import check_passing, range_of, value_of, version_of
from zarrasync.stores.remote import Attempt, RemoteStore, in_flight

__all__ = ["HTTPStore"]

_INDEX = re.compile(rb"<title>\s*(?:Index of|Directory listing for|Listing of)", re.IGNORECASE)
_AGENT = "zarrasync"
_ERROR = 2000
"""Bytes of an answer in which a server says what is wrong."""
SAFE = "/%:@!$&'()*+,;=[]~"
"""What may stand in a URL's path as it is; escapes are taken for such."""
_ASKING = frozenset({"ssl", "timeout", "auth", "proxy", "cookies", "allow_redirects"})
"""Options of fsspec's that go along with each request."""
_OPTIONS = frozenset({"headers", "client_kwargs", "missing", "concurrency"}) | _ASKING
_NEEDLESS = frozenset(
    {"block_size", "cache_type", "cache_options", "size_policy", "simple_links", "same_scheme", "use_listings_cache"}
)
"""Options of fsspec's that say how files are read ahead and directories are looked through."""
_GENERAL = frozenset({"encoded", "get_client"})
"""Options of fsspec's that only its filesystem can do."""
_LINK = re.compile(rb"""<a\s[^>]*href=["']([^"'?#]+)["'][^>]*>([^<]*)""", re.IGNORECASE)
_HOST = re.compile(r"(https?:)?//", re.IGNORECASE)
_NO_FILE = re.compile(r"(mailto|javascript|data|tel):", re.IGNORECASE)


class HTTPStore(RemoteStore):
    """Files below a URL. Nothing can be written.

    Requests ask for byte ranges; a server that ignores them costs the whole value, not its correctness. Absent is
    what is answered with one of ``missing``; everything else that is no answer is an error. Listing works
    where the server shows directories, as nginx, Apache and Python's do when told to.

    Args:
        url: The URL of the store's root. A query (such as a signature) is sent with each request, and never shown.
        headers: Sent with each request.
        missing: Statuses beside 404 that mean that there is no such key.
        concurrency: Requests in flight at the most; 256, and up to 512 while the server answers quickly, if 0.
        client_options: For ``aiohttp.ClientSession``, such as ``auth``, ``trust_env`` or ``cookies``.
        request_options: For each request of it, such as ``ssl``, ``proxy`` or ``allow_redirects``.

    Raises:
        ValueError: If the URL is not one of the web.
    """

    writeable = False

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        missing: Iterable[int] = (410,),
        concurrency: int = 0,
        client_options: Mapping[str, Any] | None = None,
        request_options: Mapping[str, Any] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"{url!r} is not an http or https URL")
        parts = parts._replace(path=quote(parts.path, safe=SAFE), query=quote(parts.query, safe=f"{SAFE}?"))
        self.settings = config.get()
        self._base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._query = f"?{parts.query}" if parts.query else ""
        self._server = ("http", parts.netloc)
        self.headers, self.missing = dict(headers or {}), statuses(missing) | {404}
        self.usual, self.concurrency = in_flight(concurrency or self.settings.concurrency)
        self._options, self._asking = dict(client_options or {}), dict(request_options or {})
        self._clients = self._pool()

    @staticmethod
    def takes(options: Iterable[str]) -> bool:
        """Whether these options need no filesystem of fsspec's."""
        return _GENERAL.isdisjoint(options)

    @classmethod
    def from_url(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> HTTPStore:
        """The store of a URL, with options as fsspec's HTTP filesystem takes them.

        Args:
            url: The URL.
            storage_options: ``headers``, ``client_kwargs`` (for aiohttp's session), ``missing``, ``concurrency``, and what
                goes along with each request: ``ssl``, ``timeout``, ``auth``, ``proxy``, ``cookies``, ``allow_redirects``.

        Raises:
            TypeError: If there are other options.
        """
        options = {name: value for name, value in (storage_options or {}).items() if name not in _NEEDLESS}
        if unknown := sorted(set(options) - _OPTIONS):
            known = ", ".join(sorted(_OPTIONS | _GENERAL))
            raise TypeError(f"the storage options of {url.partition('?')[0]!r} are {known}; found {unknown[0]!r}")
        client = dict(options.pop("client_kwargs", None) or {})
        headers = {**client.pop("headers", {}), **(options.pop("headers", None) or {})}
        asking = {name: options.pop(name) for name in sorted(_ASKING & options.keys())}
        return cls(url, headers=headers, client_options=client, request_options=asking, **options)

    def _pool(self) -> PerLoop[_Clients]:
        limit = self.settings.max_document_bytes
        return PerLoop(
            partial(_make_clients, self._base, self._query, self.headers, self._options, self._asking, limit),
            _Clients.close,
        )

    @property
    def identity(self) -> Hashable:
        return ("http", self._base, self._query)

    @property
    def viewer(self) -> Hashable:
        told = {name: repr({**self._options, **self._asking}.get(name)) for name in ("auth", "cookies", "headers")}
        return tuple(sorted({**self.headers, **told}.items()))

    def location(self, key: str) -> Hashable:
        return ("http", f"{self._base}/{key}")

    def limiter(self) -> Any:
        return request_limiter(self._server, self.usual, self.concurrency)

    def __repr__(self) -> str:
        parts = urlsplit(self._base)  # a password is not for logs
        return f"HTTPStore({urlunsplit((parts.scheme, parts.netloc.rpartition('@')[2], parts.path, '', ''))!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_clients"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clients = self._pool()

    async def close(self) -> None:
        await self._clients.close()
        await http1.close_unused(self._base)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        return await gather([partial(self._fetch_one, request) for request in requests])

    async def _fetch_one(self, request: Request) -> Value | None:
        found: Value | None = await self._request(request.key, "read", partial(self._attempt, request))
        return found

    async def _attempt(self, request: Request) -> Value | None:
        answer = await self._get(request.key, range_of(request))
        if answer.status in self.missing and tells_of_key(bytes(answer.body[:_ERROR])):
            return None
        if answer.status == 416:
            return await self._past_end(request, answer)
        self._check(answer, (200, 206))
        return value_of(request, answer, version_of(answer))

    async def _get(self, key: str, wanted: str = "") -> Answer:
        clients = await self._clients.get()
        return await clients.get(f"/{quote(key)}{self._query}", wanted)

    async def _past_end(self, request: Request, answer: Answer) -> Value | None:
        """A range that lies past the end has no bytes."""
        size = answer.headers.get("content-range", "").rpartition("/")[2]
        if size.isdigit() and (request.suffix or request.start >= int(size)):
            return Value(b"", version_of(answer), int(size))
        if not range_of(request):
            self._check(answer, (200,))
        whole = await self._attempt(request._replace(start=0, length=None, suffix=False))
        return None if whole is None else whole._replace(data=clip(whole.data, request))

    def _check(self, answer: Answer, good: tuple[int, ...]) -> None:
        if answer.status in good:
            return
        check_passing(answer)
        hint = " (credentials may be missing or expired)" if answer.status in (401, 403) else ""
        raise StoreError(f"the server answered {answer.status} {answer.reason}{hint}")

    async def _request(self, key: str, verb: str, make: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await super()._request(key, verb, make)
        except StoreError as error:
            if not error.key and not isinstance(
                error, UnsupportedOperation
            ):  # it will not pass, so there was no other attempt
                raise StoreError(f"could not {verb} {key!r} in {self!r}: {error}", key=key) from error
            raise

    # -------------------------------------------------------------- listing

    async def list_dir(self, prefix: str) -> Listing:
        check_prefix(prefix)
        entries = await self._request(prefix or "/", "list", partial(self._list, prefix))
        keys = [prefix + name for name in entries if not name.endswith("/")]
        prefixes = [prefix + name for name in entries if name.endswith("/")]
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    async def _list(self, prefix: str) -> builtins.list[str]:
        answer = await self._get(prefix)
        if answer.status in self.missing:
            return []
        kind = answer.headers.get("content-type", "")
        found = None
        if answer.status not in (301, 302, 403, 405) and ("json" in kind or "html" in kind):
            self._check(answer, (200,))
            found = _names(bytes(answer.body), kind, f"{unquote(urlsplit(self._base).path)}/{prefix}")
        if found is None:
            raise self._unable("list (the server shows no directories; open nodes by their paths)")
        return found

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        keys: list[str] = []
        level = [prefix]
        while level:
            listings = await gather([partial(self.list_dir, one) for one in level])
            keys.extend(key for listing in listings for key in listing.keys)
            level = [below for listing in listings for below in listing.prefixes]
        return keys


def _names(data: bytes, kind: str, path: str) -> builtins.list[str] | None:
    """The names in a directory, which lies at a path, as servers show it; ``None`` where it is something else."""
    import html

    if "json" in kind:
        try:
            entries = json.loads(data)
            return [e["name"] + ("/" if e["type"] == "directory" else "") for e in entries]
        except (ValueError, TypeError, KeyError):
            return None
    if not _INDEX.search(data):
        return None
    names = set()
    for link, text in _LINK.findall(data):
        where = link.decode("utf-8", "replace")
        if _NO_FILE.match(where):
            continue
        found = unquote(urlsplit(where).path if _HOST.match(where) else where)
        # Some servers name what is in a directory from there, others from their root, and tell directories by the text alone.
        name = found.removeprefix(path if found.startswith("/") else "./")
        names.add(f"{name}/" if html.unescape(text.decode("utf-8", "replace")).strip() == f"{name}/" else name)
    return sorted(name for name in names if name.rstrip("/") not in ("", ".", "..") and "/" not in name[:-1])


class _Clients:
    """What a store asks a server with, on one event loop: a lean client, and a general one for all that it can not do."""

    def __init__(
        self,
        base: str,
        headers: Mapping[str, str],
        options: Mapping[str, Any],
        asking: Mapping[str, Any],
        lean: http1.Client | None,
    ) -> None:
        self._base, self._headers, self._options, self._asking = base, headers, options, dict(asking)
        self._path = urlsplit(base).path
        self._lean = lean
        self._session: Any = None
        self._needs_more = False

    async def get(self, target: str, wanted: str) -> Answer:
        """Ask for what lies at a path and query below the base; ``wanted`` is a range, empty for the whole.

        Raises:
            Attempt: If the connection failed.
            StoreError: If it makes no sense to try again.
        """
        if self._lean is not None and not self._needs_more:
            # What is compressed on the way has no bytes to count.
            lines = f"Range: {wanted}\r\nAccept-Encoding: identity\r\n" if wanted else "Accept-Encoding: gzip\r\n"
            try:
                return await self._lean.get(self._path + target, lines)
            except http1.Unfit:
                self._needs_more = True
            except (ssl.SSLCertVerificationError, UnicodeError) as error:  # the latter of what is no host's name
                raise StoreError(f"{type(error).__name__}: {error}") from error
            except OSError as error:
                raise Attempt(f"{type(error).__name__}: {error}") from error
        return await self._general(target, wanted)

    async def _general(self, target: str, wanted: str) -> Answer:
        import aiohttp
        from yarl import URL

        if self._session is None:
            self._session = self._open_session()
        headers = {"Range": wanted, "Accept-Encoding": "identity"} if wanted else {}
        try:
            url = URL(f"{self._base}{target}", encoded=True)
            async with self._session.get(url, headers=headers, **self._asking) as answer:
                found = {name.lower(): value for name, value in answer.headers.items()}
                return Answer(answer.status, answer.reason or "", found, await answer.read())
        except (
            aiohttp.InvalidURL,
            aiohttp.TooManyRedirects,
            aiohttp.ClientConnectorCertificateError,
            UnicodeError,
        ) as error:
            raise StoreError(f"{type(error).__name__}: {without_queries(str(error))}") from error
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
            raise Attempt(f"{type(error).__name__}: {without_queries(str(error))}") from error

    def _open_session(self) -> Any:
        import aiohttp

        if isinstance(limit := self._asking.get("timeout"), int | float):
            self._asking["timeout"] = aiohttp.ClientTimeout(total=limit)
        # The store's own limiter says how many requests there are.
        chosen = {
            "connector": aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, keepalive_timeout=60),
            "timeout": aiohttp.ClientTimeout(total=None),
        }
        return aiohttp.ClientSession(headers=dict(self._headers), **{**chosen, **self._options})

    async def close(self) -> None:
        """Leave the connections that others share, and close those of the general client."""
        if self._lean is not None:
            self._lean.leave()
        if self._session is not None:
            await self._session.close()


async def _make_clients(
    base: str,
    query: str,
    headers: Mapping[str, str],
    options: Mapping[str, Any],
    asking: Mapping[str, Any],
    limit: int,
) -> _Clients:
    own = headers if any(name.lower() == "user-agent" for name in headers) else {**headers, "User-Agent": _AGENT}
    lean = not options and not asking and http1.suits(base + query, own)
    return _Clients(base, headers, options, asking, await http1.Client.make(base, own, limit) if lean else None)
