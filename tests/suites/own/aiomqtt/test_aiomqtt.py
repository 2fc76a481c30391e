"""Clients of aiomqtt at a broker of amqtt, in one loop, as their users use them."""

import asyncio
import contextlib
import functools
import ssl

import aiomqtt
import pytest
import trustme
from amqtt.broker import Broker

PLUGINS = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The certificates that the broker and its clients name."""
    directory, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_pem.write_to_path(directory / "server.key")
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(directory / "server.pem", append=number > 0)
    return directory


@contextlib.asynccontextmanager
async def broker(**listener):
    """Runs a broker. Gives a function that creates a client for it."""
    listener = {"type": "tcp", "bind": "127.0.0.1:0"} | listener
    serving = Broker({"listeners": {"default": listener}, "plugins": PLUGINS})
    await serving.start()
    [server] = serving._servers.values()
    port = server.instance.sockets[0].getsockname()[1]
    transport = {"tcp": "tcp", "ws": "websockets"}[listener["type"]]
    try:
        yield functools.partial(aiomqtt.Client, "127.0.0.1", port, transport=transport, timeout=10)
    finally:
        await serving.shutdown()


def in_a_loop(test):
    @functools.wraps(test)
    def wrapper(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 50))

    return wrapper


async def received(client, number):
    messages = []
    async for message in client.messages:
        messages.append(message)
        if len(messages) == number:
            return messages


@pytest.mark.parametrize("kind", ["tcp", "ws"])
@pytest.mark.parametrize("quality", [0, 1, 2])
@in_a_loop
async def test_messages_arrive_in_order(kind, quality):
    async with broker(type=kind) as client, client() as subscriber, client() as publisher:
        await subscriber.subscribe("numbers/#", qos=quality)
        receiving = asyncio.create_task(received(subscriber, 50))
        for number in range(50):
            await publisher.publish(f"numbers/{number % 3}", number, qos=quality)
        assert [int(message.payload) for message in await receiving] == list(range(50))


@pytest.mark.parametrize("kind", ["tcp", "ws"])
@in_a_loop
async def test_a_message_larger_than_every_buffer_arrives(kind):
    """paho waits for the socket to become writable several times before all of it is sent."""
    payload = bytes(range(256)) * 2000
    async with broker(type=kind) as client, client() as subscriber, client() as publisher:
        await subscriber.subscribe("large", qos=1)
        receiving = asyncio.create_task(received(subscriber, 3))
        for _ in range(3):
            await publisher.publish("large", payload, qos=1)
        assert [message.payload for message in await receiving] == [payload] * 3


@in_a_loop
async def test_many_clients_hear_one():
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(broker())
        subscribers = [await stack.enter_async_context(client()) for _ in range(20)]
        for subscriber in subscribers:
            await subscriber.subscribe("all")
        publisher = await stack.enter_async_context(client())
        receiving = [asyncio.create_task(received(subscriber, 1)) for subscriber in subscribers]
        await publisher.publish("all", "hello", qos=1)
        assert [message.payload for [message] in await asyncio.gather(*receiving)] == [b"hello"] * 20


@in_a_loop
async def test_messages_arrive_over_tls(files):
    listener = {"ssl": True, "certfile": str(files / "server.pem"), "keyfile": str(files / "server.key")}
    context = ssl.create_default_context(cafile=files / "ca.pem")
    async with broker(**listener) as client:
        async with client(tls_context=context) as subscriber, client(tls_context=context) as publisher:
            await subscriber.subscribe("secret", qos=1)
            receiving = asyncio.create_task(received(subscriber, 2))
            await publisher.publish("secret", b"s" * 200_000, qos=1)
            await publisher.publish("secret", b"short", qos=1)
            assert [len(message.payload) for message in await receiving] == [200_000, 5]


@in_a_loop
async def test_a_retained_message_reaches_later_subscribers():
    async with broker() as client:
        async with client() as publisher:
            await publisher.publish("state", "on", qos=1, retain=True)
        async with client() as subscriber:
            await subscriber.subscribe("state", qos=1)
            [message] = await received(subscriber, 1)
            assert (message.payload, message.retain) == (b"on", True)


@in_a_loop
async def test_a_subscriber_learns_that_the_broker_has_gone():
    async with contextlib.AsyncExitStack() as stack:
        async with broker() as client:
            subscriber = await stack.enter_async_context(client())
            await subscriber.subscribe("nothing")
            receiving = asyncio.create_task(received(subscriber, 1))
            await asyncio.sleep(0.1)
        with pytest.raises(aiomqtt.MqttError):
            await receiving


@in_a_loop
async def test_connecting_without_a_listener_fails():
    async with broker() as client:
        pass
    with pytest.raises(aiomqtt.MqttError):
        async with client():
            pass
