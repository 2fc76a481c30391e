"""aiocoap, servers and clients in one process, as its users use it, over each of its transports."""

import asyncio
import contextlib
import functools
import socket
import ssl
import sys

import aiocoap
import aiocoap.credentials
import aiocoap.error
import pytest
import trustme
from aiocoap import resource
from aiocoap.numbers.codes import Code

PAYLOAD = bytes(range(256)) * 40


class Echo(resource.Resource):
    async def render_get(self, request):
        return aiocoap.Message(payload=b"hello")

    async def render_put(self, request):
        return aiocoap.Message(code=Code.CHANGED, payload=request.payload)


class Slow(resource.Resource):
    """Answers after a delay, so that the acknowledgement is a message of its own."""

    async def render_get(self, request):
        await asyncio.sleep(0.3)
        return aiocoap.Message(payload=b"at last")


class Count(resource.ObservableResource):
    def __init__(self):
        super().__init__()
        self.number = 0

    def count(self):
        self.number += 1
        self.updated_state()

    async def render_get(self, request):
        return aiocoap.Message(payload=str(self.number).encode())


def free_port(kind):
    with socket.socket(socket.AF_INET6, kind) as sock:
        sock.bind(("::1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def transports(monkeypatch):
    def choose(server, client=None):
        monkeypatch.setenv("AIOCOAP_SERVER_TRANSPORT", server)
        monkeypatch.setenv("AIOCOAP_CLIENT_TRANSPORT", client or server)

    return choose


@contextlib.asynccontextmanager
async def pair(port, **server):
    site, count = resource.Site(), Count()
    site.add_resource(["echo"], Echo())
    site.add_resource(["slow"], Slow())
    site.add_resource(["count"], count)
    serving = await aiocoap.Context.create_server_context(site, bind=("::1", port), **server)
    client = await aiocoap.Context.create_client_context()
    try:
        yield client, count
    finally:
        await client.shutdown()
        await serving.shutdown()


async def ask(client, uri, code=Code.GET, payload=b""):
    return await client.request(aiocoap.Message(code=code, uri=uri, payload=payload)).response


def in_a_loop(test):
    @functools.wraps(test)
    def wrapper(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 50))

    return wrapper


@pytest.mark.parametrize("client", ["udp6", "simple6"])
@in_a_loop
async def test_requests_are_answered_over_udp(transports, client):
    transports("udp6", client)
    port = free_port(socket.SOCK_DGRAM)
    async with pair(port) as (client, _):
        root = f"coap://[::1]:{port}"
        assert (await ask(client, f"{root}/echo")).payload == b"hello"
        assert (await ask(client, f"{root}/slow")).payload == b"at last"
        assert (await ask(client, f"{root}/nothing")).code == Code.NOT_FOUND


def chosen(transports, transport):
    """Sets the transports of server and client. Returns the port and the root of the server's addresses."""
    server, _, client = transport.partition(":")
    transports(server, client)
    kind, scheme = (socket.SOCK_STREAM, "coap+tcp") if client else (socket.SOCK_DGRAM, "coap")
    port = free_port(kind)
    return port, f"{scheme}://[::1]:{port}"


@pytest.mark.parametrize("transport", ["udp6", "tcpserver:tcpclient"])
@in_a_loop
async def test_a_long_payload_comes_back(transports, transport):
    port, root = chosen(transports, transport)
    async with pair(port) as (client, _):
        answer = await ask(client, f"{root}/echo", Code.PUT, PAYLOAD)
        assert answer.code == Code.CHANGED
        assert answer.payload == PAYLOAD


@pytest.mark.parametrize("transport", ["udp6", "tcpserver:tcpclient"])
@in_a_loop
async def test_an_observer_sees_each_state(transports, transport):
    port, root = chosen(transports, transport)
    async with pair(port) as (client, count):
        request = client.request(aiocoap.Message(code=Code.GET, uri=f"{root}/count", observe=0))
        assert (await request.response).payload == b"0"
        observed = []

        async def observe():
            async for message in request.observation:
                observed.append(int(message.payload))
                if observed[-1] == 5:
                    return

        observer = asyncio.create_task(observe())
        for _ in range(5):
            await asyncio.sleep(0.05)
            count.count()
        await observer
        request.observation.cancel()
        assert observed == sorted(observed)


@in_a_loop
async def test_many_requests_at_once_over_udp(transports):
    transports("udp6")
    port = free_port(socket.SOCK_DGRAM)
    async with pair(port) as (client, _):
        payloads = [str(number).encode() * 20 for number in range(30)]
        asked = [ask(client, f"coap://[::1]:{port}/echo", Code.PUT, payload) for payload in payloads]
        assert [answer.payload for answer in await asyncio.gather(*asked)] == payloads


@pytest.mark.parametrize("client", ["udp6", "simple6"])
@in_a_loop
async def test_connecting_to_a_port_without_a_listener_is_an_error_at_once(transports, client):
    """The error comes from the socket's error queue, or from the connected socket."""
    transports("udp6", client)
    client = await aiocoap.Context.create_client_context()
    try:
        async with asyncio.timeout(5):
            with pytest.raises(aiocoap.error.NetworkError):
                await ask(client, f"coap://[::1]:{free_port(socket.SOCK_DGRAM)}/echo")
    finally:
        await client.shutdown()


@in_a_loop
async def test_connecting_to_a_tcp_port_without_a_listener_is_an_error(transports):
    transports("tcpserver", "tcpclient")
    client = await aiocoap.Context.create_client_context()
    try:
        with pytest.raises(aiocoap.error.NetworkError):
            await ask(client, f"coap+tcp://[::1]:{free_port(socket.SOCK_STREAM)}/echo")
    finally:
        await client.shutdown()


@in_a_loop
async def test_requests_are_answered_over_tls(transports, tmp_path):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["coap"])
    # What the library tells a site of the name it was called by comes from here.
    context.sni_callback = lambda ssl_object, name, _: setattr(ssl_object, "indicated_server_name", name)
    authority.issue_cert("::1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    transports("tlsserver", "tlsclient")
    port = free_port(socket.SOCK_STREAM)
    async with pair(port, _ssl_context=context) as (client, _):
        # As with the ports that the standard gives them, TLS is one above.
        root = f"coaps+tcp://[::1]:{port + 1}"
        client.client_credentials[f"{root}/*"] = aiocoap.credentials.TLSCert(certfile=str(tmp_path / "ca.pem"))
        assert (await ask(client, f"{root}/echo", Code.PUT, PAYLOAD)).payload == PAYLOAD


@in_a_loop
async def test_a_client_of_another_process_is_served(transports):
    transports("udp6")
    port = free_port(socket.SOCK_DGRAM)
    async with pair(port):
        command = ["-m", "aiocoap.cli.client", "-q", f"coap://[::1]:{port}/echo"]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        assert output.strip() == b"hello"
