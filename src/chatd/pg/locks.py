"""Who uses the server and who may start or stop it: two lock files and flock.

The kernel drops a flock when its holder dies, however it dies, so a killed process counts as gone
at once. The gate is held by the one process that starts or stops the server. The users file is
held shared by every user; whoever can hold it alone is the last. It is joined and left only
behind the gate.
"""

import contextlib
import fcntl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from chatd.pg.dirs import OwnFile, open_file
from chatd.pg.errors import PgError
from chatd.pg.waiting import Patience

# Longer than all that is done behind the gate: initdb, three starts, recovery, shutdown.
GATE_WAIT_S: Final = 480.0


class GateBusy(PgError):
    """Another process starts or stops the server and takes too long over it."""


@contextlib.asynccontextmanager
async def gate(path: Path, *, within_s: float = GATE_WAIT_S) -> AsyncGenerator[None]:
    """Hold the gate, waiting for whoever holds it now."""
    file = open_file(path)
    try:
        patience = Patience(within_s)
        while not _lock(file, fcntl.LOCK_EX):
            if not await patience.again():
                raise GateBusy(
                    f"Another chatd has held {path} for {within_s:.0f} s: it is starting or "
                    "stopping the database and does not get on. See server.log beside that file; "
                    "if that process hangs, end it and try again."
                )
        yield
    finally:
        file.close()


class Membership:
    """Our place among the users. To be made, and `is_last` to be asked, behind the gate."""

    def __init__(self, path: Path) -> None:
        self._file: OwnFile = open_file(path)
        if not _lock(self._file, fcntl.LOCK_SH):
            self._file.close()
            raise PgError(f"{path} is locked by a program that is not chatd. End it and try again.")

    def is_last(self) -> bool:
        """Whether nobody else is left. A "no" gives up our own place: only ask when leaving."""
        return _lock(self._file, fcntl.LOCK_EX)

    def leave(self) -> None:
        self._file.close()


def _lock(file: OwnFile, how: int) -> bool:
    try:
        fcntl.flock(file.fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise PgError(
            f"The data directory is on a file system without locks ({error.strerror}). "
            "Choose one on a local disk."
        ) from error
    return True
