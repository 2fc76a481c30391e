"""Servers of other people's protocols, as far as their clients need it: enough of Redis and of PostgreSQL.

They run on asyncio's streams, so on any loop.
"""

import asyncio
import contextlib
import re
import struct


class FakeServer:
    """A server that serves each client in a task of its own, and ends them when it is left."""

    def __init__(self, host="127.0.0.1", port=0):
        self.address = host, port
        self.server = None
        self.tasks = {}  # an ordered set

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._client, *self.address)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        for task in list(self.tasks):
            await task
        await self.server.wait_closed()

    async def _client(self, reader, writer):
        task = asyncio.current_task()
        self.tasks[task] = None
        try:
            await self.serve(reader, writer)
        except (OSError, EOFError):
            pass
        except asyncio.CancelledError:
            # Until 3.12, asyncio logs an error if the task of a client is cancelled.
            pass
        finally:
            del self.tasks[task]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def serve(self, reader, writer):
        raise NotImplementedError


class FakeRedis(FakeServer):
    """Strings, lists, counters and channels, over RESP 2 and 3."""

    def __init__(self, *address):
        super().__init__(*address)
        self.values = {}
        self.channels = {}
        #: Commands by name, how often each was received.
        self.received = {}

    async def serve(self, reader, writer):
        protocol = [2]
        try:
            while True:
                arguments = await self._read(reader)
                name = arguments[0].decode().upper()
                self.received[name] = self.received.get(name, 0) + 1
                if name == "SLOW":
                    await asyncio.sleep(float(arguments[1]))
                    answer = b"+OK\r\n"
                elif name == "HELLO":
                    if len(arguments) > 1:
                        protocol[0] = int(arguments[1])
                    answer = self._map({b"server": b"redis", b"version": b"7.4.0", b"proto": protocol[0]}, protocol[0])
                else:
                    answer = self._answer(name, arguments[1:], writer, protocol[0])
                writer.write(answer)
                await writer.drain()
                if name == "QUIT":
                    return
        finally:
            for writers in self.channels.values():
                writers.pop(writer, None)

    async def _read(self, reader):
        line = await reader.readuntil(b"\r\n")
        assert line[:1] == b"*", line
        arguments = []
        for _ in range(int(line[1:])):
            line = await reader.readuntil(b"\r\n")
            assert line[:1] == b"$", line
            arguments.append((await reader.readexactly(int(line[1:]) + 2))[:-2])
        return arguments

    def _answer(self, name, arguments, writer, protocol):
        values = self.values
        if name in ("SET", "SELECT", "CLIENT", "QUIT"):
            if name == "SET":
                values[arguments[0]] = arguments[1]
            return b"+OK\r\n"
        if name == "PING":
            return self._bulk(arguments[0]) if arguments else b"+PONG\r\n"
        if name == "ECHO":
            return self._bulk(arguments[0])
        if name == "GET":
            value = values.get(arguments[0])
            return b"_\r\n" if value is None and protocol == 3 else self._bulk(value)
        if name == "DEL":
            return b":%d\r\n" % sum(values.pop(key, None) is not None for key in arguments)
        if name in ("INCR", "INCRBY"):
            step = int(arguments[1]) if name == "INCRBY" else 1
            values[arguments[0]] = b"%d" % (int(values.get(arguments[0], 0)) + step)
            return b":%s\r\n" % values[arguments[0]]
        if name == "PUBLISH":
            channel, message = arguments
            writers = self.channels.get(channel, {})
            for other, kind in writers.items():
                parts = [b"message", channel, message]
                other.write((b">3\r\n" if kind == 3 else b"*3\r\n") + b"".join(map(self._bulk, parts)))
            return b":%d\r\n" % len(writers)
        if name in ("SUBSCRIBE", "UNSUBSCRIBE"):
            answers = b""
            for count, channel in enumerate(arguments or list(self.channels), 1):
                if name == "SUBSCRIBE":
                    self.channels.setdefault(channel, {})[writer] = protocol
                else:
                    self.channels.get(channel, {}).pop(writer, None)
                head = b">3\r\n" if protocol == 3 else b"*3\r\n"
                answers += head + self._bulk(name.lower().encode()) + self._bulk(channel) + b":%d\r\n" % count
            return answers
        return b"-ERR unknown command '%s'\r\n" % name.encode()

    @staticmethod
    def _bulk(data):
        return b"$-1\r\n" if data is None else b"$%d\r\n%s\r\n" % (len(data), data)

    @classmethod
    def _map(cls, values, protocol):
        head = b"%%%d\r\n" % len(values) if protocol == 3 else b"*%d\r\n" % (2 * len(values))
        items = [part for pair in values.items() for part in pair]
        return head + b"".join(b":%d\r\n" % item if isinstance(item, int) else cls._bulk(item) for item in items)


_INT4, _TEXT = 23, 25
_PARAMETERS = {
    "server_version": "16.4", "client_encoding": "UTF8", "integer_datetimes": "on", "standard_conforming_strings": "on",
    "DateStyle": "ISO, MDY", "TimeZone": "UTC", "is_superuser": "off",
}  # fmt: skip


class FakePostgres(FakeServer):
    """`SELECT <int>`, `SELECT $1::int4`, `SELECT $1::text`, `SELECT sleep(<seconds>)`, and what a client sends besides.

    Both the simple and the extended protocol (version 3), without passwords and without TLS.
    """

    def __init__(self, *address):
        super().__init__(*address)
        #: The queries that were received, in order.
        self.queries = []

    async def serve(self, reader, writer):
        if not await self._start(reader, writer):
            return
        statements, bound = {}, b""
        failed = False
        while True:
            head = await reader.readexactly(5)
            kind, size = head[:1], struct.unpack("!i", head[1:])[0]
            body = await reader.readexactly(size - 4)
            if kind == b"X":
                return
            if kind == b"Q":
                self._simple(writer, body[:-1].decode())
                await self._sleep_for(body.decode())
                writer.write(_ready())
            elif kind == b"S":
                failed = False
                writer.write(_ready())
            elif failed:
                continue
            elif kind == b"P":
                name, query, _ = body.split(b"\0", 2)
                statements[name] = query.decode()
                self.queries.append(query.decode())
                writer.write(_message(b"1"))
            elif kind == b"D":
                self._describe(writer, statements[body[1:-1]])
            elif kind == b"B":
                _, name, rest = body.split(b"\0", 2)
                bound = statements[name], rest
                writer.write(_message(b"2"))
            elif kind == b"E":
                await self._sleep_for(bound[0])
                writer.write(_row(self._value(*bound)) + _message(b"C", b"SELECT 1\0"))
            elif kind == b"C":
                statements.pop(body[1:-1], None)
                writer.write(_message(b"3"))
            elif kind != b"H":
                failed = True
                writer.write(_message(b"E", b"SERROR\0VERROR\0C0A000\0Mnot supported\0\0"))
            await writer.drain()

    async def _start(self, reader, writer):
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            rest = await reader.readexactly(size - 8)
            if code == 80877103:  # a request for TLS
                writer.write(b"N")
            elif code == 80877102:  # a request to cancel a query
                return False
            else:
                break
        assert code == 196608 and rest, code
        writer.write(_message(b"R", struct.pack("!i", 0)))
        for name, value in _PARAMETERS.items():
            writer.write(_message(b"S", f"{name}\0{value}\0".encode()))
        writer.write(_message(b"K", struct.pack("!ii", 1, 2)) + _ready())
        await writer.drain()
        return True

    def _simple(self, writer, query):
        self.queries.append(query)
        writer.write(_message(b"C", b"SELECT 0\0"))

    async def _sleep_for(self, query):
        found = re.search(r"sleep\(([0-9.]+)\)", query)
        if found:
            await asyncio.sleep(float(found[1]))

    def _describe(self, writer, query):
        kind = _TEXT if "text" in query else _INT4
        parameters = [kind] if "$1" in query else []
        writer.write(_message(b"t", struct.pack("!h", len(parameters)) + b"".join(struct.pack("!i", one) for one in parameters)))
        column = b"value\0" + struct.pack("!ihihih", 0, 0, kind, -1 if kind == _TEXT else 4, -1, 0)
        writer.write(_message(b"T", struct.pack("!h", 1) + column))

    def _value(self, query, rest):
        """The binary value of the only column."""
        if "$1" not in query:
            found = re.match(r"SELECT (\d+)", query)
            return struct.pack("!i", int(found[1]) if found else 0)
        formats = struct.unpack("!h", rest[:2])[0]
        place = 2 + 2 * formats + 2
        size = struct.unpack("!i", rest[place : place + 4])[0]
        return rest[place + 4 : place + 4 + size]


def _message(kind, body=b""):
    return kind + struct.pack("!i", 4 + len(body)) + body


def _ready():
    return _message(b"Z", b"I")


def _row(value):
    return _message(b"D", struct.pack("!hi", 1, len(value)) + value)
