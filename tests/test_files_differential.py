"""Files of wakeloop.open against those of the built-in open: random operations have the same results, raise the same
exceptions, and leave the same content."""

import os
import random

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

SCENARIOS = int(os.environ.get("WAKELOOP_FILE_SCENARIOS", "300"))
BINARY_MODES = ["rb", "rb+", "wb", "wb+", "ab", "ab+", "xb", "xb+"]
TEXT_MODES = ["r", "r+", "w", "w+", "a", "a+", "x", "x+", "rt"]
ENCODINGS = ["utf-8", "utf-8", "ascii", "latin-1", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "shift_jis", "utf-7"]
ALPHABETS = {"ascii": "ab c", "latin-1": "aé ü", "shift_jis": "aあ い"}
ENDS = ["\n", "\n", "\r", "\r\n", ""]


def text_of(rng, encoding, length):
    alphabet = ALPHABETS.get(encoding, "aé あ😀")
    pieces, size = [], 0
    while size < length:
        line = "".join(rng.choices(alphabet, k=rng.choice([0, 1, 5, 30, 200]))) + rng.choice(ENDS)
        pieces.append(line or "x")
        size += len(pieces[-1])
    return "".join(pieces)


def bytes_of(rng, length):
    return bytes(rng.choices(b"abc\n\r\0", k=length)) if length else b""


class Scenario:
    """A way to open a file, and operations on it."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.binary = rng.random() < 0.5
        self.mode = rng.choice(BINARY_MODES if self.binary else TEXT_MODES)
        self.options = {"buffering": rng.choice([-1, -1, 2, 10, 100, 8192] + ([0] if self.binary else [1]))}
        self.encoding = None
        length = rng.choice([0, 1, 10, 300, 9000, 40_000])
        if self.binary:
            self.content = bytes_of(rng, length)
        else:
            self.encoding = self.options["encoding"] = rng.choice(ENCODINGS)
            self.options["errors"] = rng.choice(["strict", "replace", "ignore"])
            self.options["newline"] = rng.choice([None, None, "", "\n", "\r", "\r\n"])
            self.content = text_of(rng, self.encoding, length).encode(self.encoding)
        if "x" in self.mode:
            self.content = None
        self.operations = [self.operation() for _ in range(rng.choice([3, 10, 40]))]

    def size(self):
        return self.rng.choice([0, 1, 2, 7, 50, 400, 5000, 20_000, -1, None])

    def operation(self):
        rng = self.rng
        names = ["read", "read", "readline", "readline", "iterate", "readlines", "write", "write", "writelines"]
        names += ["mark", "return", "seek", "seek_end", "tell", "truncate", "flush"]
        if self.binary:
            names += ["readinto", "read1", "seek_by", "peek"]
        if rng.random() < 0.02:
            names = ["close", "wrong_data", "wrong_whence", "negative_seek", "wrong_size"]
        name = rng.choice(names)
        match name:
            case "read" | "readline":
                return name, self.size()
            case "readlines":
                return name, rng.choice([-1, None, 0, 1, 100, 10_000])
            case "iterate":
                return name, rng.choice([1, 3, 200])
            case "write":
                return name, self.data(rng.choice([0, 1, 9, 100, 3000, 12_000]))
            case "writelines":
                return name, [self.data(rng.choice([0, 5, 2000])) for _ in range(3)]
            case "readinto" | "read1":
                return name, rng.choice([0, 1, 100, 9000, 30_000])
            case "seek":
                return name, rng.choice([0, 0, 3, 200, 8192, 50_000])
            case "seek_by":
                return name, rng.choice([-300, -1, 0, 1, 300, 10_000])
            case "truncate":
                return name, rng.choice([None, 0, 5, 500, 20_000])
        return name, None

    def data(self, length):
        return bytes_of(self.rng, length) if self.binary else text_of(self.rng, self.encoding, length)

    def __str__(self):
        return f"open(mode={self.mode!r}, {self.options}), {len(self.content or b'')} bytes"


def steps(scenario, file):
    """Yields (what to do, how to judge the result) for one of the two files."""
    marks, last = [0], None
    text = not scenario.binary
    # Text that was read ahead makes io write behind it. Each kind of operation begins at a defined position.
    for name, value in scenario.operations:
        kind = {"read": "r", "readline": "r", "iterate": "r", "readlines": "r", "write": "w", "writelines": "w"}
        stays = name in ("tell", "mark", "flush") or name.startswith(("wrong", "negative"))
        kind = kind.get(name, last if stays else None)
        if text and name == "truncate":
            kind = "w"
        if text and last and kind and kind != last:
            marks.append((yield "tell", ()))
            yield "seek", (marks[-1] if isinstance(marks[-1], int) else 0,)
        last = kind
        match name:
            case "readline" if value == 0 and (text or not scenario.options["buffering"] or not {*"r+"} & {*scenario.mode}):
                # io looks at nothing in some cases. Whether a chunk was decoded shows in what tell returns.
                pass
            case "write" | "writelines" | "truncate" if "a" in scenario.mode:
                # Where io reads next, depends on what it had read ahead.
                yield name, (value,)
                yield "seek", (0, 2)
            case "readlines" if text and not {*"r+"} & {*scenario.mode}:
                # io iterates over the file, and a failed iteration leaves tell disabled.
                pass
            case "read" if value is None and not {*"r+"} & {*scenario.mode}:
                # A TypeError on Python 3.15.
                pass
            case "read" | "readline" | "readlines" | "write" | "writelines":
                yield name, (value,)
                if text and name == "readlines":
                    # In io it has disabled tell.
                    yield "seek", (0,)
            case "iterate":
                for _ in range(value):
                    if not (yield "readline", ()):
                        break
            case "read1":
                # How much it gives depends on how much was read ahead.
                if scenario.options["buffering"] != 0:
                    # CPython's BufferedRandom may lose written data in a read1 behind a write.
                    yield "flush", ()
                    yield "some", (yield "read1", (value,))
                    yield "seek", (value // 2,)
            case "peek":
                if scenario.options["buffering"] != 0:
                    yield "some", (yield "peek", ())
            case "readinto":
                buffer = bytearray(value)
                yield "readinto", (buffer,)
                yield "same", bytes(buffer)
            case "mark":
                mark = yield "tell", ()
                if isinstance(mark, int):
                    marks.append(mark)
            case "tell" | "flush" | "close":
                yield name, ()
            case "return":
                yield "seek", (marks[-1] if isinstance(marks[-1], int) else 0,)
            case "seek":
                # A number that tell has not returned means nothing to a text file.
                yield "seek", (0 if text else value,)
            case "seek_by":
                yield "seek", (value, 1)
            case "seek_end":
                yield "seek", (0, 2)
            case "truncate":
                yield "truncate", ((value and value // 4 * 4) if value is not None else None,)
            case "wrong_data" if text or scenario.options["buffering"]:
                yield "write", (b"" if text else "text",)
            case "wrong_whence":
                yield "seek", (0, 9)
            case "negative_seek":
                yield "seek", (-5,)
            case "wrong_size" if {*"r+"} & {*scenario.mode}:
                yield "read", ("1",)
    yield "close", ()


def plain(scenario, path):
    seen = []
    with open(path, scenario.mode, **scenario.options) as file:
        script, result = steps(scenario, file), None
        while True:
            try:
                name, arguments = script.send(result)
            except StopIteration:
                return seen
            if name in ("same", "some"):
                result = arguments
                seen.append((name, arguments if name == "same" else bool(arguments)))
                continue
            try:
                result = getattr(file, name)(*arguments)
                seen.append((name, arguments, result))
            except Exception as error:
                result = None
                seen.append((name, arguments, f"{type(error).__name__}: {error}"))
                if isinstance(error, UnicodeError) and name.startswith("read"):
                    # io has lost what it had decoded before.
                    return seen


async def ours(scenario, path):
    seen = []
    async with wakeloop.open(path, scenario.mode, **scenario.options) as file:
        script, result = steps(scenario, file), None
        while True:
            try:
                name, arguments = script.send(result)
            except StopIteration:
                return seen
            if name in ("same", "some"):
                result = arguments
                seen.append((name, arguments if name == "same" else bool(arguments)))
                continue
            try:
                result = await getattr(file, name)(*arguments)
                seen.append((name, arguments, result))
            except Exception as error:
                result = None
                seen.append((name, arguments, f"{type(error).__name__}: {error}"))
                if isinstance(error, UnicodeError) and name.startswith("read"):
                    # io has lost what it had decoded before.
                    return seen


def comparable(seen):
    """What is compared: what peek and read1 find depends on how much was read ahead."""
    return [step[:2] if step[0] in ("peek", "read1") else step for step in seen if step[0] != "some"]


def shown(step):
    return tuple(part if len(repr(part)) < 60 else f"{repr(part)[:50]}..." for part in step)


def run_scenario(seed, tmp_path, run):
    scenario = Scenario(seed)
    paths = [tmp_path / f"{seed}-{kind}" for kind in ("plain", "ours")]
    for path in paths:
        if scenario.content is not None:
            path.write_bytes(scenario.content)
    expected = comparable(plain(scenario, paths[0]))
    found = comparable(run(ours(scenario, paths[1])))
    for index, (one, other) in enumerate(zip(expected, found)):
        before = [shown(step) for step in expected[max(0, index - 6) : index]]
        assert one == other, f"seed {seed}: {scenario}, after {before}: {shown(one)}, ours: {shown(other)}"
    assert len(expected) == len(found)
    assert paths[0].read_bytes() == paths[1].read_bytes(), f"seed {seed}: {scenario}"
    for path in paths:
        path.unlink()


@pytest.mark.parametrize("part", range(4))
@pytest.mark.filterwarnings("ignore:line buffering")
def test_random_operations_do_what_they_do_on_files_of_io(part, tmp_path, run):
    for seed in range(part * SCENARIOS // 4, (part + 1) * SCENARIOS // 4):
        run_scenario(seed, tmp_path, run)
