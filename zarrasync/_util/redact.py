"""Removing secrets from messages: passwords and queries of URLs, and credentials among options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from zarrasync.errors import StoreError

_WORD = re.compile(r"[^\s'\"<>]+")
_WEB = re.compile(r"https?://", re.IGNORECASE)
_USER = re.compile(
    r"\b([a-z][a-z0-9+.-]{0,30})://([^/\s?#]*@|[^/\s:@?#\[]*:(?!\d{1,5}(?:[/?#]|$))(?:(?!://)[^\s@]){0,2000}@)",
    re.IGNORECASE,
)
"""User and password in a URL. Passwords may contain characters that must be encoded in URLs, such as slashes."""
_NO_USERS = {
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), re.compile(r"[a-z0-9$-]+@")),
    "github": re.compile(r"(?![^:]*:(?:gh[a-z]_|github_pat_))[\w.-]+:[\w.-]+@"),
    "file": re.compile(r".*"),
}
"""Public parts of URLs that stand in the place of user and password in some protocols: the container of Azure, and the
owner and the name of a repository. Without them, URLs of different files would be equal."""
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|token|credential|auth(?!or)|cookie|header|connection_?string|(^|[^a-z])(sas|sig|signature|policy|user|username|login)$|"
    r"(^|_|-|access|account|api|private)key(_?id)?$",
    re.IGNORECASE,
)
"""Names of options whose values are secrets."""
_SHORTEST = 4
"""The shortest value that is removed from messages. Shorter ones are parts of usual words."""
_SHORTEST_VALUE = 8
"""The same for values in queries of URLs, most of which are not secrets."""
_MARKS = re.compile(r"[/?#@:&'\"]")
"""Characters at which libraries divide URLs."""


def redact(message: str, options: Mapping[Any, Any] | None = None) -> str:
    """Return a message without the passwords and queries of URLs, because passwords and signatures are secrets.

    Args:
        message: The message.
        options: Options, such as ``storage_options``. The values of those with names of credentials are also removed.
    """
    for secret in sorted(set(_secrets(options or {})), key=len, reverse=True):
        message = message.replace(secret, redact(secret) if "://" in secret else "…")
    if "@" in message:
        message = _USER.sub(_without_user, message)
    return _WORD.sub(_redact_word, message)


def public_url(url: str) -> str:
    """Return a URL without its user, password and query. Paths stay as they are."""
    if "://" not in url:
        return url
    return "::".join(_public_part(part) if "://" in part else part for part in url.split("::"))


def public_query(query: str) -> str:
    """Return the query of a URL without credentials: values of parameters with such names, and of URLs that have secrets."""
    parts = [item.partition("=") for item in query.split("&")]
    shown = [
        (name, equals, "…" if has_secrets({unquote(name): unquote(value)}) else value) for name, equals, value in parts
    ]
    return "&".join(map("".join, shown))


def _public_part(url: str) -> str:
    """Return a single URL without its secrets. Keys of object stores may contain number signs."""
    url = _USER.sub(_without_user, url).partition("?")[0]
    return url.partition("#")[0] if _WEB.match(url) else url


def _without_user(url: re.Match[str]) -> str:
    """Return the protocol of a URL, without the user and the password after it."""
    scheme, user = url[1], url[2]
    public = _NO_USERS.get(scheme.lower())
    return url[0] if public is not None and public.fullmatch(user) else f"{scheme}://"


def has_secrets(options: Any) -> bool:
    """Return whether options contain credentials, at any depth."""
    return any(True for _ in _secrets(options))


def _redact_word(word: re.Match[str]) -> str:
    text = word[0]
    url, mark, query = text.partition("?")
    if "#" in url and _WEB.search(url):
        url, mark, query = url.partition("#")
    if not mark or "/" not in url or not query:
        return url + mark + query
    _, closing, rest = query.partition(")")
    return f"{url}{mark}…{closing}{rest}" if query[0] != ")" else url + mark + query


def _secrets(options: Any, *, is_secret: bool = False) -> Iterator[str]:
    """Yield the strings among options whose names, or the names of those around them, are names of credentials."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _secrets(value, is_secret=is_secret or _SECRET_NAME.search(str(name)) is not None)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _secrets(value, is_secret=is_secret)
    elif isinstance(options, str) and "://" in options and public_url(options) != options:
        yield options
        yield from _secrets_of_url(options)
    elif isinstance(options, str) and is_secret and len(options) >= _SHORTEST:
        yield options


def _secrets_of_url(url: str) -> Iterator[str]:
    """Yield the parts of a URL that are secrets. Libraries quote parts, such as one that they take for the port."""
    for match in _USER.finditer(url):
        if _without_user(match) != match[0]:
            password = match[2][:-1].partition(":")[2]
            parts = [match[2][:-1], password, unquote(password), *_MARKS.split(password)]
            yield from (part for part in parts if len(part) >= _SHORTEST)
    plain = _USER.sub(_without_user, url)
    query = plain.partition("?")[2] or (plain.partition("#")[2] if _WEB.search(plain) else "")
    for item in _MARKS.split(query):
        value = item.rpartition("=")[2]
        yield from (part for part in (value, unquote(value)) if len(part) >= _SHORTEST_VALUE)


@contextmanager
def redacted_errors(*options: Mapping[str, Any] | None) -> Iterator[None]:
    """Remove secrets from the messages of errors, and of their causes, which a traceback also shows.

    Args:
        options: Options whose credentials are removed.

    Raises:
        StoreError: Instead of an error whose message cannot be changed.
    """
    secrets = dict(enumerate(options))
    try:
        yield
    except Exception as error:
        if _without_secrets(error, secrets, set()):
            raise
        raise StoreError(f"{type(error).__name__}: {redact(str(error), secrets)}") from None


def _without_secrets(error: BaseException, options: Mapping[Any, Any], seen: set[int]) -> bool:
    """Remove secrets from the messages of an error and its causes. Return whether that is possible for the error itself.

    Args:
        error: The error.
        options: Options with credentials.
        seen: The identities of errors that were changed, because the causes of errors may form a circle.
    """
    if id(error) in seen:
        return True
    seen.add(id(error))

    def public(value: Any) -> Any:
        return redact(value, options) if isinstance(value, str) else value

    error.args = tuple(map(public, error.args))
    if isinstance(error, OSError) and isinstance(error.filename, str):  # setting ``None`` would change the message
        error.filename = public(error.filename)
    if notes := getattr(error, "__notes__", None):
        notes[:] = map(public, notes)
    for name in ("__cause__", "__context__"):
        other = getattr(error, name)
        if other is not None and not _without_secrets(other, options, seen):
            setattr(error, name, None)
    for member in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        _without_secrets(member, options, seen)
    text = f"{error}\n{error!r}"  # aiohttp's errors contain the headers of requests
    return bool(text == public(text))
