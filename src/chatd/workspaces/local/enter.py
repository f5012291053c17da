"""The program that turns itself into the first process of a sandbox. Standard library only.

Reads a plan from standard input, then in this order: ties its life to its parent's, joins control
groups, mounts the binds, switches to the workspace's account, leaves the server's keyring, sets
limits, gives up privileges, loads the system call filter, execs. A failed step ends the program:
the sandbox is never weaker than the plan requires.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from chatd.workspaces.local.supervisor import syscalls
from chatd.workspaces.local.supervisor.plan import (
    CONFIG_FD,
    FILTER_FD,
    FIRST_FILE_FD,
    ProcessPlan,
    decode_plan,
)
from chatd.workspaces.local.supervisor.seccomp import build_filter

ENTER_FAILED_EXIT_CODE: Final = 126
BUBBLEWRAP: Final = "bwrap"
STAGE_SIZE: Final = "64k"
DEFAULT_PIPE_BYTES: Final = 65_536

LIMITS: Final = {
    "nproc": resource.RLIMIT_NPROC,
    "nofile": resource.RLIMIT_NOFILE,
    "fsize": resource.RLIMIT_FSIZE,
    "core": resource.RLIMIT_CORE,
    "data": resource.RLIMIT_DATA,
}


def main() -> None:
    try:
        plan = decode_plan(json.loads(sys.stdin.buffer.read()))
        enter(plan)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"The sandbox could not be entered: {error}\n")
        sys.exit(ENTER_FAILED_EXIT_CODE)


def enter(plan: ProcessPlan) -> None:
    die_with_parent(plan.parent)
    for group in plan.cgroups:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    pass_files(plan.files)  # Before a mount may hide them.
    os.nice(plan.nice)
    if plan.stage:
        bind_mounts(plan.stage, plan.binds)
    pass_bytes(plan.config.encode(), CONFIG_FD)
    program = build_filter(plan.filter)
    argv = load_filter_inside(plan.argv)
    if argv is not None:
        pass_bytes(program, FILTER_FD)
    close_stdin()
    # Counted before the account changes; an account of its own has no other tasks.
    others = count_tasks(os.getuid()) if plan.uid is None and "nproc" in plan.limits else 0
    if plan.uid is not None:
        if argv is None:  # Bubblewrap drops all capabilities inside the sandbox.
            syscalls.drop_capability_bounds()
        switch_account(plan.uid)
        die_with_parent(plan.parent)  # The kernel clears this when the account changes.
    syscalls.join_new_keyring()
    set_limits(plan.limits, others=others)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    os.umask(0o022)
    os.chdir(plan.cwd)
    if plan.fence is not None:
        syscalls.restrict_paths(plan.fence)
    if argv is None:
        syscalls.load_filter(program)
    os.execve(plan.argv[0], argv or plan.argv, plan.env)


def load_filter_inside(argv: list[str]) -> list[str] | None:
    """The command by which bubblewrap loads the filter from FILTER_FD once it has made its mounts.

    None for another program, which starts with the filter. Plans of earlier versions, which have no
    filter, get one too.
    """
    if Path(argv[0]).name != BUBBLEWRAP:
        return None
    return [argv[0], "--seccomp", str(FILTER_FD), *argv[1:]]


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process with its parent; fail if the parent is already gone."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError("the parent process has exited")


def bind_mounts(stage: str, binds: list[list[str]]) -> None:
    """Mount the sources where every account can reach them, even if their parents are closed."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    opened = [
        (name, os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) for name, source in binds
    ]
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("tmpfs", stage, "tmpfs", flags, f"size={STAGE_SIZE},mode=0711")
    for name, descriptor in opened:
        target = Path(stage, name)
        source = f"/proc/self/fd/{descriptor}"
        if Path(source).is_dir():
            target.mkdir(mode=0o711)
        else:
            target.touch(mode=0o644)
        syscalls.mount(source, str(target), flags=syscalls.MS_BIND | syscalls.MS_REC)
        os.close(descriptor)


def pass_bytes(data: bytes, target: int) -> None:
    """Pass it through a pipe: once read, the configuration cannot be found in /proc."""
    reader, writer = os.pipe()
    if len(data) > DEFAULT_PIPE_BYTES:
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, len(data))
    os.set_blocking(writer, False)
    if os.write(writer, data) != len(data):
        raise ValueError("the configuration is too long for a pipe")
    os.close(writer)
    if reader != target:
        os.dup2(reader, target, inheritable=True)
        os.close(reader)
    else:
        os.set_inheritable(reader, True)  # noqa: FBT003 - positional only


def pass_files(paths: list[str]) -> None:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    for target, path in enumerate(paths, FIRST_FILE_FD):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, target, inheritable=True)
        if opened != target:
            os.close(opened)


def close_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0, inheritable=True)
    if null > 2:
        os.close(null)


def switch_account(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def set_limits(limits: dict[str, int], *, others: int) -> None:
    for name, limit in limits.items():
        number = LIMITS[name]
        _, hard = resource.getrlimit(number)
        value = limit + others if name == "nproc" else limit
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(number, (value, value))


def count_tasks(uid: int) -> int:
    """Add the account's existing tasks to the limit, because the kernel counts them all."""
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # It may have exited.
                if process.stat().st_uid == uid:
                    count += sum(1 for _ in Path(process, "task").iterdir())
    return count


if __name__ == "__main__":
    main()
