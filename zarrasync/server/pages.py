"""The page that shows arrays, and its static files."""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

__all__ = ["redirect_to_page", "show_page", "static_file"]

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors *",
    "Cache-Control": "no-cache",
}
_CONTENT_TYPES = {
    "viewer.html": "text/html",
    "viewer.css": "text/css",
    "viewer.js": "text/javascript",
    "canvas.js": "text/javascript",
    "tree.js": "text/javascript",
}


async def show_page(request: web.Request) -> web.StreamResponse:
    """Return the page."""
    return _respond_with_file("viewer.html")


async def redirect_to_page(request: web.Request) -> web.StreamResponse:
    """Redirect to the URL with a slash at its end, as the page's links are relative to it."""
    raise web.HTTPPermanentRedirect(request.path + "/")


async def static_file(request: web.Request) -> web.StreamResponse:
    """Return a static file of the page."""
    name = request.match_info["file"]
    if name not in _CONTENT_TYPES:
        raise web.HTTPNotFound
    return _respond_with_file(name)


def _respond_with_file(name: str) -> web.Response:
    body = (files("zarrasync.server") / "static" / name).read_bytes()
    return web.Response(body=body, content_type=_CONTENT_TYPES[name], charset="utf-8", headers=_HEADERS)
