"""`wakeloop._core.unpatched` says whether a class or function of asyncio is unpatched. These tests show when its answer
changes, and that native code does the work only while the answer is yes."""

import asyncio
import ctypes
import functools
import socket
import sys
from asyncio import selector_events
from unittest import mock

import pytest

pytestmark = pytest.mark.native

import wakeloop  # noqa: E402
from wakeloop import _core  # noqa: E402
from wakeloop._asyncio import compat  # noqa: E402


@pytest.fixture
def kinds():
    """Two classes that count as asyncio's: a base, and one that overrides its method."""
    source = """
class Base:
    def method(self):
        return "base"

    def inherited(self):
        return "inherited"

class Kind(Base):
    def method(self):
        return "kind"

    @property
    def value(self):
        return "value"
"""
    names = {"__name__": "asyncio.invented"}
    exec(source, names)
    return names["Base"], names["Kind"]


def other(self):
    return "other"


def test_a_patched_method_is_noticed_at_once_and_no_longer_when_it_is_taken_back(kinds, monkeypatch):
    _, kind = kinds
    unpatched = _core.unpatched(((kind, "method", "value"),))
    for _ in range(3):
        assert unpatched()
        with monkeypatch.context() as patch:
            patch.setattr(kind, "method", other)
            assert not unpatched()
        assert unpatched()
        with mock.patch.object(kind, "value", "mocked"):
            assert not unpatched()
    assert unpatched()


def test_setting_an_unrelated_attribute_does_not_count_as_a_patch(kinds):
    _, kind = kinds
    unpatched = _core.unpatched(((kind, "method"),))
    kind.new_attribute = kind.value = 1
    assert unpatched()


def test_a_patch_of_what_a_method_overrides_counts(kinds, monkeypatch):
    base, kind = kinds
    unpatched = _core.unpatched(((kind, "method"),))
    monkeypatch.setattr(base, "method", other)
    assert not unpatched()


def test_a_name_that_appears_between_a_class_and_its_base_counts(kinds):
    base, kind = kinds
    unpatched = _core.unpatched(((kind, "inherited"),))
    assert unpatched()
    kind.inherited = other
    assert not unpatched()
    del kind.inherited
    assert unpatched()


def test_another_code_object_in_the_same_function_counts(kinds):
    _, kind = kinds
    unpatched = _core.unpatched(((kind, "method", "value"),))
    for function in (kind.method, vars(kind)["value"].fget):
        code = function.__code__
        function.__code__ = other.__code__
        assert not unpatched()
        function.__code__ = code
        assert unpatched()


def test_an_object_with_a_method_of_its_own_counts(kinds):
    _, kind = kinds
    unpatched = _core.unpatched(((kind, "method"),))
    plain, changed = kind(), kind()
    changed.method = functools.partial(other, changed)
    assert unpatched(plain) and not unpatched(changed) and unpatched()
    del changed.method
    assert unpatched(changed)


def test_a_subclass_counts_if_it_overrides_the_method(kinds):
    _, kind = kinds
    unpatched = _core.unpatched(((kind, "method"),))
    overriding = type("Overriding", (kind,), {"method": other})
    plain = type("Plain", (kind,), {})
    assert unpatched(plain()) and not unpatched(overriding())
    assert unpatched(object())


def test_a_patch_that_is_older_than_the_question_counts(kinds):
    _, kind = kinds
    kind.method = other
    assert not _core.unpatched(((kind, "method"),))()


def test_functools_wraps_does_not_make_a_patch_an_original(kinds):
    _, kind = kinds
    kind.method = functools.wraps(kind.method)(lambda self: "wrapped")
    assert not _core.unpatched(((kind, "method"),))()


def test_a_class_that_was_changed_too_often_for_a_version_is_still_asked(kinds):
    """CPython gives a class no more than a thousand versions, since 3.13."""
    _, kind = kinds
    unpatched = _core.unpatched(((kind, "method"),))
    for number in range(1100):
        kind.number = number
        assert unpatched()
    kind.method = other
    assert not unpatched()


def test_a_name_in_a_module_counts(monkeypatch):
    unpatched = _core.unpatched(((socket, "getaddrinfo", "socket"),))
    assert unpatched()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", mock.Mock())
        assert not unpatched()
    assert unpatched()
    monkeypatch.delattr(socket, "getaddrinfo")
    assert not unpatched()


def test_a_guard_of_wrong_arguments_is_refused():
    for part in [("no class", "name"), (1,)]:
        with pytest.raises(TypeError):
            _core.unpatched((part,))
    with pytest.raises(TypeError):
        _core.unpatched(("no tuple",))
    with pytest.raises(TypeError):
        type(compat.makes_streams)()


# -- native code is used ----------------------------------------------------------------------------------------


def test_everything_is_unpatched_here():
    questions = {name: it for name, it in vars(compat).items() if isinstance(it, _core.Unpatched)}
    assert len(questions) > 9
    assert [name for name, question in questions.items() if not question()] == []


def test_a_new_loop_of_the_exact_class_uses_native_code_for_all_it_can():
    loop = wakeloop.new_event_loop()
    module = sys.modules["wakeloop.loop"]
    try:
        for question in (module._connects, module._accepts, module._runs_in_executor, module._turns):
            assert question(loop)
        loop.sock_connect = loop.sock_connect
        assert not module._connects(loop) and module._accepts(loop)
    finally:
        loop.close()


def test_transports_are_native_and_the_loop_is_not_turned_by_python(run):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        assert type(transport) is _core.StreamTransport
        endpoint, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
        assert type(endpoint) is _core.DatagramTransport
        frame, names = sys._getframe(), []
        while frame:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        assert "_run_once" not in names and "_run_turns" in names
        for each in (transport, endpoint, server):
            each.close()
        await server.wait_closed()
        await asyncio.sleep(0.001)

    run(main())


# -- names in modules -------------------------------------------------------------------------------------------


class Future(asyncio.Future):
    """The class that the tests store as asyncio.futures.Future."""


def test_the_class_of_futures_can_be_replaced_and_put_back(loop, monkeypatch):
    for _ in range(3):
        assert type(loop.create_future()) is asyncio.Future
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.futures, "Future", Future)
            assert type(loop.create_future()) is Future
    assert type(loop.create_future()) is asyncio.Future
    monkeypatch.delattr(asyncio.futures, "Future")
    with pytest.raises(NameError):
        loop.create_future()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="dict watchers came with Python 3.12")
def test_a_name_is_not_cached_while_another_watcher_runs_python_before_the_change(loop, monkeypatch):
    """CPython calls watchers before it changes a dict, so what a watcher looks up is the old value."""
    api, callback = ctypes.pythonapi, ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p
    )
    seen = []

    @callback
    def watch(event, names, key, value):
        if key == "Future":
            seen.append(type(loop.create_future()))
        elif key == "monotonic":
            seen.append(loop.time())
        return 0

    watched = [vars(asyncio.futures), vars(sys.modules["time"])]
    watcher = api.PyDict_AddWatcher(watch)
    assert watcher >= 0
    for names in watched:
        assert api.PyDict_Watch(watcher, ctypes.py_object(names)) == 0
    try:
        original = asyncio.Future
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(asyncio.futures, "Future", type("Temporary", (asyncio.Future,), {}))
                assert type(loop.create_future()).__name__ == "Temporary"
                patch.setattr("time.monotonic", lambda: 1234.5)
                assert loop.time() == 1234.5
            assert type(loop.create_future()) is original
            assert loop.time() != 1234.5
        assert len(seen) >= 12
    finally:
        for names in watched:
            api.PyDict_Unwatch(watcher, ctypes.py_object(names))
        api.PyDict_ClearWatcher(watcher)


def test_the_clock_is_asked_only_while_it_is_replaced(loop, monkeypatch):
    before = loop.time()
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: 1e9)
        assert loop.time() == 1e9
        with monkeypatch.context() as inner:
            inner.setattr(type(loop), "time", lambda self: 5.0)
            assert loop.time() == 5.0
    assert before <= loop.time() < before + 100


# -- transports -------------------------------------------------------------------------------------------------


def test_the_patch_of_one_method_leaves_the_others_native(run):
    async def main():
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
        with mock.patch.object(selector_events._SelectorTransport, "is_closing", return_value="mocked"):
            assert transport.is_closing() == "mocked" and transport.is_reading() is True
            assert transport.get_extra_info("sockname")[0] == "127.0.0.1"
        assert transport.is_closing() is False
        transport.close()
        await asyncio.sleep(0.001)

    run(main())
