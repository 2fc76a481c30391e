"""A network in memory, for testing loops: hosts, links with latency and loss, partitions, and faults of single calls.

An unchanged program runs on it: servers and clients in one process, on several hosts if the test wants them.
"""

from __future__ import annotations

from ._connection import Connection
from ._faults import Fault
from ._host import Host
from ._io import SimulatedIO
from ._link import Link
from ._network import Network

__all__ = ["Connection", "Fault", "Host", "Link", "Network", "SimulatedIO"]
