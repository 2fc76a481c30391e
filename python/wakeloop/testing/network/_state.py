"""The base class of the network: what its parts use of it. `Network` is its only subclass.

Hosts, links, sockets and faults import this class, so that none imports `_network`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ._poll import Poll


class NetworkState:
    """What the parts of a network share."""

    #: The conditions of a new link: a `Conditions`.
    conditions: Any
    #: The name service: a `Names`.
    names: Any
    #: The faults of single calls: a `Faults`.
    faults: Any
    #: The host of all code that has entered no other one.
    localhost: Any
    #: The sizes of a socket's buffers, in bytes.
    send_buffer: int
    receive_buffer: int
    #: Whether there are sockets and addresses of IPv6.
    ipv6: bool
    #: The descriptors for which callbacks wait.
    poll: Poll
    #: The sockets that are bound to paths and abstract names.
    paths: dict[Any, Any]
    #: The endpoints of sockets that the program has made, by the kernel's inode of the socket.
    adopted: dict[tuple[int, int], Any]

    @property
    def loop(self) -> Any:
        """The loop that the network belongs to. RuntimeError if there is none."""
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        """Whether the network belongs to a loop that is not closed."""
        raise NotImplementedError

    # -- time and chance ---------------------------------------------------------------------------

    def now(self) -> float:
        """The loop's time."""
        return self.loop.time()  # type: ignore[no-any-return]

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call something of the network later."""
        raise NotImplementedError

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call something of the network after some seconds."""
        return self.call_at(self.now() + delay, callback, *args)

    def call_when(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call something of the network at a time, which may be now."""
        if when <= self.now():
            callback(*args)
        else:
            self.call_at(when, callback, *args)

    def choose(self, kind: str, count: int) -> int:
        """Let the loop's schedule choose."""
        return self.loop.schedule.choose(kind, count)  # type: ignore[no-any-return]

    def chance(self, kind: str, probability: float) -> bool:
        """Let the loop's schedule decide whether something happens."""
        return self.loop.schedule.chance(kind, probability)  # type: ignore[no-any-return]

    def uniform(self, kind: str, low: float, high: float) -> float:
        """Let the loop's schedule choose a number."""
        return self.loop.schedule.uniform(kind, low, high)  # type: ignore[no-any-return]

    # -- parts -------------------------------------------------------------------------------------

    def find_host(self, host: Any) -> Any:
        """The host of a name. ValueError if there is none."""
        raise NotImplementedError

    def host_at(self, address: Any, asking: Any) -> Any:
        """The host that has an address, seen from another one; None if nobody has it."""
        raise NotImplementedError

    def answers(self, host: Any, address: Any) -> bool:
        """Whether a host has a route back to an address."""
        raise NotImplementedError

    def direction(self, source: Any, target: Any) -> Any:
        """The `Direction` that packets from one host to another take."""
        raise NotImplementedError

    def resume_flows(self) -> None:
        """Let all connections go on, because a link was healed."""
        raise NotImplementedError

    def probe_flows(self) -> None:
        """Let all connections notice that a link was cut."""
        raise NotImplementedError

    def note_connection(self, client: Any, server: Any) -> None:
        """Note that a connection was established."""
        raise NotImplementedError

    def open_descriptor(self, endpoint: Any, descriptor: int | None = None) -> None:
        """Give an endpoint a descriptor: a simulated one, or the one of a real socket that was adopted."""
        raise NotImplementedError

    def close_descriptor(self, descriptor: int) -> None:
        """Take a descriptor back."""
        raise NotImplementedError
