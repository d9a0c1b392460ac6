"""The page that shows arrays, and its static files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import PurePosixPath

from zarrasync.server.limits import NotFound
from zarrasync.server.messages import Request, Response
from zarrasync.server.responses import content_response

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors *",
    "Cache-Control": "no-cache",
}
_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
_IMPORT = re.compile(r'^import .* from "\./(\w+\.js)";$', re.MULTILINE)
_FOLDER = files("zarrasync.server") / "static"


@cache
def _files() -> dict[str, bytes]:
    """Return the contents of the static files by name."""
    return {item.name: item.read_bytes() for item in _FOLDER.iterdir()}


async def show_page(request: Request) -> Response:
    """Return the page."""
    return _page(request, "viewer", "zarrasync")


async def show_map(request: Request) -> Response:
    """Return the page with a map."""
    return _page(request, "map", "Map", ("viewer.css", "map.css"), "../")


def viewer_files() -> dict[str, str]:
    """Return the contents of the static files of the page, by name."""
    return {name: body.decode() for name, body in _files().items() if not name.endswith(".json")}


def show_catalog(request: Request, names: Iterable[str]) -> Response:
    """Return a page with links to stores."""
    links = "\n".join(f'<li><a href="{escape(name)}/">{escape(name)}</a></li>' for name in sorted(names))
    return _page(request, "catalog", "zarrasync", STORES=links)


def _page(
    request: Request, name: str, title: str, styles: Sequence[str] = (), root: str = "", **replacements: str
) -> Response:
    """Return a page of a body and the head that all pages share.

    Args:
        request: The request.
        name: The name of the body, and of the script and the style if the page has them.
        title: The title.
        styles: Names of style sheets, if others than the own one.
        root: The path from the page to the application.
        **replacements: Strings instead of words of the body.
    """
    links = [f'<link rel="stylesheet" href="{root}static/{style}">' for style in styles or (f"{name}.css",)]
    if f"{name}.js" in _files():
        links += [f'<link rel="modulepreload" href="{root}static/{module}">' for module in _modules(f"{name}.js")]
        links.append(f'<script type="module" src="{root}static/{name}.js"></script>')
    page = "".join(_files()[part].decode() for part in ("head.html", f"{name}.html")) + "</html>\n"
    for word, text in {"TITLE": title, "LINKS": "\n".join(links), **replacements}.items():
        page = page.replace(word, text, 1)
    return _respond(request, page.encode(), "text/html")


@cache
def _modules(name: str) -> tuple[str, ...]:
    """Return the modules that a script imports, and those that these import, so that browsers request all of them at once."""
    found: list[str] = []
    for text in _IMPORT.findall(_files()[name].decode()):
        found += [module for module in (text, *_modules(text)) if module not in found]
    return tuple(found)


async def static_file(request: Request) -> Response:
    """Return a static file of the page.

    Raises:
        NotFound: If it does not exist.
    """
    name = request.parameters["file"]
    kind = _CONTENT_TYPES.get(PurePosixPath(name).suffix)
    if kind is None or name not in _files():
        raise NotFound(f"the page has no file {name[:40]!r}")
    return _respond(request, _files()[name], kind)


def _respond(request: Request, body: bytes, kind: str) -> Response:
    response = content_response(request, [body], f"{kind}; charset=utf-8", 0)
    response.headers |= _HEADERS
    return response
