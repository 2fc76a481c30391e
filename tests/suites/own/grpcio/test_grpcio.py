"""grpc.aio, server and client, as its users use it; messages are plain bytes."""

import asyncio

import grpc
import grpc.aio
import pytest
import trustme


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        return {
            "/test/Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "/test/Count": grpc.unary_stream_rpc_method_handler(self.count),
            "/test/Sum": grpc.stream_unary_rpc_method_handler(self.sum),
            "/test/Chat": grpc.stream_stream_rpc_method_handler(self.chat),
            "/test/Slow": grpc.unary_unary_rpc_method_handler(self.slow),
            "/test/Fail": grpc.unary_unary_rpc_method_handler(self.fail),
        }.get(details.method)

    def __init__(self):
        self.cancelled = 0

    async def echo(self, request, context):
        return request

    async def count(self, request, context):
        for number in range(int(request)):
            yield str(number).encode()

    async def sum(self, requests, context):
        return str(sum([int(request) async for request in requests])).encode()

    async def chat(self, requests, context):
        async for request in requests:
            yield request.upper()

    async def slow(self, request, context):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def fail(self, request, context):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as asked")


def run(function, credentials=None):
    async def main():
        service, server = Service(), grpc.aio.server()
        server.add_generic_rpc_handlers((service,))
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials[0])
            channel = grpc.aio.secure_channel(f"localhost:{port}", credentials[1])
        await server.start()
        try:
            async with channel:
                return await function(channel, service)
        finally:
            await server.stop(None)

    return asyncio.run(main())


def test_one_call_and_many_at_once():
    async def main(channel, service):
        echo = channel.unary_unary("/test/Echo")
        assert await echo(b"there and back") == b"there and back"
        messages = [str(number).encode() * 100 for number in range(500)]
        assert await asyncio.gather(*map(echo, messages)) == messages

    run(main)


def test_large_messages():
    async def main(channel, service):
        message = b"x" * (3 << 20)
        assert await channel.unary_unary("/test/Echo")(message) == message

    run(main)


def test_streams_in_each_direction():
    async def main(channel, service):
        answers = [int(answer) async for answer in channel.unary_stream("/test/Count")(b"1000")]
        assert answers == list(range(1000))

        async def numbers():
            for number in range(1000):
                yield str(number).encode()

        assert int(await channel.stream_unary("/test/Sum")(numbers())) == sum(range(1000))
        chat = channel.stream_stream("/test/Chat")()
        for _ in range(200):
            await chat.write(b"hello")
            assert await chat.read() == b"HELLO"
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF

    run(main)


def test_a_call_that_is_cancelled_is_cancelled_at_the_server():
    async def main(channel, service):
        call = asyncio.ensure_future(channel.unary_unary("/test/Slow")(b""))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(5):
            while not service.cancelled:
                await asyncio.sleep(0.01)

    run(main)


def test_a_deadline_and_an_error():
    async def main(channel, service):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/test/Slow")(b"", timeout=0.1)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/test/Fail")(b"")
        assert (error.value.code(), error.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "as asked")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/test/None")(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(main)


def test_calls_over_tls():
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    server = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])

    async def main(channel, service):
        assert await channel.unary_unary("/test/Echo")(b"in secret") == b"in secret"

    run(main, (server, grpc.ssl_channel_credentials(authority.cert_pem.bytes())))


def test_one_loop_after_the_other():
    async def main(channel, service):
        return await channel.unary_unary("/test/Echo")(b"once more")

    for _ in range(5):
        assert run(main) == b"once more"


def test_timers_and_sockets_of_the_loop_go_on_beside_the_calls():
    async def main(channel, service):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        task = asyncio.create_task(tick())
        echo = channel.unary_unary("/test/Echo")
        for _ in range(200):
            await echo(b"x" * 1000)
        await asyncio.sleep(0.05)
        task.cancel()
        assert ticks > 5

    run(main)
