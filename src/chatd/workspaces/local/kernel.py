"""System calls that Python 3.11 has no function for, by ctypes. Standard library only.

Owns numbers and flags of the kernel; knows nothing of workspaces.
"""

import ctypes
import os
from typing import Final

PDEATHSIG: Final = 1
NO_NEW_PRIVS: Final = 38

NEW_MOUNTS: Final = 0x00020000
NOSUID: Final = 2
NODEV: Final = 4
BIND: Final = 4096
RECURSIVE: Final = 16384
PRIVATE: Final = 1 << 18
DETACH: Final = 2

_libc: Final = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _check("prctl", _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def unshare(flags: int) -> None:
    _check("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str = "none", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode())
    result = _libc.mount(*words, ctypes.c_ulong(flags), data.encode())
    _check(f"mount on {target}", result)


def unmount(target: str) -> None:
    _check(f"umount of {target}", _libc.umount2(os.fsencode(target), DETACH))


def syscall(number: int, *words: ctypes.Array[ctypes.c_char] | int | None) -> int:
    arguments = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    return _check(f"system call {number}", _libc.syscall(ctypes.c_long(number), *arguments))


def _check(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
