"""Files of `wakeloop.open` that nobody closes, on pipes that have no room for what was kept: as those of io."""

import gc
import os
import textwrap
import warnings

import pytest

from tests.support import script

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("runtime")]

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

PRELUDE = """
    import os, signal, sys, threading, warnings
    warnings.simplefilter("ignore")
    import wakeloop

    def hook(unraisable):
        print("ignored:", type(unraisable.exc_value).__name__, unraisable.exc_value)

    sys.unraisablehook = hook
    reader, writer = os.pipe()
    received = 0

    async def kept(length):
        "A file that keeps so many bytes."
        if KIND == "io":
            file = open(writer, "wb", buffering=1_000_000)
            file.write(b"x" * length)
        else:
            file = await wakeloop.open(writer, "wb", buffering=1_000_000)
            await file.write(b"x" * length)
        return file

    def fill():
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            pass

    def read():
        global received
        while received < 900_000:
            received += len(os.read(reader, 65536))

    def ring(*args):
        raise TimeoutError("rung")
"""

PROGRAMS = {
    "freed on a full non-blocking pipe": """
        async def main():
            file = await kept(8000)
            fill()
            del file
            print("freed")
    """,
    "freed on a non-blocking pipe with some room": """
        async def main():
            os.set_blocking(writer, False)
            file = await kept(900_000)
            del file
            print("freed, there are", len(os.read(reader, 900_000)))
    """,
    "freed while a thread reads": """
        async def main():
            file = await kept(900_000)
            thread = threading.Thread(target=read)
            thread.start()
            del file
            thread.join()
            print("freed, received", received)
    """,
    "freed without a reader": """
        async def main():
            file = await kept(8000)
            os.close(reader)
            del file
            print("freed")
    """,
    "freed until a signal comes": """
        async def main():
            file = await kept(900_000)
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            del file
            print("freed")
    """,
    "open when the interpreter exits": """
        async def main():
            global file
            file = await kept(10)
            fill()
            print("leaving", flush=True)
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_file_on_a_pipe_that_nobody_closes_ends_as_one_of_io(name):
    outcomes = []
    for kind in ("io", "wakeloop"):
        body = f"KIND = {kind!r}\n" + textwrap.dedent(PRELUDE) + textwrap.dedent(PROGRAMS[name])
        outcomes.append(script.run_script("wakeloop", body + "\nwakeloop.run(main())\n"))
    expected, found = outcomes
    assert (expected.code, found.code) == (0, 0), outcomes
    assert found.out == expected.out, outcomes


@pytest.mark.parametrize("buffering", [-1, 0, 1])
@pytest.mark.parametrize("mode", ["r", "w", "a", "r+", "w+", "rb", "wb", "ab", "rb+", "wb+"])
def test_a_file_that_nobody_closes_is_named_in_the_warning_as_one_of_io(run, tmp_path, mode, buffering):
    if buffering == 0 and "b" not in mode or buffering == 1 and "b" in mode:
        pytest.skip("io has no such file")
    (tmp_path / "file").write_bytes(b"text")
    options = {} if "b" in mode else {"encoding": "latin-1"}

    def warned(opened):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            del opened[0]
            gc.collect()
        return [(each.category, str(each.message)) for each in found]

    async def main():
        theirs = [open(tmp_path / "file", mode, buffering, **options)]
        said = warned(theirs)
        ours = [await wakeloop.open(tmp_path / "file", mode, buffering, **options)]
        assert warned(ours) == said and len(said) == 1
        ours = [await wakeloop.open(tmp_path / "file", mode, buffering, **options)]
        descriptor = ours[0].fileno()
        warned(ours)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        async with wakeloop.open(tmp_path / "file", mode, buffering, **options) as file:
            pass
        closed = [file]
        del file
        assert warned(closed) == []

    run(main())
