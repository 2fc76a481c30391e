"""A link: what happens to packets between two hosts.

Each of its two directions decides, for every packet, when it arrives and whether it is lost. A link knows no
connections; those are in `_flow`.
"""

from __future__ import annotations

from typing import Any

from . import _checks
from ._host import Host
from ._state import NetworkState

#: The bytes of one TCP segment in an Ethernet frame. Without loss and bandwidth larger pieces look the same.
SEGMENT = 1460
_LARGE_SEGMENT = 65536

#: How long a datagram that is overtaken is held back, in seconds, where the latency is shorter.
_HELD_BACK = 0.001


class Conditions:
    """How packets fare: latency, bandwidth, and the probabilities of loss, reordering and duplication."""

    __slots__ = ("_bandwidth", "_duplicate", "_latency", "_loss", "_reorder")

    NAMES = ("latency", "bandwidth", "loss", "reorder", "duplicate")

    def __init__(self, **values: Any) -> None:
        self._latency: tuple[float, float] = (0.0, 0.0)
        self._bandwidth: float | None = None
        self._loss = self._reorder = self._duplicate = 0.0
        self.change(**values)

    def change(self, **values: Any) -> None:
        """Set some of the conditions, or none if one of them is impossible."""
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name == "latency":
                checked[name] = _checks.interval(name, value)
            elif name == "bandwidth":
                checked[name] = None if value is None else _checks.number(name, value, positive=True)
            elif name in Conditions.NAMES:
                checked[name] = _checks.probability(name, value)
            else:
                raise TypeError(f"a link has no {name!r}, but {', '.join(Conditions.NAMES)}")
        for name, value in checked.items():
            setattr(self, f"_{name}", value)

    def copy(self) -> dict[str, Any]:
        """The conditions by name."""
        return {name: getattr(self, f"_{name}") for name in Conditions.NAMES}


class Direction(Conditions):
    """One direction of a link."""

    __slots__ = ("_busy_until", "_cuts", "_network", "is_cut")

    def __init__(self, network: NetworkState, **values: Any) -> None:
        super().__init__(**values)
        self._network = network
        self.is_cut = False
        self._cuts = 0
        self._busy_until = 0.0

    @property
    def mark(self) -> int:
        """A number that changes with each cut: a packet that is on its way during a cut is lost."""
        return self._cuts

    def cut(self) -> None:
        """Lose all packets, also those that are on their way."""
        self.is_cut = True
        self._cuts += 1

    def heal(self) -> None:
        """End a cut."""
        self.is_cut = False

    def reset(self) -> None:
        """Forget the traffic of an earlier loop, whose clock was another one."""
        self._busy_until = 0.0

    @property
    def segment(self) -> int:
        """How many bytes of a stream travel together."""
        return SEGMENT if self._loss or self._bandwidth else _LARGE_SEGMENT

    @property
    def delay(self) -> float:
        """The shortest latency: that of acknowledgements, which are small and are not drawn from the schedule."""
        return self._latency[0]

    def send(self, size: int) -> tuple[float, bool]:
        """Send a packet of so many bytes now. Returns when it arrives, and whether it is lost."""
        network = self._network
        leaves = network.now()
        if self._bandwidth is not None:
            leaves = max(leaves, self._busy_until) + size / self._bandwidth
            self._busy_until = leaves
        if self.is_cut or (self._loss and network.chance("loss", self._loss)):
            return leaves, True
        return leaves + network.uniform("latency", *self._latency), False

    def send_datagram(self, size: int) -> list[float]:
        """Send a datagram now. Returns when each of its copies arrives: none if it is lost."""
        arrival, lost = self.send(size)
        if lost:
            return []
        if self._reorder and self._network.chance("reorder", self._reorder):
            longest = max(self._latency[1], _HELD_BACK)
            arrival += self._network.uniform("latency", longest, 2 * longest)
        if self._duplicate and self._network.chance("duplicate", self._duplicate):
            return [arrival, arrival + self._network.uniform("latency", *self._latency)]
        return [arrival]


class Link:
    """The link between two hosts, or of a host with itself."""

    __module__ = "wakeloop.testing.network"

    def __init__(self, network: NetworkState, first: Host, second: Host) -> None:
        self._network = network
        self.hosts = (first, second)
        conditions = network.conditions.copy()
        there = Direction(network, **conditions)
        back = there if first is second else Direction(network, **conditions)
        self._directions = {(first, second): there, (second, first): back}

    def change(
        self,
        *,
        one_way: bool = False,
        **conditions: Any,
    ) -> Link:
        """Set some of latency, bandwidth, loss, reorder and duplicate, of both directions or of that to the second.

        What they mean, and their units, is said at `Network`. They hold for packets sent from now on.
        """
        Conditions(**conditions)  # Nothing is changed if one of them is impossible.
        for direction in self._chosen(one_way):
            direction.change(**conditions)
        return self

    def cut(self, *, one_way: bool = False) -> None:
        """Lose all packets from now on, also those on their way. With `one_way`, only those to the second host."""
        for direction in self._chosen(one_way):
            direction.cut()
        self._network.probe_flows()

    def heal(self) -> None:
        """Let packets pass again."""
        for direction in self._directions.values():
            direction.heal()
        self._network.resume_flows()

    def direction(self, source: Host, target: Host) -> Direction:
        """The direction from one of the two hosts to the other."""
        return self._directions[source, target]

    def reset(self) -> None:
        """Forget the traffic of an earlier loop."""
        for direction in self._directions.values():
            direction.reset()

    def _chosen(self, one_way: bool) -> list[Direction]:
        return [self._directions[self.hosts]] if one_way else list(self._directions.values())

    def __repr__(self) -> str:
        first, second = self.hosts
        cut = ", cut" if any(direction.is_cut for direction in self._directions.values()) else ""
        return f"<{type(self).__name__} {first.name} - {second.name}{cut}>"
