"""Files of `wakeloop.open` that nobody closes."""

import gc
import textwrap

import pytest

from tests.support import preload, script
from tests.support.files import run_program
from tests.support.preload import needs_preload

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_a_file_in_a_reference_cycle_writes_what_it_kept(run, tmp_path, mode):
    async def main():
        file = await wakeloop.open(tmp_path / "file", mode)
        await file.write(b"kept" if mode == "wb" else "kept")
        cycle = [file]
        cycle.append(cycle)
        del file, cycle
        with pytest.warns(ResourceWarning, match="unclosed file"):
            gc.collect()
        assert (tmp_path / "file").read_bytes() == b"kept"

    run(main())


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_a_file_that_is_open_when_the_interpreter_exits_writes_what_it_kept(tmp_path, mode):
    body = f"""
    import asyncio
    import wakeloop

    async def main():
        global file
        file = await wakeloop.open({str(tmp_path / "file")!r}, {mode!r})
        await file.write({b"kept" if mode == "wb" else "kept"!r})

    asyncio.run(main())
    """
    outcome = script.run_script("wakeloop", textwrap.dedent(body))
    assert outcome.code == 0, outcome
    assert (tmp_path / "file").read_bytes() == b"kept"


@needs_preload
def test_a_file_that_a_cancelled_read_has_outlived_writes_into_no_other_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", str(preload.build("held_write", tmp_path)))
    output = run_program(
        """
        import asyncio, contextlib, ctypes, os, wakeloop

        def is_open(descriptor):
            return os.path.exists(f"/proc/self/fd/{descriptor}")

        async def main(kept, other):
            library = ctypes.CDLL(os.environ["LD_PRELOAD"])
            links = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
                     if is_open(name)}
            # The runtime has not begun, so that it is the loop's.
            [waker] = [number for number, link in links.items() if "eventfd" in link]
            file = await wakeloop.open(kept, "wb+")
            descriptor = file.fileno()
            await file.write(b"kept")
            # The thread that finds the read cancelled stays where it wakes the loop.
            library.hold(waker)
            call = file.read(4)
            with contextlib.suppress(StopIteration):  # Another thread was faster.
                call.send(None)
            call.close()
            del call, file
            while is_open(descriptor):
                await asyncio.sleep(0.001)
            assert os.open(other, os.O_RDWR | os.O_CREAT) == descriptor
            library.hold(-1)
            while library.is_held():
                await asyncio.sleep(0.001)
            await wakeloop.spawn_blocking(int)
            await asyncio.sleep(0.01)
            print(open(kept, "rb").read(), open(other, "rb").read())

        wakeloop.run(main(*sys.argv[1:]))
        """,
        str(tmp_path / "kept"),
        str(tmp_path / "other"),
    )
    assert output.split() == ["b'kept'", "b''"]
