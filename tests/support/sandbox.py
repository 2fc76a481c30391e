"""Makes system calls fail, with a seccomp filter, as in containers and old kernels.

A filter cannot be removed, so use this in a script that runs in its own process.
"""

import contextlib
import ctypes
import os
import platform
import struct
import sys

_NUMBERS = {
    "x86_64": {"accept4": 288, "clone": 56, "clone3": 435, "epoll_ctl": 233, "recvmmsg": 299, "sendmmsg": 307},
    "aarch64": {"accept4": 242, "clone": 220, "clone3": 435, "epoll_ctl": 21, "recvmmsg": 243, "sendmmsg": 269},
}.get(platform.machine(), {})

#: Whether `refuse` works here.
POSSIBLE = sys.platform == "linux" and bool(_NUMBERS)

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD_NUMBER, _SKIP_UNLESS, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def refuse(error, *calls):
    """Makes these system calls fail with this errno, in this thread and every thread that it starts from now on."""
    steps = [(_LOAD_NUMBER, 0, 0, 0)]
    for call in calls:
        steps += [(_SKIP_UNLESS, 0, 1, _NUMBERS[call]), (_RETURN, 0, 0, _ERRNO | error)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments) < 0:
            raise OSError(ctypes.get_errno(), "prctl")


def epoll_descriptors():
    """Returns the descriptors of this process that are epoll instances."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "eventpoll" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
    return found
