"""The command serve, which runs the server."""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zarrasync import sync
from zarrasync._util.redact import redact
from zarrasync.cli.arguments import Commands, add_several, count, options, port
from zarrasync.cli.console import Console

_NAMED = re.compile(r"(?P<name>[A-Za-z0-9_-][A-Za-z0-9._-]*)=(?P<rest>.+)", re.DOTALL)
_ENDINGS = (".zarr", ".zip", ".json", ".parquet")
"""Endings of URLs that are not part of the name of a store."""


def add(command: Commands) -> None:
    """Add the command."""
    serve = command(
        "serve",
        "serve hierarchies over HTTP: a viewer, Zarr for other programs, values and tiles",
        _serve,
        examples=[
            "serve data.zarr",
            "serve s3://bucket/era5.zarr -o anon=true --port 9000",
            "serve era5=s3://bucket/era5.zarr land.zarr --token-file era5=token.txt",
        ],
        as_json=False,
        of_node=False,
    )
    serve.add_argument(
        "url", nargs="+", metavar="[NAME=]URL", help="a path or URL; several ones are served below names"
    )
    serve.add_argument("--path", default="", help="the path of the node to serve, in each store")
    _add_address(serve)
    _add_access(serve)
    serve.add_argument("--cache", type=int, default=256, metavar="MIB", help="memory for caches (default: 256)")
    serve.add_argument(
        "--max-age", type=float, default=60.0, metavar="SECONDS", help="how long responses may be reused (default: 60)"
    )
    serve.add_argument("--active", type=int, default=32, metavar="N", help="concurrent requests (default: 32)")
    serve.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="time per request (default: 60)")
    serve.add_argument("--spans", action="store_true", help="make OpenTelemetry spans")
    serve.add_argument("--log", action="store_true", help="log each request as a line of JSON on the error stream")


def _add_address(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    serve.add_argument("--port", type=port, default=8000, help="the port; 0 for a free one (default: 8000)")
    serve.add_argument("--unix-socket", metavar="PATH", help="listen on a Unix socket instead")
    serve.add_argument(
        "--server",
        choices=("aiohttp", "uvicorn"),
        default="aiohttp",
        help="the program that handles connections (default: aiohttp)",
    )
    serve.add_argument("--workers", type=count, default=1, metavar="N", help="processes (default: 1)")
    serve.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="serve /metrics on a port of this machine instead; each worker uses the next one",
    )
    serve.add_argument("--tls-cert", metavar="FILE", help="the certificates for HTTPS, as PEM")
    serve.add_argument("--tls-key", metavar="FILE", help="their private key (default: in the same file)")
    serve.add_argument("--root-path", default="", metavar="PATH", help="the path that a proxy removes, such as /data")
    add_several(
        serve,
        "--trusted-proxies",
        "NETWORK",
        "an address or network of proxies whose X-Forwarded-For and -Proto are used; 'unix' for a Unix socket (repeatable)",
    )


def _add_access(serve: argparse.ArgumentParser) -> None:
    add_several(
        serve,
        "--token-file",
        "[NAME=]FILE",
        "a file with the token that clients need, of all stores or of one (repeatable)",
    )
    add_several(serve, "--token", "[NAME=]TOKEN", "the same as an argument, which others on this machine can see")
    serve.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="a host name to respond to, besides addresses and localhost; '*' for all (repeatable)",
    )
    serve.add_argument(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="an origin whose pages may read responses, such as https://example.org; '*' for all (repeatable)",
    )
    serve.add_argument(
        "--redirects", action="store_true", help="send clients to presigned URLs of the object store for stored keys"
    )
    serve.add_argument("--hidden", action="store_true", help="also serve names that begin with a dot")
    serve.add_argument("--follow-links", action="store_true", help="follow symbolic links out of the directory")


# ------------------------------------------------------------------ running


@dataclass(frozen=True)
class _Settings:
    """The settings of a server process.

    Attributes:
        stores: URLs by name; one with the name ``""``.
        of_service: Options of each service.
        of_server: Options of the server.
        tls: The files with certificates and their key.
        logs: Whether each request is logged.
        program: ``"aiohttp"`` or ``"uvicorn"``.
    """

    stores: dict[str, str]
    of_service: dict[str, Any]
    of_server: dict[str, Any]
    tls: tuple[str, str | None] | None = None
    logs: bool = False
    program: str = "aiohttp"

    def make_app(self) -> Any:
        """Return the application."""
        from zarrasync.server import Service, create_app

        # Several services share the memory for caches.
        share = {**self.of_service, "cache_bytes": self.of_service["cache_bytes"] // len(self.stores)}
        services = {name: Service(url, **share) for name, url in self.stores.items()}
        if self.program == "uvicorn":
            from zarrasync.server import asgi

            return asgi.create_app(services, **self.of_server)
        return create_app(services, **self.of_server)

    def run(self, app: Any, **where: Any) -> None:
        """Run the application.

        Args:
            app: The application.
            **where: Options of ``zarrasync.server.run``.
        """
        from zarrasync.server.running import run, run_asgi

        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        if self.logs:
            logging.getLogger("zarrasync.server.access").setLevel(logging.INFO)
        if self.tls is not None:
            where["ssl_context"] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            where["ssl_context"].load_cert_chain(*self.tls)
        (run_asgi if self.program == "uvicorn" else run)(app, **where)


def _serve(args: argparse.Namespace, console: Console) -> int:
    from zarrasync.server.running import listen, run_processes

    settings = _settings(args)
    for url in settings.stores.values():  # raises if a node does not exist
        sync.open(url, path=args.path, storage_options=options(args.option)).close()
    app = settings.make_app()  # raises if an option is invalid
    served = ", ".join(redact(url) for url in settings.stores.values())
    if args.workers == 1:
        where = {"path": args.unix_socket, "host": args.host, "port": args.port, "metrics_port": args.metrics_port}
        settings.run(app, **where, print=lambda line: _announce(served, args.unix_socket or line))
        return 0
    sock = listen(args.host, args.port, args.unix_socket)
    scheme = "http" if settings.tls is None else "https"
    host = f"[{args.host}]" if ":" in args.host else args.host
    _announce(served, args.unix_socket or f"{scheme}://{host}:{sock.getsockname()[1]}")
    run_processes(args.workers, _work, sock, settings, args.metrics_port)
    return 0


def _work(number: int, sock: socket.socket, settings: _Settings, metrics_port: int | None) -> None:
    """Serve in a worker process. Each one has its own port for metrics, unless it is a free one."""
    settings.run(settings.make_app(), sock=sock, print=None, metrics_port=metrics_port and metrics_port + number)


def _announce(served: str, line: Any) -> None:
    """Print the address as soon as the server listens."""
    address = str(line).rpartition(" ")[2]
    print(f"Serving {served} at {address}{'/' if '://' in address else ''}\n(Ctrl-C stops the server)", flush=True)


# ------------------------------------------------------------------ settings


def _settings(args: argparse.Namespace) -> _Settings:
    from zarrasync.server import Limits

    if args.tls_key and not args.tls_cert:
        raise ValueError("--tls-key needs --tls-cert")
    tokens = dict(_split(item) for item in args.token)
    for item in args.token_file:
        name, file = _split(item)
        tokens[name] = Path(file).read_text().strip()
    limits = Limits(active=args.active, timeout=args.timeout)
    service = {"limits": limits, "cache_bytes": args.cache << 20, "storage_options": options(args.option)}
    service |= {name: getattr(args, name) for name in ("path", "max_age", "follow_links")}
    server = {"allow_hosts": args.allow_host, "allow_origins": args.allow_origin, "tokens": tokens or None}
    server |= {name: getattr(args, name) for name in ("hidden", "trusted_proxies", "root_path", "redirects", "spans")}
    server["metrics"] = args.metrics_port is None
    tls = (args.tls_cert, args.tls_key) if args.tls_cert else None
    return _Settings(_stores(args.url), service, server, tls, args.log, args.server)


def _stores(items: list[str]) -> dict[str, str]:
    """Return URLs by name. One without a name is served at the root, several ones below the last parts of their URLs."""
    stores: dict[str, str] = {}
    for item in items:
        name, url = ("", item) if os.path.exists(item) else _split(item)
        if not name and len(items) > 1:
            name = url.partition("?")[0].rstrip("/").rpartition("/")[2]
            ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
            name = name.removesuffix(ending)
        if name in stores:
            raise ValueError(f"two stores have the name {name!r}; choose names with NAME=URL")
        stores[name] = url
    return stores


def _split(item: str) -> tuple[str, str]:
    """Split ``NAME=REST``; without a name, it is empty."""
    match = _NAMED.fullmatch(item)
    return ("", item) if match is None or "://" in match["name"] else (match["name"], match["rest"])
