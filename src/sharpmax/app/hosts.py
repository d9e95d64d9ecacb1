"""Which host names the explorer answers to.

A page on the web can point a name of its own at 127.0.0.1 and so reach this server from its
visitor's browser (DNS rebinding). The browser then sends that name as `Host`, so only known names
are answered. An IP address needs no name, and so cannot be pointed elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Addresses that can be reached from this machine only."""


@dataclass(frozen=True)
class AllowedHosts:
    """The host names and addresses that a server answers to, with any port."""

    names: frozenset[str]
    any_address: bool
    """Whether all IP addresses are accepted, because the server listens on several."""

    @staticmethod
    def of_server(host: str, names: Collection[str] = ()) -> AllowedHosts:
        """Return the names of a server that listens at an address.

        Args:
            host: The address that it listens at.
            names: Other names by which it is reached, such as that of a proxy in front of it.
        """
        own = {host, *names, *LOCAL_HOSTS}
        if host not in LOCAL_HOSTS:
            own.add(socket.gethostname())
        wildcard = _address(host) is not None and ipaddress.ip_address(host).is_unspecified
        return AllowedHosts(frozenset(name.lower() for name in own), wildcard)

    def allows_host(self, header: str) -> bool:
        """Return whether a `Host` header, such as `localhost:7860`, is one of ours."""
        name = host_name(header)
        return name in self.names or (self.any_address and _address(name) is not None)

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return whether an `Origin` header belongs to the page that this host serves."""
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def host_name(header: str) -> str:
    """Return the name in a `Host` header, without port and brackets; empty if it is malformed."""
    match = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?", header.lower())
    return (match[1] or match[2]) if match else ""


def _address(name: str) -> str | None:
    """Return the name if it is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return None
    return name
