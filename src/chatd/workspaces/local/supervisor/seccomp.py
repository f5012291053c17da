"""The system call filter of a sandbox: a program for the kernel's seccomp. Standard library only.

`build_filter` is pure. It denies what no sandbox needs and what reaches beyond it: keyrings, new
mounts and user namespaces, kernel interfaces with a long record of exploits, and all socket
families but a few. A denied call returns an error, so that programs can go on without it.

A filter sees the numbers of one architecture. Calls by another one, which the kernel would also
accept (32-bit programs, x32), would pass it: they are refused.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["allow", "deny", "missing", "family", "kill"]

AF_UNIX: Final = 1
AF_INET: Final = 2
AF_INET6: Final = 10
AF_NETLINK: Final = 16
NETLINK_ROUTE: Final = 0
CLONE_NEWUSER: Final = 0x10000000
X32_BIT: Final = 0x40000000

VERDICTS: Final[Mapping[Verdict, int]] = {
    "allow": 0x7FFF0000,
    "deny": 0x00050000 | errno.EPERM,
    "missing": 0x00050000 | errno.ENOSYS,
    "family": 0x00050000 | errno.EAFNOSUPPORT,
    "kill": 0x80000000,
}

# Offsets in the kernel's struct seccomp_data; arguments are compared by their lower 32 bits, which
# is all that the kernel itself looks at in these calls.
NUMBER_OFFSET: Final = 0
ARCH_OFFSET: Final = 4
ARGUMENT_OFFSETS: Final = (16, 24, 32)

LOAD: Final = 0x20
JUMP_IF_EQUAL: Final = 0x15
JUMP_IF_AT_LEAST: Final = 0x35
JUMP_IF_BITS: Final = 0x45
RETURN: Final = 0x06

# The same numbers on all architectures.
NEW_CALLS: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "open_tree_attr": 467,
}
CALLS: Final = {
    "x86_64": NEW_CALLS
    | {
        "socket": 41,
        "socketpair": 53,
        "clone": 56,
        "ptrace": 101,
        "pivot_root": 155,
        "mount": 165,
        "umount2": 166,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": NEW_CALLS
    | {
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "unshare": 97,
        "kexec_load": 104,
        "ptrace": 117,
        "socket": 198,
        "socketpair": 199,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "clone": 220,
        "perf_event_open": 241,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}
AUDIT_ARCHS: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# io_uring opens sockets of any family without the call `socket`.
DENIED: Final = (
    *("keyctl", "add_key", "request_key"),
    *("bpf", "userfaultfd", "perf_event_open", "kexec_load", "kexec_file_load"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "setns"),
)
# Debuggers and leak checkers need these. With a process namespace they reach only the sandbox.
DENIED_AMONG_FOREIGN_PROCESSES: Final = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),
)


class NoFilter(OSError):
    """There is no filter for this processor."""


@dataclass(frozen=True)
class FilterRules:
    """`internet`: sockets of IPv4 and IPv6 may be opened; a network namespace limits them anyway.
    `own_processes`: a process namespace hides all processes of the host."""

    internet: bool
    own_processes: bool


def build_filter(rules: FilterRules, machine: str | None = None) -> bytes:
    machine = machine or platform.machine()
    if machine not in CALLS:
        raise NoFilter(0, f"chatd has no system call filter for the processor {machine}")
    calls = CALLS[machine]
    denied = DENIED if rules.own_processes else (*DENIED, *DENIED_AMONG_FOREIGN_PROCESSES)
    program = _Program()
    program.load(ARCH_OFFSET)
    program.jump(JUMP_IF_EQUAL, AUDIT_ARCHS[machine], no="kill")
    program.load(NUMBER_OFFSET)
    if machine == "x86_64":
        program.jump(JUMP_IF_AT_LEAST, X32_BIT, yes="missing")
    # Its flags are out of reach for a filter. Programs then use `clone`.
    program.jump(JUMP_IF_EQUAL, calls["clone3"], yes="missing")
    for name in denied:
        program.jump(JUMP_IF_EQUAL, calls[name], yes="deny")
    for name in ("clone", "unshare"):
        program.jump(JUMP_IF_EQUAL, calls[name], yes="check flags")
    for name in ("socket", "socketpair"):
        program.jump(JUMP_IF_EQUAL, calls[name], yes="check family")
    program.give("allow")
    program.label("check flags")
    program.load(ARGUMENT_OFFSETS[0])
    program.jump(JUMP_IF_BITS, CLONE_NEWUSER, yes="deny")
    program.give("allow")
    program.label("check family")
    program.load(ARGUMENT_OFFSETS[0])
    families = (AF_UNIX, AF_INET, AF_INET6) if rules.internet else (AF_UNIX,)
    for family in families:
        program.jump(JUMP_IF_EQUAL, family, yes="allow")
    program.jump(JUMP_IF_EQUAL, AF_NETLINK, no="family")
    # The list of network interfaces, without which Node.js and others fail.
    program.load(ARGUMENT_OFFSETS[2])
    program.jump(JUMP_IF_EQUAL, NETLINK_ROUTE, yes="allow", no="family")
    for verdict in VERDICTS:
        program.label(verdict)
        program.give(verdict)
    return program.assemble()


class _Program:
    """Instructions with jumps to labels, which are resolved at the end."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, str, str]] = []
        self._labels: dict[str, int] = {}

    def load(self, offset: int) -> None:
        self._code.append((LOAD, offset, "", ""))

    def jump(self, kind: int, value: int, *, yes: str = "", no: str = "") -> None:
        """An empty label is the next instruction."""
        self._code.append((kind, value, yes, no))

    def give(self, verdict: Verdict) -> None:
        self._code.append((RETURN, VERDICTS[verdict], "", ""))

    def label(self, name: str) -> None:
        self._labels.setdefault(name, len(self._code))

    def assemble(self) -> bytes:
        return b"".join(self._instructions())

    def _instructions(self) -> Iterable[bytes]:
        for at, (code, value, yes, no) in enumerate(self._code):
            yes_skip, no_skip = (self._labels[x] - at - 1 if x else 0 for x in (yes, no))
            yield struct.pack("=HBBI", code, yes_skip, no_skip, value)
