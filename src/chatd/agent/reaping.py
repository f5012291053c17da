"""Being the first process: who is left without a parent must be buried by somebody.

Where the agent is the first process of a container, orphans become its children. It cannot bury
whatever child comes up without taking exit codes that others in it wait for; so it leaves a
second process behind that does nothing else. Elsewhere the first process is somebody else's.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def leave_init_behind() -> None:
    """Call it first, before any thread, secret or loop. Returns in the process to go on with."""
    # Whoever started us may have ignored it, and then exit codes are lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.getpid() != 1:
        return
    # Nothing may come between the fork and the handlers, or a signal would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    agent = os.fork()
    if agent == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        return
    _close_inherited()
    for number in _FORWARDED:
        signal.signal(number, lambda number, _frame: _forward(agent, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    os._exit(_bury_until(agent))


def _close_inherited() -> None:
    """What the agent was handed, such as its configuration, is not for others to find here."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) > 2:
                os.close(int(name))


def _forward(agent: int, number: int) -> None:
    # If it has just ended, so do we.
    with suppress(ProcessLookupError):
        os.kill(agent, number)


def _bury_until(agent: int) -> int:
    """The agent's exit code, as a shell would tell it."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
