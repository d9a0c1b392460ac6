"""The command serve, which runs the server."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from zarrasync._util.redact import redact
from zarrasync.cli import bench
from zarrasync.cli.arguments import Commands, open_node, options, port
from zarrasync.cli.console import Console

__all__ = ["add"]


def add(command: Commands) -> None:
    """Add the commands for the network: serve, bench."""
    serve = command(
        "serve",
        "serve a hierarchy over HTTP: a viewer, Zarr for other programs, tiles",
        _serve,
        examples=["serve data.zarr", "serve s3://bucket/era5.zarr -o anon=true --port 9000"],
        as_json=False,
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    serve.add_argument("--port", type=port, default=8000, help="the port; 0 for a free one (default: 8000)")
    serve.add_argument("--cache", type=int, default=256, metavar="MIB", help="memory for caches (default: 256)")
    serve.add_argument(
        "--max-age", type=float, default=60.0, metavar="SECONDS", help="how long responses may be reused (default: 60)"
    )
    serve.add_argument("--active", type=int, default=32, metavar="N", help="concurrent requests (default: 32)")
    serve.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="time per request (default: 60)")
    serve.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="a host name to respond to, besides addresses and localhost; '*' for all (repeatable)",
    )
    serve.add_argument(
        "--cors",
        action="append",
        metavar="ORIGIN",
        help="an origin whose pages may read responses, such as https://example.org; '*' for all (repeatable)",
    )
    serve.add_argument("--hidden", action="store_true", help="serve names that begin with a dot, too")
    serve.add_argument("--follow-links", action="store_true", help="follow symbolic links out of the directory")
    serve.add_argument("--log", action="store_true", help="log each request as a line of JSON on the error stream")
    bench.add(command)


def _serve(args: argparse.Namespace, console: Console) -> int:
    from zarrasync.server import Limits, create_app
    from zarrasync.server import run as run_app

    open_node(args).close()  # raises if the node does not exist
    app = create_app(
        args.url,
        path=args.path,
        limits=Limits(active=args.active, timeout=args.timeout),
        cache_bytes=args.cache << 20,
        max_age=args.max_age,
        storage_options=options(args.option),
        allow_hosts=args.allow_host,
        cors=args.cors,
        hidden=args.hidden,
        follow_links=args.follow_links,
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    if args.log:
        logging.getLogger("zarrasync.server.access").setLevel(logging.INFO)
    run_app(app, host=args.host, port=args.port, print=lambda *lines: _announce(args, lines))
    return 0


def _announce(args: argparse.Namespace, lines: tuple[Any, ...]) -> None:
    """Print the address as soon as the server listens, from the lines that aiohttp prints."""
    urls = [word for line in lines for word in str(line).split() if word.startswith("http://")]
    if urls:
        print(f"Serving {redact(args.url)} at {urls[0]}/\n(Ctrl-C stops the server)", flush=True)
