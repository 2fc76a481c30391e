"""A FUSE file system with one file, each of whose reads takes 20 ms. Needs root.

    python benchmarks/slow_disk.py FILE FOLDER       # shows FILE as FOLDER/file until it is terminated

It prints a line when the file can be opened. Nothing of the file is kept in the page cache.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
import threading

DELAY = 0.02
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE = 1, 2, 3, 14, 15, 18
FLUSH, INIT, OPENDIR, RELEASEDIR, DESTROY, BATCH_FORGET = 25, 26, 27, 29, 38, 42
ASYNC_READ = DIRECT_IO = 1
LONG = 1 << 20
#: <linux/fuse.h>: the heads of requests and replies.
REQUEST, REPLY = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")


class SlowDisk:
    def __init__(self, file: int, device: int) -> None:
        self.file, self.device = file, device

    def attributes(self, node: int) -> bytes:
        size = os.fstat(self.file).st_size if node == 2 else 0
        mode = stat.S_IFREG | 0o444 if node == 2 else stat.S_IFDIR | 0o755
        return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def reply(self, unique: int, data: bytes, error: int = 0) -> None:
        os.write(self.device, REPLY.pack(REPLY.size + len(data), -error, unique) + data)

    def read(self, unique: int, offset: int, size: int) -> None:
        self.reply(unique, os.pread(self.file, size, offset))

    def serve(self) -> None:
        while True:
            request = os.read(self.device, LONG + 4096)
            _, code, unique, node, *_ = REQUEST.unpack_from(request)
            body = request[REQUEST.size :]
            if code == INIT:
                self.reply(unique, struct.pack("<4I2H2I2H8I", 7, 31, 0, ASYNC_READ, 64, 48, LONG, 1, 0, 0, *[0] * 8))
            elif code == LOOKUP and body == b"file\0":
                self.reply(unique, struct.pack("<4Q2I", 2, 0, 60, 60, 0, 0) + self.attributes(2))
            elif code == LOOKUP:
                self.reply(unique, b"", errno.ENOENT)
            elif code == GETATTR:
                self.reply(unique, struct.pack("<Q2I", 60, 0, 0) + self.attributes(node))
            elif code in (OPEN, OPENDIR):
                self.reply(unique, struct.pack("<Q2I", 0, DIRECT_IO, 0))
            elif code == READ:
                _, offset, size = struct.unpack_from("<QQI", body)
                threading.Timer(DELAY, self.read, (unique, offset, size)).start()
            elif code in (FLUSH, RELEASE, RELEASEDIR, DESTROY):
                self.reply(unique, b"")
            elif code not in (FORGET, BATCH_FORGET):
                self.reply(unique, b"", errno.ENOSYS)


def main() -> None:
    path, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    library = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if library.mount(b"slow", os.fsencode(folder), b"fuse", 0, options.encode()) < 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        print("ready", flush=True)
        SlowDisk(os.open(path, os.O_RDONLY), device).serve()
    finally:
        library.umount2(os.fsencode(folder), 2)


if __name__ == "__main__":
    main()
