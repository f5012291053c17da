"""The orders of a supervisor, saved for the one that replaces it after a crash.

In anonymous memory and never on disk, because orders contain keys. The process that restarts the
supervisor holds it open. There are two copies, so that a writer killed in the middle of a write
leaves the previous orders intact. Standard library only.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Final

NEVER_WRITTEN: Final = 0
WRITE_FAILED: Final = 3


class SavedOrders:
    """Lines without line ends. Created before the fork and used by both processes."""

    def __init__(self) -> None:
        self._copies = (os.memfd_create("orders"), os.memfd_create("orders"))
        self._selector = os.memfd_create("which")
        self._select(NEVER_WRITTEN)

    @property
    def is_started(self) -> bool:
        """Whether a supervisor has ever written orders."""
        return self._selected() != NEVER_WRITTEN

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace all lines. A failed write leaves none: a stopped sandbox must not restart."""
        number = 2 if self._selected() == 1 else 1
        copy = self._copies[number - 1]
        data = memoryview(b"".join(line + b"\n" for line in lines))
        try:
            os.truncate(copy, 0)
            written = 0
            while written < len(data):
                written += os.pwrite(copy, data[written:], written)
        except OSError:
            number = WRITE_FAILED
        self._select(number)
        with contextlib.suppress(OSError):
            os.truncate(self._copies[0 if number == 2 else 1], 0)

    def read(self) -> list[bytes]:
        number = self._selected()
        if number not in (1, 2):
            return []
        copy = self._copies[number - 1]
        return os.pread(copy, os.fstat(copy).st_size, 0).splitlines()

    def _selected(self) -> int:
        return os.pread(self._selector, 1, 0)[0]

    def _select(self, number: int) -> None:
        os.pwrite(self._selector, bytes([number]), 0)  # One byte: atomic.
