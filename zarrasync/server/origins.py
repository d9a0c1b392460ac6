"""Which host names the server answers to, and which pages of other origins may read its responses.

A page of any site can make its name lead to 127.0.0.1 (DNS rebinding), and then read a local server as its own. The
name is in the Host header, so that a server for this machine answers only to names of this machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

from zarrasync.errors import ZarrError
from zarrasync.server.limits import BadQuery
from zarrasync.server.messages import Request

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{0,5})?")
_EXPOSED = "Accept-Ranges, Content-Length, Content-Range, ETag, X-Dtype, X-Request-Id, X-Shape"
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Range, If-None-Match, If-Range",
    "Access-Control-Max-Age": "86400",
}


class UnknownHost(ZarrError):
    """A request is for a host name that the server does not answer to."""


class Origins:
    """Rules for the ``Host`` and ``Origin`` headers of requests.

    Args:
        hosts: Host names to answer to, besides addresses and ``localhost``; ``"*"`` for all. ``None``: none on
            connections from this machine, and all on others.
        cors: Origins whose pages may read responses; ``"*"`` for all. ``None``: none on connections from this machine,
            and all on others.
    """

    def __init__(self, hosts: Iterable[str] | None, cors: Iterable[str] | None) -> None:
        check_list("allow_hosts", hosts)
        check_list("allow_origins", cors)
        self._hosts = None if hosts is None else frozenset(host.lower().rstrip(".") for host in hosts)
        self._cors = None if cors is None else frozenset(origin.rstrip("/") for origin in cors)

    def check_host(self, request: Request) -> None:
        """Check the host name of a request.

        Raises:
            BadQuery: If it is missing or ambiguous, or the request is older than HTTP/1.0.
            UnknownHost: If the server does not answer to it.
        """
        headers = request.hosts
        if request.version < (1, 0):
            raise BadQuery("the server supports only HTTP/1.1 and HTTP/1.0")
        if len(headers) > 1 or (not headers and request.version >= (1, 1)):
            raise BadQuery(f"a request has one Host header, found {len(headers)}")
        if self._hosts is None:
            if not _is_local(request):
                return
        elif "*" in self._hosts:
            return
        for header in headers:
            if not self._is_known(header):
                raise UnknownHost(
                    f"this server does not answer to the host name {header[:100]!r}; its operator can allow it with "
                    "--allow-host, or allow_hosts of create_app"
                )

    def _is_known(self, header: str) -> bool:
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name = (match[1] or match[2]).lower().rstrip(".")
        # Addresses are safe: only a name can be made to lead elsewhere.
        return (
            name == "localhost"
            or name.endswith(".localhost")
            or address_of(name) is not None
            or name in (self._hosts or ())
        )

    def headers(self, request: Request) -> dict[str, str]:
        """Return the response headers by which browsers decide which pages may read the response."""
        cors = self._cors if self._cors is not None else frozenset(() if _is_local(request) else ("*",))
        headers = {"X-Content-Type-Options": "nosniff"}
        if not cors:
            return {**headers, "Cross-Origin-Resource-Policy": "same-origin"}
        origin = request.headers.get("origin", "")
        if "*" not in cors:
            headers["Vary"] = "Origin"
        if "*" in cors or origin in cors:
            headers["Access-Control-Allow-Origin"] = "*" if "*" in cors else origin
            headers["Access-Control-Expose-Headers"] = _EXPOSED
            if request.method == "OPTIONS":
                headers |= _PREFLIGHT
        return headers


def check_list(name: str, values: Iterable[str] | None) -> None:
    """Check that an option is not a single string, whose items would be characters.

    Raises:
        TypeError: If it is.
    """
    if isinstance(values, str):
        raise TypeError(f"{name} is a list of strings, found the string {values!r}")


def _is_local(request: Request) -> bool:
    """Return whether a connection was made to a loopback address, which only programs on this machine can do."""
    address = address_of(request.local.partition("%")[0])
    if address is None:
        return request.local == "localhost"  # otherwise a Unix socket, which browsers cannot connect to
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@lru_cache
def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a string spells; ``None`` for other strings."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
