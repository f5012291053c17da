"""The system call filter as a table: a small interpreter of the kernel's language runs it."""

import errno
import struct
from collections.abc import Sequence

import pytest

from chatd.workspaces.local.enter import load_filter_inside
from chatd.workspaces.local.supervisor import seccomp
from chatd.workspaces.local.supervisor.plan import decode_plan
from chatd.workspaces.local.supervisor.seccomp import CALLS, FilterRules, build_filter

X86 = 0xC000003E
ARM = 0xC00000B7
I386 = 0x40000003
ARCHS = {"x86_64": X86, "aarch64": ARM}
STRICT = FilterRules(internet=False, own_processes=False)
NAMESPACED = FilterRules(internet=True, own_processes=True)
AF_VSOCK, AF_ALG, AF_PACKET, AF_BLUETOOTH = 40, 38, 17, 31
SIGCHLD = 17


def run(program: bytes, arch: int, number: int, arguments: Sequence[int] = ()) -> str:
    """What the kernel does with a call."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
    code = list(struct.iter_unpack("=HBBI", program))
    at, register = 0, 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        match kind:
            case 0x20:
                (register,) = struct.unpack_from("=I", data, value)
            case 0x15:
                at += yes if register == value else no
            case 0x35:
                at += yes if register >= value else no
            case 0x45:
                at += yes if register & value else no
            case 0x06:
                return _name(value)
            case _:
                raise AssertionError(f"unknown instruction {kind:#x}")


def _name(verdict: int) -> str:
    if verdict == 0x7FFF0000:
        return "allow"
    if verdict == 0x80000000:
        return "kill"
    assert verdict & 0xFFFF0000 == 0x00050000
    return errno.errorcode[verdict & 0xFFFF]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    "name",
    [
        *("keyctl", "add_key", "request_key", "bpf", "userfaultfd", "perf_event_open"),
        *("kexec_load", "kexec_file_load", "mount", "umount2", "pivot_root", "move_mount"),
        *("open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick"),
        *("mount_setattr", "setns", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    ],
)
def test_calls_that_reach_beyond_the_sandbox_are_denied(machine: str, name: str) -> None:
    for rules in (STRICT, NAMESPACED):
        program = build_filter(rules, machine)
        assert run(program, ARCHS[machine], CALLS[machine][name]) == "EPERM"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    "name", ["ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"]
)
def test_other_processes_are_reached_only_in_a_namespace_of_their_own(
    machine: str, name: str
) -> None:
    arch, number = ARCHS[machine], CALLS[machine][name]
    assert run(build_filter(STRICT, machine), arch, number) == "EPERM"
    assert run(build_filter(NAMESPACED, machine), arch, number) == "allow"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("family", "protocol", "with_internet", "without"),
    [
        (seccomp.AF_UNIX, 0, "allow", "allow"),
        (seccomp.AF_INET, 0, "allow", "EAFNOSUPPORT"),
        (seccomp.AF_INET6, 17, "allow", "EAFNOSUPPORT"),
        (seccomp.AF_NETLINK, 0, "allow", "allow"),
        (seccomp.AF_NETLINK, 15, "EAFNOSUPPORT", "EAFNOSUPPORT"),
        (AF_VSOCK, 0, "EAFNOSUPPORT", "EAFNOSUPPORT"),
        (AF_ALG, 0, "EAFNOSUPPORT", "EAFNOSUPPORT"),
        (AF_PACKET, 0, "EAFNOSUPPORT", "EAFNOSUPPORT"),
        (AF_BLUETOOTH, 0, "EAFNOSUPPORT", "EAFNOSUPPORT"),
        (0, 0, "EAFNOSUPPORT", "EAFNOSUPPORT"),
        (1 << 32 | AF_VSOCK, 0, "EAFNOSUPPORT", "EAFNOSUPPORT"),
    ],
)
def test_few_socket_families_can_be_opened(
    machine: str, family: int, protocol: int, with_internet: str, without: str
) -> None:
    arch = ARCHS[machine]
    for name in ("socket", "socketpair"):
        call = (arch, CALLS[machine][name], (family, 1, protocol))
        assert run(build_filter(NAMESPACED, machine), *call) == with_internet
        assert run(build_filter(STRICT, machine), *call) == without


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_processes_start_but_no_user_namespace_does(machine: str) -> None:
    program, arch, calls = build_filter(NAMESPACED, machine), ARCHS[machine], CALLS[machine]
    assert run(program, arch, calls["clone"], (SIGCHLD,)) == "allow"
    assert run(program, arch, calls["clone"], (seccomp.CLONE_NEWUSER | SIGCHLD,)) == "EPERM"
    assert run(program, arch, calls["unshare"], (seccomp.CLONE_NEWUSER,)) == "EPERM"
    assert run(program, arch, calls["unshare"], (0x400,)) == "allow"
    assert run(program, arch, calls["clone3"]) == "ENOSYS"


@pytest.mark.parametrize("number", [0, 41, 250, 0x40000000 + 250])
def test_calls_of_another_architecture_end_the_process(number: int) -> None:
    for machine, other in (("x86_64", I386), ("x86_64", ARM), ("aarch64", X86), ("aarch64", I386)):
        assert run(build_filter(NAMESPACED, machine), other, number) == "kill"


@pytest.mark.parametrize("number", [0, 1, 41, 250, 512, 0x3FFFFFFF])
def test_the_x32_interface_is_refused(number: int) -> None:
    assert run(build_filter(NAMESPACED, "x86_64"), X86, 0x40000000 | number) == "ENOSYS"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_all_other_calls_are_allowed(machine: str) -> None:
    named = set(CALLS[machine].values())
    program = build_filter(NAMESPACED, machine)
    for number in range(600):
        if number not in named:
            assert run(program, ARCHS[machine], number) == "allow", number


@pytest.mark.parametrize(
    ("argv", "started"),
    [
        (["/usr/bin/bwrap", "--a", "x"], ["/usr/bin/bwrap", "--seccomp", "4", "--a", "x"]),
        (["/usr/bin/python3", "bwrap"], None),
    ],
)
def test_bubblewrap_loads_the_filter_itself(argv: list[str], started: list[str] | None) -> None:
    """Also for an order that an earlier version has saved: its plan has no filter."""
    plan = decode_plan({"argv": argv, "env": {}})
    assert plan.filter == NAMESPACED
    assert load_filter_inside(plan.argv) == started


def test_an_unknown_processor_has_no_filter() -> None:
    with pytest.raises(OSError, match="no system call filter for the processor sparc64"):
        build_filter(NAMESPACED, "sparc64")
