"""Faults of single calls: errors of any errno, and short reads and writes, by hand or drawn from the schedule."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

from . import _checks
from ._endpoint import Endpoint
from ._host import Host, current_host, error
from ._names import name_failure
from ._state import NetworkState
from ._stream import StreamEndpoint

#: The calls that may fail, and those that may be shortened.
CALLS = ("bind", "listen", "connect", "accept", "recv", "send", "getaddrinfo")
SHORT_CALLS = ("recv", "send")

#: The errors that a connection gets from the network, some time after connect() has returned.
_FROM_NETWORK = frozenset(
    (errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE)
)
_NAME_ERRORS = frozenset(value for name, value in vars(socket).items() if name.startswith("EAI_"))


class Fault:
    """One rule of a script: which calls fail or are shortened. Made by `Network.fail` and `Network.shorten`."""

    __module__ = "wakeloop.testing.network"

    def __init__(
        self,
        faults: Faults,
        call: str,
        *,
        errors: tuple[int, ...] = (),
        sizes: tuple[int, int] | None = None,
        host: Host | None,
        peer: Host | None,
        port: int | None,
        after: int,
        times: int | None,
        probability: float,
    ) -> None:
        self.call = call
        self._faults = faults
        self._errors = errors
        self._sizes = sizes
        self._host = host
        self._peer = peer
        self._port = port
        self._after = after
        self._left = times
        self._probability = probability
        #: How often it has happened.
        self.count = 0

    def remove(self) -> None:
        """Take the rule out of the script. Safe to call twice."""
        self._faults.remove(self)

    def strikes(self, host: Host, peer: Host | None, ports: tuple[int, ...]) -> bool:
        """Whether it happens to a call, which it counts."""
        if self._left == 0:
            return False
        if (self._host is not None and host is not self._host) or (self._peer is not None and peer is not self._peer):
            return False
        if self._port is not None and self._port not in ports:
            return False
        if self._after:
            self._after -= 1
            return False
        kind = "fault" if self._errors else "short"
        if not self._faults.network.chance(kind, self._probability):
            return False
        if self._left is not None:
            self._left -= 1
        self.count += 1
        return True

    def error(self) -> int:
        """The error of a call that fails."""
        return self._errors[self._faults.network.choose("errno", len(self._errors))]

    def size(self, whole: int) -> int:
        """How many bytes a call of a size moves."""
        assert self._sizes is not None
        low, high = (min(bound, whole) for bound in self._sizes)
        # The first answer of a schedule stands for what happens without it: the longest piece.
        return high - self._faults.network.choose("short", high - low + 1)

    def __repr__(self) -> str:
        if self._errors:
            what = "/".join(errno.errorcode.get(number, str(number)) for number in self._errors)
        else:
            what = f"at most {self._sizes} bytes"
        return f"<{type(self).__name__} {self.call}: {what}, happened {self.count} times>"


class Faults:
    """The faults of a network's script."""

    def __init__(self, network: NetworkState) -> None:
        self.network = network
        self._rules: dict[str, list[Fault]] = {}

    # -- the script --------------------------------------------------------------------------------

    def add(
        self,
        call: str,
        *,
        errors: tuple[int, ...] = (),
        sizes: tuple[int, int] | None = None,
        host: Host | str | None = None,
        peer: Host | str | None = None,
        port: int | None = None,
        after: int = 0,
        times: int | None = None,
        probability: float = 1.0,
    ) -> Fault:
        """Add a rule that has been checked so far as errors and sizes go."""
        if port is not None:
            _checks.count("port", port, least=1)
            if port > 65535:
                raise ValueError(f"port must be at most 65535: {port!r}")
        if times is not None:
            _checks.count("times", times, least=1)
        fault = Fault(
            self,
            call,
            errors=errors,
            sizes=sizes,
            host=None if host is None else self.network.find_host(host),
            peer=None if peer is None else self.network.find_host(peer),
            port=port,
            after=_checks.count("after", after),
            times=times,
            probability=_checks.probability("probability", probability),
        )
        self._rules.setdefault(call, []).append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Take a rule out of the script."""
        rules = self._rules.get(fault.call, [])
        if fault in rules:
            rules.remove(fault)

    # -- what happens to a call --------------------------------------------------------------------

    def raise_at(self, call: str, endpoint: Endpoint, name: Any = None) -> None:
        """Raise the error that a rule has for a call."""
        fault = self._find(call, endpoint, name)
        if fault is not None:
            raise error(fault.error())

    def connect_fault(self, endpoint: Endpoint, name: Any) -> int:
        """Raise the error that a rule has for connect(), or return the one that the connection gets later, or 0."""
        fault = self._find("connect", endpoint, name)
        if fault is None:
            return 0
        number = fault.error()
        if number in _FROM_NETWORK and endpoint.type == socket.SOCK_STREAM and endpoint.family != socket.AF_UNIX:
            return number
        raise error(number)

    def shortened(self, call: str, endpoint: Endpoint, size: int) -> int:
        """How many bytes a call moves at most."""
        if size < 2 or call not in self._rules:
            return size
        fault = self._find(call, endpoint, None, short=True)
        return size if fault is None else fault.size(size)

    def raise_name_fault(self, network: NetworkState, name: str, port: Any) -> None:
        """Raise the error that a rule has for the resolution of a name."""
        if "getaddrinfo" not in self._rules:
            return
        here = current_host(network)
        found = network.names.look_up(name)
        peer = network.host_at(found[0], here) if found else None
        for fault in self._rules["getaddrinfo"]:
            if fault.strikes(here, peer, (port,) if isinstance(port, int) else ()):
                raise name_failure(fault.error())

    def _find(self, call: str, endpoint: Endpoint, name: Any, *, short: bool = False) -> Fault | None:
        rules = self._rules.get(call)
        if not rules:
            return None
        peer, ports = self._other_end(endpoint, name)
        for fault in rules:
            if bool(fault._sizes) is short and fault.strikes(endpoint.host, peer, ports):
                return fault
        return None

    def _other_end(self, endpoint: Endpoint, name: Any) -> tuple[Host | None, tuple[int, ...]]:
        """The host at the other end of a call, as far as it is known, and the ports of both ends."""
        ports = (endpoint.port,) if endpoint.port else ()
        if isinstance(endpoint, StreamEndpoint) and endpoint.peer is not None:
            return endpoint.peer.host, (*ports, endpoint.peer.port)
        if not isinstance(name, tuple):
            try:
                name = endpoint.peername()
            except OSError:
                return None, ports
        if not (isinstance(name, tuple) and len(name) >= 2):
            return None, ports
        try:
            address = ipaddress.ip_address(name[0])
        except ValueError:
            return None, ports
        return self.network.host_at(address, endpoint.host), (*ports, name[1])


def checked_errors(call: str, failure: Any) -> tuple[int, ...]:
    """The errors that a script gives to a call: one number, or several of which one is drawn."""
    numbers = tuple(failure) if isinstance(failure, Iterable) else (failure,)
    if not numbers:
        raise ValueError("a fault needs at least one error")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"an error is a number such as errno.ECONNRESET, not {number!r}")
        if call == "getaddrinfo":
            if number not in _NAME_ERRORS:
                raise ValueError(f"getaddrinfo fails with one of socket.EAI_*, not {number}")
        elif number not in errno.errorcode:
            raise ValueError(f"there is no errno {number}")
    return numbers


def checked_sizes(size: Any) -> tuple[int, int]:
    """The lengths of a shortened call: at most a number, or drawn from between two."""
    low, high = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    _checks.count("size", low, least=1)
    _checks.count("size", high, least=1)
    if low > high:
        raise ValueError(f"size: the lowest, {low}, is above the highest, {high}")
    return low, high


def check_call(call: str, known: tuple[str, ...]) -> None:
    """Refuse a call that cannot have this fault."""
    if call not in known:
        raise ValueError(f"there is no call {call!r} to fail; there are {', '.join(known)}")
