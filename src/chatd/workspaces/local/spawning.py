"""Starting a process from a plan, through `enter`. Standard library only.

Owns the descriptors that the new process gets: a plan that cannot be read twice, and one pipe for
what it says. Must be called in the main thread: the child dies with the thread that made it.
"""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from chatd.workspaces.local import living
from chatd.workspaces.local.plan import Plan, plan_text

SOURCES: Final = Path(__file__).parents[3]
MODULE: Final = "chatd.workspaces.local.enter"
# Not the caller's: nothing of the server's environment comes even near a sandbox.
BARE: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


def python(module: str) -> list[str]:
    """A program of this package that needs nothing installed."""
    return [sys.executable, "-S", "-P", "-B", "-m", module]


def environment() -> dict[str, str]:
    return {**BARE, "PYTHONPATH": str(SOURCES)}


def spawn(plan: Plan, output: int) -> "subprocess.Popen[bytes]":
    """What the process says goes to `output`, a descriptor."""
    plan = replace(plan, parent=os.getpid())
    orders = os.memfd_create("plan")
    try:
        with os.fdopen(os.dup(orders), "wb") as file:
            file.write(plan_text(plan))
        os.lseek(orders, 0, os.SEEK_SET)
        return subprocess.Popen(
            python(MODULE),
            stdin=orders,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment(),
            start_new_session=True,
            close_fds=True,
        )
    finally:
        os.close(orders)


def end_inside(process: "subprocess.Popen[bytes]") -> None:
    """Kill the first process of the sandbox, not the one that waits for it outside: when that
    one has gone too, nobody is left inside."""
    if process.poll() is None:
        for pid in living.children_of(process.pid) or [process.pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
