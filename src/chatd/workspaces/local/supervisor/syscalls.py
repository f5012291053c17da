"""System calls that Python 3.11 does not offer, by ctypes: mounts, keyrings, seccomp, Landlock.
Standard library only.

Landlock closes every path that is not named, for processes without namespaces. It is weaker than a
sandbox: other processes stay visible, UDP stays open, limits apply to each process alone.
"""

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path
from typing import Final

from chatd.workspaces.local.supervisor.plan import PathRules

PR_SET_PDEATHSIG: Final = 1
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_NO_NEW_PRIVS: Final = 38
SECCOMP_MODE_FILTER: Final = 2
BPF_INSTRUCTION_BYTES: Final = 8
MAX_CAPABILITIES: Final = 64
KEYCTL_NUMBERS: Final = {"x86_64": 250, "aarch64": 219}
KEYCTL_JOIN_SESSION_KEYRING: Final = 1

CLONE_NEWNS: Final = 0x00020000
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

LANDLOCK_CREATE: Final = 444
LANDLOCK_ADD: Final = 445
LANDLOCK_RESTRICT: Final = 446
VERSION_FLAG: Final = 1
PATH_BENEATH: Final = 1

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15
BASE_ACCESS: Final = (1 << 13) - 1
REFER: Final = 1 << 13
FILE_ACCESS: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
TCP: Final = 0b11
SCOPES: Final = 0b11
"""Abstract sockets and signals do not leave the sandbox."""

MIN_LANDLOCK_VERSION: Final = 3
"""The first version that restricts truncation; before it a sandbox could empty read-only files."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int, more: int = 0) -> None:
    words = [ctypes.c_ulong(word) for word in (value, more, 0, 0)]
    _check("prctl", _libc.prctl(option, *words))


def drop_capability_bounds() -> None:
    """Give up every capability that a program with file capabilities could still gain."""
    for number in range(MAX_CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError as error:
            if error.errno == errno.EINVAL:  # The kernel knows no more.
                return
            raise


def unshare(flags: int) -> None:
    _check("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str = "none", flags: int = 0, data: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode())
    result = _libc.mount(*words, ctypes.c_ulong(flags), data.encode())
    _check(f"mount on {target}", result)


def unmount(target: str) -> None:
    _check(f"umount of {target}", _libc.umount2(os.fsencode(target), MNT_DETACH))


def join_new_keyring() -> None:
    """Leave the server's session keyring, so that none of its keys is in reach.

    It may be impossible: without keyrings in the kernel, in a container that forbids them, or with
    too many for one account. The filter denies all calls about keys anyway.
    """
    number = KEYCTL_NUMBERS.get(platform.machine())
    if number is None:
        return
    try:
        _syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EDQUOT):
            raise


def load_filter(program: bytes) -> None:
    """From now on the kernel checks each system call of this process and of its children."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    code = ctypes.create_string_buffer(program, len(program))
    length = len(program) // BPF_INSTRUCTION_BYTES
    header = ctypes.create_string_buffer(struct.pack("@HP", length, ctypes.addressof(code)))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def landlock_version() -> int:
    """0 if the kernel has no Landlock."""
    try:
        return _syscall(LANDLOCK_CREATE, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def restrict_paths(rules: PathRules) -> None:
    version = landlock_version()
    if version < MIN_LANDLOCK_VERSION:
        raise OSError(
            0, f"Landlock is too old here (version {version}, needed {MIN_LANDLOCK_VERSION})"
        )
    handled = BASE_ACCESS | REFER | TRUNCATE | (IOCTL_DEV if version >= 5 else 0)
    network = TCP if version >= 4 and not rules.network else 0
    scopes = SCOPES if version >= 6 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", handled, network, scopes)[:size]
    buffer = ctypes.create_string_buffer(attributes, size)
    ruleset = _syscall(LANDLOCK_CREATE, buffer, size, 0)
    for path in rules.readable:
        _allow(ruleset, path, EXECUTE | READ_FILE | READ_DIR)
    for path in rules.updatable:
        _allow(ruleset, path, WRITE_FILE | READ_FILE | READ_DIR)
    for path in rules.writable:
        _allow(ruleset, path, handled)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    _syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not Path(f"/proc/self/fd/{descriptor}").is_dir():
            access &= FILE_ACCESS
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, descriptor), 12)
        _syscall(LANDLOCK_ADD, ruleset, PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _syscall(number: int, *words: ctypes.Array[ctypes.c_char] | int | None) -> int:
    arguments = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    return _check(f"system call {number}", _libc.syscall(ctypes.c_long(number), *arguments))


def _check(name: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
