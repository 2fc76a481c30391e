"""A connection of the simulated network, for scripts that break it."""

from __future__ import annotations

import errno
from typing import Any

from ._host import Host
from ._state import NetworkState
from ._stream import State, StreamEndpoint


class Connection:
    """An established stream connection. `Network.connections` returns those that are open."""

    __module__ = "wakeloop.testing.network"

    def __init__(self, network: NetworkState, client: StreamEndpoint, server: StreamEndpoint) -> None:
        self._network = network
        self._client = client
        self._server = server
        self._names = client.sockname(), server.sockname()
        self.hosts: tuple[Host, Host] = (client.host, server.host)

    @property
    def client(self) -> Any:
        """The address of the end that has connected."""
        return self._names[0]

    @property
    def server(self) -> Any:
        """The address of the end that has accepted."""
        return self._names[1]

    @property
    def is_open(self) -> bool:
        """Whether at least one end has the connection, and has not closed it."""
        return any(end.state is State.CONNECTED and not end.is_orphan for end in (self._client, self._server))

    def reset(self) -> None:
        """Break it at once, as a middlebox does that sends a RST to both ends."""
        for end in (self._client, self._server):
            end.on_reset()

    def half_open(self, lost: Host | str) -> None:
        """Let the end at one host lose the connection, and the other one not notice before it sends something.

        The program at this host gets ECONNRESET. If both ends are on the host, it is the server's.
        """
        host: Host = self._network.find_host(lost)
        for end in (self._server, self._client):
            if end.host is host:
                end.fail(errno.ECONNRESET)
                return
        raise ValueError(f"{host.name!r} has no end of {self!r}")

    def stall(self) -> None:
        """Lose all its packets from now on, as a firewall does that has forgotten the connection."""
        self._client.stall(True)
        self._server.stall(True)

    def resume(self) -> None:
        """Let its packets pass again."""
        self._client.stall(False)
        self._server.stall(False)

    def resume_flows(self) -> None:
        """Let both ends send what the network has held back."""
        for end in (self._client, self._server):
            if end.is_sending and end.out is not None:
                end.out.resume()

    def probe_flows(self) -> None:
        """Let both ends find out that nothing arrives any more, if they have something to send."""
        for end in (self._client, self._server):
            if end.is_sending and end.out is not None:
                end.out.probe()

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<{type(self).__name__} {self.client} to {self.server}, {state}>"
