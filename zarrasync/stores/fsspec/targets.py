"""What a document of references may refer to: a rule about places, and connections to addresses that it allows.

A document on this machine may refer to local files and to any host. One from elsewhere may refer to its own origin
and to public hosts, and never to local files. The reader may allow more.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from zarrasync._util.redact import redact
from zarrasync.errors import StoreError
from zarrasync.stores.fsspec.identity import AZURE, GCS, LOCAL, S3, WEB

Origin: TypeAlias = tuple[str, str, int]
"""Scheme, host and port of a web server."""
_PORTS = {"http": 80, "https": 443}
_ELSEWHERE = WEB | S3 | GCS | AZURE | {"data"}
"""Protocols that never lead to this machine, if the addresses of web servers are checked when they are connected to."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Targets:
    """The places to which a document of references may refer.

    Args:
        name: The document in messages, without secrets.
        document: The URL of what the document comes from; empty if the caller passes the references.
        protocol: The protocol by which it was read.
        folder: The directory of a local document, without symbolic links; empty for others.
        allowed: URLs and local directories that the reader allows, with everything below them; ``"*"`` for everything.
        is_confined: Whether local files must be in ``folder``, because others may read through this process.

    Attributes:
        is_local: Whether the document is on this machine.
        pinned: Addresses that are not public, from which the document was read.
    """

    name: str
    document: str
    protocol: str = "file"
    folder: str = ""
    allowed: tuple[str, ...] = ()
    is_confined: bool = False
    pinned: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def of(cls, document: str, protocol: str, folder: str, allowed: Iterable[str], name: str = "") -> Targets:
        """Return the rule for a document. Arguments are as for the class.

        Raises:
            TypeError: If the allowed places are not strings.
        """
        places = [allowed] if isinstance(allowed, str) else list(allowed or ())
        if not all(isinstance(place, str | os.PathLike) for place in places):
            raise TypeError(f"allow_targets must be a list of URLs and local directories, found {allowed!r}")
        return cls(
            name or document, document, protocol, folder, tuple(_normalized(os.fspath(place)) for place in places)
        )

    def confined(self) -> Targets:
        """Return the same rule, with local files only from the document's directory."""
        return replace(self, is_confined=True)

    @property
    def is_local(self) -> bool:
        return self.protocol in LOCAL

    @property
    def origins(self) -> set[Origin]:
        """Web servers that the reader allows, whatever their addresses are."""
        return {origin for place in self.allowed if (origin := origin_of(place)) is not None}

    def check(self, url: str, protocol: str, key: str) -> None:
        """Check the target of a reference.

        Args:
            url: The target.
            protocol: The protocol of the filesystem that will read it; one of ``LOCAL`` for local files.
            key: The key with the reference, for messages.

        Raises:
            StoreError: If the document may not refer to it.
        """
        place = _normalized(url) if protocol in LOCAL else url
        if any(allowed == "*" or _is_below(place, allowed) for allowed in self.allowed):
            return
        if protocol in LOCAL:
            if not self.is_local:
                raise self._refusal(key, place, "a document from elsewhere may not refer to files of this machine")
            if self.is_confined and not (self.folder and _is_below(place, self.folder)):
                raise self._refusal(key, place, "a served document may refer only to files in its own directory")
            return
        if protocol in WEB:
            if not self.is_local and (origin := origin_of(url)) in self.origins and origin != origin_of(self.document):
                raise self._refusal(key, url, "the allowed places of this host do not contain it")
            return
        if (self.is_confined or not self.is_local) and protocol not in _ELSEWHERE | {self.protocol}:
            raise self._refusal(key, url, f"a document from elsewhere may not refer to {protocol}: URLs")

    def select(self, host: str, port: int, addresses: Sequence[str]) -> list[str]:
        """Return the addresses of a host to which a connection is allowed.

        If some are public, only these are. Others are allowed for the document's own origin if it was read from them, and
        for hosts that the reader allows. Addresses for the document itself are remembered; see ``pinned``.

        Raises:
            StoreError: If no address is allowed.
        """
        if public := [address for address in addresses if is_public(address)]:
            return public
        own = origin_of(self.document)
        is_own = own is not None and own[1:] == (host, port) and self.pinned.issuperset(addresses)
        if "*" in self.allowed or is_own or any(origin[1:] == (host, port) for origin in self.origins):
            return list(addresses)
        shown = host if host in addresses else f"{host} ({', '.join(addresses)})"
        raise self._refusal(
            "",
            f"{shown}:{port}",
            "its address is not public, and a document from elsewhere may refer only to public hosts",
        )

    def _refusal(self, key: str, target: str, reason: str) -> StoreError:
        subject = f"{key!r} refers to " if key else "a reference leads to "
        return StoreError(
            f"{self.name!r}: {subject}{redact(target)!r}, which is refused: {reason}; if you trust the "
            "document, pass the storage option allow_targets=[…]",
            key=key,
        )


def origin_of(url: str) -> Origin | None:
    """Return the origin of a URL of a web server; ``None`` for others."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            return None
        return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]
    except ValueError:
        return None


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet, and not of this machine or of a private network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):  # addresses that routers translate to IPv4
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def guarded_client(targets: Targets, *, pins: bool = False) -> Callable[..., Any]:
    """Return what fsspec's HTTP filesystem calls to make a session. Its connections lead to allowed addresses only.

    The address is checked that is connected to, after names are resolved and after redirects, so that neither can be used
    to reach others.

    Args:
        targets: The rule.
        pins: Whether the session reads the document itself.
    """
    import aiohttp

    class Connector(aiohttp.TCPConnector):
        """A connector that leaves out addresses to which the document may not refer."""

        async def _resolve_host(self, host: str, port: int, *args: Any, **options: Any) -> list[Any]:
            found = await super()._resolve_host(host, port, *args, **options)
            addresses = [entry["host"] for entry in found]
            own = origin_of(targets.document)
            if pins and own is not None and own[1:] == (host, port) and not any(map(is_public, addresses)):
                targets.pinned.update(addresses)
            selected = set(targets.select(host, port, addresses))
            return [entry for entry in found if entry["host"] in selected]

    async def make(**options: Any) -> Any:
        return aiohttp.ClientSession(**{**options, "connector": Connector(limit=0)})

    return make


def _normalized(place: str) -> str:
    """Return an allowed place or a target: local paths without symbolic links, URLs as they are."""
    if place == "*" or ("://" in place and not place.startswith(("file://", "local://"))):
        return place
    for scheme in ("file://", "local://"):
        place = place.removeprefix(scheme)
    return os.path.realpath(os.path.expanduser(place))


def _is_below(place: str, above: str) -> bool:
    """Return whether a path or URL is another one, or below it."""
    if "://" in above:
        if ".." in urlsplit(place).path.split("/") or "%2e" in place.lower():
            return False
        if (origin := origin_of(above)) is not None:
            if origin_of(place) != origin:
                return False
            place, above = urlsplit(place).path or "/", urlsplit(above).path or "/"
    return place == above or place.startswith(above.rstrip("/") + "/")
