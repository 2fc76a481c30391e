"""One direction of a connection: what its sender has sent, and what of it is on its way.

It is TCP as programs see it: the bytes arrive in order, each once. A lost segment is sent again, later and later, and
nothing overtakes it. What the receiver has no room for stays with the sender, whose own buffer fills. There is no
congestion window.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from typing import Any, Protocol

from ._link import Direction
from ._state import NetworkState

#: Linux's first and longest wait before a segment is sent again, in seconds, and how often it is (net.ipv4.tcp_retries2).
FIRST_RETRY, LONGEST_RETRY, RETRIES = 0.2, 120.0, 15

#: What a segment has besides its data, in bytes.
HEADER = 40


class Segment:
    """A piece of a stream."""

    __slots__ = ("arrival", "data", "is_last", "is_reset", "mark", "timer")

    def __init__(self, data: bytes, is_last: bool = False, is_reset: bool = False) -> None:
        self.data = data
        #: Nothing comes after it: a FIN.
        self.is_last = is_last
        #: A RST: it ends the connection at once, and is not sent again.
        self.is_reset = is_reset
        #: The mark of the direction when it was sent.
        self.mark = 0
        self.arrival = 0.0
        #: None if it arrives together with the segment before it.
        self.timer: asyncio.TimerHandle | None = None


class End(Protocol):
    """One of the two ends of a connection, as a flow sees it."""

    network: NetworkState

    @property
    def window(self) -> int:
        """How many bytes it has room for."""

    @property
    def is_sending(self) -> bool:
        """Whether it still wants to send what was lost."""

    def option(self, level: int, name: int) -> Any:
        """An option of its socket."""

    def on_segment(self, data: bytes, is_last: bool) -> bool:
        """A segment arrives. Returns whether it is acknowledged."""

    def on_acknowledgement(self) -> None:
        """Some of what it has sent has arrived."""

    def on_reset(self) -> None:
        """A RST arrives."""

    def fail(self, number: int) -> None:
        """Nothing of what it sends arrives any more."""


class Flow:
    """What goes from one endpoint of a connection to the other."""

    def __init__(self, sender: End, receiver: End, forward: Direction, backward: Direction) -> None:
        self.sender = sender
        self.receiver = receiver
        self._forward = forward
        self._backward = backward
        self._network = sender.network
        self._unsent = bytearray()
        self._unacknowledged = 0
        self._flying: deque[Segment] = deque()
        self._flying_bytes = 0
        self._last_arrival = 0.0
        #: The segment that was lost, until it is sent again.
        self._lost: Segment | None = None
        self._tries = 0
        self._lost_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: Acknowledgements on their way back: when they arrive, and for how many bytes.
        self._acknowledged: deque[tuple[float, int]] = deque()
        self._acknowledgement: asyncio.TimerHandle | None = None
        #: The bytes that have arrived, but whose acknowledgement could not be sent.
        self._owed = 0
        self._opening: asyncio.TimerHandle | None = None
        #: The sender has closed this direction, and the FIN was sent.
        self.is_finished = self._fin_sent = False
        #: The receiver has got the FIN.
        self.is_delivered = False
        #: No packet passes: see `Connection.stall`.
        self.is_stalled = False

    @property
    def used(self) -> int:
        """The bytes in the sender's buffer: those that were not sent, or whose arrival the sender does not know."""
        return len(self._unsent) + self._unacknowledged

    @property
    def is_busy(self) -> bool:
        """Whether the sender still has something to deliver."""
        return bool(self.used or (self.is_finished and not self.is_delivered))

    # -- the sender's side -------------------------------------------------------------------------

    def greet(self) -> None:
        """Send a segment without data: the end of the handshake."""
        self._transmit(Segment(b""))

    def write(self, data: memoryview) -> None:
        """Send data, for which the sender's buffer has room."""
        self._unsent += data
        self.pump()

    def finish(self) -> None:
        """Send a FIN after all data."""
        self.is_finished = True
        self.pump()

    def pump(self) -> None:
        """Send what the receiver has room for."""
        while self._unsent and self._lost is None:
            room = self.receiver.window - self._flying_bytes
            size = min(len(self._unsent), room, self._forward.segment)
            if size <= 0:
                return
            data = bytes(self._unsent[:size])
            del self._unsent[:size]
            self._unacknowledged += size
            self._transmit(Segment(data))
        if self.is_finished and not (self._unsent or self._fin_sent) and self._lost is None:
            self._fin_sent = True
            self._transmit(Segment(b"", is_last=True))

    def reset(self) -> None:
        """Send a RST, after what is already on its way. If it is lost, it is not sent again."""
        self.stop()
        self._transmit(Segment(b"", is_reset=True))

    def stop(self) -> None:
        """Send nothing more. What is on its way still arrives."""
        self._unsent.clear()
        self._unacknowledged = 0
        self._lost = None
        self._acknowledged.clear()
        for timer in (self._timer, self._acknowledgement, self._opening):
            if timer is not None:
                timer.cancel()
        self._timer = self._acknowledgement = self._opening = None

    def resume(self) -> None:
        """Go on, after a link was healed: the receiver's room may have been announced in vain."""
        self.pump()

    def probe(self) -> None:
        """Find out whether the receiver is still there. Linux does so from time to time while there is no room.

        Here it is done only when the answer has become another one, so that no timer runs without end.
        """
        if self._unsent and self._lost is None:
            self._try_later(Segment(b""))

    def window_opens(self) -> None:
        """The receiver has read, and announces its room to the sender."""
        if not self._unsent or self._opening is not None or self._backward.is_cut or self.is_stalled:
            return
        if self._backward.delay == 0:
            self.pump()
        else:
            self._opening = self._network.call_later(self._backward.delay, self._window_announced)

    def _window_announced(self) -> None:
        self._opening = None
        self.pump()

    # -- on the way --------------------------------------------------------------------------------

    def _transmit(self, segment: Segment) -> None:
        arrival, lost = self._forward.send(HEADER + len(segment.data))
        if lost or self.is_stalled:
            if not segment.is_reset:
                self._try_later(segment)
            return
        segment.mark = self._forward.mark
        arrival = self._last_arrival = max(arrival, self._last_arrival)
        if arrival <= self._network.now() and not self._flying:
            self._deliver(segment)
        else:
            if not (self._flying and self._flying[-1].arrival == arrival):
                segment.timer = self._network.call_at(arrival, self._arrives)
            segment.arrival = arrival
            self._flying.append(segment)
            self._flying_bytes += len(segment.data)

    def _try_later(self, segment: Segment) -> None:
        now = self._network.now()
        if not self._tries:
            self._lost_since = now
        self._lost = segment
        wait = min(FIRST_RETRY * 2.0**self._tries, LONGEST_RETRY)
        # Linux gives up earlier if the program says so: TCP_USER_TIMEOUT, in milliseconds.
        limit = self.sender.option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
        if limit:
            wait = max(min(wait, self._lost_since + limit - now), 0)
        self._tries += 1
        is_last = self._tries > RETRIES or (limit and now + wait >= self._lost_since + limit)
        self._timer = self._network.call_later(wait, self._give_up if is_last else self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        segment, self._lost = self._lost, None
        if segment is not None:
            self._transmit(segment)
            self.pump()

    def _give_up(self) -> None:
        self.sender.fail(errno.ETIMEDOUT)

    def _arrives(self) -> None:
        # Each timer is for one segment, whichever of the timers ran, and for those that arrive together with it.
        segment = self._flying.popleft()
        while self._forward.mark == segment.mark and not self.is_stalled:
            self._flying_bytes -= len(segment.data)
            self._deliver(segment)
            if not self._flying or self._flying[0].timer is not None:
                return
            segment = self._flying.popleft()
        # It was lost on its way. All behind it have to wait for it, also one that was lost before it.
        waiting = [segment, *self._flying]
        if self._lost is not None:
            waiting.append(self._lost)
        self._flying.clear()
        self._flying_bytes = 0
        for each in waiting:
            if each.timer is not None:
                each.timer.cancel()
            if each.is_last:
                self._fin_sent = False
        self._take_back(b"".join(each.data for each in waiting))

    def _take_back(self, data: bytes) -> None:
        """Send data again that has not arrived."""
        if not self.sender.is_sending:
            return
        self._unacknowledged -= len(data)
        self._unsent[:0] = data
        if self._lost is None:
            self._try_later(Segment(b""))
        else:
            self._lost = Segment(b"")

    # -- the receiver's side -----------------------------------------------------------------------

    def _deliver(self, segment: Segment) -> None:
        if segment.is_reset:
            self.receiver.on_reset()
            return
        if not self.receiver.on_segment(segment.data, segment.is_last):
            # The answer was a RST. If that is lost, the sender tries again.
            self._take_back(segment.data)
            return
        self.is_delivered = self.is_delivered or segment.is_last
        self._owed += len(segment.data)
        if (self._backward.is_cut or self.is_stalled) and (self._owed or segment.is_last):
            # The receiver has it, but the sender does not get to know, and tries again.
            if self._lost is None:
                self._try_later(Segment(b"", is_last=segment.is_last))
            return
        self._tries = 0
        size, self._owed = self._owed, 0
        delay = self._backward.delay
        if delay == 0 and not self._acknowledged:
            self._acknowledge(size)
            return
        self._acknowledged.append((self._network.now() + delay, size))
        if self._acknowledgement is None:
            self._acknowledgement = self._network.call_later(delay, self._acknowledgement_arrives)

    def _acknowledge(self, size: int) -> None:
        # A flow that was stopped has nothing to acknowledge any more.
        self._unacknowledged -= min(size, self._unacknowledged)
        self.sender.on_acknowledgement()

    def _acknowledgement_arrives(self) -> None:
        self._acknowledgement = None
        # A timer may run a clock's resolution too early, so the first one is due in any case.
        now, size = self._network.now(), self._acknowledged.popleft()[1]
        while self._acknowledged and self._acknowledged[0][0] <= now:
            size += self._acknowledged.popleft()[1]
        if self._acknowledged:
            self._acknowledgement = self._network.call_at(self._acknowledged[0][0], self._acknowledgement_arrives)
        self._acknowledge(size)
