"""The server's log file: a bound on its size, and its end for error messages.

The server appends to it for as long as it lives, so it is emptied in place, not replaced.
"""

import contextlib
import os
from typing import Final

from chatd.pg.dirs import OwnFile, open_file
from chatd.pg.places import Layout
from chatd.pg.process import last_lines

MAX_BYTES: Final = 8 * 1024 * 1024
KEPT_BYTES: Final = 1024 * 1024
TAIL_BYTES: Final = 16 * 1024


def open_log(layout: Layout) -> OwnFile:
    return open_file(layout.log, os.O_RDWR | os.O_APPEND)


def bound_log(layout: Layout, max_bytes: int = MAX_BYTES) -> None:
    """Past the limit, keep the end in `server.log.1` and begin again."""
    with contextlib.closing(open_log(layout)) as log:
        size = os.fstat(log.fd).st_size
        if size <= max_bytes:
            return
        end = os.pread(log.fd, KEPT_BYTES, max(0, size - KEPT_BYTES))
        old = open_file(layout.log.with_name("server.log.1"), os.O_WRONLY | os.O_TRUNC)
        with contextlib.closing(old):
            os.write(old.fd, end)
        os.ftruncate(log.fd, 0)


def log_size(log: OwnFile) -> int:
    return os.fstat(log.fd).st_size


def read_since(log: OwnFile, position: int) -> str:
    """What was written since then, at most the last few pages of it."""
    begin = max(position, log_size(log) - TAIL_BYTES)
    return os.pread(log.fd, TAIL_BYTES, begin).decode(errors="replace")


def end_of_log(layout: Layout) -> str:
    with contextlib.closing(open_log(layout)) as log:
        return f"{layout.log} ends with:\n{last_lines(read_since(log, 0))}"
