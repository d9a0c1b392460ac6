"""Read-only access to files on a web server: byte ranges, pooled connections, and listings where the server has them."""

from __future__ import annotations

import builtins
import html
import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from zarrasync import config
from zarrasync._concurrency.gather import gather
from zarrasync._concurrency.limiter import AdaptiveLimiter, request_limiter
from zarrasync._concurrency.offload import compute
from zarrasync._concurrency.per_loop import PerLoop
from zarrasync._util.memory import OutputBudget
from zarrasync._util.redact import redact
from zarrasync.errors import StoreError
from zarrasync.model.paths import check_keys, check_prefix, is_key
from zarrasync.stores.errors import concerns_key
from zarrasync.stores.http.connection import close_unused
from zarrasync.stores.http.responses import (
    Response,
    parse_value,
    raise_if_transient,
    range_header,
    size_past_end,
    version_of,
)
from zarrasync.stores.http.session import Session
from zarrasync.stores.remote import RemoteStore, missing_statuses, request_limits
from zarrasync.stores.values import Listing, Request, Value, clip

_ERROR_BYTES = 2000
"""Bytes of a response body in which a server explains an error."""
_QUICK = 1 << 17
"""Bytes of a listing that the event loop parses itself."""
_LEVELS = 3
"""The levels above a URL that are examined if nothing exists there."""
_SAFE = "/%:@!$&'()*+,;=[]~"
"""Characters of a URL's path that are not escaped; existing escapes are kept."""
_REQUEST_OPTIONS = frozenset({"ssl", "timeout", "auth", "proxy", "cookies", "allow_redirects"})
"""Storage options that aiohttp takes with each request."""
_CREDENTIAL_OPTIONS = ("auth", "connector", "cookie_jar", "cookies", "headers", "middlewares", "ssl")
"""Options of aiohttp that may identify the user."""
_OPTIONS = frozenset({"headers", "client_kwargs", "missing", "concurrency"}) | _REQUEST_OPTIONS
_IGNORED_OPTIONS = frozenset(
    {"block_size", "cache_type", "cache_options", "size_policy", "simple_links", "same_scheme", "use_listings_cache"}
)
"""Storage options of fsspec for read-ahead and directory listings."""
_FSSPEC_OPTIONS = frozenset({"encoded", "get_client"})
"""Storage options that only fsspec's filesystem supports."""


class HTTPStore(RemoteStore):
    """Files below a URL, read-only.

    Values are requested by byte ranges; a server that ignores them sends whole values. A response with one of the
    ``missing`` statuses means that a key is absent; any other failure raises ``StoreError``. Listing works if the server
    shows directories, as nginx, Apache and Python's server can.

    Args:
        url: The root of the store. A query, such as a signature, is sent with each request and never shown.
        headers: Sent with each request.
        missing: Statuses that mean absence, besides 404.
        concurrency: Maximum number of requests in flight. 0 for 256, and up to 512 while the server responds quickly.
        client_options: Arguments of ``aiohttp.ClientSession``, such as ``auth``, ``trust_env`` or ``cookies``.
        request_options: Arguments of each of its requests, such as ``ssl``, ``proxy`` or ``allow_redirects``.

    Raises:
        ValueError: If the URL is not an HTTP URL, or a status is invalid.
    """

    writeable = False
    _unshared = ("_sessions",)

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
            raise ValueError(f"{redact(url)!r} is not an http or https URL")
        parts = parts._replace(path=quote(parts.path, safe=_SAFE), query=quote(parts.query, safe=f"{_SAFE}?"))
        self.settings = config.get()
        self._base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._query = f"?{parts.query}" if parts.query else ""
        self._server = ("http", parts.netloc)
        self.headers, self.missing = dict(headers or {}), missing_statuses(missing) | {404}
        self.initial_concurrency, self.concurrency = request_limits(concurrency or self.settings.concurrency)
        self._client_options, self._request_options = dict(client_options or {}), dict(request_options or {})
        self._make_unshared()

    @staticmethod
    def takes(options: Iterable[str]) -> bool:
        """Return whether storage options can be used without fsspec's filesystem."""
        return _FSSPEC_OPTIONS.isdisjoint(options)

    @classmethod
    def from_url(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> HTTPStore:
        """Make a store from a URL and the storage options of fsspec's HTTP filesystem.

        Args:
            url: The URL.
            storage_options: ``headers``, ``client_kwargs`` (for aiohttp's session), ``missing``, ``concurrency``, and
                arguments of each request: ``ssl``, ``timeout``, ``auth``, ``proxy``, ``cookies``, ``allow_redirects``.

        Raises:
            TypeError: If there are other options.
            ValueError: If the URL is not an HTTP URL.
        """
        options = {name: value for name, value in (storage_options or {}).items() if name not in _IGNORED_OPTIONS}
        if unknown := sorted(set(options) - _OPTIONS):
            valid = ", ".join(sorted(_OPTIONS | _FSSPEC_OPTIONS))
            raise TypeError(f"unknown storage option {unknown[0]!r} for {url.partition('?')[0]!r}; use {valid}")
        client_options = dict(options.pop("client_kwargs", None) or {})
        headers = {**client_options.pop("headers", {}), **(options.pop("headers", None) or {})}
        request_options = {name: options.pop(name) for name in sorted(_REQUEST_OPTIONS & options.keys())}
        return cls(url, headers=headers, client_options=client_options, request_options=request_options, **options)

    def _make_unshared(self) -> None:
        make = partial(
            Session.make,
            self._base,
            self._query,
            self.headers,
            self._client_options,
            self._request_options,
            self.limiter(),
        )
        self._sessions = PerLoop(make, Session.close)

    @property
    def identity(self) -> Hashable:
        return ("http", self._parameters, self._base)

    @property
    def viewer(self) -> Hashable:
        credentials = {name: repr(value) for name, value in self._credentials.items()}
        return (*sorted(self.missing), *sorted({**self.headers, **credentials}.items()))

    @property
    def lasting_identity(self) -> bool:
        return all(isinstance(value, str | bool | Mapping | tuple | None) for value in self._credentials.values())

    @property
    def _credentials(self) -> dict[str, Any]:
        options = {**self._client_options, **self._request_options}
        return {name: options.get(name) for name in _CREDENTIAL_OPTIONS}

    def location(self, key: str) -> Hashable:
        return ("http", self._parameters, f"{self._base}/{key}")

    @property
    def _parameters(self) -> str:
        """The query of each request, which may choose a version of the files."""
        added = self._request_options.get("params")
        return f"{self._query} {added!r}" if added else self._query

    def limiter(self) -> AdaptiveLimiter:
        return request_limiter(self._server, self.initial_concurrency, self.concurrency, cautious=True)

    def __repr__(self) -> str:
        parts = urlsplit(self._base)
        host = parts.netloc.rpartition("@")[2]  # without the password
        return f"HTTPStore({urlunsplit((parts.scheme, host, parts.path, '', ''))!r})"

    def enclosing(self) -> tuple[HTTPStore, str] | None:
        parts = urlsplit(self._base)
        names = parts.path.strip("/").split("/")
        above, own = names[:-_LEVELS], [unquote(name) for name in names[-_LEVELS:]]
        path = "/".join(own)
        if not is_key(path):  # empty, or not the path of a node
            return None
        store = object.__new__(HTTPStore)
        base = urlunsplit((parts.scheme, parts.netloc, "".join(f"/{name}" for name in above), "", ""))
        store.__setstate__({**self.__getstate__(), "_base": base})
        return store, path

    async def close(self) -> None:
        await self._sessions.close()
        await close_unused(self._base)

    # -------------------------------------------------------------- reading

    async def fetch(self, requests: Sequence[Request], *, versions: bool = False) -> builtins.list[Value | None]:
        check_keys([request.key for request in requests])
        return await gather([partial(self._fetch_one, request) for request in requests])

    async def _fetch_one(self, request: Request) -> Value | None:
        value: Value | None = await self._request(request.key, "read", partial(self._attempt, request))
        return value

    async def _attempt(self, request: Request) -> Value | None:
        response = await self._get(request.key, range_header(request), request.limit)
        if response.status in (200, 206):
            return parse_value(request, response, version_of(response))
        if response.status in self.missing and concerns_key(bytes(response.body[:_ERROR_BYTES])):
            return None
        if response.status == 416:
            return await self._past_end(request, response)
        raise _failure(response)

    async def _get(self, key: str, byte_range: str, limit: int | None) -> Response:
        session = await self._sessions.get()
        return await session.get(f"/{quote(key)}{self._query}", byte_range, limit)

    async def _past_end(self, request: Request, response: Response) -> Value | None:
        """Return no bytes if a byte range is past the end; otherwise read the whole value."""
        size = size_past_end(response)
        if size is not None and (request.suffix or request.start >= size):
            return Value(b"", version_of(response), size)
        if not range_header(request):
            raise _failure(response)
        whole = await self._attempt(request._replace(start=0, length=None, suffix=False))
        return None if whole is None else whole._replace(data=clip(whole.data, request))

    # -------------------------------------------------------------- listing

    async def list_dir(self, prefix: str) -> Listing:
        check_prefix(prefix)
        names = await self._request(prefix or "/", "list", partial(self._list, prefix))
        keys = [prefix + name for name in names if not name.endswith("/")]
        prefixes = [prefix + name for name in names if name.endswith("/")]
        return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))

    async def _list(self, prefix: str) -> builtins.list[str]:
        limit = self.settings.max_document_bytes
        response = await self._get(prefix, "", OutputBudget(limit, f"config.max_document_bytes is {limit:,}"))
        if response.status in self.missing:
            return []
        content_type = response.headers.get("content-type", "")
        names = None
        if response.status not in (301, 302, 403, 405) and ("json" in content_type or "html" in content_type):
            if response.status != 200:
                raise _failure(response)
            path = f"{unquote(urlsplit(self._base).path)}/{prefix}"
            parse = partial(parse_listing, bytes(response.body), content_type, path)
            names = parse() if len(response.body) <= _QUICK else await compute(parse)
        if names is None:
            raise self._unsupported("list: the server shows no directories", "open nodes by their paths")
        return names

    async def list_prefix(self, prefix: str) -> builtins.list[str]:
        return await self._list_below(check_prefix(prefix))


def _failure(response: Response) -> StoreError:
    """Return the error for a response with an unexpected status.

    Raises:
        TransientError: If repeating the request may help.
    """
    raise_if_transient(response)
    is_refused = response.status in (401, 403)
    hint = "check the credentials in the storage options" if is_refused else "check the URL"
    return StoreError(f"the server answered {response.status} {redact(response.reason)}; {hint}")


_TITLE = re.compile(rb"<title>\s*(?:Index of|Directory listing for|Listing of)", re.IGNORECASE)
_ANCHOR = re.compile(rb"<a\s([^<>]*+)>([^<]*+)", re.IGNORECASE)
_TARGET = re.compile(rb"""\bhref=["']([^"'?#]++)["']""", re.IGNORECASE)
_WITH_HOST = re.compile(r"(https?:)?//", re.IGNORECASE)
_OTHER_SCHEME = re.compile(r"(mailto|javascript|data|tel):", re.IGNORECASE)


def parse_listing(body: bytes, content_type: str, path: str) -> list[str] | None:
    """Return the names in a directory listing; directory names end with ``/``.

    Args:
        body: The page.
        content_type: Its media type.
        path: The path of the directory on the server, ending with ``/``.

    Returns:
        The names, or ``None`` if the page is not a directory listing.
    """
    if "json" in content_type:
        return _parse_json(body)
    if not _TITLE.search(body):
        return None
    names = set()
    for attributes, label in _ANCHOR.findall(body):
        match = _TARGET.search(attributes)
        if match is None:
            continue
        target = match[1]
        link = target.decode("utf-8", "replace")
        if _OTHER_SCHEME.match(link):
            continue
        target_path = unquote(urlsplit(link).path if _WITH_HOST.match(link) else link)
        # Links are relative to the directory or to the server's root. Some servers mark directories in the label only.
        name = target_path.removeprefix(path if target_path.startswith("/") else "./")
        is_directory = html.unescape(label.decode("utf-8", "replace")).strip() == f"{name}/"
        names.add(f"{name}/" if is_directory else name)
    return sorted(filter(_is_name, names))


def _parse_json(body: bytes) -> list[str] | None:
    try:
        names = [entry["name"] + ("/" if entry["type"] == "directory" else "") for entry in json.loads(body)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return list(filter(_is_name, names))


def _is_name(name: str) -> bool:
    """Return whether a name refers to an entry of the directory, and not to another directory."""
    return name.rstrip("/") not in ("", ".", "..") and "/" not in name[:-1]
