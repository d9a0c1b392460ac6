"""Which requests are served: tokens of stores, and addresses of clients behind proxies."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import replace

from zarrasync.errors import ZarrError
from zarrasync.server.messages import Request
from zarrasync.server.origins import address_of, check_list


class Unauthorized(ZarrError):
    """A request has no valid token."""


class Tokens:
    """The tokens that clients need.

    Args:
        tokens: A token by the name of a store; ``""`` is for the other stores, and for metrics. ``None`` if all requests
            are served.

    Raises:
        ValueError: If a token is empty or not printable ASCII.
    """

    def __init__(self, tokens: str | Mapping[str, str] | None) -> None:
        self._tokens = {"": tokens} if isinstance(tokens, str) else dict(tokens or {})
        for name, token in self._tokens.items():
            if not token or not (token.isascii() and token.isprintable()) or " " in token:
                where = f" of {name!r}" if name else ""
                raise ValueError(f"the token{where} must consist of printable ASCII characters without spaces")

    @property
    def names(self) -> set[str]:
        """The names of stores with their own token."""
        return {name for name in self._tokens if name}

    def is_needed(self, store: str) -> bool:
        """Return whether requests for a store need a token."""
        return store in self._tokens or "" in self._tokens

    def check(self, request: Request, store: str) -> None:
        """Check the token of a request: of ``Bearer``, or the password of ``Basic``, for which browsers ask.

        Raises:
            Unauthorized: If it is missing or not the one of the store.
        """
        token = self._tokens.get(store, self._tokens.get(""))
        if token is None:
            return
        header = request.headers.get("authorization", "")
        if not hmac.compare_digest(_token_of(header).encode(), token.encode()):
            problem = "the token is invalid" if header else "the request needs a token"
            raise Unauthorized(f"{problem}: send Authorization: Bearer TOKEN")


def _token_of(header: str) -> str:
    scheme, _, credentials = header.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


class Proxies:
    """Proxies whose headers name the clients.

    Args:
        trusted: Addresses and networks of proxies; ``"unix"`` for those that connect to a Unix socket.

    Raises:
        ValueError: If one is neither an address nor a network.
    """

    def __init__(self, trusted: Iterable[str]) -> None:
        check_list("trusted_proxies", trusted)
        items = set(trusted)
        self._unix = "unix" in items
        self._networks = [ipaddress.ip_network(item, strict=False) for item in sorted(items - {"unix"})]

    def resolve(self, request: Request) -> Request:
        """Return a request as its client sent it to a trusted proxy: the last address that no proxy has, and the scheme."""
        if not self._is_trusted(request.client):
            return request
        scheme = request.headers.get("x-forwarded-proto", "").lower()
        if scheme in ("http", "https"):
            request = replace(request, scheme=scheme)
        if not (forwarded := request.headers.get("x-forwarded-for", "")):
            return request
        addresses = [address.strip() for address in forwarded.split(",")][::-1]
        client = next((address for address in addresses if not self._is_trusted(address)), addresses[-1])
        return replace(request, client=client[:64])

    def _is_trusted(self, client: str) -> bool:
        if not client:
            return self._unix
        address = address_of(client)
        return address is not None and any(address in network for network in self._networks)
