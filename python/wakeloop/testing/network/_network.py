"""The simulated network: hosts, links between them, and a script of what goes wrong.

It simulates what the kernel and the wires do. Everything above is asyncio's own code: transports, servers, happy
eyeballs and TLS. It belongs to one loop at a time, keeps time by that loop's timers alone, and draws everything random
from that loop's schedule.
"""

from __future__ import annotations

import asyncio
import contextvars
import ipaddress
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from . import _checks
from ._connection import Connection
from ._endpoint import Endpoint
from ._faults import CALLS, SHORT_CALLS, Fault, Faults, check_call, checked_errors, checked_sizes
from ._host import LOOPBACK, Address, Host, Interface
from ._link import Conditions, Direction, Link
from ._names import Names
from ._poll import Poll
from ._state import NetworkState
from ._stream import StreamEndpoint

#: The first simulated descriptor. No process may open as many real ones.
FIRST_DESCRIPTOR = 1 << 30

#: The addresses of the default host for other hosts: those that RFC 5737 and RFC 3849 keep for documentation.
_DEFAULT_ADDRESSES = ("192.0.2.1", "2001:db8::1")


class Network(NetworkState):
    """A network in memory, for one testing loop.

    It begins with one host, `localhost`, on which all code runs that does not enter another host. The conditions are
    those of every link, also of a host with itself:

    - `latency`: seconds from one host to the other, or a pair (lowest, highest) from which each packet's is drawn;
    - `bandwidth`: bytes per second in each direction, None for no limit;
    - `loss`: the probability that a packet is lost. Streams send it again, after 0.2 seconds at first;
    - `reorder`, `duplicate`: the probabilities that a datagram is overtaken by later ones, or arrives twice.

    `lookup_delay` is the time of a name's resolution in seconds. `send_buffer` and `receive_buffer` are the sizes of
    the kernel's buffers of a socket, in bytes. Without `ipv6` there are no sockets and addresses of IPv6.
    """

    __module__ = "wakeloop.testing.network"

    def __init__(
        self,
        *,
        latency: float | tuple[float, float] = 0.0,
        bandwidth: float | None = None,
        loss: float = 0.0,
        reorder: float = 0.0,
        duplicate: float = 0.0,
        lookup_delay: float | tuple[float, float] = 0.0,
        send_buffer: int = 131072,
        receive_buffer: int = 131072,
        ipv6: bool = True,
    ) -> None:
        self.conditions = Conditions(
            latency=latency, bandwidth=bandwidth, loss=loss, reorder=reorder, duplicate=duplicate
        )
        self.lookup_delay = _checks.interval("lookup_delay", lookup_delay)
        self.send_buffer = _checks.count("send_buffer", send_buffer, least=1)
        self.receive_buffer = _checks.count("receive_buffer", receive_buffer, least=1)
        self.ipv6 = bool(ipv6)
        self.names = Names(self)
        self.faults: Faults = Faults(self)
        self.poll = Poll()
        #: The sockets that are bound to paths.
        self.paths: dict[Any, Any] = {}
        self.adopted: dict[tuple[int, int], Endpoint] = {}
        self._hosts: dict[str, Host] = {}
        self._owners: dict[Address, Host] = {}
        self._links: dict[frozenset[Host], Link] = {}
        self._loop: Any = None
        self._descriptors: dict[int, Endpoint] = {}
        self._next_descriptor = FIRST_DESCRIPTOR
        self._connections: list[Connection] = []
        # The network's own timers run in no program's context.
        self._context = contextvars.Context()
        #: The host on which code runs that has entered no other one.
        self.localhost = self._add_host("localhost", _DEFAULT_ADDRESSES, gateway=True)

    # -- the script: hosts and names ---------------------------------------------------------------

    def host(self, name: str, *addresses: str, gateway: bool = True) -> Host:
        """Add a host, or return the one of this name if no addresses are given.

        An address may have the length of its subnet, as in "10.0.0.1/24". Without a `gateway` the host reaches its own
        subnets only. A new host without addresses gets one of 10.0.0.0/8 and one of fd00::/8.
        """
        known = self._hosts.get(name)
        if known is not None:
            if addresses:
                raise ValueError(f"there is already a host {name!r}")
            return known
        if not addresses:
            number = len(self._hosts)
            addresses = (str(ipaddress.IPv4Address("10.0.0.0") + number), str(ipaddress.IPv6Address("fd00::") + number))
        return self._add_host(name, addresses, gateway=gateway)

    def name(self, name: str, *hosts: Host | str) -> None:
        """Let a name stand for hosts, or for single addresses, in this order."""
        if not hosts:
            raise ValueError("a name stands for at least one host or address")
        addresses: list[Address] = []
        for each in hosts:
            if isinstance(each, str) and each not in self._hosts:
                addresses.append(_parse_address(each))
            else:
                addresses += [interface.ip for interface in self.find_host(each).interfaces]
        self.names.add(_checked_name(name), tuple(addresses))

    def find_host(self, host: Host | str) -> Host:
        """The host of a name. ValueError if there is none."""
        if isinstance(host, Host):
            if host.network is not self:
                raise ValueError(f"{host!r} is on another network")
            return host
        if not isinstance(host, str):
            raise TypeError(f"a host or its name was expected, not {type(host).__qualname__}")
        if host not in self._hosts:
            raise ValueError(f"there is no host {host!r}; there are {', '.join(self._hosts)}")
        return self._hosts[host]

    def _add_host(self, name: str, addresses: Iterable[str], *, gateway: bool) -> Host:
        interfaces = [_parse_interface(address) for address in addresses]
        for interface in interfaces:
            if interface.ip in self._owners:
                raise ValueError(f"{interface.ip} is already an address of {self._owners[interface.ip].name!r}")
        if len({interface.ip for interface in interfaces}) < len(interfaces):
            raise ValueError(f"an address of {name!r} is given twice")
        host = Host(self, _checked_name(name), interfaces, gateway=gateway)
        self._hosts[name] = host
        self._owners.update((interface.ip, host) for interface in interfaces)
        self.names.add(name, tuple(interface.ip for interface in interfaces))
        return host

    # -- the script: links -------------------------------------------------------------------------

    def link(self, first: Host | str, second: Host | str, *, one_way: bool = False, **conditions: Any) -> Link:
        """The link between two hosts, with some of its conditions changed: see `Link.change`."""
        link = self._link(self.find_host(first), self.find_host(second))
        if one_way:
            Conditions(**conditions)
            link.direction(self.find_host(first), self.find_host(second)).change(**conditions)
        else:
            link.change(**conditions)
        return link

    def partition(self, *groups: Host | str | Iterable[Host | str], one_way: bool = False) -> None:
        """Cut all links between groups of hosts. A single group is cut from all other hosts.

        Packets on their way are lost too, and nobody is told. With `one_way` only the packets from an earlier group to
        a later one are lost.
        """
        sides = [self._group(group) for group in groups]
        if not sides:
            raise ValueError("a partition needs a host or a group of hosts")
        if len(sides) == 1:
            sides.append([host for host in self._hosts.values() if host not in sides[0]])
        pairs = []
        for index, side in enumerate(sides):
            for other in sides[index + 1 :]:
                both = set(side) & set(other)
                if both:
                    names = ", ".join(sorted(host.name for host in both))
                    raise ValueError(f"a host cannot be on both sides of a partition: {names}")
                pairs += [(first, second) for first in side for second in other]
        for first, second in pairs:
            link = self._link(first, second)
            link.direction(first, second).cut()
            if not one_way:
                link.direction(second, first).cut()
        self.probe_flows()

    def heal(self, *hosts: Host | str) -> None:
        """Let packets pass on all links again, or on those of some hosts."""
        chosen = [self.find_host(host) for host in hosts]
        for link in self._links.values():
            if not chosen or any(host in chosen for host in link.hosts):
                link.heal()

    def _group(self, group: Host | str | Iterable[Host | str]) -> list[Host]:
        if isinstance(group, (Host, str)):
            return [self.find_host(group)]
        return [self.find_host(host) for host in group]

    def _link(self, first: Host, second: Host) -> Link:
        key = frozenset((first, second))
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(self, first, second)
        return link

    # -- the script: faults ------------------------------------------------------------------------

    def fail(
        self,
        call: str,
        error: int | Iterable[int],
        *,
        host: Host | str | None = None,
        peer: Host | str | None = None,
        port: int | None = None,
        after: int = 0,
        times: int | None = None,
        probability: float = 1.0,
    ) -> Fault:
        """Let calls of a socket fail with an errno, or with one drawn from several.

        `call` is bind, listen, connect, accept, recv, send, or getaddrinfo, which fails with one of socket.EAI_*. The
        rule may be limited to sockets on a `host`, to a `peer` host, and to a `port` of either end. It lets `after`
        calls pass, and strikes at most `times` times, each time with a `probability`.
        """
        check_call(call, CALLS)
        errors = checked_errors(call, error)
        return self.faults.add(
            call, errors=errors, host=host, peer=peer, port=port, after=after, times=times, probability=probability
        )

    def shorten(
        self,
        call: str,
        size: int | tuple[int, int] = 1,
        *,
        host: Host | str | None = None,
        peer: Host | str | None = None,
        port: int | None = None,
        after: int = 0,
        times: int | None = None,
        probability: float = 1.0,
    ) -> Fault:
        """Let recv or send of a stream move at most `size` bytes, or a number drawn from a pair (lowest, highest).

        The other arguments are those of `fail`.
        """
        check_call(call, SHORT_CALLS)
        sizes = checked_sizes(size)
        return self.faults.add(
            call, sizes=sizes, host=host, peer=peer, port=port, after=after, times=times, probability=probability
        )

    # -- what is going on --------------------------------------------------------------------------

    def connections(self, *hosts: Host | str) -> list[Connection]:
        """The open stream connections, oldest first; with hosts, those that have an end at each of them."""
        chosen = [self.find_host(host) for host in hosts]
        self._connections = [each for each in self._connections if each.is_open]
        return [each for each in self._connections if all(host in each.hosts for host in chosen)]

    def sockets(self) -> list[Endpoint]:
        """The sockets that programs have open, for reports."""
        return list(self._descriptors.values())

    def open_descriptors(self) -> dict[int, Endpoint]:
        """The simulated descriptors that programs have open. The socket of a real one may have joined the network."""
        return {fd: endpoint for fd, endpoint in self._descriptors.items() if fd >= FIRST_DESCRIPTOR}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._hosts)}>"

    # -- the loop ----------------------------------------------------------------------------------

    @property
    def loop(self) -> Any:
        """The loop that the network belongs to. RuntimeError if there is none."""
        loop = None if self._loop is None else self._loop()
        if loop is None:
            raise RuntimeError("the network belongs to no loop: give it to a testing loop, as in run(network=...)")
        return loop

    @property
    def is_running(self) -> bool:
        """Whether the network belongs to a loop that is not closed."""
        loop = None if self._loop is None else self._loop()
        return loop is not None and not loop.is_closed()

    def attach(self, loop: Any) -> None:
        """Belong to a loop from now on. The traffic of an earlier loop is forgotten, the script stays."""
        if self.is_running and self.loop is not loop:
            raise RuntimeError(f"{self!r} belongs to {self.loop!r}, which is not closed")
        self._loop = weakref.ref(loop)
        for endpoint in list(self._descriptors.values()):
            endpoint.fd, endpoint.descriptors = -1, []
        self._descriptors.clear()
        self.adopted.clear()
        self._next_descriptor = FIRST_DESCRIPTOR
        self._connections.clear()
        self.paths.clear()
        self.poll.clear()
        for host in self._hosts.values():
            host.reset()
        for link in self._links.values():
            link.reset()

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call something of the network later."""
        return self.loop.call_at(when, callback, *args, context=self._context)  # type: ignore[no-any-return]

    # -- for the endpoints -------------------------------------------------------------------------

    def open_descriptor(self, endpoint: Endpoint, descriptor: int | None = None) -> None:
        """Give an endpoint a descriptor: a simulated one, or the one of a real socket that was adopted."""
        if descriptor is None:
            descriptor = self._next_descriptor
            self._next_descriptor += 1
        if endpoint.fd < 0:
            endpoint.fd = descriptor
        endpoint.descriptors.append(descriptor)
        self._descriptors[descriptor] = endpoint

    def close_descriptor(self, descriptor: int) -> None:
        """Take a descriptor back."""
        self._descriptors.pop(descriptor, None)
        self.poll.forget(descriptor)

    def endpoint_of(self, descriptor: Any) -> Endpoint | None:
        """The endpoint behind a descriptor, None if it is a real one."""
        return self._descriptors.get(descriptor)

    def host_at(self, address: Address, asking: Host) -> Host | None:
        """The host that has an address, seen from another one."""
        if asking.owns(address) or address.is_unspecified:
            return asking
        return self._owners.get(address)

    def answers(self, host: Host, address: Address) -> bool:
        """Whether a host has a route back to an address."""
        try:
            host.source_for(address)
        except OSError:
            return False
        return True

    def direction(self, source: Host, target: Host) -> Direction:
        """The direction that packets from one host to another take."""
        return self._link(source, target).direction(source, target)

    def note_connection(self, client: StreamEndpoint, server: StreamEndpoint) -> None:
        """Note that a connection was established."""
        if len(self._connections) > 64:
            self._connections = [each for each in self._connections if each.is_open]
        self._connections.append(Connection(self, client, server))

    def resume_flows(self) -> None:
        """Let all connections go on, because a link was healed."""
        if not self.is_running:
            return
        # Also the ends that their programs have closed, which still send what was written.
        for connection in self.connections():
            connection.resume_flows()

    def probe_flows(self) -> None:
        """Let all connections notice that a link was cut."""
        if not self.is_running:
            return
        for connection in self.connections():
            connection.probe_flows()


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name must be a str, not {type(name).__qualname__}")
    if not name or any(character.isspace() for character in name):
        raise ValueError(f"a name must not be empty, nor have spaces: {name!r}")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name
    raise ValueError(f"a name must not be an address: {name!r}")


def _parse_interface(text: Any) -> Interface:
    if not isinstance(text, str):
        raise TypeError(f"an address must be a str, not {type(text).__qualname__}")
    interface = ipaddress.ip_interface(text)
    _check_address(interface.ip)
    return interface


def _parse_address(text: str) -> Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a host nor an address") from None
    if address not in LOOPBACK:
        _check_address(address)
    return address


def _check_address(address: Address) -> None:
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError(f"{address} cannot be the address of a host")
