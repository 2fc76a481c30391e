"""The method that a protocol receives by, whatever the program replaces while the connection is open."""

import asyncio

import pytest

from tests.support.protocol import Recording, close, pair
from tests.support.tls_pair import Viewed, secure_pair


def test_a_method_put_on_the_protocol_instance_is_the_one_called(run):
    """asyncio looks data_received up for every delivery. A cache must at least notice set_protocol."""

    async def main():
        near, far = await pair()
        replaced = asyncio.get_running_loop().create_future()
        near.data_received = replaced.set_result
        near.transport.set_protocol(near)
        far.transport.write(b"data")
        assert await replaced == b"data"
        await close(near, far)

    run(main())


class Told(Recording):
    """Puts what it receives into a queue, with the name of the method."""

    def __init__(self):
        super().__init__()
        self.got = asyncio.Queue()

    def data_received(self, data):
        self.got.put_nowait(("first", data))

    def other(self, data):
        self.got.put_nowait(("other", data))


class ToldInBuffers(Viewed):
    """The same with a buffer."""

    def __init__(self):
        super().__init__()
        self.got = asyncio.Queue()

    def buffer_updated(self, nbytes):
        self.got.put_nowait(("first", bytes(self.buffer[:nbytes])))

    def other(self, nbytes):
        self.got.put_nowait(("other", bytes(self.buffer[:nbytes])))


@pytest.mark.parametrize("over_tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("place", ["instance", "class", "kind", "connection_made"])
@pytest.mark.parametrize(("kind", "method"), [(Told, "data_received"), (ToldInBuffers, "buffer_updated")])
def test_a_method_that_receives_may_be_replaced_while_connected(run, tls, kind, method, place, over_tls):
    """asyncio looks it up for each call, but its TLS keeps the methods of a buffered protocol."""
    other = "first" if over_tls and kind is ToldInBuffers else "other"

    class First(kind):
        def connection_made(self, transport):
            super().connection_made(transport)
            if place == "connection_made":
                setattr(self, method, self.other)

    class Second(First):
        pass

    setattr(Second, method, kind.other)

    async def main():
        near, far = await (secure_pair(tls, First) if over_tls else pair(First))
        far.transport.write(b"one")
        assert await near.got.get() == (other if place == "connection_made" else "first", b"one")
        if place == "instance":
            setattr(near, method, near.other)
        elif place == "class":
            setattr(First, method, kind.other)
        else:
            near.__class__ = Second
        far.transport.write(b"two")
        assert await near.got.get() == (other, b"two")
        near.__dict__.pop(method, None)
        if place == "instance":
            far.transport.write(b"three")
            assert await near.got.get() == ("first", b"three")
        await close(near, far)

    run(main())


def in_the_base(protocol, Kind, Base, other):
    del Kind.data_received
    Base.data_received = other


def in_place_of_another_attribute(protocol, Kind, Base, other):
    """The instance has as many attributes as before, and another one has had all of their names."""
    del protocol.spare
    protocol.data_received = other.__get__(protocol)


def under_a_key_of_the_dict(protocol, Kind, Base, other):
    """Another instance has had an attribute of this name through its dict, which does not intern the name."""
    protocol.data_received = other.__get__(protocol)


#: The ways in which a program may have another method receive.
REPLACED = {
    "a dict's item": lambda protocol, Kind, Base, other: vars(protocol).update(data_received=other.__get__(protocol)),
    "another dict": lambda protocol, Kind, Base, other: setattr(
        protocol, "__dict__", {**vars(protocol), "data_received": other.__get__(protocol)}
    ),
    "in place of another": in_place_of_another_attribute,
    "under a key of the dict": under_a_key_of_the_dict,
    "in the base": in_the_base,
    "a property": lambda protocol, Kind, Base, other: setattr(
        Kind, "data_received", property(lambda self: other.__get__(self))
    ),
    "a static method": lambda protocol, Kind, Base, other: setattr(
        Kind, "data_received", staticmethod(lambda data: other(protocol, data))
    ),
    "__getattribute__": lambda protocol, Kind, Base, other: setattr(
        Kind,
        "__getattribute__",
        lambda self, name: object.__getattribute__(self, "other" if name == "data_received" else name),
    ),
    "other bases": lambda protocol, Kind, Base, other: (
        delattr(Kind, "data_received"),
        setattr(Kind, "__bases__", (type("Other", (Base,), {"data_received": other}),)),
    ),
    "the function's code": lambda protocol, Kind, Base, other: setattr(
        Kind.data_received, "__code__", other.__code__
    ),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED.keys())
def test_every_way_to_replace_the_method_that_receives_counts_at_once(run, replace):
    class Base(Told):
        pass

    class Kind(Base):
        spare = None

        def data_received(self, data):
            self.got.put_nowait(("first", data))

    async def main():
        if replace is in_place_of_another_attribute:
            Kind().data_received = None
        if replace is under_a_key_of_the_dict:
            vars(Kind())["_".join(["data", "received"])] = None
        near, far = await pair(Kind)
        near.spare = None
        for _ in range(3):
            far.transport.write(b"one")
            assert await near.got.get() == ("first", b"one")
        replace(near, Kind, Base, Told.other)
        for _ in range(2):
            far.transport.write(b"two")
            assert await near.got.get() == ("other", b"two")
        await close(near, far)

    run(main())


def test_a_hook_of_the_protocol_sees_each_lookup_once(run):
    class Hooked(Told):
        names = []

        def __getattribute__(self, name):
            type(self).names.append(name)
            return object.__getattribute__(self, name)

    async def main():
        near, far = await pair(Hooked)
        for _ in range(3):
            Hooked.names.clear()
            far.transport.write(b"one")
            assert await near.got.get() == ("first", b"one")
            assert Hooked.names.count("data_received") == 1
        await close(near, far)

    run(main())
