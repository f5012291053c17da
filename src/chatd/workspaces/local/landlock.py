"""Landlock: a process gives up every path that is not named. Standard library only.

The kernel's own fence for processes without namespaces. Weaker than a sandbox: other processes
stay visible, UDP stays open, limits count for each process alone.
"""

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from chatd.workspaces.local import kernel
from chatd.workspaces.local.plan import Fence

CREATE: Final = 444
ADD: Final = 445
RESTRICT: Final = 446
VERSION_FLAG: Final = 1
PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
BASE: Final = (1 << 13) - 1
REFER: Final = 1 << 13
OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
TCP: Final = 0b11
SCOPES: Final = 0b11
"""Abstract sockets and signals stay inside."""

LEAST: Final = 3
"""The first version that knows truncation; without it a closed file could be emptied."""


def version() -> int:
    """0 if the kernel has none."""
    try:
        return kernel.syscall(CREATE, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def close(fence: Fence) -> None:
    found = version()
    if found < LEAST:
        raise OSError(0, f"Landlock is too old here (version {found}, needed {LEAST})")
    handled = BASE | REFER | TRUNCATE | (IOCTL_DEV if found >= 5 else 0)
    network = TCP if found >= 4 and not fence.network else 0
    scopes = SCOPES if found >= 6 else 0
    ruleset = _create(handled, network, scopes, found)
    reading = EXECUTE | READ_FILE | READ_DIR
    for path in fence.readable:
        _allow(ruleset, path, reading & handled)
    for path in fence.writable:
        _allow(ruleset, path, handled)
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    kernel.syscall(RESTRICT, ruleset, 0)
    os.close(ruleset)


def _create(handled: int, network: int, scopes: int, found: int) -> int:
    words = struct.pack("=QQQ", handled, network, scopes)
    size = 8 if found < 4 else 16 if found < 6 else 24
    return kernel.syscall(CREATE, ctypes.create_string_buffer(words[:size], size), size, 0)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not Path(f"/proc/self/fd/{descriptor}").is_dir():
            access &= OF_FILES
        rule = struct.pack("=Qi", access, descriptor)
        kernel.syscall(ADD, ruleset, PATH_BENEATH, ctypes.create_string_buffer(rule, 12), 0)
    finally:
        os.close(descriptor)
