"""Directory listings of web servers: the JSON of nginx and the HTML of nginx, Apache and Python."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import unquote, urlsplit

__all__ = ["parse_listing"]

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
