"""A program that makes every operation on sockets. Tests that replace or observe Python's sockets run it in another
process, before `asyncio` and `new_loop`, which the prelude of `run_script` defines."""

#: Coroutines that connect, serve and send.
CLIENTS = """
async def greet(reader, writer):
    writer.write(await reader.readexactly(2))
    writer.close()
    await writer.wait_closed()

async def talk(reader, writer):
    writer.write(b"hi")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer

class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)

class Client(asyncio.DatagramProtocol):
    def __init__(self):
        self.received = asyncio.get_running_loop().create_future()

    def datagram_received(self, data, address):
        self.received.set_result(data)

async def tcp():
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        for host in ("127.0.0.1", "localhost"):
            address = host, server.sockets[0].getsockname()[1]
            print(await talk(*await asyncio.open_connection(*address, family=socket.AF_INET)))

async def unix():
    async with await asyncio.start_unix_server(greet, "\\0" + str(id(server := Echo()))) as server:
        print(await talk(*await asyncio.open_unix_connection(server.sockets[0].getsockname())))

async def udp():
    loop = asyncio.get_running_loop()
    echo, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    client, protocol = await loop.create_datagram_endpoint(
        Client, remote_addr=echo.get_extra_info("sockname")
    )
    client.sendto(b"datagram")
    print(await protocol.received)
    client.close()
    echo.close()
    await asyncio.sleep(0)

async def sock():
    loop = asyncio.get_running_loop()
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        client.setblocking(False)
        _, (accepted, _) = await asyncio.gather(
            loop.sock_connect(client, server.getsockname()), loop.sock_accept(server)
        )
        with accepted:
            sending = asyncio.ensure_future(loop.sock_recv(client, 10))
            await asyncio.sleep(0.001)
            await loop.sock_sendall(accepted, b"sent")
            print(await sending, type(accepted).__name__)
"""

#: Calls `report(operation)` after each operation.
OPERATIONS = """import socket

""" + CLIENTS + """
class Pair:
    def __init__(self, kind=socket.SOCK_STREAM):
        self.ends = socket.socketpair(socket.AF_UNIX, kind)
        for end in self.ends:
            end.setblocking(False)

    def __enter__(self):
        return self.ends

    def __exit__(self, *exception):
        for end in self.ends:
            end.close()

async def operations(report):
    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    report("listen")
    await talk(*await asyncio.open_connection(*address))
    report("connect to a number")
    await talk(*await asyncio.open_connection("localhost", address[1], family=socket.AF_INET))
    report("connect to a name")
    reader, writer = await asyncio.open_connection(*address)
    writer.writelines([b"h", b"i"])
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    report("writelines")
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, address)
        report("sock_connect")
        await loop.sock_sendall(client, b"hi")
        report("sock_sendall")
        await loop.sock_recv(client, 1)
        report("sock_recv")
        await loop.sock_recv_into(client, bytearray(1))
        report("sock_recv_into")
    await asyncio.sleep(0.001)
    server.close()
    await server.wait_closed()
    report("close")
    await unix()
    report("unix")
    await udp()
    report("udp")
    with Pair(socket.SOCK_DGRAM) as (near, far):
        near.bind("\\0near-%d" % id(near))
        await loop.sock_sendto(far, b"xy", near.getsockname())
        report("sock_sendto")
        await loop.sock_recvfrom(near, 10)
        report("sock_recvfrom")
        await loop.sock_sendto(far, b"xy", near.getsockname())
        await loop.sock_recvfrom_into(near, bytearray(10))
        report("sock_recvfrom_into")
    with socket.create_server(("127.0.0.1", 0)) as waiting, socket.create_connection(waiting.getsockname()):
        waiting.setblocking(False)
        (await loop.sock_accept(waiting))[0].close()
        report("sock_accept")
"""
