"""The process above the supervisor: when that was killed or broke, it starts another at once.

It does nothing but wait, so there is little it could die of. What the dead one kept is in the
memory that both share, and the lock of the data directory stays held in between, so that nobody
takes it for abandoned. One that leaves by itself, or was told to, is not followed by another.
Standard library only.
"""

import os
import signal
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

GROWN_UP_S: Final = 10.0
MOST_YOUNG: Final = 5
"""So many deaths in a row, each soon after the start: another one would fare no better."""
FIRST_PAUSE_S: Final = 0.1
ENDING: Final = (signal.SIGTERM, signal.SIGINT)
WATCHED: Final = (*ENDING, signal.SIGCHLD)


def keep(live: Callable[[int | None], None], ready: int, *, again: Callable[[str], bool]) -> None:
    """`live` is a supervisor's whole life, in a process of its own; the first one gets `ready`, a
    descriptor, to say that it is. `again` is asked after a death, with words for it, whether
    there shall be another."""
    for number in WATCHED:
        signal.signal(number, signal.SIG_DFL)  # What is inherited may hide deaths, or wishes.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    waiting: int | None = ready
    young = 0
    while True:
        began = os.times().elapsed
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            _live(live, waiting)
        if waiting is not None:
            os.close(waiting)
            waiting = None
        code, told = _end_of(child)
        young = 0 if os.times().elapsed - began > GROWN_UP_S else young + 1
        told |= -code in ENDING  # By somebody who was quicker than it could listen.
        if code == 0 or told or young > MOST_YOUNG or not again(f"ended with {code}"):
            return
        if signal.sigtimedwait(ENDING, FIRST_PAUSE_S * 2 ** (young - 1) if young > 1 else 0):
            return


def _live(live: Callable[[int | None], None], ready: int | None) -> NoReturn:
    code = 1
    try:
        live(ready)
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may get past the end of this process
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_of(child: int) -> tuple[int, bool]:
    """Its exit code, and whether somebody wanted it to end; that is passed on."""
    told = False
    while True:
        number = signal.sigwait(WATCHED)
        if number in ENDING:
            told = True
            os.kill(child, signal.SIGTERM)  # Not fetched yet, so the number is still its own.
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), told
