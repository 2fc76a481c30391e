"""Simulated networks of two hosts, and a connection between them."""

import asyncio

from wakeloop import testing
from wakeloop.testing.network import Network


def now():
    return asyncio.get_running_loop().time()


def hosts(**options):
    """A network with the hosts `client` and `server`."""
    network = Network(**options)
    network.host("client", "10.0.0.1")
    network.host("server", "10.0.0.2")
    return network


class Connected:
    """A connection between two hosts, as streams on both sides."""

    def __init__(self, network, client="client", server="server"):
        self.network, self.client, self.host = network, network.host(client), network.host(server)

    async def __aenter__(self):
        made = asyncio.get_running_loop().create_future()
        with self.host:
            self.listener = await asyncio.start_server(lambda *streams: made.set_result(streams), "", 80)
        with self.client:
            self.reader, self.writer = await asyncio.open_connection(self.host.addresses[0], 80)
        self.server_reader, self.server_writer = await made
        [self.connection] = self.network.connections()
        return self

    async def __aexit__(self, *_):
        self.listener.close()
        for writer in self.writer, self.server_writer:
            if not writer.is_closing():
                writer.transport.abort()
        await asyncio.sleep(0)


def connected(network, main, **options):
    """Runs `main(connection)` on a testing loop."""

    async def run():
        async with Connected(network) as connection:
            return await main(connection)

    return testing.run(run, network=network, **options)
