"""The page that shows arrays, and its static files."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import PurePosixPath

from zarrasync.server.limits import NotFound
from zarrasync.server.messages import Request, Response

__all__ = ["show_catalog", "show_map", "show_page", "static_file"]

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors *",
    "Cache-Control": "no-cache",
}
_CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FOLDER = files("zarrasync.server") / "static"


async def show_page(request: Request) -> Response:
    """Return the page."""
    return _respond_with_file("viewer.html")


async def show_map(request: Request) -> Response:
    """Return the page with a map."""
    return _respond_with_file("map.html")


def show_catalog(names: Iterable[str]) -> Response:
    """Return a page with links to stores."""
    links = "\n".join(f'<li><a href="{escape(name)}/">{escape(name)}</a></li>' for name in sorted(names))
    page = (_FOLDER / "catalog.html").read_text()
    return Response(
        200, {**_HEADERS, "Content-Type": "text/html; charset=utf-8"}, [page.replace("LINKS", links).encode()]
    )


async def static_file(request: Request) -> Response:
    """Return a static file of the page.

    Raises:
        NotFound: If it does not exist.
    """
    name = request.parameters["file"]
    if name not in (item.name for item in _FOLDER.iterdir()):
        raise NotFound(f"the page has no file {name[:40]!r}")
    return _respond_with_file(name)


def _respond_with_file(name: str) -> Response:
    kind = _CONTENT_TYPES[PurePosixPath(name).suffix]
    return Response(200, {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8"}, [(_FOLDER / name).read_bytes()])
