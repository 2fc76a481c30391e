"""Names of the simulated network: what getaddrinfo and getnameinfo find there.

The network knows its hosts, `localhost`, and the names that a test adds. Numbers and services are resolved by the C
library, which asks nobody for them.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from ._host import LOOPBACK, Address, Host
from ._state import NetworkState

#: The addresses of `localhost`, in the order of RFC 6724.
_LOCALHOST = tuple(reversed(LOOPBACK))
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}

_Info = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


class Names:
    """The name service of a network."""

    def __init__(self, network: NetworkState) -> None:
        self._network = network
        self._known: dict[str, tuple[Address, ...]] = {}

    def add(self, name: str, addresses: tuple[Address, ...]) -> None:
        """Let a name stand for addresses, in this order."""
        self._known[_normal(name)] = addresses

    def look_up(self, name: str) -> tuple[Address, ...]:
        """The addresses of a name: none if it is unknown."""
        name = _normal(name)
        if name in ("localhost", "localhost.localdomain", "ip6-localhost") or name.endswith(".localhost"):
            found = _LOCALHOST
        else:
            found = self._known.get(name, ())
        return tuple(address for address in found if address.version == 4 or self._network.ipv6)

    def address_of(self, host: Host, name: Any, family: int) -> Address:
        """The address that a socket call gets from the host part of an address, as the socket module resolves it."""
        if isinstance(name, (bytes, bytearray)):
            name = name.decode("ascii")
        if not isinstance(name, str):
            raise TypeError(f"str, bytes or bytearray expected, not {type(name).__name__}")
        version = 6 if family == socket.AF_INET6 else 4
        if name == "":
            return ipaddress.ip_address("::" if version == 6 else "0.0.0.0")
        if name == "<broadcast>":
            return ipaddress.ip_address("255.255.255.255")
        try:
            address = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            for found in self.look_up(name):
                if found.version == version:
                    return found
            raise name_failure(socket.EAI_NONAME) from None
        if isinstance(address, ipaddress.IPv6Address) and version == 6 and address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.version != version:
            raise name_failure(socket.EAI_ADDRFAMILY)
        return address

    def getaddrinfo(self, host: Any, port: Any, family: int, kind: int, proto: int, flags: int) -> list[_Info]:
        """What socket.getaddrinfo() would find."""
        if isinstance(host, bytes):
            host = host.decode("idna")
        families = [family]
        if host is None and family == socket.AF_UNSPEC:
            # The order of the C library depends on the interfaces of the real machine.
            passive = flags & socket.AI_PASSIVE
            families = [socket.AF_INET, socket.AF_INET6] if passive else [socket.AF_INET6, socket.AF_INET]
            if not self._network.ipv6:
                families = [socket.AF_INET]
        try:
            return [
                info
                for each in families
                for info in socket.getaddrinfo(host, port, each, kind, proto, flags | socket.AI_NUMERICHOST)
            ]
        except socket.gaierror as failure:
            if failure.errno != socket.EAI_NONAME or flags & socket.AI_NUMERICHOST or not isinstance(host, str):
                raise
        self._network.faults.raise_name_fault(self._network, host, port)
        addresses = self.look_up(host)
        if not addresses:
            raise name_failure(socket.EAI_NONAME)
        chosen = [each for each in addresses if family in (socket.AF_UNSPEC, _FAMILIES[each.version])]
        if not chosen:
            raise name_failure(socket.EAI_NODATA)
        flags &= ~(socket.AI_CANONNAME | socket.AI_ADDRCONFIG)
        infos: Any = [
            info
            for address in chosen
            for info in socket.getaddrinfo(
                str(address), port, _FAMILIES[address.version], kind, proto, flags | socket.AI_NUMERICHOST
            )
        ]
        return infos  # type: ignore[no-any-return]

    def getnameinfo(self, address: Any, flags: int) -> tuple[str, str]:
        """What socket.getnameinfo() would find."""
        host, service = socket.getnameinfo(address, flags | socket.NI_NUMERICHOST)
        if flags & socket.NI_NUMERICHOST:
            return host, service
        number = ipaddress.ip_address(host.partition("%")[0])
        if number.is_loopback:
            return "localhost", service
        for name, addresses in self._known.items():
            if number in addresses:
                return name, service
        if flags & socket.NI_NAMEREQD:
            raise name_failure(socket.EAI_NONAME)
        return host, service


def _normal(name: str) -> str:
    return name.rstrip(".").lower()


#: The C library's own texts, which the socket module has as well.
_TEXTS = {
    socket.EAI_NONAME: "Name or service not known",
    socket.EAI_NODATA: "No address associated with hostname",
    socket.EAI_ADDRFAMILY: "Address family for hostname not supported",
    socket.EAI_AGAIN: "Temporary failure in name resolution",
    socket.EAI_FAIL: "Non-recoverable failure in name resolution",
}


def name_failure(number: int) -> socket.gaierror:
    """The exception of a name that cannot be resolved."""
    return socket.gaierror(number, _TEXTS.get(number, "Name resolution failed"))
