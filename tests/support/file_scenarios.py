"""Random operations on a file, done on one of `wakeloop.open` and on one of `io`, which have to do the same.

An operation is a name and its arguments. `Model` is the file of `io`. Behind an operation that was cancelled there may
be two of them, as long as nothing tells which is right: one with the operation and one without it.
"""

import asyncio
import builtins
import contextlib
import os
import random
import sys
import threading

import wakeloop
from tests.support.files import drop_from_cache

BINARY_MODES = ["rb", "rb+", "wb", "wb+", "ab", "ab+", "xb", "xb+"]
TEXT_MODES = ["r", "r+", "w", "w+", "a", "a+", "x", "x+", "rt"]
ENCODINGS = ["utf-8", "utf-8", "ascii", "latin-1", "utf-16", "utf-16-le", "utf-32", "utf-8-sig"]
ENCODINGS += ["shift_jis", "iso2022_jp", "iso2022_jp_2", "utf-7", "cp037"]
#: A character may have more than one byte.
LONG = ["utf-8", "utf-8", "utf-16", "utf-32-be", "shift_jis", "utf-7", "iso2022_jp", "iso2022_jp_2"]
ALPHABETS = {"ascii": "ab c", "latin-1": "aé ü", "cp037": "aé ü", "shift_jis": "aあ い", "iso2022_jp": "aあ い"}
ALPHABETS["iso2022_jp_2"] = "aあ éΩ"
#: What is written depends on what was written before, such as a mark at the beginning.
HAVE_STATES = {"utf-16", "utf-32", "utf-8-sig", "iso2022_jp", "iso2022_jp_2"}
#: Escapes that are no more than begun, or mean nothing. Behind one, a decoder of ISO 2022 is in another state.
BROKEN = [b"\x1b", b"\x1b$", b"\x1b(", b"\x1b.", b"\x1b.A", b"\x1bN", b"\x1b~"]
ERRORS = ["strict", "replace", "ignore", "surrogateescape", "backslashreplace"]
ENDS = ["\n", "\n", "\r", "\r\n", ""]
SPECIAL = ["pipe", "/dev/null", *filter(os.path.exists, ["/proc/version", "/proc/filesystems"])]
#: What has no page cache to look at, so that each read waits: a pipe, and a file in memory.
UNCACHED = ["pipe", "memory"] if hasattr(os, "memfd_create") else ["pipe"]
#: So much of a pipe is there before the first read.
AT_ONCE = 60_000
#: How many of the last operations a failure shows.
SHOWN = int(os.environ.get("SHOWN", "6"))
#: A read that is cancelled does nothing.
READS = {"read", "readline", "readlines", "next", "tell", "readinto", "read1", "peek"}
#: They are ready at once, or how much they give depends on what was read ahead.
DEPENDS_ON_BUFFER = {"peek", "read1"}


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
        self.binary = rng.random() < 0.4
        self.mode = rng.choice(BINARY_MODES if self.binary else TEXT_MODES)
        self.encoding, self.is_damaged = None, False
        self.special = rng.choice(SPECIAL) if rng.random() < 0.1 else None
        if not self.binary and rng.random() < 0.4:
            self.special = rng.choice(UNCACHED)
        if self.special == "memory":
            self.mode = self.mode.replace("x", "w")
        elif self.special == "pipe" or (self.special or "").startswith("/proc"):
            self.mode = "rb" if self.binary else "r"
        elif self.special:
            self.mode = self.mode.replace("x", "w")
            # It has no position before a flush.
            self.binary = self.binary and "r" in self.mode and "+" not in self.mode
            self.mode = self.mode if self.binary else self.mode.replace("b", "")
        self.options = {"buffering": rng.choice([-1, -1, 2, 10, 100, 8192] + ([0] if self.binary else [1]))}
        # Operations that end within the last characters are many where there are few characters.
        self.is_short = self.special in UNCACHED and not self.binary and rng.random() < 0.6
        length = rng.choice([1, 3, 10] if self.is_short else [0, 1, 10, 300, 9000, 40_000])
        if self.binary:
            self.content = bytes_of(rng, length)
        else:
            self.encoding = self.options["encoding"] = rng.choice(LONG if self.is_short else ENCODINGS)
            self.options["errors"] = rng.choice(ERRORS)
            self.options["newline"] = rng.choice([None, None, "", "\n", "\r", "\r\n"])
            text = text_of(rng, self.encoding, length)
            self.content = (text[-length:] if self.is_short else text).encode(self.encoding)
            if rng.random() < (0.7 if self.is_short else 0.3):
                self.damage()
        self.reads = {*"r+"} & {*self.mode}
        self.operations = [self.operation() for _ in range(rng.choice([3, 10, 40]))]

    def damage(self):
        """Makes content of which a part cannot be decoded, most often the end."""
        rng, content = self.rng, bytearray(self.content)
        if self.special == "pipe":
            # What is lost with the part depends on where the chunks end: this is one chunk.
            del content[8000:]
        for _ in range(rng.choice([0, 0, 1, 3])):
            place = rng.randrange(len(content) + 1)
            content[place:place] = rng.choice([b"\xff\xfe\x80", b"\xe3", rng.randbytes(2)])
        if self.encoding.startswith("iso2022") and rng.random() < 0.7:
            place = rng.randrange(len(content) + 1)
            content[place:place] = rng.choice(BROKEN)
        if rng.random() < 0.7:
            content += ("\r" * rng.randrange(2) + "あ").encode(self.encoding, "ignore")
            del content[-1:]
        self.content, self.is_damaged = bytes(content), True

    def size(self):
        most = [3, 4] if self.is_short else [50, 400, 5000, 20_000]
        return self.rng.choice([0, 1, 2, 7, *most, -1, None])

    def operation(self):
        rng = self.rng
        names = ["read", "read", "readline", "readline", "iterate", "readlines", "write", "write", "writelines"]
        names += ["mark", "return", "seek", "seek_end", "tell", "truncate", "flush"]
        if self.is_short and rng.random() < 0.7:
            names = ["read", "read", "readline", "iterate", "readlines", "tell"]
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
                return name, rng.choice([1, 1, 2] if self.is_short else [1, 3, 200])
            case "write":
                return name, self.data(rng.choice([0, 1, 9, 100, 3000, 12_000]))
            case "writelines":
                return name, [self.data(rng.choice([0, 5, 2000])) for _ in range(rng.choice([0, 3]))]
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
        return f"open({self.special or ''} mode={self.mode!r}, {self.options}), {len(self.content)} bytes"

    def steps(self):
        """Yields operations, and gets their results."""
        yield from self.binary_steps() if self.binary else self.text_steps()
        yield Sure(("close",))

    def text_steps(self):
        mark, iterates, wrote, read = 0, False, False, False
        for name, value in self.operations:
            if read and self.encoding in HAVE_STATES and name in ("write", "writelines"):
                # Where io has read ahead, the state of its encoder is that of another place.
                yield Sure(("seek", 0))
                yield Sure(("seek", 0, 2))
            read = read or name in ("read", "readline", "readlines", "iterate")
            if wrote and name in ("read", "readline", "readlines", "iterate"):
                # CPython's BufferedRandom may lose written data in a read1 behind a write.
                wrote = False
                yield Sure(("flush",))
            wrote = wrote or name in ("write", "writelines")
            if iterates and name not in ("read", "readline", "readlines", "iterate"):
                # io does not know where it is, and on some versions a write leaves the text that it has decoded.
                iterates = False
                yield Sure(("seek", 0))
            match name:
                case "iterate":
                    iterates = True
                    for _ in range(value):
                        if (yield "next",) == "end":
                            break
                case "readlines":
                    iterates = True
                    yield name, value
                case "mark":
                    position = yield "tell",
                    mark = position if isinstance(position, int) else mark
                case "tell" | "flush" | "close":
                    yield name,
                case "return":
                    # CPython crashes in a state of the decoder that it has not.
                    if not self.encoding.startswith("iso2022") or mark >> 64:
                        yield "seek", mark
                case "seek":
                    # A number that tell has not returned means nothing.
                    yield "seek", 0
                case "seek_end" if self.special in (None, "memory"):
                    # Where it fails, io has given up the text that it had decoded.
                    yield "seek", 0, 2
                case "truncate":
                    yield "truncate", value and value // 4 * 4
                case "wrong_data":
                    yield "write", b""
                case "wrong_whence":
                    yield "seek", 0, 9
                case "negative_seek":
                    yield "seek", -5
                case "wrong_size":
                    yield "read", "1"
                case "read" | "readline" | "write" | "writelines":
                    yield name, value

    def binary_steps(self):
        mark = 0
        for name, value in self.operations:
            match name:
                case "readline" if value == 0 and (not self.options["buffering"] or not self.reads):
                    # io looks at nothing in some cases.
                    pass
                case "write" | "writelines" if "a" in self.mode:
                    # Where io reads next, depends on what it had read ahead.
                    yield name, value
                    yield Sure(("seek", 0, 2))
                case "read" if value is None and not self.reads:
                    # A TypeError on Python 3.15.
                    pass
                case "writelines" if not value and not {*"wax+"} & {*self.mode}:
                    # io looks at nothing.
                    pass
                case "iterate":
                    for _ in range(value):
                        if not (yield "readline",):
                            break
                case "read1":
                    # How much it gives depends on how much was read ahead.
                    if self.options["buffering"] != 0 and self.special != "pipe":
                        # CPython's BufferedRandom may lose written data in a read1 behind a write.
                        yield Sure(("flush",))
                        yield "read1", value
                        yield Sure(("seek", value // 2))
                case "peek":
                    if self.options["buffering"] != 0:
                        yield "peek",
                case "mark":
                    position = yield "tell",
                    mark = position if isinstance(position, int) else mark
                case "tell" | "flush" | "close":
                    yield name,
                case "return":
                    yield "seek", mark
                case "seek_by":
                    position = yield "tell",
                    # In CPython, a seek of a BufferedRandom may return -1 behind one that has failed.
                    if not isinstance(position, int) or position + value >= 0 or "+" not in self.mode:
                        yield "seek", value, 1
                case "seek_end":
                    yield "seek", 0, 2
                case "truncate":
                    yield "truncate", value
                    if "a" in self.mode:
                        yield Sure(("seek", 0, 2))
                case "wrong_data":
                    if self.options["buffering"]:
                        yield "write", "text"
                case "wrong_whence":
                    yield "seek", 0, 9
                case "negative_seek":
                    yield "seek", -5
                case "wrong_size":
                    if self.reads:
                        yield "read", "1"
                case _:
                    yield name, value


class Sure(tuple):
    """An operation that is not cancelled, because what follows needs it."""


def failure(error):
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        return "end"
    return f"{type(error).__name__}: {error}"


class Model:
    """A file of io, with the operations that have led to its state."""

    def __init__(self, scenario, folder, history=()):
        self.scenario, self.folder, self.history = scenario, folder, []
        self.place = Place(scenario, folder)
        self.file = builtins.open(self.place.target, scenario.mode, **scenario.options)
        for operation in history:
            self.do(*operation)

    def do(self, name, *arguments):
        self.history.append((name, *arguments))
        try:
            if name == "next":
                return next(self.file)
            if name == "readinto":
                buffer = bytearray(arguments[0])
                return self.file.readinto(buffer), bytes(buffer)
            return getattr(self.file, name)(*arguments)
        except Exception as error:
            return failure(error)

    def copy(self):
        return Model(self.scenario, self.folder, self.history)

    def end(self):
        with contextlib.suppress(OSError, ValueError):
            self.file.close()
        self.place.end()


class Place:
    """The thing to open: a file of its own with the content, on disk or in memory, a pipe in which it comes bit by bit,
    or a special file."""

    number = 0

    def __init__(self, scenario, folder):
        Place.number += 1
        self.path, self.feeding, self.memory = None, None, None
        if scenario.special == "pipe":
            self.target, writer = os.pipe()
            # What a read without a buffer gives is what there is, so all of it must be there.
            step = 3001 if scenario.options["buffering"] and not scenario.is_damaged else AT_ONCE
            self.feeding = threading.Thread(target=self.feed, args=(writer, scenario.content, step))
            self.feeding.start()
            if step == AT_ONCE:
                self.feeding.join()
        elif scenario.special == "memory":
            self.memory = os.memfd_create("content")
            os.write(self.memory, scenario.content)
            self.target = f"/proc/self/fd/{self.memory}"
        elif scenario.special:
            self.target = scenario.special
        else:
            self.target = self.path = folder / str(Place.number)
            if "x" not in scenario.mode:
                self.path.write_bytes(scenario.content)

    @staticmethod
    def feed(writer, content, step):
        try:
            for start in range(0, len(content), step):
                os.write(writer, content[start : start + step])
        except BrokenPipeError:
            pass
        finally:
            os.close(writer)

    def content(self):
        if self.memory is not None:
            return os.pread(self.memory, os.fstat(self.memory).st_size, 0)
        return self.path and self.path.read_bytes()

    def end(self):
        if self.feeding:
            self.feeding.join()
        if self.path:
            self.path.unlink()
        if self.memory is not None:
            os.close(self.memory)


class Comparison:
    """A file of ours, and the files of io that it may be like."""

    def __init__(self, scenario, folder, cancels=None):
        self.scenario, self.cancels = scenario, cancels
        self.models = [Model(scenario, folder)]
        self.place = Place(scenario, folder)
        self.seen = []

    async def run(self):
        try:
            async with wakeloop.open(self.place.target, self.scenario.mode, **self.scenario.options) as file:
                steps, result = self.scenario.steps(), None
                with contextlib.suppress(StopIteration):
                    while True:
                        operation = steps.send(result)
                        if self.cancels and not isinstance(operation, Sure) and self.cancels.random() < 0.5:
                            result = await self.cancel(file, operation)
                        else:
                            result = await self.outcome(file, *operation)
                            self.expect(operation, result)
            contents = [model.place.content() for model in self.models]
            assert self.place.content() in contents, f"{self.scenario}, after {self.seen[-SHOWN:]}"
        finally:
            for model in self.models:
                model.end()
            self.place.end()

    async def outcome(self, file, name, *arguments):
        try:
            if name == "next":
                return await anext(file)
            if name == "readinto":
                buffer = bytearray(arguments[0])
                return await file.readinto(buffer), bytes(buffer)
            return await getattr(file, name)(*arguments)
        except Exception as error:
            return failure(error)

    def expect(self, operation, result):
        results = [model.do(*operation) for model in self.models]
        self.seen.append(shown(operation, result))
        if operation[0] in DEPENDS_ON_BUFFER:
            return
        kept = [model for model, expected in zip(self.models, results) if expected == result]
        wrong = [shown(operation, expected) for expected in results]
        assert kept, f"{self.scenario}, after {self.seen[-SHOWN:]}, io: {wrong}"
        for model in self.models:
            if model not in kept:
                model.end()
        self.models = kept

    async def cancel(self, file, operation):
        rng = self.cancels
        binary = file if self.scenario.binary else file.buffer
        # While it waits for its turn, or while it waits for data, or between what it does at once.
        held, turns = rng.random() < 0.3, rng.choice([0, 1, 1, 1, 2, 3])
        if held and not binary.closed:
            try:
                await binary._hold()
            except OSError:
                held = False
        if self.place.path and sys.platform == "linux" and rng.random() < 0.5:
            drop_from_cache(self.place.path)
        task = asyncio.ensure_future(self.outcome(file, *operation))
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            if held:
                binary._end_turn()
            self.expect(operation, result := task.result())
            return result
        task.cancel()
        await asyncio.wait([task])
        if held:
            binary._end_turn()
        if not task.cancelled():
            self.expect(operation, result := task.result())
            return result
        self.seen.append(shown(operation, "cancelled"))
        if not (held or turns == 0 or operation[0] in READS):
            for model in list(self.models):
                with contextlib.suppress(ValueError):
                    model.file.flush()
                other = model.copy()
                other.do(*operation)
                self.models.append(other)
            if len(self.models) > 4:
                # The position tells most of them apart.
                self.expect(("tell",), await self.outcome(file, "tell"))
        return None


def shown(operation, result):
    return tuple(part if len(repr(part)) < 60 else f"{repr(part)[:50]}..." for part in (*operation, result))
