"""The page that shows arrays, and its static files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import PurePosixPath

from zarrasync.server.limits import NotFound
from zarrasync.server.messages import Request, Response

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors *",
    "Cache-Control": "no-cache",
}
_CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
_FOLDER = files("zarrasync.server") / "static"


@cache
def _files() -> dict[str, bytes]:
    """Return the contents of the static files by name."""
    return {item.name: item.read_bytes() for item in _FOLDER.iterdir()}


async def show_page(request: Request) -> Response:
    """Return the page."""
    return _page("viewer", "zarrasync")


async def show_map(request: Request) -> Response:
    """Return the page with a map."""
    return _page("map", "Map", ("viewer.css", "map.css"), "../")


def viewer_files() -> dict[str, str]:
    """Return the contents of the static files of the page, by name."""
    return {name: body.decode() for name, body in _files().items() if not name.endswith(".json")}


def show_catalog(names: Iterable[str]) -> Response:
    """Return a page with links to stores."""
    links = "\n".join(f'<li><a href="{escape(name)}/">{escape(name)}</a></li>' for name in sorted(names))
    return _page("catalog", "zarrasync", STORES=links)


def _page(name: str, title: str, styles: Sequence[str] = (), root: str = "", **replacements: str) -> Response:
    """Return a page of a body and the head that all pages share.

    Args:
        name: The name of the body, and of the script and the style if the page has them.
        title: The title.
        styles: Names of style sheets, if others than the own one.
        root: The path from the page to the application.
        **replacements: Strings instead of words of the body.
    """
    links = [f'<link rel="stylesheet" href="{root}static/{style}">' for style in styles or (f"{name}.css",)]
    if f"{name}.js" in _files():
        links.append(f'<script type="module" src="{root}static/{name}.js"></script>')
    page = "".join(_files()[part].decode() for part in ("head.html", f"{name}.html")) + "</html>\n"
    for word, text in {"TITLE": title, "LINKS": "\n".join(links), **replacements}.items():
        page = page.replace(word, text, 1)
    return _respond(page.encode(), "text/html")


async def static_file(request: Request) -> Response:
    """Return a static file of the page.

    Raises:
        NotFound: If it does not exist.
    """
    name = request.parameters["file"]
    kind = _CONTENT_TYPES.get(PurePosixPath(name).suffix)
    if kind is None or name not in _files():
        raise NotFound(f"the page has no file {name[:40]!r}")
    return _respond(_files()[name], kind)


def _respond(body: bytes, kind: str) -> Response:
    return Response(200, {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8"}, [body])
