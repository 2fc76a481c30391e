"""Files of `wakeloop.open` that nobody closes."""

import gc
import textwrap

import pytest

from tests.support import script

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
