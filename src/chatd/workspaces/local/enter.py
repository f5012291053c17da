"""The door of a sandbox: a program that gives up what it has, then becomes the first process in it.

Reads a plan from its standard input, in this order: bind its life to its parent's, join control
groups, build the stage, change to the workspace's account, set limits, give up privileges, exec.
Between here and there is no way back, and a step that fails ends it: never a weaker sandbox than
was asked for. Standard library only.
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

from chatd.workspaces.local import kernel, landlock
from chatd.workspaces.local.plan import CONFIG_FD, Plan, decode_plan

FAILED: Final = 126
STAGE_SIZE: Final = "64k"
PIPE_BYTES: Final = 65_536
"""What every pipe holds; most can be made larger."""

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
        sys.exit(FAILED)


def enter(plan: Plan) -> None:
    live_with(plan.parent)
    for group in plan.cgroups:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    if plan.stage:
        set_stage(plan.stage, plan.binds)
    hand_over_config(plan.config)
    quiet_stdin()
    # Counted before the account is changed; for an account of its own there is nobody else.
    others = tasks_of(os.getuid()) if plan.uid is None and "nproc" in plan.limits else 0
    if plan.uid is not None:
        become(plan.uid)
        live_with(plan.parent)  # The kernel forgets it when the account changes.
    set_limits(plan.limits, others=others)
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    os.umask(0o022)
    os.chdir(plan.cwd)
    if plan.fence is not None:
        landlock.close(plan.fence)
    os.execve(plan.argv[0], plan.argv, plan.env)


def live_with(parent: int) -> None:
    """Die when the parent does, also if it died before we asked for that."""
    kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError("whoever wanted this is gone")


def set_stage(stage: str, binds: list[list[str]]) -> None:
    """Show the binds where any account can pass, however closed the way to the originals is."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount("none", "/", flags=kernel.RECURSIVE | kernel.PRIVATE)
    opened = [
        (name, os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) for name, source in binds
    ]
    flags = kernel.NOSUID | kernel.NODEV
    kernel.mount("tmpfs", stage, "tmpfs", flags, f"size={STAGE_SIZE},mode=0711")
    for name, descriptor in opened:
        target = Path(stage, name)
        source = f"/proc/self/fd/{descriptor}"
        if Path(source).is_dir():
            target.mkdir(mode=0o711)
        else:
            target.touch(mode=0o644)
        kernel.mount(source, str(target), flags=kernel.BIND | kernel.RECURSIVE)
        os.close(descriptor)


def hand_over_config(text: str) -> None:
    """In a pipe: once read it is gone, so nobody finds it in /proc later."""
    data = text.encode()
    reader, writer = os.pipe()
    if len(data) > PIPE_BYTES:
        with contextlib.suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, len(data))
    os.set_blocking(writer, False)
    if os.write(writer, data) != len(data):
        raise ValueError("the configuration is too long for a pipe")
    os.close(writer)
    if reader != CONFIG_FD:
        os.dup2(reader, CONFIG_FD, inheritable=True)
        os.close(reader)
    else:
        os.set_inheritable(reader, True)  # noqa: FBT003 - the only way to say it


def quiet_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0, inheritable=True)
    if nothing > 2 and nothing != CONFIG_FD:
        os.close(nothing)


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def set_limits(limits: dict[str, int], *, others: int) -> None:
    for name, wanted in limits.items():
        which = LIMITS[name]
        _, hard = resource.getrlimit(which)
        value = wanted + others if name == "nproc" else wanted
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def tasks_of(uid: int) -> int:
    """The kernel counts the tasks of an account, so those it has already must be allowed for."""
    count = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # It may end while we look.
            if process.stat().st_uid == uid:
                count += sum(1 for _ in Path(process, "task").iterdir())
    return count


if __name__ == "__main__":
    main()
