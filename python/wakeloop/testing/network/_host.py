"""A host of the simulated network: its addresses, its routes and its ports.

A context variable says on which host code runs. Tasks and callbacks inherit it, so all that is started on a host stays
there.
"""

from __future__ import annotations

import contextvars
import errno
import ipaddress
import os
import socket
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from . import _checks
from ._state import NetworkState

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface

#: The hosts that were entered, the innermost last.
_entered: contextvars.ContextVar[tuple[Host, ...]] = contextvars.ContextVar("wakeloop.testing host", default=())

LOOPBACK: tuple[Address, ...] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))

#: Linux's range of the ports that it chooses itself.
EPHEMERAL = (32768, 60999)


def error(number: int) -> OSError:
    """The exception of a failed call, as the socket module raises it."""
    return OSError(number, os.strerror(number))


def current_host(network: NetworkState) -> Host:
    """The host on which the calling code runs."""
    for host in reversed(_entered.get()):
        if host.network is network:
            return host
    here: Host = network.localhost
    return here


class PortUser(Protocol):
    """What uses a port of a host: an endpoint."""

    type: int
    port: int
    address: Address | None

    @property
    def is_listening(self) -> bool:
        """Whether it accepts connections."""

    @property
    def is_six_only(self) -> bool:
        """Whether it takes no packets of IPv4, if its address is one of IPv6."""

    def option(self, level: int, name: int) -> Any:
        """An option of the socket."""


class Host:
    """A machine. Made by `Network.host`.

    Code runs on it inside ``with host:``, and in the tasks that are made there. Everything else runs on
    ``network.localhost``.
    """

    __module__ = "wakeloop.testing.network"

    def __init__(self, network: NetworkState, name: str, interfaces: list[Interface], *, gateway: bool) -> None:
        self.network = network
        self.name = name
        self.interfaces = tuple(interfaces)
        #: Whether there is a route to addresses outside the host's own subnets.
        self.gateway = gateway
        #: How many bytes per second the programs of this host receive at most from a stream; None for all there are.
        self._read_rate: float | None = None
        self._bound: dict[tuple[int, int], list[PortUser]] = {}
        self._next_port = EPHEMERAL[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the host, without its loopback."""
        return tuple(str(interface.ip) for interface in self.interfaces)

    @property
    def read_rate(self) -> float | None:
        """How many bytes per second the programs of this host read at most from a connection; None for no limit."""
        return self._read_rate

    @read_rate.setter
    def read_rate(self, rate: float | None) -> None:
        self._read_rate = None if rate is None else _checks.number("read_rate", rate, positive=True)

    # -- code on this host -------------------------------------------------------------------------

    def __enter__(self) -> Host:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        entered = _entered.get()
        if not entered or entered[-1] is not self:
            raise RuntimeError(f"{self!r} is left by code that has not entered it last")
        _entered.set(entered[:-1])

    async def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Await a coroutine whose code runs on this host."""
        with self:
            return await main

    def create_task(self, main: Coroutine[Any, Any, _T], **options: Any) -> asyncio.Task[_T]:
        """Make a task whose code runs on this host; see asyncio.loop.create_task."""
        with self:
            task: asyncio.Task[_T] = self.network.loop.create_task(main, **options)
        return task

    # -- routes ------------------------------------------------------------------------------------

    def owns(self, address: Address) -> bool:
        """Whether an address is one of this host's, its loopback included."""
        return address.is_loopback or any(address == interface.ip for interface in self.interfaces)

    def source_for(self, target: Address) -> Address:
        """The address from which packets to a target go. OSError if there is no route."""
        version = target.version
        if target.is_unspecified or target.is_loopback:
            return LOOPBACK[version == 6]
        if self.owns(target):
            return target
        mine = [interface for interface in self.interfaces if interface.version == version]
        for interface in mine:
            if target in interface.network:
                return interface.ip
        if not (mine and self.gateway) or target.is_multicast:
            raise error(errno.ENETUNREACH)
        return mine[0].ip

    def is_neighbour(self, target: Address) -> bool:
        """Whether a target is in one of the host's subnets, so that the host itself notices if it is not there."""
        return any(target.version == each.version and target in each.network for each in self.interfaces)

    # -- ports -------------------------------------------------------------------------------------

    def bind(self, endpoint: PortUser, address: Address, port: int) -> None:
        """Give an endpoint an address and a port, 0 for one that is free. OSError as Linux raises it."""
        if not (address.is_unspecified or self.owns(address)):
            raise error(errno.EADDRNOTAVAIL)
        if port == 0:
            port = self._free_port(endpoint, address)
        elif self._conflicts(endpoint, address, port):
            raise error(errno.EADDRINUSE)
        endpoint.address, endpoint.port = address, port
        self.add(endpoint)

    def add(self, endpoint: PortUser) -> None:
        """Note that an endpoint uses its port."""
        self._bound.setdefault((endpoint.type, endpoint.port), []).append(endpoint)

    def release(self, endpoint: PortUser) -> None:
        """Note that an endpoint no longer uses its port."""
        place = endpoint.type, endpoint.port
        users = self._bound.get(place)
        if users is not None and endpoint in users:
            users.remove(endpoint)
            if not users:
                del self._bound[place]

    def conflicts(self, endpoint: PortUser) -> bool:
        """Whether an endpoint that is already bound may not listen, because another one does."""
        assert endpoint.address is not None
        return self._conflicts(endpoint, endpoint.address, endpoint.port)

    def users(self, kind: int, port: int) -> list[PortUser]:
        """The endpoints that use a port."""
        return self._bound.get((kind, port), [])

    def reset(self) -> None:
        """Forget all ports."""
        self._bound.clear()
        self._next_port = EPHEMERAL[0]

    def _free_port(self, endpoint: PortUser, address: Address) -> int:
        low, high = EPHEMERAL
        for _ in range(low, high + 1):
            port = self._next_port
            self._next_port = low if port == high else port + 1
            if (endpoint.type, port) not in self._bound or not self._conflicts(endpoint, address, port, strict=True):
                return port
        raise error(errno.EADDRINUSE)

    def _conflicts(self, endpoint: PortUser, address: Address, port: int, *, strict: bool = False) -> bool:
        return any(
            _overlap(endpoint, address, other) and (strict or not _may_share(endpoint, other))
            for other in self.users(endpoint.type, port)
            if other is not endpoint
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {' '.join(self.addresses)}>"


def _overlap(endpoint: PortUser, address: Address, other: PortUser) -> bool:
    """Whether two endpoints, of which one has or wants an address, would receive the same packets."""
    theirs = other.address
    assert theirs is not None
    if address.version == theirs.version:
        return address == theirs or address.is_unspecified or theirs.is_unspecified
    six, is_six_any = (endpoint, address.is_unspecified) if address.version == 6 else (other, theirs.is_unspecified)
    return is_six_any and not six.is_six_only


def _may_share(endpoint: PortUser, other: PortUser) -> bool:
    """Whether two endpoints may have the same address and port."""
    if endpoint.option(socket.SOL_SOCKET, socket.SO_REUSEPORT) and other.option(socket.SOL_SOCKET, socket.SO_REUSEPORT):
        return True
    shared = endpoint.option(socket.SOL_SOCKET, socket.SO_REUSEADDR) and other.option(
        socket.SOL_SOCKET, socket.SO_REUSEADDR
    )
    return bool(shared) and not other.is_listening
