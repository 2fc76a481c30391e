"""Random choices that the fuzzer makes."""

import random


class Choices(random.Random):
    """Takes its numbers from the fuzzer's bytes. After their end, zeros come."""

    def __init__(self, data):
        super().__init__(0)
        self._data, self._at = data, 0

    def __bool__(self):
        return self._at < len(self._data)

    def take(self, count):
        self._at += count
        return self._data[self._at - count : self._at].ljust(count, b"\0")

    def getrandbits(self, count):
        size = -(-count // 8)
        return int.from_bytes(self.take(size), "big") & ((1 << count) - 1)

    def random(self):
        return self.getrandbits(8) / 256
