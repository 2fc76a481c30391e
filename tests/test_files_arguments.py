"""Arguments that methods of files of `wakeloop.open` refuse."""

import builtins

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("arguments", [(2**63,), (-(2**64), 1), (2**200, 2)])
def test_a_seek_beyond_all_offsets_raises_what_io_raises(run, tmp_path, buffering, arguments):
    path = tmp_path / "file"
    path.touch()
    with builtins.open(path, "rb", buffering) as file, pytest.raises((ValueError, OverflowError)) as expected:
        file.seek(*arguments)

    async def main():
        async with wakeloop.open(path, "rb", buffering) as file:
            with pytest.raises(expected.type):
                await file.seek(*arguments)

    run(main())


@pytest.mark.parametrize("buffering", [2**31, -(2**70), 1.0, "1"], ids=repr)
def test_a_size_of_the_buffer_that_is_none_raises_at_once(tmp_path, buffering):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises((OverflowError, TypeError)) as expected:
        builtins.open(path, "rb", buffering)
    for opened in (wakeloop.open, lambda *arguments: wakeloop.fs.TemporaryFile(*arguments[1:])):
        with pytest.raises(expected.type):
            opened(path, "rb", buffering)
